//! The figures of each unit over a stretch of time, taken alike from a recording and from a run.

use std::collections::BTreeMap;

use commonhold_ledger::Account;
use commonhold_recording::{CallBacks, UnitSample, Wait};
use commonhold_sim::Latencies;
use commonhold_sim::Time;
use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::SECTOR;

/// The figures of all units that had tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// The length of the stretch of time, in ns.
    pub length_ns: Time,
    /// The units, by path.
    pub units: Vec<UnitFigures>,
}

/// The figures of a unit. They are of its own tasks, without sub-units, but for its waits by cause and its
/// verdicts.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitFigures {
    /// Its path.
    pub unit: String,
    /// CPU time, in ns.
    pub used_ns: Time,
    /// Its part of the CPU time of all units.
    pub share: f64,
    /// How long its tasks were runnable without a CPU, in ns.
    pub waited_ns: Time,
    /// The number of its tasks' sleeps.
    pub sleeps: u64,
    /// Whether wake-ups were observed one by one, so that `wakes` and `responses` are known.
    pub has_wakes: bool,
    /// The waits for a CPU after wake-ups.
    pub wakes: Latencies,
    /// The times from a wake-up until the task slept again or ended.
    pub responses: Latencies,
    /// Bytes that its tasks transferred, and waited for.
    pub transferred: u64,
    /// The mean of its processes' own memory, in bytes: all but pages of files. `None` if it was not
    /// measured.
    pub memory: Option<u64>,
    /// Call-backs of CPUs.
    pub called_back: u64,
    /// The lengths of call-backs: the classes of the scheduler, each with the time below which its lengths
    /// are, in ns, and their number. Empty if they are not counted one by one.
    pub call_back_classes: BTreeMap<Time, u64>,
    /// The longest call-back, in ns.
    pub call_back_max_ns: Time,
    /// Its waits: the resource and the cause in words, and the time in ns.
    pub waits: BTreeMap<(String, String), Time>,
    /// The verdict on each resource, of the last seconds.
    pub verdicts: Vec<(String, String)>,
}

impl Figures {
    /// The figures of units over a stretch of time, with each unit's share of their sum.
    pub fn new(length_ns: Time, mut units: Vec<UnitFigures>) -> Figures {
        let all = units.iter().fold(0, |sum: Time, unit| sum.saturating_add(unit.used_ns));
        for unit in &mut units {
            unit.share = ratio(unit.used_ns, all);
        }
        Figures { length_ns, units }
    }

    /// The figures of a run.
    pub fn of_run(outcome: &Outcome) -> Figures {
        let mut units: BTreeMap<&str, UnitFigures> = BTreeMap::new();
        for job in outcome.jobs.iter().filter(|job| job.name != crate::scenario::LENGTH) {
            let unit = units.entry(&job.unit).or_insert_with(|| UnitFigures::of(&job.unit));
            unit.used_ns += job.spent.on_cpus_ns();
            unit.waited_ns += job.spent.waited_ns;
        }
        // Tasks in no unit.
        units.remove("shared");
        for outcome_of_unit in &outcome.units {
            let Some(unit) = units.get_mut(outcome_of_unit.name.as_str()) else { continue };
            unit.has_wakes = true;
            unit.wakes.clone_from(&outcome_of_unit.wakes);
            unit.responses.clone_from(&outcome_of_unit.responses);
            unit.sleeps = unit.wakes.count();
            unit.called_back = outcome_of_unit.called_back;
            unit.call_back_classes = outcome_of_unit.call_backs.iter().copied().collect();
            unit.call_back_max_ns = outcome_of_unit.call_back_max_ns;
            let disks = outcome.disks.iter().flat_map(|disk| &disk.units);
            unit.transferred = disks
                .filter(|disk| disk.unit == outcome_of_unit.name)
                .map(|disk| disk.sectors * SECTOR)
                .sum();
        }
        for account in &outcome.ledger.accounts {
            let Some(unit) = units.get_mut(account.unit.as_str()) else { continue };
            unit.memory = own_memory(&outcome.ledger.accounts, account);
            for wait in &account.waits {
                let cause = serde_word(&wait.cause);
                *unit.waits.entry((wait.resource.name().to_owned(), cause)).or_default() += wait.ns;
            }
            unit.verdicts = account
                .findings
                .iter()
                .map(|finding| (finding.resource.name().to_owned(), serde_word(&finding.verdict)))
                .collect();
        }
        Figures::new(outcome.ended_ns, units.into_values().collect())
    }

    /// The figures of a unit.
    pub fn unit(&self, path: &str) -> Option<&UnitFigures> {
        self.units.iter().find(|unit| unit.unit == path)
    }
}

impl UnitFigures {
    /// The figures of a unit that did nothing.
    pub fn of(path: &str) -> UnitFigures {
        UnitFigures {
            unit: path.to_owned(),
            used_ns: 0,
            share: 0.0,
            waited_ns: 0,
            sleeps: 0,
            has_wakes: false,
            wakes: Latencies::default(),
            responses: Latencies::default(),
            transferred: 0,
            memory: None,
            called_back: 0,
            call_back_classes: BTreeMap::new(),
            call_back_max_ns: 0,
            waits: BTreeMap::new(),
            verdicts: Vec::new(),
        }
    }

    /// How much longer its tasks took than on CPUs of their own: CPU time and waits, divided by CPU time. 1
    /// without CPU time.
    pub fn slowdown(&self) -> f64 {
        if self.used_ns == 0 { 1.0 } else { ratio(self.used_ns + self.waited_ns, self.used_ns) }
    }

    /// The mean response, in ns; `None` if responses were not observed.
    pub fn response_ns(&self) -> Option<f64> {
        (self.has_wakes && self.responses.count() > 0)
            .then(|| ratio(self.responses.sum_ns(), self.responses.count()))
    }

    /// The 99th percentile of waits after wake-ups, in ns; `None` if wake-ups were not observed.
    pub fn wake_p99_ns(&self) -> Option<Time> {
        self.wakes.quantile_ns(990).filter(|_| self.has_wakes)
    }

    /// The 99th percentile of call-backs, in ns; `None` if they were not counted one by one.
    pub fn call_back_p99_ns(&self) -> Option<f64> {
        p99(&self.call_back_classes, self.call_back_max_ns)
    }

    /// Adds what the daemon's accounts say between two samples. The sums of a daemon that started in between
    /// begin at 0.
    pub fn account(&mut self, before: &UnitSample, after: &UnitSample) {
        let CallBacks { count, classes, max_ns, .. } = &after.call_backs;
        self.called_back += increase(before.call_backs.count, *count);
        self.call_back_max_ns = self.call_back_max_ns.max(*max_ns);
        let classes_before: BTreeMap<Time, u64> = before.call_backs.classes.iter().copied().collect();
        for (below_ns, count) in classes {
            let before = classes_before.get(below_ns).copied().unwrap_or(0);
            *self.call_back_classes.entry(*below_ns).or_default() += increase(before, *count);
        }
        let key = |wait: &Wait| (wait.resource.clone(), named(&wait.cause, wait.unit.as_deref()));
        let waits_before: BTreeMap<_, _> = before.waits.iter().map(|wait| (key(wait), wait.ns)).collect();
        for wait in &after.waits {
            let before = waits_before.get(&key(wait)).copied().unwrap_or(0);
            let sum = self.waits.entry(key(wait)).or_default();
            *sum = sum.saturating_add(increase(before, wait.ns));
        }
        self.verdicts.clone_from(&after.verdicts);
    }
}

/// The increase of a sum. A sum that is smaller than before is of a daemon that started meanwhile.
fn increase(before: u64, after: u64) -> u64 {
    after.checked_sub(before).unwrap_or(after)
}

/// The mean of a unit's memory, without its sub-units, in bytes; `None` if memory is not simulated.
fn own_memory(accounts: &[Account], of: &Account) -> Option<u64> {
    let used = |account: &Account| Some(account.memory.as_ref()?.used_mean);
    let is_child = |path: &str| {
        path.strip_prefix(&of.unit)
            .and_then(|rest| rest.strip_prefix('/'))
            .is_some_and(|rest| !rest.contains('/'))
    };
    let children = accounts.iter().filter(|account| is_child(&account.unit));
    Some(used(of)?.saturating_sub(children.filter_map(used).sum()))
}

/// The 99th percentile of a histogram, in ns, interpolated within its class. The classes are those of the
/// scheduler, which double. `None` without latencies.
fn p99(classes: &BTreeMap<Time, u64>, max_ns: Time) -> Option<f64> {
    let count = classes.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
    let rank = (count * 99).div_ceil(100);
    let mut before = 0;
    for (below_ns, in_class) in classes {
        if before + in_class >= rank && *in_class > 0 {
            let (lower, upper) = ((below_ns / 2).min(max_ns), (*below_ns).min(max_ns));
            let part = ratio(rank - before, *in_class);
            return Some(float(lower) + part * float(upper - lower));
        }
        before += in_class;
    }
    None
}

/// A cause in words, with the unit that it names: `unit heavy`.
fn named(cause: &str, unit: Option<&str>) -> String {
    unit.map_or_else(|| cause.to_owned(), |unit| format!("{cause} {unit}"))
}

/// A value of the ledger as the daemon's protocol names it, with the unit of a cause.
fn serde_word(value: &impl serde::Serialize) -> String {
    match toml::Value::try_from(value) {
        Ok(toml::Value::String(word)) => word,
        Ok(toml::Value::Table(table)) => {
            let text = |key: &str| table.get(key).and_then(toml::Value::as_str);
            named(text("cause").unwrap_or_default(), text("unit"))
        }
        _ => String::new(),
    }
}

/// A quotient; 0 if the divisor is 0.
pub(crate) fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { float(a) / float(b) }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "figures for people; times stay below 2^53 ns, a hundred days"
)]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_interpolated() {
        let close = |a: Option<f64>, b: f64| (a.unwrap_or(-1.0) - b).abs() < 1.0;
        // 100 call-backs: the 99th is the ninth of ten in the class from 2,048 to 4,096 ns.
        assert!(close(p99(&[(2_048, 90), (4_096, 10)].into(), 4_000), 2_048.0 + 0.9 * 1_952.0));
        assert!(close(p99(&[(2_048, 1)].into(), 1_500), 1_500.0));
        assert_eq!(p99(&BTreeMap::new(), 0), None);
        assert_eq!(p99(&[(2_048, 0)].into(), 0), None);
    }
}
