//! A program's demand as read from its text: time, tasks, files, locks.
//!
//! Problem: some mistakes are better reported before the simulation than found by it: a horizon before the end of the
//! work, a million processes, a loop that never lets time pass.
//!
//! Terms:
//! - *Span*: the time that a program takes alone on a machine with CPUs enough. Every amount is at its mean, every
//!   file in the cache, and no task waited for.
//! - *Work*: the program's CPU time, with that of all that it runs.
//!
//! Both are lower bounds on average: what really happens takes longer.
//!
//! Algorithm: programs are taken in an order in which each stands behind those that it runs. One pass over the steps
//! keeps the span and the work before each step. Where a loop ends, what lies between its first step and here is added
//! once for each further round. A loop inside it has by then been counted in the same way. A loop for ever counts
//! once.
//!
//! Properties: linear in the steps. Sums stay at the largest number when they reach it, so that nothing overflows.
//!
//! Limits: barriers, locks and disks take no time here.

use std::collections::BTreeSet;

use super::model::{KernelCosts, Op, Program};

/// What a program asks for, with all that it runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Demand {
    /// In ns.
    pub(crate) span_ns: u128,
    /// In ns.
    pub(crate) work_ns: u128,
    /// Tasks that live at the same time, itself among them.
    pub(crate) tasks: u64,
    /// The step that never ends: a loop, or a run of a program that has one.
    pub(crate) endless: Option<usize>,
    /// Some step always lets time pass.
    pub(crate) takes_time: bool,
    /// Files that it uses.
    pub(crate) files: BTreeSet<u16>,
    /// Locks that it takes.
    pub(crate) locks: BTreeSet<u16>,
}

/// Span and work of a step or of several.
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

/// What each program asks for; `order` has each program behind those that it runs, and there is no cycle.
pub(crate) fn demands(programs: &[Program], order: &[usize], kernel: &KernelCosts) -> Vec<Demand> {
    let mut demands = vec![Demand::default(); programs.len()];
    for program in order {
        demands[*program] = demand(&programs[*program].ops, &demands, kernel);
    }
    demands
}

fn demand(ops: &[Op], demands: &[Demand], kernel: &KernelCosts) -> Demand {
    let mut demand = Demand { tasks: 1, ..Demand::default() };
    // Those that earlier steps did not wait for.
    let mut besides = 0u64;
    let mut before: Vec<Times> = Vec::with_capacity(ops.len() + 1);
    let mut times = Times::default();
    for (index, op) in ops.iter().enumerate() {
        before.push(times);
        times = times.plus(op_times(op, &before, demands, kernel));
        demand.takes_time |= takes_time(op, demands);
        match *op {
            Op::Read { file, .. } | Op::Write { file, .. } | Op::Metadata { file, .. } => {
                demand.files.insert(file);
            }
            Op::Acquire { lock, .. } => {
                demand.locks.insert(lock);
            }
            Op::Run { program, at_once, beside, .. } => {
                let child = &demands[usize::from(program)];
                let alive = child.tasks.saturating_mul(u64::from(at_once));
                demand.tasks = demand.tasks.max(alive.saturating_add(besides).saturating_add(1));
                besides = if beside { besides.saturating_add(alive) } else { besides };
                demand.files.extend(&child.files);
                demand.locks.extend(&child.locks);
                demand.endless = demand.endless.or(child.endless.map(|_| index));
            }
            Op::Again { times: 0, .. } => demand.endless = demand.endless.or(Some(index)),
            _ => {}
        }
    }
    Demand { span_ns: times.span_ns, work_ns: times.work_ns, ..demand }
}

/// What a step adds. `before` has the times before each step up to this one.
fn op_times(op: &Op, before: &[Times], demands: &[Demand], kernel: &KernelCosts) -> Times {
    match *op {
        Op::Cpu { work, .. } => Times { span_ns: u128::from(work.mean), work_ns: u128::from(work.mean) },
        Op::Sleep { span } => Times { span_ns: u128::from(span.mean), work_ns: 0 },
        Op::Run { program, times, at_once, .. } => {
            let child = &demands[usize::from(program)];
            let fork_ns = u128::from(kernel.fork_ns);
            let one = Times {
                span_ns: child.span_ns.saturating_add(fork_ns),
                work_ns: child.work_ns.saturating_add(fork_ns),
            };
            one.multiply(times.div_ceil(at_once.max(1)), times)
        }
        Op::Again { to, times, .. } => {
            let now = before.last().copied().unwrap_or_default();
            let further = times.saturating_sub(1);
            now.since(before[to as usize]).multiply(further, further)
        }
        _ => Times::default(),
    }
}

/// Whether a step always lets time pass. What reads, or writes to the cache, may find all it needs in memory; the waits
/// at locks and barriers may be over at once.
pub(crate) fn takes_time(op: &Op, demands: &[Demand]) -> bool {
    match *op {
        Op::Cpu { .. }
        | Op::Sleep { .. }
        | Op::Metadata { delayed: false, .. }
        | Op::Write { sync: true, .. } => true,
        Op::Run { program, .. } => demands[usize::from(program)].takes_time,
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
    fn what_is_run_counts_round_by_round() {
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
    fn who_runs_what_never_ends_never_ends() {
        let outer = program(vec![cpu(1), Op::Run { program: 1, times: 1, at_once: 1, beside: false }]);
        let inner = program(vec![sleep(1), Op::Again { to: 0, times: 0, counter: 0 }]);
        let demands = demands(&[outer, inner], &[1, 0], &kernel(0));
        assert_eq!((demands[0].endless, demands[1].endless), (Some(1), Some(1)));
    }
}
