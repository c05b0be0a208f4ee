//! Comma-separated values (RFC 4180), safe to open in a spreadsheet.

use crate::table::clean;

/// A line, with its end.
pub fn line(cells: &[impl AsRef<str>]) -> String {
    cells.iter().map(|text| cell(text.as_ref())).collect::<Vec<_>>().join(",") + "\r\n"
}

/// A cell. A spreadsheet would evaluate a name that begins like a formula, such as a user's; an apostrophe
/// before it makes it text.
pub fn cell(text: &str) -> String {
    let cell = clean(text);
    let cell = if cell.starts_with(['=', '+', '-', '@']) { format!("'{cell}") } else { cell };
    match cell.contains([',', '"']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_formula_and_moves_no_cursor() {
        let cells = ["=1+2", "+a", "-a", "@a", "a=b", "\u{1b}[2J\r\n\t\u{9b}x", "=\"a\",b", ""];
        let expected =
            "'=1+2,'+a,'-a,'@a,a=b,\u{FFFD}[2J\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}x,\"'=\"\"a\"\",b\",\r\n";
        assert_eq!(line(&cells), expected);
    }
}
