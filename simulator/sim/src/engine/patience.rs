//! An upper bound on a runnable task's wait for a CPU, derived from the scheduler and checked in every run.
//!
//! Terms: a task *waits* from the moment when it is runnable without a CPU until it has one. It waits in the
//! *queue* of the unit that it runs for (without isolation there is one queue for all). Its *rivals* are the
//! tasks that were in that unit at some time during the wait, including itself; *n* is their number. *S* is a
//! slice, *P* the time between rotations of shared CPUs, *e* the unit's own entitlement without sub-units, in
//! CPUs, capped at one, *m* the number of units, and *c* the number of CPUs.
//!
//! Within a queue (`dispatch.bpf.c`). Let *V* be the queue's clock: the largest virtual time with which a
//! slice began. A task that is queued after a slice has a virtual time of at most V + S, and no task is
//! queued below V - S (`start_of`). So a rival that runs first is at most 2 S behind the task when the wait
//! begins, or when the rival enters the queue. The rival's last slice may carry it S beyond. So rivals use at
//! most 3 S (n - 1) of the queue's CPU time before the task runs. Up to S may remain of a slice in progress:
//! *work* = 3 S (n - 1) + S.
//!
//! Between queues, a queue gets CPU time as from a latency-rate server with rate e and a *lag*: at least e
//! t - lag within a time t. The lag depends on how the unit gets its CPUs:
//! - A unit that always owns a whole CPU (e = 1) has no lag. The CPU serves its owner's queue first, and a
//!   loan ends within the call-back time.
//! - A unit that owns a fraction of a CPU gets the CPU in turns of length P. A turn goes to the unit with
//!   the largest credit. Credits sum to zero, and greedy emptying keeps each of m below H(m) - 1, where
//!   H(m) = 1 + 1/2 + .. + 1/m. Proof: let s(j) be the sum of the j largest credits. In a turn, either the
//!   winner is among them and their sum does not grow, or all of them were below the winner, and s(j) / j
//!   <= (s(j + 1) + 1) / (j + 1). From s(m) = 0 follows s(1) <= H(m) - 1, and H(m) before the turn is
//!   given. The turn costs the winner one credit. So the lag is at most P (2 H(m) + 1): a unit that is that
//!   far behind is next.
//! - On time-shared CPUs the unit with the smallest pass is next. A unit's pass exceeds the machine's by at
//!   most the unit's slices in progress, min(n, c) S over its weight. It is behind the machine's by at most
//!   one slice over its weight (`catch_up`). Each of the m - 1 other units catches up with the unit before
//!   the unit is next, and overshoots by a slice: the lag is (m - 1) S (min(n, c) + 2). Weights are integers
//!   that sum to 10,000: the rounding is subtracted from e.
//! - Within a unit, its sub-units (and its own tasks, as one more) share CPUs like units on time-shared CPUs.
//!   Their lag is added to the outermost unit's. Over all levels there are at most m - 1 siblings.
//! - A change between partition and time-sharing discards credits and passes, so the lag counts once more for
//!   each change.
//!
//! A wait may also include the longest pause between two policy steps, before the unit gets its CPUs, and a
//! call-back. Each turn loses the time of an interrupt. So a wait is at most
//!
//! pause + call-back + (work + lag (1 + changes)) / e, with P + interrupt in place of P.
//!
//! In a unit with another discipline than stride, or inside such a unit, a wait may be longer: under first
//! in, first out, for example, a task runs until it sleeps. There the bound is the rescue of starving tasks
//! (`rescue.h`): 21 s, if a tenth of the machine is enough for a slice of each rival in 5 s; otherwise longer
//! in proportion.
//!
//! Limits: a unit without an entitlement of its own lives on what others leave, and has no bound. Rivals are
//! counted one by one, because the scheduler lets each new process begin at V: a chain of ever new short
//! processes delays a task whose virtual time is beyond V. The lemma about credits holds for one CPU that
//! units share. For several CPUs, greedy emptying is known to stay within a logarithm too (Bender,
//! Farach-Colton, Kuszmaul 2019); the constant of one CPU is used.
//!
//! Source: stride scheduling (Waldspurger 1995), start-time fair queueing (Goyal, Vin, Cheng 1996),
//! latency-rate servers (Stiliadis, Varma 1998).

use commonhold_contract::{Contract, Discipline, MILLIONTH, Scheme, UnitId};
use commonhold_steward::HOTPLUG_NS;

use crate::Time;
use crate::scenario::{CallBack, Scenario};

/// The sum of all units' weights, before each weight is rounded up by at most one.
const WEIGHTS: u64 = 10_000;
/// A waiting task is rescued within this time if one round of rescues reaches all tasks that wait.
const RESCUED_NS: Time = 21_000_000_000;
/// CPU time of each CPU for a round of rescues: a tenth of 5 s.
const RESCUES_NS: Time = 500_000_000;

/// The beginning of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) since: Time,
    /// How many tasks had left the queue's unit by then, and how many changes between partition and
    /// time-sharing there had been. The differences to the present counts give the rivals and the changes
    /// during the wait.
    left: u64,
    changes: u64,
}

/// One queue.
#[derive(Debug, Clone)]
struct Queue {
    /// How many tasks have entered the unit so far, and left it.
    entered: u64,
    left: u64,
    /// The smallest entitlement while the unit had processes, in millionths of a CPU, capped at one CPU.
    entitled: u64,
    /// A lower limit of the bounds on all present waits: the bound with only the unit's present tasks as
    /// rivals. A wait up to this time needs no further computation.
    safe_wait: Time,
    /// Whether the unit is a sub-unit or has sub-units.
    nested: bool,
    /// Whether only rescues bound the unit's waits: it, or a unit around it, has another discipline than
    /// stride.
    is_bounded_by_rescues: bool,
}

/// The parameters of the bound, and the longest delays observed so far in the run.
#[derive(Debug, Clone)]
pub(super) struct Patience {
    queues: Vec<Queue>,
    /// Without isolation: one queue for all.
    pool: bool,
    slice_ns: Time,
    rotation_ns: Time,
    interrupt_ns: Time,
    call_back_ns: Time,
    /// The longest time for which a CPU kept its task for a spin lock although it was to choose another.
    deferral_max_ns: Time,
    cpus: u64,
    /// The smallest number of CPUs that were online at once.
    cpus_min: u64,
    /// Whether CPUs went offline or came online since the latest plan for the present machine.
    is_outdated: bool,
    /// The longest time in which plans may be for another machine, after each change of the CPUs.
    outdated_ns: Time,
    /// The number of units, including the two built-in ones.
    units: u64,
    /// H(m) in thousandths.
    harmonic: u64,
    /// The number of changes between partition and time-sharing, and the present mode.
    changes: u64,
    time_shared: bool,
    /// The time of the latest plan, and the longest pause between two plans.
    planned_at: Time,
    pause_max_ns: Time,
}

impl Patience {
    pub(super) fn new(scenario: &Scenario) -> Patience {
        let costs = &scenario.hardware.kernel;
        let units = scenario.contract.units.len();
        let pool = scenario.contract.machine.scheme == Scheme::Smp;
        let contract = &scenario.contract;
        let nested = |id| contract.unit(id).parent.is_some() || contract.children(Some(id)).next().is_some();
        let queue = |id| Queue {
            entered: 0,
            left: 0,
            entitled: MILLIONTH,
            safe_wait: costs.slice_ns,
            nested: !pool && nested(id),
            is_bounded_by_rescues: !pool && has_other_discipline(contract, id),
        };
        Patience {
            queues: contract.ids().take(if pool { 1 } else { units }).map(queue).collect(),
            pool,
            slice_ns: costs.slice_ns,
            rotation_ns: scenario.contract.machine.rotation_ns,
            interrupt_ns: costs.ipi_ns,
            call_back_ns: call_back_ns(scenario),
            deferral_max_ns: 0,
            cpus: scenario.hardware.machine.cpus.len() as u64,
            cpus_min: scenario.hardware.machine.cpus.len() as u64,
            is_outdated: false,
            outdated_ns: 0,
            units: units as u64,
            harmonic: harmonic(units as u64),
            changes: 0,
            time_shared: true,
            planned_at: 0,
            pause_max_ns: 0,
        }
    }

    /// A CPU kept its task for `span` longer, because the task held a spin lock. From now on, every slice and
    /// call-back may take the longest such time longer.
    pub(super) fn note_deferral(&mut self, span: Time) {
        let more = span.saturating_sub(self.deferral_max_ns);
        self.deferral_max_ns += more;
        self.slice_ns = self.slice_ns.saturating_add(more);
        self.call_back_ns = self.call_back_ns.saturating_add(more);
    }

    /// The longest time that a call-back may take, in ns.
    pub(super) fn call_back_ns(&self) -> Time {
        self.call_back_ns
    }

    fn queue(&self, unit: u32) -> usize {
        if self.pool { 0 } else { unit as usize }
    }

    /// A task begins to run for a unit.
    pub(super) fn task_entered(&mut self, unit: u32) {
        let queue = self.queue(unit);
        self.queues[queue].entered += 1;
        self.update_safe_wait(queue);
    }

    /// A task no longer runs for a unit.
    pub(super) fn task_left(&mut self, unit: u32) {
        let queue = self.queue(unit);
        self.queues[queue].left += 1;
        self.update_safe_wait(queue);
    }

    /// Recomputes the wait that is within every bound of a queue. Most waits are shorter, and are checked by
    /// one comparison.
    fn update_safe_wait(&mut self, index: usize) {
        let queue = &self.queues[index];
        let present = (queue.entered - queue.left).max(1);
        self.queues[index].safe_wait = self.bound_among(queue, present, 0).unwrap_or(Time::MAX);
    }

    /// A task that runs for a unit begins to wait.
    pub(super) fn begin(&self, now: Time, unit: u32) -> Wait {
        let changes = self.changes - u64::from(self.is_outdated);
        Wait { since: now, left: self.queues[self.queue(unit)].left, changes }
    }

    /// CPUs went offline or came online, and `cpus` are online. Until the daemon notices, units have the CPUs
    /// of the plan before.
    pub(super) fn note_online(&mut self, cpus: usize) {
        self.cpus_min = self.cpus_min.min(cpus as u64);
        (self.is_outdated, self.outdated_ns) = (true, HOTPLUG_NS);
        self.changes += 1;
    }

    /// From now on, plans are for the CPUs that are online.
    pub(super) fn note_noticed(&mut self) {
        self.is_outdated = false;
    }

    /// A plan has been carried out, which shares all CPUs by time or divides them among units.
    pub(super) fn note_plan(&mut self, now: Time, time_shared: bool) {
        self.pause_max_ns = self.pause_max_ns.max(now - self.planned_at);
        self.planned_at = now;
        self.changes += u64::from(time_shared != self.time_shared);
        self.time_shared = time_shared;
    }

    /// Takes note of the entitlement of a unit with processes, without its sub-units' (`own`, in millionths
    /// of a CPU), and of the unit's weight. The smallest entitlement of the run determines the bound.
    pub(super) fn note_entitlement(&mut self, unit: u32, own: u64, weight: u32) {
        // On time-shared CPUs, the weight determines the rate.
        let by_weight = self.cpus_min * MILLIONTH * u64::from(weight) / (WEIGHTS + self.units);
        let entitled = if self.time_shared { own.min(by_weight) } else { own };
        if self.pool || entitled >= self.queues[unit as usize].entitled {
            return;
        }
        self.queues[unit as usize].entitled = entitled;
        self.update_safe_wait(unit as usize);
    }

    /// Checks that a wait is within its bound so far. The error is the bound.
    pub(super) fn check_wait(&self, now: Time, wait: Wait, unit: u32) -> Result<(), Time> {
        let queue = &self.queues[self.queue(unit)];
        let waited = now - wait.since;
        if waited <= queue.safe_wait {
            return Ok(());
        }
        let rivals = (queue.entered - wait.left).max(1);
        match self.bound_among(queue, rivals, self.changes - wait.changes) {
            Some(bound) if waited > bound => Err(bound),
            _ => Ok(()),
        }
    }

    /// The longest wait among `rivals` tasks, with `changes` changes between partition and time-sharing;
    /// `None` if there is no bound.
    fn bound_among(&self, queue: &Queue, rivals: u64, changes: u64) -> Option<Time> {
        if queue.entitled == 0 {
            return None;
        }
        let work = self.slice_ns.saturating_mul(3 * (rivals - 1) + 1);
        let lag = self.lag(queue, rivals).saturating_mul(1 + changes);
        let served =
            u128::from(work.saturating_add(lag)) * u128::from(MILLIONTH) / u128::from(queue.entitled);
        // Without hotplug, a change of the mode costs no such time.
        let outdated_ns = match self.outdated_ns {
            0 => 0,
            ns => (ns + self.pause_max_ns).saturating_mul(changes),
        };
        let served = Time::try_from(served).unwrap_or(Time::MAX).saturating_add(outdated_ns);
        let bound = served.saturating_add(self.pause_max_ns + self.call_back_ns + self.interrupt_ns);
        Some(if queue.is_bounded_by_rescues { bound.max(self.rescued_ns(rivals)) } else { bound })
    }

    /// The time within which each of `rivals` tasks is rescued: one rescue time per round needed to reach
    /// them all.
    fn rescued_ns(&self, rivals: u64) -> Time {
        let rounds = rivals.saturating_mul(self.slice_ns).div_ceil(self.cpus_min * RESCUES_NS);
        RESCUED_NS.saturating_mul(rounds.max(1))
    }

    /// By how much CPU time a queue may be behind its entitlement, in ns.
    fn lag(&self, queue: &Queue, rivals: u64) -> Time {
        if self.pool {
            return 0;
        }
        let others = self.units.saturating_sub(1);
        let time_sharing_lag = self.slice_ns.saturating_mul(others * (rivals.min(self.cpus) + 2));
        let turns_lag = match queue.entitled {
            MILLIONTH if !queue.nested => 0,
            _ => (self.rotation_ns + self.interrupt_ns).saturating_mul(2 * self.harmonic + 1000) / 1000,
        };
        if queue.nested { time_sharing_lag + turns_lag } else { time_sharing_lag.max(turns_lag) }
    }
}

/// Whether a unit, or one around it, has another discipline than stride.
fn has_other_discipline(contract: &Contract, id: UnitId) -> bool {
    let mut around = Some(id);
    while let Some(unit) = around.map(|id| contract.unit(id)) {
        if unit.discipline != Discipline::Stride {
            return true;
        }
        around = unit.parent;
    }
    false
}

/// The longest time that a call-back takes if no spin lock defers it, in ns.
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

    /// The first moment at which a wait that began at 0 exceeds its bound.
    fn patience_ends(patience: &Patience, unit: u32) -> Option<Time> {
        let wait = Wait { since: 0, left: 0, changes: 0 };
        (0..200_000).map(|n| n * MS / 10).find(|now| patience.check_wait(*now, wait, unit).is_err())
    }

    /// Three rivals in one queue: 3 * 10 * 2 + 10 ms of work, and a call-back of 10 ms.
    #[test]
    fn without_isolation_only_rivals_count() {
        let mut patience = patience("smp");
        for unit in [2, 3, 3] {
            patience.task_entered(unit);
        }
        assert_eq!(patience_ends(&patience, 2), Some(80 * MS + MS / 10));
        // Two tasks that left before the wait began do not count.
        for _ in 0..2 {
            patience.task_entered(2);
            patience.task_left(2);
        }
        let wait = patience.begin(0, 2);
        assert_eq!(patience.check_wait(80 * MS, wait, 2), Ok(()));
        assert_eq!(patience.check_wait(80 * MS + 1, wait, 2), Err(80 * MS));
    }

    /// Two CPUs have a second for rescues in a round: that is a hundred slices of 10 ms, and one more takes
    /// two rounds.
    #[test]
    fn where_another_discipline_orders_only_rescues_bound_waits() {
        let contract = "version = 1\n[unit.a]\ndiscipline = \"fifo\"\n[unit.a.unit.c]\n[unit.b]\n";
        let mut patience = patience_of(contract);
        patience.note_plan(0, false);
        let (a, b, c) = (2, 4, 3);
        for unit in [a, b, c] {
            patience.task_entered(unit);
        }
        let wait = patience.begin(0, c);
        for unit in [a, c] {
            assert_eq!(patience.check_wait(21_000 * MS, wait, unit), Ok(()), "{unit}");
            assert_eq!(patience.check_wait(21_000 * MS + 1, wait, unit), Err(21_000 * MS), "{unit}");
        }
        assert!(patience.check_wait(21_000 * MS, wait, b).is_err());
        for _ in 0..100 {
            patience.task_entered(c);
        }
        assert_eq!(patience.check_wait(43_000 * MS, wait, c), Err(42_000 * MS));
    }

    /// With a whole CPU, the bound is a slice of 10 ms and a call-back of 10 ms. With half a CPU, in turns of
    /// 250 ms among four units, H(4) = 2.084, rounded up, so that the lag is 5.168 turns or 1.292 s; with the
    /// slice that is 1.302 s at the rate of a half, and the call-back.
    #[test]
    fn who_holds_less_waits_for_turns() {
        let mut patience = patience("isolate");
        patience.task_entered(2);
        patience.note_plan(0, false);
        let wait = patience.begin(0, 2);
        patience.note_entitlement(2, MILLIONTH, 5_000);
        // The bound covers both modes: on time-shared CPUs, three other units cause a lag of 3 * 10 * (1 + 2)
        // ms.
        assert_eq!(patience.check_wait(200 * MS, wait, 2), Err(110 * MS));
        patience.note_entitlement(2, MILLIONTH / 2, 2_500);
        assert_eq!(patience.check_wait(2_614 * MS, wait, 2), Ok(()));
        assert_eq!(patience.check_wait(2_614 * MS + 1, wait, 2), Err(2_614 * MS));
        // A change to time-sharing adds the lag once more, and the longest pause between two plans.
        patience.note_plan(100 * MS, true);
        assert_eq!(patience.check_wait(9_999 * MS, wait, 2), Err(2_614 * MS + 2_584 * MS + 100 * MS));
        // A unit that is entitled to nothing has no bound.
        patience.note_entitlement(2, 0, 1);
        assert_eq!(patience.check_wait(Time::MAX, wait, 2), Ok(()));
    }
}
