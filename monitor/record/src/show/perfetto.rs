//! Writes a trace for Perfetto, of `TrackEvent` packets.
//!
//! <https://perfetto.dev/docs/reference/synthetic-track-event> describes the packets. The numbers of fields
//! below are those of Perfetto's `protos/perfetto/trace/`.
//!
//! Packets are not in the order of time, since a slice is written when it ends; trace processors sort them.
//! Packets of the same time stay in the order of the file, so a slice that begins when another ends on the
//! same track follows it. Slices of a track do not overlap: loans of a unit have a track for each CPU.

#![allow(clippy::cast_precision_loss, reason = "counters are drawn, and need no more than 52 bits")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};
use std::rc::Rc;

use commonhold_recording::{Block, ContractChange, Header, Left, Sample, UnitSample};
use commonhold_report::table::clean;

use super::follow::{Burst, CallBack, FURTHER_UNITS, Follower, Loan, Piece, UNITS_MAX};
use super::protobuf::Message;

/// Names that are interned before the table of names begins anew.
const NAMES_MAX: usize = 1 << 16;
/// Times are signed numbers to trace processors.
const TIME_MAX: u64 = i64::MAX as u64;
/// The number that a trace gives to its source of packets; any but 0.
const SEQUENCE: u64 = 1;

/// The fields of `TracePacket`.
mod packet {
    pub(super) const CLOCK_SNAPSHOT: u64 = 6;
    pub(super) const TIMESTAMP: u64 = 8;
    pub(super) const SEQUENCE_ID: u64 = 10;
    pub(super) const TRACK_EVENT: u64 = 11;
    pub(super) const INTERNED_DATA: u64 = 12;
    pub(super) const SEQUENCE_FLAGS: u64 = 13;
    pub(super) const TRACK_DESCRIPTOR: u64 = 60;
    /// `SEQ_INCREMENTAL_STATE_CLEARED` and `SEQ_NEEDS_INCREMENTAL_STATE`.
    pub(super) const CLEARED: u64 = 1;
    pub(super) const NEEDED: u64 = 2;
}

/// The fields of `TrackDescriptor` and `CounterDescriptor`.
mod track {
    pub(super) const UUID: u64 = 1;
    pub(super) const NAME: u64 = 2;
    pub(super) const PARENT_UUID: u64 = 5;
    pub(super) const COUNTER: u64 = 8;
    pub(super) const CHILD_ORDERING: u64 = 11;
    pub(super) const SIBLING_ORDER_RANK: u64 = 12;
    pub(super) const EXPLICIT: u64 = 3;
    pub(super) const COUNTER_UNIT: u64 = 3;
    pub(super) const SIZE_BYTES: u64 = 3;
    pub(super) const COUNTER_UNIT_NAME: u64 = 6;
}

/// The fields of `TrackEvent` and `DebugAnnotation`.
mod event {
    pub(super) const CATEGORY_IIDS: u64 = 3;
    pub(super) const DEBUG_ANNOTATIONS: u64 = 4;
    pub(super) const TYPE: u64 = 9;
    pub(super) const NAME_IID: u64 = 10;
    pub(super) const TRACK_UUID: u64 = 11;
    pub(super) const DOUBLE_COUNTER_VALUE: u64 = 44;
    pub(super) const FLOW_IDS: u64 = 47;
    pub(super) const TERMINATING_FLOW_IDS: u64 = 48;
    pub(super) const ANNOTATION_NAME_IID: u64 = 1;
    pub(super) const ANNOTATION_UINT: u64 = 3;
    pub(super) const ANNOTATION_STRING_IID: u64 = 17;
}

/// The types of a track event.
#[derive(Debug, Clone, Copy)]
enum Type {
    Begin = 1,
    End = 2,
    Instant = 3,
    Counter = 4,
}

/// What is interned; the value is the field of `InternedData`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Interned {
    Category = 1,
    Name = 2,
    AnnotationName = 3,
    AnnotationString = 29,
}

/// A counter of a unit.
#[derive(Debug, Clone, Copy)]
enum Counter {
    Entitled,
    Used,
    Lent,
    Borrowed,
    Memory,
    Read,
    Written,
}

impl Counter {
    /// The name, and the name of the unit of measure if it is not bytes.
    fn words(self) -> (&'static str, Option<&'static str>) {
        match self {
            Counter::Entitled => ("CPUs entitled", Some("CPUs")),
            Counter::Used => ("CPUs used", Some("CPUs")),
            Counter::Lent => ("CPUs lent", Some("CPUs")),
            Counter::Borrowed => ("CPUs borrowed", Some("CPUs")),
            Counter::Memory => ("memory", None),
            Counter::Read => ("disk read", Some("B/s")),
            Counter::Written => ("disk written", Some("B/s")),
        }
    }
}

/// A track, and in its place among others the number from which its identifier is made.
#[derive(Debug, Clone, Copy)]
enum Track {
    Cpus,
    Units,
    Contract,
    Cpu(u32),
    Unit(u64),
    CallBacks(u64),
    Loans(u64, u32),
    Counter(u64, Counter),
}

impl Track {
    fn uuid(self) -> u64 {
        match self {
            Track::Cpus => 1,
            Track::Units => 2,
            Track::Contract => 3,
            Track::Cpu(cpu) => 1 << 40 | u64::from(cpu),
            Track::Unit(unit) => 2 << 40 | unit,
            Track::CallBacks(unit) => 3 << 40 | unit,
            Track::Loans(unit, cpu) => 4 << 40 | unit << 20 | u64::from(cpu),
            Track::Counter(unit, counter) => 5 << 40 | unit << 20 | counter as u64,
        }
    }

    fn parent(self) -> Option<Track> {
        match self {
            Track::Cpus | Track::Units => None,
            Track::Cpu(_) => Some(Track::Cpus),
            Track::Contract | Track::Unit(_) => Some(Track::Units),
            Track::CallBacks(unit) | Track::Loans(unit, _) | Track::Counter(unit, _) => {
                Some(Track::Unit(unit))
            }
        }
    }

    /// The place among the children of its parent.
    fn rank(self) -> u64 {
        match self {
            Track::Cpus | Track::Contract | Track::CallBacks(_) => 0,
            Track::Units => 1,
            Track::Cpu(cpu) => cpu.into(),
            Track::Unit(unit) => unit + 1,
            Track::Counter(_, counter) => 1 + counter as u64,
            Track::Loans(_, cpu) => 100 + u64::from(cpu),
        }
    }
}

/// What was written.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Written {
    pub(super) bursts: u64,
    pub(super) loans: u64,
    pub(super) call_backs: u64,
}

/// A trace that is being written.
#[derive(Debug)]
pub(super) struct Trace<W> {
    to: W,
    names: HashMap<(Interned, Rc<str>), u64>,
    /// Interned since the last packet.
    new_names: Message,
    is_cleared: bool,
    described: HashSet<u64>,
    units: BTreeMap<Rc<str>, u64>,
    /// The last sample with accounts, by unit.
    last: BTreeMap<Rc<str>, UnitSample>,
    last_ns: u64,
    written: Written,
}

impl<W: Write> Trace<W> {
    /// Begins a trace. Its clock begins with the recording, and is tied to the wall clock.
    pub(super) fn begin(to: W, header: &Header) -> io::Result<Trace<W>> {
        let mut trace = Trace {
            to,
            names: HashMap::new(),
            new_names: Message::default(),
            is_cleared: true,
            described: HashSet::new(),
            units: BTreeMap::new(),
            last: BTreeMap::new(),
            last_ns: 0,
            written: Written::default(),
        };
        // BUILTIN_CLOCK_BOOTTIME, in which timestamps are by default, and BUILTIN_CLOCK_REALTIME.
        let mut snapshot = Message::default();
        for (clock, time) in [(6, 0), (1, header.began_wall_ms.saturating_mul(1_000_000).min(TIME_MAX))] {
            let mut reading = Message::default();
            reading.number(1, clock).number(2, time);
            snapshot.message(1, &reading);
        }
        let mut packet = Message::default();
        packet.message(packet::CLOCK_SNAPSHOT, &snapshot);
        trace.put(packet)?;
        Ok(trace)
    }

    /// Takes over a block.
    pub(super) fn block(&mut self, block: &Block, follower: &mut Follower) -> io::Result<()> {
        match block {
            Block::Sample(sample) => self.sample(sample, follower),
            Block::Contract(change) => self.contract(change),
            _ => Ok(()),
        }
    }

    /// Takes over what came of the events.
    pub(super) fn piece(&mut self, piece: &Piece) -> io::Result<()> {
        match piece {
            Piece::Burst(burst) => self.burst(burst),
            Piece::LoanBegan(loan) => self.loan(loan),
            Piece::LoanEnded(loan, at) => {
                let unit = self.unit(&loan.lender);
                self.event(Track::Loans(unit, loan.cpu), *at, Type::End, &mut Message::default())
            }
            Piece::CallBack(call_back) => self.call_back(call_back),
            Piece::Seen(..) | Piece::Wait(_) | Piece::Sleep(_) | Piece::Transfer { .. } => Ok(()),
        }
    }

    /// Ends the trace.
    pub(super) fn finish(mut self) -> io::Result<Written> {
        self.to.flush()?;
        Ok(self.written)
    }

    fn burst(&mut self, burst: &Burst) -> io::Result<()> {
        self.written.bursts += 1;
        self.describe(Track::Cpu(burst.cpu), &format!("CPU {}", burst.cpu), None)?;
        let Burst { who, loan, answers, .. } = burst;
        let mut event = Message::default();
        let name =
            if who.name.is_empty() { format!("thread {}", who.tid).into() } else { Rc::clone(&who.name) };
        event.number(event::NAME_IID, self.intern(Interned::Name, &name));
        if !who.unit.is_empty() {
            event.number(event::CATEGORY_IIDS, self.intern(Interned::Category, &who.unit));
            self.annotate(&mut event, "unit", &who.unit);
        }
        let mut tid = Message::default();
        tid.number(event::ANNOTATION_NAME_IID, self.intern(Interned::AnnotationName, &"tid".into()));
        event.message(event::DEBUG_ANNOTATIONS, tid.number(event::ANNOTATION_UINT, who.tid.into()));
        if let Some(left) = burst.left {
            self.annotate(&mut event, "left", &word(left).into());
        }
        if let Some(loan) = loan {
            self.annotate(&mut event, "loan of", &loan.lender);
        }
        // A loan's flow leads to its first burst alone.
        let first = loan.as_ref().filter(|_| burst.begins_loan).map(|loan| loan.number);
        for number in first.iter().chain(answers) {
            event.fixed(event::TERMINATING_FLOW_IDS, flow(*number));
        }
        self.event(Track::Cpu(burst.cpu), burst.begin_ns, Type::Begin, &mut event)?;
        self.event(Track::Cpu(burst.cpu), burst.end_ns, Type::End, &mut Message::default())
    }

    fn loan(&mut self, loan: &Loan) -> io::Result<()> {
        self.written.loans += 1;
        let unit = self.unit_track(&loan.lender)?;
        let track = Track::Loans(unit, loan.cpu);
        // Viewers show tracks of the same name and parent in one place.
        self.describe(track, "loans", None)?;
        let name = format!("lends CPU {} to {}", loan.cpu, loan.borrower);
        let mut event = Message::default();
        event.number(event::NAME_IID, self.intern(Interned::Name, &name.into()));
        event.fixed(event::FLOW_IDS, flow(loan.number));
        self.event(track, loan.begin_ns, Type::Begin, &mut event)
    }

    fn call_back(&mut self, call_back: &CallBack) -> io::Result<()> {
        self.written.call_backs += 1;
        let unit = self.unit_track(&call_back.unit)?;
        let track = Track::CallBacks(unit);
        self.describe(track, "call-backs", None)?;
        let name = format!("calls CPU {} back", call_back.cpu);
        let mut event = Message::default();
        event.number(event::NAME_IID, self.intern(Interned::Name, &name.into()));
        event.fixed(event::FLOW_IDS, flow(call_back.number));
        self.event(track, call_back.begin_ns, Type::Begin, &mut event)?;
        self.event(track, call_back.end_ns, Type::End, &mut Message::default())
    }

    /// Writes the counters. A rate holds from the last sample to this one, so it is written at the last one's
    /// time. The follower bounds the number of units, and so that of tracks.
    fn sample(&mut self, sample: &Sample, follower: &mut Follower) -> io::Result<()> {
        let before_ns = self.last_ns;
        let over_ns = sample.at_ns.saturating_sub(before_ns);
        for now in sample.units.iter().take(UNITS_MAX) {
            let path = follower.unit(&now.path);
            if &*path == FURTHER_UNITS {
                continue;
            }
            let unit = self.unit_track(&path)?;
            let entitled = now.entitled_micro_cpus as f64 / 1e6;
            self.count(unit, Counter::Entitled, sample.at_ns, entitled)?;
            if let Some(memory) = now.memory {
                self.count(unit, Counter::Memory, sample.at_ns, memory.used as f64)?;
            }
            if let Some(last) = self.last.get(&path).filter(|_| over_ns > 0).cloned() {
                // Sums begin anew with another daemon.
                let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / over_ns as f64;
                self.count(unit, Counter::Used, before_ns, rate(last.used_ns, now.used_ns))?;
                self.count(unit, Counter::Lent, before_ns, rate(last.lent_ns, now.lent_ns))?;
                self.count(unit, Counter::Borrowed, before_ns, rate(last.borrowed_ns, now.borrowed_ns))?;
                if let (Some(last), Some(now)) = (last.disk, now.disk) {
                    self.count(unit, Counter::Read, before_ns, rate(last.read, now.read) * 1e9)?;
                    self.count(unit, Counter::Written, before_ns, rate(last.written, now.written) * 1e9)?;
                }
            }
            self.last.insert(path, now.clone());
        }
        if !sample.units.is_empty() {
            self.last_ns = sample.at_ns;
        }
        Ok(())
    }

    fn contract(&mut self, change: &ContractChange) -> io::Result<()> {
        self.describe(Track::Contract, "contract", None)?;
        let mut event = Message::default();
        event.number(event::NAME_IID, self.intern(Interned::Name, &"another contract".into()));
        self.event(Track::Contract, change.at_ns, Type::Instant, &mut event)
    }

    fn count(&mut self, unit: u64, counter: Counter, at_ns: u64, value: f64) -> io::Result<()> {
        let (name, measure) = counter.words();
        let mut descriptor = Message::default();
        match measure {
            Some(measure) => descriptor.text(track::COUNTER_UNIT_NAME, measure),
            None => descriptor.number(track::COUNTER_UNIT, track::SIZE_BYTES),
        };
        self.describe(Track::Counter(unit, counter), name, Some(&descriptor))?;
        let mut event = Message::default();
        event.double(event::DOUBLE_COUNTER_VALUE, value);
        self.event(Track::Counter(unit, counter), at_ns, Type::Counter, &mut event)
    }

    /// The number of a unit.
    fn unit(&mut self, path: &Rc<str>) -> u64 {
        let next = self.units.len() as u64;
        *self.units.entry(Rc::clone(path)).or_insert(next)
    }

    /// The number of a unit whose track is described.
    fn unit_track(&mut self, path: &Rc<str>) -> io::Result<u64> {
        let unit = self.unit(path);
        self.describe(Track::Unit(unit), path, None)?;
        Ok(unit)
    }

    /// Describes a track before its first event, and the tracks around it.
    fn describe(&mut self, track: Track, name: &str, counter: Option<&Message>) -> io::Result<()> {
        if !self.described.insert(track.uuid()) {
            return Ok(());
        }
        let parent = track.parent();
        match parent {
            Some(Track::Cpus) => self.describe(Track::Cpus, "CPUs", None)?,
            Some(Track::Units) => self.describe(Track::Units, "units", None)?,
            _ => {}
        }
        let mut descriptor = Message::default();
        descriptor.number(track::UUID, track.uuid()).text(track::NAME, &clean(name));
        if let Some(parent) = parent {
            descriptor.number(track::PARENT_UUID, parent.uuid());
        }
        if let Some(counter) = counter {
            descriptor.message(track::COUNTER, counter);
        }
        descriptor.number(track::CHILD_ORDERING, track::EXPLICIT);
        descriptor.number(track::SIBLING_ORDER_RANK, track.rank());
        let mut packet = Message::default();
        packet.message(packet::TRACK_DESCRIPTOR, &descriptor);
        self.put(packet)
    }

    /// Writes an event of a track, with the names that it needs.
    fn event(&mut self, track: Track, at_ns: u64, kind: Type, event: &mut Message) -> io::Result<()> {
        event.number(event::TYPE, kind as u64).number(event::TRACK_UUID, track.uuid());
        let mut packet = Message::default();
        packet.number(packet::TIMESTAMP, at_ns.min(TIME_MAX)).message(packet::TRACK_EVENT, event);
        let names = std::mem::take(&mut self.new_names);
        if !names.is_empty() {
            packet.message(packet::INTERNED_DATA, &names);
        }
        let cleared = if std::mem::take(&mut self.is_cleared) { packet::CLEARED } else { 0 };
        packet.number(packet::SEQUENCE_FLAGS, packet::NEEDED | cleared);
        self.put(packet)?;
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
            self.is_cleared = true;
        }
        Ok(())
    }

    /// Adds an annotation whose value is a text.
    fn annotate(&mut self, event: &mut Message, name: &str, value: &Rc<str>) {
        let mut annotation = Message::default();
        annotation
            .number(event::ANNOTATION_NAME_IID, self.intern(Interned::AnnotationName, &name.into()))
            .number(event::ANNOTATION_STRING_IID, self.intern(Interned::AnnotationString, value));
        event.message(event::DEBUG_ANNOTATIONS, &annotation);
    }

    /// The number of a name, which the next packet defines if it is new.
    fn intern(&mut self, kind: Interned, name: &Rc<str>) -> u64 {
        let next = self.names.len() as u64 + 1;
        let key = (kind, Rc::clone(name));
        if let Some(known) = self.names.get(&key) {
            return *known;
        }
        self.names.insert(key, next);
        let mut entry = Message::default();
        entry.number(1, next).text(2, &clean(name));
        self.new_names.message(kind as u64, &entry);
        next
    }

    fn put(&mut self, mut packet: Message) -> io::Result<()> {
        packet.number(packet::SEQUENCE_ID, SEQUENCE);
        let mut trace = Message::default();
        self.to.write_all(trace.message(1, &packet).encoded())
    }
}

/// The number of a flow; any but 0.
fn flow(number: u64) -> u64 {
    number + 1
}

/// Why a thread left its CPU.
pub(super) fn word(left: Left) -> &'static str {
    match left {
        Left::Preempted => "preempted",
        Left::Asleep => "asleep",
        Left::Blocked => "blocked",
        Left::Ended => "ended",
    }
}
