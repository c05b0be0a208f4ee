//! Writes a recording as files of comma-separated values.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use commonhold_recording::{Block, Event, Sample, TimedEvent, UnitSample, Usage};
use commonhold_report::csv::{cell, line};

use super::follow::{After, Follower, Piece, Who};
use super::perfetto::word;

/// The number of files.
pub(super) const FILES: usize = 13;

/// A file: its name, and its columns.
type Definition = (&'static str, &'static str);

const THREADS: Definition = ("threads.csv", "tid,pid,thread,unit,seen_ns");
const EVENTS: Definition = ("events.csv", "at_ns,event,cpu,tid,other_tid,left,device,sector,length_bytes");
const BURSTS: Definition = ("bursts.csv", "tid,pid,thread,unit,cpu,begin_ns,end_ns,left,loan_of");
const WAITS: Definition = ("waits.csv", "tid,pid,thread,unit,cpu,begin_ns,end_ns,after");
const SLEEPS: Definition = ("sleeps.csv", "tid,pid,thread,unit,begin_ns,end_ns,kind");
const LOANS: Definition = ("loans.csv", "unit,borrower,cpu,begin_ns,end_ns");
const LENT: Definition = ("lent.csv", "at_ns,unit,borrower,lent_micro_cpus");
const CALL_BACKS: Definition = ("call-backs.csv", "unit,cpu,begin_ns,end_ns");
const USAGE: Definition = ("usage.csv", "tid,pid,thread,unit,begin_ns,end_ns,ran_ns,waited_ns,turns");
const UNITS: Definition = (
    "units.csv",
    "at_ns,unit,processes,cpu_entitled_micro_cpus,cpu_owned,cpu_entitled_ns,cpu_used_ns,cpu_lent_ns,\
     cpu_borrowed_ns,cpu_waited_ns,cpu_call_backs,cpu_call_backs_ns,cpu_call_back_longest_ns,\
     memory_entitled_bytes,memory_used_bytes,memory_lent_bytes,memory_borrowed_bytes,memory_stalled_ns,\
     memory_refaulted_bytes,disk_read_bytes,disk_written_bytes,disk_requests,disk_stalled_ns,\
     cpu_verdict,memory_verdict,disk_verdict,bus_verdict",
);
const CAUSES: Definition = ("causes.csv", "at_ns,unit,resource,cause,other_unit,waited_ns");
const PROCESSES: Definition = (
    "processes.csv",
    "at_ns,pid,anonymous_bytes,of_files_bytes,faults,major_faults,read_bytes,written_bytes",
);
const DISKS: Definition = ("disks.csv", "at_ns,disk,device,reads,read_bytes,writes,written_bytes,busy_ns");

/// The files that are being written.
#[derive(Debug)]
pub(super) struct Files {
    threads: BufWriter<File>,
    events: BufWriter<File>,
    bursts: BufWriter<File>,
    waits: BufWriter<File>,
    sleeps: BufWriter<File>,
    loans: BufWriter<File>,
    lent: BufWriter<File>,
    call_backs: BufWriter<File>,
    usage: BufWriter<File>,
    units: BufWriter<File>,
    causes: BufWriter<File>,
    processes: BufWriter<File>,
    disks: BufWriter<File>,
}

impl Files {
    /// Creates the folder and the files, for this user alone.
    pub(super) fn create(folder: &Path) -> io::Result<Files> {
        DirBuilder::new().mode(0o700).create(folder)?;
        let file = |(name, columns): Definition| {
            let mut options = OpenOptions::new();
            let file = options.write(true).create_new(true).mode(0o600).open(folder.join(name))?;
            let mut file = BufWriter::new(file);
            file.write_all(columns.as_bytes())?;
            file.write_all(b"\r\n")?;
            io::Result::Ok(file)
        };
        Ok(Files {
            threads: file(THREADS)?,
            events: file(EVENTS)?,
            bursts: file(BURSTS)?,
            waits: file(WAITS)?,
            sleeps: file(SLEEPS)?,
            loans: file(LOANS)?,
            lent: file(LENT)?,
            call_backs: file(CALL_BACKS)?,
            usage: file(USAGE)?,
            units: file(UNITS)?,
            causes: file(CAUSES)?,
            processes: file(PROCESSES)?,
            disks: file(DISKS)?,
        })
    }

    /// Takes over a block.
    pub(super) fn block(&mut self, block: &Block, follower: &mut Follower) -> io::Result<()> {
        match block {
            Block::Events(events) => events.iter().try_for_each(|event| self.event(event)),
            Block::Usage(usage) => self.usage(usage, follower),
            Block::Sample(sample) => self.sample(sample),
            Block::Threads(_) | Block::Contract(_) | Block::Holding(_) | Block::End(_) => Ok(()),
        }
    }

    /// Takes over what came of the events.
    pub(super) fn piece(&mut self, piece: &Piece) -> io::Result<()> {
        match piece {
            Piece::Seen(of) => write!(self.threads, "{},{}\r\n", first_cells(&of.who), of.at_ns),
            Piece::Burst(of) => {
                let (left, lender) =
                    (of.left.map_or("", word), of.loan.as_ref().map_or("", |loan| &loan.lender));
                let (who, cpu, lender) = (first_cells(&of.who), of.cpu, cell(lender));
                write!(self.bursts, "{who},{cpu},{},{},{left},{lender}\r\n", of.begin_ns, of.end_ns)
            }
            Piece::Wait(of) => {
                let after = match of.after {
                    After::Wake => "wake-up",
                    After::Preemption => "preemption",
                    After::Fork => "fork",
                };
                let who = first_cells(&of.who);
                write!(self.waits, "{who},{},{},{},{after}\r\n", of.cpu, of.begin_ns, of.end_ns)
            }
            Piece::Sleep(of) => {
                let kind = if of.is_blocked { "blocked" } else { "asleep" };
                write!(self.sleeps, "{},{},{},{kind}\r\n", first_cells(&of.who), of.begin_ns, of.end_ns)
            }
            Piece::LoanEnded(of, end_ns) => {
                let (lender, borrower) = (cell(&of.lender), cell(&of.borrower));
                write!(self.loans, "{lender},{borrower},{},{},{end_ns}\r\n", of.cpu, of.begin_ns)
            }
            Piece::CallBack(of) => {
                write!(self.call_backs, "{},{},{},{}\r\n", cell(&of.unit), of.cpu, of.begin_ns, of.end_ns)
            }
            Piece::Transfer { .. } | Piece::LoanBegan(_) => Ok(()),
        }
    }

    /// Writes what is left.
    pub(super) fn finish(mut self) -> io::Result<()> {
        for file in [
            &mut self.threads,
            &mut self.events,
            &mut self.bursts,
            &mut self.waits,
            &mut self.sleeps,
            &mut self.loans,
            &mut self.lent,
            &mut self.call_backs,
            &mut self.usage,
            &mut self.units,
            &mut self.causes,
            &mut self.processes,
            &mut self.disks,
        ] {
            file.flush()?;
        }
        Ok(())
    }

    fn event(&mut self, timed: &TimedEvent) -> io::Result<()> {
        let at = timed.at_ns;
        match timed.event {
            Event::Switch { cpu, from, left, to } => {
                write!(self.events, "{at},switch,{cpu},{from},{to},{},,,\r\n", word(left))
            }
            Event::Wake { cpu, thread, by, by_interrupt } => {
                let event = if by_interrupt { "wake-by-interrupt" } else { "wake" };
                write!(self.events, "{at},{event},{cpu},{thread},{by},,,,\r\n")
            }
            Event::Fork { parent, child } => write!(self.events, "{at},fork,,{parent},{child},,,,\r\n"),
            Event::Transfer { thread, device, sector, bytes, write } => {
                let event = if write { "write" } else { "read" };
                write!(self.events, "{at},{event},,{thread},,,{device},{sector},{bytes}\r\n")
            }
        }
    }

    fn usage(&mut self, usage: &Usage, follower: &mut Follower) -> io::Result<()> {
        let begin_ns = usage.at_ns.saturating_sub(usage.over_ns);
        for of in &usage.threads {
            let (who, end_ns) = (first_cells(&follower.who(of.tid)), usage.at_ns);
            write!(self.usage, "{who},{begin_ns},{end_ns},{},{},{}\r\n", of.ran_ns, of.waited_ns, of.turns)?;
        }
        Ok(())
    }

    fn sample(&mut self, sample: &Sample) -> io::Result<()> {
        let at = sample.at_ns;
        for unit in &sample.units {
            self.units.write_all(line(&unit_cells(at, unit)).as_bytes())?;
            for wait in &unit.waits {
                let other = wait.unit.as_deref().unwrap_or_default();
                let (at, ns) = (at.to_string(), wait.ns.to_string());
                let cells = [&at, &unit.path, &wait.resource, &wait.cause, other, &ns];
                self.causes.write_all(line(&cells).as_bytes())?;
            }
        }
        for of in &sample.loans {
            let (lender, borrower) = (cell(&of.lender), cell(&of.borrower));
            write!(self.lent, "{at},{lender},{borrower},{}\r\n", of.micro_cpus)?;
        }
        for of in &sample.processes {
            write!(
                self.processes,
                "{at},{},{},{},{},{},{},{}\r\n",
                of.pid, of.anonymous, of.of_files, of.faults, of.major_faults, of.read, of.written
            )?;
        }
        for of in &sample.disks {
            let ((reads, read), (writes, written)) = (of.reads, of.writes);
            write!(
                self.disks,
                "{at},{},{},{reads},{read},{writes},{written},{}\r\n",
                cell(&of.name),
                of.device,
                of.busy_ns
            )?;
        }
        Ok(())
    }
}

/// The cells with which rows about threads begin.
fn first_cells(who: &Who) -> String {
    let pid = if who.pid == 0 { String::new() } else { who.pid.to_string() };
    format!("{},{pid},{},{}", who.tid, cell(&who.name), cell(&who.unit))
}

fn unit_cells(at_ns: u64, unit: &UnitSample) -> Vec<String> {
    let mut cells = vec![at_ns.to_string(), unit.path.clone(), unit.processes.to_string()];
    cells.extend([unit.entitled_micro_cpus.to_string(), unit.owned.clone()]);
    let times = [unit.entitled_ns, unit.used_ns, unit.lent_ns, unit.borrowed_ns, unit.waited_ns];
    cells.extend(times.map(|ns| ns.to_string()));
    let back = &unit.call_backs;
    cells.extend([back.count, back.sum_ns, back.max_ns].map(|n| n.to_string()));
    match unit.memory {
        Some(of) => {
            let amounts = [of.entitled, of.used, of.lent, of.borrowed, of.stalled_ns, of.refaulted];
            cells.extend(amounts.map(|n| n.to_string()));
        }
        None => cells.extend(std::iter::repeat_n(String::new(), 6)),
    }
    match unit.disk {
        Some(of) => {
            cells.extend([of.read, of.written, of.requests, of.stalled_ns].map(|n| n.to_string()));
        }
        None => cells.extend(std::iter::repeat_n(String::new(), 4)),
    }
    for resource in ["cpu", "memory", "disk", "bus"] {
        let of = unit.verdicts.iter().find(|(of, _)| of.eq_ignore_ascii_case(resource));
        cells.push(of.map(|(_, verdict)| verdict.clone()).unwrap_or_default());
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_recording::{DiskUse, MemorySample};

    #[test]
    fn every_column_has_a_head() {
        let empty = unit_cells(0, &UnitSample::default());
        let full = UnitSample {
            memory: Some(MemorySample::default()),
            disk: Some(DiskUse::default()),
            ..UnitSample::default()
        };
        assert_eq!([empty.len(), unit_cells(0, &full).len()], [UNITS.1.split(',').count(); 2]);
    }
}
