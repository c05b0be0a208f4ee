//! The holding of each resource: the mechanism that holds the resource under a backend, or the reason why it
//! is not held. It is reported at the daemon's start, by `check`, by `--dry-run` and by `status`.
//!
//! A parameter named `asked` is text for the end of a sentence. It says that the contract asks for the
//! resource, or is empty.

use std::fmt::Write as _;
use std::path::Path;

use commonhold_contract::{
    Contract, Discipline, Gangs, GangsShare, JobKind, PerResource, Resource, Scheme, Unit, UnitId,
};
use commonhold_live::observe::capability;
use commonhold_machine::Machine;
use commonhold_machine::capability::State;
use commonhold_policy::cpu::{self, NotHeld, Side, WhyNot};
use commonhold_policy::{MS, Means, MemoryMeans};
use commonhold_report::holdings::Holding;

use super::session::Session;

/// The most units that a text names; the number of further units is given instead.
const NAMED: usize = 3;

/// The backend that holds a contract, with its means.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder<'a> {
    /// The backend's name.
    pub(super) backend: &'a str,
    /// The backend's means on this machine.
    pub(super) means: Means,
    /// Whether units are held in the control groups of a service manager.
    pub(super) in_place: bool,
    /// The words that follow `held` in CPU's holding; they give the reason for the choice of the backend.
    pub(super) by: &'a str,
}

/// The holdings of the four resources, in the order of all reports. If the contract has jobs in pools or
/// gangs, their holdings follow.
pub(super) fn of(contract: &Contract, machine: &Machine, holder: Holder<'_>) -> Vec<Holding> {
    let Holder { backend, means, .. } = holder;
    let asked_for = contract.asked_for();
    let asked = |resource| if asked_for[resource] { ", though the contract asks for it" } else { "" };
    let disk = if backend == "user" {
        disks_by_user(asked(Resource::Disk))
    } else if means.disk.caps {
        let elsewhere = asked_for[Resource::Disk].then(|| capability::file_systems_elsewhere(Path::new("/")));
        disks_by_control_groups(unit_that_keeps_disk(contract), elsewhere.flatten())
    } else {
        Holding::not_held(Resource::Disk, &missing("io", asked(Resource::Disk)))
    };
    let mut all = vec![
        cpu_beside(contract, machine, holder),
        memory(backend, means.memory, asked(Resource::Memory)),
        disk,
        bus(contract, means, asked(Resource::Bus)),
    ];
    all.extend(jobs(contract, machine, means, capability::moves_pages()));
    all.extend(gangs(contract, backend, means));
    all
}

/// The holding of the memory bus, which is held by the processor's throttling, or by gangs that must wait for
/// their quantum.
fn bus(contract: &Contract, means: Means, asked: &str) -> Holding {
    let rules = contract.machine.gangs;
    let gangs = rules.by != Gangs::Off && means.gangs && rules.share == GangsShare::Bus;
    let quanta = format!(
        "by gangs, in quanta of {} ms, for jobs of which it is known what they transfer",
        rules.quantum_ns / MS
    );
    match means.throttle {
        _ if contract.machine.scheme == Scheme::Smp => {
            Holding::not_held(Resource::Bus, &format!(": the scheme is smp{asked}"))
        }
        Some(throttle) => {
            let also = if gangs { format!(", and {quanta}") } else { String::new() };
            let by =
                format!("by the processor, which slows units down to {} % at least{also}", throttle.least);
            Holding::partly(Resource::Bus, &by)
        }
        None if gangs => Holding::partly(Resource::Bus, &quanta),
        None if rules.by != Gangs::Off && rules.share != GangsShare::Bus => Holding::not_held(
            Resource::Bus,
            &format!(": `gangs-share` is \"{}\" in [machine]{asked}", rules.share),
        ),
        None if rules.by != Gangs::Off => {
            let why =
                format!(": `gangs` is \"{}\" in [machine], and no unit has a `job`{asked}", rules.by.name());
            Holding::not_held(Resource::Bus, &why)
        }
        None => Holding::not_held(Resource::Bus, &format!(": `gangs` is \"off\" in [machine]{asked}")),
    }
}

/// The holding of gangs, if the contract has any.
fn gangs(contract: &Contract, backend: &str, means: Means) -> Option<Holding> {
    let job = |id: UnitId| contract.unit(id).job;
    if contract.machine.gangs.by == Gangs::Off || !contract.held().any(|id| job(id).is_some()) {
        return None;
    }
    let has_unit_jobs = contract.held().any(|id| job(id) == Some(JobKind::Unit));
    let how = match (means.switches, backend) {
        (true, _) => "stopped by the scheduler, on all CPUs at once",
        (false, "user") => "stopped by signals",
        (false, _) if has_unit_jobs => "stopped by signals; a unit that is one job by its control group",
        (false, _) => "stopped by signals: only a job that is a whole unit has a control group of its own",
    };
    let by = match contract.machine.gangs.share {
        GangsShare::Bus => "",
        GangsShare::Cache => "chosen by what they hold of the last-level caches, ",
    };
    Some(Holding { resource: "gangs".to_owned(), held: State::Yes, how: format!("{by}{how}") })
}

/// The name under which [`Holding::resource`] lists jobs in pools, although they are no resource.
pub(super) const JOBS: &str = "jobs";

/// The holding of jobs in pools, if the contract has any.
fn jobs(contract: &Contract, machine: &Machine, means: Means, moves_pages: bool) -> Option<Holding> {
    if !contract.held().any(|id| contract.unit(id).job.is_some()) {
        return None;
    }
    let pools = commonhold_policy::pools(machine, contract.machine.pools);
    let resource = JOBS.to_owned();
    if pools.pools.len() < 2 {
        let how = format!("not held: {}; see `commonhold doctor`", pools.summary());
        return Some(Holding { resource, held: State::No, how });
    }
    let pages = match (moves_pages, contract.machine.repartition) {
        (true, true) => "pages are moved after the threads",
        (true, false) => "pages are not moved, as `repartition` is false",
        (false, _) => "pages are not moved; see `commonhold doctor`",
    };
    let by = match means.switches {
        true => "by the scheduler, which prefers a thread's pool,",
        false => "by the CPU affinity of threads",
    };
    let how = format!("held {by} in {}; {pages}", pools.summary());
    Some(Holding { resource, held: State::Yes, how })
}

/// All holdings under the active backend.
pub(super) fn now(session: &mut Session) -> Vec<Holding> {
    let by = format!("by the {} backend", session.backend().active().name);
    let holder = holder_now(session, &by);
    of(session.contract(), session.machine(), holder)
}

/// The holding of CPU under the active backend; `by` is the text after `held`.
pub(super) fn cpu_now(session: &mut Session, by: &str) -> Holding {
    let holder = holder_now(session, by);
    cpu_beside(session.contract(), session.machine(), holder)
}

fn holder_now<'a>(session: &mut Session, by: &'a str) -> Holder<'a> {
    let backend = session.backend();
    let in_place = backend.roster().is_in_place();
    Holder { backend: backend.active().name, means: backend.means(), in_place, by }
}

/// The resources that nothing holds.
pub(super) fn not_held(holdings: &[Holding]) -> PerResource<bool> {
    let mut not_held = PerResource::all(false);
    for resource in Resource::ALL {
        let of_resource = |holding: &Holding| holding.resource == resource.name();
        not_held[resource] = holdings.iter().any(|it| of_resource(it) && it.held == State::No);
    }
    not_held
}

/// The holdings of the resources that are not held, with the reasons. Jobs are left out, since they have no
/// tickets.
pub(super) fn of_those_not_held(session: &mut Session) -> Vec<Holding> {
    let is_not_held = |holding: &Holding| holding.held == State::No && holding.resource != JOBS;
    now(session).into_iter().filter(is_not_held).collect()
}

/// The holding of CPU. It also says how much CPU time is left to processes in no unit, since no account shows
/// that.
fn cpu_beside(contract: &Contract, machine: &Machine, holder: Holder<'_>) -> Holding {
    let mut cpu = cpu(contract, machine.cpus.len(), holder.means, holder.by);
    if let Some(beside) = in_no_unit(contract, holder.means, holder.in_place) {
        let _ = write!(cpu.how, "; processes in no unit {beside}");
    }
    cpu
}

/// How much CPU time processes in no unit get, as the end of a sentence. `None` under `smp`, where units are
/// not guaranteed any CPU time either.
///
/// If units are held in place, in the control groups of a service manager, the N groups in one parent have
/// weights whose mean is the kernel's default. So another group in that parent, with the default weight, gets
/// 1/(N + 1) while all groups are busy, and more while some are idle. Otherwise all units are below one
/// control group, which has the default weight.
fn in_no_unit(contract: &Contract, means: Means, in_place: bool) -> Option<&'static str> {
    let share = match (means.switches, means.weights) {
        _ if contract.machine.scheme == Scheme::Smp => return None,
        (true, _) => "take turns on every CPU, and have at most half of one that is contended",
        (false, true) if in_place => {
            "have at least 1/(N + 1) of the CPU time beside N control groups of units in the same group"
        }
        (false, true) => {
            "are not held: the kernel divides CPU time between them and one control group around all units"
        }
        (false, false) => "are not held: the kernel divides CPU time between them and the units' processes",
    };
    Some(share)
}

/// The holding of CPU. It names the disciplines, and the amounts of `lend` and `borrow`, that these means
/// cannot enforce.
fn cpu(contract: &Contract, cpus: usize, means: Means, by: &str) -> Holding {
    let by = format!("{by}{}", limits_of_cpu(contract, means));
    let not_held = cpu::not_held(contract, means, cpus);
    let disciplines = disciplines_not_held(contract, means);
    if not_held.is_empty() && disciplines.is_none() {
        return Holding::held(Resource::Cpu, &by);
    }
    let reasons = [
        (WhyNot::EverySwitch, "`true`: the scheduler lends at every switch, and knows only yes and no"),
        (WhyNot::Shared, "`true`: CPUs are time-shared by weight, and what a unit leaves goes to all others"),
        (WhyNot::LessThanACpu, "`false`: only whole CPUs are lent"),
    ];
    let mut text = by;
    for (why, counts_as) in reasons {
        let amounts: Vec<&NotHeld> = not_held.iter().filter(|amount| amount.why == why).collect();
        let key = |side: Side| if side == Side::Lend { "lend" } else { "borrow" };
        let name = |amount: &&NotHeld| {
            format!("`{}.cpu` of `{}`", key(amount.side), contract.unit(amount.unit).path)
        };
        if let Some(named) = named(&amounts, name) {
            let _ = write!(text, "; amounts not held: {named} (as {counts_as})");
        }
    }
    text += &disciplines.unwrap_or_default();
    Holding::partly(Resource::Cpu, &text)
}

/// A text that names the first [`NAMED`] items of a list and gives the number of the others; `None` for an
/// empty list.
pub(super) fn named<T>(all: &[T], name: impl FnMut(&T) -> String) -> Option<String> {
    let mut named: Vec<String> = all.iter().take(NAMED).map(name).collect();
    if all.len() > NAMED {
        named.push(format!("{} more", all.len() - NAMED));
    }
    (!named.is_empty()).then(|| named.join(", "))
}

/// The disciplines of the contract that cannot be enforced, as the end of a sentence; `None` if there is no
/// such discipline. Disciplines require a scheduler that decides at every switch.
fn disciplines_not_held(contract: &Contract, means: Means) -> Option<String> {
    let has_discipline = |id: &UnitId| contract.unit(*id).discipline != Discipline::default();
    let units: Vec<UnitId> = contract.held().filter(has_discipline).collect();
    let name = |id: &UnitId| {
        let unit = contract.unit(*id);
        format!("`{}` of `{}`", unit.discipline, unit.path)
    };
    let why = match (contract.machine.scheme, means.switches) {
        (Scheme::Smp, _) => "under `scheme = \"smp\"`, the kernel decides",
        (_, true) => return None,
        (_, false) => "only the `kernel` backend has them, and honours deadlines",
    };
    Some(format!("; disciplines not held: {} ({why})", named(&units, name)?))
}

/// How `limit.cpu` is held, as the end of a sentence; empty if the contract sets no such limit.
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

/// The holding of memory under the `user` backend: weakly, as `doctor` explains, or not at all.
fn memory_by_user(means: MemoryMeans, asked: &str) -> Holding {
    let capability = capability::paging_out(Path::new("/"));
    if means.bounds {
        let how = format!("weakly{asked}: {}; see `commonhold doctor`", capability.reason);
        return Holding::partly(Resource::Memory, &how);
    }
    // Even if the probe found no obstacle, the kernel may refuse, as in a container.
    let why = if capability.state == State::No {
        capability.reason
    } else {
        "the kernel refuses to page memory out for us".into()
    };
    let remedy = capability.remedy.unwrap_or_default();
    Holding::not_held(Resource::Memory, &format!("{asked}: {why}; {remedy}"))
}

/// The holding of disks under the `user` backend: weakly, by I/O priorities and by stopping, or not at all.
fn disks_by_user(asked: &str) -> Holding {
    let capability = capability::disks_by_user(Path::new("/"));
    if capability.state == State::No {
        return Holding::not_held(Resource::Disk, &format!("{asked}: {}", capability.reason));
    }
    let how = format!("weakly{asked}: {}; see `commonhold doctor`", capability.reason);
    Holding::partly(Resource::Disk, &how)
}

/// The first unit that withholds some of its share of disks from loans; `None` under a scheme that lends
/// nothing.
fn unit_that_keeps_disk(contract: &Contract) -> Option<&str> {
    let withholds = |unit: &Unit| !unit.lend.disk.allows() || unit.lend.disk.amount().is_some();
    let scheme_lends = contract.machine.scheme == Scheme::Isolate;
    contract
        .held()
        .map(|id| contract.unit(id))
        .find(|unit| scheme_lends && withholds(unit))
        .map(|unit| unit.path.as_str())
}

/// The holding of disks by control groups. `keeper` is the first unit that withholds a share of disks from
/// loans, which weights cannot enforce. `elsewhere` is a text about file systems on disks that are not held.
fn disks_by_control_groups(keeper: Option<&str>, elsewhere: Option<String>) -> Holding {
    let mut by =
        "by control groups: by weights where a disk honours them, else by rates that follow use".to_owned();
    if let Some(unit) = keeper {
        let _ = write!(by, "; weights lend all that is idle, whatever `lend.disk` of `{unit}` says");
    }
    if let Some(words) = elsewhere {
        let _ = write!(by, "; {words}");
    }
    Holding::held(Resource::Disk, &by)
}

/// The end of a sentence about a missing control-group controller.
fn missing(controller: &str, asked: &str) -> String {
    format!(": no {controller} controller here{asked}; see `commonhold doctor`")
}

#[cfg(test)]
mod tests {
    use commonhold_live::apply::seats::means_for_jobs;

    use super::*;
    use commonhold_contract::{Amount, JobKind, MILLIONTH, Permission};
    use commonhold_live::apply::{kernel, user};

    /// Lends half a CPU, and borrows two.
    #[test]
    fn amounts_that_are_not_held_are_named() {
        let mut contract = Contract::default();
        let physics = contract.add(None, "physics");
        contract.add(None, "chemistry");
        let unit = &mut contract.units[physics.index()];
        unit.lend.cpu = Permission::AtMost(Amount::Absolute(MILLIONTH / 2));
        unit.borrow.cpu = Permission::AtMost(Amount::Absolute(2 * MILLIONTH));
        let said = |contract: &Contract, means| cpu(contract, 4, means, "by it");
        let user = said(&contract, user::MEANS);
        assert_eq!(
            (user.held, user.how.as_str()),
            (
                State::Partly,
                "held by it; amounts not held: `lend.cpu` of `physics` (as `false`: only whole CPUs are lent)"
            )
        );
        let kernel = said(&contract, kernel::MEANS).how;
        let both = "`lend.cpu` of `physics`, `borrow.cpu` of `physics` (as `true`: the scheduler";
        assert!(kernel.contains(both), "{kernel}");
        for name in ["a", "b", "c"] {
            let unit = contract.add(None, name);
            contract.units[unit.index()].borrow.cpu = Permission::AtMost(Amount::Absolute(MILLIONTH));
        }
        assert!(said(&contract, kernel::MEANS).how.contains("`borrow.cpu` of `a`, 2 more (as"));
        contract.machine.scheme = Scheme::Quota;
        assert_eq!(said(&contract, kernel::MEANS).line(), "cpu     held by it");
    }

    #[test]
    fn the_holding_of_jobs_is_stated_if_there_are_jobs() {
        let machine = |words| Machine::synthetic(words).expect("a machine");
        let mut contract = Contract::default();
        let physics = contract.add(None, "physics");
        assert_eq!(jobs(&contract, &machine("nodes:2 cpus:4"), user::MEANS, true), None);
        contract.units[physics.index()].job = Some(JobKind::Tree);
        let said_of = |contract: &Contract, words, means, moves| {
            jobs(contract, &machine(words), means, moves).map(|it| it.line())
        };
        let said = |contract: &Contract, words, moves| said_of(contract, words, user::MEANS, moves);
        let one = "jobs    not held: 1 pool of 4 CPUs, by machine; see `commonhold doctor`";
        assert_eq!(said(&contract, "cpus:4", false).as_deref(), Some(one));
        let two = "jobs    held by the CPU affinity of threads in 2 pools of 4 CPUs, by node; pages are moved after the \
                   threads";
        assert_eq!(said(&contract, "nodes:2 cpus:4", true).as_deref(), Some(two));
        let preferred = said_of(&contract, "nodes:2 cpus:4", kernel::MEANS, true).unwrap_or_default();
        assert!(preferred.starts_with("jobs    held by the scheduler, which prefers"), "{preferred}");
        contract.machine.repartition = false;
        let still = said(&contract, "nodes:2 cpus:4", true).unwrap_or_default();
        assert!(still.ends_with("pages are not moved, as `repartition` is false"), "{still}");
    }

    #[test]
    fn the_holding_of_gangs_is_stated_if_there_are_gangs() {
        let mut contract = Contract::default();
        let physics = contract.add(None, "physics");
        let said = |contract: &Contract, backend, means| gangs(contract, backend, means).map(|it| it.line());
        contract.units[physics.index()].job = Some(JobKind::Tree);
        assert_eq!(said(&contract, "user", user::MEANS), None);
        contract.machine.gangs.by = Gangs::Demand;
        let is = |contract: &Contract, backend, means, how: &str| {
            assert_eq!(said(contract, backend, means), Some(format!("gangs   stopped by {how}")));
        };
        is(&contract, "user", user::MEANS, "signals");
        is(&contract, "kernel", kernel::MEANS, "the scheduler, on all CPUs at once");
        let alone = "signals: only a job that is a whole unit has a control group of its own";
        is(&contract, "cgroup", user::MEANS, alone);
        contract.units[physics.index()].job = Some(JobKind::Unit);
        is(&contract, "cgroup", user::MEANS, "signals; a unit that is one job by its control group");
        contract.machine.gangs.by = Gangs::LatestQuantum;
        contract.machine.gangs.share = GangsShare::Cache;
        let cache = said(&contract, "kernel", kernel::MEANS).unwrap_or_default();
        assert!(cache.contains("chosen by what they hold of the last-level caches, stopped by"), "{cache}");
        let unheld = bus(&contract, kernel::MEANS, "").line();
        assert!(unheld.contains("not held: `gangs-share` is \"cache\""), "{unheld}");
        contract.machine.gangs.share = GangsShare::Bus;
        for by in [Gangs::LatestQuantum, Gangs::QuantaWindow, Gangs::Demand] {
            contract.machine.gangs.by = by;
            let held = bus(&contract, means_for_jobs(&contract, kernel::MEANS), "").line();
            assert!(held.contains("by gangs, in quanta of 200 ms"), "{held}");
            let unheld = bus(&contract, kernel::MEANS, "").line();
            let why = format!("not held: `gangs` is \"{}\" in [machine], and no unit has a `job`", by.name());
            assert!(unheld.contains(&why), "{unheld}");
        }
    }

    #[test]
    fn the_cpu_time_of_processes_in_no_unit_is_stated() {
        let machine = Machine::synthetic("cpus:4").expect("a machine");
        let mut contract = Contract::default();
        contract.add(None, "physics");
        let said = |contract: &Contract, means, in_place| {
            let holder = Holder { backend: "any", means, in_place, by: "by it" };
            of(contract, &machine, holder)[0].line()
        };
        let is = |means, in_place, part: &str| {
            let line = format!("cpu     held by it; processes in no unit {part}");
            assert_eq!(said(&contract, means, in_place), line);
        };
        let weights = Means { weights: true, ..Means::NONE };
        let half = "take turns on every CPU, and have at most half of one that is contended";
        is(kernel::MEANS, true, half);
        is(kernel::MEANS, false, half);
        is(
            weights,
            true,
            "have at least 1/(N + 1) of the CPU time beside N control groups of units in the same group",
        );
        let around =
            "are not held: the kernel divides CPU time between them and one control group around all units";
        is(weights, false, around);
        let no_weights = "are not held: the kernel divides CPU time between them and the units' processes";
        is(Means::NONE, true, no_weights);
        is(user::MEANS, false, no_weights);
        contract.machine.scheme = Scheme::Smp;
        assert_eq!(said(&contract, user::MEANS, false), "cpu     held by it");
    }

    #[test]
    fn disciplines_that_are_not_held_are_named() {
        let mut contract = Contract::default();
        for (name, discipline) in
            [("a", Discipline::Lottery), ("b", Discipline::Stride), ("c", Discipline::Fifo)]
        {
            let unit = contract.add(None, name);
            contract.units[unit.index()].discipline = discipline;
        }
        let said = |contract: &Contract, means| cpu(contract, 4, means, "by it").line();
        assert_eq!(said(&contract, kernel::MEANS), "cpu     held by it");
        let user = "cpu     held by it; disciplines not held: `lottery` of `a`, `fifo` of `c` (only the `kernel` backend has \
                    them, and honours deadlines)";
        assert_eq!(said(&contract, user::MEANS), user);
        contract.machine.scheme = Scheme::Smp;
        assert!(said(&contract, kernel::MEANS).contains("`fifo` of `c` (under `scheme = \"smp\"`"));
    }

    #[test]
    fn file_systems_of_other_machines_are_named() {
        let held = "disk    held by control groups: by weights where a disk honours them, else by rates that follow use";
        assert_eq!(disks_by_control_groups(None, None).line(), held);
        let found = disks_by_control_groups(Some("a"), Some("outside of control: /home (nfs4)".to_owned()));
        let kept = "weights lend all that is idle, whatever `lend.disk` of `a` says";
        assert_eq!(found.line(), format!("{held}; {kept}; outside of control: /home (nfs4)"));
    }
}
