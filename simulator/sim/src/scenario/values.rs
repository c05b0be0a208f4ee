//! Reads the parts that the languages of machine and workload share: numbers of each kind, names, and the
//! head of a file (version, title and source).

use std::collections::BTreeMap;

use commonhold_contract::document::{self, Document, Named};
use commonhold_contract::{Diagnostic, nearest};
use toml::de::{DeTable, DeValue};

use super::keys::{Kind, Table, VERSION};
use super::limits::NAME_CHARS_MAX;

pub(crate) type Span = std::ops::Range<usize>;
pub(crate) type Entry<'a> = document::Entry<'a, Kind>;

/// The title and source in a file's head.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About {
    /// The name that reports give to the machine or workload; may be empty.
    pub title: String,
    /// The publication or measurement that the numbers come from; may be empty.
    pub source: String,
}

/// The result of reading a file's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed<T> {
    /// The value, if no diagnostic is an error.
    pub value: Option<T>,
    /// The file's title and source, if they could be read.
    pub about: About,
    /// All errors and warnings, in the order of the text, at most 200. If there are more, the last one counts
    /// the rest.
    pub diagnostics: Vec<Diagnostic>,
}

/// Codes of errors that report something missing. After a syntax error they are withheld: the unreadable part
/// may have it.
pub(crate) const MISSING: [&str; 5] =
    ["missing-version", "missing-key", "unknown-name", "no-disk", "never-starts"];

/// Reads a file. `values` makes the result from all keys except those of the head.
pub(crate) fn read<T>(
    text: &str,
    table: &'static Table,
    values: impl FnOnce(&mut Document<'_>, Vec<Entry<'_>>) -> T,
) -> Parsed<T> {
    let (mut about, mut has_version) = (About::default(), false);
    let (value, diagnostics) = document::read(text, &MISSING, |document, tree| {
        let mut entries = document.entries(table, tree);
        entries.retain(|entry| !read_head(document, entry, &mut about, &mut has_version));
        if !has_version {
            let message = format!("{} must say which version of its language it is in", table.title);
            let help = format!("begin with `version = {VERSION}`");
            document.report(Diagnostic::error("missing-version", 0..0, message).help(help));
        }
        values(document, entries)
    });
    let has_error = diagnostics.iter().any(Diagnostic::is_error);
    Parsed { value: (!has_error).then_some(value), about, diagnostics }
}

/// Reads a key of the head. Returns false if the key is not one of the head, and is left for the caller.
fn read_head(document: &mut Document, entry: &Entry, about: &mut About, has_version: &mut bool) -> bool {
    let text = |document: &mut Document| document.string(entry, "a text").unwrap_or_default().to_owned();
    match entry.key.name {
        "version" => {
            *has_version = true;
            document.version(entry, VERSION);
        }
        "title" => about.title = text(document),
        "source" => about.source = text(document),
        _ => return false,
    }
    true
}

/// Reads a number of the key's kind: in nanoseconds, bytes, bytes per second, millionths or thousandths. A
/// wrong value is reported, and `None`.
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

/// Reads a number as [`number`] does, for a key whose range fits in 32 bits.
pub(crate) fn number_32(document: &mut Document, entry: &Entry) -> Option<u32> {
    number(document, entry).and_then(|number| u32::try_from(number).ok())
}

/// Reads a number with at most three decimals, and returns thousandths.
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

/// `1.5` is 1500. `None` for a sign, an exponent or a fourth decimal.
fn thousandths(text: &str) -> Option<u64> {
    let (integer, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if decimals.len() > 3 || !digits(integer) || !digits(decimals) {
        return None;
    }
    let fraction: u64 = format!("{decimals:0<3}").parse().ok()?;
    integer.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(fraction)
}

/// The named tables of an entry, in the order of the text: the first `max`. Reports further tables, bad names
/// and values that are no tables. `noun` is what messages call such a table: `file`.
pub(crate) fn tables<'a>(
    document: &mut Document,
    entry: &Entry<'a>,
    noun: &str,
    max: usize,
) -> Vec<(Named<'a>, &'a DeTable<'a>)> {
    let Some(table) = document.table(entry) else { return Vec::new() };
    let named = document.named(table);
    if let Some(first) = named.get(max) {
        let message = format!("there are {} {noun}s, more than {max}", named.len());
        let help = format!("{max} is the most that are numbered: remove some");
        document.report(Diagnostic::error("too-many-names", first.at.clone(), message).help(help));
    }
    let mut tables = Vec::with_capacity(named.len().min(max));
    for named in named.into_iter().take(max) {
        check_name(document, &named, noun);
        match named.value.get_ref().as_table() {
            Some(table) => tables.push((named, table)),
            None => report_no_table(document, &named, noun),
        }
    }
    tables
}

fn report_no_table(document: &mut Document, named: &Named, noun: &str) {
    let value = document::article(named.value.get_ref());
    let message = format!("{noun} `{}` must be a table, not {value}", named.name);
    let help = format!("write the header [{noun}.{}] and its keys below it", named.name);
    let span = document.span(named.value);
    document.report(Diagnostic::error("wrong-type", span, message).help(help));
}

/// Reports a name that would be unsafe or ambiguous in reports, file names and commands, which all contain
/// names.
fn check_name(document: &mut Document, named: &Named, noun: &str) {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fits = (1..=NAME_CHARS_MAX).contains(&named.name.len()) && named.name.chars().all(is_allowed);
    if fits && !named.name.starts_with(['.', '-']) {
        return;
    }
    let message = format!("`{}` cannot be the name of a {noun}", named.name);
    let help = format!(
        "names are 1 to {NAME_CHARS_MAX} letters (a to z), digits, `-`, `_` and `.`, and begin with no `.` or `-`"
    );
    document.report(Diagnostic::error("bad-name", named.at.clone(), message).help(help));
}

/// The declared names of one kind of table, such as files, with the number of each.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// What messages call such a table: `file`.
    noun: &'static str,
    numbers: BTreeMap<String, u16>,
}

impl Names {
    /// Numbers the names from 0 in their order. There are at most 65,536.
    pub(crate) fn new<'n>(noun: &'static str, names: impl IntoIterator<Item = &'n str>) -> Self {
        let numbered = names.into_iter().zip(0..=u16::MAX).map(|(name, number)| (name.to_owned(), number));
        Names { noun, numbers: numbered.collect() }
    }

    /// The number of the name that an entry has as its value. Reports an unknown name, and returns `None`.
    pub(crate) fn find(&self, document: &mut Document, entry: &Entry) -> Option<u16> {
        let name = document.string(entry, &format!("the name of a {}", self.noun))?;
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let noun = self.noun;
        let help = match nearest(name, self.numbers.keys().map(String::as_str)) {
            Some(known) => format!("did you mean \"{known}\"?"),
            None if noun == "disk" => format!("declare it in the machine: [disk.{name}]"),
            None => format!("declare it: [{noun}.{name}]"),
        };
        let message = format!("there is no {noun} `{name}`");
        let span = document.span(entry.value);
        document.report(Diagnostic::error("unknown-name", span, message).help(help));
        None
    }
}

/// Reports a missing key. `owner` is what the message calls the table: "file `data`".
pub(crate) fn missing(document: &mut Document, at: Span, owner: &str, key: &str, example: &str) {
    let message = format!("{owner} does not say its `{key}`");
    let help = format!("for example: {key} = {example}");
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
