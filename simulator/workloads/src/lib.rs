//! Workloads of other programs, as workloads of the simulator, and back.
//!
//! Each format has a module, which reads a text into a draft: files, locks, events, timers,
//! programs and jobs, with a remark for everything that the simulator does not do. `draft` writes the draft
//! as the text of a `workload.toml`. [`export()`] goes the other way, from a workload to rt-app. A recording
//! of a live machine is read by [`commonhold_sim::trace`].
//!
//! No module opens files or reads clocks. Input of any kind and size ends in a result: nesting, the number of
//! steps and the number of programs are bounded.

mod draft;
mod fio;
mod format;
mod iolog;
mod rt_app;
mod swf;

use std::collections::BTreeMap;

use commonhold_contract::Diagnostic;

pub use format::{Format, guess};
pub use rt_app::{Exported, export};

/// What an import needs beside the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The path of the unit that jobs belong to, unless `units` finds another.
    pub unit: String,
    /// What decides a job's unit.
    pub units: Units,
    /// The name of the text's file; becomes the workload's `source`.
    pub source: String,
    /// The horizon in ns, in place of the text's own.
    pub horizon_ns: Option<u64>,
    /// The first jobs of a log, at most; the others are left out.
    pub jobs: Option<usize>,
    /// Names of units, by the numbers of users, groups, queues or partitions in a log. The log's own header
    /// has names too.
    pub names: BTreeMap<i64, String>,
}

/// What decides which unit a job belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Units {
    /// All jobs belong to one unit.
    One,
    /// rt-app: the task's `taskgroup`.
    Taskgroup,
    /// Standard Workload Format: the job's user.
    User,
    /// Standard Workload Format: the job's group.
    Group,
    /// Standard Workload Format: the job's queue.
    Queue,
    /// Standard Workload Format: the job's partition.
    Partition,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The text of a `workload.toml`; its head has the remarks as comments. `None` if a diagnostic is an
    /// error.
    pub text: Option<String>,
    /// Errors, and warnings for everything that is not simulated, in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads a text of a format.
pub fn import(text: &str, format: Format, options: &Options) -> Imported {
    let draft = match format {
        Format::RtApp => rt_app::read(text, options),
        Format::Fio => fio::read(text, options),
        Format::Iolog => iolog::read(text, options),
        Format::Swf => swf::read(text, options),
        Format::Trace => return recording(text, options),
    };
    draft.finish(text, options)
}

/// Reads a recording of a live machine, which says the units itself.
fn recording(text: &str, options: &Options) -> Imported {
    match commonhold_sim::trace::read(text) {
        Ok(recording) => {
            Imported { text: Some(recording.workload(&options.source)), diagnostics: Vec::new() }
        }
        Err(wrong) => Imported { text: None, diagnostics: vec![wrong] },
    }
}
