//! `run --dry-run`: the plan for this moment, with reasons; nothing is touched.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use commonhold_live::names::SystemNames;
use commonhold_live::observe::capability::{self, CgroupPlace};
use commonhold_live::observe::topology;
use commonhold_live::roster::{Roster, Scan};
use commonhold_live::{clock, kernel, user};
use commonhold_machine::capability::State as Found;
use commonhold_policy::disk::DiskMeans;
use commonhold_policy::memory::MemoryMeans;
use commonhold_policy::{Input, Means, Snapshot, State, step};
use commonhold_report::plan;

use super::holdings;
use super::start::{self, Choice};
use super::users::expand;
use crate::cli::Run;
use crate::exit::{Exit, Failure};
use crate::output;

/// Long enough to see who runs and who only exists.
const LOOK: Duration = Duration::from_millis(200);

pub(super) fn main(args: &Run) -> Result<Exit, Failure> {
    let machine = topology::read(Path::new("/"))?;
    let (loaded, _) = start::load_with_scheme(args, &machine, &SystemNames::new())?;
    output::complain_of(&loaded.warnings);
    let (choice, why) = start::choose(args.backend, &loaded.contract, &machine)?;
    let mut contract = loaded.contract;
    let mut roster = Roster::new(Path::new("/proc"), &[])?;
    let begun = clock::now();
    // Every look may find users that want a sub-unit; with that, the next one places them.
    loop {
        let seen = roster.refresh(&contract, begun, Scan::Full)?;
        if !expand(&mut contract, &seen.users) {
            break;
        }
    }
    roster.account(begun, &[])?;
    sleep(LOOK);
    let now = clock::now();
    roster.refresh(&contract, now, Scan::Quick)?;
    roster.account(now, &[])?;
    let snapshot = Snapshot { at: now, units: roster.unit_facts(), ..Snapshot::default() };
    let means = means(&choice);
    let input = Input { contract: &contract, machine: &machine, means, snapshot: &snapshot };
    let (_, plan) = step(State::default(), now, input);
    let holdings = holdings::of(&contract, choice.name(), means, &start::by_backend(choice.name(), &why));
    if args.json {
        output::print(&plan::json(&contract, &plan, &holdings))?;
    } else {
        output::say(&format!("the {} backend would hold this ({why}):\n", choice.name()));
        output::print(&plan::text(&contract, &plan, output::style()))?;
        output::say("\nThis plan is about CPUs; of each resource, `run` would say:");
        for holding in &holdings {
            output::say(&holding.line());
        }
    }
    Ok(Exit::Ok)
}

/// What a backend could enforce, without taking possession of anything.
fn means(choice: &Choice) -> Means {
    match choice {
        Choice::Kernel(place) => Means { disk: disk(place), memory: place.memory(), ..kernel::MEANS },
        Choice::Cgroup(place) => {
            let has = |controller: &str| place.controllers.contains(controller);
            Means {
                cpu_sets: has("cpuset"),
                weights: has("cpu"),
                caps: has("cpu"),
                gates: true,
                switches: false,
                disk: disk(place),
                memory: place.memory(),
            }
        }
        Choice::User => {
            let pages_out = capability::paging_out(Path::new("/")).state != Found::No;
            let memory = if pages_out { user::MEMORY_MEANS } else { MemoryMeans::NONE };
            Means { memory, ..user::MEANS }
        }
    }
}

/// What it could order for disks.
fn disk(place: &CgroupPlace) -> DiskMeans {
    let io = place.controllers.contains("io");
    DiskMeans { caps: io, weights: io, limits_only: false }
}
