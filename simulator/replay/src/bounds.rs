//! The registered bounds, and the comparison of a replay with the recording.
//!
//! The bounds are in `bounds.toml`, which was committed before the first comparison. A figure of a replay
//! under another contract is trusted only if the replay of the recorded contract is within the figure's
//! bound.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::figures::{Figures, UnitFigures, ratio};

/// The text of the registered bounds.
pub const REGISTERED: &str = include_str!("../bounds.toml");

/// Call-backs below this number have no percentile that could be compared.
const CALL_BACKS_MIN: u64 = 20;

/// A figure of a unit that has a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// The part of the CPU time of all units.
    Share,
    /// The mean time from a wake-up to the next sleep, in seconds.
    Response,
    /// CPU time and waits for CPUs, divided by CPU time.
    Slowdown,
    /// The 99th percentile of waits for a CPU after a wake-up, in seconds.
    WakeP99,
    /// The number of call-backs of CPUs.
    CallBacks,
    /// The 99th percentile of call-backs, in seconds.
    CallBackP99,
    /// The mean of its memory, in bytes.
    Memory,
    /// What its tasks transferred from and to disks, in bytes.
    Transferred,
}

impl Figure {
    /// All figures, in the order in which they are shown.
    pub const ALL: [Figure; 8] = [
        Figure::Share,
        Figure::Response,
        Figure::Slowdown,
        Figure::WakeP99,
        Figure::CallBacks,
        Figure::CallBackP99,
        Figure::Memory,
        Figure::Transferred,
    ];

    /// Its name in the file of bounds.
    pub const fn name(self) -> &'static str {
        match self {
            Figure::Share => "share",
            Figure::Response => "response",
            Figure::Slowdown => "slowdown",
            Figure::WakeP99 => "wake-p99",
            Figure::CallBacks => "call-backs",
            Figure::CallBackP99 => "call-back-p99",
            Figure::Memory => "memory",
            Figure::Transferred => "transferred",
        }
    }

    /// Whether it is a sum over time.
    const fn is_total(self) -> bool {
        matches!(self, Figure::CallBacks | Figure::Transferred)
    }

    /// Its value for a unit; `None` if it was not measured.
    pub fn of(self, unit: &UnitFigures) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let float = |number: u64| number as f64;
        match self {
            Figure::Share => Some(unit.share),
            Figure::Response => unit.response_ns().map(|ns| ns / 1e9),
            Figure::Slowdown => Some(unit.slowdown()),
            Figure::WakeP99 => unit.wake_p99_ns().map(|ns| float(ns) / 1e9),
            Figure::CallBacks => Some(float(unit.called_back)),
            Figure::CallBackP99 => {
                unit.call_back_p99_ns().filter(|_| unit.called_back >= CALL_BACKS_MIN).map(|ns| ns / 1e9)
            }
            Figure::Memory => unit.memory.map(float),
            Figure::Transferred => Some(float(unit.transferred)),
        }
    }
}

/// The bound of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// The largest deviation, as a part of the recorded value.
    pub relative: Option<f64>,
    /// The largest quotient of the larger and the smaller value.
    pub factor: Option<f64>,
    /// If both values are below this, they are not compared.
    pub least: f64,
}

/// The bounds of all figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Bounds {
    bounds: BTreeMap<Figure, Bound>,
}

#[derive(Deserialize)]
struct Raw {
    version: u32,
    #[serde(flatten)]
    bounds: BTreeMap<Figure, Bound>,
}

impl Bounds {
    /// The registered bounds.
    ///
    /// # Panics
    ///
    /// If the file in this crate is not valid, which a test excludes.
    #[expect(clippy::expect_used, reason = "a test reads the file of this crate")]
    pub fn registered() -> Bounds {
        Bounds::parse(REGISTERED).expect("the registered bounds are valid")
    }

    /// Reads bounds. Each figure must have one, either relative or a factor.
    ///
    /// # Errors
    ///
    /// The mistake, in words.
    pub fn parse(text: &str) -> Result<Bounds, String> {
        let raw: Raw = toml::from_str(text).map_err(|error| error.to_string())?;
        if raw.version != 1 {
            return Err(format!("version {} of a file of bounds; this program reads version 1", raw.version));
        }
        for figure in Figure::ALL {
            let name = figure.name();
            let bound = raw.bounds.get(&figure).ok_or_else(|| format!("no bound for `{name}`"))?;
            if bound.relative.is_some() == bound.factor.is_some() {
                return Err(format!("`{name}` needs either `relative` or `factor`"));
            }
        }
        Ok(Bounds { bounds: raw.bounds })
    }

    /// The bound of a figure.
    pub fn of(&self, figure: Figure) -> Bound {
        self.bounds.get(&figure).copied().unwrap_or(Bound {
            relative: Some(0.0),
            factor: None,
            least: f64::MAX,
        })
    }
}

/// Whether a figure of the replay agrees with the recording.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "trust")]
pub enum Trust {
    /// It is within its bound.
    Trusted,
    /// It is not: predictions of this figure are not to be trusted.
    NotTrusted,
    /// There is nothing to compare: the recording or the replay lacks the figure, or it is too small.
    NotMeasured,
}

/// A figure of a unit, recorded and replayed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Comparison {
    /// The figure.
    pub figure: Figure,
    /// The recorded value.
    pub recorded: Option<f64>,
    /// The value of the replay of the recorded contract.
    pub replayed: Option<f64>,
    /// The replay's deviation as a part of the recorded value; `None` without both, or if that is 0.
    pub off: Option<f64>,
    /// The verdict.
    #[serde(flatten)]
    pub trust: Trust,
}

/// Compares a unit's figures; `recorded` or `replayed` is `None` if the unit had no tasks there. The replay's
/// totals are multiplied by `longer`, which is how much longer the recording is.
pub fn compare(
    bounds: &Bounds,
    recorded: Option<&UnitFigures>,
    replayed: Option<&UnitFigures>,
    longer: f64,
) -> Vec<Comparison> {
    let one = |figure: Figure| {
        let [recorded, replayed] = [recorded, replayed].map(|unit| figure.of(unit?));
        let replayed = replayed.map(|value| if figure.is_total() { value * longer } else { value });
        let off = recorded.zip(replayed).filter(|(recorded, _)| *recorded > 0.0);
        let off = off.map(|(recorded, replayed)| replayed / recorded - 1.0);
        let trust = judge(bounds.of(figure), recorded, replayed);
        Comparison { figure, recorded, replayed, off, trust }
    };
    Figure::ALL.into_iter().map(one).collect()
}

fn judge(bound: Bound, recorded: Option<f64>, replayed: Option<f64>) -> Trust {
    let (Some(recorded), Some(replayed)) = (recorded, replayed) else { return Trust::NotMeasured };
    if recorded.max(replayed) < bound.least {
        return Trust::NotMeasured;
    }
    let is_within = match (bound.relative, bound.factor) {
        (Some(relative), _) => (replayed - recorded).abs() <= relative * recorded,
        (None, Some(factor)) => {
            let (smaller, larger) = (recorded.min(replayed), recorded.max(replayed));
            smaller > 0.0 && larger <= factor * smaller
        }
        (None, None) => false,
    };
    if is_within { Trust::Trusted } else { Trust::NotTrusted }
}

/// Compares all units of two sets of figures, by path.
pub fn compare_all(
    bounds: &Bounds,
    recorded: &Figures,
    replayed: &Figures,
) -> BTreeMap<String, Vec<Comparison>> {
    let paths = recorded.units.iter().chain(&replayed.units).map(|unit| unit.unit.as_str());
    let longer = ratio(recorded.length_ns, replayed.length_ns);
    let compared = |path: &str| compare(bounds, recorded.unit(path), replayed.unit(path), longer);
    paths.map(|path| (path.to_owned(), compared(path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registered_bounds_are_valid() {
        let bounds = Bounds::parse(REGISTERED).unwrap();
        assert_eq!(bounds.of(Figure::Share).relative, Some(0.05));
        assert_eq!(bounds.of(Figure::Response).relative, Some(0.10));
        assert_eq!(bounds.of(Figure::CallBackP99).factor, Some(1.5));
    }

    #[test]
    fn mistakes_in_bounds_are_named() {
        let wrong = |from: &str, to: &str| Bounds::parse(&REGISTERED.replacen(from, to, 1)).unwrap_err();
        assert!(wrong("version = 1", "version = 2").starts_with("version 2"));
        assert_eq!(wrong("[memory]\nrelative = 0.10\nleast = 16777216\n", ""), "no bound for `memory`");
        assert_eq!(wrong("relative = 0.05\n", ""), "`share` needs either `relative` or `factor`");
    }

    #[test]
    fn bounds_are_inclusive_and_small_values_are_not_compared() {
        let relative = Bound { relative: Some(0.1), factor: None, least: 1.0 };
        let factor = Bound { relative: None, factor: Some(2.0), least: 1.0 };
        let judge = |bound, recorded: f64, replayed: f64| super::judge(bound, Some(recorded), Some(replayed));
        assert_eq!(judge(relative, 10.0, 11.0), Trust::Trusted);
        assert_eq!(judge(relative, 10.0, 11.1), Trust::NotTrusted);
        assert_eq!(judge(factor, 10.0, 5.0), Trust::Trusted);
        assert_eq!(judge(factor, 10.0, 4.9), Trust::NotTrusted);
        assert_eq!(judge(factor, 0.0, 5.0), Trust::NotTrusted);
        assert_eq!(judge(factor, 0.5, 0.9), Trust::NotMeasured);
        assert_eq!(super::judge(factor, None, Some(1.0)), Trust::NotMeasured);
    }
}
