//! `commonhold recording`: shows a recording, or exports it.
//!
//! The file is read once, block by block. [`follow::Follower`] makes intervals of the events; the summary and
//! the exports take them over as they come, so that memory does not grow with the recording.

mod csv;
mod follow;
mod perfetto;
mod protobuf;
mod summary;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::output;
use commonhold_recording::{Block, Reader, RecordingError};
use commonhold_report::figures::count_of;
use jiff::tz::TimeZone;

use crate::cli::Recording;
use follow::{Follower, Piece};
use perfetto::{Trace, Written};
use summary::Summary;

/// Runs the command.
///
/// # Errors
///
/// A failure with its exit code.
pub fn main(args: &Recording) -> Result<Exit, Failure> {
    let Examined { summary, written, damage, is_cut_short } = examine(args)?;
    if args.json {
        output::print(&summary.json())?;
    } else if args.perfetto.is_none() && args.csv.is_none() {
        output::print(&summary.text(output::style(), &TimeZone::system()))?;
    } else {
        say_written(written, args);
    }
    let path = args.file.display();
    match damage {
        Some(RecordingError::Io(error)) => Err(cannot_read(args, &error)),
        Some(error) => {
            Err(Failure::new(Exit::Invalid, format!("{path}: {error}; only what is before was read")))
        }
        None => {
            if is_cut_short {
                let what = "the recording was cut short; what was complete was read";
                output::warn(&format!("warning: {path}: {what}"));
            }
            Ok(Exit::Ok)
        }
    }
}

/// What was found in a recording.
struct Examined {
    summary: Summary,
    /// What a trace has, if one was written.
    written: Option<Written>,
    damage: Option<RecordingError>,
    is_cut_short: bool,
}

/// Reads a recording, and writes the exports.
fn examine(args: &Recording) -> Result<Examined, Failure> {
    let file = File::open(&args.file).map_err(|error| cannot_read(args, &error))?;
    let mut reader = Reader::open(BufReader::new(file)).map_err(|error| match error {
        RecordingError::Io(error) => cannot_read(args, &error),
        error => Failure::new(Exit::NoInput, format!("{}: {error}", args.file.display())),
    })?;
    let mut shown = Shown {
        follower: Follower::default(),
        summary: Summary::new(reader.header().clone()),
        trace: args.perfetto.as_deref().map(|path| begin_trace(path, &reader)).transpose()?,
        files: args.csv.as_deref().map(create_files).transpose()?,
        pieces: Vec::new(),
    };
    let damage = shown.read(&mut reader, args)?;
    let (summary, written) = shown.finish(args)?;
    Ok(Examined { summary, written, damage, is_cut_short: reader.is_cut_short() })
}

fn cannot_read(args: &Recording, error: &io::Error) -> Failure {
    let path = args.file.display();
    Failure::new(Exit::of_named(error), format!("{path}: cannot read it: {error}"))
}

/// What takes over a recording.
struct Shown {
    follower: Follower,
    summary: Summary,
    trace: Option<Trace<BufWriter<File>>>,
    files: Option<csv::Files>,
    pieces: Vec<Piece>,
}

impl Shown {
    /// Reads the blocks, up to the end or a damaged block.
    fn read(
        &mut self,
        reader: &mut Reader<impl Read>,
        args: &Recording,
    ) -> Result<Option<RecordingError>, Failure> {
        loop {
            match reader.next_block() {
                Ok(Some(block)) => self.block(&block, args)?,
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.summary.damaged(&error.to_string());
                    return Ok(Some(error));
                }
            }
        }
    }

    fn block(&mut self, block: &Block, args: &Recording) -> Result<(), Failure> {
        match block {
            Block::Threads(threads) => self.follower.announce(threads, &mut self.pieces),
            Block::Events(events) => {
                for event in events {
                    self.follower.event(event, &mut self.pieces);
                    self.hand_over(args)?;
                }
            }
            Block::Sample(sample) => self.follower.sample(&sample.units),
            Block::Usage(_) | Block::Contract(_) | Block::Holding(_) | Block::End(_) => {}
        }
        self.hand_over(args)?;
        self.summary.block(block, &mut self.follower);
        if let Some(trace) = &mut self.trace {
            trace
                .block(block, &mut self.follower)
                .map_err(|error| cannot_write(args.perfetto.as_deref(), &error))?;
        }
        if let Some(files) = &mut self.files {
            let written = files.block(block, &mut self.follower);
            written.map_err(|error| cannot_write(args.csv.as_deref(), &error))?;
        }
        Ok(())
    }

    fn hand_over(&mut self, args: &Recording) -> Result<(), Failure> {
        for piece in self.pieces.drain(..) {
            self.summary.piece(&piece);
            if let Some(trace) = &mut self.trace {
                trace.piece(&piece).map_err(|error| cannot_write(args.perfetto.as_deref(), &error))?;
            }
            if let Some(files) = &mut self.files {
                files.piece(&piece).map_err(|error| cannot_write(args.csv.as_deref(), &error))?;
            }
        }
        Ok(())
    }

    /// Ends what is under way, and the exports.
    fn finish(mut self, args: &Recording) -> Result<(Summary, Option<Written>), Failure> {
        self.follower.end(self.summary.last_ns(), &mut self.pieces);
        self.hand_over(args)?;
        self.summary.finish(self.follower.inconsistencies());
        let trace = self.trace.map(Trace::finish).transpose();
        let written = trace.map_err(|error| cannot_write(args.perfetto.as_deref(), &error))?;
        let files = self.files.map_or(Ok(()), csv::Files::finish);
        files.map_err(|error| cannot_write(args.csv.as_deref(), &error))?;
        Ok((self.summary, written))
    }
}

/// Creates a trace, for this user alone as the recording is.
fn begin_trace(path: &Path, reader: &Reader<impl Read>) -> Result<Trace<BufWriter<File>>, Failure> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|error| cannot_create(path, &error, "file"))?;
    Trace::begin(BufWriter::new(file), reader.header()).map_err(|error| cannot_write(Some(path), &error))
}

fn create_files(path: &Path) -> Result<csv::Files, Failure> {
    csv::Files::create(path).map_err(|error| cannot_create(path, &error, "folder"))
}

/// `what` is a file or a folder.
fn cannot_create(path: &Path, error: &io::Error, what: &str) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::AlreadyExists => format!("name a new {what}"),
        _ => format!("name a {what} in a folder that exists and that you may write to"),
    };
    Failure::new(Exit::CannotCreate, format!("{}: cannot create it: {error}; {remedy}", path.display()))
}

fn cannot_write(path: Option<&Path>, error: &io::Error) -> Failure {
    let path = path.unwrap_or(Path::new("")).display();
    Failure::new(Exit::CannotCreate, format!("{path}: cannot write it: {error}; it is incomplete"))
}

/// Says what was written, and where to look at a trace.
fn say_written(written: Option<Written>, args: &Recording) {
    if let (Some(path), Some(Written { bursts, loans, call_backs })) = (&args.perfetto, written) {
        let what = [
            count_of(bursts, "burst", "bursts"),
            count_of(loans, "loan", "loans"),
            count_of(call_backs, "call-back", "call-backs"),
        ];
        let what = what.join(", ");
        let path = path.display();
        output::say(&output::shown(&format!("wrote {path}: {what}; open it at https://ui.perfetto.dev")));
    }
    if let Some(folder) = &args.csv {
        output::say(&output::shown(&format!("wrote {} files to {}", csv::FILES, folder.display())));
    }
}
