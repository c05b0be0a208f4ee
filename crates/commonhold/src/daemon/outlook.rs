//! Finds out how `run` would hold a contract on this machine: the backend, its means, and the holding of each
//! resource. `check` and `--dry-run` show this. Nothing is changed on the machine.

use std::path::Path;

use commonhold_contract::Contract;
use commonhold_live::apply::seats::means_for_jobs;
use commonhold_live::apply::{kernel, user};
use commonhold_live::observe::capability::{self, CgroupBase};
use commonhold_machine::Machine;
use commonhold_machine::capability::State;
use commonhold_policy::DiskMeans;
use commonhold_policy::Means;
use commonhold_policy::MemoryMeans;
use commonhold_report::holdings::Holding;
use commonhold_report::present::IN_PLACE;

use super::backend_choice::{self, Choice};
use super::cannot_keep;
use super::holdings::{self, Holder};
use crate::cli::BackendChoice;
use crate::exit::Failure;

/// How `run` would hold a contract: the backend, and the holding of each resource.
pub(crate) struct Outlook {
    pub(super) choice: Choice,
    /// The reason for this backend.
    pub(super) why: String,
    pub(super) means: Means,
    /// The holding of each resource.
    pub(crate) holdings: Vec<Holding>,
    /// What cannot be kept, in sentences.
    pub(crate) cannot_keep: Vec<String>,
}

impl Outlook {
    /// The outlook for the requested backend; for `auto`, that of the best backend.
    pub(crate) fn new(
        backend: BackendChoice,
        contract: &Contract,
        machine: &Machine,
    ) -> Result<Outlook, Failure> {
        let (choice, why) = backend_choice::choose(backend, contract, machine)?;
        let means = means_for_jobs(contract, means(&choice));
        let by = backend_choice::by_backend(choice.name(), &why);
        let holder = Holder { backend: choice.name(), means, in_place: in_place(&choice), by: &by };
        let holdings = holdings::of(contract, machine, holder);
        let cannot_keep = cannot_keep::of(contract, machine, holder, &holdings);
        Ok(Outlook { choice, why, means, holdings, cannot_keep })
    }

    /// Further notes for the user. The only one at present says that units would be held in systemd's control
    /// groups.
    pub(crate) fn notes(&self) -> Vec<&'static str> {
        in_place(&self.choice).then_some(IN_PLACE).into_iter().collect()
    }
}

/// Whether units would be held in systemd's control groups.
fn in_place(choice: &Choice) -> bool {
    let is_beside_systemd = |base: &CgroupBase| !base.delegated && capability::systemd_runs(Path::new("/"));
    choice.cgroup_base().is_some_and(is_beside_systemd)
}

/// The means of a backend on this machine. They are found out without a change to the machine.
fn means(choice: &Choice) -> Means {
    match choice {
        Choice::Kernel(base) => Means { disk: disk(base), memory: base.memory(), ..kernel::MEANS },
        Choice::Cgroup(base) => {
            let has = |controller: &str| base.controllers.contains(controller);
            Means {
                cpu_sets: has("cpuset"),
                weights: has("cpu"),
                caps: has("cpu"),
                gates: true,
                disk: disk(base),
                memory: base.memory(),
                ..Means::NONE
            }
        }
        Choice::User => {
            let pages_out = capability::paging_out(Path::new("/")).state != State::No;
            let memory = if pages_out { user::MEMORY_MEANS } else { MemoryMeans::NONE };
            Means { memory, ..user::MEANS }
        }
    }
}

/// The means for disks, given the controllers of a control group.
fn disk(base: &CgroupBase) -> DiskMeans {
    let has_io = base.controllers.contains("io");
    DiskMeans { caps: has_io, weights: has_io, shares: false, limits_only: false }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// `check` reports the same for gangs as `run`; a backend's means alone do not cover jobs.
    #[test]
    fn gangs_hold_the_bus_where_the_contract_has_jobs() {
        let machine = Machine::synthetic("cpus:4").unwrap();
        for by in ["latest-quantum", "quanta-window", "demand"] {
            let text = format!("version = 1\n[machine]\ngangs = \"{by}\"\n[unit.a]\njob = \"tree\"\n");
            let contract = commonhold_contract::parse(&text).contract.unwrap();
            let outlook = Outlook::new(BackendChoice::User, &contract, &machine).unwrap();
            let bus = outlook.holdings.iter().find(|holding| holding.resource == "bus").unwrap();
            assert!(bus.how.contains("gangs, in quanta of 200 ms"), "{by}: {}", bus.line());
        }
    }
}
