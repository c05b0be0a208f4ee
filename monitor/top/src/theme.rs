//! Colours, which only repeat what characters say, and characters for terminals without UTF-8.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

/// Secondary text, and what is idle.
pub(crate) const DIM: Style = Style::new().add_modifier(Modifier::DIM);
/// Headings.
pub(crate) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
/// What is selected.
pub(crate) const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Theme {
    pub(crate) has_colour: bool,
    /// Whether only ASCII characters are drawn.
    pub(crate) is_ascii: bool,
}

impl Theme {
    /// No colour.
    #[cfg(test)]
    pub(crate) const PLAIN: Theme = Theme { has_colour: false, is_ascii: false };

    fn colour(self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub(crate) fn broken(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn cannot_tell(self) -> Style {
        self.colour(Color::Yellow)
    }

    pub(crate) fn used(self) -> Style {
        self.colour(Color::Cyan)
    }

    pub(crate) fn borrowed(self) -> Style {
        self.colour(Color::Blue)
    }

    /// Replaces characters that the terminal cannot show.
    pub(crate) fn finish(self, buffer: &mut Buffer) {
        if self.is_ascii {
            for cell in buffer.content.iter_mut().filter(|cell| !cell.symbol().is_ascii()) {
                cell.set_char(ascii(cell.symbol().chars().next().unwrap_or(' ')));
            }
        }
    }

    /// The text without characters that the terminal cannot show.
    pub(crate) fn text(self, text: &str) -> String {
        if self.is_ascii { text.chars().map(ascii).collect() } else { text.to_owned() }
    }
}

/// The ASCII character in place of one that is drawn; `?` for those of names.
fn ascii(c: char) -> char {
    match c {
        '█' => '#',
        '▓' => '+',
        '░' | '─' => '-',
        '│' => '|',
        '▶' | '▸' => '>',
        '▾' => 'v',
        '✓' | '·' => '.',
        '…' => '~',
        c if c.is_ascii() => c,
        _ => '?',
    }
}

/// Whether the locale's characters are UTF-8, by the variables that the C library honours.
pub(crate) fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_decides() {
        let with = |pairs: &'static [(&str, &str)]| {
            is_utf8(|name| {
                pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(with(&[("LANG", "de_DE.UTF-8")]) && with(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8")]));
        assert!(!with(&[]) && !with(&[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")]));
    }
}
