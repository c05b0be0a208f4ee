//! A trace of which job has which CPU, at regular intervals, as in seed 001, figure 6.

use super::Engine;
use crate::Time;
use crate::outcome::Occupancy;

impl Engine<'_> {
    /// Records the samples that are due before `until`. CPUs have not changed their tasks since the last
    /// event, so each sample has the present tasks.
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
            let moment = (0..self.cpus.len()).map(|cpu| {
                // A dedicated CPU counts as its task's also while the task waits.
                let id = self.seating.task_seated_at(cpu).or(self.cpus[cpu].task)?;
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
