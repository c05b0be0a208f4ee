//! Diagnostics of a contract: each is a value with the problem, its position in the text, and the remedy.
//!
//! The module that finds a problem also words it: `syntax` and `document` (TOML, unknown keys), `read`,
//! `quantity` and `member` (values), `check` (consistency). `render` lays out the text.

use std::ops::Range;

/// A range of bytes in the contract's text. Values keep their spans after parsing, for problems that are
/// found only later: that the machine is too small, or that a user is unknown. Units that the program created
/// have an empty span.
pub type Span = Range<usize>;

/// The severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The contract is not usable.
    Error,
    /// The contract is usable, but its author probably meant something else.
    Warning,
}

/// One problem of a contract. Spans are byte ranges of the contract's text, on character boundaries.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Diagnostic {
    /// The severity.
    pub level: Level,
    /// The kind of problem, such as `unknown-key`. It stays the same if the wording changes.
    pub code: &'static str,
    /// The offending text.
    pub span: Span,
    /// The problem, in words that name the unit or key and the value.
    pub message: String,
    /// The label beside the offending text; may be empty.
    pub label: String,
    /// The remedy.
    pub help: Option<String>,
    /// Related spans, each with its label.
    pub related: Vec<(Span, String)>,
}

impl Diagnostic {
    /// A diagnostic that makes the contract unusable, without label, remedy and related spans.
    pub fn error(code: &'static str, span: Span, message: impl Into<String>) -> Self {
        let (message, label) = (message.into(), String::new());
        Diagnostic { level: Level::Error, code, span, message, label, help: None, related: Vec::new() }
    }

    /// A diagnostic that leaves the contract usable, without label, remedy and related spans.
    pub fn warning(code: &'static str, span: Span, message: impl Into<String>) -> Self {
        Diagnostic { level: Level::Warning, ..Diagnostic::error(code, span, message) }
    }

    /// Sets the label beside the offending text.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Adds the remedy.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds a related span.
    #[must_use]
    pub fn related(mut self, span: Span, label: impl Into<String>) -> Self {
        self.related.push((span, label.into()));
        self
    }

    /// Whether this diagnostic makes the contract unusable.
    pub fn is_error(&self) -> bool {
        self.level == Level::Error
    }
}

/// A problem with the text of one value. The span is relative to the beginning of that text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The offending part of the text.
    pub span: Span,
    /// What is wrong with that part.
    pub message: String,
    /// The remedy.
    pub help: String,
}

/// The line and the column of a byte offset, both counted from 1. Columns count characters. An offset past
/// the end counts as the end.
pub fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..floor(text, offset)];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let lines = before.bytes().filter(|byte| *byte == b'\n').count();
    (lines + 1, before[line_start..].chars().count() + 1)
}

/// Clamps a span to a text and to character boundaries. The text may have changed since the span was
/// determined, and a slice outside of the text would panic.
pub(crate) fn clamp(text: &str, span: &Span) -> Range<usize> {
    let start = floor(text, span.start);
    let end = floor(text, span.end.max(start));
    start..end.max(start)
}

/// The last character boundary at or before an offset.
fn floor(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_from_one() {
        let text = "ä = 1\nb = 2\n";
        assert_eq!(position(text, 0), (1, 1));
        assert_eq!(position(text, 2), (1, 2));
        assert_eq!(position(text, 7), (2, 1));
        assert_eq!(position(text, 999), (3, 1));
    }

    #[test]
    fn a_clamped_span_can_be_sliced() {
        let text = "aä";
        assert_eq!(clamp(text, &(2..9)), 1..3);
        assert_eq!(clamp(text, &Span { start: 7, end: 2 }), 3..3);
    }
}
