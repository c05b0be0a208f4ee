//! The control groups of other programs that units are held in, as a table of `status`.

use commonhold_ledger::Statement;

use crate::table::{Paint, Style, Table, clean};

/// One row for each place, by unit; nothing where units have groups of their own alone.
pub(crate) fn table(statement: &Statement, style: Style) -> String {
    if statement.places.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["unit", "place", "held in"]);
    let mut places: Vec<_> = statement.places.iter().collect();
    places.sort_by_key(|place| (&place.unit, &place.group));
    for place in places {
        let cells = vec![clean(&place.unit), place.place.to_string(), clean(&place.group)];
        table.row(Paint::Plain, cells);
    }
    format!("\n{}", table.render(style))
}

#[cfg(test)]
mod tests {
    use commonhold_ledger::Place;

    use super::*;

    #[test]
    fn places_stand_by_unit() {
        let place =
            |place, unit: &str, group: &str| Place { place, unit: unit.to_owned(), group: group.to_owned() };
        let places = vec![
            place(1, "web", "/system.slice/nginx.service"),
            place(2, "physics/ana", "/user.slice/user-1001.slice"),
        ];
        let text = table(&Statement { places, ..Statement::default() }, Style::default());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("unit") && lines[2].starts_with("physics/ana"), "{text}");
        assert!(lines[3].ends_with("/system.slice/nginx.service"), "{text}");
        assert_eq!(table(&Statement::default(), Style::default()), "");
    }
}
