//! Changes of verdicts: each is reported once, in the daemon's log, and what is broken is a problem.
//!
//! A unit may flap between kept and broken, and a contract may have thousands of units. So verdicts are
//! compared at most once a second, and the lines of a minute are limited.

use std::collections::BTreeMap;

use commonhold_contract::Resource;
use commonhold_ledger::{Statement, Verdict};
use commonhold_policy::Time;
use commonhold_report::figures::duration;
use commonhold_report::findings;
use commonhold_report::table::clean;

/// The least time between two comparisons.
const INTERVAL_NS: Time = 1_000_000_000;

/// The most changes reported within [`MINUTE_NS`]; the number of further changes is reported at its end.
const LINES_MAX: usize = 20;
const MINUTE_NS: Time = 60_000_000_000;

/// The most broken verdicts that are listed as problems; the number of further ones is listed instead.
const PROBLEMS_MAX: usize = 20;

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Whether the contract is broken, so that the line is a complaint.
    pub(super) is_broken: bool,
    /// The line, without its newline.
    pub(super) line: String,
}

/// The verdicts that are broken, and the lines reported lately.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// When verdicts were last compared.
    compared: Option<Time>,
    /// The broken verdicts, with the times since which they are broken. A verdict that cannot be told at
    /// present stays broken until it is kept.
    broken: BTreeMap<(String, Resource), Time>,
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
    pub(super) fn compare(&mut self, now: Time, statement: &Statement) -> Vec<Change> {
        let mut changes = self.begin_minute(now);
        let before = std::mem::take(&mut self.broken);
        self.problems.clear();
        let mut broken_count = 0;
        for account in &statement.accounts {
            for finding in &account.findings {
                let key = (account.unit.clone(), finding.resource);
                let since = before.get(&key).copied();
                match (finding.verdict, since) {
                    (Verdict::Broken, _) => {
                        let problem = findings::problem(&account.unit, finding);
                        if since.is_none() {
                            self.report(&mut changes, true, problem.clone());
                        }
                        if broken_count < PROBLEMS_MAX {
                            self.problems.push(problem);
                        }
                        broken_count += 1;
                        self.broken.insert(key, since.unwrap_or(now));
                    }
                    (Verdict::Kept, Some(since)) => {
                        let (unit, resource) = (clean(&account.unit), finding.resource);
                        let lasted = duration(now.saturating_sub(since));
                        let prefix = findings::PROBLEM;
                        let line = format!("{prefix}{unit} {resource} is kept again, after {lasted}");
                        self.report(&mut changes, false, line);
                    }
                    (Verdict::CannotTell, Some(since)) => drop(self.broken.insert(key, since)),
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
    fn begin_minute(&mut self, now: Time) -> Vec<Change> {
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
                vec![Change { is_broken: false, line }]
            }
        }
    }

    /// Adds a change to those to report, unless this minute has enough.
    fn report(&mut self, changes: &mut Vec<Change>, is_broken: bool, line: String) {
        if self.lines < LINES_MAX {
            self.lines += 1;
            changes.push(Change { is_broken, line });
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

    fn lines(changes: &[Change]) -> Vec<&str> {
        changes.iter().map(|change| change.line.as_str()).collect()
    }

    #[test]
    fn each_change_is_reported_once() {
        use Verdict::{Broken, CannotTell, Kept};
        let mut verdicts = Verdicts::default();
        let mut at = |s: u64, verdict| verdicts.compare(s * S, &statement(&[("physics\x1b", verdict)]));
        assert_eq!(at(1, CannotTell), []);
        assert_eq!(at(2, Kept), []);
        let broken = at(3, Broken);
        assert_eq!(
            lines(&broken),
            [
                "verdict: physics\u{FFFD} cpu is broken: it is entitled to 0.72 CPUs, wanted 1.4 and had 0.13; kernel threads \
              or processes in no unit had the rest while it waited 2 s"
            ]
        );
        assert!(broken[0].is_broken);
        assert_eq!(at(4, Broken), []);
        assert_eq!(at(5, CannotTell), []);
        assert_eq!(at(6, Broken), [], "it was never kept");
        let kept = at(45, Kept);
        assert_eq!(lines(&kept), ["verdict: physics\u{FFFD} cpu is kept again, after 42.0 s"]);
        assert!(!kept[0].is_broken);
        assert_eq!(at(46, Kept), []);
        assert_eq!(at(47, Broken).len(), 1);
    }

    #[test]
    fn what_is_broken_is_a_problem_until_it_is_kept_or_gone() {
        let mut verdicts = Verdicts::default();
        verdicts.compare(S, &statement(&[("a", Verdict::Broken), ("b", Verdict::Broken)]));
        assert_eq!(verdicts.problems().len(), 2);
        verdicts.compare(2 * S, &statement(&[("a", Verdict::Kept)]));
        assert_eq!(verdicts.problems(), Vec::<String>::new());
        assert!(verdicts.broken.is_empty(), "nothing is kept of a unit that is gone");
    }

    #[test]
    fn a_flapping_unit_does_not_fill_the_log() {
        let mut verdicts = Verdicts::default();
        let mut changes = Vec::new();
        for s in 60..120 {
            let verdict = if s % 2 == 0 { Verdict::Broken } else { Verdict::Kept };
            changes.extend(verdicts.compare(s * S, &statement(&[("a", verdict)])));
        }
        assert_eq!(changes.len(), LINES_MAX);
        let next = verdicts.compare(120 * S, &statement(&[("a", Verdict::Kept)]));
        assert_eq!(lines(&next), ["verdict: 40 further changes in the last minute are not listed"]);
        let units: Vec<String> = (0..1_000).map(|n| format!("u{n}")).collect();
        let all: Vec<(&str, Verdict)> = units.iter().map(|unit| (unit.as_str(), Verdict::Broken)).collect();
        assert_eq!(verdicts.compare(121 * S, &statement(&all)).len(), LINES_MAX);
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
