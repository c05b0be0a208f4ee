//! Places: units held in the control groups where their processes are.
//!
//! Problem. A service manager gives each user, each session and each service a control group, and loses them when their
//! processes are moved elsewhere. So the processes stay, and the groups are what is held. One unit may have several: a unit
//! of two users has both users' slices. What is ordered for the unit must hold for all of them together.
//!
//! Terms. A *place* is a control group of another program's in which all processes are one unit's, or of units within that.
//! A unit's *holders* are its places and its own control group. What holds at a holder is its *part*.
//!
//! Algorithm, which groups are places ([`of`]): a user's slice; else a unit's slice of scopes that were made for its processes;
//! else the outermost service or scope; else the group itself. If it has processes of several units, what is in it is looked at
//! one level deeper. A group that cannot be divided is the place of the innermost unit around all, if there is one. A process
//! that a rule names (`exec`, `pid`, `command`) does not count where others are: it is moved to a scope in its unit's slice.
//!
//! Algorithm, parts ([`spread`]): a holder has what it uses, and what is left of the unit's is divided evenly. If all
//! use more than the unit has, its parts are in proportion to what they use. Of memory, a place counts as using a sixteenth of an
//! even part at least, and so does an own group that uses any. A holder that its manager bounds has no more than that bound; the
//! others have what it cannot use. So a part follows use, and all parts sum to what the unit has.
//!
//! - Memory: bounds and guarantees of the unit's own processes, and what is taken from them.
//! - CPUs: the set of the unit, less what the manager does not allow there. Weights and caps by CPU time. Weights average a
//!   kernel's default, so that what is in no unit keeps the part that a kernel would give it beside these groups. Where a scheduler decides
//!   at every switch, it knows the places, and there are no parts: sets and caps that they had are lifted.
//! - Disks: rates by what is transferred.
//!
//! Properties (tested): parts sum to no more than the unit has, and to all of it where no manager's bound is in the way. A part that
//! changes by less than a sixteenth is not ordered anew, unless it would be too much.
//!
//! Limits: weights are exact among groups with the same encloser only. A unit with a cap that has places in another unit's
//! encloser is capped in each alone.

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
use crate::plan::{CpuOrder, DiskOrder, MemoryOrder, PartOrder, Place, Plan, Reason, Step};
use crate::snapshot::{DiskFacts, MemoryFacts, PlaceBounds, PlaceFacts, PlaceId};
use crate::time::Time;
use crate::tree::lineage;

pub use groups::{Inhabited, held_in, of, user_of};

/// A part is ordered anew when it changes by more than one in so many.
const CHANGE_PART: u64 = 16;

/// The largest page of any kernel, in bytes.
const PAGE_MAX: u64 = 1 << 16;

/// The highest weight that a kernel takes, and the one that it gives to a new control group.
const WEIGHT_MAX: u32 = 10_000;
const WEIGHT_DEFAULT: u32 = 100;

/// Parts of what a unit has, by what each uses; none gets more than its cap. What nobody may have is left out.
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

/// The same for a unit's own group, which comes first, and for places. An own group that uses nothing is probably empty: it has
/// little of what is left.
fn spread_with_own(total: u64, uses: &[u64], caps: &[u64]) -> Vec<u64> {
    let mut caps = caps.to_vec();
    if uses[0] == 0 && uses.len() > 1 {
        caps[0] = caps[0].min(total / CHANGE_PART);
    }
    spread(total, uses, &caps)
}

/// What each is taken to use at least where bounds of memory are spread: else a place that came just now could not begin, and one
/// with little could not grow, while others use all that the unit has. An own group that uses nothing is probably empty, and needs
/// nothing.
fn with_least(total: u64, uses: &[u64]) -> Vec<u64> {
    let least = total / CHANGE_PART / (uses.len() as u64).max(1);
    let taken = |(nth, used): (usize, &u64)| if nth == 0 && *used == 0 { 0 } else { (*used).max(least) };
    uses.iter().enumerate().map(taken).collect()
}

/// Parts of memory as a kernel takes them: it counts in pages, of 64 KiB at most.
fn whole_pages(parts: Vec<u64>) -> Vec<u64> {
    parts.into_iter().map(|bytes| bytes - bytes % PAGE_MAX).collect()
}

/// What is ordered for a unit.
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

/// Where a unit's processes run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Runs {
    /// Where those of the unit around do.
    #[default]
    AsAround,
    Anywhere,
    On(CpuSet),
}

/// Rates each way, in bytes per second.
type Rates = (Option<u64>, Option<u64>);

/// What was ordered for a holder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Told {
    cpus: Option<CpuSet>,
    weight: Option<u32>,
    cap: Option<u64>,
    kept: Option<(u64, u64)>,
    allowed: Option<u64>,
    rates: BTreeMap<String, Rates>,
}

impl Told {
    /// What a manager has set since took the place of what was ordered. The rest is in force still.
    fn forget(&mut self, before: &PlaceBounds, now: &PlaceBounds) {
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

/// One of a unit's holders.
type Holder = (UnitId, Option<PlaceId>);

/// What a place did until a look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Mark {
    at: Time,
    cpu_ns: u64,
    bytes: BTreeMap<String, (u64, u64)>,
}

/// What is remembered between steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// The places that there are, and what their managers set there.
    known: Vec<(PlaceId, UnitId, PlaceBounds)>,
    units: BTreeMap<UnitId, InForce>,
    told: BTreeMap<Holder, Told>,
    marks: BTreeMap<Holder, Mark>,
    /// CPU time, and bytes read and written by disk, per second.
    rates: BTreeMap<Holder, Used>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Used {
    cpu: u64,
    disks: BTreeMap<String, (u64, u64)>,
}

/// Spreads what the plan orders for units, and what earlier ones did, over the units' places.
///
/// A backend carries out the units' orders first, on their own groups. So a unit's own group has its part told anew after each.
pub(crate) fn step(state: &mut State, now: Time, input: Input<'_>, plan: &mut Plan) {
    if !input.means.places {
        *state = State::default();
        plan.decisions.places = Some(Vec::new());
        return;
    }
    state.follow(input, plan);
    let places = &input.snapshot.places;
    state.look(places, plan);
    if places.is_empty() && state.told.is_empty() {
        return;
    }
    let mut orders = Vec::new();
    let held = Held::new(input, places);
    let there: BTreeSet<Holder> = held.holders().collect();
    state.marks.retain(|holder, _| there.contains(holder));
    state.measure(now, &held, input);
    if held.memory.is_some() {
        state.memory(&held, plan, &mut orders);
    }
    match input.means.switches {
        true => state.lift_cpus(&there, &mut orders),
        false => state.cpus(&held, input, plan, &mut orders),
    }
    state.disks(&held, &mut orders);
    state.give_back(input.contract, &there, &mut orders);
    plan.orders.parts = orders;
}

/// Holders by unit.
struct Held<'a> {
    contract: &'a Contract,
    places: &'a [PlaceFacts],
    memory: Option<&'a MemoryFacts>,
    /// The places of each unit's own processes.
    of: BTreeMap<UnitId, Vec<usize>>,
}

impl<'a> Held<'a> {
    fn new(input: Input<'a>, places: &'a [PlaceFacts]) -> Held<'a> {
        let mut of: BTreeMap<UnitId, Vec<usize>> = BTreeMap::new();
        for (at, place) in places.iter().enumerate().filter(|(_, place)| input.contract.has(place.unit)) {
            of.entry(place.unit).or_default().push(at);
        }
        Held { contract: input.contract, places, memory: input.snapshot.memory.as_ref(), of }
    }

    /// The units around any place, and their places and own groups.
    fn holders(&self) -> impl Iterator<Item = Holder> + '_ {
        let own = self.of.keys().flat_map(|unit| lineage(self.contract, *unit)).map(|unit| (unit, None));
        own.chain(self.of.values().flatten().map(|at| (self.places[*at].unit, Some(self.places[*at].place))))
    }

    /// The unit's places and those of the units in it.
    fn within(&self, unit: UnitId) -> Vec<&'a PlaceFacts> {
        let is_in = |place: &&PlaceFacts| {
            self.contract.has(place.unit) && lineage(self.contract, place.unit).any(|around| around == unit)
        };
        self.places.iter().filter(is_in).collect()
    }

    fn place(&self, (_, at): Holder) -> Option<&'a PlaceFacts> {
        self.places.iter().find(|place| Some(place.place) == at)
    }

    fn directly(&self, unit: UnitId) -> Vec<&'a PlaceFacts> {
        self.of.get(&unit).into_iter().flatten().map(|at| &self.places[*at]).collect()
    }

    /// What a unit's own processes in its own group are charged; nothing where memory was not looked at.
    fn own_memory(&self, unit: UnitId) -> u64 {
        let used = self.memory.and_then(|memory| memory.units.get(unit.index())).map_or(0, |unit| unit.used);
        used.saturating_sub(self.directly(unit).iter().map(|place| place.memory).sum())
    }

    /// All units around a place, the innermost first.
    fn units(&self) -> Vec<UnitId> {
        let all: BTreeSet<UnitId> = self.of.keys().flat_map(|unit| lineage(self.contract, *unit)).collect();
        self.contract.held().rev().filter(|unit| all.contains(unit)).collect()
    }
}

/// Whether a part is to be told anew.
fn differs(before: Option<u64>, now: Option<u64>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => now.abs_diff(before) > before.max(now) / CHANGE_PART,
        (before, now) => before != now,
    }
}

/// Whether parts are to be told anew: one has changed much, or all together were told too much.
fn differ(
    before: impl Iterator<Item = Option<u64>> + Clone,
    now: impl Iterator<Item = Option<u64>> + Clone,
) -> bool {
    let sum = |of: &mut dyn Iterator<Item = Option<u64>>| of.flatten().fold(0, u64::saturating_add);
    let too_much = sum(&mut before.clone()) > sum(&mut now.clone());
    too_much || before.zip(now).any(|(before, now)| differs(before, now))
}

impl State {
    /// Whether nothing is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        *self == State::default()
    }

    /// Takes note of which places there are. One whose manager has set something else is told everything anew.
    fn look(&mut self, places: &[PlaceFacts], plan: &mut Plan) {
        let is_known = |(known, facts): (&(PlaceId, UnitId, PlaceBounds), &PlaceFacts)| {
            (known.0, known.1, &known.2) == (facts.place, facts.unit, &facts.most)
        };
        if self.known.len() != places.len() || !self.known.iter().zip(places).all(is_known) {
            let decided = |facts: &PlaceFacts| Place {
                place: facts.place,
                unit: facts.unit,
                group: facts.group.clone(),
                most: facts.most.clone(),
            };
            plan.decisions.places = Some(places.iter().map(decided).collect());
        }
        for (place, unit, most) in &self.known {
            let now = places.iter().find(|facts| facts.place == *place);
            if let (Some(facts), Some(told)) = (now, self.told.get_mut(&(*unit, Some(*place)))) {
                told.forget(most, &facts.most);
            }
        }
        self.known = places.iter().map(|facts| (facts.place, facts.unit, facts.most.clone())).collect();
    }

    /// What plans ordered for units so far.
    fn follow(&mut self, input: Input<'_>, plan: &Plan) {
        self.units.retain(|unit, _| input.contract.has(*unit));
        let told = &mut self.told;
        let mut anew = |unit: UnitId, what: fn(&mut Told)| {
            told.entry((unit, None)).and_modify(what);
        };
        for step in &plan.orders.cpu {
            if let CpuOrder::Cap { unit, .. } = step.action {
                anew(unit, |told| told.cap = None);
            }
        }
        for step in &plan.orders.memory {
            match step.action {
                MemoryOrder::Guarantee { unit, .. } => anew(unit, |told| told.kept = None),
                MemoryOrder::Allow { unit, .. } => anew(unit, |told| told.allowed = None),
                MemoryOrder::Reclaim { .. } | MemoryOrder::Expose { .. } => {}
            }
        }
        for step in &plan.orders.disk {
            if let DiskOrder::Cap { unit, disk, .. } = &step.action {
                self.told.entry((*unit, None)).and_modify(|told| {
                    told.rates.remove(disk);
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

    fn unit(&self, unit: UnitId) -> InForce {
        self.units.get(&unit).cloned().unwrap_or_default()
    }

    /// What each holder used per second since it was measured last.
    fn measure(&mut self, now: Time, held: &Held<'_>, input: Input<'_>) {
        let mut seen: BTreeMap<Holder, Mark> = BTreeMap::new();
        for place in held.places {
            let bytes =
                place.disks.iter().map(|(disk, used)| (disk.clone(), (used.read_bytes, used.written_bytes)));
            let mark = Mark { at: now, cpu_ns: place.used_ns, bytes: bytes.collect() };
            seen.insert((place.unit, Some(place.place)), mark);
        }
        for unit in held.units() {
            let direct = held.directly(unit);
            let in_places: u64 = direct.iter().map(|place| place.used_ns).sum();
            let cpu_ns = input.snapshot.unit(unit).used_ns.saturating_sub(in_places);
            let own = |disk: &DiskFacts| {
                let of = |place: &&PlaceFacts| {
                    let found = place.disks.iter().find(|(name, _)| *name == disk.name);
                    found.map_or((0, 0), |(_, used)| (used.read_bytes, used.written_bytes))
                };
                let (read, written) =
                    direct.iter().map(of).fold((0, 0), |sum: (u64, u64), one| (sum.0 + one.0, sum.1 + one.1));
                let used = disk.unit(unit);
                (
                    disk.name.clone(),
                    (used.read_bytes.saturating_sub(read), used.written_bytes.saturating_sub(written)),
                )
            };
            let bytes = input.snapshot.disks.iter().map(own).collect();
            seen.insert((unit, None), Mark { at: now, cpu_ns, bytes });
        }
        for (holder, mark) in seen {
            let Some(before) = self.marks.get(&holder) else {
                self.marks.insert(holder, mark);
                continue;
            };
            let span = u128::from(mark.at.saturating_sub(before.at));
            if span < u128::from(MEASURED_NS) {
                continue;
            }
            let rate = |now: u64, before: u64| {
                u64::try_from(u128::from(now.saturating_sub(before)) * 1_000_000_000 / span)
                    .unwrap_or(u64::MAX)
            };
            let disks = mark.bytes.iter().map(|(disk, (read, written))| {
                let (read_before, written_before) =
                    before.bytes.get(disk).copied().unwrap_or((*read, *written));
                (disk.clone(), (rate(*read, read_before), rate(*written, written_before)))
            });
            let used = Used { cpu: rate(mark.cpu_ns, before.cpu_ns), disks: disks.collect() };
            self.rates.insert(holder, used);
            self.marks.insert(holder, mark);
        }
        let marks = &self.marks;
        self.rates.retain(|holder, _| marks.contains_key(holder));
    }

    /// Bounds, guarantees, and what is taken.
    fn memory(&mut self, held: &Held<'_>, plan: &Plan, orders: &mut Vec<Step<PartOrder>>) {
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
        // From within: what is kept for a unit's own group is kept for those in it, too.
        let mut kept_in: BTreeMap<UnitId, (u64, u64)> = BTreeMap::new();
        for unit in held.units() {
            let force = self.unit(unit);
            let (holders, uses, caps) = memory_holders(held, unit);
            let inside = held.contract.held().filter(|sub| held.contract.unit(*sub).parent == Some(unit));
            let (mut min_inside, mut around) = (0u64, (0u64, 0u64));
            for sub in inside {
                let of_sub = self.unit(sub);
                min_inside = min_inside.saturating_add(of_sub.min);
                // A unit in it without a place is kept by its own group.
                let (min, low) = kept_in.get(&sub).copied().unwrap_or((of_sub.min, of_sub.low));
                around = (around.0.saturating_add(min), around.1.saturating_add(low));
            }
            let spread = |bytes: u64, caps: &[u64]| whole_pages(spread_with_own(bytes, &uses, caps));
            // Where a manager keeps memory itself, nothing is added to that.
            let mut keeps = caps.clone();
            for (cap, place) in keeps[1..].iter_mut().zip(held.directly(unit)) {
                *cap = if place.most.kept { 0 } else { *cap };
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
            let before: Vec<(u64, u64)> = self.told(unit, &holders, |told| told.kept.unwrap_or_default());
            let fresh = self.told(unit, &holders, |told| told.kept.is_none())[0];
            let min_differs =
                differ(before.iter().map(|kept| Some(kept.0)), kept.iter().map(|kept| Some(kept.0)));
            let low_differs =
                differ(before.iter().map(|kept| Some(kept.1)), kept.iter().map(|kept| Some(kept.1)));
            if fresh || min_differs || low_differs {
                for (nth, at) in
                    holders.iter().enumerate().filter(|(nth, _)| kept[*nth] != before[*nth] || *nth == 0)
                {
                    self.told.entry((unit, *at)).or_default().kept = Some(kept[nth]);
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
            let bounds: Vec<Option<u64>> =
                holders.iter().enumerate().map(|(nth, _)| bounds.as_ref().map(|of| of[nth])).collect();
            let before = self.told(unit, &holders, |told| told.allowed);
            if differ(before.iter().copied(), bounds.iter().copied()) {
                for (nth, at) in holders.iter().enumerate().filter(|(nth, _)| bounds[*nth] != before[*nth]) {
                    self.told.entry((unit, *at)).or_default().allowed = bounds[nth];
                    let action = PartOrder::Allow { unit, at: *at, bytes: bounds[nth] };
                    orders.push(Step { action, reason: Reason::FollowsUse });
                }
            }
        }
    }

    fn told<T>(&self, unit: UnitId, holders: &[Option<PlaceId>], what: impl Fn(&Told) -> T) -> Vec<T> {
        let none = Told::default();
        holders.iter().map(|at| what(self.told.get(&(unit, *at)).unwrap_or(&none))).collect()
    }

    /// What has left its places has all again. What was told a place is taken back by who saw it leave.
    fn give_back(
        &mut self,
        contract: &Contract,
        there: &BTreeSet<Holder>,
        orders: &mut Vec<Step<PartOrder>>,
    ) {
        let gone: Vec<Holder> = self.told.keys().filter(|holder| !there.contains(holder)).copied().collect();
        for (unit, at) in gone {
            let Some(told) = self.told.remove(&(unit, at)).filter(|_| at.is_none() && contract.has(unit))
            else {
                continue;
            };
            let force = self.unit(unit);
            let mut tell = |action| orders.push(Step { action, reason: Reason::FollowsUse });
            if told.kept.is_some() {
                tell(PartOrder::Guarantee { unit, at, min: force.min, low: force.low, own: force.own });
            }
            if told.allowed.is_some() {
                tell(PartOrder::Allow { unit, at, bytes: force.allowed });
            }
            if told.cap.is_some() {
                tell(PartOrder::Cap { unit, at, micro_cpus: force.cap });
            }
            for (disk, (read, write)) in
                force.rates.into_iter().filter(|(disk, _)| told.rates.contains_key(disk))
            {
                tell(PartOrder::Transfer { unit, at, disk, read, write });
            }
        }
    }

    /// A scheduler knows the places, and control groups held the CPUs until now: sets and caps would bind its hands. A weight may
    /// stay, since it goes by none.
    fn lift_cpus(&mut self, there: &BTreeSet<Holder>, orders: &mut Vec<Step<PartOrder>>) {
        for (holder, told) in &mut self.told {
            let (unit, at) = *holder;
            let (cpus, cap) = (told.cpus.take(), told.cap.take());
            told.weight = None;
            // The unit's orders lift what its own group has, and who saw a place leave takes back what that has.
            let Some(place) = at.filter(|_| there.contains(holder)) else { continue };
            let mut tell = |action| orders.push(Step { action, reason: Reason::FollowsUse });
            if cpus.is_some() {
                tell(PartOrder::Confine { unit, at: place, cpus: None });
            }
            if cap.is_some() {
                tell(PartOrder::Cap { unit, at, micro_cpus: None });
            }
        }
    }

    /// CPU sets, weights and caps, where no scheduler knows the places.
    fn cpus(&mut self, held: &Held<'_>, input: Input<'_>, plan: &Plan, orders: &mut Vec<Step<PartOrder>>) {
        let mut parts_of = BTreeMap::new();
        for (unit, places) in &held.of {
            let entitled = plan.decisions.cpu.entitled.get(unit.index()).copied().unwrap_or(0);
            let mut holders = vec![None];
            holders.extend(places.iter().map(|at| Some(held.places[*at].place)));
            let uses: Vec<u64> = holders.iter().map(|at| self.cpu_rate((*unit, *at)) / 1_000).collect();
            let parts = spread_with_own(entitled, &uses, &vec![u64::MAX; uses.len()]);
            let runs = lineage(held.contract, *unit).map(|unit| self.unit(unit).cpus);
            let cpus = match runs.into_iter().find(|runs| *runs != Runs::AsAround) {
                Some(Runs::On(cpus)) => Some(cpus),
                Some(Runs::Anywhere | Runs::AsAround) | None => None,
            };
            for (at, part) in places.iter().zip(&parts[1..]) {
                let facts = &held.places[*at];
                let told = self.told.entry((*unit, Some(facts.place))).or_default();
                // Where the manager allows none of the unit's CPUs, its own set stays.
                let wanted = match (&cpus, &facts.most.cpus) {
                    (Some(cpus), Some(most)) => Some(cpus.intersection(most)).filter(|both| !both.is_empty()),
                    (cpus, _) => cpus.clone(),
                };
                if input.means.cpu_sets && told.cpus != wanted {
                    told.cpus.clone_from(&wanted);
                    let action = PartOrder::Confine { unit: *unit, at: facts.place, cpus: wanted };
                    orders.push(Step { action, reason: Reason::FollowsUse });
                }
                if input.means.weights && !facts.most.weight {
                    parts_of.insert(*at, *part);
                }
            }
        }
        for (at, weight) in weights(held.places, &parts_of) {
            let PlaceFacts { unit, place, .. } = held.places[at];
            let told = self.told.entry((unit, Some(place))).or_default();
            if differs(told.weight.map(u64::from), Some(u64::from(weight))) {
                told.weight = Some(weight);
                let action = PartOrder::Weigh { unit, at: place, weight };
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

    /// The lowest part of any unit around a holder that has a cap.
    fn caps(&mut self, held: &Held<'_>, orders: &mut Vec<Step<PartOrder>>) {
        let mut parts: BTreeMap<Holder, u64> = BTreeMap::new();
        for unit in held.units() {
            let Some(cap) = self.unit(unit).cap else { continue };
            let within = held.within(unit);
            let mut holders = vec![(unit, None)];
            holders.extend(within.iter().map(|place| (place.unit, Some(place.place))));
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
        let is_free = |holder: &Holder| held.place(*holder).is_none_or(|place| !place.most.cap);
        for holder in held.holders().filter(is_free) {
            let part = parts.get(&holder).copied();
            let told = self.told.entry(holder).or_default();
            if differs(told.cap, part) {
                told.cap = part;
                let action = PartOrder::Cap { unit: holder.0, at: holder.1, micro_cpus: part };
                orders.push(Step { action, reason: Reason::FollowsUse });
            }
        }
    }

    /// Rates: the lowest part of any unit around a holder that has one.
    fn disks(&mut self, held: &Held<'_>, orders: &mut Vec<Step<PartOrder>>) {
        let mut parts: BTreeMap<(Holder, String), Rates> = BTreeMap::new();
        for unit in held.units() {
            for (disk, (read, write)) in self.unit(unit).rates {
                let within = held.within(unit);
                let mut holders = vec![(unit, None)];
                holders.extend(within.iter().map(|place| (place.unit, Some(place.place))));
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
            .told
            .iter()
            .flat_map(|(holder, told)| told.rates.keys().map(|disk| (*holder, disk.clone())))
            .collect();
        let all: BTreeSet<(Holder, String)> = before.into_iter().chain(parts.keys().cloned()).collect();
        let there: BTreeSet<Holder> = held.holders().collect();
        let is_free = |holder: &Holder| held.place(*holder).is_none_or(|place| !place.most.rates);
        for (holder, disk) in all.into_iter().filter(|(holder, _)| there.contains(holder) && is_free(holder))
        {
            let part = parts.get(&(holder, disk.clone())).copied().unwrap_or_default();
            let told = self.told.entry(holder).or_default();
            let before = told.rates.get(&disk).copied().unwrap_or_default();
            if differs(before.0, part.0) || differs(before.1, part.1) {
                if part == (None, None) {
                    told.rates.remove(&disk);
                } else {
                    told.rates.insert(disk.clone(), part);
                }
                let action =
                    PartOrder::Transfer { unit: holder.0, at: holder.1, disk, read: part.0, write: part.1 };
                orders.push(Step { action, reason: Reason::FollowsUse });
            }
        }
    }
}

/// The weights of places, by what each has of CPU time.
///
/// Among places in the same encloser weights are in proportion, and their mean is a kernel's default. So what stands beside them
/// there with the default weight, such as root's own sessions, has the part that it would have if no place were weighed: beside
/// N busy places 1/(N + 1). With weights that sum to a fixed number, it would be starved.
fn weights(places: &[PlaceFacts], parts: &BTreeMap<usize, u64>) -> Vec<(usize, u32)> {
    let encloser = |at: usize| places[at].group.rsplit_once('/').map_or("", |(encloser, _)| encloser);
    let mut sums: BTreeMap<&str, (u128, u128)> = BTreeMap::new();
    for (at, part) in parts {
        let sum = sums.entry(encloser(*at)).or_default();
        *sum = (sum.0 + 1, sum.1 + u128::from(*part));
    }
    let weight = |(at, part): (&usize, &u64)| {
        let (places, sum) = sums.get(encloser(*at)).copied().unwrap_or_default();
        let weight = (u128::from(*part) * u128::from(WEIGHT_DEFAULT) * places + sum / 2).checked_div(sum);
        let weight = weight.map_or(WEIGHT_DEFAULT, |weight| u32::try_from(weight).unwrap_or(WEIGHT_MAX));
        (*at, weight.clamp(1, WEIGHT_MAX))
    };
    parts.iter().map(weight).collect()
}

/// Rates are measured over this time at least.
const MEASURED_NS: Time = 100 * crate::time::MS;

/// The holders of a unit's own processes, what each is charged, and its most.
fn memory_holders(held: &Held<'_>, unit: UnitId) -> (Vec<Option<PlaceId>>, Vec<u64>, Vec<u64>) {
    let places = held.directly(unit);
    let own = held.own_memory(unit);
    let mut all = (vec![None], vec![own], vec![u64::MAX]);
    for place in places {
        all.0.push(Some(place.place));
        all.1.push(place.memory);
        all.2.push(place.most.memory.unwrap_or(u64::MAX));
    }
    all
}
