#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use commonhold_contract::Contract;
use commonhold_machine::Machine;
use commonhold_recording::*;
use commonhold_replay::bounds::{Bounds, Figure, compare_all};
use commonhold_replay::scenario::scenario;
use commonhold_replay::{Figures, Recorded, ReplayError, Trust};

const MS: u64 = 1_000_000;
const CONTRACT: &str = "version = 1\n[unit.light]\ntickets = 1\n[unit.heavy]\ntickets = 1\n";

fn header(method: Method) -> Header {
    Header {
        program: "0.1.0".to_owned(),
        kernel: "6.12.1".to_owned(),
        began_wall_ms: 1_780_000_000_000,
        machine: Machine::synthetic("nodes:1 cpus:2 memory:4GiB").unwrap().to_toml(),
        contract: CONTRACT.to_owned(),
        contract_file: "/etc/commonhold.toml".to_owned(),
        scheme: "isolate".to_owned(),
        backend: "kernel".to_owned(),
        method,
        sample_ns: 1_000_000_000,
    }
}

fn thread(tid: u32, unit: &str) -> Thread {
    Thread { tid, pid: tid, name: format!("t{tid}"), unit: unit.to_owned(), seen_ns: 0 }
}

fn end(at_ns: u64) -> End {
    End { at_ns, why: Why::Time, lost: 0, disordered: 0, recorder_ns: 0, without_accounts_ns: 0 }
}

fn bytes(method: Method, blocks: &[Block], end: &End) -> Vec<u8> {
    let mut writer = Writer::begin(Vec::new(), &header(method), u64::MAX).unwrap();
    for block in blocks {
        writer.write(block).unwrap();
    }
    writer.end(end).unwrap()
}

/// Thread 11 of `light` computes for 10 ms and sleeps for 30 ms on CPU 0, 25 times; 12 and 13 of `heavy`
/// compute all the time, on the CPUs that are left: for a second.
fn events() -> Vec<TimedEvent> {
    let mut events = Vec::new();
    let mut push = |at_ms: u64, event| events.push(TimedEvent { at_ns: at_ms * MS, event });
    push(0, Event::Switch { cpu: 0, from: 0, left: Left::Preempted, to: 12 });
    push(0, Event::Switch { cpu: 1, from: 0, left: Left::Preempted, to: 13 });
    for round in 0..25 {
        let at = round * 40;
        push(at, Event::Wake { cpu: 1, thread: 11, by: 13, by_interrupt: true });
        push(at, Event::Switch { cpu: 0, from: 12, left: Left::Preempted, to: 11 });
        push(at + 10, Event::Switch { cpu: 0, from: 11, left: Left::Asleep, to: 12 });
    }
    events
}

fn recording() -> Vec<u8> {
    let threads = vec![thread(11, "light"), thread(12, "heavy"), thread(13, "heavy")];
    bytes(Method::Events, &[Block::Threads(threads), Block::Events(events())], &end(1000 * MS))
}

fn replay(recorded: &Recorded, contract: &Contract) -> Figures {
    let outcome = commonhold_sim::run(&scenario(recorded, contract, None).unwrap(), 1).unwrap();
    assert_eq!(outcome.broken, 0, "{:?}", outcome.notes);
    Figures::of_run(&outcome)
}

fn close(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 0.01
}

#[test]
fn what_was_measured_is_known() {
    let recorded = Recorded::read(&recording()[..]).unwrap();
    let [heavy, light] = [1, 0].map(|index| &recorded.measured.units[1 - index]);
    assert_eq!((heavy.unit.as_str(), light.unit.as_str()), ("heavy", "light"));
    assert!(close(light.share, 0.125), "{}", light.share);
    assert!(close(light.response_ns().unwrap(), 10e6));
    // The sleep before the recording counts.
    assert_eq!((light.sleeps, light.waited_ns), (25, 0));
    // 12 is preempted for 250 ms.
    assert_eq!((heavy.used_ns, heavy.waited_ns), (1750 * MS, 250 * MS));
    assert_eq!((recorded.missing, recorded.impossible), (0, 0));
}

#[test]
fn the_recorded_contract_is_replayed_within_the_bounds() {
    let recorded = Recorded::read(&recording()[..]).unwrap();
    let replayed = replay(&recorded, &recorded.contract);
    let compared = compare_all(&Bounds::registered(), &recorded.measured, &replayed);
    for (unit, comparisons) in compared {
        for comparison in comparisons {
            let is_accepted = comparison.trust != Trust::NotTrusted;
            // The recording has no accounts, hence no call-backs.
            assert!(is_accepted || comparison.figure == Figure::CallBacks, "{unit}: {comparison:?}");
        }
    }
}

/// With one ticket of a hundred, on one CPU, `light` would have to wait.
#[test]
fn another_machine_gives_other_figures() {
    let recorded = Recorded::read(&recording()[..]).unwrap();
    let machine = Machine::synthetic("nodes:1 cpus:1 memory:4GiB").unwrap();
    let outcome =
        commonhold_sim::run(&scenario(&recorded, &recorded.contract, Some(&machine)).unwrap(), 1).unwrap();
    let figures = Figures::of_run(&outcome);
    let share = figures.unit("light").unwrap().share;
    assert!(close(share, 0.25), "{share}");
}

#[test]
fn clocks_are_replayed() {
    let usage = |at_ms: u64| {
        let busy = |tid| ThreadUsage { tid, ran_ns: 40 * MS, waited_ns: 10 * MS, turns: 10 };
        let light = ThreadUsage { tid: 11, ran_ns: 10 * MS, waited_ns: 0, turns: 1 };
        Block::Usage(Usage { at_ns: at_ms * MS, over_ns: 50 * MS, threads: vec![light, busy(12), busy(13)] })
    };
    let threads = vec![thread(11, "light"), thread(12, "heavy"), thread(13, "heavy")];
    let blocks: Vec<Block> =
        std::iter::once(Block::Threads(threads)).chain((1..=20).map(|n| usage(n * 50))).collect();
    let recorded =
        Recorded::read(&bytes(Method::Clocks { every_ns: 50 * MS }, &blocks, &end(1000 * MS))[..]).unwrap();
    let light = recorded.measured.unit("light").unwrap();
    assert_eq!((light.used_ns, light.response_ns()), (200 * MS, None));
    let replayed = replay(&recorded, &recorded.contract);
    assert!(close(replayed.unit("light").unwrap().share, 0.1), "{replayed:?}");
}

#[test]
fn a_transfer_waits_for_the_disk() {
    let mut events = Vec::new();
    let mut push = |at_ms: u64, event| events.push(TimedEvent { at_ns: at_ms * MS, event });
    for round in 0..10 {
        let at = round * 20;
        push(at, Event::Switch { cpu: 0, from: 0, left: Left::Preempted, to: 11 });
        push(
            at + 1,
            Event::Transfer {
                thread: 11,
                device: 8 << 20,
                sector: 1_000 * round,
                bytes: 1 << 20,
                write: false,
            },
        );
        push(at + 2, Event::Switch { cpu: 0, from: 11, left: Left::Blocked, to: 0 });
        push(at + 20, Event::Wake { cpu: 0, thread: 11, by: 0, by_interrupt: true });
    }
    let disk = |read: u64| DiskSample {
        name: "sda".to_owned(),
        device: 8 << 20,
        reads: (read, read << 20),
        ..DiskSample::default()
    };
    let sample = |at_ns, read| Block::Sample(Sample { at_ns, disks: vec![disk(read)], ..Sample::default() });
    let blocks = [
        Block::Threads(vec![thread(11, "light")]),
        sample(0, 0),
        Block::Events(events),
        sample(200 * MS, 10),
    ];
    let mut with_disk = header(Method::Events);
    with_disk.machine = with_disk.machine.replace(
        "disks = [",
        "disks = [\n  { name = \"sda\", bytes = 1099511627776, bytes_per_s = 100000000 },",
    );
    if !with_disk.machine.contains("sda") {
        with_disk.machine += "disks = [{ name = \"sda\", bytes = 1099511627776, bytes_per_s = 100000000 }]\n";
    }
    let mut writer = Writer::begin(Vec::new(), &with_disk, u64::MAX).unwrap();
    for block in &blocks {
        writer.write(block).unwrap();
    }
    let recorded = Recorded::read(&writer.end(&end(210 * MS)).unwrap()[..]).unwrap();
    assert_eq!(recorded.measured.unit("light").unwrap().transferred, 10 << 20);
    let replayed = replay(&recorded, &recorded.contract);
    let light = replayed.unit("light").unwrap();
    assert!(light.transferred.abs_diff(10 << 20) < 100_000, "{}", light.transferred);
    // Ten times 2 ms, and 2 ms as the task begins again.
    assert!((21 * MS..=23 * MS).contains(&light.used_ns), "{}", light.used_ns);
}

#[test]
fn what_cannot_be_replayed_is_refused_or_named() {
    let message = |bytes: &[u8]| Recorded::read(bytes).unwrap_err().to_string();
    assert!(message(b"").starts_with("this is no recording"));
    let nobody = bytes(Method::Events, &[Block::Events(events())], &end(1000 * MS));
    assert_eq!(message(&nobody), "the recording has no tasks in units: record while units have processes");
    let whole = recording();
    let cut = Recorded::read(&whole[..whole.len() - 10]).unwrap();
    assert!(cut.end.is_none() && cut.damage.is_none());
    let mut damaged = whole.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    assert!(Recorded::read(&damaged[..]).unwrap().damage.unwrap().contains("checksum"));
    let recorded = Recorded::read(&whole[..]).unwrap();
    let other = commonhold_contract::parse("version = 1\n[unit.heavy]\n").contract.unwrap();
    let error = scenario(&recorded, &other, None).unwrap_err();
    assert!(matches!(&error, ReplayError::Units(units) if units == &["`light`"]), "{error}");
}

/// A missing switch changes only the times around it.
#[test]
fn a_missing_switch_is_bridged() {
    let mut events = events();
    let index = events.iter().position(|timed| timed.at_ns == 410 * MS).unwrap();
    events.remove(index);
    let threads = vec![thread(11, "light"), thread(12, "heavy"), thread(13, "heavy")];
    let recorded = Recorded::read(
        &bytes(Method::Events, &[Block::Threads(threads), Block::Events(events)], &end(1000 * MS))[..],
    )
    .unwrap();
    assert_eq!((recorded.missing, recorded.impossible), (1, 0));
    let light = recorded.measured.unit("light").unwrap();
    assert!((250 * MS..=290 * MS).contains(&light.used_ns), "{}", light.used_ns);
}

/// The recorder lists a thread before it writes the events of the time before.
#[test]
fn events_from_before_a_thread_was_listed_keep_their_times() {
    let threads = [(11, "light"), (12, "heavy"), (13, "heavy")]
        .map(|(tid, unit)| Thread { seen_ns: 900 * MS, ..thread(tid, unit) });
    let blocks = [Block::Threads(threads.to_vec()), Block::Events(events())];
    let late = Recorded::read(&bytes(Method::Events, &blocks, &end(1000 * MS))[..]).unwrap();
    assert_eq!(late.measured, Recorded::read(&recording()[..]).unwrap().measured);
}

/// The sums of a daemon that was started anew begin at 0.
#[test]
fn accounts_go_on_after_a_restart_of_the_daemon() {
    let sample = |at_ms: u64, count: u64, ns: u64| {
        let wait = Wait { resource: "cpu".to_owned(), cause: "own".to_owned(), unit: None, ns };
        let call_backs =
            CallBacks { count, classes: vec![(4_096, count)], max_ns: 3_000, ..CallBacks::default() };
        let unit =
            UnitSample { path: "light".to_owned(), call_backs, waits: vec![wait], ..UnitSample::default() };
        Block::Sample(Sample { at_ns: at_ms * MS, units: vec![unit], ..Sample::default() })
    };
    let threads = vec![thread(11, "light"), thread(12, "heavy"), thread(13, "heavy")];
    let blocks = [
        Block::Threads(threads),
        sample(0, 100, 7),
        sample(300, 500, 9),
        sample(600, 20, 4),
        sample(900, 30, 5),
        Block::Events(events()),
    ];
    let recorded = Recorded::read(&bytes(Method::Events, &blocks, &end(1000 * MS))[..]).unwrap();
    let light = recorded.measured.unit("light").unwrap();
    assert_eq!((light.called_back, light.call_back_classes[&4_096]), (430, 430));
    assert_eq!(light.waits[&("cpu".to_owned(), "own".to_owned())], 2 + 5);
}

/// A unit that `each` created is in no contract's text.
#[test]
fn units_that_each_creates_are_there() {
    let mut of_each = header(Method::Events);
    of_each.contract = "version = 1\n[unit.light]\neach = \"user\"\n[unit.heavy]\n".to_owned();
    let threads = vec![thread(11, "light/ana"), thread(12, "heavy"), thread(13, "heavy")];
    let mut writer = Writer::begin(Vec::new(), &of_each, u64::MAX).unwrap();
    for block in [Block::Threads(threads), Block::Events(events())] {
        writer.write(&block).unwrap();
    }
    let recorded = Recorded::read(&writer.end(&end(1000 * MS)).unwrap()[..]).unwrap();
    let ana = replay(&recorded, &recorded.contract);
    assert!(close(ana.unit("light/ana").unwrap().share, 0.125), "{ana:?}");
}

/// 11 computes for 2 ms and wakes 14, which computes for 2 ms and wakes 11, and so on. 15 forks a child that
/// computes for 30 ms, and waits for it, again and again.
fn chain() -> Recorded {
    let mut events = Vec::new();
    let mut push = |at_ms: u64, event| events.push(TimedEvent { at_ns: at_ms * MS, event });
    let switch = |cpu, from, left, to| Event::Switch { cpu, from, left, to };
    let wake = |cpu, thread, by| Event::Wake { cpu, thread, by, by_interrupt: false };
    push(0, switch(0, 0, Left::Preempted, 11));
    push(0, switch(1, 0, Left::Preempted, 15));
    for round in 0..10 {
        let (at, child) = (round * 40, 100 + u32::try_from(round).unwrap());
        push(at + 1, Event::Fork { parent: 15, child });
        push(at + 1, wake(1, child, 15));
        for turn in 0..10 {
            let at = at + turn * 4;
            push(at + 2, wake(0, 14, 11));
            push(at + 2, switch(0, 11, Left::Asleep, 14));
            if turn == 0 {
                push(at + 2, switch(1, 15, Left::Asleep, child));
            }
            if turn == 8 {
                push(at + 3, wake(1, 15, child));
                push(at + 3, switch(1, child, Left::Ended, 15));
            }
            push(at + 4, wake(0, 11, 14));
            push(at + 4, switch(0, 14, Left::Asleep, 11));
        }
    }
    let threads = vec![thread(11, "light"), thread(14, "light"), thread(15, "heavy")];
    let blocks = [Block::Threads(threads), Block::Events(events)];
    Recorded::read(&bytes(Method::Events, &blocks, &end(400 * MS))[..]).unwrap()
}

#[test]
fn threads_wait_for_each_other() {
    let recorded = chain();
    let replayed = replay(&recorded, &recorded.contract);
    let used = |unit: &str| replayed.unit(unit).unwrap().used_ns;
    // Of the CPUs, 400 ms each; 15 and its children use all but the millisecond that is lost at each fork.
    assert!(used("light").abs_diff(400 * MS) < 10 * MS, "{replayed:?}");
    assert!(used("heavy").abs_diff(400 * MS) < 20 * MS, "{replayed:?}");
    // On half of a CPU, the two threads take turns as before, and wait for no timer: none of it is idle.
    let machine = Machine::synthetic("cpus:1 memory:4GiB").unwrap();
    let slow = scenario(&recorded, &recorded.contract, Some(&machine)).unwrap();
    assert_eq!(slow.workload.jobs.len(), 4, "three tasks, and the recording's length: children are forked");
    let outcome = commonhold_sim::run(&slow, 1).unwrap();
    assert_eq!(outcome.broken, 0, "{:?}", outcome.notes);
    let figures = Figures::of_run(&outcome);
    let sum: u64 = figures.units.iter().map(|unit| unit.used_ns).sum();
    assert!(sum.abs_diff(400 * MS) < 4 * MS, "{figures:?}");
    assert!((figures.unit("light").unwrap().share - 0.5).abs() < 0.06, "{figures:?}");
}
