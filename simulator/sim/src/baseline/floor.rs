//! The CPUs as a baseline sees them: which task is on each, since when, and which unit's time that is.

use commonhold_dispatch::{Account, Kick, TaskId, Unit};

use crate::Time;

/// One CPU.
#[derive(Debug, Clone, Default)]
struct Seat {
    current: Option<TaskId>,
    /// Up to when its task's time is charged.
    charged: Time,
    /// When it looked for a task last.
    looked: Time,
    /// A reschedule was requested and is still pending.
    kicked: bool,
}

/// A task, as the scheduler sees it.
#[derive(Debug, Clone, Copy)]
struct Guest {
    unit: u32,
    /// The CPU that it was on last.
    last: u32,
    on_cpu: bool,
}

/// All CPUs, tasks and units.
#[derive(Debug, Clone)]
pub(crate) struct Floor {
    seats: Vec<Seat>,
    guests: Vec<Guest>,
    units: Vec<Unit>,
    accounts: Vec<Account>,
    /// Tasks that wait for a CPU, by unit.
    waiting: Vec<u32>,
    kicks: Vec<Kick>,
}

impl Floor {
    pub(super) fn new(cpus: u32, units: u32) -> Floor {
        Floor {
            seats: vec![Seat::default(); cpus as usize],
            guests: Vec::new(),
            units: (0..units).map(Unit::new).collect(),
            accounts: vec![Account::default(); units as usize],
            waiting: vec![0; units as usize],
            kicks: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> u32 {
        crate::engine::number(self.seats.len())
    }

    /// A new task, which begins where its parent is: a fork's first work is done there.
    pub(super) fn start(&mut self, id: TaskId, unit: u32, parent: Option<TaskId>) {
        let guest = Guest { unit, last: parent.map_or(0, |parent| self.last(parent)), on_cpu: false };
        if id as usize == self.guests.len() {
            self.guests.push(guest);
        } else {
            self.guests[id as usize] = guest;
        }
    }

    /// Charges the time of the task on a CPU to its unit. Returns that task, and since when, if there is one.
    pub(super) fn charge(&mut self, now: Time, cpu: u32) -> Option<(TaskId, Time)> {
        let seat = &mut self.seats[cpu as usize];
        let id = seat.current?;
        let from = core::mem::replace(&mut seat.charged, now);
        self.accounts[self.guests[id as usize].unit as usize].shared_ns += now - from;
        Some((id, from))
    }

    /// A task waits for a CPU from now on.
    pub(super) fn wait(&mut self, id: TaskId) {
        self.waiting[self.guests[id as usize].unit as usize] += 1;
    }

    /// A CPU looks for a task: the one that was on it is gone.
    pub(super) fn take_off(&mut self, now: Time, cpu: u32) -> Option<TaskId> {
        let seat = &mut self.seats[cpu as usize];
        (seat.looked, seat.kicked) = (now, false);
        let id = seat.current.take()?;
        self.guests[id as usize].on_cpu = false;
        Some(id)
    }

    /// A task that waited is on a CPU from now on.
    pub(super) fn put_on(&mut self, now: Time, cpu: u32, id: TaskId) {
        let seat = &mut self.seats[cpu as usize];
        (seat.current, seat.charged) = (Some(id), now);
        let guest = &mut self.guests[id as usize];
        (guest.last, guest.on_cpu) = (cpu, true);
        self.waiting[guest.unit as usize] -= 1;
    }

    /// Tells a CPU to look for a task.
    pub(super) fn kick(&mut self, cpu: u32) {
        let seat = &mut self.seats[cpu as usize];
        seat.kicked = true;
        self.kicks.push(Kick { cpu, preempt: seat.current.is_some() });
    }

    pub(super) fn kicks(&mut self, take: &mut Vec<Kick>) {
        take.append(&mut self.kicks);
    }

    pub(super) fn has_kicks(&self) -> bool {
        !self.kicks.is_empty()
    }

    /// Whether a CPU idles and was not sent for a task yet.
    pub(super) fn is_free(&self, cpu: u32) -> bool {
        let seat = &self.seats[cpu as usize];
        seat.current.is_none() && !seat.kicked
    }

    /// The free CPU that a woken task takes: the one that it was on last, else the one that idles longest.
    pub(super) fn free_for(&self, id: TaskId) -> Option<u32> {
        let last = self.last(id);
        if self.is_free(last) {
            return Some(last);
        }
        (0..self.len()).filter(|cpu| self.is_free(*cpu)).min_by_key(|cpu| self.seats[*cpu as usize].looked)
    }

    /// CPUs with a task on them that were not sent for another yet.
    pub(super) fn busy(&self) -> impl Iterator<Item = (u32, TaskId)> {
        let undisturbed =
            |(cpu, seat): (u32, &Seat)| seat.current.filter(|_| !seat.kicked).map(|id| (cpu, id));
        (0..).zip(&self.seats).filter_map(undisturbed)
    }

    /// The task on a CPU, and up to when its time is charged.
    pub(super) fn current(&self, cpu: u32) -> (Option<TaskId>, Time) {
        let seat = &self.seats[cpu as usize];
        (seat.current, seat.charged)
    }

    /// The CPU that a task is on, or was on last.
    pub(super) fn last(&self, id: TaskId) -> u32 {
        self.guests[id as usize].last
    }

    pub(super) fn is_on_cpu(&self, id: TaskId) -> bool {
        self.guests[id as usize].on_cpu
    }

    pub(super) fn unit_of(&self, id: TaskId) -> u32 {
        self.guests[id as usize].unit
    }

    pub(super) fn unit(&self, unit: u32) -> &Unit {
        &self.units[unit as usize]
    }

    /// What its tasks used: no unit owns a CPU.
    pub(super) fn account(&self, unit: u32) -> &Account {
        &self.accounts[unit as usize]
    }

    /// Tasks that wait for a CPU, by unit.
    pub(super) fn waiting(&self) -> &[u32] {
        &self.waiting
    }
}
