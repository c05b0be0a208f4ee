//! Gunther's law, the Universal Scalability Law [002]:
//!
//! ```text
//! X(n) = lambda n / (1 + alpha (n - 1) + beta n (n - 1))
//! ```
//!
//! | | |
//! | --- | --- |
//! | X | throughput: work per second |
//! | n | the size: the number of CPUs, or a number in the program's command line |
//! | lambda | throughput at size 1 |
//! | alpha | serialisation: the fraction of the work that only one CPU at a time can do (Amdahl's law) |
//! | beta | contention: the cost per pair of CPUs, such as keeping caches coherent |
//!
//! If beta is 0, throughput approaches `lambda / alpha`. Otherwise throughput has a peak, and falls beyond
//! the peak.

/// The coefficients of the law.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Law {
    /// Throughput at size 1.
    pub lambda: f64,
    /// Serialisation.
    pub alpha: f64,
    /// Contention.
    pub beta: f64,
}

impl Law {
    /// Throughput at a size.
    pub fn throughput(&self, n: f64) -> f64 {
        self.lambda * n / self.latency_ratio(n)
    }

    /// The latency at size `n` relative to that at size 1: how many times longer each of `n` concurrent
    /// pieces of work takes than one alone. By Little's law, since `n` pieces are in flight, and X(n) are
    /// completed per second.
    pub fn latency_ratio(&self, n: f64) -> f64 {
        1.0 + self.alpha * (n - 1.0) + self.beta * n * (n - 1.0)
    }

    /// Throughput at size `n` as a multiple of that at size 1.
    pub fn speed_up(&self, n: f64) -> f64 {
        n / self.latency_ratio(n)
    }

    /// The throughput that one more CPU adds at size `n`, as a multiple of the throughput at size 1.
    pub fn one_more(&self, n: f64) -> f64 {
        self.speed_up(n + 1.0) - self.speed_up(n)
    }

    /// Whether the throughput of two CPUs is below that of one.
    pub fn falls_from_the_first_step(&self) -> bool {
        self.speed_up(2.0) < 1.0
    }

    /// The size with the highest throughput; `None` if throughput never falls.
    pub fn peak(&self) -> Option<f64> {
        (self.beta > 0.0).then(|| ((1.0 - self.alpha).max(0.0) / self.beta).sqrt().max(1.0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_law_begins_at_lambda_and_peaks_where_the_seed_says() {
        let law = Law { lambda: 7.0, alpha: 0.1, beta: 0.01 };
        assert!((law.throughput(1.0) - 7.0).abs() < 1e-12);
        // sqrt((1 - 0.1) / 0.01) = sqrt(90).
        let peak = law.peak().unwrap();
        assert!((peak - 90f64.sqrt()).abs() < 1e-12);
        assert!(law.throughput(peak) > law.throughput(peak - 0.01));
        assert!(law.throughput(peak) > law.throughput(peak + 0.01));
        assert!(law.one_more(8.0) > 0.0 && law.one_more(10.0) < 0.0);
    }

    #[test]
    fn without_contention_there_is_no_peak_and_a_ceiling() {
        let law = Law { lambda: 1.0, alpha: 0.25, beta: 0.0 };
        assert_eq!(law.peak(), None);
        assert!((law.throughput(1e9) - 4.0).abs() < 1e-6);
        assert_eq!(Law { alpha: 2.0, beta: 0.5, ..law }.peak(), Some(1.0));
    }
}
