//! Attribution: once a second, a *batch* of snapshots is completed. The time for which units waited in it is
//! divided over causes, the rates of loans between units are computed, and the batch enters the window of
//! verdicts.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::{Contract, MILLIONTH, Resource, UnitId};
use commonhold_policy::rights::limits::own as limit;
use commonhold_policy::share::part_of;
use commonhold_policy::tree::{lineage, sums};
use commonhold_policy::{LentTo, LoansByPair, Snapshot, Time};

use super::{CpuEntry, Ledger, cpu_time};
use crate::bus::BusTotals;
use crate::memory::MemoryMark;
use crate::verdict::{BATCH_NS, Batch, UnitBatch};
use crate::waits::{Amounts, Cause, Occupants, Waited, had_by};
use crate::{CpuLoan, LOANS_MAX};

/// The batch that is not complete yet: the totals at its beginning, and what happened since.
#[derive(Debug, Clone, Default)]
pub(super) struct OpenBatch {
    /// When it began; `None` before the first snapshot.
    since: Option<Time>,
    /// By [`UnitId::index`].
    marks: Vec<Mark>,
    /// CPU time in no unit and not idle, at the beginning.
    common_ns: u64,
    /// CPU time on loan, by lender and borrower.
    pub(super) loans: BTreeMap<(UnitId, UnitId), u64>,
    /// Stall times for memory and disks, already attributed.
    waits: Vec<Amounts>,
}

impl OpenBatch {
    /// Adds the totals of a unit that ended to its encloser's, as the accounts do.
    pub(super) fn close_into(&mut self, unit: UnitId, encloser: UnitId) {
        let size = self.marks.len().max(encloser.index() + 1).max(unit.index() + 1);
        self.marks.resize(size, Mark::default());
        let mark = std::mem::take(&mut self.marks[unit.index()]);
        let sum = &mut self.marks[encloser.index()];
        sum.used_ns += mark.used_ns;
        sum.waited_ns += mark.waited_ns;
        sum.limited_ns += mark.limited_ns;
        sum.memory.entitled += mark.memory.entitled;
        sum.memory.used += mark.memory.used;
        sum.disk.0 += mark.disk.0;
        sum.disk.1 += mark.disk.1;
        let moved = |(from, to): (UnitId, UnitId)| {
            let moved = |id: UnitId| if id == unit { encloser } else { id };
            (moved(from), moved(to))
        };
        for (pair, ns) in std::mem::take(&mut self.loans) {
            *self.loans.entry(moved(pair)).or_insert(0) += ns;
        }
    }
}

/// One unit's totals at the beginning of a batch, sub-units excluded.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    used_ns: u64,
    waited_ns: u64,
    limited_ns: u64,
    entitled_ns: u64,
    gated_ns: u64,
    bus: BusTotals,
    memory: MemoryMark,
    disk: (u64, u64),
}

impl Ledger {
    /// Attributes the time for which units stalled for memory and disks since the last samples of these.
    pub(super) fn attribute_stalls(&mut self, contract: &Contract) {
        for (unit, ns) in self.memory.stalls() {
            let (weights, is_beyond) = self.memory.causes(unit);
            let waited = Waited { unit, resource: Resource::Memory, ns, is_beyond };
            self.waits.infer(waited, &weights, &mut self.batch.waits);
        }
        for (unit, ns) in self.disks.stalls().into_iter().filter(|(unit, _)| contract.has(*unit)) {
            let (weights, is_beyond) = self.disks.causes(&lineage(contract, unit).collect::<Vec<_>>());
            let waited = Waited { unit, resource: Resource::Disk, ns, is_beyond };
            self.waits.infer(waited, &weights, &mut self.batch.waits);
        }
    }

    /// Completes the batch if it is long enough: attributes the time for which units waited for CPUs, and
    /// adds the batch to the window of verdicts.
    pub(super) fn attribute_batch(&mut self, contract: &Contract, snapshot: &Snapshot) {
        let Some(since) = self.batch.since else {
            self.begin_batch();
            self.waits.count(&snapshot.waited_for, |_| Cause::Own, |_| false, &mut Vec::new());
            return;
        };
        let length = self.at.saturating_sub(since);
        if length < BATCH_NS {
            return;
        }
        let mut waits = std::mem::take(&mut self.batch.waits);
        let marks = std::mem::take(&mut self.batch.marks);
        let before = |unit: UnitId| marks.get(unit.index()).copied().unwrap_or_default();
        let entry = |unit: UnitId| self.units.get(unit.index());
        let used =
            |unit: UnitId| entry(unit).map_or(0, |now| now.used_ns.saturating_sub(before(unit).used_ns));
        let entitled = |unit: UnitId| {
            entry(unit).map_or(0, |now| now.entitled_ns.saturating_sub(before(unit).entitled_ns))
        };
        let used_within = sums(contract, used);
        let is_beyond = |unit: UnitId| {
            let had = used_within.get(unit.index()).copied().unwrap_or(0);
            had >= part_of(entitled(unit), 98, 100)
        };
        let whole = u64::from(self.cpus) * MILLIONTH;
        let is_at_limit = |unit: UnitId| {
            let limit = limit(contract, Resource::Cpu, unit, whole);
            let had = used_within.get(unit.index()).copied().unwrap_or(0);
            limit.is_some_and(|limit| had >= part_of(cpu_time(limit, length), 95, 100))
        };
        let limited: BTreeSet<UnitId> = contract.held().filter(|unit| is_at_limit(*unit)).collect();
        let own = |unit: UnitId| {
            let is_limited =
                !limited.is_empty() && lineage(contract, unit).any(|unit| limited.contains(&unit));
            if is_limited { Cause::Limit } else { Cause::Own }
        };
        if snapshot.waited_for.is_empty() {
            self.waits.rebase();
            let common_ns = self.common_ns().saturating_sub(self.batch.common_ns);
            let owners = self.owners(contract);
            let mut occupants: BTreeMap<Option<UnitId>, Occupants> = BTreeMap::new();
            let grown = |unit: UnitId, of: fn(&CpuEntry) -> u64, mark: u64| {
                entry(unit).map_or(0, |now| of(now).saturating_sub(mark))
            };
            let waited_ns = |unit: UnitId| grown(unit, |now| now.waited_ns, before(unit).waited_ns);
            let waited_within = sums(contract, waited_ns);
            // A limit throttles the threads of all units within: each in proportion to its waits.
            let limited_by = |limit: UnitId, ns: u64| {
                let limited_ns = grown(limit, |now| now.limited_ns, before(limit).limited_ns);
                match waited_within.get(limit.index()) {
                    Some(within) if *within > 0 => part_of(limited_ns.min(*within), ns, *within),
                    _ => 0,
                }
            };
            for unit in contract.held() {
                let ns = waited_ns(unit);
                let limited_ns =
                    lineage(contract, unit).map(|limit| limited_by(limit, ns)).sum::<u64>().min(ns);
                let waited =
                    Waited { unit, resource: Resource::Cpu, ns: limited_ns, is_beyond: is_beyond(unit) };
                if ns > 0 {
                    let owner = owners.get(unit.index()).copied().flatten();
                    let had = occupants
                        .entry(owner)
                        .or_insert_with(|| self.occupants(contract, owner, &owners, used, common_ns));
                    let mut weights = had.causes(unit, own(unit), used(unit));
                    // Threads of a unit hardly wait for each other if a single one could have used and waited
                    // as much.
                    let by_others: u64 =
                        weights.iter().filter(|(cause, _)| *cause != Cause::Own).map(|(_, had)| had).sum();
                    if by_others > 0 && used(unit).saturating_add(ns) <= length {
                        weights.retain(|(cause, _)| *cause != Cause::Own);
                    }
                    self.waits.charge(waited, Cause::Limit, &mut waits);
                    self.waits.infer(Waited { ns: ns - limited_ns, ..waited }, &weights, &mut waits);
                }
            }
        } else {
            self.waits.count(&snapshot.waited_for, own, is_beyond, &mut waits);
        }
        let units = (0..self.units.len()).map(|index| {
            let unit = UnitId(u32::try_from(index).unwrap_or(u32::MAX));
            let (now, mark) = (&self.units[index], before(unit));
            let runs_and_wants = u64::from(now.facts.runnable) * MILLIONTH;
            UnitBatch {
                cpu_used: used(unit),
                cpu_entitled: entitled(unit),
                waits_unseen: now.waited_ns == 0 && runs_and_wants > now.using_micro_cpus + MILLIONTH,
                cpu_late: now.late,
                memory: self.memory.totals_of(unit).map(|now| {
                    let MemoryMark { entitled, used, .. } = mark.memory;
                    (now.entitled.saturating_sub(entitled), now.used.saturating_sub(used))
                }),
                is_short_of_memory: self.memory.totals_of(unit).is_some_and(|now| now.is_short),
                memory_late: self
                    .memory
                    .totals_of(unit)
                    .map_or((0, (0, 0)), |now| (now.late.saturating_sub(mark.memory.late), now.longest)),
                disk: self
                    .disks
                    .totals_of(unit)
                    .map(|(due, used)| (due.saturating_sub(mark.disk.0), used.saturating_sub(mark.disk.1))),
                bus: self.bus.totals_of(unit).map(|now| now.since(mark.bus)),
            }
        });
        let units = units.collect();
        for unit in contract.held() {
            let gated_ns = self.bus.waited_ns(unit).saturating_sub(before(unit).gated_ns);
            let waited = Waited { unit, resource: Resource::Bus, ns: gated_ns, is_beyond: true };
            self.waits.charge(waited, Cause::Gate, &mut waits);
        }
        self.window.push(Batch { length, units, waits });
        let rate = |(pair, ns)| (pair, part_of(ns, MILLIONTH, length));
        self.recent_loans[0] = std::mem::take(&mut self.batch.loans).into_iter().map(rate).collect();
        self.begin_batch();
    }

    /// Begins a batch at the last snapshot.
    pub(super) fn begin_batch(&mut self) {
        let marks = (0..self.units.len()).map(|index| {
            let unit = UnitId(u32::try_from(index).unwrap_or(u32::MAX));
            let entry = &self.units[index];
            Mark {
                used_ns: entry.used_ns,
                waited_ns: entry.waited_ns,
                limited_ns: entry.limited_ns,
                entitled_ns: entry.entitled_ns,
                gated_ns: self.bus.waited_ns(unit),
                bus: self.bus.totals_of(unit).unwrap_or_default(),
                memory: self.memory.totals_of(unit).unwrap_or_default(),
                disk: self.disks.totals_of(unit).unwrap_or_default(),
            }
        });
        let marks = marks.collect();
        let common_ns = self.common_ns();
        self.batch = OpenBatch { since: Some(self.at), marks, common_ns, ..OpenBatch::default() };
        for entry in &mut self.units {
            entry.late = (0, 0);
        }
    }

    /// CPU time of the common parts, since the ledger was opened: not idle, and in no unit but built-in ones.
    fn common_ns(&self) -> u64 {
        // The two built-in units come first.
        let used: u64 = self.units.iter().skip(2).map(|entry| entry.used_ns).sum();
        self.capacity_ns.saturating_sub(used).saturating_sub(self.idle_ns)
    }

    /// By [`UnitId::index`]: the unit itself or its nearest encloser that owns CPUs; `None`: no such unit.
    fn owners(&self, contract: &Contract) -> Vec<Option<UnitId>> {
        let owners: BTreeSet<UnitId> = self.owner.values().copied().collect();
        let mut nearest: Vec<Option<UnitId>> = vec![None; contract.units.len()];
        // Enclosers precede the units within them.
        for unit in contract.held() {
            let encloser = contract.unit(unit).parent.and_then(|parent| nearest[parent.index()]);
            nearest[unit.index()] = if owners.contains(&unit) { Some(unit) } else { encloser };
        }
        nearest
    }

    /// What had the CPUs of `owner` in this batch, weighted by CPU time: the units within the owner, its
    /// borrowers, and the common parts. Without an owner: the units that own no CPUs, and the common parts.
    fn occupants(
        &self,
        contract: &Contract,
        owner: Option<UnitId>,
        owners: &[Option<UnitId>],
        used: impl Fn(UnitId) -> u64,
        common_ns: u64,
    ) -> Occupants {
        let within = contract.held().filter(|unit| owners.get(unit.index()).copied().flatten() == owner);
        let within = within.filter(|unit| !unit.is_common()).map(|unit| (had_by(unit), used(unit)));
        let loans = self.batch.loans.iter().filter(|((lender, _), _)| Some(*lender) == owner);
        // A borrower has a lent CPU only while the common parts leave it.
        let borrowers =
            loans.map(|((_, borrower), ns)| (Cause::CallBack(*borrower), (*ns).min(used(*borrower))));
        let owned =
            self.owner.values().filter(|unit| owner.is_none_or(|owner| **unit == owner)).count() as u64;
        let cpus = u64::from(self.cpus.max(1));
        let cpus_of_owner = if owner.is_some() { owned } else { cpus - owned.min(cpus) };
        let common = part_of(common_ns, cpus_of_owner, cpus);
        Occupants::of(within.chain(borrowers).chain([(Cause::Common, common)]))
    }

    /// Computes the rates of the loans that the scheduler made at switches, if there is a later sample.
    pub(super) fn note_loans_at_switches(&mut self, now: &LoansByPair) {
        let before = &self.loans_by_pair;
        if now.at == before.at {
            return;
        }
        let elapsed = if before.at == 0 { 0 } else { now.at.saturating_sub(before.at) };
        let counted: BTreeMap<(UnitId, UnitId), u64> =
            before.lent.iter().map(|loan| ((loan.lender, loan.borrower), loan.ns)).collect();
        let rate = |loan: &LentTo| {
            let pair = (loan.lender, loan.borrower);
            let ns = loan.ns.saturating_sub(counted.get(&pair).copied().unwrap_or(0));
            (ns > 0 && elapsed > 0).then(|| (pair, part_of(ns, MILLIONTH, elapsed)))
        };
        self.recent_loans[1] = now.lent.iter().filter_map(rate).collect();
        self.loans_by_pair = now.clone();
    }

    /// The loans of the last complete batch, the largest first.
    pub(super) fn loans_now(&self, contract: &Contract) -> Vec<CpuLoan> {
        let is_known = |unit: UnitId| unit.is_common() || contract.has(unit);
        let path = |unit: UnitId| is_known(unit).then(|| contract.unit(unit).path.clone());
        let loan = |(&(lender, borrower), &micro_cpus): (&(UnitId, UnitId), &u64)| {
            Some(CpuLoan { lender: path(lender)?, borrower: path(borrower)?, micro_cpus })
        };
        let mut loans: Vec<CpuLoan> = self.recent_loans.iter().flatten().filter_map(loan).collect();
        loans.sort_by_key(|loan| std::cmp::Reverse(loan.micro_cpus));
        loans.truncate(LOANS_MAX);
        loans
    }
}
