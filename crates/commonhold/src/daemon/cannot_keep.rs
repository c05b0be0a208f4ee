//! What a backend cannot keep of a contract on this machine, as sentences. `run` and `check` print them
//! beforehand.

use commonhold_contract::{Contract, Discipline, MILLIONTH, Resource, Scheme, Unit, UnitId};
use commonhold_machine::Machine;
use commonhold_machine::capability::State;
use commonhold_policy::MS;
use commonhold_policy::entitlement::{capacity, entitle};
use commonhold_report::holdings::Holding;

use super::holdings::{Holder, JOBS, named, not_held};

/// Sentences on what cannot be kept; empty if there is nothing to say. `holdings` are those of the same
/// contract under the same backend.
pub(super) fn of(
    contract: &Contract,
    machine: &Machine,
    holder: Holder<'_>,
    holdings: &[Holding],
) -> Vec<String> {
    if contract.machine.scheme == Scheme::Smp {
        return vec!["Under `scheme = \"smp\"`, units only have accounts: nothing is kept.".to_owned()];
    }
    let mut limits = Vec::new();
    limits.extend(in_no_unit(contract, holder).map(str::to_owned));
    limits.extend(turns(contract, machine, holder).map(str::to_owned));
    limits.extend(call_backs(contract, holder));
    limits.extend(by_user(contract, holder).into_iter().map(str::to_owned));
    limits.extend(without_effect(contract, holder, holdings));
    limits
}

/// How processes in no unit can take what units are entitled to. Nothing is said if the contract puts every
/// process in a unit.
fn in_no_unit(contract: &Contract, holder: Holder<'_>) -> Option<&'static str> {
    if contract.default_unit != UnitId::SHARED || holder.means.switches {
        return None;
    }
    Some(match (holder.means.weights, holder.in_place) {
        (true, true) => {
            "Processes in no unit take CPU time from units: the kernel gives their control groups as much as units in the same \
             group."
        }
        (true, false) => {
            "Processes in no unit take CPU time from units: to the kernel, all units together are one of the control groups \
             among which it divides the machine."
        }
        (false, _) => {
            "Processes in no unit run on units' CPUs, and are not held back: put them in a unit, or use the cgroup or kernel \
             backend."
        }
    })
}

/// How a share of less than a CPU is held without weights: by stopping processes, which users can notice.
fn turns(contract: &Contract, machine: &Machine, holder: Holder<'_>) -> Option<&'static str> {
    if holder.means.switches || holder.means.weights {
        return None;
    }
    let all_active = vec![true; contract.units.len()];
    let cpu = entitle(contract, Resource::Cpu, capacity(contract, machine, Resource::Cpu), &all_active);
    contract.held().any(|id| cpu.own(id) % MILLIONTH != 0).then_some(
        "Units that hold a part of a CPU take turns, and their processes are stopped in between: these answer late, and a shell \
         whose command runs in such a unit may report it as stopped.",
    )
}

/// Call-backs of CPUs by the loop may take longer than promised.
fn call_backs(contract: &Contract, holder: Holder<'_>) -> Option<String> {
    let lends = contract.held().any(|id| contract.unit(id).lend.cpu.allows());
    if holder.means.switches || contract.machine.scheme != Scheme::Isolate || !lends {
        return None;
    }
    let promised = contract.machine.call_back_ns.div_ceil(MS);
    Some(format!(
        "CPUs are called back in one to a few turns of the daemon's loop, not at the next switch: on a loaded machine, that may \
         take longer than the promised {promised} ms."
    ))
}

/// How weakly the `user` backend holds memory and disks, if the contract asks for them.
fn by_user(contract: &Contract, holder: Holder<'_>) -> Vec<&'static str> {
    let asked_for = contract.asked_for();
    let of = |resource, sentence| (holder.backend == "user" && asked_for[resource]).then_some(sentence);
    let memory = "A unit's memory beyond its bound is paged out only after the unit has taken it.";
    let disk = "Shares of disks are held by I/O priority, which not every disk honours, and limits by stopping processes.";
    [of(Resource::Memory, memory), of(Resource::Disk, disk)].into_iter().flatten().collect()
}

/// The keys of the contract that have no effect here, in a sentence.
fn without_effect(contract: &Contract, holder: Holder<'_>, holdings: &[Holding]) -> Option<String> {
    let not_held = not_held(holdings);
    let has_jobs = holdings.iter().all(|it| it.resource != JOBS || it.held != State::No);
    let mut keys = Vec::new();
    for id in contract.held() {
        let unit = contract.unit(id);
        let mut key = |name: &str| keys.push(format!("`{name}` of `{}`", unit.path));
        for resource in Resource::ALL.into_iter().filter(|resource| not_held[*resource]) {
            for name in keys_of(unit, resource) {
                key(&format!("{name}.{resource}"));
            }
        }
        if !holder.means.switches && unit.discipline != Discipline::default() {
            key("discipline");
        }
        if !holder.means.switches && unit.deadline.is_some() {
            key("deadline");
        }
        if unit.job.is_some() && !has_jobs && !holdings.iter().any(|it| it.resource == "gangs") {
            key("job");
        }
        if unit.negotiate && holder.backend == "user" {
            key("negotiate");
        }
    }
    Some(format!("These keys have no effect here: {}.", named(&keys, String::clone)?))
}

/// The unit's keys about a resource.
fn keys_of(unit: &Unit, resource: Resource) -> Vec<&'static str> {
    let has = [
        ("hard", unit.hard[resource].is_some()),
        ("limit", unit.limit[resource].is_some()),
        ("lend", unit.lend[resource].amount().is_some()),
        ("borrow", unit.borrow[resource].amount().is_some()),
    ];
    has.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use commonhold_live::apply::{kernel, user};
    use commonhold_policy::Means;

    use super::*;

    /// What cannot be kept of a contract by a backend with these means, on 4 CPUs.
    fn said(text: &str, backend: &str, means: Means) -> Vec<String> {
        let contract = commonhold_contract::parse(&format!("version = 1\n{text}")).contract.unwrap();
        let machine = Machine::synthetic("cpus:4").unwrap();
        let holder = Holder { backend, means, in_place: false, by: "" };
        let not_held = [Holding::not_held(Resource::Memory, ""), Holding::held(Resource::Cpu, "")];
        of(&contract, &machine, holder, &not_held)
    }

    #[test]
    fn the_kernel_backend_keeps_everything() {
        assert_eq!(said("[unit.a]\n", "kernel", kernel::MEANS), Vec::<String>::new());
    }

    #[test]
    fn the_user_backend_says_what_it_cannot_keep() {
        let whole = said("[unit.a]\n", "user", user::MEANS);
        assert!(whole[0].starts_with("Processes in no unit run on units' CPUs, and are not held back"));
        assert!(whole[1].contains("longer than the promised 10 ms"), "{whole:?}");
        assert_eq!(whole.len(), 2, "{whole:?}");
        let parts = said("[unit.a]\n[unit.b]\n[unit.c]\nlend = false\n", "user", user::MEANS);
        assert!(parts[1].starts_with("Units that hold a part of a CPU take turns"), "{parts:?}");
        let all = said("[machine]\ndefault = \"a\"\n[unit.a]\nlend = false\n", "user", user::MEANS);
        assert_eq!(all, Vec::<String>::new());
        let asked = "[unit.a]\nlimit = { memory = \"1GiB\", disk = \"10MB/s\" }\nnegotiate = true\n";
        let asked = said(asked, "user", user::MEANS);
        assert!(
            asked.iter().any(|it| it.starts_with("Shares of disks are held by I/O priority")),
            "{asked:?}"
        );
        let last = "These keys have no effect here: `limit.memory` of `a`, `negotiate` of `a`.";
        assert_eq!(asked.last().map(String::as_str), Some(last));
    }

    #[test]
    fn control_groups_leave_disciplines_to_the_kernel() {
        let means = Means { cpu_sets: true, weights: true, caps: true, gates: true, ..Means::NONE };
        let said = said("[unit.a]\ndiscipline = \"fifo\"\n", "cgroup", means);
        assert!(said[0].starts_with("Processes in no unit take CPU time from units"), "{said:?}");
        assert_eq!(said[2], "These keys have no effect here: `discipline` of `a`.");
        assert_eq!(said.len(), 3);
    }

    #[test]
    fn nothing_is_kept_under_smp() {
        let smp = said("[machine]\nscheme = \"smp\"\n[unit.a]\n", "kernel", kernel::MEANS);
        assert_eq!(smp, ["Under `scheme = \"smp\"`, units only have accounts: nothing is kept."]);
    }
}
