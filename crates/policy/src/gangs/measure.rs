//! Measures what gangs used of the shared resource in the quantum that ended.

use alloc::vec::Vec;

use commonhold_contract::{GangRules, GangsShare};

use super::rates::Rates;
use super::shared::{self, CacheUse};
use super::{Gang, GangQueue};
use crate::bus::GangUse;
use crate::bus::queue::{self, ThreadSet, WHOLE};
use crate::input::Input;

/// A measurement over less than this part of a quantum is discarded.
const MEASURE_PART: u64 = 4;

impl GangQueue {
    /// Forgets measurements of another shared resource.
    pub(super) fn measure_by(&mut self, share: GangsShare) {
        if self.share == share {
            return;
        }
        (self.share, self.most) = (share, 0);
        self.used.clear();
        for gang in &mut self.gangs {
            (gang.mark, gang.last) = (None, None);
            (gang.rates, gang.cache_use) = (Rates::default(), CacheUse::default());
        }
    }

    /// Measures the gangs that ran; for the bus, returns the details of each.
    pub(super) fn measure(&mut self, input: Input<'_>, rules: GangRules) -> Vec<GangUse> {
        let rate = |gang: &Gang| {
            let (mark, last) = (gang.mark?, gang.last?);
            let span = last.at.saturating_sub(mark.at);
            let enough = gang.runs && gang.wanted > 0 && span >= rules.quantum_ns / MEASURE_PART;
            let had = u128::from(last.amount.saturating_sub(mark.amount)) * 1_000_000_000;
            let rate = had / u128::from(span.max(1)) / u128::from(gang.wanted.max(1));
            enough.then(|| u64::try_from(rate).unwrap_or(u64::MAX))
        };
        let rates: Vec<Option<u64>> = self.gangs.iter().map(rate).collect();
        let ran = self.gangs.iter().zip(&rates).filter_map(|(gang, rate)| Some((gang, (*rate)?)));
        self.used.clear();
        for (gang, rate) in ran {
            let used = self.used.entry(gang.board).or_default();
            *used = used.saturating_add(rate.saturating_mul(u64::from(gang.wanted)));
        }
        self.most = shared::most_seen(self.most, rates.iter().flatten().copied());
        let whole = shared::whole(input.machine, rules.share, self.most);
        if rules.share == GangsShare::Bus {
            return self.measure_bus(rules, whole, rates);
        }
        let used: u64 = self.used.values().fold(0, |sum, used| sum.saturating_add(*used));
        let is_full = rules.share == GangsShare::Cache && shared::is_full(used, whole);
        for (gang, rate) in self.gangs.iter_mut().zip(rates) {
            let Some(rate) = rate else { continue };
            let taken = gang.cache_use.assumed(rate, is_full, whole / u64::from(gang.wanted.max(1)));
            gang.rates.measured(taken, taken, rules.window);
        }
        Vec::new()
    }

    /// Estimates what each measured gang would transfer on an idle bus.
    fn measure_bus(&mut self, rules: GangRules, bus: u64, rates: Vec<Option<u64>>) -> Vec<GangUse> {
        let part_of_bus = |rate: u64| {
            u64::try_from(u128::from(rate) * u128::from(WHOLE) / u128::from(bus))
                .map_or(WHOLE, |part| part.min(WHOLE))
        };
        let ran = self.gangs.iter().zip(&rates).filter_map(|(gang, rate)| Some((gang, (*rate)?)));
        let together: Vec<ThreadSet> =
            ran.map(|(gang, rate)| ThreadSet { threads: gang.wanted, part: part_of_bus(rate) }).collect();
        let mut entered = Vec::new();
        for (gang, rate) in self.gangs.iter_mut().zip(rates) {
            let Some(rate) = rate else { continue };
            let demand =
                u128::from(queue::demand(&together, part_of_bus(rate))) * u128::from(bus) / u128::from(WHOLE);
            let demand = u64::try_from(demand).unwrap_or(u64::MAX).max(rate);
            gang.rates.measured(rate, demand, rules.window);
            let (mark, last) = (gang.mark.unwrap_or_default(), gang.last.unwrap_or_default());
            entered.push(GangUse {
                job: gang.job,
                unit: gang.unit,
                bytes: last.amount.saturating_sub(mark.amount),
                span_ns: last.at.saturating_sub(mark.at),
                wants: ThreadSet { threads: gang.wanted, part: part_of_bus(demand) },
            });
        }
        entered
    }
}
