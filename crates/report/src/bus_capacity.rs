//! What `calibrate --bus` measured of the memory bus.

use std::path::Path;

use serde::Serialize;

use crate::figures::{bytes, count, rate};
use crate::table::{Paint, Style, Table, clean};

/// Where others had more of the CPUs' time than that, in percent, the result is probably too low.
const OTHERS_PERCENT: u64 = 5;

/// A measurement, and where it is kept.
#[derive(Debug, Serialize)]
pub struct Shown<'a> {
    /// The processors' model; empty where the kernel does not tell.
    pub model: &'a str,
    /// How many CPUs it was measured with.
    pub cpus: u32,
    /// Of so many that are there.
    pub cpus_present: u32,
    /// Nodes that have memory.
    pub nodes: u32,
    /// How large the arrays were that it was measured with.
    pub arrays_bytes: u64,
    /// What it carries for one CPU.
    pub one_bytes_per_s: u64,
    /// And for all together.
    pub all_bytes_per_s: u64,
    /// The part of the CPUs' time that others had meanwhile.
    pub others_percent: u64,
    /// The file that has it.
    pub kept: &'a Path,
}

/// For people.
pub fn text(shown: &Shown<'_>, style: Style) -> String {
    let mut table = Table::new(&["", "fetched", "for each"]);
    let mut row = |name: String, total: u64, by: u32| {
        table.row(Paint::Plain, vec![name, rate(total), rate(total / u64::from(by.max(1)))]);
    };
    row("by one CPU".to_owned(), shown.one_bytes_per_s, 1);
    row(format!("by {}", count(shown.cpus as usize, "CPU")), shown.all_bytes_per_s, shown.cpus);
    let model = if shown.model.is_empty() { "this machine" } else { shown.model };
    let mut text = format!(
        "memory bus of {} ({}, {}), measured with arrays of {}\n\n{}\nkept in {}\n",
        clean(model),
        count(shown.cpus_present as usize, "CPU"),
        count(shown.nodes as usize, "node"),
        bytes(shown.arrays_bytes),
        table.render(style),
        clean(&shown.kept.display().to_string()),
    );
    if shown.cpus < shown.cpus_present {
        text += &format!(
            "note: this process may use {} of {} CPUs; more of them may transfer more: see taskset(1)\n",
            shown.cpus, shown.cpus_present
        );
    }
    if shown.others_percent > OTHERS_PERCENT {
        text += &format!(
            "note: other programs had {} % of the CPUs meanwhile, so the bus may carry more: measure it while nothing else runs\n",
            shown.others_percent
        );
    }
    text
}

/// For programs.
pub fn json(shown: &Shown<'_>) -> String {
    crate::json("commonhold.calibrate-bus", shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_with_what_is_to_be_said_of_it() {
        let shown = Shown {
            model: "Some CPU",
            cpus: 4,
            cpus_present: 4,
            nodes: 1,
            arrays_bytes: 384 << 20,
            one_bytes_per_s: 12_300_000_000,
            all_bytes_per_s: 40_000_000_000,
            others_percent: 5,
            kept: Path::new("/var/lib/commonhold/bus/x.json"),
        };
        insta::assert_snapshot!(text(&shown, Style::PLAIN));
        let odd = Shown { model: "", cpus: 2, others_percent: 37, ..shown };
        insta::assert_snapshot!(text(&odd, Style::PLAIN));
        insta::assert_snapshot!(json(&odd));
    }
}
