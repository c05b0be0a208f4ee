//! The results of the frozen models: every row's mean and verdict before any unknown was varied and before
//! the models' faults that docs/reproduction.md names were mended. The file never changes.

use commonhold_sim_report::studies::Frozen;

/// Lines of `ROW,MEAN,VERDICT`; an empty field stands for no value.
const TEXT: &str = include_str!("frozen.csv");

/// The frozen result of a row; `None` if the row was added later.
pub(crate) fn frozen(id: &str) -> Option<Frozen> {
    let line = TEXT.lines().find_map(|line| line.strip_prefix(id)?.strip_prefix(','))?;
    let (mean, verdict) = line.split_once(',')?;
    let met = match verdict {
        "met" => Some(true),
        "missed" => Some(false),
        _ => None,
    };
    Some(Frozen { mean: mean.parse().ok(), met })
}
