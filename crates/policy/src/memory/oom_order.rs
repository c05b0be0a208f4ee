//! Which units' processes the kernel should kill first when memory runs out.
//!
//! Problem: a bound only slows a unit that allocates anonymous memory. Without swap, none of that memory can
//! be reclaimed, so the unit slowly fills the machine. The kernel then kills the largest process of the
//! machine, even if that process's unit is within its entitlement.
//!
//! Terms:
//! - A unit *holds* the memory that it uses, except its file pages: a kernel reclaims file pages, clean and
//!   dirty, before it kills a process.
//! - The memory that is *left* is the machine's, less what the units, the kernel and `shared` hold, plus what
//!   still fits into swap.
//! - Memory becomes *short* when less than the contract's reserve is left, and stays short until 1.5 times
//!   the reserve is left (hysteresis).
//! - Memory is *tight* by the same rule, with an eighth of the machine's memory subtracted from what is left.
//!   So memory is tight earlier than it is short, for two reasons. Free pages up to this amount may lie on
//!   the lists of idle CPUs, and a kernel kills before it takes those pages. And a unit may fill the memory
//!   between two samples, so the kernel must know the order beforehand.
//!
//! Algorithm:
//! - A unit is *beyond* if it and every unit around it hold more than their entitlements; what a unit holds
//!   includes its sub-units.
//! - While memory is tight, a unit is *exposed* (killed first) if it is beyond, or was beyond during the last
//!   [`LINGER_NS`]. While memory is short, exposed units beyond their allowances are also reported.
//! - Processes outside all units may grow. They then leave less memory to divide, and a unit's entitlement
//!   falls without its own doing. So the entitlement that counts here is computed from the amount of memory
//!   that was divided when the unit last held no more than its entitlement. At a unit's first sample, that
//!   amount is all memory that the kernel does not use.
//!
//! Properties (tested):
//! - No unit is exposed while memory is not tight.
//! - A unit that was within its entitlement for [`LINGER_NS`] is not exposed, and neither is any unit inside
//!   it.
//! - A sample with the same facts as the one before orders nothing.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use commonhold_contract::{Contract, Resource, UnitId};

use super::thresholds::{NEAR_PART, SLACK_PART};
use super::{Sample, reclaim_rates};
use crate::plan::{Beyond, MemoryOrder, Reason, Share, Step};
use crate::rights::{Capacity, Entitlement, Rights};
use crate::snapshot::UnitMemory;
use crate::time::{MS, Time};
use crate::tree::{self, lineage};

/// The reserve is at least 1/64 of the machine, however small the contract's.
const RESERVE_PART_MIN: u64 = 64;
/// 1/8 of the machine may be free and yet unavailable: CPUs keep pages on their own lists since Linux 6.7
/// (`mm/page_alloc.c`, `zone_highsize`).
const LISTS_PART: u64 = 8;
/// A unit stays exposed for this time after it was last beyond its entitlement. The pages of a killed process
/// may lie on CPUs' lists, too, so that the kernel soon kills again. Without exposed units, it would then
/// kill the largest process.
const LINGER_NS: Time = 10_000 * MS;

/// The exposed units, and the state that decides about exposure, kept between samples.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct OomOrder {
    short: bool,
    tight: bool,
    exposed: BTreeSet<UnitId>,
    /// When each unit was last beyond its entitlement, if within [`LINGER_NS`].
    beyond_at: BTreeMap<UnitId, Time>,
    /// Units that may be exposed soon: memory is tight, and they nearly hold their entitlement.
    near: BTreeSet<UnitId>,
    /// How much memory was divided when each unit was last within its entitlement.
    divided_when_within: BTreeMap<UnitId, Divided>,
}

/// Two amounts of divided memory, in bytes: the amount when the unit without its sub-units was last within
/// its entitlement, and the amount when the unit with its sub-units was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Divided {
    alone: u64,
    with_sub_units: u64,
}

/// A cache of entitlements by the amount of divided memory, since computing the entitlements of all units is
/// expensive. There are few amounts, since units exceed their entitlements at few moments.
struct Entitlements<'a> {
    rights: &'a Rights,
    /// The memory divided now, in bytes. A smaller amount is replaced by this.
    least: u64,
    by_divided: BTreeMap<u64, Entitlement>,
}

impl Entitlements<'_> {
    fn for_divided(&mut self, divided: u64) -> &Entitlement {
        let divided = divided.max(self.least);
        let compute = || self.rights.at_capacity(Resource::Memory, Capacity::Known(divided)).all();
        self.by_divided.entry(divided).or_insert_with(compute)
    }
}

/// The bytes that a unit holds: its memory that can neither be dropped nor written to a file.
fn holds(unit: UnitMemory) -> u64 {
    unit.used.min(unit.anonymous.saturating_add(unit.kernel).saturating_add(unit.packed))
}

impl OomOrder {
    /// Forgets the units that the contract no longer has.
    pub(super) fn forget_gone(&mut self, contract: &Contract) {
        self.exposed.retain(|unit| contract.has(*unit));
        self.near.retain(|unit| contract.has(*unit));
        self.beyond_at.retain(|unit, _| contract.has(*unit));
        self.divided_when_within.retain(|unit, _| contract.has(*unit));
    }

    /// Exposes the units that are or lately were beyond their entitlement, and no others. `shares` has one
    /// element per unit, and `divided` is in bytes. Returns the exposed units that exceed their allowances,
    /// if memory is short.
    pub(super) fn step(
        &mut self,
        sample: Sample<'_>,
        shares: &[Share],
        divided: u64,
        steps: &mut Vec<Step<MemoryOrder>>,
    ) -> Vec<Beyond> {
        let Sample { now, input, facts, rights, .. } = sample;
        let contract = input.contract;
        let held: Vec<u64> =
            contract.ids().map(|id| facts.units.get(id.index()).copied().map_or(0, holds)).collect();
        let held_by_units: u64 = contract.held().map(|id| held[id.index()]).sum();
        self.update_scarcity(sample, held_by_units);

        // Remember how much is divided for the units that are within their entitlements now.
        let all_but_kernel = facts.total.saturating_sub(facts.kernel).max(divided);
        let at_first = Divided { alone: all_but_kernel, with_sub_units: all_but_kernel };
        let mut entitlements = Entitlements { rights, least: divided, by_divided: BTreeMap::new() };
        let entitlement = entitlements.for_divided(divided).clone();
        let held_within = tree::sums(contract, |unit| held[unit.index()]);
        for id in contract.held() {
            let when_within = self.divided_when_within.entry(id).or_insert(at_first);
            if held[id.index()] <= entitlement.own(id) {
                when_within.alone = divided;
            }
            if held_within[id.index()] <= entitlement.value(id) {
                when_within.with_sub_units = divided;
            }
        }
        // Compare each unit with its entitlement to that amount. A unit that is not exposed yet has a
        // tolerance.
        let slack = facts.total / SLACK_PART;
        let mut is_beyond = |id: UnitId| {
            let slack = if self.exposed.contains(&id) { 0 } else { slack };
            let when_within = |id: UnitId| self.divided_when_within.get(&id).copied().unwrap_or_default();
            let own_entitlement = entitlements.for_divided(when_within(id).alone).own(id);
            held[id.index()] > own_entitlement.saturating_add(slack)
                && lineage(contract, id).all(|id| {
                    let entitlement = entitlements.for_divided(when_within(id).with_sub_units).value(id);
                    held_within[id.index()] > entitlement.saturating_add(slack)
                })
        };
        let beyond: Vec<UnitId> = contract.held().filter(|id| self.tight && is_beyond(*id)).collect();
        self.beyond_at.retain(|_, at| self.tight && now.saturating_sub(*at) < LINGER_NS);
        self.beyond_at.extend(beyond.into_iter().map(|id| (id, now)));
        let exposed: BTreeSet<UnitId> = self.beyond_at.keys().copied().collect();
        let nearly_holds_entitlement = |id: &UnitId| {
            let own = entitlement.own(*id);
            held[id.index()] > own - own / NEAR_PART
        };
        let is_near = |id: &UnitId| self.tight && !exposed.contains(id) && nearly_holds_entitlement(id);
        self.near = contract.held().filter(is_near).collect();
        self.expose(exposed, Reason::Enough, steps, |id| {
            held[id.index()].saturating_sub(entitlement.own(id))
        });
        let over_allowance = |unit: &UnitId| {
            let bytes = held[unit.index()].saturating_sub(shares[unit.index()].allowed);
            (bytes > slack).then_some(Beyond { unit: *unit, bytes })
        };
        self.exposed.iter().filter(|_| self.short).filter_map(over_allowance).collect()
    }

    /// Updates whether memory is short, and whether it is tight, with hysteresis.
    fn update_scarcity(&mut self, sample: Sample<'_>, held_by_units: u64) {
        let Sample { input, facts, .. } = sample;
        let held = facts.kernel.saturating_add(facts.shared).saturating_add(held_by_units);
        let swap = reclaim_rates::freed(facts.swap_free, facts);
        let left = facts.total.saturating_sub(held).saturating_add(swap);
        let reserve = input.contract.machine.reserve.of(facts.total).max(facts.total / RESERVE_PART_MIN);
        let below_reserve = |left: u64, was_below: bool| {
            left < if was_below { reserve.saturating_add(reserve / 2) } else { reserve }
        };
        self.short = below_reserve(left, self.short);
        self.tight = below_reserve(left.saturating_sub(facts.total / LISTS_PART), self.tight);
    }

    /// Whether the unit may soon be exposed. If it then meets its bound, an alarm is wanted, since the kernel
    /// may kill before the next sample.
    pub(super) fn is_near(&self, unit: UnitId) -> bool {
        self.near.contains(&unit)
    }

    /// Withdraws all exposure.
    pub(super) fn end(&mut self, reason: Reason, steps: &mut Vec<Step<MemoryOrder>>) {
        self.expose(BTreeSet::new(), reason, steps, |_| 0);
        (self.short, self.tight) = (false, false);
        self.beyond_at.clear();
        self.near.clear();
    }

    /// Orders the change from the exposed units so far to `exposed`. `reason_to_end` is given for units that
    /// are no longer exposed, and `bytes_beyond` tells for the newly exposed ones by how much they exceed
    /// their entitlements.
    fn expose(
        &mut self,
        exposed: BTreeSet<UnitId>,
        reason_to_end: Reason,
        steps: &mut Vec<Step<MemoryOrder>>,
        bytes_beyond: impl Fn(UnitId) -> u64,
    ) {
        let order =
            |unit: UnitId, exposed, reason| Step { action: MemoryOrder::Expose { unit, exposed }, reason };
        let no_longer_exposed =
            self.exposed.difference(&exposed).map(|unit| order(*unit, false, reason_to_end));
        let newly_exposed = exposed
            .difference(&self.exposed)
            .map(|unit| order(*unit, true, Reason::Beyond { bytes: bytes_beyond(*unit) }));
        steps.extend(no_longer_exposed.chain(newly_exposed));
        self.exposed = exposed;
    }
}
