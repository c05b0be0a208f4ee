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
    /// Each unit owns home CPUs. A unit with a fraction of a CPU owns a shared CPU for part of the time, by
    /// rotation.
    Partition,
    /// Every CPU is time-shared in proportion to the entitlements.
    Proportional,
}

/// The three ways of sharing that seed 000 (table 3) compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// No isolation: the kernel schedules, and Commonhold only keeps accounts.
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

/// The order in which a unit's own tasks and its sub-units run, under a scheduler of the project that decides
/// at every switch. The variants say which task or sub-unit runs next.
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
    /// One that has CPU time left of its allowance, round robin; those that have used up their allowance come
    /// after all others. Allowances are handed out at intervals, in proportion to weights.
    JobCurrency,
    /// The sub-units take turns, each on all CPUs at once.
    Gang,
    /// The sub-unit with the earliest deadline: see [`Deadline`].
    Dwcs,
    /// The task with the least CPU time, in any sub-unit: no isolation within the unit.
    Smp,
    /// The sub-unit of the highest class. A sub-unit's own discipline determines its class; from the highest,
    /// the classes are real time, time share, entitlement and batch.
    Classes,
}

/// A promise of CPU time: a unit gets its budget before the end of each period, except in a few periods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// The time from one deadline to the next: at least 1 ms, and at most 4 s.
    pub period_ns: u32,
    /// The CPU time that the unit gets in each period, at most the length of the period.
    pub budget_ns: u32,
    /// How many deadlines may be missed in a window; fewer than `of`.
    pub misses: u32,
    /// The length of the window: a number of consecutive deadlines, 1 to 1,000.
    pub of: u32,
}

impl Discipline {
    /// All disciplines.
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

/// How the promised call-back time of a memory loan grows: the longer the owner left the memory idle, the
/// longer the time. A value of `None` is inherited from the enclosing unit, or from `[machine]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Growth {
    /// The fraction of the idle time that the promised time may take, in millionths. If it is 0, the promised
    /// time does not grow.
    pub idle: Option<u64>,
    /// The longest promised time, in nanoseconds. If it is less than `call-back-memory`, the promised time
    /// does not grow.
    pub most_ns: Option<u64>,
}

impl Growth {
    /// The values that differ from those of `other`; `None` for equal values.
    pub(crate) fn different_from(self, other: Growth) -> Growth {
        Growth {
            idle: self.idle.filter(|_| self.idle != other.idle),
            most_ns: self.most_ns.filter(|_| self.most_ns != other.most_ns),
        }
    }

    /// These values; each missing value is taken from `inherited`.
    fn or(self, inherited: Growth) -> Growth {
        Growth { idle: self.idle.or(inherited.idle), most_ns: self.most_ns.or(inherited.most_ns) }
    }
}

/// The promised call-back time of memory that a unit lends. It depends on how long the memory was idle
/// ([`Contract::promise`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    /// The time for memory that was idle for only a moment, in nanoseconds.
    pub first_ns: u64,
    /// The fraction of the idle time to which the promised time grows, in millionths.
    pub idle: u64,
    /// The longest promised time, in nanoseconds; at least `first_ns`.
    pub most_ns: u64,
}

impl Promise {
    /// The promised time, in nanoseconds, for memory that was idle for `idle_ns`. For example, with 1 s, 10 %
    /// and at most 30 s, it is 1 s for memory that was idle for 5 s, 6 s after a minute, and 30 s after an
    /// hour.
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
    /// Which of the three schemes applies.
    pub scheme: Scheme,
    /// Memory kept free so that a memory loan can be called back quickly (seed 000, section 3.2: 8 %).
    pub reserve: Amount,
    /// The interval at which a fractionally held CPU changes its owner, in nanoseconds (seed 000, section
    /// 3.1: 250 ms).
    pub rotation_ns: u64,
    /// The longest time that an owner may wait for a CPU that it lent, in nanoseconds (seed 000, section 3.1:
    /// 10 ms).
    pub call_back_ns: u64,
    /// The longest that calling back a loan of memory may take, in nanoseconds: 1 s. The seeds name no time.
    pub call_back_memory_ns: u64,
    /// How `call_back_memory_ns` grows while the owner leaves the memory idle, unless a unit overrides it.
    pub call_back_memory_grows: Growth,
    /// The half-life of credits from loans, by which the next borrower is chosen, in nanoseconds: 10 min. If
    /// it is 0, there are no credits, as in the seeds.
    pub loans_remembered_ns: u64,
    /// How CPUs are grouped into pools.
    pub pools: PoolForm,
    /// Whether CPUs that the kernel isolates (such as by `isolcpus`) are divided among units, too.
    pub isolated: bool,
    /// The rule that chooses the pool in which a job starts.
    pub placement: Placement,
    /// Whether scattered threads of a job are brought together when there is room.
    pub repartition: bool,
    /// Which jobs run together, as gangs.
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

/// The number by which a unit is identified: its index in [`Contract::units`]. A unit keeps its number as
/// long as it exists, also when the contract is reloaded ([`Contract::adopt`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct UnitId(pub u32);

impl UnitId {
    /// The built-in unit of kernel threads: never restricted (seed 000, section 2.2).
    pub const KERNEL: UnitId = UnitId(0);
    /// The built-in unit of unowned and shared processes and memory: never restricted (seed 000, section
    /// 2.2).
    pub const SHARED: UnitId = UnitId(1);

    /// The index in a slice with one element per unit.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether this is a built-in unit, `kernel` or `shared`. These hold no tickets.
    pub fn is_common(self) -> bool {
        self == UnitId::KERNEL || self == UnitId::SHARED
    }
}

/// A user or a group, as the contract writes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Principal {
    /// By number: `user:1000`.
    Id(u32),
    /// By name: `user:ana`. The name is looked up on the machine that runs the contract.
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

/// A rule by which processes belong to a unit. The variants are ordered from the least to the most specific;
/// the most specific match wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberKind {
    /// `user:FIRST-LAST`: processes whose effective user has a number from the first to the last. Of two
    /// ranges, the narrower wins.
    Users(u32, u32),
    /// `group:NAME`: processes that have this group as primary or supplementary group.
    Group(Principal),
    /// `user:NAME`: processes with this effective user.
    User(Principal),
    /// `command:GLOB`: processes whose program's base name matches (`*` and `?`), and their descendants.
    Command(String),
    /// `command:GLOB@user:NAME`, `command:GLOB@group:NAME`: processes that match both `command:GLOB` and the
    /// user or group.
    CommandOf(String, Whose),
    /// `cgroup:/PATH`: processes in that control group or below it; the path is as in /proc/PID/cgroup. If
    /// several rules match, the longest path wins.
    Cgroup(String),
    /// `pid:NUMBER`: that process, and its descendants.
    Pid(u32),
}

impl fmt::Display for MemberKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberKind::Users(first, last) => write!(f, "user:{first}-{last}"),
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
    /// Which processes it matches.
    pub kind: MemberKind,
    /// Its span in the contract.
    pub span: Span,
}

/// `each`: a sub-unit for each member of the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Each {
    /// One sub-unit per user.
    User,
    /// One sub-unit for each child of a control group that a `cgroup:` rule of the unit names. Another
    /// program created these children.
    Cgroup,
}

impl Each {
    /// All values of `each`.
    pub const ALL: [Each; 2] = [Each::User, Each::Cgroup];

    /// Its name in a contract.
    pub fn name(self) -> &'static str {
        match self {
            Each::User => "user",
            Each::Cgroup => "cgroup",
        }
    }
}

/// How the tickets of a sub-unit that `each` creates for a control group are determined from the settings of
/// the group's manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weighed {
    /// All sub-units have the same number.
    #[default]
    Equally,
    /// The number is in proportion to the group's CPUs.
    Cpus,
    /// The number is the group's `cpu.weight`.
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

/// The settings that the manager of a control group made for it, as Slurm does for a job's group. Empty for a
/// user's sub-unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Given {
    /// The number of CPUs, if the manager set it.
    pub cpus: Option<u32>,
    /// The group's `cpu.weight`, if the manager set it.
    pub weight: Option<u64>,
}

impl Given {
    /// The number of tickets of the group's sub-unit, for every resource. It is at least 1. If the manager
    /// did not make the setting, it is the default number.
    pub(crate) fn tickets(self, by: Weighed) -> u64 {
        let tickets = match by {
            Weighed::Equally => None,
            Weighed::Cpus => self.cpus.map(|cpus| u64::from(cpus) * DEFAULT_TICKETS),
            Weighed::Weight => self.weight,
        };
        tickets.unwrap_or(DEFAULT_TICKETS).max(1)
    }
}

/// The spans of those values of a unit that can only be checked on a machine.
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
    /// The unit's name, which differs from those of its siblings.
    pub name: String,
    /// The unit's path in reports and commands: `physics/night-batch`.
    pub path: String,
    /// The enclosing unit, whose currency funds this unit; `None` at the top level.
    pub parent: Option<UnitId>,
    /// The rules that select the unit's members. Those of a sub-unit select among the members of the
    /// enclosing unit.
    pub members: Vec<Member>,
    /// The user or group that may change the tickets of the sub-units, and give or offer the unit's own
    /// tickets.
    pub owner: Option<Member>,
    /// Whether each user among the members, or each control group, gets a sub-unit of its own.
    pub each: Option<Each>,
    /// With `each = "cgroup"`: how its sub-units' tickets are determined.
    pub each_by: Weighed,
    /// For a sub-unit that `each` created for a control group: the settings of the group's manager. The
    /// weight is the one that the group had when it appeared; the number of CPUs is kept up to date.
    pub given: Given,
    /// The unit's share of each resource relative to its siblings, at least 1.
    pub tickets: PerResource<u64>,
    /// The unit's reservations.
    pub hard: PerResource<Option<Amount>>,
    /// The limits that the unit never exceeds, even if resources are idle.
    pub limit: PerResource<Option<Amount>>,
    /// Whether the unit's idle resources may be lent, and how much of them.
    pub lend: PerResource<Permission>,
    /// Whether the unit may borrow resources, and how much of them.
    pub borrow: PerResource<Permission>,
    /// Whether the negotiator proposes and tries exchanges of the unit's tickets.
    pub negotiate: bool,
    /// How the promised call-back time of memory that the unit lends grows.
    pub call_back_memory_grows: Growth,
    /// The order in which the unit's own tasks and its sub-units run.
    pub discipline: Discipline,
    /// The unit's deadline. It has an effect only if the discipline of the enclosing unit is `dwcs`.
    pub deadline: Option<Deadline>,
    /// The rule by which the unit's processes form jobs; `None` if its threads are not placed in pools.
    pub job: Option<JobKind>,
    /// The span of the unit's name.
    pub span: Span,
    /// The spans of some of the unit's values.
    pub places: Places,
}

impl Unit {
    /// A unit with default values, as for an empty table.
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

    /// The span of the unit's reservation of a resource; if there is none, the span of the unit's name.
    pub fn hard_span(&self, resource: Resource) -> Span {
        self.places.hard[resource].clone().unwrap_or_else(|| self.span.clone())
    }

    /// Whether the unit has rules of its own for the resource: a reservation, a limit, an amount to lend or
    /// borrow, or tickets that differ from those for other resources.
    pub fn asks_for(&self, resource: Resource) -> bool {
        let tickets = self.tickets.single().is_none() && self.tickets[resource] != DEFAULT_TICKETS;
        let loans = [self.lend, self.borrow].iter().any(|loans| loans[resource].amount().is_some());
        tickets || loans || self.hard[resource].is_some() || self.limit[resource].is_some()
    }
}

/// A whole contract. Its values are consistent with each other. Whether they fit a machine is checked
/// elsewhere, by the policy crate.
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
    /// The indices in `units` of removed units, which later units may reuse.
    pub vacant: BTreeSet<UnitId>,
    /// The units that hold tickets, in the order of the text; empty if `units` has them in this order.
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
    /// The unit with this number, which must be in the range of [`Contract::ids`].
    pub fn unit(&self, id: UnitId) -> &Unit {
        &self.units[id.index()]
    }

    /// The unit with a path such as `physics/night-batch`; `None` if there is no such unit.
    pub fn find(&self, path: &str) -> Option<UnitId> {
        self.present().find(|id| self.unit(*id).path == path)
    }

    /// All indices in `units`, also those of the built-in units and of removed units. Lists with one element
    /// per unit have these indices.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = UnitId> + use<> {
        (0..u32::try_from(self.units.len()).unwrap_or(u32::MAX)).map(UnitId)
    }

    /// Whether the unit exists: it was declared or created, and not removed.
    pub fn has(&self, id: UnitId) -> bool {
        id.index() < self.units.len() && !self.vacant.contains(&id)
    }

    /// Every unit that exists, the built-in ones included; parents come before their children.
    pub fn present(&self) -> impl DoubleEndedIterator<Item = UnitId> + '_ {
        self.ids().filter(|id| self.has(*id))
    }

    /// Makes all units negotiate, in place of what the contract sets.
    pub fn negotiate(&mut self) {
        for unit in self.units.iter_mut().skip(UnitId::SHARED.index() + 1) {
            unit.negotiate = true;
        }
    }

    /// The resources for which the contract has rules of their own: those that a unit asks for.
    pub fn asked_for(&self) -> PerResource<bool> {
        let mut has_rules = PerResource::all(false);
        for unit in self.held().map(|id| self.unit(id)) {
            for resource in Resource::ALL {
                has_rules[resource] |= unit.asks_for(resource);
            }
        }
        has_rules
    }

    /// Every unit that holds tickets, which are all but the built-in ones; parents come before their
    /// children.
    pub fn held(&self) -> impl DoubleEndedIterator<Item = UnitId> + '_ {
        self.present().filter(|id| !id.is_common())
    }

    /// Every unit that holds tickets, in the order in which reports list them. This is the order of the text,
    /// in which each unit is followed by its sub-units. A sub-unit that was added later comes after its
    /// unit's other sub-units.
    pub fn listed(&self) -> Vec<UnitId> {
        let order = if self.order.is_empty() { self.held().collect() } else { self.order.clone() };
        // The sub-units are in reverse order, since they are taken from the end of a stack.
        let mut sub_units: BTreeMap<Option<UnitId>, Vec<UnitId>> = BTreeMap::new();
        for unit in order.into_iter().rev() {
            sub_units.entry(self.unit(unit).parent).or_default().push(unit);
        }
        let mut stack = sub_units.remove(&None).unwrap_or_default();
        let mut listed = Vec::new();
        while let Some(unit) = stack.pop() {
            listed.push(unit);
            stack.extend(sub_units.remove(&Some(unit)).unwrap_or_default());
        }
        listed
    }

    /// The promised call-back time of memory that the unit lends. The unit's own rules have precedence over
    /// those of the units around it, and these over those of `[machine]`.
    pub fn promise(&self, id: UnitId) -> Promise {
        let mut growth = Growth::default();
        let mut level = Some(id);
        while let Some(id) = level {
            growth = growth.or(self.unit(id).call_back_memory_grows);
            level = self.unit(id).parent;
        }
        let growth = growth.or(self.machine.call_back_memory_grows);
        Promise {
            first_ns: self.machine.call_back_memory_ns,
            idle: growth.idle.unwrap_or(0),
            most_ns: growth.most_ns.unwrap_or(0),
        }
    }

    /// The units directly in `parent`, or at the top level (`None`), by ascending number. The built-in units
    /// are left out.
    pub fn children(&self, parent: Option<UnitId>) -> impl Iterator<Item = UnitId> + '_ {
        self.held().filter(move |id| self.unit(*id).parent == parent)
    }

    /// Adds a unit with default values in `parent`, or at the top level (`None`); used to build contracts in
    /// code.
    pub fn add(&mut self, parent: Option<UnitId>, name: &str) -> UnitId {
        self.add_at(UnitId(u32::try_from(self.units.len()).unwrap_or(u32::MAX)), parent, name)
    }

    /// Adds a unit with default values in `parent`. It gets the number of a removed unit if `free` has such a
    /// number above the parent's. Otherwise it gets a new number.
    pub(crate) fn add_reusing(&mut self, parent: UnitId, name: &str, free: &BTreeSet<UnitId>) -> UnitId {
        match free.range(parent..).find(|id| self.vacant.contains(id)).copied() {
            Some(id) => self.add_at(id, Some(parent), name),
            None => self.add(Some(parent), name),
        }
    }

    /// Adds a unit with the number `id`, which is vacant or the next new one.
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

    /// Removes a unit without sub-units. Its number becomes vacant. The vacant entry keeps the unit's parent.
    pub(crate) fn remove(&mut self, id: UnitId) {
        if self.order.is_empty() {
            // From now on, the order of numbers may differ from the order in which units were added, so the
            // latter is stored.
            self.order = self.listed();
        }
        self.order.retain(|unit| *unit != id);
        let parent = self.unit(id).parent;
        self.units[id.index()] = Unit { parent, ..Unit::new("", None) };
        self.vacant.insert(id);
    }

    /// Renumbers the units of this contract, which replaces `before`. A unit that is in both contracts, by
    /// its path, gets the number that it has in `before`. The numbers of units that are only in `before`
    /// become vacant. With `reuse`, new units may get numbers that were vacant in `before`.
    ///
    /// Parents still come before their children.
    pub fn adopt(&mut self, before: &Contract, reuse: bool) {
        let known: BTreeMap<&str, UnitId> =
            before.present().map(|id| (before.unit(id).path.as_str(), id)).collect();
        let mut free: BTreeSet<UnitId> = if reuse { before.vacant.clone() } else { BTreeSet::new() };
        let mut next_number = u32::try_from(before.units.len()).unwrap_or(u32::MAX);
        let mut new_ids: BTreeMap<UnitId, UnitId> = BTreeMap::new();
        for id in self.present() {
            let unit = self.unit(id);
            let new_id = known.get(unit.path.as_str()).copied().unwrap_or_else(|| {
                // The number must be above that of the parent, which was renumbered before.
                let parent = unit.parent.and_then(|parent| new_ids.get(&parent)).copied();
                let from = parent.unwrap_or(UnitId::SHARED);
                free.range(from..).next().copied().unwrap_or_else(|| {
                    next_number += 1;
                    UnitId(next_number - 1)
                })
            });
            free.remove(&new_id);
            new_ids.insert(id, new_id);
        }
        let renumber = |id: UnitId| new_ids.get(&id).copied().unwrap_or(id);
        self.order = self.listed().into_iter().map(renumber).collect();
        self.default_unit = renumber(self.default_unit);
        let mut units = vec![Unit::new("", None); next_number as usize];
        for (id, mut unit) in (0..).map(UnitId).zip(std::mem::take(&mut self.units)) {
            if let Some(new_id) = new_ids.get(&id) {
                unit.parent = unit.parent.map(renumber);
                units[new_id.index()] = unit;
            }
        }
        self.units = units;
        let taken: BTreeSet<UnitId> = new_ids.into_values().collect();
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
        // A number above the parent's is reused, and only if that was allowed.
        for (reuse, expected) in [(true, [4, 5, 2]), (false, [4, 8, 9])] {
            let mut fourth = contract(&["b", "b/n", "e"]);
            fourth.adopt(&third, reuse);
            assert_eq!(["b", "b/n", "e"].map(|path| place(&fourth, path)), expected.map(Some));
        }
    }

    /// However a unit came: by a reload, in the middle of the text, or because a user appeared.
    #[test]
    fn units_are_listed_as_a_tree_in_the_order_of_the_text() {
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
        /// Whatever is reloaded in whatever order: a unit that stays keeps its identity, no two have the
        /// same, a parent stands before its children, and the tree is that of the text.
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
