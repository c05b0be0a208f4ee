//! `commonhold recording`: shows a recording, or exports it.

mod csv;
mod follow;
mod perfetto;
mod summary;

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter};
use std::path::Path;

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::output;
use commonhold_recording::{Block, Reader, RecordingError};

use crate::cli::Recording;
use csv::Tables;
use follow::Follower;
use perfetto::Trace;
use summary::Summary;

/// Runs the command.
///
/// # Errors
///
/// A failure with its exit code.
pub fn main(args: &Recording) -> Result<Exit, Failure> {
    let unreadable =
        |error: RecordingError| Failure::new(Exit::NoInput, format!("{}: {error}", args.file.display()));
    let file = File::open(&args.file).map_err(|error| {
        let remedy = "give a file that `commonhold record` wrote";
        Failure::new(Exit::of_named(&error), format!("{}: {error}; {remedy}", args.file.display()))
    })?;
    let mut reader = Reader::open(BufReader::new(file)).map_err(unreadable)?;
    let mut shown = Shown {
        summary: Summary::default(),
        follower: Follower::default(),
        trace: args.perfetto.as_deref().map(create).transpose()?,
        tables: match &args.csv {
            Some(folder) => Some(Tables::create(folder).map_err(|error| cannot_write(folder, &error))?),
            None => None,
        },
    };
    let damage = loop {
        match reader.next_block() {
            Ok(Some(block)) => shown.block(&block).map_err(|error| cannot_write_any(args, &error))?,
            Ok(None) => break None,
            Err(error @ RecordingError::Damaged { .. }) => break Some(error.to_string()),
            Err(error) => return Err(unreadable(error)),
        }
    };
    let Shown { summary, follower, trace, tables } = shown;
    let finished = trace.map_or(Ok(()), Trace::finish).and(tables.map_or(Ok(()), Tables::finish));
    finished.map_err(|error| cannot_write_any(args, &error))?;
    let name = args.file.display().to_string();
    let report = summary.report(&name, reader.header(), follower.missing, damage);
    output::print(&if args.json { summary::json(&report) } else { summary::text(&report, output::style()) })?;
    Ok(Exit::Ok)
}

/// What is made of the blocks, in one pass.
struct Shown {
    summary: Summary,
    follower: Follower,
    trace: Option<Trace<BufWriter<File>>>,
    tables: Option<Tables>,
}

impl Shown {
    fn block(&mut self, block: &Block) -> io::Result<()> {
        let Shown { summary, follower, trace, tables } = self;
        summary.block(block);
        if let Some(tables) = tables {
            tables.block(block)?;
        }
        match block {
            Block::Threads(threads) => threads.iter().for_each(|thread| follower.know(thread)),
            Block::Sample(sample) => {
                if let Some(trace) = trace {
                    trace.sample(sample)?;
                }
            }
            Block::Events(events) => {
                let mut result = Ok(());
                for timed in events {
                    if let Some(trace) = trace {
                        trace.event(timed.at_ns, &timed.event, follower);
                    }
                    follower.event(timed.at_ns, &timed.event, |follower, ended| {
                        summary.ended(timed.at_ns, follower, ended);
                        let written = trace
                            .as_mut()
                            .map_or(Ok(()), |trace| trace.ended(timed.at_ns, follower, ended))
                            .and_then(|()| {
                                tables
                                    .as_mut()
                                    .map_or(Ok(()), |tables| tables.ended(timed.at_ns, follower, ended))
                            });
                        if result.is_ok() {
                            result = written;
                        }
                    });
                }
                result?;
            }
            Block::Usage(_) | Block::Contract(_) | Block::End(_) => {}
        }
        Ok(())
    }
}

fn create(path: &Path) -> Result<Trace<BufWriter<File>>, Failure> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    Ok(Trace::new(BufWriter::new(file.map_err(|error| cannot_write(path, &error))?)))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::AlreadyExists => "; name a new one",
        _ => "",
    };
    Failure::new(Exit::CannotCreate, format!("{}: cannot write it: {error}{remedy}", path.display()))
}

/// The error of one of the outputs, whichever it was.
fn cannot_write_any(args: &Recording, error: &io::Error) -> Failure {
    let outputs: Vec<&Path> = [&args.perfetto, &args.csv].into_iter().flatten().map(AsRef::as_ref).collect();
    let names: Vec<String> = outputs.iter().map(|path| path.display().to_string()).collect();
    Failure::new(Exit::CannotCreate, format!("{}: cannot write it: {error}", names.join(" and ")))
}
