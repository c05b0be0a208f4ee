//! `commonhold run`: one thread that waits for the clock, for signals and for clients.

mod as_contract;
mod clients;
mod descriptors;
mod dry_run;
mod held;
mod hold;
mod holdings;
mod kept_tickets;
mod outlook;
mod requests;
mod service;
mod start;
mod tickets;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Instant;

use commonhold_client::Why;
use commonhold_client::wire::{Asked, Call, Refusal};
use commonhold_contract::Scheme;
use commonhold_live::caretaker::Caretaker;
use commonhold_live::journal::ProcessKey;
use commonhold_live::names::SystemNames;
use commonhold_live::observe::topology;
use commonhold_live::{HeldBy, affinity, clock};
use commonhold_machine::CpuSet;
use commonhold_policy::Time;
use commonhold_policy::rights::Change;
use commonhold_report::words::{self, steps};
use commonhold_steward::ALARM_NS;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::cli::Run;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::protocol::AwaitReply;
use crate::signals::Signals;
use clients::{Caller, Clients};
use held::Held;
use hold::Hold;
pub(crate) use outlook::Outlook;
use requests::{About, Answer};
use service::Service;

/// The signals that it reads: to stop, and to reload (SIGHUP).
const TOLD_BY: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// How often to look whether CPUs came or went.
const HOTPLUG_NS: Time = 1_000_000_000;

/// How soon it is looked again whether who enters a unit is in its scope.
const ENTERING_NS: Time = 10_000_000;

/// The daemon stays so long on a CPU.
const MOVES_NS: Time = 100_000_000;

/// What an event is about; clients are numbered upwards from here.
const CLOCK: u64 = 0;
const SIGNALS: u64 = 1;
const LISTENER: u64 = 2;
const CARETAKER: u64 = 3;
/// A backend has a reason to look before it is time.
const ALARM: u64 = 4;
const CLIENTS: u64 = 16;

pub(crate) fn main(args: &Run) -> Result<Exit, Failure> {
    if args.dry_run { dry_run::main(args) } else { start::start(args)?.run() }
}

/// The hidden command: lives until its daemon is gone, then undoes what that did.
pub(crate) fn caretaker(args: &crate::cli::Caretaker) -> Exit {
    // SAFETY: the daemon that started this process put the pipe's descriptor there, for it alone.
    let pipe = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(args.pipe) };
    let undone = commonhold_live::caretaker::main(&args.journal, pipe);
    if undone.problems.is_empty() { Exit::Ok } else { Exit::System }
}

/// Waiting for everything at once.
struct Waits {
    epoll: OwnedFd,
    clock: OwnedFd,
}

impl Waits {
    fn new() -> Result<Waits, Failure> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| refused("wait for events", e))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let clock =
            timerfd_create(TimerfdClockId::Monotonic, flags).map_err(|e| refused("open a timer", e))?;
        let waits = Waits { epoll, clock };
        waits.add(waits.clock.as_fd(), CLOCK)?;
        Ok(waits)
    }

    fn add(&self, fd: BorrowedFd<'_>, about: u64) -> Result<(), Failure> {
        let flags = epoll::EventFlags::IN;
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(about), flags)
            .map_err(|e| refused("wait for a file", e))
    }

    /// Whether to wait until a client takes more, or for what it says; where it says no more, until it is gone.
    fn listen_or_write(&self, fd: BorrowedFd<'_>, about: u64, write: bool, ended: bool) {
        let flags = match (write, ended) {
            (true, _) => epoll::EventFlags::OUT,
            (false, false) => epoll::EventFlags::IN,
            (false, true) => epoll::EventFlags::empty(),
        };
        // A client that is gone meanwhile needs no waiting for.
        let _ = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(about), flags);
    }

    /// Wakes up at a moment of the daemon's clock; one that has passed is now.
    fn wake_at(&self, at: Time) -> Result<(), Failure> {
        let ns = at.saturating_sub(clock::now()).max(1);
        let value = Timespec {
            tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timer = Itimerspec { it_interval, it_value: value };
        timerfd_settime(&self.clock, TimerfdTimerFlags::empty(), &timer)
            .map_err(|e| refused("set a timer", e))?;
        Ok(())
    }

    /// What happened.
    fn wait(&self) -> Result<Vec<u64>, Failure> {
        let mut events = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(events.iter().map(|event| event.data.u64()).collect()),
            Err(e) => Err(refused("wait for events", e)),
        }
    }
}

fn refused(what: &str, e: rustix::io::Errno) -> Failure {
    Failure::new(Exit::System, format!("cannot {what}: {e}"))
}

/// Which CPUs the machine had when it was looked at last.
struct Hotplug {
    looked: Time,
    online: CpuSet,
    /// Whether it was said that they cannot be looked at.
    told: bool,
}

/// A running daemon.
struct Daemon<'a> {
    args: &'a Run,
    hold: Hold,
    about: About,
    caretaker: Caretaker,
    clients: Clients,
    held: Held,
    /// Clients that enter a unit and wait for their scope, with their processes and answers.
    entering: Vec<(u64, ProcessKey, Vec<u8>)>,
    signals: Signals,
    /// The service manager that has started this, if one has.
    service: Service,
    /// Files that the backend keeps open for every unit.
    files_each: usize,
    waits: Waits,
    next: Time,
    ends: Option<Time>,
    hotplug: Hotplug,
    /// Where this process may run.
    usable: CpuSet,
    /// The backend in force when it was said last.
    held_by: &'static str,
    /// When the last step was.
    stepped_at: Time,
    /// Moves to another CPU, and when the last one was.
    moves: usize,
    moved_at: Time,
    /// Failed looks in a row.
    blind: u32,
    /// Keeps a second daemon out of the directory.
    _lock: commonhold_live::lock::Lock,
}

impl Daemon<'_> {
    fn run(mut self) -> Result<Exit, Failure> {
        self.waits.add(self.signals.as_fd(), SIGNALS)?;
        self.waits.add(self.clients.listener(), LISTENER)?;
        self.waits.add(self.caretaker.ended(), CARETAKER)?;
        if let Some(alarm) = self.hold.backend().alarm() {
            self.waits.add(alarm, ALARM)?;
        }
        self.step()?;
        output::say("holding; stop with Ctrl-C or SIGTERM, reload with SIGHUP");
        self.service.ready(&self.holds());
        let result = self.serve();
        self.service.ending();
        if let Some(problem) = self.hold.keep_last() {
            output::complain(&format!("problem: {problem}"));
        }
        // Whatever ended it: what was done is undone, and the caretaker says what that was.
        let Daemon { hold, caretaker, .. } = self;
        let begun = Instant::now();
        let undone = caretaker.finish(hold.end())?;
        output::say(&format!("{undone} in {} ms", begun.elapsed().as_millis()));
        for notice in &undone.notices {
            output::say(&format!("note: {notice}"));
        }
        for problem in &undone.problems {
            output::complain(&format!("problem: {problem}"));
        }
        result?;
        Ok(if undone.problems.is_empty() { Exit::Ok } else { Exit::System })
    }

    fn serve(&mut self) -> Result<(), Failure> {
        loop {
            self.service.alive();
            self.forget_gone();
            if !self.entering.is_empty() {
                self.next = self.next.min(self.stepped_at + ENTERING_NS);
            }
            let wakes = [Some(self.next), self.ends, self.held.next()];
            self.waits.wake_at(wakes.into_iter().flatten().min().unwrap_or(self.next))?;
            for about in self.waits.wait()? {
                match about {
                    CLOCK => {}
                    SIGNALS => {
                        if self.told()? {
                            return Ok(());
                        }
                    }
                    LISTENER => self.accept()?,
                    CARETAKER => self.keep_caretaker()?,
                    ALARM => {
                        self.hold.backend().hear();
                        self.next = self.next.min(self.stepped_at + ALARM_NS);
                    }
                    client => self.serve_client(client - CLIENTS)?,
                }
            }
            let now = clock::now();
            if self.ends.is_some_and(|ends| now >= ends) {
                return Ok(());
            }
            if now >= self.next {
                self.step()?;
            }
            self.answer_waiting()?;
        }
    }

    /// Has the next turn take back what clients held that are gone, at once.
    fn forget_gone(&mut self) {
        let gone = self.clients.take_gone();
        if gone.is_empty() {
            return;
        }
        for client in gone {
            self.held.gone(client);
        }
        if !self.held.orphans().is_empty() {
            self.next = self.next.min(clock::now());
        }
    }

    /// Has the next turn take back what nobody holds any more. What cannot be kept is tried again by the turn after it.
    fn take_back_orphans(&mut self) {
        let orphans = self.held.orphans();
        if orphans.is_empty() {
            return;
        }
        let changes: Vec<Change> = orphans.iter().map(|number| Change::Cancel { number: *number }).collect();
        if self.hold.change_all(&changes).is_ok() {
            for number in orphans {
                self.held.taken_back(number);
                output::say(&format!("tickets the program that held {number} is gone"));
            }
        }
    }

    /// Answers the clients that waited for what is known now, or long enough, and what they asked for meanwhile.
    fn answer_waiting(&mut self) -> Result<(), Failure> {
        while let Some((id, answer)) = self.held.due(clock::now()) {
            let message = requests::message(requests::reply(&answer));
            self.clients.answer(id, &message, None);
            self.serve_client(id)?;
        }
        let roster = self.hold.backend().roster();
        let entering = std::mem::take(&mut self.entering);
        let (wait, entered): (Vec<_>, Vec<_>) =
            entering.into_iter().partition(|(_, key, _)| roster.is_entering(*key));
        self.entering = wait;
        for (id, _, message) in entered {
            self.clients.answer(id, &message, None);
            self.serve_client(id)?;
        }
        Ok(())
    }

    /// Moves on to another CPU. What the daemon itself uses comes off the unit on whose CPU it runs, and a kernel leaves it
    /// where it was as long as every CPU is busy: so it goes round, and its cost is everybody's in equal parts. It may run
    /// anywhere again at once: on a CPU that a real-time task keeps for itself it would never wake up. Not after every step:
    /// for a move it waits until the kernel has stopped what runs there.
    fn move_on(&mut self) {
        if self.stepped_at < self.moved_at.saturating_add(MOVES_NS) {
            return;
        }
        self.moved_at = self.stepped_at;
        self.moves += 1;
        let cpus = &self.hold.machine().cpus;
        let here: CpuSet = [cpus[self.moves % cpus.len()].id].into_iter().collect();
        // Refused at worst because the CPU is gone: then it stays where it is.
        if affinity::set(0, &here).is_ok() {
            let _ = affinity::set(0, &self.usable);
        }
    }

    /// One step of the hold. A look that fails is tried again; after a hundred in a row the daemon gives up.
    fn step(&mut self) -> Result<(), Failure> {
        self.watch_hotplug();
        self.take_back_orphans();
        self.stepped_at = clock::now();
        match self.hold.step() {
            Ok(stepped) => {
                self.blind = 0;
                self.next = stepped.next;
                if self.hold.scheme() != Scheme::Smp {
                    self.move_on();
                }
                for problem in stepped.new_problems {
                    output::complain(&format!("problem: {problem}"));
                }
                self.held.book(self.hold.decided(), self.hold.traded());
                for change in self.hold.decided() {
                    output::say(&format!("tickets {}", words::rights(self.hold.contract(), change)));
                }
                for trade in self.hold.traded() {
                    output::say(&format!("tickets {}", words::trade(self.hold.contract(), trade)));
                }
                if self.args.verbose {
                    self.tell(&stepped.plan);
                }
                self.tell_of_another_backend();
                Ok(())
            }
            Err(e) => {
                self.blind += 1;
                if self.blind == 1 {
                    output::complain(&format!("problem: {e}"));
                }
                self.next = clock::now() + 100_000_000;
                if self.blind >= 100 { Err(e.into()) } else { Ok(()) }
            }
        }
    }

    fn tell(&self, plan: &commonhold_policy::Plan) {
        for (action, reason) in steps(plan) {
            let (what, why) = words::words(self.hold.contract(), action, reason);
            output::say(&format!("{what}: {why}"));
        }
    }

    /// Says when another backend holds than the last time.
    fn tell_of_another_backend(&mut self) {
        let HeldBy { backend, instead } = self.hold.backend().held_by();
        if backend == self.held_by {
            return;
        }
        self.held_by = backend;
        let why = instead
            .map_or_else(|| "again".to_owned(), |instead| format!("not by {}: {}", instead.of, instead.why));
        output::say(&format!("cpu     held by the {backend} backend ({why})"));
    }

    fn watch_hotplug(&mut self) {
        let now = clock::now();
        if now < self.hotplug.looked.saturating_add(HOTPLUG_NS) {
            return;
        }
        self.hotplug.looked = now;
        let root = Path::new("/");
        let changed = topology::online(root).and_then(|online| {
            if online == self.hotplug.online { Ok(None) } else { Ok(Some((topology::read(root)?, online))) }
        });
        match changed {
            Ok(Some((machine, online))) => {
                output::say(&format!("CPUs changed: now {online}"));
                self.hotplug = Hotplug { looked: now, online, told: false };
                self.hold.set_machine(machine);
            }
            Err(e) if !self.hotplug.told => {
                let known = &self.hotplug.online;
                output::complain(&format!(
                    "problem: cannot read which CPUs are online: {e}; the contract is held as if these were still {known}"
                ));
                self.hotplug.told = true;
            }
            Ok(None) | Err(_) => {}
        }
    }

    /// Signals; whether to stop.
    fn told(&mut self) -> Result<bool, Failure> {
        while let Some(came) = self.signals.next() {
            match came.signal {
                libc::SIGHUP => {
                    self.service.reloading();
                    self.reload()?;
                    self.service.ready(&self.holds());
                }
                _ => return Ok(true),
            }
        }
        Ok(false)
    }

    /// What is held, in a line.
    fn holds(&self) -> String {
        format!("holding {} by the {} backend", self.about.contract_path, self.held_by)
    }

    /// All or nothing: a contract that does not hold leaves the one in force as it is.
    fn reload(&mut self) -> Result<(), Failure> {
        let names = SystemNames::new();
        let loaded = start::load_with_scheme(self.args, self.hold.machine(), &names).and_then(|loaded| {
            descriptors::make_room(loaded.0.contract.units.len(), self.files_each)?;
            Ok(loaded)
        });
        match loaded {
            Ok((loaded, text)) => {
                output::complain_of(&loaded.warnings);
                let machine = self.hold.machine().clone();
                self.hold.reload(loaded.contract, machine);
                self.about.contract_text = text;
                for note in self.hold.ended_changes() {
                    output::say(&note);
                }
                self.step()?;
                output::say(&format!(
                    "reloaded {}; the scheme is {}",
                    self.about.contract_path,
                    self.hold.scheme()
                ));
            }
            Err(failure) => {
                output::complain(&format!("{failure}\nnot reloaded: the contract in force stays in force"));
                self.hold.note(format!("{} was not reloaded: {failure}", self.about.contract_path));
            }
        }
        Ok(())
    }

    fn keep_caretaker(&mut self) -> Result<(), Failure> {
        if self.caretaker.keep()? {
            output::complain("problem: the caretaker was killed; another one has taken its place");
            self.hold.backend().roster_mut().leave_out(&[self.caretaker.pid()]);
            self.waits.add(self.caretaker.ended(), CARETAKER)?;
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), Failure> {
        let backend = self.hold.backend();
        let key = |pid| backend.roster_mut().procfs().stat(pid).ok().flatten().map(|stat| stat.key);
        let entering = self.entering.iter().map(|(id, ..)| *id);
        if let Some(id) = self.clients.accept(key, || self.held.kept().into_iter().chain(entering).collect())
            && let Some(stream) = self.clients.stream(id)
        {
            self.waits.add(stream, CLIENTS + id)?;
        }
        Ok(())
    }

    /// The answer to a request; `None`: it is not known yet.
    fn answer(&mut self, id: u64, caller: &Caller, request: &[u8]) -> Result<Option<Answer>, Failure> {
        let call = match requests::read(request) {
            Ok(call) => call,
            Err(answer) => return Ok(Some(answer)),
        };
        match &call {
            Call::Change(asked) => {
                let holds = matches!(asked, Asked::Offer { while_connected: true, .. });
                let taken =
                    self.may_be_kept(id, holds).and_then(|()| tickets::take(&mut self.hold, caller, asked));
                match taken {
                    Ok(Change::Offer { bid }) => self.held.take(bid, holds.then_some(id)),
                    Ok(_) => {}
                    Err(refusal) => return Ok(Some(requests::refused(&refusal))),
                }
                self.step()?;
            }
            Call::Await { number, at_most_ns } => {
                let (number, waits) = (*number, *at_most_ns != Some(0));
                let found = match self.held.outcome(number) {
                    Some(state) => Ok((state, false)),
                    None => tickets::now(&self.hold, number)
                        .and_then(|state| self.may_be_kept(id, waits).map(|()| (state, waits))),
                };
                return Ok(match found {
                    Ok((state, true)) => {
                        let until = at_most_ns.map(|ns| clock::now().saturating_add(ns));
                        self.held.wait(id, number, until, state);
                        self.clients.wait(id);
                        None
                    }
                    Ok((state, false)) => {
                        let answered = requests::reply(&AwaitReply { number, state });
                        Some(Answer::of(requests::message(answered)))
                    }
                    Err(refusal) => Some(requests::refused(&refusal)),
                });
            }
            _ => {}
        }
        if requests::wants_look(&mut self.hold, &call) {
            self.step()?;
        }
        let answer = requests::answer(&mut self.hold, &self.about, caller, call);
        if answer.step_first {
            // A process that enters is under the unit's orders before it runs another instruction.
            self.step()?;
            // It may begin its program once systemd has made a scope for it.
            if let Some(key) = caller.key.filter(|key| self.hold.backend().roster().is_entering(*key)) {
                self.entering.push((id, key, answer.message));
                self.clients.wait(id);
                return Ok(None);
            }
        }
        Ok(Some(answer))
    }

    /// Whether there is room for a client to hold an offer or to wait, if it `wants` to.
    fn may_be_kept(&self, id: u64, wants: bool) -> Result<(), Refusal> {
        if !wants || self.clients.may_be_kept(id, &self.held.kept()) {
            return Ok(());
        }
        let message = "so many clients hold offers or wait for one that there is no room for another; make the offer without \
                       `while_connected`, or ask again later";
        Err(requests::refuse(&Why::TooManyClients, message.to_owned()))
    }

    fn serve_client(&mut self, id: u64) -> Result<(), Failure> {
        self.clients.flush(id);
        self.clients.read(id);
        while let Some((caller, request)) = self.clients.next_request(id) {
            match self.answer(id, &caller, &request)? {
                Some(Answer { message, passed, .. }) => self.clients.answer(id, &message, passed),
                None => self.clients.flush(id),
            }
        }
        self.clients.flush(id);
        if let Some(stream) = self.clients.stream(id) {
            let (write, ended) = (self.clients.is_waited_for(id), self.clients.has_ended(id));
            self.waits.listen_or_write(stream, CLIENTS + id, write, ended);
        }
        Ok(())
    }
}
