//! `commonhold run`: the daemon's event loop, which waits for a timer, signals and clients.
//!
//! A *turn* in this folder is one iteration of the control loop: observe, decide, apply and account. Turns
//! are made when the timer expires, and when a client's request needs one. Between turns the loop answers
//! clients.

mod answers;
mod as_contract;
mod audit;
mod backend_choice;
mod cannot_keep;
mod clients;
mod descriptors;
mod dry_run;
mod fair_queue;
mod held_offers;
mod history;
mod holdings;
mod kept_tickets;
mod monitor;
mod outlook;
mod pace;
mod requests;
mod service;
mod session;
mod start;
mod tickets;
mod verdicts;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use commonhold_client::Why;
use commonhold_client::wire::{Asked, Call, Refusal, Request};
use commonhold_contract::Scheme;
use commonhold_live::ActiveBackend;
use commonhold_live::host::{affinity, clock};
use commonhold_live::observe::names::SystemNames;
use commonhold_live::observe::process::ProcessKey;
use commonhold_live::observe::topology;
use commonhold_live::undo::caretaker::Caretaker;
use commonhold_machine::CpuSet;
use commonhold_policy::Time;
use commonhold_policy::rights::Change;
use commonhold_report::words::{self, steps};
use commonhold_steward::{ALARM_NS, HOTPLUG_NS};
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::cli::Run;
use crate::exit::{Exit, Failure};
use crate::protocol::{AwaitReply, Awaited};
use crate::signals::Signals;
use crate::{load, output};
use answers::Answers;
use audit::{Audit, Record};
use clients::{Arrival, Caller, Clients};
use fair_queue::{FairQueue, Party};
use held_offers::HeldOffers;
use history::History;
use monitor::Monitor;
pub(crate) use outlook::Outlook;
use requests::{About, Answer};
use service::Service;
use session::Session;

/// The signals that the loop handles: SIGHUP reloads, the others stop the daemon.
const SIGNALS_READ: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The interval at which the daemon polls for the systemd scopes of processes that enter a unit.
const ENTERING_NS: Time = 10_000_000;

/// How long clients are served before the loop checks again whether a turn is due.
const SERVING_NS: Time = 2_000_000;

/// The most connections that are accepted in a row before clients are served.
const ACCEPTS_MAX: usize = 64;

/// How long the daemon stays on a CPU at least, before it moves to the next one.
const MOVES_NS: Time = 100_000_000;

/// The time from a failed turn to its retry.
const RETRY_NS: Time = 100_000_000;
/// The time without a successful turn after which the daemon gives up.
const OUTAGE_MAX_NS: Time = 10_000_000_000;

// The numbers by which epoll identifies the sources of events.

/// The timer expired.
const CLOCK: u64 = 0;
/// A signal arrived.
const SIGNALS: u64 = 1;
/// A connection is pending.
const LISTENER: u64 = 2;
/// The caretaker ended.
const CARETAKER: u64 = 3;
/// The backend requests an early turn.
const ALARM: u64 = 4;
/// The number of the first client; later clients have higher numbers.
const CLIENTS: u64 = 16;

pub(crate) fn main(args: &Run) -> Result<Exit, Failure> {
    if args.dry_run { dry_run::main(args) } else { start::start(args)?.run() }
}

/// The hidden command `caretaker`: waits until the daemon that started it has ended, then undoes the daemon's
/// changes.
pub(crate) fn caretaker(args: &crate::cli::Caretaker) -> Exit {
    // SAFETY: the daemon that started this process put the pipe's descriptor there, for it alone.
    let pipe = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(args.pipe) };
    let undone = commonhold_live::undo::caretaker::main(&args.journal, pipe);
    if undone.problems.is_empty() { Exit::Ok } else { Exit::System }
}

/// An epoll instance with a timer.
struct Waits {
    epoll: OwnedFd,
    clock: OwnedFd,
}

impl Waits {
    fn new() -> Result<Waits, Failure> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| system_failure("wait for events", e))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let clock = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|e| system_failure("open a timer", e))?;
        let waits = Waits { epoll, clock };
        waits.add(waits.clock.as_fd(), CLOCK)?;
        Ok(waits)
    }

    fn add(&self, fd: BorrowedFd<'_>, source: u64) -> Result<(), Failure> {
        self.add_with(fd, source, epoll::EventFlags::IN)
    }

    /// Adds a client. Its event is one-shot: once it has occurred, it is disabled until
    /// [`Waits::rearm_client`] is called. Otherwise a client that has sent something but may not be served
    /// yet would wake the loop again and again.
    fn add_client(&self, fd: BorrowedFd<'_>, source: u64) -> Result<(), Failure> {
        self.add_with(fd, source, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT)
    }

    fn add_with(&self, fd: BorrowedFd<'_>, source: u64, flags: epoll::EventFlags) -> Result<(), Failure> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(source), flags)
            .map_err(|e| system_failure("wait for a file", e))
    }

    /// Enables a client's event again. With `has_output`, the loop wakes up when the client can be written
    /// to. Without it, the loop wakes up when the client sends something. With `ended`, the client has shut
    /// down its writing side, and the loop wakes up when the client hangs up.
    fn rearm_client(&self, fd: BorrowedFd<'_>, source: u64, has_output: bool, ended: bool) {
        let flags = match (has_output, ended) {
            (true, _) => epoll::EventFlags::OUT,
            (false, false) => epoll::EventFlags::IN,
            (false, true) => epoll::EventFlags::empty(),
        };
        let flags = flags | epoll::EventFlags::ONESHOT;
        // This fails only if the connection is closed, and then there is no event to wait for.
        let _ = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(source), flags);
    }

    /// Sets the timer to a time of the daemon's clock. A time in the past expires at once.
    fn wake_at(&self, at: Time) -> Result<(), Failure> {
        // 0 would disarm the timer.
        let ns = at.saturating_sub(clock::now()).max(1);
        let value = Timespec {
            tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timer = Itimerspec { it_interval, it_value: value };
        timerfd_settime(&self.clock, TimerfdTimerFlags::empty(), &timer)
            .map_err(|e| system_failure("set a timer", e))?;
        Ok(())
    }

    /// Waits, and returns the sources of the events.
    fn wait(&self) -> Result<Vec<u64>, Failure> {
        let mut events = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(events.iter().map(|event| event.data.u64()).collect()),
            Err(e) => Err(system_failure("wait for events", e)),
        }
    }
}

/// The CPU time of this thread since `begun`, an earlier value of [`clock::thread_cpu_ns`]. Users are charged
/// for CPU time rather than for elapsed time, which includes preemption by other programs.
fn used_since(begun: u64) -> u64 {
    clock::thread_cpu_ns().saturating_sub(begun)
}

fn system_failure(what: &str, e: rustix::io::Errno) -> Failure {
    Failure::new(Exit::System, format!("cannot {what}: {e}"))
}

/// The state of the polling for CPU hotplug.
struct Hotplug {
    /// When the CPUs were last polled.
    checked: Time,
    /// The CPUs that were online at that time.
    online: CpuSet,
    /// Whether a failure to read the online CPUs was reported since the last change.
    reported: bool,
}

/// The clients whose connections must stay open: those that hold an offer or exchange, those that wait for an
/// outcome, those whose process is entering a unit, and subscribers.
fn kept(held: &HeldOffers, entering: &[(u64, ProcessKey, Answer)], monitor: &Monitor) -> BTreeSet<u64> {
    held.kept().into_iter().chain(entering.iter().map(|(id, ..)| *id)).chain(monitor.clients()).collect()
}

/// The start of the current series of failed turns; `None` if the last turn succeeded.
#[derive(Debug, Default)]
struct Outage(Option<Time>);

#[derive(Debug, PartialEq, Eq)]
enum OutageStage {
    /// This turn is the first that failed.
    Began,
    /// Earlier turns failed, too.
    Lasts,
    /// Turns have failed for [`OUTAGE_MAX_NS`].
    TooLong,
}

impl Outage {
    /// Records a failed turn. The daemon gives up after a certain time, not after a number of turns.
    /// Otherwise clients, which can force turns, could make it give up sooner.
    fn failed(&mut self, now: Time) -> OutageStage {
        match self.0 {
            None => {
                self.0 = Some(now);
                OutageStage::Began
            }
            Some(since) if now.saturating_sub(since) < OUTAGE_MAX_NS => OutageStage::Lasts,
            Some(_) => OutageStage::TooLong,
        }
    }
}

/// A client that can be answered only after another turn. One turn suffices for all deferred clients.
struct Deferred {
    client: u64,
    party: Party,
    request: AfterTurn,
}

enum AfterTurn {
    /// The client's process enters a unit. The client is answered only after the turn, so that the orders
    /// about the unit apply to the process before it continues.
    Entered(Option<ProcessKey>, Answer),
    /// The client asks for the unit of a process that started after the last sample.
    Find(Rc<Caller>, Call),
}

/// A running daemon.
struct Daemon<'a> {
    args: &'a Run,
    session: Session,
    about: About,
    caretaker: Caretaker,
    clients: Clients,
    queue: FairQueue,
    answers: Answers,
    audit: Audit,
    /// Clients to answer after the next turn.
    deferred: Vec<Deferred>,
    held: HeldOffers,
    monitor: Monitor,
    /// Clients whose process enters a unit and that wait for its systemd scope; each with the process and the
    /// answer.
    entering: Vec<(u64, ProcessKey, Answer)>,
    signals: Signals,
    /// The service manager that started the daemon, if any.
    service: Service,
    /// The number of files that the backend keeps open for every unit.
    files_each: usize,
    waits: Waits,
    /// When the next turn is due.
    next: Time,
    /// When the daemon stops (`--for`).
    ends: Option<Time>,
    hotplug: Hotplug,
    /// The CPUs that this process may run on.
    usable: CpuSet,
    /// The last reported backend.
    active_backend: &'static str,
    /// The time of the last step.
    stepped_at: Time,
    /// How often the daemon moved to another CPU.
    moves: usize,
    /// The time of the last move.
    moved_at: Time,
    outage: Outage,
    /// `None` with `--no-history`.
    history: Option<History>,
    /// Keeps a second daemon out of the directory.
    _lock: commonhold_live::undo::lock::Lock,
}

impl Daemon<'_> {
    /// Holds the contract until a signal, the end of `--for` or a failure, then undoes all changes.
    fn run(mut self) -> Result<Exit, Failure> {
        self.waits.add(self.signals.as_fd(), SIGNALS)?;
        self.waits.add(self.clients.listener(), LISTENER)?;
        self.waits.add(self.caretaker.ended(), CARETAKER)?;
        if let Some(alarm) = self.session.backend().alarm() {
            self.waits.add(alarm, ALARM)?;
        }
        self.step()?;
        output::say("holding; stop with Ctrl-C or SIGTERM, reload with SIGHUP");
        self.service.ready(&self.status_line());
        let result = self.serve();
        self.service.ending();
        if result.is_ok() && self.outage.0.is_none() {
            self.finish_accounts()?;
        }
        if let Some(problem) = self.session.retry_persisting() {
            output::complain(&format!("problem: {problem}"));
        }
        // However the loop ended, the caretaker undoes all changes and reports them.
        let Daemon { session, caretaker, .. } = self;
        let begun = Instant::now();
        let undone = caretaker.finish(session.end())?;
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

    /// The event loop. Returns when the daemon is to stop.
    fn serve(&mut self) -> Result<(), Failure> {
        loop {
            self.service.alive();
            self.forget_closed();
            // The time to sleep: until the next turn, or until something else is due earlier.
            if !self.entering.is_empty() {
                self.next = self.next.min(self.stepped_at + ENTERING_NS);
            }
            let wakes = [
                Some(self.next),
                self.ends,
                self.held.next_deadline(),
                self.monitor.next_due(),
                self.queue.due(clock::now()),
            ];
            self.waits.wake_at(wakes.into_iter().flatten().min().unwrap_or(self.next))?;
            let mut connection_is_pending = false;
            for source in self.waits.wait()? {
                match source {
                    CLOCK => {}
                    SIGNALS => {
                        if self.handle_signals()? {
                            return Ok(());
                        }
                    }
                    LISTENER => connection_is_pending = true,
                    CARETAKER => self.replace_caretaker()?,
                    ALARM => {
                        self.session.backend().drain_alarm();
                        self.next = self.next.min(self.stepped_at + ALARM_NS);
                    }
                    client => self.mark_ready(client - CLIENTS),
                }
            }
            let now = clock::now();
            if self.ends.is_some_and(|ends| now >= ends) {
                return Ok(());
            }
            // A turn that is due is made before clients are served, so that clients cannot delay it.
            if now >= self.next {
                self.step()?;
            }
            if connection_is_pending {
                self.accept()?;
            }
            for subscriber in self.monitor.take_due(clock::now()) {
                self.mark_ready(subscriber);
            }
            self.serve_clients()?;
            self.answer_deferred()?;
            self.answer_waiting();
        }
    }

    /// Serves clients for at most [`SERVING_NS`], and only until a turn is due. It always serves one client,
    /// so that clients do not starve when turns take all the time.
    fn serve_clients(&mut self) -> Result<(), Failure> {
        let mut now = clock::now();
        let until = self.next.min(now.saturating_add(SERVING_NS));
        while let Some((party, client)) = self.queue.next(now) {
            let begun = clock::thread_cpu_ns();
            self.serve_client(client)?;
            now = clock::now();
            self.queue.charge(party, used_since(begun), now);
            if now >= until {
                break;
            }
        }
        Ok(())
    }

    /// Makes one turn for all deferred clients, and answers these clients. Their users share the cost of the
    /// turn equally.
    fn answer_deferred(&mut self) -> Result<(), Failure> {
        let deferred = std::mem::take(&mut self.deferred);
        if deferred.is_empty() {
            return Ok(());
        }
        let begun = clock::thread_cpu_ns();
        self.step()?;
        let each_ns = used_since(begun) / deferred.len() as u64;
        for Deferred { client, party, request } in deferred {
            self.queue.charge(party, each_ns, clock::now());
            match request {
                AfterTurn::Find(caller, call) => {
                    let answer = requests::answer(&mut self.session, &self.about, &caller, &call);
                    self.send(client, answer);
                }
                // The client waits until systemd has made its scope, and then starts its program. If the
                // limit of kept clients is reached, it is answered at once instead. Otherwise a user whose
                // processes enter faster than systemd makes scopes would occupy all connections, since a kept
                // connection is never closed to make room for another user.
                AfterTurn::Entered(Some(key), answer)
                    if self.session.backend().roster().is_entering(key)
                        && self.may_be_kept(client, true).is_ok() =>
                {
                    self.entering.push((client, key, answer));
                }
                AfterTurn::Entered(_, answer) => self.send(client, answer),
            }
        }
        Ok(())
    }

    /// Forgets clients whose connections closed. If such a client held an offer or exchange, the next turn is
    /// due at once, to take it back.
    fn forget_closed(&mut self) {
        let closed = self.clients.take_closed();
        if closed.is_empty() {
            return;
        }
        for (client, party) in closed {
            self.held.close(client);
            self.monitor.unsubscribe(client);
            self.entering.retain(|(id, ..)| *id != client);
            self.queue.forget(party, client);
        }
        if !self.held.orphans().is_empty() {
            self.next = self.next.min(clock::now());
        }
    }

    /// Queues the withdrawal of offers and exchanges whose clients are disconnected. A withdrawal that cannot
    /// be persisted is retried after a later turn.
    fn take_back_orphans(&mut self) {
        let orphans = self.held.orphans();
        if orphans.is_empty() {
            return;
        }
        let changes: Vec<Change> = orphans.iter().map(|number| Change::Cancel { number: *number }).collect();
        if self.session.queue_changes(&changes).is_ok() {
            for number in orphans {
                self.held.mark_cancelled(number);
                output::say(&format!("tickets the program that held {number} is gone"));
            }
        }
    }

    /// Answers the clients that wait for an outcome, if the outcome is known or the time limit has expired.
    fn answer_waiting(&mut self) {
        while let Some((id, answer)) = self.held.take_due(clock::now()) {
            self.send(id, Answer::of(requests::reply(&answer)));
        }
        let roster = self.session.backend().roster();
        let entering = std::mem::take(&mut self.entering);
        let (still_entering, entered): (Vec<_>, Vec<_>) =
            entering.into_iter().partition(|(_, key, _)| roster.is_entering(*key));
        self.entering = still_entering;
        for (id, _, answer) in entered {
            self.send(id, answer);
        }
    }

    /// Answers a client that waited, and marks it as ready, since it may have sent its next request
    /// meanwhile.
    fn send(&mut self, id: u64, Answer { message, passed, .. }: Answer) {
        self.clients.answer(id, message, passed);
        self.mark_ready(id);
    }

    /// Moves the daemon to the next CPU, round robin. The daemon takes its CPU time from the unit that owns
    /// the CPU, and while every CPU is busy, the kernel leaves the daemon where it is. Moving it spreads this
    /// cost evenly over the units.
    ///
    /// The affinity is restricted to the next CPU, and widened again at once. Otherwise the daemon would
    /// never wake up if a real-time task monopolised that CPU. Moves are rate limited by [`MOVES_NS`], since
    /// a move blocks until the kernel has preempted the task on the next CPU.
    fn move_to_next_cpu(&mut self) {
        if self.stepped_at < self.moved_at.saturating_add(MOVES_NS) {
            return;
        }
        self.moved_at = self.stepped_at;
        self.moves += 1;
        let cpus = &self.session.machine().cpus;
        let next_cpu: CpuSet = [cpus[self.moves % cpus.len()].id].into_iter().collect();
        // Fails only if the CPU is no longer online; then the daemon stays on its CPU.
        if affinity::set(0, &next_cpu).is_ok() {
            let _ = affinity::set(0, &self.usable);
        }
    }

    /// Makes one turn. A failed turn is retried. After [`OUTAGE_MAX_NS`] without a successful turn, the
    /// daemon gives up.
    fn step(&mut self) -> Result<(), Failure> {
        self.poll_hotplug();
        self.take_back_orphans();
        self.stepped_at = clock::now();
        self.about.pace.turn(self.stepped_at);
        self.answers.forget();
        match self.session.step() {
            Ok(stepped) => {
                self.outage = Outage::default();
                self.next = stepped.next;
                if self.session.scheme() != Scheme::Smp {
                    self.move_to_next_cpu();
                }
                for problem in stepped.new_problems {
                    output::complain(&format!("problem: {problem}"));
                }
                for problem in stepped.ended {
                    output::say(&format!("problem ended: {problem}"));
                }
                for line in self.session.changed_verdicts() {
                    output::complain(&line);
                }
                for news in self.session.take_news() {
                    output::say(&news);
                }
                self.held.record_turn(self.session.decided(), self.session.traded());
                for change in self.session.decided() {
                    output::say(&format!("tickets {}", words::rights(self.session.contract(), change)));
                }
                for trade in self.session.traded() {
                    output::say(&format!("tickets {}", words::trade(self.session.contract(), trade)));
                }
                if self.args.verbose {
                    self.print_plan(&stepped.plan);
                }
                self.report_backend_change();
                if let Some(history) = &mut self.history {
                    history.record(&mut self.session);
                }
                Ok(())
            }
            Err(e) => {
                let now = clock::now();
                self.next = now.saturating_add(RETRY_NS);
                match self.outage.failed(now) {
                    OutageStage::Began => output::complain(&format!("problem: {e}")),
                    OutageStage::Lasts => {}
                    OutageStage::TooLong => return Err(e.into()),
                }
                Ok(())
            }
        }
    }

    /// Accounts for the time until now, and prints the final account.
    fn finish_accounts(&mut self) -> Result<(), Failure> {
        self.step()?;
        if let Some(history) = &mut self.history {
            history.record_rest(&mut self.session);
        }
        let account = crate::history::final_account(&self.session.statement(), output::style());
        account.lines().for_each(output::say);
        Ok(())
    }

    fn print_plan(&self, plan: &commonhold_policy::Plan) {
        for (action, reason) in steps(plan) {
            let (what, why) = words::words(self.session.contract(), action, reason);
            output::say(&format!("{what}: {why}"));
        }
    }

    /// Reports the active backend if it changed: a fallback replaced the preferred backend, or the preferred
    /// one is back.
    fn report_backend_change(&mut self) {
        let ActiveBackend { name, fallback_from } = self.session.backend().active();
        if name == self.active_backend {
            return;
        }
        self.active_backend = name;
        let why = fallback_from
            .map_or_else(|| "again".to_owned(), |other| format!("not by {}: {}", other.name, other.why));
        let by = backend_choice::by_backend(name, &why);
        output::say(&holdings::cpu_now(&mut self.session, &by).wrapped(output::message_width()));
    }

    /// Reads the machine again if CPUs went online or offline. Checks this at most once per [`HOTPLUG_NS`].
    fn poll_hotplug(&mut self) {
        let now = clock::now();
        if now < self.hotplug.checked.saturating_add(HOTPLUG_NS) {
            return;
        }
        self.hotplug.checked = now;
        let root = Path::new("/");
        let changed = topology::online(root).and_then(|online| {
            if online == self.hotplug.online { Ok(None) } else { Ok(Some((topology::read(root)?, online))) }
        });
        match changed {
            Ok(Some((machine, online))) => {
                output::say(&format!("CPUs changed: now {online}"));
                self.hotplug = Hotplug { checked: now, online, reported: false };
                let isolated = self.session.contract().machine.isolated;
                self.session.set_machine(machine.divided(isolated));
            }
            Err(e) if !self.hotplug.reported => {
                let known = &self.hotplug.online;
                output::complain(&format!(
                    "problem: cannot read which CPUs are online: {e}; the contract is held as if these were still {known}"
                ));
                self.hotplug.reported = true;
            }
            Ok(None) | Err(_) => {}
        }
    }

    /// Handles pending signals; returns whether the daemon is to stop.
    fn handle_signals(&mut self) -> Result<bool, Failure> {
        while let Some(received) = self.signals.next() {
            match received.signal {
                libc::SIGHUP => {
                    self.service.reloading();
                    self.reload()?;
                    self.service.ready(&self.status_line());
                }
                _ => return Ok(true),
            }
        }
        Ok(false)
    }

    /// The line that the service manager shows as status: the contract and the backend.
    fn status_line(&self) -> String {
        format!("holding {} by the {} backend", self.about.contract_path, self.active_backend)
    }

    /// Reloads the contract. If the new contract is invalid, the old one stays in force unchanged.
    fn reload(&mut self) -> Result<(), Failure> {
        let names = SystemNames::new();
        let machine = topology::read(Path::new("/")).map_err(Failure::from);
        let loaded = machine.and_then(|machine| {
            let loaded = start::load_with_scheme(self.args, &machine, &names)?;
            descriptors::make_room(loaded.0.contract.units.len(), self.files_each)?;
            Ok((loaded, machine))
        });
        match loaded {
            Ok(((loaded, text), machine)) => {
                output::complain_of(&loaded.warnings);
                let machine = load::divided(&loaded.contract, &machine);
                self.session.reload(loaded.contract, machine);
                self.monitor.restart();
                self.about.hidden = start::hidden_processes(&mut self.session);
                if let Some(history) = &mut self.history {
                    history.set_private(self.about.hidden.are_any(), &mut self.session);
                }
                self.session.note_reload(None);
                self.about.contract_text = text;
                for note in self.session.ended_changes() {
                    output::say(&note);
                }
                self.step()?;
                output::say(&format!(
                    "reloaded {}; the scheme is {}",
                    self.about.contract_path,
                    self.session.scheme()
                ));
            }
            Err(failure) => {
                output::complain(&format!("{failure}\nnot reloaded: the contract in force stays in force"));
                self.answers.forget();
                let why = format!("{} was not reloaded: {failure}", self.about.contract_path);
                self.session.note_reload(Some(why));
            }
        }
        Ok(())
    }

    /// Starts a new caretaker if the old one was killed.
    fn replace_caretaker(&mut self) -> Result<(), Failure> {
        if self.caretaker.keep()? {
            output::complain("problem: the caretaker was killed; a new one has replaced it");
            self.session.backend().roster_mut().leave_out(&[self.caretaker.pid()]);
            self.waits.add(self.caretaker.ended(), CARETAKER)?;
        }
        Ok(())
    }

    /// Accepts up to [`ACCEPTS_MAX`] pending connections.
    fn accept(&mut self) -> Result<(), Failure> {
        for _ in 0..ACCEPTS_MAX {
            let (now, begun) = (clock::now(), clock::thread_cpu_ns());
            let (queue, held, entering, monitor) = (&self.queue, &self.held, &self.entering, &self.monitor);
            let kept = || kept(held, entering, monitor);
            let procfs = self.session.backend().roster_mut().procfs();
            let party = match self.clients.accept(procfs, kept, |party| queue.may_connect(party, now)) {
                Arrival::None => break,
                Arrival::TurnedAway(party) => Some(party),
                Arrival::Accepted(id) => {
                    if let Some(stream) = self.clients.stream(id) {
                        self.waits.add_client(stream, CLIENTS + id)?;
                    }
                    self.clients.party(id)
                }
            };
            let now = clock::now();
            if let Some(party) = party {
                self.queue.charge_connection(party, used_since(begun), now);
            }
            if now >= self.next {
                break;
            }
        }
        Ok(())
    }

    /// Marks a client as ready to be served.
    fn mark_ready(&mut self, id: u64) {
        if let Some(party) = self.clients.party(id) {
            self.queue.push(party, id, clock::now());
        }
    }

    /// The answer to a request; `None` if the client has to wait for it.
    fn answer(&mut self, id: u64, caller: &Rc<Caller>, request: &[u8]) -> Result<Option<Answer>, Failure> {
        let (call, flags) = match requests::read(request) {
            Ok(Request { call, flags }) => (call, flags),
            Err(refusal) => {
                if requests::is_oneway(request) {
                    self.clients.drop_answer(id);
                }
                return Ok(Some(Answer::of(Err(refusal))));
            }
        };
        if flags.oneway {
            self.clients.drop_answer(id);
        }
        if let Some(key) = Answers::key(&call, requests::sees_all(&self.about, caller)) {
            return Ok(Some(self.shared_answer(caller, &call, key)));
        }
        let answer = match &call {
            Call::Monitor { every_ms } => {
                return Ok(self.monitor(id, caller, *every_ms, flags.more && !flags.oneway));
            }
            Call::Change(asked) => self.change_rights(id, caller, asked)?,
            Call::Await { number, at_most_ns } => match self.await_outcome(id, *number, *at_most_ns) {
                Ok(None) => return Ok(None),
                Ok(Some(state)) => Answer::of(requests::reply(&AwaitReply { number: *number, state })),
                Err(refusal) => Answer::of(Err(refusal)),
            },
            Call::Where { pid }
                if requests::may_see(&mut self.session, &self.about, caller, *pid)
                    && requests::needs_new_sample(&mut self.session, *pid, self.stepped_at) =>
            {
                self.defer(id, caller, AfterTurn::Find(caller.clone(), call));
                return Ok(None);
            }
            _ => requests::answer(&mut self.session, &self.about, caller, &call),
        };
        self.record(caller, &call, answer.error.as_deref());
        if matches!(call, Call::Enter { .. }) && answer.error.is_none() {
            self.defer(id, caller, AfterTurn::Entered(caller.key, answer));
            return Ok(None);
        }
        Ok(Some(answer))
    }

    /// Defers a client: it is answered after the next turn.
    fn defer(&mut self, client: u64, caller: &Caller, request: AfterTurn) {
        self.deferred.push(Deferred { client, party: caller.party, request });
        self.clients.wait(client);
    }

    /// An answer that is the same for all clients until the next turn. It is taken from the cache, or
    /// computed and cached.
    fn shared_answer(&mut self, caller: &Caller, call: &Call, key: String) -> Answer {
        if let Some(message) = self.answers.get(&key, clock::now()) {
            return Answer { message, passed: None, error: None };
        }
        let answer = requests::answer(&mut self.session, &self.about, caller, call);
        if answer.error.is_none() {
            self.answers.keep(key, &answer.message, clock::now());
        }
        answer
    }

    /// Answers with the state of all units, or subscribes the client to it. The result is then `None`: the
    /// client's first reply is due at once.
    fn monitor(
        &mut self,
        id: u64,
        caller: &Caller,
        every_ms: Option<u64>,
        subscribes: bool,
    ) -> Option<Answer> {
        let every_ns = match Monitor::interval(every_ms).and_then(|every_ns| {
            self.may_be_kept(id, subscribes)?;
            Ok(every_ns)
        }) {
            Ok(every_ns) => every_ns,
            Err(refusal) => return Some(Answer::of(Err(refusal))),
        };
        if subscribes {
            self.monitor.subscribe(id, every_ns);
            self.clients.wait(id);
            return None;
        }
        let sees_all = requests::sees_all(&self.about, caller);
        let message = self.monitor.whole(&mut self.session, &self.about, sees_all);
        Some(Answer { message, passed: None, error: None })
    }

    /// Sends a subscriber the reply that is due, if any, unless the previous one is not sent yet.
    fn continue_subscription(&mut self, id: u64) {
        if !self.monitor.is_due(id) || self.clients.has_unsent_output(id) {
            return;
        }
        let Some(caller) = self.clients.caller(id) else { return };
        let sees_all = requests::sees_all(&self.about, caller);
        if let Some(message) = self.monitor.reply_to(id, &mut self.session, &self.about, sees_all) {
            self.clients.reply_and_continue(id, message);
        }
    }

    /// Handles a request to change rights: queues the change, forces a turn that makes or refuses the change,
    /// and answers. The stages are listed in `policy/rights/change.rs`.
    fn change_rights(&mut self, id: u64, caller: &Caller, asked: &Asked) -> Result<Answer, Failure> {
        let holds_offer = matches!(asked, Asked::Offer { while_connected: true, .. });
        let queued = self.may_be_kept(id, holds_offer).and_then(|()| self.queue_change(caller, asked));
        match queued {
            Ok(Change::Offer { bid }) => self.held.add(bid, holds_offer.then_some(id)),
            Ok(_) => {}
            Err(refusal) => return Ok(Answer::of(Err(refusal))),
        }
        self.step()?;
        Ok(Answer::of(tickets::outcome(&mut self.session, asked)))
    }

    /// Queues a change, and writes it to disk. The loop waits for the disk meanwhile. So the caller is
    /// charged for this wait besides the CPU time; otherwise a user could cheaply keep the loop waiting for a
    /// slow disk.
    fn queue_change(&mut self, caller: &Caller, asked: &Asked) -> Result<Change, Refusal> {
        let (begun, cpu_begun) = (clock::now(), clock::thread_cpu_ns());
        let queued = tickets::queue(&mut self.session, caller, asked);
        let now = clock::now();
        let waited_ns = now.saturating_sub(begun).saturating_sub(used_since(cpu_begun));
        self.queue.charge(caller.party, waited_ns, now);
        queued
    }

    /// Answers a request for the outcome of an offer or exchange. If the outcome is not known yet, the client
    /// has to wait, for at most `at_most_ns`, and the result is `None`. With an `at_most_ns` of 0, the answer
    /// is the present state.
    fn await_outcome(
        &mut self,
        id: u64,
        number: u64,
        at_most_ns: Option<u64>,
    ) -> Result<Option<Awaited>, Refusal> {
        if let Some(state) = self.held.outcome(number) {
            return Ok(Some(state));
        }
        let state = tickets::present_state(&self.session, number)?;
        if at_most_ns == Some(0) {
            return Ok(Some(state));
        }
        self.may_be_kept(id, true)?;
        let until = at_most_ns.map(|ns| clock::now().saturating_add(ns));
        self.held.wait(id, number, until, state);
        self.clients.wait(id);
        Ok(None)
    }

    /// Writes the audit record of a request.
    fn record(&mut self, caller: &Caller, call: &Call, refused: Option<&str>) {
        let name = || requests::name_of(self.session.backend(), caller);
        if let Some(record) = Record::of(caller, name, call, refused) {
            self.audit.log(&record, clock::now());
        }
    }

    /// Checks the limits on kept clients. With `becomes_kept`, the client is about to hold an offer, to wait
    /// or to subscribe; it is refused if a limit is reached.
    fn may_be_kept(&self, id: u64, becomes_kept: bool) -> Result<(), Refusal> {
        if !becomes_kept || self.clients.may_be_kept(id, &kept(&self.held, &self.entering, &self.monitor)) {
            return Ok(());
        }
        let message = "the limit of clients that hold offers, wait for one, or subscribe is reached; make the \
                       offer without `while_connected`, or ask again later";
        Err(requests::refuse(&Why::TooManyClients, message.to_owned()))
    }

    /// Does a bounded amount of work for a client: sends pending output, reads, and answers at most one
    /// request or sends one reply to a subscription.
    fn serve_client(&mut self, id: u64) -> Result<(), Failure> {
        self.clients.flush(id);
        self.clients.read(id);
        if let Some((caller, request)) = self.clients.next_request(id)
            && let Some(Answer { message, passed, .. }) = self.answer(id, &caller, &request)?
        {
            self.clients.answer(id, message, passed);
        } else {
            self.continue_subscription(id);
            self.clients.flush(id);
        }
        if self.clients.has_request(id) {
            self.mark_ready(id);
        } else if let Some(stream) = self.clients.stream(id) {
            let (has_output, ended) = (self.clients.has_unsent_output(id), self.clients.has_ended(id));
            self.waits.rearm_client(stream, CLIENTS + id, has_output, ended);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients force a thousand turns while every one fails.
    #[test]
    fn forced_turns_do_not_make_the_daemon_give_up_sooner() {
        let mut outage = Outage::default();
        assert_eq!(outage.failed(5), OutageStage::Began);
        assert!((6..1_006).all(|now| outage.failed(now) == OutageStage::Lasts));
        assert_eq!(outage.failed(5 + OUTAGE_MAX_NS - 1), OutageStage::Lasts);
        assert_eq!(outage.failed(5 + OUTAGE_MAX_NS), OutageStage::TooLong);
    }
}
