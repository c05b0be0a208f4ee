//! The scheduler as the backend sees it, so that tests can stand in for the kernel.

use std::path::Path;

use commonhold_contract::PoolForm;
use commonhold_dispatch::{Account, Lists, NOBODY, Recall, SLICE_NS, Settings, UnitRules, near};
use commonhold_policy::pools;

use super::switched::Switched;
use crate::LiveError;
#[cfg(not(feature = "kernel"))]
use crate::observe::capability::NOT_BUILT_IN;
use crate::observe::topology;

/// What a scheduler that is loaded can be told. Every refusal is an error that says what was refused.
pub(super) trait Scheduler {
    /// Says what a unit is. The unit around it must have been told of before.
    fn set_unit(&mut self, unit: u32, rules: UnitRules) -> Result<(), LiveError>;

    /// Tasks that enter a cgroup, and at [`Scheduler::attach`] those in it, are a unit's.
    fn admit(&mut self, cgroup: u64, unit: u32) -> Result<(), LiveError>;

    /// A cgroup that is gone needs no place any more.
    fn forget(&mut self, cgroup: u64) -> Result<(), LiveError>;

    /// In which unit who executes a program is, until the next look moves it there.
    fn set_matches(&mut self, lists: &Lists);

    /// From now on it schedules.
    fn attach(&mut self) -> Result<(), LiveError>;

    /// A CPU has another owner, or [`NOBODY`]. Only once it is attached.
    fn own(&mut self, cpu: u32, unit: u32) -> Result<(), LiveError>;

    /// The number of each CPU's pool.
    fn set_pools(&mut self, pools: &[u32]);

    /// A thread has a seat in the pool of a CPU, or none any more. Only once it is attached.
    fn seat(&mut self, thread: u32, cpu: Option<u32>) -> Result<(), LiveError>;

    /// A thread is in a unit that its cgroup does not say. Only once it is attached.
    fn put(&mut self, thread: u32, unit: u32) -> Result<(), LiveError>;

    /// A process is of a gang from now on, or of none. Only once it is attached.
    fn join(&mut self, process: u32, gang: Option<u32>) -> Result<(), LiveError>;

    /// Shuts gangs (true) and opens others, and looks after those that wait behind gates.
    fn gate(&mut self, gangs: &[(u32, bool)]) -> Result<(), LiveError>;

    /// A unit without tasks becomes another's: nothing was counted of it.
    fn clear(&mut self, unit: u32);

    /// What it counted of a unit since it was loaded, up to the last switch of each CPU.
    fn switched(&self, unit: u32) -> Switched;

    /// The accounts by CPU of which [`Scheduler::switched`] has the sum.
    fn accounts(&self, unit: u32) -> Vec<Account>;

    /// Why it does not schedule any more; nothing while it does.
    fn ended(&self) -> Option<Ended>;
}

/// How a scheduler ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended {
    /// Whether that is no failure: CPUs came or went, and it is to be loaded anew with those that there are.
    pub(super) restart: bool,
    /// What the kernel says.
    pub(super) why: String,
}

/// What a scheduler is loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Knows {
    /// Disciplines other than stride.
    pub(super) disciplines: bool,
    /// Seats of threads.
    pub(super) seats: bool,
    /// Gangs.
    pub(super) gangs: bool,
}

/// Where schedulers come from.
pub(super) trait Loader {
    /// Loads one with room for so many units. When it is dropped, the kernel's own takes over.
    fn load(&mut self, units: u32, knows: Knows) -> Result<Box<dyn Scheduler>, LiveError>;

    /// The number of each CPU's pool in this form; [`NOBODY`] where there is no such CPU. Isolated CPUs are in pools as the
    /// contract says of them (`isolated`), so that pools have the numbers here that they have in plans.
    fn pools(&self, form: PoolForm, isolated: bool) -> Result<Vec<u32>, LiveError>;

    /// How many CPUs the machine has now.
    fn cpus(&self) -> Result<usize, LiveError>;
}

/// This machine's kernel.
pub(super) struct ThisKernel;

impl Loader for ThisKernel {
    #[cfg(feature = "kernel")]
    fn load(&mut self, units: u32, knows: Knows) -> Result<Box<dyn Scheduler>, LiveError> {
        in_kernel::load(units, knows)
    }

    #[cfg(not(feature = "kernel"))]
    fn load(&mut self, _: u32, _: Knows) -> Result<Box<dyn Scheduler>, LiveError> {
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

/// What the scheduler is set up with on this machine, for so many units.
pub fn settings(units: u32) -> Result<Settings, LiveError> {
    let root = Path::new("/");
    let machine = topology::read(root)?;
    // CPUs may come while it schedules, so the tables have room for all that there may ever be. A container may list fewer
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

    use super::{Ended, Knows, Scheduler, Switched, settings};
    use crate::LiveError;

    pub(super) fn load(units: u32, knows: Knows) -> Result<Box<dyn Scheduler>, LiveError> {
        let Knows { disciplines, seats, gangs } = knows;
        let settings = Settings { disciplined: disciplines, seated: seats, gated: gangs, ..settings(units)? };
        Ok(Box::new(in_kernel::Scheduler::load(&settings).map_err(refused)?))
    }

    /// What the scheduler's errors say names the remedy where there is one.
    #[allow(clippy::needless_pass_by_value, reason = "what `map_err` calls")]
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

        fn switched(&self, unit: u32) -> Switched {
            let counted = self.unit(unit);
            let (call_backs, deadlines) = (counted.call_backs(), counted.deadlines.had);
            Switched { account: self.account_of(unit), call_backs, deadlines }
        }

        fn accounts(&self, unit: u32) -> Vec<Account> {
            self.accounts(unit)
        }

        fn ended(&self) -> Option<Ended> {
            self.ended().map(|end| Ended { restart: end.asks_for_restart(), why: words(&end) })
        }
    }

    fn words(end: &End) -> String {
        let details = if end.message.is_empty() { String::new() } else { format!(": {}", end.message) };
        format!("{}{details} (kind {})", end.reason, end.kind)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn an_end_says_what_the_kernel_said() {
            let end = End {
                kind: 1026,
                code: 0,
                reason: "runnable task stall".into(),
                message: "spin[7] waited".into(),
            };
            assert_eq!(words(&end), "runnable task stall: spin[7] waited (kind 1026)");
            assert!(!end.asks_for_restart());
            let end = End {
                kind: 66,
                code: (1 << 48) | (1 << 32),
                reason: "unregistered".into(),
                message: String::new(),
            };
            assert!(words(&end) == "unregistered (kind 66)" && end.asks_for_restart());
        }
    }
}
