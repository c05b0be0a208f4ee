//! The second stage of parsing: converts the tree of spanned values into a contract, key by key. All errors
//! are reported at once.
//!
//! An invalid value is reported and replaced by its default, so that values that depend on it can be checked,
//! too. The third stage ([`crate::check`]) checks whether units are consistent with each other.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::check::{self, GangSpans};
use crate::diagnostic::{Diagnostic, Problem, Span};
use crate::document::{self, Document, Named, article, integer};
use crate::hints;
use crate::jobs::{Gangs, GangsShare, JobKind, Placement, PoolForm};
use crate::keys::{
    CALL_BACK_IDLE, CALL_BACK_MOST, DEADLINE, DEPTH_MAX, Kind, MACHINE, MEMBERS_MAX, ROOT, Table, UNIT,
    UNITS_MAX, VERSION,
};
use crate::member;
use crate::model::{
    Contract, CpuMode, Deadline, Discipline, Each, Growth, Member, Scheme, Unit, UnitId, Weighed,
};
use crate::name::check_name;
use crate::quantity;
use crate::resource::{Amount, MILLIONTH, PerResource, Permission, Resource};
use crate::syntax;

/// The number of built-in units, whose numbers come before those of the contract's units.
const COMMON_PARTS: usize = UnitId::SHARED.0 as usize + 1;

type Entry<'a> = document::Entry<'a, Kind>;

/// Reads a tree of values; the contract is only valid if no diagnostic is an error.
pub(crate) fn read(document: &mut Document<'_>, tree: &DeTable<'_>) -> Contract {
    let mut reader = Reader {
        document,
        contract: Contract::default(),
        default: None,
        gang_spans: GangSpans::default(),
        full: false,
    };
    reader.root(tree);
    reader.contract
}

struct Reader<'d, 't> {
    document: &'d mut Document<'t>,
    contract: Contract,
    /// The path in `machine.default`, with its span. It is stored here, since the unit can be looked up only
    /// after all are read.
    default: Option<(String, Span)>,
    /// The spans of the keys about gangs.
    gang_spans: GangSpans,
    /// Whether the contract has more units than allowed.
    full: bool,
}

impl Reader<'_, '_> {
    /// Reads the whole contract.
    fn root(&mut self, tree: &DeTable<'_>) {
        let mut version = None;
        let mut units = Vec::new();
        for entry in self.entries(&ROOT, tree, "") {
            match entry.key.kind {
                Kind::Version => version = Some(self.document.version(&entry, VERSION)),
                Kind::Units => units = self.units(&entry, None, 1),
                _ => self.machine(&entry),
            }
        }
        if version.is_none() {
            let message = "the contract does not say which version of its language it is in";
            let help = format!("begin with `version = {VERSION}`");
            self.document.report(Diagnostic::error("missing-version", 0..0, message).help(help));
        }
        self.document.report_all(check::siblings(&self.contract, None, &units));
        self.document.report_all(check::gangs(self.contract.machine.gangs, &self.gang_spans));
        if let Some((path, span)) = self.default.take() {
            match check::default_unit(&self.contract, &path, &span) {
                Ok(unit) => self.contract.default_unit = unit,
                Err(diagnostic) => self.document.report(*diagnostic),
            }
        }
        if self.contract.held().next().is_none() && self.document.found().is_empty() {
            let message = "the contract declares no unit, so it promises nothing";
            let help = "declare units: [unit.NAME]";
            self.document
                .report(Diagnostic::warning("no-units", version.unwrap_or(0..0), message).help(help));
        }
    }

    /// The entries of a table in the text. For remedies, `header` is the header of the unit, and empty
    /// outside of units.
    fn entries<'a>(&mut self, table: &'static Table, tree: &'a DeTable<'a>, header: &str) -> Vec<Entry<'a>> {
        self.document.entries_or(table, tree, |name, value| hints::for_key(table, name, value, header))
    }

    /// Reads the `[machine]` table.
    fn machine(&mut self, entry: &Entry) {
        let Some(table) = self.document.table(entry) else { return };
        for entry in self.entries(&MACHINE, table, "") {
            match entry.key.name {
                "cpu" => self.contract.machine.cpu = self.cpu_mode(&entry),
                "scheme" => self.contract.machine.scheme = self.scheme(&entry),
                "reserve" => {
                    if let Some(reserve) = self.amount(&entry, Resource::Memory) {
                        self.contract.machine.reserve = reserve;
                    }
                }
                "rotation" => {
                    if let Some(ns) = self.duration(&entry) {
                        self.contract.machine.rotation_ns = ns;
                    }
                }
                "call-back" => {
                    if let Some(ns) = self.duration(&entry) {
                        self.contract.machine.call_back_ns = ns;
                    }
                }
                "call-back-memory" => {
                    if let Some(ns) = self.duration(&entry) {
                        self.contract.machine.call_back_memory_ns = ns;
                    }
                }
                CALL_BACK_IDLE | CALL_BACK_MOST => {
                    let grows = self.contract.machine.call_back_memory_grows;
                    self.contract.machine.call_back_memory_grows = self.growth(&entry, grows);
                }
                "loans-remembered" => {
                    if let Some(ns) = self.duration(&entry) {
                        self.contract.machine.loans_remembered_ns = ns;
                    }
                }
                "pools" => {
                    self.contract.machine.pools = self.pools(&entry);
                    self.contract.pools_span = self.document.span(entry.value);
                }
                "placement" => {
                    let word = self.choice(&entry);
                    let known = Placement::ALL.into_iter().find(|known| word == Some(known.name()));
                    self.contract.machine.placement = known.unwrap_or_default();
                }
                "isolated" => self.contract.machine.isolated = self.flag(&entry),
                "repartition" => self.contract.machine.repartition = self.flag(&entry),
                "gangs" | "gangs-share" | "quantum" | "window" | "first-rate" => self.gangs(&entry),
                _ => {
                    let path = self.document.string(&entry, "the path of a unit");
                    self.default = path.map(|path| (path.to_owned(), self.document.span(entry.value)));
                }
            }
        }
    }

    /// Reads a key about gangs.
    fn gangs(&mut self, entry: &Entry) {
        let mut rules = self.contract.machine.gangs;
        match entry.key.name {
            "gangs" => {
                let word = self.choice(entry);
                rules.by =
                    Gangs::ALL.into_iter().find(|known| word == Some(known.name())).unwrap_or_default();
                self.gang_spans.by = Some(self.document.span(entry.value));
            }
            "gangs-share" => {
                let word = self.choice(entry);
                let known = GangsShare::ALL.into_iter().find(|known| word == Some(known.name()));
                rules.share = known.unwrap_or_default();
                self.gang_spans.share = Some(self.document.span(entry.value));
            }
            "quantum" => rules.quantum_ns = self.duration(entry).unwrap_or(rules.quantum_ns),
            "window" => {
                let Kind::Count { min, max } = entry.key.kind else { return };
                let quanta =
                    self.document.count(entry, min..=max).and_then(|quanta| u32::try_from(quanta).ok());
                rules.window = quanta.unwrap_or(rules.window);
            }
            _ => {
                rules.first_rate = self.amount(entry, Resource::Bus).unwrap_or(rules.first_rate);
                self.gang_spans.first_rate = Some(self.document.span(entry.value));
            }
        }
        self.contract.machine.gangs = rules;
    }

    /// The form of the pools: a word, or a number of CPUs.
    fn pools(&mut self, entry: &Entry) -> PoolForm {
        let Kind::WordOrCount { words, min, max } = entry.key.kind else { return PoolForm::Auto };
        if let DeValue::Integer(_) = entry.value.get_ref() {
            let size = self.document.count(entry, min..=max).and_then(|size| u32::try_from(size).ok());
            return size.map_or(PoolForm::Auto, PoolForm::Size);
        }
        let listed = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        let wanted = format!("one of {listed}, or a number of CPUs");
        if !matches!(entry.value.get_ref(), DeValue::String(_)) {
            self.document.wrong_type(entry, &wanted);
            return PoolForm::Auto;
        }
        let word = self.document.choice(entry, words);
        PoolForm::NAMED.into_iter().find(|known| word.is_some() && word == known.word()).unwrap_or_default()
    }

    fn cpu_mode(&mut self, entry: &Entry) -> CpuMode {
        match self.choice(entry) {
            Some("partition") => CpuMode::Partition,
            Some("proportional") => CpuMode::Proportional,
            _ => CpuMode::Auto,
        }
    }

    fn scheme(&mut self, entry: &Entry) -> Scheme {
        match self.choice(entry) {
            Some("smp") => Scheme::Smp,
            Some("quota") => Scheme::Quota,
            _ => Scheme::Isolate,
        }
    }

    fn discipline(&mut self, entry: &Entry) -> Discipline {
        let word = self.choice(entry);
        Discipline::ALL.into_iter().find(|known| word == Some(known.name())).unwrap_or_default()
    }

    /// The value, if it is one of the words that the key allows.
    fn choice<'a>(&mut self, entry: &Entry<'a>) -> Option<&'a str> {
        let Kind::Choice(words) = entry.key.kind else { return None };
        self.document.choice(entry, words)
    }

    /// `growth` with the value of this entry, which is one of the two keys for the growth of the promised
    /// call-back time.
    fn growth(&mut self, entry: &Entry, growth: Growth) -> Growth {
        match entry.key.kind {
            Kind::Part => Growth { idle: self.part(entry).or(growth.idle), ..growth },
            _ => Growth { most_ns: self.duration(entry).or(growth.most_ns), ..growth },
        }
    }

    /// A percentage, in millionths.
    fn part(&mut self, entry: &Entry) -> Option<u64> {
        let Some(text) = entry.value.get_ref().as_str() else {
            self.document.wrong_type(entry, "a percentage, such as \"10%\"");
            return None;
        };
        let part = quantity::part(text).and_then(|part| match part {
            0..=MILLIONTH => Ok(part),
            _ => Err(Problem {
                span: 0..text.len(),
                message: format!("{} is more than all", text.trim()),
                help: "write a percentage up to 100%".to_owned(),
            }),
        });
        part.map_err(|problem| self.document.problem("quantity", entry.value, text, problem)).ok()
    }

    /// A length of time within the key's range, in nanoseconds.
    fn duration(&mut self, entry: &Entry) -> Option<u64> {
        let Kind::Duration { min_ns, max_ns } = entry.key.kind else { return None };
        self.document.duration(entry, min_ns..=max_ns)
    }

    /// An amount of a resource.
    fn amount(&mut self, entry: &Entry, resource: Resource) -> Option<Amount> {
        self.amount_or(entry, resource, "a quantity")
    }

    /// An amount of a resource. For the diagnostic, `wanted` describes all types of value that the key
    /// allows.
    fn amount_or(&mut self, entry: &Entry, resource: Resource, wanted: &str) -> Option<Amount> {
        let text = match entry.value.get_ref() {
            DeValue::String(text) => text.to_string(),
            // An amount of CPUs has no unit of measure. For other resources, the missing unit is reported
            // when the quantity is read.
            DeValue::Integer(number) => {
                integer(number).map_or(number.to_string(), |number| number.to_string())
            }
            DeValue::Float(number)
                if number.as_str().starts_with(|c: char| c.is_ascii_digit() || c == '-') =>
            {
                number.as_str().to_owned()
            }
            _ => {
                self.document.wrong_type(entry, wanted);
                return None;
            }
        };
        quantity::amount(&text, resource)
            .map_err(|problem| self.document.problem("quantity", entry.value, &text, problem))
            .ok()
    }

    /// Reads the units of a table, and their sub-units. Returns the units of the table itself, in the order
    /// of the text.
    fn units(&mut self, entry: &Entry, parent: Option<UnitId>, depth: usize) -> Vec<check::ReadUnit> {
        let Some(table) = self.document.table(entry) else { return Vec::new() };
        let named = self.document.named(table);
        if depth > DEPTH_MAX {
            if let Some(Named { name, at, .. }) = named.first() {
                let message = format!("unit `{name}` is nested {depth} units deep");
                let help = format!("nest at most {DEPTH_MAX} deep");
                self.document.report(Diagnostic::error("too-deep", at.clone(), message).help(help));
            }
            return Vec::new();
        }
        let mut units = Vec::with_capacity(named.len());
        for Named { name, at, value } in named {
            if self.full {
                break;
            }
            let declared = self.contract.units.len() - COMMON_PARTS;
            if declared >= UNITS_MAX {
                self.full = true;
                let message = format!("the contract has more than {UNITS_MAX} units");
                let help = "use `each = \"user\"` where every user gets a unit";
                self.document.report(Diagnostic::error("too-many-units", at, message).help(help));
                break;
            }
            units.extend(self.unit(&at, name, value, parent, depth));
        }
        units
    }

    /// Reads a unit and its sub-units; `None` if its value is no table. `at` is the span of its name.
    fn unit(
        &mut self,
        at: &Span,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        parent: Option<UnitId>,
        depth: usize,
    ) -> Option<check::ReadUnit> {
        let Some(table) = value.get_ref().as_table() else {
            let found = article(value.get_ref());
            let message = format!("unit `{name}` must be a table, not {found}");
            let double = self.document.text()[self.document.span(value)].starts_with("[[");
            let single = if double { ", in single brackets," } else { "" };
            let help = format!("write the header [unit.{name}]{single} and the unit's keys below it");
            self.document
                .report(Diagnostic::error("wrong-type", self.document.span(value), message).help(help));
            return None;
        };
        if let Err((message, help)) = check_name(name) {
            self.document.report(Diagnostic::error("bad-name", at.clone(), message).help(help));
        }
        let id = self.contract.add(parent, name);
        let mut unit = Unit { span: at.clone(), ..self.contract.unit(id).clone() };
        let mut read_unit = check::ReadUnit { id, each: None, each_by: None };
        let mut sub_units = None;
        let header = format!("unit.{}", unit.path.replace('/', ".unit."));
        for entry in self.entries(&UNIT, table, &header) {
            match entry.key.name {
                "members" => {
                    unit.members = self.members(&entry);
                    unit.places.members = Some(self.document.span(entry.value));
                }
                "owner" => unit.owner = self.owner(&entry),
                "each" => {
                    let word = self.choice(&entry);
                    unit.each = Each::ALL.into_iter().find(|known| word == Some(known.name()));
                    read_unit.each = Some(entry.at.start..self.document.span(entry.value).end);
                }
                "each-by" => {
                    let word = self.choice(&entry);
                    let known = Weighed::ALL.into_iter().find(|known| word == Some(known.name()));
                    unit.each_by = known.unwrap_or_default();
                    read_unit.each_by = Some(entry.at.start..self.document.span(entry.value).end);
                }
                "tickets" => unit.tickets = self.tickets(&entry, unit.tickets),
                "hard" => (unit.hard, unit.places.hard) = self.amounts(&entry),
                "limit" => (unit.limit, unit.places.limit) = self.amounts(&entry),
                "lend" => unit.lend = self.permissions(&entry),
                "borrow" => unit.borrow = self.permissions(&entry),
                "negotiate" => unit.negotiate = self.flag(&entry),
                CALL_BACK_IDLE | CALL_BACK_MOST => {
                    unit.call_back_memory_grows = self.growth(&entry, unit.call_back_memory_grows);
                }
                "discipline" => unit.discipline = self.discipline(&entry),
                "deadline" => unit.deadline = self.deadline(&entry),
                "job" => {
                    let word = self.choice(&entry);
                    unit.job = JobKind::ALL.into_iter().find(|known| word == Some(known.name()));
                }
                _ => sub_units = Some(entry),
            }
        }
        self.document.report_all(check::unit(&unit, &read_unit));
        self.contract.units[id.index()] = unit;
        if let Some(entry) = sub_units {
            let children = self.units(&entry, Some(id), depth + 1);
            self.document.report_all(check::siblings(&self.contract, Some(&read_unit), &children));
        }
        Some(read_unit)
    }

    /// Reads a list of members, without the invalid ones.
    fn members(&mut self, entry: &Entry) -> Vec<Member> {
        let Some(array) = entry.value.get_ref().as_array() else {
            self.document.wrong_type(entry, "a list of members");
            return Vec::new();
        };
        if array.len() > MEMBERS_MAX {
            let message =
                format!("{} members are more than the {MEMBERS_MAX} that a unit may list", array.len());
            let help = "name a group, or a cgroup";
            self.document.report(Diagnostic::error("too-many-members", entry.at.clone(), message).help(help));
            return Vec::new();
        }
        array.iter().filter_map(|value| self.member(value)).collect()
    }

    fn member(&mut self, value: &Spanned<DeValue>) -> Option<Member> {
        let span = self.document.span(value);
        let Some(text) = value.get_ref().as_str() else {
            let message =
                format!("a member must be a string such as \"user:ana\", not {}", article(value.get_ref()));
            let help =
                "write \"user:NAME\", \"group:NAME\", \"cgroup:/PATH\", \"command:GLOB\" or \"pid:NUMBER\"";
            self.document.report(Diagnostic::error("wrong-type", span, message).help(help));
            return None;
        };
        match member::parse(text) {
            Ok(kind) => {
                if let Some(problem) = member::likely_mistake(&kind) {
                    let warning =
                        Diagnostic::warning("arguments", span.clone(), problem.message).help(problem.help);
                    self.document.report(warning);
                }
                Some(Member { kind, span })
            }
            Err(problem) => {
                let problem = self.with_escape_remedy(&span, problem);
                self.document.problem("bad-member", value, text, problem);
                None
            }
        }
    }

    /// Improves the remedy if the problem is a control character that an unintended escape made. For example,
    /// in double quotes `"user:CORP\tom"` contains a tab.
    fn with_escape_remedy(&self, span: &Span, problem: Problem) -> Problem {
        let source = &self.document.text()[span.clone()];
        match syntax::in_single_quotes(source) {
            Some(help) if problem.message.contains(member::CONTROL) => Problem { help, ..problem },
            _ => problem,
        }
    }

    /// Reads the owner of a unit.
    fn owner(&mut self, entry: &Entry) -> Option<Member> {
        let Some(text) = entry.value.get_ref().as_str() else {
            self.document.wrong_type(entry, "one user or group, such as \"user:ana\" or \"group:physics\"");
            return None;
        };
        match member::owner(text) {
            Ok(kind) => Some(Member { kind, span: self.document.span(entry.value) }),
            Err(problem) => {
                let problem = self.with_escape_remedy(&self.document.span(entry.value), problem);
                self.document.problem("bad-owner", entry.value, text, problem);
                None
            }
        }
    }

    /// A unit's deadline; `None` if it is invalid.
    fn deadline(&mut self, entry: &Entry) -> Option<Deadline> {
        let (mut period, mut budget, mut misses, mut of) = (None, None, 0, 1);
        let table = self.document.table(entry)?;
        for entry in self.entries(&DEADLINE, table, "") {
            match (entry.key.name, entry.key.kind) {
                ("misses", Kind::Count { min, max }) => {
                    misses = self.document.count(&entry, min..=max).unwrap_or(0);
                }
                (_, Kind::Count { min, max }) => of = self.document.count(&entry, min..=max).unwrap_or(1),
                ("period", _) => period = Some(self.duration(&entry)),
                _ => budget = Some(self.duration(&entry)),
            }
        }
        let at = self.document.span(entry.value);
        let mut refuse = |code, message: String, help| {
            self.document.report(Diagnostic::error(code, at.clone(), message).help(help));
            None
        };
        let (Some(period), Some(budget)) = (period, budget) else {
            let lacks = if period.is_none() { "period" } else { "budget" };
            let help = "write `deadline = { period = \"20ms\", budget = \"4ms\" }`";
            return refuse("missing-key", format!("the deadline has no `{lacks}`"), help);
        };
        // If one of the two is `None`, its problem was reported.
        let (period, budget) = (period?, budget?);
        if budget > period {
            let help = "a unit has one CPU at a time for its deadline: lower the budget";
            return refuse("deadline", "the budget is longer than the period".to_owned(), help);
        }
        if misses >= of {
            let message = format!("{misses} of {of} deadlines may be missed: that is all of them");
            return refuse("deadline", message, "say fewer `misses`, or a larger `of`");
        }
        let as_u32 = |number: u64| u32::try_from(number).ok();
        let (period_ns, budget_ns) = (as_u32(period)?, as_u32(budget)?);
        Some(Deadline { period_ns, budget_ns, misses: as_u32(misses)?, of: as_u32(of)? })
    }

    /// Reads tickets: one number for all resources, or a table with a number for each. For a resource whose
    /// number is missing or invalid, the value in `tickets` is returned.
    fn tickets(&mut self, entry: &Entry, mut tickets: PerResource<u64>) -> PerResource<u64> {
        let Kind::Counts(keys) = entry.key.kind else { return tickets };
        match entry.value.get_ref() {
            DeValue::Integer(_) => {
                let Some(Kind::Count { min, max }) = keys.keys.first().map(|key| key.kind) else {
                    return tickets;
                };
                return self.document.count(entry, min..=max).map_or(tickets, PerResource::all);
            }
            DeValue::Table(table) => {
                for (entry, resource) in self.entries(keys, table, "").iter().filter_map(with_resource) {
                    let Kind::Count { min, max } = entry.key.kind else { continue };
                    tickets[resource] = self.document.count(entry, min..=max).unwrap_or(tickets[resource]);
                }
            }
            _ => self.document.wrong_type(entry, "a whole number, or a table of these per resource"),
        }
        tickets
    }

    /// Reads the amounts of `hard` or `limit`, and their spans.
    fn amounts(&mut self, entry: &Entry) -> (PerResource<Option<Amount>>, PerResource<Option<Span>>) {
        let (mut amounts, mut spans) = (PerResource::default(), PerResource::default());
        let Kind::Table(keys) = entry.key.kind else { return (amounts, spans) };
        let Some(table) = self.document.table(entry) else { return (amounts, spans) };
        for entry in self.entries(keys, table, "") {
            let Kind::Amount(resource) = entry.key.kind else { continue };
            amounts[resource] = self.amount(&entry, resource);
            spans[resource] = Some(self.document.span(entry.value));
        }
        (amounts, spans)
    }

    /// A boolean; `false` if it is invalid.
    fn flag(&mut self, entry: &Entry) -> bool {
        let DeValue::Boolean(on) = entry.value.get_ref() else {
            self.document.wrong_type(entry, "true or false");
            return false;
        };
        *on
    }

    /// The value of `lend` or `borrow`: a boolean for all resources, or a table with a permission for each.
    fn permissions(&mut self, entry: &Entry) -> PerResource<Permission> {
        let mut permissions = PerResource::default();
        let Kind::Permissions(keys) = entry.key.kind else { return permissions };
        match entry.value.get_ref() {
            DeValue::Boolean(all) => return PerResource::all(Permission::from(*all)),
            DeValue::Table(table) => {
                for (entry, resource) in self.entries(keys, table, "").iter().filter_map(with_resource) {
                    permissions[resource] = self.permission(entry, resource).unwrap_or_default();
                }
            }
            _ => {
                let wanted = "true, false, or a table of these or of quantities per resource";
                self.document.wrong_type(entry, wanted);
            }
        }
        permissions
    }

    /// A permission for one resource: a boolean, or an amount.
    fn permission(&mut self, entry: &Entry, resource: Resource) -> Option<Permission> {
        match entry.value.get_ref() {
            DeValue::Boolean(on) => Some(Permission::from(*on)),
            DeValue::String(text) if syntax::switch_word(text.trim()).is_some() => {
                self.document.wrong_type(entry, "true, false, or a quantity");
                None
            }
            _ => self.amount_or(entry, resource, "true, false, or a quantity").map(Permission::AtMost),
        }
    }
}

/// The entry with the resource that its key names; `None` if the key is no resource.
fn with_resource<'e, 'a>(entry: &'e Entry<'a>) -> Option<(&'e Entry<'a>, Resource)> {
    let resource = Resource::ALL.into_iter().find(|resource| resource.name() == entry.key.name)?;
    Some((entry, resource))
}
