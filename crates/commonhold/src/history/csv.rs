//! The history as comma-separated values (RFC 4180).

use commonhold_contract::Resource;
use commonhold_history::{Record, UnitUse};
use commonhold_ledger::Verdict;
use commonhold_report::csv::line;
use jiff::tz::TimeZone;

use super::when::rfc_3339;

/// The columns of a unit, in the order of [`unit`].
const UNIT: &str = "start,end,covered_seconds,unit,processes,cpu_entitled_seconds,cpu_used_seconds,cpu_lent_seconds,\
    cpu_borrowed_seconds,cpu_call_backs,cpu_call_backs_late,cpu_call_back_longest_seconds,cpu_waited_seconds,cpu_verdict,\
    memory_entitled_byte_seconds,memory_used_byte_seconds,memory_lent_byte_seconds,memory_borrowed_byte_seconds,\
    memory_call_backs,memory_call_backs_late,memory_call_back_longest_seconds,memory_waited_seconds,memory_verdict,\
    disk_entitled_bytes,disk_read_bytes,disk_written_bytes,disk_lent_bytes,disk_borrowed_bytes,disk_call_backs,\
    disk_call_back_longest_seconds,disk_waited_seconds,disk_verdict\r\n";

/// The header line of [`units`].
pub(super) fn head() -> String {
    UNIT.to_owned()
}

/// The lines of a record, one for each unit: an interval's, or an account's sum.
pub(super) fn units(record: &Record, begin: &[String; 3]) -> String {
    record.units.iter().map(|of| line(&[&begin[..], &unit(of)].concat())).collect()
}

/// The first three columns: a period, and how much of it is covered.
pub(super) fn begin(from_ms: u64, to_ms: u64, covered_ns: u64, zone: &TimeZone) -> [String; 3] {
    [rfc_3339(from_ms, zone), rfc_3339(to_ms, zone), seconds(covered_ns)]
}

fn unit(unit: &UnitUse) -> Vec<String> {
    let back = |resource| unit.call_backs.get(&resource).copied().unwrap_or_default();
    let longest = |resource| seconds(back(resource).max_ns);
    let count_and_late = |resource| [back(resource).count, back(resource).late].map(|n| n.to_string());
    let verdict = |resource| {
        let verdict = unit.verdicts.get(&resource).map_or("", |verdict| match verdict {
            Verdict::Kept => "kept",
            Verdict::CannotTell => "cannot tell",
            Verdict::Broken => "broken",
        });
        verdict.to_owned()
    };
    let cpu = unit.cpu;
    let mut cells = vec![unit.unit.clone(), unit.processes.to_string()];
    cells.extend([cpu.entitled_ns, cpu.used_ns, cpu.lent_ns, cpu.borrowed_ns].map(seconds));
    cells.extend(count_and_late(Resource::Cpu));
    cells.extend([longest(Resource::Cpu), seconds(cpu.waited_ns), verdict(Resource::Cpu)]);
    match unit.memory {
        Some(of) => {
            let amounts = [of.entitled_byte_ms, of.used_byte_ms, of.lent_byte_ms, of.borrowed_byte_ms];
            cells.extend(amounts.map(|byte_ms| (byte_ms / 1_000).to_string()));
            cells.extend(count_and_late(Resource::Memory));
            cells.extend([longest(Resource::Memory), seconds(of.waited_ns)]);
        }
        None => cells.extend(std::iter::repeat_n(String::new(), 8)),
    }
    cells.push(verdict(Resource::Memory));
    match unit.disk {
        Some(of) => {
            let amounts =
                [of.entitled_bytes, of.read_bytes, of.written_bytes, of.lent_bytes, of.borrowed_bytes];
            cells.extend(amounts.map(|bytes| bytes.to_string()));
            cells.push(back(Resource::Disk).count.to_string());
            cells.extend([longest(Resource::Disk), seconds(of.waited_ns)]);
        }
        None => cells.extend(std::iter::repeat_n(String::new(), 8)),
    }
    cells.push(verdict(Resource::Disk));
    cells
}

/// Seconds with all digits of the nanoseconds.
pub(super) fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_history::{DiskUse, MemoryUse};

    #[test]
    fn every_column_has_a_head() {
        let empty = unit(&UnitUse::default());
        let full = unit(&UnitUse {
            memory: Some(MemoryUse::default()),
            disk: Some(DiskUse::default()),
            ..UnitUse::default()
        });
        assert_eq!([3 + empty.len(), 3 + full.len()], [UNIT.split(',').count(); 2]);
    }
}
