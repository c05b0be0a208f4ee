//! The second stage: the tree of spanned values into a contract, key by key, with every mistake at once.
//!
//! A value that is wrong is reported and its default kept, so that what depends on it can be checked too. Whether the
//! units fit each other is the third stage's question ([`crate::check`]).

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::check;
use crate::diagnostic::{Diagnostic, Problem, clamp};
use crate::keys::{
    DEPTH_MAX, KERNEL_PREFIXES, Key, Kind, MACHINE, MEMBERS_MAX, NAME_CHARS_MAX, RESERVED_NAMES, ROOT, Table,
    UNIT, UNITS_MAX, VERSION,
};
use crate::member;
use crate::model::{
    Amount, Contract, CpuMode, Each, Member, PerResource, Resource, Scheme, Span, Unit, UnitId,
};
use crate::nearest::nearest;
use crate::quantity;

/// Units that every contract has, before its own.
const COMMON_PARTS: usize = UnitId::SHARED.0 as usize + 1;

/// A key of the contract and its value.
struct Entry<'a> {
    key: &'static Key,
    /// Where the key stands.
    at: Span,
    value: &'a Spanned<DeValue<'a>>,
}

/// Reads a tree of values; the contract is only good if no diagnostic is an error.
pub(crate) fn read(text: &str, tree: &DeTable<'_>) -> (Contract, Vec<Diagnostic>) {
    let mut reader =
        Reader { text, contract: Contract::default(), diagnostics: Vec::new(), default: None, full: false };
    reader.root(tree);
    (reader.contract, reader.diagnostics)
}

struct Reader<'t> {
    text: &'t str,
    contract: Contract,
    diagnostics: Vec<Diagnostic>,
    /// `machine.default`: looked up when all units are known.
    default: Option<(String, Span)>,
    /// There were more units than a contract may have.
    full: bool,
}

impl Reader<'_> {
    fn root(&mut self, tree: &DeTable<'_>) {
        let mut version = None;
        let mut units = Vec::new();
        for entry in self.entries(&ROOT, tree) {
            match entry.key.kind {
                Kind::Version => version = Some(self.version(&entry)),
                Kind::Units => units = self.units(&entry, None, 1),
                _ => self.machine(&entry),
            }
        }
        if version.is_none() {
            let message = "the contract does not say which version of its language it is in";
            let help = format!("begin with `version = {VERSION}`");
            self.report(Diagnostic::error("missing-version", 0..0, message).help(help));
        }
        self.diagnostics.extend(check::siblings(&self.contract, None, &units));
        if let Some((path, span)) = self.default.take() {
            match check::default_unit(&self.contract, &path, &span) {
                Ok(unit) => self.contract.default_unit = unit,
                Err(diagnostic) => self.report(*diagnostic),
            }
        }
        if self.contract.held().next().is_none() && self.diagnostics.is_empty() {
            let message = "the contract declares no unit, so it promises nothing";
            let help = "declare units: [unit.NAME]";
            self.report(Diagnostic::warning("no-units", version.unwrap_or(0..0), message).help(help));
        }
    }

    fn report(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    /// The keys of a table, in no particular order; unknown ones are reported and left out.
    fn entries<'a>(&mut self, table: &'static Table, found: &'a DeTable<'a>) -> Vec<Entry<'a>> {
        let mut entries = Vec::with_capacity(found.len());
        for (name, value) in found {
            match table.key(name.get_ref()) {
                Some(key) => entries.push(Entry { key, at: clamp(self.text, &name.span()), value }),
                None => self.unknown_key(table, name.get_ref(), name.span()),
            }
        }
        entries
    }

    fn unknown_key(&mut self, table: &'static Table, name: &str, at: Span) {
        let known: Vec<&str> = table.names().collect();
        let mut help = format!("the keys of {} are {}", table.title, known.join(", "));
        if let Some(word) = nearest(name, known) {
            help = format!("did you mean `{word}`? {help}");
        }
        let message = format!("unknown key `{name}` in {}", table.title);
        self.report(Diagnostic::error("unknown-key", at, message).label("unknown key").help(help));
    }

    fn wrong_type(&mut self, entry: &Entry, wanted: &str) {
        let name = entry.key.name;
        let found = article(entry.value.get_ref());
        let help = format!("for example: {name} = {}", entry.key.example);
        let diagnostic = Diagnostic::error(
            "wrong-type",
            self.span(entry.value),
            format!("`{name}` must be {wanted}, not {found}"),
        );
        self.report(diagnostic.label(format!("this is {found}")).help(help));
    }

    fn span<T>(&self, value: &Spanned<T>) -> Span {
        clamp(self.text, &value.span())
    }

    /// A part of a string's content as a part of the text. Where escapes make the two differ, the whole string.
    fn span_within(&self, value: &Spanned<DeValue>, content: &str, part: &Span) -> Span {
        let whole = self.span(value);
        match self.text[whole.clone()].find(content) {
            Some(offset) if !content.is_empty() => {
                let start = whole.start + offset;
                start + part.start..start + part.end
            }
            _ => whole,
        }
    }

    fn problem(&mut self, code: &'static str, value: &Spanned<DeValue>, content: &str, problem: Problem) {
        let span = self.span_within(value, content, &problem.span);
        self.report(Diagnostic::error(code, span, problem.message).help(problem.help));
    }

    fn version(&mut self, entry: &Entry) -> Span {
        let span = self.span(entry.value);
        match entry.value.get_ref() {
            DeValue::Integer(number) if integer(number) == Some(VERSION) => {}
            DeValue::Integer(_) => {
                let message =
                    format!("version {} is not one that this program reads", &self.text[span.clone()]);
                let help = format!("write `version = {VERSION}`, or use a newer program");
                self.report(Diagnostic::error("unsupported-version", span.clone(), message).help(help));
            }
            _ => self.wrong_type(entry, "a whole number"),
        }
        span
    }

    fn table<'a>(&mut self, entry: &Entry<'a>) -> Option<&'a DeTable<'a>> {
        let table = entry.value.get_ref().as_table();
        if table.is_none() {
            self.wrong_type(entry, "a table");
        }
        table
    }

    fn string<'a>(&mut self, entry: &Entry<'a>, wanted: &str) -> Option<&'a str> {
        let string = entry.value.get_ref().as_str();
        if string.is_none() {
            self.wrong_type(entry, wanted);
        }
        string
    }

    fn machine(&mut self, entry: &Entry) {
        let Some(table) = self.table(entry) else { return };
        for entry in self.entries(&MACHINE, table) {
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
                _ => {
                    let path = self.string(&entry, "the path of a unit");
                    self.default = path.map(|path| (path.to_owned(), self.span(entry.value)));
                }
            }
        }
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

    /// One of the words that the key knows.
    fn choice<'a>(&mut self, entry: &Entry<'a>) -> Option<&'a str> {
        let Kind::Choice(words) = entry.key.kind else { return None };
        let listed = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        let wanted = if words.len() == 1 { listed.clone() } else { format!("one of {listed}") };
        let word = self.string(entry, &wanted)?;
        if words.contains(&word) {
            return Some(word);
        }
        let message = format!("`{}` cannot be `{word}`", entry.key.name);
        let help = match nearest(word, words.iter().copied()) {
            Some(known) => format!("did you mean \"{known}\"? write {wanted}"),
            None => format!("write {wanted}"),
        };
        self.report(Diagnostic::error("unknown-word", self.span(entry.value), message).help(help));
        None
    }

    fn duration(&mut self, entry: &Entry) -> Option<u64> {
        let Kind::Duration { min_ns, max_ns } = entry.key.kind else { return None };
        let text = self.string(entry, "a length of time in quotes")?;
        match quantity::duration_ns(text) {
            Ok(ns) if (min_ns..=max_ns).contains(&ns) => Some(ns),
            Ok(_) => {
                let (min, max) = (quantity::duration_text(min_ns), quantity::duration_text(max_ns));
                let message = format!("`{}` cannot be {text}", entry.key.name);
                let help = format!("write a time from {min} to {max}");
                self.report(Diagnostic::error("out-of-range", self.span(entry.value), message).help(help));
                None
            }
            Err(problem) => {
                self.problem("quantity", entry.value, text, problem);
                None
            }
        }
    }

    fn amount(&mut self, entry: &Entry, resource: Resource) -> Option<Amount> {
        let text = match entry.value.get_ref() {
            DeValue::String(text) => text.to_string(),
            // Only CPUs are counted in bare numbers; of the others, the quantity says that the unit is missing.
            DeValue::Integer(number) => {
                integer(number).map_or(number.to_string(), |number| number.to_string())
            }
            DeValue::Float(number)
                if number.as_str().starts_with(|c: char| c.is_ascii_digit() || c == '-') =>
            {
                number.as_str().to_owned()
            }
            _ => {
                self.wrong_type(entry, "a quantity");
                return None;
            }
        };
        quantity::amount(&text, resource)
            .map_err(|problem| self.problem("quantity", entry.value, &text, problem))
            .ok()
    }

    /// The units of a table by name, their sub-units included.
    fn units(&mut self, entry: &Entry, parent: Option<UnitId>, depth: usize) -> Vec<check::Seen> {
        let Some(table) = self.table(entry) else { return Vec::new() };
        let mut named: Vec<_> =
            table.iter().map(|(name, value)| (clamp(self.text, &name.span()), name, value)).collect();
        named.sort_by_key(|(at, _, _)| at.start);
        if depth > DEPTH_MAX {
            if let Some((at, name, _)) = named.first() {
                let message = format!("unit `{}` is nested {depth} units deep", name.get_ref());
                let help = format!("nest at most {DEPTH_MAX} deep");
                self.report(Diagnostic::error("too-deep", at.clone(), message).help(help));
            }
            return Vec::new();
        }
        let mut seen = Vec::with_capacity(named.len());
        for (at, name, value) in named {
            if self.full {
                break;
            }
            let declared = self.contract.units.len() - COMMON_PARTS;
            if declared >= UNITS_MAX {
                self.full = true;
                let message = format!("the contract has more than {UNITS_MAX} units");
                let help = "use `each = \"user\"` where every user gets a unit";
                self.report(Diagnostic::error("too-many-units", at, message).help(help));
                break;
            }
            seen.extend(self.unit(&at, name.get_ref(), value, parent, depth));
        }
        seen
    }

    fn unit(
        &mut self,
        at: &Span,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        parent: Option<UnitId>,
        depth: usize,
    ) -> Option<check::Seen> {
        let Some(table) = value.get_ref().as_table() else {
            let found = article(value.get_ref());
            let message = format!("unit `{name}` must be a table, not {found}");
            let help = format!("write the header [unit.{name}] and the unit's keys below it");
            self.report(Diagnostic::error("wrong-type", self.span(value), message).help(help));
            return None;
        };
        if let Err((message, help)) = check_name(name) {
            self.report(Diagnostic::error("bad-name", at.clone(), message).help(help));
        }
        let id = self.contract.add(parent, name);
        let mut unit = Unit { span: at.clone(), ..self.contract.unit(id).clone() };
        let mut seen = check::Seen { id, hard: PerResource::default(), each: None };
        let mut limits = PerResource::default();
        let mut sub_units = None;
        for entry in self.entries(&UNIT, table) {
            match entry.key.name {
                "members" => unit.members = self.members(&entry),
                "each" => {
                    unit.each = self.choice(&entry).map(|_| Each::User);
                    seen.each = Some(entry.at.start..self.span(entry.value).end);
                }
                "tickets" => unit.tickets = self.tickets(&entry).unwrap_or(unit.tickets),
                "hard" => (unit.hard, seen.hard) = self.amounts(&entry),
                "limit" => (unit.limit, limits) = self.amounts(&entry),
                "lend" => unit.lend = self.switches(&entry),
                "borrow" => unit.borrow = self.switches(&entry),
                _ => sub_units = Some(entry),
            }
        }
        self.diagnostics.extend(check::unit(&unit, &seen, &limits));
        self.contract.units[id.index()] = unit;
        if let Some(entry) = sub_units {
            let children = self.units(&entry, Some(id), depth + 1);
            self.diagnostics.extend(check::siblings(&self.contract, Some(&seen), &children));
        }
        Some(seen)
    }

    fn members(&mut self, entry: &Entry) -> Vec<Member> {
        let Some(array) = entry.value.get_ref().as_array() else {
            self.wrong_type(entry, "a list of members");
            return Vec::new();
        };
        if array.len() > MEMBERS_MAX {
            let message =
                format!("{} members are more than the {MEMBERS_MAX} that a unit may list", array.len());
            let help = "name a group, or a cgroup";
            self.report(Diagnostic::error("too-many-members", entry.at.clone(), message).help(help));
            return Vec::new();
        }
        array.iter().filter_map(|value| self.member(value)).collect()
    }

    fn member(&mut self, value: &Spanned<DeValue>) -> Option<Member> {
        let span = self.span(value);
        let Some(text) = value.get_ref().as_str() else {
            let message =
                format!("a member must be a string such as \"user:ana\", not {}", article(value.get_ref()));
            let help =
                "write \"user:NAME\", \"group:NAME\", \"cgroup:/PATH\", \"command:GLOB\" or \"pid:NUMBER\"";
            self.report(Diagnostic::error("wrong-type", span, message).help(help));
            return None;
        };
        match member::parse(text) {
            Ok(kind) => Some(Member { kind, span }),
            Err(problem) => {
                self.problem("bad-member", value, text, problem);
                None
            }
        }
    }

    fn tickets(&mut self, entry: &Entry) -> Option<u64> {
        let Kind::Count { min, max } = entry.key.kind else { return None };
        let DeValue::Integer(number) = entry.value.get_ref() else {
            self.wrong_type(entry, "a whole number");
            return None;
        };
        let tickets = integer(number).filter(|number| (min..=max).contains(number));
        if tickets.is_none() {
            let message = format!("`{}` cannot be {number}", entry.key.name);
            let help = format!("write a whole number from {min} to {max}");
            self.report(Diagnostic::error("out-of-range", self.span(entry.value), message).help(help));
        }
        tickets
    }

    /// The quantities of `hard` or `limit`, and where each stands.
    fn amounts(&mut self, entry: &Entry) -> (PerResource<Option<Amount>>, PerResource<Option<Span>>) {
        let (mut amounts, mut spans) = (PerResource::default(), PerResource::default());
        let Kind::Table(keys) = entry.key.kind else { return (amounts, spans) };
        let Some(table) = self.table(entry) else { return (amounts, spans) };
        for entry in self.entries(keys, table) {
            let Kind::Amount(resource) = entry.key.kind else { continue };
            amounts[resource] = self.amount(&entry, resource);
            spans[resource] = Some(self.span(entry.value));
        }
        (amounts, spans)
    }

    fn switches(&mut self, entry: &Entry) -> PerResource<bool> {
        let mut switches = PerResource::all(true);
        let Kind::Switches(keys) = entry.key.kind else { return switches };
        match entry.value.get_ref() {
            DeValue::Boolean(all) => return PerResource::all(*all),
            DeValue::Table(table) => {
                for (entry, resource) in self.entries(keys, table).iter().filter_map(with_resource) {
                    match entry.value.get_ref() {
                        DeValue::Boolean(on) => switches[resource] = *on,
                        _ => self.wrong_type(entry, "true or false"),
                    }
                }
            }
            _ => self.wrong_type(entry, "true, false, or a table of these per resource"),
        }
        switches
    }
}

fn with_resource<'e, 'a>(entry: &'e Entry<'a>) -> Option<(&'e Entry<'a>, Resource)> {
    let resource = Resource::ALL.into_iter().find(|resource| resource.name() == entry.key.name)?;
    Some((entry, resource))
}

/// The value of an integer that is neither negative nor larger than 64 bits.
fn integer(number: &toml::de::DeInteger<'_>) -> Option<u64> {
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn article(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Names become folders of the cgroup file system and parts of paths in commands.
fn check_name(name: &str) -> Result<(), (String, String)> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let rule = format!("names are 1 to {NAME_CHARS_MAX} letters (a to z), digits, `-`, `_` and `.`");
    if name.is_empty() {
        return Err(("the name of a unit is empty".to_owned(), rule));
    }
    if let Some(bad) = name.chars().find(|c| !allowed(*c)) {
        return Err((format!("`{bad}` cannot be in the name of a unit"), rule));
    }
    if name.len() > NAME_CHARS_MAX {
        return Err((format!("the name of a unit is {} characters long", name.len()), rule));
    }
    if name.starts_with(['.', '-']) {
        return Err((
            format!("unit `{name}` begins with `{}`", &name[..1]),
            "begin with a letter, a digit or `_`".to_owned(),
        ));
    }
    if RESERVED_NAMES.contains(&name) {
        let help = format!("choose another name than {}: they are built in", RESERVED_NAMES.join(", "));
        return Err((format!("unit `{name}` has a reserved name"), help));
    }
    if let Some((prefix, _)) = name.split_once('.').filter(|(prefix, _)| KERNEL_PREFIXES.contains(prefix)) {
        let message = format!("unit `{name}` is named like a file of the kernel's in a cgroup");
        return Err((message, format!("do not begin with `{prefix}.`")));
    }
    Ok(())
}
