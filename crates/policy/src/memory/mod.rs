//! Memory on a live machine: from what its kernel tells to orders on units.
//!
//! Problem: [`frames`] says how much each unit may use. It needs a few facts that a simulated machine knows exactly:
//! what a unit uses, what of that it does not need, and whether it was refused anything. A live kernel tells much
//! more, and none of these.
//!
//! Terms: as in [`frames`]. A unit *owes* what it uses beyond what it is allowed, since its loans sank, or since it lends. One
//! that may not borrow owes all beyond what it is entitled to, however that came about.
//!
//! Algorithm, at each look at which memory was observed:
//! 1. What is left to divide is the machine, less what the kernel and the processes in no unit hold. Both are taken as
//!    before while they move by less than 1/[`COMMON_PART`].
//! 2. A unit is short if it is at its allowance, and presses. It presses if pages that were taken from it came back,
//!    if it waited for memory for more than 1/[`STALL_PART`] of the time, or if its memory without a file grew.
//! 3. Cold pages count as not needed, unless lending them was wrong lately. It was wrong for a unit that is short
//!    while it lends. It was also wrong for one whose pages come back so fast that all that it lends would be back
//!    within [`BACK_NS`]. Such a unit is not believed to be cold for [`DOUBT_NS`], each time twice as long.
//! 4. What can be called back in time from a borrower is worked out ([`rates`]). First come clean pages of files and those
//!    that are in swap already, at the rate at which such pages were taken so far. Then come dirty and anonymous ones at
//!    theirs, the latter only into free swap. Two delays are taken off the time: until a look sees that a lender is short,
//!    and until another sees that all is back. The time itself depends on the lender ([`idleness`]).
//! 5. [`frames`] decides.
//!    Where none owes, and as much is lent as rates permit, a loan is smaller for a moment, on trial: what comes back then tells
//!    the rate as a call-back would.
//! 6. Orders are made, as differences. Guarantees say what no other unit's want may take: of a reservation, what is
//!    not lent. Allowances that sink come before those that grow. Memory is reclaimed from units that owe.
//! 7. While memory is tight, the units that hold more than they are entitled to go first if the kernel has to kill
//!    ([`killing`]).
//!
//! Properties (tested):
//! - Allowances of the units sum to no more than the machine has.
//! - A unit without processes is never held to anything, so that a process that comes finds room.
//! - No bound is below what is guaranteed. What a unit uses of a reservation is never lent, though it may be cold.
//! - Where nothing was observed, nothing is ordered, and what is in force stays. At rest, there are no orders.
//!
//! Limits: what a unit's processes used before they came to it is not charged to it, but to the processes in no unit.
//!
//! Source: seed 000, section 3.2; seed 004, sections 4 and 5.3.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Contract, Scheme, UnitId};

use crate::credits::{Credits, pays_for};
use crate::input::Input;
use crate::plan::{MemoryOrder, MemoryPlan, MemoryTerm, NoMore, Reason, Share, Step};
use crate::rights::Rights;
use crate::snapshot::{MemoryFacts, UnitMemory};
use crate::time::{MS, Time};

mod exact;
pub mod frames;
mod grain;
mod idleness;
mod killing;
mod orders;
mod pace;
mod rates;

use frames::{Allowance, Because, Facts, Look};
use grain::{NEAR_PART, SLACK_PART};
use orders::Orders;
use rates::Taking;

pub use pace::Pace;
pub use rates::{Rates, Taken};

/// How often loans may grow. Longer where there are many units, since looking at each costs time.
const PERIOD_NS: Time = 200 * MS;
const PERIOD_PER_UNIT_NS: Time = 2 * MS;
/// A look that is made for other reasons so long before this one is due stands for it: two in a row would cost twice.
pub const EARLY_NS: Time = 25 * MS;
/// While no unit that is there borrows, and none is near a bound, looks are so many times as rare where a unit that
/// meets its bound is seen at once.
const REST_PERIODS: Time = 5;
/// While a unit lends, a look is taken this part of the promised time after the last one at the latest.
const LOAN_LOOK_PART: u64 = 4;
/// How often to look while a unit owes.
const DEBT_LOOK_NS: Time = 20 * MS;
/// After which reclaim is ordered again, if a unit still owes.
const RECLAIM_NS: Time = 250 * MS;
/// The same, if nothing was taken meanwhile from a unit that no lender waits for.
const FRUITLESS_NS: Time = 10_000 * MS;
/// What the common parts hold is taken as unchanged while it moves by no more than this part of the machine.
const COMMON_PART: u64 = 256;
/// A unit presses that waited for memory for more than this part of the time.
const STALL_PART: u64 = 20;
/// How long a unit is not believed to have cold pages after it missed what it lent, the first time and at most.
const DOUBT_NS: Time = 10_000 * MS;
const DOUBT_NS_MAX: Time = 640_000 * MS;

/// What is lent is not cold if it comes back so fast that all of it would be back within this: pages that are wanted every
/// five minutes are worth their memory (Gray and Putzolu, 1987).
const BACK_NS: Time = 300_000 * MS;
/// Over how long that is measured.
const BACK_LOOK_NS: Time = 2_000 * MS;

/// In what credits are told.
const BYTES_SECONDS: i128 = 1_000 * MS as i128;

/// What is remembered between looks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    frames: frames::State,
    /// One per unit.
    units: Vec<Seen>,
    /// What the kernel and the shared part were taken to hold.
    kernel: u64,
    shared: u64,
    rates: Rates,
    orders: BTreeMap<UnitId, Orders>,
    killing: killing::State,
    /// What units lent and were lent, in bytes times nanoseconds.
    credits: Credits,
    looked_at: Option<Time>,
    period_at: Time,
    /// When to look next.
    next: Option<Time>,
}

/// What is remembered of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen {
    facts: UnitMemory,
    /// Whether there are facts from before.
    known: bool,
    /// What it was taken to use: see [`damped`].
    used: u64,
    share: Share,
    /// It is not believed to be cold before.
    doubted_until: Time,
    doubt_ns: Time,
    /// When it was last looked at what came back, and the counter then.
    back_at: Time,
    back: u64,
    /// When it was told last to give up what it owes, and what it used then.
    reclaimed: Option<(Time, u64)>,
    /// At the last look.
    short: bool,
    /// What could be called back from it within `call-back-memory`.
    callable: u64,
    taking: Taking,
    trial: Option<Trial>,
}

/// A unit's loan is smaller for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Trial {
    /// Nothing until the first look after it was ordered.
    since: Option<Time>,
    /// The most that the unit may borrow until it is over.
    borrow: u64,
}

impl State {
    /// Forgets the units that the contract has no more: what held them went with them.
    fn forget_gone(&mut self, contract: &Contract) {
        for id in &contract.vacant {
            if let Some(unit) = self.units.get_mut(id.index()) {
                *unit = Seen::default();
            }
        }
        self.frames.forget_gone(contract);
        self.orders.retain(|unit, _| contract.has(*unit));
        self.killing.forget_gone(contract);
        self.credits.forget_gone(contract);
    }

    /// When memory is to be looked at next, if it is held at all.
    pub(crate) fn next(&self) -> Option<Time> {
        self.next
    }
}

/// Decides about memory, where it was observed; `None` where it was not.
pub(crate) fn step(
    state: &mut Arc<State>,
    now: Time,
    input: Input<'_>,
    rights: &Rights,
    steps: &mut Vec<Step<MemoryOrder>>,
) -> Option<MemoryPlan> {
    if !input.contract.vacant.is_empty() {
        Arc::make_mut(state).forget_gone(input.contract);
    }
    let scheme = input.contract.machine.scheme;
    if scheme == Scheme::Smp || !input.means.memory.bounds {
        orders::differences(&state.orders, &BTreeMap::new(), Reason::Scheme { scheme }, steps);
        Arc::make_mut(state).killing.end(Reason::Scheme { scheme }, steps);
        *state = Arc::default();
        return None;
    }
    let facts = input.snapshot.memory.as_ref()?;
    let state = Arc::make_mut(state);
    let exact = input.means.memory.frames;
    let frame = exact.map_or_else(|| frame_bytes(facts.total), |frames| frames.bytes);
    state.charge(now, input.contract);
    let look = state.take_in(now, input, facts);
    let units = match exact {
        Some(frames) => state.exact_frames(input, facts, frames),
        None => state.units_in_frames(now, input, facts, frame),
    };
    let frames_input = frames::Input {
        contract: input.contract,
        rights,
        frames: facts.total / frame,
        frame_bytes: frame,
        units: &units,
        now,
        look,
        delay_ns: if exact.is_some() { 0 } else { delay_ns(input.contract) },
        first: &state.first(input.contract, frame),
    };
    let (frames_state, shares) = frames::step(core::mem::take(&mut state.frames), frames_input);
    state.frames = frames_state;
    let slack = facts.total / SLACK_PART;
    state.share_out(&shares, frame, slack);
    let wanted = orders::wanted(input, &state.charged(), |id| shares.allowances[id.index()].reserved * frame);
    orders::differences(&state.orders, &wanted, Reason::NobodyThere, steps);
    explain(steps, &shares.allowances, frame);
    let terms: Vec<MemoryTerm> = shares.terms.iter().map(|term| in_bytes(*term, frame)).collect();
    state.orders = wanted;
    let beyond = if input.means.memory.kill_order {
        let (shares, divided) = (state.shares(), state.divided(facts.total));
        let look = killing::Look { now, contract: input.contract, facts, shares: &shares, divided, rights };
        state.killing.step(look, steps)
    } else {
        Vec::new()
    };
    if let Some(frames) = exact {
        let next = state.period_at + frames.period_ns;
        state.next = Some(next);
        let watch = if scheme == Scheme::Isolate { input.contract.held().collect() } else { Vec::new() };
        let (divided, units) = (state.divided(facts.total), state.shares());
        return Some(MemoryPlan {
            next,
            divided,
            units,
            watch,
            beyond,
            terms,
            credits: state.credits.listed(BYTES_SECONDS),
        });
    }
    let owing = state.call_back(now, input, facts, slack, steps);
    if !owing && shares.full && input.means.memory.reclaim {
        steps.extend(state.trial(now, input.contract, facts));
    }
    let lends = |id: &UnitId| state.units[id.index()].share.lent > 0;
    // What the last process of a unit leaves behind does not grow.
    let far = |id: &UnitId| !units[id.index()].present || state.units[id.index()].is_far();
    // Nor does a loan of it. Its lenders are seen at once when they meet their bounds.
    let borrows = |id: &UnitId| units[id.index()].present && state.units[id.index()].share.borrowed > 0;
    let rests =
        input.means.memory.alarms && !owing && input.contract.held().all(|id| far(&id) && !borrows(&id));
    let next = if rests {
        state.period_at + REST_PERIODS * period_ns(input.contract)
    } else {
        state.next_look(now, input.contract, owing, input.contract.held().any(|id| lends(&id)))
    };
    let watch = |id: &UnitId| lends(id) || far(id) || state.killing.is_near(*id);
    let watch: Vec<UnitId> = input.contract.held().filter(watch).collect();
    state.next = Some(next);
    let (divided, credits) = (state.divided(facts.total), state.credits.listed(BYTES_SECONDS));
    Some(MemoryPlan { next, divided, units: state.shares(), watch, beyond, terms, credits })
}

fn in_bytes(term: frames::Term, frame: u64) -> MemoryTerm {
    MemoryTerm {
        within_ns: term.within_ns,
        lent: term.lent * frame,
        callable: term.callable.map(|frames| frames.saturating_mul(frame)),
    }
}

/// Memory is divided in pieces of 1/4096 of the machine, so that a page more or less changes nothing; in no less than 64 KiB.
fn frame_bytes(total: u64) -> u64 {
    (total / 4_096).next_power_of_two().clamp(64 << 10, 64 << 20)
}

fn period_ns(contract: &Contract) -> Time {
    PERIOD_NS + PERIOD_PER_UNIT_NS * contract.units.len() as Time
}

/// How long looks may pause while a unit lends.
fn loan_look_ns(contract: &Contract) -> Time {
    period_ns(contract).min(contract.machine.call_back_memory_ns / LOAN_LOOK_PART)
}

/// What of the promised time is not left for taking: a look passes before the lender is seen to be short, and one before all
/// is seen to be back, beside what each takes.
fn delay_ns(contract: &Contract) -> Time {
    loan_look_ns(contract) + 2 * DEBT_LOOK_NS
}

impl State {
    /// Takes note of the facts; what kind of look this is.
    fn take_in(&mut self, now: Time, input: Input<'_>, facts: &MemoryFacts) -> Look {
        self.units.resize(input.contract.units.len(), Seen::default());
        if let Some(frames) = input.means.memory.frames {
            (self.kernel, self.shared) = (facts.kernel, facts.shared);
            if self.looked_at.is_some() && now < self.period_at + frames.period_ns {
                return Look::CallBack;
            }
            (self.looked_at, self.period_at) = (Some(now), now);
            return Look::Period;
        }
        for (held, seen) in [(&mut self.kernel, facts.kernel), (&mut self.shared, facts.shared)] {
            if held.abs_diff(seen) > facts.total / COMMON_PART {
                *held = seen;
            }
        }
        let passed = now.saturating_sub(self.period_at).saturating_add(EARLY_NS);
        if passed < period_ns(input.contract) && self.looked_at.is_some() {
            return Look::CallBack;
        }
        self.period_at = now;
        Look::Period
    }

    /// Charges the loans that were in force since the look before.
    fn charge(&mut self, now: Time, contract: &Contract) {
        let State { credits, units, .. } = self;
        if units.iter().any(|unit| unit.share.borrowed > 0) {
            credits.resize(units.len());
        }
        let share = |unit: UnitId| units.get(unit.index()).map(|unit| unit.share).unwrap_or_default();
        let on_loan = |unit| i128::from(share(unit).lent) - i128::from(share(unit).borrowed);
        credits.charge(now, contract.machine.loans_remembered_ns, on_loan);
    }

    /// The frames that each unit may borrow before others.
    fn first(&self, contract: &Contract, frame: u64) -> Vec<u64> {
        let half_life_ns = contract.machine.loans_remembered_ns;
        contract.ids().map(|id| pays_for(self.credits.of(id), half_life_ns) / frame).collect()
    }

    /// When to look next: soon while a unit owes, within the time that was promised while a unit lends, and when loans
    /// may grow.
    fn next_look(&self, now: Time, contract: &Contract, owing: bool, lent: bool) -> Time {
        if owing {
            return now + DEBT_LOOK_NS;
        }
        let period = (self.period_at + period_ns(contract)).max(now + DEBT_LOOK_NS);
        if lent { period.min(now + loan_look_ns(contract)) } else { period }
    }

    fn divided(&self, total: u64) -> u64 {
        total.saturating_sub(self.kernel).saturating_sub(self.shared)
    }

    fn shares(&self) -> Vec<Share> {
        self.units.iter().map(|unit| unit.share).collect()
    }

    /// The shares in what is charged: what is packed is a unit's too, and no bound and no guarantee counts it.
    fn charged(&self) -> Vec<Share> {
        let less = |unit: &Seen| Share {
            entitled: unit.share.entitled.saturating_sub(unit.share.packed),
            allowed: unit.share.allowed.saturating_sub(unit.share.packed),
            ..unit.share
        };
        self.units.iter().map(less).collect()
    }

    /// The facts as [`frames`] understands them.
    fn units_in_frames(
        &mut self,
        now: Time,
        input: Input<'_>,
        facts: &MemoryFacts,
        frame: u64,
    ) -> Vec<Facts> {
        let elapsed = self.looked_at.map_or(0, |at| now.saturating_sub(at));
        self.looked_at = Some(now);
        let first_ns = input.contract.machine.call_back_memory_ns;
        let time = pace::relied(first_ns.saturating_sub(delay_ns(input.contract)));
        let owed = self.units.iter().any(|unit| unit.share.called_back);
        // What swap has room for is promised once.
        let mut swap_left = facts.swap_free;
        let mut all = vec![Facts::default(); self.units.len()];
        for (id, common) in [(UnitId::KERNEL, self.kernel), (UnitId::SHARED, self.shared)] {
            all[id.index()].used = common.div_ceil(frame);
        }
        for id in input.contract.held() {
            let unit = &mut self.units[id.index()];
            let seen = facts.units.get(id.index()).copied().unwrap_or_default();
            let short = unit.is_short(seen, elapsed, frame);
            let waits = owed && unit.known && unit.waited(seen, elapsed);
            unit.doubt(now, short, seen, frame);
            unit.used = damped(unit.used, seen.used, unit.share.entitled, facts.total / SLACK_PART);
            if unit.share.packed.abs_diff(seen.packed) > facts.total / SLACK_PART {
                // In whole frames, as everything that becomes a bound: a kernel rounds others.
                unit.share.packed = seen.packed.div_ceil(frame) * frame;
            }
            let cold = if now < unit.doubted_until { 0 } else { cold(seen, facts, &mut swap_left) };
            // A trial is over when it has come to where its loan ends, or took too long.
            unit.trial = unit.trial.filter(|trial| {
                let beyond = seen.used > unit.share.allowed.saturating_add(facts.total / SLACK_PART);
                trial.since.map_or(short, |at| beyond && now.saturating_sub(at) < rates::TRIAL_LASTS_NS)
            });
            if let Some(trial) = &mut unit.trial {
                trial.since.get_or_insert(now);
            }
            let callable = self.rates.pace(seen, facts);
            unit.callable = callable.within(time);
            (unit.facts, unit.known, unit.short) = (seen, true, short);
            all[id.index()] = Facts {
                present: input.snapshot.unit(id).processes > 0,
                used: unit.used.div_ceil(frame),
                cold: (cold / frame).min(unit.used / frame),
                short,
                waits,
                on_trial: unit.trial.map(|trial| trial.borrow / frame),
                callable: Some(callable.in_frames(frame)),
            };
        }
        all
    }

    fn share_out(&mut self, shares: &frames::Shares, frame: u64, slack: u64) {
        for (unit, allowance) in self.units.iter_mut().zip(&shares.allowances) {
            let before = unit.share;
            let share = Share {
                entitled: allowance.entitled * frame,
                lent: allowance.lent * frame,
                borrowed: allowance.borrowed * frame,
                allowed: allowance.allowed * frame,
                packed: before.packed,
                callable: allowance.callable.map(|callable| callable.saturating_mul(frame)),
                within_ns: allowance.within_ns,
                no_more: if unit.short { no_more(allowance.because, shares.spent) } else { None },
                called_back: false,
            };
            // Until what is beyond is there, the call-back goes on; a unit that is allowed as much again owes nothing.
            let sank = share.borrowed < before.borrowed || before.called_back;
            let beyond = unit.facts.used > share.allowed.saturating_add(slack);
            unit.share =
                Share { called_back: sank && beyond && allowance.because != Because::Common, ..share };
        }
    }

    /// Orders reclaim from the units that owe. Returns whether one owes a lender.
    fn call_back(
        &mut self,
        now: Time,
        input: Input<'_>,
        facts: &MemoryFacts,
        slack: u64,
        steps: &mut Vec<Step<MemoryOrder>>,
    ) -> bool {
        let mut owing = false;
        for id in input.contract.held() {
            let unit = &mut self.units[id.index()];
            let owed = unit.facts.used.saturating_sub(unit.share.allowed);
            let owes_lender = owed > slack && (unit.share.called_back || unit.share.lent > 0);
            // A kernel that is told a lower bound may leave it at that, as long as the unit wants no new page.
            let owes = owes_lender || owed > slack && !input.contract.unit(id).borrow.memory.allows();
            self.rates.look(now, &mut unit.taking, unit.facts, facts, owes);
            if !owes {
                unit.reclaimed = None;
                continue;
            }
            owing |= owes_lender;
            let due = unit.reclaimed.is_none_or(|(at, from)| {
                let fruitless = !owes_lender && unit.facts.used >= from;
                now.saturating_sub(at) >= if fruitless { FRUITLESS_NS } else { RECLAIM_NS }
            });
            if due && input.means.memory.reclaim {
                unit.reclaimed = Some((now, unit.facts.used));
                let files = unit.facts.has_to_drop(owed);
                let action = MemoryOrder::Reclaim { unit: id, bytes: owed, files };
                steps.push(Step { action, reason: Reason::Owes { allowed: unit.share.allowed } });
            }
        }
        owing
    }

    /// Puts a unit on trial that is short and borrows: its loan is smaller for a moment, so that it is slowed as in a call-back.
    /// From one with a small loan a little is taken.
    fn trial(&mut self, now: Time, contract: &Contract, facts: &MemoryFacts) -> Option<Step<MemoryOrder>> {
        let (id, bytes) = contract.held().find_map(|id| {
            let unit = &self.units[id.index()];
            let borrows = unit.short && unit.share.borrowed > 0;
            let bytes = borrows.then(|| self.rates.trial(now, unit.facts, unit.callable, facts))??;
            Some((id, bytes))
        })?;
        let unit = &mut self.units[id.index()];
        if unit.share.borrowed > bytes {
            unit.trial = Some(Trial { since: None, borrow: unit.share.borrowed - bytes });
            return None;
        }
        unit.taking.tried = Some(now);
        let files = unit.facts.has_to_drop(bytes);
        Some(Step { action: MemoryOrder::Reclaim { unit: id, bytes, files }, reason: Reason::OnTrial })
    }
}

impl Seen {
    /// Whether it could use much more before it met its bound.
    fn is_far(&self) -> bool {
        self.facts.used <= self.share.allowed - self.share.allowed / NEAR_PART
    }

    /// Whether the unit has too little: it is where its allowance ends, and presses.
    fn is_short(&self, now: UnitMemory, elapsed: Time, frame: u64) -> bool {
        let before = self.facts;
        let refused = now.refused > before.refused;
        let at_bound = refused || now.used.saturating_add(2 * frame) >= self.share.allowed;
        let came_back = now.refaulted.saturating_sub(before.refaulted) >= frame;
        let waited = self.waited(now, elapsed);
        let grew = now.anonymous >= before.anonymous.saturating_add(frame);
        self.known && self.share.allowed > 0 && at_bound && (came_back || waited || grew)
    }

    /// Whether it waited for memory for more than a little of the time.
    fn waited(&self, now: UnitMemory, elapsed: Time) -> bool {
        now.stalled_ns.saturating_sub(self.facts.stalled_ns) > elapsed / STALL_PART
    }

    /// A unit that misses what it lent was not as cold as it looked: because it is short, or because it reads again
    /// what was taken from it, though there is room for that.
    fn doubt(&mut self, now: Time, short: bool, seen: UnitMemory, frame: u64) {
        let missed = short && self.share.lent > 0 && seen.refaulted > self.facts.refaulted;
        if self.comes_back(now, seen, frame) || missed {
            let forgotten = now > self.doubted_until.saturating_add(DOUBT_NS_MAX);
            self.doubt_ns =
                if forgotten { DOUBT_NS } else { (self.doubt_ns * 2).clamp(DOUBT_NS, DOUBT_NS_MAX) };
            self.doubted_until = now + self.doubt_ns;
        }
    }

    /// Whether so much came back lately that what it lends would be back within [`BACK_NS`]. What comes back while it is not
    /// believed to be cold was taken before that.
    fn comes_back(&mut self, now: Time, seen: UnitMemory, frame: u64) -> bool {
        let elapsed = now.saturating_sub(self.back_at);
        let watched = self.known && now >= self.doubted_until && self.share.lent > 0;
        if watched && elapsed < BACK_LOOK_NS {
            return false;
        }
        let came = seen.refaulted.saturating_sub(self.back);
        (self.back_at, self.back) = (now, seen.refaulted);
        let part = u128::from(self.share.lent) * u128::from(elapsed) / u128::from(BACK_NS);
        watched && came >= 2 * frame && u128::from(came) >= part
    }
}

/// What would come free if all cold pages of a unit were taken: of those in no file no more than fits into swap, less what they
/// take there.
fn cold(seen: UnitMemory, facts: &MemoryFacts, swap_left: &mut u64) -> u64 {
    let anonymous = seen.cold_anonymous.min(*swap_left);
    *swap_left -= anonymous;
    seen.cold.saturating_sub(seen.cold_anonymous).saturating_add(rates::freed(anonymous, facts))
}

/// What a unit is taken to use, so that a few pages more or less change nothing: a little more than it does, but not more
/// than it is entitled to if it uses no more than that.
fn damped(before: u64, used: u64, entitled: u64, grain: u64) -> u64 {
    let fits = before >= used && before <= used.saturating_add(2 * grain);
    if used > entitled {
        if fits { before } else { used }
    } else if fits && before <= entitled {
        before
    } else {
        used.saturating_add(grain).min(entitled)
    }
}

/// Why a unit that is short may not use more.
fn no_more(because: Because, spent: bool) -> Option<NoMore> {
    match because {
        Because::BorrowsInTime | Because::OnTrial => Some(NoMore::InTime),
        Because::Borrows | Because::BorrowsFirst if spent => Some(NoMore::NothingIdle),
        Because::NothingIdle => Some(NoMore::NothingIdle),
        Because::Limit => Some(NoMore::Limit),
        Because::MayNotBorrow => Some(NoMore::MayNotBorrow),
        _ => None,
    }
}

/// Gives the orders on allowances the reasons that [`frames`] gave.
fn explain(steps: &mut [Step<MemoryOrder>], allowances: &[Allowance], frame: u64) {
    for step in steps {
        if let MemoryOrder::Allow { unit, bytes: Some(_) } = step.action
            && let Some(allowance) = allowances.get(unit.index())
        {
            step.reason = match allowance.because {
                Because::Common | Because::Entitled => {
                    Reason::EntitledTo { bytes: allowance.entitled * frame }
                }
                Because::Scheme(scheme) => Reason::Scheme { scheme },
                Because::Lends => {
                    let within_ns = allowance.within_ns.unwrap_or(0);
                    Reason::Lends { bytes: allowance.lent * frame, within_ns }
                }
                Because::CalledBack { frames } => Reason::CallsBack { bytes: frames * frame },
                Because::BorrowsFirst => Reason::BorrowsFirst { bytes: allowance.borrowed * frame },
                Because::BorrowsInTime => Reason::BorrowsInTime { bytes: allowance.borrowed * frame },
                Because::OnTrial => Reason::OnTrial,
                Because::Borrows => Reason::Borrows { bytes: allowance.borrowed * frame },
                Because::GaveBack { frames } => Reason::GivesBack { bytes: frames * frame },
                Because::MayNotBorrow => Reason::MayNotBorrow,
                Because::Limit => Reason::AtLimit,
                Because::NothingIdle => Reason::NothingIdle,
            };
        }
    }
}

#[cfg(test)]
mod tests;
