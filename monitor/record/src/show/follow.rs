//! Follows the scheduler's events: what ran on each CPU, and what each thread did.
//!
//! Problem. Events are changes of state, and some may be missing: the kernel lost them, or a thread was
//! already running or asleep when the recording began.
//!
//! Algorithm. Each CPU and each thread has a state, which may be unknown. An event that contradicts a state
//! shows that events are missing: the state becomes unknown, no interval is made of it, and the inconsistency
//! is counted. The event itself is believed. The first thread that leaves a CPU has run there since the first
//! event of all, as otherwise there would have been an event of this CPU.
//!
//! A *loan* is the time for which a CPU runs threads of one unit, the borrower, without a break, while
//! the accounts have it as another unit's home CPU. A *call-back* begins when a thread of the owner wakes,
//! none of the owner's home CPUs is idle, and a borrower is on at least one of them. It ends when a thread
//! of the owner runs on a CPU that a borrower had. The accounts count loans and call-backs by their own
//! rules, so their sums differ somewhat.
//!
//! Properties. The bursts of a CPU do not overlap, and neither do the loans of a CPU or the call-backs of a
//! unit. Memory is bounded, whatever the events are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use commonhold_machine::CpuSet;
use commonhold_recording::{Event, Left, Thread, TimedEvent, UnitSample};
use commonhold_report::status::is_within;

/// CPU numbers are below this, as in lists of CPUs.
const CPUS_MAX: u32 = 65_536;
/// Threads whose state is kept at a time.
const THREADS_MAX: usize = 1 << 20;
/// Different paths of units that are kept.
pub(super) const UNITS_MAX: usize = 1 << 16;
/// Home CPUs of all units that are read from a sample; a CPU occurs once for each level of units.
const HOMES_MAX: usize = 1 << 20;
/// The longest name of a thread that is kept, in bytes: the kernel's have 15.
const NAME_BYTES_MAX: usize = 64;
/// The longest list of a unit's home CPUs that is read, in bytes. A list of all even CPUs is shorter.
const HOMES_BYTES_MAX: usize = 256 << 10;
/// The longest path of a unit that is kept, in bytes.
pub(super) const PATH_BYTES_MAX: usize = 1024;
/// The unit of threads whose unit is not kept.
pub(super) const FURTHER_UNITS: &str = "(further units)";

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) tid: u32,
    /// 0 if unknown.
    pub(super) pid: u32,
    /// Empty if unknown.
    pub(super) name: Rc<str>,
    /// The path of its unit; empty if it is in no unit, or in an unknown one.
    pub(super) unit: Rc<str>,
}

/// What came of the events. Times are in ns since the recording began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// A thread was seen, or more became known of it.
    Seen(Seen),
    /// A thread ran.
    Burst(Burst),
    /// A thread waited for a CPU.
    Wait(Wait),
    /// A thread slept.
    Sleep(Sleep),
    /// A thread handed a request to a disk.
    Transfer { who: Who, bytes: u32, write: bool },
    /// A loan began. Its first burst follows, and may have no length.
    LoanBegan(Loan),
    /// A loan ended.
    LoanEnded(Loan, u64),
    /// A call-back ended. The burst that answers it follows, unless its end is missing.
    CallBack(CallBack),
}

/// A thread that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) who: Who,
    pub(super) at_ns: u64,
    /// Whether it was not seen in this unit before.
    pub(super) is_new: bool,
}

/// The time for which a thread ran on a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Burst {
    pub(super) who: Who,
    pub(super) cpu: u32,
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    /// Why it ended; `None` at the end of the recording.
    pub(super) left: Option<Left>,
    /// The loan of which it is a part.
    pub(super) loan: Option<Loan>,
    /// Whether it is the loan's first.
    pub(super) begins_loan: bool,
    /// The number of the call-back that it answers.
    pub(super) answers: Option<u64>,
}

/// The time for which a thread was runnable without a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) who: Who,
    /// The CPU that it got.
    pub(super) cpu: u32,
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    pub(super) after: After,
}

/// How a wait for a CPU began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// The thread was woken.
    Wake,
    /// The thread was preempted.
    Preemption,
    /// The thread is new, and was woken for the first time.
    Fork,
}

/// The time for which a thread slept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sleep {
    pub(super) who: Who,
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    /// Whether no signal could wake it.
    pub(super) is_blocked: bool,
}

/// A CPU on loan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loan {
    /// Unique among loans and call-backs.
    pub(super) number: u64,
    pub(super) cpu: u32,
    pub(super) lender: Rc<str>,
    pub(super) borrower: Rc<str>,
    pub(super) begin_ns: u64,
}

/// A call-back of a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallBack {
    /// Unique among loans and call-backs.
    pub(super) number: u64,
    pub(super) unit: Rc<str>,
    /// The CPU that the unit got.
    pub(super) cpu: u32,
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
}

/// How the events contradicted each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub(super) struct Inconsistencies {
    /// Switches that must have happened without an event.
    pub(super) switches: u64,
    /// Wake-ups that must have happened without an event.
    pub(super) wake_ups: u64,
    /// Events with a CPU number that no machine has.
    pub(super) impossible: u64,
}

/// The state of CPUs and threads.
#[derive(Debug, Default)]
pub(super) struct Follower {
    cpus: BTreeMap<u32, Cpu>,
    threads: HashMap<u32, Followed>,
    units: BTreeSet<Rc<str>>,
    /// The unit of each home CPU.
    homes: BTreeMap<u32, Rc<str>>,
    owners: BTreeMap<Rc<str>, Owner>,
    numbers: u64,
    /// The times of the first and the last event.
    first_ns: Option<u64>,
    last_ns: u64,
    inconsistencies: Inconsistencies,
}

#[derive(Debug, Default)]
struct Cpu {
    occupant: Occupant,
    since_ns: u64,
    /// The call-back that the occupant answers.
    answers: Option<u64>,
    /// The last loan, and its end; it goes on if the next burst begins then.
    loan: Option<(Loan, u64)>,
    /// Whether the last thread was a borrower's.
    was_lent: bool,
}

#[derive(Debug, Default)]
enum Occupant {
    /// Before the first event.
    #[default]
    Unseen,
    /// Unknown since an event is missing.
    Unknown,
    Idle,
    Thread(Who),
}

#[derive(Debug)]
struct Followed {
    who: Who,
    state: State,
    is_seen: bool,
    /// When it was last announced.
    announced_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Unknown,
    /// Forked, and not yet woken for the first time.
    New,
    Running(u32),
    Ready(u64, After),
    Asleep {
        since_ns: u64,
        is_blocked: bool,
    },
}

/// A unit with home CPUs.
#[derive(Debug, Default)]
struct Owner {
    cpus: Vec<u32>,
    /// The call-back that is under way: when it began, and the thread that was woken.
    pending: Option<(u64, u32)>,
}

impl Follower {
    /// What was found so far to be missing.
    pub(super) fn inconsistencies(&self) -> Inconsistencies {
        self.inconsistencies
    }

    /// The thread of this number now.
    pub(super) fn who(&mut self, tid: u32) -> Who {
        self.followed(tid).who.clone()
    }

    /// Takes over the names and units of threads.
    pub(super) fn announce(&mut self, threads: &[Thread], out: &mut Vec<Piece>) {
        for Thread { tid, pid, name, unit, seen_ns } in threads {
            let (name, unit) = (cut(name, NAME_BYTES_MAX).into(), self.unit(unit));
            let who = Who { tid: *tid, pid: *pid, name, unit };
            let followed = self.followed(*tid);
            followed.announced_ns = Some(*seen_ns);
            if followed.is_seen && followed.who == who {
                continue;
            }
            // A new thread's process is unknown; and a thread may have got a new name.
            let is_same = followed.who.unit == who.unit && [0, *pid].contains(&followed.who.pid);
            let is_new = !(std::mem::replace(&mut followed.is_seen, true) && is_same);
            followed.who = who.clone();
            out.push(Piece::Seen(Seen { who, at_ns: *seen_ns, is_new }));
        }
    }

    /// Takes over the units' home CPUs. A CPU of a unit and of its sub-unit is the sub-unit's.
    pub(super) fn sample(&mut self, units: &[UnitSample]) {
        if units.is_empty() {
            return;
        }
        let mut homes: BTreeMap<u32, Rc<str>> = BTreeMap::new();
        let mut owners: BTreeMap<Rc<str>, Owner> = BTreeMap::new();
        let mut left = HOMES_MAX;
        for unit in units.iter().take(UNITS_MAX) {
            let path = self.unit(&unit.path);
            let owned = home_cpus(&unit.owned, left);
            left = left.saturating_sub(owned.len());
            for cpu in owned.iter() {
                let home = homes.entry(cpu).or_insert_with(|| Rc::clone(&path));
                if is_within(&path, home) {
                    *home = Rc::clone(&path);
                }
            }
        }
        for (cpu, home) in &homes {
            owners.entry(Rc::clone(home)).or_default().cpus.push(*cpu);
        }
        for (path, owner) in &mut owners {
            owner.pending = self.owners.get(path).and_then(|before| before.pending);
        }
        (self.homes, self.owners) = (homes, owners);
    }

    /// Takes over an event. Times must not descend.
    pub(super) fn event(&mut self, timed: &TimedEvent, out: &mut Vec<Piece>) {
        let at = timed.at_ns;
        self.first_ns.get_or_insert(at);
        self.last_ns = self.last_ns.max(at);
        match timed.event {
            Event::Switch { cpu, from, left, to } if cpu < CPUS_MAX => {
                self.leave(at, cpu, from, left, out);
                self.enter(at, cpu, to, out);
            }
            Event::Switch { .. } => self.inconsistencies.impossible += 1,
            Event::Wake { thread, .. } => self.wake(at, thread, out),
            Event::Fork { parent, child } => self.fork(at, parent, child),
            Event::Transfer { thread, bytes, write, .. } => {
                out.push(Piece::Transfer { who: self.who(thread), bytes, write });
            }
        }
    }

    /// Ends the bursts and loans that are under way, at this time or that of the last event.
    pub(super) fn end(&mut self, at_ns: u64, out: &mut Vec<Piece>) {
        let at = at_ns.max(self.last_ns);
        for cpu in self.cpus.keys().copied().collect::<Vec<_>>() {
            if let Some(Occupant::Thread(who)) = self.cpus.get(&cpu).map(|cpu| &cpu.occupant) {
                self.burst(who.clone(), cpu, at, None, out);
            }
        }
        for cpu in self.cpus.values_mut() {
            out.extend(cpu.loan.take().map(|(loan, end)| Piece::LoanEnded(loan, end)));
            cpu.occupant = Occupant::Unknown;
        }
    }

    /// A new thread has its parent's name and unit until it is announced. Events are recorded after the
    /// announcement of the threads that were there then, so a new thread may have been announced already.
    fn fork(&mut self, at: u64, parent: u32, child: u32) {
        if let Some(known) = self.threads.get_mut(&child)
            && known.announced_ns.is_some_and(|announced_ns| at <= announced_ns)
        {
            known.state = State::New;
            return;
        }
        let Who { name, unit, .. } = self.who(parent);
        let who = Who { tid: child, pid: 0, name, unit };
        *self.followed(child) = Followed { who, state: State::New, is_seen: false, announced_ns: None };
    }

    /// The thread `from` leaves a CPU.
    fn leave(&mut self, at: u64, cpu: u32, from: u32, left: Left, out: &mut Vec<Piece>) {
        let occupant = std::mem::replace(&mut self.cpus.entry(cpu).or_default().occupant, Occupant::Unknown);
        match occupant {
            Occupant::Thread(who) if who.tid == from => {
                // Its name may have become known meanwhile.
                let who = self.who(from);
                self.burst(who, cpu, at, Some(left), out);
            }
            Occupant::Unseen if from != 0 && self.first_ns < Some(at) => {
                let (who, first_ns) = (self.who(from), self.first_ns.unwrap_or(at));
                self.cpus.entry(cpu).or_default().since_ns = first_ns;
                self.burst(who, cpu, at, Some(left), out);
            }
            Occupant::Thread(other) => {
                self.inconsistencies.switches += 1;
                let other = self.followed(other.tid);
                if matches!(other.state, State::Running(on) if on == cpu) {
                    other.state = State::Unknown;
                }
            }
            Occupant::Idle if from != 0 => self.inconsistencies.switches += 1,
            Occupant::Idle | Occupant::Unseen | Occupant::Unknown => {}
        }
        if from == 0 {
            return;
        }
        let asleep = |is_blocked| State::Asleep { since_ns: at, is_blocked };
        let state = match left {
            Left::Preempted => State::Ready(at, After::Preemption),
            Left::Asleep => asleep(false),
            Left::Blocked => asleep(true),
            Left::Ended => {
                if let Some(ended) = self.threads.remove(&from) {
                    self.end_missed_call_back(from, &ended.who.unit);
                }
                return;
            }
        };
        let followed = self.followed(from);
        followed.state = state;
        let unit = Rc::clone(&followed.who.unit);
        self.end_missed_call_back(from, &unit);
    }

    /// Drops the call-back that a thread began if the thread has left a CPU: the switch with which it got the
    /// CPU has no event, so when the call-back ended is unknown.
    fn end_missed_call_back(&mut self, tid: u32, unit: &str) {
        if let Some(path) = self.owner_of(unit)
            && let Some(owner) = self.owners.get_mut(&path)
        {
            owner.pending.take_if(|(_, woken)| *woken == tid);
        }
    }

    /// The thread `to` gets a CPU.
    fn enter(&mut self, at: u64, cpu: u32, to: u32, out: &mut Vec<Piece>) {
        let (mut occupant, mut answers) = (Occupant::Idle, None);
        if to != 0 {
            let followed = self.followed(to);
            let (who, before) = (followed.who.clone(), followed.state);
            followed.state = State::Running(cpu);
            match before {
                State::Ready(begin_ns, after) => {
                    out.push(Piece::Wait(Wait { who: who.clone(), cpu, begin_ns, end_ns: at, after }));
                }
                State::Asleep { .. } => self.inconsistencies.wake_ups += 1,
                State::Running(other) => {
                    self.inconsistencies.switches += 1;
                    if let Some(other) = self.cpus.get_mut(&other) {
                        other.occupant = Occupant::Unknown;
                    }
                }
                State::New | State::Unknown => {}
            }
            answers = self.answered(at, cpu, &who, out);
            occupant = Occupant::Thread(who);
        }
        let state = self.cpus.entry(cpu).or_default();
        (state.occupant, state.since_ns, state.answers) = (occupant, at, answers);
    }

    fn wake(&mut self, at: u64, tid: u32, out: &mut Vec<Piece>) {
        if tid == 0 {
            return;
        }
        let followed = self.followed(tid);
        let after = match followed.state {
            State::Asleep { since_ns, is_blocked } => {
                let who = followed.who.clone();
                out.push(Piece::Sleep(Sleep { who, begin_ns: since_ns, end_ns: at, is_blocked }));
                After::Wake
            }
            State::New => After::Fork,
            State::Unknown => After::Wake,
            // A thread that is about to sleep, or was preempted then, can be woken without having slept.
            State::Running(_) | State::Ready(..) => return,
        };
        followed.state = State::Ready(at, after);
        let unit = Rc::clone(&followed.who.unit);
        self.call_back(at, tid, &unit);
    }

    /// Begins a call-back if the unit of the thread that woke needs one.
    fn call_back(&mut self, at: u64, tid: u32, unit: &str) {
        let Some(path) = self.owner_of(unit) else { return };
        let Some(owner) = self.owners.get_mut(&path) else { return };
        if owner.pending.is_some() {
            return;
        }
        let occupants = || owner.cpus.iter().filter_map(|cpu| self.cpus.get(cpu)).map(|cpu| &cpu.occupant);
        let is_idle = occupants().any(|occupant| matches!(occupant, Occupant::Idle));
        let is_lent =
            |occupant: &Occupant| matches!(occupant, Occupant::Thread(who) if borrows(&who.unit, &path));
        if !is_idle && occupants().any(is_lent) {
            owner.pending = Some((at, tid));
        }
    }

    /// Ends the call-back that is under way if this thread answers it.
    fn answered(&mut self, at: u64, cpu: u32, who: &Who, out: &mut Vec<Piece>) -> Option<u64> {
        let path = self.owner_of(&who.unit)?;
        let owner = self.owners.get_mut(&path)?;
        let (begin_ns, woken) = owner.pending?;
        let was_lent = self.cpus.get(&cpu).is_some_and(|cpu| cpu.was_lent);
        if was_lent && self.homes.get(&cpu) == Some(&path) {
            owner.pending = None;
            let number = self.numbers;
            self.numbers += 1;
            out.push(Piece::CallBack(CallBack { number, unit: path, cpu, begin_ns, end_ns: at }));
            return Some(number);
        }
        // The thread found a CPU elsewhere.
        if woken == who.tid {
            owner.pending = None;
        }
        None
    }

    /// Ends the burst of a CPU's occupant.
    fn burst(&mut self, who: Who, cpu: u32, end_ns: u64, left: Option<Left>, out: &mut Vec<Piece>) {
        let begin_ns = self.cpus.entry(cpu).or_default().since_ns;
        see(self.followed(who.tid), begin_ns, out);
        let home = self.homes.get(&cpu).filter(|home| borrows(&who.unit, home)).cloned();
        let state = self.cpus.entry(cpu).or_default();
        let mut begins_loan = false;
        let goes_on = |(loan, end): &(Loan, u64)| {
            Some(&loan.lender) == home.as_ref() && loan.borrower == who.unit && *end == begin_ns
        };
        if let Some((loan, end)) = state.loan.take_if(|loan| !goes_on(loan)) {
            out.push(Piece::LoanEnded(loan, end));
        }
        state.was_lent = home.is_some();
        let loan = home.map(|lender| {
            let (loan, end) = state.loan.get_or_insert_with(|| {
                let number = self.numbers;
                self.numbers += 1;
                begins_loan = true;
                let loan = Loan { number, cpu, lender, borrower: Rc::clone(&who.unit), begin_ns };
                out.push(Piece::LoanBegan(loan.clone()));
                (loan, begin_ns)
            });
            *end = end_ns;
            loan.clone()
        });
        let answers = state.answers.take();
        out.push(Piece::Burst(Burst { who, cpu, begin_ns, end_ns, left, loan, begins_loan, answers }));
    }

    /// The unit itself, or the closest one around it, that has home CPUs.
    fn owner_of(&self, unit: &str) -> Option<Rc<str>> {
        let mut paths = std::iter::successors(Some(unit), |path| Some(path.rsplit_once('/')?.0));
        paths.find_map(|path| self.owners.get_key_value(path)).map(|(path, _)| Rc::clone(path))
    }

    fn followed(&mut self, tid: u32) -> &mut Followed {
        if self.threads.len() >= THREADS_MAX && !self.threads.contains_key(&tid) {
            self.threads.clear();
        }
        let unknown = || Followed {
            who: Who { tid, pid: 0, name: "".into(), unit: "".into() },
            state: State::Unknown,
            is_seen: false,
            announced_ns: None,
        };
        self.threads.entry(tid).or_insert_with(unknown)
    }

    /// A path of a unit, kept once; [`FURTHER_UNITS`] if too many are kept already.
    pub(super) fn unit(&mut self, path: &str) -> Rc<str> {
        let path = cut(path, PATH_BYTES_MAX);
        if let Some(known) = self.units.get(path) {
            return Rc::clone(known);
        }
        let path: Rc<str> = if self.units.len() < UNITS_MAX { path.into() } else { FURTHER_UNITS.into() };
        self.units.insert(Rc::clone(&path));
        path
    }
}

/// The home CPUs in a list; none if they may be more than `at_most`. The list is checked first, since a short
/// one may have many CPUs, and may repeat them.
fn home_cpus(list: &str, at_most: usize) -> CpuSet {
    let length = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        usize::try_from(last.checked_sub(first)?).ok()?.checked_add(1)
    };
    let parts = || list.trim().split(',').filter(|part| !part.is_empty());
    let sum = || parts().try_fold(0_usize, |sum, part| sum.checked_add(length(part)?));
    let is_bounded = list.len() <= HOMES_BYTES_MAX && sum().is_some_and(|sum| sum <= at_most);
    if is_bounded { list.parse().unwrap_or_default() } else { CpuSet::default() }
}

/// Tells of a thread for the first time.
fn see(followed: &mut Followed, at_ns: u64, out: &mut Vec<Piece>) {
    if !std::mem::replace(&mut followed.is_seen, true) {
        out.push(Piece::Seen(Seen { who: followed.who.clone(), at_ns, is_new: true }));
    }
}

/// Whether a thread of a unit borrows a CPU whose home unit is `home`. Threads in no unit do not borrow.
fn borrows(unit: &str, home: &str) -> bool {
    !unit.is_empty() && !is_within(unit, home)
}

/// The text up to a length in bytes.
pub(super) fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
