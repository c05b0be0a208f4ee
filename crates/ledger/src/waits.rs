//! Why units waited: each unit's waiting time, by resource and cause.
//!
//! Waiting is attributed once a second, over a *batch* of snapshots: the interval since the previous
//! attribution. A scheduler that counts what had the CPU while a task waited ([`Snapshot::waited_for`]) is
//! believed. Otherwise the unit's waiting time is divided over those that had the resource in the batch, in
//! proportion to what they had, and marked as inferred.
//!
//! [`Snapshot::waited_for`]: commonhold_policy::Snapshot::waited_for

use std::collections::BTreeMap;

use commonhold_contract::{Contract, Resource, UnitId};
use commonhold_policy::share::split;
use commonhold_policy::{Occupant, WaitedFor};
use serde::{Deserialize, Serialize};

/// The time for which a unit waited for a resource, from one cause. The times of all causes of a resource sum
/// to the unit's whole waiting time for it, up to the last second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The resource.
    pub resource: Resource,
    /// Why the unit waited.
    #[serde(flatten)]
    pub cause: WaitCause,
    /// For CPUs, the sum over the unit's threads of the time that they were runnable without a CPU. For other
    /// resources, the time in which at least one of the unit's processes was stalled. In nanoseconds.
    pub ns: u64,
    /// The part of `ns` in which the unit had at least its entitlement: it wanted more than its part.
    #[serde(default)]
    pub beyond_ns: u64,
    /// The part of `ns` that is inferred from usage over the interval between two snapshots. The rest was
    /// counted event by event.
    #[serde(default)]
    pub inferred_ns: u64,
}

/// Why a unit waited for a resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum WaitCause {
    /// Its own threads or requests had the resource, sub-units included.
    Own,
    /// Another unit had the resource.
    Unit {
        /// The path of that unit.
        unit: String,
    },
    /// Further units had the resource, each of which had little of it. Only the largest causes are named.
    OtherUnits,
    /// Another unit had borrowed what the unit called back, and had not returned it yet.
    CallBack {
        /// The path of the borrower.
        unit: String,
    },
    /// The unit reached its own limit, or that of a unit that encloses it.
    Limit,
    /// Kernel threads, or processes in no unit, had the resource.
    Common,
    /// A task of a higher scheduling class of the kernel (real-time, deadline) had the CPU.
    HigherClass,
    /// The CPU was idle, or switched: the latency of a wake-up and a dispatch.
    Switch,
    /// The gate of the unit's gang was shut, since another gang's turn to use the memory bus had come.
    Gate,
    /// Not known.
    Unknown,
}

/// A [`WaitCause`] with numbers instead of paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    Own,
    Unit(UnitId),
    OtherUnits,
    CallBack(UnitId),
    Limit,
    Common,
    HigherClass,
    Switch,
    Gate,
    Unknown,
}

/// Time from one cause: see [`Wait`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Amount {
    pub(crate) ns: u64,
    pub(crate) beyond_ns: u64,
    pub(crate) inferred_ns: u64,
}

impl std::ops::AddAssign for Amount {
    fn add_assign(&mut self, other: Amount) {
        self.ns += other.ns;
        self.beyond_ns += other.beyond_ns;
        self.inferred_ns += other.inferred_ns;
    }
}

/// The most units that are named as causes of one unit's waits. Further ones are [`Cause::OtherUnits`], since
/// with a thousand units there would be a million pairs.
pub(crate) const NAMED_MAX: usize = 32;

/// Amounts by resource and cause.
pub(crate) type Amounts = BTreeMap<(Resource, Cause), Amount>;

/// A unit's waiting time for one resource that is to be attributed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waited {
    pub(crate) unit: UnitId,
    pub(crate) resource: Resource,
    pub(crate) ns: u64,
    /// Whether the unit had at least its entitlement in the batch.
    pub(crate) is_beyond: bool,
}

/// The waits of all units since the ledger was opened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waits {
    /// By [`UnitId::index`].
    units: Vec<Amounts>,
    /// The backend's counters at the previous batch; `None` before the first batch and after a reload, when
    /// the backend may restart them.
    counted: Option<BTreeMap<(UnitId, Occupant), u64>>,
}

impl Waits {
    /// Attributes waiting time that was counted or whose cause is certain.
    pub(crate) fn charge(&mut self, waited: Waited, cause: Cause, batch: &mut Vec<Amounts>) {
        let beyond_ns = if waited.is_beyond { waited.ns } else { 0 };
        self.add(waited, cause, Amount { ns: waited.ns, beyond_ns, inferred_ns: 0 }, batch);
    }

    /// Divides waiting time over causes, in proportion to their weights. Without any weight the cause is
    /// unknown.
    pub(crate) fn infer(&mut self, waited: Waited, weights: &[(Cause, u64)], batch: &mut Vec<Amounts>) {
        let amount = |ns| Amount { ns, beyond_ns: if waited.is_beyond { ns } else { 0 }, inferred_ns: ns };
        let numbers: Vec<u64> = weights.iter().map(|(_, weight)| *weight).collect();
        if numbers.iter().all(|weight| *weight == 0) {
            self.add(waited, Cause::Unknown, amount(waited.ns), batch);
            return;
        }
        for ((cause, _), ns) in weights.iter().zip(split(waited.ns, &numbers)) {
            self.add(waited, *cause, amount(ns), batch);
        }
    }

    fn add(&mut self, waited: Waited, cause: Cause, amount: Amount, batch: &mut Vec<Amounts>) {
        if amount.ns == 0 {
            return;
        }
        for units in [&mut self.units, batch] {
            let index = waited.unit.index();
            if units.len() <= index {
                units.resize(index + 1, Amounts::new());
            }
            let amounts = &mut units[index];
            let is_named = matches!(cause, Cause::Unit(_) | Cause::CallBack(_));
            let is_full =
                || amounts.len() >= 4 * NAMED_MAX && !amounts.contains_key(&(waited.resource, cause));
            let cause = if is_named && is_full() { Cause::OtherUnits } else { cause };
            *amounts.entry((waited.resource, cause)).or_default() += amount;
        }
    }

    /// Attributes the waits that the backend counted since the previous batch. `own` is the cause of a unit's
    /// waits for its own threads: at its limit, the limit makes them wait. `is_beyond` tells whether a
    /// unit had at least its entitlement in the batch.
    pub(crate) fn count(
        &mut self,
        waited_for: &[WaitedFor],
        own: impl Fn(UnitId) -> Cause,
        is_beyond: impl Fn(UnitId) -> bool,
        batch: &mut Vec<Amounts>,
    ) {
        let counters: BTreeMap<(UnitId, Occupant), u64> =
            waited_for.iter().map(|wait| ((wait.waiter, wait.occupant), wait.ns)).collect();
        let Some(before) = self.counted.replace(counters) else { return };
        for WaitedFor { waiter, occupant, ns } in waited_for {
            let cause = match occupant {
                Occupant::Unit(unit) if unit == waiter => own(*waiter),
                Occupant::Unit(unit) if unit.is_common() => Cause::Common,
                Occupant::Unit(unit) => Cause::Unit(*unit),
                Occupant::HigherClass => Cause::HigherClass,
                Occupant::Idle => Cause::Switch,
                Occupant::Unknown => Cause::Unknown,
            };
            let ns = ns.saturating_sub(before.get(&(*waiter, *occupant)).copied().unwrap_or(0));
            let waited = Waited { unit: *waiter, resource: Resource::Cpu, ns, is_beyond: is_beyond(*waiter) };
            self.charge(waited, cause, batch);
        }
    }

    /// Takes the backend's next counters as the baseline, since it may restart them.
    pub(crate) fn rebase(&mut self) {
        self.counted = None;
    }

    /// Drops the waits of units that left the contract, and attributes waits for such units to an unknown
    /// cause.
    pub(crate) fn adopt(&mut self, contract: &Contract) {
        for (id, amounts) in (0u32..).map(UnitId).zip(&mut self.units) {
            if !contract.has(id) {
                amounts.clear();
            }
            let gone = |cause: &Cause| matches!(cause, Cause::Unit(unit) | Cause::CallBack(unit) if !contract.has(*unit));
            let kept = std::mem::take(amounts).into_iter().map(|((resource, cause), amount)| {
                ((resource, if gone(&cause) { Cause::Unknown } else { cause }), amount)
            });
            for (key, amount) in kept.collect::<Vec<_>>() {
                *amounts.entry(key).or_default() += amount;
            }
        }
    }

    /// Adds the waits of a unit that ended to those of its encloser.
    pub(crate) fn close_into(&mut self, unit: UnitId, encloser: UnitId) {
        let Some(amounts) = self.units.get_mut(unit.index()).map(std::mem::take) else { return };
        if self.units.len() <= encloser.index() {
            self.units.resize(encloser.index() + 1, Amounts::new());
        }
        for (key, amount) in amounts {
            *self.units[encloser.index()].entry(key).or_default() += amount;
        }
    }

    /// The waits of a unit and its sub-units, which are `family`, by resource and then by falling time.
    pub(crate) fn of_family(&self, contract: &Contract, family: &[UnitId]) -> Vec<Wait> {
        let waits = sum_family(&self.units, family);
        let mut waits: Vec<Wait> = waits
            .into_iter()
            .map(|((resource, cause), Amount { ns, beyond_ns, inferred_ns })| Wait {
                resource,
                cause: named(contract, cause),
                ns,
                beyond_ns,
                inferred_ns,
            })
            .collect();
        waits.sort_by(|a, b| {
            (a.resource, std::cmp::Reverse(a.ns), &a.cause).cmp(&(
                b.resource,
                std::cmp::Reverse(b.ns),
                &b.cause,
            ))
        });
        waits
    }
}

/// The sum over a family of units, whose waits for each other are their own.
pub(crate) fn sum_family(units: &[Amounts], family: &[UnitId]) -> Amounts {
    let mut sum = Amounts::new();
    for amounts in family.iter().filter_map(|id| units.get(id.index())) {
        for ((resource, cause), amount) in amounts {
            let cause = match cause {
                Cause::Unit(unit) | Cause::CallBack(unit) if family.binary_search(unit).is_ok() => Cause::Own,
                other => *other,
            };
            *sum.entry((*resource, cause)).or_default() += *amount;
        }
    }
    sum
}

/// The cause with the unit's path.
pub(crate) fn named(contract: &Contract, cause: Cause) -> WaitCause {
    let path = |unit: UnitId| {
        contract.units.get(unit.index()).map_or_else(|| "?".to_owned(), |unit| unit.path.clone())
    };
    match cause {
        Cause::Own => WaitCause::Own,
        Cause::Unit(unit) => WaitCause::Unit { unit: path(unit) },
        Cause::OtherUnits => WaitCause::OtherUnits,
        Cause::CallBack(unit) => WaitCause::CallBack { unit: path(unit) },
        Cause::Limit => WaitCause::Limit,
        Cause::Common => WaitCause::Common,
        Cause::HigherClass => WaitCause::HigherClass,
        Cause::Switch => WaitCause::Switch,
        Cause::Gate => WaitCause::Gate,
        Cause::Unknown => WaitCause::Unknown,
    }
}

/// The cause of a wait of another unit while `unit` had the resource.
pub(crate) fn had_by(unit: UnitId) -> Cause {
    if unit.is_common() { Cause::Common } else { Cause::Unit(unit) }
}

/// What had a resource in a batch: the largest occupants, and the rest.
#[derive(Debug, Clone, Default)]
pub(crate) struct Occupants {
    largest: Vec<(Cause, u64)>,
    rest: u64,
}

impl Occupants {
    /// Of all occupants, each with the amount that it had.
    pub(crate) fn of(all: impl IntoIterator<Item = (Cause, u64)>) -> Occupants {
        let mut largest: Vec<(Cause, u64)> = all.into_iter().filter(|(_, had)| *had > 0).collect();
        largest.sort_by_key(|(cause, had)| (std::cmp::Reverse(*had), *cause));
        let rest = largest.split_off(largest.len().min(NAMED_MAX)).into_iter().map(|(_, had)| had).sum();
        Occupants { largest, rest }
    }

    /// The causes of a wait of `unit`, which itself had `own`; `own_cause` is the cause of waits for its own
    /// threads or requests.
    pub(crate) fn causes(&self, unit: UnitId, own_cause: Cause, own: u64) -> Vec<(Cause, u64)> {
        let is_listed = self.largest.iter().any(|(cause, _)| *cause == Cause::Unit(unit));
        let rest = if is_listed { self.rest } else { self.rest.saturating_sub(own) };
        let others = self.largest.iter().copied().filter(|(cause, _)| *cause != Cause::Unit(unit));
        others.chain([(own_cause, own), (Cause::OtherUnits, rest)]).collect()
    }
}
