//! The interface to a loaded scheduler, which tests replace by a fake.

use std::path::Path;

use commonhold_contract::PoolForm;
use commonhold_dispatch::{Account, Lists, NOBODY, Recall, SLICE_NS, Settings, UnitRules, near};
use commonhold_policy::pools;

use super::switched::UnitCounters;
use crate::LiveError;
#[cfg(not(feature = "kernel"))]
use crate::observe::capability::NOT_BUILT_IN;
use crate::observe::topology;

/// A loaded scheduler. Errors say which update the kernel refused.
pub(super) trait Scheduler {
    /// Sets a unit's rules. The rules of the unit's parent must have been set before.
    fn set_unit(&mut self, unit: u32, rules: UnitRules) -> Result<(), LiveError>;

    /// Maps a cgroup to a unit. This holds for tasks that enter the cgroup from now on, and, at
    /// [`Scheduler::attach`], for the tasks in it.
    fn admit(&mut self, cgroup: u64, unit: u32) -> Result<(), LiveError>;

    /// Removes a cgroup from the map.
    fn forget(&mut self, cgroup: u64) -> Result<(), LiveError>;

    /// Sets the membership rules for processes that execute a program, which apply until the daemon moves the
    /// process.
    fn set_matches(&mut self, lists: &Lists);

    /// Attaches the scheduler: from now on, it schedules the machine's tasks.
    fn attach(&mut self) -> Result<(), LiveError>;

    /// Sets the owner of a CPU, or [`NOBODY`]. Requires [`Scheduler::attach`].
    fn own(&mut self, cpu: u32, unit: u32) -> Result<(), LiveError>;

    /// Sets the pool number of each CPU.
    fn set_pools(&mut self, pools: &[u32]);

    /// Seats a thread in the pool of a CPU; `None` removes its seat. Requires [`Scheduler::attach`].
    fn seat(&mut self, thread: u32, cpu: Option<u32>) -> Result<(), LiveError>;

    /// Sets the unit of a thread whose cgroup does not identify its unit. Requires [`Scheduler::attach`].
    fn put(&mut self, thread: u32, unit: u32) -> Result<(), LiveError>;

    /// Sets the gang of a process; `None` removes the process from its gang. Requires [`Scheduler::attach`].
    fn join(&mut self, process: u32, gang: Option<u32>) -> Result<(), LiveError>;

    /// Shuts (true) or opens gangs, and services tasks parked at gates. Also called without changes while a
    /// gang is shut.
    fn gate(&mut self, gangs: &[(u32, bool)]) -> Result<(), LiveError>;

    /// Resets the counters of a slot that another unit will take.
    fn clear(&mut self, slot: u32);

    /// A unit's counters since the scheduler was loaded, as of the last context switch on each CPU.
    fn unit_counters(&self, unit: u32) -> UnitCounters;

    /// A unit's account on each CPU, indexed by CPU number; [`Scheduler::unit_counters`] has the sums.
    fn accounts(&self, unit: u32) -> Vec<Account>;

    /// Calls `each` with a unit whose tasks waited, the other unit that had the CPU meanwhile, and the
    /// time in ns since it was last reported. What is counted after one call is reported by the call after
    /// the next.
    fn take_waits_for_others(&mut self, each: &mut dyn FnMut(u32, u32, u64));

    /// How the scheduler ended; `None` while it schedules.
    fn ended(&self) -> Option<Ended>;
}

/// How a scheduler ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended {
    /// Whether the scheduler asks to be loaded again, because of CPU hotplug. That is no failure.
    pub(super) restart: bool,
    /// The kernel's message.
    pub(super) why: String,
}

/// Optional features that a scheduler is loaded with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Features {
    /// Disciplines other than stride.
    pub(super) disciplines: bool,
    /// Seats of threads.
    pub(super) seats: bool,
    /// Gangs.
    pub(super) gangs: bool,
}

/// Loads schedulers, and describes the machine to them.
pub(super) trait Loader {
    /// Loads a scheduler with tables for `units` units. When the scheduler is dropped, it is detached, and
    /// the kernel's own scheduler takes over.
    fn load(&mut self, units: u32, features: Features) -> Result<Box<dyn Scheduler>, LiveError>;

    /// The pool number of each CPU; [`NOBODY`] for a missing CPU. `isolated` says whether the contract
    /// uses isolated CPUs: it is needed to number the pools as plans do.
    fn pools(&self, form: PoolForm, isolated: bool) -> Result<Vec<u32>, LiveError>;

    /// The number of online CPUs.
    fn cpus(&self) -> Result<usize, LiveError>;
}

/// This machine's kernel.
pub(super) struct ThisKernel;

impl Loader for ThisKernel {
    #[cfg(feature = "kernel")]
    fn load(&mut self, units: u32, features: Features) -> Result<Box<dyn Scheduler>, LiveError> {
        in_kernel::load(units, features)
    }

    #[cfg(not(feature = "kernel"))]
    fn load(&mut self, _: u32, _: Features) -> Result<Box<dyn Scheduler>, LiveError> {
        Err(LiveError::Unavailable { what: NOT_BUILT_IN.0.to_owned(), remedy: NOT_BUILT_IN.1.to_owned() })
    }

    fn pools(&self, form: PoolForm, isolated: bool) -> Result<Vec<u32>, LiveError> {
        let by_cpu = pools(&topology::read(Path::new("/"))?.divided(isolated), form).by_cpu();
        let cpus = by_cpu.keys().next_back().map_or(0, |last| last + 1);
        let number = |cpu| by_cpu.get(&cpu).and_then(|pool| u32::try_from(*pool).ok()).unwrap_or(NOBODY);
        Ok((0..cpus).map(number).collect())
    }

    fn cpus(&self) -> Result<usize, LiveError> {
        Ok(topology::online(Path::new("/"))?.len())
    }
}

/// The scheduler's settings on this machine, for `units` units.
pub fn settings(units: u32) -> Result<Settings, LiveError> {
    let root = Path::new("/");
    let machine = topology::read(root)?;
    // The tables have room for all possible CPUs, since CPUs may be hot-plugged. A container may list fewer
    // than it uses.
    let last = topology::possible(root)?.union(&machine.cpu_set()).iter().last();
    let cpus = last.map_or(1, |last| last + 1);
    Ok(Settings {
        cpus,
        units,
        slice_ns: SLICE_NS,
        preempt_ns: Settings::preempt_ns(SLICE_NS),
        near: near(&machine, cpus),
        recall: Recall::Now,
        disciplined: false,
        seated: false,
        gated: false,
        seed: 0,
    })
}

#[cfg(feature = "kernel")]
mod in_kernel {

    use commonhold_dispatch::in_kernel::{self, End};
    use commonhold_dispatch::{Account, Lists, Settings, UnitRules};

    use super::{Ended, Features, Scheduler, UnitCounters, settings};
    use crate::LiveError;

    pub(super) fn load(units: u32, features: Features) -> Result<Box<dyn Scheduler>, LiveError> {
        let Features { disciplines, seats, gangs } = features;
        let settings = Settings { disciplined: disciplines, seated: seats, gated: gangs, ..settings(units)? };
        Ok(Box::new(in_kernel::Scheduler::load(&settings).map_err(refused)?))
    }

    /// The scheduler's own errors name a remedy where one exists.
    #[allow(clippy::needless_pass_by_value, reason = "an argument of `map_err`")]
    fn refused(error: in_kernel::Error) -> LiveError {
        LiveError::Unavailable {
            what: error.to_string(),
            remedy: "`--backend cgroup` does without the scheduler".to_owned(),
        }
    }

    impl Scheduler for in_kernel::Scheduler {
        fn set_unit(&mut self, unit: u32, rules: UnitRules) -> Result<(), LiveError> {
            self.set_unit(unit, rules).map_err(refused)
        }

        fn admit(&mut self, cgroup: u64, unit: u32) -> Result<(), LiveError> {
            self.admit(cgroup, unit).map_err(refused)
        }

        fn forget(&mut self, cgroup: u64) -> Result<(), LiveError> {
            self.forget(cgroup).map_err(refused)
        }

        fn set_matches(&mut self, lists: &Lists) {
            self.set_matches(lists);
        }

        fn attach(&mut self) -> Result<(), LiveError> {
            self.attach().map_err(refused)
        }

        fn own(&mut self, cpu: u32, unit: u32) -> Result<(), LiveError> {
            self.own(cpu, unit).map_err(refused)
        }

        fn set_pools(&mut self, pools: &[u32]) {
            self.set_pools(pools);
        }

        fn seat(&mut self, thread: u32, cpu: Option<u32>) -> Result<(), LiveError> {
            self.seat(thread, cpu).map_err(refused)
        }

        fn put(&mut self, thread: u32, unit: u32) -> Result<(), LiveError> {
            self.put(thread, unit).map_err(refused)
        }

        fn join(&mut self, process: u32, gang: Option<u32>) -> Result<(), LiveError> {
            self.join(process, gang).map_err(refused)
        }

        fn gate(&mut self, gangs: &[(u32, bool)]) -> Result<(), LiveError> {
            self.gate(gangs).map_err(refused)
        }

        fn clear(&mut self, unit: u32) {
            self.clear(unit);
        }

        fn unit_counters(&self, unit: u32) -> UnitCounters {
            let counted = self.unit(unit);
            let (call_backs, deadlines) = (counted.call_backs(), counted.deadlines.had);
            UnitCounters { account: self.account_of(unit), call_backs, deadlines }
        }

        fn accounts(&self, unit: u32) -> Vec<Account> {
            self.accounts(unit)
        }

        fn take_waits_for_others(&mut self, each: &mut dyn FnMut(u32, u32, u64)) {
            self.take_waits_for_others(each);
        }

        fn ended(&self) -> Option<Ended> {
            self.ended().map(|end| Ended { restart: end.asks_for_restart(), why: describe(&end) })
        }
    }

    /// The kernel's description of an end.
    fn describe(end: &End) -> String {
        let details = if end.message.is_empty() { String::new() } else { format!(": {}", end.message) };
        format!("{}{details} (kind {})", end.reason, end.kind)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_description_of_an_end_has_the_kernels_message() {
            let end = End {
                kind: 1026,
                code: 0,
                reason: "runnable task stall".into(),
                message: "spin[7] waited".into(),
            };
            assert_eq!(describe(&end), "runnable task stall: spin[7] waited (kind 1026)");
            assert!(!end.asks_for_restart());
            let end = End {
                kind: 66,
                code: (1 << 48) | (1 << 32),
                reason: "unregistered".into(),
                message: String::new(),
            };
            assert!(describe(&end) == "unregistered (kind 66)" && end.asks_for_restart());
        }
    }
}
