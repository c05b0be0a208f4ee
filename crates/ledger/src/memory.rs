//! The accounts of memory.
//!
//! Memory is occupied rather than consumed, so an account has current amounts and their integrals over time.
//!
//! A call-back belongs to the lender. The recorded duration is an upper bound of the real one. It begins at
//! the last sample at which the lender did not yet want the lent memory back. It ends at the first sample at
//! which borrowers have returned all memory that this and earlier call-backs asked for. While a lender grows,
//! every step may call back a little more memory; each such step is a call-back of its own. Memory that a
//! borrower takes beyond its bound was never lent and is not called back. But a call-back ends only once the
//! borrower is within its bound.
//!
//! The promise to a lender is the call-back time that the plan stated when the unit last lent. A call-back
//! that takes longer is late.
//!
//! Pages are not lent to one unit in particular: idle memory is pooled, and divided among units that are
//! short. So when a lender calls back, one called-back loan is recorded for each borrower that has to return
//! memory at that time. This loan ends when the borrower has returned its part. The lender's call-back ends
//! when all borrowers have returned their parts.

use std::collections::{BTreeMap, VecDeque};

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_policy::plan::{MemoryPlan, NoMore, Share};
use commonhold_policy::{Plan, Snapshot, Time, UnitMemory};

use crate::Imbalance;
use crate::spread::Histogram;
use crate::waits::{Cause, Occupants, had_by};

/// A unit's memory account since the ledger was opened, sub-units included. In bytes; times in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct MemoryAccount {
    /// The unit's entitlement now.
    pub entitled: u64,
    /// The memory that the unit may use now: entitled - lent + borrowed.
    pub allowed: u64,
    /// The memory that the unit uses now.
    pub used: u64,
    /// The part of `used` not accessed for a long time, if the machine can tell.
    pub cold: u64,
    /// The memory that the unit lends now.
    pub lent: u64,
    /// The memory that the unit borrows now.
    pub borrowed: u64,
    /// Average entitlement over time.
    pub entitled_mean: u64,
    /// Average use.
    pub used_mean: u64,
    /// Average lent.
    pub lent_mean: u64,
    /// Average borrowed.
    pub borrowed_mean: u64,
    /// The amounts behind these averages. They are not serialised: JSON has no numbers of this size.
    #[serde(skip)]
    pub integrals: MemoryIntegrals,
    /// Number of call-backs.
    pub called_back: u64,
    /// Median call-back.
    pub call_back_p50_ns: u64,
    /// The 99th percentile of call-backs.
    pub call_back_p99_ns: u64,
    /// The longest call-back.
    pub call_back_max_ns: u64,
    /// Call-backs that exceeded the promise made when they began.
    #[serde(default)]
    pub call_backs_late: u64,
    /// The time within which all that it lends now can be called back: the longest over itself and its
    /// sub-units. `None` if it lends nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_ns: Option<u64>,
    /// Why the unit's own processes may not use more now; `None` if they are not short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_more: Option<NoMore>,
    /// Time in which at least one of its processes was stalled for memory.
    pub waited_ns: u64,
    /// Bytes refaulted soon after reclaim.
    pub refaulted: u64,
    /// Bytes reclaimed from the unit by order: to call them back, to lend them, or for a trial.
    pub taken: u64,
    /// Time spent on reclaiming these.
    pub taking_ns: u64,
    /// Processes killed because memory ran out.
    pub killed: u64,
    /// Memory of the unit's processes charged elsewhere, since they allocated it before they joined the unit.
    pub elsewhere: u64,
    /// File pages charged to it and attributed to other units that also map them; an estimate.
    pub for_others: u64,
    /// Memory taken by its pages in compressed swap (zram), by estimate; included in `used`.
    #[serde(default)]
    pub packed: u64,
    /// Its called-back loans, by the path of the borrower.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub called_back_from: BTreeMap<String, CallBacks>,
    /// Its most recent call-backs, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_call_backs: Vec<Return>,
}

/// Amounts of memory, integrated over the time since the ledger was opened, in bytes times nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryIntegrals {
    /// The unit's entitlement.
    pub entitled_byte_ns: u128,
    /// Its use.
    pub used_byte_ns: u128,
    /// What it lent.
    pub lent_byte_ns: u128,
    /// What it borrowed.
    pub borrowed_byte_ns: u128,
}

/// A completed call-back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Return {
    /// When it ended, in nanoseconds on the plans' clock.
    pub at_ns: u64,
    /// Bytes called back at that time from all borrowers; other lenders may have called at the same time.
    pub bytes: u64,
    /// The promised duration.
    pub promised_ns: u64,
    /// The actual duration.
    pub took_ns: u64,
}

/// Called-back loans of one unit to another, and their durations in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct CallBacks {
    /// Number of loans.
    pub loans: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl From<&Histogram> for CallBacks {
    fn from(spread: &Histogram) -> Self {
        CallBacks {
            loans: spread.count(),
            p50_ns: spread.quantile(500_000),
            p99_ns: spread.quantile(990_000),
            max_ns: spread.quantile(1_000_000),
        }
    }
}

/// The machine's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct MemoryTotals {
    /// All memory that the kernel manages.
    pub total: u64,
    /// Kernel memory charged to no unit.
    pub kernel: u64,
    /// Memory of processes in no unit.
    pub shared: u64,
    /// Memory divided among units.
    pub divided: u64,
}

/// A unit's totals since the ledger was opened, sub-units excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MemoryMark {
    /// Entitlement and use, integrated over time, in byte-nanoseconds.
    pub(crate) entitled: u128,
    pub(crate) used: u128,
    /// Whether it wants more than it may use now.
    pub(crate) is_short: bool,
    /// Late call-backs.
    pub(crate) late: u64,
    /// The promised and the actual duration of its last call-back.
    pub(crate) longest: (u64, u64),
}

/// A unit's running account, sub-units excluded.
#[derive(Debug, Clone, Default)]
struct MemoryEntry {
    /// The first sample, the baseline of cumulative counters.
    first: Option<UnitMemory>,
    /// The latest sample.
    facts: UnitMemory,
    /// Its stall time between the last two samples.
    stalled_ns: u64,
    /// The unit's share by the latest decision.
    share: Share,
    /// Integrals over time, in byte-nanoseconds.
    entitled: u128,
    used: u128,
    lent: u128,
    borrowed: u128,
    /// As a borrower: called-back bytes that the unit has not returned.
    owed: u64,
    /// As a borrower: the call-backs in progress for which the unit has to return memory.
    calls_on_unit: Calls,
    /// As a lender: durations of completed call-backs.
    call_backs: Histogram,
    /// As a lender: the number of late call-backs.
    late: u64,
    /// As a lender: the most recent completed call-backs, the latest last.
    returns: VecDeque<Return>,
    /// As a lender: durations of completed called-back loans, by borrower.
    by_borrower: BTreeMap<UnitId, Histogram>,
}

/// Number of call-backs kept individually per unit.
const RETURNS_MAX: usize = 16;

impl MemoryEntry {
    /// Records a completed call-back of the unit as a lender.
    fn record(&mut self, call_back: Return) {
        self.call_backs.add(call_back.took_ns);
        self.late += u64::from(call_back.took_ns > call_back.promised_ns);
        if self.returns.len() == RETURNS_MAX {
            self.returns.pop_front();
        }
        self.returns.push_back(call_back);
    }

    /// The bytes that a new share calls back from the unit: the part of its use that exceeds the new
    /// allowance. Use beyond the old allowance is left out, since it was never lent. `None` if the new share
    /// calls nothing back.
    fn newly_called(&self, share: &Share) -> Option<u64> {
        let used_by_right = self.facts.used.min(self.share.allowed);
        share.called_back.then(|| used_by_right.saturating_sub(share.allowed))
    }
}

/// The accounts of all units.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    units: Vec<MemoryEntry>,
    totals: MemoryTotals,
    opened_at: Option<Time>,
    at: Time,
    /// The time of the sample before the latest. At that sample, lenders did not yet want the memory that
    /// they call back now. So call-backs begin at this time.
    previous_at: Time,
    /// Call-backs in progress, from all borrowers together.
    calls: Calls,
    /// What units borrowed that left since the last decision on memory. That decision still counts it as
    /// lent.
    gone_borrowed: u64,
}

/// Call-backs in progress, from one borrower or from all, in order of their beginning.
#[derive(Debug, Clone, Default)]
struct Calls {
    /// All bytes ever called back.
    called: u64,
    in_progress: VecDeque<Call>,
}

/// A call-back in progress.
#[derive(Debug, Clone)]
struct Call {
    since: Time,
    /// The call-back is complete once this many bytes have been returned in total: the value of
    /// [`Calls::called`] at its beginning, with its own bytes included.
    until: u64,
    bytes: u64,
    /// The lenders, by index, each with the call-back time promised to it.
    lenders: Vec<(usize, Time)>,
}

impl Calls {
    /// Begins a call-back of `bytes` for these lenders.
    fn begin(&mut self, since: Time, bytes: u64, lenders: &[(usize, Time)]) {
        if bytes > 0 {
            self.called += bytes;
            self.in_progress.push_back(Call { since, until: self.called, bytes, lenders: lenders.to_vec() });
        }
    }

    /// Removes and returns the call-backs that are complete, if `owed` of the bytes ever called back are not
    /// returned yet.
    fn take_completed(&mut self, owed: u64) -> Vec<Call> {
        let returned = self.called.saturating_sub(owed);
        let completed = self.in_progress.iter().take_while(|call| call.until <= returned).count();
        self.in_progress.drain(..completed).collect()
    }
}

impl Memory {
    /// Adds the previous amounts, times the time since the previous sample, to the integrals. Then enters the
    /// snapshot's sample of memory.
    pub(crate) fn observe(&mut self, snapshot: &Snapshot) {
        for entry in &mut self.units {
            entry.stalled_ns = 0;
        }
        let Some(facts) = &snapshot.memory else { return };
        self.units.resize(self.units.len().max(facts.units.len()), MemoryEntry::default());
        let elapsed = u128::from(self.opened_at.map_or(0, |_| snapshot.at.saturating_sub(self.at)));
        self.opened_at.get_or_insert(snapshot.at);
        for (entry, facts) in self.units.iter_mut().zip(&facts.units) {
            entry.entitled += u128::from(entry.share.entitled) * elapsed;
            entry.lent += u128::from(entry.share.lent) * elapsed;
            entry.borrowed += u128::from(entry.share.borrowed) * elapsed;
            entry.used += u128::from(entry.facts.used) * elapsed;
            // A counter that fell was restarted. The first sample is the baseline.
            let before = entry.first.map_or(facts.stalled_ns, |_| entry.facts.stalled_ns);
            entry.stalled_ns = facts.stalled_ns.saturating_sub(before);
            entry.first.get_or_insert(*facts);
            entry.facts = *facts;
        }
        (self.previous_at, self.at) = (self.at, snapshot.at);
        self.totals =
            MemoryTotals { total: facts.total, kernel: facts.kernel, shared: facts.shared, ..self.totals };
    }

    /// Enters a plan's decision on memory, if it has one.
    pub(crate) fn book(&mut self, plan: &Plan) {
        let Some(memory) = &plan.decisions.memory else { return };
        self.units.resize(self.units.len().max(memory.units.len()), MemoryEntry::default());
        self.totals.divided = memory.divided;
        self.gone_borrowed = 0;
        self.book_call_backs(plan.at, memory);
        for (entry, share) in self.units.iter_mut().zip(&memory.units) {
            entry.share = *share;
        }
    }

    /// Begins the call-backs that a decision orders, and ends those that are complete.
    fn book_call_backs(&mut self, at: Time, memory: &MemoryPlan) {
        let lends_less = |(entry, share): (&MemoryEntry, &Share)| share.lent < entry.share.lent;
        let both = self.units.iter().zip(&memory.units);
        let lenders: Vec<(usize, Time)> = (0..)
            .zip(both)
            .filter(|(_, pair)| lends_less(*pair))
            .map(|(i, (entry, _))| (i, entry.share.within_ns.unwrap_or(0)))
            .collect();
        let mut newly_called = 0;
        let mut returned_loans = Vec::new();
        for (unit, (entry, share)) in (0u32..).map(UnitId).zip(self.units.iter_mut().zip(&memory.units)) {
            // Without a lender that lends less, nothing is called back.
            let called = entry.newly_called(share).filter(|_| !lenders.is_empty()).unwrap_or(0);
            let beyond = if share.called_back { entry.facts.used.saturating_sub(share.allowed) } else { 0 };
            entry.owed = entry.owed.saturating_add(called).min(beyond);
            entry.calls_on_unit.begin(self.previous_at, called, &lenders);
            let completed = entry.calls_on_unit.take_completed(entry.owed);
            returned_loans.extend(completed.into_iter().map(|call| (unit, call)));
            newly_called += called;
        }
        for (borrower, call) in returned_loans {
            for (lender, _) in call.lenders {
                let histogram = self.units[lender].by_borrower.entry(borrower).or_default();
                histogram.add(at.saturating_sub(call.since));
            }
        }
        self.calls.begin(self.previous_at, newly_called, &lenders);
        for call in self.calls.take_completed(self.units.iter().map(|entry| entry.owed).sum()) {
            for (lender, promised_ns) in call.lenders {
                let (bytes, took_ns) = (call.bytes, at.saturating_sub(call.since));
                self.units[lender].record(Return { at_ns: at, bytes, promised_ns, took_ns });
            }
        }
    }

    /// Closes the account of a unit that ended, and adds it to the encloser's account. The next decision on
    /// memory ends the unit's borrowings.
    pub(crate) fn close_into(&mut self, unit: UnitId, encloser: UnitId) {
        let Some(entry) = self.units.get_mut(unit.index()).map(std::mem::take) else { return };
        self.gone_borrowed += entry.share.borrowed;
        let Some(encloser) = self.units.get_mut(encloser.index()) else { return };
        encloser.entitled += entry.entitled;
        encloser.used += entry.used;
        encloser.lent += entry.lent;
        encloser.borrowed += entry.borrowed;
        encloser.call_backs.merge(&entry.call_backs);
        encloser.late += entry.late;
    }

    /// Adopts another contract. The accounts of units that left are closed, and all call-backs in progress
    /// are dropped.
    pub(crate) fn adopt(&mut self, contract: &Contract) {
        self.units.resize(self.units.len().max(contract.units.len()), MemoryEntry::default());
        for (id, entry) in (0u32..).map(UnitId).zip(&mut self.units) {
            if contract.has(id) {
                (entry.owed, entry.calls_on_unit) = (0, Calls::default());
                entry.by_borrower.retain(|unit, _| contract.has(*unit));
            } else {
                self.gone_borrowed += entry.share.borrowed;
                *entry = MemoryEntry::default();
            }
        }
        self.calls = Calls::default();
        if contract.machine.scheme == Scheme::Smp {
            // Under `smp` plans contain no decision on memory.
            self.units.iter_mut().for_each(|entry| entry.share = Share::default());
            (self.totals.divided, self.gone_borrowed) = (0, 0);
        }
    }

    /// The units that stalled for memory between the last two samples, each with the time.
    pub(crate) fn stalls(&self) -> Vec<(UnitId, u64)> {
        let stalled = (0u32..).map(UnitId).zip(&self.units).filter(|(_, entry)| entry.stalled_ns > 0);
        stalled.map(|(unit, entry)| (unit, entry.stalled_ns)).collect()
    }

    /// Why a unit stalled at the last sample: the causes with their weights, and whether the unit had at
    /// least its entitlement.
    pub(crate) fn causes(&self, unit: UnitId) -> (Vec<(Cause, u64)>, bool) {
        let Some(entry) = self.units.get(unit.index()) else { return (Vec::new(), false) };
        let (used, entitled) = (entry.facts.used, entry.share.entitled);
        let ids = || (0u32..).map(UnitId).zip(&self.units);
        if self.totals.divided == 0 {
            // Nothing is entitled to anything: each unit takes what it can.
            let had = Occupants::of(ids().map(|(id, other)| (had_by(id), other.facts.used)));
            return (had.causes(unit, Cause::Own, used), true);
        }
        let lends = |call: &Call| call.lenders.iter().any(|(lender, _)| *lender == unit.index());
        let owing: Vec<(Cause, u64)> = ids()
            .filter(|(_, other)| other.owed > 0)
            .map(|(id, other)| (Cause::CallBack(id), other.owed))
            .collect();
        let is_beyond = used >= entitled;
        if !owing.is_empty() && self.calls.in_progress.iter().any(lends) {
            (owing, is_beyond)
        } else if entry.share.no_more == Some(NoMore::Limit) {
            (vec![(Cause::Limit, 1)], is_beyond)
        } else if is_beyond {
            (vec![(Cause::Own, 1)], true)
        } else {
            let over = |(id, other): (UnitId, &MemoryEntry)| {
                let over = other.facts.used.saturating_sub(other.share.entitled);
                (id != unit && !id.is_common() && over > 0).then_some((Cause::Unit(id), over))
            };
            let others: Vec<(Cause, u64)> = ids().filter_map(over).collect();
            // No unit has more than its part: the stalls are page faults that the unit would have alone.
            let none_is_over = others.is_empty();
            (
                if none_is_over {
                    vec![(Cause::Own, 1)]
                } else {
                    Occupants::of(others).causes(unit, Cause::Own, 0)
                },
                false,
            )
        }
    }

    /// A unit's totals for a batch; `None` if memory was never sampled.
    pub(crate) fn totals_of(&self, unit: UnitId) -> Option<MemoryMark> {
        self.opened_at?;
        let entry = self.units.get(unit.index())?;
        Some(MemoryMark {
            entitled: entry.entitled,
            used: entry.used,
            is_short: entry.share.no_more.is_some(),
            late: entry.late,
            longest: entry.returns.back().map_or((0, 0), |back| (back.promised_ns, back.took_ns)),
        })
    }

    /// The sums of the last decision that do not balance.
    pub(crate) fn imbalances(&self) -> Vec<Imbalance> {
        // Without the two common units, which come first.
        let sum = |figure: fn(&Share) -> u64| {
            self.units.iter().skip(2).map(|entry| figure(&entry.share)).sum::<u64>()
        };
        let (lent, borrowed) = (sum(|share| share.lent), sum(|share| share.borrowed) + self.gone_borrowed);
        let (allowed, divided) = (sum(|share| share.allowed), self.totals.divided);
        let loans = (lent > borrowed).then_some(Imbalance::Memory { lent, borrowed });
        let allowances = (allowed > divided).then_some(Imbalance::Allowed { allowed, divided });
        loans.into_iter().chain(allowances).collect()
    }

    /// The machine's memory; `None` if memory was never sampled.
    pub(crate) fn totals(&self) -> Option<MemoryTotals> {
        self.opened_at.map(|_| self.totals)
    }

    /// The account of a unit: sums over `family`, the unit itself first, then its sub-units. `None` if memory
    /// was never sampled.
    pub(crate) fn account(&self, contract: &Contract, family: &[UnitId]) -> Option<MemoryAccount> {
        let elapsed = u128::from(self.at.saturating_sub(self.opened_at?)).max(1);
        let entries = || family.iter().filter_map(|id| self.units.get(id.index()));
        let sum = |part: fn(&MemoryEntry) -> u64| entries().map(part).sum::<u64>();
        let integral = |part: fn(&MemoryEntry) -> u128| entries().map(part).sum::<u128>();
        let integrals = MemoryIntegrals {
            entitled_byte_ns: integral(|entry| entry.entitled),
            used_byte_ns: integral(|entry| entry.used),
            lent_byte_ns: integral(|entry| entry.lent),
            borrowed_byte_ns: integral(|entry| entry.borrowed),
        };
        let mean = |integral: u128| u64::try_from(integral / elapsed).unwrap_or(u64::MAX);
        let mut call_backs = Histogram::default();
        entries().for_each(|entry| call_backs.merge(&entry.call_backs));
        let call_backs = CallBacks::from(&call_backs);
        let mut returns: Vec<Return> = entries().flat_map(|entry| entry.returns.iter().copied()).collect();
        returns.sort_by_key(|back| back.at_ns);
        let last_call_backs = returns.split_off(returns.len().saturating_sub(RETURNS_MAX));
        let mut by_borrower: BTreeMap<&str, Histogram> = BTreeMap::new();
        for (id, spread) in entries().flat_map(|entry| &entry.by_borrower) {
            let path = contract.units.get(id.index()).map_or("?", |unit| unit.path.as_str());
            by_borrower.entry(path).or_default().merge(spread);
        }
        let since = |entry: &MemoryEntry, part: fn(&UnitMemory) -> u64| {
            part(&entry.facts).saturating_sub(entry.first.as_ref().map_or(0, part))
        };
        Some(MemoryAccount {
            entitled: sum(|entry| entry.share.entitled),
            allowed: sum(|entry| entry.share.allowed),
            used: sum(|entry| entry.facts.used),
            cold: sum(|entry| entry.facts.cold),
            lent: sum(|entry| entry.share.lent),
            borrowed: sum(|entry| entry.share.borrowed),
            entitled_mean: mean(integrals.entitled_byte_ns),
            used_mean: mean(integrals.used_byte_ns),
            lent_mean: mean(integrals.lent_byte_ns),
            borrowed_mean: mean(integrals.borrowed_byte_ns),
            integrals,
            called_back: call_backs.loans,
            call_back_p50_ns: call_backs.p50_ns,
            call_back_p99_ns: call_backs.p99_ns,
            call_back_max_ns: call_backs.max_ns,
            call_backs_late: sum(|entry| entry.late),
            last_call_backs,
            no_more: family.first().and_then(|id| self.units.get(id.index())?.share.no_more),
            within_ns: entries().filter_map(|entry| entry.share.within_ns).max(),
            called_back_from: by_borrower
                .into_iter()
                .map(|(path, spread)| (path.to_owned(), CallBacks::from(&spread)))
                .collect(),
            waited_ns: entries().map(|entry| since(entry, |facts| facts.stalled_ns)).sum(),
            refaulted: entries().map(|entry| since(entry, |facts| facts.refaulted)).sum(),
            taken: entries().map(|entry| since(entry, |facts| facts.taken)).sum(),
            taking_ns: entries().map(|entry| since(entry, |facts| facts.taking_ns)).sum(),
            killed: entries().map(|entry| since(entry, |facts| facts.killed)).sum(),
            elsewhere: sum(|entry| entry.facts.elsewhere),
            for_others: sum(|entry| entry.facts.for_others),
            packed: sum(|entry| entry.facts.packed),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use commonhold_policy::MS;
    use commonhold_policy::MemoryFacts;
    use commonhold_policy::plan::Decisions;

    const MIB: u64 = 1 << 20;

    /// A lender `a` and a borrower `b`.
    fn contract() -> Contract {
        let mut contract = Contract::default();
        contract.add(None, "a");
        contract.add(None, "b");
        contract
    }

    fn snapshot(at: Time, used: [u64; 2], stalled_ms: u64) -> Snapshot {
        let unit = |used: u64| UnitMemory {
            used: used * MIB,
            stalled_ns: stalled_ms * MS,
            elsewhere: 3 * MIB,
            for_others: 2 * MIB,
            packed: MIB,
            taken: used * MIB,
            taking_ns: stalled_ms * MS / 2,
            ..UnitMemory::default()
        };
        let units = vec![UnitMemory::default(), UnitMemory::default(), unit(used[0]), unit(used[1])];
        let memory = MemoryFacts { total: 1_000 * MIB, units, ..MemoryFacts::default() };
        Snapshot { at: at * MS, memory: Some(memory), ..Snapshot::default() }
    }

    fn plan(at: Time, lent: u64, called_back: bool) -> Plan {
        let share = |lent: u64, borrowed: u64| Share {
            entitled: 500 * MIB,
            lent: lent * MIB,
            borrowed: borrowed * MIB,
            allowed: (500 - lent + borrowed) * MIB,
            called_back: called_back && lent == 0,
            within_ns: (lent > 0).then_some(50 * MS),
            ..Share::default()
        };
        let units = vec![Share::default(), Share::default(), share(lent, 0), share(0, lent)];
        let memory = MemoryPlan { divided: 1_000 * MIB, units, ..MemoryPlan::default() };
        let decisions = Decisions { memory: Some(memory), ..Decisions::default() };
        Plan { at: at * MS, decisions, ..Plan::default() }
    }

    /// 200 MiB are lent for a second, then called back: wanted after the sample at 1,000 ms, noticed at
    /// 1,010, complete at 1,070.
    #[test]
    fn a_loan_and_its_call_back_by_hand() {
        let units = [UnitId(2), UnitId(3)];
        let mut memory = Memory::default();
        assert_eq!(memory.account(&contract(), &units[..1]), None);
        for (at, used, stalled, lent, owes) in [
            (0, [100, 500], 5, 200, false),
            (1_000, [100, 700], 5, 200, false),
            (1_010, [300, 700], 6, 0, true),
            (1_070, [400, 500], 7, 0, false),
        ] {
            memory.observe(&snapshot(at, used, stalled));
            memory.book(&plan(at, lent, owes));
        }
        let lender = memory.account(&contract(), &units[..1]).unwrap();
        assert_eq!((lender.used, lender.lent, lender.called_back), (400 * MIB, 0, 1));
        assert_eq!(lender.call_back_max_ns, 70 * MS);
        // The promise was 50 ms.
        let back = Return { at_ns: 1_070 * MS, bytes: 200 * MIB, promised_ns: 50 * MS, took_ns: 70 * MS };
        assert_eq!((lender.call_backs_late, &lender.last_call_backs[..]), (1, &[back][..]));
        assert_eq!(lender.within_ns, None, "nothing is lent now");
        let loan = CallBacks { loans: 1, p50_ns: 70 * MS, p99_ns: 70 * MS, max_ns: 70 * MS };
        assert_eq!(lender.called_back_from, BTreeMap::from([("b".to_owned(), loan)]));
        assert_eq!(lender.waited_ns, 2 * MS);
        // 200 MiB for 1,010 of 1,070 ms.
        assert_eq!(lender.lent_mean, 200 * MIB * 1_010 / 1_070);
        let both = memory.account(&contract(), &units).unwrap();
        assert_eq!((both.entitled, both.used, both.called_back), (1_000 * MIB, 900 * MIB, 1));
        assert_eq!((both.elsewhere, both.for_others, both.packed), (6 * MIB, 4 * MIB, 2 * MIB));
        // Counted from the first sample.
        assert_eq!((lender.taken, lender.taking_ns), (300 * MIB, MS));
        // 500 MiB used for the first second and 700 for 10 ms, then 700 for 60.
        let borrower = memory.account(&contract(), &units[1..]).unwrap();
        assert_eq!(borrower.used_mean, MIB * (500 * 1_000 + 700 * 70) / 1_070);
    }

    /// A reload during a call-back: accounts continue, and the call-back is dropped.
    #[test]
    fn accounts_stay_with_their_units() {
        let (units, a, b) = (contract(), UnitId(2), UnitId(3));
        let mut memory = Memory::default();
        for (at, used, lent, owes) in [(0, [100, 500], 200, false), (1_000, [300, 700], 0, true)] {
            memory.observe(&snapshot(at, used, at));
            memory.book(&plan(at, lent, owes));
        }
        memory.adopt(&units);
        let lender = memory.account(&contract(), &[a]).unwrap();
        assert_eq!((lender.used, lender.lent_mean, lender.waited_ns), (300 * MIB, 200 * MIB, 1_000 * MS));
        memory.observe(&snapshot(1_100, [500, 300], 1_000));
        memory.book(&plan(1_100, 0, false));
        assert_eq!(memory.account(&contract(), &[a, b]).unwrap().called_back, 0);
        assert_eq!(memory.imbalances(), []);
    }

    /// A reload drops the lender or the borrower of 200 MiB: until the next decision on memory, the other
    /// side still balances it.
    #[test]
    fn a_dropped_unit_leaves_the_sums_in_balance() {
        for dropped in [UnitId(2), UnitId(3)] {
            let mut memory = Memory::default();
            memory.observe(&snapshot(0, [100, 700], 0));
            memory.book(&plan(0, 200, false));
            let mut without = contract();
            without.vacant.insert(dropped);
            memory.adopt(&without);
            memory.observe(&snapshot(10, [100, 700], 0));
            memory.book(&Plan::default());
            assert_eq!(memory.imbalances(), [], "{dropped:?}");
            let mut wanted = plan(100, 200, false);
            let Some(decided) = &mut wanted.decisions.memory else { return };
            decided.units[dropped.index()] = Share::default();
            memory.book(&wanted);
            assert_eq!(
                memory.imbalances().is_empty(),
                dropped == UnitId(2),
                "a loan without a borrower is reported"
            );
        }
    }

    /// 200 MiB are lent for a second, then the scheme is `smp`: memory is no longer controlled.
    #[test]
    fn under_smp_no_unit_lends() {
        let mut memory = Memory::default();
        memory.observe(&snapshot(0, [100, 700], 0));
        memory.book(&plan(0, 200, false));
        memory.observe(&snapshot(1_000, [100, 700], 0));
        let mut smp = contract();
        smp.machine.scheme = Scheme::Smp;
        memory.adopt(&smp);
        memory.observe(&snapshot(2_000, [100, 700], 0));
        memory.book(&Plan::default());
        let lender = memory.account(&smp, &[UnitId(2)]).unwrap();
        assert_eq!((lender.entitled, lender.allowed, lender.lent, lender.lent_mean), (0, 0, 0, 100 * MIB));
        assert_eq!((memory.totals().unwrap().divided, memory.imbalances()), (0, vec![]));
    }

    /// `a` and `b` lend 100 MiB each, `c` and `d` borrow as much; both lenders call back at 100 ms. `c` has
    /// returned its part at 200, `d` at 400: each of the four loans has its own duration, and each lender's
    /// call-back lasts until 400.
    #[test]
    fn a_loan_ends_when_its_borrower_has_returned_the_memory() {
        let mut contract = contract();
        contract.add(None, "c");
        contract.add(None, "d");
        let mut memory = Memory::default();
        for (at, lent, used) in
            [(0, 100, [600, 600]), (100, 0, [600, 600]), (200, 0, [500, 550]), (400, 0, [500, 500])]
        {
            let mut seen = snapshot(at, [100, 100], 0);
            let facts = &mut seen.memory.as_mut().unwrap().units;
            facts.extend(used.map(|used| UnitMemory { used: used * MIB, ..UnitMemory::default() }));
            let mut wanted = plan(at, lent, false);
            let decided = wanted.decisions.memory.as_mut().unwrap();
            let (lends, borrows) = (decided.units[2], decided.units[3]);
            let owes = |used: u64| Share { called_back: lent == 0 && used > 500, ..borrows };
            decided.divided = 2_000 * MIB;
            decided.units.truncate(2);
            decided.units.extend([lends, lends, owes(used[0]), owes(used[1])]);
            memory.observe(&seen);
            memory.book(&wanted);
        }
        let all = [UnitId(2), UnitId(3)];
        for lender in [&all[..1], &all[1..]] {
            let account = memory.account(&contract, lender).unwrap();
            assert_eq!((account.called_back, account.call_back_max_ns), (1, 400 * MS));
            let took = |borrower: &str| {
                (account.called_back_from[borrower].loans, account.called_back_from[borrower].p99_ns)
            };
            assert_eq!((took("c"), took("d")), ((1, 200 * MS), (1, 400 * MS)));
        }
        // Both lenders together.
        assert_eq!(memory.account(&contract, &all).unwrap().called_back_from["d"].loans, 2);
        // A reload in which `c` goes.
        contract.vacant.insert(UnitId(4));
        memory.adopt(&contract);
        let lender = memory.account(&contract, &all[..1]).unwrap();
        assert_eq!(lender.called_back_from.keys().collect::<Vec<_>>(), ["d"]);
        assert_eq!(lender.called_back_from["d"].max_ns, 400 * MS);
    }

    /// Two call-backs of 100 MiB, one after the other: the first ends while the second is in progress.
    #[test]
    fn call_backs_end_in_the_order_in_which_they_began() {
        let mut memory = Memory::default();
        for (at, used, lent, owes) in [
            (0, 700, 200, false),
            (100, 700, 100, true),
            (200, 700, 0, true),
            (300, 600, 0, true),
            (400, 500, 0, false),
        ] {
            memory.observe(&snapshot(at, [100, used], 0));
            memory.book(&plan(at, lent, owes));
        }
        let lender = memory.account(&contract(), &[UnitId(2)]).unwrap();
        // From the sample before each: 0 to 300 ms, and 100 to 400.
        assert_eq!((lender.called_back, lender.call_back_max_ns), (2, 300 * MS));
        assert_eq!(
            lender.call_back_p50_ns,
            300 * MS,
            "the first waits for as much as was called back by then"
        );
    }

    /// A borrower exceeds its allowance by 50 MiB when 200 are called back, and grows by 30 while one more is
    /// called. 201 are owed: growth beyond the bound is not part of a loan. The call-backs end when it is
    /// within its bound.
    #[test]
    fn growth_beyond_a_bound_is_not_called_back() {
        let mut memory = Memory::default();
        for (at, used, lent, owes, owed) in [
            (0, 750, 201, false, 0),
            (100, 751, 1, true, 200),
            (200, 781, 0, true, 201),
            (300, 600, 0, true, 100),
            (400, 650, 0, true, 100),
            (500, 500, 0, false, 0),
        ] {
            memory.observe(&snapshot(at, [100, used], 0));
            memory.book(&plan(at, lent, owes));
            let sum: u64 = memory.units.iter().map(|entry| entry.owed).sum();
            assert_eq!(sum, owed * MIB, "at {at}");
        }
        assert_eq!(memory.calls.called, 201 * MIB);
        let lender = memory.account(&contract(), &[UnitId(2)]).unwrap();
        assert_eq!((lender.called_back, lender.call_back_max_ns), (2, 500 * MS));
    }

    /// Use beyond the allowance is no call-back unless a lender wants memory: neither if the allowance did
    /// not sink for that, nor if no lender lends less. And it delays no real call-back.
    #[test]
    fn without_a_lender_there_is_no_call_back() {
        for (lent, owes) in [(0, false), (200, true)] {
            let mut memory = Memory::default();
            memory.observe(&snapshot(0, [100, 700], 0));
            memory.book(&plan(0, 200, false));
            memory.observe(&snapshot(100, [100, 900], 0));
            let mut wanted = plan(100, lent, owes);
            if let Some(memory) = &mut wanted.decisions.memory {
                memory.units[3].called_back = owes;
            }
            memory.book(&wanted);
            assert_eq!((memory.calls.in_progress.len(), memory.calls.called), (0, 0), "{lent} {owes}");
            memory.observe(&snapshot(200, [100, 500], 0));
            memory.book(&plan(200, lent, false));
            assert_eq!(memory.account(&contract(), &[UnitId(2)]).unwrap().called_back, 0, "{lent} {owes}");
        }
    }
}
