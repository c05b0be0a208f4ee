//! The slowdown of tasks that share a core (simultaneous multithreading).
//!
//! Problem: hardware threads of a core share its execution units. Two tasks that mostly wait for memory
//! hardly interfere; two tasks that could each keep the core busy alone get half of it each. How much slower
//! is each task on a shared core?
//!
//! Terms: a task's *appetite* is the fraction of a core's throughput that it uses if it has the core to
//! itself.
//!
//! Algorithm: the slowdown of all tasks on a core is the sum of their appetites, at least 1: with appetites
//! of 0.9 and 0.9, tasks take 1.8 times as long; with 0.9 and 0.1, no longer. A task with appetite 1 executes
//! one instruction per nanosecond, on any core.
//!
//! Properties: a task is not slowed if it is alone on its core, or if the appetites sum to at most 1.
//! Together, all tasks on a core execute no more than one could alone. One more task, or a larger appetite of
//! another, makes no task faster. A task without appetite is not slowed.
//!
//! Limits: a core is as fast with one thread as with several. Tasks whose appetites fit do not interfere at
//! all; on real cores they do, a little.

use commonhold_contract::MILLIONTH;
use commonhold_machine::Machine;

/// The cores of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    /// The core of each CPU, by index; cores are numbered from 0.
    core_of: Vec<usize>,
    cores: usize,
}

impl Cores {
    /// `None` if no core has several hardware threads.
    pub fn new(machine: &Machine) -> Option<Cores> {
        let mut known: Vec<u32> = machine.cpus.iter().map(|cpu| cpu.core).collect();
        known.sort_unstable();
        known.dedup();
        let index_of = |core: u32| known.binary_search(&core).unwrap_or(0);
        let core_of = machine.cpus.iter().map(|cpu| index_of(cpu.core)).collect();
        (known.len() < machine.cpus.len()).then_some(Cores { core_of, cores: known.len() })
    }

    /// The slowdown of each task, in millionths, in the order of `tasks`: each task's CPU, as an index, and
    /// its appetite in millionths.
    #[must_use]
    pub fn slowdowns(&self, tasks: &[(usize, u32)]) -> Vec<u64> {
        let mut appetite_sums = vec![0u64; self.cores];
        for (cpu, appetite) in tasks {
            appetite_sums[self.core_of[*cpu]] += u64::from(*appetite);
        }
        let slowdown = |(cpu, appetite): &(usize, u32)| match appetite {
            0 => MILLIONTH,
            _ => appetite_sums[self.core_of[*cpu]].max(MILLIONTH),
        };
        tasks.iter().map(slowdown).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn cores() -> Cores {
        Cores::new(&Machine::synthetic("cpus:6 threads:2").unwrap()).unwrap()
    }

    #[test]
    fn by_hand() {
        let tasks = [(0, 900_000), (1, 900_000), (2, 900_000), (3, 100_000), (4, 1_000_000), (5, 0)];
        let slowdowns = cores().slowdowns(&tasks);
        assert_eq!(slowdowns, [1_800_000, 1_800_000, MILLIONTH, MILLIONTH, MILLIONTH, MILLIONTH]);
        assert_eq!(Cores::new(&Machine::synthetic("cpus:6").unwrap()), None);
    }

    proptest! {
        #[test]
        fn nobody_gains_by_another(
            tasks in prop::collection::vec((0usize..6, 0u32..=1_000_000), 1..6),
            cpu in 0usize..6,
            more in 0u32..=1_000_000,
        ) {
            let before = cores().slowdowns(&tasks);
            for core in 0..3 {
                // Each task executes its appetite divided by its slowdown, as a fraction of the core.
                let on_core = tasks.iter().zip(&before).filter(|(task, _)| task.0 / 2 == core);
                let executed: u64 = on_core.map(|(task, slow)| u64::from(task.1) * MILLIONTH / slow).sum();
                prop_assert!(executed <= MILLIONTH);
            }
            for task in &tasks {
                prop_assert_eq!(cores().slowdowns(std::slice::from_ref(task))[0], MILLIONTH);
            }
            let mut with = tasks.clone();
            with.push((cpu, more));
            prop_assert!(cores().slowdowns(&with).iter().zip(&before).all(|(after, before)| after >= before));
        }
    }
}
