//! Units held in foreign groups: the control groups of other programs that contain the units' processes.
//!
//! Problem. A service manager gives each user, session and service a control group. If a process is moved to
//! another group, the manager loses track of it. So processes stay in the manager's groups, and these groups
//! are restricted instead. One unit may have several groups: a unit of two users has both users' slices. An
//! order for the unit must hold for all its groups together.
//!
//! Terms. A *foreign group* of a unit is a control group that another program made and whose processes all
//! belong to the unit or to units within it. A unit's *holders* are its foreign groups and its own control
//! group. A holder's *part* is the portion of the unit's amount (of memory, CPU time or disk rate) that the
//! holder gets.
//!
//! Algorithm, choice of groups ([`find`]): for each process, the first of these groups that contains the
//! process: a user's slice; a unit's slice, which contains the scopes made for the unit's processes; the
//! outermost service or scope; the process's own group. If the chosen group has processes of several units,
//! its children are examined instead. A group that cannot be divided is held for the innermost unit that
//! encloses all these units, if there is such a unit. A process that a rule of its own (`exec`, `pid`,
//! `command`) assigns to a unit will be moved to a scope in its unit's slice. So it is ignored if the group
//! has other processes.
//!
//! Algorithm, parts ([`spread`]): each holder gets as much as it uses, and the rest of the unit's amount is
//! divided evenly. If the holders together use more than the unit's amount, parts are in proportion to use.
//! For memory, a foreign group counts as using at least a sixteenth of an even part, and so does the unit's
//! own group if it is in use. A holder never gets more than the limit that its manager set; the other holders
//! get what this limit leaves. So parts follow use, and sum to the unit's amount.
//!
//! Parts are ordered for each resource as follows.
//! - Memory: bounds, protection of the unit's own processes, and reclaim.
//! - CPUs: each holder gets the unit's CPU set, intersected with the set of the holder's manager. Weights and
//!   caps follow the CPU time that holders use. The average of the weights is the kernel's default weight. So
//!   processes in no unit keep the share that the kernel would give them beside these groups. A scheduler
//!   that decides at every switch knows the foreign groups. Under such a scheduler, CPUs have no parts, and
//!   earlier CPU sets and caps are lifted.
//! - Disks: rates, which follow the holders' transfers.
//!
//! Properties (tested): parts sum to at most the unit's amount, and to exactly this amount unless a manager's
//! limit prevents that. Hysteresis: a part is ordered again only when it changes by more than a sixteenth, or
//! when the old parts exceed the new amount.
//!
//! Limits: weights are exact only among groups with the same parent. If a capped unit has foreign groups
//! inside another unit's group, each of these groups is capped separately.

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

/// Hysteresis: a part is ordered again when it changes by more than 1/16.
const CHANGE_PART: u64 = 16;

/// The largest page size of any kernel, in bytes.
const PAGE_MAX: u64 = 1 << 16;

/// The highest weight that a kernel accepts.
const WEIGHT_MAX: u32 = 10_000;
/// The kernel's default weight.
const WEIGHT_DEFAULT: u32 = 100;

/// Divides `total` among holders according to their use. No holder gets more than its cap. Returns the parts
/// in the order of `uses` and `caps`. If the caps sum to less than `total`, each part is its cap.
pub fn spread(total: u64, uses: &[u64], caps: &[u64]) -> Vec<u64> {
    let capped_uses: Vec<u64> = uses.iter().zip(caps).map(|(used, cap)| *used.min(cap)).collect();
    let sum: u64 = capped_uses.iter().fold(0, |sum, used| sum.saturating_add(*used));
    if sum > total {
        return crate::share::split(total, &capped_uses);
    }
    let headroom: Vec<u64> = caps.iter().zip(&capped_uses).map(|(cap, used)| cap - used).collect();
    let (additions, _) = crate::share::split_capped(total - sum, &vec![1; uses.len()], &headroom);
    capped_uses.iter().zip(additions).map(|(used, addition)| used + addition).collect()
}

/// As [`spread`], for a unit's own group (the first holder) and its foreign groups. If the own group uses
/// nothing, it is probably empty, and gets at most 1/[`CHANGE_PART`] of the total.
fn spread_with_own(total: u64, uses: &[u64], caps: &[u64]) -> Vec<u64> {
    let mut caps = caps.to_vec();
    if uses[0] == 0 && uses.len() > 1 {
        caps[0] = caps[0].min(total / CHANGE_PART);
    }
    spread(total, uses, &caps)
}

/// The uses by which memory bounds are spread: the holders' uses, raised to a minimum. Without the minimum, a
/// new group could not start and a small group could not grow while other groups use the unit's whole amount.
/// Exception: if the unit's own group (the first holder) uses nothing, it is probably empty, and its use
/// stays 0.
fn with_minimum_use(total: u64, uses: &[u64]) -> Vec<u64> {
    let minimum = total / CHANGE_PART / (uses.len() as u64).max(1);
    let raised = |(nth, used): (usize, &u64)| if nth == 0 && *used == 0 { 0 } else { (*used).max(minimum) };
    uses.iter().enumerate().map(raised).collect()
}

/// Rounds parts of memory down to multiples of [`PAGE_MAX`]. A kernel rounds to whole pages, so it keeps
/// these values.
fn whole_pages(parts: Vec<u64>) -> Vec<u64> {
    parts.into_iter().map(|bytes| bytes - bytes % PAGE_MAX).collect()
}

/// The orders in force for a unit, for the total of its holders.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct InForce {
    cpus: UnitCpus,
    /// In millionths of a CPU.
    cap: Option<u64>,
    /// Protected memory of the unit with its sub-units; see [`MemoryOrder::Guarantee`].
    min: u64,
    low: u64,
    own: u64,
    /// The bound of the unit's memory, in bytes.
    allowed: Option<u64>,
    /// By disk.
    rates: BTreeMap<String, Rates>,
}

/// The CPUs on which a unit's processes run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum UnitCpus {
    /// Those of the enclosing unit.
    #[default]
    AsEncloser,
    Anywhere,
    Only(CpuSet),
}

/// Read and write rates, in bytes per second.
type Rates = (Option<u64>, Option<u64>);

/// The parts last ordered for a holder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Ordered {
    cpus: Option<CpuSet>,
    weight: Option<u32>,
    cap: Option<u64>,
    /// `min` and `low` of the protected memory.
    protected: Option<(u64, u64)>,
    allowed: Option<u64>,
    rates: BTreeMap<String, Rates>,
}

impl Ordered {
    /// Forgets the parts that the manager has overwritten, given the manager's settings `before` and `now`.
    /// The other parts are still in force.
    fn forget_overwritten(&mut self, before: &GroupBounds, now: &GroupBounds) {
        self.cpus = self.cpus.take().filter(|_| before.cpus == now.cpus);
        self.weight = self.weight.filter(|_| before.weight == now.weight);
        self.cap = self.cap.filter(|_| before.cap == now.cap);
        self.protected = self.protected.filter(|_| before.kept == now.kept);
        self.allowed = self.allowed.filter(|_| before.memory == now.memory);
        if before.rates != now.rates {
            self.rates.clear();
        }
    }
}

/// One of a unit's holders: a foreign group or, with `None`, the unit's own group.
type Holder = (UnitId, Option<GroupId>);

/// A holder's cumulative use at a sample.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Usage {
    sampled_at: Time,
    cpu_ns: u64,
    /// Bytes read and written, by disk.
    transferred: BTreeMap<String, (u64, u64)>,
}

/// Foreign groups, orders in force and measured use, carried from step to step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupParts {
    /// The current foreign groups, and their managers' settings.
    known: Vec<(GroupId, UnitId, GroupBounds)>,
    units: BTreeMap<UnitId, InForce>,
    ordered: BTreeMap<Holder, Ordered>,
    /// The samples from which the next rates are measured.
    samples: BTreeMap<Holder, Usage>,
    use_rates: BTreeMap<Holder, UsageRate>,
}

/// A holder's use per second.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct UsageRate {
    /// CPU time, in nanoseconds.
    cpu: u64,
    /// Bytes read and written, by disk.
    disks: BTreeMap<String, (u64, u64)>,
}

/// Spreads the orders in force for units, from this plan and earlier ones, over the units' holders.
///
/// When a backend carries out an order for a unit, it first applies the order to the unit's own group, as if
/// that were the unit's only holder. So after each such order, the own group's part must be ordered again.
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
    // Parts follow use, so use is measured first.
    let held_groups = HeldGroups::new(input, groups);
    let present: BTreeSet<Holder> = held_groups.holders().collect();
    state.samples.retain(|holder, _| present.contains(holder));
    state.measure(now, &held_groups, input);
    if held_groups.memory.is_some() {
        state.memory(&held_groups, plan, &mut orders);
    }
    match input.means.switches {
        true => state.lift_cpus(&present, &mut orders),
        false => state.cpus(&held_groups, input, plan, &mut orders),
    }
    state.disks(&held_groups, &mut orders);
    state.restore_own_groups(input.contract, &present, &mut orders);
    plan.orders.parts = orders;
}

/// The foreign groups in which units are held now, and lookups of the units' holders.
struct HeldGroups<'a> {
    contract: &'a Contract,
    groups: &'a [GroupFacts],
    memory: Option<&'a MemoryFacts>,
    /// For each unit, the indices in `groups` of its foreign groups, those of sub-units excluded.
    groups_of: BTreeMap<UnitId, Vec<usize>>,
}

impl<'a> HeldGroups<'a> {
    fn new(input: Input<'a>, groups: &'a [GroupFacts]) -> HeldGroups<'a> {
        let mut groups_of: BTreeMap<UnitId, Vec<usize>> = BTreeMap::new();
        for (index, group) in groups.iter().enumerate().filter(|(_, group)| input.contract.has(group.unit)) {
            groups_of.entry(group.unit).or_default().push(index);
        }
        HeldGroups { contract: input.contract, groups, memory: input.snapshot.memory.as_ref(), groups_of }
    }

    /// All holders: the foreign groups, and the own groups of all units that enclose one.
    fn holders(&self) -> impl Iterator<Item = Holder> + '_ {
        let own =
            self.groups_of.keys().flat_map(|unit| lineage(self.contract, *unit)).map(|unit| (unit, None));
        let foreign = self.groups_of.values().flatten().map(|index| &self.groups[*index]);
        own.chain(foreign.map(|group| (group.unit, Some(group.id))))
    }

    /// The foreign groups of a unit, those of its sub-units included.
    fn within(&self, unit: UnitId) -> Vec<&'a GroupFacts> {
        let is_in = |group: &&GroupFacts| {
            self.contract.has(group.unit) && lineage(self.contract, group.unit).any(|around| around == unit)
        };
        self.groups.iter().filter(is_in).collect()
    }

    /// The facts of a holder; `None` if it is a unit's own group.
    fn group(&self, (_, holder): Holder) -> Option<&'a GroupFacts> {
        self.groups.iter().find(|group| Some(group.id) == holder)
    }

    /// The foreign groups of a unit, those of its sub-units excluded.
    fn directly_in(&self, unit: UnitId) -> Vec<&'a GroupFacts> {
        self.groups_of.get(&unit).into_iter().flatten().map(|index| &self.groups[*index]).collect()
    }

    /// Memory charged to a unit's own group, in bytes, sub-units excluded; 0 if memory was not sampled.
    fn own_memory(&self, unit: UnitId) -> u64 {
        let used = self.memory.and_then(|memory| memory.units.get(unit.index())).map_or(0, |unit| unit.used);
        used.saturating_sub(self.directly_in(unit).iter().map(|group| group.memory).sum())
    }

    /// All units that enclose a foreign group, innermost first.
    fn units(&self) -> Vec<UnitId> {
        let all: BTreeSet<UnitId> =
            self.groups_of.keys().flat_map(|unit| lineage(self.contract, *unit)).collect();
        self.contract.held().rev().filter(|unit| all.contains(unit)).collect()
    }
}

/// Whether a part has changed enough to be ordered again.
fn part_changed(before: Option<u64>, now: Option<u64>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => now.abs_diff(before) > before.max(now) / CHANGE_PART,
        (before, now) => before != now,
    }
}

/// Whether a unit's parts must be ordered again: a part has changed enough, or the old parts exceed the new
/// total.
fn parts_changed(
    before: impl Iterator<Item = Option<u64>> + Clone,
    now: impl Iterator<Item = Option<u64>> + Clone,
) -> bool {
    let sum = |parts: &mut dyn Iterator<Item = Option<u64>>| parts.flatten().fold(0, u64::saturating_add);
    let exceed_total = sum(&mut before.clone()) > sum(&mut now.clone());
    exceed_total || before.zip(now).any(|(before, now)| part_changed(before, now))
}

impl GroupParts {
    /// Whether nothing is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        *self == GroupParts::default()
    }

    /// Updates the list of foreign groups, and puts it in the plan if it changed. If a manager changed a
    /// setting, the affected parts are forgotten, so that they are ordered again.
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
                ordered.forget_overwritten(most, &facts.most);
            }
        }
        self.known = groups.iter().map(|facts| (facts.id, facts.unit, facts.most.clone())).collect();
    }

    /// Updates the orders in force for units by those of the plan.
    fn collect_orders(&mut self, input: Input<'_>, plan: &Plan) {
        self.units.retain(|unit, _| input.contract.has(*unit));
        // An order for a unit overwrites the part of the unit's own group, so that part is forgotten, to be
        // ordered again.
        let ordered = &mut self.ordered;
        let mut reset = |unit: UnitId, forget: fn(&mut Ordered)| {
            ordered.entry((unit, None)).and_modify(forget);
        };
        for step in &plan.orders.cpu {
            if let CpuOrder::Cap { unit, .. } = step.action {
                reset(unit, |ordered| ordered.cap = None);
            }
        }
        for step in &plan.orders.memory {
            match step.action {
                MemoryOrder::Guarantee { unit, .. } => reset(unit, |ordered| ordered.protected = None),
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
        // The units' totals from now on.
        for step in &plan.orders.cpu {
            match &step.action {
                CpuOrder::Confine { unit, cpus } => {
                    let cpus = cpus.clone().map_or(UnitCpus::Anywhere, UnitCpus::Only);
                    self.units.entry(*unit).or_default().cpus = cpus;
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

    /// The orders in force for a unit; the default (no order) if there are none.
    fn in_force(&self, unit: UnitId) -> InForce {
        self.units.get(&unit).cloned().unwrap_or_default()
    }

    /// Measures each holder's use per second since its previous sample, if that sample is at least
    /// [`MEASURED_NS`] old.
    fn measure(&mut self, now: Time, held_groups: &HeldGroups<'_>, input: Input<'_>) {
        let mut samples_now: BTreeMap<Holder, Usage> = BTreeMap::new();
        for group in held_groups.groups {
            let transferred =
                group.disks.iter().map(|(disk, used)| (disk.clone(), (used.read_bytes, used.written_bytes)));
            let sample = Usage { sampled_at: now, cpu_ns: group.used_ns, transferred: transferred.collect() };
            samples_now.insert((group.unit, Some(group.id)), sample);
        }
        // An own group's use is the unit's use less that of the unit's foreign groups.
        for unit in held_groups.units() {
            let groups = held_groups.directly_in(unit);
            let in_groups_ns: u64 = groups.iter().map(|group| group.used_ns).sum();
            let cpu_ns = input.snapshot.unit(unit).used_ns.saturating_sub(in_groups_ns);
            let own_transfers = |disk: &DiskFacts| {
                let group_transfers = |group: &&GroupFacts| {
                    let disk_use = group.disks.iter().find(|(name, _)| *name == disk.name);
                    disk_use.map_or((0, 0), |(_, used)| (used.read_bytes, used.written_bytes))
                };
                let (read, written) = groups
                    .iter()
                    .map(group_transfers)
                    .fold((0, 0), |sum: (u64, u64), group| (sum.0 + group.0, sum.1 + group.1));
                let used = disk.unit(unit);
                (
                    disk.name.clone(),
                    (used.read_bytes.saturating_sub(read), used.written_bytes.saturating_sub(written)),
                )
            };
            let transferred = input.snapshot.disks.iter().map(own_transfers).collect();
            samples_now.insert((unit, None), Usage { sampled_at: now, cpu_ns, transferred });
        }
        for (holder, sample) in samples_now {
            let Some(previous) = self.samples.get(&holder) else {
                self.samples.insert(holder, sample);
                continue;
            };
            let elapsed_ns = u128::from(sample.sampled_at.saturating_sub(previous.sampled_at));
            if elapsed_ns < u128::from(MEASURED_NS) {
                continue;
            }
            let per_s = |now: u64, before: u64| {
                u64::try_from(u128::from(now.saturating_sub(before)) * 1_000_000_000 / elapsed_ns)
                    .unwrap_or(u64::MAX)
            };
            let disks = sample.transferred.iter().map(|(disk, (read, written))| {
                let (read_before, written_before) =
                    previous.transferred.get(disk).copied().unwrap_or((*read, *written));
                (disk.clone(), (per_s(*read, read_before), per_s(*written, written_before)))
            });
            let rate = UsageRate { cpu: per_s(sample.cpu_ns, previous.cpu_ns), disks: disks.collect() };
            self.use_rates.insert(holder, rate);
            self.samples.insert(holder, sample);
        }
        let samples = &self.samples;
        self.use_rates.retain(|holder, _| samples.contains_key(holder));
    }

    /// Spreads bounds, protection and reclaim of memory.
    fn memory(&mut self, held_groups: &HeldGroups<'_>, plan: &Plan, orders: &mut Vec<Step<PartOrder>>) {
        let reclaims = plan.orders.memory.iter().filter_map(|step| match step.action {
            MemoryOrder::Reclaim { unit, bytes, files } => Some((unit, bytes, files, step.reason)),
            _ => None,
        });
        for (unit, bytes, files, reason) in reclaims {
            let (holders, uses, _) = memory_holders(held_groups, unit);
            if holders.len() > 1 {
                for (at, bytes) in
                    holders.iter().zip(crate::share::split(bytes, &uses)).filter(|(_, bytes)| *bytes > 0)
                {
                    orders.push(Step { action: PartOrder::Reclaim { unit, at: *at, bytes, files }, reason });
                }
            }
        }
        // Innermost unit first: the protection of a unit's own group must include the protection of the
        // groups inside it.
        let mut own_group_protection: BTreeMap<UnitId, (u64, u64)> = BTreeMap::new();
        for unit in held_groups.units() {
            let total = self.in_force(unit);
            let (holders, uses, caps) = memory_holders(held_groups, unit);
            // `min` and `low` of the groups inside the unit's own group.
            let contract = held_groups.contract;
            let sub_units = contract.held().filter(|sub| contract.unit(*sub).parent == Some(unit));
            let (mut min_of_sub_units, mut inside) = (0u64, (0u64, 0u64));
            for sub in sub_units {
                let sub_total = self.in_force(sub);
                min_of_sub_units = min_of_sub_units.saturating_add(sub_total.min);
                // A sub-unit without a foreign group is protected by its own group alone.
                let (min, low) =
                    own_group_protection.get(&sub).copied().unwrap_or((sub_total.min, sub_total.low));
                inside = (inside.0.saturating_add(min), inside.1.saturating_add(low));
            }
            // A group whose manager protects its memory gets no protection from here.
            let spread = |bytes: u64, caps: &[u64]| whole_pages(spread_with_own(bytes, &uses, caps));
            let mut protection_caps = caps.clone();
            for (cap, group) in protection_caps[1..].iter_mut().zip(held_groups.directly_in(unit)) {
                *cap = if group.most.kept { 0 } else { *cap };
            }
            let min = spread(total.min.saturating_sub(min_of_sub_units), &protection_caps);
            let low = spread(total.own, &protection_caps);
            let own: Vec<u64> = low.iter().zip(&min).map(|(low, min)| *low.max(min)).collect();
            let mut protected: Vec<(u64, u64)> =
                min.iter().zip(&own).map(|(min, own)| (*min, *own)).collect();
            protected[0] = (protected[0].0.saturating_add(inside.0), protected[0].1.saturating_add(inside.1));
            own_group_protection.insert(unit, protected[0]);
            // The parts of the protection are ordered again if one of them changed enough, or if an order for
            // the unit has overwritten the own group's part.
            let before: Vec<(u64, u64)> =
                self.last_ordered(unit, &holders, |ordered| ordered.protected.unwrap_or_default());
            let own_is_overwritten =
                self.last_ordered(unit, &holders, |ordered| ordered.protected.is_none())[0];
            let (old_mins, new_mins) = (before.iter().map(|old| old.0), protected.iter().map(|new| new.0));
            let (old_lows, new_lows) = (before.iter().map(|old| old.1), protected.iter().map(|new| new.1));
            let min_changed = parts_changed(old_mins.map(Some), new_mins.map(Some));
            let low_changed = parts_changed(old_lows.map(Some), new_lows.map(Some));
            if own_is_overwritten || min_changed || low_changed {
                for (nth, at) in
                    holders.iter().enumerate().filter(|(nth, _)| protected[*nth] != before[*nth] || *nth == 0)
                {
                    self.ordered.entry((unit, *at)).or_default().protected = Some(protected[nth]);
                    let action = PartOrder::Guarantee {
                        unit,
                        at: *at,
                        min: protected[nth].0,
                        low: protected[nth].1,
                        own: own[nth],
                    };
                    orders.push(Step { action, reason: Reason::FollowsUse });
                }
            }
            // The parts of the bound are ordered again for the same two reasons.
            let bounds = total
                .allowed
                .map(|bytes| whole_pages(spread_with_own(bytes, &with_minimum_use(bytes, &uses), &caps)));
            let bounds: Vec<Option<u64>> = holders
                .iter()
                .enumerate()
                .map(|(nth, _)| bounds.as_ref().map(|bounds| bounds[nth]))
                .collect();
            let before = self.last_ordered(unit, &holders, |ordered| ordered.allowed);
            if parts_changed(before.iter().copied(), bounds.iter().copied()) {
                for (nth, at) in holders.iter().enumerate().filter(|(nth, _)| bounds[*nth] != before[*nth]) {
                    self.ordered.entry((unit, *at)).or_default().allowed = bounds[nth];
                    let action = PartOrder::Allow { unit, at: *at, bytes: bounds[nth] };
                    orders.push(Step { action, reason: Reason::FollowsUse });
                }
            }
        }
    }

    /// One property of the parts last ordered for each of a unit's holders, selected by `select`.
    fn last_ordered<T>(
        &self,
        unit: UnitId,
        holders: &[Option<GroupId>],
        select: impl Fn(&Ordered) -> T,
    ) -> Vec<T> {
        let nothing_ordered = Ordered::default();
        holders.iter().map(|at| select(self.ordered.get(&(unit, *at)).unwrap_or(&nothing_ordered))).collect()
    }

    /// Orders the unit's full amounts for the own group of each unit that is no longer in foreign groups. A
    /// foreign group that is no longer held needs no order, since the backend resets it.
    fn restore_own_groups(
        &mut self,
        contract: &Contract,
        present: &BTreeSet<Holder>,
        orders: &mut Vec<Step<PartOrder>>,
    ) {
        let former_holders: Vec<Holder> =
            self.ordered.keys().filter(|holder| !present.contains(holder)).copied().collect();
        for (unit, at) in former_holders {
            let Some(ordered) =
                self.ordered.remove(&(unit, at)).filter(|_| at.is_none() && contract.has(unit))
            else {
                continue;
            };
            let total = self.in_force(unit);
            let mut order = |action| orders.push(Step { action, reason: Reason::FollowsUse });
            if ordered.protected.is_some() {
                order(PartOrder::Guarantee { unit, at, min: total.min, low: total.low, own: total.own });
            }
            if ordered.allowed.is_some() {
                order(PartOrder::Allow { unit, at, bytes: total.allowed });
            }
            if ordered.cap.is_some() {
                order(PartOrder::Cap { unit, at, micro_cpus: total.cap });
            }
            for (disk, (read, write)) in
                total.rates.into_iter().filter(|(disk, _)| ordered.rates.contains_key(disk))
            {
                order(PartOrder::Transfer { unit, at, disk, read, write });
            }
        }
    }

    /// Lifts CPU sets and caps that were ordered before a scheduler was attached, since they would restrict
    /// the scheduler. Weights have no effect on the scheduler, and stay.
    fn lift_cpus(&mut self, present: &BTreeSet<Holder>, orders: &mut Vec<Step<PartOrder>>) {
        for (holder, ordered) in &mut self.ordered {
            let (unit, at) = *holder;
            let (cpus, cap) = (ordered.cpus.take(), ordered.cap.take());
            ordered.weight = None;
            // The own group is reset by the unit's orders, and a group that is no longer held is reset by the
            // backend.
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

    /// Spreads CPU sets, weights and caps, for a machine on which no scheduler knows the foreign groups.
    fn cpus(
        &mut self,
        held_groups: &HeldGroups<'_>,
        input: Input<'_>,
        plan: &Plan,
        orders: &mut Vec<Step<PartOrder>>,
    ) {
        // Parts of CPU time that become weights, by the index of the group.
        let mut weighted_parts = BTreeMap::new();
        for (unit, groups) in &held_groups.groups_of {
            let entitled = plan.decisions.cpu.entitled.get(unit.index()).copied().unwrap_or(0);
            let mut holders = vec![None];
            holders.extend(groups.iter().map(|index| Some(held_groups.groups[*index].id)));
            let uses: Vec<u64> = holders.iter().map(|at| self.cpu_rate((*unit, *at)) / 1_000).collect();
            let parts = spread_with_own(entitled, &uses, &vec![u64::MAX; uses.len()]);
            // The CPUs that an order gives to the innermost enclosing unit with such an order.
            let unit_cpus = lineage(held_groups.contract, *unit).map(|unit| self.in_force(unit).cpus);
            let cpus = match unit_cpus.into_iter().find(|cpus| *cpus != UnitCpus::AsEncloser) {
                Some(UnitCpus::Only(cpus)) => Some(cpus),
                Some(UnitCpus::Anywhere | UnitCpus::AsEncloser) | None => None,
            };
            for (index, part) in groups.iter().zip(&parts[1..]) {
                let facts = &held_groups.groups[*index];
                let ordered = self.ordered.entry((*unit, Some(facts.id))).or_default();
                // If the manager allows none of the unit's CPUs, the manager's setting stays.
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
                    weighted_parts.insert(*index, *part);
                }
            }
        }
        for (index, weight) in weights(held_groups.groups, &weighted_parts) {
            let GroupFacts { unit, id, .. } = held_groups.groups[index];
            let ordered = self.ordered.entry((unit, Some(id))).or_default();
            if part_changed(ordered.weight.map(u64::from), Some(u64::from(weight))) {
                ordered.weight = Some(weight);
                let action = PartOrder::Weigh { unit, at: id, weight };
                orders.push(Step { action, reason: Reason::FollowsUse });
            }
        }
        if input.means.caps {
            self.caps(held_groups, orders);
        }
    }

    /// A holder's CPU time per second, in nanoseconds; 0 until it is measured.
    fn cpu_rate(&self, holder: Holder) -> u64 {
        self.use_rates.get(&holder).map_or(0, |used| used.cpu)
    }

    /// Spreads CPU caps over all holders within each capped unit. A holder within several capped units gets
    /// the lowest part.
    fn caps(&mut self, held_groups: &HeldGroups<'_>, orders: &mut Vec<Step<PartOrder>>) {
        let mut parts: BTreeMap<Holder, u64> = BTreeMap::new();
        for unit in held_groups.units() {
            let Some(cap) = self.in_force(unit).cap else { continue };
            let within = held_groups.within(unit);
            let mut holders = vec![(unit, None)];
            holders.extend(within.iter().map(|group| (group.unit, Some(group.id))));
            // The own groups of the unit and its sub-units are one holder here, since a cap covers the whole
            // subtree.
            let own_rate: u64 = held_groups
                .contract
                .held()
                .filter(|sub| lineage(held_groups.contract, *sub).any(|around| around == unit))
                .map(|sub| self.cpu_rate((sub, None)))
                .sum();
            let uses = holders
                .iter()
                .map(|holder| if holder.1.is_none() { own_rate } else { self.cpu_rate(*holder) } / 1_000);
            let uses: Vec<u64> = uses.collect();
            for (holder, part) in
                holders.into_iter().zip(spread_with_own(cap, &uses, &vec![u64::MAX; uses.len()]))
            {
                let lowest = parts.entry(holder).or_insert(part);
                *lowest = part.min(*lowest);
            }
        }
        let is_free = |holder: &Holder| held_groups.group(*holder).is_none_or(|group| !group.most.cap);
        for holder in held_groups.holders().filter(is_free) {
            let part = parts.get(&holder).copied();
            let ordered = self.ordered.entry(holder).or_default();
            if part_changed(ordered.cap, part) {
                ordered.cap = part;
                let action = PartOrder::Cap { unit: holder.0, at: holder.1, micro_cpus: part };
                orders.push(Step { action, reason: Reason::FollowsUse });
            }
        }
    }

    /// Spreads disk rates over all holders within each limited unit. A holder within several limited units
    /// gets the lowest part.
    fn disks(&mut self, held_groups: &HeldGroups<'_>, orders: &mut Vec<Step<PartOrder>>) {
        let mut parts: BTreeMap<(Holder, String), Rates> = BTreeMap::new();
        for unit in held_groups.units() {
            for (disk, (read, write)) in self.in_force(unit).rates {
                let within = held_groups.within(unit);
                let mut holders = vec![(unit, None)];
                holders.extend(within.iter().map(|group| (group.unit, Some(group.id))));
                let used_rates = |holder: &Holder| {
                    let used = self.use_rates.get(holder).and_then(|used| used.disks.get(&disk));
                    used.copied().unwrap_or_default()
                };
                let uncapped = vec![u64::MAX; holders.len()];
                let read_uses: Vec<u64> = holders.iter().map(|holder| used_rates(holder).0).collect();
                let write_uses: Vec<u64> = holders.iter().map(|holder| used_rates(holder).1).collect();
                let read_parts = read.map(|rate| spread_with_own(rate, &read_uses, &uncapped));
                let write_parts = write.map(|rate| spread_with_own(rate, &write_uses, &uncapped));
                for (nth, holder) in holders.into_iter().enumerate() {
                    let lower = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
                    let part = parts.entry((holder, disk.clone())).or_default();
                    // A kernel accepts no rate of 0.
                    part.0 = lower(part.0, read_parts.as_ref().map(|parts| parts[nth].max(1)));
                    part.1 = lower(part.1, write_parts.as_ref().map(|parts| parts[nth].max(1)));
                }
            }
        }
        // Rates that were ordered before and have no part now are lifted.
        let before: Vec<(Holder, String)> = self
            .ordered
            .iter()
            .flat_map(|(holder, ordered)| ordered.rates.keys().map(|disk| (*holder, disk.clone())))
            .collect();
        let all: BTreeSet<(Holder, String)> = before.into_iter().chain(parts.keys().cloned()).collect();
        let present: BTreeSet<Holder> = held_groups.holders().collect();
        let is_free = |holder: &Holder| held_groups.group(*holder).is_none_or(|group| !group.most.rates);
        for (holder, disk) in
            all.into_iter().filter(|(holder, _)| present.contains(holder) && is_free(holder))
        {
            let part = parts.get(&(holder, disk.clone())).copied().unwrap_or_default();
            let ordered = self.ordered.entry(holder).or_default();
            let before = ordered.rates.get(&disk).copied().unwrap_or_default();
            if part_changed(before.0, part.0) || part_changed(before.1, part.1) {
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

/// The weights of foreign groups by index, from their parts of CPU time.
///
/// The weights of siblings are in proportion to their parts, and the average of the weights is the kernel's
/// default. So a sibling that is no foreign group and has the default weight, such as one of root's sessions,
/// keeps the share that it would have among unweighted groups: 1/(N + 1) beside N busy groups. If the weights
/// summed to a constant instead, such a sibling could starve.
fn weights(groups: &[GroupFacts], parts: &BTreeMap<usize, u64>) -> Vec<(usize, u32)> {
    let parent_path = |index: usize| groups[index].path.rsplit_once('/').map_or("", |(parent, _)| parent);
    // For each parent group, the number of its children and the sum of their parts.
    let mut sums: BTreeMap<&str, (u128, u128)> = BTreeMap::new();
    for (index, part) in parts {
        let sum = sums.entry(parent_path(*index)).or_default();
        *sum = (sum.0 + 1, sum.1 + u128::from(*part));
    }
    let weight = |(index, part): (&usize, &u64)| {
        let (count, sum) = sums.get(parent_path(*index)).copied().unwrap_or_default();
        let weight = (u128::from(*part) * u128::from(WEIGHT_DEFAULT) * count + sum / 2).checked_div(sum);
        let weight = weight.map_or(WEIGHT_DEFAULT, |weight| u32::try_from(weight).unwrap_or(WEIGHT_MAX));
        (*index, weight.clamp(1, WEIGHT_MAX))
    };
    parts.iter().map(weight).collect()
}

/// Rates of use are measured over at least this time.
const MEASURED_NS: Time = 100 * crate::time::MS;

/// The holders of a unit's own processes, the own group first: their ids, their memory use in bytes, and
/// their managers' limits (`u64::MAX`: unlimited).
fn memory_holders(held_groups: &HeldGroups<'_>, unit: UnitId) -> (Vec<Option<GroupId>>, Vec<u64>, Vec<u64>) {
    let mut holders = vec![None];
    let mut uses = vec![held_groups.own_memory(unit)];
    let mut limits = vec![u64::MAX];
    for group in held_groups.directly_in(unit) {
        holders.push(Some(group.id));
        uses.push(group.memory);
        limits.push(group.most.memory.unwrap_or(u64::MAX));
    }
    (holders, uses, limits)
}
