//! Tables for terminals and HTML pages, and helpers for text of limited width. In a table, columns are
//! aligned, and names are cut so that the other columns fit. Colour is optional.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The properties of the terminal that text is laid out for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether escape sequences for colour and bold text may be written. No information depends on colour
    /// alone.
    pub colour: bool,
    /// The terminal's width in columns. Names are cut so that lines fit. Below 60 columns, lines may still be
    /// too long.
    pub width: usize,
}

impl Style {
    /// The style for files, pipes and tests: no colour, 80 columns.
    pub const PLAIN: Style = Style { colour: false, width: 80 };

    /// The text with the escape sequences of `paint`; unchanged if the style has no colour.
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

/// How a piece of text stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    /// Not at all.
    Plain,
    /// Bold, for headings.
    Strong,
    /// Dim, for secondary figures.
    Faint,
    /// Green, for good results.
    Good,
    /// Bold red, for bad results.
    Bad,
}

/// The least width of the column of names.
const NAME_COLUMNS_MIN: usize = 8;

/// A table. Its first column has names, aligned to the left; all other columns have figures, aligned to the
/// right.
#[derive(Debug)]
pub struct Table {
    /// The headings. A heading of two lines contains a newline.
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

    /// Adds a row. It must have as many cells as there are headings.
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
        let heads: Vec<String> = self.heads.iter().map(|head| escape(&head.replace('\n', " "))).collect();
        let headings: String = heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
        let mut out = format!("<div class=\"wide\"><table>\n<thead><tr>{headings}</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            out += &match row {
                Row::Cells(_, row) => {
                    let (name, figures) = row.split_at(1.min(row.len()));
                    let name = name.first().map(|name| html_name(name)).unwrap_or_default();
                    let figures = figures.iter().zip(heads.iter().skip(1));
                    let figures: String = figures.map(|(cell, head)| html_cell(head, cell.trim())).collect();
                    format!("<tr>{name}{figures}</tr>\n")
                }
                Row::Line(_, text) => {
                    let text = escape(text);
                    format!("<tr><td class=\"waits\" colspan=\"{}\">{text}</td></tr>\n", self.heads.len())
                }
            };
        }
        out + "</tbody>\n</table></div>\n"
    }

    /// The table as lines of text, each with a newline.
    pub fn render(&self, style: Style) -> String {
        let (widths, gap) = self.widths(style.width);
        let mut text = String::new();
        let deep = self.heads.iter().map(|head| head.lines().count()).max().unwrap_or(0);
        for line in 0..deep {
            // A heading of one line is written on the last line of the headings, next to the figures.
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

    /// The table as text, split into blocks one below the other if the columns do not fit side by side. Each
    /// block repeats the first column. There are as few blocks as possible, of about equally many columns,
    /// with an empty line between them.
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

    /// A table with the first column and the given columns of this table.
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

    /// The widths of the columns, and the width of the gap between them for a table of `total` columns. The
    /// gap is two spaces, or one space if names would have to be cut otherwise.
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

/// A cell of a row as HTML. It repeats the column's heading, which is already escaped, for screens on which
/// a row is a block.
pub fn html_cell(head: &str, cell: &str) -> String {
    format!("<td data-head=\"{head}\">{}</td>", escape(cell))
}

/// The first cell of a row as HTML, indented as in a terminal.
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

/// The text in exactly `columns` columns. A longer text is cut and ends with an ellipsis; a shorter one is
/// filled with spaces.
pub fn pad(text: &str, columns: usize) -> String {
    let mut text = fit(text, columns);
    text += &" ".repeat(columns.saturating_sub(text.width()));
    text
}

/// The text in at most `columns` columns. A longer text is cut and ends with an ellipsis.
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

/// Whether a character could move the cursor, or could hide or reorder the text after it.
pub fn is_foul(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// The text without the characters for which [`is_foul`] is true. Names need this, since other users'
/// programs choose them.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if is_foul(c) { '\u{FFFD}' } else { c }).collect()
}

/// Breaks `text` between words into lines of at most `columns` columns. The first line begins with `first`,
/// the others begin with `rest`. A word that is longer than a line is cut.
pub fn wrap(text: &str, columns: usize, first: &str, rest: &str) -> Vec<String> {
    let longest = columns.saturating_sub(rest.width()).max(NAME_COLUMNS_MIN);
    wrap_words(text, columns, first, rest, |word| fit(word, longest))
}

/// Breaks `text` as [`wrap`] does, but does not cut words: a path or a command that is longer than a line
/// can still be copied.
pub fn wrap_whole(text: &str, columns: usize, first: &str, rest: &str) -> Vec<String> {
    wrap_words(text, columns, first, rest, str::to_owned)
}

fn wrap_words(
    text: &str,
    columns: usize,
    first: &str,
    rest: &str,
    cut: impl Fn(&str) -> String,
) -> Vec<String> {
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
        line += &cut(word);
        is_empty = false;
    }
    lines.push(line);
    lines
}

/// Lines of text as HTML, with a line break after each but the last.
pub fn escape_lines(text: &str) -> String {
    text.trim_end().lines().map(escape).collect::<Vec<_>>().join("<br>\n")
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

/// The number of units around a unit; 0 at the top level.
pub(crate) fn depth(path: &str) -> usize {
    path.matches('/').count()
}

/// The first cell of a unit's row: the last part of its path, indented by two spaces for each enclosing unit.
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
        let whole = wrap_whole("a incomprehensibilities b", 12, "", "  ");
        assert_eq!(whole, ["a", "  incomprehensibilities", "  b"]);
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
