//! The counters that the project's scheduler in the kernel keeps for each unit: tables for `status`, and
//! JSON.

use serde::{Deserialize, Serialize};

use crate::figures::{NOTHING, duration};
use crate::table::{Paint, Style, Table, clean};

/// The counters of one unit, without its sub-units, since the daemon started. Times in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UnitSwitches {
    /// The unit's path.
    pub unit: String,
    /// The times on all CPUs together.
    #[serde(flatten)]
    pub times: Times,
    /// The number of CPUs that the unit called back.
    pub called_back: u64,
    /// The median latency of call-backs; `None` without call-backs.
    pub call_back_p50_ns: Option<u64>,
    /// The 99th percentile of the latency of call-backs.
    pub call_back_p99_ns: Option<u64>,
    /// The maximal latency of call-backs.
    pub call_back_max_ns: Option<u64>,
    /// Migrations within a last-level cache.
    pub moved_cache: u64,
    /// Migrations to another cache of the same node.
    pub moved_node: u64,
    /// Migrations to another node.
    pub moved_far: u64,
    /// How often a stray waited: a task that queues on another unit's CPU, since its affinity allows no CPU
    /// of its own unit.
    pub strays: u64,
    /// The number of dispatches.
    pub switches: u64,
    /// Rescues: dispatches that pass over other tasks, since the task had waited for more than 5 s.
    pub rescues: u64,
    /// The counts of the unit's deadlines, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<Deadlines>,
    /// A histogram of call-backs by latency: the time from the call to the dispatch of the owner's first
    /// task. Classes without any call-back are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub call_backs: Vec<Latency>,
    /// The times by CPU, if requested; CPUs where all are 0 are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<CpuSwitches>,
}

/// Counts of a unit's deadlines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlines {
    /// Deadlines met.
    pub met: u64,
    /// Deadlines missed.
    pub missed: u64,
    /// Deadlines missed although no further miss was allowed in the window.
    pub violated: u64,
}

/// A class of the histogram.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Lower bound, inclusive, in microseconds.
    pub from_us: f64,
    /// Upper bound, exclusive; `None`: unlimited.
    pub below_us: Option<f64>,
    /// Number of call-backs.
    pub count: u64,
}

/// A unit's times on one CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuSwitches {
    /// The CPU's number.
    pub cpu: u32,
    /// The times on that CPU.
    #[serde(flatten)]
    pub times: Times,
}

/// A unit's CPU time by the owner of the CPU, and its waits by cause, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// CPU time of the unit's tasks on CPUs that its outermost enclosing unit owned.
    pub home_ns: u64,
    /// CPU time of the unit's tasks on CPUs that other units owned and lent.
    pub borrowed_ns: u64,
    /// CPU time of the unit's tasks as visits on CPUs that other units owned and did not lend.
    pub visiting_ns: u64,
    /// CPU time of the unit's tasks on CPUs without an owner.
    pub shared_ns: u64,
    /// CPU time of other units' tasks on CPUs that this unit owned and lent.
    pub lent_ns: u64,
    /// CPU time of other units' tasks as visits on CPUs that this unit owned.
    pub visited_ns: u64,
    /// Time that tasks waited behind tasks of the same unit or, on CPUs without an owner, behind any task.
    pub waited_own_ns: u64,
    /// Time that tasks waited for a lent CPU that was called back.
    pub waited_loan_ns: u64,
    /// Time that tasks waited while a real-time or deadline task occupied the CPU on which they waited, or
    /// the CPU on which they were dispatched in the end.
    pub waited_higher_ns: u64,
}

/// The counters as three tables: CPU time received and given; waits and call-backs; and migrations. If units
/// have deadlines, a fourth table has their counts.
pub fn text(units: &[UnitSwitches], style: Style) -> String {
    let mut had = Table::new(&["unit", "at home", "borrowed", "visiting", "shared", "lent", "visited"]);
    let mut waited = Table::new(&[
        "unit",
        "waited\nfor own",
        "waited\nfor loan",
        "waited\nhigher",
        "called\nback",
        "half\nwithin",
        "99 %\nwithin",
        "longest",
    ]);
    let mut moved =
        Table::new(&["unit", "moved in\ncache", "in\nnode", "farther", "strays", "switches", "rescues"]);
    let mut deadlines = Table::new(&["unit", "deadlines\nmet", "missed", "beyond what\nit bears"]);
    for unit in units {
        let row = |table: &mut Table, cells: Vec<String>| {
            table.row(Paint::Plain, [clean(&unit.unit)].into_iter().chain(cells).collect());
        };
        let Times { home_ns, borrowed_ns, visiting_ns, shared_ns, lent_ns, visited_ns, .. } = unit.times;
        let times = [home_ns, borrowed_ns, visiting_ns, shared_ns, lent_ns, visited_ns];
        row(&mut had, times.map(duration).into());
        let Times { waited_own_ns, waited_loan_ns, waited_higher_ns, .. } = unit.times;
        let waits = [waited_own_ns, waited_loan_ns, waited_higher_ns].map(duration);
        let latencies = [unit.call_back_p50_ns, unit.call_back_p99_ns, unit.call_back_max_ns];
        let latencies = latencies.map(|ns| ns.map_or(NOTHING.to_owned(), duration));
        row(&mut waited, waits.into_iter().chain([unit.called_back.to_string()]).chain(latencies).collect());
        let counts =
            [unit.moved_cache, unit.moved_node, unit.moved_far, unit.strays, unit.switches, unit.rescues];
        row(&mut moved, counts.map(|count| count.to_string()).into());
        if let Some(Deadlines { met, missed, violated }) = unit.deadlines {
            row(&mut deadlines, [met, missed, violated].map(|count| count.to_string()).into());
        }
    }
    let any = units.iter().any(|unit| unit.deadlines.is_some());
    let tables = [Some(had), Some(waited), Some(moved), any.then_some(deadlines)];
    tables.into_iter().flatten().map(|table| table.render(style)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_its_column() {
        let light = UnitSwitches {
            unit: "light".into(),
            times: Times {
                home_ns: 1_500_000_000,
                borrowed_ns: 20_000_000,
                lent_ns: 3_000_000_000,
                visited_ns: 70_000_000,
                waited_own_ns: 4_000_000,
                waited_loan_ns: 120_000,
                ..Times::default()
            },
            called_back: 311,
            call_back_p50_ns: Some(16_384),
            call_back_p99_ns: Some(131_072),
            call_back_max_ns: Some(402_113),
            moved_cache: 12,
            moved_node: 3,
            moved_far: 1,
            strays: 7,
            switches: 4_711,
            deadlines: Some(Deadlines { met: 5_000, missed: 120, violated: 3 }),
            ..UnitSwitches::default()
        };
        let idle = UnitSwitches { unit: "physics/night".into(), ..UnitSwitches::default() };
        insta::assert_snapshot!(text(&[light, idle], Style::PLAIN));
    }
}
