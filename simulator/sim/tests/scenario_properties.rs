//! Properties that hold for every text of a machine or a workload, valid or not.
#![allow(clippy::unwrap_used)]

use commonhold_contract::{Contract, Diagnostic, Level, parse, render};
use commonhold_sim::scenario::{
    Hardware, LOOPS_MAX, Op, Parsed, Workload, parse_machine, parse_workload, reference,
};
use proptest::prelude::*;

/// A machine that uses every key, for mutations to start from.
const MACHINE: &str = r#"version = 1
title = "größe"
source = "seed 000"
shape = "nodes:2 cpus:4 memory:22MiB"
[kernel]
tick = "10ms"
slice = "30ms"
switch = "10us"
ipi = "5us"
fault = "20us"
request = "100us"
fork = "1ms"
call_back = "tick"
frame = "4KiB"
memory = "6MiB"
cluster = 4
memory_period = "100ms"
read_ahead = 3
request_sectors = 78
dirty_limit = "10%"
dirty_age = "30s"
[cache]
bytes = "1MiB"
line = "128B"
miss = "500ns"
[latency]
local = "100ns"
distances = [[10, 17], [17, 10]]
[bus]
transactions = 29500
[interrupts]
part = "20%"
cpu = 1
[contention]
lock = "11.7%"
stall = "1.77%"
[disk.d0]
model = "hp97560"
scale = 2
order = "position"
threshold = 64
half_life = "500ms"
[disk.d1]
model = "fixed"
access = "3ms"
rate = "5MiB/s"
size = "1GiB"
[disk.d2]
channels = 4
read = "50us"
write = "10us"
"#;

/// A workload that uses every key.
const WORKLOAD: &str = r#"version = 1
title = "größe"
horizon = "10min"
[file.source]
size = "4MiB"
disk = "d0"
shared = true
fragment = "8KiB"
buffer = "1MiB"
[file.objects]
size = "4MiB"
[lock.inode]
readers = true
inherit = true
[program.compile]
memory = "1MiB"
reuse = "300ms"
hot = "256KiB"
stalled = "30%"
do = [
  { read = "source", bytes = "16KiB", random = true, spread = "50%" },
  { cpu = "400ms", spread = "20%", kernel = "30%", bus = 0.5 },
  { write = "objects", bytes = "12KiB", sync = true },
  { metadata = "source" },
  { sleep = "10ms", spread = "exponential" },
  { run = "cc1", times = 24, at_once = 2 },
  { lock = "inode", read = true, do = [{ cpu = "1ms" }] },
  { repeat = 10, do = [{ repeat = 2, do = [{ cpu = "1us" }] }] },
]
[program.cc1]
do = [{ cpu = "1ms" }, { barrier = 2, spin = true }]
[program.daemon]
do = [{ repeat = "forever", do = [{ sleep = "1s" }] }]
[job.a]
unit = "physics"
program = "compile"
start = "1s"
count = 2
every = "1s"
disk = "d1"
[job.b]
unit = "shared"
program = "daemon"
background = true
"#;

fn contract() -> Contract {
    parse("version = 1\n[unit.physics]").contract.unwrap()
}

fn hardware() -> Hardware {
    parse_machine(MACHINE).value.unwrap()
}

/// Asserts the properties of any text's diagnostics.
fn check_diagnostics(text: &str, valid: bool, diagnostics: &[Diagnostic]) {
    let errors = diagnostics.iter().any(|diagnostic| diagnostic.level == Level::Error);
    assert_eq!(valid, !errors, "a value if and only if there is no error");
    for diagnostic in diagnostics {
        let related = diagnostic.related.iter().map(|(span, _)| span);
        for span in related.chain([&diagnostic.span]) {
            assert!(text.get(span.clone()).is_some(), "{span:?} is no slice of {text:?}: {diagnostic:?}");
        }
        assert!(!diagnostic.message.is_empty() && diagnostic.message.len() < 10_000);
    }
    assert!(diagnostics.is_sorted_by_key(|diagnostic| diagnostic.span.start));
    let shown = render(diagnostics, text, "a.toml", false);
    assert_eq!(shown.is_empty(), diagnostics.is_empty());
}

/// Asserts the properties of a machine on which the simulator relies.
fn check_machine(text: &str) -> Parsed<Hardware> {
    let parsed = parse_machine(text);
    check_diagnostics(text, parsed.value.is_some(), &parsed.diagnostics);
    if let Some(hardware) = &parsed.value {
        let kernel = &hardware.kernel;
        assert!(!hardware.machine.cpus.is_empty());
        assert!(kernel.frame_bytes.is_power_of_two() && kernel.slice_ns > kernel.switch_ns);
        assert!(kernel.memory_bytes + kernel.frame_bytes <= hardware.machine.memory_bytes());
        if let Some(latency) = &hardware.latency {
            let nodes = hardware.machine.nodes.len();
            assert!(latency.local_ns > 0 && latency.between_ns.len() == nodes);
            assert!(latency.between_ns.iter().all(|row| row.len() == nodes));
            assert!(latency.between_ns.iter().flatten().all(|ns| *ns >= latency.local_ns));
        }
        let names = |disk: &commonhold_machine::Disk| disk.name.clone();
        assert!(hardware.machine.disks.iter().map(names).eq(hardware.disks.iter().map(|d| d.name.clone())));
    }
    parsed
}

/// Asserts the properties of a workload on which the simulator relies.
fn check_workload(text: &str, contract: &Contract, hardware: &Hardware) -> Parsed<Workload> {
    let parsed = parse_workload(text, contract, hardware);
    check_diagnostics(text, parsed.value.is_some(), &parsed.diagnostics);
    if let Some(workload) = &parsed.value {
        for program in &workload.programs {
            check_ops(&program.ops, workload);
        }
        for job in &workload.jobs {
            assert!((job.program as usize) < workload.programs.len() && job.count > 0);
            assert!(usize::from(job.disk) < hardware.disks.len().max(1));
            assert!(job.unit.index() < contract.units.len());
            let last = job.start_ns + job.every_ns * u64::from(job.count - 1);
            assert!(last < workload.horizon_ns);
        }
    }
    parsed
}

/// Asserts that indices are in range, that loops jump back and nest, and that locks are released in reverse
/// order.
fn check_ops(ops: &[Op], workload: &Workload) {
    let mut held = Vec::new();
    assert!(!ops.is_empty());
    for (index, op) in ops.iter().enumerate() {
        match *op {
            Op::Read { file, bytes, .. } | Op::Write { file, bytes, .. } => {
                assert!(usize::from(file) < workload.files.len() && bytes.mean > 0);
            }
            Op::Metadata { file, .. } => assert!(usize::from(file) < workload.files.len()),
            Op::Run { program, times, at_once, .. } => {
                assert!((program as usize) < workload.programs.len());
                assert!(at_once > 0 && at_once <= times);
            }
            Op::Acquire { lock, .. } => {
                assert!(usize::from(lock) < workload.locks.len() && !held.contains(&lock));
                held.push(lock);
            }
            Op::Release { lock } | Op::Wait { lock: Some(lock), .. } => {
                let index = held.iter().rposition(|it| *it == lock).expect("it is held");
                held.remove(index);
            }
            Op::Wait { event, lock: None } | Op::Signal { event, .. } => {
                assert!(usize::from(event) < workload.events.len());
            }
            Op::Timer { timer, period_ns, .. } => {
                assert!(usize::from(timer) < workload.timers.len() && period_ns > 0);
            }
            Op::Begin { counter } => assert!(usize::from(counter) < LOOPS_MAX),
            Op::Over { .. } => assert!(matches!(ops.get(index + 1), Some(Op::Again { .. }))),
            Op::Again { to, counter, .. } => {
                assert!((to as usize) < index && usize::from(counter) < LOOPS_MAX);
                let inner = |op: &Op| matches!(op, Op::Again { counter: c, .. } if *c <= counter);
                assert!(!ops[to as usize..index].iter().any(inner), "a loop inside has a counter of its own");
            }
            Op::Cpu { work, kernel, .. } => assert!(work.mean > 0 && kernel <= 1_000_000),
            Op::Sleep { span } | Op::Busy { span } => assert!(span.mean > 0),
            Op::Barrier { parties, .. } => assert!(parties > 0),
            Op::Piece { pieces, to, past } => {
                assert!(pieces > 0 && to < past && (to as usize == index + 1 || past as usize == index + 1));
            }
        }
    }
    assert!(held.is_empty());
}

/// Pieces of text from which both languages, and mistakes in them, are made.
fn pieces() -> impl Strategy<Value = String> {
    let words = "version = 1\n|horizon = |shape = \"cpus:2\"\n|[kernel]\n|[cache]\n|[disk.d0]\n|[file.a]\n|[lock.a]\n|\
                 [program.a]\n|[job.a]\n|do = [|{ |} |] |, |\n|= |cpu |read |write |metadata |sleep |run |barrier |\
                 lock |repeat |pieces |\
                 wait |signal |timer |busy |for |period |[event.a]\n|[timer.a]\n|\
                 do |bytes |spread |times |at_once |unit |program |size |memory |tick |\"a\" |\"1ms\" |\
                 \"4KiB\" |\"forever\" |\"physics\" |\"20%\" |\"exponential\" |true |0 |1 |4 |0.5 |-1 |\"|ä|\\u0041|[|#";
    let words: Vec<&str> = words.split('|').collect();
    prop::collection::vec(prop::sample::select(words), 0..60).prop_map(|words| words.concat())
}

/// A text with some of its characters removed, doubled or replaced.
fn mutated(whole: &'static str) -> impl Strategy<Value = String> {
    let change = (0..whole.chars().count(), 0..3, any::<char>());
    prop::collection::vec(change, 1..4).prop_map(|changes| {
        let mut text: Vec<char> = whole.chars().collect();
        for (at, what, with) in changes {
            let at = at.min(text.len() - 1);
            match what {
                0 => drop(text.remove(at)),
                1 => text.insert(at, with),
                _ => text.insert(at, text[at]),
            }
        }
        text.into_iter().collect()
    })
}

/// A text in which some lines have the values of others.
fn shuffled(whole: &'static str) -> impl Strategy<Value = String> {
    let lines: Vec<(&str, &str)> =
        whole.lines().map(|line| line.split_once(" = ").unwrap_or((line, ""))).collect();
    let places = (0..lines.len(), 0..lines.len());
    prop::collection::vec(places, 1..6).prop_map(move |swaps| {
        let mut mixed = lines.clone();
        for (to, from) in swaps {
            mixed[to].1 = lines[from].1;
        }
        let line =
            |(key, value): &(&str, &str)| [*key, *value].join(if value.is_empty() { "" } else { " = " });
        mixed.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_answered(text in "\\PC*") {
        check_machine(&text);
        check_workload(&text, &contract(), &hardware());
    }

    #[test]
    fn anything_made_of_the_languages_pieces_is_answered(text in pieces()) {
        check_machine(&text);
        check_workload(&text, &contract(), &hardware());
    }

    #[test]
    fn any_slip_of_the_hand_is_answered(machine in mutated(MACHINE), workload in mutated(WORKLOAD)) {
        check_machine(&machine);
        check_workload(&workload, &contract(), &hardware());
    }

    #[test]
    fn values_in_each_others_places_are_answered(machine in shuffled(MACHINE), workload in shuffled(WORKLOAD)) {
        check_machine(&machine);
        check_workload(&workload, &contract(), &hardware());
    }

    #[test]
    fn a_text_cut_off_anywhere_is_answered(at in 0..MACHINE.len() + WORKLOAD.len()) {
        if let Some(text) = MACHINE.get(..at) {
            check_machine(text);
        }
        if let Some(text) = WORKLOAD.get(..at.saturating_sub(MACHINE.len())) {
            check_workload(text, &contract(), &hardware());
        }
    }
}

#[test]
fn the_texts_that_mutations_start_from_are_accepted_without_a_word() {
    let machine = check_machine(MACHINE);
    assert!(machine.diagnostics.is_empty(), "{:#?}", machine.diagnostics);
    let workload = check_workload(WORKLOAD, &contract(), &hardware());
    assert!(workload.diagnostics.is_empty(), "{:#?}", workload.diagnostics);
    assert_eq!((machine.about.title.as_str(), workload.about.title.as_str()), ("größe", "größe"));
}

#[test]
fn a_hostile_text_does_not_exhaust_the_stack() {
    let deep = |levels: usize| {
        let (open, close) = ("{ lock = \"a\", do = [".repeat(levels), "] }".repeat(levels));
        format!("version = 1\n[lock.a]\n[program.a]\ndo = [{open}{close}]")
    };
    let headers: Vec<String> =
        (1..400).map(|depth| format!("[[program.a{}]]\nrepeat = 1\n", ".do".repeat(depth))).collect();
    let program = |i: u32| format!("[program.p{i}]\ndo = [{{ run = \"p{}\" }}]\n", (i + 1) % 1000);
    let circle: Vec<String> = (0..1000).map(program).collect();
    for text in [deep(30), deep(100), deep(50_000), headers.concat(), circle.concat()] {
        assert!(check_workload(&text, &contract(), &hardware()).value.is_none());
    }
}

#[test]
fn the_reference_fits_a_terminal() {
    assert!(reference().lines().all(|line| line.chars().count() <= 110));
}
