//! Recordings made by hand, and what is shown of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use commonhold_recording::{
    CallBacks, DiskSample, DiskUse, End, Event, Header, Left, Loan, MemorySample, Method, ProcessSample,
    Sample, Thread, ThreadUsage, TimedEvent, UnitSample, Usage, Wait, Why, Writer,
};
use commonhold_report::Style;
use insta::assert_snapshot;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const MS: u64 = 1_000_000;

fn header(method: Method) -> Header {
    let cpu = |id: u32| format!("  {{ id = {id}, node = 0, cache = 0, core = {id}, socket = 0 }},\n");
    let node = "nodes = [{ id = 0, memory_bytes = 2147483648 }]";
    Header {
        program: "0.1.0".to_owned(),
        kernel: "6.12.1".to_owned(),
        began_wall_ms: 1_780_000_000_000,
        machine: format!("swap_bytes = 0\n{node}\ncpus = [\n{}{}]\ndisks = []\n", cpu(0), cpu(1)),
        contract: "version = 1\n".to_owned(),
        contract_file: "/etc/commonhold/contract.toml".to_owned(),
        scheme: "isolate".to_owned(),
        backend: "kernel".to_owned(),
        method,
        sample_ns: 50 * MS,
    }
}

fn end(at_ns: u64) -> Block {
    Block::End(End {
        at_ns,
        why: Why::Time,
        lost: 0,
        disordered: 0,
        recorder_ns: at_ns / 100,
        without_accounts_ns: 0,
    })
}

fn thread(tid: u32, pid: u32, name: &str, unit: &str) -> Thread {
    Thread { tid, pid, name: name.to_owned(), unit: unit.to_owned(), seen_ns: 0 }
}

fn switch(at_ms: u64, cpu: u32, from: u32, left: Left, to: u32) -> TimedEvent {
    TimedEvent { at_ns: at_ms * MS, event: Event::Switch { cpu, from, left, to } }
}

fn wake(at_ms: u64, thread: u32) -> TimedEvent {
    TimedEvent { at_ns: at_ms * MS, event: Event::Wake { cpu: 0, thread, by: 0, by_interrupt: true } }
}

/// A unit's accounts `n` intervals after the daemon's start.
fn unit(path: &str, owned: &str, n: u64) -> UnitSample {
    UnitSample {
        path: path.to_owned(),
        processes: 1,
        entitled_micro_cpus: 1_000_000,
        owned: owned.to_owned(),
        entitled_ns: n * 50 * MS,
        used_ns: n * 25 * MS,
        lent_ns: n * 10 * MS,
        borrowed_ns: n * 5 * MS,
        waited_ns: n * MS,
        // Of each hundred, 99 take less than 1 ms, and one takes less than 2 ms.
        call_backs: CallBacks {
            count: n * 100,
            sum_ns: n * 100 * MS / 2,
            max_ns: 2 * MS,
            classes: vec![(MS, n * 99), (2 * MS, n)],
        },
        memory: Some(MemorySample { entitled: 1 << 30, used: (1 + n) << 20, ..MemorySample::default() }),
        disk: Some(DiskUse { read: n << 20, written: n << 10, requests: n, stalled_ns: 0 }),
        waits: vec![Wait {
            resource: "cpu".to_owned(),
            cause: "unit".to_owned(),
            unit: Some("heavy".to_owned()),
            ns: n * MS,
        }],
        verdicts: vec![("cpu".to_owned(), "kept".to_owned())],
    }
}

fn sample(at_ms: u64, n: u64) -> Block {
    let process =
        ProcessSample { pid: 10, anonymous: 4096, of_files: 8192, faults: n, ..ProcessSample::default() };
    let disk =
        DiskSample { name: "sda".to_owned(), device: 8 << 20, reads: (n, n << 20), ..DiskSample::default() };
    Block::Sample(Sample {
        at_ns: at_ms * MS,
        units: vec![unit("light", "0", n), unit("heavy", "1", n), unit("heavy/=night, \"x\"", "", n)],
        loans: vec![Loan { lender: "light".to_owned(), borrower: "heavy".to_owned(), micro_cpus: 500_000 }],
        processes: vec![process],
        processes_left_out: 0,
        disks: vec![disk],
    })
}

/// CPU 0 is the home of `light`, CPU 1 that of `heavy`. While the thread of `light` sleeps, CPU 0 is lent to
/// two threads of `heavy`, one after the other. At 40 ms it wakes, and at 41 ms it gets its CPU back.
fn blocks() -> Vec<Block> {
    let threads = vec![
        thread(10, 10, "light", "light"),
        thread(20, 20, "=spin\u{1b}[2J", "heavy"),
        thread(21, 20, "spin", "heavy/=night, \"x\""),
    ];
    let events = vec![
        switch(0, 1, 0, Left::Preempted, 20),
        // The thread has run since the first event.
        switch(10, 0, 10, Left::Asleep, 21),
        switch(20, 0, 21, Left::Preempted, 20),
        // So it left CPU 1 without an event.
        switch(25, 1, 0, Left::Preempted, 21),
        wake(40, 10),
        switch(41, 0, 20, Left::Preempted, 10),
    ];
    let transfer = Event::Transfer { thread: 10, device: 8 << 20, sector: 2048, bytes: 4096, write: true };
    let later = vec![
        TimedEvent { at_ns: 60 * MS, event: transfer },
        TimedEvent { at_ns: 60 * MS, event: Event::Fork { parent: 10, child: 11 } },
        wake(61, 11),
        switch(62, 0, 10, Left::Blocked, 11),
        switch(70, 0, 11, Left::Ended, 0),
        // A thread that sleeps runs on, so its wake-up is missing.
        switch(80, 0, 0, Left::Preempted, 10),
    ];
    vec![
        Block::Threads(threads),
        sample(0, 3),
        Block::Events(events),
        sample(50, 4),
        Block::Events(later),
        sample(100, 5),
        end(100 * MS),
    ]
}

fn bytes(header: &Header, blocks: &[Block]) -> Vec<u8> {
    let mut writer = Writer::begin(Vec::new(), header, u64::MAX).unwrap();
    for block in blocks {
        writer.write(block).unwrap();
    }
    // What `Writer::end` adds is a further end, which readers do not reach.
    writer
        .end(&End {
            at_ns: 0,
            why: Why::Told,
            lost: 0,
            disordered: 0,
            recorder_ns: 0,
            without_accounts_ns: 0,
        })
        .unwrap()
}

/// A recording in a folder of its own.
fn recording(bytes: &[u8]) -> (TempDir, Recording) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.rec");
    fs::write(&file, bytes).unwrap();
    (folder, Recording { file, json: false, perfetto: None, csv: None })
}

fn text(bytes: &[u8]) -> String {
    let (_folder, args) = recording(bytes);
    examine(&args).unwrap().summary.text(Style::PLAIN, &TimeZone::UTC)
}

#[test]
fn a_summary() {
    let bytes = bytes(&header(Method::Events), &blocks());
    assert_snapshot!("text", text(&bytes));
    let (_folder, args) = recording(&bytes);
    assert_snapshot!("json", examine(&args).unwrap().summary.json());
}

#[test]
fn a_summary_of_clocks_says_what_is_unknown() {
    let used = |tid, ran_ns| ThreadUsage { tid, ran_ns, waited_ns: ran_ns / 2, turns: 2 };
    let usage =
        Usage { at_ns: 50 * MS, over_ns: 50 * MS, threads: vec![used(10, 30 * MS), used(20, 10 * MS)] };
    let threads = vec![thread(10, 10, "light", "light"), thread(20, 20, "spin", "heavy")];
    let blocks = [Block::Threads(threads), Block::Usage(usage), end(50 * MS)];
    assert_snapshot!(text(&bytes(&header(Method::Clocks { every_ns: 50 * MS }), &blocks)));
}

#[test]
fn csv_files() {
    let (folder, mut args) = recording(&bytes(&header(Method::Events), &blocks()));
    let csv: PathBuf = folder.path().join("csv");
    args.csv = Some(csv.clone());
    examine(&args).unwrap();
    let mut names: Vec<PathBuf> = fs::read_dir(&csv).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert_eq!(names.len(), csv::FILES);
    let mut all = String::new();
    for name in names {
        let text = fs::read_to_string(&name).unwrap();
        let columns = text.lines().next().unwrap_or_default();
        let kind = name.file_name().unwrap().to_string_lossy().into_owned();
        assert!(columns.split(',').all(|column| !column.is_empty()), "{kind}");
        let _ = writeln!(all, "== {kind}\n{}", text.replace("\r\n", "\n"));
    }
    assert_snapshot!(all);
    let error = examine(&args).err().unwrap();
    assert_eq!(error.exit, Exit::CannotCreate);
    assert!(error.message().ends_with("cannot create it: File exists (os error 17); name a new folder"));
}

#[test]
fn a_trace() {
    let (folder, mut args) = recording(&bytes(&header(Method::Events), &blocks()));
    let trace = folder.path().join("a.pftrace");
    args.perfetto = Some(trace.clone());
    examine(&args).unwrap();
    assert_snapshot!(decoded(&fs::read(trace).unwrap()));
    assert_eq!(examine(&args).err().unwrap().exit, Exit::CannotCreate, "the trace exists");
}

/// The fields of a message, by number.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let (fixed, rest) = bytes.split_at(8);
                bytes = rest;
                Field::Fixed(u64::from_le_bytes(fixed.try_into().unwrap()))
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (inner, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(inner)
            }
            wrong => panic!("the wire type {wrong}"),
        };
        fields.push((tag >> 3, field));
    }
    fields
}

#[derive(Debug, Clone, Copy)]
enum Field<'a> {
    Number(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn number(self) -> u64 {
        match self {
            Field::Number(n) | Field::Fixed(n) => n,
            Field::Bytes(_) => panic!("a number"),
        }
    }

    fn bytes(self) -> &'a [u8] {
        match self {
            Field::Bytes(bytes) => bytes,
            _ => panic!("bytes"),
        }
    }

    fn text(self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }
}

/// A trace in words: a line for each track, and then one for each event, with interned names resolved.
fn decoded(trace: &[u8]) -> String {
    let mut lines = String::new();
    let mut tracks = BTreeMap::new();
    let mut names: BTreeMap<(u64, u64), String> = BTreeMap::new();
    for (_, packet) in fields(trace) {
        let packet = fields(packet.bytes());
        let find = |field: u64| packet.iter().find(|(of, _)| *of == field).map(|(_, value)| *value);
        for (kind, entry) in find(12).map(|data| fields(data.bytes())).unwrap_or_default() {
            let entry = fields(entry.bytes());
            names.insert((kind, entry[0].1.number()), entry[1].1.text());
        }
        if let Some(descriptor) = find(60) {
            let descriptor = fields(descriptor.bytes());
            let of = |field: u64| descriptor.iter().find(|(of, _)| *of == field).map(|(_, value)| *value);
            let around = of(5).map(|uuid| tracks.get(&uuid.number()).cloned().expect("a parent"));
            let name =
                around.map_or_else(String::new, |around: String| around + "/") + &of(2).unwrap().text();
            let _ = writeln!(lines, "track {name}{}", if of(8).is_some() { ", a counter" } else { "" });
            tracks.insert(of(1).unwrap().number(), name);
        }
        let Some(event) = find(11) else { continue };
        let mut said = String::new();
        let (mut kind, mut track) = (0, String::new());
        for (field, value) in fields(event.bytes()) {
            let _ = match field {
                3 => write!(said, " category={}", names[&(1, value.number())]),
                4 => {
                    let annotation = fields(value.bytes());
                    let text = match annotation[1] {
                        (17, value) => names[&(29, value.number())].clone(),
                        (_, value) => value.number().to_string(),
                    };
                    write!(said, " {}={text}", names[&(3, annotation[0].1.number())])
                }
                9 => {
                    kind = value.number();
                    Ok(())
                }
                10 => write!(said, " `{}`", names[&(2, value.number())]),
                11 => {
                    track.clone_from(&tracks[&value.number()]);
                    Ok(())
                }
                44 => write!(said, " {}", f64::from_bits(value.number())),
                47 => write!(said, " flow={}", value.number()),
                48 => write!(said, " ends-flow={}", value.number()),
                wrong => panic!("the field {wrong}"),
            };
        }
        let kind = ["", "begin", "end", "instant", "count"][usize::try_from(kind).unwrap()];
        let at = find(8).unwrap().number();
        let _ = writeln!(lines, "{at:>9} {kind} {track}{said}");
    }
    lines
}

#[test]
fn what_is_before_the_damage_is_shown() {
    let (header, blocks) = (header(Method::Events), blocks());
    let whole = bytes(&header, &blocks);
    // Within the second block of events.
    let mut writer = Writer::begin(Vec::new(), &header, u64::MAX).unwrap();
    for block in &blocks[..4] {
        writer.write(block).unwrap();
    }
    let at = usize::try_from(writer.written()).unwrap() + 20;
    let mut damaged = whole.clone();
    damaged[at] ^= 1;
    let (_folder, args) = recording(&damaged);
    let examined = examine(&args).unwrap();
    assert!(matches!(examined.damage, Some(RecordingError::Damaged { .. })), "{:?}", examined.damage);
    let text = examined.summary.text(Style::PLAIN, &TimeZone::UTC);
    assert!(text.contains("end         the recording is damaged at byte"), "{text}");
    assert!(text.contains("the number of lost events is unknown"), "{text}");

    let (_folder, args) = recording(&whole[..at]);
    let examined = examine(&args).unwrap();
    assert!(examined.damage.is_none() && examined.is_cut_short);
    let text = examined.summary.text(Style::PLAIN, &TimeZone::UTC);
    assert!(text.contains("end         the file was cut short"), "{text}");
    assert!(text.contains("recorder    its CPU time is unknown"), "{text}");
}

#[test]
fn an_empty_recording_and_an_unreadable_machine() {
    let mut header = header(Method::Events);
    header.machine = "cpus = 1\u{1b}[2J".to_owned();
    header.began_wall_ms = u64::MAX;
    assert_snapshot!(text(&bytes(&header, &[end(0)])));
}

#[test]
fn absurd_numbers_take_no_memory_and_no_time() {
    let absurd = |cpu: u32, tid: u32| {
        let event = Event::Switch { cpu, from: tid, left: Left::Blocked, to: u32::MAX };
        TimedEvent { at_ns: u64::MAX - 1, event }
    };
    let many = UnitSample { owned: "0-65535".to_owned(), path: "a".repeat(10_000), ..UnitSample::default() };
    let short = UnitSample { path: "b".to_owned(), ..many.clone() };
    let repeated = UnitSample { owned: "0-65535,".repeat(1 << 17), ..short.clone() };
    let nowhere = UnitSample { owned: "9-1".to_owned(), ..UnitSample::default() };
    let units = std::iter::repeat_n(many, 1_000)
        .chain([repeated, nowhere])
        .chain(std::iter::repeat_n(short, 50_000))
        .collect();
    let blocks = [
        Block::Sample(Sample { at_ns: u64::MAX, units, ..Sample::default() }),
        Block::Threads(vec![thread(u32::MAX, u32::MAX, &"n".repeat(1 << 20), &"u/".repeat(1 << 20))]),
        Block::Events(vec![absurd(u32::MAX, 1), absurd(65_535, 1), absurd(65_535, u32::MAX)]),
        end(u64::MAX),
    ];
    let (folder, mut args) = recording(&bytes(&header(Method::Events), &blocks));
    args.perfetto = Some(folder.path().join("trace"));
    let summary = examine(&args).unwrap().summary;
    assert!(summary.json().contains("\"impossible\": 1"), "{}", summary.json());
}

/// A block with random content of few threads, CPUs and units.
fn any_events() -> impl Strategy<Value = Vec<TimedEvent>> {
    let left = prop_oneof![Just(Left::Preempted), Just(Left::Asleep), Just(Left::Blocked), Just(Left::Ended)];
    let event =
        (0_u32..10, 0_u32..3, 0_u32..6, left, 0_u32..6).prop_map(
            |(kind, cpu, one, left, other)| match kind {
                0..6 => Event::Switch { cpu, from: one, left, to: other },
                6..8 => Event::Wake { cpu, thread: one, by: other, by_interrupt: other % 2 == 0 },
                8 => Event::Fork { parent: one, child: other },
                _ => {
                    Event::Transfer { thread: one, device: 0, sector: 0, bytes: other, write: other % 2 == 0 }
                }
            },
        );
    proptest::collection::vec((0_u64..5, event), 0..200).prop_map(|events| {
        let mut at_ns = 0;
        let at = |(since, event)| {
            at_ns += since;
            TimedEvent { at_ns, event }
        };
        events.into_iter().map(at).collect()
    })
}

/// What comes of these steps: threads that are announced, or events.
fn followed(units: &[UnitSample], steps: &[(&[Thread], &[TimedEvent])]) -> Vec<Piece> {
    let (mut follower, mut pieces) = (Follower::default(), Vec::new());
    follower.sample(units);
    for (threads, events) in steps {
        follower.announce(threads, &mut pieces);
        events.iter().for_each(|event| follower.event(event, &mut pieces));
    }
    follower.end(100 * MS, &mut pieces);
    pieces
}

fn fork(at_ms: u64, parent: u32, child: u32) -> TimedEvent {
    TimedEvent { at_ns: at_ms * MS, event: Event::Fork { parent, child } }
}

/// The thread, process, name and unit of each thread that was seen, and whether it counts as new.
fn seen(pieces: &[Piece]) -> Vec<(u32, u32, &str, &str, bool)> {
    let seen = pieces.iter().filter_map(|piece| match piece {
        Piece::Seen(of) => Some((of.who.tid, of.who.pid, &*of.who.name, &*of.who.unit, of.is_new)),
        _ => None,
    });
    seen.collect()
}

/// The recorder lists threads first, and then writes the events before: also of the listed threads' forks.
#[test]
fn a_thread_that_was_listed_before_its_fork_keeps_its_name_and_unit() {
    let parent = thread(10, 10, "make", "light");
    let child = Thread { seen_ns: 30 * MS, ..thread(11, 11, "cc", "heavy") };
    let events = [fork(20, 10, 11), wake(20, 11), switch(25, 0, 0, Left::Preempted, 11)];
    let pieces = followed(&[], &[(&[parent, child], &events)]);
    assert_eq!(seen(&pieces), [(10, 10, "make", "light", true), (11, 11, "cc", "heavy", true)]);
    let runs_as = |piece: &Piece| matches!(piece, Piece::Burst(of) if &*of.who.unit == "heavy");
    assert_eq!(pieces.iter().filter(|piece| runs_as(piece)).count(), 1);
    // The number is used again: a fork after the listing is of another thread.
    let events = [fork(40, 10, 11), switch(45, 0, 0, Left::Preempted, 11)];
    let parent = thread(10, 10, "make", "light");
    let child = Thread { seen_ns: 30 * MS, ..thread(11, 11, "cc", "heavy") };
    let pieces = followed(&[], &[(&[parent, child], &events)]);
    assert_eq!(seen(&pieces).last(), Some(&(11, 0, "make", "light", true)));
}

#[test]
fn a_forked_threads_process_becomes_known_later() {
    let events =
        [fork(20, 10, 11), switch(25, 0, 0, Left::Preempted, 11), switch(30, 0, 11, Left::Asleep, 0)];
    let child = Thread { seen_ns: 50 * MS, ..thread(11, 11, "cc", "light") };
    let pieces = followed(&[], &[(&[thread(10, 10, "make", "light")], &events), (&[child], &[])]);
    let expected = [
        (10, 10, "make", "light", true),
        (11, 0, "make", "light", true),
        // One thread, but a further process.
        (11, 11, "cc", "light", false),
    ];
    assert_eq!(seen(&pieces), expected);
}

#[test]
fn a_new_thread_calls_back_too() {
    let events = [
        switch(1, 0, 0, Left::Preempted, 20),
        switch(2, 1, 0, Left::Preempted, 10),
        fork(10, 10, 11),
        wake(10, 11),
        switch(12, 0, 20, Left::Preempted, 11),
    ];
    let threads = [thread(10, 10, "make", "light"), thread(20, 20, "spin", "heavy")];
    let pieces = followed(&[unit("light", "0-1", 1)], &[(&threads, &events)]);
    assert_eq!(call_backs(&pieces), [("light", 0, 10, 12)]);
}

/// The call-backs among these pieces: unit, CPU, beginning and end in ms.
fn call_backs(pieces: &[Piece]) -> Vec<(&str, u32, u64, u64)> {
    let found = pieces.iter().filter_map(|piece| match piece {
        Piece::CallBack(of) => Some((&*of.unit, of.cpu, of.begin_ns / MS, of.end_ns / MS)),
        _ => None,
    });
    found.collect()
}

#[test]
fn a_call_back_whose_end_has_no_event_is_dropped() {
    let events = [
        switch(1, 0, 0, Left::Preempted, 20),
        wake(10, 10),
        // It got a CPU without an event, and leaves it.
        switch(14, 1, 10, Left::Asleep, 0),
        switch(50, 0, 20, Left::Preempted, 11),
    ];
    let threads =
        [thread(10, 10, "make", "light"), thread(11, 10, "make", "light"), thread(20, 20, "spin", "heavy")];
    assert_eq!(call_backs(&followed(&[unit("light", "0", 1)], &[(&threads, &events)])), []);
}

/// The first event of all tells nothing about the time before it.
#[test]
fn the_first_thread_has_no_burst_without_length() {
    let events = [switch(5, 0, 20, Left::Preempted, 21), switch(9, 0, 21, Left::Asleep, 0)];
    let threads = [thread(20, 20, "a", "heavy"), thread(21, 21, "b", "heavy")];
    let pieces = followed(&[unit("light", "0", 1)], &[(&threads, &events)]);
    let bursts: Vec<_> = pieces
        .iter()
        .filter_map(|piece| match piece {
            Piece::Burst(of) => Some((of.who.tid, of.begin_ns / MS, of.end_ns / MS, of.begins_loan)),
            _ => None,
        })
        .collect();
    assert_eq!(bursts, [(21, 5, 9, true)]);
}

proptest! {
    /// Whatever the events are: intervals of a CPU do not overlap, nor do loans and call-backs of one track,
    /// and each loan has a beginning before its end.
    #[test]
    fn intervals_do_not_overlap(events in any_events()) {
        let mut follower = Follower::default();
        let mut pieces = Vec::new();
        let threads = [thread(1, 1, "a", "light"), thread(2, 2, "b", "heavy"), thread(3, 3, "c", "heavy/in")];
        follower.announce(&threads, &mut pieces);
        for (n, event) in events.iter().enumerate() {
            if n == 20 {
                follower.sample(&[unit("light", "0", 1), unit("heavy", "1-2", 1), unit("heavy/in", "2", 1)]);
            }
            follower.event(event, &mut pieces);
        }
        let last = events.last().map_or(0, |event| event.at_ns);
        follower.end(last + 1, &mut pieces);

        let mut ends: BTreeMap<(&str, String), u64> = BTreeMap::new();
        let mut follows = |kind: &'static str, of: String, begin: u64, end: u64| {
            let before = ends.insert((kind, of), end).unwrap_or(0);
            before <= begin && begin <= end && end <= last + 1
        };
        let (mut open, mut begun) = (BTreeMap::new(), BTreeSet::new());
        for piece in &pieces {
            match piece {
                Piece::Burst(of) => {
                    prop_assert!(follows("cpu", of.cpu.to_string(), of.begin_ns, of.end_ns), "{of:?}");
                    if let Some(loan) = &of.loan {
                        prop_assert!(open.contains_key(&loan.number), "{of:?}");
                        prop_assert_eq!(begun.insert(loan.number), of.begins_loan, "{:?}", of);
                    }
                }
                Piece::LoanBegan(of) => prop_assert!(open.insert(of.number, of.clone()).is_none()),
                Piece::LoanEnded(of, end) => {
                    prop_assert_eq!(open.remove(&of.number), Some(of.clone()));
                    prop_assert!(follows("loan", of.cpu.to_string(), of.begin_ns, *end), "{of:?}");
                }
                Piece::CallBack(of) => {
                    prop_assert!(follows("call-back", of.unit.to_string(), of.begin_ns, of.end_ns), "{of:?}");
                }
                Piece::Wait(of) => prop_assert!(of.begin_ns <= of.end_ns),
                Piece::Sleep(of) => prop_assert!(of.begin_ns <= of.end_ns),
                Piece::Seen(..) | Piece::Transfer { .. } => {}
            }
        }
        prop_assert!(open.is_empty());
    }
}
