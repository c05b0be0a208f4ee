//! The values of a checked contract.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::diagnostic::Span;
use crate::jobs::{GangRules, JobKind, Placement, PoolForm};
use crate::resource::{Amount, DEFAULT_TICKETS, MILLIONTH, PerResource, Permission, Resource};

/// How CPU is divided between units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CpuMode {
    /// Partition while there are no more units than CPUs, else proportional.
    #[default]
    Auto,
    /// Home CPUs per unit; fractions are held by rotating a CPU's ownership.
    Partition,
    /// Every CPU is time-shared in proportion to the entitlements.
    Proportional,
}

/// The three ways of sharing that seed 000 (table 3) compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// No isolation: the kernel schedules, Commonhold only keeps accounts.
    Smp,
    /// Isolation without sharing: idle resources are never lent.
    Quota,
    /// Isolation and sharing: idle resources are lent and called back.
    #[default]
    Isolate,
}

impl Scheme {
    /// The name that contracts, commands and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Smp => "smp",
            Scheme::Quota => "quota",
            Scheme::Isolate => "isolate",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which of a unit's own tasks and sub-units runs next, where a scheduler decides at every switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Discipline {
    /// The one with the least CPU time for its weight.
    #[default]
    Stride,
    /// A random one, with probabilities in proportion to weights.
    Lottery,
    /// The one with the least usage for its weight; usage decays within seconds.
    Entitlement,
    /// The one with the least usage for the square of its weight; usage decays within minutes.
    Decay,
    /// First come, first served, until it sleeps.
    Fifo,
    /// Round robin.
    Rr,
    /// Round robin, with long turns.
    Batch,
    /// An allowance at intervals, by weight: those that used less than theirs take turns before the others.
    JobCurrency,
    /// The sub-units take turns, each on all CPUs at once.
    Gang,
    /// The sub-unit with the earliest deadline: see [`Deadline`].
    Dwcs,
    /// The task with the least CPU time, in any sub-unit: no isolation within the unit.
    Smp,
    /// The sub-unit of the highest class, which its own discipline determines: real time, time share, entitlement, batch.
    Classes,
}

/// A CPU budget in each period, to be received before its end, except in a few periods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// In ns; at least 1 ms, and at most 4 s.
    pub period_ns: u32,
    /// In ns; no more than the period.
    pub budget_ns: u32,
    /// Deadlines that may be missed in a window, fewer than `of`.
    pub misses: u32,
    /// The window: consecutive deadlines, 1 to 1,000.
    pub of: u32,
}

impl Discipline {
    /// All of them.
    pub const ALL: [Discipline; 12] = [
        Discipline::Stride,
        Discipline::Lottery,
        Discipline::Entitlement,
        Discipline::Decay,
        Discipline::Fifo,
        Discipline::Rr,
        Discipline::Batch,
        Discipline::JobCurrency,
        Discipline::Gang,
        Discipline::Dwcs,
        Discipline::Smp,
        Discipline::Classes,
    ];

    /// The name that contracts, commands and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Discipline::Stride => "stride",
            Discipline::Lottery => "lottery",
            Discipline::Entitlement => "entitlement",
            Discipline::Decay => "decay",
            Discipline::Fifo => "fifo",
            Discipline::Rr => "rr",
            Discipline::Batch => "batch",
            Discipline::JobCurrency => "job-currency",
            Discipline::Gang => "gang",
            Discipline::Dwcs => "dwcs",
            Discipline::Smp => "smp",
            Discipline::Classes => "classes",
        }
    }
}

impl fmt::Display for Discipline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How the promised time to return a memory loan grows with the time that its owner left the memory idle. `None`: inherited
/// from the enclosing unit, or from `[machine]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Growth {
    /// The fraction of the idle time, in millionths. 0: it does not grow.
    pub idle: Option<u64>,
    /// The upper bound, in nanoseconds. Less than `call-back-memory`: it does not grow.
    pub most_ns: Option<u64>,
}

impl Growth {
    /// The values that differ from another.
    pub(crate) fn beyond(self, other: Growth) -> Growth {
        Growth {
            idle: self.idle.filter(|_| self.idle != other.idle),
            most_ns: self.most_ns.filter(|_| self.most_ns != other.most_ns),
        }
    }

    fn or(self, around: Growth) -> Growth {
        Growth { idle: self.idle.or(around.idle), most_ns: self.most_ns.or(around.most_ns) }
    }
}

/// The promised time to return memory that a unit lends: [`Contract::promise`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    /// The time for memory that was idle for only a moment, in nanoseconds.
    pub first_ns: u64,
    /// Its growth: a fraction of the idle time, in millionths.
    pub idle: u64,
    /// The upper bound, but not below `first_ns`, in nanoseconds.
    pub most_ns: u64,
}

impl Promise {
    /// The promised time, in nanoseconds, for memory that was idle for `idle_ns`.
    pub fn after(&self, idle_ns: u64) -> u64 {
        let part = u128::from(idle_ns) * u128::from(self.idle) / u128::from(MILLIONTH);
        u64::try_from(part).unwrap_or(u64::MAX).min(self.most_ns).max(self.first_ns)
    }
}

/// The `[machine]` table: rules for the machine as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineRules {
    /// How CPU is divided.
    pub cpu: CpuMode,
    /// Which of the three schemes holds.
    pub scheme: Scheme,
    /// Memory kept free so that a memory loan can be called back quickly (seed 000, section 3.2: 8 %).
    pub reserve: Amount,
    /// The interval at which a fractionally held CPU changes its owner, in nanoseconds (seed 000, section 3.1: 250 ms).
    pub rotation_ns: u64,
    /// The longest a lender may wait for a CPU it lent, in nanoseconds (seed 000, section 3.1: 10 ms).
    pub call_back_ns: u64,
    /// The longest that calling back a loan of memory may take, in nanoseconds: 1 s. The seeds name no time.
    pub call_back_memory_ns: u64,
    /// How that time grows while the owner leaves the memory idle, unless a unit overrides it.
    pub call_back_memory_grows: Growth,
    /// The half-life of lent and borrowed CPU time in the choice of the next borrower, in nanoseconds: 10 min. 0: no memory,
    /// as in the seeds.
    pub loans_remembered_ns: u64,
    /// How CPUs are grouped into pools.
    pub pools: PoolForm,
    /// Whether isolated CPUs are divided, too.
    pub isolated: bool,
    /// Which pool a job starts in.
    pub placement: Placement,
    /// Whether scattered threads of a job are brought together when there is room.
    pub repartition: bool,
    /// Which jobs run together.
    pub gangs: GangRules,
}

impl Default for MachineRules {
    fn default() -> Self {
        MachineRules {
            cpu: CpuMode::Auto,
            scheme: Scheme::Isolate,
            reserve: Amount::Part(80_000),
            rotation_ns: 250_000_000,
            call_back_ns: 10_000_000,
            call_back_memory_ns: 1_000_000_000,
            call_back_memory_grows: Growth { idle: Some(100_000), most_ns: Some(30_000_000_000) },
            loans_remembered_ns: 600_000_000_000,
            pools: PoolForm::Auto,
            isolated: false,
            placement: Placement::WorstFit,
            repartition: true,
            gangs: GangRules::default(),
        }
    }
}

/// A unit's identity, and its place in [`Contract::units`]. It lasts as long as the unit: a reload keeps it
/// ([`Contract::adopt`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct UnitId(pub u32);

impl UnitId {
    /// The built-in unit of kernel threads: never restricted (seed 000, section 2.2).
    pub const KERNEL: UnitId = UnitId(0);
    /// The built-in unit of unowned and shared processes and memory: never restricted (seed 000, section 2.2).
    pub const SHARED: UnitId = UnitId(1);

    /// The index in a slice with one element per unit.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether this is one of the built-in common parts, which hold no tickets.
    pub fn is_common(self) -> bool {
        self == UnitId::KERNEL || self == UnitId::SHARED
    }
}

/// A user or a group, as the contract writes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Principal {
    /// By number: `user:1000`.
    Id(u32),
    /// By name, to be looked up on the machine at hand: `user:ana`.
    Name(String),
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Id(id) => write!(f, "{id}"),
            Principal::Name(name) => f.write_str(name),
        }
    }
}

/// The user or group to which a `command:` rule is restricted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// Processes with this effective user.
    User(Principal),
    /// Processes with this primary or supplementary group.
    Group(Principal),
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whose::User(p) => write!(f, "user:{p}"),
            Whose::Group(p) => write!(f, "group:{p}"),
        }
    }
}

/// A criterion by which processes belong to a unit. From least to most specific; the most specific match wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberKind {
    /// `group:NAME`: processes whose primary or supplementary groups include it.
    Group(Principal),
    /// `user:NAME`: processes whose effective user it is.
    User(Principal),
    /// `command:GLOB`: processes whose program's base name matches (`*` and `?`), and their descendants.
    Command(String),
    /// `command:GLOB@user:NAME`, `command:GLOB@group:NAME`: the same, of these users only.
    CommandOf(String, Whose),
    /// `cgroup:/PATH`: processes in that control group or below, as /proc/PID/cgroup shows it. Longest path wins.
    Cgroup(String),
    /// `pid:NUMBER`: that process, and its descendants.
    Pid(u32),
}

impl fmt::Display for MemberKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberKind::Group(p) => write!(f, "group:{p}"),
            MemberKind::User(p) => write!(f, "user:{p}"),
            MemberKind::Command(glob) => write!(f, "command:{glob}"),
            MemberKind::CommandOf(glob, whose) => write!(f, "command:{glob}@{whose}"),
            MemberKind::Cgroup(path) => write!(f, "cgroup:{path}"),
            MemberKind::Pid(pid) => write!(f, "pid:{pid}"),
        }
    }
}

/// One entry of `members`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// What it matches.
    pub kind: MemberKind,
    /// Its span.
    pub span: Span,
}

/// `each`: a sub-unit for each member of the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Each {
    /// One sub-unit per user.
    User,
    /// One sub-unit per child of a control group named by a `cgroup:` rule of the unit: another program created it.
    Cgroup,
}

impl Each {
    /// All of them.
    pub const ALL: [Each; 2] = [Each::User, Each::Cgroup];

    /// Its name in a contract.
    pub fn name(self) -> &'static str {
        match self {
            Each::User => "user",
            Each::Cgroup => "cgroup",
        }
    }
}

/// The tickets of a sub-unit that `each` creates for a control group, by the settings of the group's manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weighed {
    /// All the same.
    #[default]
    Equally,
    /// In proportion to its CPUs.
    Cpus,
    /// Equal to its `cpu.weight`.
    Weight,
}

impl Weighed {
    /// The values with a name in a contract.
    pub const ALL: [Weighed; 2] = [Weighed::Cpus, Weighed::Weight];

    /// Its name in a contract; `equally` is the default.
    pub fn name(self) -> &'static str {
        match self {
            Weighed::Equally => "equally",
            Weighed::Cpus => "cpus",
            Weighed::Weight => "weight",
        }
    }
}

/// The settings of a control group's manager; empty for a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Given {
    /// The number of CPUs, if set.
    pub cpus: Option<u32>,
    /// Its `cpu.weight`.
    pub weight: Option<u64>,
}

impl Given {
    /// The tickets of a sub-unit, of each resource: at least 1. The default number if its manager has set nothing.
    pub(crate) fn tickets(self, by: Weighed) -> u64 {
        let tickets = match by {
            Weighed::Equally => None,
            Weighed::Cpus => self.cpus.map(|cpus| u64::from(cpus) * DEFAULT_TICKETS),
            Weighed::Weight => self.weight,
        };
        tickets.unwrap_or(DEFAULT_TICKETS).max(1)
    }
}

/// Spans of values that can only be checked on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places {
    /// The list of members, even if empty; `None` if the unit has no such key.
    pub members: Option<Span>,
    /// Each reservation.
    pub hard: PerResource<Option<Span>>,
    /// Each limit.
    pub limit: PerResource<Option<Span>>,
}

/// A unit: its members, its rights, and what it lends and borrows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Its name among its siblings.
    pub name: String,
    /// Its path in reports and commands: `physics/night-batch`.
    pub path: String,
    /// The unit whose currency funds it; `None` at the top level.
    pub parent: Option<UnitId>,
    /// Its members. In a sub-unit, these select among the members of the enclosing unit.
    pub members: Vec<Member>,
    /// The user or group that controls the tickets in it, and transfers its own: see the policy's membership.
    pub owner: Option<Member>,
    /// Whether each of its users, or of its control groups, gets a sub-unit.
    pub each: Option<Each>,
    /// How the tickets of a sub-unit of a control group are determined.
    pub each_by: Weighed,
    /// Of such a sub-unit: the settings of the group's manager when it appeared, and its current CPUs.
    pub given: Given,
    /// Soft tickets, against its siblings, for each resource. At least 1.
    pub tickets: PerResource<u64>,
    /// Absolute reservations.
    pub hard: PerResource<Option<Amount>>,
    /// Limits that it never exceeds, even if resources are idle.
    pub limit: PerResource<Option<Amount>>,
    /// Whether, and how much of, its idle resources may be lent.
    pub lend: PerResource<Permission>,
    /// Whether, and how much, it may borrow.
    pub borrow: PerResource<Permission>,
    /// Whether the negotiator proposes and tries exchanges of its tickets.
    pub negotiate: bool,
    /// How the promised time to return memory that it lends grows.
    pub call_back_memory_grows: Growth,
    /// Which of its own tasks and its sub-units runs next.
    pub discipline: Discipline,
    /// Its demand if the discipline of the enclosing unit is `dwcs`.
    pub deadline: Option<Deadline>,
    /// Which of its processes form one job; `None`: its threads are not placed in pools.
    pub job: Option<JobKind>,
    /// The span of its name.
    pub span: Span,
    /// The spans of values above.
    pub places: Places,
}

impl Unit {
    /// A unit with every default, as for an empty table.
    pub fn new(name: &str, parent: Option<(UnitId, &str)>) -> Self {
        Unit {
            name: name.to_owned(),
            path: parent.map_or_else(|| name.to_owned(), |(_, path)| format!("{path}/{name}")),
            parent: parent.map(|(id, _)| id),
            members: Vec::new(),
            owner: None,
            each: None,
            each_by: Weighed::default(),
            given: Given::default(),
            tickets: PerResource::all(DEFAULT_TICKETS),
            hard: PerResource::default(),
            limit: PerResource::default(),
            lend: PerResource::default(),
            borrow: PerResource::default(),
            negotiate: false,
            call_back_memory_grows: Growth::default(),
            discipline: Discipline::Stride,
            deadline: None,
            job: None,
            span: 0..0,
            places: Places::default(),
        }
    }

    /// The span of its reservation of a resource; of the unit itself, if it has no such reservation.
    pub fn hard_span(&self, resource: Resource) -> Span {
        self.places.hard[resource].clone().unwrap_or_else(|| self.span.clone())
    }
}

/// A whole contract, checked by itself; the policy crate decides whether it fits a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contract {
    /// Rules for the machine as a whole.
    pub machine: MachineRules,
    /// The span of `machine.pools`; empty if it is not set.
    pub pools_span: Span,
    /// All units: `kernel`, `shared`, then the contract's own, each parent before its children.
    pub units: Vec<Unit>,
    /// The unit of processes that match no member: [`UnitId::SHARED`] unless `machine.default` names one.
    pub default_unit: UnitId,
    /// Places in `units` of removed units.
    pub vacant: BTreeSet<UnitId>,
    /// The units that hold tickets, in the order of the text; empty if that is the order of their places.
    order: Vec<UnitId>,
}

impl Default for Contract {
    fn default() -> Self {
        Contract {
            machine: MachineRules::default(),
            pools_span: 0..0,
            units: vec![Unit::new("kernel", None), Unit::new("shared", None)],
            default_unit: UnitId::SHARED,
            vacant: BTreeSet::new(),
            order: Vec::new(),
        }
    }
}

impl Contract {
    /// The unit with an identity of this contract.
    pub fn unit(&self, id: UnitId) -> &Unit {
        &self.units[id.index()]
    }

    /// The unit with that path, as `exec` and `status` name it.
    pub fn find(&self, path: &str) -> Option<UnitId> {
        self.present().find(|id| self.unit(*id).path == path)
    }

    /// Every place for a unit, including the common parts and vacant ones: the index range of lists with one element per
    /// unit.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = UnitId> + use<> {
        (0..u32::try_from(self.units.len()).unwrap_or(u32::MAX)).map(UnitId)
    }

    /// Whether the unit exists.
    pub fn has(&self, id: UnitId) -> bool {
        id.index() < self.units.len() && !self.vacant.contains(&id)
    }

    /// Every unit, the common parts included; parents before their children.
    pub fn present(&self) -> impl DoubleEndedIterator<Item = UnitId> + '_ {
        self.ids().filter(|id| self.has(*id))
    }

    /// Makes all units negotiate, whatever the contract sets.
    pub fn negotiate(&mut self) {
        for unit in self.units.iter_mut().skip(UnitId::SHARED.index() + 1) {
            unit.negotiate = true;
        }
    }

    /// Resources for which the contract sets something other than tickets for all resources.
    pub fn asked_for(&self) -> PerResource<bool> {
        let mut asked = PerResource::all(false);
        for unit in self.held().map(|id| self.unit(id)) {
            for resource in Resource::ALL {
                let tickets = unit.tickets.single().is_none() && unit.tickets[resource] != DEFAULT_TICKETS;
                let loans = [unit.lend, unit.borrow].iter().any(|loans| loans[resource].amount().is_some());
                asked[resource] |=
                    tickets || loans || unit.hard[resource].is_some() || unit.limit[resource].is_some();
            }
        }
        asked
    }

    /// Every unit that holds tickets: all but the common parts; parents before their children.
    pub fn held(&self) -> impl DoubleEndedIterator<Item = UnitId> + '_ {
        self.present().filter(|id| !id.is_common())
    }

    /// The same in the order of reports: that of the text, each followed by its sub-units. A sub-unit that was added later
    /// follows the others of its unit.
    pub fn listed(&self) -> Vec<UnitId> {
        let order = if self.order.is_empty() { self.held().collect() } else { self.order.clone() };
        let mut inside: BTreeMap<Option<UnitId>, Vec<UnitId>> = BTreeMap::new();
        for unit in order.into_iter().rev() {
            inside.entry(self.unit(unit).parent).or_default().push(unit);
        }
        let mut next = inside.remove(&None).unwrap_or_default();
        let mut listed = Vec::new();
        while let Some(unit) = next.pop() {
            listed.push(unit);
            next.extend(inside.remove(&Some(unit)).unwrap_or_default());
        }
        listed
    }

    /// The promised time to return memory that the unit lends.
    pub fn promise(&self, id: UnitId) -> Promise {
        let mut grows = Growth::default();
        let mut around = Some(id);
        while let Some(id) = around {
            grows = grows.or(self.unit(id).call_back_memory_grows);
            around = self.unit(id).parent;
        }
        let grows = grows.or(self.machine.call_back_memory_grows);
        Promise {
            first_ns: self.machine.call_back_memory_ns,
            idle: grows.idle.unwrap_or(0),
            most_ns: grows.most_ns.unwrap_or(0),
        }
    }

    /// The units directly below `parent`, in the order of their places; `None` for the top level. Common parts left out.
    pub fn children(&self, parent: Option<UnitId>) -> impl Iterator<Item = UnitId> + '_ {
        self.held().filter(move |id| self.unit(*id).parent == parent)
    }

    /// Adds a unit below `parent` with every default; used to build contracts in code.
    pub fn add(&mut self, parent: Option<UnitId>, name: &str) -> UnitId {
        self.add_at(UnitId(u32::try_from(self.units.len()).unwrap_or(u32::MAX)), parent, name)
    }

    /// The same, in a vacant and free place behind its parent's, if any.
    pub(crate) fn add_reusing(&mut self, parent: UnitId, name: &str, free: &BTreeSet<UnitId>) -> UnitId {
        match free.range(parent..).find(|place| self.vacant.contains(place)).copied() {
            Some(place) => self.add_at(place, Some(parent), name),
            None => self.add(Some(parent), name),
        }
    }

    fn add_at(&mut self, id: UnitId, parent: Option<UnitId>, name: &str) -> UnitId {
        let parent = parent.map(|p| (p, self.unit(p).path.clone()));
        let unit = Unit::new(name, parent.as_ref().map(|(id, path)| (*id, path.as_str())));
        if self.vacant.remove(&id) {
            self.units[id.index()] = unit;
        } else {
            self.units.push(unit);
        }
        if !self.order.is_empty() {
            self.order.push(id);
        }
        id
    }

    /// Removes a unit without sub-units; its place becomes vacant, and keeps its parent.
    pub(crate) fn remove(&mut self, id: UnitId) {
        if self.order.is_empty() {
            // The order of places may now differ from the order in which units were added.
            self.order = self.listed();
        }
        self.order.retain(|unit| *unit != id);
        let parent = self.unit(id).parent;
        self.units[id.index()] = Unit { parent, ..Unit::new("", None) };
        self.vacant.insert(id);
    }

    /// Gives units the identities of units with the same path in `before`, which this contract replaces. The places of removed
    /// units become vacant. `reuse`: places that were vacant in `before` may be taken by new units.
    ///
    /// Parents stay before their children.
    pub fn adopt(&mut self, before: &Contract, reuse: bool) {
        let known: BTreeMap<&str, UnitId> =
            before.present().map(|id| (before.unit(id).path.as_str(), id)).collect();
        let mut free: BTreeSet<UnitId> = if reuse { before.vacant.clone() } else { BTreeSet::new() };
        let mut end = u32::try_from(before.units.len()).unwrap_or(u32::MAX);
        let mut new: BTreeMap<UnitId, UnitId> = BTreeMap::new();
        for id in self.present() {
            let unit = self.unit(id);
            let place = known.get(unit.path.as_str()).copied().unwrap_or_else(|| {
                // Behind its parent, which already has a place.
                let parent = unit.parent.and_then(|parent| new.get(&parent)).copied();
                let from = parent.unwrap_or(UnitId::SHARED);
                free.range(from..).next().copied().unwrap_or_else(|| {
                    end += 1;
                    UnitId(end - 1)
                })
            });
            free.remove(&place);
            new.insert(id, place);
        }
        let moved = |id: UnitId| new.get(&id).copied().unwrap_or(id);
        self.order = self.listed().into_iter().map(moved).collect();
        self.default_unit = moved(self.default_unit);
        let mut units = vec![Unit::new("", None); end as usize];
        for (id, mut unit) in (0..).map(UnitId).zip(std::mem::take(&mut self.units)) {
            if let Some(place) = new.get(&id) {
                unit.parent = unit.parent.map(moved);
                units[place.index()] = unit;
            }
        }
        self.units = units;
        let taken: BTreeSet<UnitId> = new.into_values().collect();
        self.vacant = self.ids().filter(|id| !taken.contains(id)).collect();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn contract(paths: &[&str]) -> Contract {
        let mut contract = Contract::default();
        for path in paths {
            let (parent, name) = path.rsplit_once('/').map_or((None, *path), |(up, name)| (Some(up), name));
            let parent = parent.map(|parent| contract.find(parent).unwrap());
            contract.add(parent, name);
        }
        contract
    }

    fn place(contract: &Contract, path: &str) -> Option<u32> {
        contract.find(path).map(|id| id.0)
    }

    #[test]
    fn a_unit_keeps_its_identity() {
        let first = contract(&["a", "a/x", "b"]);
        let mut second = contract(&["b", "c", "a", "a/y", "a/x"]);
        second.default_unit = second.find("c").unwrap();
        second.adopt(&first, true);
        assert_eq!(["a", "a/x", "b", "c", "a/y"].map(|path| place(&second, path)), [2, 3, 4, 5, 6].map(Some));
        assert_eq!(second.default_unit, UnitId(5));
        let listed: Vec<&str> = second.listed().iter().map(|id| second.unit(*id).path.as_str()).collect();
        assert_eq!(listed, ["b", "c", "a", "a/y", "a/x"]);
        assert!(second.vacant.is_empty());
        let mut third = contract(&["b", "d"]);
        third.adopt(&second, true);
        assert_eq!(["b", "d", "a"].map(|path| place(&third, path)), [Some(4), Some(7), None]);
        assert_eq!(third.vacant.iter().map(|id| id.0).collect::<Vec<_>>(), [2, 3, 5, 6]);
        // A place behind the parent is reused, and only if that was allowed.
        for (reuse, expected) in [(true, [4, 5, 2]), (false, [4, 8, 9])] {
            let mut fourth = contract(&["b", "b/n", "e"]);
            fourth.adopt(&third, reuse);
            assert_eq!(["b", "b/n", "e"].map(|path| place(&fourth, path)), expected.map(Some));
        }
    }

    /// Whenever a unit came: by a reload, in the middle of the text, or since a user was seen.
    #[test]
    fn units_are_listed_as_the_text_has_them_and_as_a_tree() {
        let listed = |contract: &Contract| -> Vec<String> {
            contract.listed().iter().map(|id| contract.unit(*id).path.clone()).collect()
        };
        let mut first = contract(&["a", "b"]);
        let a = first.find("a");
        first.add(a, "ana");
        assert_eq!(listed(&first), ["a", "a/ana", "b"]);
        let mut second = contract(&["new", "b", "a", "a/x"]);
        let a = second.find("a");
        second.add(a, "ana");
        second.adopt(&first, true);
        let inner = second.add(second.find("new"), "bo");
        second.add(Some(inner), "deep");
        second.add(second.find("b"), "ana");
        let expected = ["new", "new/bo", "new/bo/deep", "b", "b/ana", "a", "a/x", "a/ana"];
        assert_eq!(listed(&second), expected);
        assert_eq!(listed(&Contract::default()), [""; 0]);
    }

    proptest! {
        /// Whatever is reloaded in whatever order: a unit that stays keeps its identity, no two have the same, a parent
        /// stands before its children, and the tree is that of the text.
        #[test]
        fn identities_last(reloads in proptest::collection::vec(proptest::collection::vec((0u8..6, 0u8..6), 0..12), 1..8)) {
            let mut before = Contract::default();
            for units in reloads {
                let mut contract = Contract::default();
                for (outer, inner) in units {
                    let (outer, inner) = (format!("u{outer}"), format!("s{inner}"));
                    let parent = contract.find(&outer).unwrap_or_else(|| contract.add(None, &outer));
                    if contract.find(&format!("{outer}/{inner}")).is_none() {
                        contract.add(Some(parent), &inner);
                    }
                }
                let mut paths: Vec<String> = contract.present().map(|id| contract.unit(id).path.clone()).collect();
                contract.adopt(&before, true);
                let mut after: Vec<String> = contract.present().map(|id| contract.unit(id).path.clone()).collect();
                paths.sort();
                after.sort();
                prop_assert_eq!(paths, after);
                for id in contract.present() {
                    let unit = contract.unit(id);
                    if let Some(known) = before.find(&unit.path) {
                        prop_assert_eq!(known, id);
                    }
                    prop_assert!(unit.parent.is_none_or(|parent| parent < id && contract.has(parent)));
                    let encloser = unit.path.rsplit_once('/').map(|(up, _)| up);
                    prop_assert_eq!(unit.parent.map(|parent| contract.unit(parent).path.as_str()), encloser);
                }
                before = contract;
            }
        }
    }
}
