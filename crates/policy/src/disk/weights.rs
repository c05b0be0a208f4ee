//! Weights (io.weight) on disks that honour them, corrected by what units actually get.
//!
//! Problem: a unit does not get what its weight says. Some disk schedulers map weights to a scale of their own, a cost
//! model may not fit the disk, and requests differ in size.
//!
//! Algorithm:
//! - A unit's weight is its part among its siblings. A disk divides by the weights of the units that have requests.
//!   If the units present now would then get the same parts as if all units were present, weights are computed for all
//!   units. A unit that comes then finds its weight in place, and no other weight changes. A change would cost the
//!   disk's scheduler its history.
//! - Once a second, the siblings that did nothing but wait since the last correction are compared. The weight of a unit
//!   that got less than its part of their sum grows by half of the shortfall; that of a unit that got more sinks.
//! - A correction lies between a quarter and four times. If a correction is at its bound, and the result still an
//!   eighth off, [`FAILURES`] times in a row, the disk does not honour weights. It is then controlled by rates for
//!   [`UNHONOURED_NS`], after which weights are tried again.
//!
//! Limits: a unit that also computes is not corrected. Its weight keeps nothing from it that it would take.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_contract::{Contract, MILLIONTH, UnitId};

use super::in_force::Order;
use super::rates::RateControl;
use crate::input::Input;
use crate::plan::Reason;
use crate::rights::entitlement::Entitlement;
use crate::rights::share::part_of;
use crate::time::{MS, Time};
use crate::tree::{self, Levels};

/// The interval between corrections.
const CORRECT_NS: Time = 1_000 * MS;
/// The time for which a disk that does not honour weights gets none.
const UNHONOURED_NS: Time = 60_000 * MS;
/// Corrections that must fail in a row before weights are given up.
const FAILURES: u32 = 3;
/// The weight of a unit without an order.
const DEFAULT_WEIGHT: u32 = 100;
/// Bounds of a correction, in millionths.
const CORRECTION: core::ops::RangeInclusive<u64> = MILLIONTH / 4..=MILLIONTH * 4;

/// The weights in force on one disk, and their corrections.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Weights {
    in_force: BTreeMap<UnitId, Order<u32>>,
    /// In millionths of the entitlement.
    corrections: BTreeMap<UnitId, u64>,
    corrected_at: Time,
    /// Corrections that failed in a row.
    failures: u32,
    given_up_at: Option<Time>,
    /// Whether each unit only waited at every sample since the last correction.
    only_waited: BTreeMap<UnitId, bool>,
    /// Bytes that each unit had transferred at the last correction.
    transferred: BTreeMap<UnitId, u64>,
}

impl Weights {
    /// Forgets the units that the contract no longer has.
    pub(super) fn forget_gone(&mut self, contract: &Contract) {
        self.in_force.retain(|unit, _| contract.has(*unit));
        self.corrections.retain(|unit, _| contract.has(*unit));
        self.only_waited.retain(|unit, _| contract.has(*unit));
        self.transferred.retain(|unit, _| contract.has(*unit));
    }

    /// Whether the disk may honour weights: not if it was lately found not to.
    pub(super) fn are_honoured(&mut self, now: Time) -> bool {
        if self.given_up_at.is_some_and(|at| now.saturating_sub(at) >= UNHONOURED_NS) {
            self.given_up_at = None;
        }
        self.given_up_at.is_none()
    }

    /// The weights that units should have now. `everyones` is what they would be entitled to if all were present.
    pub(super) fn wanted(
        &mut self,
        now: Time,
        input: Input<'_>,
        entitlement: &Entitlement,
        everyones: &Entitlement,
        control: &RateControl,
    ) -> BTreeMap<UnitId, Order<u32>> {
        let contract = input.contract;
        let waiting = tree::sums(contract, |unit| u64::from(control.only_waits(unit)));
        for unit in contract.held() {
            *self.only_waited.entry(unit).or_insert(true) &= waiting[unit.index()] > 0;
        }
        let levels = Levels::of(contract);
        if now.saturating_sub(self.corrected_at) >= CORRECT_NS {
            self.corrected_at = now;
            let transferred = tree::sums(contract, |unit| control.transferred(unit));
            let failed = self.correct(&levels, entitlement, &transferred);
            self.only_waited.clear();
            self.transferred = contract.held().map(|unit| (unit, transferred[unit.index()])).collect();
            self.failures = failed.map_or(self.failures, |failed| if failed { self.failures + 1 } else { 0 });
            if self.failures >= FAILURES {
                *self = Weights {
                    in_force: core::mem::take(&mut self.in_force),
                    given_up_at: Some(now),
                    ..Weights::default()
                };
            }
        }
        let mut wanted = BTreeMap::new();
        for siblings in levels.all() {
            let values = values(siblings, entitlement, everyones);
            let (largest, sum) = (values.values().max().copied().unwrap_or(0), values.values().sum());
            let order = |(unit, value)| (unit, self.weight(unit, value, largest, sum));
            wanted.extend(values.into_iter().map(order));
        }
        wanted
    }

    /// A unit's weight among its siblings, whose values have this maximum and this sum. On the smaller of the two scales
    /// that kernels have.
    fn weight(&self, unit: UnitId, value: u64, largest: u64, sum: u64) -> Order<u32> {
        let part = part_of(value, MILLIONTH, sum);
        let correction = self.corrections.get(&unit).copied().unwrap_or(MILLIONTH);
        // The largest gets half of the scale, so that there is room to correct upwards.
        let uncorrected = part_of(1_000, value, largest).div_ceil(2);
        let weight = part_of(uncorrected, correction, MILLIONTH).clamp(1, 1_000);
        let because = if correction == MILLIONTH {
            Reason::DiskPart { part }
        } else {
            Reason::DiskCorrected { part, by: correction }
        };
        Order { value: u32::try_from(weight).unwrap_or(DEFAULT_WEIGHT), because }
    }

    /// Corrects once, by what units have transferred so far, sub-units included. Returns whether the correction failed;
    /// `None` if there was nothing to compare.
    fn correct(&mut self, levels: &Levels, entitlement: &Entitlement, transferred: &[u64]) -> Option<bool> {
        let mut failed = None;
        for level in levels.all() {
            let only_waited = |unit: &UnitId| self.only_waited.get(unit).copied().unwrap_or(false);
            let siblings: Vec<UnitId> = level.iter().copied().filter(only_waited).collect();
            let since_last = |unit: UnitId| {
                let before = self.transferred.get(&unit).copied().unwrap_or(u64::MAX);
                transferred[unit.index()].saturating_sub(before)
            };
            let moved: BTreeMap<UnitId, u64> =
                siblings.iter().map(|unit| (*unit, since_last(*unit))).collect();
            let moved_by_all: u64 = moved.values().sum();
            let value_of_all: u64 = siblings.iter().map(|unit| entitlement.value(*unit)).sum();
            if siblings.len() < 2 || moved_by_all == 0 {
                continue;
            }
            for unit in siblings {
                let due = part_of(moved_by_all, entitlement.value(unit), value_of_all);
                let ratio = part_of(due, MILLIONTH, moved[&unit].max(1)).min(*CORRECTION.end());
                let error = ratio.abs_diff(MILLIONTH);
                failed.get_or_insert(false);
                // Within 2 %, nothing changes: every change costs the disk's scheduler its history.
                if error < MILLIONTH / 50 {
                    continue;
                }
                let old = self.corrections.get(&unit).copied().unwrap_or(MILLIONTH);
                let new = part_of(old, MILLIONTH.midpoint(ratio), MILLIONTH);
                if error > MILLIONTH / 8 && !CORRECTION.contains(&new) {
                    failed = Some(true);
                }
                self.corrections.insert(unit, new.clamp(*CORRECTION.start(), *CORRECTION.end()));
            }
        }
        failed
    }

    /// Puts weights in force. Returns the changes; a unit without a wanted weight gets the default one.
    pub(super) fn replace(&mut self, wanted: BTreeMap<UnitId, Order<u32>>) -> Vec<(UnitId, Order<u32>)> {
        let before = core::mem::replace(&mut self.in_force, wanted);
        let default = |unit: &UnitId| (*unit, Order { value: DEFAULT_WEIGHT, because: Reason::NobodyThere });
        let gone = before.keys().filter(|unit| !self.in_force.contains_key(unit)).map(default);
        let old = |unit: &UnitId| before.get(unit).map(|order| order.value);
        let changed = self
            .in_force
            .iter()
            .filter(|(unit, order)| old(unit) != Some(order.value))
            .map(|(unit, order)| (*unit, *order));
        gone.chain(changed).collect()
    }
}

/// The values to which siblings' weights are proportional: what every unit would be entitled to if all were present. If
/// that would divide the disk differently among the units that are present, what these are entitled to now.
fn values(siblings: &[UnitId], entitlement: &Entitlement, everyones: &Entitlement) -> BTreeMap<UnitId, u64> {
    let present: Vec<UnitId> = siblings.iter().copied().filter(|unit| entitlement.value(*unit) > 0).collect();
    let sum = |entitlement: &Entitlement| present.iter().map(|unit| entitlement.value(*unit)).sum();
    let (sum_now, sum_if_all): (u64, u64) = (sum(entitlement), sum(everyones));
    let part_now = |unit: UnitId| part_of(entitlement.value(unit), MILLIONTH, sum_now);
    let part_if_all = |unit: UnitId| part_of(everyones.value(unit), MILLIONTH, sum_if_all);
    let is_same = |unit: &UnitId| part_now(*unit).abs_diff(part_if_all(*unit)) <= MILLIONTH / 1_000;
    let chosen = if present.iter().all(is_same) { everyones } else { entitlement };
    siblings.iter().map(|unit| (*unit, chosen.value(*unit))).filter(|(_, value)| *value > 0).collect()
}
