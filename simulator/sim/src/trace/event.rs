//! Reads the lines of a recording: units' threads, the kernel's count of lost events, and events.

use commonhold_contract::Diagnostic;

use crate::Time;

type Span = core::ops::Range<usize>;

/// The content of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line<'t> {
    /// The threads that are in a unit.
    Unit(&'t str, Vec<u32>),
    /// An event, with its time in ns of the recording's clock.
    Event(Time, Event),
    /// A line to ignore.
    Other,
}

/// An event of the kernel's scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A CPU switched from one task to another.
    Switch { from: u32, reason: SwitchReason, to: u32 },
    /// A task became runnable.
    Wake { pid: u32 },
    /// A task forked another.
    Fork { parent: u32, child: u32 },
    /// An event to ignore.
    Other,
}

/// Why a task left its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SwitchReason {
    /// The task is still runnable.
    Preempted,
    /// The task sleeps, or is stopped.
    Asleep,
    /// The task has ended.
    Ended,
}

const UNIT: &str = "# commonhold unit ";
const ENTRIES: &str = "# entries-in-buffer/entries-written:";
const LARGER: &str = "record again with a larger buffer (`buffer_size_kb` in tracefs), or for less time";

/// Reads a line; `at` is the line's position in the text.
pub(super) fn line(text: &str, at: Span) -> Result<Line<'_>, Diagnostic> {
    if let Some(members) = text.strip_prefix(UNIT) {
        return unit(members, at);
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

/// Reads a unit's path and the IDs of its threads: `light: 101 102`.
fn unit(members: &str, at: Span) -> Result<Line<'_>, Diagnostic> {
    let error = |message: String| {
        let help = "write the unit's path, a colon, and its threads: `# commonhold unit light: 101 102`";
        Diagnostic::error("unit-line", at.clone(), message).help(help)
    };
    let (name, pids) =
        members.split_once(':').ok_or_else(|| error("no colon after the unit's path".to_owned()))?;
    let number = |word: &str| {
        word.parse()
            .ok()
            .filter(|pid| *pid > 0)
            .ok_or_else(|| error(format!("`{word}` is no thread's number")))
    };
    Ok(Line::Unit(name.trim(), pids.split_whitespace().map(number).collect::<Result<_, _>>()?))
}

/// Reads the kernel's counts of events kept and events written: `1000/1234   #P:8`. Fewer kept than written is an error.
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

/// Reads an event: `TASK-PID [CPU] FLAGS SECONDS: NAME: KEY=VALUE ...`. A task's name may have spaces, so the
/// time is found by its form, not by counting words.
fn event(text: &str, at: Span) -> Result<Line<'_>, Diagnostic> {
    let no_event = || {
        let help = "give the text of tracefs' `trace`, cut at the ends of lines";
        Diagnostic::error("no-event", at.clone(), "this is no event").help(help)
    };
    let (time, rest) = text
        .match_indices(": ")
        .find_map(|(end, _)| {
            let start = text[..end].rfind(' ').map_or(0, |space| space + 1);
            Some((timestamp(&text[start..end])?, &text[end + 2..]))
        })
        .ok_or_else(no_event)?;
    let (name, values) = rest.split_once(':').ok_or_else(no_event)?;
    let event = match name {
        "sched_switch" => {
            let (before, after) = values.split_once("==>").unwrap_or((values, values));
            Event::Switch {
                from: number(before, "prev_pid=", &at)?,
                reason: switch_reason(value(before, "prev_state=", &at)?),
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

/// A time such as `81.000120`, in ns. The kernel writes six decimals; at most nine are accepted.
fn timestamp(text: &str) -> Option<Time> {
    let (seconds, fraction) = text.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(seconds) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let fraction_ns: u64 = format!("{fraction:0<9}").parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction_ns)
}

/// The value of a key: its last occurrence, since the task's name comes before and may contain the same text.
fn value<'t>(values: &'t str, key: &str, at: &Span) -> Result<&'t str, Diagnostic> {
    let start = values.rfind(key).map(|position| position + key.len());
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

fn switch_reason(state: &str) -> SwitchReason {
    match state.as_bytes().first() {
        Some(b'R') => SwitchReason::Preempted,
        Some(b'X' | b'Z') => SwitchReason::Ended,
        _ => SwitchReason::Asleep,
    }
}
