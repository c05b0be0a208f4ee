#![allow(clippy::unwrap_used)]
use super::*;
use crate::states::{State, Times};
use crate::study::{Measure, Sizes};

fn site(function: &str) -> Site {
    Site { function: function.to_owned(), place: Some(format!("{function}.c:1")) }
}

const S: u64 = 1_000_000_000;

fn lock(name: Option<&str>, waits: &[(&str, u64)]) -> Lock {
    Lock {
        kind: Kind::Mutex,
        name: name.map(str::to_owned),
        waits: waits.iter().map(|(function, s)| (site(function), s * S)).collect(),
        holds: Vec::new(),
    }
}

/// Two runs of a second each, and of a piece of work each, of threads that live 10 s each.
fn study(sizes: Vec<(u32, [Observed; 2])>) -> Study {
    let mut times = Times::default();
    times.add(State::Lock, 10 * S);
    let size = |(n, seen): (u32, [Observed; 2])| Size {
        n,
        cpus: "0".parse().unwrap(),
        step: None,
        runs: seen
            .map(|seen| Run {
                wall_ns: S,
                throughput: 1.0,
                load: crate::study::Load::default(),
                watched: Some(Watched { times, observed: seen, ..Watched::default() }),
            })
            .into(),
        failed: None,
    };
    Study {
        command: "x".into(),
        machine: "y".into(),
        sizes_are: Sizes::Cpus,
        measure: Measure::Runs,
        warm_up: 0,
        sizes: sizes.into_iter().map(size).collect(),
        limits: Vec::new(),
        quota: None,
        locks: None,
    }
}

fn seen(locks: &[Lock]) -> Observed {
    Observed { locks: locks.into(), ..Observed::default() }
}

#[test]
fn the_lock_that_grew_comes_first_and_not_the_one_that_was_always_slow() {
    let small = [lock(Some("always"), &[("a", 5)]), lock(Some("hot"), &[("insert", 1)])];
    let large = [lock(Some("always"), &[("a", 6)]), lock(Some("hot"), &[("insert", 1), ("rebuild", 3)])];
    let blame =
        blame(&study(vec![(1, [seen(&small), seen(&small)]), (8, [seen(&large), seen(&large)])])).unwrap();
    let told: Vec<_> = blame.culprits.iter().map(|c| (c.name.as_deref().unwrap(), c.more_s())).collect();
    assert_eq!(told, [("hot", 3.0), ("always", 1.0)]);
    let hot = &blame.culprits[0];
    let taken: Vec<_> = hot.taken.iter().map(|at| (at.site.function.as_str(), at.part)).collect();
    assert_eq!(taken, [("rebuild", 0.75), ("insert", 0.25)]);
    assert!((hot.part_of_lives - 0.4).abs() < 1e-9);
}

#[test]
fn locks_without_a_name_are_known_by_where_they_are_taken() {
    // Another address in each run. The second run saw mostly the other site of the same lock. Two in one run
    // are two.
    let first = [lock(None, &[("insert", 3), ("find", 1)]), lock(None, &[("log", 1)])];
    let second = [lock(None, &[("find", 2)]), lock(None, &[("insert", 1)]), lock(None, &[("log", 1)])];
    let blame = blame(&study(vec![(1, [seen(&[]), seen(&[])]), (2, [seen(&first), seen(&second)])])).unwrap();
    let told: Vec<_> =
        blame.culprits.iter().map(|c| (c.taken[0].site.function.as_str(), c.after_s, c.locks)).collect();
    assert_eq!(told, [("insert", 3.5, 2), ("log", 1.0, 1)]);
    // A condition variable in the same function is another thing.
    let mut condition = lock(None, &[("insert", 1)]);
    condition.kind = Kind::Condition;
    let both = seen(&[lock(None, &[("insert", 3)]), condition]);
    let blame = super::blame(&study(vec![(1, [both.clone(), both])])).unwrap();
    assert_eq!(blame.culprits.len(), 2);
    assert_eq!((blame.from, blame.to), (1, 1));
}

#[test]
fn holders_of_all_runs_are_added_up() {
    let held = |function: &str, s: u64| {
        let mut lock = lock(Some("hot"), &[("insert", 4)]);
        let hold = |site, ns| Hold { holding: Holding::Runs, site, thread: "worker-*".into(), ns };
        lock.holds = vec![hold(Some(site(function)), s * S), hold(None, S)];
        seen(&[lock])
    };
    let blame = blame(&study(vec![(4, [held("rebuild", 3), held("rebuild", 3)])])).unwrap();
    let told: Vec<_> = blame.culprits[0].held.iter().map(|held| (held.site.clone(), held.part)).collect();
    assert_eq!(told, [(Some(site("rebuild")), 0.75), (None, 0.25)]);
}

#[test]
fn the_chain_goes_from_waker_to_waker_and_ends_in_a_circle_or_outside() {
    let wake = |waiter: &str, waker: Waker, s: u64| Wake {
        waiter: waiter.into(),
        at: None,
        waker,
        waited_ns: s * S,
    };
    let thread = |name: &str| Waker::Thread(name.into());
    let wakes = vec![
        wake("main", thread("worker-*"), 3),
        wake("worker-*", thread("log"), 8),
        wake("worker-*", Waker::Interrupt, 2),
        wake("log", Waker::Interrupt, 9),
        wake("idle", Waker::Interrupt, 90),
    ];
    let of = |wakes: &[Wake]| {
        let run = Observed { wakes: wakes.into(), ..Observed::default() };
        blame(&study(vec![(4, [run.clone(), run])])).unwrap().chain
    };
    let chain = of(&wakes);
    let told: Vec<_> = chain.iter().map(|link| (link.waiter.as_str(), &link.waker, link.waited_s)).collect();
    // What waits for nothing but time begins no chain.
    assert_eq!(told, [("worker-*", &thread("log"), 8.0), ("log", &Waker::Interrupt, 9.0)]);
    assert!((chain[0].part - 0.8).abs() < 1e-9);
    let circle = of(&[wake("a", thread("b"), 2), wake("b", thread("a"), 1)]);
    assert_eq!(circle.iter().map(|link| link.waiter.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(of(&[]), []);
}

#[test]
fn interrupts_and_disks_per_piece_of_work() {
    let run = |ns: u64, requests: u64| Observed {
        interrupts: vec![InterruptTime {
            cpu: 3,
            ns,
            sources: vec![("TIMER".into(), 50), ("NET_RX".into(), 100)],
        }],
        disks: vec![Disk {
            name: "vda".into(),
            mounts: vec!["/".into()],
            requests,
            waited_ns: requests * S / 100,
            busy_ns: S / 2,
            bytes: 0,
        }],
        io_bytes: Some((10, 20)),
        ..Observed::default()
    };
    let blame =
        blame(&study(vec![(1, [run(0, 10), run(0, 10)]), (2, [run(S / 10, 40), run(S / 10, 40)])])).unwrap();
    let interrupts = blame.interrupts.unwrap();
    assert_eq!((interrupts.before_s, interrupts.after_s), (0.0, 0.1));
    assert_eq!(interrupts.by_cpu, [(3, 0.1)]);
    assert_eq!(interrupts.by_source, [("NET_RX".to_owned(), 100.0), ("TIMER".to_owned(), 50.0)]);
    let disk = &blame.disks[0];
    assert_eq!((disk.busy, disk.requests), ((0.5, 0.5), (10.0, 40.0)));
    assert!((disk.request_s.1 - 0.01).abs() < 1e-9);
    assert_eq!(blame.io_bytes, Some((10.0, 20.0)));
}
