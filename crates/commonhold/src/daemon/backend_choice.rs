//! Chooses the backend that will hold a contract: the one that `--backend` names, or else the best one that
//! works on this machine.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use commonhold_contract::Contract;
use commonhold_live::apply::cgroup::CgroupBackend;
use commonhold_live::apply::kernel;
use commonhold_live::observe::capability::{self, Capabilities, CgroupBase};
use commonhold_machine::Machine;
use commonhold_machine::capability::Row;

use crate::cli::BackendChoice;
use crate::exit::{Exit, Failure};

/// The chosen backend, with the control group below which the units' control groups are made.
pub(super) enum Choice {
    Kernel(CgroupBase),
    Cgroup(CgroupBase),
    User,
}

impl Choice {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Choice::Kernel(_) => "kernel",
            Choice::Cgroup(_) => "cgroup",
            Choice::User => "user",
        }
    }

    /// The control group below which the units' control groups are made; `None` if units have none.
    pub(super) fn cgroup_base(&self) -> Option<&CgroupBase> {
        match self {
            Choice::Kernel(base) | Choice::Cgroup(base) => Some(base),
            Choice::User => None,
        }
    }

    /// The number of files that the backend keeps open for every unit.
    pub(super) fn files_per_unit(&self) -> usize {
        match self {
            Choice::Kernel(base) | Choice::Cgroup(base) => CgroupBackend::files_per_unit(base),
            Choice::User => 0,
        }
    }
}

/// How long to wait until the kernel has unloaded a scheduler. Even a slow machine needs less.
const UNLOAD_TIME_MAX: Duration = Duration::from_secs(5);

/// Chooses the backend for a contract. Also returns the reason for the choice, for the user. Fails if the
/// requested backend cannot work on this machine or cannot hold the contract.
pub(super) fn choose(
    choice: BackendChoice,
    contract: &Contract,
    machine: &Machine,
) -> Result<(Choice, String), Failure> {
    wait_for_scheduler_unload();
    let capabilities = capability::probe(Path::new("/"));
    let cannot_hold = kernel::cannot_hold(contract, machine.cpus.len());
    let chosen = match choice {
        BackendChoice::User => Choice::User,
        BackendChoice::Cgroup => Choice::Cgroup(requested("cgroup", capabilities.cgroup)?),
        BackendChoice::Kernel => {
            let base = requested("kernel", capabilities.kernel)?;
            if let Some(why) = cannot_hold {
                let what =
                    format!("the kernel backend cannot hold this contract: {why}; use `--backend cgroup`");
                return Err(Failure::new(Exit::Unavailable, what));
            }
            Choice::Kernel(base)
        }
        BackendChoice::Auto => return Ok(best(capabilities, cannot_hold)),
    };
    Ok((chosen, "as asked".to_owned()))
}

/// Waits until the kernel has unloaded the scheduler of a daemon that was killed, which takes a while.
/// Meanwhile no other scheduler can be loaded, so a daemon that starts at once would find the kernel backend
/// unavailable.
fn wait_for_scheduler_unload() {
    let begin = Instant::now();
    while capability::scheduler_is_leaving(Path::new("/")) && begin.elapsed() < UNLOAD_TIME_MAX {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that a requested backend can work here; returns the control group below which it makes those of the
/// units.
fn requested(backend: &str, base: Result<CgroupBase, Row>) -> Result<CgroupBase, Failure> {
    base.map_err(|row| {
        let remedy = row.remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
        Failure::new(Exit::Unavailable, format!("no {backend} backend here: {}{remedy}", row.reason))
    })
}

/// The best backend that works here and can hold the contract, with the reason why each better backend was
/// passed over. `cannot_hold` is the reason why the kernel backend cannot hold the contract, if so.
fn best(capabilities: Capabilities, cannot_hold: Option<String>) -> (Choice, String) {
    match (capabilities.kernel, cannot_hold, capabilities.cgroup) {
        (Ok(base), None, _) => (Choice::Kernel(base), "the best this machine offers".to_owned()),
        (Ok(base), Some(why), _) => (Choice::Cgroup(base), format!("not by the kernel backend: {why}")),
        (Err(row), _, Ok(base)) => (
            Choice::Cgroup(base),
            format!("the best this machine offers; no kernel backend here: {}", row.reason),
        ),
        (Err(_), _, Err(row)) => (Choice::User, format!("no cgroup backend here: {}", row.reason)),
    }
}

/// The words that follow `held` in CPU's [`Holding`](commonhold_report::holdings::Holding): the backend, and
/// the reason for choosing it.
pub(super) fn by_backend(backend: &str, why: &str) -> String {
    format!("by the {backend} backend ({why})")
}
