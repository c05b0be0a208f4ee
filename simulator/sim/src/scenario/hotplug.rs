//! Reads `[cpus.NAME]`: when CPUs of the simulated machine go offline and come online.
//!
//! Which CPUs are online at a time depends only on the machine and on earlier changes. So this module replays
//! all changes, and reports one that cannot happen as an error of the workload.

use commonhold_contract::Diagnostic;
use commonhold_contract::document::{Document, Named};
use commonhold_contract::quantity::duration_text;
use commonhold_machine::CpuSet;
use toml::de::DeTable;

use super::keys::CPUS;
use super::model::{Hardware, OnlineChange, Scheduler};
use super::values::{Entry, Span, missing, number};
use crate::Time;

/// One table, before the replay.
struct Change {
    at_ns: Time,
    cpus: CpuSet,
    comes: bool,
    /// The positions of the table's name, and of the list of CPUs.
    name_span: Span,
    cpus_span: Span,
}

/// Reads the tables `[cpus.NAME]`. Returns which CPUs are online after each change, in order of time.
pub(super) fn read(
    document: &mut Document,
    tables: &[(Named, &DeTable)],
    hardware: &Hardware,
    horizon_ns: Time,
) -> Vec<OnlineChange> {
    let scheduler = hardware.kernel.scheduler;
    if let (Some((named, _)), true) = (tables.first(), scheduler != Scheduler::Commonhold) {
        let message = format!("the scheduler {scheduler} knows no CPUs that go offline or come online");
        let help = format!("remove [cpus.{}], or leave `scheduler` out", named.name);
        document.report(Diagnostic::error("fixed-cpus", named.at.clone(), message).help(help));
    }
    let all = hardware.machine.cpu_set();
    let mut changes: Vec<Change> =
        tables.iter().filter_map(|(named, table)| change(document, named, table, &all)).collect();
    // The sort is stable: changes of the same time stay in the order of the text.
    changes.sort_by_key(|change| change.at_ns);
    let mut online = all;
    let mut all_online = Vec::with_capacity(changes.len());
    for change in changes {
        let Change { at_ns, cpus, comes, name_span, cpus_span } = change;
        let at = duration_text(at_ns);
        if at_ns >= horizon_ns {
            let message = format!(
                "CPUs would change at {at}, and the simulation ends at {}",
                duration_text(horizon_ns)
            );
            let help = "write a later `horizon`, or an earlier `at`";
            document.report(Diagnostic::error("never-starts", name_span, message).help(help));
        }
        let unchanged = if comes { cpus.intersection(&online) } else { cpus.difference(&online) };
        let state = if comes { "online" } else { "offline" };
        if !unchanged.is_empty() {
            let message = format!("{} already {state} at {at}", are(&unchanged));
            let help = "leave out what does not change, or correct `at`";
            document.report(Diagnostic::error("no-change", cpus_span.clone(), message).help(help));
        }
        online = if comes { online.union(&cpus) } else { online.difference(&cpus) };
        if online.is_empty() {
            let message = format!("no CPU would be online from {at} on");
            let help = "leave at least one CPU online";
            document.report(Diagnostic::error("last-cpu", cpus_span, message).help(help));
            online = cpus;
        }
        all_online.push(OnlineChange { at_ns, online: online.clone() });
    }
    all_online
}

/// Reads `[cpus.NAME]`; `None` if it does not say which CPUs change, or names one that the machine lacks.
fn change(document: &mut Document, named: &Named, table: &DeTable, all: &CpuSet) -> Option<Change> {
    let (mut at_ns, mut lists) = (0, Vec::new());
    for entry in document.entries(&CPUS, table) {
        match entry.key.name {
            "at" => at_ns = number(document, &entry).unwrap_or(0),
            name => {
                let span = document.span(entry.value);
                lists.push((name == "online", cpus(document, &entry, all), span));
            }
        }
    }
    if lists.is_empty() {
        missing(document, named.at.clone(), &format!("cpus `{}`", named.name), "offline", "\"4-7\"");
    }
    if let [_, (.., span)] = &lists[..] {
        let message = format!("cpus `{}` says both `offline` and `online`", named.name);
        let help = "write two tables, each with one of them";
        document.report(Diagnostic::error("offline-and-online", span.clone(), message).help(help));
    }
    let (comes, cpus, cpus_span) = lists.into_iter().next()?;
    Some(Change { at_ns, cpus: cpus?, comes, name_span: named.at.clone(), cpus_span })
}

/// Reads a list of CPUs of the machine.
fn cpus(document: &mut Document, entry: &Entry, all: &CpuSet) -> Option<CpuSet> {
    let text = document.string(entry, "CPUs such as \"0-3,8\"")?;
    let span = document.span(entry.value);
    let parsed = text.parse::<CpuSet>().ok().filter(|cpus| !cpus.is_empty());
    let Some(cpus) = parsed else {
        let message = format!("\"{text}\" is no list of CPUs");
        let help = "write numbers and ranges, such as \"0-3,8\"";
        document.report(Diagnostic::error("bad-cpus", span, message).help(help));
        return None;
    };
    let unknown = cpus.difference(all);
    if !unknown.is_empty() {
        let message = format!("{} not in this machine", are(&unknown));
        let help = format!("its CPUs are {all}");
        document.report(Diagnostic::error("unknown-cpus", span, message).help(help));
        return None;
    }
    Some(cpus)
}

/// `CPU 3 is` or `CPUs 3-5 are`.
fn are(cpus: &CpuSet) -> String {
    if cpus.len() == 1 { format!("CPU {cpus} is") } else { format!("CPUs {cpus} are") }
}
