//! Weights on disks that heed them, corrected by what comes out.
//!
//! Problem: a unit does not get what its weight says. One disk scheduler maps weights to a scale of its own, a cost
//! model may not fit the disk, and requests differ in size.
//!
//! Algorithm:
//! - A unit's weight is its part among its siblings. Disks divide by the weights of the units that have requests.
//!   Where the present units would divide the disk alike if all units were present, weights are made for all of them.
//!   A unit that comes then finds its own weight, and no other weight changes. A change would cost the disk's
//!   scheduler its history.
//! - Once a second, the siblings that did nothing else since but wait are compared. A unit that transferred less than
//!   its part of their sum gets more weight, by half of what was missing; one that transferred more gets less.
//! - A correction is between a quarter and four times. A disk does not heed weights whose correction is at its bound
//!   three times in a row, and still an eighth off. The disk is then held by rates for [`UNHEEDED_NS`], and tried
//!   again.
//!
//! Limits: a unit that also computes is not corrected. Its weight does not keep from it what it does not take.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_contract::{Contract, MILLIONTH, UnitId};

use super::in_force::Order;
use super::rates::Rates;
use crate::input::Input;
use crate::plan::Reason;
use crate::rights::entitlement::Entitlement;
use crate::rights::share::part_of;
use crate::time::{MS, Time};
use crate::tree::{self, Levels};

/// How often weights are corrected.
const CORRECT_NS: Time = 1_000 * MS;
/// How long weights that were not heeded are left alone.
const UNHEEDED_NS: Time = 60_000 * MS;
/// How often in a row a correction must have failed.
const FAILURES: u32 = 3;
/// The usual weight, of a unit without an order.
const USUAL: u32 = 100;
/// Bounds of a correction, in millionths.
const CORRECTION: core::ops::RangeInclusive<u64> = MILLIONTH / 4..=MILLIONTH * 4;

/// The weights in force on one disk, and what they are corrected by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Weights {
    in_force: BTreeMap<UnitId, Order<u32>>,
    /// In millionths of the entitlement.
    corrections: BTreeMap<UnitId, u64>,
    corrected_at: Time,
    /// Corrections that failed in a row, and when the last weights were given up.
    failures: u32,
    given_up_at: Option<Time>,
    /// Units that only waited at every look since, and what each had transferred by then, in bytes.
    waited: BTreeMap<UnitId, bool>,
    before: BTreeMap<UnitId, u64>,
}

impl Weights {
    /// Forgets the units that the contract has no more.
    pub(super) fn forget_gone(&mut self, contract: &Contract) {
        self.in_force.retain(|unit, _| contract.has(*unit));
        self.corrections.retain(|unit, _| contract.has(*unit));
        self.waited.retain(|unit, _| contract.has(*unit));
        self.before.retain(|unit, _| contract.has(*unit));
    }

    /// Whether weights are worth giving: not where they were not heeded lately.
    pub(super) fn are_heeded(&mut self, now: Time) -> bool {
        if self.given_up_at.is_some_and(|at| now.saturating_sub(at) >= UNHEEDED_NS) {
            self.given_up_at = None;
        }
        self.given_up_at.is_none()
    }

    /// The weights that units are to have now.
    pub(super) fn wanted(
        &mut self,
        now: Time,
        input: Input<'_>,
        entitlement: &Entitlement,
        everybodys: &Entitlement,
        rates: &Rates,
    ) -> BTreeMap<UnitId, Order<u32>> {
        let contract = input.contract;
        let waiting = tree::sums(contract, |unit| u64::from(rates.only_waits(unit)));
        for unit in contract.held() {
            *self.waited.entry(unit).or_insert(true) &= waiting[unit.index()] > 0;
        }
        let levels = Levels::of(contract);
        if now.saturating_sub(self.corrected_at) >= CORRECT_NS {
            self.corrected_at = now;
            let transferred = tree::sums(contract, |unit| rates.transferred(unit));
            let failed = self.correct(&levels, entitlement, &transferred);
            self.waited.clear();
            self.before = contract.held().map(|unit| (unit, transferred[unit.index()])).collect();
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
            let values = values(siblings, entitlement, everybodys);
            let (most, all) = (values.values().max().copied().unwrap_or(0), values.values().sum());
            let order = |(unit, value)| (unit, self.weight(unit, value, most, all));
            wanted.extend(values.into_iter().map(order));
        }
        wanted
    }

    /// A unit's weight among its siblings, which have so much at most and all together, on the smaller of the two
    /// scales that kernels have.
    fn weight(&self, unit: UnitId, value: u64, most: u64, all: u64) -> Order<u32> {
        let part = part_of(value, MILLIONTH, all);
        let correction = self.corrections.get(&unit).copied().unwrap_or(MILLIONTH);
        // Half of the scale for the largest, so that there is room to correct upwards.
        let nearest = part_of(1_000, value, most).div_ceil(2);
        let weight = part_of(nearest, correction, MILLIONTH).clamp(1, 1_000);
        let because = if correction == MILLIONTH {
            Reason::DiskPart { part }
        } else {
            Reason::DiskCorrected { part, by: correction }
        };
        Order { value: u32::try_from(weight).unwrap_or(USUAL), because }
    }

    /// One correction, by what units have transferred so far, with their sub-units; whether it was of no use, or `None` where
    /// there was nothing to compare.
    fn correct(&mut self, levels: &Levels, entitlement: &Entitlement, transferred: &[u64]) -> Option<bool> {
        let mut failed = None;
        for level in levels.all() {
            let waited = |unit: &UnitId| self.waited.get(unit).copied().unwrap_or(false);
            let siblings: Vec<UnitId> = level.iter().copied().filter(waited).collect();
            let got = |unit: UnitId| {
                let before = self.before.get(&unit).copied().unwrap_or(u64::MAX);
                transferred[unit.index()].saturating_sub(before)
            };
            let got: BTreeMap<UnitId, u64> = siblings.iter().map(|unit| (*unit, got(*unit))).collect();
            let all_got: u64 = got.values().sum();
            let all: u64 = siblings.iter().map(|unit| entitlement.value(*unit)).sum();
            if siblings.len() < 2 || all_got == 0 {
                continue;
            }
            for unit in siblings {
                let due = part_of(all_got, entitlement.value(unit), all);
                let ratio = part_of(due, MILLIONTH, got[&unit].max(1)).min(*CORRECTION.end());
                let off = ratio.abs_diff(MILLIONTH);
                failed.get_or_insert(false);
                // What is within 2 % is left alone: every change costs the disk's scheduler its history.
                if off < MILLIONTH / 50 {
                    continue;
                }
                let old = self.corrections.get(&unit).copied().unwrap_or(MILLIONTH);
                let new = part_of(old, MILLIONTH.midpoint(ratio), MILLIONTH);
                if off > MILLIONTH / 8 && !CORRECTION.contains(&new) {
                    failed = Some(true);
                }
                self.corrections.insert(unit, new.clamp(*CORRECTION.start(), *CORRECTION.end()));
            }
        }
        failed
    }

    /// Puts weights in force; the differences, in which a weight that is no longer ordered is the usual one.
    pub(super) fn replace(&mut self, wanted: BTreeMap<UnitId, Order<u32>>) -> Vec<(UnitId, Order<u32>)> {
        let before = core::mem::replace(&mut self.in_force, wanted);
        let usual = |unit: &UnitId| (*unit, Order { value: USUAL, because: Reason::NobodyThere });
        let gone = before.keys().filter(|unit| !self.in_force.contains_key(unit)).map(usual);
        let value = |unit: &UnitId| before.get(unit).map(|order| order.value);
        let changed = self
            .in_force
            .iter()
            .filter(|(unit, order)| value(unit) != Some(order.value))
            .map(|(unit, order)| (*unit, *order));
        gone.chain(changed).collect()
    }
}

/// What the weights of siblings are in proportion to: what every unit would be entitled to if all were there, or else,
/// where that would not divide the disk between the units that are there as it should be now, what these are entitled
/// to.
fn values(siblings: &[UnitId], entitlement: &Entitlement, everybodys: &Entitlement) -> BTreeMap<UnitId, u64> {
    let there: Vec<UnitId> = siblings.iter().copied().filter(|unit| entitlement.value(*unit) > 0).collect();
    let sum = |of: &Entitlement| there.iter().map(|unit| of.value(*unit)).sum();
    let (now, then): (u64, u64) = (sum(entitlement), sum(everybodys));
    let part_now = |unit: UnitId| part_of(entitlement.value(unit), MILLIONTH, now);
    let part_then = |unit: UnitId| part_of(everybodys.value(unit), MILLIONTH, then);
    let is_same = |unit: &UnitId| part_now(*unit).abs_diff(part_then(*unit)) <= MILLIONTH / 1_000;
    let of = if there.iter().all(is_same) { everybodys } else { entitlement };
    siblings.iter().map(|unit| (*unit, of.value(*unit))).filter(|(_, value)| *value > 0).collect()
}
