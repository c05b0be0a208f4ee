//! What happened per second between two pictures, from the totals of both.

use commonhold_contract::{MILLIONTH, Resource};
use commonhold_ledger::{Wait, WaitCause};
use commonhold_protocol::monitor::{MachineView, UnitView};

/// A unit's rates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rates {
    /// CPU time used, in millionths of a CPU.
    pub cpu_used: u64,
    /// Threads that waited for a CPU on average, in millionths of a thread.
    pub cpu_waiting: u64,
    /// The part of the time in which a process was stalled for memory, in millionths.
    pub memory_stalled: u64,
    /// The part of the time in which a process was stalled for a disk, in millionths.
    pub disk_stalled: u64,
    /// Bytes read from disks per second.
    pub read: u64,
    /// Bytes written to disks per second.
    pub written: u64,
    /// The waits that grew, by resource and then the largest first.
    pub waits: Vec<WaitRate>,
}

/// The rate of one cause of waiting. For CPUs it is a number of threads, for other resources a part of the
/// time; in millionths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitRate {
    /// The resource.
    pub resource: Resource,
    /// The cause.
    pub cause: WaitCause,
    /// The rate.
    pub rate: u64,
    /// The part of `rate` in which the unit had at least its entitlement.
    pub beyond: u64,
    /// The part of `rate` that is inferred and was not counted event by event.
    pub inferred: u64,
}

impl Rates {
    /// The rates over `elapsed_ns` nanoseconds. All are 0 if no time elapsed. A total that fell, as that of a
    /// unit that was removed and made again, has the rate 0.
    pub fn between(earlier: &UnitView, later: &UnitView, elapsed_ns: u64) -> Rates {
        let part = |before, after| per(before, after, elapsed_ns, MILLIONTH);
        let bytes = |before, after| per(before, after, elapsed_ns, 1_000_000_000);
        let (before, after) = (&earlier.totals, &later.totals);
        let mut waits: Vec<WaitRate> = later
            .waits
            .iter()
            .map(|wait| {
                let is_same = |other: &&Wait| other.resource == wait.resource && other.cause == wait.cause;
                let old = earlier.waits.iter().find(is_same);
                let rate = |of: fn(&Wait) -> u64| part(old.map_or(0, of), of(wait));
                WaitRate {
                    resource: wait.resource,
                    cause: wait.cause.clone(),
                    rate: rate(|wait| wait.ns),
                    beyond: rate(|wait| wait.beyond_ns),
                    inferred: rate(|wait| wait.inferred_ns),
                }
            })
            .filter(|wait| wait.rate > 0)
            .collect();
        waits.sort_by_key(|wait| (wait.resource, std::cmp::Reverse(wait.rate)));
        Rates {
            cpu_used: part(before.cpu_used_ns, after.cpu_used_ns),
            cpu_waiting: part(before.cpu_waited_ns, after.cpu_waited_ns),
            memory_stalled: part(before.memory_waited_ns, after.memory_waited_ns),
            disk_stalled: part(before.disk_waited_ns, after.disk_waited_ns),
            read: bytes(before.disk_read_bytes, after.disk_read_bytes),
            written: bytes(before.disk_written_bytes, after.disk_written_bytes),
            waits,
        }
    }

    /// The largest wait for a resource.
    pub fn worst(&self, resource: Resource) -> Option<&WaitRate> {
        self.waits.iter().find(|wait| wait.resource == resource)
    }
}

/// The machine's rates, in millionths of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MachineRates {
    /// CPUs that units used.
    pub used: u64,
    /// CPUs that the common parts used: kernel threads, and processes in no unit.
    pub common: u64,
    /// Idle CPUs.
    pub idle: u64,
    /// What the daemon used.
    pub daemon: u64,
}

impl MachineRates {
    /// The rates over `elapsed_ns` nanoseconds. All are 0 if no time elapsed.
    pub fn between(earlier: &MachineView, later: &MachineView, elapsed_ns: u64) -> MachineRates {
        let part = |before, after| per(before, after, elapsed_ns, MILLIONTH);
        MachineRates {
            used: part(earlier.used_ns, later.used_ns),
            common: part(earlier.common_ns, later.common_ns),
            idle: part(earlier.idle_ns, later.idle_ns),
            daemon: part(earlier.daemon.cpu_ns, later.daemon.cpu_ns),
        }
    }
}

/// The growth of a total per nanosecond, times `unit`, rounded down.
fn per(before: u64, after: u64, elapsed_ns: u64, unit: u64) -> u64 {
    let growth = u128::from(after.saturating_sub(before)) * u128::from(unit);
    growth.checked_div(u128::from(elapsed_ns)).map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use commonhold_protocol::monitor::UnitTotals;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn wait(unit: &str, ns: u64) -> Wait {
        let cause = WaitCause::Unit { unit: unit.to_owned() };
        Wait { resource: Resource::Cpu, cause, ns, beyond_ns: 0, inferred_ns: 0 }
    }

    #[test]
    fn totals_become_rates_and_waits_are_sorted() {
        let totals = |n: u64| UnitTotals { cpu_waited_ns: n, disk_read_bytes: n, ..UnitTotals::default() };
        let view = |totals, waits| UnitView { totals, waits, ..UnitView::default() };
        let earlier = view(totals(SECOND), vec![wait("a", SECOND)]);
        let later = view(totals(4 * SECOND), vec![wait("a", SECOND), wait("b", 1), wait("c", 3 * SECOND)]);
        let rates = Rates::between(&earlier, &later, 2 * SECOND);
        assert_eq!((rates.cpu_waiting, rates.read), (1_500_000, 3 * SECOND / 2));
        let waits: Vec<_> = rates.waits.iter().map(|wait| (&wait.cause, wait.rate)).collect();
        assert_eq!(waits, [(&WaitCause::Unit { unit: "c".to_owned() }, 1_500_000)]);
        assert_eq!(Rates::between(&later, &earlier, SECOND), Rates::default());
        assert_eq!(Rates::between(&earlier, &later, 0), Rates::default());
    }
}
