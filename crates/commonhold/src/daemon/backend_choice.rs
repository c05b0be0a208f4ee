//! Which backend holds a contract: the one that `--backend` names, or the best that this machine offers.

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

/// The chosen backend.
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

    /// The control group for those of units, if units have any.
    pub(super) fn place(&self) -> Option<&CgroupBase> {
        match self {
            Choice::Kernel(place) | Choice::Cgroup(place) => Some(place),
            Choice::User => None,
        }
    }

    /// The number of files that it keeps open for every unit.
    pub(super) fn files_per_unit(&self) -> usize {
        match self {
            Choice::Kernel(place) | Choice::Cgroup(place) => CgroupBackend::files_per_unit(place),
            Choice::User => 0,
        }
    }
}

/// The kernel unloads a scheduler within this time, even on a slow machine.
const UNLOADED_WITHIN: Duration = Duration::from_secs(5);

/// Chooses the backend for a contract; the second value is the reason.
pub(super) fn choose(
    choice: BackendChoice,
    contract: &Contract,
    machine: &Machine,
) -> Result<(Choice, String), Failure> {
    wait_for_the_one_before();
    let capabilities = capability::probe(Path::new("/"));
    let cannot_hold = kernel::cannot_hold(contract, machine.cpus.len());
    let chosen = match choice {
        BackendChoice::User => Choice::User,
        BackendChoice::Cgroup => Choice::Cgroup(asked("cgroup", capabilities.cgroup)?),
        BackendChoice::Kernel => {
            let place = asked("kernel", capabilities.kernel)?;
            if let Some(why) = cannot_hold {
                let what =
                    format!("the kernel backend cannot hold this contract: {why}; use `--backend cgroup`");
                return Err(Failure::new(Exit::Unavailable, what));
            }
            Choice::Kernel(place)
        }
        BackendChoice::Auto => return Ok(best(capabilities, cannot_hold)),
    };
    Ok((chosen, "as asked".to_owned()))
}

/// The kernel takes a while to unload the scheduler of a killed daemon. A daemon started right after would otherwise find no
/// kernel backend.
fn wait_for_the_one_before() {
    let begin = Instant::now();
    while capability::scheduler_is_leaving(Path::new("/")) && begin.elapsed() < UNLOADED_WITHIN {
        thread::sleep(Duration::from_millis(20));
    }
}

/// The control group where a requested backend can work, or the reason why it cannot.
fn asked(backend: &str, place: Result<CgroupBase, Row>) -> Result<CgroupBase, Failure> {
    place.map_err(|row| {
        let remedy = row.remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
        Failure::new(Exit::Unavailable, format!("no {backend} backend here: {}{remedy}", row.reason))
    })
}

/// The best backend for a contract that works here, and the reason why no better one does.
fn best(capabilities: Capabilities, cannot_hold: Option<String>) -> (Choice, String) {
    match (capabilities.kernel, cannot_hold, capabilities.cgroup) {
        (Ok(place), None, _) => (Choice::Kernel(place), "the best this machine offers".to_owned()),
        (Ok(place), Some(why), _) => (Choice::Cgroup(place), format!("not by the kernel backend: {why}")),
        (Err(row), _, Ok(place)) => (
            Choice::Cgroup(place),
            format!("the best this machine offers; no kernel backend here: {}", row.reason),
        ),
        (Err(_), _, Err(row)) => (Choice::User, format!("no cgroup backend here: {}", row.reason)),
    }
}

/// The backend and the reason for it, for CPU's [`Holding`](commonhold_report::holdings::Holding).
pub(super) fn by_backend(backend: &str, why: &str) -> String {
    format!("by the {backend} backend ({why})")
}
