//! Reads the kernel's own text of a trace: lines with units' threads, the count of lost events, and events.

use commonhold_contract::Diagnostic;

use super::Recording;
use super::history::{Event, History, Impossible, SwitchReason};
use crate::Time;
use crate::scenario::PROGRAMS_MAX;

type Span = core::ops::Range<usize>;

/// The content of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Line<'t> {
    /// The threads that are in a unit.
    Unit(&'t str, Vec<u32>),
    /// An event, with its time in ns of the recording's clock.
    Event(Time, Event),
    /// A line to ignore.
    Other,
}

const UNIT: &str = "# commonhold unit ";
const ENTRIES: &str = "# entries-in-buffer/entries-written:";
const LARGER: &str = "record again with a larger buffer (`buffer_size_kb` in tracefs), or for less time";

/// Reads a recording. The error is the first mistake, with its position in the text.
pub(super) fn recording(text: &str) -> Result<Recording, Diagnostic> {
    let mut reader = Reader::default();
    let mut start = 0;
    for raw_line in text.split_inclusive('\n') {
        let content = raw_line.trim_end_matches(['\n', '\r']);
        let at = start..start + content.len();
        start += raw_line.len();
        match line(content, at.clone())? {
            Line::Unit(unit, pids) => reader.add_members(unit, &pids, &at)?,
            Line::Event(time, event) => {
                reader.advance(time, &at)?;
                reader.history.event(event).map_err(|impossible| missing(impossible, &at))?;
                reader.check_room(&at)?;
            }
            Line::Other => {}
        }
    }
    reader.end(text.len())
}

#[derive(Default)]
struct Reader {
    history: History,
    /// The first event's time on the recording's clock, in ns.
    begin: Option<Time>,
}

impl Reader {
    /// Adds the threads that a line lists for a unit.
    fn add_members(&mut self, unit: &str, pids: &[u32], at: &Span) -> Result<(), Diagnostic> {
        if self.begin.is_some() {
            let help = "write these lines before the first event";
            return Err(
                Diagnostic::error("unit-line", at.clone(), "a unit's members after events").help(help)
            );
        }
        for &pid in pids {
            if self.history.is_member(pid) {
                let message = format!("thread {pid} is in a unit already");
                return Err(Diagnostic::error("unit-line", at.clone(), message).help("name it once"));
            }
            self.history.add_member(pid, unit);
            self.check_room(at)?;
        }
        Ok(())
    }

    /// An error if there are more tasks than a workload has programs.
    fn check_room(&self, at: &Span) -> Result<(), Diagnostic> {
        // The workload has one more program, which lasts as long as the recording.
        if self.history.members() < PROGRAMS_MAX {
            return Ok(());
        }
        let message = format!("more than {} tasks, a workload's most", PROGRAMS_MAX - 1);
        let help = "record for less time, or fewer short processes";
        Err(Diagnostic::error("too-many-tasks", at.clone(), message).help(help))
    }

    /// Sets the current time to an event's time. Time that goes back is an error.
    fn advance(&mut self, time: Time, at: &Span) -> Result<(), Diagnostic> {
        let begin = *self.begin.get_or_insert(time);
        let Some(now) = time.checked_sub(begin).filter(|now| *now >= self.history.now()) else {
            let message = "this event is earlier than the one before it";
            let help = "record with one clock for all CPUs: `echo mono > trace_clock` in tracefs";
            return Err(Diagnostic::error("out-of-order", at.clone(), message).help(help));
        };
        self.history.advance(now);
        Ok(())
    }

    /// Ends the recording; an error if units, events or wake-ups are missing altogether. `at` is the end of
    /// the text.
    fn end(self, at: usize) -> Result<Recording, Diagnostic> {
        let error =
            |code, message: &str, help: &str| Err(Diagnostic::error(code, at..at, message).help(help));
        if self.history.members() == 0 {
            let help = "write each unit's threads before the events: `# commonhold unit light: 101 102`";
            return error("no-units", "the recording names no unit's threads", help);
        }
        if self.history.now() == 0 {
            let help =
                "record with the events sched_switch, sched_wakeup, sched_wakeup_new and sched_process_fork";
            return error("no-events", "the recording has no events, or all at one moment", help);
        }
        if self.history.lacks_wake_ups() {
            let help = "record the events sched_wakeup and sched_wakeup_new, too";
            return error("no-wake-ups", "tasks go to sleep, and none is ever woken", help);
        }
        Ok(self.history.close())
    }
}

/// The error of an event that is impossible in a task's state.
fn missing(impossible: Impossible, at: &Span) -> Diagnostic {
    let Impossible { pid, what } = impossible;
    let help = "events are missing: record all of sched_switch, with a larger buffer, and cut no lines";
    Diagnostic::error("missing-events", at.clone(), format!("task {pid} {what}")).help(help)
}

/// Reads a line; `at` is the line's position in the text.
fn line(text: &str, at: Span) -> Result<Line<'_>, Diagnostic> {
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
        "sched_wakeup" | "sched_wakeup_new" => Event::Wake { pid: number(values, " pid=", &at)?, by: 0 },
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
        Some(b'D') => SwitchReason::Blocked,
        _ => SwitchReason::Asleep,
    }
}
