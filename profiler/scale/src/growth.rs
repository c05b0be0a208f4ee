//! The second question: where does the time go that a larger size does not turn into work?
//!
//! Problem: at size n a piece of work costs n / X of CPU time, counting all CPUs. The growth of this cost
//! from the smallest size to the largest is what does not scale. The threads' states show the causes.
//!
//! Algorithm: the cost is the sum of CPU time used and CPU time left idle. Used time is counted by state:
//! cache misses and spinning make the same work use more CPU time. Idle time is attributed to the states in
//! which threads waited, in proportion to the waiting time, and at most that time. For the rest of the idle
//! time, there was no thread that could use the CPU: the program has too few threads for that size, or does
//! part of its work with fewer. Waits for the program's own threads to end are no cause, since those threads
//! are counted themselves.
//!
//! Properties: the causes add up to the growth.
//!
//! Limits: time that a thread queued while another CPU was idle, and CPU time that other programs took, both
//! count as idle.

use crate::real;
use crate::states::{State, Times};
use crate::study::{Size, Sizes, Study};

/// A cause of growth: a use of CPU time, or a reason for which CPUs were idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "what", content = "state")]
pub enum Cause {
    /// CPU time used in that state.
    Used(State),
    /// CPUs that were idle while threads waited in that state.
    Idle(State),
    /// CPUs that were idle without any thread that waited.
    NoThread,
}

/// The contribution of a cause to the growth.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Part {
    /// The cause.
    pub cause: Cause,
    /// The CPU seconds per piece of work that this cause takes at the largest size, less those at the
    /// smallest size.
    pub more_s: f64,
}

/// The growth of the cost of a piece of work between two sizes, by cause.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Growth {
    /// The smallest size that was watched.
    pub from: u32,
    /// The largest size that was watched.
    pub to: u32,
    /// CPU seconds that a piece of work costs at the smallest size.
    pub before_s: f64,
    /// CPU seconds that a piece of work costs at the largest size.
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

/// The growth from the smallest to the largest sampled size; `None` if fewer than two sizes were sampled.
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
    // If the size is the number of threads and not of CPUs, threads that queue for a CPU are a cause, too.
    let mut waits = WAITED.to_vec();
    if sizes_are == Sizes::Number {
        waits.push(State::Queue);
    }
    let waited: f64 = waits.iter().map(|state| seconds(&times, *state)).sum();
    let idle_per_wait = if waited > 0.0 { idle.clamp(0.0, waited) / waited } else { 0.0 };
    causes.extend(waits.iter().map(|state| (Cause::Idle(*state), idle_per_wait * seconds(&times, *state))));
    causes.push((Cause::NoThread, idle - idle_per_wait * waited));
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
    fn idle_time_is_attributed_to_the_states_that_threads_waited_in() {
        // Alone 10 s of CPU time. On 4 CPUs 5 s, which are 20 CPU seconds: 12 used, 8 idle. Threads waited 6
        // for a lock and 2 for a disk, and the rest of the time, for each other to end.
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
