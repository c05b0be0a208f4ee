//! Decides a row's verdict from its figures, one per random seed.
//!
//! Problem: a simulated figure varies with the random seed, but a row needs one verdict.
//!
//! Terms: the *mean* is that of all seeds' figures. The confidence interval is the mean plus and minus the
//! *half-width* ([`commonhold_sim_report::estimate`]).
//!
//! Algorithm:
//! - A *number* is met (hit) if the mean lies within the row's tolerance, ends included.
//! - A *sign* holds if the whole 90 % interval lies on the right side of the bound.
//! - A *hard bound* is met if every seed's figure meets it.
//! - If an audit check failed in a run that the row needs, the row is void, whatever its figures.
//!
//! Properties: the more the figures of the seeds differ, the harder it is for a sign to hold.
//!
//! Limits: one seed has no interval, so no sign can hold.
//!
//! Source: the papers give no intervals; these rules are this project's.

use commonhold_sim_report::claims::{Measured, Tolerance, Verdict};
pub use commonhold_sim_report::estimate::summarise;

use crate::measure::Seed;
use crate::rows::Row;
use crate::run::Runs;

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
