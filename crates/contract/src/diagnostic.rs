//! Diagnostics of a contract as values: the problem, its span, and the remedy.
//!
//! The module that finds a problem also words it: `syntax` and `document` (TOML, unknown keys), `read`, `quantity` and `member`
//! (values), `check` (consistency). `render` lays out the text.

use std::ops::Range;

/// A byte range of the contract's text. Values keep their spans for diagnostics that are only possible later, such as that the
/// machine is too small, or a user unknown there. Units that the program created have an empty span.
pub type Span = Range<usize>;

/// The severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The contract is not usable.
    Error,
    /// The contract is usable, but probably not what was meant.
    Warning,
}

/// One problem of a contract. Spans are byte ranges of the contract's text, on character boundaries.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Diagnostic {
    /// Its severity.
    pub level: Level,
    /// The kind of problem, independent of the wording: `unknown-key`.
    pub code: &'static str,
    /// The offending text.
    pub span: Span,
    /// The problem, with the name of the object and the value.
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

/// A problem with the text of one value; the span is relative to that text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The offending part.
    pub span: Span,
    /// What is wrong with it.
    pub message: String,
    /// The remedy.
    pub help: String,
}

/// Line and column, both from 1, of a byte offset; columns count characters. An offset past the end counts as the end.
pub fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..floor(text, offset)];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let lines = before.bytes().filter(|byte| *byte == b'\n').count();
    (lines + 1, before[line_start..].chars().count() + 1)
}

/// Clamps the span to the text and to character boundaries. A diagnostic may be shown with a text that has changed since, and a
/// slice outside of that text would panic.
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
