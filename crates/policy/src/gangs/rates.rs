//! A gang's measured rates and demands per thread, and the rate by which gangs are chosen: that of the latest
//! quantum, an average over a window of quanta, or the demand.

use alloc::collections::VecDeque;

use commonhold_contract::Gangs;

/// Windows up to this many quanta use an arithmetic mean; longer windows use an exponential moving average
/// (seed 003, section 4).
const MEAN_WINDOW_MAX: u32 = 5;

/// Demand is averaged over this many quanta, so that a burst in one quantum does not decide alone, and a new
/// phase of a job is recognised after two.
const DEMAND_WINDOW: usize = 2;

/// One gang's rates of use of the shared resource, per thread; of the bus, in bytes per second.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Rates {
    /// Rates in the latest quanta in which it ran, the most recent last.
    latest: VecDeque<u64>,
    /// The exponential moving average.
    moving_average: Option<u64>,
    /// Demands in the latest quanta in which it ran, the most recent last.
    demands: VecDeque<u64>,
}

impl Rates {
    /// Adds a quantum: the measured rate, and the estimated demand on an idle bus. `window` is the length of
    /// the averages, in quanta.
    pub(super) fn add(&mut self, rate: u64, demand: u64, window: u32) {
        self.latest.push_back(rate);
        while self.latest.len() > MEAN_WINDOW_MAX.min(window) as usize {
            self.latest.pop_front();
        }
        self.demands.push_back(demand);
        while self.demands.len() > DEMAND_WINDOW {
            self.demands.pop_front();
        }
        let divisor = u128::from(window) + 1;
        let before = u128::from(self.moving_average.unwrap_or(rate));
        // before + (rate - before) * 2 / (window + 1), which lies between both.
        let average = (before * (divisor - 2) + u128::from(rate) * 2) / divisor;
        self.moving_average = Some(u64::try_from(average).unwrap_or(u64::MAX));
    }

    /// The rate by which the contract's rule chooses gangs; `None`: the gang was not measured yet.
    pub(super) fn by(&self, by: Gangs, window: u32) -> Option<u64> {
        match by {
            Gangs::Demand => mean(&self.demands),
            Gangs::QuantaWindow if window > MEAN_WINDOW_MAX => self.moving_average,
            Gangs::QuantaWindow => mean(&self.latest),
            Gangs::LatestQuantum | Gangs::Off => self.latest.back().copied(),
        }
    }
}

fn mean(rates: &VecDeque<u64>) -> Option<u64> {
    let sum: u128 = rates.iter().map(|rate| u128::from(*rate)).sum();
    sum.checked_div(rates.len() as u128).map(|mean| u64::try_from(mean).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_quantum_and_the_average_of_five() {
        let mut rates = Rates::default();
        assert_eq!(rates.by(Gangs::LatestQuantum, 5), None);
        for rate in [10, 20, 30, 40, 50, 60] {
            rates.add(rate, rate * 2, 5);
        }
        assert_eq!(rates.by(Gangs::LatestQuantum, 5), Some(60));
        assert_eq!(rates.by(Gangs::QuantaWindow, 5), Some(40), "10 has left the window");
        assert_eq!(rates.by(Gangs::Demand, 5), Some(110), "the mean of two");
    }

    #[test]
    fn a_window_of_one_is_the_latest_quantum() {
        let mut rates = Rates::default();
        rates.add(10, 10, 1);
        rates.add(70, 70, 1);
        assert_eq!(rates.by(Gangs::QuantaWindow, 1), Some(70));
    }

    /// With 19 quanta, each counts a tenth of the distance: after 10 quanta, 0.9^10 of an old rate is left,
    /// 35 %.
    #[test]
    fn a_window_of_many_quanta_is_a_moving_average() {
        let mut rates = Rates::default();
        rates.add(0, 0, 19);
        for _ in 0..10 {
            rates.add(1_000_000, 1_000_000, 19);
        }
        let now = rates.by(Gangs::QuantaWindow, 19).unwrap_or(0);
        assert!(now.abs_diff(651_321) < 20, "{now}");
    }
}
