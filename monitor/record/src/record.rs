//! `commonhold record`: follows the units' threads, samples the accounts, and writes a recording.
//!
//! One loop does everything. Each turn takes the events that the kernel collected, or reads the threads'
//! clocks; at longer intervals it samples the daemon's accounts, the processes and the disks. The recorder
//! needs the daemon at its start only: while no daemon answers, samples have no accounts, and the recorder
//! tries again at each sample.

mod accounts;
#[cfg(feature = "kernel")]
mod events;
mod order;
mod processes;

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::signals::Signals;
use commonhold_command::{load, output};
use commonhold_feed::FeedError;
use commonhold_live::LiveError;
use commonhold_live::host::clock;
use commonhold_recording::{
    Block, ContractChange, End, Header, Method, Sample, TimedEvent, Why, WriteError, Writer,
};

use crate::cli::{MethodChoice, Record};
use accounts::{Accounts, Statement};
use order::Order;
use processes::Processes;

/// The interval at which the kernel's buffers are emptied.
#[cfg(feature = "kernel")]
const DRAIN: Duration = Duration::from_millis(25);
/// The interval at which threads' clocks are read.
const CLOCKS: Duration = Duration::from_millis(50);
/// The most events in a block.
const EVENTS_MAX: usize = 1 << 16;

/// Runs the command.
///
/// # Errors
///
/// A failure with its exit code. The file has what was recorded before.
pub fn main(args: &Record) -> Result<Exit, Failure> {
    let signals = Signals::of_an_end()?;
    let machine = load::machine_here()?;
    let mut accounts = Accounts::open(&args.place).map_err(no_daemon)?;
    let statement = accounts.statement().map_err(no_daemon)?;
    let contract = accounts.contract().map_err(no_daemon)?;
    let mut source = Source::choose(args.method)?;
    let method = source.method();
    let begin_ns = clock::now();
    source.begin(begin_ns);
    let header = Header {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        began_wall_ms: clock::wall_ms(),
        machine: machine.to_toml(),
        contract: contract.clone(),
        contract_file: statement.contract_file.clone(),
        scheme: statement.scheme.clone(),
        backend: statement.backend.clone(),
        method,
        sample_ns: nanos(args.every),
    };
    let file = create(args)?;
    let writer = match Writer::begin(BufWriter::new(file), &header, args.size) {
        Ok(writer) => writer,
        Err(error) => return Err(cannot_write(args, &error)),
    };
    let disks = machine.disks.iter().map(|disk| disk.name.clone()).collect();
    let mut recorder = Recorder {
        args,
        begin_ns,
        accounts: Some(accounts),
        contract,
        processes: Processes::open(disks).map_err(own)?,
        source,
        order: Order::default(),
        writer,
        without_accounts_ns: 0,
        sampled_ns: 0,
        clocks_ns: 0,
    };
    output::say(&format!(
        "recording {}: {method}, for {} or up to {} (end it with Ctrl-C)",
        args.file.display(),
        commonhold_contract::duration_text(nanos(args.length)),
        commonhold_contract::quantity::bytes_text(args.size)
    ));
    let why = recorder.run(&signals)?;
    recorder.end(why)
}

/// What reports the activity of threads.
enum Source {
    #[cfg(feature = "kernel")]
    Events(events::Events),
    Clocks,
}

impl Source {
    /// The requested source; with `auto`, events if the kernel allows.
    fn choose(choice: MethodChoice) -> Result<Source, Failure> {
        if choice == MethodChoice::Clocks {
            return Ok(Source::Clocks);
        }
        match (Source::events(), choice) {
            (Ok(events), _) => Ok(events),
            (Err(why), MethodChoice::Events) => {
                let remedy = "run it as root on a kernel with BTF, or leave --method out";
                Err(Failure::new(
                    Exit::NotAllowed,
                    format!("cannot record the scheduler's events: {why}; {remedy}"),
                ))
            }
            (Err(why), _) => {
                output::say(&format!(
                    "note: without the scheduler's events, since {why}; threads' clocks are read"
                ));
                Ok(Source::Clocks)
            }
        }
    }

    #[cfg(feature = "kernel")]
    fn events() -> Result<Source, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root may see them".to_owned());
        }
        Ok(Source::Events(events::Events::attach()?))
    }

    #[cfg(not(feature = "kernel"))]
    fn events() -> Result<Source, String> {
        Err("this build has no BPF".to_owned())
    }

    /// Begins at this time of the monotonic clock.
    fn begin(&mut self, begin_ns: u64) {
        match self {
            #[cfg(feature = "kernel")]
            Source::Events(events) => events.begin(begin_ns),
            Source::Clocks => _ = begin_ns,
        }
    }

    fn method(&self) -> Method {
        match self {
            #[cfg(feature = "kernel")]
            Source::Events(_) => Method::Events,
            Source::Clocks => Method::Clocks { every_ns: nanos(CLOCKS) },
        }
    }

    fn interval(&self) -> Duration {
        match self {
            #[cfg(feature = "kernel")]
            Source::Events(_) => DRAIN,
            Source::Clocks => CLOCKS,
        }
    }

    /// Appends the events since the last call; does nothing if this is no source of events.
    fn drain(&mut self, into: &mut Vec<TimedEvent>) {
        match self {
            #[cfg(feature = "kernel")]
            Source::Events(events) => events.drain(into),
            Source::Clocks => _ = into,
        }
    }

    fn lost(&self) -> u64 {
        match self {
            #[cfg(feature = "kernel")]
            Source::Events(events) => events.lost(),
            Source::Clocks => 0,
        }
    }
}

/// A recording in progress. Times are in ns since it began.
struct Recorder<'a> {
    args: &'a Record,
    begin_ns: u64,
    /// `None` while no daemon answers.
    accounts: Option<Accounts>,
    /// The contract as it was last written.
    contract: String,
    processes: Processes,
    source: Source,
    order: Order,
    writer: Writer<BufWriter<File>>,
    without_accounts_ns: u64,
    /// The time of the last sample.
    sampled_ns: u64,
    /// The time of the last reading of threads' clocks.
    clocks_ns: u64,
}

impl Recorder<'_> {
    fn now(&self) -> u64 {
        clock::now().saturating_sub(self.begin_ns)
    }

    /// Records until the time has ended, the file is full, or a signal comes.
    fn run(&mut self, signals: &Signals) -> Result<Why, Failure> {
        let (length, every) = (nanos(self.args.length), nanos(self.args.every));
        let mut next_sample = 0;
        loop {
            let now = self.now();
            let is_over = now >= length;
            let result = self.turn(now, is_over || now >= next_sample);
            match result {
                Ok(()) => {}
                Err(TurnError::Write(WriteError::Full { .. })) => return Ok(Why::Size),
                Err(TurnError::Write(error)) => return Err(cannot_write(self.args, &error)),
                Err(TurnError::Own(error)) => return Err(own(error)),
            }
            if is_over {
                return Ok(Why::Time);
            }
            while next_sample <= now {
                next_sample += every;
            }
            let left = Duration::from_nanos(length - now);
            if signals.came_within(self.source.interval().min(left)) {
                return Ok(Why::Told);
            }
        }
    }

    fn turn(&mut self, now: u64, samples: bool) -> Result<(), TurnError> {
        // The members first: events of a thread follow the block that names it.
        if samples {
            self.sample(now)?;
        }
        self.source.drain(self.order.arrivals());
        let events = self.order.release(now);
        self.write_events(events)?;
        if matches!(self.source, Source::Clocks) && now > self.clocks_ns {
            let usage = self.processes.usage(now, now - self.clocks_ns).map_err(TurnError::Own)?;
            self.clocks_ns = now;
            if !usage.threads.is_empty() {
                self.writer.write(&Block::Usage(usage))?;
            }
        }
        Ok(())
    }

    fn write_events(&mut self, mut events: Vec<TimedEvent>) -> Result<(), WriteError> {
        while !events.is_empty() {
            let rest = events.split_off(events.len().min(EVENTS_MAX));
            self.writer.write(&Block::Events(events))?;
            events = rest;
        }
        Ok(())
    }

    fn sample(&mut self, now: u64) -> Result<(), TurnError> {
        let mut sample = Sample { at_ns: now, ..Sample::default() };
        match self.ask() {
            Some(Answers { statement, members, not_listed, contract }) => {
                let found = self.processes.sample(&members, now).map_err(TurnError::Own)?;
                if !found.new.is_empty() {
                    self.writer.write(&Block::Threads(found.new))?;
                }
                if contract != self.contract {
                    let change = ContractChange { at_ns: now, text: contract.clone() };
                    self.writer.write(&Block::Contract(change))?;
                    self.contract = contract;
                }
                (sample.units, sample.loans) = (statement.units, statement.loans);
                (sample.processes, sample.processes_left_out) =
                    (found.processes, found.left_out.saturating_add(not_listed));
            }
            None => self.without_accounts_ns += now - self.sampled_ns,
        }
        sample.disks = self.processes.disks().map_err(TurnError::Own)?;
        self.sampled_ns = now;
        self.writer.write(&Block::Sample(sample))?;
        Ok(())
    }

    /// Asks the daemon; `None` if it does not answer.
    fn ask(&mut self) -> Option<Answers> {
        if self.accounts.is_none() {
            self.accounts = Accounts::open(&self.args.place).ok();
        }
        let asked = self.accounts.as_mut().map(ask);
        match asked {
            Some(Ok(answers)) => Some(answers),
            Some(Err(_)) => {
                self.accounts = None;
                None
            }
            None => None,
        }
    }

    /// Writes what is left, and the end.
    fn end(mut self, why: Why) -> Result<Exit, Failure> {
        self.source.drain(self.order.arrivals());
        let (events, now) = (self.order.release_all(), self.now());
        let why = match self.write_events(events) {
            Ok(()) => why,
            Err(WriteError::Full { .. }) => Why::Size,
            Err(error) => return Err(cannot_write(self.args, &error)),
        };
        let end = End {
            at_ns: now,
            why,
            lost: self.source.lost(),
            disordered: self.order.disordered,
            recorder_ns: cpu_ns(),
            without_accounts_ns: self.without_accounts_ns,
        };
        let written = self.writer.written();
        let file = self.writer.end(&end).map_err(|error| cannot_write(self.args, &error))?;
        file.into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(|file| file.sync_all())
            .map_err(|error| cannot_write(self.args, &WriteError::Io(error)))?;
        output::say(&format!(
            "recorded {} in {}: {}",
            commonhold_contract::duration_text(now / 1_000_000 * 1_000_000),
            commonhold_contract::quantity::bytes_text(written),
            end.why
        ));
        if end.lost > 0 {
            output::say(&format!(
                "warning: {} events were lost, since the recorder did not keep up; `commonhold recording {}` says what \
                 that leaves in doubt",
                end.lost,
                self.args.file.display()
            ));
        }
        Ok(Exit::Ok)
    }
}

/// The accounts, each unit's members, and the contract.
fn ask(accounts: &mut Accounts) -> Result<Answers, FeedError> {
    let statement = accounts.statement()?;
    let with_members = statement.units.iter().filter(|unit| unit.processes > 0);
    let mut not_listed = 0;
    let members = with_members
        .map(|unit| {
            let (pids, count) = accounts.members(&unit.path)?;
            not_listed += count.saturating_sub(u32::try_from(pids.len()).unwrap_or(u32::MAX));
            Ok((unit.path.clone(), pids))
        })
        .collect::<Result<_, FeedError>>()?;
    let contract = accounts.contract()?;
    Ok(Answers { statement, members, not_listed, contract })
}

/// What the daemon says at a time.
struct Answers {
    statement: Statement,
    /// The processes of each unit that has any.
    members: Vec<(String, Vec<u32>)>,
    /// Processes that the daemon did not list, since it lists 2,000 of a unit.
    not_listed: u32,
    contract: String,
}

/// Why a turn failed.
enum TurnError {
    Write(WriteError),
    Own(LiveError),
}

impl From<WriteError> for TurnError {
    fn from(error: WriteError) -> TurnError {
        TurnError::Write(error)
    }
}

fn create(args: &Record) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(&args.file).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AlreadyExists => "name a new file",
            _ => "name a file in a folder that exists and that you may write to",
        };
        Failure::new(
            Exit::CannotCreate,
            format!("{}: cannot write it: {error}; {remedy}", args.file.display()),
        )
    })
}

fn cannot_write(args: &Record, error: &WriteError) -> Failure {
    Failure::new(Exit::CannotCreate, format!("{}: cannot write it: {error}", args.file.display()))
}

fn no_daemon(error: FeedError) -> Failure {
    error.into()
}

fn own(error: LiveError) -> Failure {
    Failure::new(Exit::System, error)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The CPU time of this process.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}
