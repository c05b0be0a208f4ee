//! Sets single values in the texts of a scenario's files, so that each point of a sweep is an ordinary
//! scenario.
//!
//! Terms: a *key* names a value by its file and its path of tables, `contract:unit.physics.tickets`. A *short
//! form* leaves the file out, or has a unit's path in place of its tables: `tickets.physics/batch`.
//!
//! Algorithm: an existing value is replaced in place. A missing one is added to its table: behind the `{` of
//! an inline table, below a header, else below a new header at the end of the text. The result is parsed
//! again, and must have the value at the key.
//!
//! Properties: everything else in the text stays as it is, comments included.
//!
//! Limits: a value can be a number, a truth value or a string. A key cannot be added to a table that only
//! dotted keys define.

use std::fmt;

use commonhold_contract::document::with_tree;
use commonhold_contract::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::folder::Part;
use super::keys::{Kind, MACHINE, Table, WORKLOAD};
use super::values::Span;

/// The keys at the top level of a contract.
const CONTRACT_KEYS: [&str; 3] = ["version", "machine", "unit"];
/// The first segment of the short form of a unit's tickets.
const TICKETS: &str = "tickets";

/// The place of a value in a scenario's files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The file.
    pub part: Part,
    /// The names of the tables around the value, from the top level, and the value's own name. In a list, the
    /// index of an item, from 0.
    pub path: Vec<String>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.part, dotted(&self.path))
    }
}

/// The texts of a scenario's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Texts {
    /// `contract.toml`.
    pub contract: String,
    /// `machine.toml`.
    pub machine: String,
    /// `workload.toml`.
    pub workload: String,
}

impl Texts {
    /// The text of a file.
    pub fn of(&self, part: Part) -> &str {
        match part {
            Part::Contract => &self.contract,
            Part::Machine => &self.machine,
            Part::Workload => &self.workload,
        }
    }

    /// Finds the key that `written` names: with its file, or in a short form that fits only one.
    ///
    /// # Errors
    ///
    /// A message with a remedy, if no key or several are meant, or if a table that the key names does not
    /// exist.
    pub fn find(&self, written: &str) -> Result<Key, String> {
        let prefixed = Part::ALL.into_iter().find_map(|part| {
            let rest = written.strip_prefix(part.name())?.strip_prefix(':')?;
            Some((part, rest))
        });
        if let Some((part, rest)) = prefixed {
            let key = Key { part, path: segments(rest)? };
            self.check_names(&key)?;
            return Ok(key);
        }
        let path = segments(written)?;
        let mut meant = self.short_forms(&path);
        meant.sort();
        meant.dedup();
        match meant.as_slice() {
            [key] => {
                self.check_names(key)?;
                Ok(key.clone())
            }
            [] => Err(self.unknown(&path)),
            several => {
                let keys: Vec<String> = several.iter().map(|key| format!("`{key}`")).collect();
                Err(format!("`{written}` is ambiguous: write {}", keys.join(" or ")))
            }
        }
    }

    /// The text of the key's file with a value in place of the key's, or with the value added. `value` is as
    /// a user writes it, without TOML's quotes.
    ///
    /// # Errors
    ///
    /// A message with a remedy, if the key names a table or a list, or leads into a number or text.
    pub fn set(&mut self, key: &Key, value: &str) -> Result<(), String> {
        let text = match key.part {
            Part::Contract => &mut self.contract,
            Part::Machine => &mut self.machine,
            Part::Workload => &mut self.workload,
        };
        *text = with_value(text, key, value)?;
        Ok(())
    }

    /// Every key that a path without a file may mean.
    fn short_forms(&self, path: &[String]) -> Vec<Key> {
        let [first, rest @ ..] = path else { return Vec::new() };
        let mut meant = Vec::new();
        let contract = |path: Vec<String>| Key { part: Part::Contract, path };
        if let (TICKETS, [unit, ..]) = (first.as_str(), rest)
            && self.has_unit(unit)
        {
            let resource = rest.get(1..).unwrap_or_default();
            let path = [unit_path(unit), vec![TICKETS.to_owned()], resource.to_vec()].concat();
            meant.push(contract(path));
        }
        if !rest.is_empty() && self.has_unit(first) {
            meant.push(contract([unit_path(first), rest.to_vec()].concat()));
        }
        for part in Part::ALL {
            if top_level(part).contains(&first.as_str()) {
                meant.push(Key { part, path: path.to_vec() });
            }
        }
        meant
    }

    fn unknown(&self, path: &[String]) -> String {
        let units = units(&self.contract);
        let (first, second) = (path.first().map_or("", String::as_str), path.get(1));
        if let (TICKETS, Some(unit)) = (first, second) {
            return no_such("unit", unit, "the contract", &units);
        }
        let mut known: Vec<&str> = units.iter().map(String::as_str).chain([TICKETS]).collect();
        known.extend(Part::ALL.iter().flat_map(|part| top_level(*part)));
        let hint = match nearest(first, known) {
            Some(word) => format!("did you mean `{word}`? "),
            None => String::new(),
        };
        format!(
            "no file of the scenario has a key or unit `{first}`; {hint}write `tickets.UNIT`, `UNIT.KEY`, or a path with its \
             file, such as `machine:kernel.slice`"
        )
    }

    fn has_unit(&self, path: &str) -> bool {
        units(&self.contract).iter().any(|unit| unit == path)
    }

    /// Checks that tables with names of their own, such as `[job.NAME]`, exist. Other tables may be missing.
    fn check_names(&self, key: &Key) -> Result<(), String> {
        let [first, name, ..] = key.path.as_slice() else { return Ok(()) };
        let text = self.of(key.part);
        if key.part == Part::Contract {
            // Units are within units.
            let mut unit = Vec::new();
            for pair in key.path.chunks(2).take_while(|pair| pair[0] == "unit") {
                let Some(name) = pair.get(1) else { break };
                unit.push(name.as_str());
            }
            let (units, path) = (units(text), unit.join("/"));
            let is_known = path.is_empty() || units.contains(&path);
            return if is_known { Ok(()) } else { Err(no_such("unit", &path, "the contract", &units)) };
        }
        let table = if key.part == Part::Machine { &MACHINE } else { &WORKLOAD };
        if !is_named(table, first) {
            return Ok(());
        }
        let names = with_tree(text, |tree| names_in(tree, first)).unwrap_or_default();
        if names.contains(name) { Ok(()) } else { Err(no_such(first, name, key.part.file(), &names)) }
    }
}

impl Part {
    /// The files in the order in which they are read.
    pub const ALL: [Part; 3] = [Part::Contract, Part::Machine, Part::Workload];

    /// The part's name in keys: `contract`.
    pub fn name(self) -> &'static str {
        match self {
            Part::Contract => "contract",
            Part::Machine => "machine",
            Part::Workload => "workload",
        }
    }

    /// The name of the part's file in a scenario's folder.
    pub fn file(self) -> &'static str {
        match self {
            Part::Contract => "contract.toml",
            Part::Machine => "machine.toml",
            Part::Workload => "workload.toml",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn no_such(noun: &str, name: &str, place: &str, known: &[String]) -> String {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let hint = match nearest(name, known.iter().copied()) {
        Some(word) => format!("did you mean `{word}`?"),
        None if known.is_empty() => format!("it has no {noun}"),
        None => format!("it has {}", known.iter().take(10).copied().collect::<Vec<_>>().join(", ")),
    };
    format!("there is no {noun} `{name}` in {place}; {hint}")
}

fn top_level(part: Part) -> Vec<&'static str> {
    match part {
        Part::Contract => CONTRACT_KEYS.to_vec(),
        Part::Machine => MACHINE.names().collect(),
        Part::Workload => WORKLOAD.names().collect(),
    }
}

/// Whether the key's table has tables by name.
fn is_named(table: &'static Table, key: &str) -> bool {
    table.key(key).is_some_and(|key| matches!(key.kind, Kind::Named(_)))
}

fn names_in(tree: &DeTable<'_>, key: &str) -> Vec<String> {
    let table = tree.get(key).and_then(|value| value.get_ref().as_table());
    table.map(|table| table.keys().map(|name| name.get_ref().to_string()).collect()).unwrap_or_default()
}

/// The paths of the contract's units, such as `physics/batch`, each before its sub-units.
fn units(contract: &str) -> Vec<String> {
    let paths = with_tree(contract, |tree| {
        let mut paths = Vec::new();
        let mut unvisited = vec![(String::new(), tree)];
        while let Some((above, table)) = unvisited.pop() {
            let units = table.get("unit").and_then(|units| units.get_ref().as_table());
            for (name, unit) in units.into_iter().flatten() {
                let path = if above.is_empty() {
                    name.get_ref().to_string()
                } else {
                    format!("{above}/{}", name.get_ref())
                };
                if let (Some(unit), true) = (unit.get_ref().as_table(), path.len() <= PATH_BYTES_MAX) {
                    unvisited.push((path.clone(), unit));
                }
                paths.push(path);
            }
        }
        paths
    });
    paths.unwrap_or_default()
}

/// A longer path is no unit's: contracts have at most 16 levels of units.
const PATH_BYTES_MAX: usize = 4096;

/// The tables of a unit: `["unit", "physics", "unit", "batch"]`.
fn unit_path(unit: &str) -> Vec<String> {
    unit.split('/').flat_map(|name| ["unit".to_owned(), name.to_owned()]).collect()
}

/// Splits a path at its dots; a name in double quotes may have dots.
fn segments(written: &str) -> Result<Vec<String>, String> {
    let mut segments = vec![String::new()];
    let mut is_quoted = false;
    for c in written.chars() {
        match (c, segments.last_mut()) {
            ('"', _) => is_quoted = !is_quoted,
            ('.', _) if !is_quoted => segments.push(String::new()),
            (_, Some(last)) => last.push(c),
            (_, None) => {}
        }
    }
    if is_quoted || segments.iter().any(String::is_empty) {
        return Err(format!(
            "`{written}` is no key: write names with dots between them, such as `kernel.slice`"
        ));
    }
    Ok(segments)
}

/// A path as TOML writes it.
fn dotted(path: &[String]) -> String {
    let is_bare = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    let name = |name: &String| if is_bare(name) { name.clone() } else { format!("\"{name}\"") };
    path.iter().map(name).collect::<Vec<_>>().join(".")
}

/// A value as TOML writes it: numbers and truth values as they are, everything else as a string.
pub fn literal(value: &str) -> String {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (integer, decimals) = value.split_once('.').map_or((value, None), |(i, d)| (i, Some(d)));
    let has_no_leading_zero = integer == "0" || !integer.starts_with('0');
    if is_number(integer) && has_no_leading_zero && decimals.is_none_or(is_number)
        || ["true", "false"].contains(&value)
    {
        return value.to_owned();
    }
    let content = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
    let mut quoted = String::from("\"");
    for c in content.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.extend(format!("\\u{:04X}", u32::from(c)).chars()),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// Where a key's value is, or would be.
enum Place {
    /// The value's span.
    Value(Span),
    /// The table in which the rest of the path is missing: how many names of the path lead to it, and its
    /// span, `None` for the top level.
    Missing { depth: usize, table: Option<Span> },
}

fn with_value(text: &str, key: &Key, value: &str) -> Result<String, String> {
    let unreadable =
        || format!("{} has a syntax error; run `commonhold sim` without --sweep to see it", key.part.file());
    let place = with_tree(text, |tree| place_of(tree, key)).ok_or_else(unreadable)??;
    let literal = literal(value);
    let edited = match place {
        Place::Value(span) => format!("{}{literal}{}", &text[..span.start], &text[span.end..]),
        Place::Missing { depth, table } => added(text, &key.path, depth, table, &literal),
    };
    let has_value = with_tree(&edited, |tree| match place_of(tree, key) {
        Ok(Place::Value(span)) => edited.get(span) == Some(literal.as_str()),
        _ => false,
    });
    if has_value == Some(true) {
        return Ok(edited);
    }
    Err(format!("`{key}` cannot be added to {}: write it there first, with any value", key.part.file()))
}

/// The text with a new entry in a table.
fn added(text: &str, path: &[String], depth: usize, table: Option<Span>, literal: &str) -> String {
    let entry = format!("{} = {literal}", dotted(&path[depth..]));
    let inner = table.as_ref().map(|span| &text[span.clone()]).unwrap_or_default();
    match table {
        Some(span) if inner.starts_with('{') => {
            let is_empty = inner[1..].trim_start().starts_with('}');
            let comma = if is_empty { "" } else { "," };
            let (before, after) = text.split_at(span.start + 1);
            format!("{before} {entry}{comma}{after}")
        }
        Some(span) if inner.starts_with('[') => {
            let end = text[span.end..].find('\n').map_or(text.len(), |newline| span.end + newline);
            format!("{}\n{entry}{}", &text[..end], &text[end..])
        }
        None if depth + 1 == path.len() => format!("{entry}\n{text}"),
        _ => match path.split_last() {
            Some((last, tables)) => {
                format!("{text}\n[{}]\n{} = {literal}\n", dotted(tables), dotted(std::slice::from_ref(last)))
            }
            None => text.to_owned(),
        },
    }
}

fn place_of(tree: &DeTable<'_>, key: &Key) -> Result<Place, String> {
    let [first, rest @ ..] = key.path.as_slice() else { return Err("the key is empty".to_owned()) };
    let Some(mut value) = tree.get(first.as_str()) else {
        return Ok(Place::Missing { depth: 0, table: None });
    };
    for (name, depth) in rest.iter().zip(1..) {
        let here = || dotted(&key.path[..depth]);
        value = match value.get_ref() {
            DeValue::Table(table) => match table.get(name.as_str()) {
                Some(inner) => inner,
                None => return Ok(Place::Missing { depth, table: Some(value.span()) }),
            },
            DeValue::Array(items) => {
                let item = name.parse::<usize>().ok().and_then(|index| items.get(index));
                let count = items.len();
                item.ok_or_else(|| {
                    format!("`{}` has no item `{name}`: its {count} items are numbered from 0", here())
                })?
            }
            other => return Err(format!("`{}` is {}, and has no `{name}`", here(), kind(other))),
        };
    }
    is_single(value, key)?;
    Ok(Place::Value(value.span()))
}

/// Refuses to replace what has several values.
fn is_single(value: &Spanned<DeValue<'_>>, key: &Key) -> Result<(), String> {
    match value.get_ref() {
        DeValue::Table(_) => Err(format!("`{key}` is a table: name one of its keys, `{key}.KEY`")),
        DeValue::Array(_) => Err(format!("`{key}` is a list: name one of its items by its index, `{key}.0`")),
        _ => Ok(()),
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::String(_) => "a text",
        _ => "no table",
    }
}

#[cfg(test)]
mod tests;
