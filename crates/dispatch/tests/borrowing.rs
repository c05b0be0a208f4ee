//! A lent CPU goes to the borrower that had the least of lent CPU time for its weight. So borrowers that
//! always have work divide what is lent by their weights.

use commonhold_dispatch::{
    ANYWHERE, BORROWS, COMMON, KERNEL, Kernel, LENDS, NOBODY, Recall, Settings, TaskId, UnitRules,
};

const MS: u64 = 1_000_000;
const SLICE: u64 = 5 * MS;
/// The owner, which has nothing to do, and two that borrow, with claims of 1:3.
const OWNER: u32 = 2;
const ONE: u32 = 3;
const THREE: u32 = 4;

/// CPUs that always have something to run.
struct Busy {
    kernel: Kernel,
    /// When each CPU's slice ends.
    due: Vec<u64>,
    runs: Vec<Option<TaskId>>,
    tasks: TaskId,
}

impl Busy {
    /// `lent` CPUs are lent, and the borrowers own `own` CPUs. Slices begin at different times, evenly
    /// spread, unless `at_once`.
    fn new(lent: u32, at_once: bool, own: [u32; 2]) -> Busy {
        let cpus = lent + own[0] + own[1];
        let (near, recall) = (Vec::new(), Recall::Now);
        let mut kernel = Kernel::new(&Settings { near, recall, ..Settings::of(cpus, 5, SLICE) });
        for (unit, weight, flags) in [(OWNER, 100, LENDS), (ONE, 100, BORROWS), (THREE, 300, BORROWS)] {
            assert!(kernel.set_unit(
                0,
                unit,
                UnitRules { parent: NOBODY, weight, flags, ..UnitRules::USUAL }
            ));
        }
        for cpu in 0..cpus {
            let unit = match cpu {
                cpu if cpu < lent => OWNER,
                cpu if cpu < lent + own[0] => ONE,
                _ => THREE,
            };
            kernel.own(0, cpu, unit);
            kernel.schedule(0, cpu, false);
        }
        kernel.kicks(&mut Vec::new());
        let begins = |cpu: u64| if at_once { 0 } else { cpu * SLICE / u64::from(cpus) };
        Busy {
            kernel,
            due: (0..u64::from(cpus)).map(begins).collect(),
            runs: vec![None; cpus as usize],
            tasks: 0,
        }
    }

    /// As many tasks of a unit wake as there are CPUs, and never sleep.
    fn come(&mut self, now: u64, unit: u32) {
        for _ in 0..self.runs.len() {
            self.kernel.start(now, self.tasks, unit);
            self.kernel.wake(now, self.tasks);
            self.tasks += 1;
        }
    }

    fn run(&mut self, until: u64) {
        while let Some((at, now)) = (0..).zip(self.due.iter().copied()).min_by_key(|(_, now)| *now)
            && now < until
        {
            let cpu = u32::try_from(at).expect("few CPUs");
            self.runs[at] = self.kernel.schedule(now, cpu, self.runs[at].is_some());
            assert!(self.runs[at].is_some(), "CPU {cpu} idles at {now} ns");
            self.due[at] = now + self.kernel.slice_left(now, cpu);
            self.kernel.kicks(&mut Vec::new());
        }
    }

    fn borrowed(&self, unit: u32) -> u64 {
        self.kernel.account(unit).borrowed_ns
    }
}

/// Four slices is what one turn of the lighter borrower more or less makes: three of the other's, and its
/// own.
#[test]
fn borrowers_divide_lent_cpus_by_weight_within_a_turn() {
    for (lent, at_once) in (1..=16).flat_map(|lent| [(lent, true), (lent, false)]) {
        for own in [[0, 0], [1, 3]] {
            let mut busy = Busy::new(lent, at_once, own);
            busy.come(0, ONE);
            busy.come(0, THREE);
            busy.run(4_000 * MS);
            let (one, three) = (busy.borrowed(ONE), busy.borrowed(THREE));
            let off = (3 * one).abs_diff(three);
            assert!(
                off <= 4 * SLICE,
                "{lent} CPUs lent, slices at once: {at_once}, own: {own:?}: {one} and {three} ns, {off} from 1:3"
            );
        }
    }
}

/// The kernel's own threads run anywhere. What they had of lent CPUs is more than what either borrower had,
/// and no measure.
#[test]
fn tasks_that_run_anywhere_are_no_borrowers() {
    for lent in 1..=4 {
        let mut busy = Busy::new(lent, false, [0, 0]);
        for unit in [ONE, THREE, KERNEL] {
            busy.come(0, unit);
        }
        busy.run(4_000 * MS);
        let (one, three) = (busy.borrowed(ONE), busy.borrowed(THREE));
        let off = (3 * one).abs_diff(three);
        let visiting = busy.kernel.account(KERNEL).visiting_ns;
        assert!(visiting > one && off <= 4 * SLICE, "{lent} CPUs lent: {one} and {three} ns");
    }
}

/// Unused loans are not owed: a late borrower gets its share from then on, and beyond that at most some
/// slices of each CPU and of one more.
#[test]
fn a_unit_that_did_not_borrow_for_long_has_no_advantage() {
    let lent = 4;
    for (first, late, part) in [(ONE, THREE, 3), (THREE, ONE, 1)] {
        let mut busy = Busy::new(lent, false, [0, 0]);
        busy.come(0, first);
        busy.run(1_000 * MS);
        busy.come(1_000 * MS, late);
        busy.run(2_000 * MS);
        let (had, right) = (busy.borrowed(late), part * 1_000 * MS * u64::from(lent) / 4);
        let most = 4 * u64::from(lent + 1) * SLICE;
        assert!(
            had.abs_diff(right) <= most,
            "unit {late} had {had} ns, {right} is its part, {most} more or less"
        );
    }
}

/// A task that runs anywhere also has turns on a lent CPU, but not before an owner that called it back.
#[test]
fn a_cpu_that_is_called_back_is_its_owners_first() {
    let mut busy = Busy::new(1, true, [0, 0]);
    let anywhere = UnitRules { parent: NOBODY, weight: 100, flags: BORROWS | ANYWHERE, ..UnitRules::USUAL };
    assert!(busy.kernel.set_unit(0, COMMON, anywhere));
    busy.come(0, ONE);
    let (guest, common, owner) = (0, 1, 2);
    busy.kernel.start(0, common, COMMON);
    busy.kernel.start(0, owner, OWNER);
    let next = |busy: &mut Busy, now: u64, runs_on: bool| busy.kernel.schedule(now, 0, runs_on);
    assert_eq!(next(&mut busy, 0, false), Some(guest));
    for (at, both) in (1..).zip([false, true, false, false, true, true, false, true]) {
        let now = at * 10 * MS;
        if both {
            busy.kernel.wake(now, common);
        }
        busy.kernel.wake(now, owner);
        assert_eq!(next(&mut busy, now, true), Some(owner));
        if both {
            assert_eq!(next(&mut busy, now + MS, false), Some(common));
        }
        assert_eq!(next(&mut busy, now + 2 * MS, false), Some(guest));
    }
}

/// A past lender borrows everything while it has credit, and only its share again when the credit is set
/// to 0.
#[test]
fn a_unit_with_credit_borrows_first_until_its_credit_is_reset() {
    for (giver, other) in [(ONE, THREE), (THREE, ONE)] {
        let weight = |unit| if unit == ONE { 100 } else { 300 };
        let told = |busy: &mut Busy, now, unit, credit_ms| {
            let rules = UnitRules {
                parent: NOBODY,
                weight: weight(unit),
                flags: BORROWS,
                credit_ms,
                ..UnitRules::USUAL
            };
            assert!(busy.kernel.set_unit(now, unit, rules));
        };
        let mut busy = Busy::new(4, false, [0, 0]);
        busy.come(0, ONE);
        busy.come(0, THREE);
        busy.run(1_000 * MS);
        told(&mut busy, 1_000 * MS, giver, 5_000);
        told(&mut busy, 1_000 * MS, other, -5_000);
        let before = busy.borrowed(other);
        busy.run(2_000 * MS);
        // Tasks that ran when the credits changed end their slices.
        let had = busy.borrowed(other) - before;
        assert!(had <= 4 * SLICE, "unit {other} had {had} ns beside a giver");
        told(&mut busy, 2_000 * MS, giver, 0);
        told(&mut busy, 2_000 * MS, other, 0);
        let before = (busy.borrowed(ONE), busy.borrowed(THREE));
        busy.run(6_000 * MS);
        let (one, three) = (busy.borrowed(ONE) - before.0, busy.borrowed(THREE) - before.1);
        let off = (3 * one).abs_diff(three);
        let most = 3 * 4 * 5 * SLICE;
        assert!(off <= most, "{one} and {three} ns afterwards, {off} from 1:3");
    }
}
