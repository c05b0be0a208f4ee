//! Reads a log of I/O of fio, version 2 or 3.
//!
//! The log becomes one process that makes its accesses in order. An access that begins where the last one to
//! the same file ended is sequential, and any other is random: the simulator's page cache knows how many
//! pages of a file are cached, and not which. Alike accesses in a row become a loop.
//!
//! Times become releases of a timer that catches up: a process that is late makes its accesses at once until
//! it is on time again. Without times, as in a log of version 2 without `wait`, each access follows the last.

use std::collections::BTreeMap;

use commonhold_contract::Span;

use crate::Options;
use crate::draft::{
    Draft, FILES_MAX, File, Found, HORIZON_MAX_NS, Job, NameMaker, Program, S, STEP_MAX_NS, STEPS_MAX, Step,
    Times, span_ns,
};

/// A file of the log.
struct Logged {
    name: String,
    /// The end of the farthest access, in bytes.
    bytes: u64,
    /// The end of the last access.
    next: u64,
}

struct Reader {
    found: Found,
    names: NameMaker,
    files: BTreeMap<String, Logged>,
    order: Vec<String>,
    steps: Vec<Step>,
    /// The index of the last access among the steps.
    last: Option<usize>,
    /// How many files have an access.
    used: usize,
    /// The time of the last timed action, in us.
    last_us: u64,
}

const NO_ACTION: &str = "write `FILE add`, `FILE open`, `FILE close`, or `FILE read OFFSET LENGTH`; in version 3 after a time \
                         in microseconds";

/// Reads a text.
pub(crate) fn read(text: &str, options: &Options) -> Draft {
    let mut draft = Draft { title: "fio's log of I/O".to_owned(), ..Draft::default() };
    let mut reader = Reader {
        found: Found::default(),
        names: NameMaker::default(),
        files: BTreeMap::new(),
        order: Vec::new(),
        steps: Vec::new(),
        last: None,
        used: 0,
        last_us: 0,
    };
    let mut version = None;
    let mut start = 0;
    for raw in text.split_inclusive('\n') {
        let line = raw.trim();
        let at = start..start + raw.trim_end().len();
        start += raw.len();
        if line.is_empty() {
            continue;
        }
        if version.is_none() {
            version = reader.version(line, &at);
            if version.is_none() {
                break;
            }
            continue;
        }
        if reader.steps.len() > STEPS_MAX {
            let message = format!("the log has more than {STEPS_MAX} accesses");
            reader.found.error("too-many-steps", &at, message, "cut the log");
            break;
        }
        reader.line(line, &at, version == Some(3));
    }
    if version.is_none() && !reader.found.has_error() {
        let help = "the first line is `fio version 2 iolog` or `fio version 3 iolog`";
        reader.found.error("no-version", &(0..0), "the log is empty".to_owned(), help);
    }
    if reader.steps.is_empty() && !reader.found.has_error() {
        let help = "record one with write_iolog=FILE";
        reader.found.error("no-steps", &(0..0), "the log has no access".to_owned(), help);
    }
    let unit = options.unit.clone();
    let steps = compress(&reader.steps);
    draft.horizon_ns = span_ns(&steps).saturating_mul(2).clamp(3600 * S, HORIZON_MAX_NS);
    if has_timer(&steps) {
        draft.timers.push(("log".to_owned(), false));
    }
    for path in &reader.order {
        if let Some(file) = reader.files.get(path).filter(|file| file.bytes > 0) {
            draft.files.push(File { name: file.name.clone(), bytes: file.bytes, shared: true });
        }
    }
    let name = || "replay".to_owned();
    draft.programs.push(Program { name: name(), memory_bytes: 0, is_job: false, steps });
    draft.jobs.push(Job {
        name: name(),
        unit,
        program: name(),
        start_ns: 0,
        count: 1,
        deadline_ns: None,
        background: false,
    });
    draft.found = reader.found;
    draft
}

impl Reader {
    fn version(&mut self, line: &str, at: &Span) -> Option<u32> {
        let version = line.strip_prefix("fio version ").and_then(|rest| rest.strip_suffix(" iolog"));
        match version {
            Some("2") => Some(2),
            Some("3") => Some(3),
            _ => {
                let message = format!("the log begins with `{}`", line.chars().take(40).collect::<String>());
                let help = "the first line is `fio version 2 iolog` or `fio version 3 iolog`; other versions are not read";
                self.found.error("no-version", at, message, help);
                None
            }
        }
    }

    fn line(&mut self, line: &str, at: &Span, has_time: bool) {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if has_time {
            let Some(time) = words.first().and_then(|word| word.parse::<u64>().ok()) else {
                self.found.error("no-time", at, "the line does not begin with a time".to_owned(), NO_ACTION);
                return;
            };
            words.remove(0);
            // Opening a file takes no time of its own.
            if words.len() > 2 && !self.wait_until(time, at) {
                return;
            }
        }
        match words[..] {
            [path, "add" | "open"] => self.open(path),
            [_, "close"] => {}
            [path, action, offset, length] => {
                let (Ok(offset), Ok(length)) = (offset.parse::<u64>(), length.parse::<u64>()) else {
                    let message = format!("`{offset} {length}` is no offset and length");
                    self.found.error("no-number", at, message, "write two numbers of bytes");
                    return;
                };
                self.action(path, action, offset, length, at, has_time);
            }
            _ => self.found.error("no-action", at, "this is no action of a log".to_owned(), NO_ACTION),
        }
    }

    fn open(&mut self, path: &str) {
        if !self.files.contains_key(path) {
            let name = self.names.make(path.rsplit('/').next().unwrap_or(path));
            self.files.insert(path.to_owned(), Logged { name, bytes: 0, next: 0 });
            self.order.push(path.to_owned());
        }
    }

    /// Waits for a time since the beginning, in us. Returns false for a time that goes back.
    fn wait_until(&mut self, time_us: u64, at: &Span) -> bool {
        let Some(span_us) = time_us.checked_sub(self.last_us) else {
            let message = format!("the time goes back, from {} to {time_us} us", self.last_us);
            self.found.error("out-of-order", at, message, "sort the log by time");
            return false;
        };
        self.last_us = time_us;
        self.wait(span_us, at)
    }

    fn wait(&mut self, span_us: u64, at: &Span) -> bool {
        let period_ns = span_us.checked_mul(1_000).filter(|ns| *ns <= STEP_MAX_NS);
        match period_ns {
            Some(0) => {}
            Some(period_ns) => {
                self.steps.push(Step::Timer { timer: "log".to_owned(), period_ns, catch_up: true });
            }
            None => {
                let message = format!("a wait of {span_us} us is longer than a year");
                self.found.error("out-of-range", at, message, "write microseconds");
            }
        }
        period_ns.is_some()
    }

    fn action(&mut self, path: &str, action: &str, offset: u64, length: u64, at: &Span, has_time: bool) {
        if action == "wait" {
            match has_time {
                true => {
                    let help = "remove it: the times of version 3 say when to wait";
                    self.found.error("wait", at, "a log of version 3 has no `wait`".to_owned(), help);
                }
                // fio discards what is below 100.
                false if offset < 100 => {}
                false => {
                    let message = "`wait`: microseconds since the last wait, as fio's manual says; fio's code replays \
                                   milliseconds since the start";
                    self.found.remark("wait", at, message);
                    self.wait(offset, at);
                }
            }
            return;
        }
        let Some(file) = self.files.get_mut(path) else {
            let message = format!("file `{path}` is used before it is added");
            let help = format!("write `{path} add` before");
            self.found.error("unknown-file", at, message, &help);
            return;
        };
        match action {
            "read" | "write" => {
                let end = offset.checked_add(length).filter(|end| *end <= 1 << 50 && length > 0);
                let Some(end) = end else {
                    let message = format!("{length} bytes from {offset} on are beyond 1 PiB, or none");
                    self.found.error("out-of-range", at, message, "write offset and length in bytes");
                    return;
                };
                if file.bytes == 0 {
                    self.used += 1;
                    if self.used > FILES_MAX {
                        let message = format!("`{path}` is one file more than {FILES_MAX} with accesses");
                        self.found.error("too-many-files", at, message, "cut the log");
                        return;
                    }
                }
                let random = offset != file.next;
                (file.next, file.bytes) = (end, file.bytes.max(end));
                let (name, bytes) = (file.name.clone(), length);
                self.last = Some(self.steps.len());
                self.steps.push(match action {
                    "read" => Step::Read { file: name, bytes, random, direct: false },
                    _ => Step::Write { file: name, bytes, random, sync: false, direct: false },
                });
            }
            "sync" | "datasync" => {
                let name = file.name.clone();
                // The write before waits for the disk; those before it are written behind.
                let before = self.last.and_then(|last| self.steps.get_mut(last));
                if let Some(Step::Write { file: written, sync, .. }) = before
                    && *written == name
                {
                    *sync = true;
                } else {
                    let message =
                        format!("`{action}` that follows no write to its file at once: it does not wait");
                    self.found.remark("sync", at, message);
                }
            }
            "trim" => self.found.remark("trim", at, "`trim` is not simulated"),
            _ => self.found.error("no-action", at, format!("`{action}` is no action of a log"), NO_ACTION),
        }
    }
}

/// Joins runs of one or two steps that repeat.
fn compress(steps: &[Step]) -> Vec<Step> {
    let mut out: Vec<Step> = Vec::new();
    let mut at = 0;
    while at < steps.len() {
        let repeats = |length: usize| {
            let first = steps.get(at..at + length);
            let rest = steps[at..].chunks_exact(length);
            first.map_or(0, |first| rest.take_while(|chunk| *chunk == first).count())
        };
        let (length, times) = match (repeats(1), repeats(2)) {
            (one, _) if one > 1 => (1, one),
            (_, two) if two > 1 => (2, two),
            _ => (1, 1),
        };
        let steps_of_loop = &steps[at..at + length];
        if times > 1 {
            let times_64 = Times::exactly(times as u64);
            out.push(Step::Repeat { times: times_64, steps: steps_of_loop.to_vec() });
        } else {
            out.extend_from_slice(steps_of_loop);
        }
        at += length * times;
    }
    out
}

fn has_timer(steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::Timer { .. } => true,
        Step::Repeat { steps, .. } => has_timer(steps),
        _ => false,
    })
}
