//! Tables for terminals. Columns are aligned, names are cut so that lines fit, and colour is used only if the [`Style`] allows
//! it.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The capabilities of the reader's terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether escape sequences for colour and weight may be written. No fact is shown by colour alone.
    pub colour: bool,
    /// Width of the terminal in columns. Names are cut so that lines fit; below 60 columns, lines may still be too long.
    pub width: usize,
}

impl Style {
    /// No colour, 80 columns: for files, pipes and tests.
    pub const PLAIN: Style = Style { colour: false, width: 80 };

    /// The text with escape sequences for `paint`, if there is colour.
    pub fn paint(self, paint: Paint, text: &str) -> String {
        match (self.colour && !text.is_empty(), paint) {
            (false, _) | (true, Paint::Plain) => text.to_owned(),
            (true, Paint::Strong) => format!("\x1b[1m{text}\x1b[0m"),
            (true, Paint::Faint) => format!("\x1b[2m{text}\x1b[0m"),
            (true, Paint::Good) => format!("\x1b[32m{text}\x1b[0m"),
            (true, Paint::Bad) => format!("\x1b[1;31m{text}\x1b[0m"),
        }
    }
}

impl Default for Style {
    fn default() -> Self {
        Style::PLAIN
    }
}

/// The emphasis of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    /// No emphasis.
    Plain,
    /// Bold: headings.
    Strong,
    /// Dim: secondary figures.
    Faint,
    /// Green.
    Good,
    /// Bold red.
    Bad,
}

/// The least width of the column of names.
const NAME_COLUMNS_MIN: usize = 8;

/// A table. The first column has names, aligned to the left; all other columns have figures, aligned to the right.
#[derive(Debug)]
pub struct Table {
    /// Headings; those in two lines have a newline.
    heads: Vec<&'static str>,
    rows: Vec<Row>,
}

#[derive(Debug)]
enum Row {
    Cells(Paint, Vec<String>),
    /// A line across all columns.
    Line(Paint, String),
}

impl Table {
    /// A table with these headings and no rows.
    pub fn new(heads: &[&'static str]) -> Self {
        Table { heads: heads.to_vec(), rows: Vec::new() }
    }

    /// Adds a row: as many cells as there are headings.
    pub fn row(&mut self, paint: Paint, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.heads.len());
        self.rows.push(Row::Cells(paint, cells));
    }

    /// Adds a line across all columns.
    pub fn line(&mut self, paint: Paint, text: String) {
        self.rows.push(Row::Line(paint, text));
    }

    /// The table as HTML.
    pub fn html(&self) -> String {
        let cells = |tag: &str, cells: &[String]| -> String {
            cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell.trim()))).collect()
        };
        let heads: Vec<String> = self.heads.iter().map(|head| head.replace('\n', " ")).collect();
        let mut out = format!(
            "<div class=\"wide\"><table>\n<thead><tr>{}</tr></thead>\n<tbody>\n",
            cells("th", &heads)
        );
        for row in &self.rows {
            out += &match row {
                Row::Cells(_, row) => {
                    let (name, figures) = row.split_at(1.min(row.len()));
                    let name = name.first().map(|name| html_name(name)).unwrap_or_default();
                    format!("<tr>{name}{}</tr>\n", cells("td", figures))
                }
                Row::Line(_, text) => {
                    let text = escape(text);
                    format!("<tr><td class=\"waits\" colspan=\"{}\">{text}</td></tr>\n", self.heads.len())
                }
            };
        }
        out + "</tbody>\n</table></div>\n"
    }

    /// The table as text: lines, each with a newline.
    pub fn render(&self, style: Style) -> String {
        let (widths, gap) = self.widths(style.width);
        let mut text = String::new();
        let deep = self.heads.iter().map(|head| head.lines().count()).max().unwrap_or(0);
        for line in 0..deep {
            // Short headings stand on the last line, next to the figures.
            let heads = self.heads.iter().map(|head| {
                let from = deep - head.lines().count();
                line.checked_sub(from).and_then(|line| head.lines().nth(line)).unwrap_or("").to_owned()
            });
            text += &style.paint(Paint::Strong, &align(&heads.collect::<Vec<_>>(), &widths, gap));
            text.push('\n');
        }
        for row in &self.rows {
            match row {
                Row::Cells(paint, cells) => text += &style.paint(*paint, &align(cells, &widths, gap)),
                Row::Line(paint, line) => text += &style.paint(*paint, line.trim_end()),
            }
            text.push('\n');
        }
        text
    }

    /// The table as text, split into blocks so that the columns of each block fit side by side. Each block repeats the first
    /// column, and has about the same number of columns. An empty line separates blocks.
    pub fn render_in_blocks(&self, style: Style) -> String {
        let (widths, gap) = self.widths(usize::MAX);
        let Some((name, figures)) = widths.split_first() else { return String::new() };
        let fits =
            |figures: &[usize]| name + figures.iter().map(|width| width + gap).sum::<usize>() <= style.width;
        let in_blocks = |blocks: usize| figures.len().div_ceil(blocks).max(1);
        let blocks = (1..=figures.len()).find(|blocks| figures.chunks(in_blocks(*blocks)).all(fits));
        let columns: Vec<usize> = (1..self.heads.len()).collect();
        let block = |columns: &[usize]| self.only(columns).render(style);
        columns
            .chunks(in_blocks(blocks.unwrap_or(figures.len()).max(1)))
            .map(block)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// The table with the first column and these columns only.
    fn only(&self, columns: &[usize]) -> Table {
        let of = |cells: &[String]| {
            let cell = |column: &usize| cells.get(*column).cloned();
            std::iter::once(&0).chain(columns).filter_map(cell).collect()
        };
        let row = |row: &Row| match row {
            Row::Cells(paint, cells) => Row::Cells(*paint, of(cells)),
            Row::Line(paint, line) => Row::Line(*paint, line.clone()),
        };
        let head = |column: &usize| self.heads.get(*column).copied();
        Table {
            heads: std::iter::once(&0).chain(columns).filter_map(head).collect(),
            rows: self.rows.iter().map(row).collect(),
        }
    }

    /// The widths of the columns, and the gap between columns: two spaces, or one if names would be cut otherwise.
    fn widths(&self, total: usize) -> (Vec<usize>, usize) {
        let mut widths: Vec<usize> = self
            .heads
            .iter()
            .map(|head| head.lines().map(UnicodeWidthStr::width).max().unwrap_or(0))
            .collect();
        for row in &self.rows {
            if let Row::Cells(_, cells) = row {
                for (width, cell) in widths.iter_mut().zip(cells) {
                    *width = (*width).max(cell.width());
                }
            }
        }
        let gap = if widths.iter().map(|width| width + 2).sum::<usize>() <= total.saturating_add(2) {
            2
        } else {
            1
        };
        if let Some((name, figures)) = widths.split_first_mut() {
            let taken: usize = figures.iter().map(|width| width + gap).sum();
            *name = (*name).min(total.saturating_sub(taken).max(NAME_COLUMNS_MIN));
        }
        (widths, gap)
    }
}

/// The head of a row in HTML, indented as in a terminal.
fn html_name(name: &str) -> String {
    let text = escape(name.trim());
    match name.len() - name.trim_start().len() {
        0 => format!("<th scope=\"row\">{text}</th>"),
        spaces => format!("<th scope=\"row\" style=\"padding-left:{}rem\">{text}</th>", 1 + spaces / 2),
    }
}

fn align(cells: &[String], widths: &[usize], gap: usize) -> String {
    let mut line = String::new();
    for (i, (cell, width)) in cells.iter().zip(widths).enumerate() {
        if i == 0 {
            line += &pad(cell, *width);
        } else {
            line += &" ".repeat(gap + width.saturating_sub(cell.width()));
            line += cell;
        }
    }
    line.truncate(line.trim_end().len());
    line
}

/// The text in exactly `columns` columns: cut with an ellipsis, or filled with spaces.
pub fn pad(text: &str, columns: usize) -> String {
    let mut text = fit(text, columns);
    text += &" ".repeat(columns.saturating_sub(text.width()));
    text
}

/// The text in at most `columns` columns: an ellipsis replaces the end of a longer text.
pub fn fit(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 1; // the ellipsis
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > columns {
            break;
        }
        kept.push(c);
    }
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// Whether a character could move the cursor, or hide or reorder the text that follows.
pub fn is_foul(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// The text without control characters and characters that reorder text: names come from untrusted programs.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if is_foul(c) { '\u{FFFD}' } else { c }).collect()
}

/// The words of `text` in lines of at most `columns`: the first begins with `first`, the others with `rest`. A word that
/// is longer than a line is cut.
pub fn wrap(text: &str, columns: usize, first: &str, rest: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !is_empty && line.width() + 1 + word.width() > columns {
            lines.push(std::mem::replace(&mut line, rest.to_owned()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += &fit(word, columns.saturating_sub(rest.width()).max(NAME_COLUMNS_MIN));
        is_empty = false;
    }
    lines.push(line);
    lines
}

/// Escapes text for HTML and SVG, attribute values included, and removes control characters.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c => escaped.push(c),
        }
    }
    escaped
}

/// The nesting depth of a unit; 0 at the top level.
pub(crate) fn depth(path: &str) -> usize {
    path.matches('/').count()
}

/// The first cell of a unit's row: the unit's name without those of its enclosing units, indented by two spaces per enclosing
/// unit.
pub(crate) fn indented(path: &str) -> String {
    "  ".repeat(depth(path)) + &clean(path.rsplit('/').next().unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_by_columns_and_not_by_characters() {
        assert_eq!(fit("physics", 7), "physics");
        assert_eq!(fit("physics", 6), "physi…");
        // Each of these characters is two columns wide.
        assert_eq!(fit("物理学部", 6), "物理…");
        assert_eq!(pad("物理学部", 6), "物理… ");
        assert_eq!(fit("physics", 0), "");
        // The accent has no width of its own.
        assert_eq!(fit("e\u{301}e\u{301}", 2), "e\u{301}e\u{301}");
    }

    #[test]
    fn nothing_reaches_the_terminal_that_could_steer_it() {
        assert_eq!(clean("a\x1b[2Jb\nc\u{202E}d"), "a\u{FFFD}[2Jb\u{FFFD}c\u{FFFD}d");
    }

    #[test]
    fn words_are_wrapped_and_long_ones_cut() {
        assert_eq!(wrap("one two three", 9, "- ", "  "), ["- one two", "  three"]);
        assert_eq!(wrap("a incomprehensibilities b", 12, "", "  "), ["a", "  incompreh…", "  b"]);
        assert_eq!(wrap("", 12, "- ", ""), ["- "]);
    }

    #[test]
    fn columns_that_do_not_fit_side_by_side_stand_in_blocks() {
        let mut table = Table::new(&["", "one", "two", "three"]);
        table.row(Paint::Plain, ["had", "1", "2", "3"].map(String::from).into());
        let in_columns = |width| table.render_in_blocks(Style { width, ..Style::PLAIN });
        assert_eq!(in_columns(80), "     one  two  three\nhad    1    2      3\n");
        assert_eq!(in_columns(17), "     one  two\nhad    1    2\n\n     three\nhad      3\n");
        // However narrow, a column is shown.
        assert_eq!(in_columns(1).matches("had").count(), 3);
    }

    #[test]
    fn a_table_fits_the_width_by_cutting_names() {
        let mut table = Table::new(&["unit", "called\nback"]);
        table.row(Paint::Plain, vec!["a-rather-long-name".into(), "12".into()]);
        table.row(Paint::Faint, vec!["b".into(), "3".into()]);
        table.line(Paint::Plain, "all of it  ".into());
        let plain = Style { colour: false, width: 20 };
        let cut = [
            "              called",
            "unit            back",
            "a-rather-lon…     12",
            "b                  3",
            "all of it",
            "",
        ];
        assert_eq!(table.render(plain), cut.join("\n"));
        let whole = table.render(Style { width: 26, ..plain });
        assert!(whole.contains("a-rather-long-name      12\n"), "{whole}");
        assert!(table.render(Style { colour: true, ..plain }).contains("3\x1b[0m\n"));
    }
}
