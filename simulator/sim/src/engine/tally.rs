//! The outcome of a run, from the state that it ended in.

use commonhold_contract::UnitId;

use super::Engine;
use super::windows::Waits;
use crate::Time;
use crate::outcome::{CommonMemory, DiskOutcome, DiskUse, JobOutcome, LockOutcome, Outcome, UnitOutcome};
use commonhold_ledger::latencies::Latencies;

impl Engine<'_> {
    /// The outcome of the run, without the last checks of the ledger.
    pub(super) fn outcome(&self) -> Outcome {
        Outcome {
            seed: self.seed,
            ended_ns: self.now,
            cut_off: self.unfinished > 0,
            stuck: self.stuck(),
            swap_short_bytes: self.swap_short(),
            jobs: self.instances.iter().map(|instance| self.job(instance)).collect(),
            rounds: self.rounds.outcome(&self.scenario.workload),
            wakes: super::windows::wakes(&self.scenario.workload, &self.wakes),
            window_ns: self.window_ns(),
            units: self
                .scenario
                .contract
                .ids()
                .filter(|id| self.had_jobs(*id))
                .map(|id| self.unit(id))
                .collect(),
            common: self.common(),
            disks: (0..self.drives.len()).map(|drive| self.disk(drive)).collect(),
            busy_ns: self.cpus.iter().map(|cpu| cpu.busy_ns).sum(),
            idle_ns: self.cpus.iter().map(|cpu| cpu.idle_ns).sum(),
            online: self.hotplug.outcome(),
            switches: self.cpus.iter().map(|cpu| cpu.switches).sum(),
            locks: self.locks(),
            ledger: self.statement(),
            occupancy: self.occupancy.clone(),
            plans: self.units.plans,
            events: self.events,
            checks: self.audit.checks,
            broken: self.audit.broken,
            notes: self.audit.notes.clone(),
        }
    }

    fn path(&self, id: UnitId) -> String {
        self.scenario.contract.unit(id).path.clone()
    }

    /// Whether a job of the unit has arrived.
    fn had_jobs(&self, id: UnitId) -> bool {
        let jobs = &self.scenario.workload.jobs;
        jobs.iter().zip(&self.arrived).any(|(job, arrived)| job.unit == id && *arrived > 0)
    }

    /// The name of an instance: the program's if each run of the program is a job, else the job's.
    pub(super) fn name_of(&self, instance: &super::Instance) -> &str {
        let workload = &self.scenario.workload;
        match instance.program {
            Some(program) => &workload.programs[program as usize].name,
            None => &workload.jobs[instance.job as usize].name,
        }
    }

    fn job(&self, instance: &super::Instance) -> JobOutcome {
        JobOutcome {
            name: self.name_of(instance).to_owned(),
            unit: self.path(instance.unit),
            started_ns: instance.started,
            ended_ns: instance.ended,
            spent: instance.spent,
        }
    }

    fn unit(&self, id: UnitId) -> UnitOutcome {
        let (unit, account) = (self.kernel.unit(id.0), self.kernel.account(id.0));
        let (frames_mean, frames_max) = self.memory.used_mean_and_max(id);
        let (used_by_window_ns, entitled_by_window_ns) = self.windows_of(id);
        UnitOutcome {
            name: self.path(id),
            entitled_micro_cpus: self.units.entitled_mean(id.index(), self.now),
            used_ns: account.used_ns(),
            lent_ns: account.lent_ns,
            borrowed_ns: account.borrowed_ns,
            called_back: unit.recalls,
            call_back_mean_ns: unit.recall_ns.checked_div(unit.recalls).unwrap_or(0),
            call_back_max_ns: unit.recall_ns_max,
            call_backs: unit
                .call_backs()
                .classes()
                .filter_map(|(_, below_ns, count)| Some((below_ns?, count)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            wakes: self.latencies_of(id, |waits| &waits.latencies),
            responses: self.latencies_of(id, |waits| &waits.responses),
            waited_max_ns: self.audit.waited_max[id.index()],
            frames: self.memory.used(id),
            frames_mean,
            frames_max,
            memory_waited_ns: self.waited_for_frames(id),
            memory_call_backs: self.loans.call_backs(id, self.now),
            used_by_window_ns,
            entitled_by_window_ns,
            verdict: self.verdict(id),
        }
    }

    /// Latencies of all of a unit's own jobs.
    fn latencies_of(&self, id: UnitId, which: impl Fn(&Waits) -> &Latencies) -> Latencies {
        let mut latencies = Latencies::default();
        let jobs = self.scenario.workload.jobs.iter().zip(&self.wakes);
        jobs.filter(|(job, _)| job.unit == id).for_each(|(_, waits)| latencies.merge(which(waits)));
        latencies
    }

    /// The memory of the two built-in units.
    fn common(&self) -> Vec<CommonMemory> {
        let memory_of = |id: UnitId| {
            let (frames_mean, frames_max) = self.memory.used_mean_and_max(id);
            CommonMemory { name: self.path(id), frames: self.memory.used(id), frames_mean, frames_max }
        };
        [UnitId::KERNEL, UnitId::SHARED].map(memory_of).into()
    }

    fn disk(&self, drive: usize) -> DiskOutcome {
        let figures = self.drives[drive].figures();
        let total = figures.total();
        DiskOutcome {
            name: self.scenario.hardware.disks[drive].name.clone(),
            busy_ns: figures.busy_ns,
            requests: total.requests,
            latency_ms: mean_ms(total.served_ns, total.requests),
            queue: ratio(figures.queued_ns + figures.in_service_ns, self.now),
            queue_at_arrival: ratio(figures.found_waiting + figures.found_in_service, figures.arrivals),
            units: self
                .scenario
                .contract
                .ids()
                .map(|id| (id, figures.unit(id)))
                .filter(|(_, unit)| unit.requests > 0)
                .map(|(id, unit)| DiskUse {
                    unit: self.path(id),
                    requests: unit.requests,
                    sectors: unit.sectors,
                    wait_ms: mean_ms(unit.waited_ns, unit.requests),
                    service_ms: mean_ms(unit.served_ns, unit.requests),
                })
                .collect(),
        }
    }

    fn locks(&self) -> Vec<LockOutcome> {
        let locks = self.scenario.workload.locks.iter().zip(&self.locks);
        locks
            .map(|(definition, lock)| {
                let figures = lock.figures(self.now);
                LockOutcome {
                    name: definition.name.clone(),
                    taken: figures.taken,
                    waits: figures.waits,
                    waited_ns: figures.waited_ns,
                    waited_max_ns: figures.waited_max_ns,
                    held_ns: figures.held_ns,
                    held_max_ns: figures.held_max_ns,
                }
            })
            .collect()
    }
}

fn mean_ms(sum_ns: Time, count: u64) -> f64 {
    ratio(sum_ns, count) / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "a mean for people; sums stay below 2^53")]
fn ratio(sum: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}
