//! The reference of the contract's language, for people: every key, and every kind of member.
//!
//! The reference is generated from the parser's table of keys, as Markdown for `docs/contract-reference.md`,
//! and as a man page.

use std::fmt::Write;

use crate::keys::{HARD, Key, Kind, LEND, MACHINE, ROOT, TICKETS, Table, UNIT, VERSION};
use crate::member::MEMBER_FORMS;
use crate::quantity::duration_text;
use crate::resource::Resource;

/// A table of a contract. Texts are Markdown: with words in backquotes, and links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceTable {
    /// The heading, which says where the table stands in a contract.
    pub heading: &'static str,
    /// The table's keys, in reading order.
    pub keys: Vec<ReferenceKey>,
}

/// A key of a contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceKey {
    /// The key's name in the contract.
    pub name: &'static str,
    /// An example: a line of a contract with the key.
    pub example: String,
    /// The values that the key may have, in words.
    pub values: String,
    /// The default value, in TOML; empty if the key has no default.
    pub default: &'static str,
    /// The key's meaning.
    pub doc: &'static str,
}

/// Every table of a contract, and every key in it.
pub fn reference_tables() -> Vec<ReferenceTable> {
    [
        ("At the top of the file", &ROOT),
        ("`[machine]`", &MACHINE),
        ("`[unit.NAME]`, and `[unit.NAME.unit.NAME]` below it", &UNIT),
        ("`tickets`, where one number is not enough", &TICKETS),
        ("`hard` and `limit`", &HARD),
        ("`lend` and `borrow`, where one switch is not enough", &LEND),
    ]
    .into_iter()
    .map(|(heading, table)| ReferenceTable { heading, keys: table.keys.iter().map(reference_key).collect() })
    .collect()
}

/// The reference as Markdown: all tables of [`reference_tables`], and the kinds of members.
pub fn reference() -> String {
    let mut out = String::new();
    for table in reference_tables() {
        let _ = writeln!(out, "## {}\n\n| key | example | values | default | meaning |", table.heading);
        out += "| --- | --- | --- | --- | --- |\n";
        for key in table.keys {
            let default = match key.default {
                "" => "-".to_owned(),
                default => format!("`{default}`"),
            };
            let ReferenceKey { name, example, values, doc, .. } = key;
            let _ = writeln!(out, "| `{name}` | `{example}` | {values} | {default} | {doc} |");
        }
        out.push('\n');
    }
    out += "## `members`\n\n| member | processes |\n| --- | --- |\n";
    for form in MEMBER_FORMS {
        let _ = writeln!(out, "| `{}` | {} |", form.forms.join("`, `"), form.who);
    }
    out
}

/// A key of the parser's table, in words.
fn reference_key(key: &Key) -> ReferenceKey {
    let example = match key.kind {
        Kind::Units => format!("[{}.NAME]", key.name),
        _ => format!("{} = {}", key.name, key.example),
    };
    ReferenceKey { name: key.name, example, values: values(key.kind), default: key.default, doc: key.doc }
}

/// The values that a key may have, in words.
fn values(kind: Kind) -> String {
    match kind {
        Kind::Version => format!("{VERSION}; required"),
        Kind::Table(table) => format!("a table with {}", names(table)),
        Kind::Units => "a table for each unit".to_owned(),
        Kind::Choice(words) => {
            words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(" or ")
        }
        Kind::WordOrCount { words, min, max } => {
            format!("{}, or {min} to {max}", values(Kind::Choice(words)).replace(" or ", ", "))
        }
        Kind::Count { min, max } => format!("{min} to {max}"),
        Kind::Members => "a list of [members](#members)".to_owned(),
        Kind::Owner => "`user:` or `group:`, as in [members](#members)".to_owned(),
        Kind::Amount(resource) => format!("{}, or a percentage", measure(resource)),
        Kind::Part => "a percentage, up to `100%`".to_owned(),
        Kind::Duration { min_ns, max_ns } => {
            format!("{} to {}", duration_text(min_ns), duration_text(max_ns))
        }
        Kind::UnitPath => {
            "a unit's name, or the names from the top, as in `\"physics/night-batch\"`".to_owned()
        }
        Kind::Counts(table) => {
            let number = table.keys.first().map_or_else(String::new, |key| values(key.kind));
            format!("{number}, or a table with {}", names(table))
        }
        Kind::Permission(resource) => format!("`true`, `false`, {}, or a percentage", measure(resource)),
        Kind::Flag => "`true` or `false`".to_owned(),
        Kind::Permissions(table) => format!("`true`, `false`, or a table with {}", names(table)),
    }
}

/// The measure of an absolute amount of a resource, in words.
fn measure(resource: Resource) -> &'static str {
    match resource {
        Resource::Cpu => "a number of CPUs",
        Resource::Memory => "bytes",
        Resource::Disk | Resource::Bus => "bytes per second",
    }
}

/// The keys of a table, as a list in words.
fn names(table: &Table) -> String {
    table.names().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
