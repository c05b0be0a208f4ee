//! Reads documents, which are TOML texts with a fixed set of keys. All mistakes in a text are reported at
//! once.
//!
//! A *language* is a set of tables with keys, such as the contract's or a scenario's. Each language lists its
//! keys in [`Table`]s. It converts the values in a text into its own types with the methods of [`Document`],
//! which report an error and continue. [`read()`] converts a text into a value of the language. It recovers
//! from syntax errors, and withholds errors that may only be consequences of syntax errors.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostic::{Diagnostic, Level, Problem, Span, clamp};
use crate::nearest::nearest;
use crate::quantity;
use crate::syntax::{self, SHORT_BYTES, Syntax, switch_word};

/// The most diagnostics that are reported for one text; more would only hide the first ones.
pub(crate) const DIAGNOSTICS_MAX: usize = 200;

/// A key of a language. The type `K` describes the values of a key in the language's terms.
#[derive(Debug)]
pub struct Key<K: 'static> {
    /// The key's name in the text.
    pub name: &'static str,
    /// The type of the key's value.
    pub kind: K,
    /// The default value, in TOML; empty if the key has no default.
    pub default: &'static str,
    /// A value other than the default, in TOML. For a table, it sets one of the table's keys.
    pub example: &'static str,
    /// The key's description, for editors and people.
    pub doc: &'static str,
}

/// The keys of a table.
#[derive(Debug)]
pub struct Table<K: 'static> {
    /// The table's name in diagnostics.
    pub title: &'static str,
    /// The table's name in the schema and the reference.
    pub definition: &'static str,
    /// The table's keys, in reading order.
    pub keys: &'static [Key<K>],
}

impl<K> Table<K> {
    /// The key with that name.
    pub fn key(&self, name: &str) -> Option<&'static Key<K>> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// The names of the table's keys.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<K> {
        self.keys.iter().map(|key| key.name)
    }
}

/// Makes a key from its name, kind, default, example and description. Lists of keys are written as rows of
/// such calls.
pub const fn key<K>(
    name: &'static str,
    kind: K,
    default: &'static str,
    example: &'static str,
    doc: &'static str,
) -> Key<K> {
    Key { name, kind, default, example, doc }
}

/// A known key in a text, with its value.
#[derive(Debug)]
pub struct Entry<'a, K: 'static> {
    /// The definition of the key.
    pub key: &'static Key<K>,
    /// The span of the key.
    pub at: Span,
    /// The key's value.
    pub value: &'a Spanned<DeValue<'a>>,
}

/// An entry of a table whose keys are no fixed words but names that the text chooses, such as those of units.
#[derive(Debug)]
pub struct Named<'a> {
    /// The name.
    pub name: &'a str,
    /// The span of the name.
    pub at: Span,
    /// The value of the entry.
    pub value: &'a Spanned<DeValue<'a>>,
}

/// Reads a text. `convert` converts the text's tree into a value, and reports errors to the document. The
/// value is valid if no diagnostic is an error. Diagnostics are in the order of the text; there are at most
/// 200.
///
/// `missing` has the codes of errors that say that something is missing. After a syntax error such errors are
/// withheld, since the missing part may be in the unreadable text.
pub fn read<T>(
    text: &str,
    missing: &[&str],
    convert: impl FnOnce(&mut Document<'_>, &DeTable<'_>) -> T,
) -> (T, Vec<Diagnostic>) {
    let syntax = syntax::read(text);
    if !syntax.broken {
        return finish(text, syntax, Vec::new(), missing, convert);
    }
    syntax::dismantle(syntax.tree);
    let (readable, errors) = syntax::without_broken(text);
    finish(&readable, syntax::read(&readable), errors, missing, convert)
}

/// Parses a text as TOML, and passes its tree to `look`. Returns `None` if the text has a syntax error. The
/// tree may be of any depth.
pub fn with_tree<T>(text: &str, look: impl FnOnce(&DeTable<'_>) -> T) -> Option<T> {
    let syntax = syntax::read(text);
    let seen = syntax.errors.is_empty().then(|| look(&syntax.tree));
    syntax::dismantle(syntax.tree);
    seen
}

/// The stages of [`read()`] after the syntax. `errors` are the syntax errors in the parts that were blanked
/// out.
fn finish<T>(
    text: &str,
    syntax: Syntax,
    mut errors: Vec<Diagnostic>,
    missing: &[&str],
    convert: impl FnOnce(&mut Document<'_>, &DeTable<'_>) -> T,
) -> (T, Vec<Diagnostic>) {
    let mut document = Document { text, diagnostics: Vec::new() };
    let value = convert(&mut document, &syntax.tree);
    syntax::dismantle(syntax.tree);
    errors.extend(syntax.errors);
    let mut diagnostics = without_consequences(text, &errors, missing, document.diagnostics);
    diagnostics.extend(errors);
    diagnostics.sort_by_key(|diagnostic| diagnostic.span.start);
    shorten(&mut diagnostics);
    (value, diagnostics)
}

/// Removes the diagnostics that may only be consequences of the syntax `errors`: those on an unreadable line,
/// those about something missing, and all warnings. Without a syntax error, nothing is removed.
fn without_consequences(
    text: &str,
    errors: &[Diagnostic],
    missing: &[&str],
    diagnostics: Vec<Diagnostic>,
) -> Vec<Diagnostic> {
    if errors.is_empty() {
        return diagnostics;
    }
    let line_start = |span: &Span| syntax::line(text, span.start).start;
    let broken_lines: BTreeSet<usize> = errors.iter().map(|error| line_start(&error.span)).collect();
    let is_independent = |d: &Diagnostic| {
        d.is_error() && !missing.contains(&d.code) && !broken_lines.contains(&line_start(&d.span))
    };
    diagnostics.into_iter().take(DIAGNOSTICS_MAX).filter(is_independent).collect()
}

/// Limits diagnostics to [`DIAGNOSTICS_MAX`]. If some are cut off, the last diagnostic gives their number.
fn shorten(diagnostics: &mut Vec<Diagnostic>) {
    if diagnostics.len() <= DIAGNOSTICS_MAX {
        return;
    }
    // Errors must not be cut off in favour of warnings.
    diagnostics.sort_by_key(|diagnostic| diagnostic.level);
    let rest = diagnostics.split_off(DIAGNOSTICS_MAX - 1);
    diagnostics.sort_by_key(|diagnostic| diagnostic.span.start);
    if let Some(first) = rest.first() {
        let message = format!("{} more problems are not shown", rest.len());
        let last = Diagnostic::error("too-many", first.span.clone(), message)
            .help("correct the first ones, and look again");
        let level = if rest.iter().any(Diagnostic::is_error) { Level::Error } else { Level::Warning };
        diagnostics.push(Diagnostic { level, ..last });
    }
}

/// A text that is being read, and its diagnostics so far.
#[derive(Debug)]
pub struct Document<'t> {
    text: &'t str,
    diagnostics: Vec<Diagnostic>,
}

impl<'t> Document<'t> {
    /// The text, with its unreadable parts blanked out.
    pub fn text(&self) -> &'t str {
        self.text
    }

    /// Adds a diagnostic.
    pub fn report(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    /// Adds diagnostics.
    pub fn report_all(&mut self, diagnostics: impl IntoIterator<Item = Diagnostic>) {
        self.diagnostics.extend(diagnostics);
    }

    /// The diagnostics reported so far.
    pub fn found(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// The span of a value.
    pub fn span<T>(&self, value: &Spanned<T>) -> Span {
        clamp(self.text, &value.span())
    }

    /// The entries of a table in the text, in no particular order. `table` lists the known keys; `tree` is
    /// the table in the text. Unknown keys are reported and left out.
    pub fn entries<'a, K>(&mut self, table: &'static Table<K>, tree: &'a DeTable<'a>) -> Vec<Entry<'a, K>> {
        self.entries_or(table, tree, |_, _| None)
    }

    /// Returns the entries as [`Document::entries`] does, but with special remedies for unknown keys. `hint`
    /// returns the remedy for a key's name and value. If it returns `None`, the remedy is a list of the
    /// table's keys.
    pub fn entries_or<'a, K>(
        &mut self,
        table: &'static Table<K>,
        tree: &'a DeTable<'a>,
        hint: impl Fn(&str, &DeValue<'_>) -> Option<String>,
    ) -> Vec<Entry<'a, K>> {
        let mut entries = Vec::with_capacity(tree.len());
        for (name, value) in tree {
            if let Some(key) = table.key(name.get_ref()) {
                entries.push(Entry { key, at: self.span(name), value });
            } else {
                let hint = hint(name.get_ref(), value.get_ref());
                self.unknown_key(table, name.get_ref(), self.span(name), hint);
            }
        }
        entries
    }

    fn unknown_key<K>(&mut self, table: &'static Table<K>, name: &str, at: Span, hint: Option<String>) {
        let help = hint.unwrap_or_else(|| {
            let known: Vec<&str> = table.names().collect();
            let keys = format!("the keys of {} are {}", table.title, known.join(", "));
            match nearest(name, known) {
                Some(word) => format!("did you mean `{word}`? {keys}"),
                None => keys,
            }
        });
        let message = format!("unknown key `{name}` in {}", table.title);
        self.report(Diagnostic::error("unknown-key", at, message).label("unknown key").help(help));
    }

    /// The entries of a table whose keys are names, in the order of the text.
    pub fn named<'a>(&self, table: &'a DeTable<'a>) -> Vec<Named<'a>> {
        let mut named: Vec<_> = table
            .iter()
            .map(|(name, value)| Named { name: name.get_ref(), at: self.span(name), value })
            .collect();
        named.sort_by_key(|named| named.at.start);
        named
    }

    /// Reports that a value has the wrong type for its key. `wanted` describes the right type, with its
    /// article.
    pub fn wrong_type<K>(&mut self, entry: &Entry<K>, wanted: &str) {
        let name = entry.key.name;
        let found = article(entry.value.get_ref());
        let help = self
            .rewritten(entry, wanted)
            .unwrap_or_else(|| format!("for example: {name} = {}", entry.key.example));
        let message = format!("`{name}` must be {wanted}, not {found}");
        let diagnostic = Diagnostic::error("wrong-type", self.span(entry.value), message);
        self.report(diagnostic.label(format!("this is {found}")).help(help));
    }

    /// The remedy for a value of the wrong type, if the right value can be guessed: the value without quotes,
    /// in a list, or as a table.
    fn rewritten<K>(&self, entry: &Entry<K>, wanted: &str) -> Option<String> {
        let name = entry.key.name;
        let source = &self.text[self.span(entry.value)];
        if wanted == "a table" && source.starts_with("[[") {
            return Some(format!("write [{name}.NAME], in single brackets"));
        }
        let text = entry.value.get_ref().as_str()?.trim();
        if wanted.starts_with("true") {
            return switch_word(text).map(|on| format!("write {name} = {on}, without quotes"));
        }
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if wanted.starts_with("a whole number") && is_number {
            return Some(format!("write {name} = {text}, without quotes"));
        }
        let is_short = source.len() <= SHORT_BYTES && !source.contains('\n') && !text.is_empty();
        let is_list_of_strings = entry.key.example.starts_with("[\"");
        (wanted.starts_with("a list") && is_list_of_strings && is_short)
            .then(|| format!("write {name} = [{source}]"))
    }

    /// The span in the text of `part`, a part of a string's content. If the string is written with escapes,
    /// its content differs from the text, and the span is that of the whole string.
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

    /// Reports a problem with the content of a string. The problem's span is relative to `content`.
    pub fn problem(&mut self, code: &'static str, value: &Spanned<DeValue>, content: &str, problem: Problem) {
        let span = self.span_within(value, content, &problem.span);
        self.report(Diagnostic::error(code, span, problem.message).help(problem.help));
    }

    /// Checks that a text's `version` key has the value `version`. Returns the span of that value.
    pub fn version<K>(&mut self, entry: &Entry<K>, version: u64) -> Span {
        let span = self.span(entry.value);
        match entry.value.get_ref() {
            DeValue::Integer(number) if integer(number) == Some(version) => {}
            DeValue::Integer(_) => {
                let message =
                    format!("version {} is not one that this program reads", &self.text[span.clone()]);
                let help = format!("write `version = {version}`, or use a newer program");
                self.report(Diagnostic::error("unsupported-version", span.clone(), message).help(help));
            }
            _ => self.wrong_type(entry, "a whole number"),
        }
        span
    }

    /// The value as a table. If the value has another type, reports an error and returns `None`. The methods
    /// below do the same for other types, and also if the value is out of range.
    pub fn table<'a, K>(&mut self, entry: &Entry<'a, K>) -> Option<&'a DeTable<'a>> {
        let table = entry.value.get_ref().as_table();
        if table.is_none() {
            self.wrong_type(entry, "a table");
        }
        table
    }

    /// A string; `wanted` describes it in the diagnostic for another type.
    pub fn string<'a, K>(&mut self, entry: &Entry<'a, K>, wanted: &str) -> Option<&'a str> {
        let string = entry.value.get_ref().as_str();
        if string.is_none() {
            self.wrong_type(entry, wanted);
        }
        string
    }

    /// A boolean.
    pub fn switch<K>(&mut self, entry: &Entry<K>) -> Option<bool> {
        let switch = entry.value.get_ref().as_bool();
        if switch.is_none() {
            self.wrong_type(entry, "true or false");
        }
        switch
    }

    /// A string that is one of `words`.
    pub fn choice<'a, K>(&mut self, entry: &Entry<'a, K>, words: &[&str]) -> Option<&'a str> {
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

    /// A whole number within a range.
    pub fn count<K>(&mut self, entry: &Entry<K>, range: RangeInclusive<u64>) -> Option<u64> {
        let DeValue::Integer(number) = entry.value.get_ref() else {
            self.wrong_type(entry, "a whole number");
            return None;
        };
        let count = integer(number).filter(|number| range.contains(number));
        if count.is_none() {
            let help = format!("write a whole number from {} to {}", range.start(), range.end());
            self.out_of_range(entry, &number.to_string(), help);
        }
        count
    }

    /// A length of time within a range, in nanoseconds.
    pub fn duration<K>(&mut self, entry: &Entry<K>, range: RangeInclusive<u64>) -> Option<u64> {
        let wanted = "a length of time in quotes";
        self.quantity(entry, wanted, "a time", quantity::duration_ns, quantity::duration_text, range)
    }

    /// Bytes within a range.
    pub fn bytes<K>(&mut self, entry: &Entry<K>, range: RangeInclusive<u64>) -> Option<u64> {
        let wanted = "an amount of bytes in quotes";
        self.quantity(entry, wanted, "an amount", quantity::bytes, quantity::bytes_text, range)
    }

    /// Bytes per second within a range.
    pub fn bytes_per_s<K>(&mut self, entry: &Entry<K>, range: RangeInclusive<u64>) -> Option<u64> {
        let text = |rate| quantity::bytes_text(rate) + "/s";
        self.quantity(entry, "a rate in quotes", "a rate", quantity::bytes_per_s, text, range)
    }

    /// A percentage within a range, in millionths.
    pub fn part<K>(&mut self, entry: &Entry<K>, range: RangeInclusive<u64>) -> Option<u64> {
        let wanted = "a percentage in quotes";
        self.quantity(entry, wanted, "a percentage", quantity::part, quantity::part_text, range)
    }

    /// A quantity in a string, which `parse` reads. For diagnostics, `wanted` describes the type, `noun`
    /// names the quantity, and `show` formats the ends of the range.
    fn quantity<K>(
        &mut self,
        entry: &Entry<K>,
        wanted: &str,
        noun: &str,
        parse: fn(&str) -> Result<u64, Problem>,
        show: fn(u64) -> String,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let text = self.string(entry, wanted)?;
        match parse(text) {
            Ok(amount) if range.contains(&amount) => Some(amount),
            Ok(_) => {
                let help = format!("write {noun} from {} to {}", show(*range.start()), show(*range.end()));
                self.out_of_range(entry, text, help);
                None
            }
            Err(problem) => {
                let message = format!("`{}`: {}", entry.key.name, problem.message);
                self.problem("quantity", entry.value, text, Problem { message, ..problem });
                None
            }
        }
    }

    fn out_of_range<K>(&mut self, entry: &Entry<K>, value: &str, help: String) {
        let message = format!("`{}` cannot be {value}", entry.key.name);
        self.report(Diagnostic::error("out-of-range", self.span(entry.value), message).help(help));
    }
}

/// The value of an integer that is neither negative nor larger than 64 bits.
pub fn integer(number: &toml::de::DeInteger<'_>) -> Option<u64> {
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// The type of a value in words: `a string`.
pub fn article(value: &DeValue<'_>) -> &'static str {
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
