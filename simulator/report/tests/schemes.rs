//! A comparison of schemes, from outcomes made by hand.
#![allow(clippy::unwrap_used)]

use commonhold_contract::Scheme;
use commonhold_report::Style;
use commonhold_sim::outcome::{
    DiskOutcome, DiskUse, JobOutcome, MemoryCallBacks, Outcome, Spent, Statement, UnitOutcome,
};
use commonhold_sim_report::schemes::{self, Alone, Schemes};
use commonhold_sim_report::simulation;
use commonhold_sim_report::simulation::Study;
use insta::assert_snapshot;

const MS: u64 = 1_000_000;

/// Unit `u<` with a job that took so long, if it ended.
fn outcome(took_ms: Option<u64>) -> Outcome {
    let spent = Spent { work_ns: 100 * MS, waited_ns: 40 * MS, ..Spent::default() };
    let ended_ns = took_ms.map(|ms| ms * MS);
    Outcome {
        seed: 7,
        ended_ns: ended_ns.unwrap_or(9_000 * MS),
        cut_off: ended_ns.is_none(),
        stuck: Vec::new(),
        swap_short_bytes: 0,
        jobs: vec![JobOutcome { name: "j".into(), unit: "u<".into(), started_ns: 0, ended_ns, spent }],
        rounds: Vec::new(),
        wakes: Vec::new(),
        window_ns: 1_000 * MS,
        units: vec![UnitOutcome {
            name: "u<".into(),
            entitled_micro_cpus: 500_000,
            used_ns: 100 * MS,
            lent_ns: 0,
            borrowed_ns: 0,
            called_back: 0,
            call_back_mean_ns: 0,
            call_back_max_ns: 0,
            call_backs: Vec::new(),
            wakes: commonhold_sim::Latencies::default(),
            responses: commonhold_sim::Latencies::default(),
            waited_max_ns: 40 * MS,
            frames: 1,
            frames_mean: 2,
            frames_max: 256,
            memory_waited_ns: 0,
            memory_call_backs: MemoryCallBacks::default(),
            used_by_window_ns: Vec::new(),
            entitled_by_window_ns: Vec::new(),
            verdict: commonhold_sim::outcome::Verdict::Kept,
        }],
        common: Vec::new(),
        disks: vec![DiskOutcome {
            name: "d".into(),
            busy_ns: 0,
            requests: 1,
            latency_ms: 1.0,
            queue: 0.0,
            queue_at_arrival: 0.0,
            units: vec![DiskUse {
                unit: "u<".into(),
                requests: 1,
                sectors: 16,
                wait_ms: 0.0,
                service_ms: 1.0,
            }],
        }],
        busy_ns: 100 * MS,
        idle_ns: 0,
        online: Vec::new(),
        switches: 3,
        locks: Vec::new(),
        ledger: Statement::default(),
        occupancy: None,
        plans: 1,
        events: 10,
        checks: 5,
        broken: 0,
        notes: Vec::new(),
    }
}

fn study(scheme: Scheme, took_ms: Option<u64>) -> Study {
    Study {
        scenario: "by-hand".into(),
        machine: String::new(),
        scheme,
        horizon_ns: 9_000 * MS,
        frame_bytes: 4096,
        scheduler: commonhold_sim::scenario::Scheduler::Commonhold,
        runs: vec![outcome(took_ms)],
    }
}

/// 200 ms alone; 300 ms, 200 ms, and not ended.
fn comparison() -> Schemes {
    let studies =
        vec![study(Scheme::Smp, Some(300)), study(Scheme::Quota, Some(200)), study(Scheme::Isolate, None)];
    Schemes { studies, alone: vec![Alone { unit: "u<".into(), runs: vec![outcome(Some(200))] }] }
}

#[test]
fn what_did_not_end_has_no_time() {
    assert_snapshot!(schemes::text(&comparison(), Style::PLAIN));
    assert_snapshot!("schemes_csv", schemes::csv(&comparison()));
    assert_snapshot!("schemes_json", schemes::json(&comparison()));
}

#[test]
fn the_page_names_nobody_in_its_own_language() {
    let page = schemes::html(&comparison());
    assert!(page.contains("j of u&lt;") && !page.contains("u<"), "{page}");
    // Bars of 100, 150 and 100, and none where nothing ended.
    assert_eq!(
        ["class='alone'", "class='smp'", "class='quota'", "class='isolate'"]
            .map(|bar| page.matches(bar).count()),
        [1, 1, 1, 0]
    );
    assert!(page.contains("150 (300.0 ms)") && page.contains("not ended"));
    // Without a time alone there is nothing to compare with, and the page says so.
    let lone = Schemes { alone: Vec::new(), ..comparison() };
    assert!(schemes::html(&lone).contains("nothing to compare with"));
}

#[test]
fn a_single_run_shows_memory_and_an_axis() {
    let study = study(Scheme::Isolate, Some(300));
    let text = simulation::text(&study, Style::PLAIN);
    assert!(
        text.contains("memory  in the mean  at most  at the end\nu<            8 KiB    1 MiB       4 KiB\n"),
        "{text}"
    );
    let page = simulation::html(&study);
    // 0.3 s: marks at every 0.05.
    assert!(page.contains(">seconds</text>") && page.contains(">0.25</text>"), "{page}");
}
