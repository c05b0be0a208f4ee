//! The accounts of memory.
//!
//! Memory is occupied rather than consumed, so an account has current amounts and their integrals over time.
//!
//! A call-back belongs to the lender. It starts at the last sample at which the lender did not want what it
//! lent. It ends at the sample at which borrowers have returned as much as was called back until then. So
//! reported times are upper bounds. While a lender grows, every step may call back a little more; each is a
//! call-back of its own. Memory that a borrower takes beyond its bound was never lent and is not called back,
//! but a call-back ends only once the borrower is within its bound.
//!
//! The promise to a lender is the call-back time stated by the plan when it last lent. A call-back that
//! exceeds it is late.
//!
//! Pages are not lent to one unit in particular: idle memory is pooled and dealt out to units that are short.
//! So a called-back loan is recorded for each pair of a lender that called and a borrower that had to return
//! memory then. It ends when that borrower has returned its part. The lender's own call-back ends when all
//! borrowers have.

use std::collections::{BTreeMap, VecDeque};

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_policy::plan::{MemoryPlan, NoMore, Share};
use commonhold_policy::{Plan, Snapshot, Time, UnitMemory};

use crate::Imbalance;
use crate::spread::Spread;

/// A unit's memory account since the ledger was opened, sub-units included. In bytes; times in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct MemoryAccount {
    /// What it is entitled to now.
    pub entitled: u64,
    /// Its allowance now: entitled - lent + borrowed.
    pub allowed: u64,
    /// What it uses now.
    pub used: u64,
    /// The part of `used` not accessed for a long time, if the machine can tell.
    pub cold: u64,
    /// What it lends now.
    pub lent: u64,
    /// What it borrows now.
    pub borrowed: u64,
    /// Average entitlement over time.
    pub entitled_mean: u64,
    /// Average use.
    pub used_mean: u64,
    /// Average lent.
    pub lent_mean: u64,
    /// Average borrowed.
    pub borrowed_mean: u64,
    /// Number of call-backs.
    pub called_back: u64,
    /// Median call-back.
    pub call_back_p50_ns: u64,
    /// The 99th percentile of call-backs.
    pub call_back_p99_ns: u64,
    /// The longest.
    pub call_back_max_ns: u64,
    /// Call-backs that exceeded the promise made when they began.
    #[serde(default)]
    pub call_backs_late: u64,
    /// The time within which all that it lends now can be called back: the longest over itself and its
    /// sub-units. `None` if it lends nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_ns: Option<u64>,
    /// Why its own processes may not use more now, if they are short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_more: Option<NoMore>,
    /// Time in which at least one of its processes was stalled for memory.
    pub waited_ns: u64,
    /// Bytes refaulted soon after reclaim.
    pub refaulted: u64,
    /// Bytes reclaimed from it by order: called back, to be lent, or on trial.
    pub taken: u64,
    /// Time spent on that.
    pub taking_ns: u64,
    /// Processes killed because memory ran out.
    pub killed: u64,
    /// Memory of its processes charged elsewhere, since they allocated it before joining.
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

impl From<&Spread> for CallBacks {
    fn from(spread: &Spread) -> Self {
        CallBacks {
            loans: spread.count(),
            p50_ns: spread.within(500_000),
            p99_ns: spread.within(990_000),
            max_ns: spread.within(1_000_000),
        }
    }
}

/// The machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct MemoryTotals {
    /// All of it.
    pub total: u64,
    /// Kernel memory charged to no unit.
    pub kernel: u64,
    /// Memory of processes in no unit.
    pub shared: u64,
    /// Memory divided among units.
    pub divided: u64,
}

/// A unit's running account, sub-units excluded.
#[derive(Debug, Clone, Default)]
struct MemoryEntry {
    /// Counters at the first sample and now.
    first: Option<UnitMemory>,
    facts: UnitMemory,
    share: Share,
    /// Integrals over time, in byte-nanoseconds.
    entitled: u128,
    used: u128,
    lent: u128,
    borrowed: u128,
    /// As a borrower: called-back bytes that it has not returned.
    owed: u64,
    /// As a borrower: call-backs from it in progress.
    from_it: Calls,
    /// As a lender: durations of call-backs; `by_borrower` has them by borrower.
    call_backs: Spread,
    late: u64,
    returns: VecDeque<Return>,
    by_borrower: BTreeMap<UnitId, Spread>,
}

/// Number of call-backs kept individually per unit.
const RETURNS_MAX: usize = 16;

impl MemoryEntry {
    /// Records a completed call-back.
    fn record(&mut self, back: Return) {
        self.call_backs.add(back.took_ns);
        self.late += u64::from(back.took_ns > back.promised_ns);
        if self.returns.len() == RETURNS_MAX {
            self.returns.pop_front();
        }
        self.returns.push_back(back);
    }

    /// The use that was within its old allowance and is not within the new one. Use beyond the old allowance
    /// was never lent.
    fn newly_called(&self, share: &Share) -> Option<u64> {
        let within = self.facts.used.min(self.share.allowed);
        share.called_back.then(|| within.saturating_sub(share.allowed))
    }
}

/// The accounts of all units.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    units: Vec<MemoryEntry>,
    totals: MemoryTotals,
    opened_at: Option<Time>,
    at: Time,
    /// The sample before the latest: the last at which lenders were seen not to want what they lent.
    content_at: Time,
    calls: Calls,
    /// Borrowings of units that left since the last decision, which still counts them as lent.
    gone_borrowed: u64,
}

/// Call-backs in progress, from one borrower or from all, in order of their start.
#[derive(Debug, Clone, Default)]
struct Calls {
    /// Bytes called back so far.
    called: u64,
    in_progress: VecDeque<Call>,
}

/// A call-back in progress.
#[derive(Debug, Clone)]
struct Call {
    since: Time,
    /// The value of `Calls::called` including this one: it ends once this much was returned.
    until: u64,
    bytes: u64,
    /// Indices of lenders, and what each was promised.
    lenders: Vec<(usize, Time)>,
}

impl Calls {
    fn begin(&mut self, since: Time, bytes: u64, lenders: &[(usize, Time)]) {
        if bytes > 0 {
            self.called += bytes;
            self.in_progress.push_back(Call { since, until: self.called, bytes, lenders: lenders.to_vec() });
        }
    }

    /// Removes and returns those that are complete when `owed` bytes are outstanding.
    fn take_completed(&mut self, owed: u64) -> Vec<Call> {
        let back = self.called.saturating_sub(owed);
        let done = self.in_progress.iter().take_while(|call| call.until <= back).count();
        self.in_progress.drain(..done).collect()
    }
}

impl Memory {
    /// Integrates the previous amounts up to the snapshot, and enters its sample.
    pub(crate) fn observe(&mut self, snapshot: &Snapshot) {
        let Some(facts) = &snapshot.memory else { return };
        self.units.resize(self.units.len().max(facts.units.len()), MemoryEntry::default());
        let elapsed = u128::from(self.opened_at.map_or(0, |_| snapshot.at.saturating_sub(self.at)));
        self.opened_at.get_or_insert(snapshot.at);
        for (own, facts) in self.units.iter_mut().zip(&facts.units) {
            own.entitled += u128::from(own.share.entitled) * elapsed;
            own.lent += u128::from(own.share.lent) * elapsed;
            own.borrowed += u128::from(own.share.borrowed) * elapsed;
            own.used += u128::from(own.facts.used) * elapsed;
            own.first.get_or_insert(*facts);
            own.facts = *facts;
        }
        (self.content_at, self.at) = (self.at, snapshot.at);
        self.totals =
            MemoryTotals { total: facts.total, kernel: facts.kernel, shared: facts.shared, ..self.totals };
    }

    /// Enters a plan's decision.
    pub(crate) fn book(&mut self, plan: &Plan) {
        let Some(memory) = &plan.decisions.memory else { return };
        self.units.resize(self.units.len().max(memory.units.len()), MemoryEntry::default());
        self.totals.divided = memory.divided;
        self.gone_borrowed = 0;
        self.book_call_backs(plan.at, memory);
        for (own, share) in self.units.iter_mut().zip(&memory.units) {
            own.share = *share;
        }
    }

    fn book_call_backs(&mut self, at: Time, memory: &MemoryPlan) {
        let lends_less = |(own, share): (&MemoryEntry, &Share)| share.lent < own.share.lent;
        let both = self.units.iter().zip(&memory.units);
        let lenders: Vec<(usize, Time)> = (0..)
            .zip(both)
            .filter(|(_, pair)| lends_less(*pair))
            .map(|(i, (own, _))| (i, own.share.within_ns.unwrap_or(0)))
            .collect();
        let mut called = 0;
        let mut back = Vec::new();
        for (unit, (own, share)) in (0u32..).map(UnitId).zip(self.units.iter_mut().zip(&memory.units)) {
            let more = own.newly_called(share).filter(|_| !lenders.is_empty()).unwrap_or(0);
            let beyond = if share.called_back { own.facts.used.saturating_sub(share.allowed) } else { 0 };
            own.owed = own.owed.saturating_add(more).min(beyond);
            own.from_it.begin(self.content_at, more, &lenders);
            back.extend(own.from_it.take_completed(own.owed).into_iter().map(|call| (unit, call)));
            called += more;
        }
        for (borrower, call) in back {
            for (lender, _) in call.lenders {
                let spread = self.units[lender].by_borrower.entry(borrower).or_default();
                spread.add(at.saturating_sub(call.since));
            }
        }
        self.calls.begin(self.content_at, called, &lenders);
        for call in self.calls.take_completed(self.units.iter().map(|own| own.owed).sum()) {
            for (lender, promised_ns) in call.lenders {
                let (bytes, took_ns) = (call.bytes, at.saturating_sub(call.since));
                self.units[lender].record(Return { at_ns: at, bytes, promised_ns, took_ns });
            }
        }
    }

    /// Moves the account of a unit that ended into its heir's. What it borrowed by the last decision stays
    /// lent until the next.
    pub(crate) fn bequeath(&mut self, unit: UnitId, heir: UnitId) {
        let Some(own) = self.units.get_mut(unit.index()).map(std::mem::take) else { return };
        self.gone_borrowed += own.share.borrowed;
        let Some(heir) = self.units.get_mut(heir.index()) else { return };
        heir.entitled += own.entitled;
        heir.used += own.used;
        heir.lent += own.lent;
        heir.borrowed += own.borrowed;
        heir.call_backs.merge(&own.call_backs);
        heir.late += own.late;
    }

    /// Adopts another contract. Accounts of units that left are closed, and call-backs in progress are
    /// dropped.
    pub(crate) fn adopt(&mut self, contract: &Contract) {
        self.units.resize(self.units.len().max(contract.units.len()), MemoryEntry::default());
        for (id, own) in (0u32..).map(UnitId).zip(&mut self.units) {
            if contract.has(id) {
                (own.owed, own.from_it) = (0, Calls::default());
                own.by_borrower.retain(|unit, _| contract.has(*unit));
            } else {
                self.gone_borrowed += own.share.borrowed;
                *own = MemoryEntry::default();
            }
        }
        self.calls = Calls::default();
        if contract.machine.scheme == Scheme::Smp {
            // Under `smp` plans contain no decision on memory.
            self.units.iter_mut().for_each(|own| own.share = Share::default());
            (self.totals.divided, self.gone_borrowed) = (0, 0);
        }
    }

    /// Sums of the last decision that do not balance.
    pub(crate) fn imbalances(&self) -> Vec<Imbalance> {
        let sum =
            |part: fn(&Share) -> u64| self.units.iter().skip(2).map(|own| part(&own.share)).sum::<u64>();
        let (lent, borrowed) = (sum(|share| share.lent), sum(|share| share.borrowed) + self.gone_borrowed);
        let (allowed, divided) = (sum(|share| share.allowed), self.totals.divided);
        let loans = (lent > borrowed).then_some(Imbalance::Memory { lent, borrowed });
        let all = (allowed > divided).then_some(Imbalance::Allowed { allowed, divided });
        loans.into_iter().chain(all).collect()
    }

    /// The machine's memory, if it was ever sampled.
    pub(crate) fn totals(&self) -> Option<MemoryTotals> {
        self.opened_at.map(|_| self.totals)
    }

    /// The account of a unit, given the unit and its sub-units, the unit first.
    pub(crate) fn account(&self, contract: &Contract, family: &[UnitId]) -> Option<MemoryAccount> {
        let elapsed = u128::from(self.at.saturating_sub(self.opened_at?)).max(1);
        let own = || family.iter().filter_map(|id| self.units.get(id.index()));
        let sum = |part: fn(&MemoryEntry) -> u64| own().map(part).sum::<u64>();
        let mean = |part: fn(&MemoryEntry) -> u128| {
            u64::try_from(own().map(part).sum::<u128>() / elapsed).unwrap_or(u64::MAX)
        };
        let mut call_backs = Spread::default();
        own().for_each(|own| call_backs.merge(&own.call_backs));
        let call_backs = CallBacks::from(&call_backs);
        let mut returns: Vec<Return> = own().flat_map(|own| own.returns.iter().copied()).collect();
        returns.sort_by_key(|back| back.at_ns);
        let last_call_backs = returns.split_off(returns.len().saturating_sub(RETURNS_MAX));
        let mut by_borrower: BTreeMap<&str, Spread> = BTreeMap::new();
        for (id, spread) in own().flat_map(|own| &own.by_borrower) {
            let path = contract.units.get(id.index()).map_or("?", |unit| unit.path.as_str());
            by_borrower.entry(path).or_default().merge(spread);
        }
        let since = |own: &MemoryEntry, part: fn(&UnitMemory) -> u64| {
            part(&own.facts).saturating_sub(own.first.as_ref().map_or(0, part))
        };
        Some(MemoryAccount {
            entitled: sum(|own| own.share.entitled),
            allowed: sum(|own| own.share.allowed),
            used: sum(|own| own.facts.used),
            cold: sum(|own| own.facts.cold),
            lent: sum(|own| own.share.lent),
            borrowed: sum(|own| own.share.borrowed),
            entitled_mean: mean(|own| own.entitled),
            used_mean: mean(|own| own.used),
            lent_mean: mean(|own| own.lent),
            borrowed_mean: mean(|own| own.borrowed),
            called_back: call_backs.loans,
            call_back_p50_ns: call_backs.p50_ns,
            call_back_p99_ns: call_backs.p99_ns,
            call_back_max_ns: call_backs.max_ns,
            call_backs_late: sum(|own| own.late),
            last_call_backs,
            no_more: family.first().and_then(|id| self.units.get(id.index())?.share.no_more),
            within_ns: own().filter_map(|own| own.share.within_ns).max(),
            called_back_from: by_borrower
                .into_iter()
                .map(|(path, spread)| (path.to_owned(), CallBacks::from(&spread)))
                .collect(),
            waited_ns: own().map(|own| since(own, |facts| facts.stalled_ns)).sum(),
            refaulted: own().map(|own| since(own, |facts| facts.refaulted)).sum(),
            taken: own().map(|own| since(own, |facts| facts.taken)).sum(),
            taking_ns: own().map(|own| since(own, |facts| facts.taking_ns)).sum(),
            killed: own().map(|own| since(own, |facts| facts.killed)).sum(),
            elsewhere: sum(|own| own.facts.elsewhere),
            for_others: sum(|own| own.facts.for_others),
            packed: sum(|own| own.facts.packed),
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
    fn under_smp_nobody_lends() {
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
    fn a_loan_is_over_when_its_borrower_has_given_back() {
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
            let sum: u64 = memory.units.iter().map(|own| own.owed).sum();
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
