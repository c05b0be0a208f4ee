//! A picture for tests: a tree, loans, a broken verdict, call-backs, trades, gangs and hostile names.

use std::collections::BTreeMap;
use std::time::Duration;

use commonhold_contract::Resource;
use commonhold_ledger::{
    CpuLoan, Exchange, Finding, FindingReason, Gang, GangState, Job, Known, Lent, MemoryTotals, Verdict,
    Wait, WaitCause,
};
use commonhold_policy::plan::SharedRate;
use commonhold_policy::rights::Offer;
use commonhold_protocol::monitor::{CallBackView, Gauge, MachineView, MonitorReply, UnitTotals, UnitView};
use commonhold_protocol::replies::PaceReply;

use crate::app::App;
use crate::processes::{Listing, Process};

const GIB: u64 = 1 << 30;
const MB: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

fn cpu(entitled: u64, using: u64, lent: u64, borrowed: u64) -> Gauge {
    let milli = |n| n * 1_000;
    Gauge {
        whole: milli(8_000),
        entitled: milli(entitled),
        using: milli(using),
        lent: milli(lent),
        borrowed: milli(borrowed),
    }
}

fn memory(entitled_mib: u64, using_mib: u64, lent_mib: u64, borrowed_mib: u64) -> Gauge {
    let [entitled, using, lent, borrowed] =
        [entitled_mib, using_mib, lent_mib, borrowed_mib].map(|n| n << 20);
    Gauge { whole: 28 * GIB, entitled, using, lent, borrowed }
}

fn finding(resource: Resource, verdict: Verdict, reason: FindingReason, figures: [u64; 3]) -> Finding {
    let [entitled, wanted, had] = figures;
    Finding { resource, verdict, reason, entitled, wanted, had }
}

fn unit(path: &str, processes: u32, cpu: Gauge, memory: Gauge, disk_mb: [u64; 2]) -> UnitView {
    let [entitled, using] = disk_mb.map(|n| n * MB);
    UnitView {
        unit: path.to_owned(),
        processes,
        cpu,
        memory: Some(memory),
        disk: Some(Gauge {
            whole: 500 * MB,
            entitled,
            using,
            lent: 0,
            borrowed: using.saturating_sub(entitled),
        }),
        findings: [Resource::Cpu, Resource::Memory, Resource::Disk]
            .map(|resource| finding(resource, Verdict::Kept, FindingReason::HadWanted, [0; 3]))
            .into(),
        ..UnitView::default()
    }
}

fn wait(resource: Resource, cause: WaitCause, ns: u64) -> Wait {
    Wait { resource, cause, ns, beyond_ns: ns / 4, inferred_ns: 0 }
}

fn calls(count: u64, p99_ms: u64, promised_ms: u64) -> CallBackView {
    CallBackView {
        count,
        promised_ns: Some(promised_ms * MB),
        p99_ns: Some(p99_ms * MB),
        max_ns: p99_ms * MB * 2,
        classes: Vec::new(),
    }
}

/// The units; `s` seconds after the accounts were opened.
fn units(s: u64) -> Vec<UnitView> {
    let students_had = WaitCause::Unit { unit: "students".to_owned() };
    let mut physics = unit("physics", 3, cpu(720, 130, 0, 0), memory(8_192, 6_400, 1_024, 0), [200, 12]);
    physics.totals = UnitTotals {
        cpu_waited_ns: s * SECOND * 164 / 100,
        memory_waited_ns: s * SECOND / 50,
        disk_waited_ns: s * SECOND / 8,
        disk_read_bytes: s * 8 * MB,
        disk_written_bytes: s * 4 * MB,
        ..UnitTotals::default()
    };
    physics.waits = vec![
        wait(Resource::Cpu, students_had.clone(), s * SECOND * 140 / 100),
        wait(Resource::Cpu, WaitCause::Own, s * SECOND * 20 / 100),
        wait(Resource::Cpu, WaitCause::Limit, 41 * SECOND),
        wait(Resource::Disk, WaitCause::Unit { unit: "backup".to_owned() }, s * SECOND / 8),
    ];
    physics.call_backs =
        BTreeMap::from([(Resource::Cpu, calls(412, 596, 10)), (Resource::Memory, calls(3, 80, 500))]);
    physics.findings[0] = finding(
        Resource::Cpu,
        Verdict::Broken,
        FindingReason::Short { by: students_had, waited_ns: 9 * SECOND },
        [720_000, 2_000_000, 130_000],
    );
    let batch = unit("physics/night-batch", 1, cpu(240, 0, 240, 0), memory(2_048, 512, 0, 0), [0, 0]);
    let mut solver = unit("physics/solver", 2, cpu(480, 130, 0, 0), memory(6_144, 5_888, 0, 0), [200, 12]);
    solver.gangs = "1 gang runs, 1 waits".to_owned();
    let mut students =
        unit("students", 0, cpu(4_000, 5_180, 0, 1_180), memory(12_288, 13_312, 0, 1_024), [200, 0]);
    students.call_backs = BTreeMap::from([(Resource::Cpu, calls(9, 8, 10))]);
    students.findings[1] = finding(
        Resource::Memory,
        Verdict::CannotTell,
        FindingReason::NotHeld,
        [12 * GIB, 13 * GIB, 13 * GIB],
    );
    let ana = unit("students/ana", 41, cpu(2_000, 3_180, 0, 1_180), memory(6_144, 9_216, 0, 1_024), [100, 0]);
    let bo = unit("students/bo", 7, cpu(2_000, 2_000, 0, 0), memory(6_144, 4_096, 0, 0), [100, 0]);
    let backup = unit("backup", 1, cpu(800, 350, 450, 0), memory(1_024, 96, 0, 0), [100, 460]);
    let foul = unit(
        "a\u{1b}[31m\u{202e}very long name that does not fit",
        1,
        cpu(2_480, 20, 2_460, 0),
        memory(6_656, 10, 0, 0),
        [0, 0],
    );
    let wide = unit("物理学部の長い名前", 0, cpu(0, 0, 0, 0), memory(0, 0, 0, 0), [0, 0]);
    vec![physics, batch, solver, students, ana, bo, backup, foul, wide]
}

/// A whole picture; `s` seconds after the accounts were opened.
pub(crate) fn picture(s: u64) -> MonitorReply {
    let lent = |from: &str, to: &str, resource, tickets| Lent {
        from: from.to_owned(),
        to: to.to_owned(),
        what: Offer::tickets(resource, tickets),
        of: None,
    };
    let exchange = Exchange {
        number: 3,
        lent: vec![
            lent("physics", "students", Resource::Disk, 30),
            lent("students", "physics", Resource::Cpu, 20),
        ],
        began_ns: 5 * SECOND,
        until_ns: None,
        ended_ns: None,
        why: None,
        trial: None,
    };
    let gang = Gang {
        state: GangState::Runs,
        cpus: 4,
        rate: Some(SharedRate::BytesPerS(8_800 * MB)),
        known: Known::Told,
        ..Gang::default()
    };
    let job = Job {
        job: 1,
        name: "solve (4711)".to_owned(),
        unit: "physics/solver".to_owned(),
        threads: 4,
        gang: Some(gang),
        ..Job::default()
    };
    let loan = |lender: &str, borrower: &str, micro_cpus| CpuLoan {
        lender: lender.to_owned(),
        borrower: borrower.to_owned(),
        micro_cpus,
    };
    let machine = MachineView {
        contract: "/etc/commonhold/contract.toml".to_owned(),
        scheme: "isolate".to_owned(),
        backend: "kernel".to_owned(),
        cpus: 8,
        used_ns: s * SECOND * 568 / 100,
        common_ns: s * SECOND * 40 / 100,
        idle_ns: s * SECOND * 192 / 100,
        memory: Some(MemoryTotals { total: 31 * GIB, kernel: GIB, shared: 2 * GIB, divided: 28 * GIB }),
        call_back_promised_ns: 10 * MB,
        daemon: PaceReply { cpu_ns: s * SECOND * 3 / 1_000, ..PaceReply::default() },
        problems: vec![
            "the file /sys/fs/cgroup/x\u{1b}[2J/cpu.max was changed by another program".to_owned(),
            "verdict: physics cpu is broken: shown as a finding".to_owned(),
        ],
        exchanges: vec![exchange],
        jobs: vec![job],
        loans: vec![
            loan("a\u{1b}[31m\u{202e}very long name that does not fit", "students/ana", 490_000),
            loan("backup", "students/ana", 450_000),
            loan("physics/night-batch", "students/ana", 240_000),
        ],
        ..MachineView::default()
    };
    let units = units(s);
    MonitorReply {
        whole: true,
        at_ns: s * SECOND,
        wall_ms: 1_700_000_000_000 + s * 1_000,
        machine: Some(machine),
        order: Some(units.iter().map(|unit| unit.unit.clone()).collect()),
        units,
        ..MonitorReply::default()
    }
}

/// An app that was given ten pictures, one a second.
pub(crate) fn app() -> App {
    let mut app = App::new(None);
    for s in 100..110 {
        app.take_picture(&picture(s), Duration::from_secs(s));
    }
    app
}

/// Processes of `physics`.
pub(crate) fn listing() -> Listing {
    let process = |pid, command: &str, cpu| Process {
        pid,
        user: "ana".to_owned(),
        command: command.to_owned(),
        cpu,
        resident: 300 << 20,
    };
    Listing {
        processes: vec![
            process(4_711, "/usr/bin/python3 train.py --epochs 30 --data /srv/data/set", Some(120_000)),
            process(4_712, "evil\u{1b}]0;title\u{7} name", Some(10_000)),
        ],
        all: 3,
        why: None,
    }
}
