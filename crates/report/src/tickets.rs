//! Units' tickets, and what was changed of them while the contract was in force: tables for `tickets`, lines for
//! `status`, and JSON.

use commonhold_contract::Resource;
use commonhold_contract::measure::CpuCount;
use serde::{Deserialize, Serialize};

use crate::figures::{bytes, part};
use crate::status::depth;
use crate::table::{Paint, Style, Table, clean, wrap};

/// A unit's tickets of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tickets {
    /// The unit's path.
    pub unit: String,
    /// Of what.
    pub resource: Resource,
    /// What the contract gives it.
    pub contract: u64,
    /// What it has.
    pub tickets: u64,
    /// What the unit is entitled to by them and by its reservation, sub-units included, while all units that have
    /// processes want the resource. In millionths of a CPU, bytes of memory, or millionths of each disk or of the memory
    /// bus. 0 for a unit without processes.
    pub entitled: u64,
}

impl Tickets {
    /// Whether they are not those of the contract.
    pub fn is_changed(&self) -> bool {
        self.tickets != self.contract
    }

    /// On one line: `a: 150 cpu tickets instead of 100; entitled to 2.4 CPUs`.
    pub fn line(&self) -> String {
        let Tickets { unit, resource, contract, tickets, entitled } = self;
        let instead = if self.is_changed() { format!(" instead of {contract}") } else { String::new() };
        let one = if *tickets == 1 { "ticket" } else { "tickets" };
        let entitled = match (resource, entitled) {
            (_, 0) => "no processes now".to_owned(),
            (Resource::Cpu, micro) => format!("entitled to {}", CpuCount((*micro).min(u64::MAX - 1_000))),
            (Resource::Memory, n) => format!("entitled to {}", bytes(*n)),
            (Resource::Disk, millionths) => format!("entitled to {} of each disk", part(*millionths)),
            (Resource::Bus, millionths) => format!("entitled to {} of the bus", part(*millionths)),
        };
        format!("{}: {tickets} {resource} {one}{instead}; {entitled}", clean(unit))
    }
}

/// For a terminal: a row per unit, a column per resource, and a line for each number that was changed.
pub fn text(tickets: &[Tickets], style: Style) -> String {
    if tickets.is_empty() {
        return "No unit holds tickets: all is shared.\n".to_owned();
    }
    let mut table = Table::new(&["unit", "cpu", "memory", "disk", "bus"]);
    for of_unit in tickets.chunk_by(|one, next| one.unit == next.unit) {
        let unit = &of_unit[0].unit;
        let name = unit.rsplit('/').next().unwrap_or(unit);
        let mut cells = vec!["  ".repeat(depth(unit)) + &clean(name)];
        cells.extend(Resource::ALL.map(|resource| {
            let found = of_unit.iter().find(|it| it.resource == resource);
            found.map_or_else(String::new, |it| {
                if it.is_changed() {
                    format!("{} ({})", it.tickets, it.contract)
                } else {
                    it.tickets.to_string()
                }
            })
        }));
        table.row(Paint::Plain, cells);
    }
    let mut text = table.render(style) + "\n";
    let changed: Vec<&Tickets> = tickets.iter().filter(|it| it.is_changed()).collect();
    if changed.is_empty() {
        return text + "All are those of the contract.\n";
    }
    text += "In parentheses: what the contract gives, where it was changed.\n";
    for it in changed {
        for line in wrap(&it.line(), style.width, "", "  ") {
            text += &line;
            text.push('\n');
        }
    }
    text
}

/// As JSON.
pub fn json(tickets: &[Tickets]) -> String {
    #[derive(Serialize)]
    struct All<'a> {
        tickets: &'a [Tickets],
    }
    crate::json("commonhold.tickets", All { tickets })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(unit: &str, changed: &[(Resource, u64, u64)]) -> [Tickets; 4] {
        Resource::ALL.map(|resource| {
            let found = changed.iter().find(|(of, ..)| *of == resource);
            let (tickets, entitled) = found.map_or((100, 0), |(_, tickets, entitled)| (*tickets, *entitled));
            Tickets { unit: unit.to_owned(), resource, contract: 100, tickets, entitled }
        })
    }

    #[test]
    fn what_was_changed_stands_beside_what_the_contract_gives() {
        let style = Style { colour: false, width: 80 };
        let all = [
            of("physics", &[(Resource::Cpu, 150, 2_400_000), (Resource::Disk, 1, 250_000)]),
            of("physics/night", &[(Resource::Memory, 1_000, 3 << 29)]),
        ]
        .concat();
        let expected = "\
unit           cpu      memory     disk  bus
physics  150 (100)         100  1 (100)  100
  night        100  1000 (100)      100  100

In parentheses: what the contract gives, where it was changed.
physics: 150 cpu tickets instead of 100; entitled to 2.4 CPUs
physics: 1 disk ticket instead of 100; entitled to 25% of each disk
physics/night: 1000 memory tickets instead of 100; entitled to 1.5 GiB
";
        assert_eq!(text(&all, style), expected);
        let plain = of("a", &[]);
        assert!(text(&plain, style).ends_with("All are those of the contract.\n"));
        assert_eq!(plain[0].line(), "a: 100 cpu tickets; no processes now");
        assert_eq!(text(&[], style), "No unit holds tickets: all is shared.\n");
    }

    #[test]
    fn json_says_what_it_is_and_names_resources() {
        let json: serde_json::Value = serde_json::from_str(&json(&of("a", &[]))).unwrap();
        assert_eq!((&json["schema"], &json["version"]), (&"commonhold.tickets".into(), &1.into()));
        let first = serde_json::json!(
            {"unit": "a", "resource": "cpu", "contract": 100, "tickets": 100, "entitled": 0}
        );
        assert_eq!(json["tickets"][0], first);
    }
}
