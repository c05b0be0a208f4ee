//! Verdicts: whether the contract is kept for a unit and a resource.
//!
//! A verdict is about the last [`WINDOW_NS`], which consists of *batches* of a second each. It compares a
//! unit's entitlement with its use, and asks what the unit waited for. A unit that waited only for its own
//! threads, or at its own limit, was not kept from its part by anybody.

use std::collections::VecDeque;

use commonhold_contract::{Contract, Resource, UnitId};
use commonhold_policy::Time;
use commonhold_policy::share::part_of;
use serde::{Deserialize, Serialize};

use crate::bus::BusTotals;
use crate::waits::{Amounts, Cause, WaitCause, named, sum_family};

/// Whether the contract is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The unit had what it wanted, or all that it is entitled to.
    Kept,
    /// What was observed does not suffice to tell.
    CannotTell,
    /// The unit wanted more than it had, and had less than its entitlement; or a call-back exceeded its
    /// promise.
    Broken,
}

/// The verdict on one resource of a unit, over the last [`WINDOW_NS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The resource.
    pub resource: Resource,
    /// The verdict.
    pub verdict: Verdict,
    /// Why.
    #[serde(flatten)]
    pub reason: FindingReason,
    /// The unit's mean entitlement: millionths of a CPU, bytes of memory, or bytes per second of all disks or
    /// of the bus.
    pub entitled: u64,
    /// What the unit wanted, in the same measure; it may want more.
    pub wanted: u64,
    /// What the unit had, in the same measure.
    pub had: u64,
}

impl Finding {
    /// The finding on a resource that nothing holds, and of which the ledger cannot tell more.
    pub fn not_held(resource: Resource) -> Finding {
        let (verdict, reason) = (Verdict::CannotTell, FindingReason::NotHeld);
        Finding { resource, verdict, reason, entitled: 0, wanted: 0, had: 0 }
    }
}

/// The length of the window that verdicts are about, in nanoseconds.
pub const WINDOW_NS: u64 = 10_000_000_000;

/// Why a verdict is what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
pub enum FindingReason {
    /// Kept: the unit had all that it wanted.
    HadWanted,
    /// Kept: the unit had its entitlement.
    HadEntitlement,
    /// Kept: the unit's own limit, or its own use, kept it from its part.
    OwnDoing {
        /// [`WaitCause::Limit`] or [`WaitCause::Own`].
        by: WaitCause,
    },
    /// Broken: `by` had what the unit was entitled to.
    Short {
        /// The largest cause of the shortfall.
        by: WaitCause,
        /// Of the time that the unit waited in the window, the part of this cause, in nanoseconds.
        waited_ns: u64,
    },
    /// Broken: a call-back took longer than promised.
    Late {
        /// The promised time, in nanoseconds.
        promised_ns: u64,
        /// The longest call-back of the window, in nanoseconds.
        took_ns: u64,
        /// The number of late call-backs in the window.
        count: u64,
    },
    /// Cannot tell: the accounts are younger than the window.
    TooEarly,
    /// Nothing holds the resource on this machine, or under this backend. Broken if the unit was short of it;
    /// otherwise, cannot tell.
    NotHeld,
    /// Cannot tell: the kernel does not report how long the unit's threads waited.
    NoWaits,
    /// Cannot tell: the unit was short, and the cause of most of its waiting is not known.
    UnknownCause,
}

/// The length of a batch, in nanoseconds; longer if snapshots are further apart.
pub(crate) const BATCH_NS: Time = 1_000_000_000;

/// The shortfall that a verdict tolerates, in percent of what the unit was entitled to and wanted. Samples
/// of use and entitlement are not taken at the same moment.
const TOLERANCE_PERCENT: u64 = 5;

/// The least CPU time that a unit must have missed in a second for a broken verdict, in nanoseconds: a
/// hundredth of a CPU.
const MISSED_NS_MIN: u64 = 10_000_000;

/// The least stall time in a second for a broken verdict on memory or disks, in nanoseconds.
const STALLED_NS_MIN: u64 = 20_000_000;

/// What one unit was entitled to and had in a batch, sub-units excluded except where stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct UnitBatch {
    /// CPU time used, in nanoseconds.
    pub(crate) cpu_used: u64,
    /// CPU time that the unit was entitled to, sub-units included.
    pub(crate) cpu_entitled: u64,
    /// Whether it had more runnable threads than it used CPUs, although the kernel reported no waiting.
    pub(crate) waits_unseen: bool,
    /// The longest CPU call-back that exceeded the promise, and the number of such call-backs.
    pub(crate) cpu_late: (u64, u64),
    /// Memory, integrated over the batch, in byte-nanoseconds: entitlement and use; `None` if memory is not
    /// sampled.
    pub(crate) memory: Option<(u128, u128)>,
    /// Whether the unit wanted more memory than it was allowed at the end of the batch.
    pub(crate) is_short_of_memory: bool,
    /// Late call-backs of memory in the batch, and promise and duration of the last one.
    pub(crate) memory_late: (u64, (u64, u64)),
    /// Disk bytes: entitlement and use; `None` if no disk is sampled.
    pub(crate) disk: Option<(u64, u64)>,
    /// Transfers on the memory bus, of outermost units, sub-units included; `None` if they are not known.
    pub(crate) bus: Option<BusTotals>,
}

/// One batch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batch {
    pub(crate) length: Time,
    /// By [`UnitId::index`].
    pub(crate) units: Vec<UnitBatch>,
    /// The waits attributed in the batch, by [`UnitId::index`].
    pub(crate) waits: Vec<Amounts>,
}

/// The batches of the window, the latest last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Window {
    batches: VecDeque<Batch>,
}

/// A unit's sums over the window.
struct Sums {
    length: Time,
    unit: UnitBatch,
    waits: Amounts,
}

impl Window {
    /// Adds a batch, and drops those that the window no longer needs.
    pub(crate) fn push(&mut self, batch: Batch) {
        self.batches.push_back(batch);
        let mut length: Time = self.batches.iter().map(|batch| batch.length).sum();
        while let Some(first) = self.batches.front()
            && length - first.length >= WINDOW_NS
        {
            length -= first.length;
            self.batches.pop_front();
        }
    }

    /// Adds what a unit that ended had to its encloser's sums.
    pub(crate) fn close_into(&mut self, unit: UnitId, encloser: UnitId) {
        for batch in &mut self.batches {
            let Some(part) = batch.units.get_mut(unit.index()).map(std::mem::take) else { continue };
            let amounts = batch.waits.get_mut(unit.index()).map(std::mem::take).unwrap_or_default();
            let Some(whole) = batch.units.get_mut(encloser.index()) else { continue };
            whole.cpu_used += part.cpu_used;
            if let (Some(sum), Some(part)) = (&mut whole.disk, part.disk) {
                (sum.0, sum.1) = (sum.0 + part.0, sum.1 + part.1);
            }
            if let (Some(sum), Some(part)) = (&mut whole.memory, part.memory) {
                (sum.0, sum.1) = (sum.0 + part.0, sum.1 + part.1);
            }
            if batch.waits.len() <= encloser.index() {
                batch.waits.resize(encloser.index() + 1, Amounts::new());
            }
            for (key, amount) in amounts {
                *batch.waits[encloser.index()].entry(key).or_default() += amount;
            }
        }
    }

    /// Forgets everything: a reload changed what units are entitled to.
    pub(crate) fn clear(&mut self) {
        self.batches.clear();
    }

    /// The sums over a unit and its sub-units, which are `family`.
    fn sums(&self, unit: UnitId, family: &[UnitId]) -> Sums {
        let mut sums = Sums { length: 0, unit: UnitBatch::default(), waits: Amounts::new() };
        for batch in &self.batches {
            sums.length += batch.length;
            for (key, amount) in sum_family(&batch.waits, family) {
                *sums.waits.entry(key).or_default() += amount;
            }
            let whole = &mut sums.unit;
            for id in family {
                let Some(part) = batch.units.get(id.index()) else { continue };
                whole.cpu_used += part.cpu_used;
                whole.waits_unseen |= part.waits_unseen;
                whole.cpu_late.0 = whole.cpu_late.0.max(part.cpu_late.0);
                whole.cpu_late.1 += part.cpu_late.1;
                if let Some((entitled, used)) = part.memory {
                    let sum = whole.memory.get_or_insert_default();
                    (sum.0, sum.1) = (sum.0 + entitled, sum.1 + used);
                }
                whole.is_short_of_memory |= part.is_short_of_memory;
                if part.memory_late.0 > 0 {
                    let longest = part.memory_late.1.max(whole.memory_late.1);
                    whole.memory_late = (whole.memory_late.0 + part.memory_late.0, longest);
                }
                if let Some((entitled, used)) = part.disk {
                    let sum = whole.disk.get_or_insert_default();
                    (sum.0, sum.1) = (sum.0 + entitled, sum.1 + used);
                }
            }
            if let Some(part) = batch.units.get(unit.index()).and_then(|unit| unit.bus) {
                let sum = whole.bus.get_or_insert_default();
                (sum.entitled, sum.used) = (sum.entitled + part.entitled, sum.used + part.used);
                (sum.due, sum.most) = (sum.due + part.due, part.most);
            }
            whole.cpu_entitled += batch.units.get(unit.index()).map_or(0, |own| own.cpu_entitled);
        }
        sums
    }

    /// The unit other than `short` that transferred most beyond its entitlement on the memory bus, in the
    /// last batch in which one did.
    fn largest_on_bus(&self, short: UnitId) -> Option<UnitId> {
        let borrowed = |batch: &Batch| {
            let of = |unit: &UnitBatch| unit.bus.map_or(0, |bus| bus.borrowed);
            let units = batch.units.iter().zip((0..).map(UnitId)).filter(|(_, id)| *id != short);
            let (most, unit) = units.map(|(unit, id)| (of(unit), id)).max()?;
            (most > 0).then_some(unit)
        };
        self.batches.iter().rev().find_map(borrowed)
    }

    /// The verdicts on a unit: on CPUs; on memory and disks if they were sampled; and on the bus if the
    /// unit's transfers are known.
    pub(crate) fn findings(&self, contract: &Contract, unit: UnitId, family: &[UnitId]) -> Vec<Finding> {
        let sums = self.sums(unit, family);
        let late = Late { call_back_ns: contract.machine.call_back_ns };
        let bus = sums.bus(|| self.largest_on_bus(unit));
        let findings = [Some(sums.cpu(late)), sums.memory(), sums.disk(), bus];
        let resources = [Resource::Cpu, Resource::Memory, Resource::Disk, Resource::Bus];
        let named = |(resource, finding): (Resource, Option<Judged>)| {
            let Judged { verdict, reason, entitled, wanted, had } = finding?;
            let reason = match reason {
                Why::Short { by, waited_ns } => FindingReason::Short { by: named(contract, by), waited_ns },
                Why::OwnDoing(by) => FindingReason::OwnDoing { by: named(contract, by) },
                Why::Other(reason) => reason,
            };
            Some(Finding { resource, verdict, reason, entitled, wanted, had })
        };
        resources.into_iter().zip(findings).filter_map(named).collect()
    }
}

/// The promises of call-backs.
#[derive(Clone, Copy)]
struct Late {
    /// Of a CPU.
    call_back_ns: u64,
}

/// A [`Finding`] with numbers instead of paths.
struct Judged {
    verdict: Verdict,
    reason: Why,
    entitled: u64,
    wanted: u64,
    had: u64,
}

enum Why {
    Short { by: Cause, waited_ns: u64 },
    OwnDoing(Cause),
    Other(FindingReason),
}

/// What a unit had, compared with what it wanted and was entitled to.
enum Outcome {
    HadWanted,
    HadEntitlement,
    /// Neither.
    Short(Explained),
}

/// The waits that explain why a unit was short.
enum Explained {
    Others,
    /// Only if the waits of unknown cause were for others.
    Unknowns,
    /// Neither: its own limit or its own threads.
    Itself,
}

impl Outcome {
    fn short(by_others: bool, by_unknown: bool) -> Outcome {
        Outcome::Short(match (by_others, by_unknown) {
            (true, _) => Explained::Others,
            (false, true) => Explained::Unknowns,
            (false, false) => Explained::Itself,
        })
    }
}

/// What kept a unit from a resource, of the waits of a window.
struct Blame {
    /// Waits for which others are responsible.
    others_ns: u64,
    /// Waits of unknown cause.
    unknown_ns: u64,
    /// All waits.
    all_ns: u64,
    /// The largest cause among others, and its time.
    largest: (Cause, u64),
    /// The larger of the two causes that are the unit's own doing.
    own: Cause,
}

impl Sums {
    fn blame(&self, resource: Resource) -> Blame {
        let waits = || {
            let of_resource = self.waits.iter().filter(|((of, _), _)| *of == resource);
            of_resource.map(|((_, cause), amount)| (*cause, amount.ns))
        };
        let total =
            |keep: fn(Cause) -> bool| waits().filter(|(cause, _)| keep(*cause)).map(|(_, ns)| ns).sum();
        let is_other = |cause: Cause| {
            matches!(
                cause,
                Cause::Unit(_)
                    | Cause::OtherUnits
                    | Cause::CallBack(_)
                    | Cause::Common
                    | Cause::HigherClass
                    | Cause::Gate
            )
        };
        let limit_ns: u64 = total(|cause| cause == Cause::Limit);
        let own_ns: u64 = total(|cause| cause == Cause::Own);
        Blame {
            others_ns: total(is_other),
            unknown_ns: total(|cause| cause == Cause::Unknown),
            all_ns: total(|_| true),
            largest: waits()
                .filter(|(cause, _)| is_other(*cause))
                .max_by_key(|(cause, ns)| (*ns, std::cmp::Reverse(*cause)))
                .unwrap_or((Cause::Unknown, 0)),
            own: if limit_ns > own_ns { Cause::Limit } else { Cause::Own },
        }
    }

    /// Whether the sums cover enough time for a verdict.
    fn is_too_early(&self) -> bool {
        self.length < WINDOW_NS
    }

    /// The verdict on what a unit had.
    fn judge(outcome: &Outcome, blame: &Blame) -> (Verdict, Why) {
        match outcome {
            Outcome::HadWanted => (Verdict::Kept, Why::Other(FindingReason::HadWanted)),
            Outcome::HadEntitlement => (Verdict::Kept, Why::Other(FindingReason::HadEntitlement)),
            Outcome::Short(Explained::Others) => {
                let (by, waited_ns) = blame.largest;
                (Verdict::Broken, Why::Short { by, waited_ns })
            }
            Outcome::Short(Explained::Unknowns) => {
                (Verdict::CannotTell, Why::Other(FindingReason::UnknownCause))
            }
            Outcome::Short(Explained::Itself) => (Verdict::Kept, Why::OwnDoing(blame.own)),
        }
    }

    fn cpu(&self, promise: Late) -> Judged {
        let per_second = |ns| part_of(ns, 1_000_000, self.length.max(1));
        let blame = self.blame(Resource::Cpu);
        let (had, entitled) = (self.unit.cpu_used, self.unit.cpu_entitled);
        let wanted = had.saturating_add(blame.all_ns);
        let due = entitled.min(wanted);
        let shortfall = due.saturating_sub(had);
        let least = part_of(due, TOLERANCE_PERCENT, 100).max(part_of(MISSED_NS_MIN, self.length, BATCH_NS));
        let (took_ns, count) = self.unit.cpu_late;
        let (verdict, reason) = if self.is_too_early() {
            (Verdict::CannotTell, Why::Other(FindingReason::TooEarly))
        } else if self.unit.waits_unseen && blame.all_ns == 0 && had < part_of(entitled, 95, 100) {
            (Verdict::CannotTell, Why::Other(FindingReason::NoWaits))
        } else {
            let missed = |ns: u64| shortfall.min(ns) > least;
            let outcome = if blame.all_ns <= part_of(had, 2, 100) {
                Outcome::HadWanted
            } else if shortfall <= least {
                Outcome::HadEntitlement
            } else {
                Outcome::short(missed(blame.others_ns), missed(blame.others_ns + blame.unknown_ns))
            };
            Sums::judge(&outcome, &blame)
        };
        let (verdict, reason) = match verdict {
            Verdict::Kept if count > 0 => {
                let promised_ns = promise.call_back_ns;
                (Verdict::Broken, Why::Other(FindingReason::Late { promised_ns, took_ns, count }))
            }
            _ => (verdict, reason),
        };
        Judged {
            verdict,
            reason,
            entitled: per_second(entitled),
            wanted: per_second(wanted),
            had: per_second(had),
        }
    }

    fn memory(&self) -> Option<Judged> {
        let (entitled, used) = self.unit.memory?;
        let mean =
            |integral: u128| u64::try_from(integral / u128::from(self.length.max(1))).unwrap_or(u64::MAX);
        let (entitled, had) = (mean(entitled), mean(used));
        let blame = self.blame(Resource::Memory);
        let least = part_of(STALLED_NS_MIN, self.length, BATCH_NS);
        let wants_more = self.unit.is_short_of_memory || blame.all_ns > least;
        let wanted = if wants_more { had.max(entitled) } else { had };
        let (count, (promised_ns, took_ns)) = self.unit.memory_late;
        let (verdict, reason) = if self.is_too_early() {
            (Verdict::CannotTell, Why::Other(FindingReason::TooEarly))
        } else {
            let outcome = if !wants_more {
                Outcome::HadWanted
            } else if had >= part_of(entitled, 100 - TOLERANCE_PERCENT, 100) {
                Outcome::HadEntitlement
            } else {
                Outcome::short(blame.others_ns > least, blame.unknown_ns > least)
            };
            Sums::judge(&outcome, &blame)
        };
        let (verdict, reason) = match verdict {
            Verdict::Kept if count > 0 => {
                (Verdict::Broken, Why::Other(FindingReason::Late { promised_ns, took_ns, count }))
            }
            _ => (verdict, reason),
        };
        Some(Judged { verdict, reason, entitled, wanted, had })
    }

    fn disk(&self) -> Option<Judged> {
        let (entitled, used) = self.unit.disk?;
        let rate = |bytes| part_of(bytes, 1_000_000_000, self.length.max(1));
        let blame = self.blame(Resource::Disk);
        let least = part_of(STALLED_NS_MIN, self.length, BATCH_NS);
        let had_wanted = blame.all_ns <= least;
        let (verdict, reason) = if self.is_too_early() {
            (Verdict::CannotTell, Why::Other(FindingReason::TooEarly))
        } else {
            let outcome = if had_wanted {
                Outcome::HadWanted
            } else if used >= part_of(entitled, 100 - TOLERANCE_PERCENT, 100) {
                Outcome::HadEntitlement
            } else {
                Outcome::short(blame.others_ns > least, blame.unknown_ns > least)
            };
            Sums::judge(&outcome, &blame)
        };
        let wanted = if had_wanted { used } else { used.max(entitled) };
        Some(Judged { verdict, reason, entitled: rate(entitled), wanted: rate(wanted), had: rate(used) })
    }

    /// `largest` is the other unit that transferred most beyond its entitlement.
    fn bus(&self, largest: impl Fn() -> Option<UnitId>) -> Option<Judged> {
        let BusTotals { entitled, used, due, most, .. } = self.unit.bus?;
        let rate = |bytes| part_of(bytes, 1_000_000_000, self.length.max(1));
        let blame = self.blame(Resource::Bus);
        let is_gated = blame.all_ns > part_of(STALLED_NS_MIN, self.length, BATCH_NS);
        let (verdict, reason) = if self.is_too_early() {
            (Verdict::CannotTell, Why::Other(FindingReason::TooEarly))
        } else if used >= part_of(entitled, 100 - TOLERANCE_PERCENT, 100) {
            let reason = if is_gated { FindingReason::HadEntitlement } else { FindingReason::HadWanted };
            (Verdict::Kept, Why::Other(reason))
        } else if used >= part_of(due, 100 - TOLERANCE_PERCENT, 100) {
            (Verdict::Kept, Why::Other(FindingReason::HadWanted))
        } else if rate(used) >= part_of(most, 100 - TOLERANCE_PERCENT, 100) {
            (Verdict::Kept, Why::OwnDoing(Cause::Limit))
        } else {
            // The quanta in which its gang waited, for units that were short before it, or what others
            // transferred beyond their parts.
            let by = if is_gated { Some(Cause::Gate) } else { largest().map(Cause::Unit) };
            let waited_ns = blame.all_ns;
            match by {
                Some(by) => (Verdict::Broken, Why::Short { by, waited_ns }),
                None => (Verdict::CannotTell, Why::Other(FindingReason::UnknownCause)),
            }
        };
        let wanted = used.max(due);
        Some(Judged { verdict, reason, entitled: rate(entitled), wanted: rate(wanted), had: rate(used) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use commonhold_machine::Machine;
    use commonhold_policy::plan::{CpuPlan, Decisions};
    use commonhold_policy::{MS, Occupant, Plan, Snapshot, UnitFacts, WaitedFor};

    use super::*;
    use crate::waits::Amount;
    use crate::{Ledger, Statement, Wait};

    const PHYSICS: UnitId = UnitId(2);
    const STUDENTS: UnitId = UnitId(3);

    /// Per second, in milliseconds: CPU time used by physics and students, time that physics waited, its part
    /// at a limit, and CPU time of processes in no unit.
    #[derive(Clone, Copy, Default)]
    struct Second {
        used: [u64; 2],
        waited: u64,
        limited: u64,
        common: u64,
        /// The contract's limit for physics, in millionths of a CPU.
        limit: Option<u64>,
    }

    /// A machine of two CPUs on which physics is entitled to 0.72 CPUs, after `seconds` seconds of the same.
    /// With `counted`, the scheduler counts what had the CPU: fractions of the waiting time in percent.
    fn run(seconds: u64, second: Second, counted: &[(Occupant, u64)]) -> Statement {
        let mut contract = Contract::default();
        assert_eq!([contract.add(None, "physics"), contract.add(None, "students")], [PHYSICS, STUDENTS]);
        contract.units[PHYSICS.index()].limit.cpu = second.limit.map(commonhold_contract::Amount::Absolute);
        let machine = Machine::synthetic("cpus:2 memory:1GiB").unwrap();
        let mut ledger = Ledger::open(&contract, &machine);
        let cpu = CpuPlan { entitled: vec![0, 0, 720_000, 1_280_000], ..CpuPlan::default() };
        let plan = Plan { decisions: Decisions { cpu, ..Decisions::default() }, ..Plan::default() };
        for at in 0..=seconds {
            let facts = |used: u64, waited: u64, limited: u64| UnitFacts {
                at: at * 1_000 * MS,
                processes: 1,
                runnable: 1,
                used_ns: used * at * MS,
                waited_ns: waited * at * MS,
                limited_ns: limited * at * MS,
                ..UnitFacts::default()
            };
            let Second { used, waited, limited, common, limit: _ } = second;
            let units = vec![
                UnitFacts::default(),
                facts(common, 0, 0),
                facts(used[0], waited, limited),
                facts(used[1], 0, 0),
            ];
            let waited_for = counted.iter().map(|(occupant, percent)| WaitedFor {
                waiter: PHYSICS,
                occupant: *occupant,
                ns: waited * at * MS * percent / 100,
            });
            let idle_ns = (2_000 - used[0] - used[1] - common) * at * MS;
            let snapshot = Snapshot {
                at: at * 1_000 * MS,
                units,
                idle_ns,
                waited_for: waited_for.collect(),
                ..Snapshot::default()
            };
            assert_eq!(ledger.observe(&contract, &machine, &snapshot), []);
            assert_eq!(ledger.book(&plan, snapshot.at), []);
        }
        ledger.statement(&contract)
    }

    fn cpu(statement: &Statement) -> Finding {
        statement.account("physics").unwrap().findings[0].clone()
    }

    fn waits(statement: &Statement) -> Vec<(WaitCause, u64, u64, u64)> {
        let waits = statement.account("physics").unwrap().waits.iter();
        waits
            .map(|Wait { cause, ns, beyond_ns, inferred_ns, .. }| {
                (cause.clone(), ns / MS, beyond_ns / MS, inferred_ns / MS)
            })
            .collect()
    }

    fn students() -> WaitCause {
        WaitCause::Unit { unit: "students".to_owned() }
    }

    /// Entitled to 0.72 CPUs, had 0.13, waited for students: broken, whether the waits were counted or
    /// inferred.
    #[test]
    fn a_unit_kept_from_its_part_is_broken() {
        let second = Second { used: [130, 1_870], waited: 940, limited: 0, ..Second::default() };
        let counted = run(11, second, &[(Occupant::Unit(STUDENTS), 90), (Occupant::Unit(PHYSICS), 10)]);
        let finding = cpu(&counted);
        assert_eq!(finding.verdict, Verdict::Broken, "{finding:?}");
        assert_eq!((finding.entitled, finding.had, finding.wanted), (720_000, 130_000, 1_070_000));
        let FindingReason::Short { by, waited_ns } = finding.reason else { panic!("{finding:?}") };
        assert_eq!((by, waited_ns), (students(), 10 * 846 * MS));
        let waited = 11 * 940;
        let expected = vec![(students(), waited * 9 / 10, 0, 0), (WaitCause::Own, waited / 10, 0, 0)];
        assert_eq!(waits(&counted), expected);

        let inferred = run(11, second, &[]);
        assert_eq!(cpu(&inferred).verdict, Verdict::Broken);
        let causes = waits(&inferred);
        assert_eq!(causes[0].0, students());
        let sum: u64 = inferred.account("physics").unwrap().waits.iter().map(|wait| wait.ns).sum();
        assert_eq!(sum, waited * MS, "the causes add up");
        assert!(causes.iter().all(|(_, ns, _, inferred)| ns == inferred), "{causes:?}");
    }

    #[test]
    fn a_unit_that_had_its_part_or_all_it_wanted_is_kept() {
        let waits_much = Second { used: [720, 1_280], waited: 3_000, limited: 0, ..Second::default() };
        let finding = cpu(&run(11, waits_much, &[(Occupant::Unit(STUDENTS), 100)]));
        assert_eq!((finding.verdict, finding.reason), (Verdict::Kept, FindingReason::HadEntitlement));
        assert_eq!(waits(&run(11, waits_much, &[(Occupant::Unit(STUDENTS), 100)]))[0].2, 33_000, "beyond");
        let idle = Second { used: [50, 1_280], waited: 0, limited: 0, ..Second::default() };
        let finding = cpu(&run(11, idle, &[(Occupant::Unit(STUDENTS), 100)]));
        assert_eq!((finding.verdict, finding.reason), (Verdict::Kept, FindingReason::HadWanted));
    }

    #[test]
    fn its_own_limit_and_its_own_threads_break_nothing() {
        let limited = Second { used: [100, 0], waited: 900, limited: 900, ..Second::default() };
        let finding = cpu(&run(11, limited, &[]));
        let own = |by| (Verdict::Kept, FindingReason::OwnDoing { by });
        assert_eq!((finding.verdict, finding.reason), own(WaitCause::Limit));
        assert_eq!(waits(&run(11, limited, &[])), [(WaitCause::Limit, 9_900, 0, 0)]);
        // At a limit that its set of CPUs enforces, its threads wait for each other.
        let confined = Second { used: [100, 0], waited: 300, limit: Some(100_000), ..Second::default() };
        for counted in [&[][..], &[(Occupant::Unit(PHYSICS), 100)]] {
            let statement = run(11, confined, counted);
            let finding = cpu(&statement);
            assert_eq!((finding.verdict, finding.reason), own(WaitCause::Limit));
            assert_eq!(waits(&statement)[0].0, WaitCause::Limit);
        }
        // Two threads that are tied to one CPU by their owner.
        let tied = Second { used: [500, 0], waited: 500, limited: 0, ..Second::default() };
        let finding = cpu(&run(11, tied, &[(Occupant::Unit(PHYSICS), 100)]));
        assert_eq!((finding.verdict, finding.reason), own(WaitCause::Own));
    }

    #[test]
    fn what_is_not_known_is_not_judged() {
        let second = Second { used: [130, 1_870], waited: 940, limited: 0, ..Second::default() };
        let early = cpu(&run(9, second, &[(Occupant::Unit(STUDENTS), 100)]));
        assert_eq!((early.verdict, early.reason), (Verdict::CannotTell, FindingReason::TooEarly));
        let unknown = cpu(&run(11, second, &[(Occupant::Unknown, 100)]));
        assert_eq!((unknown.verdict, unknown.reason), (Verdict::CannotTell, FindingReason::UnknownCause));
    }

    /// The common parts have most of the machine: they are the culprit, not the unit that has little, too.
    #[test]
    fn processes_in_no_unit_are_a_cause() {
        let second = Second { used: [130, 200], waited: 940, common: 1_670, ..Second::default() };
        let statement = run(11, second, &[]);
        let FindingReason::Short { by, .. } = cpu(&statement).reason else { panic!("{statement:?}") };
        assert_eq!(by, WaitCause::Common);
        assert_eq!(waits(&statement)[0].0, WaitCause::Common);
    }

    /// One call-back of 596 ms where 10 ms are promised, and 11 s later the verdict is kept again.
    #[test]
    fn a_late_call_back_breaks_the_contract_for_a_window() {
        let mut window = Window::default();
        let mut contract = Contract::default();
        contract.add(None, "physics");
        let batch = |cpu_late| Batch {
            length: BATCH_NS,
            units: vec![
                UnitBatch::default(),
                UnitBatch::default(),
                UnitBatch { cpu_late, ..UnitBatch::default() },
            ],
            waits: Vec::new(),
        };
        for late in [vec![(0, 0); 9], vec![(596 * MS, 1)]].concat() {
            window.push(batch(late));
        }
        let finding = window.findings(&contract, PHYSICS, &[PHYSICS]).remove(0);
        let late = FindingReason::Late { promised_ns: 10 * MS, took_ns: 596 * MS, count: 1 };
        assert_eq!((finding.verdict, finding.reason), (Verdict::Broken, late));
        for _ in 0..10 {
            window.push(batch((0, 0)));
        }
        assert_eq!(window.findings(&contract, PHYSICS, &[PHYSICS])[0].verdict, Verdict::Kept);
    }

    /// On a bus of which physics is entitled to 4 GB/s: due, used, its limit, and quanta in which its gang
    /// waited.
    #[test]
    fn the_bus_is_judged_by_what_a_unit_would_have_on_a_bus_of_its_own() {
        const GB: u64 = 1_000_000_000;
        let mut contract = Contract::default();
        assert_eq!([contract.add(None, "physics"), contract.add(None, "students")], [PHYSICS, STUDENTS]);
        let judged = |due: u64, used: u64, most: u64, gated: u64, students: u64| {
            let mut window = Window::default();
            for _ in 0..10 {
                let bus = |due, used: u64, most| {
                    let borrowed = used.saturating_sub(4 * GB);
                    let bus = Some(BusTotals { entitled: 4 * GB, used, due, borrowed, most });
                    UnitBatch { bus, ..UnitBatch::default() }
                };
                let units = vec![
                    UnitBatch::default(),
                    UnitBatch::default(),
                    bus(due, used, most),
                    bus(students, students, u64::MAX),
                ];
                let amount = Amount { ns: gated, beyond_ns: 0, inferred_ns: 0 };
                let waits = Amounts::from([((Resource::Bus, Cause::Gate), amount)]);
                let waits = vec![Amounts::new(), Amounts::new(), waits];
                window.push(Batch { length: BATCH_NS, units, waits });
            }
            let finding = window.findings(&contract, PHYSICS, &[PHYSICS]).pop().unwrap();
            assert_eq!(finding.resource, Resource::Bus);
            (finding.verdict, finding.reason)
        };
        let students = || WaitCause::Unit { unit: "students".to_owned() };
        let short = |by, waited_ns| (Verdict::Broken, FindingReason::Short { by, waited_ns });
        assert_eq!(judged(GB, GB, u64::MAX, 0, 0), (Verdict::Kept, FindingReason::HadWanted));
        assert_eq!(
            judged(4 * GB, 4 * GB, u64::MAX, 300 * MS, 0),
            (Verdict::Kept, FindingReason::HadEntitlement)
        );
        assert_eq!(judged(4 * GB, 2 * GB, u64::MAX, 0, 6 * GB), short(students(), 0));
        assert_eq!(judged(4 * GB, 2 * GB, u64::MAX, 300 * MS, 6 * GB), short(WaitCause::Gate, 3_000 * MS));
        let limit = FindingReason::OwnDoing { by: WaitCause::Limit };
        assert_eq!(judged(4 * GB, 2 * GB, 2 * GB, 300 * MS, 6 * GB), (Verdict::Kept, limit));
        assert_eq!(
            judged(4 * GB, 2 * GB, u64::MAX, 0, 0),
            (Verdict::CannotTell, FindingReason::UnknownCause)
        );
    }

    /// The unit that is short in the window may have borrowed most in the last batch.
    #[test]
    fn a_unit_is_not_its_own_culprit_on_the_bus() {
        let unit = |borrowed| {
            let bus = Some(BusTotals { borrowed, ..BusTotals::default() });
            UnitBatch { bus, ..UnitBatch::default() }
        };
        let units = vec![UnitBatch::default(), UnitBatch::default(), unit(7), unit(3)];
        let mut window = Window::default();
        window.push(Batch { length: BATCH_NS, units, waits: Vec::new() });
        assert_eq!(window.largest_on_bus(PHYSICS), Some(STUDENTS));
        assert_eq!(window.largest_on_bus(STUDENTS), Some(PHYSICS));
    }
}
