//! Weights (io.weight) on disks that honour them, corrected by the bandwidth that units actually get.
//!
//! Problem: a unit's bandwidth may not be in proportion to its weight. Some disk schedulers map weights to a
//! scale of their own, a cost model may not fit the disk, and requests differ in size.
//!
//! Algorithm:
//! - Siblings get weights in proportion to the entitlements that they would have if all units were present.
//!   So a unit that comes later finds its weight in place, and the other weights do not change. This matters,
//!   since a disk's scheduler loses its history when weights change. Exception: if these entitlements would
//!   divide the disk otherwise among the units that are present than their present entitlements do, the
//!   present entitlements count.
//! - Once a second, the bandwidths of those siblings are compared that did nothing but wait for the disk
//!   since the last correction. A unit that got less than its part of the sum gets a larger weight, by half
//!   of the relative shortfall; a unit that got more gets a smaller weight. For example, a unit that is due
//!   40 % but got 20 % would need twice its weight, and gets 1.5 times its weight.
//! - A correction multiplies a weight by at least a quarter and at most four. If a correction reaches one of
//!   these extremes while the bandwidth is still off by more than an eighth, the correction has failed. After
//!   [`FAILURES`] failures in a row, the disk counts as one that does not honour weights. It is controlled by
//!   rates for [`UNHONOURED_NS`]; then weights are tried again.
//!
//! Limits: a unit that also computes is not corrected, since its bandwidth may be low because it wants no
//! more.

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
/// The time for which a disk that does not honour weights is controlled by rates.
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
    /// The factors by which weights differ from entitlements, in millionths.
    corrections: BTreeMap<UnitId, u64>,
    corrected_at: Time,
    /// Corrections that failed in a row.
    failures: u32,
    given_up_at: Option<Time>,
    /// Whether each unit did nothing but wait, in every sample since the last correction.
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

    /// Whether to control the disk by weights: unless it was found in the last [`UNHONOURED_NS`] that it does
    /// not honour them.
    pub(super) fn are_honoured(&mut self, now: Time) -> bool {
        if self.given_up_at.is_some_and(|at| now.saturating_sub(at) >= UNHONOURED_NS) {
            self.given_up_at = None;
        }
        self.given_up_at.is_none()
    }

    /// The weights that units should have now, after a correction if one is due. `if_all_present` is the
    /// entitlement that units would have if all were present.
    pub(super) fn wanted(
        &mut self,
        now: Time,
        input: Input<'_>,
        entitlement: &Entitlement,
        if_all_present: &Entitlement,
        control: &RateControl,
    ) -> BTreeMap<UnitId, Order<u32>> {
        let contract = input.contract;
        // A unit counts as waiting if it or one of its sub-units does.
        let only_waiting = tree::sums(contract, |unit| u64::from(control.only_waits(unit)));
        for unit in contract.held() {
            *self.only_waited.entry(unit).or_insert(true) &= only_waiting[unit.index()] > 0;
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
            let values = values(siblings, entitlement, if_all_present);
            let (largest, sum) = (values.values().max().copied().unwrap_or(0), values.values().sum());
            let order = |(unit, value)| (unit, self.weight(unit, value, largest, sum));
            wanted.extend(values.into_iter().map(order));
        }
        wanted
    }

    /// A unit's weight among its siblings: proportional to `value`, with the unit's correction. `largest` and
    /// `sum` are the maximum and the sum of the siblings' values. Weights are from 1 to 1,000, the smaller of
    /// the two scales that kernels have.
    fn weight(&self, unit: UnitId, value: u64, largest: u64, sum: u64) -> Order<u32> {
        let part = part_of(value, MILLIONTH, sum);
        let correction = self.corrections.get(&unit).copied().unwrap_or(MILLIONTH);
        // The largest value is mapped to half of the scale, so that its weight can be corrected upwards.
        let uncorrected = part_of(1_000, value, largest).div_ceil(2);
        let weight = part_of(uncorrected, correction, MILLIONTH).clamp(1, 1_000);
        let because = if correction == MILLIONTH {
            Reason::DiskPart { part }
        } else {
            Reason::DiskCorrected { part, by: correction }
        };
        Order { value: u32::try_from(weight).unwrap_or(DEFAULT_WEIGHT), because }
    }

    /// Corrects the weights once. `transferred` has the bytes that each unit, sub-units included, has
    /// transferred since the backend started. Returns whether the correction failed; `None` if no two
    /// siblings could be compared.
    fn correct(&mut self, levels: &Levels, entitlement: &Entitlement, transferred: &[u64]) -> Option<bool> {
        let mut failed = None;
        for level in levels.all() {
            let only_waited = |unit: &UnitId| self.only_waited.get(unit).copied().unwrap_or(false);
            let siblings: Vec<UnitId> = level.iter().copied().filter(only_waited).collect();
            let bytes_since_last = |unit: UnitId| {
                let before = self.transferred.get(&unit).copied().unwrap_or(u64::MAX);
                transferred[unit.index()].saturating_sub(before)
            };
            let bytes: BTreeMap<UnitId, u64> =
                siblings.iter().map(|unit| (*unit, bytes_since_last(*unit))).collect();
            let all_bytes: u64 = bytes.values().sum();
            let all_values: u64 = siblings.iter().map(|unit| entitlement.value(*unit)).sum();
            if siblings.len() < 2 || all_bytes == 0 {
                continue;
            }
            for unit in siblings {
                let due = part_of(all_bytes, entitlement.value(unit), all_values);
                let ratio = part_of(due, MILLIONTH, bytes[&unit].max(1)).min(*CORRECTION.end());
                let error = ratio.abs_diff(MILLIONTH);
                failed.get_or_insert(false);
                // An error of up to 2 % is not corrected: every change of a weight costs the disk's scheduler
                // its history.
                if error < MILLIONTH / 50 {
                    continue;
                }
                let old = self.corrections.get(&unit).copied().unwrap_or(MILLIONTH);
                // The midpoint corrects half of the error.
                let new = part_of(old, MILLIONTH.midpoint(ratio), MILLIONTH);
                if error > MILLIONTH / 8 && !CORRECTION.contains(&new) {
                    failed = Some(true);
                }
                self.corrections.insert(unit, new.clamp(*CORRECTION.start(), *CORRECTION.end()));
            }
        }
        failed
    }

    /// Puts weights in force, and returns the changed ones. A unit that had a weight and is not in `wanted`
    /// gets the default weight.
    pub(super) fn replace(&mut self, wanted: BTreeMap<UnitId, Order<u32>>) -> Vec<(UnitId, Order<u32>)> {
        let before = core::mem::replace(&mut self.in_force, wanted);
        let reset = |unit: &UnitId| (*unit, Order { value: DEFAULT_WEIGHT, because: Reason::NobodyThere });
        let removed = before.keys().filter(|unit| !self.in_force.contains_key(unit)).map(reset);
        let old = |unit: &UnitId| before.get(unit).map(|order| order.value);
        let changed = self
            .in_force
            .iter()
            .filter(|(unit, order)| old(unit) != Some(order.value))
            .map(|(unit, order)| (*unit, *order));
        removed.chain(changed).collect()
    }
}

/// The entitlements to which siblings' weights are proportional: those that the units would have if all were
/// present. If these divide the disk differently among the units that are present, the present entitlements.
/// Units without entitlement are left out.
fn values(
    siblings: &[UnitId],
    entitlement: &Entitlement,
    if_all_present: &Entitlement,
) -> BTreeMap<UnitId, u64> {
    let present: Vec<UnitId> = siblings.iter().copied().filter(|unit| entitlement.value(*unit) > 0).collect();
    let sum = |entitlement: &Entitlement| present.iter().map(|unit| entitlement.value(*unit)).sum();
    let (sum_now, sum_if_all): (u64, u64) = (sum(entitlement), sum(if_all_present));
    let part_now = |unit: UnitId| part_of(entitlement.value(unit), MILLIONTH, sum_now);
    let part_if_all = |unit: UnitId| part_of(if_all_present.value(unit), MILLIONTH, sum_if_all);
    let is_same = |unit: &UnitId| part_now(*unit).abs_diff(part_if_all(*unit)) <= MILLIONTH / 1_000;
    let chosen = if present.iter().all(is_same) { if_all_present } else { entitlement };
    siblings.iter().map(|unit| (*unit, chosen.value(*unit))).filter(|(_, value)| *value > 0).collect()
}
