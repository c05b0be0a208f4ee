//! Turns the events of a recording into each task's bursts and sleeps. A state machine per task (`Activity`)
//! follows the events; an event that is impossible in the task's state shows that events are missing, and is
//! an error.

use std::collections::BTreeMap;

use commonhold_contract::Diagnostic;

use super::event::{Event, Line, SwitchReason, line};
use super::{End, Recorded, Recording, Step};
use crate::Time;
use crate::scenario::PROGRAMS_MAX;

type Span = core::ops::Range<usize>;

/// The shortest step, in ns: the resolution of the kernel's text.
const STEP_MIN_NS: Time = 1_000;

/// The current state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// Listed in a unit; no event has mentioned the task yet.
    Unknown,
    /// Forked, not woken yet.
    New,
    Running {
        since: Time,
    },
    Ready,
    Asleep {
        since: Time,
    },
    Gone,
}

struct Task {
    recorded: Recorded,
    state: Activity,
    /// CPU time since it last slept, in ns.
    burst_ns: Time,
}

impl Task {
    fn new(pid: u32, unit: String, start_ns: Time, state: Activity) -> Task {
        let recorded = Recorded { pid, unit, start_ns, steps: Vec::new(), end: End::Gone };
        Task { recorded, state, burst_ns: 0 }
    }

    /// Records the CPU time since the task last slept as a step.
    fn end_burst(&mut self) {
        let burst_ns = core::mem::take(&mut self.burst_ns);
        self.recorded.steps.push(Step::Cpu(burst_ns.max(STEP_MIN_NS)));
    }

    fn record_sleep(&mut self, ns: Time) {
        self.recorded.steps.push(Step::Sleep(ns.max(STEP_MIN_NS)));
    }

    /// Completes the task's record at the end of the recording.
    fn close(mut self, now: Time) -> Recorded {
        self.recorded.end = match self.state {
            Activity::Running { since } => {
                self.burst_ns += now - since;
                End::Computing
            }
            Activity::Ready => End::Computing,
            Activity::Unknown | Activity::Asleep { .. } => End::Asleep,
            Activity::New | Activity::Gone => End::Gone,
        };
        if self.burst_ns > 0 {
            self.end_burst();
        }
        self.recorded
    }
}

#[derive(Default)]
struct Reader {
    tasks: Vec<Task>,
    /// The index in `tasks` of the task that has a thread ID now.
    by_pid: BTreeMap<u32, usize>,
    /// The first event's time on the recording's clock, in ns.
    begin: Option<Time>,
    /// The current event's time since `begin`, in ns.
    now: Time,
    /// Running tasks in no unit, each with the time since when it runs.
    others: BTreeMap<u32, Time>,
    /// CPU time of tasks in no unit, in ns.
    others_ns: Time,
    sleeps: u64,
    wakes: u64,
    unwoken: u64,
}

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
                reader.event(event, &at)?;
            }
            Line::Other => {}
        }
    }
    reader.end(text.len())
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
            if self.by_pid.contains_key(&pid) {
                let message = format!("thread {pid} is in a unit already");
                return Err(Diagnostic::error("unit-line", at.clone(), message).help("name it once"));
            }
            self.add(Task::new(pid, unit.to_owned(), 0, Activity::Unknown), at)?;
        }
        Ok(())
    }

    fn add(&mut self, task: Task, at: &Span) -> Result<(), Diagnostic> {
        // The workload has one more program, which lasts as long as the recording.
        if self.tasks.len() + 1 >= PROGRAMS_MAX {
            let message = format!("more than {} tasks, a workload's most", PROGRAMS_MAX - 1);
            let help = "record for less time, or fewer short processes";
            return Err(Diagnostic::error("too-many-tasks", at.clone(), message).help(help));
        }
        self.by_pid.insert(task.recorded.pid, self.tasks.len());
        self.tasks.push(task);
        Ok(())
    }

    /// Sets the current time to an event's time. Time that goes back is an error.
    fn advance(&mut self, time: Time, at: &Span) -> Result<(), Diagnostic> {
        let begin = *self.begin.get_or_insert(time);
        let Some(now) = time.checked_sub(begin).filter(|now| *now >= self.now) else {
            let message = "this event is earlier than the one before it";
            let help = "record with one clock for all CPUs: `echo mono > trace_clock` in tracefs";
            return Err(Diagnostic::error("out-of-order", at.clone(), message).help(help));
        };
        self.now = now;
        Ok(())
    }

    fn event(&mut self, event: Event, at: &Span) -> Result<(), Diagnostic> {
        match event {
            Event::Switch { from, reason, to } => {
                self.switch_out(from, reason, at)?;
                self.switch_in(to, at)?;
            }
            Event::Wake { pid } => self.wake(pid),
            Event::Fork { child, .. } if self.is_listed_only(child) => self.begin_listed(child),
            Event::Fork { parent, child } => {
                if let Some(&parent) = self.by_pid.get(&parent) {
                    let unit = self.tasks[parent].recorded.unit.clone();
                    self.add(Task::new(child, unit, self.now, Activity::New), at)?;
                } else {
                    // The ID may have belonged to a task of a unit that has ended.
                    self.by_pid.remove(&child);
                }
            }
            Event::Other => {}
        }
        Ok(())
    }

    /// Whether a thread is listed in a unit and no event has mentioned it so far. The list may have been made
    /// after the recording, so the thread may be forked during the recording. Then the list decides its unit,
    /// not the thread that forked it.
    fn is_listed_only(&self, pid: u32) -> bool {
        let task = self.by_pid.get(&pid).map(|index| &self.tasks[*index]);
        task.is_some_and(|task| matches!(task.state, Activity::Unknown))
    }

    /// Records that a listed thread began now, by a fork.
    fn begin_listed(&mut self, pid: u32) {
        if let Some(&index) = self.by_pid.get(&pid) {
            let task = &mut self.tasks[index];
            (task.state, task.recorded.start_ns) = (Activity::New, self.now);
        }
    }

    /// Handles a task that leaves its CPU.
    fn switch_out(&mut self, pid: u32, reason: SwitchReason, at: &Span) -> Result<(), Diagnostic> {
        let Some(&index) = self.by_pid.get(&pid) else {
            // The first burst of a task in no unit that already ran when the recording began is not counted.
            self.others_ns += self.others.remove(&pid).map_or(0, |since| self.now - since);
            return Ok(());
        };
        let (task, now) = (&mut self.tasks[index], self.now);
        let since = match task.state {
            Activity::Running { since } => since,
            Activity::Unknown => 0,
            _ => return Err(missing(pid, "leaves a CPU on which it did not start", at)),
        };
        task.burst_ns += now - since;
        task.state = match reason {
            SwitchReason::Preempted => Activity::Ready,
            SwitchReason::Asleep => Activity::Asleep { since: now },
            SwitchReason::Ended => Activity::Gone,
        };
        self.sleeps += u64::from(reason == SwitchReason::Asleep);
        Ok(())
    }

    /// Handles a task that gets a CPU.
    fn switch_in(&mut self, pid: u32, at: &Span) -> Result<(), Diagnostic> {
        let now = self.now;
        let Some(&index) = self.by_pid.get(&pid) else {
            // ID 0 is no task: the CPU idles.
            if pid != 0 {
                self.others.insert(pid, now);
            }
            return Ok(());
        };
        let task = &mut self.tasks[index];
        match task.state {
            Activity::New => task.recorded.start_ns = now,
            Activity::Asleep { .. } => self.unwoken += 1,
            Activity::Ready | Activity::Unknown => {}
            Activity::Running { .. } => return Err(missing(pid, "starts to run, and ran already", at)),
            Activity::Gone => return Err(missing(pid, "starts to run, and had ended", at)),
        }
        task.state = Activity::Running { since: now };
        Ok(())
    }

    fn wake(&mut self, pid: u32) {
        self.wakes += 1;
        let Some(&index) = self.by_pid.get(&pid) else { return };
        let (task, now) = (&mut self.tasks[index], self.now);
        match task.state {
            Activity::New => task.recorded.start_ns = now,
            Activity::Asleep { since } => {
                task.end_burst();
                task.record_sleep(now - since);
            }
            Activity::Unknown => task.record_sleep(now),
            // Woken before it slept: no sleep to record.
            Activity::Running { .. } | Activity::Ready | Activity::Gone => return,
        }
        task.state = Activity::Ready;
    }

    /// Ends the recording; an error if units, events or wake-ups are missing altogether. `at` is the end of
    /// the text.
    fn end(self, at: usize) -> Result<Recording, Diagnostic> {
        let error =
            |code, message: &str, help: &str| Err(Diagnostic::error(code, at..at, message).help(help));
        if self.tasks.is_empty() {
            let help = "write each unit's threads before the events: `# commonhold unit light: 101 102`";
            return error("no-units", "the recording names no unit's threads", help);
        }
        if self.now == 0 {
            let help =
                "record with the events sched_switch, sched_wakeup, sched_wakeup_new and sched_process_fork";
            return error("no-events", "the recording has no events, or all at one moment", help);
        }
        if self.sleeps > 0 && self.wakes == 0 {
            let help = "record the events sched_wakeup and sched_wakeup_new, too";
            return error("no-wake-ups", "tasks go to sleep, and none is ever woken", help);
        }
        let now = self.now;
        Ok(Recording {
            length_ns: now,
            tasks: self.tasks.into_iter().map(|task| task.close(now)).collect(),
            others_ns: self.others_ns,
            unwoken: self.unwoken,
        })
    }
}

/// The error of an event that is impossible in a task's state; `event` completes the message "task PID ...".
fn missing(pid: u32, event: &str, at: &Span) -> Diagnostic {
    let help = "events are missing: record all of sched_switch, with a larger buffer, and cut no lines";
    Diagnostic::error("missing-events", at.clone(), format!("task {pid} {event}")).help(help)
}
