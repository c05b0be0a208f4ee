//! Runs a program once on given CPUs, and measures how long it takes and what its threads do.
//!
//! The machine's settings stay as they are. The program starts with its CPU affinity set and in a separate process group, so
//! Ctrl-C reaches only this process, which then ends the program. Processes that the program leaves behind are ended too:
//! they would take CPU time from the next run.
//!
//! Threads are sampled every 10 ms, or less often if that would cost more than 0.5 % of one CPU.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use commonhold_live::LiveError;
use commonhold_live::host::Pinned;
use commonhold_live::host::clock;
use commonhold_live::observe::process::{self, Listed, ProcFs, ProcessKey};
use commonhold_machine::CpuSet;
use commonhold_scale::locks::Lock;
use commonhold_scale::study::{Load, Watched};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::child::{self, Adopts, Refused};
use crate::kernel_locks::KernelLocks;
use crate::machine_counters::{Busy, Counts};
pub use crate::meter::Wish;
use crate::meter::{Counted, Meter};
use crate::metered::locks;
use crate::quota::Cap;
use crate::stalls::Stalls;
use crate::symbols::Namer;
use crate::taskstats::Exits;
use crate::thread_sample;
use crate::threads::Threads;
use crate::waits::Files;
pub use crate::waits::Unnamed;

/// One run to make.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The program and its arguments. Not empty.
    pub command: &'a [OsString],
    /// The CPUs that it may use.
    pub cpus: &'a CpuSet,
    /// Keep its standard output.
    pub keep_output: bool,
    /// Sample its threads.
    pub watch: bool,
    /// Load the meter that counts its locks, and maybe delays one of them.
    pub meter: Option<Wish>,
    /// The CPU quota that applies to it, if any.
    pub cap: Option<&'a Cap>,
}

/// A run that the program itself ended.
#[derive(Debug)]
pub struct Done {
    /// Wall-clock time from the start to the end of its first process.
    pub wall_ns: u64,
    /// Exit status of its first process.
    pub status: ExitStatus,
    /// Its standard output if that was kept: the last 16 MiB.
    pub output: Vec<u8>,
    /// The last 4 KiB of its standard error.
    pub errors: Vec<u8>,
    /// Other load on its CPUs.
    pub load: Load,
    /// What its threads did, if they were sampled.
    pub watched: Option<Watched>,
    /// What the meter counted, if it was loaded.
    pub locks: Option<Locks>,
    /// The kernel dropped taskstats records of ended threads.
    pub lost: bool,
    /// The `syscall` file of some waiting thread could not be read.
    pub hidden: bool,
    /// Why stacks of sleeping threads could not be copied.
    pub no_stacks: Option<String>,
    /// Why stacks of running threads could not be sampled.
    pub no_shots: Option<String>,
    /// Why some call sites in the program have no name.
    pub unnamed: BTreeSet<Unnamed>,
    /// Why kernel locks and wake-ups were not traced.
    pub no_kernel: Option<String>,
    /// Kernel lock waits and wake-ups dropped because the BPF tables were full.
    pub kernel_lost: u64,
    /// How many processes it left behind.
    pub left: usize,
}

/// Lock statistics from the meter.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Locks {
    /// The locks, by total wait time, descending.
    pub locks: Vec<Lock>,
    /// Locks not counted because the meter's tables were full.
    pub overflowed: u64,
}

/// How a run ended.
#[derive(Debug)]
pub enum Ended {
    /// The program ended by itself.
    Done(Box<Done>),
    /// `stop` became readable; all of its processes have been ended.
    Stopped,
}

/// Why a program could not be run.
#[derive(Debug, thiserror::Error)]
pub enum NotRun {
    /// The program cannot be executed.
    #[error("cannot run {name}: {source}")]
    Command {
        /// The program, as the caller named it.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The CPU affinity cannot be set.
    #[error(
        "cannot use CPUs {cpus}: {source}; widen the affinity with `taskset`, or the cpuset of the control group"
    )]
    Cpus {
        /// The CPUs, in list format.
        cpus: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Any other failure.
    #[error(transparent)]
    Live(#[from] LiveError),
}

/// Which facts about threads this machine provides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Support {
    /// Why taskstats records of ended threads are unavailable; `None` if they are available.
    pub no_records: Option<String>,
    /// Whether delay accounting for block I/O is enabled (`kernel.task_delayacct`).
    pub counts_delays: bool,
    /// Why CPU cycles stalled on memory cannot be counted; `None` if they can.
    pub no_stalls: Option<String>,
}

const DELAYS: &str = "/proc/sys/kernel/task_delayacct";

/// Checks what this machine provides. `cpus`: the online CPUs.
pub fn support(cpus: &CpuSet) -> Support {
    Support {
        no_records: Exits::listen(cpus).err().map(|error| error.to_string()),
        counts_delays: counts_delays(),
        no_stalls: Stalls::of(0).err().map(|error| error.to_string()),
    }
}

fn counts_delays() -> bool {
    std::fs::read_to_string(DELAYS).is_ok_and(|text| text.trim() == "1")
}

/// How much of standard output and standard error is kept.
const OUTPUT_BYTES: u64 = 16 << 20;
const ERROR_BYTES: u64 = 4 << 10;

/// Shortest and longest sampling period.
const PERIOD: Duration = Duration::from_millis(10);
const PERIOD_MAX: Duration = Duration::from_secs(1);
/// Longest period after a sample that parsed files of the program: the next one is cheaper, so its cost predicts too long a
/// period.
const PERIOD_LEARNED: Duration = Duration::from_millis(50);
/// A sample may take 1/200 of the period.
const COST: u32 = 200;

/// What the runs of a program share: parsed symbol files, and the loaded BPF program.
#[derive(Debug, Default)]
pub struct Learned {
    files: Files,
    kernel_locks: KernelLocks,
}

/// Runs the program. It is ended as soon as `stop` becomes readable. `online`: the CPUs to collect taskstats records from.
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
    let mut command =
        commonhold_live::host::child::command(asked.command.first().map_or("".as_ref(), OsString::as_os_str));
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
        no_kernel = learned.kernel_locks.begin().err();
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
    // Threads started before this call are not counted. The process has only just started.
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
    // The first process is a zombie until it is reaped: its files in /proc can still be read.
    if let Some(threads) = &mut threads {
        threads.sample()?;
    }
    let io_bytes = thread_sample::io_bytes(&mut family.procfs, pid)?;
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
    let sampled = threads.map(|threads| threads.end(used, stalls, no_kernel.is_none()));
    let lost = sampled.as_ref().is_some_and(|sampled| sampled.lost);
    let no_stacks = sampled.as_ref().and_then(|sampled| sampled.no_stacks.clone());
    let no_shots = sampled.as_ref().and_then(|sampled| sampled.no_shots.clone());
    let mut unnamed = BTreeSet::new();
    let mut watched = sampled.map(|sampled| {
        unnamed = sampled.unnamed;
        learned.files = sampled.files;
        sampled.watched
    });
    // Sampling counts more if children were left behind, and rusage counts more if threads lived between two samples.
    let ran_ns = watched.as_ref().map_or(0, |watched| watched.times.ran()).max(used.user_ns + used.system_ns);
    let wall_ns = ended_ns.saturating_sub(begun_ns);
    let mut kernel_lost = 0;
    if let Some(Watched { observed, .. }) = &mut watched {
        match learned.kernel_locks.end(observed) {
            Ok(lost) => kernel_lost = lost,
            Err(why) => no_kernel = Some(why),
        }
        if let Some((before, after)) = before.zip(after) {
            observed.interrupts = after.interrupts_since(&before, asked.cpus);
            observed.disks = after.disks_since(&before);
        }
        observed.io_bytes = io_bytes;
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

/// CPU counters at the start of a run.
struct Loads {
    busy: Busy,
    own_ns: u64,
    throttled_ns: u64,
}

/// How far the counters of [`Loads`] advanced during the run.
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
    /// `ran_ns`: CPU time of the program. Neither this nor the sampler's own counts as other load.
    fn load(&self, asked: &Asked, wall_ns: u64, ran_ns: u64) -> Load {
        Load {
            whole_ns: wall_ns.saturating_mul(asked.cpus.len() as u64),
            others_ns: self.used_ns.saturating_sub(ran_ns).saturating_sub(self.own_ns),
            stolen_ns: self.stolen_ns,
            throttled_ns: self.throttled_ns,
        }
    }
}

/// Samples until the program ends (true) or `stop` becomes readable (false).
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
                threads.sample()?;
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
        // `stop` wins, even if the program ended at the same moment.
        if waits[1].revents().contains(PollFlags::IN) {
            return Ok(false);
        }
        if waits[0].revents().contains(PollFlags::IN) {
            return Ok(true);
        }
    }
}

/// Time between SIGTERM and SIGKILL.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// The descendants of this process.
struct Family {
    procfs: ProcFs,
    /// Processes that existed before the run.
    before: Vec<Listed>,
}

impl Family {
    fn before() -> Result<Family, LiveError> {
        let mut procfs = ProcFs::open(Path::new("/proc"))?;
        let mut before = Vec::new();
        procfs.processes(&mut before)?;
        Ok(Family { procfs, before })
    }

    /// Descendants that are new, parents before children.
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

    /// Ends all descendants: SIGTERM first, SIGKILL after [`PATIENCE`]. Returns how many there were. They are reaped here, since
    /// this process is their parent or, as the subreaper, becomes it.
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

    /// Errors are ignored: the process may have ended, or may run as another user.
    fn ask(&mut self, key: ProcessKey, kill: bool) {
        let mut send = |signal| {
            if let Ok(Some(pinned)) = process::pin(&mut self.procfs, key) {
                let _ = pinned.signal(signal);
            }
        };
        if kill {
            send(Signal::KILL);
        } else {
            send(Signal::TERM);
            send(Signal::CONT);
        }
    }
}
