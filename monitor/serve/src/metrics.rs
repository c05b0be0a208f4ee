//! The metrics: families, and their samples from a picture. docs/metrics.md lists them.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::Resource;
use commonhold_ledger::{Verdict, WaitCause};
use commonhold_protocol::monitor::{CallBackView, Gauge, MachineView, UnitView};

use crate::exposition::{Exposition, Family, Format, Kind, Value};
use crate::picture::Published;

macro_rules! families {
    ($($constant:ident: $kind:ident $name:literal $unit:literal $help:literal;)*) => {
        $(const $constant: Family = Family { name: $name, kind: Kind::$kind, unit: $unit, help: $help };)*
        /// All families, in the order of the exposition.
        #[cfg(test)]
        const ALL: &[Family] = &[$($constant),*];
    };
}

families! {
    UP: Gauge "commonhold_up" "" "Whether the daemon is reached: 1 or 0.";
    INFO: Info "commonhold" "" "The backend, scheme and contract in force, and the version of commonhold serve.";
    START: Gauge "commonhold_start_time_seconds" "seconds"
        "When the daemon opened its accounts, since 1970. All counters began at 0 then.";
    CPUS: Gauge "commonhold_cpus" "cpus" "CPUs of the machine.";
    CPU_SECONDS: Counter "commonhold_cpu_seconds" "seconds"
        "CPU time of the machine: used by units, by the common parts, or idle.";
    MEMORY: Gauge "commonhold_memory_bytes" "bytes"
        "Memory of the machine: divided among units, used by the kernel, and by processes in no unit.";
    PROMISE: Gauge "commonhold_call_back_promise_seconds" "seconds" "The promised time of a call-back.";
    PROBLEMS: Gauge "commonhold_problems" "" "Problems that the daemon reports.";
    TURNS: Counter "commonhold_daemon_turns" "" "Turns of the daemon's loop.";
    GAP: Gauge "commonhold_daemon_longest_gap_seconds" "seconds"
        "The longest time between the starts of two turns of the daemon's loop.";
    DAEMON_CPU: Counter "commonhold_daemon_cpu_seconds" "seconds" "CPU time that the daemon used.";
    PROCESSES: Gauge "commonhold_unit_processes" "" "Member processes, sub-units excluded.";
    VERDICT: Gauge "commonhold_unit_verdict" ""
        "Whether the contract was kept in the last ten seconds: 1 kept, 0 broken; missing if it cannot be told.";
    CPU: Counter "commonhold_unit_cpu_seconds" "seconds" "CPU time used.";
    CPU_LENT: Counter "commonhold_unit_cpu_lent_seconds" "seconds" "CPU time of its CPUs that others used.";
    CPU_BORROWED: Counter "commonhold_unit_cpu_borrowed_seconds" "seconds"
        "Time for which it had CPUs of others on loan.";
    CPU_PRESSURE: Counter "commonhold_unit_pressure_cpu_waiting_seconds" "seconds"
        "Time that its threads were runnable without a CPU, summed over threads.";
    MEMORY_PRESSURE: Counter "commonhold_unit_pressure_memory_waiting_seconds" "seconds"
        "Time that at least one of its processes was stalled for memory.";
    IO_PRESSURE: Counter "commonhold_unit_pressure_io_waiting_seconds" "seconds"
        "Time that at least one of its processes was stalled for a disk.";
    WAITING: Counter "commonhold_unit_waiting_seconds" "seconds"
        "Waiting time by resource, cause, and the unit that caused it. All causes of a resource sum to its waiting time.";
    DISK_READ: Counter "commonhold_unit_disk_read_bytes" "bytes" "Bytes read from disks.";
    DISK_WRITTEN: Counter "commonhold_unit_disk_written_bytes" "bytes" "Bytes written to disks.";
    MEMORY_USED: Gauge "commonhold_unit_memory_bytes" "bytes" "Memory in use.";
    BUS_USED: Gauge "commonhold_unit_bus_bytes_per_second" "bytes_per_second" "Transfers on the memory bus.";
    CPU_ENTITLED: Gauge "commonhold_unit_entitlement_cpus" "cpus" "CPUs that it is entitled to now.";
    CPU_LENDS: Gauge "commonhold_unit_lent_cpus" "cpus" "CPUs that it lends now.";
    CPU_BORROWS: Gauge "commonhold_unit_borrowed_cpus" "cpus" "CPUs that it borrows now.";
    MEMORY_ENTITLED: Gauge "commonhold_unit_entitlement_memory_bytes" "bytes"
        "Memory that it is entitled to now.";
    MEMORY_LENDS: Gauge "commonhold_unit_lent_memory_bytes" "bytes" "Memory that it lends now.";
    MEMORY_BORROWS: Gauge "commonhold_unit_borrowed_memory_bytes" "bytes" "Memory that it borrows now.";
    DISK_ENTITLED: Gauge "commonhold_unit_entitlement_disk_bytes_per_second" "bytes_per_second"
        "Transfers of all disks that it is entitled to now.";
    DISK_LENDS: Gauge "commonhold_unit_lent_disk_bytes_per_second" "bytes_per_second"
        "Disk transfers that it lends now.";
    DISK_BORROWS: Gauge "commonhold_unit_borrowed_disk_bytes_per_second" "bytes_per_second"
        "Disk transfers that it borrows now.";
    BUS_ENTITLED: Gauge "commonhold_unit_entitlement_bus_bytes_per_second" "bytes_per_second"
        "Transfers on the memory bus that it is entitled to now.";
    CALL_BACK: Histogram "commonhold_unit_call_back_seconds" "seconds"
        "How long it waited for what it had lent and called back.";
}

/// The upper bounds of call-back times, in nanoseconds. The promised time is added to them, so that the
/// number of late call-backs is exact.
const BOUNDS: [u64; 13] = [
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// The metrics of what is published. Without the daemon, only [`UP`] has a sample, since other values would
/// be those of an unknown past.
pub(crate) fn exposition(published: &Published, format: Format) -> String {
    let mut out = Exposition::new(format);
    let picture = published.picture.as_ref().filter(|_| published.lost.is_none());
    out.family(&UP);
    out.sample(&[], Value::Count(u64::from(picture.is_some())));
    if let Some(picture) = picture {
        if let Some(machine) = &picture.machine {
            write_machine(&mut out, machine, published.opened_ms, &picture.units);
        }
        write_units(&mut out, &picture.units);
    }
    out.finish()
}

fn write_machine(out: &mut Exposition, machine: &MachineView, opened_ms: u64, units: &[UnitView]) {
    let mut single = |family: &Family, labels: &[(&'static str, &str)], value| {
        out.family(family);
        out.sample(labels, value);
    };
    let info = [
        ("backend", machine.backend.as_str()),
        ("scheme", &machine.scheme),
        ("contract", &machine.contract),
        ("version", env!("CARGO_PKG_VERSION")),
    ];
    single(&INFO, &info, Value::Count(1));
    single(&START, &[], Value::Ms(opened_ms));
    single(&CPUS, &[], Value::Count(u64::from(machine.cpus)));
    out.family(&CPU_SECONDS);
    for (state, ns) in [("used", machine.used_ns), ("common", machine.common_ns), ("idle", machine.idle_ns)] {
        out.sample(&[("state", state)], Value::Ns(ns));
    }
    if let Some(memory) = machine.memory {
        out.family(&MEMORY);
        for (part, bytes) in [("units", memory.divided), ("kernel", memory.kernel), ("shared", memory.shared)]
        {
            out.sample(&[("part", part)], Value::Count(bytes));
        }
    }
    out.family(&PROMISE);
    for (resource, ns) in promises(machine, units) {
        out.sample(&[("resource", resource.name())], Value::Ns(ns));
    }
    let mut single = |family: &Family, value| {
        out.family(family);
        out.sample(&[], value);
    };
    single(&PROBLEMS, Value::Count(machine.problems.len() as u64));
    single(&TURNS, Value::Count(machine.daemon.turns));
    single(&GAP, Value::Ns(machine.daemon.longest_gap_ns));
    single(&DAEMON_CPU, Value::Ns(machine.daemon.cpu_ns));
}

/// The promised time of a call-back, by resource. Units' promises for a resource are equal.
fn promises(machine: &MachineView, units: &[UnitView]) -> BTreeMap<Resource, u64> {
    let of_unit = |(resource, view): (&Resource, &CallBackView)| Some((*resource, view.promised_ns?));
    let of_units = units.iter().flat_map(|unit| &unit.call_backs).filter_map(of_unit);
    of_units.chain([(Resource::Cpu, machine.call_back_promised_ns)]).collect()
}

fn write_units(out: &mut Exposition, units: &[UnitView]) {
    type Of = fn(&UnitView) -> Option<Value>;
    let single: [(&Family, Of); 21] = [
        (&PROCESSES, |unit| Some(Value::Count(u64::from(unit.processes)))),
        (&CPU, |unit| Some(Value::Ns(unit.totals.cpu_used_ns))),
        (&CPU_LENT, |unit| Some(Value::Ns(unit.totals.cpu_lent_ns))),
        (&CPU_BORROWED, |unit| Some(Value::Ns(unit.totals.cpu_borrowed_ns))),
        (&CPU_PRESSURE, |unit| Some(Value::Ns(unit.totals.cpu_waited_ns))),
        (&MEMORY_PRESSURE, |unit| Some(Value::Ns(unit.totals.memory_waited_ns))),
        (&IO_PRESSURE, |unit| Some(Value::Ns(unit.totals.disk_waited_ns))),
        (&DISK_READ, |unit| Some(Value::Count(unit.totals.disk_read_bytes))),
        (&DISK_WRITTEN, |unit| Some(Value::Count(unit.totals.disk_written_bytes))),
        (&MEMORY_USED, |unit| amount(unit.memory, |gauge| gauge.using)),
        (&BUS_USED, |unit| amount(unit.bus, |gauge| gauge.using)),
        (&CPU_ENTITLED, |unit| Some(Value::Micro(unit.cpu.entitled))),
        (&CPU_LENDS, |unit| Some(Value::Micro(unit.cpu.lent))),
        (&CPU_BORROWS, |unit| Some(Value::Micro(unit.cpu.borrowed))),
        (&MEMORY_ENTITLED, |unit| amount(unit.memory, |gauge| gauge.entitled)),
        (&MEMORY_LENDS, |unit| amount(unit.memory, |gauge| gauge.lent)),
        (&MEMORY_BORROWS, |unit| amount(unit.memory, |gauge| gauge.borrowed)),
        (&DISK_ENTITLED, |unit| amount(unit.disk, |gauge| gauge.entitled)),
        (&DISK_LENDS, |unit| amount(unit.disk, |gauge| gauge.lent)),
        (&DISK_BORROWS, |unit| amount(unit.disk, |gauge| gauge.borrowed)),
        (&BUS_ENTITLED, |unit| amount(unit.bus, |gauge| gauge.entitled)),
    ];
    for (family, of) in single {
        out.family(family);
        for unit in units {
            if let Some(value) = of(unit) {
                out.sample(&[("unit", &unit.unit)], value);
            }
        }
    }
    write_verdicts(out, units);
    write_waits(out, units);
    out.family(&CALL_BACK);
    for unit in units {
        for (resource, view) in &unit.call_backs {
            // Without classes, only the longest call-back is known.
            if view.count == 0 || !view.classes.is_empty() {
                let labels = [("unit", unit.unit.as_str()), ("resource", resource.name())];
                out.histogram(&labels, &buckets(view), view.count);
            }
        }
    }
}

fn write_verdicts(out: &mut Exposition, units: &[UnitView]) {
    out.family(&VERDICT);
    for unit in units {
        for finding in &unit.findings {
            let kept = match finding.verdict {
                Verdict::Kept => 1,
                Verdict::Broken => 0,
                Verdict::CannotTell => continue,
            };
            let labels = [("unit", unit.unit.as_str()), ("resource", finding.resource.name())];
            out.sample(&labels, Value::Count(kept));
        }
    }
}

fn write_waits(out: &mut Exposition, units: &[UnitView]) {
    out.family(&WAITING);
    for unit in units {
        for wait in &unit.waits {
            let (cause, culprit) = cause(&wait.cause);
            let labels = [
                ("unit", unit.unit.as_str()),
                ("resource", wait.resource.name()),
                ("cause", cause),
                ("culprit", culprit),
            ];
            out.sample(&labels, Value::Ns(wait.ns));
        }
    }
}

/// An amount of a controlled resource, in its measure.
fn amount(gauge: Option<Gauge>, of: fn(Gauge) -> u64) -> Option<Value> {
    gauge.map(|gauge| Value::Count(of(gauge)))
}

/// A cause's name, and the unit that caused the wait; empty if none did.
fn cause(cause: &WaitCause) -> (&'static str, &str) {
    match cause {
        WaitCause::Own => ("own", ""),
        WaitCause::Unit { unit } => ("unit", unit),
        WaitCause::OtherUnits => ("other-units", ""),
        WaitCause::CallBack { unit } => ("call-back", unit),
        WaitCause::Limit => ("limit", ""),
        WaitCause::Common => ("common", ""),
        WaitCause::HigherClass => ("higher-class", ""),
        WaitCause::Switch => ("switch", ""),
        WaitCause::Gate => ("gate", ""),
        WaitCause::Unknown => ("unknown", ""),
    }
}

/// The cumulative numbers of call-backs up to each of [`BOUNDS`], and up to the promised time. A class that
/// reaches beyond a bound counts above it.
fn buckets(view: &CallBackView) -> Vec<(u64, u64)> {
    let bounds: BTreeSet<u64> = BOUNDS.into_iter().chain(view.promised_ns).collect();
    let up_to = |bound: u64| {
        let below = view.classes.iter().take_while(|(upper, _)| *upper <= bound);
        below.map(|(_, count)| *count).sum()
    };
    bounds.into_iter().map(|bound| (bound, up_to(bound))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use commonhold_ledger::Wait;
    use commonhold_protocol::monitor::MonitorReply;
    use proptest::prelude::*;

    use crate::picture::sample;

    use super::*;

    fn published(picture: MonitorReply) -> Published {
        Published::default().with_picture(Arc::new(picture), 1_790_000_000_500)
    }

    /// One line of an exposition.
    #[derive(Debug, PartialEq)]
    struct Line {
        name: String,
        labels: Vec<(String, String)>,
        value: f64,
    }

    fn name_of(text: &str) -> Option<(&str, &str)> {
        let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
        (end > 0).then(|| text.split_at(end))
    }

    /// Parses a line as the formats define it; `None` if it is malformed.
    fn parse(line: &str) -> Option<Line> {
        let (name, mut rest) = name_of(line)?;
        let mut labels = Vec::new();
        if let Some(mut inner) = rest.strip_prefix('{') {
            loop {
                let (label, after) = name_of(inner)?;
                let mut chars = after.strip_prefix("=\"")?.chars();
                let mut value = String::new();
                loop {
                    match chars.next()? {
                        '"' => break,
                        '\\' => value.push(match chars.next()? {
                            'n' => '\n',
                            c @ ('\\' | '"') => c,
                            _ => return None,
                        }),
                        c => value.push(c),
                    }
                }
                labels.push((label.to_owned(), value));
                inner = chars.as_str();
                match inner.strip_prefix(',') {
                    Some(more) => inner = more,
                    None => break,
                }
            }
            rest = inner.strip_prefix('}')?;
        }
        let value = rest.strip_prefix(' ')?.parse().ok()?;
        Some(Line { name: name.to_owned(), labels, value })
    }

    #[test]
    fn golden() {
        insta::assert_snapshot!("text", exposition(&published(sample()), Format::Text));
        insta::assert_snapshot!("openmetrics", exposition(&published(sample()), Format::OpenMetrics));
        let lost = published(sample()).without_daemon("gone".to_owned());
        insta::assert_snapshot!("lost", exposition(&lost, Format::OpenMetrics));
    }

    #[test]
    fn every_family_is_documented_and_written_once() {
        let page = include_str!("../../../docs/metrics.md");
        let text = exposition(&published(sample()), Format::OpenMetrics);
        for family in ALL {
            let name = family.queried_name();
            assert!(page.contains(&format!("| `{name}` |")), "docs/metrics.md lacks {name}");
            assert!(page.contains(family.help.trim_end_matches('.')), "docs/metrics.md differs on {name}");
            assert!(family.unit.is_empty() || family.name.ends_with(family.unit), "{name}");
            assert_eq!(text.matches(&format!("# TYPE {} ", family.name)).count(), 1, "{name}");
        }
        assert_eq!(text.matches("# TYPE ").count(), ALL.len());
    }

    #[test]
    fn call_backs_up_to_the_promise_are_counted_apart() {
        let view = CallBackView {
            count: 10,
            promised_ns: Some(8_000_000),
            classes: vec![(900_000, 1), (8_000_000, 2), (9_000_000, 3), (20_000_000_000, 1)],
            ..CallBackView::default()
        };
        let buckets = buckets(&view);
        let up_to = |ns| buckets.iter().find(|(bound, _)| *bound == ns).map(|(_, count)| *count);
        assert_eq!(up_to(1_000_000), Some(1));
        assert_eq!(up_to(8_000_000), Some(3));
        assert_eq!(up_to(10_000_000), Some(6));
        assert_eq!(up_to(10_000_000_000), Some(6));
        assert_eq!(buckets.len(), BOUNDS.len() + 1);
    }

    proptest! {
        #[test]
        fn any_name_gives_lines_that_parse(unit in any::<String>(), culprit in any::<String>()) {
            let mut picture = sample();
            let view = &mut picture.units[0];
            view.unit.clone_from(&unit);
            view.waits = vec![Wait {
                resource: Resource::Cpu,
                cause: WaitCause::Unit { unit: culprit.clone() },
                ns: 1_500_000_000,
                beyond_ns: 0,
                inferred_ns: 0,
            }];
            for format in [Format::Text, Format::OpenMetrics] {
                let text = exposition(&published(picture.clone()), format);
                let lines: Vec<Line> = text
                    .split_terminator('\n')
                    .filter(|line| !line.starts_with("# "))
                    .map(|line| parse(line).unwrap_or_else(|| panic!("{line:?}")))
                    .collect();
                let label = |name: &str, value: &str| (name.to_owned(), value.replace('\0', "\u{fffd}"));
                let expected = Line {
                    name: WAITING.queried_name(),
                    labels: vec![
                        label("unit", &unit), label("resource", "cpu"), label("cause", "unit"),
                        label("culprit", &culprit),
                    ],
                    value: 1.5,
                };
                prop_assert!(lines.contains(&expected), "{text}");
            }
        }
    }
}
