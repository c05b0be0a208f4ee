//! Measures the cost of a scan with 50 and with 1,000 sleeping members.
//!
//! `cost` prints the mean CPU time of a scan in microseconds, for each number of members and each kind of
//! scan. Run it with `cargo run --release -p commonhold-live --example cost`.
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

/// The number of scans of each kind.
const SCANS: u32 = 1_000;

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
    for (name, interval_ns, watch) in [
        ("every 250 ms, at rest", 250 * MS, &[][..]),
        ("every 100 ms, at rest", 100 * MS, &[]),
        ("every 10 ms, one unit of four watched", 10 * MS, &units[..1]),
        ("every 10 ms, all units watched", 10 * MS, &units[..]),
    ] {
        let begin = cpu_ns();
        for _ in 0..SCANS {
            // The scans follow each other at once; only the clock that they are given advances.
            now += interval_ns;
            backend.settle(now)?;
            backend.observe(now, watch)?;
        }
        let scan_ns = (cpu_ns() - begin) / u64::from(SCANS);
        let permyriad = scan_ns * 10_000 / interval_ns;
        let (us, tenths) = (scan_ns / 1_000, scan_ns / 100 % 10);
        let (percent, hundredths) = (permyriad / 100, permyriad % 100);
        println!("{:7}  {name:40} {us:8}.{tenths} {percent:9}.{hundredths:02}", members.len());
    }
    drop(backend);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}

/// A contract with four units, to which the members are assigned round robin.
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
            // This fails if the process has ended by itself, which is no problem.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The CPU time that this process has used.
fn cpu_ns() -> Time {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
