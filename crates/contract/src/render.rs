//! Diagnostics as text for people: the offending lines with the problem underlined, and the remedy below.

use annotate_snippets::{AnnotationKind, Group, Renderer, Snippet, normalize_untrusted_str};

use crate::diagnostic::{Diagnostic, Level, Span, clamp};

/// Shows diagnostics with the lines of text that they are about, as compilers do. `file_name` is written
/// before line and column. With `color`, terminal escape codes highlight the important parts. The same input
/// gives the same bytes on any machine.
pub fn render(diagnostics: &[Diagnostic], text: &str, file_name: &str, color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let mut out = String::new();
    for diagnostic in diagnostics {
        out.push_str(&renderer.render(&[group(diagnostic, text, file_name)]));
        out.push_str("\n\n");
    }
    out
}

/// One diagnostic in the renderer's terms.
fn group<'a>(diagnostic: &'a Diagnostic, text: &'a str, file_name: &'a str) -> Group<'a> {
    let level = match diagnostic.level {
        Level::Error => annotate_snippets::Level::ERROR,
        Level::Warning => annotate_snippets::Level::WARNING,
    };
    let title = level.primary_title(plain(&diagnostic.message)).id(diagnostic.code);
    let mut group = title.element(snippet(diagnostic, text, file_name));
    if let Some(help) = &diagnostic.help {
        group = group.element(annotate_snippets::Level::HELP.message(plain(help)));
    }
    group
}

/// Replaces control characters. Diagnostics quote the contract, and the renderer does not escape every text.
/// Without this, escape codes in a key's name would reach the terminal.
fn plain(text: &str) -> String {
    normalize_untrusted_str(text)
}

/// The lines from the first to the last span of a diagnostic, with annotations. Only these lines are passed
/// to the renderer, so that the cost of a diagnostic depends on the lines that it shows, and not on the
/// length of the file.
fn snippet<'a>(
    diagnostic: &'a Diagnostic,
    text: &'a str,
    file_name: &'a str,
) -> Snippet<'a, annotate_snippets::Annotation<'a>> {
    let primary = clamp(text, &diagnostic.span);
    let related: Vec<(Span, &str)> =
        diagnostic.related.iter().map(|(span, label)| (clamp(text, span), label.as_str())).collect();
    let first = related.iter().map(|(span, _)| span.start).fold(primary.start, usize::min);
    let last = related.iter().map(|(span, _)| span.end).fold(primary.end, usize::max);
    let start = text[..first].rfind('\n').map_or(0, |newline| newline + 1);
    let end = text[last..].find('\n').map_or(text.len(), |newline| last + newline + 1);
    let line = text[..start].bytes().filter(|byte| *byte == b'\n').count() + 1;
    let in_snippet = |span: &Span| span.start - start..span.end - start;

    let label = (!diagnostic.label.is_empty()).then(|| plain(&diagnostic.label));
    Snippet::source(&text[start..end])
        .path(plain(file_name))
        .line_start(line)
        .annotation(AnnotationKind::Primary.span(in_snippet(&primary)).label(label))
        .annotations(
            related.iter().map(|(span, label)| AnnotationKind::Context.span(in_snippet(span)).label(*label)),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnostic_about_another_text_is_shown_all_the_same() {
        let diagnostic = Diagnostic::error("x", 90..99, "gone").related(1..500, "here");
        assert!(render(&[diagnostic], "short", "a.toml", false).contains("a.toml:1:"));
    }

    #[test]
    fn quoted_text_cannot_send_escape_codes_to_the_terminal() {
        let escape = "\u{1b}[31m";
        let diagnostic = Diagnostic::error("x", 0..1, escape).label(escape).help(escape);
        assert!(!render(&[diagnostic], "a", "a.toml", false).contains('\u{1b}'));
    }

    #[test]
    fn color_adds_escape_codes_and_nothing_else() {
        let diagnostic = [Diagnostic::error("x", 0..1, "message").help("remedy")];
        let styled = render(&diagnostic, "a", "a.toml", true);
        assert!(styled.contains("\u{1b}["));
        assert!(styled.contains("message") && styled.contains("remedy"));
    }
}
