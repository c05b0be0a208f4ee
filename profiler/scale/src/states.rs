//! Microstates: how each thread spent its life, by state [002, *microstate accounting*].
//!
//! Problem: the kernel counts how long a thread ran and how long it was runnable without a CPU. By default it
//! does not count what a thread waits for; that can only be sampled.
//!
//! Algorithm: a [`Reading`] has the kernel's counters and the thread's activity at that moment. The waiting
//! time between two readings is the elapsed time less the time that the thread ran or was runnable; this is
//! exact. The readings at both ends determine the state of that wait. If both found the thread waiting, each
//! gets half of the time. If one found it runnable, the other gets all of it. If both found it runnable, the
//! time stays open, and is finally divided in proportion to the thread's other waits. A thread's start and
//! end come from the kernel's record of the thread, if there is one.
//!
//! Properties: the states of a thread add up to its life without a balancing item; if the kernel's counters
//! exceed the life, the difference is in [`Times::excess_ns`]. Counters may lag by a tick, which the next
//! reading corrects.
//!
//! Limits: the total waiting time is exact. Its division by state is an estimate where states alternate
//! faster than readings are taken. What a thread without a record did after its last reading is unknown:
//! [`State::Unseen`].

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// On a CPU, in user mode.
    User,
    /// On a CPU, in user mode, stalled on memory. Included in `User` if the machine does not count these
    /// stalls.
    Memory,
    /// On a CPU, in kernel mode.
    System,
    /// Runnable, without a CPU.
    Queue,
    /// Waits for a futex (locks, condition variables, barriers), a file lock, a semaphore, or a lock in the
    /// kernel.
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
    /// Unknown: no reading covers that time.
    Unseen,
}

/// The number of states.
pub const COUNT: usize = 11;

impl State {
    /// All states, in the order in which reports show them.
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

    /// The state's name in reports.
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

/// The activity of a thread at the moment of a reading.
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
    /// The part of `io_ns` that was due to major faults.
    pub fault_ns: u64,
}

/// A reading of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The time of the reading.
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
        for (sum, more) in self.ns.iter_mut().zip(other.ns) {
            *sum += more;
        }
        self.excess_ns += other.excess_ns;
    }

    /// Removes up to `ns` from a state; returns how much was removed.
    pub fn take(&mut self, state: State, ns: u64) -> u64 {
        let taken = self.of(state).min(ns);
        self.ns[state as usize] -= taken;
        taken
    }

    /// CPU time: the sum of the three states on a CPU.
    pub fn ran(&self) -> u64 {
        self.of(State::User) + self.of(State::Memory) + self.of(State::System)
    }

    /// Moves the fraction `stalled / cycles` of user time to [`State::Memory`].
    pub fn split_memory(&mut self, stalled: u64, cycles: u64) {
        let memory = share(self.of(State::User), stalled, cycles);
        let memory = self.take(State::User, memory);
        self.add(State::Memory, memory);
    }

    /// Adds CPU time, divided into user and system time in the ratio of the kernel's two counters. If both
    /// counters are 0, all is user time.
    fn add_run(&mut self, counters: Counters, ran_ns: u64) {
        let system = share(ran_ns, counters.system, counters.user.saturating_add(counters.system));
        self.add(State::System, system);
        self.add(State::User, ran_ns - system);
    }
}

/// `amount * numerator / denominator`, at most `amount`; 0 if the denominator is 0.
fn share(amount: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(amount) * u128::from(numerator);
    let share = product.checked_div(u128::from(denominator)).unwrap_or(0);
    u64::try_from(share).unwrap_or(amount).min(amount)
}

/// The states in which a thread waits.
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
    /// By how much the counters were ahead of the clock at the last reading; subtracted from the next span.
    ahead_ns: u64,
    /// The waiting state of the first reading, if that found the thread waiting.
    first: Option<State>,
    /// The number of readings.
    pub readings: u64,
}

impl Thread {
    /// A thread that started at `at_ns`. A thread counts as runnable at its start.
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

    /// The time of its start by present knowledge; `None` before the first reading.
    pub fn began(&self) -> Option<u64> {
        (self.readings > 0).then_some(self.begun_ns)
    }

    /// Corrects the time of its start. The time before the first reading becomes longer or shorter
    /// accordingly.
    pub fn correct(&mut self, began_ns: u64) {
        let earlier = self.begun_ns.saturating_sub(began_ns);
        let later = began_ns.saturating_sub(self.begun_ns);
        let mut excess = later;
        match self.first {
            // The time before the first reading was attributed to the state that the reading found.
            Some(state) => {
                self.waits.add(state, earlier);
                excess -= self.waits.take(state, excess);
            }
            None => self.open_ns += earlier,
        }
        let open = self.open_ns;
        self.open_ns = open.saturating_sub(excess);
        self.ahead_ns += excess.saturating_sub(open);
        self.begun_ns = began_ns;
        if self.readings == 0 {
            (self.last.at_ns, self.open_ns, self.ahead_ns) = (began_ns, 0, 0);
        }
    }

    /// The time of the last reading, or of the start before the first one.
    pub fn last_at_ns(&self) -> u64 {
        self.last.at_ns
    }

    /// The kernel's counters at the last reading.
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

    /// Attributes the time from the last reading to this one.
    fn span(&mut self, reading: Reading) {
        let ran = reading.counters.ran_ns.saturating_sub(self.last.counters.ran_ns);
        let queued = reading.counters.queued_ns.saturating_sub(self.last.counters.queued_ns);
        let busy = ran.saturating_add(queued).saturating_add(self.ahead_ns);
        let elapsed = reading.at_ns.saturating_sub(self.last.at_ns);
        let waited = elapsed.saturating_sub(busy);
        // A counter that lags makes a running thread appear to wait, and the counters exceed the next span.
        // So the excess is first taken from earlier waits that are still open.
        let excess = busy.saturating_sub(elapsed);
        let corrected = self.open_ns.min(excess);
        self.open_ns -= corrected;
        self.ahead_ns = excess - corrected;
        match (self.last.activity, reading.activity) {
            (Activity::Runnable, Activity::Runnable) => self.open_ns += waited,
            (Activity::Waiting(state), Activity::Runnable)
            | (Activity::Runnable, Activity::Waiting(state)) => {
                self.waits.add(state, waited);
            }
            (Activity::Waiting(before), Activity::Waiting(after)) => {
                self.waits.add(before, waited / 2);
                self.waits.add(after, waited - waited / 2);
            }
        }
        self.last = reading;
    }

    /// The times of a thread that ended at `at_ns` with these final counters.
    pub fn end(mut self, at_ns: u64, counters: Counters, delays: Option<Delays>) -> Times {
        let at_ns = at_ns.max(self.begun_ns);
        // A thread is running when it ends. A reading may be later than the end that the kernel recorded.
        self.last.at_ns = self.last.at_ns.min(at_ns);
        self.span(Reading { at_ns, counters, activity: Activity::Runnable });
        self.times(delays)
    }

    /// The times of a thread that ended at an unknown time between its last reading and `by_ns`: half of that
    /// time is unseen.
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

    /// Divides the open time in proportion to the other waits. If no reading found the thread waiting, the
    /// open time is unseen.
    fn close(&mut self) {
        let (open, waits) = (self.open_ns, self.waits);
        let mut remainder = open;
        for state in WAITS {
            let added = share(open, waits.of(state), waits.sum());
            self.waits.add(state, added);
            remainder -= added;
        }
        // The remainder is what rounding left, or all if there are no other waits.
        let longest =
            WAITS.into_iter().max_by_key(|state| waits.of(*state)).filter(|state| waits.of(*state) > 0);
        self.waits.add(longest.unwrap_or(State::Unseen), remainder);
        self.open_ns = 0;
    }

    /// Replaces the estimated time blocked on disks and faults by the exact one from delay accounting. The
    /// rest of the waiting time is divided among the other states in proportion to their estimates.
    fn count_delays(&mut self, delays: Delays) {
        let waited = self.waits.sum();
        let io = delays.io_ns.min(waited);
        let fault = delays.fault_ns.min(io);
        let others = [State::Lock, State::Join, State::Sleep, State::Stopped, State::Unseen];
        let estimated: u64 = others.iter().map(|state| self.waits.of(*state)).sum();
        let mut times = Times::default();
        times.add(State::Fault, fault);
        times.add(State::Io, io - fault);
        let state_of_remainder = if self.waits.of(State::Unseen) > 0 { State::Unseen } else { State::Sleep };
        let mut remainder = waited - io;
        for state in others {
            let added = share(waited - io, self.waits.of(state), estimated);
            times.add(state, added);
            remainder -= added;
        }
        times.add(state_of_remainder, remainder);
        self.waits = times;
    }
}

#[cfg(test)]
#[path = "states/tests.rs"]
mod tests;
