//! The table of claims is complete, its rows can be measured, and the tests that it names for parameters
//! exist.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the crate is pure, its tests are not"
)]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;

use commonhold_claims::experiments::Experiment;
use commonhold_claims::{Row, Runs, SEEDS, assess, rows, run, select};
use commonhold_sim::outcome::{
    DiskOutcome, DiskUse, Exchange, JobOutcome, LockOutcome, MemoryCallBacks, Occupancy, Outcome,
    RoundsOutcome, Spent, Statement, UnitOutcome, WakesOutcome,
};
use commonhold_sim_report::claims::{Basis, Claim, Tolerance, Verdict};

/// Every number and testable statement of seed 000, of section 5 of seed 004, of seed 002, and of seed 001.
const CLAIMS: &str = "
    PI-ABS-1 PI-F1 PI-2.0-1 PI-2.1-SPU PI-2.1-G1 PI-2.1-G2 PI-2.1-G3 PI-2.1-ACT PI-2.2-ACC PI-2.3-REV
    PI-2.3-HIER PI-T1-CPU PI-T1-MEM PI-T1-DISK PI-3.0-EQ PI-3.1-PART PI-3.1-PRIO PI-3.1-LOAN PI-3.1-REV
    PI-3.1-COST PI-3.2-LIM PI-3.2-SHR PI-3.2-RES PI-3.3-CSCAN PI-3.3-LOCK PI-3.3-SIZE PI-3.3-SHRW PI-3.3-DECAY
    PI-3.3-FAIR PI-3.3-THR0 PI-3.3-REV PI-3.4-INODE PI-3.4-PIL PI-3.4-GAIN PI-3.4-INV PI-3.4-STALL PI-T2-K
    PI-T2-C PI-T2-M PI-T2-D PI-T3 PI-4.1-HW PI-F3 PI-4.2-POL PI-F2-UP PI-F2-CFG PI-F2-MP1 PI-F2-MP6 PI-F2-MP4D
    PI-F2-Q PI-F4-1 PI-F4-2 PI-F4-3 PI-F5-1 PI-F5-2 PI-F5-3 PI-F6-0 PI-F6-1 PI-F6-2 PI-F7-1 PI-F7-2 PI-F7-3
    PI-F7-4 PI-F7-5 PI-F8-1 PI-F8-2 PI-F8-3 PI-F8-4 PI-F9-1 PI-F9-2 PI-F9-3 PI-F9-4 PI-F9-5 PI-4.5-CFG
    PI-4.5-PM PI-4.5-CP PI-T4-P1a PI-T4-P1b PI-T4-P1c PI-T4-P1d PI-T4-P1e PI-T4-P1f PI-T4-I1a PI-T4-I1b
    PI-T4-I1c PI-T4-I1d PI-T4-I1e PI-T4-I1f PI-T4-B1a PI-T4-B1b PI-T4-B1c PI-T4-B1d PI-T4-B1e PI-T4-B1f
    PI-T4-Q1 PI-T4-Q2 PI-T4-Q3 PI-T5-CFG PI-T5-Pa PI-T5-Pb PI-T5-Pc PI-T5-Pd PI-T5-Pe PI-T5-Pf PI-T5-Ia
    PI-T5-Ib PI-T5-Ic PI-T5-Id PI-T5-Ie PI-T5-If PI-T5-Ba PI-T5-Bb PI-T5-Bc PI-T5-Bd PI-T5-Be PI-T5-Bf PI-T5-Q1
    PI-T5-Q2 PI-T5-D PI-T4-D PI-T4-D2 PI-T4-D3 PI-T4-D4 PI-F10-1 PI-F10-2 PI-F10-3 PI-5-NUMA PI-5-NET
    TK-HW TK-F5 TK-F6-1 TK-F6-2 TK-F7-CFG TK-F7-1 TK-F7-2 TK-F8-CFG TK-F8-1 TK-F8-2 TK-F9-CFG TK-F9-1 TK-F9-2 TK-F9-3
    TK-F10-1 TK-F10-2 TK-F10-3 TK-5.6-50
    TK-DB-CFG TK-DB-TIX TK-DB-GRID TK-F11-1 TK-F11-2 TK-F11-3 TK-F11-4 TK-F11-5 TK-F11-6 TK-FN8 TK-NEG
    CH-CURVE CH-USL CH-USL-FIT CH-MEM CH-HOPS CH-DISP CH-GANG CH-JOB CH-JOB-LIM CH-TOPO CH-PRIN CH-RX CH-ALT-1
    CH-ALT-2 CH-ALT-3 CH-OLY-1 CH-OLY-2 CH-LOCK-1 CH-LOCK-2 CH-RW CH-FS CH-INT CH-CLS CH-ISO CH-ENT CH-SIMPLE
    CH-LOT-1 CH-LOT-2 CH-WIL-1 CH-WIL-2 CH-WIL-3 CH-WIL-4 CH-DISK CH-GOALS
    PP-2-REQ PP-2-DEC PP-3-HW PP-3-ST0 PP-3-DLY PP-T1-L PP-T1-S PP-T1-R0 PP-T1-R4 PP-T1-R8 PP-T1-R16 PP-T1-R32
    PP-T1-R64 PP-T1-LIN PP-3-CMP PP-3-POL PP-T2 PP-5.1-CFG PP-5.2-WL PP-5.3-WL PP-5.4-WL PP-6-WL PP-6.1-EXP
    PP-6.2-FF PP-6.2-BF PP-6.2-WF PP-6.2-ALT PP-F1-1 PP-F1-2 PP-F1-3 PP-F1-4 PP-F1-5 PP-F1-6 PP-F1-V PP-F2-1
    PP-F2-2 PP-F2-3 PP-F2-4 PP-F2-5 PP-F2-V PP-F3-1 PP-F3-2 PP-F3-3 PP-F3-V PP-F4 PP-F5-1 PP-F5-2 PP-F6
    PP-6-JOBS PP-8-CONT PP-8-GAP PP-ABS-2
    BB-HW BB-BUS BB-BBMA BB-NBBMA BB-4SETS BB-F1A-1 BB-F1A-O BB-F1A-V BB-F1A-2 BB-F1B-2 BB-F1-RT BB-F1-CONT
    BB-F1-SAT BB-F1-MEM BB-F1-MOD BB-F1-LU BB-F1-NB BB-F1-TS BB-4-GANG BB-4-HEAD BB-4-LQ BB-4-FIT BB-4-NEG BB-4-QW
    BB-4-MGR BB-4-OVH BB-5-Q BB-5-MPL BB-F2A-L BB-F2A-W BB-F2B-L BB-F2B-W BB-F2C-L BB-F2C-W BB-F2-AVG BB-F2-STAB
    BB-F2A-M BB-F2B-M BB-F2-CACHE BB-F2-V";

/// Whether a row's name is that of the claim, possibly followed by a letter.
fn is_of(row: &str, claim: &str) -> bool {
    row.strip_prefix(claim).is_some_and(|rest| {
        rest.is_empty() || (rest.len() == 1 && rest.starts_with(|c: char| c.is_ascii_lowercase()))
    })
}

#[test]
fn every_claim_has_a_row_and_every_row_a_claim() {
    let claims: Vec<&str> = CLAIMS.split_whitespace().collect();
    let rows = rows();
    for claim in &claims {
        assert!(rows.iter().any(|row| is_of(row.id, claim)), "{claim} has no row");
    }
    for row in rows.iter().filter(|row| row.basis != Basis::Beyond) {
        assert!(claims.iter().any(|claim| is_of(row.id, claim)), "{} is no claim of the paper", row.id);
    }
    assert_eq!(claims.len(), claims.iter().collect::<BTreeSet<_>>().len());
}

#[test]
fn names_are_unique_and_everything_is_said() {
    let rows = rows();
    let names: BTreeSet<&str> = rows.iter().map(|row| row.id).collect();
    assert_eq!(names.len(), rows.len());
    for row in &rows {
        assert!(!row.says.is_empty() && !row.place.is_empty(), "{}", row.id);
        assert!(row.id.starts_with("OURS-") == (row.basis == Basis::Beyond), "{}", row.id);
        let has_reason = row.measure.is_some() || row.basis == Basis::Parameter || !row.note.is_empty();
        assert!(has_reason, "{} has neither a measure nor a reason", row.id);
        assert_eq!(row.measure.is_some(), !row.needs.is_empty(), "{}", row.id);
        if let Tolerance::Between { low, high } = row.tolerance {
            assert!(low <= high, "{}", row.id);
        }
    }
}

#[test]
fn only_these_are_calibrated() {
    let calibrated: Vec<&str> =
        rows().iter().filter(|row| row.basis == Basis::Calibrated).map(|row| row.id).collect();
    let expected = "PI-3.4-GAIN PI-F6-1 PI-F7-3 PI-F7-4 PI-T4-P1a PI-T4-P1b PI-T4-P1c PI-T4-P1d PI-T4-P1e PI-T4-P1f PI-T5-D \
                    TK-DB-GRIDa TK-F11-3 CH-LOCK-1a CH-LOCK-1b PP-F5-1 BB-BBMA \
                    BB-F1A-1 BB-F1B-2b BB-F1-MEMa BB-F1-MODb BB-F1-MODc";
    assert_eq!(calibrated.join(" "), expected);
}

#[test]
fn tolerances_by_hand() {
    let within = |id: &str| match rows().into_iter().find(|row| row.id == id).unwrap().tolerance {
        Tolerance::Between { low, high } => (low, high),
        other => panic!("{id}: {other:?}"),
    };
    let check = |id, low: f64, high: f64| {
        let is = within(id);
        assert!((is.0 - low).abs() < 1e-9 && (is.1 - high).abs() < 1e-9, "{id}: {is:?}");
    };
    check("PI-T4-I1a", 8.28, 10.12); // 9.2 s, 10 %
    check("PI-T4-B1d", 56.55, 94.25); // 75.4 ms, 25 %
    check("PI-T4-P1f", 9.54, 11.66); // 10.6 ms, 10 %
    check("PI-T5-Ba", 0.28 / 0.93 * 0.75, 0.28 / 0.93 * 1.25); // ratios, 25 %
    check("PI-F2-MP6", 2.006, 2.714); // 236 %, 15 %
}

#[test]
fn tests_that_hold_parameters_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (row, held_by) in rows().iter().flat_map(|row| row.held_by.iter().map(move |test| (row.id, *test))) {
        let (file, function) = held_by.split_once(": ").unwrap();
        let text =
            std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{row}: {file}: {error}"));
        assert!(text.contains(&format!("fn {function}(")), "{row}: {file} has no test {function}");
    }
    let bare = rows().into_iter().filter(|row| row.basis == Basis::Parameter && row.held_by.is_empty());
    assert_eq!(bare.map(|row| row.id).collect::<Vec<_>>(), Vec::<&str>::new(), "no test holds these");
}

#[test]
fn names_select() {
    let ids = |names: &[&str]| -> Vec<&str> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        select(&names).unwrap().into_iter().map(|row| row.id).collect()
    };
    assert_eq!(ids(&[]).len(), rows().len());
    assert_eq!(ids(&["pi-f9-5"]), ["PI-F9-5"]);
    assert_eq!(ids(&["PI-T4-P1", "PI-F9-1a"]).len(), 7);
    let unknown = select(&["PI-X".to_owned()]).unwrap_err();
    assert!(unknown.to_string().starts_with("no claim is called `PI-X`"), "{unknown}");
    assert!(select(&[String::new()]).is_err());
}

/// A made-up outcome in which no figure is zero, and that differs from experiment to experiment.
fn made_up(experiment: &Experiment, number: u64) -> Outcome {
    let scenario = experiment.scenario().unwrap();
    let path = |id| scenario.contract.unit(id).path.clone();
    let spent = |job: u64| Spent {
        work_ns: 1000 + number,
        lock_ns: 100 + 7 * number + job,
        stall_ns: 50 + 3 * number,
        remote_ns: 10 + number,
        spin_ns: 4 + number,
        switch_ns: 20 + number,
        waited_ns: 5,
        blocked_ns: 5,
        faults: 3 + number,
        transferred: 40_000_000 + number,
    };
    let job = |(index, job): (usize, &commonhold_sim::scenario::Job)| JobOutcome {
        name: job.name.clone(),
        unit: path(job.unit),
        started_ns: 0,
        ended_ns: Some((10 + number * number + index as u64) * 1_000_000_000),
        spent: spent(index as u64),
    };
    let runs_of = |program: &commonhold_sim::scenario::Program| {
        let run = |n: u64| JobOutcome {
            name: program.name.clone(),
            unit: "jobs".to_owned(),
            started_ns: 0,
            ended_ns: Some((10 + number + n) * 1_000_000_000),
            spent: spent(n),
        };
        [run(0), run(1)]
    };
    let unit = |id| UnitOutcome {
        name: path(id),
        entitled_micro_cpus: 1_000_000,
        used_ns: 10 + number,
        lent_ns: 5,
        borrowed_ns: 5,
        called_back: 3,
        call_back_mean_ns: 5_000_000 + number,
        call_back_max_ns: 10_000_000 - number,
        call_backs: Vec::new(),
        wakes: commonhold_sim::Latencies::default(),
        responses: commonhold_sim::Latencies::default(),
        waited_max_ns: 1,
        frames: 100,
        frames_mean: 50,
        frames_max: 200,
        memory_waited_ns: 0,
        memory_call_backs: MemoryCallBacks::default(),
        used_by_window_ns: vec![400_000_000 + number; 240],
        entitled_by_window_ns: vec![500_000_000; 240],
        verdict: commonhold_sim::outcome::Verdict::Kept,
    };
    let of_disk =
        |id| DiskUse { unit: path(id), requests: 10 + number, sectors: 80, wait_ms: 5.0, service_ms: 3.0 };
    let disk = |disk: &commonhold_sim::scenario::Disk| DiskOutcome {
        name: disk.name.clone(),
        busy_ns: 9,
        requests: 100 + number,
        latency_ms: 10.0,
        queue: 4.0,
        queue_at_arrival: 5.0,
        units: scenario.contract.ids().map(of_disk).collect(),
    };
    let exchange = Exchange {
        number: 1,
        lent: Vec::new(),
        began_ns: 5,
        until_ns: None,
        ended_ns: None,
        why: None,
        trial: None,
    };
    Outcome {
        seed: 1,
        ended_ns: 1_000_000_000_000,
        cut_off: false,
        stuck: Vec::new(),
        swap_short_bytes: 0,
        jobs: (scenario.workload.jobs.iter().enumerate().map(job))
            .chain(scenario.workload.programs.iter().filter(|program| program.is_job).flat_map(runs_of))
            .collect(),
        rounds: (scenario.workload.jobs.iter().zip(1..))
            .map(|(job, n)| RoundsOutcome {
                job: job.name.clone(),
                rounds: n * (100 + number),
                every_ns: 1_000_000_000,
                by_then: vec![0, n],
            })
            .collect(),
        wakes: (scenario.workload.jobs.iter())
            .map(|job| WakesOutcome {
                job: job.name.clone(),
                count: 100,
                median_ns: 1_000_000 + number,
                p99_ns: 20_000_000 + number,
                max_ns: 30_000_000,
                met: 90 + number,
                missed: 10,
            })
            .collect(),
        window_ns: 1_000_000_000,
        units: scenario.contract.ids().map(unit).collect(),
        common: Vec::new(),
        disks: scenario.hardware.disks.iter().map(disk).collect(),
        busy_ns: 9,
        idle_ns: 9,
        online: Vec::new(),
        switches: 9,
        locks: (scenario.workload.locks.iter())
            .map(|lock| LockOutcome {
                name: lock.name.clone(),
                taken: 100 + number,
                waits: 3,
                waited_ns: 300 + number,
                waited_max_ns: 200,
                held_ns: 1_000,
                held_max_ns: 10,
            })
            .collect(),
        ledger: Statement {
            exchanges: scenario.workload.awaited.iter().map(|_| exchange.clone()).collect(),
            ..Statement::default()
        },
        occupancy: scenario.workload.trace_ns.map(|every_ns| Occupancy {
            every_ns,
            pools: vec![vec![0, 1, 2], vec![3]],
            jobs: vec![0, 1, 2],
            moments: vec![vec![Some(0), Some(1), Some(2), None]; 12],
        }),
        plans: 1,
        events: 1,
        checks: 1,
        broken: 0,
        notes: Vec::new(),
    }
}

/// Made-up runs of the experiments that these rows need.
fn runs(rows: &[&Row]) -> Runs {
    let outcomes = |(number, experiment): (usize, Experiment)| {
        let outcome = |seed: u64| Ok(made_up(&experiment, number as u64 + seed));
        (experiment, vec![outcome(0), outcome(1)])
    };
    Runs::new(vec![1, 2], run::needed(rows).into_iter().enumerate().map(outcomes).collect())
}

#[test]
fn every_measure_finds_what_it_looks_for_in_what_its_row_needs() {
    for row in rows().into_iter().filter(|row| row.measure.is_some()) {
        let claims = assess(&[row], &runs(&[row]), &[], "");
        let measured = claims.rows[0].measured.as_ref();
        assert!(
            measured.is_some_and(|m| m.by_seed.len() == row.seeds.min(2)),
            "{}: {:?}",
            row.id,
            claims.rows[0].verdict
        );
    }
}

#[test]
fn what_was_not_run_is_not_measured() {
    let all = rows();
    let claims = assess(&all, &Runs::new(SEEDS.to_vec(), Vec::new()), &[], "");
    for claim in &claims.rows {
        match (&claim.verdict, claim.basis) {
            (Verdict::Parameter { .. }, Basis::Parameter) => {}
            (Verdict::NotMeasured { reason }, _) => assert!(!reason.is_empty()),
            other => panic!("{}: {other:?}", claim.id),
        }
    }
    assert!(claims.charts.is_empty());
}

#[test]
fn every_figure_is_drawn_from_what_the_rows_need() {
    let all = rows();
    let claims = assess(&all, &runs(&all), &[], "commonhold claims");
    let drawn: Vec<&str> = claims.charts.iter().map(|chart| chart.id.as_str()).collect();
    let expected = [
        "figure-2",
        "figure-4",
        "figure-5",
        "figure-6",
        "figure-7",
        "figure-8",
        "figure-9",
        "figure-10",
        "table-4",
        "table-5",
        "001-figure-1",
        "001-figure-2",
        "001-figure-3",
        "001-figure-5",
        "002-lock-metering",
        "003-figure-1",
        "003-figure-2",
        "004-figure-6",
    ];
    assert_eq!(drawn, expected);
    for chart in &claims.charts {
        for bar in &chart.bars {
            assert!(bar.measured.is_some(), "{}: {} {}", chart.id, bar.label, bar.class);
            assert!(bar.label.len() <= 30, "{}", bar.label);
        }
    }
    let printed = |id: &str| -> Vec<Option<f64>> {
        let chart = claims.charts.iter().find(|chart| chart.id == id).unwrap();
        chart.bars.iter().map(|bar| bar.paper).collect()
    };
    let some = |values: &[f64]| -> Vec<Option<f64>> { values.iter().copied().map(Some).collect() };
    assert_eq!(printed("002-lock-metering"), some(&[0.723, 0.425, 0.131]));
    // The two bounds "2 or more" and "almost 3" are no numbers.
    let slowdowns = [Some(1.41), Some(1.61), None, None, Some(1.02), Some(1.18), Some(1.55)];
    assert_eq!(printed("003-figure-1"), slowdowns);
    // An improvement of 41 % is 59 % of the time.
    assert_eq!(printed("003-figure-2"), some(&[0.41, 0.31, 0.13, 0.21, 0.26, 0.25].map(|part| 1.0 - part)));
    let [sixth, third] = [1.0 / 6.0, 1.0 / 3.0];
    let worth = [sixth, third, sixth, third, sixth, third, 1.0 / 12.0, sixth, 0.25];
    assert_eq!(printed("004-figure-6"), some(&worth));
    // A bar of a row has the row's figures.
    let lock = claims.rows.iter().find(|row| row.id == "CH-LOCK-1a").unwrap();
    let chart = claims.charts.iter().find(|chart| chart.id == "002-lock-metering").unwrap();
    assert_eq!(chart.bars[0].measured, lock.measured);
    // A whole report of all of it can be written: the charts and the interval plots.
    let html = commonhold_sim_report::claims::html(&claims);
    let is_plotted = |claim: &&Claim| claim.tolerance != Tolerance::None && claim.basis != Basis::Beyond;
    let plots = claims.rows.iter().filter(is_plotted).count();
    assert!(html.matches("<svg").count() == expected.len() + plots && html.ends_with("</html>\n"));
}

#[test]
fn every_experiment_is_a_scenario_and_has_a_name_of_its_own() {
    let experiments = run::needed(&rows());
    let mut names = BTreeSet::new();
    for experiment in &experiments {
        experiment.scenario().unwrap();
        assert!(names.insert(experiment.name()), "{}", experiment.name());
    }
}
