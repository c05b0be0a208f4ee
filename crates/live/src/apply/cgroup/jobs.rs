//! Jobs: threads are confined to their seats, and the processes of closed gangs are stopped.
//!
//! While the scheduler of the `kernel` backend is attached, the scheduler does both: it treats seats as
//! preferences, and it does not run the threads of closed gangs.

use commonhold_policy::plan::SeatOrder;
use commonhold_policy::{JobId, Step};

use super::CgroupBackend;
use crate::LiveError;
use crate::apply::confine::{Confining, lineage};
use crate::apply::stops::{ROUNDS_MAX, Stopping, continue_released, stop_closed};
use crate::observe::process::ProcessKey;
use crate::observe::roster::{Member, Scan};

impl CgroupBackend {
    /// Runs `act` with the parts of the backend that confine threads to their seats, and collects the
    /// problems.
    pub(super) fn confining(&mut self, act: impl FnOnce(&mut Confining<'_>)) {
        let (contract, confined) = (&self.contract, &self.confined);
        let within = |unit| lineage(contract, unit).find_map(|unit| confined.get(&unit).cloned());
        act(&mut Confining {
            confinement: &mut self.confinement,
            roster: &mut self.roster,
            journal: &mut self.journal,
            problems: &mut self.seat_problems,
            ordered: &|_| None,
            within: &within,
            all: &self.usable,
        });
        self.problems.append(&mut self.seat_problems.unread);
    }

    /// Seats threads. While seats are the scheduler's preferences, no affinity changes.
    pub(super) fn order_seats(&mut self, orders: &[Step<SeatOrder>]) {
        let seated = self.seats.order(orders, &mut self.confinement, &mut self.problems);
        if !seated.is_empty() && !self.confinement.leaves_seats() {
            self.confining(|confining| confining.confine(&seated));
        }
    }

    /// Leaves seats to the scheduler, which treats them as preferences (`leave` is true), or enforces seats
    /// by affinities (`leave` is false).
    pub(crate) fn leave_seats(&mut self, leave: bool) {
        if self.confinement.leave_seats(leave) {
            let seated = self.confinement.seated();
            self.confining(|confining| confining.confine(&seated));
        }
    }

    /// Each seated thread and the first CPU of its seat.
    pub(crate) fn seats(&self) -> Vec<(u32, Option<u32>)> {
        self.confinement.all_seats()
    }

    /// The threads whose seats have changed since the last call while seats were left to the scheduler, each
    /// with the first CPU of its seat.
    pub(crate) fn changed_seats(&mut self) -> Vec<(u32, Option<u32>)> {
        self.confinement.changed_seats()
    }

    /// Leaves gangs to the scheduler, which does not run shut gangs (`leave` is true), or stops shut gangs
    /// here (`leave` is false).
    pub(crate) fn leave_gangs(&mut self, leave: bool) {
        self.seats.leave_gangs(leave);
    }

    /// The processes of all jobs, each with its job and whether that job is shut.
    pub(crate) fn members_of_jobs(&self) -> Vec<(ProcessKey, JobId, bool)> {
        self.seats.members().collect()
    }

    /// Stops the gangs that are shut, and only then continues the gangs that are open, so that the CPUs of an
    /// open gang are free when it begins to run.
    ///
    /// A unit whose own processes are one job is frozen in its cgroup; signals stop all other gangs, and
    /// those processes of such a unit that may not be moved into its cgroup.
    pub(super) fn enforce_gangs(&mut self) -> Result<(), LiveError> {
        self.frozen_gangs = self.seats.shut_units(&self.contract);
        self.frozen_gangs.retain(|unit| self.groups.is_made(*unit));
        if !self.frozen_gangs.is_empty() {
            self.journal.beats().watch();
        }
        self.problems.extend(self.groups.shut(&self.frozen_gangs, self.now));
        for _ in 0..if self.seats.any_shut() { ROUNDS_MAX } else { 0 } {
            let stopped = self.stopping(stop_closed)?;
            let changes = self.roster.refresh(&self.contract, self.now, Scan::Quick)?;
            let any_arrived = !changes.joined.is_empty() || !changes.moved.is_empty();
            self.follow(&changes);
            self.seen.extend(changes.seen);
            if !stopped && !any_arrived {
                break;
            }
            self.seats.catch_up(&self.contract, &mut self.roster)?;
        }
        if !self.stops.is_idle() {
            self.stopping(continue_released);
        }
        Ok(())
    }

    /// Runs `act` with the parts of the backend that stop and continue gangs by signals, and collects the
    /// problems.
    fn stopping<T>(&mut self, act: impl FnOnce(&mut Stopping<'_>) -> T) -> T {
        let (seats, frozen) = (&self.seats, &self.frozen_gangs);
        let is_frozen = |member: &Member| member.stays.is_none() && frozen.contains(&member.placement.unit);
        let done = act(&mut Stopping {
            stops: &mut self.stops,
            roster: &mut self.roster,
            journal: &mut self.journal,
            problems: &mut self.seat_problems,
            now: self.now,
            closed: &|member| seats.is_shut(member.key) && !is_frozen(member),
        });
        self.problems.append(&mut self.seat_problems.unread);
        done
    }
}
