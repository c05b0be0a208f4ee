//! Recovers from syntax errors: finds the statements of a text that do not parse, and blanks them out.
//!
//! Problem: the TOML parser continues after an error. But it takes the headers and keys after an unclosed
//! array for elements of the array, and reports each of them as another error.
//!
//! Algorithm: a text with syntax errors is read again, statement by statement. A statement is a header, or a
//! key with its value, extended over several lines until it parses. A statement that does not parse by itself
//! is reported once, and blanked out with spaces, so that the spans of all other statements stay valid. The
//! keys below a blanked header are blanked out, too, since they do not belong to the table before it.
//!
//! Limits: if a line inside a broken multi-line value looks like a key, it is taken for the beginning of a
//! new statement.

use toml::de::{DeTable, Error};

use crate::diagnostic::Span;

/// The most broken statements that are reported. After this number, the rest of the text is blanked out.
const BROKEN_MAX: usize = 50;

/// The most attempts to find the end of a multi-line value: each attempt parses the statement again.
const ENDS_MAX: usize = 16;

/// A text in which broken statements are replaced by spaces, and the first error of each broken statement.
pub(crate) struct Recovered {
    pub(crate) text: String,
    pub(crate) errors: Vec<(Span, String)>,
}

/// Blanks out statements that do not parse.
pub(crate) fn recover(text: &str) -> Recovered {
    let lines = lines(text);
    let mut broken: Vec<Span> = Vec::new();
    let mut errors = Vec::new();
    let mut next = 0;
    while next < lines.len() {
        let first = next;
        if errors.len() == BROKEN_MAX {
            broken.push(lines[first].start..text.len());
            break;
        }
        let (after, error) = statement(text, &lines, first);
        next = after;
        if let Some(error) = error {
            errors.push(error);
            // The keys below a broken header are blanked out, too, since they belong to no table.
            if text[lines[first].clone()].trim_start().starts_with('[') {
                next = (after..lines.len())
                    .find(|line| is_header(&text[lines[*line].clone()]))
                    .unwrap_or(lines.len());
            }
            broken.push(lines[first].start..lines[next - 1].end);
        }
    }
    Recovered { text: blanked(text, &broken), errors }
}

/// The spans of a text's lines, without line breaks.
fn lines(text: &str) -> Vec<Span> {
    let mut start = 0;
    let line = |line: &str| {
        let span = start..start + line.trim_end_matches(['\r', '\n']).len();
        start += line.len();
        span
    };
    text.split_inclusive('\n').map(line).collect()
}

/// Reads the statement that begins at the line `first`. Returns the number of the line after the statement,
/// and the span and message of its error if it does not parse.
fn statement(text: &str, lines: &[Span], first: usize) -> (usize, Option<(Span, String)>) {
    let text_to = |last: usize| &text[lines[first].start..lines[last].end];
    if DeTable::parse(text_to(first)).is_ok() {
        return (first + 1, None);
    }
    // The value may extend over several lines, so lines are added until the statement parses, at most up to
    // the next header.
    let line = |number: usize| &text[lines[number].clone()];
    let mut bound = first + 1;
    let mut tries = 0;
    while bound < lines.len() && !is_header(line(bound)) {
        if tries < ENDS_MAX && may_end_value(line(bound)) {
            tries += 1;
            if DeTable::parse(text_to(bound)).is_ok() {
                return (bound + 1, None);
            }
        }
        bound += 1;
    }
    // The statement does not parse. It is taken to end before the next line that looks like a statement.
    let after = (first + 1..bound).find(|number| begins_statement(line(*number))).unwrap_or(bound);
    // Empty lines at the end are left out, so that a missing bracket is reported where the value ends.
    let statement = text_to(after - 1).trim_end();
    let (_, errors) = DeTable::parse_recoverable(statement);
    let start = lines[first].start;
    let position = |error: &Error| error.span().map_or(0, |span| span.start);
    // Of two errors at the same position, an unclosed bracket is a consequence of the other error, such as an
    // unclosed string.
    let rank = |error: &&Error| (position(error), error.message().starts_with("unclosed"));
    let error = errors.iter().min_by_key(rank).map(|error| {
        let span = error.span().unwrap_or(0..0);
        (start + span.start..start + span.end, error.message().to_owned())
    });
    (after, error)
}

/// Whether a line is a header, such as `[unit.physics]  # the group`. A line inside an array may begin with a
/// bracket, too, but it has commas, or does not parse as a header.
fn is_header(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with('[') && line.contains(']') && !line.contains(',') && DeTable::parse(line).is_ok()
}

/// Whether a line looks like the beginning of a header, or of a key with its value.
fn begins_statement(line: &str) -> bool {
    let key = line.split_once('=').map(|(key, _)| key.trim());
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '"' | '\'' | ' ');
    line.trim_start().starts_with('[') || key.is_some_and(|key| !key.is_empty() && key.chars().all(plain))
}

/// Whether a line may be the last line of a value over several lines.
fn may_end_value(line: &str) -> bool {
    // A `#` may begin a comment, or be a part of a string: either reading suffices.
    let code = line.split('#').next().unwrap_or(line);
    [line, code].iter().any(|end| end.trim_end().ends_with([']', '}', '"', '\'']))
}

/// The text with spaces instead of the bytes in these spans, except newlines. Lengths in bytes stay the same,
/// so that offsets stay valid.
fn blanked(text: &str, spans: &[Span]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for span in spans {
        out.push_str(&text[done..span.start]);
        out.extend(text[span.clone()].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        done = span.end;
    }
    out.push_str(&text[done..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text that is left, and what each error points at.
    #[track_caller]
    fn check(text: &str, left: &str, errors: &[&str]) {
        let recovered = recover(text);
        assert_eq!(recovered.text.len(), text.len(), "offsets stay");
        let lines: Vec<&str> =
            recovered.text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.join("\n"), left);
        let found: Vec<&str> = recovered.errors.iter().map(|(span, _)| &text[span.clone()]).collect();
        assert_eq!(found, errors);
    }

    #[test]
    fn an_unclosed_array_blanks_only_its_own_line() {
        check("a = [1\nb = 2\n[c]\nd = 3", "b = 2\n[c]\nd = 3", &[""]);
    }

    #[test]
    fn values_over_several_lines_are_kept() {
        let text = "a = [\n  \"x\",\n  \"y\", # z\n]\nb = {\n  c = 1,\n}\nd = \"\"\"\ntext\n\"\"\"";
        check(text, text, &[]);
        check(&format!("{text}\ne = what"), text, &["what"]);
    }

    #[test]
    fn a_broken_header_takes_its_keys_along() {
        check("a = 1\n[b\nc = 2\nd = 3\n[e]\nf = 4", "a = 1\n[e]\nf = 4", &[""]);
    }

    #[test]
    fn non_ascii_text_is_blanked_byte_for_byte() {
        check("a = ä\nb = 1", "b = 1", &["ä"]);
    }

    #[test]
    fn after_too_many_errors_the_rest_is_blanked() {
        let text = "a = b\r\n".repeat(1000);
        let recovered = recover(&text);
        assert_eq!((recovered.errors.len(), recovered.text.trim()), (BROKEN_MAX, ""));
    }
}
