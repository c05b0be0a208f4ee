//! Writes a recording as a workload: a job in the background for each task, and a job that sleeps for the
//! length of the recording, so that the simulation ends with the recording.

use std::fmt::Write;

use super::{End, Recorded, Recording, Step};
use crate::Time;

/// The text of a `workload.toml`.
pub(super) fn workload(recording: &Recording, source: &str) -> String {
    let mut text = String::new();
    let length = micros(recording.length_ns);
    let used: Time = recording.tasks.iter().map(Recorded::used_ns).sum();
    // Writing to a string does not fail.
    _ = writeln!(
        text,
        "version = 1\ntitle = \"A recording\"\nsource = {}\n# Not replayed: {} us of CPU time in no unit, beside {} us in \
         units; {} sleeps that a signal ended at once.\nhorizon = \"{length}us\"\n",
        toml::Value::from(source),
        micros(recording.others_ns()),
        micros(used),
        recording.unwoken,
    );
    // All tasks are in the background: the simulation ends when the recording did.
    _ = writeln!(text, "[program.recording]\ndo = [{{ sleep = \"{length}us\" }}]\n");
    for (index, task) in recording.tasks.iter().enumerate() {
        program(&mut text, index, task, recording.length_ns);
    }
    if let Some(first) = recording.tasks.first() {
        let unit = toml::Value::from(first.unit.as_str());
        _ = writeln!(text, "[job.recording]\nunit = {unit}\nprogram = \"recording\"");
    }
    for (index, task) in recording.tasks.iter().enumerate() {
        let (name, unit) = (name(index, task), toml::Value::from(task.unit.as_str()));
        _ = writeln!(
            text,
            "\n[job.{name}]\nunit = {unit}\nprogram = \"{name}\"\nstart = \"{}us\"\nbackground = true",
            micros(task.start_ns.min(recording.length_ns.saturating_sub(1)))
        );
    }
    text
}

/// A unique name for a task: its index and its thread ID. The kernel reuses IDs, so the ID alone is not
/// unique.
fn name(index: usize, task: &Recorded) -> String {
    format!("task-{index}-{}", task.pid)
}

fn program(text: &mut String, index: usize, task: &Recorded, length_ns: Time) {
    _ = writeln!(text, "[program.{}]\ndo = [", name(index, task));
    for step in &task.steps {
        _ = match step {
            Step::Cpu(ns) => writeln!(text, "    {{ cpu = \"{}us\" }},", micros(*ns)),
            Step::Sleep(ns) | Step::Wait { slept_ns: ns, .. } | Step::Transfer { took_ns: ns, .. } => {
                writeln!(text, "    {{ sleep = \"{}us\" }},", micros(*ns))
            }
            Step::Fork { .. } | Step::Wake { .. } => Ok(()),
        };
    }
    let is_empty = task.steps.iter().all(|step| matches!(step, Step::Fork { .. } | Step::Wake { .. }));
    _ = match task.end {
        End::Computing => writeln!(text, "    {{ repeat = \"forever\", do = [{{ cpu = \"1s\" }}] }},"),
        End::Asleep { .. } => writeln!(text, "    {{ sleep = \"{}us\" }},", micros(length_ns)),
        // A program needs at least one step.
        End::Gone if is_empty => writeln!(text, "    {{ cpu = \"1us\" }},"),
        End::Gone => Ok(()),
    };
    text.push_str("]\n\n");
}

/// Whole microseconds, the resolution of the kernel's text.
fn micros(ns: Time) -> Time {
    ns / 1_000
}
