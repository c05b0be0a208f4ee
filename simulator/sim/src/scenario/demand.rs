//! Computes a program's demand from its text: time, tasks, files and locks.
//!
//! Problem: some mistakes are better reported before the simulation than found by it: a horizon before the
//! end of the work, a million processes, a loop in which no time passes.
//!
//! Terms:
//! - *Span*: the time that a program takes alone on a machine with enough CPUs. Every amount has its mean,
//!   every file is in the cache, and no task waits for another.
//! - *Work*: the CPU time of the program and of all programs that it runs.
//!
//! Both are lower bounds of the mean: a simulation takes longer.
//!
//! Algorithm: each program comes after the programs that it runs (reverse topological order). One pass over a
//! program's steps records span and work before each step. At the end of a loop, the difference since the
//! loop's first step is the cost of one iteration; it is added once for each further iteration. An inner loop
//! ends first, so the cost of an iteration of the outer loop contains the inner loop in full. An endless loop
//! counts as one iteration, and of a job's pieces each process counts one.
//!
//! Properties: linear in the number of steps. Sums saturate, so they never overflow.
//!
//! Limits: barriers, locks, events, timers and disks take no time.

use std::collections::{BTreeMap, BTreeSet};

use crate::Time;

use super::model::{KernelCosts, Op, Program, is_timed};

/// The demand of a program, with all programs that it runs, directly or through others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Demand {
    /// The span, in ns.
    pub(crate) span_ns: u128,
    /// The work, in ns.
    pub(crate) work_ns: u128,
    /// The most tasks that live at the same time, the program's own process included.
    pub(crate) tasks: u64,
    /// The first step that never ends: an endless loop, or a run of a program that never ends.
    pub(crate) endless: Option<usize>,
    /// Whether at least one step takes time in every run ([`takes_time`]).
    pub(crate) takes_time: bool,
    /// Indices of the files that the programs use.
    pub(crate) files: BTreeSet<u16>,
    /// Indices of the locks that the programs take.
    pub(crate) locks: BTreeSet<u16>,
    /// Indices of the events and timers that the programs use, and of the events that they signal.
    pub(crate) events: BTreeSet<u16>,
    pub(crate) timers: BTreeSet<u16>,
    pub(crate) signals: BTreeSet<u16>,
    /// How many of the processes have a barrier at an event.
    pub(crate) meets: BTreeMap<u16, u64>,
}

/// Span and work of one or several steps.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    span_ns: u128,
    work_ns: u128,
}

impl Times {
    fn plus(self, other: Times) -> Times {
        Times {
            span_ns: self.span_ns.saturating_add(other.span_ns),
            work_ns: self.work_ns.saturating_add(other.work_ns),
        }
    }

    fn since(self, earlier: Times) -> Times {
        Times { span_ns: self.span_ns - earlier.span_ns, work_ns: self.work_ns - earlier.work_ns }
    }

    fn multiply(self, span: u32, work: u32) -> Times {
        Times {
            span_ns: self.span_ns.saturating_mul(u128::from(span)),
            work_ns: self.work_ns.saturating_mul(u128::from(work)),
        }
    }
}

/// The demand of each program. `order` has each program after the programs that it runs; no program runs
/// itself.
pub(crate) fn demands(programs: &[Program], order: &[usize], kernel: &KernelCosts) -> Vec<Demand> {
    let mut demands = vec![Demand::default(); programs.len()];
    for program in order {
        demands[*program] = demand(&programs[*program].ops, &demands, kernel);
    }
    demands
}

fn demand(ops: &[Op], demands: &[Demand], kernel: &KernelCosts) -> Demand {
    let mut demand = Demand { tasks: 1, ..Demand::default() };
    // Tasks that earlier steps started with `beside`, which live until the program's end.
    let mut background_tasks = 0u64;
    let mut before: Vec<Times> = Vec::with_capacity(ops.len() + 1);
    let mut times = Times::default();
    let mut in_pieces = false;
    for (index, op) in ops.iter().enumerate() {
        before.push(times);
        let limit_ns = match ops.get(index.wrapping_sub(1)) {
            Some(Op::Over { span_ns, .. }) => Some(*span_ns),
            _ => None,
        };
        times = times.plus(op_times(op, &before, limit_ns, demands, kernel));
        match *op {
            Op::Piece { to, .. } => in_pieces = to as usize == index + 1,
            // When the job has no piece left, a process goes past these steps at once.
            _ => demand.takes_time |= !in_pieces && takes_time(op, demands),
        }
        match *op {
            Op::Read { file, .. } | Op::Write { file, .. } | Op::Metadata { file, .. } => {
                demand.files.insert(file);
            }
            Op::Timer { timer, .. } => {
                demand.timers.insert(timer);
            }
            Op::Wait { event, .. } => {
                demand.events.insert(event);
            }
            Op::Signal { event, .. } => {
                demand.events.insert(event);
                demand.signals.insert(event);
            }
            Op::Barrier { event: Some(event), .. } if demand.events.insert(event) => {
                *demand.meets.entry(event).or_default() += 1;
            }
            Op::Acquire { lock, .. } => {
                demand.locks.insert(lock);
            }
            Op::Run { program, times, at_once, beside } => {
                let child = &demands[program as usize];
                let alive = child.tasks.saturating_mul(u64::from(at_once));
                demand.tasks = demand.tasks.max(alive.saturating_add(background_tasks).saturating_add(1));
                background_tasks =
                    if beside { background_tasks.saturating_add(alive) } else { background_tasks };
                demand.files.extend(&child.files);
                demand.locks.extend(&child.locks);
                demand.events.extend(&child.events);
                demand.timers.extend(&child.timers);
                demand.signals.extend(&child.signals);
                for (event, processes) in &child.meets {
                    let meets = demand.meets.entry(*event).or_default();
                    *meets = meets.saturating_add(processes.saturating_mul(u64::from(times)));
                }
                demand.endless = demand.endless.or(child.endless.map(|_| index));
            }
            Op::Again { times: 0, .. } if !is_timed(ops, index) => {
                demand.endless = demand.endless.or(Some(index));
            }
            _ => {}
        }
    }
    Demand { span_ns: times.span_ns, work_ns: times.work_ns, ..demand }
}

/// The span and work that a step adds. `before` has the times before each step, up to and including this one.
/// A loop that also ends after a time has this time as `limit_ns`: no iteration begins after it.
fn op_times(
    op: &Op,
    before: &[Times],
    limit_ns: Option<Time>,
    demands: &[Demand],
    kernel: &KernelCosts,
) -> Times {
    match *op {
        Op::Cpu { work, .. } => Times { span_ns: u128::from(work.mean), work_ns: u128::from(work.mean) },
        Op::Sleep { span } | Op::Busy { span } => Times { span_ns: u128::from(span.mean), work_ns: 0 },
        Op::Run { program, times, at_once, .. } => {
            let child = &demands[program as usize];
            let fork_ns = u128::from(kernel.fork_ns);
            let one = Times {
                span_ns: child.span_ns.saturating_add(fork_ns),
                work_ns: child.work_ns.saturating_add(fork_ns),
            };
            one.multiply(times.div_ceil(at_once.max(1)), times)
        }
        Op::Again { to, times, .. } => {
            let so_far = before.last().copied().unwrap_or_default();
            let iteration = so_far.since(before[to as usize]);
            // The pass over the steps has counted the first iteration.
            let mut further = times.saturating_sub(1);
            if let Some(limit_ns) = limit_ns {
                let fitting = u128::from(limit_ns).checked_div(iteration.span_ns).unwrap_or(0);
                let fitting = u32::try_from(fitting).unwrap_or(u32::MAX);
                further = if times == 0 { fitting } else { further.min(fitting) };
            }
            iteration.multiply(further, further)
        }
        _ => Times::default(),
    }
}

/// Whether a step takes time in every run. A read or a cached write may find all pages in memory, and a wait
/// at a lock or a barrier may end at once, so these count as taking no time. A timer takes no time after an
/// overrun, but only so often.
pub(crate) fn takes_time(op: &Op, demands: &[Demand]) -> bool {
    match *op {
        Op::Cpu { .. }
        | Op::Sleep { .. }
        | Op::Busy { .. }
        | Op::Timer { .. }
        | Op::Metadata { delayed: false, .. }
        | Op::Read { direct: true, .. }
        | Op::Write { sync: true, .. }
        | Op::Write { direct: true, .. } => true,
        Op::Run { program, .. } => demands[program as usize].takes_time,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::model::{Amount, Spread};

    fn cpu(mean: u64) -> Op {
        Op::Cpu {
            work: Amount { mean, spread: Spread::None },
            kernel: 0,
            bus_per_ms: 0,
            cache_bytes: 0,
            core: 0,
        }
    }

    fn sleep(mean: u64) -> Op {
        Op::Sleep { span: Amount { mean, spread: Spread::None } }
    }

    fn program(ops: Vec<Op>) -> Program {
        Program {
            name: "p".to_owned(),
            memory_bytes: 0,
            resident: false,
            reuse_ns: 1,
            hot_bytes: 0,
            stalled: 0,
            shares: 0,
            of_first: 0,
            is_job: false,
            ops,
        }
    }

    fn kernel(fork_ns: u64) -> KernelCosts {
        KernelCosts { fork_ns, ..KernelCosts::modern(1 << 30) }
    }

    #[test]
    fn loops_within_loops() {
        // 3 rounds of (5 + 4 rounds of (2 + 1 asleep)): span 3 * (5 + 12) = 51, work 3 * (5 + 8) = 39.
        let ops = vec![
            cpu(5),
            cpu(2),
            sleep(1),
            Op::Again { to: 1, times: 4, counter: 1 },
            Op::Again { to: 0, times: 3, counter: 0 },
        ];
        let demand = &demands(&[program(ops)], &[0], &kernel(0))[0];
        assert_eq!((demand.span_ns, demand.work_ns, demand.tasks), (51, 39, 1));
        assert!(demand.takes_time && demand.endless.is_none());
    }

    #[test]
    fn runs_of_a_program_count_in_rounds_of_at_once() {
        // 7 runs, 3 at once, are 3 rounds of (10 + 1): span 33, work 77; 4 tasks.
        let make = program(vec![Op::Run { program: 1, times: 7, at_once: 3, beside: false }]);
        let demands = demands(&[make, program(vec![cpu(10)])], &[1, 0], &kernel(1));
        assert_eq!((demands[0].span_ns, demands[0].work_ns, demands[0].tasks), (33, 77, 4));
    }

    #[test]
    fn nothing_overflows() {
        let mut ops = vec![cpu(u64::MAX)];
        ops.extend((0..4).map(|_| Op::Again { to: 0, times: u32::MAX, counter: 0 }));
        let demand = &demands(&[program(ops)], &[0], &kernel(0))[0];
        assert_eq!(demand.span_ns, u128::MAX);
    }

    #[test]
    fn a_program_that_runs_an_endless_program_is_endless() {
        let outer = program(vec![cpu(1), Op::Run { program: 1, times: 1, at_once: 1, beside: false }]);
        let inner = program(vec![sleep(1), Op::Again { to: 0, times: 0, counter: 0 }]);
        let demands = demands(&[outer, inner], &[1, 0], &kernel(0));
        assert_eq!((demands[0].endless, demands[1].endless), (Some(1), Some(1)));
    }
}
