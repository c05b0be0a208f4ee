//! What holds each resource under a backend, or why nothing does. The daemon's start, `check`, `--dry-run` and
//! `status` say it.

use std::path::Path;

use commonhold_contract::{Contract, Resource, Scheme};
use commonhold_live::observe::capability;
use commonhold_machine::capability::State;
use commonhold_policy::Means;
use commonhold_policy::MemoryMeans;
use commonhold_report::holdings::Holding;

use crate::load;

/// All four, in the order of every table. `cpu` is what follows `held` of the CPU: it has reasons of its own.
pub(super) fn of(contract: &Contract, backend: &str, means: Means, cpu: &str) -> Vec<Holding> {
    let asked_for = load::asked_for(contract);
    let asked = |resource| if asked_for[resource] { ", though the contract asks for it" } else { "" };
    let disk = if backend == "user" {
        disks_by_user(asked(Resource::Disk))
    } else if means.disk.caps {
        let elsewhere = asked_for[Resource::Disk].then(|| capability::file_systems_elsewhere(Path::new("/")));
        disks_by_control_groups(elsewhere.flatten())
    } else {
        Holding::not_held(Resource::Disk, &missing("io", asked(Resource::Disk)))
    };
    vec![
        Holding::held(Resource::Cpu, &format!("{cpu}{}", limits_of_cpu(contract, means))),
        memory(backend, means.memory, asked(Resource::Memory)),
        disk,
        Holding::not_held(Resource::Bus, &format!(" by this version{}", asked(Resource::Bus))),
    ]
}

/// How `limit.cpu` is held, where a contract has it.
fn limits_of_cpu(contract: &Contract, means: Means) -> &'static str {
    let limited = contract.held().any(|id| contract.unit(id).limit.cpu.is_some());
    match (limited && contract.machine.scheme != Scheme::Smp, means.caps) {
        (false, _) => "",
        (true, true) => "; limits by cpu.max",
        (true, false) => "; limits by turns and in whole CPUs, for each sub-unit by itself",
    }
}

fn memory(backend: &str, means: MemoryMeans, asked: &str) -> Holding {
    if backend == "user" {
        return memory_by_user(means, asked);
    }
    match (means.bounds, means.guarantees) {
        (false, _) => Holding::not_held(Resource::Memory, &missing("memory", asked)),
        (true, true) => Holding::held(Resource::Memory, "by control groups"),
        (true, false) => Holding::partly(
            Resource::Memory,
            &format!(
                "by control groups, without guarantees{asked}: the cgroup around ours is not protected (memory.low is 0 there)"
            ),
        ),
    }
}

/// The `user` backend: as weakly as `doctor` says, or not at all.
fn memory_by_user(means: MemoryMeans, asked: &str) -> Holding {
    let found = capability::paging_out(Path::new("/"));
    if means.bounds {
        let how = format!("weakly{asked}: {}; see `commonhold doctor`", found.reason);
        return Holding::partly(Resource::Memory, &how);
    }
    // Found to be refused although nothing speaks against it, as in a container.
    let why = if found.state == State::No {
        found.reason
    } else {
        "the kernel refuses to page memory out for us".into()
    };
    let remedy = found.remedy.unwrap_or_default();
    Holding::not_held(Resource::Memory, &format!("{asked}: {why}; {remedy}"))
}

/// The `user` backend, by priorities and by stopping.
fn disks_by_user(asked: &str) -> Holding {
    let found = capability::disks_by_user(Path::new("/"));
    if found.state == State::No {
        return Holding::not_held(Resource::Disk, &format!("{asked}: {}", found.reason));
    }
    Holding::partly(Resource::Disk, &format!("weakly{asked}: {}; see `commonhold doctor`", found.reason))
}

/// Disks that control groups hold. A contract that asks for disks is told of file systems whose disks these are not.
fn disks_by_control_groups(elsewhere: Option<String>) -> Holding {
    let by = "by control groups: by weights where a disk heeds them, else by rates that follow use";
    let elsewhere = elsewhere.map_or_else(String::new, |words| format!("; {words}"));
    Holding::held(Resource::Disk, &format!("{by}{elsewhere}"))
}

/// Why a resource is not held that needs a controller.
fn missing(controller: &str, asked: &str) -> String {
    format!(": no {controller} controller here{asked}; see `commonhold doctor`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_other_machines_are_named() {
        let held = "disk    held by control groups: by weights where a disk heeds them, else by rates that follow use";
        assert_eq!(disks_by_control_groups(None).line(), held);
        let found = disks_by_control_groups(Some("outside of control: /home (nfs4)".to_owned()));
        assert_eq!(found.line(), format!("{held}; outside of control: /home (nfs4)"));
    }
}
