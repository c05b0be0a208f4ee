//! `run --dry-run`: prints the plan that `run` would carry out at this moment, with reasons, and the
//! processes that the plan affects. It changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use commonhold_contract::{Contract, UnitId};
use commonhold_live::apply::cgroup::io_cost;
use commonhold_live::host::clock;
use commonhold_live::observe::names::SystemNames;
use commonhold_live::observe::roster::{Roster, Scan};
use commonhold_live::observe::{bounds, capability};
use commonhold_policy::{Input, PolicyState, Snapshot, step};
use commonhold_report::holdings as said;
use commonhold_report::plan;
use commonhold_report::present::{self, Present};

use super::backend_choice::Choice;
use super::outlook::Outlook;
use super::start;
use crate::cli::Run;
use crate::exit::{Exit, Failure};
use crate::{load, natural, output};

/// The time between two samples: long enough to distinguish running processes from idle ones.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);

pub(super) fn main(args: &Run) -> Result<Exit, Failure> {
    let machine = load::machine_here()?;
    let names = SystemNames::new();
    let (mut contract, warnings) = if args.json {
        match load::diagnose_placed(&natural::text_for(args)?.0, &machine, Some(&names)) {
            (Some(contract), warnings) => (start::with_scheme(args, contract), warnings),
            (None, errors) => return load::refuse_in_json(&errors),
        }
    } else {
        let (loaded, _) = start::load_with_scheme(args, &machine, &names)?;
        output::complain_of(&loaded.warnings);
        (loaded.contract, Vec::new())
    };
    load::tell_of_cpus(&contract, &machine, true);
    let machine = load::divided(&contract, &machine);
    let outlook = Outlook::new(args.backend, &contract, &machine)?;
    let (roster, now) = sample(&mut contract, &outlook.choice)?;
    let snapshot = Snapshot { at: now, units: roster.unit_facts(), ..Snapshot::default() };
    let input = Input {
        contract: &contract,
        machine: &machine,
        means: outlook.means,
        snapshot: &snapshot,
        changes: &[],
    };
    let (_, plan) = step(PolicyState::default(), now, input);
    let present = present_processes(&contract, &roster, &outlook.choice);
    let io_cost =
        if start::switches_io_cost(&contract, args) { io_cost(&outlook.choice) } else { Vec::new() };
    let about = plan::About {
        present: &present,
        outlook: said::Outlook {
            holdings: &outlook.holdings,
            cannot_keep: &outlook.cannot_keep,
            notes: &outlook.notes(),
        },
        io_cost: &io_cost,
        warnings: &warnings,
    };
    if args.json {
        output::print(&plan::json(&contract, &plan, about))?;
    } else {
        let (name, why) = (outlook.choice.name(), &outlook.why);
        output::say(&format!("the {name} backend would hold this ({why}):\n"));
        output::print(&present::text(&contract, &present, output::style()))?;
        output::print(&said::notes(&outlook.notes(), output::style()))?;
        output::say("");
        output::print(&plan::text(&contract, &plan, output::style()))?;
        output::say("\nThis plan is about CPUs; of each resource, `run` would say:");
        let width = output::message_width();
        output::print(&said::text(&outlook.holdings, width))?;
        output::say_text(&said::cannot_be_kept(&outlook.cannot_keep, width));
        start::say_io_cost(&io_cost, "would be");
    }
    Ok(Exit::Ok)
}

/// Samples all processes twice, since their CPU use is the difference of two samples. Returns the roster,
/// which has the processes by unit, and the time of the second sample. Adds to the contract the sub-units
/// that `each` makes.
fn sample(contract: &mut Contract, choice: &Choice) -> Result<(Roster, u64), Failure> {
    let mut roster = Roster::new(Path::new("/proc"), &[])?;
    if let Some(base) = choice.cgroup_base() {
        roster.held_at(base);
    }
    let begun = clock::now();
    // A scan may find users that need a sub-unit. Their processes are put there by the next scan.
    loop {
        let scanned = roster.refresh(contract, begun, Scan::Full)?;
        if !contract.welcome(&scanned.seen.newcomers, &BTreeSet::new()) {
            break;
        }
    }
    roster.account(begun, &[])?;
    sleep(SAMPLE_INTERVAL);
    let now = clock::now();
    roster.refresh(contract, now, Scan::Quick)?;
    roster.account(now, &[])?;
    Ok((roster, now))
}

/// A summary of the processes of every unit, and one of the processes in no unit.
fn present_processes(contract: &Contract, roster: &Roster, choice: &Choice) -> Vec<Present> {
    let only_user = only_user(choice);
    let summary = |unit: UnitId| {
        let (mut users, mut programs) = (BTreeMap::new(), BTreeMap::new());
        let (mut beyond_us, mut moved, mut staying) = (0, 0, BTreeMap::new());
        for member in roster.members_of(unit) {
            match member.stays {
                Some(why) => *staying.entry(why).or_insert(0) += 1,
                None => moved += 1,
            }
            *users.entry(member.uid).or_insert(0) += 1;
            *programs.entry(member.comm.clone()).or_insert(0) += 1;
            beyond_us += usize::from(only_user.is_some_and(|uid| uid != member.uid));
        }
        let name = |uid: u32| roster.names().user_name(uid).unwrap_or_else(|| uid.to_string());
        let users = users.into_iter().map(|(uid, count)| (name(uid), count)).collect();
        // Processes are moved only if units have control groups. If systemd manages these groups, the
        // processes are moved into systemd scopes.
        let moved = (choice.cgroup_base().is_some() && !unit.is_common()).then_some(moved);
        let (moved, scoped) = if roster.is_in_place() { (None, moved) } else { (moved, None) };
        let (programs, staying) = (programs.into_iter().collect(), staying.into_iter().collect());
        let groups_of_unit = roster
            .foreign_groups()
            .iter()
            .filter(|(_, holds)| **holds == unit)
            .map(|(group, _)| group.clone());
        let managers_bounds =
            |group: &str| choice.cgroup_base().map(|base| bounds::of(&base.mount, group)).unwrap_or_default();
        let places = groups_of_unit.map(|group| (group.clone(), managers_bounds(&group))).collect();
        Present { unit, users, programs, beyond_us, moved, scoped, staying, places }
    };
    contract.listed().into_iter().chain([UnitId::SHARED]).map(summary).collect()
}

/// This user, if only this user's processes can be held; `None` if the processes of all users can be held.
fn only_user(choice: &Choice) -> Option<u32> {
    let uid = rustix::process::geteuid();
    let can_hold_all = match choice {
        Choice::User => capability::holds_other_users(Path::new("/")),
        Choice::Kernel(base) | Choice::Cgroup(base) => uid.is_root() || !base.delegated,
    };
    (!can_hold_all).then(|| uid.as_raw())
}

/// The disks for which io.cost would be switched on.
fn io_cost(choice: &Choice) -> Vec<String> {
    match choice {
        Choice::Kernel(base) | Choice::Cgroup(base) if base.controllers.contains("io") => {
            io_cost::would_be_on(&base.mount)
        }
        _ => Vec::new(),
    }
}
