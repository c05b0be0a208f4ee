//! Runs a program once on given CPUs, and measures how long it takes and what its threads do.
//!
//! The machine's settings stay as they are. The program starts with its CPU affinity set and in a separate
//! process group, so Ctrl-C reaches only this process, which then ends the program. Processes that the
//! program leaves behind are ended too: they would take CPU time from the next run.
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
pub use crate::meter::MeterOptions;
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

/// What to run, and what to measure.
#[derive(Debug, Clone, Copy)]
pub struct RunRequest<'a> {
    /// The program and its arguments. Not empty.
    pub command: &'a [OsString],
    /// The CPUs that it may use.
    pub cpus: &'a CpuSet,
    /// Whether to keep its standard output.
    pub keep_output: bool,
    /// Whether to sample its threads.
    pub watch: bool,
    /// If set, the meter that counts locks is loaded into the program, and may delay one of them.
    pub meter: Option<MeterOptions>,
    /// The CPU quota that applies to it, if any.
    pub cap: Option<&'a Cap>,
}

/// The measurements of a run that was not stopped.
#[derive(Debug)]
pub struct Done {
    /// Wall-clock time from the start to the end of the program's first process.
    pub wall_ns: u64,
    /// Exit status of the first process.
    pub status: ExitStatus,
    /// Its standard output if that was kept: the last 16 MiB.
    pub output: Vec<u8>,
    /// The last 4 KiB of its standard error.
    pub errors: Vec<u8>,
    /// External load on its CPUs.
    pub load: Load,
    /// What its threads did, if they were sampled.
    pub watched: Option<Watched>,
    /// What the meter counted, if it was loaded.
    pub locks: Option<Locks>,
    /// Whether the kernel dropped taskstats records of ended threads.
    pub lost: bool,
    /// Whether the `syscall` file of some waiting thread could not be read.
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
    /// The number of processes that the program left behind.
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
    /// `stop` became readable; all of the program's processes have been ended.
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
/// Longest period after a sample that parsed files of the program. Such a sample is more expensive than the
/// next ones, so its cost would result in too long a period.
const PERIOD_LEARNED: Duration = Duration::from_millis(50);
/// A sample may take 1/200 of the period.
const COST: u32 = 200;

/// What consecutive runs of a program reuse: parsed symbol files, and the loaded BPF program.
#[derive(Debug, Default)]
pub struct RunCache {
    files: Files,
    kernel_locks: KernelLocks,
}

/// Runs a program once. The program is ended as soon as `stop` becomes readable. `online`: the CPUs to
/// collect taskstats records from.
pub fn run(
    request: &RunRequest,
    online: &CpuSet,
    stop: BorrowedFd,
    cache: &mut RunCache,
) -> Result<Ended, NotRun> {
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
    // Prepare everything that can be prepared before the program starts.
    let adopts = Adopts::begin().map_err(cannot("adopt processes"))?;
    let mut threads = match request.watch {
        true => {
            let files = std::mem::take(&mut cache.files);
            Some(Threads::prepare(Exits::listen(online).ok(), counts_delays(), files)?)
        }
        false => None,
    };
    let errors = child::scratch().map_err(cannot("keep what a program prints"))?;
    let output = child::scratch().map_err(cannot("keep what a program prints"))?;
    let stdio = |file: &std::os::fd::OwnedFd| file.try_clone().map(Stdio::from);
    let mut command = commonhold_live::host::child::command(
        request.command.first().map_or("".as_ref(), OsString::as_os_str),
    );
    command.args(request.command.iter().skip(1)).stdin(Stdio::null()).process_group(0);
    command.stderr(stdio(&errors).map_err(cannot("keep what a program prints"))?);
    command.stdout(match request.keep_output {
        true => stdio(&output).map_err(cannot("keep what a program prints"))?,
        false => Stdio::null(),
    });
    let meter = request.meter.map(Meter::new).transpose().map_err(cannot("make a meter of locks"))?;
    command.envs(meter.iter().flat_map(Meter::environment));
    let mut family = Family::before()?;
    let mut no_kernel = None;
    if request.watch {
        no_kernel = cache.kernel_locks.begin().err();
    }
    let counts_before = request.watch.then(Counts::now);
    let loads = Loads::begin(request);
    // Start the program, and sample it until it ends.
    let begun_ns = clock::now();
    let program = child::start_on(request.cpus, &mut command).map_err(|refused| match refused {
        Refused::Command(source) => NotRun::Command {
            name: request.command.first().map_or_else(String::new, |n| n.to_string_lossy().into()),
            source,
        },
        Refused::Cpus(source) => NotRun::Cpus { cpus: request.cpus.to_string(), source },
    })?;
    let pid = program.id();
    // Threads started before this call are not counted. The process has only just started.
    let stalls = threads.as_ref().and_then(|_| Stalls::of(pid).ok());
    if let Some(threads) = &mut threads {
        threads.begin(pid, begun_ns);
    }
    let has_ended = wait(pid, threads.as_mut(), stop);
    let ended_ns = clock::now();
    let Ok(true) = has_ended else {
        family.end()?;
        drop(adopts);
        return has_ended.map(|_| Ended::Stopped).map_err(NotRun::from);
    };
    // Take the final readings, then end the processes that the program left behind.
    // The first process is a zombie until it is reaped: its files in /proc can still be read.
    if let Some(threads) = &mut threads {
        threads.sample()?;
    }
    let io_bytes = thread_sample::io_bytes(&mut family.procfs, pid)?;
    let (status, used) = child::reap(pid).map_err(cannot("take a program's status"))?;
    let loads = loads.end(request);
    let counts_after = counts_before.as_ref().map(|_| Counts::now());
    let left = family.end()?;
    // Evaluate the measurements: nothing depends on the program's processes any more.
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
        cache.files = sampled.files;
        sampled.watched
    });
    // Each of the two may miss CPU time: rusage that of children left behind, sampling that of threads that
    // lived between two samples.
    let ran_ns = watched.as_ref().map_or(0, |watched| watched.times.ran()).max(used.user_ns + used.system_ns);
    let wall_ns = ended_ns.saturating_sub(begun_ns);
    let mut kernel_lost = 0;
    if let Some(Watched { observed, .. }) = &mut watched {
        match cache.kernel_locks.end(observed) {
            Ok(lost) => kernel_lost = lost,
            Err(why) => no_kernel = Some(why),
        }
        if let Some((before, after)) = counts_before.zip(counts_after) {
            observed.interrupts = after.interrupts_since(&before, request.cpus);
            observed.disks = after.disks_since(&before);
        }
        observed.io_bytes = io_bytes;
    }
    Ok(Ended::Done(Box::new(Done {
        wall_ns,
        load: loads.load(request, wall_ns, ran_ns),
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
    /// CPU time of this thread, which samples.
    own_ns: u64,
    throttled_ns: u64,
}

/// By how much the counters of [`Loads`] advanced during the run.
struct LoadDifference {
    used_ns: u64,
    stolen_ns: u64,
    own_ns: u64,
    throttled_ns: u64,
}

impl Loads {
    fn begin(request: &RunRequest) -> Loads {
        let throttled_ns = request.cap.map_or(0, Cap::throttled_ns);
        Loads { busy: Busy::now(), own_ns: clock::thread_cpu_ns(), throttled_ns }
    }

    fn end(self, request: &RunRequest) -> LoadDifference {
        let (used_ns, stolen_ns) = Busy::now().since(&self.busy, request.cpus);
        LoadDifference {
            used_ns,
            stolen_ns,
            own_ns: clock::thread_cpu_ns().saturating_sub(self.own_ns),
            throttled_ns: request.cap.map_or(0, Cap::throttled_ns).saturating_sub(self.throttled_ns),
        }
    }
}

impl LoadDifference {
    /// The external load during a run. Neither the program's CPU time, `ran_ns`, nor the sampler's counts as
    /// external load.
    fn load(&self, request: &RunRequest, wall_ns: u64, ran_ns: u64) -> Load {
        Load {
            whole_ns: wall_ns.saturating_mul(request.cpus.len() as u64),
            others_ns: self.used_ns.saturating_sub(ran_ns).saturating_sub(self.own_ns),
            stolen_ns: self.stolen_ns,
            throttled_ns: self.throttled_ns,
        }
    }
}

/// Samples until the program ends or `stop` becomes readable. Returns whether the program ended.
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
                let cost = Duration::from_nanos(clock::thread_cpu_ns().saturating_sub(begun_ns));
                let period_max = if threads.learned() { PERIOD_LEARNED } else { PERIOD_MAX };
                Some((cost * COST).clamp(PERIOD, period_max))
            }
        };
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let mut waits = [PollFd::new(pinned.descriptor(), PollFlags::IN), PollFd::new(&stop, PollFlags::IN)];
        match poll(&mut waits, pause.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
        // `stop` takes precedence, even if the program ended at the same moment.
        if waits[1].revents().contains(PollFlags::IN) {
            return Ok(false);
        }
        if waits[0].revents().contains(PollFlags::IN) {
            return Ok(true);
        }
    }
}

/// Grace period between SIGTERM and SIGKILL.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// The descendants of this process that started since the run began.
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

    /// The new descendants, parents before children.
    fn members(&mut self) -> Result<Vec<ProcessKey>, LiveError> {
        let mut listed = Vec::new();
        self.procfs.processes(&mut listed)?;
        let mut new_processes = Vec::new();
        for entry in listed.into_iter().filter(|entry| !self.before.contains(entry)) {
            new_processes.extend(self.procfs.stat(entry.pid)?.map(|stat| (stat.key, stat.parent)));
        }
        // One generation after the other.
        let (mut parents, mut members) = (vec![std::process::id()], Vec::new());
        while !parents.is_empty() {
            let (children, others): (Vec<_>, Vec<_>) =
                new_processes.into_iter().partition(|(_, parent)| parents.contains(parent));
            parents = children.iter().map(|(key, _)| key.pid).collect();
            members.extend(children.into_iter().map(|(key, _)| key));
            new_processes = others;
        }
        Ok(members)
    }

    /// Ends the new descendants: SIGTERM first, SIGKILL after [`PATIENCE`]. Returns the number of
    /// descendants. They are reaped here, since this process is their parent, or becomes it as the subreaper.
    fn end(&mut self) -> Result<usize, LiveError> {
        let first = self.members()?;
        let count = first.len();
        let begun = std::time::Instant::now();
        let mut members = first;
        while !members.is_empty() {
            let is_late = begun.elapsed() > PATIENCE;
            for key in &members {
                self.signal_to_end(*key, is_late);
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

    /// Sends SIGKILL, or SIGTERM and SIGCONT, which lets a stopped process handle it. Errors are ignored: the
    /// process may have ended, or may run as another user.
    fn signal_to_end(&mut self, key: ProcessKey, kill: bool) {
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
