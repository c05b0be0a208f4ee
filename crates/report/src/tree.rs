//! The tree of units with each unit's entitlement on a machine, for `check`.

use commonhold_contract::{
    Amount, Contract, Each, JobKind, MILLIONTH, MachineRules, PerResource, Permission, PoolForm, Resource,
    Unit, UnitId, Weighed,
};
use commonhold_machine::pools::{Pool, Pools};
use commonhold_machine::{CpuSet, Machine};
use commonhold_policy::entitlement::{Capacity, Entitlement};
use serde::Serialize;

use crate::figures::{amount, bytes, count};
use crate::holdings::Outlook;
use crate::present::EXEMPT;
use crate::table::{Paint, Style, Table, clean, fit, wrap};

/// The division of one resource among the units of a contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Division {
    /// The amount that is divided, and its unit of measure.
    pub capacity: Capacity,
    /// Each unit's entitlement.
    pub entitlement: Entitlement,
}

impl Division {
    fn whole(&self) -> Amount {
        self.amount(self.capacity.total())
    }

    pub(crate) fn of(&self, unit: UnitId) -> Amount {
        self.amount(self.entitlement.value(unit))
    }

    fn amount(&self, value: u64) -> Amount {
        match self.capacity {
            Capacity::Known(_) | Capacity::Pieces { .. } => Amount::Absolute(value),
            Capacity::Parts => Amount::Part(value),
        }
    }
}

/// The greatest width of the lines that show nesting. Deeper nesting is cut on the left.
const BRANCH_COLUMNS_MAX: usize = 20;

/// The machine in a few words: `8 CPUs, 4 nodes, 16 GiB memory, 1 disk`.
pub fn summary(machine: &Machine) -> String {
    let mut parts = vec![
        count(machine.cpus.len(), "CPU"),
        count(machine.nodes.len(), "node"),
        format!("{} memory", bytes(machine.memory_bytes())),
    ];
    if machine.swap_bytes > 0 {
        parts.push(format!("{} swap", bytes(machine.swap_bytes)));
    }
    if !machine.disks.is_empty() {
        parts.push(count(machine.disks.len(), "disk"));
    }
    parts.join(", ")
}

/// The tree for a terminal, with each unit's entitlement under `divisions`. The built-in units, which hold no
/// tickets, are not listed.
pub fn text(
    contract: &Contract,
    machine: &Machine,
    divisions: &PerResource<Division>,
    style: Style,
) -> String {
    let mut head = style.paint(Paint::Strong, &summary(machine));
    head += &format!("\nscheme {}, reserve {}\n", contract.machine.scheme, reserve(contract.machine.reserve));
    if says_jobs(contract) {
        head += &(wrap(&pools(contract, machine), style.width, "", "").join("\n") + "\n");
    }
    head.push('\n');
    let units = contract.held().count();
    if units == 0 {
        return head + "The contract names no units: all is shared, and nothing is isolated.\n";
    }
    let tree = Tree::new(contract, divisions);
    let mut table = Table::new(&["unit", "tickets", "cpu", "memory", "disk", "bus"]);
    let whole = Resource::ALL.map(|resource| amount(resource, divisions[resource].whole()));
    table.row(Paint::Faint, row("(to divide)".to_owned(), String::new(), whole));
    // The tree is traversed depth first with an explicit stack, since a contract made in code may be nested
    // too deeply for recursion.
    let mut stack: Vec<(UnitId, Branch)> = tree.branches(None, &Branch::default());
    while let Some((unit, branch)) = stack.pop() {
        tree.add_unit(&mut table, unit, &branch, style);
        stack.extend(tree.branches(Some(unit), &branch));
    }
    let unheld = Resource::ALL.map(|resource| divisions[resource].entitlement.unheld);
    if unheld.iter().any(|value| *value > 0) {
        table.row(Paint::Faint, row("(held by none)".to_owned(), String::new(), tree.amount_cells(unheld)));
    }
    head + &table.render(style) + "\n" + &footer(contract, units, style)
}

/// Whether a contract has any rule about jobs or pools.
fn says_jobs(contract: &Contract) -> bool {
    let (now, usual) = (&contract.machine, MachineRules::default());
    contract.held().any(|id| contract.unit(id).job.is_some())
        || (now.pools, now.placement, now.repartition) != (usual.pools, usual.placement, usual.repartition)
}

/// A line about pools: the machine's pools under the contract, the reason for them, and the rule that places
/// jobs in them.
fn pools(contract: &Contract, machine: &Machine) -> String {
    let rules = &contract.machine;
    let pools = commonhold_policy::pools(machine, rules.pools);
    let why = match rules.pools {
        PoolForm::Auto => format!(": {}", Pools::why(machine)),
        _ => ", as `pools` says".to_owned(),
    };
    let placed = match (pools.pools.len(), contract.held().any(|id| contract.unit(id).job.is_some())) {
        (1, _) => "jobs are not placed, as there is nothing to choose".to_owned(),
        (_, false) => "units have home CPUs there; no unit says `job`, so no jobs are placed".to_owned(),
        (_, true) if rules.repartition => format!("placement {}", rules.placement),
        (_, true) => format!("placement {}, no repartition", rules.placement),
    };
    format!("{}{why}; {placed}", pools.summary())
}

fn reserve(reserve: Amount) -> String {
    format!("{} of memory", amount(Resource::Memory, reserve))
}

fn footer(contract: &Contract, units: usize, style: Style) -> String {
    let default = &contract.unit(contract.default_unit).path;
    let rest = if contract.default_unit.is_common() {
        format!(
            "A process that matches no unit is in `{default}`, which holds no tickets and is not restricted."
        )
    } else {
        format!("A process that matches no unit is in `{}`.", clean(default))
    };
    let lending = "Each unit lends and borrows what is idle, unless the contract says otherwise.";
    let memory =
        "Memory is shown less the reserve; `run` divides what the kernel and processes in no unit leave.";
    let exempt = format!("These are in no unit: {EXEMPT}.");
    let text = format!("{}. {lending} {memory} {rest} {exempt}", count(units, "unit"));
    wrap(&text, style.width, "", "").join("\n") + "\n"
}

/// The box-drawing lines of the tree at a unit: the text before the unit's name, and the text before its
/// notes and sub-units.
#[derive(Default, Clone)]
struct Branch {
    name: String,
    below: String,
}

/// A contract with an index of its sub-units, which the report looks up often.
struct Tree<'a> {
    contract: &'a Contract,
    divisions: &'a PerResource<Division>,
    /// Each unit's sub-units, by the unit's index. The last element has the units at the top level.
    children: Vec<Vec<UnitId>>,
}

impl<'a> Tree<'a> {
    fn new(contract: &'a Contract, divisions: &'a PerResource<Division>) -> Self {
        let top = contract.units.len();
        let mut children = vec![Vec::new(); top + 1];
        for unit in contract.held() {
            children[contract.unit(unit).parent.map_or(top, UnitId::index)].push(unit);
        }
        Tree { contract, divisions, children }
    }

    /// Converts an amount in the unit's table of the contract to the division's unit of measure. A percentage
    /// is of the enclosing unit's entitlement. An absolute amount is returned unchanged.
    fn asked(&self, unit: UnitId, resource: Resource, asked: Amount) -> Amount {
        match asked {
            Amount::Part(_) => self.divisions[resource].amount(asked.of(self.around(unit, resource))),
            Amount::Absolute(_) => asked,
        }
    }

    /// An amount of the contract in the division's unit of measure. 0 if there is no amount, or if an
    /// absolute amount cannot be converted since the machine's capacity is not known.
    fn worth(&self, unit: UnitId, resource: Resource, asked: Option<Amount>) -> u64 {
        match (self.divisions[resource].capacity, asked) {
            (Capacity::Parts, Some(Amount::Absolute(_))) | (_, None) => 0,
            (_, Some(asked)) => asked.of(self.around(unit, resource)),
        }
    }

    /// The amount that is divided among a unit and its siblings.
    fn around(&self, unit: UnitId, resource: Resource) -> u64 {
        let division = &self.divisions[resource];
        let parent = self.contract.unit(unit).parent;
        parent.map_or(division.capacity.total(), |parent| division.entitlement.value(parent))
    }

    /// The unit's entitlement as the sum of its reservation and the worth of its tickets, in words:
    /// `cpu: 25% reserved + 50% of the other 75% by tickets = 62.5% of the machine`. `None` for a unit at the
    /// top level that has only a reservation, since its row already shows the reservation.
    fn sum(&self, id: UnitId, resource: Resource) -> Option<String> {
        let unit = self.contract.unit(id);
        let asked = unit.hard[resource]?;
        let (whole, value) = (self.around(id, resource), self.divisions[resource].of(id));
        let (Amount::Absolute(value) | Amount::Part(value)) = value;
        let reserved = self.worth(id, resource, Some(asked));
        let soft = value.saturating_sub(reserved);
        let in_parts = matches!(asked, Amount::Part(_));
        if reserved == 0 || whole == 0 || (soft == 0 && (unit.parent.is_none() || !in_parts)) {
            return None;
        }
        let part = |n: u64, of: u64| amount(resource, Amount::Part(millionths(n, of)));
        let shown = |n: u64| match in_parts {
            true => part(n, whole),
            false => amount(resource, self.divisions[resource].amount(n)),
        };
        let of = match unit.parent {
            Some(parent) => {
                let path = clean(&self.contract.unit(parent).path);
                format!(" of what `{path}` is entitled to, tickets included")
            }
            None if in_parts => format!(" of {}", whole_of(resource)),
            None => String::new(),
        };
        if soft == 0 {
            return Some(format!("{resource}: {} reserved{of}", shown(reserved)));
        }
        let siblings = &self.children[unit.parent.map_or(self.contract.units.len(), UnitId::index)];
        let all_reserved: u64 =
            siblings.iter().map(|id| self.worth(*id, resource, self.contract.unit(*id).hard[resource])).sum();
        let rest = whole.saturating_sub(all_reserved);
        let others = if all_reserved == reserved { "the other" } else { "the unreserved" };
        let (tickets, rest, sum) = (part(soft, rest), shown(rest), shown(value));
        let of = if in_parts || unit.parent.is_none() { of } else { String::new() };
        let limit = unit.limit[resource].map(|limit| self.worth(id, resource, Some(limit)));
        let limit = if limit == Some(value) { ", its limit" } else { "" };
        let reserved = shown(reserved);
        Some(format!(
            "{resource}: {reserved} reserved + {tickets} of {others} {rest} by tickets = {sum}{of}{limit}"
        ))
    }

    /// Cells for amounts beside the rows of units: what no unit holds, or a unit's own part. An amount of 0
    /// gives an empty cell.
    fn amount_cells(&self, values: [u64; 4]) -> [String; 4] {
        let cell = |(resource, value): (Resource, u64)| match value {
            0 => String::new(),
            value => amount(resource, self.divisions[resource].amount(value)),
        };
        let mut pairs = Resource::ALL.into_iter().zip(values);
        [(); 4].map(|()| pairs.next().map_or_else(String::new, cell))
    }

    /// The units directly in `parent`, in reverse order, since the caller takes them from the end of a stack.
    fn branches(&self, parent: Option<UnitId>, branch: &Branch) -> Vec<(UnitId, Branch)> {
        let children = &self.children[parent.map_or(self.contract.units.len(), UnitId::index)];
        let deeper = |unit: UnitId| match (parent, children.last() == Some(&unit)) {
            (None, _) => Branch::default(),
            (Some(_), true) => {
                Branch { name: format!("{}└─ ", branch.below), below: format!("{}   ", branch.below) }
            }
            (Some(_), false) => {
                Branch { name: format!("{}├─ ", branch.below), below: format!("{}│  ", branch.below) }
            }
        };
        children.iter().rev().map(|unit| (*unit, deeper(*unit))).collect()
    }

    fn add_unit(&self, table: &mut Table, id: UnitId, branch: &Branch, style: Style) {
        let unit = self.contract.unit(id);
        let figures = Resource::ALL.map(|resource| amount(resource, self.divisions[resource].of(id)));
        let name = cut_left(&branch.name) + &clean(&unit.name);
        let tickets = unit.tickets.single().map_or_else(String::new, u64::to_string);
        table.row(Paint::Plain, row(name, tickets, figures));
        let has_sub_units = !self.children[id.index()].is_empty();
        let below = cut_left(&branch.below) + if has_sub_units { "│ " } else { "  " };
        if unit.tickets.single().is_none() {
            let figures = Resource::ALL.map(|resource| unit.tickets[resource].to_string());
            table.row(Paint::Faint, row(format!("{below}tickets"), String::new(), figures));
        }
        for (label, asked) in [("of which hard", &unit.hard), ("at most", &unit.limit)] {
            if Resource::ALL.iter().any(|resource| asked[*resource].is_some()) {
                let cell = |resource, asked| amount(resource, self.asked(id, resource, asked));
                let figures =
                    Resource::ALL.map(|r| asked[r].map_or_else(String::new, |asked| cell(r, asked)));
                table.row(Paint::Faint, row(format!("{below}{label}"), String::new(), figures));
            }
        }
        let own = Resource::ALL.map(|resource| self.divisions[resource].entitlement.own(id));
        if has_sub_units && own.iter().any(|value| *value > 0) {
            table.row(
                Paint::Faint,
                row(format!("{below}in no sub-unit"), String::new(), self.amount_cells(own)),
            );
        }
        let indent = format!("{below}  ");
        let sums = Resource::ALL.into_iter().filter_map(|resource| self.sum(id, resource));
        for note in sums.chain(notes(unit)) {
            for line in wrap(&note, style.width, &below, &indent) {
                table.line(Paint::Faint, fit(&line, style.width));
            }
        }
    }
}

/// The ratio of `n` to `whole` in millionths, rounded; 0 if `whole` is 0.
fn millionths(n: u64, whole: u64) -> u64 {
    let exact =
        (u128::from(n) * u128::from(MILLIONTH) + u128::from(whole) / 2).checked_div(u128::from(whole));
    exact.and_then(|part| u64::try_from(part).ok()).unwrap_or(0)
}

/// The whole of which percentages at the top level are parts, in words.
fn whole_of(resource: Resource) -> &'static str {
    match resource {
        Resource::Cpu => "the machine",
        Resource::Memory => "the memory to divide",
        Resource::Disk => "each disk",
        Resource::Bus => "the bus",
    }
}

fn row(name: String, tickets: String, figures: [String; 4]) -> Vec<String> {
    [name, tickets].into_iter().chain(figures).collect()
}

/// The lines before the name of a deeply nested unit, cut on the left to the available width.
fn cut_left(branch: &str) -> String {
    let columns = branch.chars().count();
    if columns <= BRANCH_COLUMNS_MAX {
        return branch.to_owned();
    }
    let kept: String = branch.chars().skip(columns - BRANCH_COLUMNS_MAX + 1).collect();
    format!("…{kept}")
}

/// Notes on a unit's rules that the columns do not show.
fn notes(unit: &Unit) -> Vec<String> {
    let mut notes = Vec::new();
    if !unit.members.is_empty() {
        let members: Vec<String> =
            unit.members.iter().map(|member| clean(&member.kind.to_string())).collect();
        notes.push(format!("members {}", members.join(", ")));
    }
    if let Some(each) = unit.each {
        let whom = match each {
            Each::User => "user",
            Each::Cgroup => "control group",
        };
        let parts = match unit.each_by {
            _ if each == Each::User => "in equal parts",
            Weighed::Equally => "in equal parts",
            Weighed::Cpus => "by the CPUs that it was given",
            Weighed::Weight => "by its weight",
        };
        notes.push(format!("each {whom} gets a sub-unit, {parts}"));
    }
    if let Some(kind) = unit.job {
        notes.push(format!("jobs ({}): {}", kind.name(), kind.meaning()));
    }
    notes.extend(loans("lends", unit.lend));
    notes.extend(loans("borrows", unit.borrow));
    notes
}

/// The resources that a unit may not lend (or borrow), or only up to an amount:
/// `lends no cpu, memory at most 2 GiB`.
fn loans(verb: &str, allowed: PerResource<Permission>) -> Option<String> {
    if Resource::ALL.iter().all(|resource| !allowed[*resource].allows()) {
        return Some(format!("{verb} nothing"));
    }
    let say = |resource: &Resource| match allowed[*resource] {
        Permission::Yes => None,
        Permission::AtMost(most) if allowed[*resource].allows() => {
            Some(format!("{resource} at most {}", amount(*resource, most)))
        }
        Permission::No | Permission::AtMost(_) => Some(format!("no {resource}")),
    };
    let said: Vec<String> = Resource::ALL.iter().filter_map(say).collect();
    (!said.is_empty()).then(|| format!("{verb} {}", said.join(", ")))
}

#[derive(Serialize)]
struct TreeJson<'a, W> {
    machine: &'a Machine,
    scheme: commonhold_contract::Scheme,
    cpu_mode: commonhold_contract::CpuMode,
    default_unit: &'a str,
    pools: PoolsJson,
    capacity: PerResource<Amount>,
    unheld: PerResource<Amount>,
    units: Vec<UnitJson<'a>>,
    #[serde(flatten)]
    outlook: Outlook<'a>,
    /// The contract's warnings, in the format in which the errors of an invalid contract are given.
    warnings: &'a W,
}

/// The machine's pools under the contract.
#[derive(Serialize)]
struct PoolsJson {
    summary: String,
    /// The CPUs of each pool: `0-7`.
    cpus: Vec<String>,
}

#[derive(Serialize)]
struct UnitJson<'a> {
    unit: &'a str,
    parent: Option<&'a str>,
    tickets: Tickets,
    each: Option<Each>,
    /// The rule by which the unit's processes form jobs.
    job: Option<&'static str>,
    members: Vec<String>,
    resources: PerResource<ResourceJson>,
}

/// The tickets of a unit: a single number if it is the same for all resources.
#[derive(Serialize)]
#[serde(untagged)]
enum Tickets {
    Single(u64),
    PerResource(PerResource<u64>),
}

#[derive(Serialize)]
struct ResourceJson {
    entitled: Amount,
    hard: Option<Amount>,
    limit: Option<Amount>,
    /// `true`, `false`, or the largest amount, as the contract states it.
    lend: Permission,
    borrow: Permission,
}

/// The tree as JSON, with the units in the contract's order. An amount is `{"absolute": n}` in the resource's
/// unit of measure. If the machine's capacity is not known, it is `{"part": n}` in millionths of that
/// capacity. Amounts of `lend` and `borrow` are as the contract states them.
pub fn json(
    contract: &Contract,
    machine: &Machine,
    divisions: &PerResource<Division>,
    outlook: Outlook<'_>,
    warnings: &impl Serialize,
) -> String {
    let tree = Tree::new(contract, divisions);
    let pools = commonhold_policy::pools(machine, contract.machine.pools);
    let cpus = |pool: &Pool| pool.cpus.iter().copied().collect::<CpuSet>().to_string();
    let content = TreeJson {
        machine,
        scheme: contract.machine.scheme,
        cpu_mode: contract.machine.cpu,
        default_unit: &contract.unit(contract.default_unit).path,
        pools: PoolsJson { summary: pools.summary(), cpus: pools.pools.iter().map(cpus).collect() },
        capacity: per_resource(|resource| divisions[resource].whole()),
        unheld: per_resource(|resource| divisions[resource].amount(divisions[resource].entitlement.unheld)),
        units: contract.held().map(|id| tree.unit_json(id)).collect(),
        outlook,
        warnings,
    };
    crate::json("commonhold.tree", content)
}

fn per_resource<T>(of: impl Fn(Resource) -> T) -> PerResource<T> {
    PerResource {
        cpu: of(Resource::Cpu),
        memory: of(Resource::Memory),
        disk: of(Resource::Disk),
        bus: of(Resource::Bus),
    }
}

impl Tree<'_> {
    fn unit_json(&self, id: UnitId) -> UnitJson<'_> {
        let unit = self.contract.unit(id);
        let of = |resource: Resource| ResourceJson {
            entitled: self.divisions[resource].of(id),
            hard: unit.hard[resource].map(|asked| self.asked(id, resource, asked)),
            limit: unit.limit[resource].map(|asked| self.asked(id, resource, asked)),
            lend: unit.lend[resource],
            borrow: unit.borrow[resource],
        };
        UnitJson {
            unit: &unit.path,
            parent: unit.parent.map(|parent| self.contract.unit(parent).path.as_str()),
            tickets: unit
                .tickets
                .single()
                .map_or(Tickets::PerResource(unit.tickets), |all| Tickets::Single(*all)),
            each: unit.each,
            job: unit.job.map(JobKind::name),
            members: unit.members.iter().map(|member| member.kind.to_string()).collect(),
            resources: per_resource(of),
        }
    }
}
