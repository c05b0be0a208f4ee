//! The first stage of parsing: converts TOML text into a tree of spanned values. All syntax errors are
//! reported at once.
//!
//! The TOML parser continues after an error, but its messages speak of TOML's grammar. This module adds
//! remedies, which say what the author of the text probably meant. For a repeated key or header it also
//! reports the first occurrence. Errors that are only consequences of others are avoided here and in
//! [`recover`](crate::recover).

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use crate::diagnostic::{Diagnostic, Span, clamp};
use crate::recover::recover;

/// The longest excerpt of a text in a remedy, in bytes.
pub(crate) const SHORT_BYTES: usize = 60;

/// The most syntax errors reported for one text: most later ones are consequences.
const ERRORS_MAX: usize = 100;

/// The TOML parser's message for a repeated key or header.
const DUPLICATE: &str = "duplicate key";

/// The most repeated headers whose first occurrence is looked up, since each lookup parses the text before
/// the header again.
const LOOKUPS_MAX: usize = 20;

/// The result of reading a text: a tree and errors.
pub(crate) struct Syntax<'t> {
    /// The values in the readable part of the text.
    pub(crate) tree: DeTable<'t>,
    /// The errors in the rest of the text.
    pub(crate) errors: Vec<Diagnostic>,
    /// Whether a part of the text could not be read, so that [`recover`] may find more errors. A repeated key
    /// or header does not count as such.
    pub(crate) broken: bool,
}

/// The text with its unreadable parts blanked out, offsets unchanged, and the errors of these parts.
pub(crate) fn without_broken(text: &str) -> (String, Vec<Diagnostic>) {
    let recovered = recover(text);
    let errors =
        recovered.errors.iter().map(|(span, message)| syntax_error(text, clamp(text, span), message));
    (recovered.text, errors.collect())
}

/// Reads TOML, and continues after errors.
pub(crate) fn read(text: &str) -> Syntax<'_> {
    let (tree, parser_errors) = DeTable::parse_recoverable(text);
    let tree = tree.into_inner();
    let mut errors = Vec::new();
    let mut repeated_headers: Vec<Span> = Vec::new();
    for error in parser_errors.iter().take(ERRORS_MAX) {
        let span = clamp(text, &error.span().unwrap_or(0..0));
        if error.message() != DUPLICATE {
            errors.push(syntax_error(text, span, error.message()));
            continue;
        }
        let header = enclosing_header(&tree, &span, text);
        let lookup = errors.len() < LOOKUPS_MAX;
        if is_header(text, &span) {
            errors.push(repeated_header(text, &span, lookup));
            repeated_headers.push(line(text, span.start));
        } else if !is_below(header.as_ref(), &repeated_headers) {
            errors.push(repeated_key(&tree, header.map(|(_, table)| table), text, &span));
        }
    }
    let broken = parser_errors.iter().any(|error| error.message() != DUPLICATE);
    Syntax { tree, errors, broken }
}

/// Whether a repeated key is below a repeated header. Such a key repeats a key below the header's first
/// occurrence, so its error is a consequence of the repeated header.
fn is_below(header: Option<&(Span, &DeTable<'_>)>, repeated_headers: &[Span]) -> bool {
    header.is_some_and(|(at, _)| repeated_headers.iter().any(|line| line.contains(&at.start)))
}

/// The diagnostic for an error of the TOML parser, whose message is `message`.
fn syntax_error(text: &str, span: Span, message: &str) -> Diagnostic {
    let help = remedy(text, &span, message);
    let part = &text[span.clone()];
    // The parser takes a bare `no` for a mistyped `nan`, and a bare `isolate` for a mistyped `inf`.
    let is_word =
        is_mistaken_word(message) && part.len() <= SHORT_BYTES && part.chars().all(char::is_alphabetic);
    let message = if is_word { format!("`{part}` is no value: text is quoted") } else { message.to_owned() };
    let diagnostic = Diagnostic::error("syntax", span, message);
    match help {
        Some(help) => diagnostic.help(help),
        None => diagnostic,
    }
}

/// Whether the parser expected a TOML keyword because the value begins with the same letter.
fn is_mistaken_word(message: &str) -> bool {
    message.contains("invalid boolean") || message.contains("invalid float, expected")
}

/// The remedy for a syntax error, by the probable meaning of the text; `None` if the meaning is unknown.
fn remedy(text: &str, span: &Span, message: &str) -> Option<String> {
    let part = &text[span.clone()];
    let line = &text[line(text, span.start)];
    if message.contains("must be quoted") || is_mistaken_word(message) {
        return Some(unquoted(part.trim()));
    }
    if message.contains("escape") || message.contains("hex code") {
        let general = || "in double quotes, a backslash begins an escape: use single quotes".to_owned();
        return Some(string_around(text, span.start).and_then(in_single_quotes).unwrap_or_else(general));
    }
    if message.contains("invalid basic string, expected `\"`") {
        return Some("close the text with a double quote".to_owned());
    }
    if is_decimal_comma(text, span.start) {
        return Some("write decimals with a point, such as 1.5".to_owned());
    }
    if line.trim_start().starts_with("[unit.") {
        return Some(match line {
            line if !line.contains(']') => "close the header with `]`".to_owned(),
            line if line.contains('/') => "a sub-unit is written [unit.a.unit.b]".to_owned(),
            _ => "names of units are letters (a to z), digits, `-` and `_`".to_owned(),
        });
    }
    let after = text[span.start..].trim_start();
    (after.starts_with(':') && !line.contains('='))
        .then(|| "write `=` between a key and its value".to_owned())
}

/// The boolean that people mean by a word such as `yes`; `None` for other words.
pub(crate) fn switch_word(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" => Some(true),
        "false" | "no" | "off" | "n" | "never" => Some(false),
        _ => None,
    }
}

/// The remedy for an unquoted value that is neither a number nor a TOML keyword.
fn unquoted(value: &str) -> String {
    let before = |mark: &str| value.split_once(mark).map(|(before, _)| before.trim());
    if let Some(on) = switch_word(value) {
        return format!("write `{on}`, in lower case and without quotes");
    }
    if value.contains(['\u{201c}', '\u{201d}', '\u{201e}', '\u{2018}', '\u{2019}', '\u{ab}', '\u{bb}']) {
        return "write straight quotes (\"), not typographic ones".to_owned();
    }
    if before(";").is_some() {
        return "leave out the `;`: a value ends with its line".to_owned();
    }
    if before("//").is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())) {
        return "begin a comment with `#`".to_owned();
    }
    if value.is_empty() || value.len() > SHORT_BYTES || value.contains(['"', '\'', '\\', '\n', '#']) {
        return "put text between double quotes".to_owned();
    }
    format!("put it between double quotes: \"{value}\"")
}

/// Whether the syntax error is at a comma between two digits.
fn is_decimal_comma(text: &str, at: usize) -> bool {
    let is_digit = |c: char| c.is_ascii_digit();
    let after = text[at..].strip_prefix(',');
    after.is_some_and(|after| after.starts_with(is_digit)) && text[..at].ends_with(is_digit)
}

/// The string in double quotes, on one line, that contains the offset `at`; `None` if there is no such
/// string.
fn string_around(text: &str, at: usize) -> Option<&str> {
    let line = line(text, at);
    let start = line.start + text[line.start..at].rfind('"')?;
    let end = at + text[at..line.end].find('"')? + 1;
    Some(&text[start..end])
}

/// The remedy for a string in double quotes that contains a backslash: single quotes, in which a backslash is
/// an ordinary character. `None` if the string has no backslash, is long, or could not be put in single
/// quotes.
pub(crate) fn in_single_quotes(string: &str) -> Option<String> {
    let inner = string.strip_prefix('"')?.strip_suffix('"')?;
    let fits = inner.contains('\\') && inner.len() <= SHORT_BYTES && !inner.contains(['\'', '"', '\n']);
    fits.then(|| format!("a backslash begins an escape in double quotes: write '{inner}', in single quotes"))
}

/// The span of the line that contains an offset, without its newline.
pub(crate) fn line(text: &str, offset: usize) -> Range<usize> {
    let start = text[..offset].rfind('\n').map_or(0, |newline| newline + 1);
    let end = text[offset..].find('\n').map_or(text.len(), |newline| offset + newline);
    start..end
}

/// Whether a span is in a header, such as `[unit.a]`.
fn is_header(text: &str, span: &Span) -> bool {
    text[line(text, span.start).start..span.start].trim_start().starts_with('[')
}

/// The diagnostic for a repeated header, such as a second `[unit.a]`. With `lookup`, it also names the first
/// occurrence. The parser does not report that one, so it is found by parsing the text before the header
/// again.
fn repeated_header(text: &str, span: &Span, lookup: bool) -> Diagnostic {
    let line = line(text, span.start);
    let name = &text[span.clone()];
    let path = header_path(&text[line.clone()]);
    let is_unit = path.len() >= 2 && path[path.len() - 2] == "unit";
    let message =
        if is_unit { format!("unit `{name}` is named twice") } else { format!("`{name}` is set twice") };
    let help = if is_unit { "give one of them another name, or write one table" } else { "write one table" };
    let mut diagnostic = Diagnostic::error("duplicate", span.clone(), message).label("again here").help(help);
    if lookup {
        let before = DeTable::parse_recoverable(&text[..line.start]).0.into_inner();
        if let Some(first) = find(&before, &path) {
            diagnostic = diagnostic.related(clamp(text, &first), "first here");
        }
        dismantle(before);
    }
    diagnostic
}

/// The keys of a header such as `[unit.physics]`.
fn header_path(line: &str) -> Vec<String> {
    let tree = DeTable::parse_recoverable(line).0.into_inner();
    let mut path = Vec::new();
    let mut table = Some(&tree);
    while let Some((key, value)) = table.and_then(|table| table.iter().next()) {
        path.push(key.get_ref().to_string());
        table = value.get_ref().as_table();
    }
    path
}

/// The span of the last key of a path in a tree; `None` if the tree has no such path.
fn find(tree: &DeTable<'_>, path: &[String]) -> Option<Span> {
    let (last, parents) = path.split_last()?;
    let mut table = tree;
    for name in parents {
        table = table.get(name.as_str())?.get_ref().as_table()?;
    }
    table.get_key_value(last.as_str()).map(|(key, _)| key.span())
}

/// The diagnostic for a repeated key, such as a second `tickets = 1` in one table. The first one is in the
/// tree.
fn repeated_key(tree: &DeTable<'_>, header: Option<&DeTable<'_>>, text: &str, span: &Span) -> Diagnostic {
    let name = text[span.clone()].trim_matches(['"', '\'']);
    let message = format!("`{name}` is set twice");
    let help = "keep the one that is meant";
    let diagnostic = Diagnostic::error("duplicate", span.clone(), message).label("again here").help(help);
    let table = innermost(header.unwrap_or(tree), span, text);
    match table.get_key_value(name).map(|(key, _)| clamp(text, &key.span())) {
        Some(first) if first.end <= span.start => diagnostic.related(first, "first here"),
        _ => diagnostic,
    }
}

/// The last header before a span, such as `[unit.a]`: its span and its table.
fn enclosing_header<'a, 't>(
    tree: &'a DeTable<'t>,
    span: &Span,
    text: &str,
) -> Option<(Span, &'a DeTable<'t>)> {
    let mut last: Option<(Span, &DeTable<'_>)> = None;
    let mut unvisited = vec![tree];
    while let Some(table) = unvisited.pop() {
        for value in table.values() {
            let Some(inner) = value.get_ref().as_table() else { continue };
            unvisited.push(inner);
            let at = clamp(text, &value.span());
            let is_later = last.as_ref().is_none_or(|(last, _)| last.start < at.start);
            if text[at.clone()].starts_with('[') && at.end <= span.start && is_later {
                last = Some((at, inner));
            }
        }
    }
    last
}

/// The innermost inline table (in braces) around a span, or `table` itself if there is no inline table.
fn innermost<'a, 't>(mut table: &'a DeTable<'t>, span: &Span, text: &str) -> &'a DeTable<'t> {
    loop {
        let contains_span = |value: &&toml::Spanned<DeValue<'t>>| {
            let at = value.span();
            at.start <= span.start && span.end <= at.end && text[clamp(text, &at)].starts_with('{')
        };
        match table.values().find(contains_span).and_then(|value| value.get_ref().as_table()) {
            Some(inner) => table = inner,
            None => return table,
        }
    }
}

/// Drops a tree without recursion. Brackets, dotted keys and headers multiply the depth of a tree, so that a
/// recursive drop of the tree of a hostile text could exhaust the stack.
pub(crate) fn dismantle(tree: DeTable<'_>) {
    let mut undropped: Vec<DeValue<'_>> = vec![DeValue::Table(tree)];
    while let Some(value) = undropped.pop() {
        match value {
            DeValue::Table(table) => undropped.extend(table.into_iter().map(|(_, value)| value.into_inner())),
            DeValue::Array(array) => undropped.extend(array.into_iter().map(toml::Spanned::into_inner)),
            _ => {}
        }
    }
}
