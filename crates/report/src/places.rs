//! Places: control groups of other programs in which units are held. A table for `status`, and words for
//! `run --dry-run`.

use commonhold_ledger::Statement;
use commonhold_policy::GroupBounds;

use crate::figures::bytes;
use crate::table::{Paint, Style, Table, clean, wrap};

/// A table with one row for each place, sorted by unit; empty if all units have control groups of their own.
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
        if !place.set.is_none() {
            let line = format!("set by others: {}", set(&place.set));
            for line in wrap(&line, style.width, "  ", "  ") {
                table.line(Paint::Plain, line);
            }
        }
    }
    format!("\n{}", table.render(style))
}

/// The settings of another program in a control group, in words:
/// `at most 300 MiB, CPUs 0-3, a cap on CPU time`. Empty if the program has set nothing.
pub(crate) fn set(bounds: &GroupBounds) -> String {
    let memory = bounds.memory.map(|most| format!("at most {}", bytes(most)));
    let cpus = bounds.cpus.as_ref().map(|cpus| format!("CPUs {cpus}"));
    let others = [
        (bounds.cap, "a cap on CPU time"),
        (bounds.weight, "a weight"),
        (bounds.kept, "memory that is kept"),
        (bounds.rates, "rates of disks"),
    ];
    let others = others.into_iter().filter(|(is_set, _)| *is_set).map(|(_, what)| what.to_owned());
    memory.into_iter().chain(cpus).chain(others).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use commonhold_ledger::Place;

    use super::*;

    #[test]
    fn places_stand_by_unit() {
        let place = |place, unit: &str, group: &str| Place {
            place,
            unit: unit.to_owned(),
            group: group.to_owned(),
            set: GroupBounds::default(),
        };
        let mut places = vec![
            place(1, "web", "/system.slice/nginx.service"),
            place(2, "physics/ana", "/user.slice/user-1001.slice"),
        ];
        let text = |places: &[Place]| {
            table(&Statement { places: places.to_vec(), ..Statement::default() }, Style::default())
        };
        let said = text(&places);
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines[1].starts_with("unit") && lines[2].starts_with("physics/ana"), "{said}");
        assert!(lines[1].ends_with("held in") && lines[3].ends_with("/system.slice/nginx.service"), "{said}");
        assert_eq!(table(&Statement::default(), Style::default()), "");
        places[0].set = GroupBounds {
            memory: Some(300 << 20),
            cpus: "0-3".parse().ok(),
            cap: true,
            ..GroupBounds::default()
        };
        let said = text(&places);
        assert!(
            said.ends_with("nginx.service\n  set by others: at most 300 MiB, CPUs 0-3, a cap on CPU time\n"),
            "{said}"
        );
    }
}
