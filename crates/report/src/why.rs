//! Why a unit was slow: its waiting time by cause, in sentences, as a table and as JSON.

use commonhold_contract::Resource;
use commonhold_ledger::{Wait, WaitCause};
use serde::Serialize;

use crate::figures::{duration, percent_text};
use crate::table::{Paint, Style, Table, clean, wrap};

/// A unit's waiting time over a period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// The unit's path.
    pub unit: String,
    /// The process or job that was asked about, if it was not the unit itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// The length of the period, in nanoseconds.
    pub period_ns: u64,
    /// The part of the period for which there are records.
    pub recorded_ns: u64,
    /// CPU time that the unit was entitled to in the recorded time, in nanoseconds.
    pub entitled_ns: u64,
    /// CPU time that it used.
    pub used_ns: u64,
    /// The waits, by resource and then by falling time.
    pub waits: Vec<Wait>,
}

/// What was asked about, in the unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asked {
    /// A process.
    Process {
        /// Its number.
        pid: u32,
        /// The time for which its threads waited for a CPU since it started, in nanoseconds; `None` if the
        /// kernel does not report it.
        #[serde(skip_serializing_if = "Option::is_none")]
        waited_ns: Option<u64>,
    },
    /// A job.
    Job {
        /// Its name.
        name: String,
    },
}

/// The share of waiting below which a cause is left out of the sentences, in percent.
const MENTIONED_PERCENT: u64 = 5;

/// Sentences, and a table below them.
pub fn text(explained: &Explained, style: Style) -> String {
    let mut text = String::new();
    for paragraph in sentences(explained) {
        text += &wrap(&paragraph, style.width, "", "").join("\n");
        text += "\n";
    }
    if !explained.waits.is_empty() {
        text += "\n";
        text += &table(explained).render(style);
        if explained.waits.iter().any(|wait| wait.inferred_ns > 0) {
            let mut note =
                "Inferred times are divided in proportion to what each had of the resource in the same second."
                    .to_owned();
            if explained.waits.iter().any(|wait| wait.inferred_ns < wait.ns) {
                note += " Other times were counted at every switch of a CPU.";
            }
            text += &format!("\n{}\n", wrap(&note, style.width, "", "").join("\n"));
        }
    }
    text
}

/// The whole as JSON.
pub fn json(explained: &Explained) -> String {
    crate::json("commonhold.why", explained)
}

fn table(explained: &Explained) -> Table {
    let mut table = Table::new(&["waited for", "time", "%", "beyond\nits part", "inferred"]);
    for resource in Resource::ALL {
        let waits = || explained.waits.iter().filter(move |wait| wait.resource == resource);
        let total: u64 = waits().map(|wait| wait.ns).sum();
        if total == 0 {
            continue;
        }
        table.row(
            Paint::Strong,
            vec![resource.name().to_owned(), duration(total), "100".to_owned(), String::new(), String::new()],
        );
        for wait in waits() {
            let part = |ns: u64| if ns == 0 { String::new() } else { duration(ns) };
            table.row(
                Paint::Plain,
                vec![
                    format!("  {}", phrase(wait)),
                    duration(wait.ns),
                    percent_text(wait.ns, total),
                    part(wait.beyond_ns),
                    part(wait.inferred_ns),
                ],
            );
        }
    }
    table
}

/// A wait's cause as a noun phrase: `CPUs that students had`.
pub fn phrase(wait: &Wait) -> String {
    let what = noun(wait.resource);
    match (&wait.cause, wait.resource) {
        (WaitCause::Own, Resource::Memory) => "its own page faults".to_owned(),
        (WaitCause::Own, Resource::Disk) => "its own requests".to_owned(),
        (WaitCause::Own, _) => format!("{what} that its own threads had"),
        (WaitCause::Unit { unit }, Resource::Disk) => format!("requests of {}", clean(unit)),
        (WaitCause::Unit { unit }, _) => format!("{what} that {} had", clean(unit)),
        (WaitCause::OtherUnits, _) => format!("{what} that further units had"),
        (WaitCause::CallBack { unit }, _) => format!("{what} called back from {}", clean(unit)),
        (WaitCause::Limit, _) => "its own limit".to_owned(),
        (WaitCause::Common, Resource::Disk) => {
            "requests of the kernel and of processes in no unit".to_owned()
        }
        (WaitCause::Common, _) => format!("{what} that the kernel and processes in no unit had"),
        (WaitCause::HigherClass, _) => "CPUs that real-time tasks had".to_owned(),
        (WaitCause::Switch, _) => "a wake-up or a switch".to_owned(),
        (WaitCause::Gate, _) => "the turn of its gang".to_owned(),
        (WaitCause::Unknown, _) => "an unknown cause".to_owned(),
    }
}

fn noun(resource: Resource) -> &'static str {
    match resource {
        Resource::Cpu => "CPUs",
        Resource::Memory => "memory",
        Resource::Disk => "the disk",
        Resource::Bus => "the memory bus",
    }
}

fn sentences(explained: &Explained) -> Vec<String> {
    let Explained { unit, asked, period_ns, recorded_ns, entitled_ns, used_ns, waits } = explained;
    let unit = clean(unit);
    let mut sentences = Vec::new();
    match asked {
        Some(Asked::Process { pid, waited_ns }) => {
            let own = waited_ns.map_or_else(String::new, |ns| {
                format!(" Its own threads have waited {} for a CPU since it started.", duration(ns))
            });
            sentences.push(format!("Process {pid} is in unit {unit}, and shares its part.{own}"));
        }
        Some(Asked::Job { name }) => {
            sentences.push(format!("Job {} is in unit {unit}, and shares its part.", clean(name)));
        }
        None => {}
    }
    if *recorded_ns == 0 {
        sentences.push(format!("Nothing was recorded in the last {}.", duration(*period_ns)));
        return sentences;
    }
    if recorded_ns.saturating_mul(100) < period_ns.saturating_mul(95) {
        sentences.push(format!(
            "Only {} of the last {} were recorded.",
            duration(*recorded_ns),
            duration(*period_ns)
        ));
    }
    if waits.iter().all(|wait| wait.ns == 0) {
        sentences.push(format!("{unit} waited for nothing in {}.", duration(*recorded_ns)));
        return sentences;
    }
    for resource in Resource::ALL {
        let of_resource: Vec<&Wait> = waits.iter().filter(|wait| wait.resource == resource).collect();
        let total: u64 = of_resource.iter().map(|wait| wait.ns).sum();
        // Less than a thousandth of the time is no reason for slowness.
        if total < recorded_ns / 1_000 {
            continue;
        }
        let mentioned =
            |wait: &&&Wait| wait.ns.saturating_mul(100) >= total.saturating_mul(MENTIONED_PERCENT);
        let parts: Vec<String> = of_resource.iter().filter(mentioned).map(|wait| part(&unit, wait)).collect();
        let (who, did) = match resource {
            Resource::Cpu => (format!("the threads of {unit}"), "waited"),
            _ => (unit.clone(), "was stalled"),
        };
        sentences.push(format!(
            "In {}, {who} {did} {} for {}: {}.",
            duration(*recorded_ns),
            duration(total),
            noun(resource),
            parts.join("; ")
        ));
        if resource == Resource::Cpu {
            sentences.push(format!(
                "It was entitled to {} of CPU time, and used {}.",
                duration(*entitled_ns),
                duration(*used_ns)
            ));
        }
        sentences.extend(of_resource.iter().filter(mentioned).find_map(|wait| help(&unit, wait)));
    }
    sentences
}

/// One cause: `29 s for CPUs that students had while physics had at least its part`.
fn part(unit: &str, wait: &Wait) -> String {
    let phrase = phrase(wait);
    let Wait { ns, beyond_ns, .. } = wait;
    // Only what others had can be more or less than the unit's part.
    if !matches!(wait.cause, WaitCause::Unit { .. } | WaitCause::OtherUnits | WaitCause::Common) || *ns == 0 {
        return format!("{} for {phrase}", duration(*ns));
    }
    let rest = ns - beyond_ns.min(ns);
    if rest == 0 {
        format!("{} for {phrase} while {unit} had at least its part", duration(*ns))
    } else if *beyond_ns == 0 {
        format!("{} for {phrase} while {unit} had less than its part", duration(*ns))
    } else {
        format!(
            "{} for {phrase}, {} of it while {unit} had less than its part",
            duration(*ns),
            duration(rest)
        )
    }
}

/// What would have helped against the largest cause, if the accounts prove it.
fn help(unit: &str, wait: &Wait) -> Option<String> {
    let Wait { ns, beyond_ns, cause, resource, .. } = wait;
    let is_beyond = beyond_ns.saturating_mul(2) > *ns;
    match cause {
        WaitCause::Limit => Some(format!("A higher limit of {unit} would have helped.")),
        WaitCause::Unit { unit: other } if is_beyond => Some(format!(
            "{} had no more than the contract allows: {unit} wanted more than its part. More tickets for {unit} would \
             have helped.",
            clean(other)
        )),
        WaitCause::Common if !is_beyond && *resource == Resource::Cpu => Some(format!(
            "Processes in no unit, or the kernel, had CPUs of {unit}: a unit for those processes would have helped."
        )),
        WaitCause::Own if is_beyond => Some(format!(
            "{unit} had its part, and wanted more for its own threads. More tickets would have helped."
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(resource: Resource, cause: WaitCause, s: u64, beyond_s: u64) -> Wait {
        let second = 1_000_000_000;
        Wait { resource, cause, ns: s * second, beyond_ns: beyond_s * second, inferred_ns: 0 }
    }

    fn explained(waits: Vec<Wait>) -> Explained {
        Explained {
            unit: "physics".to_owned(),
            asked: None,
            period_ns: 600_000_000_000,
            recorded_ns: 600_000_000_000,
            entitled_ns: 450_000_000_000,
            used_ns: 430_000_000_000,
            waits,
        }
    }

    #[test]
    fn sentences_name_the_culprit_and_what_would_have_helped() {
        let students = || WaitCause::Unit { unit: "students\x1b[31m".to_owned() };
        let mut disk = wait(Resource::Disk, students(), 3, 0);
        disk.inferred_ns = disk.ns;
        let waits = vec![
            wait(Resource::Cpu, students(), 29, 29),
            wait(Resource::Cpu, WaitCause::Own, 10, 0),
            wait(Resource::Cpu, WaitCause::Switch, 2, 0),
            disk,
        ];
        insta::assert_snapshot!(text(&explained(waits), Style::PLAIN));
    }

    #[test]
    fn gaps_and_silence_are_stated() {
        let quiet = text(&explained(Vec::new()), Style::PLAIN);
        assert_eq!(quiet, "physics waited for nothing in 600.0 s.\n");
        let partly = Explained { recorded_ns: 60_000_000_000, ..explained(Vec::new()) };
        assert!(text(&partly, Style::PLAIN).starts_with("Only 60.0 s of the last 600.0 s were recorded.\n"));
        let none = Explained { recorded_ns: 0, ..explained(Vec::new()) };
        assert_eq!(text(&none, Style::PLAIN), "Nothing was recorded in the last 600.0 s.\n");
    }
}
