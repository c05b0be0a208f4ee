//! Feeds arbitrary bytes to the reader of recordings, and arbitrary content to the replay: both must return,
//! and what they return must be a scenario that can be simulated.
#![no_main]

use commonhold_contract::Scheme;
use commonhold_machine::Machine;
use commonhold_recording::{Block, End, Header, Method, Sample, Thread, TimedEvent, Usage, Why, Writer};
use commonhold_replay::scenario::scenario;
use commonhold_replay::{Figures, Recorded};
use libfuzzer_sys::fuzz_target;
use serde::de::DeserializeOwned;

/// Longer replays are not simulated, nor those with more tasks.
const LENGTH_MAX_NS: u64 = 20_000_000;
const TASKS_MAX: usize = 20;

fuzz_target!(|bytes: &[u8]| {
    match bytes.split_first() {
        // The bytes of a file. Checksums keep most of them from the decoder.
        Some((0, file)) => replay(file),
        Some((method, content)) => {
            let method =
                if *method == 1 { Method::Events } else { Method::Clocks { every_ns: 1 << (method % 32) } };
            replay(&recording(method, content));
        }
        None => {}
    }
});

/// A recording whose blocks are decoded from the bytes: each begins with a byte for its kind.
fn recording(method: Method, mut content: &[u8]) -> Vec<u8> {
    let mut writer = Writer::begin(Vec::new(), &header(method), u64::MAX).expect("memory can be written");
    let mut last_ns = 0;
    while let Some((kind, rest)) = content.split_first() {
        content = rest;
        let block = match kind % 4 {
            0 => decode(&mut content).map(|threads: Vec<Thread>| Block::Threads(threads)),
            1 => decode(&mut content).map(|mut events: Vec<TimedEvent>| {
                // A writer gets events in the order of time.
                for event in &mut events {
                    last_ns = u64::max(last_ns, event.at_ns);
                    event.at_ns = last_ns;
                }
                Block::Events(events)
            }),
            2 => decode(&mut content).map(|usage: Usage| Block::Usage(usage)),
            _ => decode(&mut content).map(|sample: Sample| Block::Sample(sample)),
        };
        let Some(block) = block else { break };
        if writer.write(&block).is_err() {
            break;
        }
    }
    let end = End { at_ns: last_ns, why: Why::Time, lost: 0, disordered: 0, recorder_ns: 0, without_accounts_ns: 0 };
    writer.end(&end).expect("memory can be written")
}

fn decode<T: DeserializeOwned>(content: &mut &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(content).ok()?;
    *content = rest;
    Some(value)
}

fn header(method: Method) -> Header {
    Header {
        program: "0".to_owned(),
        kernel: "6.12".to_owned(),
        began_wall_ms: 0,
        machine: Machine::synthetic("cpus:2 memory:64MiB").expect("the machine is valid").to_toml(),
        contract: "version = 1\n[unit.a]\n[unit.a.unit.b]\n[unit.c]\n".to_owned(),
        contract_file: String::new(),
        scheme: Scheme::Isolate.name().to_owned(),
        backend: "kernel".to_owned(),
        method,
        sample_ns: 1_000_000_000,
    }
}

fn replay(file: &[u8]) {
    let Ok(recorded) = Recorded::read(file) else { return };
    let Ok(scenario) = scenario(&recorded, &recorded.contract, None) else { return };
    if recorded.activity.length_ns <= LENGTH_MAX_NS && scenario.workload.jobs.len() <= TASKS_MAX {
        let outcome = commonhold_sim::run(&scenario, 1).expect("the machine has room");
        assert_eq!(outcome.broken, 0, "{:?}", outcome.notes);
        let _ = Figures::of_run(&outcome);
    }
}
