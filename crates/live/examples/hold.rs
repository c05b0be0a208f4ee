//! The smallest daemon. It confines one process and the process's descendants to some CPUs, until the
//! daemon's standard input ends or the daemon is killed. In both cases, a caretaker undoes everything.
//!
//! `hold DIRECTORY PID CPUS [closed]`: journal in DIRECTORY; `closed` also stops the processes.
//!
//! `hold caretaker JOURNAL FD`: the caretaker's command line.
#![allow(clippy::disallowed_methods)]

use std::env;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use commonhold_contract::{Contract, Member, MemberKind, Scheme, UnitId};
use commonhold_live::apply::user::UserBackend;
use commonhold_live::host::{affinity, clock};
use commonhold_live::observe::roster::Roster;
use commonhold_live::undo::caretaker::{self, Caretaker, Launch};
use commonhold_live::undo::journal::Journal;
use commonhold_live::undo::undo;
use commonhold_live::{Backend, LiveError};
use commonhold_policy::plan::{CpuOrder, Orders};
use commonhold_policy::{Plan, Reason};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["caretaker", journal, fd] => {
            // SAFETY: the daemon passes this descriptor to be owned by this process alone.
            let pipe = unsafe { OwnedFd::from_raw_fd(fd.parse()?) };
            caretaker::main(Path::new(journal), pipe);
            Ok(())
        }
        [directory, pid, cpus] => hold(Path::new(directory), pid.parse()?, cpus, false),
        [directory, pid, cpus, "closed"] => hold(Path::new(directory), pid.parse()?, cpus, true),
        _ => Err("usage: hold DIRECTORY PID CPUS [closed]".into()),
    }
}

fn hold(directory: &Path, pid: u32, cpus: &str, closed: bool) -> Result<(), Box<dyn std::error::Error>> {
    let (mut journal, leftover) = Journal::create(directory)?;
    if !leftover.is_empty() {
        println!("left by another: {}", undo(&leftover, Path::new("/proc")));
        journal.clear()?;
    }
    let caretaker = Caretaker::spawn(journal.path(), &Launch::default())?;
    journal.beat_with(caretaker.beats());
    let roster = Roster::new(Path::new("/proc"), &[caretaker.pid()])?;
    let mut contract = Contract::default();
    let job = contract.add(None, "job");
    contract.units[job.index()].members.push(Member { kind: MemberKind::Pid(pid), span: 0..0 });
    let mut backend = UserBackend::new(contract, affinity::get(0)?, roster, journal);

    backend.settle(clock::now())?;
    backend.observe(clock::now(), &[])?;
    report(backend.apply(&plan(CpuOrder::Confine { unit: job, cpus: Some(cpus.parse()?) })));
    report(backend.apply(&plan(CpuOrder::Gate { unit: job, open: !closed })));
    println!("holding");
    wait(&mut backend, job)?;
    println!("{}", caretaker.finish(backend.close())?);
    Ok(())
}

/// Keeps the orders in force until standard input ends.
fn wait(backend: &mut UserBackend, job: UnitId) -> Result<(), LiveError> {
    let end = thread::spawn(|| io::stdin().read_to_end(&mut Vec::new()));
    while !end.is_finished() {
        backend.settle(clock::now())?;
        backend.observe(clock::now(), &[job])?;
        report(backend.take_problems());
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn plan(action: CpuOrder) -> Plan {
    let orders = Orders::of_cpus(Reason::Scheme { scheme: Scheme::Isolate }, [action]);
    Plan { at: clock::now(), orders, ..Plan::default() }
}

fn report(problems: Vec<LiveError>) {
    for problem in problems {
        eprintln!("hold: {problem}");
    }
}
