//! How long a task that could run may have to wait for a CPU: a bound that follows from the scheduler, held in every
//! run.
//!
//! Terms: a task *waits* from when it could run without a CPU to when it has one, for the *queue* of the unit that it
//! runs for (without isolation there is one queue for all). Its *rivals* are the tasks that were in that unit at some
//! time while it waited, itself among them: *n*. *S* is a slice, and *P* the time between rotations. *e* is what the
//! unit is entitled to for itself, in CPUs, one at most. *m* is the number of units.
//!
//! Within a queue (`dispatch.bpf.c`). Let *V* be the queue's clock: the largest virtual time with which a slice began.
//! A task that is queued after a slice is at V + S at most, and no task is queued below V - S (`start_of`). So a rival
//! that goes first is at most 2 S behind when the wait begins, or when it comes. Its last slice may carry it S beyond.
//! So rivals have 3 S (n - 1) of the queue's CPU time at most before the task has its turn, and S may be left of a
//! slice under way: *work* = 3 S (n - 1) + S.
//!
//! Between queues, the queue has CPU time at the rate e but for a *lag*, as in a latency-rate server: after t it has
//! had e t - lag at least.
//! - A unit that owns a CPU whenever that has an owner (e = 1) lags by nothing. The owner's queue is looked at first,
//!   and a loan is called back within the call-back.
//! - A unit that owns a part of a CPU has it by turns of P. A turn goes to the largest credit. Credits sum to nothing,
//!   and greedy emptying keeps each of m below H(m) - 1, where H(m) = 1 + 1/2 + .. + 1/m. Proof: let s(j) be what the j
//!   largest sum to. In a turn, either the winner is among them and their sum does not grow, or all of them were below
//!   the winner, and s(j) / j <= (s(j + 1) + 1) / (j + 1). With s(m) = 0 follows s(1) <= H(m) - 1, and H(m) before the
//!   turn is dealt. A winner falls below its credit by one turn. So the lag is P (2 H(m) + 1) at most: a unit that is
//!   that far behind is next.
//! - On time-shared CPUs the unit with the smallest pass is next. A pass exceeds the machine's by the slices that the
//!   unit has under way, min(n, c) S over its weight on c CPUs. It is behind the machine's by one slice over its own
//!   weight at most (`catch_up`). Each of the m - 1 others catches up with it before it is next, and overshoots by a
//!   slice: the lag is (m - 1) S (min(n, c) + 2). Weights are whole parts of 10,000: rounding is taken off e.
//! - Within a unit, its sub-units (and its own tasks, as one more) are to each other as units on time-shared CPUs.
//!   That lag is added to the outermost unit's. Over all levels the siblings are at most the m - 1 others.
//! - Between the two ways nothing is carried over: the lag counts once more for each change from the one to the other.
//!
//! All of it begins with the next look of the policy, which may be as late as the longest pause between two of them,
//! and with a call-back. Each turn loses an interrupt. So a wait is at most
//!
//! look + call-back + (work + lag (1 + changes)) / e, and P + interrupt for P.
//!
//! A unit that has another discipline than stride, or is in one that has, may wait for longer: a queue explains nothing where
//! who came first runs until it sleeps. There the bound is that of rescues (`rescue.h`): 21 s, as long as a tenth of the
//! machine has a slice for each rival in 5 s; else as much longer.
//!
//! Limits: a unit that is entitled to nothing for itself lives on what others leave, and has no bound. Rivals are
//! counted one by one because of the scheduler: each process that comes begins at V. So a chain of ever new short ones
//! keeps back a task that is beyond V. The lemma about credits is for one CPU that is held in parts. Of several,
//! greedy emptying is known to stay within a logarithm too (Bender, Farach-Colton, Kuszmaul 2019), and its constant is
//! taken over.
//!
//! Source: stride scheduling (Waldspurger 1995), start-time fair queueing (Goyal, Vin, Cheng 1996), latency-rate
//! servers (Stiliadis, Varma 1998).

use commonhold_contract::{Contract, Discipline, MILLIONTH, Scheme, UnitId};

use crate::Time;
use crate::scenario::{CallBack, Scenario};

/// The weights of all units sum to this at most, but for one that each may be rounded up by.
const WEIGHTS: u64 = 10_000;
/// Within this time a task is rescued that waits, if there are few of them.
const RESCUED_NS: Time = 21_000_000_000;
/// CPU time of each CPU for rescues while all that are late have a turn: a tenth of 5 s.
const RESCUES_NS: Time = 500_000_000;

/// The beginning of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    /// When.
    pub(super) since: Time,
    /// Tasks that had left the queue's unit by then, and changes between partition and time-sharing.
    left: u64,
    changes: u64,
}

/// One queue.
#[derive(Debug, Clone)]
struct Queue {
    /// Tasks that came to the unit so far, and that left it.
    came: u64,
    left: u64,
    /// The least that it was entitled to while it had processes, in millionths of a CPU, a whole CPU at most.
    entitled: u64,
    /// A wait of that time is within the bound of all that wait now, which have at least the unit's present tasks as
    /// rivals.
    easy: Time,
    /// Whether the unit lies within another, or others within it.
    nested: bool,
    /// Whether only rescues bound its waits: its own tasks, or units around it, are ordered by another discipline than stride.
    unruly: bool,
}

/// What bounds the waits of a run.
#[derive(Debug, Clone)]
pub(super) struct Patience {
    queues: Vec<Queue>,
    /// Without isolation: one queue for all.
    pool: bool,
    slice_ns: Time,
    rotation_ns: Time,
    interrupt_ns: Time,
    call_back_ns: Time,
    /// The longest that a CPU kept its task although it was to look for another.
    put_off_ns: Time,
    cpus: u64,
    /// Units, the common parts among them.
    units: u64,
    /// H(m) in thousandths.
    harmonic: u64,
    changes: u64,
    time_shared: bool,
    looked_at: Time,
    /// The longest pause between two looks of the policy.
    look_ns: Time,
}

impl Patience {
    pub(super) fn new(scenario: &Scenario) -> Patience {
        let costs = &scenario.hardware.kernel;
        let units = scenario.contract.units.len();
        let pool = scenario.contract.machine.scheme == Scheme::Smp;
        let contract = &scenario.contract;
        let nested = |id| contract.unit(id).parent.is_some() || contract.children(Some(id)).next().is_some();
        let queue = |id| Queue {
            came: 0,
            left: 0,
            entitled: MILLIONTH,
            easy: costs.slice_ns,
            nested: !pool && nested(id),
            unruly: !pool && unruly(contract, id),
        };
        Patience {
            queues: contract.ids().take(if pool { 1 } else { units }).map(queue).collect(),
            pool,
            slice_ns: costs.slice_ns,
            rotation_ns: scenario.contract.machine.rotation_ns,
            interrupt_ns: costs.ipi_ns,
            call_back_ns: call_back_ns(scenario),
            put_off_ns: 0,
            cpus: scenario.hardware.machine.cpus.len() as u64,
            units: units as u64,
            harmonic: harmonic(units as u64),
            changes: 0,
            time_shared: true,
            looked_at: 0,
            look_ns: 0,
        }
    }

    /// A task kept its CPU for so long, for a lock that spins. From now on, every slice and call-back may take as much longer.
    pub(super) fn put_off(&mut self, span: Time) {
        let more = span.saturating_sub(self.put_off_ns);
        self.put_off_ns += more;
        self.slice_ns = self.slice_ns.saturating_add(more);
        self.call_back_ns = self.call_back_ns.saturating_add(more);
    }

    /// The longest that a call-back may take, in ns.
    pub(super) fn call_back_ns(&self) -> Time {
        self.call_back_ns
    }

    fn queue(&self, unit: u32) -> usize {
        if self.pool { 0 } else { unit as usize }
    }

    /// A task comes to a unit.
    pub(super) fn came(&mut self, unit: u32) {
        let queue = self.queue(unit);
        self.queues[queue].came += 1;
        self.ease(queue);
    }

    /// A task leaves a unit.
    pub(super) fn went(&mut self, unit: u32) {
        let queue = self.queue(unit);
        self.queues[queue].left += 1;
        self.ease(queue);
    }

    /// Works out anew what is within every bound: most waits are, and need no more than to be compared with that.
    fn ease(&mut self, at: usize) {
        let queue = &self.queues[at];
        let present = (queue.came - queue.left).max(1);
        self.queues[at].easy = self.bound_among(queue, present, 0).unwrap_or(Time::MAX);
    }

    /// A task of that unit begins to wait.
    pub(super) fn begin(&self, now: Time, unit: u32) -> Wait {
        Wait { since: now, left: self.queues[self.queue(unit)].left, changes: self.changes }
    }

    /// The policy has looked, and its plan is carried out.
    pub(super) fn looked(&mut self, now: Time, time_shared: bool) {
        self.look_ns = self.look_ns.max(now - self.looked_at);
        self.looked_at = now;
        self.changes += u64::from(time_shared != self.time_shared);
        self.time_shared = time_shared;
    }

    /// A unit that has processes is entitled to so much for itself, in millionths of a CPU, and has this weight.
    pub(super) fn entitled(&mut self, unit: u32, own: u64, weight: u32) {
        // Time-shared, it is the weight that counts.
        let by_weight = self.cpus * MILLIONTH * u64::from(weight) / (WEIGHTS + self.units);
        let entitled = if self.time_shared { own.min(by_weight) } else { own };
        if self.pool || entitled >= self.queues[unit as usize].entitled {
            return;
        }
        self.queues[unit as usize].entitled = entitled;
        self.ease(unit as usize);
    }

    /// Whether a wait is within its bound so far; else the bound.
    pub(super) fn is_borne(&self, now: Time, wait: Wait, unit: u32) -> Result<(), Time> {
        let queue = &self.queues[self.queue(unit)];
        let waited = now - wait.since;
        if waited <= queue.easy {
            return Ok(());
        }
        let rivals = (queue.came - wait.left).max(1);
        match self.bound_among(queue, rivals, self.changes - wait.changes) {
            Some(bound) if waited > bound => Err(bound),
            _ => Ok(()),
        }
    }

    /// The longest wait among `rivals` tasks during `changes` changes of rights; `None` if there is no bound.
    fn bound_among(&self, queue: &Queue, rivals: u64, changes: u64) -> Option<Time> {
        if queue.entitled == 0 {
            return None;
        }
        let work = self.slice_ns.saturating_mul(3 * (rivals - 1) + 1);
        let lag = self.lag(queue, rivals).saturating_mul(1 + changes);
        let served =
            u128::from(work.saturating_add(lag)) * u128::from(MILLIONTH) / u128::from(queue.entitled);
        let served = Time::try_from(served).unwrap_or(Time::MAX);
        let bound = served.saturating_add(self.look_ns + self.call_back_ns + self.interrupt_ns);
        Some(if queue.unruly { bound.max(self.rescued_ns(rivals)) } else { bound })
    }

    /// Each of `rivals` tasks is rescued within this time.
    fn rescued_ns(&self, rivals: u64) -> Time {
        let rounds = rivals.saturating_mul(self.slice_ns).div_ceil(self.cpus * RESCUES_NS);
        RESCUED_NS.saturating_mul(rounds.max(1))
    }

    /// By how much CPU time a queue may be behind what it is entitled to, in ns.
    fn lag(&self, queue: &Queue, rivals: u64) -> Time {
        if self.pool {
            return 0;
        }
        let others = self.units.saturating_sub(1);
        let shared = self.slice_ns.saturating_mul(others * (rivals.min(self.cpus) + 2));
        let turns = match queue.entitled {
            MILLIONTH if !queue.nested => 0,
            _ => (self.rotation_ns + self.interrupt_ns).saturating_mul(2 * self.harmonic + 1000) / 1000,
        };
        if queue.nested { shared + turns } else { shared.max(turns) }
    }
}

/// Whether the unit, or one around it, has another discipline than stride.
fn unruly(contract: &Contract, id: UnitId) -> bool {
    let mut around = Some(id);
    while let Some(unit) = around.map(|id| contract.unit(id)) {
        if unit.discipline != Discipline::Stride {
            return true;
        }
        around = unit.parent;
    }
    false
}

/// The longest that a call-back takes where no lock puts it off, in ns.
fn call_back_ns(scenario: &Scenario) -> Time {
    let costs = &scenario.hardware.kernel;
    match costs.call_back {
        CallBack::Now => costs.ipi_ns,
        CallBack::Tick | CallBack::Entry => costs.tick_ns,
    }
}

/// 1 + 1/2 + .. + 1/n, in thousandths, rounded up.
fn harmonic(n: u64) -> u64 {
    (1..=n).map(|i| 1000u64.div_ceil(i)).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scenario::read;

    const MS: Time = 1_000_000;

    fn patience(scheme: &str) -> Patience {
        patience_of(&format!("version = 1\n[machine]\nscheme = \"{scheme}\"\n[unit.a]\n[unit.b]\n"))
    }

    fn patience_of(contract: &str) -> Patience {
        let machine = "version = 1\nshape = \"cpus:2 memory:64MiB\"\n[kernel]\nslice = \"10ms\"\ntick = \"10ms\"\n\
                       call_back = \"tick\"\nipi = \"0s\"\n";
        let work =
            "version = 1\n[program.p]\ndo = [{ cpu = \"1s\" }]\n[job.a]\nunit = \"a\"\nprogram = \"p\"\n";
        Patience::new(&read(contract, machine, work).scenario.unwrap())
    }

    /// The first moment at which a wait from 0 on has lasted too long.
    fn patience_ends(patience: &Patience, unit: u32) -> Option<Time> {
        let wait = Wait { since: 0, left: 0, changes: 0 };
        (0..200_000).map(|n| n * MS / 10).find(|now| patience.is_borne(*now, wait, unit).is_err())
    }

    /// Three rivals in one queue: 3 * 10 * 2 + 10 ms of work, and a call-back of 10 ms.
    #[test]
    fn without_isolation_only_rivals_count() {
        let mut patience = patience("smp");
        for unit in [2, 3, 3] {
            patience.came(unit);
        }
        assert_eq!(patience_ends(&patience, 2), Some(80 * MS + MS / 10));
        // Two that left before it began to wait do not count.
        for _ in 0..2 {
            patience.came(2);
            patience.went(2);
        }
        let wait = patience.begin(0, 2);
        assert_eq!(patience.is_borne(80 * MS, wait, 2), Ok(()));
        assert_eq!(patience.is_borne(80 * MS + 1, wait, 2), Err(80 * MS));
    }

    /// Two CPUs have a second for rescues in a round: that is a hundred slices of 10 ms, and one more takes two rounds.
    #[test]
    fn where_another_discipline_orders_only_rescues_bound_waits() {
        let contract = "version = 1\n[unit.a]\ndiscipline = \"fifo\"\n[unit.a.unit.c]\n[unit.b]\n";
        let mut patience = patience_of(contract);
        patience.looked(0, false);
        let (a, b, c) = (2, 4, 3);
        for unit in [a, b, c] {
            patience.came(unit);
        }
        let wait = patience.begin(0, c);
        for unit in [a, c] {
            assert_eq!(patience.is_borne(21_000 * MS, wait, unit), Ok(()), "{unit}");
            assert_eq!(patience.is_borne(21_000 * MS + 1, wait, unit), Err(21_000 * MS), "{unit}");
        }
        assert!(patience.is_borne(21_000 * MS, wait, b).is_err());
        for _ in 0..100 {
            patience.came(c);
        }
        assert_eq!(patience.is_borne(43_000 * MS, wait, c), Err(42_000 * MS));
    }

    /// A whole CPU: 10 ms, and a call-back of 10 ms. Half of one, by turns of 250 ms among four: H(4) = 2.084, rounded up,
    /// so that the lag is 5.168 turns or 1.292 s; with the slice 1.302 s at the rate of a half, and the call-back.
    #[test]
    fn who_holds_less_waits_for_turns() {
        let mut patience = patience("isolate");
        patience.came(2);
        patience.looked(0, false);
        let wait = patience.begin(0, 2);
        patience.entitled(2, MILLIONTH, 5_000);
        // On time-shared CPUs it would be the lag of three others, 3 * 10 * (1 + 2) ms: no mode is left out.
        assert_eq!(patience.is_borne(200 * MS, wait, 2), Err(110 * MS));
        patience.entitled(2, MILLIONTH / 2, 2_500);
        assert_eq!(patience.is_borne(2_614 * MS, wait, 2), Ok(()));
        assert_eq!(patience.is_borne(2_614 * MS + 1, wait, 2), Err(2_614 * MS));
        // A change to time-sharing: once more the lag, and the longest pause between looks.
        patience.looked(100 * MS, true);
        assert_eq!(patience.is_borne(9_999 * MS, wait, 2), Err(2_614 * MS + 2_584 * MS + 100 * MS));
        // A unit that is entitled to nothing has no bound.
        patience.entitled(2, 0, 1);
        assert_eq!(patience.is_borne(Time::MAX, wait, 2), Ok(()));
    }
}
