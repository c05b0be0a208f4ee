//! Feeds arbitrary bytes to the parsers of machines and workloads: they must return, and their results must
//! be consistent.
#![no_main]

use std::sync::LazyLock;

use commonhold_contract::{Contract, Diagnostic, Level, parse, render};
use commonhold_sim::scenario::{Hardware, Op, Workload, parse_machine, parse_workload};
use libfuzzer_sys::fuzz_target;

/// The machine for which workloads are parsed.
static SURROUNDINGS: LazyLock<(Contract, Hardware)> = LazyLock::new(|| {
    let contract = parse("version = 1\n[unit.physics]\n[unit.physics.unit.batch]\n[unit.students]").contract;
    let machine = "version = 1\nshape = \"cpus:4 memory:64MiB\"\n[bus]\ntransactions = 29500\n\
                   [disk.d0]\nsize = \"1GiB\"\n[disk.d1]\nsize = \"1GiB\"";
    let hardware = parse_machine(machine).value;
    (contract.expect("the contract is valid"), hardware.expect("the machine is valid"))
});

fuzz_target!(|text: &str| {
    let machine = parse_machine(text);
    check_diagnostics(text, machine.value.is_some(), &machine.diagnostics);
    if let Some(hardware) = &machine.value {
        check_machine(hardware);
    }
    let (contract, hardware) = &*SURROUNDINGS;
    let workload = parse_workload(text, contract, hardware);
    check_diagnostics(text, workload.value.is_some(), &workload.diagnostics);
    if let Some(workload) = &workload.value {
        check_workload(workload);
    }
});

fn check_diagnostics(text: &str, valid: bool, diagnostics: &[Diagnostic]) {
    let errors = diagnostics.iter().any(|diagnostic| diagnostic.level == Level::Error);
    assert_eq!(valid, !errors, "a value if and only if there is no error");
    for diagnostic in diagnostics {
        let related = diagnostic.related.iter().map(|(span, _)| span);
        for span in related.chain([&diagnostic.span]) {
            assert!(text.get(span.clone()).is_some(), "{diagnostic:?} points into the text");
        }
    }
    let shown = render(diagnostics, text, "a.toml", false);
    assert!(!shown.contains('\u{1b}'), "no escape code of the text reaches the terminal");
}

/// The simulator's assumptions about a machine.
fn check_machine(hardware: &Hardware) {
    let kernel = &hardware.kernel;
    assert!(!hardware.machine.cpus.is_empty());
    assert!(kernel.frame_bytes.is_power_of_two() && kernel.slice_ns > kernel.switch_ns);
    assert!(kernel.memory_bytes + kernel.frame_bytes <= hardware.machine.memory_bytes());
    assert_eq!(hardware.machine.disks.len(), hardware.disks.len());
    if let Some(latency) = &hardware.latency {
        let nodes = hardware.machine.nodes.len();
        assert!(latency.local_ns > 0 && latency.between_ns.len() == nodes);
        assert!(latency.between_ns.iter().all(|row| row.len() == nodes));
        assert!(latency.between_ns.iter().flatten().all(|ns| *ns >= latency.local_ns));
    }
}

/// The simulator's assumptions about a workload.
fn check_workload(workload: &Workload) {
    for job in &workload.jobs {
        assert!(usize::from(job.program) < workload.programs.len());
        assert!(job.start_ns + job.every_ns * u64::from(job.count - 1) < workload.horizon_ns);
    }
    for program in &workload.programs {
        let mut held = Vec::new();
        for (index, op) in program.ops.iter().enumerate() {
            match *op {
                Op::Acquire { lock, .. } => held.push(lock),
                Op::Release { lock } => assert_eq!(held.pop(), Some(lock)),
                Op::Again { to, .. } => assert!((to as usize) < index),
                Op::Run { times, at_once, .. } => assert!(at_once > 0 && at_once <= times),
                _ => {}
            }
        }
        assert!(held.is_empty(), "what is taken is given back");
    }
}
