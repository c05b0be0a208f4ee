//! Reports of a study, to the byte. Golden files: `INSTA_UPDATE=always cargo test -p commonhold-scale-report`
//! rewrites them.

use commonhold_report::Style;
use commonhold_scale::blame::{Disk, Hold, Holding, InterruptTime, Kind, Lock, Observed, Site, Wake, Waker};
use commonhold_scale::law::Law;
use commonhold_scale::locks::{self, Counts, Cycle, Delay, Locks, Trial};
use commonhold_scale::states::{State, Times};
use commonhold_scale::study::{Limit, Load, Measure, Named, Quota, Run, Size, Sizes, Study, Watched};
use commonhold_scale_report as report;

const MS: u64 = 1_000_000;

/// What its threads waited for: two thirds of it for one lock, the rest for another and at a condition
/// variable.
fn seen(states: &[(State, u64)], wall_ms: u64) -> Observed {
    let waited: u64 = states.iter().filter(|(state, _)| *state == State::Lock).map(|(_, ms)| ms * MS).sum();
    let at = |function: &str, place: &str| Site { function: function.into(), place: Some(place.into()) };
    let hold = |holding, site, ns| Hold { holding, site, thread: "worker-*".into(), ns };
    let lock =
        |kind, name: Option<&str>, waits, holds| Lock { kind, name: name.map(str::to_owned), waits, holds };
    let table = lock(
        Kind::Mutex,
        Some("table_lock"),
        vec![(at("insert", "main.c:41"), waited / 2), (at("find", "main.c:60"), waited / 6)],
        vec![
            hold(Holding::Runs, Some(at("rebuild", "main.c:80")), waited / 2),
            hold(Holding::Waits(State::Io), Some(at("flush", "log.c:12")), waited / 12),
            hold(Holding::Unknown, None, waited / 12),
        ],
    );
    let directory =
        lock(Kind::KernelReadWrite, None, vec![(at("lock_rename", "rename(2)"), waited / 6)], Vec::new());
    let queue = lock(Kind::Condition, None, vec![(at("next_job<T>", "pool.c:7"), waited / 6)], Vec::new());
    let wake = |waiter: &str, waker, ms| Wake { waiter: waiter.into(), at: None, waker, waited_ns: ms * MS };
    Observed {
        locks: vec![table, directory, queue],
        wakes: vec![
            wake("worker-*", Waker::Thread("a<b".into()), wall_ms / 2),
            wake("a<b", Waker::Interrupt, wall_ms / 3),
        ],
        interrupts: vec![InterruptTime {
            cpu: 0,
            ns: wall_ms * MS / 50,
            sources: vec![("virtio0-req".into(), wall_ms)],
        }],
        disks: vec![Disk {
            name: "vda".into(),
            mounts: vec!["/".into(), "/home".into()],
            requests: wall_ms / 10,
            waited_ns: wall_ms * MS / 2,
            busy_ns: wall_ms * MS / 4,
            bytes: 4096 * wall_ms,
        }],
        io_bytes: Some((8192, 4096 * wall_ms)),
    }
}

/// A run of that length; its threads spend it in these states, in ms.
fn run(wall_ms: u64, states: &[(State, u64)]) -> Run {
    let mut times = Times::default();
    for (state, ms) in states {
        times.add(*state, ms * MS);
    }
    let named = |name: &str, threads| Named { name: name.to_owned(), threads, times };
    let by_name = vec![named("worker-*", 8), named("a<b", 1)];
    let watched = Watched { times, by_name, threads: 9, samples: 100, observed: seen(states, wall_ms) };
    #[allow(clippy::cast_precision_loss)]
    let throughput = 1_000.0 / wall_ms as f64;
    Run { wall_ns: wall_ms * MS, throughput, load: Load::default(), watched: Some(watched) }
}

/// Runs as long as the law has them, a little more and a little less.
fn study(numbers: &[u32]) -> Study {
    let law = Law { lambda: 0.25, alpha: 0.04, beta: 0.015 };
    let size = |n: &u32| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let wall = (1e3 / law.throughput(f64::from(*n))) as u64;
        let lock = u64::from(*n - 1) * wall / 3;
        let states = [(State::User, 3_600), (State::System, 400), (State::Lock, lock), (State::Join, wall)];
        Size {
            n: *n,
            cpus: (0..*n).collect(),
            step: (*n == 8).then_some("another node"),
            runs: [wall - wall / 100, wall, wall + wall / 90].map(|ms| run(ms, &states)).into(),
            failed: None,
        }
    };
    Study {
        command: "./solve <input> -j{n}".to_owned(),
        machine: "16 CPUs, 2 nodes, 2 caches, 32 GiB memory, no swap, 1 disk".to_owned(),
        sizes_are: Sizes::Cpus,
        measure: Measure::Runs,
        warm_up: 1,
        sizes: numbers.iter().map(size).collect(),
        quota: None,
        locks: None,
        limits: vec![Limit { what: "how long CPUs wait".to_owned(), remedy: "ask".to_owned() }],
    }
}

#[test]
fn a_program_that_peaks() {
    insta::assert_snapshot!(report::text(&study(&[1, 2, 4, 8, 12, 16]), Style::PLAIN));
}

#[test]
fn a_program_that_peaks_as_json() {
    insta::assert_snapshot!(report::json(&study(&[1, 2, 4])));
}

#[test]
fn a_program_that_peaks_as_a_page() {
    insta::assert_snapshot!(report::html(&study(&[1, 2, 4, 8, 12, 16])));
}

#[test]
fn two_sizes_one_size_and_none() {
    let mut none = study(&[1]);
    none.sizes[0].runs.clear();
    none.sizes[0].failed = Some("the program ended with exit code 3: no".to_owned());
    let studies = [study(&[1, 4]), study(&[4]), none];
    let texts = studies.iter().map(|study| report::text(study, Style::PLAIN));
    insta::assert_snapshot!(texts.collect::<Vec<_>>().join("\n========\n\n"));
    assert!(studies.iter().all(|study| !report::html(study).contains("NaN")));
}

#[test]
fn printed_rates_without_samples_and_a_law_that_does_not_hold() {
    let mut study = study(&[1, 2, 4, 8, 12, 16]);
    (study.sizes_are, study.measure) = (Sizes::Number, Measure::Printed("rate: ([0-9.]+)".to_owned()));
    for size in &mut study.sizes {
        for run in &mut size.runs {
            run.watched = None;
            run.throughput *= if size.n >= 8 { 0.6 } else { 1.0 };
        }
    }
    insta::assert_snapshot!(report::text(&study, Style::PLAIN));
}

/// Eight threads on eight CPUs, and a lock that is held all the time: for 1 ms in each 2 ms of a thread's
/// work.
fn hot() -> Locks {
    let trial = |delay: Delay, ms: u64, rate: f64| {
        #[allow(clippy::cast_precision_loss)]
        let injected_s = ms as f64 / 1e3;
        let (inside, outside) = match delay {
            Delay::Inside => (injected_s, 0.0),
            _ => (0.0, injected_s),
        };
        let cycle = Cycle {
            threads: 8.0,
            span_s: 4_000.0 / rate,
            taken: 4_000,
            hold_cpu_s: 0.001 + inside,
            hold_sleep_s: 0.0,
            gap_cpu_s: 0.000_5 + outside,
            gap_sleep_s: 0.000_5,
            queue_s: 0.0,
            injected_s,
            samples: 400,
        };
        Trial { delay, delay_ns: ms * MS, wall_s: 4_000.0 / rate, throughput: rate, cycle }
    };
    let one = [
        trial(Delay::No, 0, 985.0),
        trial(Delay::Inside, 1, 495.0),
        trial(Delay::Inside, 2, 331.0),
        trial(Delay::Outside, 1, 975.0),
    ];
    let counts = Counts {
        total: 4_000,
        waited: 2_700,
        wait_ns: 24_000 * MS,
        wait_max_ns: 19 * MS,
        hold_ns: 4_000 * MS,
        hold_max_ns: 3 * MS,
        ..Counts::default()
    };
    let site = |name: &str, counts: Counts, held_by: &[(&str, u64)]| locks::Site {
        name: name.to_owned(),
        counts,
        held_by: held_by.iter().map(|(name, ms)| ((*name).to_owned(), ms * MS)).collect(),
    };
    let (push, pop) = ("push<int> (queue.c:41)", "pop (queue.c:60)");
    let queue = locks::Lock {
        class: 7,
        kind: locks::Kind::Mutex,
        name: "queue_lock".to_owned(),
        is_variable: true,
        locks: 1,
        counts,
        utilisation: 0.985,
        busiest: 1.0,
        sites: vec![
            site(
                push,
                Counts { total: 3_000, waited: 2_700, hold_ns: 3_999 * MS, rejected: 2, ..counts },
                &[(push, 18_000), (pop, 6_000)],
            ),
            site(
                pop,
                Counts { total: 1_000, retaken: 400, hold_ns: MS, hold_max_ns: 2_000, ..Counts::default() },
                &[],
            ),
        ],
        cycle: Some(one[0].cycle),
    };
    let place = "open_table (table.c:9)";
    let tables = locks::Lock {
        class: 8,
        kind: locks::Kind::Rwlock,
        name: place.to_owned(),
        is_variable: false,
        locks: 64,
        counts: Counts { total: 640, shared: 600, hold_ns: 54_400, hold_max_ns: 2_000, ..Counts::default() },
        utilisation: 0.000_1,
        busiest: 0.02,
        sites: vec![site(place, Counts { total: 640, ..Counts::default() }, &[])],
        cycle: None,
    };
    Locks {
        size: 8,
        cpus: 8,
        plain: vec![990.0, 989.0, 991.0],
        metered: vec![985.0, 984.0, 986.0],
        locks: vec![queue, tables],
        lives_ns: 36_000 * MS,
        lock_ns: 24_500 * MS,
        tried: Some(7),
        trials: one.iter().flat_map(|trial| [*trial; 3]).collect(),
        ..Locks::default()
    }
}

#[test]
fn a_lock_that_is_worth_mending() {
    let study = Study { locks: Some(hot()), ..study(&[1, 2, 4, 8]) };
    let text = report::text(&study, Style::PLAIN);
    insta::assert_snapshot!(text.split("4. Would").nth(1).unwrap_or_default());
    let page = report::html(&study);
    let part = page.split("<h2>Would").nth(1).and_then(|rest| rest.split("<h2>").next());
    insta::assert_snapshot!(part.unwrap_or_default());
    let json: serde_json::Value = serde_json::from_str(&report::json(&study)).unwrap_or_default();
    assert_eq!(json["locks"]["mend"]["verdict"], "gain");
    assert_eq!(json["locks"]["locks"][0]["sites"][0]["counts"]["rejected"], 2);
    assert_eq!(json["locks"]["untold"], serde_json::Value::Null);
}

#[test]
fn what_cannot_be_told_of_locks() {
    let said = |locks: Locks| {
        let text = report::text(&Study { locks: Some(locks), ..study(&[1, 8]) }, Style::PLAIN);
        text.split("help?\n\n").nth(1).and_then(|rest| rest.split("\nWhat was not").next()).map(str::to_owned)
    };
    let none = Locks { locks: Vec::new(), tried: None, trials: Vec::new(), ..hot() };
    let failed = Locks { failed: Some("it ended with exit code 1".to_owned()), ..none.clone() };
    let mut several = hot();
    (several.tried, several.locks) = (Some(8), several.locks.split_off(1));
    several.locks[0].kind = locks::Kind::Mutex;
    let few = Locks { trials: Vec::new(), lock_ns: 35_000 * MS, overflowed: 3, ..hot() };
    let all = [none, failed, several, few].map(|locks| said(locks).unwrap_or_default());
    insta::assert_snapshot!(all.join("\n----\n"));
}

/// The first sentence, and what is said of locks, the peak and sizes that are left out.
fn first(study: &Study) -> (String, String) {
    let text = report::text(study, Style::PLAIN).split_whitespace().collect::<Vec<_>>().join(" ");
    let from = text.find("-j{n} ").map_or(0, |at| at + "-j{n} ".len());
    (text[from..].to_owned(), text)
}

#[test]
fn what_others_used_is_said_before_any_law() {
    let mut busy = study(&[1, 2, 4]);
    for run in busy.sizes.iter_mut().flat_map(|size| &mut size.runs) {
        run.load = Load { whole_ns: 1_000 * MS, others_ns: 430 * MS, ..Load::default() };
        if let Some(watched) = &mut run.watched {
            watched.times.add(State::Queue, 3_000 * MS);
            watched.observed.locks.clear();
        }
    }
    let (begins, text) = first(&busy);
    assert!(begins.starts_with("Inconclusive: others used 43 % of these CPUs"), "{text}");
    assert!(!text.contains("hardly wait for locks"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&report::json(&busy)).unwrap_or_default();
    assert_eq!(json["outside"]["outside"], "others");
}

#[test]
fn a_quota_is_named_and_what_it_holds_back_is_left_out() {
    let mut held = study(&[1, 2, 4, 8]);
    held.quota = Some(Quota { cpus: 2.5, file: "/sys/fs/cgroup/a/cpu.max".to_owned() });
    let (begins, text) = first(&held);
    assert!(
        begins.starts_with("A CPU quota bounds it: /sys/fs/cgroup/a/cpu.max allows the time of 2.50 CPUs"),
        "{text}"
    );
    assert!(
        text.contains("Sizes 4, 8 ask for more CPUs than it can have: the quota allows the time of 2.50."),
        "{text}"
    );
    assert!(text.contains("Two sizes cannot tell"), "{text}");
}

#[test]
fn what_falls_from_the_first_step_on_says_so_and_nothing_else() {
    let mut falls = study(&[1, 2, 3, 4]);
    for size in &mut falls.sizes {
        let n = f64::from(size.n);
        size.runs.iter_mut().for_each(|run| run.throughput /= n * n * n);
    }
    let (begins, text) = first(&falls);
    assert!(begins.starts_with("Throughput falls from the first step on: it is highest at 1 CPU"), "{text}");
    assert!(!text.contains("more never costs") && !text.contains("one more adds"), "{text}");
    falls.sizes.truncate(2);
    assert!(first(&falls).0.starts_with("Throughput falls from the first step on"), "{}", first(&falls).1);
}

#[test]
fn parts_of_the_growth_are_no_more_than_the_whole_and_short_work_has_times() {
    // At 4 CPUs it waits for locks, and saves most of its time in the kernel.
    let mut short = study(&[1, 2, 4]);
    for size in &mut short.sizes {
        let last = size.n == 4;
        for run in &mut size.runs {
            // A piece of work takes less than a nanosecond.
            run.throughput *= 3e10;
            if let Some(watched) = &mut run.watched {
                watched.times = Times::default();
                watched.times.add(State::System, if last { 100 * MS } else { 3_000 * MS });
                watched.times.add(State::Lock, if last { 90_000 * MS } else { 0 });
            }
        }
    }
    let (_, text) = first(&short);
    assert!(text.contains("pieces of work cost") && !text.contains(" 0 s"), "{text}");
    for part in text.split(" %").filter_map(|part| part.rsplit(' ').next()?.parse::<f64>().ok()) {
        assert!(part <= 100.0, "{part} %: {text}");
    }
    assert!(text.contains("Against that,"), "{text}");
}

#[test]
fn points_have_an_answer_to_the_first_question_only() {
    let mut given = study(&[1, 2, 4, 8]);
    given.measure = Measure::Points("sizes.csv".to_owned());
    given.sizes_are = Sizes::Number;
    let text = first(&given).1;
    assert!(text.contains("alpha = ") && !text.contains("2. Where"), "{text}");
    assert!(!report::html(&given).contains("Where does the time go"));
}
