//! The result of `calibrate`: the cost model of a disk.

use std::path::Path;

use serde::Serialize;

use crate::figures::{bytes, duration, rate};
use crate::table::{Paint, Style, Table, clean};

/// The performance of a disk in one direction.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Way {
    /// The bandwidth of large requests, in bytes per second.
    pub bytes_per_s: u64,
    /// The rate of sequential requests of 4 KiB, in requests per second.
    pub sequential_per_s: u64,
    /// The rate of requests of 4 KiB at random offsets, in requests per second.
    pub random_per_s: u64,
    /// The 95th percentile of the latency of random requests, in microseconds.
    pub latency_us: u64,
}

/// A measurement of a disk, and the file that stores it.
#[derive(Debug, Serialize)]
pub struct Shown<'a> {
    /// The kernel's name for the disk.
    pub disk: &'a str,
    /// The disk's model; empty if the kernel does not report it.
    pub model: &'a str,
    /// The disk's serial number; empty if it is unknown.
    pub serial: &'a str,
    /// The disk's size.
    pub bytes: u64,
    /// The size of the file used in the measurement.
    pub file_bytes: u64,
    /// The performance of reading.
    pub read: Way,
    /// The performance of writing.
    pub written: Way,
    /// The file that stores the result.
    pub kept: &'a Path,
}

/// The result as text for people.
pub fn text(shown: &Shown<'_>, style: Style) -> String {
    let mut table = Table::new(&["", "read", "written"]);
    let mut row = |name: &str, cell: &dyn Fn(Way) -> String| {
        table.row(Paint::Plain, vec![name.to_owned(), cell(shown.read), cell(shown.written)]);
    };
    row("large requests", &|way| rate(way.bytes_per_s));
    row("4 KiB in order", &|way| format!("{} per s", way.sequential_per_s));
    row("4 KiB anywhere", &|way| format!("{} per s", way.random_per_s));
    row("95 % of these within", &|way| duration(way.latency_us.saturating_mul(1_000)));
    let named: Vec<&str> = [shown.model, shown.serial].into_iter().filter(|text| !text.is_empty()).collect();
    format!(
        "disk {} ({}), measured with a file of {}\n\n{}\nkept in {}\n",
        clean(shown.disk),
        clean([named.join(", "), bytes(shown.bytes)].join(", ").trim_start_matches(", ")),
        bytes(shown.file_bytes),
        table.render(style),
        clean(&shown.kept.display().to_string()),
    )
}

/// The result as JSON.
pub fn json(shown: &Shown<'_>) -> String {
    crate::json("commonhold.calibrate", shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_in_a_table() {
        let way =
            Way { bytes_per_s: 8_000_000, sequential_per_s: 1_950, random_per_s: 190, latency_us: 33_000 };
        let shown = Shown {
            disk: "sda",
            model: "",
            serial: "S1",
            bytes: 512 << 20,
            file_bytes: 40 << 20,
            read: way,
            written: Way { bytes_per_s: 1_234_567, ..way },
            kept: Path::new("/var/lib/commonhold/disks/x.json"),
        };
        let expected = "disk sda (S1, 512 MiB), measured with a file of 40 MiB\n\n";
        let text = text(&shown, Style::PLAIN);
        assert!(text.starts_with(expected), "{text}");
        let words =
            |line: usize| text.lines().nth(line).unwrap_or_default().split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(3).join(" "), "large requests 8 MB/s 1.2 MB/s", "{text}");
        assert_eq!(words(6).join(" "), "95 % of these within 33.0 ms 33.0 ms", "{text}");
        assert!(json(&shown).contains("\"random_per_s\": 190"));
    }
}
