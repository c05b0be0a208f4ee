//! Which job has which CPU, at intervals: the trace of seed 001, figure 6.

use super::Engine;
use crate::Time;
use crate::outcome::Occupancy;

impl Engine<'_> {
    /// Notes the moments before `until`, at which what is there now still was.
    pub(super) fn note_occupancy(&mut self, until: Time) {
        let Some(every_ns) = self.scenario.workload.trace_ns else { return };
        let occupancy = self.occupancy.get_or_insert_with(|| Occupancy {
            every_ns,
            pools: {
                let rules = &self.scenario.contract.machine;
                let pools = commonhold_policy::pools(&self.scenario.hardware.machine, rules.pools);
                pools.pools.into_iter().map(|pool| pool.cpus).collect()
            },
            jobs: Vec::new(),
            moments: Vec::new(),
        });
        while (occupancy.moments.len() as Time).saturating_mul(every_ns) < until {
            let moment = (0..self.cpus.len()).map(|at| {
                // A CPU that a task has for itself is taken also while the task waits.
                let id = self.seating.sits_at(at).or(self.cpus[at].task)?;
                let instance = self.tasks[id as usize].instance;
                let known = occupancy.jobs.iter().rposition(|job| *job == instance);
                Some(known.unwrap_or_else(|| {
                    occupancy.jobs.push(instance);
                    occupancy.jobs.len() - 1
                }))
            });
            let moment: Vec<Option<usize>> = moment.collect();
            occupancy.moments.push(moment);
        }
    }
}
