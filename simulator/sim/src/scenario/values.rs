//! Reads what both languages have in common: numbers of each kind, names, and the head of a file.

use std::collections::BTreeMap;

use commonhold_contract::document::{self, Document, Named};
use commonhold_contract::{Diagnostic, nearest};
use toml::de::{DeTable, DeValue};

use super::keys::{Kind, Table, VERSION};
use super::limits::NAME_CHARS_MAX;

pub(crate) type Span = std::ops::Range<usize>;
pub(crate) type Entry<'a> = document::Entry<'a, Kind>;

/// What a file says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About {
    /// What reports call it; may be empty.
    pub title: String,
    /// Where its numbers come from; may be empty.
    pub source: String,
}

/// What is made of a file's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed<T> {
    /// The value, if no diagnostic is an error.
    pub value: Option<T>,
    /// The file's title and source, if they could be read.
    pub about: About,
    /// All that is wrong or doubtful, in the order of the text; at most 200, the rest counted by the last.
    pub diagnostics: Vec<Diagnostic>,
}

/// Codes of errors that may stem from what is not there: a name, a key, a horizon.
pub(crate) const MISSING: [&str; 5] =
    ["missing-version", "missing-key", "unknown-name", "no-disk", "never-starts"];

/// Reads a file: `values` is given its keys, but for those of its head.
pub(crate) fn read<T>(
    text: &str,
    table: &'static Table,
    values: impl FnOnce(&mut Document<'_>, Vec<Entry<'_>>) -> T,
) -> Parsed<T> {
    let (mut about, mut seen) = (About::default(), false);
    let (value, diagnostics) = document::read(text, &MISSING, |document, tree| {
        let mut entries = document.entries(table, tree);
        entries.retain(|entry| !head(document, entry, &mut about, &mut seen));
        if !seen {
            let message = format!("{} must say which version of its language it is in", table.title);
            let help = format!("begin with `version = {VERSION}`");
            document.report(Diagnostic::error("missing-version", 0..0, message).help(help));
        }
        values(document, entries)
    });
    let wrong = diagnostics.iter().any(Diagnostic::is_error);
    Parsed { value: (!wrong).then_some(value), about, diagnostics }
}

/// Reads a key of the head; whether it is one.
fn head(document: &mut Document, entry: &Entry, about: &mut About, seen: &mut bool) -> bool {
    let text = |document: &mut Document| document.string(entry, "a text").unwrap_or_default().to_owned();
    match entry.key.name {
        "version" => {
            *seen = true;
            document.version(entry, VERSION);
        }
        "title" => about.title = text(document),
        "source" => about.source = text(document),
        _ => return false,
    }
    true
}

/// A number of the key's kind: in nanoseconds, bytes, bytes per second, millionths or thousandths.
pub(crate) fn number(document: &mut Document, entry: &Entry) -> Option<u64> {
    match entry.key.kind {
        Kind::Count { min, max } => document.count(entry, min..=max),
        Kind::Time { min, max } => document.duration(entry, min..=max),
        Kind::Bytes { min, max } => document.bytes(entry, min..=max),
        Kind::Rate { min, max } => document.bytes_per_s(entry, min..=max),
        Kind::Part { min, max } => document.part(entry, min..=max),
        Kind::Decimal { max } => decimal(document, entry, max),
        _ => None,
    }
}

/// The same for what is kept in 32 bits, which the key's range allows for.
pub(crate) fn number_32(document: &mut Document, entry: &Entry) -> Option<u32> {
    number(document, entry).and_then(|number| u32::try_from(number).ok())
}

/// A number with three decimals at most, in thousandths.
fn decimal(document: &mut Document, entry: &Entry, max: u64) -> Option<u64> {
    let text = match entry.value.get_ref() {
        DeValue::Integer(number) => document::integer(number).map(|number| number.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => {
            document.wrong_type(entry, "a number");
            return None;
        }
    };
    let thousandths = text.as_deref().and_then(thousandths).filter(|number| *number <= max);
    if thousandths.is_none() {
        let span = document.span(entry.value);
        let message = format!("`{}` cannot be {}", entry.key.name, &document.text()[span.clone()]);
        let help = format!("write a number from 0 to {}, with three decimals at most", max / 1000);
        document.report(Diagnostic::error("out-of-range", span, message).help(help));
    }
    thousandths
}

/// `1.5` is 1500. No signs, no exponents.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if decimals.len() > 3 || !digits(whole) || !digits(decimals) {
        return None;
    }
    let fraction: u64 = format!("{decimals:0<3}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(fraction)
}

/// The named tables of an entry, in the order of the text, at most `max` of them; bad names are reported.
pub(crate) fn tables<'a>(
    document: &mut Document,
    entry: &Entry<'a>,
    what: &str,
    max: usize,
) -> Vec<(Named<'a>, &'a DeTable<'a>)> {
    let Some(table) = document.table(entry) else { return Vec::new() };
    let named = document.named(table);
    if let Some(first) = named.get(max) {
        let message = format!("there are {} {what}s, more than {max}", named.len());
        let help = format!("{max} is the most that are numbered: remove some");
        document.report(Diagnostic::error("too-many-names", first.at.clone(), message).help(help));
    }
    let mut tables = Vec::with_capacity(named.len().min(max));
    for named in named.into_iter().take(max) {
        check_name(document, &named, what);
        match named.value.get_ref().as_table() {
            Some(table) => tables.push((named, table)),
            None => not_a_table(document, &named, what),
        }
    }
    tables
}

fn not_a_table(document: &mut Document, named: &Named, what: &str) {
    let found = document::article(named.value.get_ref());
    let message = format!("{what} `{}` must be a table, not {found}", named.name);
    let help = format!("write the header [{what}.{}] and its keys below it", named.name);
    let span = document.span(named.value);
    document.report(Diagnostic::error("wrong-type", span, message).help(help));
}

/// Names stand in reports, file names and commands.
fn check_name(document: &mut Document, named: &Named, what: &str) {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fits = (1..=NAME_CHARS_MAX).contains(&named.name.len()) && named.name.chars().all(allowed);
    if fits && !named.name.starts_with(['.', '-']) {
        return;
    }
    let message = format!("`{}` cannot be the name of a {what}", named.name);
    let help = format!(
        "names are 1 to {NAME_CHARS_MAX} letters (a to z), digits, `-`, `_` and `.`, and begin with no `.` or `-`"
    );
    document.report(Diagnostic::error("bad-name", named.at.clone(), message).help(help));
}

/// Names of one kind of thing, and their numbers.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// What one of them is called: `file`.
    what: &'static str,
    numbers: BTreeMap<String, u16>,
}

impl Names {
    /// Numbers names in their order, from 0; there are no more than 65,536.
    pub(crate) fn new<'n>(what: &'static str, names: impl IntoIterator<Item = &'n str>) -> Self {
        let numbered = names.into_iter().zip(0..=u16::MAX).map(|(name, number)| (name.to_owned(), number));
        Names { what, numbers: numbered.collect() }
    }

    /// The number of what a value names.
    pub(crate) fn find(&self, document: &mut Document, entry: &Entry) -> Option<u16> {
        let name = document.string(entry, &format!("the name of a {}", self.what))?;
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let what = self.what;
        let help = match nearest(name, self.numbers.keys().map(String::as_str)) {
            Some(known) => format!("did you mean \"{known}\"?"),
            None if what == "disk" => format!("declare it in the machine: [disk.{name}]"),
            None => format!("declare it: [{what}.{name}]"),
        };
        let message = format!("there is no {what} `{name}`");
        let span = document.span(entry.value);
        document.report(Diagnostic::error("unknown-name", span, message).help(help));
        None
    }
}

/// Says that a key is missing.
pub(crate) fn missing(document: &mut Document, at: Span, what: &str, name: &str, example: &str) {
    let message = format!("{what} does not say its `{name}`");
    let help = format!("for example: {name} = {example}");
    document.report(Diagnostic::error("missing-key", at, message).help(help));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact() {
        for (text, expected) in [
            ("0.5", Some(500)),
            ("23.31", Some(23_310)),
            ("7", Some(7000)),
            ("0.001", Some(1)),
            ("0.0005", None),
            ("1e3", None),
            ("-1", None),
            ("+1", None),
            ("nan", None),
            ("18446744073709551615", None),
        ] {
            assert_eq!(thousandths(text), expected, "{text}");
        }
    }
}
