//! Microstates: what each thread did with each moment of its life [002, *microstate accounting*].
//!
//! Problem: the kernel counts how long a thread ran and how long it was runnable without a CPU. By default it does not count what
//! a thread waits for; that can only be sampled.
//!
//! Algorithm: a [`Reading`] has the kernel's counters and what the thread does at that moment. The time between two readings in which
//! the thread neither ran nor was runnable was spent waiting; this is exact. It is attributed by the readings at both ends: half to
//! the state of each; all to one if the other found the thread runnable. If both found it runnable, the time is divided at the end
//! in proportion to the thread's other waits. A thread's start and end come from the kernel's record of it, if there is one.
//!
//! Properties: the states of a thread add up to its life without a balancing item; if the kernel's counters exceed the life, the
//! difference is in [`Times::excess_ns`]. Counters may lag by a tick, which the next reading corrects.
//!
//! Limits: total waiting time is exact. Its division is an estimate where states alternate faster than readings are taken. What a
//! thread without a record did after its last reading is unknown: [`State::Unseen`].

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// On a CPU, in user mode.
    User,
    /// On a CPU, in user mode, stalled on memory. Part of `User` if the machine does not count it.
    Memory,
    /// On a CPU, in kernel mode.
    System,
    /// Runnable, without a CPU.
    Queue,
    /// Waits for a futex (locks, condition variables, barriers), a file lock, a semaphore, or a lock in the kernel.
    Lock,
    /// Waits for a disk in a system call.
    Io,
    /// Waits for a page that it touched: a major fault.
    Fault,
    /// Waits for a thread or process of the program to end.
    Join,
    /// Waits for anything else: time, a pipe, the network, a terminal.
    Sleep,
    /// Stopped, by a signal or a debugger.
    Stopped,
    /// Unknown: no reading covers it.
    Unseen,
}

/// How many states there are.
pub const COUNT: usize = 11;

impl State {
    /// All of them, in the order in which they are shown.
    pub const ALL: [State; COUNT] = [
        State::User,
        State::Memory,
        State::System,
        State::Queue,
        State::Lock,
        State::Io,
        State::Fault,
        State::Join,
        State::Sleep,
        State::Stopped,
        State::Unseen,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            State::User => "user",
            State::Memory => "memory",
            State::System => "system",
            State::Queue => "queue",
            State::Lock => "lock",
            State::Io => "I/O",
            State::Fault => "fault",
            State::Join => "join",
            State::Sleep => "sleep",
            State::Stopped => "stopped",
            State::Unseen => "unseen",
        }
    }
}

/// What a reading finds a thread doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Running or runnable.
    Runnable,
    /// Waiting, in this state.
    Waiting(State),
}

/// The kernel's counters of a thread since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Time on a CPU.
    pub ran_ns: u64,
    /// Time runnable without a CPU.
    pub queued_ns: u64,
    /// CPU time in user mode, in any unit: only the ratio to `system` is used.
    pub user: u64,
    /// CPU time in kernel mode, in the same unit.
    pub system: u64,
}

/// Delay accounting of a thread, if it is enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delays {
    /// Time blocked on disks, including faults.
    pub io_ns: u64,
    /// Of `io_ns`: for pages that it touched.
    pub fault_ns: u64,
}

/// A reading of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// When it was taken.
    pub at_ns: u64,
    /// The kernel's counters.
    pub counters: Counters,
    /// What the thread does.
    pub activity: Activity,
}

/// Time by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    ns: [u64; COUNT],
    /// By how much the kernel's counters exceed the lives of threads.
    pub excess_ns: u64,
}

impl Times {
    /// Time in a state.
    pub fn of(&self, state: State) -> u64 {
        self.ns[state as usize]
    }

    /// The sum over all states.
    pub fn sum(&self) -> u64 {
        self.ns.iter().sum()
    }

    /// Adds time to a state.
    pub fn add(&mut self, state: State, ns: u64) {
        self.ns[state as usize] += ns;
    }

    /// Adds other times state by state.
    pub fn add_all(&mut self, other: &Times) {
        for (mine, more) in self.ns.iter_mut().zip(other.ns) {
            *mine += more;
        }
        self.excess_ns += other.excess_ns;
    }

    /// Removes up to `ns` from a state; returns how much was removed.
    pub fn take(&mut self, state: State, ns: u64) -> u64 {
        let taken = self.of(state).min(ns);
        self.ns[state as usize] -= taken;
        taken
    }

    /// CPU time.
    pub fn ran(&self) -> u64 {
        self.of(State::User) + self.of(State::Memory) + self.of(State::System)
    }

    /// Moves the part `stalled / cycles` of user time to [`State::Memory`].
    pub fn split_memory(&mut self, stalled: u64, cycles: u64) {
        let memory = part(self.of(State::User), stalled, cycles);
        let memory = self.take(State::User, memory);
        self.add(State::Memory, memory);
    }

    /// Adds CPU time, divided in the ratio of the kernel's two counters; all of it is user time if both are 0.
    fn add_run(&mut self, counters: Counters, ran_ns: u64) {
        let system = part(ran_ns, counters.system, counters.user.saturating_add(counters.system));
        self.add(State::System, system);
        self.add(State::User, ran_ns - system);
    }
}

/// `whole * of / all`; 0 if `all` is 0.
fn part(whole: u64, of: u64, all: u64) -> u64 {
    let part = (u128::from(whole) * u128::from(of)).checked_div(u128::from(all)).unwrap_or(0);
    u64::try_from(part).unwrap_or(whole).min(whole)
}

/// States that a thread waits in.
const WAITS: [State; 6] = [State::Lock, State::Io, State::Fault, State::Join, State::Sleep, State::Stopped];

/// One thread, from its start to its last reading.
#[derive(Debug, Clone)]
pub struct Thread {
    begun_ns: u64,
    last: Reading,
    /// Waiting time by state.
    waits: Times,
    /// Waiting time between two readings that both found it runnable, not yet attributed.
    open_ns: u64,
    /// By how much counters were ahead of the clock; it is subtracted from the next span.
    ahead_ns: u64,
    /// The waiting state of the first reading, if it found one.
    first: Option<State>,
    /// How many readings there were.
    pub readings: u64,
}

impl Thread {
    /// A thread that started at `at_ns`. It counts as runnable then.
    pub fn begin(at_ns: u64) -> Thread {
        let last = Reading { at_ns, counters: Counters::default(), activity: Activity::Runnable };
        Thread {
            begun_ns: at_ns,
            last,
            waits: Times::default(),
            open_ns: 0,
            ahead_ns: 0,
            first: None,
            readings: 0,
        }
    }

    /// When it started, as known so far; `None` before the first reading.
    pub fn began(&self) -> Option<u64> {
        (self.readings > 0).then_some(self.begun_ns)
    }

    /// Corrects its start: its first state becomes longer or shorter accordingly.
    pub fn correct(&mut self, began_ns: u64) {
        let earlier = self.begun_ns.saturating_sub(began_ns);
        let later = began_ns.saturating_sub(self.begun_ns);
        let mut left = later;
        match self.first {
            // The time before the first reading was attributed to the state that this found.
            Some(state) => {
                self.waits.add(state, earlier);
                left -= self.waits.take(state, left);
            }
            None => self.open_ns += earlier,
        }
        let there = self.open_ns;
        self.open_ns = there.saturating_sub(left);
        self.ahead_ns += left.saturating_sub(there);
        self.begun_ns = began_ns;
        if self.readings == 0 {
            (self.last.at_ns, self.open_ns, self.ahead_ns) = (began_ns, 0, 0);
        }
    }

    /// Time of the last reading.
    pub fn last_at_ns(&self) -> u64 {
        self.last.at_ns
    }

    /// Counters of the last reading.
    pub fn counters(&self) -> Counters {
        self.last.counters
    }

    /// Adds a reading.
    pub fn read(&mut self, reading: Reading) {
        if let (0, Activity::Waiting(state)) = (self.readings, reading.activity) {
            self.first = Some(state);
        }
        self.readings += 1;
        self.span(reading);
    }

    fn span(&mut self, reading: Reading) {
        let ran = reading.counters.ran_ns.saturating_sub(self.last.counters.ran_ns);
        let queued = reading.counters.queued_ns.saturating_sub(self.last.counters.queued_ns);
        let busy = ran.saturating_add(queued).saturating_add(self.ahead_ns);
        let passed = reading.at_ns.saturating_sub(self.last.at_ns);
        let waited = passed.saturating_sub(busy);
        // A lagging counter makes a running thread appear to wait, and the next span too short.
        let short = busy.saturating_sub(passed);
        let corrected = self.open_ns.min(short);
        self.open_ns -= corrected;
        self.ahead_ns = short - corrected;
        match (self.last.activity, reading.activity) {
            (Activity::Runnable, Activity::Runnable) => self.open_ns += waited,
            (Activity::Waiting(one), Activity::Runnable) | (Activity::Runnable, Activity::Waiting(one)) => {
                self.waits.add(one, waited);
            }
            (Activity::Waiting(before), Activity::Waiting(after)) => {
                self.waits.add(before, waited / 2);
                self.waits.add(after, waited - waited / 2);
            }
        }
        self.last = reading;
    }

    /// The thread ended at `at_ns` with these final counters.
    pub fn end(mut self, at_ns: u64, counters: Counters, delays: Option<Delays>) -> Times {
        let at_ns = at_ns.max(self.begun_ns);
        // A thread is running when it ends. A reading may have been taken after its record.
        self.last.at_ns = self.last.at_ns.min(at_ns);
        self.span(Reading { at_ns, counters, activity: Activity::Runnable });
        self.times(delays)
    }

    /// The thread ended at an unknown time before `by_ns`.
    pub fn vanish(mut self, by_ns: u64) -> Times {
        let unseen = by_ns.saturating_sub(self.last.at_ns) / 2;
        self.last.at_ns = self.last.at_ns.max(self.begun_ns);
        let mut times = self.times(None);
        times.add(State::Unseen, unseen);
        times
    }

    fn times(mut self, delays: Option<Delays>) -> Times {
        let counters = self.last.counters;
        let mut times = Times { excess_ns: self.ahead_ns, ..Times::default() };
        times.add_run(counters, counters.ran_ns);
        times.add(State::Queue, counters.queued_ns);
        self.close();
        if let Some(delays) = delays {
            self.count_delays(delays);
        }
        times.add_all(&self.waits);
        times
    }

    /// Divides open time in proportion to the other waits. If no reading found a wait, it is unseen.
    fn close(&mut self) {
        let (open, waits) = (self.open_ns, self.waits);
        let mut left = open;
        for state in WAITS {
            let share = part(open, waits.of(state), waits.sum());
            self.waits.add(state, share);
            left -= share;
        }
        let most =
            WAITS.into_iter().max_by_key(|state| waits.of(*state)).filter(|state| waits.of(*state) > 0);
        self.waits.add(most.unwrap_or(State::Unseen), left);
        self.open_ns = 0;
    }

    /// Time blocked on disks and faults is known exactly: readings only divide the rest.
    fn count_delays(&mut self, delays: Delays) {
        let waited = self.waits.sum();
        let io = delays.io_ns.min(waited);
        let fault = delays.fault_ns.min(io);
        let others = [State::Lock, State::Join, State::Sleep, State::Stopped, State::Unseen];
        let before: u64 = others.iter().map(|state| self.waits.of(*state)).sum();
        let mut times = Times::default();
        times.add(State::Fault, fault);
        times.add(State::Io, io - fault);
        let rest = if self.waits.of(State::Unseen) > 0 { State::Unseen } else { State::Sleep };
        let mut left = waited - io;
        for state in others {
            let share = part(waited - io, self.waits.of(state), before);
            times.add(state, share);
            left -= share;
        }
        times.add(rest, left);
        self.waits = times;
    }
}

#[cfg(test)]
#[path = "states/tests.rs"]
mod tests;
