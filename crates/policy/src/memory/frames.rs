//! How many page frames each unit may use.
//!
//! Problem: frames that a unit does not use should serve a unit that is short of them. They must be there again when
//! their owner wants them. But a frame that is called back may have to be written to a disk first. So a loan of memory
//! costs more to end than a loan of a CPU.
//!
//! Terms:
//! - A unit is *entitled* to what its tickets are worth of the frames that neither `kernel` nor `shared` uses.
//! - It is *allowed* that, less what it lends, plus what it borrows: allowed = entitled - lent + borrowed.
//! - It is *short* if a request of it was refused, or frames were taken from it, since the last look.
//! - The *reserve threshold* is what lenders keep of their idle frames, all of them together.
//! - A unit is *calm* after [`CALM_LOOKS`] looks at which it was there and not short. While it waits for what others owe, it
//!   does not become so.
//! - Frames are *cold* that are used but were not touched for long, where the machine can tell.
//!
//! Algorithm, under `isolate`, at each look:
//! 1. The *excess* is the sum of two amounts, less the reserve threshold. One is the part of their entitlements that
//!    calm units that may lend do not use, or have cold and not reserved (hard). The other is what no unit may be
//!    entitled to. Some units are beyond their entitlement by less than what is cold of their frames. Such a unit
//!    counts as using its entitlement, with the rest of its cold frames within, while others are short or borrow. It
//!    gives up what is beyond before it lends what is cold.
//! 2. Each borrower has a *target*. The excess is dealt down the tree by tickets, among the units that may borrow. What
//!    units may borrow *first*, since they lent before, is dealt before the rest, in proportion to that. No
//!    unit gets more than its limit. A unit that is not short gets no more than it uses now. No more is lent than
//!    could be called back in time, from each borrower and from all together ([`terms`]).
//! 3. A loan grows towards its target by at most 1/[`GROWTH_PART`] of the frames a period. A borrower that does not
//!    use a loan gives it back at the same pace.
//! 4. If all loans then exceed the excess, or a limit, the borrowers above their targets give back the difference at
//!    once: this is the call-back.
//! 5. What is borrowed is lent by the lenders: what is unused of theirs, and then what is cold; of each, what was idle
//!    longest first.
//!
//! Under `smp`, every unit is allowed everything. Under `quota`, it is allowed what it is entitled to.
//!
//! Properties:
//! - Allowances of the units sum to no more than what `kernel` and `shared` leave.
//! - A unit that is short is allowed at least its entitlement from the next look on. One that is not short is allowed
//!   at least what it uses of it, less what is cold, and at least what it uses of a reservation.
//! - A unit that may not borrow is never allowed more than its entitlement. Limits hold, of enclosing units too.
//! - No unit lends or borrows more than the amount that its contract names, in whole frames. A part of what it lends is
//!   of its own entitlement. A part of what it borrows is of the entitlement of the unit around it, or else of what is
//!   divided.
//! - With constant demands the allowances come to rest. The excess does not depend on what borrowers do with their
//!   loans, so a loan is no reason to end it.
//!
//! Limits:
//! - A unit whose allowance sank has more frames than it is allowed until they are paged out. The lender lives on the
//!   reserve meanwhile.
//! - Siblings have no right of first refusal.
//! - An absent unit's frames (its page cache) stay as a loan as long as no other unit is short.
//!
//! Source: seed 000, section 3.2 (limits, redistribution of idle less reserve), 2.2 (`kernel` and `shared` first), 2.3
//! (giving up a fraction of what is idle after certain periods).

use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Amount, Contract, DEFAULT_TICKETS, Permission, Resource, Scheme, UnitId};

use super::idleness::Idleness;
use super::pace::Pace;
use crate::rights::share::{split, split_capped};
use crate::rights::{Capacity, Entitlement, Rights};
use crate::time::Time;
use crate::tree::{self, Levels, lineage};

mod terms;

use terms::{ALL_TIME, Terms};

pub use terms::Term;

/// A unit lends nothing before it was there, and not short, at so many looks: a unit that comes, or has just called its
/// frames back, will want more.
pub const CALM_LOOKS: u32 = 5;

/// A loan grows by at most this part of the frames that units divide, at one look: a lender that comes back soon finds most
/// of its frames clean and free.
pub const GROWTH_PART: u64 = 16;

/// What was seen of a unit since the last look. Frames of `kernel` and `shared` are facts of those units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// Whether it has processes of its own.
    pub present: bool,
    /// Frames charged to it.
    pub used: u64,
    /// Those of them that were not touched for long: they may be lent as if they were not used. At most `used`; a
    /// machine that cannot tell says 0.
    pub cold: u64,
    /// Whether a request of it was refused, or its own pager had to free frames, since the last look of either kind.
    pub short: bool,
    /// Whether it waits for memory while others owe some that was called back.
    pub waits: bool,
    /// It is tried how fast it gives up memory: it may borrow no more than so many frames meanwhile.
    pub on_trial: Option<u64>,
    /// How many frames could be called back from it within a time, if from no other unit; `None`: any number at once.
    pub callable: Option<Pace>,
}

/// What kind of look this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// The period is over: loans may grow.
    Period,
    /// Between two periods, because a unit needs frames: loans are only called back.
    CallBack,
}

/// Everything that a step reads.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The contract. Its absolute amounts of memory are taken in frames: reservations and the reserve rounded up, limits
    /// and amounts of loans down.
    pub contract: &'a Contract,
    /// What units hold of memory; a unit is present there that is among `units`.
    pub rights: &'a Rights,
    /// Frames of the machine, and the size of one in bytes.
    pub frames: u64,
    /// See `frames`.
    pub frame_bytes: u64,
    /// One per unit of the contract; units that the list has not are taken as empty.
    pub units: &'a [Facts],
    /// When it was looked.
    pub now: Time,
    /// What kind of look this is.
    pub look: Look,
    /// Of the time within which a loan is to be back, what passes until it is known to be called back, and to be back.
    pub delay_ns: Time,
    /// Frames that each unit may borrow before others, since it lent before ([`crate::credits`]); units that the list has not
    /// may borrow none so.
    pub first: &'a [u64],
}

/// What is remembered between looks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// What each unit was allowed.
    allowed: Vec<u64>,
    /// At how many looks in a row each unit was there and not short.
    calm: Vec<u32>,
    /// For how long each left frames idle.
    idleness: Vec<Idleness>,
    /// Which units were short at a look between two periods: marks seen there count at the period's end too.
    short: Vec<bool>,
}

impl State {
    /// Forgets the units that the contract has no more: what one was allowed is no loan of whoever has its number next.
    pub(super) fn forget_gone(&mut self, contract: &Contract) {
        for id in &contract.vacant {
            if let Some(allowed) = self.allowed.get_mut(id.index()) {
                *allowed = 0;
            }
            if let Some(short) = self.short.get_mut(id.index()) {
                *short = false;
            }
            if let Some(idleness) = self.idleness.get_mut(id.index()) {
                idleness.forget();
            }
        }
    }
}

/// How many frames a unit may use, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// What its own processes are entitled to.
    pub entitled: u64,
    /// What is reserved of what it and its sub-units are entitled to.
    pub reserved: u64,
    /// What it lends.
    pub lent: u64,
    /// What it borrows.
    pub borrowed: u64,
    /// What it may use: entitled - lent + borrowed, or every frame of the machine where nothing is held.
    pub allowed: u64,
    /// Within what time all that it lends is to be back, in nanoseconds; `None`: it lends nothing.
    pub within_ns: Option<Time>,
    /// The most that it could be lent for the time that call-backs take, if no other unit borrowed; `None`: any amount.
    pub callable: Option<u64>,
    /// Why.
    pub because: Because,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// One per unit of the contract.
    pub allowances: Vec<Allowance>,
    /// What is lent, by the time within which it is to be back, the shortest first.
    pub terms: Vec<Term>,
    /// Whether more is not lent because it could not be called back in time.
    pub full: bool,
    /// Whether more is not lent because no more is idle beyond the reserve.
    pub spent: bool,
}

/// Why a unit is allowed what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// A common part: never restricted.
    Common,
    /// The scheme restricts no unit, or lends nothing.
    Scheme(Scheme),
    /// It uses what it is entitled to, or is not calm yet.
    Entitled,
    /// Others use what it does not.
    Lends,
    /// It was short while it lent: its entitlement is whole again.
    CalledBack {
        /// Frames that it has again.
        frames: u64,
    },
    /// It borrows.
    Borrows,
    /// It borrows, before others, since it lent before.
    BorrowsFirst,
    /// It borrows as much as could be called back in time.
    BorrowsInTime,
    /// It gave back a part of what it borrowed, on trial.
    OnTrial,
    /// It gave back a part of what it borrowed: to the owner, or to others that are short, or because it did not use it.
    GaveBack {
        /// So many frames.
        frames: u64,
    },
    /// It is short, but may not borrow.
    MayNotBorrow,
    /// It is short, but at a limit: its own or an enclosing unit's.
    Limit,
    /// It is short, and no unit has anything to lend.
    NothingIdle,
}

/// Decides what every unit is allowed from now on.
#[must_use]
pub fn step(state: State, input: Input<'_>) -> (State, Shares) {
    let mut division = Division::new(state, input);
    let scheme = input.contract.machine.scheme;
    let shares = match scheme {
        Scheme::Smp => Shares::without_loans(division.unrestricted()),
        Scheme::Quota => Shares::without_loans(division.own(|_| Because::Scheme(scheme))),
        Scheme::Isolate => division.lend(),
    };
    let allowed = shares.allowances.iter().map(|allowance| allowance.allowed).collect();
    let short = match input.look {
        Look::Period => Vec::new(),
        Look::CallBack => division.facts.iter().map(|facts| facts.short).collect(),
    };
    (State { allowed, calm: division.calm, idleness: division.idleness, short }, shares)
}

impl Shares {
    fn without_loans(allowances: Vec<Allowance>) -> Shares {
        Shares { allowances, terms: Vec::new(), full: false, spent: false }
    }
}

/// One look at all units. Vectors have one element per unit.
struct Division<'a> {
    input: Input<'a>,
    facts: Vec<Facts>,
    entitlement: Entitlement,
    /// What each was allowed before; of one that has come since, what it is entitled to.
    before: Vec<u64>,
    calm: Vec<u32>,
    idleness: Vec<Idleness>,
    /// When what is lent is to be back.
    terms: Terms,
    /// Frames that neither `kernel` nor `shared` uses.
    divided: u64,
    /// The same, as rights weigh amounts by it.
    capacity: Capacity,
    levels: Levels,
    /// What each may borrow first, sub-units included.
    first: Vec<u64>,
}

impl<'a> Division<'a> {
    fn new(state: State, input: Input<'a>) -> Self {
        let contract = input.contract;
        let seen = |id: UnitId| {
            let mut facts = input.units.get(id.index()).copied().unwrap_or_default();
            facts.short |= state.short.get(id.index()).copied().unwrap_or_default();
            facts
        };
        let facts: Vec<Facts> = contract.ids().map(seen).collect();
        let common = facts[UnitId::KERNEL.index()].used.saturating_add(facts[UnitId::SHARED.index()].used);
        let divided = input.frames.saturating_sub(common);
        let capacity = Capacity::Pieces { total: divided, bytes: input.frame_bytes };
        let entitlement = input.rights.to_part(Resource::Memory, capacity).all();
        let mut before = state.allowed;
        before.truncate(facts.len());
        before.extend_from_slice(&entitlement.own[before.len()..]);
        let calm = contract
            .ids()
            .map(|id| {
                let (facts, calm) =
                    (facts[id.index()], state.calm.get(id.index()).copied().unwrap_or_default());
                match input.look {
                    _ if facts.short || !facts.present => 0,
                    // What it called back is not there yet. It may be far from its bound, and will want all of that.
                    _ if facts.waits && calm < CALM_LOOKS => 0,
                    Look::Period => calm.saturating_add(1),
                    Look::CallBack => calm,
                }
            })
            .collect();
        let levels = Levels::of(contract);
        let first = tree::sums(contract, |id| input.first.get(id.index()).copied().unwrap_or(0));
        let (idleness, terms) = (state.idleness, Terms::default());
        let mut division = Division {
            input,
            facts,
            entitlement,
            before,
            calm,
            idleness,
            terms,
            divided,
            capacity,
            levels,
            first,
        };
        division.give_up_cold();
        division.note_needs();
        division
    }

    /// Takes note of what each unit needs. How much a unit needs that is short of what it lent, nobody knows; one that is
    /// not there has left nothing idle by the time when it comes.
    fn note_needs(&mut self) {
        self.idleness.resize_with(self.facts.len(), Idleness::default);
        for id in self.input.contract.held() {
            let (facts, own) = (self.facts[id.index()], self.entitlement.own(id));
            let needed = if facts.short { self.needed(id).max(own) } else { self.needed(id) };
            let idleness = &mut self.idleness[id.index()];
            if facts.present {
                idleness.note(self.input.now, needed, self.divided);
            } else {
                idleness.forget();
            }
        }
    }

    /// Where others are short or borrow, a unit that would lend and is beyond its entitlement with what is cold needs
    /// that no more.
    fn give_up_cold(&mut self) {
        let contract = self.input.contract;
        let takes = |id: UnitId| {
            let borrows = self.before[id.index()] > self.entitlement.own(id);
            self.borrow_permission(id).allows() && (self.facts[id.index()].short || borrows)
        };
        let takers: Vec<bool> = contract.ids().map(|id| !id.is_common() && takes(id)).collect();
        let all = takers.iter().filter(|takes| **takes).count();
        for id in contract.held() {
            let (beyond, others) = (self.beyond(id), all - usize::from(takers[id.index()]));
            let gives_up = others > 0 && self.may_lend(id);
            let facts = &mut self.facts[id.index()];
            if gives_up && beyond > 0 && facts.cold >= beyond {
                facts.used -= beyond;
                facts.cold -= beyond;
            }
        }
    }

    fn nothing(&self) -> Vec<u64> {
        vec![0; self.facts.len()]
    }

    fn per_unit(&self, of: impl Fn(UnitId) -> u64) -> Vec<u64> {
        let held = |id: UnitId| if id.is_common() { 0 } else { of(id) };
        self.input.contract.ids().map(held).collect()
    }

    fn unrestricted(&self) -> Vec<Allowance> {
        let mut allowances = self.own(|_| Because::Scheme(Scheme::Smp));
        for allowance in &mut allowances {
            allowance.allowed = self.input.frames;
        }
        allowances
    }

    /// The allowances without loans.
    fn own(&self, because: impl Fn(UnitId) -> Because) -> Vec<Allowance> {
        let allowance = |id: UnitId| {
            let (lent, borrowed, within_ns, callable) = (0, 0, None, None);
            if id.is_common() {
                let (allowed, because) = (self.input.frames, Because::Common);
                return Allowance {
                    entitled: 0,
                    reserved: 0,
                    lent,
                    borrowed,
                    allowed,
                    within_ns,
                    callable,
                    because,
                };
            }
            let (entitled, reserved) = (self.entitlement.own(id), self.entitlement.hard(id));
            let (allowed, because) = (entitled, because(id));
            Allowance { entitled, reserved, lent, borrowed, allowed, within_ns, callable, because }
        };
        self.input.contract.ids().map(allowance).collect()
    }

    fn lend(&mut self) -> Shares {
        let idle = self.per_unit(|id| self.idle(id));
        self.terms = self.terms(&idle);
        let lendable = idle.iter().sum::<u64>() + self.entitlement.unheld;
        let reserve = Some(self.input.contract.machine.reserve);
        let reserve = self.capacity.weigh_up(reserve, self.input.frames).unwrap_or(0);
        let excess = lendable.saturating_sub(reserve);
        let rooms = self.rooms();
        let mut target = self.nothing();
        self.deal(None, excess, &rooms, &mut target);
        self.fit_in_time(&mut target, &self.nothing());
        let held = self.per_unit(|id| self.held(id));
        // What is used is not given up unless a unit needs it; and a unit that was just lent something is given a
        // period to use it.
        let of_loan = |id: UnitId| match self.input.look {
            Look::Period => self.beyond(id),
            Look::CallBack => held[id.index()],
        };
        let mut keep = self.per_unit(|id| target[id.index()].max(of_loan(id).min(self.callable(id))));
        self.fit_in_time(&mut keep, &target);
        // What is beyond an amount comes back at once, as what is beyond a limit does.
        let towards = |id: UnitId| {
            let next = self.towards(held[id.index()], target[id.index()], keep[id.index()]);
            next.min(self.may_borrow(id)).min(self.on_trial(id))
        };
        let mut loans = self.per_unit(towards);
        // One loan grows as fast as another shrinks: until that has come back, the growing one waits.
        let shrunk: Vec<u64> = loans.iter().zip(&held).map(|(loan, held)| *loan.min(held)).collect();
        self.fit_in_time(&mut loans, &shrunk);
        self.call_back(&mut loans, &target, excess);
        let lent = self.lenders(&loans, &idle);
        debug_assert!(
            lent.frames.iter().zip(&idle).all(|(lent, idle)| lent <= idle),
            "only idle frames are lent"
        );
        let spent = loans.iter().sum::<u64>() + 2 > excess;
        let full = !spent && self.terms.are_full(&loans, 2);
        let mut allowances = self.own(|id| self.because(id, &held, &loans, &lent.frames, &rooms, full));
        for id in self.input.contract.held() {
            let (i, allowance) = (id.index(), &mut allowances[id.index()]);
            (allowance.lent, allowance.within_ns) = (lent.frames[i], lent.within_ns[i]);
            (allowance.borrowed, allowance.callable) = (loans[i], self.terms.most(id));
            allowance.allowed = allowance.entitled - allowance.lent + allowance.borrowed;
        }
        Shares { allowances, terms: lent.terms, full, spent }
    }

    /// What a unit may lend. A unit that needs more than its entitlement lends nothing, however cold the rest; what is
    /// reserved and in use stays, cold or not.
    fn idle(&self, unit: UnitId) -> u64 {
        self.left_of_own(unit, self.needed(unit))
    }

    /// What a unit needs of its own.
    fn needed(&self, unit: UnitId) -> u64 {
        let facts = self.facts[unit.index()];
        let cold = if self.beyond(unit) > 0 { 0 } else { facts.cold };
        facts.used.saturating_sub(cold).max(facts.used.min(self.reserved(unit)))
    }

    /// The part of a unit's own that is hard: its own reservation, or its part of one around it.
    fn reserved(&self, unit: UnitId) -> u64 {
        let contract = self.input.contract;
        let of = |id: UnitId| {
            let (value, hard) = (self.entitlement.value(id), self.entitlement.hard(id));
            let part = u128::from(self.entitlement.own(unit)) * u128::from(hard);
            u64::try_from(part.div_ceil(u128::from(value.max(1)))).unwrap_or(u64::MAX)
        };
        lineage(contract, unit).map(of).max().unwrap_or(0)
    }

    /// What a unit may lend, by the contract.
    fn lend_permission(&self, unit: UnitId) -> Permission {
        in_whole_frames(self.input.contract.unit(unit).lend.memory, self.input.frame_bytes)
    }

    /// What a unit may borrow, by the contract.
    fn borrow_permission(&self, unit: UnitId) -> Permission {
        in_whole_frames(self.input.contract.unit(unit).borrow.memory, self.input.frame_bytes)
    }

    /// What of that it does not even use.
    fn unused(&self, unit: UnitId) -> u64 {
        self.left_of_own(unit, self.facts[unit.index()].used)
    }

    /// What a unit may lend if it needs so many frames.
    fn left_of_own(&self, unit: UnitId, needed: u64) -> u64 {
        let own = self.entitlement.own(unit);
        let most = self.lend_permission(unit).most(own);
        if self.may_lend(unit) { own.saturating_sub(needed).min(most) } else { 0 }
    }

    fn may_lend(&self, unit: UnitId) -> bool {
        self.calm[unit.index()] >= CALM_LOOKS && self.lend_permission(unit).allows()
    }

    /// What a unit uses beyond its entitlement.
    fn beyond(&self, unit: UnitId) -> u64 {
        self.facts[unit.index()].used.saturating_sub(self.entitlement.own(unit))
    }

    /// What a unit has on loan. A unit that had more than it is entitled to by now keeps the difference as a loan at
    /// first.
    fn held(&self, unit: UnitId) -> u64 {
        let just_lent = self.input.look == Look::CallBack && self.idle(unit) == 0;
        let needs = just_lent || self.facts[unit.index()].short || self.beyond(unit) > 0;
        let held = self.before[unit.index()].saturating_sub(self.entitlement.own(unit));
        if needs && self.may_borrow(unit) > 0 { held } else { 0 }
    }

    /// What a unit could use on loan.
    fn want(&self, unit: UnitId) -> u64 {
        let facts = self.facts[unit.index()];
        // A unit that lent and is short has its own back before it borrows.
        let more = facts.short && self.before[unit.index()] >= self.entitlement.own(unit);
        let most = self.callable(unit).min(self.may_borrow(unit)).min(self.on_trial(unit));
        match (facts.present, more) {
            (false, _) => 0,
            (true, true) => most,
            (true, false) => self.beyond(unit).min(most),
        }
    }

    /// The most that a unit may borrow. An amount of all that there is bounds nothing.
    fn may_borrow(&self, unit: UnitId) -> u64 {
        let most = self.borrow_permission(unit).most(self.around(unit));
        if most > 0 && most >= self.divided { u64::MAX } else { most }
    }

    /// The most that it may borrow while it is on trial.
    fn on_trial(&self, unit: UnitId) -> u64 {
        self.facts[unit.index()].on_trial.unwrap_or(u64::MAX)
    }

    /// What percentages in a unit's table are of.
    fn around(&self, unit: UnitId) -> u64 {
        let parent = self.input.contract.unit(unit).parent;
        parent.map_or(self.divided, |id| self.entitlement.value(id))
    }

    /// What could be called back from a unit in time, if from no other.
    fn callable(&self, unit: UnitId) -> u64 {
        self.terms.most(unit).unwrap_or(u64::MAX)
    }

    /// What may be lent to a unit beyond its entitlement, sub-units included, for its limit; `None`: no limit.
    fn margin(&self, unit: UnitId) -> Option<u64> {
        let limit = self.input.contract.unit(unit).limit.memory;
        let most = self.capacity.weigh(limit, self.around(unit))?;
        Some(most.saturating_sub(self.entitlement.value(unit)))
    }

    /// What may and could be lent to each unit, sub-units included.
    fn rooms(&self) -> Vec<u64> {
        let mut rooms = self.per_unit(|id| self.want(id));
        // A parent stands before its children: going backwards carries what they could use all the way up.
        for id in self.input.contract.held().rev() {
            let room = rooms[id.index()].min(self.margin(id).unwrap_or(u64::MAX));
            rooms[id.index()] = room;
            if let Some(parent) = self.input.contract.unit(id).parent {
                rooms[parent.index()] = rooms[parent.index()].saturating_add(room);
            }
        }
        rooms
    }

    /// Deals `amount` among the units of one level by tickets, and on among their sub-units.
    fn deal(&self, level: Option<UnitId>, amount: u64, rooms: &[u64], target: &mut [u64]) {
        let has_room = |id: &UnitId| rooms[id.index()] > 0 && amount > 0;
        let units: Vec<UnitId> = self.levels.at(level).iter().copied().filter(has_room).collect();
        let mut tickets: Vec<u64> =
            units.iter().map(|id| self.input.rights.tickets(*id, Resource::Memory)).collect();
        let mut caps: Vec<u64> = units.iter().map(|id| rooms[id.index()]).collect();
        if let Some(own) = level {
            tickets.push(DEFAULT_TICKETS);
            caps.push(self.want(own));
        }
        let mut first: Vec<u64> = units.iter().map(|id| self.first[id.index()]).collect();
        first.extend(level.map(|own| self.own_first(own)));
        // Whose credit pays for something comes before the others, and with the others for more.
        let most: Vec<u64> = caps.iter().zip(&first).map(|(cap, first)| *cap.min(first)).collect();
        let (mut parts, left) = if most.iter().any(|most| *most > 0) {
            split_capped(amount, &first, &most)
        } else {
            (vec![0; most.len()], amount)
        };
        let rest: Vec<u64> = caps.iter().zip(&parts).map(|(cap, part)| cap - part).collect();
        let (more, _) = split_capped(left, &tickets, &rest);
        parts.iter_mut().zip(more).for_each(|(part, more)| *part += more);
        for (id, part) in units.iter().zip(&parts) {
            self.deal(Some(*id), *part, rooms, target);
        }
        if let Some(own) = level {
            target[own.index()] = parts[units.len()];
        }
    }

    /// What a unit's own processes may borrow first.
    fn own_first(&self, unit: UnitId) -> u64 {
        self.input.first.get(unit.index()).copied().unwrap_or(0)
    }

    /// A loan's next size, from its size, its target, and what is kept of it as long as no unit calls anything back.
    fn towards(&self, held: u64, target: u64, keep: u64) -> u64 {
        let pace = (self.divided / GROWTH_PART).max(1);
        match self.input.look {
            Look::Period if held < target => target.min(held + pace),
            _ if held > keep => keep.max(held.saturating_sub(pace)),
            _ => held,
        }
    }

    /// Shrinks loans until they fit the excess, and under every limit. Targets do, so those above theirs can give enough.
    fn call_back(&self, loans: &mut [u64], target: &[u64], excess: u64) {
        let contract = self.input.contract;
        for id in contract.held().rev() {
            if let Some(margin) = self.margin(id) {
                shrink(loans, target, margin, &self.levels.within(id));
            }
        }
        shrink(loans, target, excess, &contract.held().collect::<Vec<_>>());
    }

    fn because(
        &self,
        unit: UnitId,
        held: &[u64],
        loans: &[u64],
        lent: &[u64],
        rooms: &[u64],
        full: bool,
    ) -> Because {
        let i = unit.index();
        let (facts, own) = (self.facts[i], self.entitlement.own(unit));
        if lent[i] > 0 {
            return Because::Lends;
        }
        if facts.short && self.before[i] < own {
            return Because::CalledBack { frames: own - self.before[i] };
        }
        if loans[i] < held[i] && facts.on_trial.is_some() {
            return Because::OnTrial;
        }
        if loans[i] < held[i] {
            return Because::GaveBack { frames: held[i] - loans[i] };
        }
        match facts.short {
            true if loans[i] > 0 && full => Because::BorrowsInTime,
            _ if loans[i] > 0 && self.own_first(unit) > 0 => Because::BorrowsFirst,
            _ if loans[i] > 0 => Because::Borrows,
            false => Because::Entitled,
            true if self.may_borrow(unit) == 0 => Because::MayNotBorrow,
            true if self.is_limited(unit, rooms) => Because::Limit,
            true => Because::NothingIdle,
        }
    }

    /// Whether a unit or an encloser has no room.
    fn is_limited(&self, unit: UnitId, rooms: &[u64]) -> bool {
        lineage(self.input.contract, unit).any(|id| rooms[id.index()] == 0)
    }
}

/// A permission with its amount in frames. One of less than a frame is a no.
fn in_whole_frames(permission: Permission, frame_bytes: u64) -> Permission {
    permission.map(|amount| match amount {
        Amount::Absolute(bytes) => Amount::Absolute(bytes / frame_bytes.max(1)),
        part @ Amount::Part(_) => part,
    })
}

/// What part of all the time a loan takes, of which so much could be called back in all of it. More than all where that is too much.
fn part_of_time(loan: u64, callable: Option<u64>) -> u64 {
    match callable {
        None => 0,
        _ if loan == 0 => 0,
        Some(callable) => {
            let part = (u128::from(loan) * u128::from(ALL_TIME)).div_ceil(u128::from(callable.max(1)));
            // Thousands of these can be summed.
            u64::try_from(part).unwrap_or(u64::MAX).min(ALL_TIME << 16)
        }
    }
}

/// Takes what the loans of these units sum to beyond `most` from those above their targets, in proportion to how far above.
fn shrink(loans: &mut [u64], target: &[u64], most: u64, units: &[UnitId]) {
    let sum: u64 = units.iter().map(|id| loans[id.index()]).sum();
    if sum <= most {
        return;
    }
    let above: Vec<u64> =
        units.iter().map(|id| loans[id.index()].saturating_sub(target[id.index()])).collect();
    let cuts = split(sum - most, &above);
    for (id, cut) in units.iter().zip(cuts) {
        loans[id.index()] -= cut;
    }
}

#[cfg(test)]
mod tests;
