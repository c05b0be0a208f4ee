//! Starts a daemon: reads the contract and the machine, chooses a backend, and starts the caretaker and the
//! socket. Whatever can fail is done as early as possible. The machine is changed only when the journal is
//! open and the caretaker runs, so that every change is undone at the end.

use std::path::Path;

use commonhold_contract::{Contract, Scheme};
use commonhold_live::apply::cgroup::CgroupBackend;
use commonhold_live::apply::kernel::KernelBackend;
use commonhold_live::apply::standing;
use commonhold_live::apply::user::UserBackend;
use commonhold_live::host::clock;
use commonhold_live::observe::capability;
use commonhold_live::observe::hidden::HiddenProcesses;
use commonhold_live::observe::names::SystemNames;
use commonhold_live::observe::roster::Roster;
use commonhold_live::observe::topology;
use commonhold_live::undo::caretaker::{Caretaker, Launch};
use commonhold_live::undo::entered::EnteredFile;
use commonhold_live::undo::journal::Journal;
use commonhold_live::undo::lock::{self, Lock};
use commonhold_live::undo::undo;
use commonhold_live::{LiveBackend, LiveError};
use commonhold_machine::Machine;
use commonhold_machine::capability::State;
use commonhold_report::holdings as report;

use super::answers::Answers;
use super::audit::Audit;
use super::backend_choice::{self, Choice};
use super::cannot_keep;
use super::clients::Clients;
use super::fair_queue::FairQueue;
use super::held_offers::HeldOffers;
use super::history::History;
use super::holdings::{self, Holder};
use super::kept_tickets::Keeper;
use super::monitor::Monitor;
use super::pace::Pace;
use super::requests::About;
use super::service::Service;
use super::session::Session;
use super::{Daemon, Hotplug, SIGNALS_READ, Waits, descriptors};
use crate::cli::{BACKENDS, BackendChoice, Run};
use crate::exit::{Exit, Failure};
use crate::load::{self, Loaded};
use crate::signals::Signals;
use crate::{natural, output, place};

/// The nice value of the daemon and its caretaker. It gives them precedence over ordinary processes, but not
/// over the kernel's own threads.
const NICE: i32 = -15;

/// Reads the contract for this machine, with the command line's scheme; also returns its text. Without a
/// file, it is the natural contract.
pub(super) fn load_with_scheme(
    args: &Run,
    machine: &Machine,
    names: &SystemNames,
) -> Result<(Loaded, String), Failure> {
    let (text, file) = natural::text_for(args)?;
    let mut loaded = load::check_text(&text, &file, machine, Some(names))?;
    loaded.contract = with_scheme(args, loaded.contract);
    Ok((loaded, text))
}

/// Applies the command line's scheme and `--negotiate` to a contract.
pub(super) fn with_scheme(args: &Run, mut contract: Contract) -> Contract {
    if args.negotiate {
        contract.negotiate();
    }
    if let Some(scheme) = args.scheme {
        contract.machine.scheme = scheme.into();
    }
    contract
}

/// Starts a daemon, up to its event loop.
pub(super) fn start(args: &Run) -> Result<Daemon<'_>, Failure> {
    // Reads the contract, and checks that this machine can hold it.
    output::say(&format!("commonhold {}, with the backends {BACKENDS}", env!("CARGO_PKG_VERSION")));
    let machine = load::machine_here()?;
    let (loaded, contract_text) = load_with_scheme(args, &machine, &SystemNames::new())?;
    output::complain_of(&loaded.warnings);
    load::tell_of_cpus(&loaded.contract, &machine, true);
    // The set to which backends and the daemon widen a restricted affinity. It includes isolated CPUs, since
    // a process that chose no CPUs may use these, too.
    let usable = machine.cpu_set();
    let machine = load::divided(&loaded.contract, &machine);
    let (choice, why) = backend_choice::choose(args.backend, &loaded.contract, &machine)?;
    let files_each = choice.files_per_unit();
    descriptors::make_room(loaded.contract.units.len(), files_each)?;
    // Takes the directory and the socket. This fails if another daemon uses them.
    let directory = place::make(&args.place)?;
    let lock = lock(&directory)?;
    place::warn_of_others(&directory);
    let socket = place::socket(&directory);
    Clients::remove_old_socket(&socket)?;
    // From here on signals stay pending. The event loop will handle them, and end with the changes undone.
    let signals = Signals::open(&SIGNALS_READ)
        .map_err(|e| Failure::new(Exit::System, format!("cannot wait for signals: {e}")))?;
    // A call-back must be prompt even on a fully loaded machine, so the daemon raises its priority. This
    // fails for an ordinary user's daemon.
    let priority_is_raised = rustix::process::setpriority_process(None, NICE).is_ok();
    let mut journal = journal(&directory)?;
    let caretaker = Caretaker::spawn(journal.path(), &Launch::default())?;
    journal.beat_with(caretaker.beats());
    if priority_is_raised {
        standing::raise_session(NICE, &mut journal)?;
    }
    let contract = loaded.contract;
    let roster = Roster::new(Path::new("/proc"), &[caretaker.pid()])?;
    let backend: Box<dyn LiveBackend> = match choice {
        Choice::Kernel(base) => {
            let cgroup = CgroupBackend::new(&base, &contract, roster, journal)?;
            kernel_backend(with_io_cost(cgroup, &contract, args), &contract, args.backend)?
        }
        Choice::Cgroup(base) => {
            let cgroup = CgroupBackend::new(&base, &contract, roster, journal)?;
            Box::new(with_io_cost(cgroup, &contract, args))
        }
        Choice::User => {
            let user = UserBackend::new(contract.clone(), usable.clone(), roster, journal);
            let pages_out = capability::paging_out(Path::new("/")).state != State::No;
            Box::new(if pages_out { user.with_memory()? } else { user })
        }
    };
    // Reports which resources are held, and which are not.
    let active = backend.active();
    let why =
        active.fallback_from.map_or(why, |other| format!("not by the {} backend: {}", other.name, other.why));
    announce(args, &contract, &machine);
    let by = backend_choice::by_backend(active.name, &why);
    let in_place = backend.roster().is_in_place();
    let holder = Holder { backend: active.name, means: backend.means(), in_place, by: &by };
    let width = output::message_width();
    let holdings = holdings::of(&contract, &machine, holder);
    for holding in &holdings {
        output::say(&holding.wrapped(width));
    }
    let limits = cannot_keep::of(&contract, &machine, holder, &holdings);
    output::say_text(&report::cannot_be_kept(&limits, width));
    if let Some(why) = no_trade(&contract, active.name) {
        output::say(&format!("warning: {why}"));
    }
    // Opens the session, and restores the rights and the members of units that an earlier daemon persisted.
    let clients = Clients::listen(&socket)?;
    let online = topology::online(Path::new("/"))?;
    let now = clock::now();
    let (keeper, problem) = Keeper::open(&directory);
    let mut session = Session::new(contract, machine, backend, keeper);
    if let Some(problem) = problem {
        output::complain(&format!("problem: {problem}"));
        session.note(problem);
    }
    restore_entered(&directory, &mut session)?;
    for note in session.restore() {
        output::say(&note);
    }
    let hidden = hidden_processes(&mut session);
    let history = match args.no_history {
        true => None,
        false => Some(History::open(args, &directory, hidden.are_any(), &mut session)),
    };
    let length = args.length.map(|length| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
    Ok(Daemon {
        args,
        hotplug: Hotplug { checked: now, online, reported: false },
        session,
        about: About { contract_path: contract_name(args), contract_text, pace: Pace::default(), hidden },
        caretaker,
        clients,
        queue: FairQueue::new(now),
        answers: Answers::default(),
        audit: Audit::open(),
        deferred: Vec::new(),
        held: HeldOffers::default(),
        monitor: Monitor::default(),
        entering: Vec::new(),
        signals,
        service: Service::of_environment(),
        files_each,
        waits: Waits::new()?,
        next: now,
        ends: length.map(|length| now.saturating_add(length)),
        usable,
        active_backend: active.name,
        moves: 0,
        moved_at: 0,
        stepped_at: now,
        outage: super::Outage::default(),
        history,
        _lock: lock,
    })
}

/// The processes that /proc hides from ordinary users. If that cannot be read, all are taken to be hidden.
pub(super) fn hidden_processes(session: &mut Session) -> HiddenProcesses {
    HiddenProcesses::read(session.backend().roster_mut().procfs()).unwrap_or_else(|e| {
        output::complain(&format!("problem: {e}; clients see no process of another user"));
        HiddenProcesses::ALL
    })
}

/// Restores the membership of processes that entered a unit under an earlier daemon. From now on the roster
/// persists the processes that enter units.
fn restore_entered(directory: &Path, session: &mut Session) -> Result<(), Failure> {
    let (file, entered) = EnteredFile::open(directory)?;
    let contract = session.contract().clone();
    let roster = session.backend().roster_mut();
    let notes = entered.and_then(|entered| roster.restore_entered(&contract, entered));
    roster.keep_entered(Box::new(file));
    match notes {
        Ok(notes) => notes.iter().for_each(|note| output::say(&format!("note: {note}"))),
        Err(error) => {
            let problem = format!(
                "{error}; processes that entered units by `commonhold exec` before this start are placed by rules instead"
            );
            output::complain(&format!("problem: {problem}"));
            session.note(problem);
        }
    }
    Ok(())
}

/// Has the backend switch on io.cost for the disks that were measured, unless the contract or the command
/// line excludes that.
fn with_io_cost(mut cgroup: CgroupBackend, contract: &Contract, args: &Run) -> CgroupBackend {
    if switches_io_cost(contract, args) {
        say_io_cost(&cgroup.switch_on_io_cost(), "is");
    }
    cgroup
}

/// Whether to switch on the kernel's I/O cost model: yes, except under `smp`, which restricts no unit, or
/// with `--no-io-cost`.
pub(super) fn switches_io_cost(contract: &Contract, args: &Run) -> bool {
    !args.no_io_cost && contract.machine.scheme != Scheme::Smp
}

/// Reports the disks with the kernel's I/O cost model switched on; `is` may also be `would be`.
pub(super) fn say_io_cost(disks: &[String], is: &str) {
    if !disks.is_empty() {
        output::say(&format!("io.cost {is} on for {}, until the end", disks.join(", ")));
    }
}

/// Makes the `kernel` backend. With `--backend auto`, control groups hold the contract as a fallback whenever
/// the kernel refuses the scheduler. With `--backend kernel`, a refusal is an error.
fn kernel_backend(
    cgroup: CgroupBackend,
    contract: &Contract,
    choice: BackendChoice,
) -> Result<Box<dyn LiveBackend>, LiveError> {
    Ok(match choice {
        BackendChoice::Auto => Box::new(KernelBackend::patient(cgroup, contract)),
        _ => Box::new(KernelBackend::new(cgroup, contract)?),
    })
}

/// Takes the lock of the daemon's directory. It keeps a second daemon out, since two daemons would undo each
/// other's work.
fn lock(directory: &Path) -> Result<Lock, Failure> {
    lock::take(directory)?.ok_or_else(|| {
        Failure::new(
            Exit::InUse,
            format!(
                "another daemon runs in {0}; see `commonhold status --directory {0}`, stop it, or give another --directory",
                directory.display()
            ),
        )
    })
}

/// Opens the journal. If an earlier daemon was killed together with its caretaker, its changes are undone
/// first.
fn journal(directory: &Path) -> Result<Journal, Failure> {
    let (mut journal, leftover) = Journal::create(directory)?;
    if !leftover.is_empty() {
        let undone = undo(&leftover, Path::new("/proc"));
        output::say(&format!("an earlier daemon was killed with its caretaker; {undone}"));
        for notice in &undone.notices {
            output::say(&format!("note: {notice}"));
        }
        for problem in &undone.problems {
            output::complain(&format!("problem: {problem}"));
        }
        journal.clear()?;
    }
    Ok(journal)
}

/// The path of the contract's file, or the name of the natural contract.
fn contract_name(args: &Run) -> String {
    args.contract.as_ref().map_or_else(|| natural::NAME.to_owned(), |path| path.display().to_string())
}

/// Prints the contract, the scheme and the machine.
fn announce(args: &Run, contract: &Contract, machine: &Machine) {
    if args.contract.is_none() {
        output::say(
            "no contract was given: each person who is logged in has an equal part, system services have theirs, and \
             everything idle is lent; `commonhold init` writes a contract to begin with",
        );
    }
    output::say(&format!(
        "contract {}, scheme {}, on {}",
        contract_name(args),
        contract.machine.scheme,
        commonhold_report::tree::summary(machine)
    ));
}

/// A warning if units of the contract negotiate, but the backend has no control groups. Without them, the
/// time that a unit waits for disks is unknown, so the benefit of an exchange cannot be measured.
pub(super) fn no_trade(contract: &Contract, backend: &str) -> Option<&'static str> {
    let negotiates =
        contract.machine.scheme != Scheme::Smp && contract.held().any(|id| contract.unit(id).negotiate);
    (backend == "user" && negotiates).then_some(
        "units do not negotiate under the user backend, which cannot tell how long each of them waits for disks and memory; \
         their own offers are served",
    )
}
