//! The cost of a scan: microseconds of CPU time with 50 and 1,000 sleeping members.
//!
//! `cost` prints, for each number of members and each kind of scan, the mean CPU time of the looking process. Run it with
//! `cargo run --release -p commonhold-live --example cost`.
#![allow(clippy::disallowed_methods)]

use std::path::Path;
use std::process::{Child, Command};

use commonhold_contract::{Contract, Member, MemberKind, UnitId};
use commonhold_live::Backend;
use commonhold_live::apply::user::UserBackend;
use commonhold_live::host::{affinity, clock};
use commonhold_live::observe::roster::Roster;
use commonhold_live::undo::journal::Journal;
use commonhold_policy::{MS, Time};

const LOOKS: u32 = 1_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("members  scan                                      us per scan   % of a CPU");
    for members in [50, 1_000] {
        let sleepers = Sleepers::start(members)?;
        measure(&sleepers.0)?;
    }
    Ok(())
}

fn measure(members: &[Child]) -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("commonhold-cost-{}", std::process::id()));
    let (journal, _) = Journal::create(&directory)?;
    let (contract, units) = contract(members);
    let mut backend =
        UserBackend::new(contract, affinity::get(0)?, Roster::new(Path::new("/proc"), &[])?, journal);
    let mut now = clock::now();
    backend.settle(now)?;
    backend.observe(now, &[])?;
    for (name, every, watch) in [
        ("every 250 ms, at rest", 250 * MS, &[][..]),
        ("every 100 ms, at rest", 100 * MS, &[]),
        ("every 10 ms, one unit of four watched", 10 * MS, &units[..1]),
        ("every 10 ms, all units watched", 10 * MS, &units[..]),
    ] {
        let begin = cpu_ns();
        for _ in 0..LOOKS {
            // Scans follow each other at once, with the clock advanced between them.
            now += every;
            backend.settle(now)?;
            backend.observe(now, watch)?;
        }
        let each = (cpu_ns() - begin) / u64::from(LOOKS);
        let permyriad = each * 10_000 / every;
        let (us, tenths) = (each / 1_000, each / 100 % 10);
        let (percent, hundredths) = (permyriad / 100, permyriad % 100);
        println!("{:7}  {name:40} {us:8}.{tenths} {percent:9}.{hundredths:02}", members.len());
    }
    drop(backend);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}

/// Four units, with the members dealt out among them.
fn contract(members: &[Child]) -> (Contract, Vec<UnitId>) {
    let mut contract = Contract::default();
    let units: Vec<UnitId> = (0..4).map(|n| contract.add(None, &format!("unit{n}"))).collect();
    for (child, unit) in members.iter().zip(units.iter().cycle()) {
        contract.units[unit.index()].members.push(Member { kind: MemberKind::Pid(child.id()), span: 0..0 });
    }
    (contract, units)
}

struct Sleepers(Vec<Child>);

impl Sleepers {
    fn start(count: usize) -> std::io::Result<Sleepers> {
        let mut sleepers = Sleepers(Vec::new());
        for _ in 0..count {
            sleepers.0.push(Command::new("sleep").arg("1000").spawn()?);
        }
        Ok(sleepers)
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that ended by itself is no sleeper any more either.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn cpu_ns() -> Time {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
