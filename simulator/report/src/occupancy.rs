//! Which job runs on which CPU over time, as in figure 6 of seed 001: a letter per job, a line per sample.

use std::fmt::Write as _;

use commonhold_report::figures::duration;
use commonhold_report::svg;
use commonhold_sim::outcome::{JobOutcome, Occupancy};

/// A job's letter: `a` to `z`, then `a` again.
fn letter(job: usize) -> char {
    char::from(b'a' + u8::try_from(job % 26).unwrap_or(0))
}

/// A line per sample: the time, a letter or a dash per CPU with a space between pools, and the names of jobs
/// that appear for the first time. A line that equals the line before is left out.
pub fn text(occupancy: &Occupancy, jobs: &[JobOutcome]) -> String {
    let mut out = String::from("time, and the job that has each CPU; pools are apart, - is nobody\n");
    let (mut before, mut introduced) = (String::new(), 0);
    for (at, moment) in occupancy.moments.iter().enumerate() {
        let pools = occupancy.pools.iter().map(|pool| letters(pool, moment));
        let line = pools.collect::<Vec<_>>().join(" ");
        if line != before {
            let last = moment.iter().flatten().max().map_or(introduced, |last| introduced.max(last + 1));
            let new = (introduced..last).filter_map(|job| {
                let name = &jobs.get(*occupancy.jobs.get(job)? as usize)?.name;
                Some(format!("{} {name}", letter(job)))
            });
            let new = new.collect::<Vec<_>>().join(", ");
            let line = format!("{:>9}  {line}  {new}", duration(at as u64 * occupancy.every_ns));
            let _ = writeln!(out, "{}", line.trim_end());
            introduced = last;
        }
        before = line;
    }
    out
}

/// The letters of the jobs on a pool's CPUs in one sample; a dash for an idle CPU.
fn letters(pool: &[u32], moment: &[Option<usize>]) -> String {
    let on = |cpu: &u32| moment.get(*cpu as usize).copied().flatten().map_or('-', letter);
    pool.iter().map(on).collect()
}

const LEFT: f64 = 60.0;
const WIDTH: f64 = svg::WIDTH - LEFT - 20.0;
const ROW: f64 = 16.0;
const GAP: f64 = 8.0;
const TOP: f64 = 12.0;

/// The colours of jobs. Jobs get them in turn, so that neighbours differ.
const COLOURS: [&str; 8] =
    ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e"];

/// The chart: a row per CPU, with a gap between pools. Time runs from left to right, and each job has a
/// colour.
pub(crate) fn plot(occupancy: &Occupancy) -> String {
    let cpus: usize = occupancy.pools.iter().map(Vec::len).sum();
    let height = TOP + real(cpus) * ROW + real(occupancy.pools.len()) * GAP + 40.0;
    let moments = occupancy.moments.len().max(1);
    let mut out = svg::open("occupancy", "Jobs on CPUs", "Which job has which CPU over time", height);
    let mut top = TOP;
    for pool in &occupancy.pools {
        for cpu in pool {
            let _ = writeln!(
                out,
                "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">cpu {cpu}</text>",
                LEFT - 6.0,
                top + ROW - 4.0
            );
            for (from, until, job) in runs(occupancy, *cpu) {
                let x = LEFT + WIDTH * real(from) / real(moments);
                let width = WIDTH * real(until - from) / real(moments);
                let colour = COLOURS[job % COLOURS.len()];
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.2}\" y=\"{top:.1}\" width=\"{width:.2}\" height=\"{:.1}\" fill=\"{colour}\">\
                     <title>job {}</title></rect>",
                    ROW - 2.0,
                    job + 1
                );
                if width > 10.0 {
                    let _ = writeln!(
                        out,
                        "<text x=\"{:.2}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                        x + width / 2.0,
                        top + ROW - 4.5,
                        letter(job)
                    );
                }
            }
            top += ROW;
        }
        top += GAP;
    }
    let until = real(moments) * real(usize::try_from(occupancy.every_ns).unwrap_or(usize::MAX)) / 1e9;
    let axis = svg::Axis { left: LEFT, right: LEFT + WIDTH, until, step: svg::step_for(until), unit: "s" };
    svg::add_axis(&mut out, &axis, top);
    out + "</svg>\n"
}

/// The intervals in which a CPU runs one job: the first sample, the sample after the last, and the job.
fn runs(occupancy: &Occupancy, cpu: u32) -> Vec<(usize, usize, usize)> {
    let mut runs: Vec<(usize, usize, usize)> = Vec::new();
    for (at, moment) in occupancy.moments.iter().enumerate() {
        let Some(job) = moment.get(cpu as usize).copied().flatten() else { continue };
        match runs.last_mut() {
            Some((_, until, last)) if *until == at && *last == job => *until = at + 1,
            _ => runs.push((at, at + 1, job)),
        }
    }
    runs
}

#[expect(clippy::cast_precision_loss, reason = "places in a picture")]
fn real(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_sim::outcome::Spent;

    fn occupancy() -> Occupancy {
        let moments = vec![
            vec![Some(0), Some(0), None, Some(1)],
            vec![Some(0), Some(0), None, Some(1)],
            vec![Some(27), None, None, Some(1)],
        ];
        Occupancy { every_ns: 100_000_000, pools: vec![vec![0, 1], vec![2, 3]], jobs: vec![0; 28], moments }
    }

    #[test]
    fn a_line_for_each_moment_that_is_new() {
        let spent = Spent::default();
        let job = |name: &str| JobOutcome {
            name: name.to_owned(),
            unit: "u".to_owned(),
            started_ns: 0,
            ended_ns: None,
            spent,
        };
        let mut occupancy = occupancy();
        occupancy.jobs[1] = 1;
        let text = text(&occupancy, &[job("fft"), job("mm")]);
        let lines: Vec<&str> = text.lines().skip(1).map(str::trim).collect();
        assert_eq!(lines[0], "0 s  aa -b  a fft, b mm");
        assert!(lines[1].starts_with("200.0 ms  b- -b  c fft"), "{text}");
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn a_run_is_one_mark() {
        assert_eq!(runs(&occupancy(), 0), [(0, 2, 0), (2, 3, 27)]);
        assert_eq!(runs(&occupancy(), 2), []);
        assert_eq!(plot(&occupancy()).matches("<rect").count(), 4);
    }
}
