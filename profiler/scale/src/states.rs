//! Microstates: what each thread did with each moment of its life [002, *microstate accounting*].
//!
//! Problem: a kernel counts how long a thread ran and how long it was ready to run. It does not count what a thread waited
//! for otherwise, unless the machine's owner had that switched on. Whoever looks at a thread sees what it waits for at that
//! moment.
//!
//! Algorithm: a [`Look`] has what the kernel counted until then, and what the thread waits for. Between two looks, the time
//! that the thread neither ran nor was ready was waited. That is exact. For what, the looks at both ends say: half of it for
//! each; all of it for the one, if the other found the thread running; and if both did, it is divided in the end as the
//! thread's other waits were. A thread's beginning and end come from the kernel's record of it where there is one.
//!
//! Properties: the states of a thread add up to its life, by what the kernel counted and not by making the last one fit:
//! where the kernel's counts exceed the life, that is [`Times::excess_ns`]. A look's count may lag by a tick; what it lacks is
//! in the next.
//!
//! Limits: how long was waited is exact, and for what is as good as looks are many: among waits that take turns faster than
//! looks come, the parts are estimates. Of a thread without a record, what it did after the last look is not known:
//! [`State::Unseen`].

/// What a thread may be doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// On a CPU, in the program's own code.
    User,
    /// On a CPU, in the program's own code, and the CPU waits for memory. Part of `User` where the machine does not tell.
    Memory,
    /// On a CPU, in the kernel.
    System,
    /// Ready to run, without a CPU.
    Queue,
    /// Waits for a lock: a futex, which locks, condition variables and barriers are made of; a file lock; a semaphore; or
    /// a lock inside the kernel.
    Lock,
    /// Waits for a disk, on request.
    Io,
    /// Waits for a page that it touched.
    Fault,
    /// Waits for a thread or process of the program to end.
    Join,
    /// Waits for anything else: time, a pipe, the network, a terminal.
    Sleep,
    /// Stopped, by a signal or a debugger.
    Stopped,
    /// Nobody saw it.
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

    /// One word for it.
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

/// What a look finds a thread doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// It runs, or is ready to.
    Ready,
    /// It waits, for that.
    Waits(State),
}

/// What the kernel counted for a thread from its beginning on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// On a CPU.
    pub ran_ns: u64,
    /// Ready without a CPU.
    pub queued_ns: u64,
    /// In what units does not matter: only their proportion is used.
    pub user: u64,
    /// The same in the kernel.
    pub system: u64,
}

/// What the kernel counted of waiting, where that is switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delays {
    /// For disks, pages included.
    pub io_ns: u64,
    /// Of these, for pages that were touched.
    pub fault_ns: u64,
}

/// A thread at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// When.
    pub at_ns: u64,
    /// The counts.
    pub counted: Counted,
    /// What it does.
    pub seen: Seen,
}

/// Time by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    ns: [u64; COUNT],
    /// By how much the kernel's counts exceed the lives of threads.
    pub excess_ns: u64,
}

impl Times {
    /// How long it was in that state.
    pub fn of(&self, state: State) -> u64 {
        self.ns[state as usize]
    }

    /// All states together.
    pub fn sum(&self) -> u64 {
        self.ns.iter().sum()
    }

    /// More time in a state.
    pub fn add(&mut self, state: State, ns: u64) {
        self.ns[state as usize] += ns;
    }

    /// The times of another one too.
    pub fn add_all(&mut self, other: &Times) {
        for (mine, more) in self.ns.iter_mut().zip(other.ns) {
            *mine += more;
        }
        self.excess_ns += other.excess_ns;
    }

    /// Takes up to so much out of a state; what there was of it.
    pub fn take(&mut self, state: State, ns: u64) -> u64 {
        let taken = self.of(state).min(ns);
        self.ns[state as usize] -= taken;
        taken
    }

    /// CPU time.
    pub fn ran(&self) -> u64 {
        self.of(State::User) + self.of(State::Memory) + self.of(State::System)
    }

    /// So many of all cycles in the program's own code were spent waiting for memory.
    pub fn split_memory(&mut self, stalled: u64, cycles: u64) {
        let memory = part(self.of(State::User), stalled, cycles);
        let memory = self.take(State::User, memory);
        self.add(State::Memory, memory);
    }

    /// CPU time, divided as the kernel's two counts are; all of it is the program's own where it counted neither.
    fn add_run(&mut self, counted: Counted, ran_ns: u64) {
        let system = part(ran_ns, counted.system, counted.user.saturating_add(counted.system));
        self.add(State::System, system);
        self.add(State::User, ran_ns - system);
    }
}

/// `whole * of / all`, nothing of nothing.
fn part(whole: u64, of: u64, all: u64) -> u64 {
    let part = (u128::from(whole) * u128::from(of)).checked_div(u128::from(all)).unwrap_or(0);
    u64::try_from(part).unwrap_or(whole).min(whole)
}

/// States that a thread waits in.
const WAITS: [State; 6] = [State::Lock, State::Io, State::Fault, State::Join, State::Sleep, State::Stopped];

/// One thread, from its beginning to its last look.
#[derive(Debug, Clone)]
pub struct Thread {
    begun_ns: u64,
    last: Look,
    /// Waited, by what for.
    waits: Times,
    /// Waited, between two looks that both found it running.
    open_ns: u64,
    /// By how much counts were ahead of the clock: what the next span is shorter by.
    ahead_ns: u64,
    /// What it waited for when it was looked at first.
    first: Option<State>,
    /// How many looks there were.
    pub looks: u64,
}

impl Thread {
    /// A thread that began then. It was running, as all do that begin.
    pub fn begin(at_ns: u64) -> Thread {
        let last = Look { at_ns, counted: Counted::default(), seen: Seen::Ready };
        Thread {
            begun_ns: at_ns,
            last,
            waits: Times::default(),
            open_ns: 0,
            ahead_ns: 0,
            first: None,
            looks: 0,
        }
    }

    /// When it began, as far as is known; none if it was never looked at.
    pub fn began(&self) -> Option<u64> {
        (self.looks > 0).then_some(self.begun_ns)
    }

    /// It began then, and not when it was thought to: what it did at first changes by so much.
    pub fn correct(&mut self, began_ns: u64) {
        let earlier = self.begun_ns.saturating_sub(began_ns);
        let later = began_ns.saturating_sub(self.begun_ns);
        let mut left = later;
        match self.first {
            // What it waited until the first look was put down to what that found.
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
        if self.looks == 0 {
            (self.last.at_ns, self.open_ns, self.ahead_ns) = (began_ns, 0, 0);
        }
    }

    /// When it was looked at last.
    pub fn last_at_ns(&self) -> u64 {
        self.last.at_ns
    }

    /// What was counted for it until then.
    pub fn counted(&self) -> Counted {
        self.last.counted
    }

    /// Looks at it once more.
    pub fn look(&mut self, look: Look) {
        if let (0, Seen::Waits(state)) = (self.looks, look.seen) {
            self.first = Some(state);
        }
        self.looks += 1;
        self.span(look);
    }

    fn span(&mut self, look: Look) {
        let ran = look.counted.ran_ns.saturating_sub(self.last.counted.ran_ns);
        let queued = look.counted.queued_ns.saturating_sub(self.last.counted.queued_ns);
        let busy = ran.saturating_add(queued).saturating_add(self.ahead_ns);
        let passed = look.at_ns.saturating_sub(self.last.at_ns);
        let waited = passed.saturating_sub(busy);
        // A count that lags makes a thread that runs look as if it waited, and the next span too short.
        let short = busy.saturating_sub(passed);
        let mended = self.open_ns.min(short);
        self.open_ns -= mended;
        self.ahead_ns = short - mended;
        match (self.last.seen, look.seen) {
            (Seen::Ready, Seen::Ready) => self.open_ns += waited,
            (Seen::Waits(one), Seen::Ready) | (Seen::Ready, Seen::Waits(one)) => self.waits.add(one, waited),
            (Seen::Waits(before), Seen::Waits(after)) => {
                self.waits.add(before, waited / 2);
                self.waits.add(after, waited - waited / 2);
            }
        }
        self.last = look;
    }

    /// It ended then, and these are its last counts.
    pub fn end(mut self, at_ns: u64, counted: Counted, delays: Option<Delays>) -> Times {
        let at_ns = at_ns.max(self.begun_ns);
        // A thread that ends runs. Its record is from that moment, and a look may have come after it.
        self.last.at_ns = self.last.at_ns.min(at_ns);
        self.span(Look { at_ns, counted, seen: Seen::Ready });
        self.times(delays)
    }

    /// It ended by then, and nobody knows when.
    pub fn vanish(mut self, by_ns: u64) -> Times {
        let unseen = by_ns.saturating_sub(self.last.at_ns) / 2;
        self.last.at_ns = self.last.at_ns.max(self.begun_ns);
        let mut times = self.times(None);
        times.add(State::Unseen, unseen);
        times
    }

    fn times(mut self, delays: Option<Delays>) -> Times {
        let counted = self.last.counted;
        let mut times = Times { excess_ns: self.ahead_ns, ..Times::default() };
        times.add_run(counted, counted.ran_ns);
        times.add(State::Queue, counted.queued_ns);
        self.close();
        if let Some(delays) = delays {
            self.count_delays(delays);
        }
        times.add_all(&self.waits);
        times
    }

    /// Divides what is open as the other waits are. Where no look found any, nobody saw it.
    fn close(&mut self) {
        let (open, seen) = (self.open_ns, self.waits);
        let mut left = open;
        for state in WAITS {
            let its = part(open, seen.of(state), seen.sum());
            self.waits.add(state, its);
            left -= its;
        }
        let most = WAITS.into_iter().max_by_key(|state| seen.of(*state)).filter(|state| seen.of(*state) > 0);
        self.waits.add(most.unwrap_or(State::Unseen), left);
        self.open_ns = 0;
    }

    /// What was waited for disks and pages is known: looks only say what of the rest was for what.
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
            let its = part(waited - io, self.waits.of(state), before);
            times.add(state, its);
            left -= its;
        }
        times.add(rest, left);
        self.waits = times;
    }
}

#[cfg(test)]
#[path = "states/tests.rs"]
mod tests;
