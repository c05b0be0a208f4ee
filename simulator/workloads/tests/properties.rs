//! Random texts end in a result, and random use cases come back from an export.
#![allow(clippy::unwrap_used, reason = "texts of tests")]

use std::collections::BTreeMap;

use commonhold_sim::scenario::{Op, Workload, parse_machine, parse_workload};
use commonhold_workloads::{Format, Options, Units, export, guess, import};
use proptest::prelude::*;

fn options() -> Options {
    Options {
        unit: "shared".to_owned(),
        units: Units::One,
        source: "a test".to_owned(),
        horizon_ns: Some(1_000_000_000),
        jobs: None,
        names: BTreeMap::new(),
    }
}

fn workload(text: &str) -> Workload {
    let contract = commonhold_contract::parse("version = 1\n").contract.unwrap();
    let machine = parse_machine("version = 1\nshape = \"cpus:4 memory:1GiB\"\n[disk.d0]\n").value.unwrap();
    let parsed = parse_workload(text, &contract, &machine);
    parsed.value.unwrap_or_else(|| panic!("{:#?}\n{text}", parsed.diagnostics))
}

/// Events that a thread can make in any order.
fn events() -> impl Strategy<Value = String> {
    let micros = 1..3_000_000u32;
    let event = prop_oneof![
        micros.clone().prop_map(|us| format!("\"run\": {us}")),
        micros.clone().prop_map(|us| format!("\"runtime\": {us}")),
        micros.clone().prop_map(|us| format!("\"sleep\": {us}")),
        (micros, 0..3u8, any::<bool>()).prop_map(|(us, timer, absolute)| {
            let name = ["unique", "uniqueB", "tick"][usize::from(timer)];
            let mode = if absolute { "absolute" } else { "relative" };
            format!("\"timer\": {{ \"ref\": \"{name}\", \"period\": {us}, \"mode\": \"{mode}\" }}")
        }),
        Just("\"lock\": \"m\", \"signal\": \"c\", \"wait\": { \"ref\": \"c\", \"mutex\": \"m\" }, \"unlock\": \"m\"".to_owned()),
        Just("\"broad\": \"c\"".to_owned()),
        Just("\"suspend\": \"\"".to_owned()),
        Just("\"sem_post\": \"s\", \"sem_wait\": \"s\"".to_owned()),
        Just("\"barrier\": \"b\"".to_owned()),
        Just("\"fork\": \"child\"".to_owned()),
    ];
    prop::collection::vec(event, 0..5).prop_map(|mut events| {
        events.push("\"run\": 700".to_owned());
        events.join(", ")
    })
}

fn use_case() -> impl Strategy<Value = String> {
    let phase = (1..9u32, events()).prop_map(|(times, events)| format!("{{ \"loop\": {times}, {events} }}"));
    let phases = prop::collection::vec(phase, 1..4).prop_map(|phases| {
        let numbered = phases.iter().enumerate().map(|(number, phase)| format!("\"p{number}\": {phase}"));
        numbered.collect::<Vec<_>>().join(", ")
    });
    let task = (1..4u32, 0..9000u32, 1..5u32, phases).prop_map(|(instances, delay, times, phases)| {
        format!("{{ \"instance\": {instances}, \"delay\": {delay}, \"loop\": {times}, \"phases\": {{ {phases} }} }}")
    });
    prop::collection::vec(task, 1..4).prop_map(|tasks| {
        let named = tasks.iter().enumerate().map(|(number, task)| format!("\"t{number}\": {task}"));
        let child = "\"child\": { \"instance\": 0, \"loop\": 1, \"run\": 5 }";
        format!("{{ \"tasks\": {{ {}, {child} }} }}", named.collect::<Vec<_>>().join(", "))
    })
}

/// Pieces of all formats.
fn pieces() -> impl Strategy<Value = String> {
    let words = "{|}|[|]|:|,|\n|\"tasks\"|\"a\"|\"run\"|\"loop\"|\"phases\"|\"lock\"|\"m\"|\"unlock\"|\"wait\"|\"ref\"|\
                 \"fork\"|\"global\"|\"duration\"| 1| -1| 99999999999999999999|//|/*|*/|;|#|[global]|[x]|rw=randrw|bs=4k|\
                 size=1m|runtime=1|time_based|rate=1|numjobs=2|stonewall|thinktime=1|fsync=3|fio version 2 iolog|\
                 fio version 3 iolog|/f add|/f read 0 1|/f sync 0 0|/f wait 999 0|5 |\
                 1 0 0 60 4 -1 -1 4 60 -1 1 1 1 1 1 1 -1 -1|ä|\u{0}";
    let words: Vec<&str> = words.split('|').collect();
    prop::collection::vec(prop::sample::select(words), 0..80).prop_map(|words| words.concat())
}

/// What is counted over more accesses than a pattern has is counted over fewer: no more rarely, and not after
/// each access.
#[test]
fn counts_beyond_the_pattern_are_those_of_the_remark() {
    let text = "[a]\nrw=write\nsize=8000k\nfsync=5000\nthinktime=500\nthinktime_blocks=5000\n";
    let imported = import(text, Format::Fio, &options());
    let messages: Vec<&str> = imported.diagnostics.iter().map(|found| found.message.as_str()).collect();
    let expected = [
        "`fsync`: every 1000th write waits, and not every 5000th",
        "`thinktime_blocks`: a pause of 100us after 1000 accesses, and not after 5000",
    ];
    assert_eq!(messages, expected);
    let imported = imported.text.unwrap();
    assert_eq!(accesses(&workload(&imported), "a"), [0, 2000, 2]);
    assert_eq!(imported.matches("sleep = \"100us\"").count(), 1);
}

/// Reads, writes and writes that wait, of a program with its loops.
fn accesses(workload: &Workload, name: &str) -> [u64; 3] {
    let program = workload.programs.iter().find(|program| program.name == name).unwrap();
    let mut counts: Vec<[u64; 3]> = Vec::new();
    for op in &program.ops {
        counts.push(match op {
            Op::Read { .. } => [1, 0, 0],
            Op::Write { sync, .. } => [0, 1, u64::from(*sync)],
            _ => [0; 3],
        });
        if let Op::Again { to, times, .. } = *op {
            let inner = counts[to as usize..].iter_mut();
            inner.flatten().for_each(|count| *count *= u64::from(times));
        }
    }
    counts.iter().fold([0; 3], |sum, count| core::array::from_fn(|index| sum[index] + count[index]))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn use_cases_come_back(text in use_case()) {
        let imported = import(&text, Format::RtApp, &options());
        let Some(imported) = imported.text else { panic!("{:#?}", imported.diagnostics) };
        let contract = commonhold_contract::parse("version = 1\n").contract.unwrap();
        let first = workload(&imported);
        let exported = export(&first, &contract, false);
        let again = import(&exported.text, Format::RtApp, &options()).text.expect("an export is imported");
        let second = workload(&again);
        prop_assert_eq!(export(&second, &contract, false).text, exported.text);
        for (first, second) in first.programs.iter().zip(&second.programs) {
            prop_assert_eq!(first.ops.len(), second.ops.len());
        }
    }

    #[test]
    fn sections_make_all_their_accesses(
        (reads, read_k, write_k) in (0..=100u64, 1..9u64, 1..9u64),
        (size_k, loops, fsync, blocks) in (1..5000u64, 1..4u64, 0..40u64, 0..40u64),
    ) {
        let text = format!(
            "[a]\nrw=randrw\nrwmixread={reads}\nbs={read_k}k,{write_k}k\nsize={size_k}k\nloops={loops}\nfsync={fsync}\n\
             thinktime={blocks}\nthinktime_blocks={}\n",
            blocks.max(1)
        );
        let imported = import(&text, Format::Fio, &options()).text.unwrap();
        let [read, written, synced] = accesses(&workload(&imported), "a");
        let all = (size_k * 100 / (reads * read_k + (100 - reads) * write_k)).max(1) * loops;
        prop_assert_eq!(read + written, all, "{}", imported);
        prop_assert!((read * 100).abs_diff(all * reads) <= 100, "{} of {} are reads", read, all);
        if !imported.contains("and not every") {
            prop_assert_eq!(synced, written.checked_div(fsync).unwrap_or(0), "{}", imported);
        }
    }

    #[test]
    fn every_text_ends_in_a_result(text in pieces()) {
        let _ = guess(&text);
        for format in [Format::RtApp, Format::Fio, Format::Iolog, Format::Swf, Format::Trace] {
            let imported = import(&text, format, &options());
            let wrong = imported.diagnostics.iter().any(commonhold_contract::Diagnostic::is_error);
            prop_assert_eq!(imported.text.is_none(), wrong);
            if let Some(text) = imported.text.filter(|_| format != Format::Trace) {
                workload(&text);
            }
            for found in &imported.diagnostics {
                prop_assert!(found.span.end <= text.len() && text.is_char_boundary(found.span.start));
            }
        }
    }
}
