//! Writes a recording of a machine with 8 CPUs that was busy for a time: what bench/replay times.
//!
//! usage: hour FILE [SECONDS]    3,600 seconds, unless given
//!
//! Two units have 16 threads each, which compute for 1 to 10 ms and sleep for as long, at most 8 at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufWriter;

use commonhold_machine::Machine;
use commonhold_recording::{
    Block, End, Event, Header, Left, Method, Thread, TimedEvent, Why, WriteError, Writer,
};
use commonhold_sim::chance::Chance;

const CPUS: u32 = 8;
const THREADS: u32 = 32;
const MS: u64 = 1_000_000;
const EVENTS: usize = 1 << 15;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: hour FILE [SECONDS]")?;
    let seconds: u64 = arguments.next().map_or(Ok(3_600), |seconds| seconds.parse())?;
    let header = Header {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: "synthetic".to_owned(),
        began_wall_ms: 0,
        machine: Machine::synthetic("nodes:1 cpus:8 memory:16GiB")?.to_toml(),
        contract: "version = 1\n[unit.a]\n[unit.b]\n".to_owned(),
        contract_file: "none".to_owned(),
        scheme: "isolate".to_owned(),
        backend: "kernel".to_owned(),
        method: Method::Events,
        sample_ns: 1_000 * MS,
    };
    let mut writer = Writer::begin(BufWriter::new(File::create(path)?), &header, u64::MAX)?;
    let thread = |tid| Thread {
        tid,
        pid: tid,
        name: "work".to_owned(),
        unit: if tid % 2 == 0 { "a" } else { "b" }.to_owned(),
        seen_ns: 0,
    };
    writer.write(&Block::Threads((1..=THREADS).map(thread).collect()))?;
    let end_ns = seconds * 1_000 * MS;
    run(&mut writer, end_ns)?;
    let end =
        End { at_ns: end_ns, why: Why::Time, lost: 0, disordered: 0, recorder_ns: 0, without_accounts_ns: 0 };
    writer.end(&end)?;
    Ok(())
}

/// Writes the events of first come, first served on idle CPUs.
fn run(writer: &mut Writer<BufWriter<File>>, end_ns: u64) -> Result<(), WriteError> {
    let mut chance = Chance::from_state(1);
    let mut span = || MS + chance.bits() % (9 * MS);
    // By time and thread: its wake-up, or the end of its burst on a CPU.
    let mut due: BTreeMap<(u64, u32), Option<u32>> =
        (1..=THREADS).map(|tid| ((u64::from(tid), tid), None)).collect();
    let mut idle: BTreeSet<u32> = (0..CPUS).collect();
    let mut queue = std::collections::VecDeque::new();
    let mut events = Vec::new();
    while let Some(((at, tid), cpu)) = due.pop_first().filter(|((at, _), _)| *at < end_ns) {
        let push = |events: &mut Vec<TimedEvent>, event| events.push(TimedEvent { at_ns: at, event });
        match cpu {
            None => {
                push(&mut events, Event::Wake { cpu: 0, thread: tid, by: 0, by_interrupt: true });
                if let Some(cpu) = idle.pop_first() {
                    push(&mut events, Event::Switch { cpu, from: 0, left: Left::Preempted, to: tid });
                    due.insert((at + span(), tid), Some(cpu));
                } else {
                    queue.push_back(tid);
                }
            }
            Some(cpu) => {
                let next = queue.pop_front();
                let to = next.unwrap_or(0);
                push(&mut events, Event::Switch { cpu, from: tid, left: Left::Asleep, to });
                due.insert((at + span(), tid), None);
                match next {
                    Some(next) => _ = due.insert((at + span(), next), Some(cpu)),
                    None => _ = idle.insert(cpu),
                }
            }
        }
        if events.len() >= EVENTS {
            writer.write(&Block::Events(std::mem::take(&mut events)))?;
        }
    }
    writer.write(&Block::Events(events))
}
