//! `commonhold record`: follows the units' threads, samples the accounts, and writes a recording.
//!
//! One loop does everything. Each turn takes the events that the kernel collected, or reads the threads'
//! clocks; at longer intervals it samples the daemon's accounts, the processes and the disks. The recorder
//! needs the daemon at its start only: while no daemon answers, samples have no accounts, and the recorder
//! tries again at each sample. A second thread asks the daemon ([`asker`]), so that the loop never waits
//! long.

mod accounts;
mod asker;
#[cfg(feature = "kernel")]
mod events;
mod order;
mod processes;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::signals::Signals;
use commonhold_command::{load, output};
use commonhold_live::LiveError;
use commonhold_live::host::clock;
use commonhold_machine::capability::State as CapabilityState;
use commonhold_recording::{
    Block, ContractChange, End, Header, HoldingChange, Method, Sample, TimedEvent, Why, WriteError, Writer,
};
use commonhold_report::figures::{count_of, duration};
use commonhold_report::holdings::Holding;

use crate::cli::{MethodChoice, Record};
use asker::{Answers, Asker};
use order::Order;
use processes::Processes;

/// The interval at which the kernel's buffers are emptied.
#[cfg(feature = "kernel")]
const DRAIN: Duration = Duration::from_millis(25);
/// The interval at which threads' clocks are read.
const CLOCKS: Duration = Duration::from_millis(50);
/// How long a turn waits for the daemon, which usually answers within a millisecond. A later answer is taken
/// over in a later turn.
const REPLY: Duration = Duration::from_millis(5);
/// How long the first and the last sample wait for the daemon. The kernel's buffers usually have room for the
/// events of this time.
const REPLY_MAX: Duration = Duration::from_millis(200);
/// How often signals are looked for until the daemon gives its first answer.
const LOOK: Duration = Duration::from_millis(50);
/// The most events in a block.
const EVENTS_MAX: usize = 1 << 16;

/// Runs the command.
///
/// # Errors
///
/// A failure with its exit code. The file has what was recorded before.
pub fn main(args: &Record) -> Result<Exit, Failure> {
    let signals = Signals::of_an_end()?;
    // First, since loading the program may take seconds, and a file that exists is to be refused at once.
    let (file, unbegun) = create(args)?;
    let machine = load::machine_here()?;
    let mut asker = Asker::start(&args.place)?;
    let Answers { statement, contract, .. } = first_answer(&mut asker, &signals)?;
    let mut source = Source::choose(args.method)?;
    let method = source.method();
    let disks = machine.disks.iter().map(|disk| disk.name.clone()).collect();
    let processes = Processes::open(disks).map_err(own)?;
    let (begin_ns, begin_cpu_ns) = (clock::now(), cpu_ns());
    source.begin(begin_ns);
    let header = Header {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        began_wall_ms: clock::wall_ms(),
        machine: machine.to_toml(),
        contract: contract.clone(),
        contract_file: statement.contract_file,
        scheme: statement.scheme,
        backend: statement.backend,
        method,
        sample_ns: nanos(args.every),
    };
    let writer = Writer::begin(BufWriter::new(file), &header, args.size)
        .map_err(|error| cannot_write(args, &error))?;
    unbegun.keep();
    let mut recorder = Recorder {
        args,
        begin_ns,
        begin_cpu_ns,
        asker,
        has_accounts: true,
        contract,
        holdings: BTreeMap::new(),
        processes,
        source,
        order: Order::default(),
        writer,
        covered_ns: 0,
        without_accounts_ns: 0,
        sampled_ns: 0,
        clocks_ns: 0,
        left_out: 0,
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

/// The daemon's first answer, from which the recording's header is made.
fn first_answer(asker: &mut Asker, signals: &Signals) -> Result<Answers, Failure> {
    asker.ask();
    loop {
        if let Some(answer) = asker.answer(LOOK) {
            return answer.map_err(Failure::from);
        }
        if signals.came_within(Duration::ZERO) {
            let why = "the daemon did not answer before a signal came; if it is stuck, restart it";
            return Err(Failure::new(Exit::Unavailable, why));
        }
    }
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
                    format!("cannot record scheduler events: {why}; {remedy}"),
                ))
            }
            (Err(why), _) => {
                output::warn(&format!(
                    "note: cannot record scheduler events: {why}; reading each thread's CPU time from /proc instead"
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
    /// The CPU time of this process when the recording began.
    begin_cpu_ns: u64,
    asker: Asker,
    /// Whether the last sample had accounts.
    has_accounts: bool,
    /// The contract as it was last written.
    contract: String,
    /// By resource: how it is held, as it was last written.
    holdings: BTreeMap<String, String>,
    processes: Processes,
    source: Source,
    order: Order,
    writer: Writer<BufWriter<File>>,
    /// The time up to which the file has what threads did.
    covered_ns: u64,
    without_accounts_ns: u64,
    /// The time of the last sample.
    sampled_ns: u64,
    /// The time of the last reading of threads' clocks.
    clocks_ns: u64,
    /// The most processes that a sample left out.
    left_out: u32,
}

/// Which sample a turn takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// None; but an answer of the daemon that comes late makes one.
    No,
    First,
    Next,
    Last,
}

impl Recorder<'_> {
    fn now(&self) -> u64 {
        clock::now().saturating_sub(self.begin_ns)
    }

    /// Records until the time has ended, the file is full, or a signal comes.
    fn run(&mut self, signals: &Signals) -> Result<Why, Failure> {
        let (length, every) = (nanos(self.args.length), nanos(self.args.every));
        let (mut next_sample, mut is_told) = (0, false);
        loop {
            let now = self.now();
            let is_over = now >= length;
            let due = match now >= next_sample {
                _ if is_over || is_told => Due::Last,
                true if next_sample == 0 => Due::First,
                true => Due::Next,
                false => Due::No,
            };
            match self.turn(due) {
                Ok(()) => {}
                Err(TurnError::Write(WriteError::Full { .. })) => return Ok(Why::Size),
                Err(TurnError::Write(error)) => return Err(cannot_write(self.args, &error)),
                Err(TurnError::Own(error)) => return Err(own(error)),
            }
            if is_told {
                return Ok(Why::Told);
            }
            if is_over {
                return Ok(Why::Time);
            }
            while next_sample <= now {
                next_sample += every;
            }
            let left = Duration::from_nanos(length - now);
            is_told = signals.came_within(self.source.interval().min(left));
        }
    }

    fn turn(&mut self, due: Due) -> Result<(), TurnError> {
        // The members first: events of a thread follow the block that names it.
        let is_late = self.asker.is_waiting();
        let within = match due {
            Due::No => Duration::ZERO,
            Due::Next => REPLY,
            Due::First | Due::Last => REPLY_MAX,
        };
        if due != Due::No {
            self.asker.ask();
        }
        match self.asker.answer(within) {
            Some(answer) => self.sample(answer.map_err(|error| error.to_string()))?,
            // The daemon has not answered since an earlier sample, or there is no later turn.
            None if due == Due::Last || (due != Due::No && is_late) => {
                self.sample(Err("the daemon does not answer".to_owned()))?;
            }
            None => {}
        }
        self.source.drain(self.order.arrivals());
        let now = self.now();
        let events = self.order.release(now);
        self.write_events(events)?;
        if matches!(self.source, Source::Clocks) && now > self.clocks_ns {
            let usage = self.processes.usage(now, now - self.clocks_ns).map_err(TurnError::Own)?;
            self.clocks_ns = now;
            if !usage.threads.is_empty() {
                self.writer.write(&Block::Usage(usage))?;
            }
            self.covered_ns = now;
        }
        Ok(())
    }

    fn write_events(&mut self, mut events: Vec<TimedEvent>) -> Result<(), WriteError> {
        while !events.is_empty() {
            let rest = events.split_off(events.len().min(EVENTS_MAX));
            let last_ns = events.last().map_or(0, |event| event.at_ns);
            self.writer.write(&Block::Events(events))?;
            self.covered_ns = last_ns;
            events = rest;
        }
        Ok(())
    }

    /// Takes a sample, with what the daemon said, or why it said nothing.
    fn sample(&mut self, answer: Result<Answers, String>) -> Result<(), TurnError> {
        let now = self.now();
        let mut sample = Sample { at_ns: now, ..Sample::default() };
        self.warn_of_accounts(answer.as_ref().err());
        match answer {
            Ok(Answers { statement, members, not_listed, contract }) => {
                let found = self.processes.sample(&members, now).map_err(TurnError::Own)?;
                if !found.new.is_empty() {
                    self.writer.write(&Block::Threads(found.new))?;
                }
                if !is_same_contract(&contract, &self.contract) {
                    let change = ContractChange { at_ns: now, text: contract.clone() };
                    self.writer.write(&Block::Contract(change))?;
                    self.contract = contract;
                }
                self.write_holdings(&statement.holdings, now)?;
                (sample.units, sample.loans) = (statement.units, statement.loans);
                (sample.processes, sample.processes_left_out) =
                    (found.processes, found.left_out.saturating_add(not_listed));
                self.left_out = self.left_out.max(sample.processes_left_out);
            }
            Err(_) => self.without_accounts_ns += now - self.sampled_ns,
        }
        sample.disks = self.processes.disks().map_err(TurnError::Own)?;
        self.sampled_ns = now;
        self.writer.write(&Block::Sample(sample))?;
        Ok(())
    }

    /// Writes how each resource is held, if that has changed.
    fn write_holdings(&mut self, holdings: &[Holding], now: u64) -> Result<(), WriteError> {
        for Holding { resource, held, how } in holdings {
            if self.holdings.get(resource) != Some(how) {
                let is_held = *held != CapabilityState::No;
                let (resource, how) = (resource.clone(), how.clone());
                self.holdings.insert(resource.clone(), how.clone());
                self.writer.write(&Block::Holding(HoldingChange { at_ns: now, resource, is_held, how }))?;
            }
        }
        Ok(())
    }

    /// Says once when the accounts are lost, and once when they are back.
    fn warn_of_accounts(&mut self, lost: Option<&String>) {
        match (lost, std::mem::replace(&mut self.has_accounts, lost.is_none())) {
            (Some(why), true) => output::warn(&format!(
                "warning: recording goes on without accounts until the daemon answers: {why}"
            )),
            (None, false) => output::warn("note: the daemon answers, and its accounts are recorded again"),
            _ => {}
        }
    }

    /// Writes what is left, and the end.
    fn end(mut self, why: Why) -> Result<Exit, Failure> {
        let mut why = why;
        // A block did not fit. What came after it is left out, though it may be smaller, as the recording
        // would have a gap.
        if why != Why::Size {
            self.source.drain(self.order.arrivals());
            let events = self.order.release_all();
            match self.write_events(events) {
                Ok(()) => self.covered_ns = self.now(),
                Err(WriteError::Full { .. }) => why = Why::Size,
                Err(error) => return Err(cannot_write(self.args, &error)),
            }
        }
        let end = End {
            at_ns: self.covered_ns,
            why,
            lost: self.source.lost(),
            disordered: self.order.disordered,
            recorder_ns: cpu_ns().saturating_sub(self.begin_cpu_ns),
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
            commonhold_contract::duration_text(end.at_ns / 1_000_000 * 1_000_000),
            commonhold_contract::quantity::bytes_text(written),
            end.why
        ));
        for warning in warnings(&end, self.left_out, &self.args.file) {
            output::warn(&format!("warning: {warning}"));
        }
        Ok(Exit::Ok)
    }
}

/// What the recording lacks, a sentence for each.
fn warnings(end: &End, left_out: u32, file: &Path) -> Vec<String> {
    let events = |n: u64| (n > 0).then(|| count_of(n, "event", "events"));
    let lost = events(end.lost).map(|events| {
        let file = file.display();
        format!(
            "lost {events}; `commonhold recording {file}` says what that \
             leaves in doubt"
        )
    });
    let disordered = events(end.disordered)
        .map(|events| format!("left out {events} that came too late to be put in order"));
    let without = (end.without_accounts_ns > 0).then(|| {
        format!("no accounts for {}, because no daemon answered", duration(end.without_accounts_ns))
    });
    let left_out = (left_out > 0).then(|| {
        let processes = count_of(left_out.into(), "process", "processes");
        format!("left out {processes} beyond the limits, wholly or in part")
    });
    [lost, disordered, without, left_out].into_iter().flatten().collect()
}

/// Whether two contracts differ in comments alone. The daemon lists open offers as comments, and an offer
/// changes nothing until it is served.
fn is_same_contract(one: &str, other: &str) -> bool {
    fn entries(text: &str) -> impl Iterator<Item = &str> {
        text.lines().filter(|line| !line.trim_start().starts_with('#'))
    }
    entries(one).eq(entries(other))
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

/// A file in which no recording has begun yet. Dropping this value removes the file.
struct Unbegun<'a> {
    path: Option<&'a Path>,
}

impl Unbegun<'_> {
    /// Leaves the file: a recording has begun in it.
    fn keep(mut self) {
        self.path = None;
    }
}

impl Drop for Unbegun<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.path {
            // The failure that ends the program is reported, and an empty file does no harm.
            let _ = fs::remove_file(path);
        }
    }
}

fn create(args: &Record) -> Result<(File, Unbegun<'_>), Failure> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&args.file).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AlreadyExists => "name a new file",
            _ => "name a file in a folder that exists and that you may write to",
        };
        Failure::new(
            Exit::CannotCreate,
            format!("{}: cannot write it: {error}; {remedy}", args.file.display()),
        )
    })?;
    Ok((file, Unbegun { path: Some(&args.file) }))
}

fn cannot_write(args: &Record, error: &WriteError) -> Failure {
    Failure::new(Exit::CannotCreate, format!("{}: cannot write it: {error}", args.file.display()))
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

#[cfg(test)]
mod tests {
    use commonhold_command::place::Place;
    use commonhold_recording::{Event, Reader};

    use super::*;

    #[test]
    fn a_full_file_ends_with_the_last_event_that_fits() {
        let folder = tempfile::tempdir().unwrap();
        let args = Record {
            file: folder.path().join("a.rec"),
            length: Duration::from_mins(1),
            size: 16 << 10,
            every: Duration::from_secs(1),
            method: MethodChoice::Clocks,
            place: Place { directory: Some(folder.path().to_owned()) },
        };
        let header = Header {
            program: String::new(),
            kernel: String::new(),
            began_wall_ms: 0,
            machine: String::new(),
            contract: String::new(),
            contract_file: String::new(),
            scheme: String::new(),
            backend: String::new(),
            method: Method::Events,
            sample_ns: 1,
        };
        let (file, unbegun) = create(&args).unwrap();
        assert!(create(&args).is_err());
        unbegun.keep();
        let mut recorder = Recorder {
            args: &args,
            begin_ns: clock::now(),
            begin_cpu_ns: cpu_ns(),
            asker: Asker::start(&args.place).unwrap(),
            has_accounts: true,
            contract: String::new(),
            holdings: BTreeMap::new(),
            processes: Processes::open(Vec::new()).unwrap(),
            source: Source::Clocks,
            order: Order::default(),
            writer: Writer::begin(BufWriter::new(file), &header, args.size).unwrap(),
            covered_ns: 0,
            without_accounts_ns: 0,
            sampled_ns: 0,
            clocks_ns: 0,
            left_out: 0,
        };
        // Numbers that cannot be compressed.
        let event = |n: u32| {
            let noise = n.wrapping_mul(0x9e37_79b9);
            TimedEvent { at_ns: n.into(), event: Event::Fork { parent: noise, child: noise.reverse_bits() } }
        };
        recorder.write_events((1..=1_000).map(event).collect()).unwrap();
        let full = recorder.write_events((1_001..=10_000).map(event).collect());
        assert!(matches!(full, Err(WriteError::Full { .. })));
        recorder.order.arrivals().push(event(20_000));
        recorder.end(Why::Size).unwrap();

        let mut reader = Reader::open(File::open(&args.file).unwrap()).unwrap();
        let Some(Block::Events(events)) = reader.next_block().unwrap() else { panic!("no events") };
        assert_eq!(events.last(), Some(&event(1_000)));
        let Some(Block::End(end)) = reader.next_block().unwrap() else { panic!("no end") };
        assert_eq!((end.at_ns, end.why), (1_000, Why::Size));
    }

    #[test]
    fn comments_are_no_part_of_a_contract() {
        let text = "version = 1\n# offer 3: physics gives cpu:2\n[unit.physics]\n";
        assert!(is_same_contract(text, "version = 1\n[unit.physics]\n"));
        assert!(!is_same_contract(text, "version = 1\n[unit.chemistry]\n"));
    }

    #[test]
    fn each_lack_has_a_warning() {
        let end = |n| End {
            at_ns: 0,
            why: Why::Time,
            lost: n,
            disordered: 2 * n,
            recorder_ns: 0,
            without_accounts_ns: n * 1_000_000_000,
        };
        assert!(warnings(&end(0), 0, Path::new("a.rec")).is_empty());
        let expected = [
            "lost 1 event; `commonhold recording a.rec` says what that \
             leaves in doubt",
            "left out 2 events that came too late to be put in order",
            "no accounts for 1.0 s, because no daemon answered",
            "left out 1 process beyond the limits, wholly or in part",
        ];
        assert_eq!(warnings(&end(1), 1, Path::new("a.rec")), expected);
    }
}
