//! Units held in foreign groups: the control groups of other programs in which their processes are.
//!
//! Problem. A service manager gives each user, session and service a control group, and loses track of processes that are moved
//! elsewhere. So the processes stay, and their groups are restricted instead. One unit may have several: a unit of two users
//! has both users' slices. An order for the unit must hold for the total of its groups.
//!
//! Terms. A *foreign group* of a unit is a control group of another program in which all processes belong to the unit or to
//! units within it. A unit's *holders* are its foreign groups and its own control group. A holder's *part* is what an order of
//! the unit grants to that holder.
//!
//! Algorithm, choice of groups ([`find`]): a user's slice; else a unit's slice, which holds the scopes made for its processes;
//! else the outermost service or scope; else the group itself. If a group has processes of several units, its children are
//! examined instead. A group that cannot be divided is held for the innermost unit that encloses all of them, if there is one.
//! A process assigned by a rule of its own (`exec`, `pid`, `command`) is ignored beside others: it is moved to a scope in its
//! unit's slice.
//!
//! Algorithm, parts ([`spread`]): each holder gets what it uses, and the rest of the unit's amount is divided evenly. If all
//! together use more than the amount, parts are in proportion to use. For memory, a foreign group counts as using at least a
//! sixteenth of an even part, and so does an own group that uses any. A holder never gets more than its manager's limit; the
//! others get the remainder. So parts follow use, and sum to the unit's amount.
//!
//! - Memory: bounds and protection of the unit's own processes, and reclaim.
//! - CPUs: the unit's CPU set, intersected with what the manager allows. Weights and caps follow CPU time. Weights average the
//!   kernel's default, so that processes in no unit keep the share that the kernel would give them beside these groups. A
//!   scheduler that decides at every switch knows the foreign groups: CPUs then have no parts, and earlier sets and caps are
//!   lifted.
//! - Disks: rates, following transfers.
//!
//! Properties (tested): parts sum to at most the unit's amount, and to all of it unless a manager's limit prevents that.
//! Hysteresis: a part is ordered again only when it changes by more than a sixteenth, or when parts would exceed the amount.
//!
//! Limits: weights are exact only among groups with the same parent. A capped unit with foreign groups inside another unit's
//! group is capped in each separately.

mod groups;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Contract, UnitId};
use commonhold_machine::CpuSet;

use crate::input::Input;
use crate::plan::{CpuOrder, DiskOrder, ForeignGroup, MemoryOrder, PartOrder, Plan, Reason, Step};
use crate::snapshot::{DiskFacts, GroupBounds, GroupFacts, GroupId, MemoryFacts};
use crate::time::Time;
use crate::tree::lineage;

pub use groups::{Inhabited, find, held_in, user_of};

/// Hysteresis: a part is ordered again when it changes by more than one in this many.
const CHANGE_PART: u64 = 16;

/// The largest page size of any kernel, in bytes.
const PAGE_MAX: u64 = 1 << 16;

/// The highest weight that a kernel accepts, and the default.
const WEIGHT_MAX: u32 = 10_000;
const WEIGHT_DEFAULT: u32 = 100;

/// Divides `total` according to use, up to each holder's cap. What all caps exclude is not divided.
pub fn spread(total: u64, uses: &[u64], caps: &[u64]) -> Vec<u64> {
    let capped: Vec<u64> = uses.iter().zip(caps).map(|(used, cap)| *used.min(cap)).collect();
    let sum: u64 = capped.iter().fold(0, |sum, used| sum.saturating_add(*used));
    if sum > total {
        return crate::share::split(total, &capped);
    }
    let rooms: Vec<u64> = caps.iter().zip(&capped).map(|(cap, used)| cap - used).collect();
    let (more, _) = crate::share::split_capped(total - sum, &vec![1; uses.len()], &rooms);
    capped.iter().zip(more).map(|(used, more)| used + more).collect()
}

/// [`spread`] for a unit's own group, which comes first, and foreign groups. An own group without use is probably empty: it
/// gets only a small part of the rest.
fn spread_with_own(total: u64, uses: &[u64], caps: &[u64]) -> Vec<u64> {
    let mut caps = caps.to_vec();
    if uses[0] == 0 && uses.len() > 1 {
        caps[0] = caps[0].min(total / CHANGE_PART);
    }
    spread(total, uses, &caps)
}

/// The minimum use assumed for each holder when memory bounds are spread. Otherwise a new group could not start, and a small
/// one not grow, while others use the unit's whole amount. An own group without use is probably empty, and needs nothing.
fn with_least(total: u64, uses: &[u64]) -> Vec<u64> {
    let least = total / CHANGE_PART / (uses.len() as u64).max(1);
    let taken = |(nth, used): (usize, &u64)| if nth == 0 && *used == 0 { 0 } else { (*used).max(least) };
    uses.iter().enumerate().map(taken).collect()
}

/// Rounds parts of memory down to whole pages, of 64 KiB at most, as a kernel does.
fn whole_pages(parts: Vec<u64>) -> Vec<u64> {
    parts.into_iter().map(|bytes| bytes - bytes % PAGE_MAX).collect()
}

/// The orders in force for a unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct InForce {
    cpus: Runs,
    cap: Option<u64>,
    min: u64,
    low: u64,
    own: u64,
    allowed: Option<u64>,
    rates: BTreeMap<String, Rates>,
}

/// On which CPUs a unit's processes run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Runs {
    /// On the enclosing unit's.
    #[default]
    AsAround,
    Anywhere,
    On(CpuSet),
}

/// Read and write rates, in bytes per second.
type Rates = (Option<u64>, Option<u64>);

/// The parts last ordered for a holder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Ordered {
    cpus: Option<CpuSet>,
    weight: Option<u32>,
    cap: Option<u64>,
    kept: Option<(u64, u64)>,
    allowed: Option<u64>,
    rates: BTreeMap<String, Rates>,
}

impl Ordered {
    /// Forgets parts that the manager has overwritten since; the others are still in force.
    fn forget(&mut self, before: &GroupBounds, now: &GroupBounds) {
        self.cpus = self.cpus.take().filter(|_| before.cpus == now.cpus);
        self.weight = self.weight.filter(|_| before.weight == now.weight);
        self.cap = self.cap.filter(|_| before.cap == now.cap);
        self.kept = self.kept.filter(|_| before.kept == now.kept);
        self.allowed = self.allowed.filter(|_| before.memory == now.memory);
        if before.rates != now.rates {
            self.rates.clear();
        }
    }
}

/// One of a unit's holders: `None` is its own group.
type Holder = (UnitId, Option<GroupId>);

/// A holder's cumulative use at a sample.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Usage {
    at: Time,
    cpu_ns: u64,
    bytes: BTreeMap<String, (u64, u64)>,
}

/// Foreign groups, orders in force and measured use, carried from step to step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupParts {
    /// The current foreign groups, and their managers' settings.
    known: Vec<(GroupId, UnitId, GroupBounds)>,
    units: BTreeMap<UnitId, InForce>,
    ordered: BTreeMap<Holder, Ordered>,
    samples: BTreeMap<Holder, Usage>,
    /// CPU time and disk transfers per second.
    rates: BTreeMap<Holder, UsageRate>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct UsageRate {
    cpu: u64,
    disks: BTreeMap<String, (u64, u64)>,
}

/// Spreads the orders in force for units, from this plan and earlier ones, over the units' holders.
///
/// A backend first carries out the units' orders on their own groups, so a unit's own group needs its part again after each.
pub(crate) fn step(state: &mut GroupParts, now: Time, input: Input<'_>, plan: &mut Plan) {
    if !input.means.foreign_groups {
        *state = GroupParts::default();
        plan.decisions.foreign_groups = Some(Vec::new());
        return;
    }
    state.collect_orders(input, plan);
    let groups = &input.snapshot.foreign_groups;
    state.update_groups(groups, plan);
    if groups.is_empty() && state.ordered.is_empty() {
        return;
    }
    let mut orders = Vec::new();
    let held = Holders::new(input, groups);
    let present: BTreeSet<Holder> = held.holders().collect();
    state.samples.retain(|holder, _| present.contains(holder));
    state.measure(now, &held, input);
    if held.memory.is_some() {
        state.memory(&held, plan, &mut orders);
    }
    match input.means.switches {
        true => state.lift_cpus(&present, &mut orders),
        false => state.cpus(&held, input, plan, &mut orders),
    }
    state.disks(&held, &mut orders);
    state.give_back(input.contract, &present, &mut orders);
    plan.orders.parts = orders;
}

/// The holders of all units.
struct Holders<'a> {
    contract: &'a Contract,
    groups: &'a [GroupFacts],
    memory: Option<&'a MemoryFacts>,
    /// The foreign groups of each unit's own processes, by index.
    groups_of: BTreeMap<UnitId, Vec<usize>>,
}

impl<'a> Holders<'a> {
    fn new(input: Input<'a>, groups: &'a [GroupFacts]) -> Holders<'a> {
        let mut groups_of: BTreeMap<UnitId, Vec<usize>> = BTreeMap::new();
        for (at, group) in groups.iter().enumerate().filter(|(_, group)| input.contract.has(group.unit)) {
            groups_of.entry(group.unit).or_default().push(at);
        }
        Holders { contract: input.contract, groups, memory: input.snapshot.memory.as_ref(), groups_of }
    }

    /// All holders: the foreign groups, and the own groups of all units that enclose one.
    fn holders(&self) -> impl Iterator<Item = Holder> + '_ {
        let own =
            self.groups_of.keys().flat_map(|unit| lineage(self.contract, *unit)).map(|unit| (unit, None));
        own.chain(
            self.groups_of.values().flatten().map(|at| (self.groups[*at].unit, Some(self.groups[*at].id))),
        )
    }

    /// The foreign groups of a unit and of its sub-units.
    fn within(&self, unit: UnitId) -> Vec<&'a GroupFacts> {
        let is_in = |group: &&GroupFacts| {
            self.contract.has(group.unit) && lineage(self.contract, group.unit).any(|around| around == unit)
        };
        self.groups.iter().filter(is_in).collect()
    }

    fn group(&self, (_, at): Holder) -> Option<&'a GroupFacts> {
        self.groups.iter().find(|group| Some(group.id) == at)
    }

    fn directly(&self, unit: UnitId) -> Vec<&'a GroupFacts> {
        self.groups_of.get(&unit).into_iter().flatten().map(|at| &self.groups[*at]).collect()
    }

    /// Memory charged to a unit's own processes in its own group; 0 if memory was not sampled.
    fn own_memory(&self, unit: UnitId) -> u64 {
        let used = self.memory.and_then(|memory| memory.units.get(unit.index())).map_or(0, |unit| unit.used);
        used.saturating_sub(self.directly(unit).iter().map(|group| group.memory).sum())
    }

    /// All units that enclose a foreign group, innermost first.
    fn units(&self) -> Vec<UnitId> {
        let all: BTreeSet<UnitId> =
            self.groups_of.keys().flat_map(|unit| lineage(self.contract, *unit)).collect();
        self.contract.held().rev().filter(|unit| all.contains(unit)).collect()
    }
}

/// Whether a part has changed enough to be ordered again.
fn differs(before: Option<u64>, now: Option<u64>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => now.abs_diff(before) > before.max(now) / CHANGE_PART,
        (before, now) => before != now,
    }
}

/// Whether parts must be ordered again: one has changed enough, or the old ones exceed the new total.
fn differ(
    before: impl Iterator<Item = Option<u64>> + Clone,
    now: impl Iterator<Item = Option<u64>> + Clone,
) -> bool {
    let sum = |parts: &mut dyn Iterator<Item = Option<u64>>| parts.flatten().fold(0, u64::saturating_add);
    let too_much = sum(&mut before.clone()) > sum(&mut now.clone());
    too_much || before.zip(now).any(|(before, now)| differs(before, now))
}

impl GroupParts {
    /// Whether nothing is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        *self == GroupParts::default()
    }

    /// Updates the list of foreign groups. If a manager changed a setting, the affected parts are ordered again.
    fn update_groups(&mut self, groups: &[GroupFacts], plan: &mut Plan) {
        let is_known = |(known, facts): (&(GroupId, UnitId, GroupBounds), &GroupFacts)| {
            (known.0, known.1, &known.2) == (facts.id, facts.unit, &facts.most)
        };
        if self.known.len() != groups.len() || !self.known.iter().zip(groups).all(is_known) {
            let decided = |facts: &GroupFacts| ForeignGroup {
                id: facts.id,
                unit: facts.unit,
                path: facts.path.clone(),
                most: facts.most.clone(),
            };
            plan.decisions.foreign_groups = Some(groups.iter().map(decided).collect());
        }
        for (group, unit, most) in &self.known {
            let now = groups.iter().find(|facts| facts.id == *group);
            if let (Some(facts), Some(ordered)) = (now, self.ordered.get_mut(&(*unit, Some(*group)))) {
                ordered.forget(most, &facts.most);
            }
        }
        self.known = groups.iter().map(|facts| (facts.id, facts.unit, facts.most.clone())).collect();
    }

    /// Collects the orders in force for units.
    fn collect_orders(&mut self, input: Input<'_>, plan: &Plan) {
        self.units.retain(|unit, _| input.contract.has(*unit));
        let ordered = &mut self.ordered;
        let mut reset = |unit: UnitId, what: fn(&mut Ordered)| {
            ordered.entry((unit, None)).and_modify(what);
        };
        for step in &plan.orders.cpu {
            if let CpuOrder::Cap { unit, .. } = step.action {
                reset(unit, |ordered| ordered.cap = None);
            }
        }
        for step in &plan.orders.memory {
            match step.action {
                MemoryOrder::Guarantee { unit, .. } => reset(unit, |ordered| ordered.kept = None),
                MemoryOrder::Allow { unit, .. } => reset(unit, |ordered| ordered.allowed = None),
                MemoryOrder::Reclaim { .. } | MemoryOrder::Expose { .. } => {}
            }
        }
        for step in &plan.orders.disk {
            if let DiskOrder::Cap { unit, disk, .. } = &step.action {
                self.ordered.entry((*unit, None)).and_modify(|ordered| {
                    ordered.rates.remove(disk);
                });
            }
        }
        for step in &plan.orders.cpu {
            match &step.action {
                CpuOrder::Confine { unit, cpus } => {
                    let runs = cpus.clone().map_or(Runs::Anywhere, Runs::On);
                    self.units.entry(*unit).or_default().cpus = runs;
                }
                CpuOrder::Cap { unit, micro_cpus } => self.units.entry(*unit).or_default().cap = *micro_cpus,
                CpuOrder::Weigh { .. } | CpuOrder::Credit { .. } | CpuOrder::Gate { .. } => {}
            }
        }
        for step in &plan.orders.memory {
            match step.action {
                MemoryOrder::Guarantee { unit, min, low, own } => {
                    let unit = self.units.entry(unit).or_default();
                    (unit.min, unit.low, unit.own) = (min, low, own);
                }
                MemoryOrder::Allow { unit, bytes } => self.units.entry(unit).or_default().allowed = bytes,
                MemoryOrder::Reclaim { .. } | MemoryOrder::Expose { .. } => {}
            }
        }
        for unit in self.units.values_mut() {
            unit.rates.retain(|disk, _| plan.decisions.disk.disks.contains(disk));
        }
        for step in &plan.orders.disk {
            if let DiskOrder::Cap { unit, disk, read, write } = &step.action {
                self.units.entry(*unit).or_default().rates.insert(disk.clone(), (*read, *write));
            }
        }
    }

    fn in_force(&self, unit: UnitId) -> InForce {
        self.units.get(&unit).cloned().unwrap_or_default()
    }

    /// Measures each holder's use per second since its previous sample.
    fn measure(&mut self, now: Time, held: &Holders<'_>, input: Input<'_>) {
        let mut seen: BTreeMap<Holder, Usage> = BTreeMap::new();
        for group in held.groups {
            let bytes =
                group.disks.iter().map(|(disk, used)| (disk.clone(), (used.read_bytes, used.written_bytes)));
            let sample = Usage { at: now, cpu_ns: group.used_ns, bytes: bytes.collect() };
            seen.insert((group.unit, Some(group.id)), sample);
        }
        for unit in held.units() {
            let direct = held.directly(unit);
            let in_groups: u64 = direct.iter().map(|group| group.used_ns).sum();
            let cpu_ns = input.snapshot.unit(unit).used_ns.saturating_sub(in_groups);
            let own = |disk: &DiskFacts| {
                let transfers = |group: &&GroupFacts| {
                    let found = group.disks.iter().find(|(name, _)| *name == disk.name);
                    found.map_or((0, 0), |(_, used)| (used.read_bytes, used.written_bytes))
                };
                let (read, written) = direct
                    .iter()
                    .map(transfers)
                    .fold((0, 0), |sum: (u64, u64), one| (sum.0 + one.0, sum.1 + one.1));
                let used = disk.unit(unit);
                (
                    disk.name.clone(),
                    (used.read_bytes.saturating_sub(read), used.written_bytes.saturating_sub(written)),
                )
            };
            let bytes = input.snapshot.disks.iter().map(own).collect();
            seen.insert((unit, None), Usage { at: now, cpu_ns, bytes });
        }
        for (holder, sample) in seen {
            let Some(before) = self.samples.get(&holder) else {
                self.samples.insert(holder, sample);
                continue;
            };
            let span = u128::from(sample.at.saturating_sub(before.at));
            if span < u128::from(MEASURED_NS) {
                continue;
            }
            let rate = |now: u64, before: u64| {
                u64::try_from(u128::from(now.saturating_sub(before)) * 1_000_000_000 / span)
                    .unwrap_or(u64::MAX)
            };
            let disks = sample.bytes.iter().map(|(disk, (read, written))| {
                let (read_before, written_before) =
                    before.bytes.get(disk).copied().unwrap_or((*read, *written));
                (disk.clone(), (rate(*read, read_before), rate(*written, written_before)))
            });
            let used = UsageRate { cpu: rate(sample.cpu_ns, before.cpu_ns), disks: disks.collect() };
            self.rates.insert(holder, used);
            self.samples.insert(holder, sample);
        }
        let samples = &self.samples;
        self.rates.retain(|holder, _| samples.contains_key(holder));
    }

    /// Bounds, protection, and reclaim.
    fn memory(&mut self, held: &Holders<'_>, plan: &Plan, orders: &mut Vec<Step<PartOrder>>) {
        let taken = plan.orders.memory.iter().filter_map(|step| match step.action {
            MemoryOrder::Reclaim { unit, bytes, files } => Some((unit, bytes, files, step.reason)),
            _ => None,
        });
        for (unit, bytes, files, reason) in taken {
            let (holders, uses, _) = memory_holders(held, unit);
            if holders.len() > 1 {
                for (at, bytes) in
                    holders.iter().zip(crate::share::split(bytes, &uses)).filter(|(_, bytes)| *bytes > 0)
                {
                    orders.push(Step { action: PartOrder::Reclaim { unit, at: *at, bytes, files }, reason });
                }
            }
        }
        // Innermost first: what protects a unit's own group must include what protects those inside it.
        let mut kept_in: BTreeMap<UnitId, (u64, u64)> = BTreeMap::new();
        for unit in held.units() {
            let force = self.in_force(unit);
            let (holders, uses, caps) = memory_holders(held, unit);
            let inside = held.contract.held().filter(|sub| held.contract.unit(*sub).parent == Some(unit));
            let (mut min_inside, mut around) = (0u64, (0u64, 0u64));
            for sub in inside {
                let of_sub = self.in_force(sub);
                min_inside = min_inside.saturating_add(of_sub.min);
                // A sub-unit without a foreign group is protected by its own group alone.
                let (min, low) = kept_in.get(&sub).copied().unwrap_or((of_sub.min, of_sub.low));
                around = (around.0.saturating_add(min), around.1.saturating_add(low));
            }
            let spread = |bytes: u64, caps: &[u64]| whole_pages(spread_with_own(bytes, &uses, caps));
            // Where a manager protects memory itself, nothing is added.
            let mut keeps = caps.clone();
            for (cap, group) in keeps[1..].iter_mut().zip(held.directly(unit)) {
                *cap = if group.most.kept { 0 } else { *cap };
            }
            let min = spread(force.min.saturating_sub(min_inside), &keeps);
            let low = spread(force.own, &keeps);
            let bounds = force
                .allowed
                .map(|bytes| whole_pages(spread_with_own(bytes, &with_least(bytes, &uses), &caps)));
            let own: Vec<u64> = low.iter().zip(&min).map(|(low, min)| *low.max(min)).collect();
            let mut kept: Vec<(u64, u64)> = min.iter().zip(&own).map(|(min, own)| (*min, *own)).collect();
            kept[0] = (kept[0].0.saturating_add(around.0), kept[0].1.saturating_add(around.1));
            kept_in.insert(unit, kept[0]);
            let before: Vec<(u64, u64)> =
                self.ordered(unit, &holders, |ordered| ordered.kept.unwrap_or_default());
            let fresh = self.ordered(unit, &holders, |ordered| ordered.kept.is_none())[0];
            let min_differs =
                differ(before.iter().map(|kept| Some(kept.0)), kept.iter().map(|kept| Some(kept.0)));
            let low_differs =
                differ(before.iter().map(|kept| Some(kept.1)), kept.iter().map(|kept| Some(kept.1)));
            if fresh || min_differs || low_differs {
                for (nth, at) in
                    holders.iter().enumerate().filter(|(nth, _)| kept[*nth] != before[*nth] || *nth == 0)
                {
                    self.ordered.entry((unit, *at)).or_default().kept = Some(kept[nth]);
                    let action = PartOrder::Guarantee {
                        unit,
                        at: *at,
                        min: kept[nth].0,
                        low: kept[nth].1,
                        own: own[nth],
                    };
                    orders.push(Step { action, reason: Reason::FollowsUse });
                }
            }
            let bounds: Vec<Option<u64>> = holders
                .iter()
                .enumerate()
                .map(|(nth, _)| bounds.as_ref().map(|bounds| bounds[nth]))
                .collect();
            let before = self.ordered(unit, &holders, |ordered| ordered.allowed);
            if differ(before.iter().copied(), bounds.iter().copied()) {
                for (nth, at) in holders.iter().enumerate().filter(|(nth, _)| bounds[*nth] != before[*nth]) {
                    self.ordered.entry((unit, *at)).or_default().allowed = bounds[nth];
                    let action = PartOrder::Allow { unit, at: *at, bytes: bounds[nth] };
                    orders.push(Step { action, reason: Reason::FollowsUse });
                }
            }
        }
    }

    fn ordered<T>(&self, unit: UnitId, holders: &[Option<GroupId>], what: impl Fn(&Ordered) -> T) -> Vec<T> {
        let none = Ordered::default();
        holders.iter().map(|at| what(self.ordered.get(&(unit, *at)).unwrap_or(&none))).collect()
    }

    /// A unit that left its foreign groups gets its full orders back in its own group. The backend resets a group that is no
    /// longer held.
    fn give_back(
        &mut self,
        contract: &Contract,
        present: &BTreeSet<Holder>,
        orders: &mut Vec<Step<PartOrder>>,
    ) {
        let gone: Vec<Holder> =
            self.ordered.keys().filter(|holder| !present.contains(holder)).copied().collect();
        for (unit, at) in gone {
            let Some(ordered) =
                self.ordered.remove(&(unit, at)).filter(|_| at.is_none() && contract.has(unit))
            else {
                continue;
            };
            let force = self.in_force(unit);
            let mut order = |action| orders.push(Step { action, reason: Reason::FollowsUse });
            if ordered.kept.is_some() {
                order(PartOrder::Guarantee { unit, at, min: force.min, low: force.low, own: force.own });
            }
            if ordered.allowed.is_some() {
                order(PartOrder::Allow { unit, at, bytes: force.allowed });
            }
            if ordered.cap.is_some() {
                order(PartOrder::Cap { unit, at, micro_cpus: force.cap });
            }
            for (disk, (read, write)) in
                force.rates.into_iter().filter(|(disk, _)| ordered.rates.contains_key(disk))
            {
                order(PartOrder::Transfer { unit, at, disk, read, write });
            }
        }
    }

    /// A scheduler knows the foreign groups. Sets and caps from before would restrict it, and are lifted; weights do not affect
    /// it, and may stay.
    fn lift_cpus(&mut self, present: &BTreeSet<Holder>, orders: &mut Vec<Step<PartOrder>>) {
        for (holder, ordered) in &mut self.ordered {
            let (unit, at) = *holder;
            let (cpus, cap) = (ordered.cpus.take(), ordered.cap.take());
            ordered.weight = None;
            // Unit orders reset the own group, and the backend resets a group that is no longer held.
            let Some(group) = at.filter(|_| present.contains(holder)) else { continue };
            let mut order = |action| orders.push(Step { action, reason: Reason::FollowsUse });
            if cpus.is_some() {
                order(PartOrder::Confine { unit, at: group, cpus: None });
            }
            if cap.is_some() {
                order(PartOrder::Cap { unit, at, micro_cpus: None });
            }
        }
    }

    /// CPU sets, weights and caps, where no scheduler knows the foreign groups.
    fn cpus(&mut self, held: &Holders<'_>, input: Input<'_>, plan: &Plan, orders: &mut Vec<Step<PartOrder>>) {
        let mut parts_of = BTreeMap::new();
        for (unit, groups) in &held.groups_of {
            let entitled = plan.decisions.cpu.entitled.get(unit.index()).copied().unwrap_or(0);
            let mut holders = vec![None];
            holders.extend(groups.iter().map(|at| Some(held.groups[*at].id)));
            let uses: Vec<u64> = holders.iter().map(|at| self.cpu_rate((*unit, *at)) / 1_000).collect();
            let parts = spread_with_own(entitled, &uses, &vec![u64::MAX; uses.len()]);
            let runs = lineage(held.contract, *unit).map(|unit| self.in_force(unit).cpus);
            let cpus = match runs.into_iter().find(|runs| *runs != Runs::AsAround) {
                Some(Runs::On(cpus)) => Some(cpus),
                Some(Runs::Anywhere | Runs::AsAround) | None => None,
            };
            for (at, part) in groups.iter().zip(&parts[1..]) {
                let facts = &held.groups[*at];
                let ordered = self.ordered.entry((*unit, Some(facts.id))).or_default();
                // If the manager allows none of the unit's CPUs, its setting stays.
                let wanted = match (&cpus, &facts.most.cpus) {
                    (Some(cpus), Some(most)) => Some(cpus.intersection(most)).filter(|both| !both.is_empty()),
                    (cpus, _) => cpus.clone(),
                };
                if input.means.cpu_sets && ordered.cpus != wanted {
                    ordered.cpus.clone_from(&wanted);
                    let action = PartOrder::Confine { unit: *unit, at: facts.id, cpus: wanted };
                    orders.push(Step { action, reason: Reason::FollowsUse });
                }
                if input.means.weights && !facts.most.weight {
                    parts_of.insert(*at, *part);
                }
            }
        }
        for (at, weight) in weights(held.groups, &parts_of) {
            let GroupFacts { unit, id, .. } = held.groups[at];
            let ordered = self.ordered.entry((unit, Some(id))).or_default();
            if differs(ordered.weight.map(u64::from), Some(u64::from(weight))) {
                ordered.weight = Some(weight);
                let action = PartOrder::Weigh { unit, at: id, weight };
                orders.push(Step { action, reason: Reason::FollowsUse });
            }
        }
        if input.means.caps {
            self.caps(held, orders);
        }
    }

    fn cpu_rate(&self, holder: Holder) -> u64 {
        self.rates.get(&holder).map_or(0, |used| used.cpu)
    }

    /// Caps: a holder gets the lowest part of any capped unit that encloses it.
    fn caps(&mut self, held: &Holders<'_>, orders: &mut Vec<Step<PartOrder>>) {
        let mut parts: BTreeMap<Holder, u64> = BTreeMap::new();
        for unit in held.units() {
            let Some(cap) = self.in_force(unit).cap else { continue };
            let within = held.within(unit);
            let mut holders = vec![(unit, None)];
            holders.extend(within.iter().map(|group| (group.unit, Some(group.id))));
            let own: u64 = held
                .contract
                .held()
                .filter(|sub| lineage(held.contract, *sub).any(|around| around == unit))
                .map(|sub| self.cpu_rate((sub, None)))
                .sum();
            let uses = holders
                .iter()
                .map(|holder| if holder.1.is_none() { own } else { self.cpu_rate(*holder) } / 1_000);
            let uses: Vec<u64> = uses.collect();
            for (holder, part) in
                holders.into_iter().zip(spread_with_own(cap, &uses, &vec![u64::MAX; uses.len()]))
            {
                let lowest = parts.entry(holder).or_insert(part);
                *lowest = part.min(*lowest);
            }
        }
        let is_free = |holder: &Holder| held.group(*holder).is_none_or(|group| !group.most.cap);
        for holder in held.holders().filter(is_free) {
            let part = parts.get(&holder).copied();
            let ordered = self.ordered.entry(holder).or_default();
            if differs(ordered.cap, part) {
                ordered.cap = part;
                let action = PartOrder::Cap { unit: holder.0, at: holder.1, micro_cpus: part };
                orders.push(Step { action, reason: Reason::FollowsUse });
            }
        }
    }

    /// Rates: a holder gets the lowest part of any limited unit that encloses it.
    fn disks(&mut self, held: &Holders<'_>, orders: &mut Vec<Step<PartOrder>>) {
        let mut parts: BTreeMap<(Holder, String), Rates> = BTreeMap::new();
        for unit in held.units() {
            for (disk, (read, write)) in self.in_force(unit).rates {
                let within = held.within(unit);
                let mut holders = vec![(unit, None)];
                holders.extend(within.iter().map(|group| (group.unit, Some(group.id))));
                let rate = |holder: &Holder| {
                    let used = self.rates.get(holder).and_then(|used| used.disks.get(&disk));
                    used.copied().unwrap_or_default()
                };
                let none = vec![u64::MAX; holders.len()];
                let reads: Vec<u64> = holders.iter().map(|holder| rate(holder).0).collect();
                let writes: Vec<u64> = holders.iter().map(|holder| rate(holder).1).collect();
                let reads = read.map(|rate| spread_with_own(rate, &reads, &none));
                let writes = write.map(|rate| spread_with_own(rate, &writes, &none));
                for (nth, holder) in holders.into_iter().enumerate() {
                    let lower = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
                    let part = parts.entry((holder, disk.clone())).or_default();
                    part.0 = lower(part.0, reads.as_ref().map(|reads| reads[nth].max(1)));
                    part.1 = lower(part.1, writes.as_ref().map(|writes| writes[nth].max(1)));
                }
            }
        }
        let before: Vec<(Holder, String)> = self
            .ordered
            .iter()
            .flat_map(|(holder, ordered)| ordered.rates.keys().map(|disk| (*holder, disk.clone())))
            .collect();
        let all: BTreeSet<(Holder, String)> = before.into_iter().chain(parts.keys().cloned()).collect();
        let present: BTreeSet<Holder> = held.holders().collect();
        let is_free = |holder: &Holder| held.group(*holder).is_none_or(|group| !group.most.rates);
        for (holder, disk) in
            all.into_iter().filter(|(holder, _)| present.contains(holder) && is_free(holder))
        {
            let part = parts.get(&(holder, disk.clone())).copied().unwrap_or_default();
            let ordered = self.ordered.entry(holder).or_default();
            let before = ordered.rates.get(&disk).copied().unwrap_or_default();
            if differs(before.0, part.0) || differs(before.1, part.1) {
                if part == (None, None) {
                    ordered.rates.remove(&disk);
                } else {
                    ordered.rates.insert(disk.clone(), part);
                }
                let action =
                    PartOrder::Transfer { unit: holder.0, at: holder.1, disk, read: part.0, write: part.1 };
                orders.push(Step { action, reason: Reason::FollowsUse });
            }
        }
    }
}

/// The weights of foreign groups, by their parts of CPU time.
///
/// Weights of siblings are in proportion, and average the kernel's default. So a sibling with the default weight, such as one
/// of root's sessions, keeps the share that it would have among unweighted groups: 1/(N + 1) beside N busy ones. Weights that
/// sum to a constant instead would starve it.
fn weights(groups: &[GroupFacts], parts: &BTreeMap<usize, u64>) -> Vec<(usize, u32)> {
    let encloser = |at: usize| groups[at].path.rsplit_once('/').map_or("", |(encloser, _)| encloser);
    let mut sums: BTreeMap<&str, (u128, u128)> = BTreeMap::new();
    for (at, part) in parts {
        let sum = sums.entry(encloser(*at)).or_default();
        *sum = (sum.0 + 1, sum.1 + u128::from(*part));
    }
    let weight = |(at, part): (&usize, &u64)| {
        let (groups, sum) = sums.get(encloser(*at)).copied().unwrap_or_default();
        let weight = (u128::from(*part) * u128::from(WEIGHT_DEFAULT) * groups + sum / 2).checked_div(sum);
        let weight = weight.map_or(WEIGHT_DEFAULT, |weight| u32::try_from(weight).unwrap_or(WEIGHT_MAX));
        (*at, weight.clamp(1, WEIGHT_MAX))
    };
    parts.iter().map(weight).collect()
}

/// Rates are measured over at least this time.
const MEASURED_NS: Time = 100 * crate::time::MS;

/// The holders of a unit's own processes, with their charges and their managers' limits.
fn memory_holders(held: &Holders<'_>, unit: UnitId) -> (Vec<Option<GroupId>>, Vec<u64>, Vec<u64>) {
    let groups = held.directly(unit);
    let own = held.own_memory(unit);
    let mut all = (vec![None], vec![own], vec![u64::MAX]);
    for group in groups {
        all.0.push(Some(group.id));
        all.1.push(group.memory);
        all.2.push(group.most.memory.unwrap_or(u64::MAX));
    }
    all
}
