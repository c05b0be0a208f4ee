//! Changes of verdicts: each is reported once, in the daemon's log, and what is broken is a problem.
//!
//! A unit may flap between kept and broken, and a contract may have thousands of units. So verdicts are
//! compared at most once a second, a verdict is reported as kept again only after it was for
//! [`HYSTERESIS_NS`], and the lines of a minute are limited.

use std::collections::BTreeMap;

use commonhold_contract::Resource;
use commonhold_ledger::{Statement, Verdict};
use commonhold_policy::Time;
use commonhold_report::figures::duration;
use commonhold_report::findings;
use commonhold_report::table::clean;

/// The least time between two comparisons.
const INTERVAL_NS: Time = 1_000_000_000;

/// How long a verdict must have been kept before the log says so.
const HYSTERESIS_NS: Time = 10_000_000_000;

/// The most changes reported within [`MINUTE_NS`]; the number of further changes is reported at its end.
const LINES_MAX: usize = 20;
const MINUTE_NS: Time = 60_000_000_000;

/// The most broken verdicts that are listed as problems; the number of further ones is listed instead.
const PROBLEMS_MAX: usize = 20;

/// A verdict that was reported as broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Broken {
    since: Time,
    /// Since when it has been kept, without a break; `None`: it is broken now.
    kept_since: Option<Time>,
}

/// The verdicts that are broken, and the lines reported lately.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// When verdicts were last compared.
    compared: Option<Time>,
    /// The verdicts that were reported as broken, and not yet as kept again. A verdict that cannot be told at
    /// present counts as what it was before.
    broken: BTreeMap<(String, Resource), Broken>,
    /// The broken verdicts in words.
    problems: Vec<String>,
    /// When the present minute began.
    minute: Time,
    /// The number of lines reported in this minute.
    lines: usize,
    /// The number of changes in this minute that were not reported.
    suppressed: usize,
}

impl Verdicts {
    /// Whether verdicts are to be compared now. If so, the next comparison is due [`INTERVAL_NS`] later.
    pub(super) fn are_due(&mut self, now: Time) -> bool {
        let is_due = self.compared.is_none_or(|at| now >= at.saturating_add(INTERVAL_NS));
        if is_due {
            self.compared = Some(now);
        }
        is_due
    }

    /// Compares the verdicts of a statement with those before, and returns the changes to report.
    pub(super) fn compare(&mut self, now: Time, statement: &Statement) -> Vec<String> {
        let mut changes = self.begin_minute(now);
        let before = std::mem::take(&mut self.broken);
        self.problems.clear();
        let mut broken_count = 0;
        for account in &statement.accounts {
            for finding in &account.findings {
                let key = (account.unit.clone(), finding.resource);
                let was = before.get(&key).copied();
                match (finding.verdict, was) {
                    (Verdict::Broken, _) => {
                        let problem = findings::problem(&account.unit, finding);
                        if was.is_none() {
                            self.report(&mut changes, problem.clone());
                        }
                        if broken_count < PROBLEMS_MAX {
                            self.problems.push(problem);
                        }
                        broken_count += 1;
                        let since = was.map_or(now, |was| was.since);
                        self.broken.insert(key, Broken { since, kept_since: None });
                    }
                    (Verdict::Kept, Some(was)) => {
                        let kept_since = was.kept_since.unwrap_or(now);
                        if now < kept_since.saturating_add(HYSTERESIS_NS) {
                            self.broken.insert(key, Broken { kept_since: Some(kept_since), ..was });
                            continue;
                        }
                        let (unit, resource) = (clean(&account.unit), finding.resource);
                        let lasted = duration(kept_since.saturating_sub(was.since));
                        let prefix = findings::PROBLEM;
                        let line = format!("{prefix}{unit} {resource} is kept again, after {lasted}");
                        self.report(&mut changes, line);
                    }
                    (Verdict::CannotTell, Some(was)) => drop(self.broken.insert(key, was)),
                    (Verdict::Kept | Verdict::CannotTell, None) => {}
                }
            }
        }
        if broken_count > PROBLEMS_MAX {
            let more = broken_count - PROBLEMS_MAX;
            self.problems.push(format!("{}{more} more are broken: see `status --check`", findings::PROBLEM));
        }
        changes
    }

    /// The broken verdicts in words, at most [`PROBLEMS_MAX`] and a line with the number of further ones.
    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Begins another minute, if the present one has ended. Returns the number of its suppressed changes in
    /// words, if there are any.
    fn begin_minute(&mut self, now: Time) -> Vec<String> {
        if now < self.minute.saturating_add(MINUTE_NS) {
            return Vec::new();
        }
        self.minute = now;
        self.lines = 0;
        match std::mem::take(&mut self.suppressed) {
            0 => Vec::new(),
            n => {
                let line =
                    format!("{}{n} further changes in the last minute are not listed", findings::PROBLEM);
                vec![line]
            }
        }
    }

    /// Adds a change to those to report, unless this minute has enough.
    fn report(&mut self, changes: &mut Vec<String>, line: String) {
        if self.lines < LINES_MAX {
            self.lines += 1;
            changes.push(line);
        } else {
            self.suppressed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use commonhold_ledger::{Account, Finding, FindingReason, WaitCause};

    use super::*;

    const S: Time = 1_000_000_000;

    fn statement(verdicts: &[(&str, Verdict)]) -> Statement {
        let account = |(unit, verdict): &(&str, Verdict)| {
            let reason = match verdict {
                Verdict::Kept => FindingReason::HadWanted,
                Verdict::CannotTell => FindingReason::UnknownCause,
                Verdict::Broken => FindingReason::Short { by: WaitCause::Common, waited_ns: 2 * S },
            };
            let finding = Finding {
                resource: Resource::Cpu,
                verdict: *verdict,
                reason,
                entitled: 720_000,
                wanted: 1_400_000,
                had: 130_000,
            };
            Account { unit: (*unit).to_owned(), findings: vec![finding], ..Account::default() }
        };
        Statement { accounts: verdicts.iter().map(account).collect(), ..Statement::default() }
    }

    #[test]
    fn each_change_is_reported_once() {
        use Verdict::{Broken, CannotTell, Kept};
        let mut verdicts = Verdicts::default();
        let mut at = |s: u64, verdict| verdicts.compare(s * S, &statement(&[("physics\x1b", verdict)]));
        assert_eq!(at(1, CannotTell), Vec::<String>::new());
        assert_eq!(at(2, Kept), Vec::<String>::new());
        let broken = at(3, Broken);
        assert_eq!(
            broken,
            [
                "verdict: physics\u{FFFD} cpu is broken: it is entitled to 0.72 CPUs, wanted 1.4 and had 0.13; kernel threads \
              or processes in no unit had the rest while it waited 2 s"
            ]
        );
        assert_eq!(at(4, Broken), Vec::<String>::new());
        assert_eq!(at(5, CannotTell), Vec::<String>::new());
        assert_eq!(at(6, Broken), Vec::<String>::new(), "it was never kept");
        assert_eq!(at(45, Kept), Vec::<String>::new());
        assert_eq!(at(54, Kept), Vec::<String>::new());
        let kept = at(55, Kept);
        assert_eq!(kept, ["verdict: physics\u{FFFD} cpu is kept again, after 42.0 s"]);
        assert_eq!(at(56, Kept), Vec::<String>::new());
        assert_eq!(at(57, Broken).len(), 1);
        assert_eq!(at(58, Kept), Vec::<String>::new());
        assert_eq!(at(59, Broken), Vec::<String>::new(), "a second does not make it kept again");
    }

    #[test]
    fn what_is_broken_is_a_problem_until_it_is_kept_or_gone() {
        let mut verdicts = Verdicts::default();
        verdicts.compare(S, &statement(&[("a", Verdict::Broken), ("b", Verdict::Broken)]));
        assert_eq!(verdicts.problems().len(), 2);
        verdicts.compare(2 * S, &statement(&[("a", Verdict::Kept)]));
        assert_eq!(verdicts.problems(), Vec::<String>::new());
        assert!(
            verdicts.broken.keys().all(|(unit, _)| unit == "a"),
            "nothing is kept of a unit that is gone"
        );
    }

    #[test]
    fn a_flapping_unit_does_not_fill_the_log() {
        let mut verdicts = Verdicts::default();
        let mut changes = Vec::new();
        for s in 60..120 {
            let verdict = if s % 2 == 0 { Verdict::Broken } else { Verdict::Kept };
            changes.extend(verdicts.compare(s * S, &statement(&[("a", verdict)])));
        }
        assert_eq!(changes.len(), 1);
        let units: Vec<String> = (0..1_000).map(|n| format!("u{n}")).collect();
        let all: Vec<(&str, Verdict)> = units.iter().map(|unit| (unit.as_str(), Verdict::Broken)).collect();
        assert_eq!(verdicts.compare(120 * S, &statement(&all)).len(), LINES_MAX);
        let next = verdicts.compare(180 * S, &statement(&all));
        assert_eq!(next, ["verdict: 980 further changes in the last minute are not listed"]);
        assert_eq!(verdicts.problems().len(), PROBLEMS_MAX + 1);
        assert_eq!(verdicts.problems()[PROBLEMS_MAX], "verdict: 980 more are broken: see `status --check`");
    }

    #[test]
    fn verdicts_are_compared_once_a_second() {
        let mut verdicts = Verdicts::default();
        let due: Vec<bool> = [S, S + 1, 2 * S - 1, 2 * S, S].map(|now| verdicts.are_due(now)).into();
        assert_eq!(due, [true, false, false, true, false]);
    }
}
