//! What this machine offers to jobs: pools for their threads, and nodes between which their pages can be
//! moved.

use commonhold_machine::Machine;
use commonhold_machine::capability::{Area, Row};
use commonhold_machine::pools::{Form, Pools};

use super::context::{Capability, Context};
use super::surroundings::GIVE_CAPABILITIES;
use crate::host::pages::migrate;

/// The mechanism that enforces seats, for the rows' reasons.
const SEATS: &str = "a seat is the CPU affinity of a thread, under every backend";

/// Whether the kernel has the system call that moves pages. Moves nothing.
pub(super) fn kernel_moves_pages() -> bool {
    migrate(0, &[0], &[0]).is_ok()
}

/// The rows about jobs. `can_move_pages`: whether the kernel has the system call that moves pages.
pub(super) fn rows(context: &Context, machine: &Machine, can_move_pages: bool) -> Vec<Row> {
    vec![seats(context, machine), pages(context, machine, can_move_pages)]
}

/// The row about pools, among which the seats of a job's threads are chosen.
fn seats(context: &Context, machine: &Machine) -> Row {
    let (area, name) = (Area::Cpu, "jobs in pools");
    let pools = Pools::form(machine, Form::Auto);
    if pools.pools.len() < 2 {
        let reason = format!("{}: {}", pools.summary(), Pools::why(machine));
        return Row::no(area, name, format!("{reason}; {SEATS}, and one pool leaves no choice"));
    }
    let reason = format!("{}; {SEATS}", pools.summary());
    if context.status.has(Capability::SysNice) {
        return Row::yes(area, name, reason);
    }
    Row::partly(area, name, format!("{reason}; our own user's processes only")).remedy(GIVE_CAPABILITIES)
}

/// The row that says whether a job's pages can be moved to the nodes of its threads.
fn pages(context: &Context, machine: &Machine, can_move_pages: bool) -> Row {
    let (area, name) = (Area::Memory, "pages of jobs moved");
    if machine.nodes.len() < 2 {
        return Row::no(area, name, "the machine has only one node");
    }
    if !can_move_pages {
        return Row::no(area, name, "the kernel refuses or lacks migrate_pages(2)").remedy(
            "boot a kernel built with CONFIG_NUMA=y and CONFIG_MIGRATION=y; in a container, allow the call",
        );
    }
    let reason = format!("migrate_pages(2) moves them between {} nodes", machine.nodes.len());
    if context.status.has(Capability::SysNice) && context.status.has(Capability::SysPtrace) {
        return Row::yes(area, name, reason);
    }
    Row::partly(area, name, format!("{reason}; of our own user's processes, and none that others map"))
        .remedy(GIVE_CAPABILITIES)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::observe::files::fake;
    use commonhold_machine::capability::State;

    #[test]
    fn pools_and_pages_have_a_row_each() {
        let found = |words: &str, capabilities: &str, moves: bool| {
            let status = format!("Uid:\t0\t0\t0\t0\nCapEff:\t{capabilities}\n");
            let dir = fake::tree(&[("/proc/self/status", &status)]);
            rows(&Context::read(dir.path()), &Machine::synthetic(words).unwrap(), moves)
        };
        let (all, none) = ("000001ffffffffff", "0000000000000000");
        let states = |rows: &[Row]| rows.iter().map(|row| row.state).collect::<Vec<_>>();
        let two = found("nodes:2 cpus:4", all, true);
        assert_eq!(states(&two), [State::Yes, State::Yes]);
        assert!(two[0].reason.starts_with("2 pools of 4 CPUs, by node; a seat is"), "{two:?}");
        assert_eq!(states(&found("nodes:2 cpus:4", none, true)), [State::Partly, State::Partly]);
        assert_eq!(states(&found("nodes:2 cpus:4", all, false)), [State::Yes, State::No]);
        let one = found("cpus:4", all, true);
        assert_eq!(states(&one), [State::No, State::No]);
        assert!(one[0].reason.contains("all its CPUs share one cache"), "{one:?}");
    }
}
