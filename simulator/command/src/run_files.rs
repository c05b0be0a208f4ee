//! Result files of sweeps: JSON lines. The first line is the [`Header`], which identifies the sweep; each
//! further line has the figures of one run.
//!
//! Properties: a run's line is written as soon as the run ends, and in one call, so that an interrupted
//! command loses only runs in progress. At most the last line can be torn. The same command completes the
//! file: it cuts a torn line, and runs what is missing. A file that is not the sweep's own is never changed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use commonhold_command::exit::{Exit, Failure};
use commonhold_report::is_foul;
use commonhold_sim_command::cli::{SHARDS_MAX, Shard};
use commonhold_sim_report::figures::RunFigures;
use commonhold_sim_report::sweep::Space;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The name of the format.
const SCHEMA: &str = "commonhold.runs";
/// The version of the format that this program reads and writes.
const VERSION: u32 = 1;
/// The most runs of a sweep, of all shards together.
pub(crate) const RUNS_MAX: u64 = 1_000_000;
/// The longest line that is read. A run of a thousand units with two jobs each has about 500 kB.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// The first line: what identifies a sweep, and the shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    schema: String,
    version: u32,
    /// The version of the program that wrote the file: another one may simulate differently.
    pub(crate) program: String,
    /// A hash of the scenario's texts and of the options that replace values in them.
    pub(crate) inputs: String,
    /// The scenario's name.
    pub(crate) scenario: String,
    /// The title of the machine.
    pub(crate) machine: String,
    /// The swept keys and values.
    #[serde(flatten)]
    pub(crate) space: Space,
    /// The first seed.
    pub(crate) seed: u64,
    /// The number of seeds of each point.
    pub(crate) seeds: u64,
    /// The part of the sweep whose runs are in the file.
    pub(crate) shard: Shard,
}

/// What only the format and its version are read from.
#[derive(Deserialize)]
struct Format {
    schema: String,
    version: u32,
}

/// A line after the first.
#[derive(Serialize, Deserialize)]
struct Line {
    point: u64,
    #[serde(flatten)]
    figures: RunFigures,
}

impl Header {
    /// The header of a sweep; `inputs` are the texts and options that determine its runs.
    pub(crate) fn new(scenario: String, machine: String, space: Space, inputs: &[&str]) -> Header {
        Header {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            inputs: hash(inputs),
            scenario,
            machine,
            space,
            seed: 1,
            seeds: 1,
            shard: Shard::WHOLE,
        }
    }

    /// The number of runs of all shards. A header that was read or checked has at most [`RUNS_MAX`].
    pub(crate) fn runs(&self) -> u64 {
        self.space.points().unwrap_or(u64::MAX).saturating_mul(self.seeds)
    }

    /// The point and the seed of the run with this index.
    pub(crate) fn run(&self, index: u64) -> (u64, u64) {
        (index / self.seeds, self.seed.saturating_add(index % self.seeds))
    }

    /// The indices of the shard's runs.
    pub(crate) fn indices(&self) -> impl Iterator<Item = u64> {
        let shard = self.shard;
        (0..self.runs()).filter(move |index| shard.has(*index))
    }

    /// Why the other header is of another sweep; `None` if it is of another shard of this one at most.
    pub(crate) fn differs(&self, other: &Header) -> Option<String> {
        let of = |header: &Header| (header.seed, header.seed.saturating_add(header.seeds.max(1) - 1));
        let (own, others) = (of(self), of(other));
        if self.program != other.program {
            Some(format!("it was written by version {} of this program, not {}", other.program, self.program))
        } else if self.scenario != other.scenario {
            Some(format!("its scenario is {}, not {}", other.scenario, self.scenario))
        } else if self.space != other.space {
            Some("its swept keys or values are others".to_owned())
        } else if own != others {
            Some(format!("its seeds are {} to {}, not {} to {}", others.0, others.1, own.0, own.1))
        } else if self.inputs != other.inputs || self.machine != other.machine {
            Some("the scenario's files, or options such as --scheme, were others".to_owned())
        } else {
            None
        }
    }

    /// Reads and checks a first line.
    fn read(line: &str) -> Result<Header, String> {
        let none = "it is no result file of a sweep";
        let format: Format = serde_json::from_str(line).map_err(|_| none.to_owned())?;
        if format.schema != SCHEMA {
            return Err(none.to_owned());
        }
        if format.version != VERSION {
            return Err(format!(
                "its format has version {}, and this program reads version {VERSION}",
                format.version
            ));
        }
        let header: Header =
            serde_json::from_str(line).map_err(|e| format!("its first line is damaged: {e}"))?;
        let axes = || header.space.keys.iter();
        let words = axes().flat_map(|axis| axis.values.iter().chain([&axis.key]));
        let is_clean =
            words.chain([&header.scenario, &header.machine]).all(|word| !word.chars().any(is_foul));
        let Shard { number, of } = header.shard;
        let is_valid = axes().all(|axis| !axis.values.is_empty())
            && (1..=RUNS_MAX).contains(&header.runs())
            && (1..=SHARDS_MAX).contains(&of)
            && (1..=of).contains(&number)
            && header.seed.checked_add(header.seeds).is_some();
        if is_clean && is_valid { Ok(header) } else { Err("its first line is damaged".to_owned()) }
    }
}

/// A hash of texts, FNV-1a with 128 bits. It tells different inputs apart, and is no protection against
/// forgery.
fn hash(texts: &[&str]) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut hash = OFFSET;
    for text in texts {
        // The length separates the texts.
        for byte in (text.len() as u64).to_le_bytes().into_iter().chain(text.bytes()) {
            hash = (hash ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    }
    format!("{hash:032x}")
}

/// The runs of a file or of several: by point and seed.
pub(crate) type Runs = BTreeMap<(u64, u64), RunFigures>;

/// A file's content.
pub(crate) struct Content {
    /// The first line.
    pub(crate) header: Header,
    /// The length of the whole lines, in bytes. What follows is torn.
    whole: u64,
    /// Whether a torn line follows.
    pub(crate) is_torn: bool,
}

/// Whether a file has no whole line: the command that should have written it was ended before.
///
/// # Errors
///
/// The file cannot be read.
pub(crate) fn is_unbegun(path: &Path) -> Result<bool, Failure> {
    let cannot =
        |e: io::Error| Failure::new(Exit::NoInput, format!("{}: cannot read it: {e}", path.display()));
    if !fs::metadata(path).map_err(cannot)?.is_file() {
        return Ok(false);
    }
    let mut lines = Lines { file: BufReader::new(File::open(path).map_err(cannot)?), whole: 0, number: 0 };
    Ok(lines.next().map_err(cannot)?.is_none())
}

/// Reads a file, and passes each run to `each`, which may refuse it with a message.
///
/// # Errors
///
/// The file cannot be read, or is no result file of this format; a line is damaged; or `each` refused a run.
pub(crate) fn read(
    path: &Path,
    mut each: impl FnMut(&Header, u64, RunFigures) -> Result<(), Failure>,
) -> Result<Content, Failure> {
    let cannot =
        |e: io::Error| Failure::new(Exit::NoInput, format!("{}: cannot read it: {e}", path.display()));
    let foreign = |why: String| {
        let remedy = "give files that `commonhold sim --sweep` wrote";
        Failure::new(Exit::NoInput, format!("{}: {why}; {remedy}", path.display()))
    };
    if !fs::metadata(path).map_err(cannot)?.is_file() {
        return Err(foreign("it is not a regular file".to_owned()));
    }
    let mut lines = Lines { file: BufReader::new(File::open(path).map_err(cannot)?), whole: 0, number: 0 };
    let first = lines.next().map_err(cannot)?.ok_or_else(|| foreign("it has no whole line".to_owned()))?;
    let header = Header::read(&first).map_err(foreign)?;
    let points = header.space.points().unwrap_or(0);
    while let Some(line) = lines.next().map_err(cannot)? {
        let number = lines.number;
        let damaged = |why: String| {
            let remedy = "delete the line, and repeat the command that wrote the file";
            Failure::new(
                Exit::NoInput,
                format!("{}:{number}: no run of the sweep: {why}; {remedy}", path.display()),
            )
        };
        let Line { point, figures } = serde_json::from_str(&line).map_err(|e| damaged(e.to_string()))?;
        let seed = figures.seed.checked_sub(header.seed).filter(|seed| *seed < header.seeds);
        let index = seed.filter(|_| point < points).map(|seed| point * header.seeds + seed);
        if !index.is_some_and(|index| header.shard.has(index)) {
            let Shard { number, of } = header.shard;
            return Err(damaged(format!(
                "point {point}, seed {} is not in shard {number}/{of}",
                figures.seed
            )));
        }
        let names = figures.units.iter().map(|unit| &unit.unit);
        let names =
            names.chain(figures.jobs.iter().flat_map(|job| [&job.job, &job.unit])).chain(&figures.stuck);
        if names.into_iter().any(|name| name.chars().any(is_foul)) {
            return Err(damaged("a name has control characters".to_owned()));
        }
        each(&header, point, figures)?;
    }
    let length = lines.file.get_ref().metadata().map_err(cannot)?.len();
    Ok(Content { header, whole: lines.whole, is_torn: length > lines.whole })
}

/// The whole lines of a file.
struct Lines {
    file: BufReader<File>,
    /// The length of the lines so far, in bytes.
    whole: u64,
    /// The number of the last line, from 1.
    number: u64,
}

impl Lines {
    /// The next line, without its newline; `None` at the end, or at a line without newline.
    fn next(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        let length = self.file.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? as u64;
        if line.pop() != Some(b'\n') {
            let is_long = length == LINE_BYTES_MAX;
            return if is_long { Err(io::Error::from(io::ErrorKind::FileTooLarge)) } else { Ok(None) };
        }
        (self.whole, self.number) = (self.whole + length, self.number + 1);
        String::from_utf8(line)
            .map(Some)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
    }
}

/// A result file that is being written.
pub(crate) struct Writer {
    file: File,
    name: String,
}

impl Writer {
    /// Opens the sweep's file, or creates it; `each` receives the runs that it has. A torn last line is cut.
    ///
    /// # Errors
    ///
    /// The file is of another sweep or shard, or none of a sweep; another process writes it; or it cannot be
    /// written.
    pub(crate) fn open(
        path: &Path,
        header: &Header,
        mut each: impl FnMut(u64, RunFigures),
    ) -> Result<Writer, Failure> {
        let name = path.display().to_string();
        let cannot = |e: io::Error| cannot_write(&name, &e);
        let is_new = match fs::metadata(path) {
            Ok(facts) if !facts.is_file() => {
                let message = format!(
                    "{name}: cannot write runs to it: it is not a regular file; give another --output"
                );
                return Err(Failure::new(Exit::CannotCreate, message));
            }
            Ok(_) => false,
            Err(e) if e.kind() == io::ErrorKind::NotFound => true,
            Err(e) => return Err(cannot(e)),
        };
        let file = OpenOptions::new().read(true).append(true).create(is_new).open(path).map_err(cannot)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let message =
                format!("{name}: another process writes runs to it; wait for it, or give another --output");
            return Err(Failure::new(Exit::InUse, message));
        }
        let mut writer = Writer { file, name };
        let first = writer.encoded(header)?;
        if writer.has_only_part_of(&first)? {
            writer.cut(0)?;
            writer.write(&first)?;
            return Ok(writer);
        }
        let content = read(path, |_, point, figures| {
            each(point, figures);
            Ok(())
        });
        let refused = |why: String| {
            let remedy = "it was not changed; give another --output, or remove it";
            Failure::new(Exit::CannotCreate, format!("{}: {why}; {remedy}", writer.name))
        };
        let content = content.map_err(|failure| match failure.exit {
            Exit::NoInput => refused(format!("it exists, and cannot be completed ({})", failure.message())),
            _ => failure,
        })?;
        if let Some(why) = header.differs(&content.header) {
            return Err(refused(format!("it exists, and is of another sweep: {why}")));
        }
        if content.header.shard != header.shard {
            let Shard { number, of } = content.header.shard;
            return Err(refused(format!("it exists, and has the runs of shard {number}/{of}")));
        }
        if content.is_torn {
            writer.cut(content.whole)?;
        }
        Ok(writer)
    }

    /// Adds a run.
    pub(crate) fn add(&mut self, point: u64, figures: &RunFigures) -> Result<(), Failure> {
        let line = self.encoded(&Line { point, figures: figures.clone() })?;
        self.write(&line)
    }

    /// Waits until the file is on the disk.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        self.file.sync_all().map_err(|e| cannot_write(&self.name, &e))
    }

    fn encoded(&self, line: &impl Serialize) -> Result<Vec<u8>, Failure> {
        let mut line = serde_json::to_vec(line).map_err(|e| cannot_write(&self.name, &e.into()))?;
        line.push(b'\n');
        Ok(line)
    }

    /// Whether the file is empty, or was interrupted while its first line was written.
    fn has_only_part_of(&mut self, first: &[u8]) -> Result<bool, Failure> {
        let mut begin = Vec::new();
        let mut file = &self.file;
        let read =
            file.seek(SeekFrom::Start(0)).and_then(|_| file.take(first.len() as u64).read_to_end(&mut begin));
        read.map_err(|e| cannot_write(&self.name, &e))?;
        Ok(begin.len() < first.len() && first.starts_with(&begin))
    }

    fn cut(&mut self, length: u64) -> Result<(), Failure> {
        self.file.set_len(length).map_err(|e| cannot_write(&self.name, &e))
    }

    fn write(&mut self, line: &[u8]) -> Result<(), Failure> {
        self.file.write_all(line).map_err(|e| cannot_write(&self.name, &e))
    }
}

fn cannot_write(name: &str, e: &io::Error) -> Failure {
    let remedy = "give an --output in a folder that you may write to; runs that are in it are kept";
    Failure::new(Exit::CannotCreate, format!("{name}: cannot write runs to it: {e}; {remedy}"))
}
