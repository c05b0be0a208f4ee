//! Measures the use of the shared resource by each gang in the quantum that ended: computes a rate per thread
//! from the gang's counters and, if the shared resource is the bus, estimates the gang's demand from the
//! rate.

use alloc::vec::Vec;

use commonhold_contract::{GangRules, GangsShare};

use super::rates::Rates;
use super::shared::{self, CacheUse};
use super::{Gang, GangQueue};
use crate::bus::GangUse;
use crate::bus::queue::{self, ThreadSet, WHOLE};
use crate::input::Input;

/// A measurement over less than one part in this many of a quantum is discarded.
const MEASURE_PART: u64 = 4;

impl GangQueue {
    /// Sets the shared resource to measure. If it changed, the measurements of the previous one are dropped.
    pub(super) fn measure_by(&mut self, share: GangsShare) {
        if self.share == share {
            return;
        }
        self.share = share;
        self.used.clear();
        for gang in &mut self.gangs {
            (gang.mark, gang.last) = (None, None);
            (gang.rates, gang.cache_use) = (Rates::default(), CacheUse::default());
        }
    }

    /// Measures the gangs that ran. If the bus is the shared resource, returns their transfers.
    pub(super) fn measure(&mut self, input: Input<'_>, rules: GangRules) -> Vec<GangUse> {
        // A gang's use per second and thread; `None`: it did not run, or not for long enough.
        let rate = |gang: &Gang| {
            let (mark, last) = (gang.mark?, gang.last?);
            let span = last.at.saturating_sub(mark.at);
            let is_valid = gang.runs && gang.wanted > 0 && span >= rules.quantum_ns / MEASURE_PART;
            let amount = u128::from(last.amount.saturating_sub(mark.amount)) * 1_000_000_000;
            let rate = amount / u128::from(span.max(1)) / u128::from(gang.wanted.max(1));
            is_valid.then(|| u64::try_from(rate).unwrap_or(u64::MAX))
        };
        let rates: Vec<Option<u64>> = self.gangs.iter().map(rate).collect();
        let ran = self.gangs.iter().zip(&rates).filter_map(|(gang, rate)| Some((gang, (*rate)?)));
        self.used.clear();
        for (gang, rate) in ran {
            let used = self.used.entry(gang.board).or_default();
            *used = used.saturating_add(rate.saturating_mul(u64::from(gang.wanted)));
        }
        let whole = shared::whole(input.machine, rules.share);
        if rules.share == GangsShare::Bus {
            return self.measure_bus(rules, whole, rates);
        }
        let used: u64 = self.used.values().fold(0, |sum, used| sum.saturating_add(*used));
        let is_full = rules.share == GangsShare::Cache && shared::is_full(used, whole);
        for (gang, rate) in self.gangs.iter_mut().zip(rates) {
            let Some(rate) = rate else { continue };
            let maximum = whole / u64::from(gang.wanted.max(1));
            let need = gang.cache_use.assumed_need(rate, is_full, maximum);
            gang.rates.add(need, need, rules.window);
        }
        Vec::new()
    }

    /// Estimates each measured gang's demand, the rate that it would have on an idle bus, and adds it with
    /// the rate. Returns the transfers of these gangs. `bus` is the capacity in bytes per second.
    fn measure_bus(&mut self, rules: GangRules, bus: u64, rates: Vec<Option<u64>>) -> Vec<GangUse> {
        let part_of_bus = |rate: u64| {
            u64::try_from(u128::from(rate) * u128::from(WHOLE) / u128::from(bus))
                .map_or(WHOLE, |part| part.min(WHOLE))
        };
        let ran = self.gangs.iter().zip(&rates).filter_map(|(gang, rate)| Some((gang, (*rate)?)));
        let all_threads: Vec<ThreadSet> =
            ran.map(|(gang, rate)| ThreadSet { threads: gang.wanted, part: part_of_bus(rate) }).collect();
        let mut uses = Vec::new();
        for (gang, rate) in self.gangs.iter_mut().zip(rates) {
            let Some(rate) = rate else { continue };
            let demand = u128::from(queue::demand(&all_threads, part_of_bus(rate))) * u128::from(bus)
                / u128::from(WHOLE);
            let demand = u64::try_from(demand).unwrap_or(u64::MAX).max(rate);
            gang.rates.add(rate, demand, rules.window);
            let (mark, last) = (gang.mark.unwrap_or_default(), gang.last.unwrap_or_default());
            uses.push(GangUse {
                job: gang.job,
                unit: gang.unit,
                bytes: last.amount.saturating_sub(mark.amount),
                span_ns: last.at.saturating_sub(mark.at),
                wants: ThreadSet { threads: gang.wanted, part: part_of_bus(demand) },
            });
        }
        uses
    }
}
