//! Turns scheduler events into each task's bursts, sleeps and transfers. A state machine per task
//! (`Activity`) follows the events. An event that is impossible in the task's state shows that events are
//! missing.

use super::{End, Recorded, Recording, Step};
use crate::Time;
use commonhold_ledger::latencies::Latencies;

/// The shortest step, in ns: the resolution of the kernel's text.
const STEP_MIN_NS: Time = 1_000;
/// The kernel's largest `pid_max` is 2^22: higher thread IDs do not occur.
const PIDS_MAX: usize = 1 << 22;
/// No task.
const NOBODY: u32 = u32::MAX;

/// An event of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A CPU switched from one task to another. Task 0 is the idle task.
    Switch {
        /// The task that left the CPU.
        from: u32,
        /// Why it left.
        reason: SwitchReason,
        /// The task that runs next.
        to: u32,
    },
    /// A task became runnable.
    Wake {
        /// The task.
        pid: u32,
        /// The task that woke it; 0: an interrupt did, or it is unknown.
        by: u32,
    },
    /// A task forked another.
    Fork {
        /// The task that forked.
        parent: u32,
        /// The new task.
        child: u32,
    },
    /// A task handed a request to a disk.
    Transfer {
        /// The task.
        pid: u32,
        /// The request.
        transfer: Transfer,
    },
    /// A task that ran no longer does: another task was seen on its CPU, and the switch was not recorded.
    Vanish {
        /// The task.
        pid: u32,
    },
    /// An event to ignore.
    Other,
}

/// Why a task left its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchReason {
    /// The task is still runnable.
    Preempted,
    /// The task sleeps, or is stopped.
    Asleep,
    /// The task sleeps, and no signal can wake it: it may wait for a disk.
    Blocked,
    /// The task has ended.
    Ended,
}

/// Requests to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// A number of the disk.
    pub device: u32,
    /// The first sector.
    pub sector: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// Whether it writes.
    pub write: bool,
}

/// An event that is impossible in the state of its task: events are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impossible {
    /// The task.
    pub pid: u32,
    /// Completes the message `task PID ...`.
    pub what: &'static str,
}

/// The current state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// No event has shown the task's state since this time.
    Unknown {
        since: Time,
    },
    /// Forked, not woken yet.
    New,
    Running {
        since: Time,
    },
    Ready {
        since: Time,
    },
    Asleep {
        since: Time,
        blocked: bool,
    },
    Gone,
}

#[derive(Debug)]
struct Task {
    pid: u32,
    /// Its unit; `None`: it is in no unit.
    unit: Option<String>,
    start_ns: Time,
    steps: Vec<Step>,
    waits: Waits,
    state: Activity,
    /// CPU time since it last slept, in ns.
    burst_ns: Time,
    /// Requests to a disk since it last slept, summed up.
    requests: Option<Requests>,
    /// The end of its last request, by which sequential access is known.
    next_sector: u64,
    /// The index of the task that forked it.
    parent: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Requests {
    device: u32,
    bytes: u64,
    /// The bytes of the largest.
    largest: u64,
    write: bool,
    random: bool,
}

/// How long a task waited for a CPU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waits {
    /// The sum of all waits, in ns.
    pub sum_ns: Time,
    /// The waits after wake-ups, until the task ran.
    pub after_wakes: Latencies,
    /// The responses: the times from a wake-up until the task slept again or ended. A wait for a disk does
    /// not end a response.
    pub responses: Latencies,
    /// When the task was woken, until it sleeps or ends.
    up_since: Option<Time>,
    /// Whether it has not run since then.
    woken: bool,
}

impl Task {
    fn new(pid: u32, unit: Option<String>, start_ns: Time, state: Activity) -> Task {
        Task {
            pid,
            unit,
            start_ns,
            steps: Vec::new(),
            waits: Waits::default(),
            state,
            burst_ns: 0,
            requests: None,
            next_sector: 0,
            parent: None,
        }
    }

    /// Records what a running task does to another one as a step.
    fn record_act(&mut self, act: Step, now: Time) {
        if let Activity::Running { since } = &mut self.state {
            self.burst_ns += now - *since;
            *since = now;
        }
        if self.burst_ns > 0 {
            self.end_burst();
        }
        self.steps.push(act);
    }

    /// Records the CPU time since the task last slept as a step.
    fn end_burst(&mut self) {
        let burst_ns = core::mem::take(&mut self.burst_ns);
        self.steps.push(Step::Cpu(burst_ns.max(STEP_MIN_NS)));
    }

    /// Records a sleep: as a transfer, if the task was blocked after it had handed requests to a disk.
    fn record_sleep(&mut self, ns: Time, blocked: bool) {
        self.steps.push(match self.requests.take() {
            Some(Requests { device, bytes, write, random, .. }) if blocked => {
                Step::Transfer { device, bytes, write, random, took_ns: ns }
            }
            _ => Step::Sleep(ns.max(STEP_MIN_NS)),
        });
    }

    fn request(&mut self, transfer: Transfer) {
        let Transfer { device, sector, bytes, write } = transfer;
        let is_sequential = sector == self.next_sector;
        self.next_sector = sector.saturating_add(bytes / 512);
        match &mut self.requests {
            // A step has one disk and one direction: those of the largest request.
            Some(requests) => {
                if bytes > requests.largest {
                    (requests.device, requests.write, requests.largest) = (device, write, bytes);
                }
                requests.bytes = requests.bytes.saturating_add(bytes);
            }
            requests => {
                *requests = Some(Requests { device, bytes, largest: bytes, write, random: !is_sequential });
            }
        }
    }

    /// Completes the task's record at the end of the recording. `unit` is its unit's path.
    fn close(mut self, serial: u32, unit: String, now: Time) -> Recorded {
        let end = match self.state {
            Activity::Running { since } => {
                self.burst_ns += now - since;
                End::Computing
            }
            Activity::Ready { since } => {
                self.waits.sum_ns += now - since;
                End::Computing
            }
            Activity::Unknown { since } | Activity::Asleep { since, .. } => {
                End::Asleep { slept_ns: now - since }
            }
            Activity::New | Activity::Gone => End::Gone,
        };
        if self.burst_ns > 0 {
            self.end_burst();
        }
        Recorded {
            serial,
            parent: self.parent,
            pid: self.pid,
            unit,
            start_ns: self.start_ns,
            steps: self.steps,
            waits: self.waits,
            end,
        }
    }
}

/// Follows events.
#[derive(Debug, Default)]
pub struct History {
    tasks: Vec<Task>,
    /// By thread ID: the index in `tasks` of the task that has the ID now, or [`NOBODY`].
    by_pid: Vec<u32>,
    /// The current event's time, in ns.
    now: Time,
    sleeps: u64,
    wakes: u64,
    unwoken: u64,
    /// The number of tasks in units.
    members: usize,
}

impl History {
    /// The time of the last event.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Whether tasks went to sleep, and none was woken: the wake-ups were not recorded.
    pub fn lacks_wake_ups(&self) -> bool {
        self.sleeps > 0 && self.wakes == 0
    }

    /// Whether a task with this ID exists and is in a unit.
    pub fn is_member(&self, pid: u32) -> bool {
        self.index(pid).is_some_and(|index| self.tasks[index].unit.is_some())
    }

    /// The unit of the task with this ID; `None` if it is in no unit.
    pub fn unit_of(&self, pid: u32) -> Option<&str> {
        self.tasks[self.index(pid)?].unit.as_deref()
    }

    /// The number of tasks in units so far.
    pub fn members(&self) -> usize {
        self.members
    }

    /// States that a task is in a unit. A task that was followed already belongs to the unit from its
    /// beginning, unless it was in another unit; then it ends there, and begins anew.
    pub fn add_member(&mut self, pid: u32, unit: &str) {
        let existing = self.index(pid).filter(|index| self.tasks[*index].state != Activity::Gone);
        let Some(index) = existing else {
            let state = Activity::Unknown { since: self.now };
            self.add(Task::new(pid, Some(unit.to_owned()), self.now, state));
            return;
        };
        let now = self.now;
        let task = &mut self.tasks[index];
        match &task.unit {
            None => {
                task.unit = Some(unit.to_owned());
                self.members += 1;
            }
            Some(before) if before == unit => {}
            Some(_) => {
                if let Activity::Running { since } = task.state {
                    task.burst_ns += now - since;
                }
                let state = match core::mem::replace(&mut task.state, Activity::Gone) {
                    Activity::Running { .. } => Activity::Running { since: now },
                    Activity::Ready { .. } => Activity::Ready { since: now },
                    Activity::Asleep { blocked, .. } => Activity::Asleep { since: now, blocked },
                    state => state,
                };
                self.add(Task::new(pid, Some(unit.to_owned()), now, state));
            }
        }
    }

    /// Sets the time, which does not go back.
    pub fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Follows an event at the current time.
    ///
    /// # Errors
    ///
    /// Events are missing. The state of the task is then as after the event, so that following may continue.
    pub fn event(&mut self, event: Event) -> Result<(), Impossible> {
        match event {
            Event::Switch { from, reason, to } => {
                let left = self.switch_out(from, reason);
                let entered = self.switch_in(to);
                left.and(entered)
            }
            Event::Wake { pid, by } => {
                self.wake(pid, by);
                Ok(())
            }
            Event::Fork { parent, child } => {
                self.fork(parent, child);
                Ok(())
            }
            Event::Transfer { pid, transfer } => {
                if let Some(index) = self.index(pid) {
                    self.tasks[index].request(transfer);
                }
                Ok(())
            }
            Event::Vanish { pid } => {
                self.vanish(pid);
                Ok(())
            }
            Event::Other => Ok(()),
        }
    }

    /// The recording up to the current time.
    pub fn close(self) -> Recording {
        let now = self.now;
        let (mut tasks, mut others) = (Vec::new(), Vec::new());
        for (serial, mut task) in (0..).zip(self.tasks) {
            match task.unit.take() {
                Some(unit) => tasks.push(task.close(serial, unit, now)),
                None => others.push(task.close(serial, String::new(), now)),
            }
        }
        Recording { length_ns: now, tasks, others, unwoken: self.unwoken }
    }

    fn index(&self, pid: u32) -> Option<usize> {
        self.by_pid.get(pid as usize).filter(|index| **index != NOBODY).map(|index| *index as usize)
    }

    /// Adds a task, which has its thread ID from now on.
    fn add(&mut self, task: Task) {
        let (pid, index) = (task.pid as usize, u32::try_from(self.tasks.len()).unwrap_or(NOBODY));
        if pid >= PIDS_MAX || index == NOBODY {
            return;
        }
        if self.by_pid.len() <= pid {
            self.by_pid.resize(pid + 1, NOBODY);
        }
        self.by_pid[pid] = index;
        self.members += usize::from(task.unit.is_some());
        self.tasks.push(task);
    }

    /// A child is in its parent's unit. If a list has named the child before any event, the list decides its
    /// unit: it may have been made after the recording.
    fn fork(&mut self, parent: u32, child: u32) {
        let now = self.now;
        let parent = self.index(parent);
        let is_listed = |task: &Task| matches!(task.state, Activity::Unknown { .. }) && task.unit.is_some();
        if let Some(index) = self.index(child).filter(|index| is_listed(&self.tasks[*index])) {
            let task = &mut self.tasks[index];
            (task.state, task.start_ns) = (Activity::New, now);
        } else {
            let unit = parent.and_then(|parent| self.tasks[parent].unit.clone());
            self.add(Task::new(child, unit, now, Activity::New));
        }
        if let (Some(parent), Some(child)) = (parent, self.index(child)) {
            self.tasks[parent].record_act(Step::Fork { child: serial(child) }, now);
            self.tasks[child].parent = Some(serial(parent));
        }
    }

    /// The task with this ID. One that was not seen before is in no unit. The idle task is not followed.
    fn task(&mut self, pid: u32) -> Option<&mut Task> {
        if pid == 0 {
            return None;
        }
        if self.index(pid).is_none() {
            self.add(Task::new(pid, None, self.now, Activity::Unknown { since: self.now }));
        }
        let index = self.index(pid)?;
        Some(&mut self.tasks[index])
    }

    /// Handles a task that leaves its CPU.
    fn switch_out(&mut self, pid: u32, reason: SwitchReason) -> Result<(), Impossible> {
        let now = self.now;
        let Some(task) = self.task(pid) else { return Ok(()) };
        let since = match task.state {
            Activity::Running { since } | Activity::Unknown { since } => Some(since),
            _ => None,
        };
        task.burst_ns += since.map_or(0, |since| now - since);
        let is_answer = match reason {
            SwitchReason::Preempted => false,
            // A wait for a disk is a part of the response.
            SwitchReason::Blocked => task.requests.is_none(),
            SwitchReason::Asleep | SwitchReason::Ended => true,
        };
        if is_answer && let Some(woken) = task.waits.up_since.take() {
            task.waits.responses.add(now - woken);
        }
        task.state = match reason {
            SwitchReason::Preempted => Activity::Ready { since: now },
            SwitchReason::Asleep => Activity::Asleep { since: now, blocked: false },
            SwitchReason::Blocked => Activity::Asleep { since: now, blocked: true },
            SwitchReason::Ended => Activity::Gone,
        };
        self.sleeps += u64::from(matches!(reason, SwitchReason::Asleep | SwitchReason::Blocked));
        since.map(|_| ()).ok_or(Impossible { pid, what: "leaves a CPU on which it did not start" })
    }

    /// Handles a task that gets a CPU.
    fn switch_in(&mut self, pid: u32) -> Result<(), Impossible> {
        let now = self.now;
        let mut unwoken = 0;
        let Some(task) = self.task(pid) else { return Ok(()) };
        let result = match task.state {
            Activity::New => {
                task.start_ns = now;
                Ok(())
            }
            Activity::Asleep { .. } => {
                unwoken = 1;
                Ok(())
            }
            Activity::Ready { since } => {
                task.waits.sum_ns += now - since;
                if core::mem::take(&mut task.waits.woken) {
                    task.waits.after_wakes.add(now - since);
                }
                Ok(())
            }
            Activity::Unknown { .. } => Ok(()),
            Activity::Running { .. } => Err("starts to run, and ran already"),
            Activity::Gone => Err("starts to run, and had ended"),
        };
        task.state = Activity::Running { since: now };
        self.unwoken += unwoken;
        result.map_err(|what| Impossible { pid, what })
    }

    /// Handles a task that left its CPU at an unknown time and for an unknown reason.
    fn vanish(&mut self, pid: u32) {
        let now = self.now;
        if let Some(task) = self.task(pid)
            && let Activity::Running { since } = task.state
        {
            task.burst_ns += now - since;
            task.state = Activity::Unknown { since: now };
        }
    }

    fn wake(&mut self, pid: u32, by: u32) {
        self.wakes += 1;
        let now = self.now;
        let Some(index) = self.index(pid) else { return };
        let task = &mut self.tasks[index];
        match task.state {
            Activity::New => {
                (task.start_ns, task.state) = (now, Activity::Ready { since: now });
                return;
            }
            Activity::Asleep { since, blocked } => {
                task.end_burst();
                task.record_sleep(now - since, blocked);
            }
            Activity::Unknown { since } => {
                if task.burst_ns > 0 {
                    task.end_burst();
                }
                task.record_sleep(now - since, false);
            }
            // Woken before it slept: no sleep to record.
            Activity::Running { .. } | Activity::Ready { .. } | Activity::Gone => return,
        }
        task.waits.woken = true;
        task.waits.up_since.get_or_insert(now);
        task.state = Activity::Ready { since: now };
        if let Some(by) = self.index(by)
            && let Activity::Running { .. } = self.tasks[by].state
            && let Some(step) = self.tasks[index].steps.last_mut()
            && let Step::Sleep(slept_ns) = *step
        {
            *step = Step::Wait { slept_ns, by: serial(by) };
            self.tasks[by].record_act(Step::Wake { task: serial(index) }, now);
        }
    }
}

/// The serial number of a task.
fn serial(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NOBODY)
}
