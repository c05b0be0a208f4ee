//! The accounts of memory.
//!
//! Memory is held, not used up. So an account has what is so now, and its sum over time.
//!
//! A call-back is the lender's. It begins at the last look at which the lender did not want what it lent. It ends at
//! the look at which borrowers have given back as much as was called back until then. So what is reported is an upper
//! bound. While a lender grows, every look may call back a little more: each counts for itself. What a borrower takes
//! beyond its bound was never lent and is not called back, though a call-back ends only with the borrower at its
//! bound.
//!
//! What a lender was promised is what the plan said that it would have its memory back within, the last time that it lent. A
//! call-back that takes longer is late.
//!
//! No page is lent to one unit in particular. What is idle is lent together, and dealt among the units that are short.
//! So a loan that is called back is one of each lender that called, to each borrower that had to give back then. It is
//! over when that borrower has given back its part. The lender's own call-back is over when all of them have.

use std::collections::{BTreeMap, VecDeque};

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_policy::plan::{MemoryPlan, NoMore, Share};
use commonhold_policy::{Plan, Snapshot, Time, UnitMemory};

use crate::Imbalance;
use crate::spread::Spread;

/// The memory account of one unit since the ledger was opened. Bytes, times in nanoseconds; sub-units included.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct MemoryAccount {
    /// What it is entitled to now.
    pub entitled: u64,
    /// What it may use now: entitled - lent + borrowed.
    pub allowed: u64,
    /// What it uses now.
    pub used: u64,
    /// The part of that which was not touched for long, where the machine can tell.
    pub cold: u64,
    /// What it lends now.
    pub lent: u64,
    /// What it borrows now.
    pub borrowed: u64,
    /// What it was entitled to in the mean, and what it used, lent and borrowed.
    pub entitled_mean: u64,
    /// Used in the mean.
    pub used_mean: u64,
    /// Lent in the mean.
    pub lent_mean: u64,
    /// Borrowed in the mean.
    pub borrowed_mean: u64,
    /// How often it called back what it lent.
    pub called_back: u64,
    /// Half of its call-backs took no longer.
    pub call_back_p50_ns: u64,
    /// 99 of 100 of its call-backs took no longer.
    pub call_back_p99_ns: u64,
    /// The longest.
    pub call_back_max_ns: u64,
    /// Those that took longer than what was promised when they began.
    #[serde(default)]
    pub call_backs_late: u64,
    /// Within what time all that it lends now is to be back: the longest of its sub-units' and its own. Nothing where it
    /// lends nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_ns: Option<u64>,
    /// Why its own processes may not use more now, if they are short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_more: Option<NoMore>,
    /// Time in which one of its processes at least waited for memory.
    pub waited_ns: u64,
    /// What came back soon after it was taken from it.
    pub refaulted: u64,
    /// What was taken from it by order: called back, to be lent, or on trial.
    pub taken: u64,
    /// The time in which that was at work.
    pub taking_ns: u64,
    /// Processes that the kernel killed for want of memory.
    pub killed: u64,
    /// What its processes use that is charged elsewhere: they had it before they came.
    pub elsewhere: u64,
    /// What it is charged for pages of files that other units map too: their part, by estimate.
    pub for_others: u64,
    /// What its pages take that are in compressed swap (zram): its part, by estimate; contained in `used`.
    #[serde(default)]
    pub packed: u64,
    /// Its loans that were called back, by the path of the unit that gave back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub called_back_from: BTreeMap<String, CallBacks>,
    /// Its last call-backs one by one, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_call_backs: Vec<Return>,
}

/// A call-back that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Return {
    /// When it was over, in nanoseconds, on the clock of the plans.
    pub at_ns: u64,
    /// What was called back with it from all borrowers, in bytes; other lenders may have called at the same time.
    pub bytes: u64,
    /// Within what time it was to be over.
    pub promised_ns: u64,
    /// What it took.
    pub took_ns: u64,
}

/// The loans of one unit to another that were called back, and how long that took. Nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct CallBacks {
    /// How many.
    pub loans: u64,
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// 99 of 100 of them took no longer.
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

/// The machine's memory, for the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct MemoryTotals {
    /// All of it.
    pub total: u64,
    /// What the kernel keeps for itself.
    pub kernel: u64,
    /// What the processes in no unit hold.
    pub shared: u64,
    /// What is divided among the units.
    pub divided: u64,
}

/// One unit's own figures.
#[derive(Debug, Clone, Default)]
struct Own {
    /// Counters at the opening, and now.
    first: Option<UnitMemory>,
    facts: UnitMemory,
    share: Share,
    /// Byte-nanoseconds.
    entitled: u128,
    used: u128,
    lent: u128,
    borrowed: u128,
    /// What it has still to give back of what was called back from it.
    owed: u64,
    /// Its debts.
    from_it: Calls,
    /// What it lent and called back, and of that what each borrower had to give back.
    call_backs: Spread,
    late: u64,
    returns: VecDeque<Return>,
    by_borrower: BTreeMap<UnitId, Spread>,
}

/// Call-backs of a unit that are remembered one by one.
const RETURNS_MAX: usize = 16;

impl Own {
    /// A call-back is over.
    fn is_back(&mut self, back: Return) {
        self.call_backs.add(back.took_ns);
        self.late += u64::from(back.took_ns > back.promised_ns);
        if self.returns.len() == RETURNS_MAX {
            self.returns.pop_front();
        }
        self.returns.push_back(back);
    }

    /// What of its use was within its allowance so far, and is not from now on: what it had taken beyond that, or takes from
    /// now on, was never lent.
    fn newly_called(&self, share: &Share) -> Option<u64> {
        let within = self.facts.used.min(self.share.allowed);
        share.called_back.then(|| within.saturating_sub(share.allowed))
    }
}

/// The accounts of all units.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    units: Vec<Own>,
    totals: MemoryTotals,
    opened_at: Option<Time>,
    at: Time,
    /// The latest look but one: when lenders were last seen not to want what they lent.
    content_at: Time,
    calls: Calls,
    /// What units that are gone borrowed by the last decision: it is lent as long as no other was made.
    gone_borrowed: u64,
}

/// Call-backs that go on, from one unit or from all, in the order in which they began.
#[derive(Debug, Clone, Default)]
struct Calls {
    /// All that was called back so far, in bytes.
    called: u64,
    going_on: VecDeque<Call>,
}

/// A call-back that goes on.
#[derive(Debug, Clone)]
struct Call {
    since: Time,
    /// What had been called back by then, with this.
    until: u64,
    bytes: u64,
    /// And what each was promised.
    lenders: Vec<(usize, Time)>,
}

impl Calls {
    fn begin(&mut self, since: Time, bytes: u64, lenders: &[(usize, Time)]) {
        if bytes > 0 {
            self.called += bytes;
            self.going_on.push_back(Call { since, until: self.called, bytes, lenders: lenders.to_vec() });
        }
    }

    /// Takes out those that are over when only so much is owed.
    fn over(&mut self, owed: u64) -> Vec<Call> {
        let back = self.called.saturating_sub(owed);
        let done = self.going_on.iter().take_while(|call| call.until <= back).count();
        self.going_on.drain(..done).collect()
    }
}

impl Memory {
    /// Enters what was so up to the snapshot.
    pub(crate) fn observe(&mut self, snapshot: &Snapshot) {
        let Some(facts) = &snapshot.memory else { return };
        self.units.resize(self.units.len().max(facts.units.len()), Own::default());
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

    /// Enters what was decided.
    pub(crate) fn book(&mut self, plan: &Plan) {
        let Some(memory) = &plan.decisions.memory else { return };
        self.units.resize(self.units.len().max(memory.units.len()), Own::default());
        self.totals.divided = memory.divided;
        self.gone_borrowed = 0;
        self.book_call_backs(plan.at, memory);
        for (own, share) in self.units.iter_mut().zip(&memory.units) {
            own.share = *share;
        }
    }

    fn book_call_backs(&mut self, at: Time, memory: &MemoryPlan) {
        let sank = |(own, share): (&Own, &Share)| share.lent < own.share.lent;
        let both = self.units.iter().zip(&memory.units);
        let lenders: Vec<(usize, Time)> = (0..)
            .zip(both)
            .filter(|(_, pair)| sank(*pair))
            .map(|(i, (own, _))| (i, own.share.within_ns.unwrap_or(0)))
            .collect();
        let mut called = 0;
        let mut back = Vec::new();
        for (unit, (own, share)) in (0u32..).map(UnitId).zip(self.units.iter_mut().zip(&memory.units)) {
            let more = own.newly_called(share).filter(|_| !lenders.is_empty()).unwrap_or(0);
            let beyond = if share.called_back { own.facts.used.saturating_sub(share.allowed) } else { 0 };
            own.owed = own.owed.saturating_add(more).min(beyond);
            own.from_it.begin(self.content_at, more, &lenders);
            back.extend(own.from_it.over(own.owed).into_iter().map(|call| (unit, call)));
            called += more;
        }
        for (borrower, call) in back {
            for (lender, _) in call.lenders {
                let spread = self.units[lender].by_borrower.entry(borrower).or_default();
                spread.add(at.saturating_sub(call.since));
            }
        }
        self.calls.begin(self.content_at, called, &lenders);
        for call in self.calls.over(self.units.iter().map(|own| own.owed).sum()) {
            for (lender, promised_ns) in call.lenders {
                let (bytes, took_ns) = (call.bytes, at.saturating_sub(call.since));
                self.units[lender].is_back(Return { at_ns: at, bytes, promised_ns, took_ns });
            }
        }
    }

    /// What a unit that is over had of memory, lent and borrowed stays in another's account. What it has borrowed by the last
    /// decision stays lent until the next one.
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

    /// Another contract holds from now on. The accounts of units that it has no more are closed, and so are call-backs
    /// that go on.
    pub(crate) fn adopt(&mut self, contract: &Contract) {
        self.units.resize(self.units.len().max(contract.units.len()), Own::default());
        for (id, own) in (0u32..).map(UnitId).zip(&mut self.units) {
            if contract.has(id) {
                (own.owed, own.from_it) = (0, Calls::default());
                own.by_borrower.retain(|unit, _| contract.has(*unit));
            } else {
                self.gone_borrowed += own.share.borrowed;
                *own = Own::default();
            }
        }
        self.calls = Calls::default();
        if contract.machine.scheme == Scheme::Smp {
            // No plan says anything of memory from now on.
            self.units.iter_mut().for_each(|own| own.share = Share::default());
            (self.totals.divided, self.gone_borrowed) = (0, 0);
        }
    }

    /// What does not come out of what was decided last.
    pub(crate) fn imbalances(&self) -> Vec<Imbalance> {
        let sum =
            |part: fn(&Share) -> u64| self.units.iter().skip(2).map(|own| part(&own.share)).sum::<u64>();
        let (lent, borrowed) = (sum(|share| share.lent), sum(|share| share.borrowed) + self.gone_borrowed);
        let (allowed, divided) = (sum(|share| share.allowed), self.totals.divided);
        let loans = (lent > borrowed).then_some(Imbalance::Memory { lent, borrowed });
        let all = (allowed > divided).then_some(Imbalance::Allowed { allowed, divided });
        loans.into_iter().chain(all).collect()
    }

    /// The machine's memory, if it was ever seen.
    pub(crate) fn totals(&self) -> Option<MemoryTotals> {
        self.opened_at.map(|_| self.totals)
    }

    /// The account of some units together, the first of which is the one that encloses the others.
    pub(crate) fn account(&self, contract: &Contract, family: &[UnitId]) -> Option<MemoryAccount> {
        let elapsed = u128::from(self.at.saturating_sub(self.opened_at?)).max(1);
        let own = || family.iter().filter_map(|id| self.units.get(id.index()));
        let sum = |part: fn(&Own) -> u64| own().map(part).sum::<u64>();
        let mean = |part: fn(&Own) -> u128| {
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
        let since = |own: &Own, part: fn(&UnitMemory) -> u64| {
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

    /// A second at which 200 MiB are lent, then a call-back: wanted at some time after the look at 1,000 ms, seen at 1,010,
    /// over at the look at 1,070.
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
        // It was to be over within 50 ms.
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
        // Counted from the first look on.
        assert_eq!((lender.taken, lender.taking_ns), (300 * MIB, MS));
        // 500 MiB used for the first second and 700 for 10 ms, then 700 for 60.
        let borrower = memory.account(&contract(), &units[1..]).unwrap();
        assert_eq!(borrower.used_mean, MIB * (500 * 1_000 + 700 * 70) / 1_070);
    }

    /// A reload while a call-back goes on: the accounts go on, and the call-back counts for nobody.
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

    /// A reload drops the lender or the borrower of 200 MiB: until memory is decided on again, what the other one lends or
    /// borrows still stands against it.
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
            assert_eq!(memory.imbalances().is_empty(), dropped == UnitId(2), "a loan to nobody is told");
        }
    }

    /// 200 MiB are lent for a second, then the scheme is `smp`: nobody holds memory from then on.
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

    /// `a` and `b` lend 100 MiB each, `c` and `d` borrow as much; both lenders want theirs at 100 ms. `c` has given back at
    /// 200, `d` at 400: so each of the four loans has its own time, and each lender's call-back lasts until 400.
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
        // Of both together.
        assert_eq!(memory.account(&contract, &all).unwrap().called_back_from["d"].loans, 2);
        // A reload in which `c` goes.
        contract.vacant.insert(UnitId(4));
        memory.adopt(&contract);
        let lender = memory.account(&contract, &all[..1]).unwrap();
        assert_eq!(lender.called_back_from.keys().collect::<Vec<_>>(), ["d"]);
        assert_eq!(lender.called_back_from["d"].max_ns, 400 * MS);
    }

    /// Two lenders want 100 MiB each, one after the other: the first call-back is over while the second goes on.
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
        // From the look before each: 0 to 300 ms, and 100 to 400.
        assert_eq!((lender.called_back, lender.call_back_max_ns), (2, 300 * MS));
        assert_eq!(
            lender.call_back_p50_ns,
            300 * MS,
            "the first waits for as much as was called back by then"
        );
    }

    /// A borrower that has 50 MiB more than it may when 200 are called back, and grows by 30 while one more is called: 201 are
    /// owed, and what it took beyond that is no debt of a loan; all is back when it is at its bound.
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

    /// Who uses more than it is allowed is not called back from unless somebody wants it: neither where its allowance did
    /// not sink for that, nor where no lender lends less; and a call-back of nobody's holds up no other.
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
            assert_eq!((memory.calls.going_on.len(), memory.calls.called), (0, 0), "{lent} {owes}");
            memory.observe(&snapshot(200, [100, 500], 0));
            memory.book(&plan(200, lent, false));
            assert_eq!(memory.account(&contract(), &[UnitId(2)]).unwrap().called_back, 0, "{lent} {owes}");
        }
    }
}
