//! CPU time of processes that live and end between two scans is counted for the unit of the process that
//! waits for them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use commonhold_contract::{Contract, Member, MemberKind, UnitId};
use commonhold_live::host::clock::now;
use commonhold_live::observe::roster::{Roster, Scan};

/// Kills the process when dropped.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CPU time of a process and of its waited-for children, in nanoseconds: fields 14 to 17 of its stat.
fn cpu_ns(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    fields[11..15].iter().map(|field| field.parse::<u64>().unwrap() * 10_000_000).sum()
}

#[test]
fn short_lived_processes_count() {
    let mut contract = Contract::default();
    let unit = contract.add(None, "u");
    let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    // A child that computes in a child of its own, as a compiler driver does: both end at once.
    let script = format!(
        "n=0; while [ $n -lt 15 ]; do sh -c 'sh -c \"{}; true\"; true'; n=$((n+1)); done; exec sleep 60",
        busy.replace('$', "\\$")
    );
    let mut roster = Roster::new(Path::new("/proc"), &[]).unwrap();
    roster.refresh(&contract, now(), Scan::Full).unwrap();
    let child = Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).spawn().unwrap();
    let child = KillOnDrop(child);
    let pid = child.0.id();
    contract.units[unit.index()].members.push(Member { kind: MemberKind::Pid(pid), span: 0..0 });
    roster.refresh(&contract, now(), Scan::Full).unwrap();
    let begun = Instant::now();
    let comm = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    let mut used = [0; 2];
    while comm(pid).trim() != "sleep" || used[0] == used[1] {
        assert!(begun.elapsed() < Duration::from_secs(30), "the script does not end");
        sleep(Duration::from_millis(30));
        used[0] = look(&mut roster, &contract, unit);
        if comm(pid).trim() == "sleep" {
            break;
        }
    }
    // Two scans after the last children's ends: to see that they are gone, and their time in the parent.
    sleep(Duration::from_millis(200));
    look(&mut roster, &contract, unit);
    sleep(Duration::from_millis(200));
    used[1] = look(&mut roster, &contract, unit);
    let (counted, whole) = (used[1], cpu_ns(pid));
    // The kernel reports children's time in hundredths of a second, rounded down. One of the fifteen that
    // ends while a scan reads the others may be missed, or counted both by itself and by its parent.
    assert!(
        counted + 20_000_000 >= whole * 9 / 10 && counted <= whole * 11 / 10 + 40_000_000,
        "{counted} of {whole} ns"
    );
}

fn look(roster: &mut Roster, contract: &Contract, unit: UnitId) -> u64 {
    let now = now();
    roster.refresh(contract, now, Scan::Quick).unwrap();
    roster.account(now, &[unit]).unwrap();
    roster.unit_facts()[unit.index()].used_ns
}
