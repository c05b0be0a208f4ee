//! CPUs: small scenarios with outcomes that are computed by hand. Unless a test sets a cost, everything on
//! these machines is free: switches, interrupts and faults.
#![allow(clippy::unwrap_used, clippy::format_push_string, reason = "texts of tests")]

mod scene;

use commonhold_sim::outcome::Outcome;
use scene::{MS, S, contract, jobs, machine, near, outcome, response, unit, workload};

const SECOND: (&str, &str) = ("second", "{ cpu = \"1s\" }");
/// A program that exists, and sleeps for an hour.
const SLEEPER: (&str, &str) = ("sleeper", "{ sleep = \"1h\" }");
const ENDLESS: (&str, &str) = ("endless", "{ repeat = \"forever\", do = [{ cpu = \"1s\" }] }");

#[test]
fn equal_units_have_a_cpu_each() {
    // Each unit: 2 s of work on its own CPU of two.
    let work = workload(&[SECOND], &[("a", "a", "second", "count = 2"), ("b", "b", "second", "count = 2")]);
    for scheme in ["isolate", "quota"] {
        let end = outcome(&contract(scheme, "", ""), &machine(2, ""), &work);
        assert_eq!((end.ended_ns, end.idle_ns), (2 * S, 0), "{scheme}");
        assert_eq!([unit(&end, "a").used_ns, unit(&end, "b").used_ns], [2 * S; 2]);
    }
}

/// Four tasks of a second in `a`, and `b` asleep, on four CPUs.
fn four_tasks(scheme: &str, a: &str, b: &str) -> Outcome {
    let work = workload(
        &[SECOND, SLEEPER],
        &[("a", "a", "second", "count = 4"), ("b", "b", "sleeper", "background = true")],
    );
    outcome(&contract(scheme, a, b), &machine(4, ""), &work)
}

#[test]
fn idle_cpus_are_lent() {
    // All four tasks at once: 1 s, two of the CPUs lent for as long.
    let end = four_tasks("isolate", "", "");
    assert_eq!(end.ended_ns, S);
    assert_eq!((unit(&end, "a").borrowed_ns, unit(&end, "b").lent_ns), (2 * S, 2 * S));
}

#[test]
fn a_quota_leaves_cpus_idle() {
    // 4 s of work on the unit's own two CPUs: 2 s. The two other CPUs idle.
    let end = four_tasks("quota", "", "");
    assert_eq!((end.ended_ns, end.idle_ns), (2 * S, 4 * S));
}

#[test]
fn who_may_not_borrow_or_lend_does_not() {
    assert_eq!(four_tasks("isolate", "borrow = false", "").ended_ns, 2 * S);
    assert_eq!(four_tasks("isolate", "", "lend = false").ended_ns, 2 * S);
    assert_eq!(four_tasks("isolate", "borrow = { memory = false }", "lend = { disk = false }").ended_ns, S);
}

#[test]
fn smp_divides_by_task_and_isolation_by_unit() {
    // One task against three, 4 s of work on two CPUs: 2 s in all. Under smp each task has half a CPU, so the
    // single task ends with the others, within a slice. With isolation the single task has its unit's CPU: 1
    // s.
    let work = workload(&[SECOND], &[("a", "a", "second", ""), ("b", "b", "second", "count = 3")]);
    let pool = outcome(&contract("smp", "", ""), &machine(2, ""), &work);
    near(response(&pool, "a"), 2 * S, 30);
    assert_eq!(pool.ended_ns, 2 * S);
    let isolated = outcome(&contract("isolate", "", ""), &machine(2, ""), &work);
    assert_eq!(response(&isolated, "a"), S);
    near(isolated.ended_ns, 2 * S, 30);
}

/// A CPU of `b`'s is called back at 503 ms.
fn call_back(how: &str, ipi: &str) -> Outcome {
    let steps = [
        ("borrower", "{ repeat = 250, do = [{ cpu = \"4ms\" }] }"),
        ("owner", "{ sleep = \"503ms\" }, { cpu = \"100ms\" }"),
    ];
    let work = workload(&steps, &[("b", "b", "owner", ""), ("a", "a", "borrower", "count = 2")]);
    let costs = format!("call_back = \"{how}\"\nipi = \"{ipi}\"");
    outcome(&contract("isolate", "", ""), &machine(2, &costs), &work)
}

#[test]
fn a_loan_is_called_back_at_the_next_tick() {
    // `b` came first and owns the first of two CPUs, which ticks at 5, 15, ... ms: 2 ms from 503 to 505.
    let end = call_back("tick", "0s");
    let b = unit(&end, "b");
    assert_eq!((b.called_back, b.call_back_max_ns, response(&end, "b")), (1, 2 * MS, 605 * MS));
}

#[test]
fn a_loan_is_called_back_when_the_borrower_enters_the_kernel() {
    // The borrower enters the kernel every 4 ms: at 504 ms.
    let end = call_back("entry", "0s");
    let b = unit(&end, "b");
    assert_eq!((b.called_back, b.call_back_max_ns, response(&end, "b")), (1, MS, 604 * MS));
}

#[test]
fn a_loan_is_called_back_at_once_by_an_interrupt() {
    // 250 us later. The owner's first wake-up, of an idle CPU, took an interrupt too: its work begins 2 * 250
    // us late.
    let end = call_back("now", "250us");
    let b = unit(&end, "b");
    assert_eq!((b.called_back, b.call_back_max_ns, response(&end, "b")), (1, MS / 4, 603 * MS + MS / 2));
}

/// 500 rounds, each with a sleep of 10 ms, a page read of 5 ms, and 10 ms of work: 25 ms together. With two
/// interrupts per round that take 3 ms in the mean, a round takes 31 ms. (The mean of 1000 draws deviates by
/// 3 % of 3 ms.)
#[test]
fn interrupts_are_late() {
    let steps = "{ repeat = 500, do = [{ sleep = \"10ms\" }, { read = \"data\", bytes = \"4KiB\" }, { cpu = \"10ms\" }] }";
    let work = workload(&[("steps", steps)], &[("a", "a", "steps", "")]) + "[file.data]\nsize = \"1GiB\"\n";
    let disk = "[disk.d0]\nmodel = \"fixed\"\naccess = \"5ms\"\nrate = \"64GB/s\"\nsize = \"4GiB\"\n";
    let took = |costs: &str| {
        let costs = format!("{costs}\nread_ahead = 0\nrequest_sectors = 8");
        let end = outcome(&contract("isolate", "", ""), &(machine(1, &costs) + disk), &work);
        response(&end, "a")
    };
    near(took("interrupt = \"0s\""), 500 * 25 * MS, 1);
    near(took("interrupt = \"3ms\""), 500 * 31 * MS, 10);
}

#[test]
fn a_guest_that_comes_beside_a_waiting_owner_is_called_back() {
    // Both tasks of `a` are on their way to both CPUs when `b` starts at the same moment. So `b` waits 250 us
    // for the call-back of its CPU, sleeps for 503 ms, and waits for another 250 us.
    let steps = [("borrower", "{ cpu = \"1s\" }"), ("owner", "{ sleep = \"503ms\" }, { cpu = \"100ms\" }")];
    let work = workload(&steps, &[("a", "a", "borrower", "count = 2"), ("b", "b", "owner", "")]);
    let end = outcome(&contract("isolate", "", ""), &machine(2, "ipi = \"250us\""), &work);
    let b = unit(&end, "b");
    assert_eq!((b.called_back, b.call_back_max_ns, response(&end, "b")), (2, MS / 4, 603 * MS + 3 * MS / 4));
}

#[test]
fn a_unit_that_comes_has_its_cpus_at_once() {
    // The call-back falls between two steps of the policy, which are 250 ms apart.
    let work =
        workload(&[SECOND], &[("a", "a", "second", "count = 2"), ("b", "b", "second", "start = \"100ms\"")]);
    for scheme in ["isolate", "quota"] {
        let end = outcome(&contract(scheme, "", ""), &machine(2, "call_back = \"now\""), &work);
        assert_eq!(response(&end, "b"), S, "{scheme}");
    }
}

#[test]
fn fractions_of_cpus_are_held_by_turns() {
    // 3 : 1 on two CPUs: 1.5 and 0.5 of them. A hundred turns of 250 ms.
    let work = workload(
        &[ENDLESS],
        &[
            ("a", "a", "endless", "count = 2\nbackground = true"),
            ("b", "b", "endless", "count = 2\nbackground = true"),
        ],
    );
    let work = work.replace("1h", "25s");
    for scheme in ["isolate", "quota"] {
        let end = outcome(&contract(scheme, "tickets = 300", ""), &machine(2, ""), &work);
        near(unit(&end, "a").used_ns, 37_500 * MS, 10);
        near(unit(&end, "b").used_ns, 12_500 * MS, 10);
    }
}

#[test]
fn more_units_than_cpus_share_their_time() {
    // Tickets 1 : 2 : 3 : 4 : 5 on two CPUs for 30 s: 4, 8, 12, 16 and 20 s.
    let unit_of = |i: u64| format!("[unit.u{i}]\ntickets = {}\n", i * 100);
    let units: String = (1..=5).map(unit_of).collect();
    let names: Vec<String> = (1..=5).map(|i| format!("u{i}")).collect();
    let jobs: Vec<_> =
        names.iter().map(|u| (u.as_str(), u.as_str(), "endless", "count = 2\nbackground = true")).collect();
    let work = workload(&[ENDLESS], &jobs).replace("1h", "30s");
    let end = outcome(&format!("version = 1\n{units}"), &machine(2, ""), &work);
    for i in 1..=5 {
        near(unit(&end, &format!("u{i}")).used_ns, 4 * i * S, 20);
    }
}

/// Two siblings that meet at a barrier after half of their work.
fn meeting(cpus: u32, spin: bool) -> Outcome {
    let party = format!("{{ cpu = \"10ms\" }}, {{ barrier = 2, spin = {spin} }}, {{ cpu = \"10ms\" }}");
    let steps = [("party", party.as_str()), ("pair", "{ run = \"party\", times = 2, at_once = 2 }")];
    outcome(&contract("isolate", "", ""), &machine(cpus, ""), &workload(&steps, &[("a", "a", "pair", "")]))
}

#[test]
fn siblings_meet_at_a_barrier() {
    assert_eq!([meeting(2, false).ended_ns, meeting(2, true).ended_ns], [20 * MS; 2]);
    // On one CPU: the first sibling waits from 10 ms on. The second reaches the barrier at 20 ms and ends at
    // 30; the first ends at 40.
    assert_eq!(meeting(1, false).ended_ns, 40 * MS);
}

#[test]
fn who_spins_keeps_the_cpu_for_its_slice() {
    // The first sibling spins from 10 to 30 ms. The second reaches the barrier at 40 ms and ends at 50; the
    // first ends at 60.
    let end = meeting(1, true);
    let spent = jobs(&end, "a")[0].spent;
    assert_eq!((end.ended_ns, spent.spin_ns, spent.work_ns, spent.stall_ns), (60 * MS, 20 * MS, 40 * MS, 0));
}

#[test]
fn spinning_ends_when_the_last_one_comes() {
    // The two work 10 ms and 14 ms before they meet: 4 ms of spinning, none of which counts as waiting for
    // memory.
    let steps = [
        (
            "party",
            "{ lock = \"m\", do = [{ cpu = \"4ms\" }] }, { cpu = \"6ms\" }, { barrier = 2, spin = true }",
        ),
        ("pair", "{ run = \"party\", times = 2, at_once = 2 }"),
    ];
    let work = workload(&steps, &[("a", "a", "pair", "")]) + "[lock.m]\n";
    let end = outcome(&contract("isolate", "", ""), &machine(2, ""), &work);
    let spent = jobs(&end, "a")[0].spent;
    assert_eq!((end.ended_ns, spent.spin_ns, spent.stall_ns), (14 * MS, 4 * MS, 0));
}

#[test]
fn a_process_runs_others_so_many_at_once() {
    let run = |times: u32, at_once: u32| {
        let make = format!("{{ run = \"child\", times = {times}, at_once = {at_once} }}");
        let steps = [("child", "{ cpu = \"100ms\" }"), ("make", make.as_str())];
        let work = workload(&steps, &[("a", "a", "make", "")]);
        outcome(&contract("isolate", "", ""), &machine(4, "fork = \"10ms\""), &work).ended_ns
    };
    // One after the other: three times 10 + 100 ms. Two at once: children start at 10, 20, 120, 130, 230 and
    // 240 ms.
    assert_eq!(run(3, 1), 330 * MS);
    assert_eq!(run(6, 2), 340 * MS);
}

/// Three tasks compute all the time, and one computes for 10 ms and sleeps for 90, on one CPU. The task that
/// used less goes first, and preempts a task that used more by a quarter of a slice. So it does not wait for
/// the rest of a slice of 30 ms (15 ms in the mean), nor for a round of the other tasks (60 ms more).
#[test]
fn within_a_unit_who_used_less_comes_first() {
    let steps = [
        ("hog", "{ cpu = \"5s\" }"),
        ("brief", "{ repeat = 20, do = [{ cpu = \"10ms\" }, { sleep = \"90ms\" }] }"),
    ];
    let work = workload(&steps, &[("hog", "a", "hog", "count = 3"), ("brief", "a", "brief", "")]);
    let end = outcome(&contract("isolate", "", ""), &machine(1, "slice = \"30ms\""), &work);
    let waited = jobs(&end, "brief")[0].spent.waited_ns;
    assert!(waited <= 20 * 5 * MS, "it waited {} ms in all", waited / MS);
    // The hogs took turns: with about 5 s of CPU time each, no hog was ahead of another by more than a slice.
    let hogs: Vec<u64> = jobs(&end, "hog").iter().map(|job| job.ended_ns.unwrap_or(0)).collect();
    assert!(hogs.iter().max().unwrap() - hogs.iter().min().unwrap() <= 2 * 30 * MS, "{hogs:?}");
}

/// Units `a/x` (one ticket), `a/y` (three) and `b` time-share two CPUs. Each unit that `who` names has two
/// endless tasks.
fn currencies(mode: &str, who: &[&str]) -> Outcome {
    let contract = format!(
        "version = 1\n[machine]\ncpu = \"{mode}\"\n[unit.a]\n[unit.a.unit.x]\ntickets = 1\n[unit.a.unit.y]\ntickets = 3\n\
         [unit.b]\n"
    );
    let mut work = "version = 1\nhorizon = \"4s\"\n[program.endless]\n\
        do = [{ repeat = \"forever\", do = [{ cpu = \"1s\" }] }]\n[program.sleeper]\ndo = [{ sleep = \"1h\" }]\n".to_owned();
    for (number, unit) in ["a/x", "a/y", "b"].into_iter().enumerate() {
        // The other units have a process that sleeps: their tickets count, but are idle.
        let (program, count) = if who.contains(&unit) { ("endless", 2) } else { ("sleeper", 1) };
        work += &format!(
            "[job.j{number}]\nunit = \"{unit}\"\nprogram = \"{program}\"\ncount = {count}\nbackground = true\n"
        );
    }
    outcome(&contract, &machine(2, "slice = \"5ms\""), &work)
}

#[test]
fn sub_units_divide_what_the_unit_around_them_has() {
    // 8 s of CPU time: 4 s for b, 1 s for a/x and 3 s for a/y, by home CPUs and by weight alike.
    for mode in ["partition", "proportional"] {
        let end = currencies(mode, &["a/x", "a/y", "b"]);
        let used = ["a/x", "a/y", "b"].map(|name| unit(&end, name).used_ns);
        for (used, expected) in used.into_iter().zip([S, 3 * S, 4 * S]) {
            near(used, expected, 20);
        }
    }
}

/// Eight CPUs with slices that end at different moments are divided 1:3 between p and q, and within them 1:3
/// and 1:1, with eight tasks in each sub-unit. Running tasks count before they are charged, so no unit is
/// ever further from its part than two slices of 5 ms, whether the smallest part is a sub-unit's or that of
/// p's own tasks.
#[test]
fn whoever_divides_a_part_of_many_cpus_is_near_it_at_every_moment() {
    let tree = "version = 1\n[machine]\ncpu = \"proportional\"\n[unit.p]\n[unit.p.unit.y]\ntickets = 300\n[unit.q]\n\
        tickets = 300\n[unit.q.unit.x]\n[unit.q.unit.y]\n";
    for (smallest, contract) in [("p/x", format!("{tree}[unit.p.unit.x]\n")), ("p", tree.to_owned())] {
        for seconds in 1..=8 {
            let mut work = format!(
                "version = 1\nhorizon = \"{seconds}s\"\n[program.busy]\n\
                 do = [{{ repeat = \"forever\", do = [{{ cpu = \"9ms\", spread = \"50%\" }}, {{ sleep = \"50us\" }}] }}]\n"
            );
            for (number, unit) in [smallest, "p/y", "q/x", "q/y"].iter().enumerate() {
                work += &format!(
                    "[job.j{number}]\nunit = \"{unit}\"\nprogram = \"busy\"\ncount = 8\nbackground = true\n"
                );
            }
            let end = outcome(&contract, &machine(8, "slice = \"5ms\""), &work);
            let used = [smallest, "p/y", "q/x", "q/y"].map(|name| unit(&end, name).used_ns);
            let all: u64 = used.iter().sum();
            for (used, parts) in used.into_iter().zip([1, 3, 6, 6]) {
                let off = used.abs_diff(all * parts / 16);
                assert!(
                    off <= 10 * MS,
                    "after {seconds} s {parts}/16 of {smallest}'s: off by {} us",
                    off / 1_000
                );
            }
        }
    }
}

#[test]
fn what_a_sub_unit_leaves_goes_to_its_siblings_first() {
    // a/y sleeps: its 3 s are a/x's, and none of them b's (seed 004, section 5.2).
    for mode in ["partition", "proportional"] {
        let end = currencies(mode, &["a/x", "b"]);
        for name in ["a/x", "b"] {
            near(unit(&end, name).used_ns, 4 * S, 20);
        }
    }
}

#[test]
fn a_process_sleeps_as_long_as_it_says() {
    let steps = [("p", "{ repeat = 10, do = [{ sleep = \"7ms\" }, { cpu = \"1ms\" }] }")];
    let end =
        outcome(&contract("isolate", "", ""), &machine(1, ""), &workload(&steps, &[("a", "a", "p", "")]));
    let spent = jobs(&end, "a")[0].spent;
    assert_eq!((end.ended_ns, spent.blocked_ns, spent.work_ns), (80 * MS, 70 * MS, 10 * MS));
}

#[test]
fn amounts_spread_around_their_mean() {
    // A thousand draws of 1 ms: the standard deviation of the sum is 1.8 % for uniform draws within 100 %,
    // and 3.2 % for exponential draws. Three standard deviations are allowed.
    for (spread, per_mille) in [("0%", 0), ("100%", 55), ("exponential", 95)] {
        let steps = format!("{{ repeat = 1000, do = [{{ cpu = \"1ms\", spread = \"{spread}\" }}] }}");
        let work = workload(&[("p", &steps)], &[("a", "a", "p", "")]);
        let end = outcome(&contract("isolate", "", ""), &machine(1, ""), &work);
        near(end.ended_ns, S, per_mille);
    }
}

#[test]
fn a_switch_costs_what_it_says() {
    // Two tasks of 60 ms on one CPU, in slices of 30 ms: four turns, each of which begins with a switch of 1
    // ms that the slice pays: work of 29 ms a turn, so that each task needs a third turn. Six switches in
    // all.
    let work = workload(&[("p", "{ cpu = \"60ms\" }")], &[("a", "a", "p", "count = 2")]);
    let end = outcome(&contract("isolate", "", ""), &machine(1, "switch = \"1ms\""), &work);
    assert_eq!((end.ended_ns, end.switches), (126 * MS, 6));
}

/// A task that was alone for five seconds then shares with newcomers: time alone is no debt. Two newcomers
/// with 2 s of work each start at 5 s. Within one unit, and without isolation, each has a third of the CPU.
/// If the newcomers' unit competes with that of the first task, it has half of the CPU, and each newcomer a
/// quarter. No task waits for longer than the slices of 30 ms of the other tasks or units.
#[test]
fn who_was_alone_owes_nothing_to_who_comes() {
    let work = |b: &str| {
        workload(
            &[ENDLESS, ("late", "{ cpu = \"2s\" }")],
            &[("a", "a", "endless", "background = true"), ("b", b, "late", "start = \"5s\"\ncount = 2")],
        )
    };
    let shared = "version = 1\n[machine]\ncpu = \"proportional\"\n[unit.a]\n[unit.b]\n".to_owned();
    for (how, contract, b, seconds) in [
        ("within a unit", contract("isolate", "", ""), "a", 6),
        ("without isolation", contract("smp", "", ""), "b", 6),
        ("on a time-shared CPU", shared, "b", 8),
    ] {
        let end = outcome(&contract, &machine(1, ""), &work(b));
        let waited = end.units.iter().map(|unit| unit.waited_max_ns).max().unwrap();
        assert!(waited <= 90 * MS, "{how}: {} ms", waited / MS);
        near(response(&end, "b"), seconds * S, 10);
    }
}

/// `b`, with three times the tickets, has one task for ten seconds, and then four. In these ten seconds `b`
/// had no more than one of two time-shared CPUs, but the time that it left to `a` is no credit. From then on
/// `a` has its half of a CPU: 3 s of work take 6 s.
#[test]
fn who_used_less_than_its_share_has_saved_nothing_up() {
    let contract = "version = 1\n[machine]\ncpu = \"proportional\"\n[unit.a]\n[unit.b]\ntickets = 300\n";
    let jobs = [
        ("b", "b", "endless", "background = true"),
        ("more", "b", "endless", "start = \"10s\"\ncount = 3\nbackground = true"),
        ("a", "a", "work", ""),
    ];
    let work = workload(&[ENDLESS, ("work", "{ cpu = \"13s\" }")], &jobs);
    let end = outcome(contract, &machine(2, ""), &work);
    near(response(&end, "a"), 16 * S, 10);
    assert!(unit(&end, "a").waited_max_ns <= 200 * MS, "{} ms", unit(&end, "a").waited_max_ns / MS);
}

/// For ten seconds `a` has tasks for three of four CPUs, and `c`, with a single ticket, uses the fourth. So
/// `a` used less than its entitlement, which is nearly all four CPUs. That is no credit against `b`, which
/// then starts with as many tickets as `a`: from then on both have two CPUs each (less a hundredth for `c`),
/// though the tasks of `a` never slept.
#[test]
fn who_runs_on_with_less_than_its_share_has_saved_nothing_up_either() {
    let contract =
        "version = 1\n[machine]\ncpu = \"proportional\"\n[unit.a]\n[unit.b]\n[unit.c]\ntickets = 1\n";
    let jobs = [
        ("a", "a", "endless", "count = 3\nbackground = true"),
        ("c", "c", "endless", "background = true"),
        ("b", "b", "work", "start = \"10s\"\ncount = 4"),
    ];
    let work = workload(&[ENDLESS, ("work", "{ cpu = \"2s\" }")], &jobs);
    let end = outcome(contract, &machine(4, ""), &work);
    // Eight seconds of work on two CPUs.
    near(response(&end, "b"), 4 * S, 20);
}

/// Interrupts take half of a CPU's time. If they all go to the second of two CPUs, its task needs 200 ms for
/// 100 ms of work. If they are spread over both CPUs, a quarter each, the task needs 133.3 ms.
#[test]
fn interrupts_take_time_from_who_runs_there() {
    let jobs = [("w", "a", "worker", "count = 2")];
    let work = workload(&[("worker", "{ cpu = \"100ms\" }")], &jobs);
    let ended = |more: &str| -> Vec<u64> {
        let end = outcome(&contract("smp", "", ""), &(machine(2, "") + more), &work);
        assert_eq!(end.jobs.iter().map(|job| job.spent.work_ns).collect::<Vec<_>>(), [100 * MS; 2]);
        end.jobs.iter().filter_map(|job| job.ended_ns).collect()
    };
    assert_eq!(ended(""), [100 * MS; 2]);
    assert_eq!(ended("[interrupts]\npart = \"50%\"\ncpu = 1"), [100 * MS, 200 * MS]);
    for time in ended("[interrupts]\npart = \"50%\"") {
        near(time, 133_333_333, 1);
    }
}
