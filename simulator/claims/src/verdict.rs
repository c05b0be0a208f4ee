//! Decides a row's verdict from its figures, one per random seed.
//!
//! Problem: a simulated figure varies with the random seed, but a row needs one verdict.
//!
//! Terms: the *mean* is that of all seeds' figures. The *half-width* is t s / √n, where s is the standard
//! deviation with n - 1 in the denominator, and t the quantile of Student's distribution with n - 1 degrees
//! of freedom. The confidence interval is the mean plus and minus the half-width.
//!
//! Algorithm:
//! - A *number* is met (hit) if the mean lies within the row's tolerance, ends included.
//! - A *sign* holds if the whole 90 % interval lies on the right side of the bound.
//! - A *hard bound* is met if every seed's figure meets it.
//! - If an audit check failed in a run that the row needs, the row is void, whatever its figures.
//!
//! Properties: the more the figures of the seeds differ, the harder it is for a sign to hold.
//!
//! Limits: one seed has no interval, so no sign can hold. Above 30 seeds, t is that of 30 seeds, so the
//! interval is slightly too wide.
//!
//! Source: the papers give no intervals; these rules are this project's.

use commonhold_sim_report::claims::{Measured, Tolerance, Verdict};

use crate::measure::{Seed, real};
use crate::rows::Row;
use crate::run::Runs;

/// Student's t for two-sided intervals of 95 %, by degrees of freedom from 1.
const T_95: [f64; 29] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
];

/// Student's t for two-sided intervals of 90 %, by degrees of freedom from 1.
const T_90: [f64; 29] = [
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
    1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699,
];

/// Mean and half-widths of figures, one per seed; `None` without figures. One figure has no half-widths.
pub fn summarise(figures: &[f64]) -> Option<Measured> {
    if figures.is_empty() {
        return None;
    }
    let n = real(figures.len() as u64);
    let mean = figures.iter().sum::<f64>() / n;
    let degrees_of_freedom = figures.len() - 1;
    let standard_error = (degrees_of_freedom > 0).then(|| {
        let squares: f64 = figures.iter().map(|figure| (figure - mean) * (figure - mean)).sum();
        libm::sqrt(squares / (n - 1.0) / n)
    });
    let half_width = |table: &[f64; 29]| {
        standard_error.map(|error| table[degrees_of_freedom.min(table.len()) - 1] * error)
    };
    Some(Measured { mean, half_95: half_width(&T_95), half_90: half_width(&T_90), by_seed: figures.to_vec() })
}

/// A row's measured value, if it has one, and its verdict.
pub fn judge(row: &Row, runs: &Runs) -> (Option<Measured>, Verdict) {
    let Some(measure) = row.measure else { return (None, row.unmeasured()) };
    if row.needs.iter().any(|experiment| !runs.has(*experiment)) {
        return (None, Verdict::NotMeasured { reason: "what it needs was not run".to_owned() });
    }
    if let Some(why) = row.needs.iter().find_map(|experiment| runs.flaw(*experiment)) {
        return (None, Verdict::Void { reason: why });
    }
    let figures: Option<Vec<f64>> =
        (0..runs.seeds().len().min(row.seeds)).map(|index| measure(Seed::new(runs, index))).collect();
    match figures.as_deref().and_then(summarise) {
        None => {
            let reason =
                "a figure is missing: a job had not ended at the horizon, or did nothing of the kind";
            (None, Verdict::NotMeasured { reason: reason.to_owned() })
        }
        Some(measured) => {
            let verdict = row.held().unwrap_or_else(|| decide(&row.tolerance, &measured));
            (Some(measured), verdict)
        }
    }
}

/// The verdict of a measured value under a tolerance.
pub fn decide(tolerance: &Tolerance, measured: &Measured) -> Verdict {
    let hit_if = |is_met| if is_met { Verdict::Hit } else { Verdict::Miss };
    let mean = measured.mean;
    match *tolerance {
        Tolerance::None => Verdict::Reported,
        Tolerance::Between { low, high } => hit_if(low <= mean && mean <= high),
        Tolerance::AtLeast { low } => hit_if(low <= mean),
        Tolerance::AtMost { high } => hit_if(mean <= high),
        Tolerance::AlwaysAtMost { high } => hit_if(measured.by_seed.iter().all(|figure| *figure <= high)),
        Tolerance::Above { bound } => sign(measured, |half| mean - half > bound),
        Tolerance::Below { bound } => sign(measured, |half| mean + half < bound),
    }
}

/// The verdict of a sign; `holds` checks the bound against the half-width of the 90 % interval.
fn sign(measured: &Measured, holds: impl Fn(f64) -> bool) -> Verdict {
    match measured.half_90 {
        None => Verdict::NotMeasured { reason: "a sign needs two seeds at least".to_owned() },
        Some(half) if holds(half) => Verdict::SignHolds,
        Some(_) => Verdict::Miss,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn measured(figures: &[f64]) -> Measured {
        summarise(figures).unwrap()
    }

    #[test]
    fn mean_and_intervals_by_hand() {
        // 1, 2, 3: mean 2, s² = (1 + 0 + 1) / 2 = 1, error √(1/3) = 0.57735; times 4.303 and 2.920.
        let three = measured(&[1.0, 2.0, 3.0]);
        assert!((three.mean - 2.0).abs() < 1e-12);
        assert!((three.half_95.unwrap() - 2.484_34).abs() < 1e-4, "{three:?}");
        assert!((three.half_90.unwrap() - 1.685_86).abs() < 1e-4, "{three:?}");
        // 0 and 2: s² = 2, error √(2/2) = 1: the table's own numbers.
        let two = measured(&[0.0, 2.0]);
        assert_eq!((two.half_95, two.half_90), (Some(12.706), Some(6.314)));
        let one = measured(&[5.0]);
        assert_eq!((one.mean, one.half_95), (5.0, None));
        assert!(summarise(&[]).is_none());
    }

    #[test]
    fn many_seeds_use_the_last_of_the_table() {
        // Alternating -1 and 1, n = 40: s² = 40/39, error √(1/39) = 0.160128; times 2.045.
        let figures: Vec<f64> = (0..40).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        assert!((measured(&figures).half_95.unwrap() - 0.327_46).abs() < 1e-4);
    }

    #[test]
    fn numbers_by_their_mean_and_ends_included() {
        let between = Tolerance::Between { low: 1.0, high: 2.0 };
        assert_eq!(decide(&between, &measured(&[0.0, 2.0])), Verdict::Hit); // mean 1
        assert_eq!(decide(&between, &measured(&[2.0, 4.0])), Verdict::Miss); // mean 3
        assert_eq!(decide(&Tolerance::AtLeast { low: 2.5 }, &measured(&[2.5])), Verdict::Hit);
        assert_eq!(decide(&Tolerance::AtLeast { low: 2.5 }, &measured(&[2.4])), Verdict::Miss);
        assert_eq!(decide(&Tolerance::AtMost { high: 0.5 }, &measured(&[0.5])), Verdict::Hit);
        assert_eq!(decide(&Tolerance::AtMost { high: 0.5 }, &measured(&[0.6])), Verdict::Miss);
        assert_eq!(decide(&Tolerance::None, &measured(&[0.6])), Verdict::Reported);
    }

    #[test]
    fn a_hard_bound_holds_for_every_seed() {
        let bound = Tolerance::AlwaysAtMost { high: 10.0 };
        assert_eq!(decide(&bound, &measured(&[9.0, 10.0])), Verdict::Hit);
        assert_eq!(decide(&bound, &measured(&[0.0, 10.1])), Verdict::Miss); // though the mean is 5.05
    }

    #[test]
    fn signs_need_the_whole_interval() {
        // 1.2, 1.3, 1.4: mean 1.3, s = 0.1, half-width 2.920 * 0.057735 = 0.16859; from 1.131 on.
        let three = measured(&[1.2, 1.3, 1.4]);
        assert_eq!(decide(&Tolerance::Above { bound: 1.13 }, &three), Verdict::SignHolds);
        assert_eq!(decide(&Tolerance::Above { bound: 1.14 }, &three), Verdict::Miss);
        assert_eq!(decide(&Tolerance::Below { bound: 1.47 }, &three), Verdict::SignHolds);
        assert_eq!(decide(&Tolerance::Below { bound: 1.46 }, &three), Verdict::Miss);
        assert!(matches!(
            decide(&Tolerance::Above { bound: 1.0 }, &measured(&[9.0])),
            Verdict::NotMeasured { .. }
        ));
    }

    proptest! {
        #[test]
        fn intervals_hold_their_mean_and_scale(figures in proptest::collection::vec(0.1f64..10.0, 2..35)) {
            let once = measured(&figures);
            let twice = measured(&figures.iter().map(|f| f * 2.0).collect::<Vec<_>>());
            prop_assert!(once.half_90.unwrap() <= once.half_95.unwrap());
            prop_assert!((twice.mean - 2.0 * once.mean).abs() < 1e-9);
            prop_assert!((twice.half_90.unwrap() - 2.0 * once.half_90.unwrap()).abs() < 1e-9);
            let least = figures.iter().copied().fold(f64::MAX, f64::min);
            let most = figures.iter().copied().fold(f64::MIN, f64::max);
            prop_assert!(least - 1e-9 <= once.mean && once.mean <= most + 1e-9);
        }
    }
}
