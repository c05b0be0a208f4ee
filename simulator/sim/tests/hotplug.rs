//! CPUs that go offline and come online, on machines where everything else is free; and machines whose nodes
//! differ. The outcomes are computed by hand.
#![allow(clippy::unwrap_used, clippy::format_push_string, reason = "texts of tests")]

mod scene;

use commonhold_contract::render;
use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::{Overrides, Scheduler, read_with};
use scene::{MS, S, contract, jobs, machine, near, outcome, unit, workload};

const ENDLESS: (&str, &str) = ("endless", "{ repeat = \"forever\", do = [{ cpu = \"1s\" }] }");

/// Two tasks of each unit that compute for 30 s, on four CPUs, of which `offline` are away from 10 s to 20 s.
fn away(scheme: &str, offline: &str) -> Outcome {
    let background = "count = 2\nbackground = true";
    let mut work =
        workload(&[ENDLESS], &[("a", "a", "endless", background), ("b", "b", "endless", background)]);
    work = work.replace("1h", "30s");
    work += &format!("[cpus.go]\nat = \"10s\"\noffline = \"{offline}\"\n");
    work += &format!("[cpus.come]\nat = \"20s\"\nonline = \"{offline}\"\n");
    outcome(&contract(scheme, "", ""), &machine(4, ""), &work)
}

/// The CPU time that a unit used in these seconds of the run, in ns.
fn used(outcome: &Outcome, name: &str, seconds: std::ops::Range<usize>) -> u64 {
    unit(outcome, name).used_by_window_ns[seconds].iter().sum()
}

#[test]
fn units_divide_the_cpus_that_are_left() {
    // Two CPUs each, then one each, then two each. Whichever CPUs go, those of one unit or one of each. The
    // daemon notices within 1.25 s.
    for (scheme, offline) in [("quota", "0-1"), ("quota", "1,3"), ("isolate", "2-3"), ("isolate", "0,2")] {
        let end = away(scheme, offline);
        for name in ["a", "b"] {
            assert_eq!(used(&end, name, 0..10), 20 * S, "{name} {scheme} {offline}");
            near(used(&end, name, 12..20), 8 * S, 5);
            assert_eq!(used(&end, name, 22..30), 16 * S, "{name} {scheme} {offline}");
            near(unit(&end, name).entitled_by_window_ns[12..20].iter().sum(), 8 * S, 1);
        }
        // 120 s of four CPUs, without 20 s. What is not used idles until the daemon has noticed.
        assert_eq!(end.busy_ns + end.idle_ns, 100 * S);
        assert!(end.idle_ns < 5 * S, "{scheme} {offline}: {}", end.idle_ns);
        let ledger = &end.ledger;
        assert_eq!((ledger.capacity_ns, ledger.idle_ns, ledger.cpus), (100 * S, end.idle_ns, 4));
    }
}

#[test]
fn the_outcome_has_the_cpus_that_were_online_and_when_the_daemon_noticed() {
    let end = away("isolate", "1-2");
    let periods: Vec<(u64, usize, String)> =
        end.online.iter().map(|period| (period.at_ns, period.count, period.cpus.to_string())).collect();
    let expected = [(0, 4, "0-3"), (10 * S, 2, "0,3"), (20 * S, 4, "0-3")];
    assert_eq!(periods, expected.map(|(at, count, cpus)| (at, count, cpus.to_owned())));
    assert_eq!(end.online[0].noticed_ns, Some(0));
    for period in &end.online[1..] {
        // At the first turn after a second without a check.
        assert!((0..1_250 * MS).contains(&(period.noticed_ns.unwrap() - period.at_ns)), "{period:?}");
    }
}

#[test]
fn no_work_is_lost() {
    // Four tasks of 2 s. After 1 s, 4 s of work remain for the last two CPUs: 2 s. Each task has done 2 s of
    // work then, and waited for half of the last 2 s, to within a slice.
    let work = workload(&[("two", "{ cpu = \"2s\" }")], &[("a", "a", "two", "count = 4")])
        + "[cpus.go]\nat = \"1s\"\noffline = \"0,2\"\n";
    let end = outcome(&contract("isolate", "", ""), &machine(4, ""), &work);
    near(end.ended_ns, 3 * S, 20);
    assert_eq!(end.busy_ns, 8 * S);
    for job in jobs(&end, "a") {
        assert_eq!(job.spent.work_ns, 2 * S);
        near(job.spent.waited_ns, S, 60);
    }
}

#[test]
fn a_loan_ends_with_its_cpu() {
    // `b` sleeps for 20 s and lends its two CPUs to the four tasks of `a`. At 10 s both go offline, so that
    // each unit has one of the other two. At 20 s `b` wakes up and has its CPU at once.
    let steps = [ENDLESS, ("late", "{ sleep = \"20s\" }, { cpu = \"5s\" }")];
    for offline in ["0-1", "2-3"] {
        let mut work = workload(
            &steps,
            &[("a", "a", "endless", "count = 4\nbackground = true"), ("b", "b", "late", "")],
        );
        work += &format!("[cpus.go]\nat = \"10s\"\noffline = \"{offline}\"\n");
        let end = outcome(&contract("isolate", "", ""), &machine(4, ""), &work);
        assert_eq!(end.ended_ns, 25 * S, "{offline}");
        assert_eq!(unit(&end, "b").called_back, 1);
        // Two CPUs for 10 s, then one for 10 s, but for the time until the daemon noticed.
        let lent = unit(&end, "b").lent_ns;
        assert!((28 * S..=32 * S).contains(&lent), "{offline}: {lent}");
        assert_eq!(lent, unit(&end, "a").borrowed_ns);
    }
}

#[test]
fn cpus_that_are_offline_at_first_are_unknown_to_the_daemon() {
    let work =
        workload(&[("second", "{ cpu = \"1s\" }")], &[("a", "a", "second", ""), ("b", "b", "second", "")])
            + "[cpus.never]\noffline = \"0,2-3\"\n";
    let end = outcome(&contract("isolate", "", ""), &machine(4, ""), &work);
    assert_eq!((end.ended_ns, end.idle_ns, end.ledger.cpus), (2 * S, 0, 1));
    assert_eq!(unit(&end, "a").entitled_micro_cpus, 500_000);
    assert_eq!(end.online.len(), 1);
}

#[test]
fn a_cpu_goes_offline_after_the_release_of_a_spin_lock() {
    // The lock is held from 0 s to 2 s, on whichever CPU. The change at 1 s waits for that, if it is there.
    let steps = [("holds", "{ lock = \"l\", do = [{ cpu = \"2s\" }] }, { cpu = \"1s\" }")];
    for (offline, at) in [("0", 2 * S), ("1", S)] {
        let mut work = workload(&steps, &[("a", "a", "holds", "")]);
        work += &format!("[lock.l]\nspins = true\n[cpus.go]\nat = \"1s\"\noffline = \"{offline}\"\n");
        let end = outcome(&contract("isolate", "", "").replace("[unit.b]", ""), &machine(2, ""), &work);
        assert_eq!((end.online[1].at_ns, end.ended_ns), (at, 3 * S), "{offline}");
    }
}

#[test]
fn memory_stays() {
    let texts = |hotplug: &str| {
        let machine = machine(4, "").replace("cpus:4", "nodes:2 cpus:2") + "[disk.d0]\n";
        let work = workload(&[("hog", "{ cpu = \"5s\" }")], &[("a", "a", "hog", ""), ("b", "b", "hog", "")]);
        let work = work.replace("[program.hog]", "[program.hog]\nmemory = \"8MiB\"");
        outcome(&contract("isolate", "", ""), &machine, &(work + hotplug))
    };
    let (all, half) = (texts(""), texts("[cpus.go]\nat = \"1s\"\noffline = \"0-1\"\n"));
    assert!(all.online.is_empty());
    assert_eq!(all.ledger.memory, half.ledger.memory);
    assert_eq!([unit(&all, "a").frames_max, unit(&all, "b").frames_max], [2048; 2]);
    assert_eq!([unit(&half, "a").frames_max, unit(&half, "b").frames_max], [2048; 2]);
}

#[test]
fn older_schedulers_know_no_hotplug() {
    let work = workload(&[ENDLESS], &[("a", "a", "endless", "background = true")]);
    let work = work + "[cpus.maintenance]\nat = \"10s\"\noffline = \"1\"\n";
    let overrides = Overrides { scheduler: Some(Scheduler::Linux24), ..Overrides::default() };
    let read = read_with(&contract("smp", "", ""), &machine(2, ""), &work, overrides);
    assert!(read.scenario.is_none());
    let shown = render(&read.findings.last().unwrap().diagnostics, &work, "workload.toml", false);
    assert_eq!(
        shown.trim(),
        "\
error[fixed-cpus]: the scheduler linux-2.4 knows no CPUs that go offline or come online
 --> workload.toml:9:7
  |
9 | [cpus.maintenance]
  |       ^^^^^^^^^^^
  |
  = help: remove [cpus.maintenance], or leave `scheduler` out"
    );
}

/// Units of three, two and one of the CPUs of three nodes that differ, one without CPUs and one without
/// memory.
#[test]
fn units_have_their_shares_of_uneven_nodes() {
    let contract = "version = 1\n[machine]\nscheme = \"quota\"\n[unit.a]\ntickets = 150\n[unit.b]\n[unit.c]\n\
                    tickets = 50\n";
    let machine = machine(1, "").replace("cpus:1 memory:64MiB", "cpus:4,0,2 memory:48MiB,16MiB,0B");
    let job = |unit| (unit, unit, "endless", "count = 4\nbackground = true");
    let work = workload(&[ENDLESS], &[job("a"), job("b"), job("c")]).replace("1h", "10s");
    let end = outcome(contract, &machine, &work);
    for (name, seconds) in [("a", 30), ("b", 20), ("c", 10)] {
        near(unit(&end, name).used_ns, seconds * S, 1);
    }
    assert_eq!((end.busy_ns, end.idle_ns), (60 * S, 0));
}
