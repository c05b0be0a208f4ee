//! Which processes a kernel that is out of memory is to kill first.
//!
//! Problem: a bound slows a unit that takes memory in no file. On a machine without swap, nothing can be taken from it
//! again. So it fills the memory, if slowly. Then the kernel kills the largest process there is, even if that
//! process's unit is within what it is entitled to.
//!
//! Terms:
//! - A unit *holds* what it uses, without clean and dirty pages of files, which a kernel takes before it kills.
//! - What is *left* is what is divided, less what units hold, and what still fits into swap.
//! - Memory is *short* from when less than the contract's reserve is left until half as much again is left.
//! - Memory is *tight* where the same holds of what is left, less an eighth of the machine. So much may lie on the
//!   lists of idle CPUs, and a kernel kills before it takes that. And a unit may fill the memory between two looks, so
//!   it must be known beforehand.
//!
//! Algorithm:
//! - A unit is *beyond* if it holds more than it is entitled to, and every unit around it does so too, with all that
//!   is in it.
//! - While memory is tight, a unit is exposed that is beyond, or was within the last [`LINGER_NS`]. While memory is
//!   short, units beyond what they may use are reported too.
//! - Processes in no unit may come to hold more, and no unit is to blame for that. So the measure is what a unit would
//!   be entitled to of as much as was divided when it last held no more than its own. At the first look, it is of all
//!   that those processes might leave.
//!
//! Properties (tested):
//! - No unit is exposed while memory is not tight.
//! - A unit is never exposed that held no more than it is entitled to for that long, nor one that lies in such a unit.
//! - What one look orders, a look at the same facts does not order again.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use commonhold_contract::{Contract, Resource, UnitId};

use super::grain::{NEAR_PART, SLACK_PART};
use super::rates;
use crate::plan::{Beyond, MemoryOrder, Reason, Share, Step};
use crate::rights::{Capacity, Entitlement, Rights};
use crate::snapshot::{MemoryFacts, UnitMemory};
use crate::time::{MS, Time};
use crate::tree::{self, lineage};

/// Memory is short where less than this part of the machine is left, however small the contract's reserve.
const RESERVE_PART_MIN: u64 = 64;
/// This part of the machine may be free and not to be had: CPUs keep it on lists of their own since Linux 6.7
/// (`mm/page_alloc.c`, `zone_highsize`).
const LISTS_PART: u64 = 8;
/// For so long a unit goes first that was beyond its entitlement, though it no longer is: what was killed of it leaves
/// its pages on lists too, and a kernel that cannot have them kills again, the largest this time.
const LINGER_NS: Time = 10_000 * MS;

/// What is remembered between looks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct State {
    short: bool,
    tight: bool,
    exposed: BTreeSet<UnitId>,
    /// When those were beyond what they are entitled to last.
    beyond_at: BTreeMap<UnitId, Time>,
    /// The units that may be exposed soon: memory is tight, and they hold nearly what they are entitled to.
    near: BTreeSet<UnitId>,
    /// What was divided when a unit last held no more than it was entitled to: alone, and with all that is in it.
    rightful: BTreeMap<UnitId, Rightful>,
}

/// What a look at memory saw, and what was decided on the units' shares.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) now: Time,
    pub(super) contract: &'a Contract,
    pub(super) facts: &'a MemoryFacts,
    /// One per unit.
    pub(super) shares: &'a [Share],
    /// What was divided, in bytes.
    pub(super) divided: u64,
    pub(super) rights: &'a Rights,
}

/// Two sizes of what was divided. Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Rightful {
    alone: u64,
    within: u64,
}

/// What units are entitled to of several sizes of what is divided, each reckoned once. Cost: as of all values at once, for each size;
/// units become larger than their own at a few moments.
struct Entitlements<'a> {
    rights: &'a Rights,
    /// What is divided now: no question is about less.
    least: u64,
    at: BTreeMap<u64, Entitlement>,
}

impl Entitlements<'_> {
    fn of(&mut self, divided: u64) -> &Entitlement {
        let divided = divided.max(self.least);
        let reckoned = || self.rights.to_part(Resource::Memory, Capacity::Known(divided)).all();
        self.at.entry(divided).or_insert_with(reckoned)
    }
}

/// What is in memory and cannot be dropped or written to a file.
fn holds(unit: UnitMemory) -> u64 {
    unit.used.min(unit.anonymous.saturating_add(unit.kernel).saturating_add(unit.packed))
}

impl State {
    /// Forgets the units that the contract has no more.
    pub(super) fn forget_gone(&mut self, contract: &Contract) {
        self.exposed.retain(|unit| contract.has(*unit));
        self.near.retain(|unit| contract.has(*unit));
        self.beyond_at.retain(|unit, _| contract.has(*unit));
        self.rightful.retain(|unit, _| contract.has(*unit));
    }

    /// Exposes the units that are beyond what they are entitled to, or were lately, and no others. If memory is short,
    /// returns those of the exposed that are beyond what their shares allow, too.
    pub(super) fn step(
        &mut self,
        Look { now, contract, facts, shares, divided, rights }: Look<'_>,
        steps: &mut Vec<Step<MemoryOrder>>,
    ) -> Vec<Beyond> {
        let held: Vec<u64> =
            contract.ids().map(|id| facts.units.get(id.index()).copied().map_or(0, holds)).collect();
        let of_units: u64 = contract.held().map(|id| held[id.index()]).sum();
        let common = facts.kernel.saturating_add(facts.shared).saturating_add(of_units);
        let left = facts.total.saturating_sub(common).saturating_add(rates::freed(facts.swap_free, facts));
        let reserve = contract.machine.reserve.of(facts.total).max(facts.total / RESERVE_PART_MIN);
        let less_than_reserve = |left: u64, before: bool| {
            left < if before { reserve.saturating_add(reserve / 2) } else { reserve }
        };
        self.short = less_than_reserve(left, self.short);
        self.tight = less_than_reserve(left.saturating_sub(facts.total / LISTS_PART), self.tight);

        let whole = facts.total.saturating_sub(facts.kernel).max(divided);
        let mut entitlements = Entitlements { rights, least: divided, at: BTreeMap::new() };
        let own = entitlements.of(divided).clone();
        let held_within = tree::sums(contract, |unit| held[unit.index()]);
        for id in contract.held() {
            let rightful = self.rightful.entry(id).or_insert(Rightful { alone: whole, within: whole });
            if held[id.index()] <= own.own(id) {
                rightful.alone = divided;
            }
            if held_within[id.index()] <= own.value(id) {
                rightful.within = divided;
            }
        }
        let slack = facts.total / SLACK_PART;
        let mut is_beyond = |id: UnitId| {
            let slack = if self.exposed.contains(&id) { 0 } else { slack };
            let rightful = |id: UnitId| self.rightful.get(&id).copied().unwrap_or_default();
            let alone = entitlements.of(rightful(id).alone).own(id);
            let mut around = lineage(contract, id);
            held[id.index()] > alone.saturating_add(slack)
                && around.all(|id| {
                    let within = entitlements.of(rightful(id).within).value(id);
                    held_within[id.index()] > within.saturating_add(slack)
                })
        };
        let beyond: Vec<UnitId> = contract.held().filter(|id| self.tight && is_beyond(*id)).collect();
        self.beyond_at.retain(|_, at| self.tight && now.saturating_sub(*at) < LINGER_NS);
        self.beyond_at.extend(beyond.into_iter().map(|id| (id, now)));
        let exposed: BTreeSet<UnitId> = self.beyond_at.keys().copied().collect();
        let nearly = |id: &UnitId| held[id.index()] > own.own(*id) - own.own(*id) / NEAR_PART;
        self.near = contract.held().filter(|id| self.tight && !exposed.contains(id) && nearly(id)).collect();
        self.become_exposed(exposed, Reason::Enough, steps, |id| {
            held[id.index()].saturating_sub(own.own(id))
        });
        let beyond = |unit: &UnitId| {
            let bytes = held[unit.index()].saturating_sub(shares[unit.index()].allowed);
            (bytes > slack).then_some(Beyond { unit: *unit, bytes })
        };
        self.exposed.iter().filter(|_| self.short).filter_map(beyond).collect()
    }

    /// Whether it is to be seen at once if this unit meets its bound, since the kernel may kill before the next look.
    pub(super) fn is_near(&self, unit: UnitId) -> bool {
        self.near.contains(&unit)
    }

    /// No unit is exposed any more.
    pub(super) fn end(&mut self, reason: Reason, steps: &mut Vec<Step<MemoryOrder>>) {
        self.become_exposed(BTreeSet::new(), reason, steps, |_| 0);
        (self.short, self.tight) = (false, false);
        self.beyond_at.clear();
        self.near.clear();
    }

    fn become_exposed(
        &mut self,
        exposed: BTreeSet<UnitId>,
        otherwise: Reason,
        steps: &mut Vec<Step<MemoryOrder>>,
        bytes: impl Fn(UnitId) -> u64,
    ) {
        let order =
            |unit: UnitId, exposed, reason| Step { action: MemoryOrder::Expose { unit, exposed }, reason };
        let gone = self.exposed.difference(&exposed).map(|unit| order(*unit, false, otherwise));
        let new = exposed.difference(&self.exposed);
        let new = new.map(|unit| order(*unit, true, Reason::Beyond { bytes: bytes(*unit) }));
        steps.extend(gone.chain(new));
        self.exposed = exposed;
    }
}
