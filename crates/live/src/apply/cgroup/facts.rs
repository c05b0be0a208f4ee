//! The snapshot: what units use and wait for, from the roster, the kernel's counts and, where there is one,
//! the scheduler's.

use commonhold_contract::UnitId;
use commonhold_policy::membership::is_within;
use commonhold_policy::{DiskFacts, MemoryFacts, Snapshot, Time, UnitFacts};

use super::usage::Usage;
use super::{CgroupBackend, Counted, Memory};
use crate::LiveError;
use crate::apply::confine::lineage;
use crate::apply::seats::Seats;

impl CgroupBackend {
    /// [`Backend::observe`]. If the backend around this one has a scheduler that counts the CPU time of
    /// units, `counted` returns that count.
    pub(crate) fn observe_counted(
        &mut self,
        watch: &[UnitId],
        counted: Counted<'_>,
    ) -> Result<Snapshot, LiveError> {
        let now = self.now;
        self.roster.account(now, &Seats::watched(&self.contract, watch))?;
        let mut units = self.facts(counted);
        self.bus.tell(&mut units);
        let memory = self.memory_facts(now);
        let disks = self.disk_facts();
        let charged = self.memory.as_ref().map(Memory::charged_in_foreign_groups).unwrap_or_default();
        let foreign_groups = self.foreign.facts(&charged, self.disks.in_foreign_groups());
        let idle_ns = self.idle.read(self.roster.procfs(), now)?;
        let (contract, confined) = (&self.contract, &self.confined);
        let (confinement, all) = (&self.confinement, &self.usable);
        let tied = |unit, key, tid| {
            let within = lineage(contract, unit).find_map(|unit| confined.get(&unit));
            confinement.tied(key, tid, within, all)
        };
        let mut jobs = self.seats.observe(now, contract, &mut self.roster, &tied)?;
        self.bus.tell_jobs(now, &mut jobs);
        self.seats.complain(&mut self.seat_problems);
        self.problems.append(&mut self.seat_problems.unread);
        Ok(Snapshot { at: now, units, idle_ns, disks, memory, jobs, foreign_groups, ..Snapshot::default() })
    }

    /// Disk use by unit, where the io controller is available.
    fn disk_facts(&mut self) -> Vec<DiskFacts> {
        if !self.groups.tree().has("io") {
            return Vec::new();
        }
        let leaf = |unit: UnitId| Some((unit, None, self.groups.leaf(unit)?));
        let places = self.foreign.all().map(|(place, unit, dir)| (unit, Some(place), dir.to_owned()));
        self.disks.observe(self.now, || self.contract.held().filter_map(leaf).chain(places).collect())
    }

    /// Samples the runnable threads of a unit before it is stopped, since a stopped thread is not runnable.
    pub(super) fn remember(&mut self, unit: UnitId) -> Result<(), LiveError> {
        let within: Vec<UnitId> =
            self.contract.held().filter(|id| is_within(&self.contract, *id, unit)).collect();
        self.roster.account(self.now, &within)?;
        let mut facts = self.roster.unit_facts();
        self.seats.count_shut(&self.roster, &mut facts);
        for id in within {
            self.groups.wanting(id, facts.get(id.index()).map_or(0, |facts| facts.runnable));
        }
        Ok(())
    }

    /// CPU time of a unit's own processes, and the time for which its cap throttled it; the previous
    /// values if the kernel's counts cannot be read, or need not be.
    fn used_and_limited_ns(&mut self, unit: UnitId, counted: Option<Time>) -> (Time, Time) {
        let CgroupBackend { usage, groups, problems, now, roster, foreign, contract, facts, .. } = self;
        let outside_ns = roster.used_outside_ns(unit) + foreign.used_ns(unit, &contract.unit(unit).path);
        let mut limited_ns = facts[unit.index()].limited_ns;
        let used_ns = usage[unit.index()].now(*now, counted, || {
            let in_group = groups.used_and_limited_ns(unit).unwrap_or_else(|error| {
                problems.push(error);
                None
            });
            let (used_ns, throttled_ns) = in_group?;
            limited_ns = limited_ns.max(throttled_ns);
            Some(used_ns + outside_ns)
        });
        (used_ns, limited_ns)
    }

    /// Memory facts. A unit's memory includes the memory that its processes had when they were moved in,
    /// which stays charged to their origins.
    fn memory_facts(&mut self, now: Time) -> Option<MemoryFacts> {
        let units = self.contract.units.len();
        let mut facts = self.memory.as_mut()?.observe(now, units)?;
        for member in self.roster.members().filter(|member| !member.placement.unit.is_common()) {
            if let Some(unit) = facts.units.get_mut(member.placement.unit.index()) {
                unit.elsewhere += self.members.charged_elsewhere(member.key);
            }
        }
        Some(facts)
    }

    /// The roster's facts, with CPU time as the kernel or the scheduler counts it.
    fn facts(&mut self, counted: Counted<'_>) -> Vec<UnitFacts> {
        let mut facts = self.roster.unit_facts();
        self.seats.count_shut(&self.roster, &mut facts);
        self.facts.resize(facts.len(), UnitFacts::default());
        self.usage.resize(facts.len(), Usage::default());
        self.usage_is_final.resize(facts.len(), false);
        let mut any_arrived = false;
        for (unit, facts) in (0u32..).map(UnitId).zip(&mut facts) {
            if unit.is_common() {
                continue;
            }
            let before = self.facts[unit.index()];
            let wanting = self.groups.wanting(unit, facts.runnable);
            facts.runnable = if facts.processes == 0 { 0 } else { wanting };
            // All facts of a unit are of one moment: CPU time is read only when the others are.
            let fresh = facts.at != before.at || before.at == 0;
            let empty = facts.processes == 0;
            any_arrived |= before.processes == 0 && !empty;
            // A cap of an empty unit may throttle its sub-units.
            let is_final = empty && self.usage_is_final[unit.index()] && !self.groups.is_capped(unit);
            let due = fresh && !is_final;
            self.usage_is_final[unit.index()] = empty && (due || self.usage_is_final[unit.index()]);
            let counts = if due {
                self.used_and_limited_ns(unit, counted(unit).filter(|_| !empty))
            } else {
                (before.used_ns, before.limited_ns)
            };
            (facts.used_ns, facts.limited_ns) = counts;
        }
        // The last memory plan has no bound for a unit that was empty.
        if let Some(memory) = self.memory.as_mut().filter(|_| any_arrived) {
            memory.make_due();
        }
        self.facts.clone_from(&facts);
        facts
    }
}
