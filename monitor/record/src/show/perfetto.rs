//! Writes a recording as a trace for Perfetto: a row for each CPU and each unit, loans and call-backs as flows.
//!
//! The format is Perfetto's `TrackEvent` in protocol buffers
//! (<https://perfetto.dev/docs/reference/synthetic-track-event>). Only a few messages are needed, so they are
//! encoded here. Slices are written when they end, as a beginning and an end with their own times; Perfetto
//! sorts them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use commonhold_machine::CpuSet;
use commonhold_recording::{Event, Sample};

use super::follow::{Ended, Follower};

/// Numbers of messages' fields, and of enums' values, as in Perfetto's `.proto` files.
mod number {
    pub(super) const TRACE_PACKET: u32 = 1;
    pub(super) const PACKET_TIMESTAMP: u32 = 8;
    pub(super) const PACKET_SEQUENCE: u32 = 10;
    pub(super) const PACKET_TRACK_EVENT: u32 = 11;
    pub(super) const PACKET_TRACK_DESCRIPTOR: u32 = 60;
    pub(super) const TRACK_UUID: u32 = 1;
    pub(super) const TRACK_NAME: u32 = 2;
    pub(super) const TRACK_PROCESS: u32 = 3;
    pub(super) const TRACK_PARENT: u32 = 5;
    pub(super) const TRACK_COUNTER: u32 = 8;
    pub(super) const PROCESS_PID: u32 = 1;
    pub(super) const PROCESS_NAME: u32 = 6;
    pub(super) const EVENT_ANNOTATION: u32 = 4;
    pub(super) const EVENT_TYPE: u32 = 9;
    pub(super) const EVENT_TRACK: u32 = 11;
    pub(super) const EVENT_CATEGORY: u32 = 22;
    pub(super) const EVENT_NAME: u32 = 23;
    pub(super) const EVENT_DOUBLE: u32 = 44;
    pub(super) const EVENT_FLOW: u32 = 47;
    pub(super) const ANNOTATION_INT: u32 = 4;
    pub(super) const ANNOTATION_STRING: u32 = 6;
    pub(super) const ANNOTATION_NAME: u32 = 10;
    pub(super) const BEGIN: u64 = 1;
    pub(super) const END: u64 = 2;
    pub(super) const COUNTER: u64 = 4;
}

/// A message's fields.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    fn number(mut self, field: u32, value: u64) -> Message {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    fn fixed(mut self, field: u32, value: u64) -> Message {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> Message {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(self, field: u32, text: &str) -> Message {
        self.bytes(field, commonhold_command::output::shown(text).as_bytes())
    }

    fn message(self, field: u32, message: &Message) -> Message {
        self.bytes(field, &message.0)
    }
}

/// What a row shows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    /// What runs on a CPU.
    Cpu(u32),
    /// A unit, the parent of its other rows.
    Unit(String),
    /// A unit's loans of one of its CPUs.
    Loans(String, u32),
    /// A unit's call-backs of one of its CPUs.
    CallBacks(String, u32),
    /// A number that changes over time.
    Counter(String, &'static str),
}

/// The numbers of the two processes under which rows are grouped. They are no processes of the machine.
const CPUS: u64 = 1;
const UNITS: u64 = 2;

/// A slice.
struct Slice<'a> {
    row: Row,
    name: &'a str,
    category: &'a str,
    from_ns: u64,
    to_ns: u64,
    flow: Option<u64>,
    annotations: Vec<(&'a str, Annotation<'a>)>,
}

enum Annotation<'a> {
    Number(u64),
    Text(&'a str),
}

/// Writes a trace.
#[derive(Debug)]
pub(super) struct Trace<W> {
    to: W,
    /// The rows so far; a row's number is its track's.
    rows: BTreeMap<Row, u64>,
    processes: BTreeSet<u64>,
    flows: u64,
    /// By CPU: the unit whose home it is.
    homes: BTreeMap<u32, String>,
    /// By CPU on loan: since when its owner calls it back.
    calls: BTreeMap<u32, u64>,
}

impl<W: Write> Trace<W> {
    pub(super) fn new(to: W) -> Trace<W> {
        Trace {
            to,
            rows: BTreeMap::new(),
            processes: BTreeSet::new(),
            flows: 0,
            homes: BTreeMap::new(),
            calls: BTreeMap::new(),
        }
    }

    /// Writes a sample's numbers, and notes the home CPUs of units.
    pub(super) fn sample(&mut self, sample: &Sample) -> io::Result<()> {
        if !sample.units.is_empty() {
            self.homes.clear();
        }
        for unit in &sample.units {
            let owned: CpuSet = unit.owned.parse().unwrap_or_default();
            self.homes.extend(owned.iter().map(|cpu| (cpu, unit.path.clone())));
        }
        for unit in &sample.units {
            self.count(sample.at_ns, &unit.path, "entitled, CPUs", unit.entitled_micro_cpus as f64 / 1e6)?;
            self.count(sample.at_ns, &unit.path, "used, CPU s", unit.used_ns as f64 / 1e9)?;
            self.count(sample.at_ns, &unit.path, "lent, CPU s", unit.lent_ns as f64 / 1e9)?;
            self.count(sample.at_ns, &unit.path, "borrowed, CPU s", unit.borrowed_ns as f64 / 1e9)?;
            if let Some(memory) = unit.memory {
                self.count(sample.at_ns, &unit.path, "memory, MiB", memory.used as f64 / f64::from(1 << 20))?;
            }
        }
        Ok(())
    }

    /// Notes that an owner calls a CPU back: a thread was woken while all home CPUs of its unit run others'
    /// threads.
    pub(super) fn event(&mut self, at_ns: u64, event: &Event, follower: &Follower) {
        let Event::Wake { thread, .. } = *event else { return };
        let unit = outermost(follower.unit(thread));
        if unit.is_empty() {
            return;
        }
        let home: Vec<u32> =
            self.homes.iter().filter(|(_, owner)| *owner == unit).map(|(cpu, _)| *cpu).collect();
        let is_lent = |cpu: &u32| {
            let running = follower.running(*cpu);
            running != 0 && outermost(follower.unit(running)) != unit
        };
        if !home.is_empty() && home.iter().all(is_lent) {
            for cpu in home {
                self.calls.entry(cpu).or_insert(at_ns);
            }
        }
    }

    /// Writes what ended at `to_ns`.
    pub(super) fn ended(&mut self, to_ns: u64, follower: &Follower, ended: Ended) -> io::Result<()> {
        let Ended::Ran { thread, cpu, from_ns, .. } = ended else {
            return self.came(to_ns, follower, ended);
        };
        let (unit, name) = (follower.unit(thread), follower.name(thread));
        let home = self.homes.get(&cpu).cloned().unwrap_or_default();
        let is_loan = !home.is_empty() && !unit.is_empty() && outermost(unit) != home;
        let flow = is_loan.then(|| self.next_flow());
        let shown = if name.is_empty() { "thread" } else { name };
        let mut annotations =
            vec![("tid", Annotation::Number(u64::from(thread))), ("unit", Annotation::Text(unit))];
        if is_loan {
            annotations.push(("loan of", Annotation::Text(&home)));
            let lends = format!("lends CPU {cpu} to {unit}");
            let row = Row::Loans(home.clone(), cpu);
            let category = "loan";
            self.slice(&Slice {
                row,
                name: &lends,
                category,
                from_ns,
                to_ns,
                flow,
                annotations: Vec::new(),
            })?;
        }
        let category = if unit.is_empty() { "no unit" } else { unit };
        self.slice(&Slice { row: Row::Cpu(cpu), name: shown, category, from_ns, to_ns, flow, annotations })
    }

    /// If a thread of a CPU's owner came, writes the call-back that it ends.
    fn came(&mut self, to_ns: u64, follower: &Follower, ended: Ended) -> io::Result<()> {
        let Ended::Waited { thread, cpu, .. } = ended else { return Ok(()) };
        let unit = outermost(follower.unit(thread));
        if self.homes.get(&cpu).is_none_or(|home| home != unit) {
            return Ok(());
        }
        let Some(from_ns) = self.calls.remove(&cpu) else { return Ok(()) };
        // Other CPUs of the unit are no longer needed for this thread.
        let homes = &self.homes;
        self.calls.retain(|other, _| homes.get(other).is_none_or(|home| home != unit));
        let flow = Some(self.next_flow());
        let name = format!("calls CPU {cpu} back");
        let row = Row::CallBacks(unit.to_owned(), cpu);
        let annotations = vec![("tid", Annotation::Number(u64::from(thread)))];
        self.slice(&Slice { row, name: &name, category: "call-back", from_ns, to_ns, flow, annotations })
    }

    fn next_flow(&mut self) -> u64 {
        self.flows += 1;
        self.flows
    }

    fn slice(&mut self, slice: &Slice<'_>) -> io::Result<()> {
        let track = self.track(&slice.row)?;
        let mut begin = Message::default()
            .number(number::EVENT_TYPE, number::BEGIN)
            .number(number::EVENT_TRACK, track)
            .text(number::EVENT_CATEGORY, slice.category)
            .text(number::EVENT_NAME, slice.name);
        for (name, value) in &slice.annotations {
            let annotation = Message::default().text(number::ANNOTATION_NAME, name);
            let annotation = match value {
                Annotation::Number(value) => annotation.number(number::ANNOTATION_INT, *value),
                Annotation::Text(value) => annotation.text(number::ANNOTATION_STRING, value),
            };
            begin = begin.message(number::EVENT_ANNOTATION, &annotation);
        }
        if let Some(flow) = slice.flow {
            begin = begin.fixed(number::EVENT_FLOW, flow);
        }
        self.track_event(slice.from_ns, &begin)?;
        let end =
            Message::default().number(number::EVENT_TYPE, number::END).number(number::EVENT_TRACK, track);
        self.track_event(slice.to_ns, &end)
    }

    fn count(&mut self, at_ns: u64, unit: &str, what: &'static str, value: f64) -> io::Result<()> {
        let track = self.track(&Row::Counter(unit.to_owned(), what))?;
        let event = Message::default()
            .number(number::EVENT_TYPE, number::COUNTER)
            .number(number::EVENT_TRACK, track)
            .fixed(number::EVENT_DOUBLE, value.to_bits());
        self.track_event(at_ns, &event)
    }

    /// The track of a row; its descriptor is written when the row first occurs.
    fn track(&mut self, row: &Row) -> io::Result<u64> {
        if let Some(track) = self.rows.get(row) {
            return Ok(*track);
        }
        let parent = match row {
            Row::Cpu(_) => self.process(CPUS, "CPUs")?,
            Row::Unit(_) => self.process(UNITS, "units")?,
            Row::Loans(unit, _) | Row::CallBacks(unit, _) | Row::Counter(unit, _) => {
                self.track(&Row::Unit(unit.clone()))?
            }
        };
        let name = match row {
            Row::Cpu(cpu) => format!("CPU {cpu}"),
            Row::Unit(unit) => unit.clone(),
            Row::Loans(unit, cpu) => format!("{unit}: CPU {cpu} on loan"),
            Row::CallBacks(unit, cpu) => format!("{unit}: CPU {cpu} called back"),
            Row::Counter(unit, what) => format!("{unit}: {what}"),
        };
        // Behind the tracks of the processes.
        let track = UNITS + 1 + self.rows.len() as u64;
        let mut descriptor = Message::default()
            .number(number::TRACK_UUID, track)
            .number(number::TRACK_PARENT, parent)
            .text(number::TRACK_NAME, &name);
        if matches!(row, Row::Counter(..)) {
            descriptor = descriptor.message(number::TRACK_COUNTER, &Message::default());
        }
        self.packet(Message::default().message(number::PACKET_TRACK_DESCRIPTOR, &descriptor))?;
        self.rows.insert(row.clone(), track);
        Ok(track)
    }

    fn process(&mut self, number: u64, name: &str) -> io::Result<u64> {
        if self.processes.insert(number) {
            let process =
                Message::default().number(number::PROCESS_PID, number).text(number::PROCESS_NAME, name);
            let descriptor = Message::default()
                .number(number::TRACK_UUID, number)
                .message(number::TRACK_PROCESS, &process);
            self.packet(Message::default().message(number::PACKET_TRACK_DESCRIPTOR, &descriptor))?;
        }
        Ok(number)
    }

    fn track_event(&mut self, at_ns: u64, event: &Message) -> io::Result<()> {
        let packet = Message::default()
            .number(number::PACKET_TIMESTAMP, at_ns)
            .message(number::PACKET_TRACK_EVENT, event);
        self.packet(packet)
    }

    fn packet(&mut self, packet: Message) -> io::Result<()> {
        let packet = packet.number(number::PACKET_SEQUENCE, 1);
        self.to.write_all(&Message::default().message(number::TRACE_PACKET, &packet).0)
    }

    /// Completes the trace.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The outermost unit around a unit.
fn outermost(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_protocol_buffers_are() {
        // The examples of the encoding's documentation: field 1 is 150; field 2 is "testing".
        assert_eq!(Message::default().number(1, 150).0, [0x08, 0x96, 0x01]);
        let text = Message::default().text(2, "testing").0;
        assert_eq!(text, [0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67]);
        assert_eq!(Message::default().fixed(1, 1).0, [0x09, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
}
