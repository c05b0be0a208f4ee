//! Each discipline divides a unit's CPUs among its sub-units, or among its tasks, as the head of its file
//! says.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use commonhold_dispatch::{Deadline, Discipline, Had, Kernel, NOBODY, Settings, TaskId, UnitRules};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const SLICE: u64 = 5 * MS;
/// The unit with the discipline, and its sub-units.
const UNIT: u32 = 2;
const SUB: [u32; 3] = [3, 4, 5];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wakes(TaskId),
    /// A CPU's task has run for its time; identified by the CPU's switch count, since it may have left
    /// meanwhile.
    Due(u32, u32),
}

/// The behaviour of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Computes,
    /// Yields after this time, and remains runnable.
    Yields(u64),
    /// Computes for the first time, then sleeps for the second.
    Sleeps(u64, u64),
}

/// A task: its behaviour, the rest of its work before it yields, and its CPU time.
#[derive(Debug, Clone, Copy)]
struct Task {
    life: Life,
    left: u64,
    had: u64,
}

struct Play {
    kernel: Kernel,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// Of each CPU: its task, since when, and its switches.
    cpus: Vec<(Option<TaskId>, u64, u32)>,
    tasks: Vec<Task>,
}

impl Play {
    /// The unit owns all CPUs; its sub-units have these weights.
    fn new(discipline: Discipline, cpus: u32, weights: [u32; 3], seed: u64) -> Play {
        let mut kernel = Kernel::new(&Settings {
            preempt_ns: Settings::preempt_ns(SLICE),
            disciplined: true,
            seed,
            ..Settings::of(cpus, 6, SLICE)
        });
        let rules = |parent, weight| UnitRules { parent, weight, discipline, ..UnitRules::USUAL };
        assert!(kernel.set_unit(0, UNIT, rules(NOBODY, 100)));
        for (sub, weight) in SUB.into_iter().zip(weights) {
            assert!(kernel.set_unit(0, sub, rules(UNIT, weight)));
        }
        for cpu in 0..cpus {
            kernel.own(0, cpu, UNIT);
            kernel.schedule(0, cpu, false);
        }
        kernel.kicks(&mut Vec::new());
        let cpus = vec![(None, 0, 0); cpus as usize];
        Play { kernel, events: BinaryHeap::new(), cpus, tasks: Vec::new() }
    }

    fn come(&mut self, at: u64, unit: u32, life: Life) -> TaskId {
        let id = TaskId::try_from(self.tasks.len()).expect("few tasks");
        let left = match life {
            Life::Computes => u64::MAX,
            Life::Yields(work) | Life::Sleeps(work, _) => work,
        };
        self.tasks.push(Task { life, left, had: 0 });
        self.kernel.start(at, id, unit);
        self.events.push(Reverse((at, Event::Wakes(id))));
        id
    }

    fn run(&mut self, until: u64) {
        while let Some(&Reverse((now, event))) = self.events.peek().filter(|Reverse((now, _))| *now < until) {
            self.events.pop();
            match event {
                Event::Wakes(id) => self.kernel.wake(now, id),
                Event::Due(cpu, number) if self.cpus[cpu as usize].2 == number => self.switch(now, cpu),
                Event::Due(..) => {}
            }
            let mut kicks = Vec::new();
            while self.kernel.has_kicks() {
                self.kernel.kicks(&mut kicks);
                for kick in kicks.drain(..) {
                    if kick.preempt || self.cpus[kick.cpu as usize].0.is_none() {
                        self.switch(now, kick.cpu);
                    }
                }
            }
        }
    }

    fn switch(&mut self, now: u64, cpu: u32) {
        let (task, since, number) = self.cpus[cpu as usize];
        let mut runnable = task.is_some();
        if let Some(id) = task {
            let task = &mut self.tasks[id as usize];
            let ran = now - since;
            task.had += ran;
            match task.life {
                Life::Computes => {}
                Life::Yields(_) | Life::Sleeps(..) if task.left > ran => task.left -= ran,
                Life::Yields(work) => {
                    task.left = work;
                    self.kernel.give_turn_up(cpu);
                }
                Life::Sleeps(work, sleep) => {
                    task.left = work;
                    runnable = false;
                    self.events.push(Reverse((now + sleep, Event::Wakes(id))));
                }
            }
        }
        let next = self.kernel.schedule(now, cpu, runnable);
        self.cpus[cpu as usize] = (next, now, number + 1);
        if let Some(id) = next {
            let length = self.kernel.slice_left(now, cpu).min(self.tasks[id as usize].left);
            self.events.push(Reverse((now + length, Event::Due(cpu, number + 1))));
        }
    }

    /// Each task's CPU time since then, in thousandths of the sum.
    fn parts(&self, before: &[u64]) -> Vec<u64> {
        let had: Vec<u64> = self.tasks.iter().zip(before).map(|(task, before)| task.had - before).collect();
        let all: u64 = had.iter().sum();
        had.iter().map(|had| had * 1_000 / all.max(1)).collect()
    }

    fn had(&self) -> Vec<u64> {
        self.tasks.iter().map(|task| task.had).collect()
    }
}

/// The shares of three sub-units with weights 1:2:3 in a minute, in thousandths, while each has a computing
/// task for every CPU. The first half-lives are excluded.
fn parts_by_weight(discipline: Discipline, cpus: u32) -> [u64; 3] {
    let mut play = Play::new(discipline, cpus, [100, 200, 300], 1);
    for _ in 0..cpus {
        for sub in SUB {
            play.come(0, sub, Life::Computes);
        }
    }
    let before = if discipline == Discipline::Decay { 600 * SECOND } else { 10 * SECOND };
    play.run(before);
    let had = play.had();
    play.run(before + 60 * SECOND);
    let parts = play.parts(&had);
    [0, 1, 2].map(|n| parts.iter().skip(n).step_by(3).sum())
}

fn expect(discipline: Discipline, parts: [u64; 3], tolerance: u64) {
    for cpus in [1, 4] {
        let found = parts_by_weight(discipline, cpus);
        let near = found.iter().zip(parts).all(|(found, part)| found.abs_diff(part) <= tolerance);
        assert!(near, "{discipline:?} on {cpus} CPUs: {found:?}, not {parts:?} within {tolerance}");
    }
}

#[test]
fn these_divide_by_weight_within_a_hundredth() {
    for discipline in [Discipline::Stride, Discipline::Entitlement, Discipline::Job] {
        expect(discipline, [167, 333, 500], 10);
    }
}

/// 12,000 turns on one CPU: three standard deviations are 0.7 %.
#[test]
fn the_lottery_divides_by_weight_as_chance_allows() {
    expect(Discipline::Lottery, [167, 333, 500], 20);
}

#[test]
fn decay_divides_by_the_square_of_the_weight() {
    expect(Discipline::Decay, [71, 286, 643], 20);
}

#[test]
fn turns_do_not_look_at_weights() {
    expect(Discipline::Rr, [333, 333, 333], 10);
    expect(Discipline::Batch, [333, 333, 333], 10);
}

/// The first of three sub-units gets all CPUs, except for rescues of tasks that have waited for seconds.
#[test]
fn fifo_serves_the_first_task_first() {
    let found = parts_by_weight(Discipline::Fifo, 1);
    assert!(found[0] >= 980, "{found:?}");
}

/// A hundred computing tasks of one unit on one CPU: no wait reaches the kernel's watchdog timeout.
#[test]
fn no_task_waits_for_thirty_seconds_under_any_discipline() {
    for discipline in Discipline::ALL {
        let mut play = Play::new(discipline, 1, [100; 3], 1);
        for _ in 0..100 {
            play.come(0, UNIT, Life::Computes);
        }
        let (mut had, mut ran_at) = (play.had(), vec![0; 100]);
        for second in 1..=120 {
            play.run(second * SECOND);
            let now = play.had();
            for (at, (now, before)) in ran_at.iter_mut().zip(now.iter().zip(&had)) {
                if now > before {
                    *at = second;
                }
                assert!(second - *at < 30, "{discipline:?}: one has not run since {at} s, at {second} s");
            }
            had = now;
        }
    }
}

/// Two tasks of one unit; one yields after each millisecond, a fifth of a slice. Without compensation it
/// would get a sixth.
#[test]
fn a_lottery_compensates_partly_used_turns() {
    let mut play = Play::new(Discipline::Lottery, 1, [100; 3], 7);
    play.come(0, UNIT, Life::Computes);
    play.come(0, UNIT, Life::Yields(MS));
    play.run(120 * SECOND);
    let parts = play.parts(&[0, 0]);
    assert!(parts[0].abs_diff(500) <= 25, "{parts:?}");
}

/// One uses a fifth of each slice and sleeps, beside another that computes: the share of the first, in
/// thousandths, of two tasks of a unit and of two sub-units.
fn part_of_a_fifth_of_each_turn(discipline: Discipline, sleep: u64) -> [u64; 2] {
    [[UNIT; 2], [SUB[0], SUB[1]]].map(|[one, other]| {
        let mut play = Play::new(discipline, 1, [100; 3], 7);
        play.come(0, one, Life::Sleeps(MS, sleep));
        play.come(0, other, Life::Computes);
        play.run(120 * SECOND);
        play.parts(&[0, 0])[0]
    })
}

/// A sleep of 10 us loses nothing. One of 4 ms loses the turn of the other during which it ends, and then a
/// sixth of the draws: a turn of 1 ms for every 1.2 slices of the other.
#[test]
fn a_lottery_compensates_after_a_sleep() {
    for (sleep, expected) in [(MS / 100, 500), (4 * MS, 143)] {
        for part in part_of_a_fifth_of_each_turn(Discipline::Lottery, sleep) {
            assert!(part.abs_diff(expected) <= expected / 20, "{part}, not {expected}, after {sleep} ns");
        }
    }
}

/// A task or sub-unit that wakes during a turn runs after that turn: a turn of 1 ms for each slice of the
/// other.
#[test]
fn who_wakes_during_a_turn_runs_after_it() {
    for part in part_of_a_fifth_of_each_turn(Discipline::Rr, MS / 100) {
        assert!(part.abs_diff(167) <= 3, "{part}");
    }
}

/// A lottery's turns are independent of each other: of ten tasks each has a tenth of the turns, by a
/// chi-square test.
#[test]
fn each_ticket_is_drawn_as_often() {
    let mut play = Play::new(Discipline::Lottery, 1, [100; 3], 3);
    for _ in 0..10 {
        play.come(0, UNIT, Life::Computes);
    }
    play.run(200 * SECOND);
    let turns = |had: &u64| f64::from(u32::try_from(had / SLICE).expect("few turns"));
    let turns: Vec<f64> = play.had().iter().map(turns).collect();
    let mean = turns.iter().sum::<f64>() / 10.0;
    let chi_square: f64 = turns.iter().map(|turns| (turns - mean).powi(2) / mean).sum();
    // Nine degrees of freedom: 21.7 for a hundredth. Below 1, chance would be too even to be one: strides.
    assert!((1.0..21.7).contains(&chi_square), "{chi_square}: {turns:?}");
}

/// One slept for a minute while another computed. Under `entitlement` it catches up, for some half-lives at
/// most, and then both get half. Under `stride` it gets half at once.
#[test]
fn a_party_that_slept_catches_up_over_several_half_lives() {
    for (discipline, first) in [(Discipline::Entitlement, 900..=1_000), (Discipline::Stride, 490..=520)] {
        let mut play = Play::new(discipline, 1, [100; 3], 1);
        play.come(0, UNIT, Life::Computes);
        play.run(60 * SECOND);
        play.come(60 * SECOND, UNIT, Life::Computes);
        let had = [play.had()[0], 0];
        play.run(61 * SECOND);
        let part = play.parts(&had)[1];
        assert!(first.contains(&part), "{discipline:?}: {part} of the first second");
        play.run(75 * SECOND);
        let had = play.had();
        play.run(90 * SECOND);
        let part = play.parts(&had)[1];
        assert!(part.abs_diff(500) <= 10, "{discipline:?}: {part} after that");
    }
}

/// Under `batch`, turns of a computing task are twenty slices; under `rr`, one.
#[test]
fn batches_are_long() {
    for (discipline, length) in [(Discipline::Rr, SLICE), (Discipline::Batch, 100 * MS)] {
        let mut play = Play::new(discipline, 1, [100; 3], 1);
        play.come(0, UNIT, Life::Computes);
        play.come(0, UNIT, Life::Computes);
        play.run(10 * SECOND);
        let switches = play.kernel.account(UNIT).switches;
        let expected = 10 * SECOND / length;
        assert!(
            switches.abs_diff(expected) <= expected / 10 + 2,
            "{discipline:?}: {switches}, not {expected}"
        );
    }
}

/// A unit may change its discipline only while no task of it runs or waits, and only if the scheduler
/// supports others.
#[test]
fn a_discipline_stays_while_tasks_are_ordered_by_it() {
    let rules = |discipline| UnitRules { parent: NOBODY, weight: 100, discipline, ..UnitRules::USUAL };
    let mut play = Play::new(Discipline::Fifo, 1, [100; 3], 1);
    assert!(play.kernel.set_unit(0, UNIT, rules(Discipline::Rr)));
    play.come(0, UNIT, Life::Computes);
    play.run(MS);
    assert!(play.kernel.set_unit(MS, UNIT, rules(Discipline::Rr)));
    assert!(!play.kernel.set_unit(MS, UNIT, rules(Discipline::Stride)));
    let mut plain = Kernel::new(&Settings::of(1, 3, SLICE));
    assert!(!plain.set_unit(0, UNIT, rules(Discipline::Rr)));
}

/// Time is handed out every tenth of a second, and sleeping saves no credit.
#[test]
fn a_job_that_slept_has_half_from_then_on() {
    let mut play = Play::new(Discipline::Job, 1, [100; 3], 1);
    play.come(0, SUB[0], Life::Computes);
    play.run(20 * SECOND);
    play.come(20 * SECOND, SUB[1], Life::Computes);
    let had = [play.had()[0], 0];
    play.run(24 * SECOND);
    let part = play.parts(&had)[1];
    assert!(part.abs_diff(500) <= 40, "{part}");
}

/// Three gangs of four threads on four CPUs: in nearly all of each turn, all CPUs run threads of one gang.
#[test]
fn a_gang_runs_on_all_cpus_at_once() {
    let together = |discipline| {
        let mut play = Play::new(discipline, 4, [100; 3], 1);
        for _ in 0..4 {
            for sub in SUB {
                play.come(0, sub, Life::Computes);
            }
        }
        let (mut together, mut turns, mut before) = (0, 0, None);
        for ms in 1..=3_000 {
            play.run(ms * MS);
            let gangs: Vec<Option<TaskId>> =
                play.cpus.iter().map(|(task, ..)| task.map(|id| id % 3)).collect();
            let one = gangs.iter().all(|gang| *gang == gangs[0]);
            together += u64::from(one);
            if one && before != gangs[0] {
                (turns, before) = (turns + 1, gangs[0]);
            }
        }
        (together, turns)
    };
    let (of_gangs, turns) = together(Discipline::Gang);
    assert!(of_gangs >= 2_700 && (25..=31).contains(&turns), "{of_gangs} ms together, {turns} turns");
    let (of_stride, _) = together(Discipline::Stride);
    assert!(of_stride <= 1_000, "{of_stride} ms together under stride");
}

/// CPUs that a gang leaves idle are used: two gangs of one thread run side by side.
#[test]
fn gangs_that_are_small_run_side_by_side() {
    let mut play = Play::new(Discipline::Gang, 2, [100; 3], 1);
    play.come(0, SUB[0], Life::Computes);
    play.come(0, SUB[1], Life::Computes);
    play.run(10 * SECOND);
    assert!(play.had().iter().all(|had| *had >= 9_900 * MS), "{:?}", play.had());
}

/// A random set of deadlines that passes admission. Either they are alike but for their windows, and fit if
/// each misses all that it may; or periods differ, and all budgets fit.
fn random_deadlines(draw: &mut impl FnMut(u32) -> u32, alike: bool) -> Vec<Deadline> {
    let slice = u32::try_from(SLICE).expect("milliseconds");
    let (mut set, mut left) = (Vec::new(), 1.0);
    let common = 1 + draw(8);
    while set.len() < 10 {
        let period = if alike { common } else { 1 + draw(16) };
        let of = 1 + draw(8);
        let misses = draw(of);
        let part = if alike { f64::from(of - misses) / f64::from(of) } else { 1.0 };
        let least = part / f64::from(period);
        if least > left + 1e-9 {
            break;
        }
        left -= least;
        set.push(Deadline { period_ns: period * slice, budget_ns: slice, misses, of });
    }
    set
}

/// The number of violated constraints and missed deadlines, with tasks that are always runnable.
fn violations(set: &[Deadline], seconds: u64) -> (u64, u64) {
    let units = 3 + u32::try_from(set.len()).expect("few");
    let mut kernel = Kernel::new(&Settings {
        preempt_ns: Settings::preempt_ns(SLICE),
        disciplined: true,
        seed: 1,
        ..Settings::of(1, units, SLICE)
    });
    let discipline = Discipline::Dwcs;
    assert!(kernel.set_unit(0, UNIT, UnitRules { discipline, ..UnitRules::USUAL }));
    for (sub, deadline) in (3..).zip(set) {
        let rules = UnitRules { parent: UNIT, deadline: *deadline, ..UnitRules::USUAL };
        assert!(kernel.set_unit(0, sub, rules));
    }
    kernel.own(0, 0, UNIT);
    kernel.schedule(0, 0, false);
    kernel.kicks(&mut Vec::new());
    let cpus = vec![(None, 0, 0); 1];
    let mut play = Play { kernel, events: BinaryHeap::new(), cpus, tasks: Vec::new() };
    for sub in 3..units {
        play.come(0, sub, Life::Computes);
    }
    play.run(seconds * SECOND);
    let sum = |of: fn(&Had) -> u64| (3..units).map(|sub| of(&play.kernel.unit(sub).deadlines.had)).sum();
    (sum(|had| had.violated), sum(|had| had.missed))
}

/// Marsaglia's xorshift.
fn draws(mut state: u64) -> impl FnMut(u32) -> u32 {
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        u32::try_from(state >> 33).expect("31 bits") % below
    }
}

/// The number of random sets, of `sets`, in which a deadline was missed. No window is violated in any.
fn missed_in(sets: u32, alike: bool) -> u32 {
    let mut draw = draws(0x5eed);
    let mut missed_some = 0;
    for number in 0..sets {
        let set = random_deadlines(&mut draw, alike);
        let (violated, missed) = violations(&set, 4);
        assert_eq!(violated, 0, "set {number}, {missed} missed: {set:?}");
        missed_some += u32::from(missed > 0);
    }
    missed_some
}

#[test]
fn no_window_is_violated_of_deadlines_that_are_alike() {
    let missed = missed_in(10_000, true);
    assert!(missed > 3_000, "in {missed} sets a deadline was missed at all");
}

#[test]
fn no_deadline_is_missed_where_all_budgets_fit() {
    assert_eq!(missed_in(10_000, false), 0);
}

/// Which of two with equal deadlines, started in this order, runs in the second period.
fn first_of(windows: [(u32, u32); 2]) -> Option<TaskId> {
    let mut play = Play::new(Discipline::Dwcs, 1, [100; 3], 1);
    for (sub, (misses, of)) in SUB.into_iter().zip(windows) {
        let deadline = Deadline { period_ns: 10_000_000, budget_ns: 5_000_000, misses, of };
        let rules = UnitRules { parent: UNIT, deadline, ..UnitRules::USUAL };
        assert!(play.kernel.set_unit(0, sub, rules));
        play.come(0, sub, Life::Computes);
    }
    play.run(12 * MS);
    play.cpus[0].0
}

/// Of two that tolerate no miss, the longer window is first; of others, the one with the lower tolerance.
#[test]
fn of_equal_deadlines_the_one_is_first_that_bears_least() {
    assert_eq!(first_of([(0, 2), (0, 5)]), Some(1));
    assert_eq!(first_of([(0, 5), (0, 2)]), Some(0));
    assert_eq!(first_of([(3, 5), (1, 5)]), Some(1));
    assert_eq!(first_of([(1, 5), (0, 5)]), Some(1));
}

/// A media player that wants 4 of each 20 ms, tolerates no miss, and sleeps in between, beside two computing
/// tasks without deadlines: it misses no deadline. With equal weights under stride it would wait for others'
/// slices.
#[test]
fn deadlines_go_before_parties_without_a_deadline() {
    let deadline = Deadline { period_ns: 20_000_000, budget_ns: 4_000_000, misses: 0, of: 1 };
    let mut play = Play::new(Discipline::Dwcs, 1, [100; 3], 1);
    let rules = UnitRules { parent: UNIT, deadline, ..UnitRules::USUAL };
    assert!(play.kernel.set_unit(0, SUB[0], rules));
    for sub in SUB {
        play.come(0, sub, Life::Computes);
    }
    play.run(10 * SECOND);
    let missed = play.kernel.unit(SUB[0]).deadlines.had.missed;
    assert_eq!(missed, 0);
    // All three take turns in the rest of each period.
    let parts = play.parts(&[0; 3]);
    assert!(parts[0] >= 200 && parts[1] >= 200 && parts[1].abs_diff(parts[2]) <= 20, "{parts:?}");
}

/// Under `smp` each task gets an equal share, whatever its sub-unit and the tickets of that. CPU time is
/// accounted to the sub-units.
#[test]
fn without_isolation_a_sub_unit_has_as_much_as_it_has_tasks() {
    for cpus in [1, 4] {
        let mut play = Play::new(Discipline::Smp, cpus, [100, 200, 300], 1);
        let crowds = [8, 4, 12];
        for (sub, tasks) in SUB.into_iter().zip(crowds) {
            for _ in 0..tasks {
                play.come(0, sub, Life::Computes);
            }
        }
        play.run(60 * SECOND);
        let used = SUB.map(|sub| play.kernel.account(sub).used_ns());
        let all = 60 * SECOND * u64::from(cpus);
        for (used, tasks) in used.into_iter().zip(crowds) {
            let part = used * 1_000 / all;
            assert!(
                part.abs_diff(tasks * 1_000 / 24) <= 10,
                "{cpus} CPUs: {part} thousandths for {tasks} of 24"
            );
        }
        assert_eq!(play.kernel.account(UNIT).used_ns(), 0);
    }
}

/// A task that moves to another sub-unit of the same unit keeps its key, and is then charged to the other
/// one.
#[test]
fn without_isolation_the_charged_unit_may_change() {
    let mut play = Play::new(Discipline::Smp, 1, [100; 3], 1);
    let task = play.come(0, SUB[0], Life::Computes);
    play.come(0, SUB[2], Life::Computes);
    play.run(10 * SECOND);
    play.kernel.move_to_unit(10 * SECOND, task, SUB[1]);
    play.run(20 * SECOND);
    let used = SUB.map(|sub| play.kernel.account(sub).used_ns() / SECOND);
    assert!(used.iter().zip([5, 5, 10]).all(|(used, expected)| used.abs_diff(expected) <= 1), "{used:?}");
}

/// The queue of a unit's tasks is fixed at its creation, so it cannot change to or from `smp` while it has
/// sub-units.
#[test]
fn the_unit_that_orders_sub_units_stays() {
    let rules = |discipline| UnitRules { parent: NOBODY, discipline, ..UnitRules::USUAL };
    let mut play = Play::new(Discipline::Smp, 1, [100; 3], 1);
    assert!(!play.kernel.set_unit(0, UNIT, rules(Discipline::Stride)));
    let mut play = Play::new(Discipline::Stride, 1, [100; 3], 1);
    assert!(!play.kernel.set_unit(0, UNIT, rules(Discipline::Smp)));
    assert!(play.kernel.set_unit(0, UNIT, rules(Discipline::Rr)));
}

/// Seed 002, scheduler classes. Each class gets what higher classes leave. Within a class, tickets count.
#[test]
fn a_higher_class_goes_first() {
    let rules = |parent, weight, discipline| UnitRules { parent, weight, discipline, ..UnitRules::USUAL };
    for (classes, expected) in [
        ([Discipline::Rr, Discipline::Stride, Discipline::Batch], [1_000, 0, 0]),
        ([Discipline::Batch, Discipline::Entitlement, Discipline::Lottery], [0, 0, 1_000]),
        ([Discipline::Batch, Discipline::Entitlement, Discipline::Batch], [0, 1_000, 0]),
        ([Discipline::Batch, Discipline::Stride, Discipline::Gang], [0, 400, 600]),
        ([Discipline::Batch, Discipline::Batch, Discipline::Batch], [167, 333, 500]),
    ] {
        for cpus in [1, 4] {
            let mut play = Play::new(Discipline::Classes, cpus, [100, 200, 300], 1);
            for ((sub, discipline), weight) in SUB.into_iter().zip(classes).zip([100, 200, 300]) {
                assert!(play.kernel.set_unit(0, sub, rules(UNIT, weight, discipline)));
                for _ in 0..cpus {
                    play.come(0, sub, Life::Computes);
                }
            }
            play.run(60 * SECOND);
            let all = 60 * SECOND * u64::from(cpus);
            let parts = SUB.map(|sub| play.kernel.account(sub).used_ns() * 1_000 / all);
            // Some of those that have waited for seconds are rescued.
            let near = parts.iter().zip(expected).all(|(part, expected)| part.abs_diff(expected) <= 20);
            assert!(near, "{classes:?} on {cpus} CPUs: {parts:?}, not {expected:?}");
        }
    }
}

/// A waking task of a higher class preempts one of a lower class, but not vice versa.
#[test]
fn a_higher_class_interrupts() {
    let rules = |discipline| UnitRules { parent: UNIT, discipline, ..UnitRules::USUAL };
    for (comes, interrupts) in
        [(Discipline::Rr, true), (Discipline::Stride, false), (Discipline::Batch, false)]
    {
        let mut play = Play::new(Discipline::Classes, 1, [100; 3], 1);
        assert!(play.kernel.set_unit(0, SUB[0], rules(Discipline::Stride)));
        assert!(play.kernel.set_unit(0, SUB[1], rules(comes)));
        play.come(0, SUB[0], Life::Computes);
        play.run(MS);
        play.come(MS, SUB[1], Life::Computes);
        play.run(2 * MS);
        assert_eq!(play.kernel.runs(0) == SUB[1], interrupts, "{comes:?}");
    }
}

/// A sub-unit that slept for a minute gets half at once, and no more: each class has its own clock.
#[test]
fn within_a_class_sleeping_earns_nothing() {
    let rules = |discipline| UnitRules { parent: UNIT, discipline, ..UnitRules::USUAL };
    let mut play = Play::new(Discipline::Classes, 1, [100; 3], 1);
    for sub in SUB {
        assert!(play.kernel.set_unit(0, sub, rules(Discipline::Batch)));
    }
    play.come(0, SUB[0], Life::Computes);
    play.run(60 * SECOND);
    play.come(60 * SECOND, SUB[1], Life::Computes);
    play.run(61 * SECOND);
    let had = play.kernel.account(SUB[1]).used_ns() * 1_000 / SECOND;
    assert!(had.abs_diff(500) <= 20, "{had} thousandths");
}
