//! `--points FILE`: a study of points that were measured elsewhere.

use std::path::Path;

use commonhold_scale::study::{Load, Measure, Run, Size, Sizes, Study};

use crate::exit::{Exit, Failure};
use crate::load;

const SIZE_MAX: u32 = 65_535;
/// The maximum number of malformed rows that an error lists.
const SHOWN_MAX: usize = 10;

/// Reads a file of points as a study. The error lists all malformed rows.
pub(super) fn study(path: &Path) -> Result<Study, Failure> {
    let name = path.display();
    let text = load::text_of(path, "points", "a file of `size,throughput` rows")?;
    let points = parse(&text).map_err(|wrong| {
        let mut lines: Vec<String> =
            wrong.iter().take(SHOWN_MAX).map(|(line, why)| format!("{name}:{line}: {why}")).collect();
        lines.extend(wrong.len().checked_sub(SHOWN_MAX + 1).map(|more| format!("and {} more", more + 1)));
        Failure::new(Exit::Invalid, lines.join("\n"))
    })?;
    if points.is_empty() {
        return Err(Failure::new(
            Exit::Invalid,
            format!("{name}: it has no rows; write `size,throughput`, as in `1,250`"),
        ));
    }
    Ok(study_of(&name.to_string(), points))
}

fn study_of(name: &str, points: Vec<(u32, f64)>) -> Study {
    let mut sizes: std::collections::BTreeMap<u32, Vec<Run>> = std::collections::BTreeMap::new();
    for (n, throughput) in points {
        let run = Run { wall_ns: 0, throughput, load: Load::default(), watched: None };
        sizes.entry(n).or_default().push(run);
    }
    let size = |(n, runs)| Size { n, cpus: std::iter::empty().collect(), step: None, runs, failed: None };
    Study {
        command: name.to_owned(),
        machine: "points from a file".to_owned(),
        sizes_are: Sizes::Number,
        measure: Measure::Points(name.to_owned()),
        warm_up: 0,
        sizes: sizes.into_iter().map(size).collect(),
        quota: None,
        locks: None,
        limits: Vec::new(),
    }
}

/// A malformed line: its number, from 1 on, and the error.
type BadLine = (usize, String);

/// Parses rows `size,throughput`, each of which is a run. The first row may name the columns. Blank lines,
/// and lines that begin with `#`, are ignored. The error has all malformed lines.
fn parse(text: &str) -> Result<Vec<(u32, f64)>, Vec<BadLine>> {
    let (mut points, mut wrong) = (Vec::new(), Vec::new());
    let mut is_first = true;
    for (at, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let is_head = std::mem::take(&mut is_first) && !line.contains(|c: char| c.is_ascii_digit());
        match row(line) {
            Ok(point) => points.push(point),
            Err(_) if is_head => {}
            Err(why) => wrong.push((at + 1, format!("`{line}`: {why}"))),
        }
    }
    if wrong.is_empty() { Ok(points) } else { Err(wrong) }
}

/// Parses a row: size and throughput.
fn row(line: &str) -> Result<(u32, f64), String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let &[size, throughput] = fields.as_slice() else {
        return Err(format!("it has {} fields; write two, as in `4,980.5`", fields.len()));
    };
    let n = size.parse().ok().filter(|n| (1..=SIZE_MAX).contains(n));
    let n = n.ok_or_else(|| format!("the size is `{size}`; write a whole number from 1 to {SIZE_MAX}"))?;
    let rate = throughput.parse::<f64>().ok().filter(|rate| rate.is_normal() && *rate > 0.0);
    let rate = rate
        .ok_or_else(|| format!("the throughput is `{throughput}`; write a number above 0, without a unit"))?;
    Ok((n, rate))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rows_are_read_and_all_bad_ones_named_by_line() {
        let text = "\u{feff}size,throughput\n# by hand\n1, 10\r\n\n2,1.9e1\n1,11\n";
        assert_eq!(parse(text).unwrap(), [(1, 10.0), (2, 19.0), (1, 11.0)]);
        let wrong = parse("size,throughput\n1,10\n0,1\n2,1.9k\n3,2,235\n4,-1\nx,y\n5,inf\n").unwrap_err();
        assert_eq!(wrong.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8]);
        assert!(wrong[1].1.contains("`1.9k`") && wrong[2].1.contains("3 fields"), "{wrong:?}");
        // Sizes come in any order, and a size as often as it was run.
        let study = study_of("x", vec![(2, 1.0), (1, 1.0), (2, 2.0)]);
        assert_eq!(
            study.sizes.iter().map(|size| (size.n, size.runs.len())).collect::<Vec<_>>(),
            [(1, 1), (2, 2)]
        );
        assert_eq!(study.points().len(), 3);
    }
}
