//! The result of `calibrate --bus`: the bandwidth of the memory bus.

use std::path::Path;

use serde::Serialize;

use crate::figures::{bytes, count, rate};
use crate::table::{Paint, Style, Table, clean};

/// If other processes had more than this percentage of the CPU time, the result is probably too low.
const OTHERS_PERCENT: u64 = 5;

/// A measurement of the memory bus, and the file that stores it.
#[derive(Debug, Serialize)]
pub struct Shown<'a> {
    /// The processors' model; empty if the kernel does not report it.
    pub model: &'a str,
    /// CPUs used in the measurement.
    pub cpus: u32,
    /// CPUs of the machine.
    pub cpus_present: u32,
    /// Nodes that have memory.
    pub nodes: u32,
    /// The size of the arrays used in the measurement.
    pub arrays_bytes: u64,
    /// The bandwidth that one CPU reaches alone.
    pub one_bytes_per_s: u64,
    /// The bandwidth that all CPUs reach together.
    pub all_bytes_per_s: u64,
    /// The percentage of CPU time that other processes had during the measurement.
    pub others_percent: u64,
    /// The file that stores the result.
    pub kept: &'a Path,
}

/// The result as text for people.
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
            "note: other programs had {} % of the CPUs meanwhile, so the bus may carry more: measure it while nothing else \
             runs\n",
            shown.others_percent
        );
    }
    text
}

/// The result as JSON.
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
