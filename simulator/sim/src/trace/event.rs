//! Lines of a recording.

use commonhold_contract::Diagnostic;

use crate::Time;

type Span = core::ops::Range<usize>;

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line<'t> {
    /// The threads that are in a unit.
    Unit(&'t str, Vec<u32>),
    /// Something happened at a moment, in ns of the recording's clock.
    Event(Time, Event),
    /// Nothing that matters here.
    Other,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A CPU went from one task to another.
    Switch { from: u32, left: Left, to: u32 },
    /// A task can run from now on.
    Wake { pid: u32 },
    /// A task made another.
    Fork { parent: u32, child: u32 },
    /// One that is not asked for.
    Other,
}

/// Why a task left its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// It could have gone on.
    Runnable,
    /// It sleeps, or is stopped.
    Asleep,
    /// It has ended.
    Ended,
}

const UNIT: &str = "# commonhold unit ";
const ENTRIES: &str = "# entries-in-buffer/entries-written:";
const LARGER: &str = "record again with a larger buffer (`buffer_size_kb` in tracefs), or for less time";

/// Reads a line; `at` is where it stands in the text.
pub(super) fn line(text: &str, at: Span) -> Result<Line<'_>, Diagnostic> {
    if let Some(said) = text.strip_prefix(UNIT) {
        return unit(said, at);
    }
    if let Some(counts) = text.strip_prefix(ENTRIES) {
        return entries(counts, at);
    }
    if text.trim().is_empty() || text.starts_with('#') || text.starts_with("##### CPU") {
        return Ok(Line::Other);
    }
    if text.contains("[LOST ") && text.starts_with("CPU:") {
        return Err(Diagnostic::error("lost-events", at, "events were lost here").help(LARGER));
    }
    event(text, at)
}

fn unit(said: &str, at: Span) -> Result<Line<'_>, Diagnostic> {
    let wrong = |message: String| {
        let help = "write the unit's path, a colon, and its threads: `# commonhold unit light: 101 102`";
        Diagnostic::error("unit-line", at.clone(), message).help(help)
    };
    let (name, pids) =
        said.split_once(':').ok_or_else(|| wrong("no colon after the unit's path".to_owned()))?;
    let number = |word: &str| {
        word.parse()
            .ok()
            .filter(|pid| *pid > 0)
            .ok_or_else(|| wrong(format!("`{word}` is no thread's number")))
    };
    Ok(Line::Unit(name.trim(), pids.split_whitespace().map(number).collect::<Result<_, _>>()?))
}

/// The kernel's counts of events kept and events written: `1000/1234   #P:8`.
fn entries(counts: &str, at: Span) -> Result<Line<'_>, Diagnostic> {
    let words = counts.split_whitespace().next().and_then(|word| word.split_once('/'));
    let Some((kept, all)) =
        words.and_then(|(kept, all)| Some((kept.parse::<u64>().ok()?, all.parse::<u64>().ok()?)))
    else {
        return Ok(Line::Other);
    };
    if kept >= all {
        return Ok(Line::Other);
    }
    let message = format!("{} of {all} events were lost: the buffer was too small", all - kept);
    Err(Diagnostic::error("lost-events", at, message).help(LARGER))
}

/// `TASK-PID [CPU] FLAGS SECONDS: NAME: KEY=VALUE ...`. A task's name may hold spaces: the moment is found by its form.
fn event(text: &str, at: Span) -> Result<Line<'_>, Diagnostic> {
    let no_event = || {
        let help = "give the text of tracefs' `trace`, cut at the ends of lines";
        Diagnostic::error("no-event", at.clone(), "this is no event").help(help)
    };
    let (time, rest) = text
        .match_indices(": ")
        .find_map(|(end, _)| {
            let start = text[..end].rfind(' ').map_or(0, |space| space + 1);
            Some((moment(&text[start..end])?, &text[end + 2..]))
        })
        .ok_or_else(no_event)?;
    let (name, values) = rest.split_once(':').ok_or_else(no_event)?;
    let event = match name {
        "sched_switch" => {
            let (before, after) = values.split_once("==>").unwrap_or((values, values));
            Event::Switch {
                from: number(before, "prev_pid=", &at)?,
                left: left(value(before, "prev_state=", &at)?),
                to: number(after, "next_pid=", &at)?,
            }
        }
        "sched_wakeup" | "sched_wakeup_new" => Event::Wake { pid: number(values, " pid=", &at)? },
        "sched_process_fork" => {
            Event::Fork { parent: number(values, " pid=", &at)?, child: number(values, " child_pid=", &at)? }
        }
        _ => Event::Other,
    };
    Ok(Line::Event(time, event))
}

/// `81.000120`, in ns: microseconds from the kernel, nanoseconds at most.
fn moment(text: &str) -> Option<Time> {
    let (seconds, part) = text.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(seconds) || !digits(part) || part.len() > 9 {
        return None;
    }
    let part: u64 = format!("{part:0<9}").parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(part)
}

/// The last one with this key: a task's name, which stands before, may look like one.
fn value<'t>(values: &'t str, key: &str, at: &Span) -> Result<&'t str, Diagnostic> {
    let start = values.rfind(key).map(|place| place + key.len());
    let word = start.and_then(|start| values[start..].split_whitespace().next());
    word.ok_or_else(|| {
        let message = format!("the event has no `{}`", key.trim().trim_end_matches('='));
        let help = "record with the kernel's own format of events, and cut no values that are needed";
        Diagnostic::error("no-value", at.clone(), message).help(help)
    })
}

fn number(values: &str, key: &str, at: &Span) -> Result<u32, Diagnostic> {
    let word = value(values, key, at)?;
    word.parse().map_err(|_| {
        let message = format!("`{}{word}` is no thread's number", key.trim());
        Diagnostic::error("no-value", at.clone(), message).help("the line is damaged: record again")
    })
}

fn left(state: &str) -> Left {
    match state.as_bytes().first() {
        Some(b'R') => Left::Runnable,
        Some(b'X' | b'Z') => Left::Ended,
        _ => Left::Asleep,
    }
}
