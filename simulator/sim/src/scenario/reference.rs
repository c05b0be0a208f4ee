//! Writes the reference of `machine.toml` and `workload.toml` from the tables of keys: every key with its
//! default, its range and its meaning.

use std::fmt::Write;

use commonhold_contract::quantity::{bytes_text, duration_text, part_text};

use super::keys::{DISK, Key, Kind, MACHINE, OF_MODELS, RESOURCES, STEPS, Table, WORKLOAD};
use super::limits::TIMES_MAX;

/// The longest line, in columns.
const WIDTH: usize = 110;

/// The column in which the meaning of a key begins.
const INDENT: usize = 24;

/// All keys of `machine.toml` and `workload.toml`, as text for a terminal.
pub fn reference() -> String {
    let mut out = String::new();
    for (root, about) in [
        (&MACHINE, "machine.toml describes a simulated machine."),
        (&WORKLOAD, "workload.toml says what its jobs do."),
    ] {
        let _ = writeln!(out, "{about}");
        table(&mut out, root);
        for key in root.keys {
            if let Kind::Table(inner) | Kind::Named(inner) = key.kind {
                table(&mut out, inner);
            }
        }
        out.push('\n');
    }
    let _ = writeln!(out, "The steps of a program, each with one of these keys first.");
    for (_, step) in &STEPS {
        table(&mut out, step);
    }
    out
}

/// Writes the keys of one table. A key of a disk that only some models have names these models.
fn table(out: &mut String, table: &Table) {
    let _ = writeln!(out, "\n{}", table.definition);
    for key in table.keys {
        let models =
            OF_MODELS.iter().filter(|(name, _)| *name == key.name && table.definition == DISK.definition);
        let model_note = models.map(|(_, models)| format!("; only of model {}", models.join(" or ")));
        let value = format!("{}{}{}", default(key), range(key.kind), model_note.collect::<String>());
        let _ = writeln!(out, "  {:<width$}{value}", key.name, width = INDENT - 2);
        write_wrapped(out, key.doc);
    }
}

fn default(key: &Key) -> String {
    match key.default {
        "" => String::new(),
        default => format!("{default} if not said; "),
    }
}

/// The values that a key of this kind may have, in words.
fn range(kind: Kind) -> String {
    let span = |show: fn(u64) -> String, min, max| format!("{} to {}", show(min), show(max));
    match kind {
        Kind::Version => "1".to_owned(),
        Kind::Text => "a text".to_owned(),
        Kind::Shape => "a machine in words".to_owned(),
        Kind::Table(_) => "a table".to_owned(),
        Kind::Named(_) => "tables by name".to_owned(),
        Kind::Choice(words) => {
            words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" or ")
        }
        Kind::Count { min, max } => span(|number| number.to_string(), min, max),
        Kind::Times => format!("1 to {TIMES_MAX}, or \"forever\""),
        Kind::Decimal { max } => format!("0 to {}, with three decimals at most", max / 1000),
        Kind::Time { min, max } => span(duration_text, min, max),
        Kind::Bytes { min, max } => span(bytes_text, min, max),
        Kind::BytesOrPart => "bytes or a percentage".to_owned(),
        Kind::Rate { min, max } => span(|rate| bytes_text(rate) + "/s", min, max),
        Kind::Part { min, max } => span(part_text, min, max),
        Kind::Spread => "a percentage or \"exponential\"".to_owned(),
        Kind::Switch => "true or false".to_owned(),
        Kind::Name(what) => format!("the name of a {what}"),
        Kind::Unit => "the path of a unit".to_owned(),
        Kind::Tickets { max } => {
            let resources = RESOURCES.join(", ");
            format!("RESOURCE:TICKETS; one of {resources}; 1 to {max}")
        }
        Kind::Rounds => "N rounds of JOB".to_owned(),
        Kind::Cpus => "CPUs such as \"0-3,8\"".to_owned(),
        Kind::Steps => "a list of steps".to_owned(),
        Kind::Distances { min, max } => format!("a list of lists of numbers, {min} to {max}"),
    }
}

/// Writes a text, indented and broken between words into lines of at most [`WIDTH`] columns.
fn write_wrapped(out: &mut String, text: &str) {
    let mut column = 0;
    for word in text.split_whitespace() {
        if column == 0 || column + 1 + word.len() > WIDTH {
            if column > 0 {
                out.push('\n');
            }
            let _ = write!(out, "{:INDENT$}{word}", "");
            column = INDENT + word.len();
        } else {
            let _ = write!(out, " {word}");
            column += 1 + word.len();
        }
    }
    out.push('\n');
}
