//! The first question: how does it scale?

use crate::chance::student;
use crate::fit::{Band, Fit, Point, Undetermined, cost, fit, mean, ratio_band};
use crate::law::Law;
use crate::real;
use crate::study::Study;

/// How a program scales, in so much detail as the measured sizes determine.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// Three sizes or more: the law.
    Law(Fit),
    /// Two sizes: the speed-up. Serialisation and contention cannot be distinguished.
    Two(Two),
    /// One size: scaling is unknown.
    One,
    /// No size was measured.
    Nothing,
    /// The sizes are too far from 1 to determine the law.
    FarFromOne,
}

/// What two sizes determine: the speed-up, and upper bounds of the coefficients.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Two {
    /// The smaller size.
    pub from: u32,
    /// The larger size.
    pub to: u32,
    /// Throughput of the larger size divided by that of the smaller.
    pub speed_up: f64,
    /// The 95 % confidence interval of `speed_up`; `None` with one run of each size.
    pub band: Option<Band>,
    /// The upper bound of serialisation: its value if there is no contention. `None` if serialisation alone
    /// cannot explain the speed-up.
    pub alpha_most: Option<f64>,
    /// The upper bound of contention: its value if there is no serialisation. `None` if contention alone
    /// cannot explain the speed-up.
    pub beta_most: Option<f64>,
}

/// Fits the law to a study, or finds out what its sizes determine instead.
pub fn scaling(study: &Study) -> Scaling {
    let points = study.points();
    match fit(&points) {
        Ok(fit) => Scaling::Law(fit),
        Err(Undetermined::FarFromOne) => Scaling::FarFromOne,
        Err(Undetermined::TooFewSizes(2)) => Scaling::Two(two(&points)),
        Err(Undetermined::TooFewSizes(1)) => Scaling::One,
        Err(Undetermined::TooFewSizes(_)) => Scaling::Nothing,
    }
}

/// The law fitted to given points; `None` if the points do not determine the law.
pub fn law_through(points: &[Point]) -> Option<Fit> {
    fit(points).ok()
}

/// Compares the two sizes that points have.
fn two(points: &[Point]) -> Two {
    let sizes = points.iter().map(|point| point.size);
    let (from, to) = (sizes.clone().min().unwrap_or(1), sizes.max().unwrap_or(1));
    let costs = |size: u32| -> Vec<f64> { points.iter().filter(|p| p.size == size).map(cost).collect() };
    let (before, after) = (costs(from), costs(to));
    let (low, high) = (mean(&before), mean(&after));
    let (n, m) = (f64::from(from), f64::from(to));
    // Cost is n / X, so the ratio of throughputs is the ratio of sizes divided by that of costs.
    let speed_up = m / n * low / high;
    let freedom = (before.len() + after.len()).saturating_sub(2) as u64;
    let squares =
        |costs: &[f64], mean: f64| costs.iter().map(|c| (c / mean - 1.0) * (c / mean - 1.0)).sum::<f64>();
    let band = (freedom > 0).then(|| {
        let noise = (squares(&before, low) + squares(&after, high)) / real(freedom);
        let error = |mean: f64, runs: usize| mean * mean * noise / real(runs as u64);
        let errors = [error(low, before.len()), 0.0, error(high, after.len())];
        let band = ratio_band(low, high, errors, student(0.05, freedom));
        Band { low: m / n * band.low, high: band.high.map(|high| m / n * high) }
    });
    // cost(m) / cost(n) = (1 + alpha (m - 1)) / (1 + alpha (n - 1)), and the same for beta with n (n - 1).
    let ratio = high / low;
    let coefficient_alone = |m: f64, n: f64| {
        let denominator = m - ratio * n;
        (denominator > 0.0).then(|| ((ratio - 1.0) / denominator).max(0.0))
    };
    Two {
        from,
        to,
        speed_up,
        band,
        // Alpha is a fraction of the work, so at most 1.
        alpha_most: coefficient_alone(m - 1.0, n - 1.0).filter(|alpha| *alpha <= 1.0),
        beta_most: coefficient_alone(m * (m - 1.0), n * (n - 1.0)),
    }
}

/// The latency ratio from which on latency is a problem: a piece of work takes twice as long as alone, so at
/// least half of the time is waiting or overhead.
const LATENCY_PROBLEM: f64 = 2.0;

/// The slope of the curve at the largest size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Slope {
    /// One more CPU adds throughput.
    Positive,
    /// The sign is unknown: the confidence interval of the peak contains this size.
    Unclear,
    /// One more CPU costs throughput.
    Negative,
}

/// The sign of the curve's slope at a size.
pub fn slope(fit: &Fit, n: f64) -> Slope {
    let peak = fit.law.peak();
    match (fit.bands, peak) {
        (Some(bands), _) if bands.peak.low > n => Slope::Positive,
        (Some(bands), _) if bands.peak.high.is_some_and(|high| high < n) => Slope::Negative,
        (Some(_), Some(_)) => Slope::Unclear,
        (Some(_) | None, None) => Slope::Positive,
        (None, Some(peak)) => {
            if peak > n {
                Slope::Positive
            } else {
                Slope::Negative
            }
        }
    }
}

/// Whether latency is a problem at a size.
pub fn latency_is_a_problem(law: &Law, n: f64) -> bool {
    law.latency_ratio(n) >= LATENCY_PROBLEM
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn points(pairs: &[(u32, f64)]) -> Vec<Point> {
        pairs.iter().map(|(size, throughput)| Point { size: *size, throughput: *throughput }).collect()
    }

    #[test]
    fn two_sizes_determine_a_ratio_and_bounds_of_the_coefficients() {
        // On 4 CPUs 2.5 times as much: costs 1 and 1.6. 0.6 is alpha * 3, or beta * 12.
        let two = two(&points(&[(1, 1.0), (1, 1.0), (4, 2.5), (4, 2.5)]));
        assert!((two.speed_up - 2.5).abs() < 1e-12);
        assert!((two.alpha_most.unwrap() - 0.2).abs() < 1e-12);
        assert!((two.beta_most.unwrap() - 0.05).abs() < 1e-12);
        let band = two.band.unwrap();
        assert!((band.low - 2.5).abs() < 1e-9 && (band.high.unwrap() - 2.5).abs() < 1e-9);
    }

    #[test]
    fn noise_widens_the_band_and_one_run_each_has_none() {
        let two_of = |of: &[(u32, f64)]| two(&points(of));
        let wide = two_of(&[(1, 0.9), (1, 1.1), (2, 1.7), (2, 1.9)]).band.unwrap();
        assert!(wide.low < 1.6 && wide.high.unwrap() > 2.0, "{wide:?}");
        assert_eq!(two_of(&[(1, 1.0), (2, 1.5)]).band, None);
        // It cannot get worse than this by serialisation alone, where size 1 is unknown.
        assert_eq!(two_of(&[(4, 2.0), (8, 1.0)]).alpha_most, None);
        // Half of the throughput on twice the CPUs: no part of the work explains that.
        let falls = two_of(&[(1, 1.0), (2, 0.5)]);
        assert_eq!((falls.alpha_most, falls.beta_most), (None, Some(1.5)));
    }

    #[test]
    fn the_slope_is_unclear_within_the_interval_of_the_peak() {
        let at = |alpha: f64, beta: f64, n: f64| {
            let law = Law { lambda: 1.0, alpha, beta };
            let sizes = [1u32, 2, 4, 8, 16].into_iter().flat_map(|n| [(n, 1.001), (n, 0.999)]);
            let runs: Vec<Point> = sizes
                .map(|(n, by)| Point { size: n, throughput: by * law.throughput(f64::from(n)) })
                .collect();
            slope(&fit(&runs).unwrap(), n)
        };
        assert_eq!(at(0.05, 0.0, 16.0), Slope::Positive);
        // The peak is at 9.7.
        assert_eq!(at(0.05, 0.01, 4.0), Slope::Positive);
        assert_eq!(at(0.05, 0.01, 9.75), Slope::Unclear);
        assert_eq!(at(0.05, 0.01, 16.0), Slope::Negative);
    }
}
