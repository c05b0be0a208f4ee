//! Checks whether a machine can give what a contract promises: reservations, limits, home CPUs, pools and
//! deadlines.

use commonhold_contract::measure::CpuCount;
use commonhold_contract::{
    Amount, Contract, Deadline, Diagnostic, Discipline, Gangs, GangsShare, MILLIONTH, PoolForm, Resource,
    Unit, UnitId, amount_text,
};
use commonhold_machine::Machine;
use commonhold_policy::entitlement::{
    Ask, Capacity, Conflict, Entitlement, capacity, conflicts, entitle_all,
};

/// Compares a contract's amounts with a machine; returns an error or a warning for each that does not fit.
pub(crate) fn diagnose(contract: &Contract, machine: &Machine) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> =
        conflicts(contract, machine).iter().map(|conflict| explain(contract, machine, conflict)).collect();
    let entitled = entitle_all(contract, machine, &vec![true; contract.units.len()]);
    for resource in Resource::ALL {
        let capacity = capacity(contract, machine, resource);
        let whole = Whole { contract, machine, resource, capacity, entitled: &entitled[resource] };
        for id in contract.held() {
            found.extend(whole.left_with_nothing(id));
            found.extend(whole.hard_above_limit(id));
            found.extend(whole.not_weighed(id));
            found.extend(whole.limits_nothing(id));
            found.extend(whole.deadlines_exceed(id));
        }
    }
    found.extend(one_pool(contract, machine));
    found
}

/// A warning if the contract configures pools, but they make one pool of the whole machine, which is seldom
/// intended.
fn one_pool(contract: &Contract, machine: &Machine) -> Option<Diagnostic> {
    let form = contract.machine.pools;
    let asked = match form {
        PoolForm::Auto | PoolForm::Machine => return None,
        // A pool size equal to the number of CPUs is intended: experiments compare smaller pools with it.
        PoolForm::Size(cpus) if cpus as usize == machine.cpus.len() => return None,
        PoolForm::Size(cpus) => cpus.to_string(),
        form => format!("\"{}\"", form.word().unwrap_or_default()),
    };
    let pools = |form| commonhold_policy::pools(machine, form).pools.len();
    if pools(form) > 1 {
        return None;
    }
    let cpus = commonhold_machine::count(machine.cpus.len(), "CPU");
    let has = match form {
        PoolForm::Size(_) => cpus.clone(),
        form => format!("1 {}", form.word().unwrap_or_default()),
    };
    let several =
        [PoolForm::Cache, PoolForm::Node, PoolForm::Socket].into_iter().filter(|form| pools(*form) > 1);
    let several: Vec<String> =
        several.filter_map(|form| Some(format!("\"{}\" ({} pools)", form.word()?, pools(form)))).collect();
    let help = match several.as_slice() {
        [] => {
            "leave `pools` out: this machine has no parts, and jobs run wherever their units may".to_owned()
        }
        several => format!("leave `pools` out, or write {}", several.join(" or ")),
    };
    let message = format!("`pools = {asked}` makes one pool of all {cpus}, in which nothing is placed");
    let diagnostic = Diagnostic::warning("one-pool", contract.pools_span.clone(), message);
    Some(diagnostic.label(format!("the machine has {has}")).help(help))
}

/// Converts a conflict between contract and machine to a diagnostic at its place in the contract.
fn explain(contract: &Contract, machine: &Machine, conflict: &Conflict) -> Diagnostic {
    let span = conflict.span.clone();
    match conflict.what {
        Ask::Hard { level, resource, asked, available } => {
            let (asked, available) = (show(contract, machine, resource, asked), show(contract, machine, resource, available));
            let (whose, there_is) = match level {
                None if resource == Resource::Memory => {
                    let whole = show(contract, machine, resource, machine.memory_bytes());
                    let reserve = amount_text(resource, contract.machine.reserve);
                    ("the units".to_owned(), format!("there are {available} to divide: {whole} less the reserve of {reserve}"))
                }
                None => ("the units".to_owned(), format!("the machine has {available}")),
                Some(id) => {
                    let path = &contract.unit(id).path;
                    let holds = format!("`{path}` holds {available} when all units are active");
                    (format!("the sub-units of `{path}`"), holds)
                }
            };
            let asking = contract.children(level).filter(|id| contract.unit(*id).hard[resource].is_some()).count();
            let (message, label) = match asking {
                1 => (format!("a hard {resource} reservation of {asked} is too large: {there_is}"), ""),
                _ => (
                    format!("hard {resource} reservations of {whose} sum to {asked}, but {there_is}"),
                    "the largest of them is here",
                ),
            };
            Diagnostic::error("hard-exceeds", span, message)
                .label(label)
                .help("lower the hard reservations, or turn some of them into soft `tickets`, which always fit")
        }
        Ask::Partition { units, cpus } => Diagnostic::error(
            "partition-too-small",
            span,
            format!("`cpu = \"partition\"` with {units} units on {cpus} CPUs: not every unit can have a home CPU"),
        )
        .label("there is no CPU left for this unit")
        .help("write `cpu = \"auto\"`, which time-shares where there are more units than CPUs, or nest the units"),
    }
}

/// A resource's capacity, and every unit's entitlement when all are active.
struct Whole<'a> {
    contract: &'a Contract,
    machine: &'a Machine,
    resource: Resource,
    capacity: Capacity,
    entitled: &'a Entitlement,
}

impl<'a> Whole<'a> {
    fn unit(&self, id: UnitId) -> &'a Unit {
        self.contract.unit(id)
    }

    /// The amount that percentages of a unit refer to: its parent's entitlement, or the machine's capacity.
    fn around(&self, id: UnitId) -> u64 {
        self.unit(id).parent.map_or(self.capacity.total(), |parent| self.entitled.value(parent))
    }

    /// A warning for a unit that holds nothing of the resource when all units are active: the reservations of
    /// others, or the reserve, take all of it.
    fn left_with_nothing(&self, id: UnitId) -> Option<Diagnostic> {
        let unit = self.unit(id);
        // If the parent unit holds nothing either, only the parent is reported.
        let encloser_has = unit.parent.is_none_or(|parent| self.entitled.value(parent) > 0);
        // Units divide the bus only if gangs are chosen by it, or if the processor can throttle transfers.
        let gangs = self.contract.machine.gangs;
        let are_of_bus = gangs.by != Gangs::Off && gangs.share == GangsShare::Bus;
        let is_undivided = self.resource == Resource::Bus && !are_of_bus;
        if self.entitled.value(id) > 0 || !encloser_has || is_undivided {
            return None;
        }
        let (what, then) = match self.resource {
            Resource::Cpu => (
                "the CPUs",
                "the unit runs on what the others leave idle, and is stopped when they leave nothing",
            ),
            Resource::Memory => {
                ("memory", "the unit has what the others leave idle, and loses it when they want it")
            }
            Resource::Bus => ("the memory bus", "the unit's gangs wait as soon as another is owed something"),
            Resource::Disk => ("disks", "the unit transfers only while the others leave the disks idle"),
        };
        let message = format!("nothing of {what} is left for `{}` when all units are active", unit.path);
        let help = match self.resource == Resource::Memory && self.capacity.total() == 0 {
            true => "the `reserve` is all of the machine's memory: lower it",
            false => "lower the `hard` reservations of the others, or give this unit one",
        };
        Some(Diagnostic::warning("nothing-left", unit.span.clone(), message).label(then).help(help))
    }

    /// An error for a reservation above the unit's limit, if one of the two is a fraction and the other an
    /// absolute amount. Two fractions, or two absolute amounts, are compared when the contract is parsed,
    /// without a machine.
    fn hard_above_limit(&self, id: UnitId) -> Option<Diagnostic> {
        let unit = self.unit(id);
        let (hard, limit) = (unit.hard[self.resource]?, unit.limit[self.resource]?);
        let alike = matches!(hard, Amount::Part(_)) == matches!(limit, Amount::Part(_));
        if alike || self.capacity == Capacity::Parts || hard.of(self.around(id)) <= limit.of(self.around(id))
        {
            return None;
        }
        let shown =
            |amount: Amount| show(self.contract, self.machine, self.resource, amount.of(self.around(id)));
        let resource = self.resource;
        let message = format!("unit `{}` reserves more {resource} than its limit on this machine", unit.path);
        let label = format!("it reserves {}, and is limited to {}", shown(hard), shown(limit));
        let diagnostic =
            Diagnostic::error("hard-above-limit", unit.hard_span(self.resource), message).label(label);
        let diagnostic = match unit.places.limit[self.resource].clone() {
            Some(limit) => diagnostic.related(limit, "the limit"),
            None => diagnostic,
        };
        Some(diagnostic.help("raise the limit, or lower the reservation"))
    }

    /// Admission control of the discipline `dwcs`. Returns an error if the unit's CPUs cannot serve the
    /// sub-units' deadlines even when each sub-unit misses as many as it permits. Returns a warning if misses
    /// are necessary and the sub-units differ in period or budget: then no order by deadlines keeps every
    /// sub-unit within its misses.
    fn deadlines_exceed(&self, id: UnitId) -> Option<Diagnostic> {
        let unit = self.unit(id);
        if self.resource != Resource::Cpu || unit.discipline != Discipline::Dwcs {
            return None;
        }
        let all: Vec<Deadline> =
            self.contract.children(Some(id)).filter_map(|sub| self.unit(sub).deadline).collect();
        let sum = |served: fn(&Deadline) -> u32| {
            let utilisation = |deadline: &Deadline| {
                let budget =
                    u128::from(served(deadline)) * u128::from(deadline.budget_ns) * u128::from(MILLIONTH);
                budget.div_ceil(u128::from(deadline.of) * u128::from(deadline.period_ns))
            };
            u64::try_from(all.iter().map(utilisation).sum::<u128>()).unwrap_or(u64::MAX)
        };
        let (whole, least) = (sum(|deadline| deadline.of), sum(|deadline| deadline.of - deadline.misses));
        let has = self.entitled.value(id);
        let alike = all
            .windows(2)
            .all(|pair| (pair[0].period_ns, pair[0].budget_ns) == (pair[1].period_ns, pair[1].budget_ns));
        let (path, has_text) = (&unit.path, CpuCount(has));
        let diagnostic = if least > has {
            let message = format!(
                "the deadlines in `{path}` need {} at the least, and it holds {has_text}",
                CpuCount(least)
            );
            Diagnostic::error("deadlines-exceed", unit.span.clone(), message)
        } else if whole > has && !alike {
            let message = format!(
                "the deadlines in `{path}` need {}, and it holds {has_text}: more may be missed than they allow, since \
                 their periods and budgets differ",
                CpuCount(whole)
            );
            Diagnostic::warning("deadlines-exceed", unit.span.clone(), message)
        } else {
            return None;
        };
        let help = "lower budgets, lengthen periods, allow more `misses`, or give the unit more tickets";
        Some(diagnostic.label("when all units are active").help(help))
    }

    /// A warning for a limit above the machine's capacity: usually a wrong unit of measure, or another
    /// machine's contract.
    fn limits_nothing(&self, id: UnitId) -> Option<Diagnostic> {
        let unit = self.unit(id);
        let there_is = match self.resource {
            Resource::Cpu => self.capacity.total(),
            Resource::Memory => self.machine.memory_bytes(),
            // Limits apply to each disk, and the fastest disk's bandwidth is seldom known.
            Resource::Disk | Resource::Bus => return None,
        };
        let limit = unit.limit[self.resource]?.of(self.around(id));
        if limit <= there_is {
            return None;
        }
        let shown = |value| show(self.contract, self.machine, self.resource, value);
        let resource = self.resource;
        let message = format!("a {resource} limit of {} does not limit `{}`", shown(limit), unit.path);
        let span = unit.places.limit[resource].clone().unwrap_or_else(|| unit.span.clone());
        let diagnostic = Diagnostic::warning("limits-nothing", span, message);
        let diagnostic = diagnostic.label(format!("the machine has {}", shown(there_is)));
        Some(diagnostic.help("lower the limit, or leave it out"))
    }

    /// A warning for a disk reservation in bytes per second if no disk was measured: the reservation is
    /// ignored.
    fn not_weighed(&self, id: UnitId) -> Option<Diagnostic> {
        let unit = self.unit(id);
        let in_bytes = matches!(unit.hard[self.resource], Some(Amount::Absolute(_)));
        if self.resource != Resource::Disk || self.capacity != Capacity::Parts || !in_bytes {
            return None;
        }
        let message = format!("the disk reservation of `{}`, in bytes per second, counts as none", unit.path);
        let diagnostic = Diagnostic::warning("not-weighed", unit.hard_span(self.resource), message)
            .label("no disk was measured, so it is not known what part of a disk this is");
        Some(diagnostic.help(
            "write a part, such as `hard = { disk = \"25%\" }`, or measure the disk: `commonhold calibrate FOLDER`",
        ))
    }
}

fn show(contract: &Contract, machine: &Machine, resource: Resource, value: u64) -> String {
    let amount = match capacity(contract, machine, resource) {
        Capacity::Known(_) | Capacity::Pieces { .. } => Amount::Absolute(value),
        Capacity::Parts => Amount::Part(value),
    };
    match amount {
        // The memory that remains of a machine is not a round number of bytes.
        Amount::Absolute(bytes) if resource == Resource::Memory && bytes >= 10 << 20 => {
            format!("{} MiB", bytes >> 20)
        }
        Amount::Absolute(micro) if resource == Resource::Cpu => CpuCount(micro).to_string(),
        amount => amount_text(resource, amount),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pools_as_large_as_the_machine_are_said() {
        let said = |pools: &str, machine: &str| {
            let text = format!("version = 1\n[machine]\npools = {pools}\n[unit.a]\njob = \"tree\"\n");
            let contract = commonhold_contract::parse(&text).contract.unwrap();
            let found = one_pool(&contract, &Machine::synthetic(machine).unwrap())?;
            assert_eq!(&text[found.span.clone()], pools);
            Some((found.label.clone(), found.help.clone().unwrap_or_default()))
        };
        let (label, help) = said("\"socket\"", "nodes:4 cpus:2 sockets:1").unwrap();
        assert_eq!(label, "the machine has 1 socket");
        assert_eq!(help, "leave `pools` out, or write \"cache\" (4 pools) or \"node\" (4 pools)");
        let (label, help) = said("9", "cpus:8").unwrap();
        assert_eq!(label, "the machine has 8 CPUs");
        assert!(help.starts_with("leave `pools` out: "), "{help}");
        for (pools, machine) in [
            ("8", "cpus:8"),
            ("\"machine\"", "cpus:8"),
            ("\"auto\"", "cpus:8"),
            ("\"node\"", "nodes:2 cpus:1"),
        ] {
            assert_eq!(said(pools, machine), None, "{pools} on {machine}");
        }
    }
}
