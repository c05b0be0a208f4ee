//! Runs a program once, on given CPUs, and tells how long it took and what its threads did meanwhile.
//!
//! Nothing of the machine is changed. The program begins with the CPUs that it may use, in a process group of its own, so that
//! Ctrl-C reaches this program, which then ends the other. Processes that it leaves behind are ended too: they would take CPU
//! time from the next run.
//!
//! How often is looked: every 10 ms, or as rarely as looks take a two-hundredth of one CPU.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use commonhold_machine::CpuSet;
use commonhold_scale::locks::Lock;
use commonhold_scale::study::{Load, Watched};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::LiveError;
use crate::host::child::{self, Adopts, Refused};
use crate::host::exits::Exits;
pub use crate::host::meter::Wish;
use crate::host::meter::{Counted, Meter};
use crate::host::perf::Stalls;
use crate::host::{Pinned, signal};
use crate::host::{clock, read_to_string};
use crate::observe::kernels_locks::KernelsLocks;
use crate::observe::machine_counts::{Busy, Counts};
use crate::observe::metered::locks;
use crate::observe::process::{Listed, ProcFs, ProcessKey, is_alive};
use crate::observe::quota::Cap;
use crate::observe::symbols::Namer;
use crate::observe::threads::Threads;
use crate::observe::waits::Files;
pub use crate::observe::waits::Unnamed;

/// What is to be run.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The program and its arguments. Not empty.
    pub command: &'a [OsString],
    /// The CPUs that it may use.
    pub cpus: &'a CpuSet,
    /// Keep what it prints.
    pub keep_output: bool,
    /// Look at its threads.
    pub watch: bool,
    /// Count its locks, and delay one of them.
    pub meter: Option<Wish>,
    /// The cap on its CPU time, if any.
    pub cap: Option<&'a Cap>,
}

/// A run that came to its end.
#[derive(Debug)]
pub struct Done {
    /// From the start to the end of the first process.
    pub wall_ns: u64,
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed on standard output, if that was kept; of much, the end.
    pub output: Vec<u8>,
    /// The end of what it printed on standard error.
    pub errors: Vec<u8>,
    /// What else its CPUs were used for.
    pub load: Load,
    /// What its threads did.
    pub watched: Option<Watched>,
    /// What the meter counted.
    pub locks: Option<Locks>,
    /// Records of ended threads were lost.
    pub lost: bool,
    /// What some thread waited for could not be read.
    pub hidden: bool,
    /// Why the stacks of some threads that sleep could not be read.
    pub no_stacks: Option<String>,
    /// The same of threads that run.
    pub no_shots: Option<String>,
    /// Why some places in the program are not named.
    pub unnamed: BTreeSet<Unnamed>,
    /// Why the kernel's locks, and who wakes whom, are not told.
    pub no_kernel: Option<String>,
    /// How much of that was more than there is room for.
    pub kernel_lost: u64,
    /// Processes that it left behind.
    pub left: usize,
}

/// What a meter counted of a program's locks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Locks {
    /// The locks, those with the longest waits first.
    pub locks: Vec<Lock>,
    /// Locks that found no room in the meter's tables.
    pub overflowed: u64,
}

/// How a run ended.
#[derive(Debug)]
pub enum Ended {
    /// By itself.
    Done(Box<Done>),
    /// Since the caller was told to stop. Nothing of it runs any more.
    Stopped,
}

/// Why a program was not run.
#[derive(Debug, thiserror::Error)]
pub enum NotRun {
    /// It cannot be started.
    #[error("cannot run {name}: {source}")]
    Command {
        /// As it was named.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It cannot be put on these CPUs.
    #[error(
        "cannot use CPUs {cpus}: {source}; widen the affinity with `taskset`, or the cpuset of the control group"
    )]
    Cpus {
        /// As a list.
        cpus: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Something else failed.
    #[error(transparent)]
    Live(#[from] LiveError),
}

/// What this machine tells of threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tells {
    /// Why there are no records of ended threads.
    pub no_records: Option<String>,
    /// Whether the kernel counts what is waited for disks.
    pub counts_delays: bool,
    /// Why nothing counts how long CPUs wait for memory.
    pub no_stalls: Option<String>,
}

const DELAYS: &str = "/proc/sys/kernel/task_delayacct";

/// What this machine tells.
pub fn tells(cpus: &CpuSet) -> Tells {
    Tells {
        no_records: Exits::listen(cpus).err().map(|error| error.to_string()),
        counts_delays: counts_delays(),
        no_stalls: Stalls::of(0).err().map(|error| error.to_string()),
    }
}

fn counts_delays() -> bool {
    read_to_string(Path::new(DELAYS)).is_ok_and(|text| text.trim() == "1")
}

/// Of standard output and of standard error.
const OUTPUT_BYTES: u64 = 16 << 20;
const ERROR_BYTES: u64 = 4 << 10;

const PERIOD: Duration = Duration::from_millis(10);
const PERIOD_MAX: Duration = Duration::from_secs(1);
/// After a look that read files of the program, which later ones will not, not so long is waited for the next.
const PERIOD_LEARNED: Duration = Duration::from_millis(50);
/// Looks take one part in so many of a CPU.
const COST: u32 = 200;

/// What runs of a program have in common, learned once: what is in its files.
#[derive(Debug, Default)]
pub struct Learned {
    files: Files,
    kernels_locks: KernelsLocks,
}

/// Runs it. `stop` becomes readable when it is to end at once.
pub fn run(asked: &Asked, online: &CpuSet, stop: BorrowedFd, learned: &mut Learned) -> Result<Ended, NotRun> {
    let cannot = |what: &str| {
        let what = what.to_owned();
        move |source: io::Error| LiveError::Process {
            pid: std::process::id(),
            name: "commonhold".to_owned(),
            what,
            source,
            remedy: String::new(),
        }
    };
    let adopts = Adopts::begin().map_err(cannot("adopt processes"))?;
    let mut threads = match asked.watch {
        true => {
            let files = std::mem::take(&mut learned.files);
            Some(Threads::prepare(Exits::listen(online).ok(), counts_delays(), files)?)
        }
        false => None,
    };
    let errors = child::scratch().map_err(cannot("keep what a program prints"))?;
    let output = child::scratch().map_err(cannot("keep what a program prints"))?;
    let copy = |file: &std::os::fd::OwnedFd| file.try_clone().map(Stdio::from);
    let mut command = child::command(asked.command.first().map_or("".as_ref(), OsString::as_os_str));
    command.args(asked.command.iter().skip(1)).stdin(Stdio::null()).process_group(0);
    command.stderr(copy(&errors).map_err(cannot("keep what a program prints"))?);
    command.stdout(match asked.keep_output {
        true => copy(&output).map_err(cannot("keep what a program prints"))?,
        false => Stdio::null(),
    });
    let meter = asked.meter.map(Meter::new).transpose().map_err(cannot("make a meter of locks"))?;
    command.envs(meter.iter().flat_map(Meter::environment));
    let mut family = Family::before()?;
    let mut no_kernel = None;
    if asked.watch {
        no_kernel = learned.kernels_locks.begin().err();
    }
    let before = asked.watch.then(Counts::now);
    let loads = Loads::begin(asked);
    let begun_ns = clock::now();
    let program = child::start_on(asked.cpus, &mut command).map_err(|refused| match refused {
        Refused::Command(source) => NotRun::Command {
            name: asked.command.first().map_or_else(String::new, |n| n.to_string_lossy().into()),
            source,
        },
        Refused::Cpus(source) => NotRun::Cpus { cpus: asked.cpus.to_string(), source },
    })?;
    let pid = program.id();
    // Threads that it starts before this are not counted: it has just begun.
    let stalls = threads.as_ref().and_then(|_| Stalls::of(pid).ok());
    if let Some(threads) = &mut threads {
        threads.begin(pid, begun_ns);
    }
    let ended = wait(pid, threads.as_mut(), stop);
    let ended_ns = clock::now();
    let Ok(true) = ended else {
        family.end()?;
        drop(adopts);
        return ended.map(|_| Ended::Stopped).map_err(NotRun::from);
    };
    // The first process is still there to be read, until its status is taken.
    if let Some(threads) = &mut threads {
        threads.look()?;
    }
    let io_bytes = family.procfs.io_bytes(pid)?;
    let (status, used) = child::reap(pid).map_err(cannot("take a program's status"))?;
    let loads = loads.end(asked);
    let after = before.as_ref().map(|_| Counts::now());
    let left = family.end()?;
    let stalls = stalls.and_then(|stalls| stalls.read().ok()).filter(|(_, cycles)| *cycles > 0);
    let counted = meter.map(|meter| meter.read()).transpose().map_err(cannot("read the meter of locks"))?;
    let named = |counted: &Counted| Locks {
        locks: locks(counted, &mut Namer::default()),
        overflowed: counted.overflowed,
    };
    let hidden = threads.as_ref().is_some_and(|threads| threads.hidden);
    let seen = threads.map(|threads| threads.end(used, stalls, no_kernel.is_none()));
    let lost = seen.as_ref().is_some_and(|seen| seen.lost);
    let no_stacks = seen.as_ref().and_then(|seen| seen.no_stacks.clone());
    let no_shots = seen.as_ref().and_then(|seen| seen.no_shots.clone());
    let mut unnamed = BTreeSet::new();
    let mut watched = seen.map(|seen| {
        unnamed = seen.unnamed;
        learned.files = seen.files;
        seen.watched
    });
    // What looks found is more where it left children behind, and less where threads came and went between looks.
    let ran_ns = watched.as_ref().map_or(0, |watched| watched.times.ran()).max(used.user_ns + used.system_ns);
    let wall_ns = ended_ns.saturating_sub(begun_ns);
    let mut kernel_lost = 0;
    if let Some(Watched { seen, .. }) = &mut watched {
        match learned.kernels_locks.end(seen) {
            Ok(lost) => kernel_lost = lost,
            Err(why) => no_kernel = Some(why),
        }
        if let Some((before, after)) = before.zip(after) {
            seen.stolen = after.stolen_since(&before, asked.cpus);
            seen.disks = after.disks_since(&before);
        }
        seen.io_bytes = io_bytes;
    }
    Ok(Ended::Done(Box::new(Done {
        wall_ns,
        load: loads.load(asked, wall_ns, ran_ns),
        status,
        output: child::scratch_end(output, OUTPUT_BYTES).map_err(cannot("read what a program printed"))?,
        errors: child::scratch_end(errors, ERROR_BYTES).map_err(cannot("read what a program printed"))?,
        watched,
        locks: counted.as_ref().map(named),
        lost,
        hidden,
        no_stacks,
        no_shots,
        unnamed,
        no_kernel,
        kernel_lost,
        left,
    })))
}

/// What the CPUs of a run were used for, by anybody: at its beginning, and then meanwhile.
struct Loads {
    busy: Busy,
    own_ns: u64,
    throttled_ns: u64,
}

/// See [`Loads`].
struct Meanwhile {
    used_ns: u64,
    stolen_ns: u64,
    own_ns: u64,
    throttled_ns: u64,
}

impl Loads {
    fn begin(asked: &Asked) -> Loads {
        let throttled_ns = asked.cap.map_or(0, Cap::throttled_ns);
        Loads { busy: Busy::now(), own_ns: clock::thread_cpu_ns(), throttled_ns }
    }

    fn end(self, asked: &Asked) -> Meanwhile {
        let (used_ns, stolen_ns) = Busy::now().since(&self.busy, asked.cpus);
        Meanwhile {
            used_ns,
            stolen_ns,
            own_ns: clock::thread_cpu_ns().saturating_sub(self.own_ns),
            throttled_ns: asked.cap.map_or(0, Cap::throttled_ns).saturating_sub(self.throttled_ns),
        }
    }
}

impl Meanwhile {
    /// `ran_ns`: CPU time of the program. That of looks is not others' either.
    fn load(&self, asked: &Asked, wall_ns: u64, ran_ns: u64) -> Load {
        Load {
            whole_ns: wall_ns.saturating_mul(asked.cpus.len() as u64),
            others_ns: self.used_ns.saturating_sub(ran_ns).saturating_sub(self.own_ns),
            stolen_ns: self.stolen_ns,
            throttled_ns: self.throttled_ns,
        }
    }
}

/// Looks until the program has ended: true; or the caller is to stop: false.
fn wait(pid: u32, mut threads: Option<&mut Threads>, stop: BorrowedFd) -> Result<bool, LiveError> {
    let failed = |source: io::Error| LiveError::Process {
        pid,
        name: "the program".to_owned(),
        what: "wait for it".to_owned(),
        source,
        remedy: String::new(),
    };
    let pinned = Pinned::of(pid).map_err(failed)?;
    loop {
        let pause = match &mut threads {
            None => None,
            Some(threads) => {
                let begun_ns = clock::thread_cpu_ns();
                threads.look()?;
                let took = Duration::from_nanos(clock::thread_cpu_ns().saturating_sub(begun_ns));
                let most = if threads.learned() { PERIOD_LEARNED } else { PERIOD_MAX };
                Some((took * COST).clamp(PERIOD, most))
            }
        };
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let mut waits = [PollFd::new(pinned.descriptor(), PollFlags::IN), PollFd::new(&stop, PollFlags::IN)];
        match poll(&mut waits, pause.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
        // Whoever is told to stop does, even if the program ended in the same moment.
        if waits[1].revents().contains(PollFlags::IN) {
            return Ok(false);
        }
        if waits[0].revents().contains(PollFlags::IN) {
            return Ok(true);
        }
    }
}

/// How long processes have to end by themselves.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// The processes that descend from this one.
struct Family {
    procfs: ProcFs,
    /// Those that were there before.
    before: Vec<Listed>,
}

impl Family {
    fn before() -> Result<Family, LiveError> {
        let mut procfs = ProcFs::open(Path::new("/proc"))?;
        let mut before = Vec::new();
        procfs.processes(&mut before)?;
        Ok(Family { procfs, before })
    }

    /// Those that are new, the first generation first.
    fn members(&mut self) -> Result<Vec<ProcessKey>, LiveError> {
        let mut listed = Vec::new();
        self.procfs.processes(&mut listed)?;
        let mut left = Vec::new();
        for entry in listed.into_iter().filter(|entry| !self.before.contains(entry)) {
            left.extend(self.procfs.stat(entry.pid)?.map(|stat| (stat.key, stat.parent)));
        }
        let (mut parents, mut members) = (vec![std::process::id()], Vec::new());
        while !parents.is_empty() {
            let (more, rest): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|(_, parent)| parents.contains(parent));
            parents = more.iter().map(|(key, _)| key.pid).collect();
            members.extend(more.into_iter().map(|(key, _)| key));
            left = rest;
        }
        Ok(members)
    }

    /// Ends them all: asks first, and kills those that do not listen. How many there were. Taking the statuses is this
    /// process's to do, since it is their parent or becomes it.
    fn end(&mut self) -> Result<usize, LiveError> {
        let first = self.members()?;
        let count = first.len();
        let begun = std::time::Instant::now();
        let mut members = first;
        while !members.is_empty() {
            let is_late = begun.elapsed() > PATIENCE;
            for key in &members {
                self.ask(*key, is_late);
            }
            std::thread::sleep(PAUSE);
            for key in &members {
                child::reap_if_ended(key.pid);
            }
            members = self.members()?;
            if begun.elapsed() > PATIENCE * 10 {
                return Err(LiveError::Process {
                    pid: members.first().map_or(0, |key| key.pid),
                    name: "of the program".to_owned(),
                    what: "end it".to_owned(),
                    source: io::ErrorKind::TimedOut.into(),
                    remedy: "; it may hang in the kernel: see /proc/PID/stack".to_owned(),
                });
            }
        }
        Ok(count)
    }

    /// A process may be gone, or run as another user: then there is nothing to be done.
    fn ask(&mut self, key: ProcessKey, kill: bool) {
        let mut send = |signal| {
            let procfs = &mut self.procfs;
            let _ = signal::send(key.pid, signal, || is_alive(procfs, key));
        };
        if kill {
            send(Signal::KILL);
        } else {
            send(Signal::TERM);
            send(Signal::CONT);
        }
    }
}
