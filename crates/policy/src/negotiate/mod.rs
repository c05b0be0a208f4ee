//! The negotiator: exchanges that units did not ask for one by one, proposed, tried, measured, and kept or undone.
//!
//! Problem: what a ticket of a resource is worth to a unit depends on what it does, and on everybody else. A unit cannot name
//! a ratio beforehand (seed 004, section 5.6). So an exchange is tried for a while, and both sides are measured.
//!
//! Terms:
//! - A *window* is [`WINDOW_NS`] long. All that is measured is measured of whole windows.
//! - *Progress* of a unit is the time in which its tasks, and those of its sub-units, waited for nothing: their CPU time. It is
//!   told in millionths of a CPU. Every backend tells it.
//! - A *want* of a resource is the part of a window in which the unit's tasks waited for it: ready without a CPU, stalled for a
//!   disk, stalled for memory. The part of the stalls for disks that reads pages back counts for memory as well.
//! - The *baseline* of a unit is its progress without the exchange, in the windows just before.
//! - A *level* is how much is exchanged: so many thousandths of the smaller of both holdings, for each of the two resources.
//! - *Noise* is the larger of a two-hundredth of the baseline and three standard errors of the difference. Two measures differ if
//!   they differ by more.
//!
//! Algorithm: one *trial* at a time.
//! 1. Of two siblings that negotiate, one waits more for the one resource than for another, and the other the other way around.
//!    The pair is taken whose waits differ most. Each gives what it waits for less.
//! 2. The first level is a tenth. After [`SETTLE`] windows, [`MEASURE`] to [`MEASURE_MAX`] are measured.
//! 3. If both sides' progress grew, the level is good, and one twice as large is tried. If one lost, the level is undone.
//!    If nothing can be told, larger levels are tried, up to [`BLIND_MAX`].
//! 4. A larger level is good if nobody has less than at the one before, and somebody more. If not, the one before is taken again,
//!    and the next step is half as large. What is left when steps are smaller than a tenth is *kept*.
//! 5. A kept exchange is watched. A side that falls below its baseline ends it. From time to time, and when other units come or
//!    go, it is suspended, a new baseline is measured, and it is tried again. The time between doubles, up to [`CHECK_MAX_NS`].
//! 6. A pair that failed rests, twice as long after each failure, up to [`REST_MAX_NS`].
//!
//! What it may cost: a unit that gives a part of what it holds loses at most that part of its progress, as long as progress is
//! concave in what it holds. It loses never more than all, and what it loses is no more than what the machine has beside its
//! progress. So a trial *risks*, of a unit, that part of its progress while it
//! lasts; a kept exchange, since it was found good last. A unit whose undone trials risked more than [`ALLOWANCE_NS`] and a
//! hundredth of the time is left alone.
//!
//! Properties (tested): tickets are conserved. A kept exchange is in both sides' favour. No unit falls behind what it would have
//! without trade by more than was risked.
//!
//! Limits: a unit is in one negotiated exchange at a time. A loss that began after a check and is over before the next one,
//! while the unit has no less than its old baseline, is not seen. CPU time that is spent in vain (spinning, the kernel's own work at page
//! faults) counts as progress. What a unit would do without an exchange is known as of the last check. The memory bus is not
//! held, and so not exchanged.
//!
//! Cost: O(n log n) for n units once a window, nothing where no unit negotiates.
//!
//! Source: seed 004, sections 5.5, 5.6 and 7 (negotiators are named there, and none is given).

mod measure;
mod seen;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use commonhold_contract::{Resource, UnitId};
use serde::{Deserialize, Serialize};

use crate::input::Input;
use crate::rights::share::part_of;
use crate::rights::{Bid, Offer, Refused, Rights, Trade};
use crate::time::Time;
use measure::{Sample, Sign};
pub(crate) use seen::{Facts, Seen};

/// How long a window is, at least.
pub const WINDOW_NS: Time = 4_000_000_000;
/// Windows after a change of tickets that are not measured.
pub const SETTLE: u32 = 1;
/// Windows that are measured before anything is said.
pub const MEASURE: u32 = 4;
/// Windows after which nothing more is waited for.
pub const MEASURE_MAX: u32 = 8;
/// The first level, and the smallest step between two, in thousandths.
pub const FIRST: u64 = 100;
/// The largest level.
pub const LARGEST: u64 = 900;
/// The largest level that is tried while no smaller one was found good.
pub const BLIND_MAX: u64 = 400;
/// How long a kept exchange goes on before it is tried again, at first.
pub const CHECK_NS: Time = 240_000_000_000;
/// How long at most.
pub const CHECK_MAX_NS: Time = 3_600_000_000_000;
/// How long a pair rests after its first failure.
pub const REST_NS: Time = 60_000_000_000;
/// How long at most.
pub const REST_MAX_NS: Time = 61_440_000_000_000;
/// What undone trials may risk of a unit beyond a hundredth of the time.
pub const ALLOWANCE_NS: Time = 20_000_000_000;
/// A unit that waits for less than this part of a window does not want the resource, in millionths.
const WANT_MIN: u64 = 50_000;
/// So many units are looked at on each side of a pair.
const LOOKED_AT: usize = 8;
/// Resources that are exchanged.
const TRADED: [Resource; 3] = [Resource::Cpu, Resource::Memory, Resource::Disk];

const MILLION: u64 = 1_000_000;

/// One side of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// The unit.
    pub unit: UnitId,
    /// What it gives.
    pub gives: Offer,
    /// Its progress without the exchange, in millionths of a CPU.
    pub without: u64,
    /// Its progress with it, in millionths of a CPU; `None`: not measured.
    pub with: Option<u64>,
    /// By how much these two must differ to be told apart.
    pub noise: u64,
    /// What trials have risked of it so far, in ns of its CPU time: it lost no more.
    pub risked_ns: u64,
    /// What it was measured to have lost in them, in ns of CPU time.
    pub lost_ns: u64,
    /// What it was measured to have gained by exchanges, in ns of CPU time.
    pub gained_ns: u64,
}

/// What the negotiator did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Move {
    /// An exchange is tried.
    Tried,
    /// It is good for both, and a larger one is tried next.
    Good,
    /// It was not good, and less is exchanged next; or more, where nothing could be told.
    Left {
        /// Why.
        why: Why,
    },
    /// It is kept.
    Kept,
    /// It goes on, and was measured again.
    Watched,
    /// It is suspended, to see what both sides do without it.
    Suspended,
    /// It is undone.
    Undone {
        /// Why.
        why: Why,
    },
}

/// Why a trial or an exchange is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The unit lost by it.
    Lost {
        /// The unit.
        unit: UnitId,
    },
    /// Nothing can be told from the noise, or somebody gained nothing.
    NoGain,
    /// Units came or went while it was measured.
    Changed,
    /// The tickets could not be exchanged.
    Refused {
        /// Why.
        refused: Refused,
    },
    /// Somebody else ended it.
    Ended,
    /// A unit negotiates no more, or is gone.
    Withdrawn,
}

/// An entry for the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Negotiation {
    /// The trial's number.
    pub trial: u64,
    /// The exchange that is meant; `None`: none was made.
    pub deal: Option<u64>,
    /// How much, in thousandths of the smaller holdings.
    pub level: u64,
    /// What was done.
    pub done: Move,
    /// Both sides.
    pub sides: [Side; 2],
}

/// Two siblings, and what each of them gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    units: [UnitId; 2],
    gets: [Resource; 2],
}

/// What a unit did in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Did {
    progress: u64,
    wants: [u64; TRADED.len()],
}

/// A level that was found good, and both sides' progress there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Good {
    level: u64,
    with: [Sample; 2],
}

/// An exchange that is tried, or kept.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Trial {
    number: u64,
    pair: Pair,
    /// The exchange in force; `None`: the baseline is measured.
    deal: Option<u64>,
    offers: [Offer; 2],
    level: u64,
    /// The smallest level that was not good since this trial began.
    ceiling: Option<u64>,
    good: Option<Good>,
    /// It is no first trial: it was kept before.
    again: bool,
    without: [Sample; 2],
    with: [Sample; 2],
    /// Windows still to be left out.
    settle: u32,
    /// Of what each side holds, the part that it gives, in millionths.
    parts: [u64; 2],
    /// What each side may have lost since the exchange was found good last, or began: as time, and in ns of its CPU time.
    unsure: [(Time, u64); 2],
    /// The same, of the time for which it was kept before this trial.
    doubt: [(Time, u64); 2],
    /// The time that `with` is of.
    block_ns: Time,
    /// When it is to be suspended; and the time between.
    check_at: Time,
    check_ns: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Rest {
    failures: u32,
    until: Time,
}

/// What trials cost a unit, and brought it, in ns of its CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Account {
    since: Option<Time>,
    risked_ns: u64,
    /// Of undone trials, as time: the part given, times how long.
    spent_ns: u64,
    lost_ns: u64,
    gained_ns: u64,
}

/// What must not change while something is measured: who is busy, tickets, others' exchanges.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Conditions {
    busy: Vec<UnitId>,
    tickets: Vec<(UnitId, u64)>,
    deals: Vec<u64>,
}

/// What is remembered between looks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    seen: seen::Memory,
    /// The window that is open: when it began, and the counts then.
    open: Option<(Time, Vec<Facts>)>,
    conditions: Conditions,
    /// Since the conditions are what they are: what each unit did, by window, the newest last. No more than [`MEASURE`].
    history: Vec<BTreeMap<UnitId, Did>>,
    last: u64,
    /// What the machine has, in millionths of a CPU.
    cpus: u64,
    trial: Option<Trial>,
    kept: Vec<Trial>,
    rests: BTreeMap<Pair, Rest>,
    accounts: BTreeMap<UnitId, Account>,
}

/// What a step came to.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    /// What was tried, kept and undone.
    pub(crate) said: Vec<Negotiation>,
    /// The exchanges that this made and ended.
    pub(crate) traded: Vec<Trade>,
    /// When the negotiator is to look again.
    pub(crate) next: Option<Time>,
}

/// One step: what the negotiator decides now.
pub(crate) fn step(state: &mut Arc<State>, now: Time, input: Input<'_>, rights: &mut Arc<Rights>) -> Looked {
    let negotiates = input.contract.held().any(|unit| input.contract.unit(unit).negotiate);
    if !negotiates && !state.is_at_work() {
        return Looked::default();
    }
    let state = Arc::make_mut(state);
    state.seen.note(input.snapshot);
    if let Some(next) = state.next().filter(|next| *next > now) {
        return Looked { next: Some(next), ..Looked::default() };
    }
    let seen = state.seen.units(input);
    let rights = Arc::make_mut(rights);
    let said = state.look(now, &seen, rights);
    Looked { said, traded: rights.settle(now), next: state.next() }
}

/// The offers of both sides: the one place that makes any.
fn bids(pair: Pair, offers: [Offer; 2]) -> [Bid; 2] {
    let bid = |of: usize, by: usize| Bid {
        by: pair.units[of],
        gives: offers[of],
        wants: offers[by],
        with: Some(pair.units[by]),
        for_ns: None,
        at_least: None,
        bound: true,
    };
    [bid(0, 1), bid(1, 0)]
}

impl State {
    fn is_at_work(&self) -> bool {
        self.trial.is_some() || !self.kept.is_empty()
    }

    /// When the window that is open ends.
    pub(crate) fn next(&self) -> Option<Time> {
        self.open.as_ref().map(|(began, _)| began.saturating_add(WINDOW_NS))
    }

    /// A look. Only one at the end of a window does anything.
    pub(crate) fn look(&mut self, now: Time, seen: &Seen, rights: &mut Rights) -> Vec<Negotiation> {
        let mut said = Vec::new();
        let before = match self.open.take() {
            Some((began, before)) if now < began.saturating_add(WINDOW_NS) => {
                self.open = Some((began, before));
                return said;
            }
            before => before,
        };
        self.open = Some((now, seen.units.clone()));
        self.cpus = seen.cpus;
        self.forget(now, seen, rights, &mut said);
        let Some((began, before)) = before else { return said };
        // After a pause, such as a machine's sleep, a window says nothing.
        if now - began > 3 * WINDOW_NS {
            self.history.clear();
            return said;
        }
        let (did, busy) = did(&before, &seen.units);
        for unit in did.keys() {
            self.accounts.entry(*unit).or_default().since.get_or_insert(began);
        }
        let conditions = self.conditions(busy, seen, rights);
        let same = conditions == self.conditions;
        self.conditions = conditions;
        if !same {
            self.history.clear();
        }
        self.history.push(did.clone());
        if self.history.len() > MEASURE as usize {
            self.history.remove(0);
        }
        self.watch(now, now - began, &did, same, rights, &mut said);
        match self.trial.take() {
            Some(trial) => self.go_on(trial, now, now - began, &did, same, rights, &mut said),
            None => self.begin(now, seen, rights, &mut said),
        }
        // What the negotiator itself changed is no change of conditions, but what was measured before it is over.
        if said.iter().any(|said| said.done != Move::Watched) {
            self.conditions.deals = self.others_deals(rights);
            self.history.clear();
        }
        said
    }

    /// Deals that are not of the trial under way.
    fn others_deals(&self, rights: &Rights) -> Vec<u64> {
        let own = self.trial.as_ref().and_then(|trial| trial.deal);
        rights.deals().keys().copied().filter(|deal| Some(*deal) != own).collect()
    }

    fn conditions(&self, busy: Vec<UnitId>, seen: &Seen, rights: &Rights) -> Conditions {
        let tickets = |unit: &Facts| TRADED.map(|resource| (unit.unit, rights.tickets(unit.unit, resource)));
        Conditions {
            busy,
            tickets: seen.units.iter().flat_map(tickets).collect(),
            deals: self.others_deals(rights),
        }
    }

    /// Exchanges that somebody ended, and units that negotiate no more.
    fn forget(&mut self, now: Time, seen: &Seen, rights: &mut Rights, said: &mut Vec<Negotiation>) {
        let all: Vec<Trial> = self.trial.take().into_iter().chain(core::mem::take(&mut self.kept)).collect();
        for mut trial in all {
            let in_force = trial.deal.is_none_or(|deal| rights.deals().contains_key(&deal));
            let negotiate = trial.pair.units.iter().all(|unit| seen.negotiates(*unit));
            let kept = trial.check_at > 0;
            match (in_force, negotiate) {
                (true, true) if kept => self.kept.push(trial),
                (true, true) => self.trial = Some(trial),
                (false, _) => {
                    self.risk(&mut trial);
                    self.fail(&trial, now, Why::Ended, said);
                }
                (true, false) => self.undo(trial, now, Why::Withdrawn, rights, said),
            }
        }
        self.rests.retain(|pair, _| pair.units.iter().all(|unit| seen.negotiates(*unit)));
        self.accounts.retain(|unit, _| seen.negotiates(*unit));
    }

    /// What kept exchanges do.
    fn watch(
        &mut self,
        now: Time,
        elapsed: Time,
        did: &BTreeMap<UnitId, Did>,
        same: bool,
        rights: &mut Rights,
        said: &mut Vec<Negotiation>,
    ) {
        for mut trial in core::mem::take(&mut self.kept) {
            if !same {
                // Not at once: who comes and goes all the time would end all exchanges.
                trial.check_at =
                    trial.check_at.min(now.max(trial.check_at.saturating_sub(trial.check_ns - CHECK_NS / 4)));
            }
            let progress = progress(&trial, did);
            trial.passed(elapsed, progress, self.cpus);
            add(&mut trial.with, progress);
            let lost = (0..2).find(|side| {
                trial.far_below(*side, progress[*side])
                    || trial.with[*side].n() >= MEASURE
                        && trial.without[*side].sign(&trial.with[*side]) == Sign::Less
            });
            if let Some(side) = lost {
                let why = Why::Lost { unit: trial.pair.units[side] };
                self.undo(trial, now, why, rights, said);
                continue;
            }
            if trial.with[0].n() >= MEASURE {
                self.account(&mut trial);
                said.push(self.entry(&trial, Move::Watched));
                trial.with = [Sample::default(); 2];
            }
            self.kept.push(trial);
        }
    }

    /// The trial under way, after a window.
    #[expect(clippy::too_many_arguments, reason = "one look's facts, and what is done about them")]
    fn go_on(
        &mut self,
        mut trial: Trial,
        now: Time,
        elapsed: Time,
        did: &BTreeMap<UnitId, Did>,
        same: bool,
        rights: &mut Rights,
        said: &mut Vec<Negotiation>,
    ) {
        let progress = progress(&trial, did);
        if trial.deal.is_some() {
            trial.passed(elapsed, progress, self.cpus);
        }
        if !same {
            return self.undo(trial, now, Why::Changed, rights, said);
        }
        if trial.settle > 0 {
            trial.settle -= 1;
            self.trial = Some(trial);
            return;
        }
        let Some(_) = trial.deal else {
            add(&mut trial.without, progress);
            if trial.without[0].n() < MEASURE {
                self.trial = Some(trial);
                return;
            }
            let level = trial.level;
            return self.strike(trial, level, now, rights, said);
        };
        add(&mut trial.with, progress);
        if let Some(side) = (0..2).find(|side| trial.far_below(*side, progress[*side])) {
            let unit = trial.pair.units[side];
            return self.smaller(trial, now, Why::Lost { unit }, rights, said);
        }
        if trial.with[0].n() < MEASURE {
            self.trial = Some(trial);
            return;
        }
        self.judge(trial, now, rights, said);
    }

    /// Whether a level is good.
    fn judge(&mut self, mut trial: Trial, now: Time, rights: &mut Rights, said: &mut Vec<Negotiation>) {
        let signs = |before: &[Sample; 2]| [0, 1].map(|side| before[side].sign(&trial.with[side]));
        let from_none = signs(&trial.without);
        let from_good = trial.good.map(|good| signs(&good.with));
        let lost = |signs: [Sign; 2]| (0..2).find(|side| signs[*side] == Sign::Less);
        if let Some(side) = lost(from_none).or(from_good.and_then(lost)) {
            let unit = trial.pair.units[side];
            return self.smaller(trial, now, Why::Lost { unit }, rights, said);
        }
        let both = from_none == [Sign::More; 2];
        if both && from_good.is_none_or(|signs| signs.contains(&Sign::More)) {
            self.account(&mut trial);
            // What was measured is known; what a trial might have cost counts all the same.
            for (unit, (_, ns)) in trial.pair.units.into_iter().zip(core::mem::take(&mut trial.unsure)) {
                self.accounts.entry(unit).or_default().risked_ns += ns;
            }
            trial.doubt = Default::default();
            trial.good = Some(Good { level: trial.level, with: trial.with });
            said.push(self.entry(&trial, Move::Good));
            return match trial.next() {
                Some(next) => self.strike(trial, next, now, rights, said),
                None => self.keep(trial, now, said),
            };
        }
        if trial.with[0].n() < MEASURE_MAX {
            self.trial = Some(trial);
            return;
        }
        if trial.good.is_none() && !trial.again && trial.level < BLIND_MAX {
            self.account(&mut trial);
            self.risk(&mut trial);
            said.push(self.entry(&trial, Move::Left { why: Why::NoGain }));
            let next = trial.level * 2;
            return self.strike(trial, next, now, rights, said);
        }
        self.smaller(trial, now, Why::NoGain, rights, said);
    }

    /// A level was not good: back to the one that was, or to half of what was kept; else it is over.
    fn smaller(
        &mut self,
        mut trial: Trial,
        now: Time,
        why: Why,
        rights: &mut Rights,
        said: &mut Vec<Negotiation>,
    ) {
        if let Some(good) = trial.good {
            self.account(&mut trial);
            self.risk(&mut trial);
            said.push(self.entry(&trial, Move::Left { why }));
            trial.ceiling = Some(trial.level);
            let next = trial.next().unwrap_or(good.level);
            return self.strike(trial, next, now, rights, said);
        }
        if trial.again && trial.level / 2 >= FIRST {
            self.account(&mut trial);
            self.risk(&mut trial);
            said.push(self.entry(&trial, Move::Left { why }));
            let next = trial.level / 2;
            return self.strike(trial, next, now, rights, said);
        }
        self.undo(trial, now, why, rights, said);
    }

    /// Another level is in force from now on.
    fn strike(
        &mut self,
        mut trial: Trial,
        level: u64,
        now: Time,
        rights: &mut Rights,
        said: &mut Vec<Negotiation>,
    ) {
        if let Some(deal) = trial.deal.take() {
            rights.end(deal);
        }
        trial.block_ns = 0;
        let pair = trial.pair;
        let has = |unit: UnitId, resource: Resource| {
            let (lent, _) = rights.lent_and_got(unit, resource);
            rights.tickets(unit, resource).saturating_sub(lent)
        };
        let smaller = |resource: Resource| has(pair.units[0], resource).min(has(pair.units[1], resource));
        // A level is in thousandths. What the one gets, the other gives.
        let given = [pair.gets[1], pair.gets[0]]
            .map(|resource| (resource, times(level * 1_000, smaller(resource)).max(1)));
        trial.offers = given.map(|(resource, tickets)| Offer::tickets(resource, tickets));
        trial.parts = [0, 1].map(|side| {
            let (resource, tickets) = given[side];
            part(tickets, has(pair.units[side], resource))
        });
        (trial.level, trial.settle) = (level, SETTLE);
        match rights.strike(now, bids(pair, trial.offers)) {
            Ok(deal) => trial.deal = Some(deal),
            Err(refused) => return self.fail(&trial, now, Why::Refused { refused }, said),
        }
        if let Some(good) = trial.good.filter(|good| good.level == level) {
            trial.with = good.with;
            return self.keep(trial, now, said);
        }
        trial.with = [Sample::default(); 2];
        said.push(self.entry(&trial, Move::Tried));
        self.trial = Some(trial);
    }

    fn keep(&mut self, mut trial: Trial, now: Time, said: &mut Vec<Negotiation>) {
        said.push(self.entry(&trial, Move::Kept));
        trial.check_ns = if trial.again { (trial.check_ns * 2).min(CHECK_MAX_NS) } else { CHECK_NS };
        trial.check_at = now.saturating_add(trial.check_ns);
        trial.with = [Sample::default(); 2];
        self.rests.remove(&trial.pair);
        self.kept.push(trial);
    }

    fn undo(
        &mut self,
        mut trial: Trial,
        now: Time,
        why: Why,
        rights: &mut Rights,
        said: &mut Vec<Negotiation>,
    ) {
        self.account(&mut trial);
        self.risk(&mut trial);
        if let Some(deal) = trial.deal {
            rights.end(deal);
        }
        self.fail(&trial, now, why, said);
    }

    /// A pair rests after a failure.
    fn fail(&mut self, trial: &Trial, now: Time, why: Why, said: &mut Vec<Negotiation>) {
        let rest = self.rests.entry(trial.pair).or_default();
        if !matches!(why, Why::Changed) {
            rest.failures += 1;
        }
        let longer = rest.failures.saturating_sub(1).min(10);
        rest.until = now.saturating_add((REST_NS << longer).min(REST_MAX_NS));
        self.history.clear();
        said.push(self.entry(trial, Move::Undone { why }));
    }

    /// The exchange was not found good: what may have been lost since it was, or began, counts.
    fn risk(&mut self, trial: &mut Trial) {
        let (unsure, doubt) = (core::mem::take(&mut trial.unsure), core::mem::take(&mut trial.doubt));
        let units = trial.pair.units;
        for (unit, (time, ns)) in units.into_iter().zip(unsure).chain(units.into_iter().zip(doubt)) {
            let account = self.accounts.entry(unit).or_default();
            account.spent_ns += time;
            account.risked_ns += ns;
        }
    }

    /// What was measured to have been gained or lost.
    fn account(&mut self, trial: &mut Trial) {
        let time = core::mem::take(&mut trial.block_ns);
        for side in 0..2 {
            if trial.with[side].n() > 0 {
                let account = self.accounts.entry(trial.pair.units[side]).or_default();
                let (with, without) = (trial.with[side].mean(), trial.without[side].mean());
                account.lost_ns += times(without.saturating_sub(with), time);
                account.gained_ns += times(with.saturating_sub(without), time);
            }
        }
    }

    fn entry(&self, trial: &Trial, done: Move) -> Negotiation {
        let side = |at: usize| {
            let unit = trial.pair.units[at];
            let account = self.accounts.get(&unit).copied().unwrap_or_default();
            Side {
                unit,
                gives: trial.offers[at],
                without: trial.without[at].mean(),
                with: (trial.with[at].n() > 0).then(|| trial.with[at].mean()),
                noise: trial.without[at].noise(&trial.with[at]),
                risked_ns: account.risked_ns,
                lost_ns: account.lost_ns,
                gained_ns: account.gained_ns,
            }
        };
        Negotiation {
            trial: trial.number,
            deal: trial.deal,
            level: trial.level,
            done,
            sides: [side(0), side(1)],
        }
    }

    /// What is tried next: an exchange that is due to be tried again, else a new one.
    fn begin(&mut self, now: Time, seen: &Seen, rights: &mut Rights, said: &mut Vec<Negotiation>) {
        if let Some(at) = self.kept.iter().position(|trial| trial.check_at <= now) {
            let mut trial = self.kept.remove(at);
            said.push(self.entry(&trial, Move::Suspended));
            if let Some(deal) = trial.deal.take() {
                rights.end(deal);
            }
            self.account(&mut trial);
            // Whether it was good until now is what is asked.
            let doubt = core::mem::take(&mut trial.unsure);
            self.trial = Some(Trial {
                doubt,
                good: None,
                again: true,
                ceiling: None,
                without: [Sample::default(); 2],
                with: [Sample::default(); 2],
                settle: SETTLE,
                check_at: 0,
                ..trial
            });
            return;
        }
        if self.history.len() < MEASURE as usize {
            return;
        }
        let Some(pair) = self.proposal(now, seen) else { return };
        let without = pair.units.map(|unit| {
            let mut sample = Sample::default();
            self.history.iter().filter_map(|did| did.get(&unit)).for_each(|did| sample.add(did.progress));
            sample
        });
        self.last += 1;
        let trial = Trial {
            number: self.last,
            pair,
            deal: None,
            offers: pair.gets.map(|resource| Offer::tickets(resource, 0)),
            level: 0,
            ceiling: None,
            good: None,
            again: false,
            without,
            with: [Sample::default(); 2],
            settle: 0,
            parts: [0; 2],
            unsure: Default::default(),
            doubt: Default::default(),
            block_ns: 0,
            check_at: 0,
            check_ns: 0,
        };
        self.strike(trial, FIRST, now, rights, said);
    }

    /// The pair whose wants differ most.
    fn proposal(&self, now: Time, seen: &Seen) -> Option<Pair> {
        let mut levels: BTreeMap<Option<UnitId>, Vec<(UnitId, [u64; TRADED.len()])>> = BTreeMap::new();
        for unit in seen.units.iter().filter(|unit| self.may_try(unit, now)) {
            let did: Vec<&Did> = self.history.iter().filter_map(|did| did.get(&unit.unit)).collect();
            if did.len() < MEASURE as usize || did.iter().all(|did| did.progress == 0) {
                continue;
            }
            let mut wants = [0; TRADED.len()];
            for (at, want) in wants.iter_mut().enumerate() {
                *want = did.iter().map(|did| did.wants[at]).sum::<u64>() / did.len() as u64;
            }
            levels.entry(unit.parent).or_default().push((unit.unit, wants));
        }
        let mut best: Option<(u64, Reverse<Pair>)> = None;
        for units in levels.values() {
            for (x, y) in [(0, 1), (0, 2), (1, 2)] {
                if !(seen.held[x] && seen.held[y]) {
                    continue;
                }
                let ones = most(units, x, y);
                let others = most(units, y, x);
                for (one, by) in &ones {
                    for (other, by_other) in &others {
                        let pair = Pair { units: [*one, *other], gets: [TRADED[x], TRADED[y]] };
                        let rests = self.rests.get(&pair).is_some_and(|rest| rest.until > now);
                        let candidate = Some((by + by_other, Reverse(pair)));
                        if !rests && candidate > best {
                            best = candidate;
                        }
                    }
                }
            }
        }
        best.map(|(_, Reverse(pair))| pair)
    }

    fn may_try(&self, unit: &Facts, now: Time) -> bool {
        let account = self.accounts.get(&unit.unit).copied().unwrap_or_default();
        let time = account.since.map_or(0, |since| now.saturating_sub(since));
        unit.negotiates
            && account.spent_ns <= ALLOWANCE_NS + time / 100
            && self.kept.iter().all(|kept| !kept.pair.units.contains(&unit.unit))
    }
}

impl Trial {
    /// The level that is tried after a good one: twice as large, or half-way to one that was not good.
    fn next(&self) -> Option<u64> {
        let good = self.good?.level;
        let next = match self.ceiling {
            Some(_) if self.again => return None,
            Some(ceiling) => good + (ceiling - good) / 2,
            None if self.again => good + FIRST,
            None => good * 2,
        };
        Some(next.min(LARGEST)).filter(|next| *next >= good + FIRST)
    }

    /// So much time passed with the exchange. Who holds a part less, and has so much progress, would have no more than that over
    /// the rest without it, as long as progress is concave. Nor would it have more than `cpus`, in millionths of one.
    fn passed(&mut self, elapsed: Time, progress: [u64; 2], cpus: u64) {
        self.block_ns += elapsed;
        for (side, progress) in progress.into_iter().enumerate() {
            let time = times(self.parts[side], elapsed);
            let would = part(progress, MILLION.saturating_sub(self.parts[side]).max(1));
            self.unsure[side].0 += time;
            let less = times(would.max(self.without[side].mean()), time);
            self.unsure[side].1 += less.min(times(cpus.saturating_sub(progress), elapsed));
        }
    }

    /// Whether a side's progress in a window is so far below what it could at least have that nothing more need be measured.
    fn far_below(&self, side: usize, progress: u64) -> bool {
        let (mean, spread) = (self.without[side].mean(), self.without[side].spread());
        let left = times(mean, MILLION - self.parts[side]);
        progress.saturating_add(3 * spread).saturating_add(mean / 200) < left
    }
}

/// The units that wait more for the one resource than for the other, and want it; those that differ most.
fn most(units: &[(UnitId, [u64; TRADED.len()])], x: usize, y: usize) -> Vec<(UnitId, u64)> {
    let more = |(unit, wants): &(UnitId, [u64; TRADED.len()])| {
        let by = wants[x].checked_sub(wants[y]).filter(|by| *by > 0 && wants[x] >= WANT_MIN)?;
        Some((*unit, by))
    };
    let mut all: Vec<(UnitId, u64)> = units.iter().filter_map(more).collect();
    all.sort_unstable_by_key(|(unit, by)| (Reverse(*by), *unit));
    all.truncate(LOOKED_AT);
    all
}

/// What each unit that negotiates did between two looks, and who was busy at all.
fn did(before: &[Facts], now: &[Facts]) -> (BTreeMap<UnitId, Did>, Vec<UnitId>) {
    let earlier: BTreeMap<UnitId, &Facts> = before.iter().map(|facts| (facts.unit, facts)).collect();
    let (mut all, mut busy) = (BTreeMap::new(), vec![]);
    for facts in now {
        let Some(before) = earlier.get(&facts.unit) else { continue };
        let elapsed = facts.at.saturating_sub(before.at);
        let progress = part(facts.used_ns.saturating_sub(before.used_ns), elapsed);
        let wants = [0, 1, 2]
            .map(|at| part(facts.waited_ns[at].saturating_sub(before.waited_ns[at]), elapsed).min(MILLION));
        if progress + wants.iter().sum::<u64>() >= MILLION / 100 {
            busy.push(facts.unit);
        }
        if facts.negotiates && elapsed > 0 {
            all.insert(facts.unit, Did { progress, wants });
        }
    }
    (all, busy)
}

fn add(samples: &mut [Sample; 2], progress: [u64; 2]) {
    for (sample, progress) in samples.iter_mut().zip(progress) {
        sample.add(progress);
    }
}

fn progress(trial: &Trial, did: &BTreeMap<UnitId, Did>) -> [u64; 2] {
    trial.pair.units.map(|unit| did.get(&unit).map_or(0, |did| did.progress))
}

/// A part of a whole, in millionths; 0 of nothing.
fn part(of: u64, whole: u64) -> u64 {
    let part = (u128::from(of) * u128::from(MILLION)).checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// So many millionths of something.
fn times(millionths: u64, of: u64) -> u64 {
    part_of(of, millionths, MILLION)
}

#[cfg(test)]
mod tests;
