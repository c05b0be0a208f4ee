//! Verdicts, and causes of waiting, in words.

use std::collections::BTreeSet;

use commonhold_contract::Resource;
use commonhold_ledger::{Account, Finding, FindingReason, Statement, Verdict, WINDOW_NS, WaitCause};

use crate::figures::{self, bytes, cpus, rate};
use crate::table::clean;

/// The state of the whole machine: the worst verdict of all units and resources. Without any verdict it is
/// [`Verdict::CannotTell`].
pub fn overall(statement: &Statement) -> Verdict {
    of_all(statement).map(|(_, finding)| finding.verdict).max().unwrap_or(Verdict::CannotTell)
}

/// All verdicts with their units' accounts, in the order of the statement.
fn of_all(statement: &Statement) -> impl Iterator<Item = (&Account, &Finding)> {
    statement.accounts.iter().flat_map(|account| account.findings.iter().map(move |it| (account, it)))
}

/// The verdicts that are not [`Verdict::Kept`], each with its unit's path: the broken ones first.
pub fn not_kept(statement: &Statement) -> Vec<(&str, &Finding)> {
    let mut found: Vec<(&str, &Finding)> = of_all(statement)
        .filter(|(_, finding)| finding.verdict != Verdict::Kept)
        .map(|(account, finding)| (account.unit.as_str(), finding))
        .collect();
    // The sort is stable, so units stay in the order of the statement.
    found.sort_by_key(|(_, finding)| std::cmp::Reverse(finding.verdict));
    found
}

/// The verdicts on the whole machine in one line: `Every unit has what it is entitled to.`
pub fn heading(statement: &Statement) -> String {
    let count = |verdict| of_all(statement).filter(|(_, finding)| finding.verdict == verdict).count();
    let (all, broken, unclear) =
        (of_all(statement).count(), count(Verdict::Broken), count(Verdict::CannotTell));
    let is = |n| if n == 1 { "is" } else { "are" };
    let reasons: BTreeSet<&str> = of_all(statement).filter_map(|(_, finding)| in_brief(finding)).collect();
    let reasons = reasons.into_iter().collect::<Vec<_>>().join("; ");
    match (all, broken, unclear) {
        (0, ..) => format!("Too early to tell: {TOO_EARLY}."),
        (_, 0, 0) => "Every unit has what it is entitled to.".to_owned(),
        (_, 0, _) if unclear == all && reasons == TOO_EARLY => format!("Too early to tell: {reasons}."),
        (_, 0, _) if unclear == all => format!("Cannot tell: {reasons}."),
        (_, 0, _) => {
            format!("No verdict is broken; {unclear} of {all} cannot be given: {reasons}.")
        }
        (_, _, 0) => format!("{broken} of {all} verdicts {} broken.", is(broken)),
        _ => {
            format!("{broken} of {all} verdicts {} broken; {unclear} cannot be given: {reasons}.", is(broken))
        }
    }
}

const TOO_EARLY: &str = "a verdict needs 10 s of accounts";

/// The reason why there is no verdict, in a few words; `None` if there is one.
fn in_brief(finding: &Finding) -> Option<&'static str> {
    Some(match (&finding.reason, finding.resource) {
        (FindingReason::TooEarly, _) => TOO_EARLY,
        (FindingReason::NotHeld, Resource::Cpu) => "cpu is not held here",
        (FindingReason::NotHeld, Resource::Memory) => "memory is not held here",
        (FindingReason::NotHeld, Resource::Disk) => "disks are not held here",
        (FindingReason::NotHeld, Resource::Bus) => "the bus is not held here",
        (FindingReason::NoWaits, _) => "the kernel does not report how long threads wait",
        (FindingReason::UnknownCause, _) => "most waits have an unknown cause",
        _ => return None,
    })
}

/// A verdict with its unit and resource: `physics cpu: broken. It is entitled to 0.72 CPUs, ...`
pub fn line(unit: &str, finding: &Finding) -> String {
    let verdict = word(finding.verdict);
    format!("{} {}: {verdict}. {}", clean(unit), finding.resource, sentence(finding))
}

/// With what a broken verdict begins in the list of the daemon's problems, and a change of verdict in its
/// log.
pub const PROBLEM: &str = "verdict: ";

/// A broken verdict as a problem: `verdict: physics cpu is broken: it is entitled to 0.72 CPUs, ...`
pub fn problem(unit: &str, finding: &Finding) -> String {
    let sentence = sentence(finding);
    let mut rest = sentence.trim_end_matches('.').chars();
    let first: String = rest.next().map(|c| c.to_lowercase().collect()).unwrap_or_default();
    let (unit, resource) = (clean(unit), finding.resource);
    format!("{PROBLEM}{unit} {resource} is {}: {first}{}", word(finding.verdict), rest.as_str())
}

/// A verdict in one or two words: `broken`.
pub fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Kept => "kept",
        Verdict::CannotTell => "cannot tell",
        Verdict::Broken => "broken",
    }
}

/// A verdict in a sentence. The subject `It` is the unit; the resource is named only by its unit of measure:
/// `It is entitled to 0.72 CPUs, wanted 1.4 and had 0.13; students had the rest while it waited 9.4 s.`
pub fn sentence(finding: &Finding) -> String {
    let Finding { resource, entitled, wanted, had, .. } = *finding;
    let measured = |amount| measured(resource, amount);
    // With CPUs, the noun is written once.
    let bare = |amount| match resource {
        Resource::Cpu => hundredths(amount),
        _ => measured(amount),
    };
    match &finding.reason {
        FindingReason::HadWanted if had == 0 && wanted == 0 => "It wanted nothing.".to_owned(),
        FindingReason::HadWanted => {
            format!("It had the {} that it wanted; it is entitled to {}.", measured(had), bare(entitled))
        }
        FindingReason::HadEntitlement => {
            format!(
                "It had {}, and is entitled to {}; it wanted {}.",
                measured(had),
                bare(entitled),
                bare(wanted)
            )
        }
        FindingReason::OwnDoing { by } => {
            let why = match by {
                WaitCause::Limit => "it is at its own limit, or at that of a unit around it",
                WaitCause::Own => "its own threads and requests were ahead of each other",
                other => &format!("{} kept it from more", cause(other)),
            };
            format!("It had {} of the {} that it wanted: {why}.", bare(had), measured(wanted))
        }
        FindingReason::Short { by, waited_ns } => {
            let waited = match *waited_ns {
                0 => String::new(),
                ns => format!(" while it waited {}", duration(ns)),
            };
            format!(
                "It is entitled to {}, wanted {} and had {}; {}{waited}.",
                measured(entitled),
                bare(wanted),
                bare(had),
                kept_from_it(by, resource)
            )
        }
        FindingReason::Late { promised_ns, took_ns, count } => {
            let (took, promised) = (duration(*took_ns), duration(*promised_ns));
            match count {
                0 | 1 => format!("A call-back took {took}; {promised} are promised."),
                _ => format!(
                    "{count} call-backs took longer than the promised {promised}, the longest {took}."
                ),
            }
        }
        FindingReason::TooEarly => {
            format!("The accounts are younger than the {} that a verdict is about.", duration(WINDOW_NS))
        }
        FindingReason::NotHeld if finding.verdict == Verdict::Broken => format!(
            "It is entitled to {}, wanted {} and had {}; nothing holds {} on this machine.",
            measured(entitled),
            bare(wanted),
            bare(had),
            noun(resource)
        ),
        FindingReason::NotHeld => format!("Nothing holds {} on this machine.", noun(resource)),
        FindingReason::NoWaits => "The kernel does not report how long its threads waited.".to_owned(),
        FindingReason::UnknownCause => format!(
            "It is entitled to {}, wanted {} and had {}; most of its waits have an unknown cause.",
            measured(entitled),
            bare(wanted),
            bare(had)
        ),
    }
}

/// What to do about a verdict, in a sentence; empty if nothing is to be done.
pub fn remedy(finding: &Finding) -> String {
    use Resource::{Bus, Cpu, Disk, Memory};
    let resource = finding.resource;
    match &finding.reason {
        FindingReason::OwnDoing { by: WaitCause::Limit } => {
            format!("To let it use more, raise `limit.{resource}`.")
        }
        FindingReason::HadWanted
        | FindingReason::HadEntitlement
        | FindingReason::OwnDoing { .. }
        | FindingReason::TooEarly
        | FindingReason::UnknownCause => String::new(),
        FindingReason::Short { by, .. } => short(resource, by),
        FindingReason::Late { .. } => match resource {
            Cpu => "Run the kernel backend, if another one is in use: it returns CPUs at the next switch. Or set \
                    `lend.cpu = false` for this unit; or promise more time with `call-back`."
                .to_owned(),
            Memory => "Give the machine faster or compressed swap (zram); or set `lend.memory = false` for this unit; or \
                       promise more time with `call-back-memory`."
                .to_owned(),
            Disk | Bus => format!("Set `lend.{resource} = false` for this unit, so that nothing has to be called back."),
        },
        FindingReason::NotHeld => "`commonhold doctor` shows what is missing.".to_owned(),
        FindingReason::NoWaits => "Boot a kernel built with CONFIG_SCHED_INFO=y and CONFIG_PSI=y.".to_owned(),
    }
}

/// What to do if a unit has too little of a resource because of `by`.
fn short(resource: Resource, by: &WaitCause) -> String {
    use Resource::{Bus, Cpu, Disk, Memory};
    match (by, resource) {
        (WaitCause::Unit { unit }, Cpu) => format!(
            "If the user backend is in use, run the kernel or cgroup backend, which divide CPUs more finely; else bound {} with \
             `limit.cpu`.",
            clean(unit)
        ),
        (WaitCause::Unit { unit }, Disk) => format!(
            "Measure the disk with `commonhold calibrate`, so that weights take effect on it; or bound {} with `limit.disk`.",
            clean(unit)
        ),
        (WaitCause::Unit { unit }, Memory | Bus) => format!("Bound {} with `limit.{resource}`.", clean(unit)),
        (WaitCause::OtherUnits, _) => {
            "`commonhold why` with the unit's name shows what it waited for; many units had a little each.".to_owned()
        }
        (WaitCause::CallBack { .. }, Cpu) => {
            "Run the kernel backend, if another one is in use: it returns CPUs at the next switch. Or set \
                    `lend.cpu = false` for this unit.".to_owned()
        }
        (WaitCause::CallBack { .. }, Memory) => {
            "Give the machine faster or compressed swap (zram); or set `lend.memory = false` for this unit.".to_owned()
        }
        (WaitCause::CallBack { .. }, Disk | Bus) => format!("Set `lend.{resource} = false` for this unit."),
        (WaitCause::Common, Cpu) => {
            "Processes in no unit took the CPU: put them in a unit, or run the kernel or cgroup backend, which holds them \
             back."
            .to_owned()
        }
        (WaitCause::Common, _) => {
            format!("Put the processes in no unit that use {} in a unit, and bound it with `limit.{resource}`.", noun(resource))
        }
        (WaitCause::HigherClass, _) => {
            "Real-time tasks run before all units: give them an ordinary policy (`chrt --other --pid 0 PID`), or bound them with \
             sysctl kernel.sched_rt_runtime_us."
                .to_owned()
        }
        (WaitCause::Limit, _) => format!("Raise `limit.{resource}` of the unit, or of the units around it."),
        (WaitCause::Own, Cpu) => {
            "Its threads share too few CPUs: widen their affinity, if they are bound to some (`taskset`).".to_owned()
        }
        (WaitCause::Switch, Cpu) => {
            "CPUs were idle while its threads waited: widen their affinity, if they are bound to some (`taskset`); or run the \
             kernel backend, which decides at every switch."
                .to_owned()
        }
        (WaitCause::Gate, _) => {
            "Give the unit more `tickets.bus`, or set `gangs = \"off\"` in [machine].".to_owned()
        }
        (WaitCause::Own | WaitCause::Switch | WaitCause::Unknown, _) => {
            "`commonhold why` with the unit's name shows what it waited for.".to_owned()
        }
    }
}

/// What had the part that a unit is entitled to, as a clause.
fn kept_from_it(by: &WaitCause, resource: Resource) -> String {
    match (by, resource) {
        (WaitCause::Own, _) => "its own threads and requests were ahead of each other".to_owned(),
        (WaitCause::Unit { unit }, _) => format!("{} had the rest", clean(unit)),
        (WaitCause::OtherUnits, _) => "many other units had the rest".to_owned(),
        (WaitCause::CallBack { unit }, _) => format!("{} had not yet returned its loan", clean(unit)),
        (WaitCause::Limit, _) => "its own limit, or that of a unit around it, held it back".to_owned(),
        (WaitCause::Common, Resource::Cpu) => {
            "kernel threads or processes in no unit had the rest".to_owned()
        }
        (WaitCause::Common, _) => "the kernel or processes in no unit had the rest".to_owned(),
        (WaitCause::HigherClass, _) => "real-time tasks had the rest".to_owned(),
        (WaitCause::Switch, _) => "CPUs were idle or switching".to_owned(),
        (WaitCause::Gate, _) => "its gang was not in its turn".to_owned(),
        (WaitCause::Unknown, _) => "an unknown cause held it back".to_owned(),
    }
}

/// A cause of waiting, as a noun phrase: `students`, `its own limit`.
pub fn cause(cause: &WaitCause) -> String {
    match cause {
        WaitCause::Own => "its own threads and requests".to_owned(),
        WaitCause::Unit { unit } => clean(unit),
        WaitCause::OtherUnits => "further units".to_owned(),
        WaitCause::CallBack { unit } => format!("a call-back from {}", clean(unit)),
        WaitCause::Limit => "its own limit".to_owned(),
        WaitCause::Common => "the kernel, or processes in no unit".to_owned(),
        WaitCause::HigherClass => "real-time tasks".to_owned(),
        WaitCause::Switch => "switching".to_owned(),
        WaitCause::Gate => "its gang's turn".to_owned(),
        WaitCause::Unknown => "an unknown cause".to_owned(),
    }
}

/// A resource as a noun.
fn noun(resource: Resource) -> &'static str {
    match resource {
        Resource::Cpu => "CPUs",
        Resource::Memory => "memory",
        Resource::Disk => "disks",
        Resource::Bus => "the memory bus",
    }
}

/// An amount of a resource with its unit of measure: `0.72 CPUs`, `2 GiB`, `100 MB/s`.
fn measured(resource: Resource, amount: u64) -> String {
    match resource {
        Resource::Cpu => match hundredths(amount) {
            one if one == "1" => "1 CPU".to_owned(),
            number => format!("{number} CPUs"),
        },
        Resource::Memory => bytes(amount),
        Resource::Disk | Resource::Bus => rate(amount),
    }
}

/// Millionths of a CPU as a number of CPUs of at most two decimals.
fn hundredths(micro: u64) -> String {
    cpus(micro.saturating_add(5_000) / 10_000 * 10_000)
}

/// A time as [`figures::duration`] writes it, without a decimal of 0: `94 s`.
fn duration(ns: u64) -> String {
    figures::duration(ns).replace(".0 ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn unit() -> String {
        "students\x1b[2J".to_owned()
    }

    fn causes() -> Vec<WaitCause> {
        vec![
            WaitCause::Own,
            WaitCause::Unit { unit: unit() },
            WaitCause::OtherUnits,
            WaitCause::CallBack { unit: unit() },
            WaitCause::Limit,
            WaitCause::Common,
            WaitCause::HigherClass,
            WaitCause::Switch,
            WaitCause::Gate,
            WaitCause::Unknown,
        ]
    }

    /// A finding with amounts that are plausible for the resource.
    fn finding(resource: Resource, verdict: Verdict, reason: FindingReason) -> Finding {
        let [entitled, wanted, had] = match resource {
            Resource::Cpu => [720_000, 1_400_400, 133_000],
            Resource::Memory => [2 << 30, 3 << 30, 512 << 20],
            Resource::Disk | Resource::Bus => [100_000_000, 140_000_000, 20_000_000],
        };
        Finding { resource, verdict, reason, entitled, wanted, had }
    }

    fn reasons() -> Vec<(Verdict, FindingReason)> {
        let own =
            [WaitCause::Limit, WaitCause::Own, WaitCause::Gate].map(|by| FindingReason::OwnDoing { by });
        let kept = [FindingReason::HadWanted, FindingReason::HadEntitlement].into_iter().chain(own);
        let short = causes().into_iter().map(|by| FindingReason::Short { by, waited_ns: 94 * S });
        let late =
            [1, 3].map(|count| FindingReason::Late { promised_ns: S / 100, took_ns: 596_000_000, count });
        let unclear = [
            FindingReason::TooEarly,
            FindingReason::NotHeld,
            FindingReason::NoWaits,
            FindingReason::UnknownCause,
        ];
        let of = |verdict| move |reason| (verdict, reason);
        kept.map(of(Verdict::Kept))
            .chain(short.chain(late).chain([FindingReason::NotHeld]).map(of(Verdict::Broken)))
            .chain(unclear.map(of(Verdict::CannotTell)))
            .collect()
    }

    /// Every reason for every resource, with its remedy.
    #[test]
    fn every_finding_has_a_sentence() {
        let mut text = String::new();
        for resource in Resource::ALL {
            for (verdict, reason) in reasons() {
                let finding = finding(resource, verdict, reason);
                text += &format!("{}\n", line("physics", &finding));
                match remedy(&finding) {
                    remedy if remedy.is_empty() => {}
                    remedy => text += &format!("    {remedy}\n"),
                }
            }
            text.push('\n');
        }
        for it in causes() {
            text += &format!("{}\n", cause(&it));
        }
        assert!(!text.contains('\x1b'), "names are escaped");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn whole_amounts_have_no_decimals_and_no_plural() {
        let reason = FindingReason::OwnDoing { by: WaitCause::Limit };
        let finding = Finding { had: 2_000_000, ..finding(Resource::Cpu, Verdict::Kept, reason) };
        assert!(sentence(&finding).starts_with("It had 2 of the 1.4 CPUs that it wanted"));
        let wanted = Finding { had: 1_000_000, reason: FindingReason::HadWanted, ..finding.clone() };
        assert_eq!(sentence(&wanted), "It had the 1 CPU that it wanted; it is entitled to 0.72.");
        let nothing = Finding { had: 0, wanted: 0, ..wanted };
        assert_eq!(sentence(&nothing), "It wanted nothing.");
        let most = Finding { entitled: u64::MAX, wanted: u64::MAX, had: u64::MAX, ..nothing };
        assert!(!sentence(&most).is_empty());
    }

    fn statement(of: &[(&str, Vec<Finding>)]) -> Statement {
        let account = |(unit, findings): &(&str, Vec<Finding>)| Account {
            unit: (*unit).to_owned(),
            findings: findings.clone(),
            ..Account::default()
        };
        Statement { accounts: of.iter().map(account).collect(), ..Statement::default() }
    }

    #[test]
    fn the_heading_counts() {
        let cpu = |verdict, reason| finding(Resource::Cpu, verdict, reason);
        let kept = cpu(Verdict::Kept, FindingReason::HadWanted);
        let short = FindingReason::Short { by: WaitCause::Common, waited_ns: 1 };
        let broken = cpu(Verdict::Broken, short);
        let early = cpu(Verdict::CannotTell, FindingReason::TooEarly);
        let not_held = finding(Resource::Bus, Verdict::CannotTell, FindingReason::NotHeld);
        let said = |findings: &[&Finding]| {
            let findings: Vec<Finding> = findings.iter().map(|it| (*it).clone()).collect();
            let statement = statement(&[("a", findings.clone()), ("b", findings)]);
            (heading(&statement), overall(&statement))
        };
        for (findings, text, verdict) in [
            (vec![], "Too early to tell: a verdict needs 10 s of accounts.", Verdict::CannotTell),
            (vec![&early], "Too early to tell: a verdict needs 10 s of accounts.", Verdict::CannotTell),
            (vec![&kept], "Every unit has what it is entitled to.", Verdict::Kept),
            (vec![&not_held], "Cannot tell: the bus is not held here.", Verdict::CannotTell),
            (
                vec![&kept, &not_held],
                "No verdict is broken; 2 of 4 cannot be given: the bus is not held here.",
                Verdict::CannotTell,
            ),
            (vec![&kept, &broken], "2 of 4 verdicts are broken.", Verdict::Broken),
            (
                vec![&broken, &early, &not_held],
                "2 of 6 verdicts are broken; 4 cannot be given: a verdict needs 10 s of accounts; the bus is not held \
                 here.",
                Verdict::Broken,
            ),
        ] {
            assert_eq!(said(&findings), (text.to_owned(), verdict));
        }
        let one = statement(&[("a", vec![broken.clone()]), ("b", vec![kept, early.clone()])]);
        assert!(heading(&one).starts_with("1 of 3 verdicts is broken; 1 cannot"), "{}", heading(&one));
        let of = statement(&[("a", vec![early.clone()]), ("b", vec![broken.clone()])]);
        assert_eq!(not_kept(&of), [("b", &broken), ("a", &early)]);
    }
}
