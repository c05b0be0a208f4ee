//! The second question: where does the time go that a larger size does not turn into work?
//!
//! Problem: at size n a piece of work costs n / X of CPU time, counting all CPUs. The growth of this cost from the smallest size to
//! the largest is what does not scale. The threads' states tell the causes.
//!
//! Algorithm: the cost divides into CPU time used and CPU time left idle. Time used is counted by state: cache misses and spinning
//! make the same work take more of it. Idle time is attributed to what threads waited for meanwhile, in proportion, up to the time
//! that they did wait. The rest had no thread to use it: the program has too few threads for that size, or does part of its
//! work with fewer. Waits for the program's own threads to end are no cause, since those threads are counted themselves.
//!
//! Properties: the causes add up to the growth.
//!
//! Limits: time that a thread queued while another CPU was idle, and CPU time that other programs took, both count as idle.

use crate::real;
use crate::states::{State, Times};
use crate::study::{Size, Sizes, Study};

/// What CPU time was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "what", content = "state")]
pub enum Cause {
    /// More CPU time for the same work, in that state.
    Used(State),
    /// CPUs that stood idle while threads were in that state.
    Idle(State),
    /// CPUs that stood idle, and no thread was there to use them.
    NoThread,
}

/// The contribution of a cause to the growth.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Part {
    /// The cause.
    pub cause: Cause,
    /// CPU seconds per piece of work in addition to the smallest size; negative if fewer.
    pub more_s: f64,
}

/// What grew between two sizes.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Growth {
    /// The smallest size that was watched.
    pub from: u32,
    /// The largest.
    pub to: u32,
    /// CPU seconds that a piece of work costs at the smallest size.
    pub before_s: f64,
    /// The same at the largest.
    pub after_s: f64,
    /// The causes, largest first, without negligible ones.
    pub parts: Vec<Part>,
}

impl Growth {
    /// The growth of the cost of a piece of work.
    pub fn more_s(&self) -> f64 {
        self.after_s - self.before_s
    }
}

const USED: [State; 3] = [State::User, State::Memory, State::System];
const WAITED: [State; 6] =
    [State::Lock, State::Io, State::Fault, State::Sleep, State::Stopped, State::Unseen];

/// The answer; `None` if fewer than two sizes were sampled.
pub fn growth(study: &Study) -> Option<Growth> {
    let mut watched = study.measured().filter(|size| size.times().1 > 0);
    let (first, last) = (watched.next()?, watched.next_back()?);
    let (before_s, before) = causes(study.sizes_are, first);
    let (after_s, after) = causes(study.sizes_are, last);
    let more = before
        .iter()
        .zip(&after)
        .map(|((cause, before), (_, after))| Part { cause: *cause, more_s: after - before });
    let mut parts: Vec<Part> = more.filter(|part| part.more_s.abs() > after_s * 1e-6).collect();
    parts.sort_by(|a, b| b.more_s.total_cmp(&a.more_s));
    Some(Growth { from: first.n, to: last.n, before_s, after_s, parts })
}

/// CPU seconds that a piece of work costs at a size, and what they were spent on.
fn causes(sizes_are: Sizes, size: &Size) -> (f64, Vec<(Cause, f64)>) {
    let watched: Vec<_> = size.runs.iter().filter(|run| run.watched.is_some()).collect();
    let work: f64 = watched.iter().map(|run| run.work()).sum();
    let work = if work > 0.0 { work } else { 1.0 };
    let wall: f64 = watched.iter().map(|run| run.wall_s()).sum();
    let cost = f64::from(size.n) * wall / work;
    let (times, _) = size.times();
    let seconds = |times: &Times, state: State| real(times.of(state)) / 1e9 / work;
    let mut causes: Vec<(Cause, f64)> =
        USED.map(|state| (Cause::Used(state), seconds(&times, state))).to_vec();
    let idle = cost - causes.iter().map(|(_, s)| s).sum::<f64>();
    // If the size is a number of threads, a queued thread does not work either.
    let mut waits = WAITED.to_vec();
    if sizes_are == Sizes::Number {
        waits.push(State::Queue);
    }
    let waited: f64 = waits.iter().map(|state| seconds(&times, *state)).sum();
    let by = if waited > 0.0 { idle.clamp(0.0, waited) / waited } else { 0.0 };
    causes.extend(waits.iter().map(|state| (Cause::Idle(*state), by * seconds(&times, *state))));
    causes.push((Cause::NoThread, idle - by * waited));
    (cost, causes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::study::{Measure, Run, Watched};

    fn size(n: u32, wall_s: f64, states: &[(State, f64)]) -> Size {
        let mut times = Times::default();
        for (state, s) in states {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            times.add(*state, (s * 1e9) as u64);
        }
        let watched = Some(Watched { times, ..Watched::default() });
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let run = Run {
            wall_ns: (wall_s * 1e9) as u64,
            throughput: 1.0 / wall_s,
            load: crate::study::Load::default(),
            watched,
        };
        Size { n, cpus: "0".parse().unwrap(), step: None, runs: vec![run.clone(), run], failed: None }
    }

    fn study(sizes: Vec<Size>) -> Study {
        Study {
            command: "x".into(),
            machine: "y".into(),
            sizes_are: Sizes::Cpus,
            measure: Measure::Runs,
            warm_up: 0,
            sizes,
            locks: None,
            limits: Vec::new(),
            quota: None,
        }
    }

    #[test]
    fn what_does_not_scale_is_put_down_to_what_threads_wait_for() {
        // Alone 10 s of CPU time. On 4 CPUs 5 s, which are 20 CPU seconds: 12 used, 8 idle. Threads waited 6 for a lock and
        // 2 for a disk, and the rest of the time, for each other to end.
        let alone = size(1, 10.0, &[(State::User, 9.0), (State::System, 1.0), (State::Join, 10.0)]);
        let four = [
            (State::User, 10.0),
            (State::System, 2.0),
            (State::Lock, 6.0),
            (State::Io, 2.0),
            (State::Join, 5.0),
        ];
        let growth = growth(&study(vec![alone, size(4, 5.0, &four)])).unwrap();
        assert!((growth.more_s() - 10.0).abs() < 1e-6);
        let parts: Vec<_> = growth.parts.iter().map(|p| (p.cause, (p.more_s * 1e6).round() / 1e6)).collect();
        assert_eq!(
            parts,
            [
                (Cause::Idle(State::Lock), 6.0),
                (Cause::Idle(State::Io), 2.0),
                (Cause::Used(State::User), 1.0),
                (Cause::Used(State::System), 1.0)
            ]
        );
    }

    #[test]
    fn cpus_that_no_thread_could_use() {
        let growth = growth(&study(vec![
            size(1, 4.0, &[(State::User, 4.0)]),
            size(4, 4.0, &[(State::User, 4.0), (State::Sleep, 2.0)]),
        ]));
        let growth = growth.unwrap();
        assert_eq!(growth.parts[0].cause, Cause::NoThread);
        assert!((growth.parts.iter().map(|part| part.more_s).sum::<f64>() - growth.more_s()).abs() < 1e-6);
    }

    #[test]
    fn one_size_has_no_growth() {
        assert_eq!(growth(&study(vec![size(1, 1.0, &[(State::User, 1.0)])])), None);
    }
}
