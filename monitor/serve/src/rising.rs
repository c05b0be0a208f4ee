//! Keeps totals from decreasing within one run of the daemon.
//!
//! Prometheus takes a counter that decreases for one that restarted at 0, and adds its whole value to every
//! rate. A total could decrease by little, since the daemon divides waiting time among causes anew in each
//! turn, and since accounts of a sub-unit that is gone leave those of its parent.

use std::collections::BTreeMap;

use commonhold_ledger::Wait;
use commonhold_protocol::monitor::{CallBackView, MachineView, MonitorReply, UnitTotals, UnitView};

/// Raises each total of `new` to its value in `old`, an earlier picture of the same run.
pub(crate) fn raise(new: &mut MonitorReply, old: &MonitorReply) {
    if let (Some(new), Some(old)) = (&mut new.machine, &old.machine) {
        raise_machine(new, old);
    }
    let before: BTreeMap<&str, &UnitView> = old.units.iter().map(|unit| (unit.unit.as_str(), unit)).collect();
    for unit in &mut new.units {
        let Some(before) = before.get(unit.unit.as_str()) else { continue };
        raise_totals(&mut unit.totals, &before.totals);
        raise_waits(&mut unit.waits, &before.waits);
        for (resource, call_backs) in &mut unit.call_backs {
            if let Some(before) = before.call_backs.get(resource) {
                raise_call_backs(call_backs, before);
            }
        }
    }
}

fn raise_machine(new: &mut MachineView, old: &MachineView) {
    at_least(&mut new.used_ns, old.used_ns);
    at_least(&mut new.common_ns, old.common_ns);
    at_least(&mut new.idle_ns, old.idle_ns);
    at_least(&mut new.daemon.turns, old.daemon.turns);
    at_least(&mut new.daemon.cpu_ns, old.daemon.cpu_ns);
}

fn raise_totals(new: &mut UnitTotals, old: &UnitTotals) {
    at_least(&mut new.cpu_used_ns, old.cpu_used_ns);
    at_least(&mut new.cpu_lent_ns, old.cpu_lent_ns);
    at_least(&mut new.cpu_borrowed_ns, old.cpu_borrowed_ns);
    at_least(&mut new.cpu_waited_ns, old.cpu_waited_ns);
    at_least(&mut new.memory_waited_ns, old.memory_waited_ns);
    at_least(&mut new.disk_waited_ns, old.disk_waited_ns);
    at_least(&mut new.disk_read_bytes, old.disk_read_bytes);
    at_least(&mut new.disk_written_bytes, old.disk_written_bytes);
}

fn raise_waits(new: &mut [Wait], old: &[Wait]) {
    let before: BTreeMap<_, u64> = old.iter().map(|wait| ((wait.resource, &wait.cause), wait.ns)).collect();
    for wait in new {
        at_least(&mut wait.ns, before.get(&(wait.resource, &wait.cause)).copied().unwrap_or(0));
    }
}

fn raise_call_backs(new: &mut CallBackView, old: &CallBackView) {
    at_least(&mut new.count, old.count);
    for (bound, count) in &mut new.classes {
        if let Ok(index) = old.classes.binary_search_by_key(bound, |(bound, _)| *bound) {
            at_least(count, old.classes[index].1);
        }
    }
}

fn at_least(new: &mut u64, old: u64) {
    *new = (*new).max(old);
}

#[cfg(test)]
mod tests {
    use crate::picture::sample;

    use super::*;

    #[test]
    fn no_total_decreases_within_a_run() {
        let old = sample();
        let mut new = old.clone();
        let unit = &mut new.units[0];
        unit.totals.cpu_used_ns -= 1;
        unit.totals.cpu_lent_ns += 5;
        unit.waits[0].ns = 0;
        let call_backs = unit.call_backs.values_mut().next().unwrap();
        call_backs.count = 0;
        call_backs.classes[0].1 = 0;
        new.machine.as_mut().unwrap().used_ns = 0;
        raise(&mut new, &old);
        let mut expected = old.clone();
        expected.units[0].totals.cpu_lent_ns += 5;
        assert_eq!(new, expected);
    }
}
