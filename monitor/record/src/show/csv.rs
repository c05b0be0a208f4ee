//! Writes a recording as CSV files.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use commonhold_recording::{Block, Left, Sample};

use super::follow::{Ended, Follower};

/// The files of a folder, each with its columns.
#[derive(Debug)]
pub(super) struct Tables {
    threads: BufWriter<File>,
    bursts: BufWriter<File>,
    waits: BufWriter<File>,
    usage: BufWriter<File>,
    units: BufWriter<File>,
    processes: BufWriter<File>,
    disks: BufWriter<File>,
}

impl Tables {
    /// Makes the folder, which must not exist, and its files.
    pub(super) fn create(folder: &Path) -> io::Result<Tables> {
        fs::create_dir(folder)?;
        let file = |name: &str, columns: &str| {
            let mut file = BufWriter::new(File::create_new(folder.join(name))?);
            writeln!(file, "{columns}")?;
            io::Result::Ok(file)
        };
        Ok(Tables {
            threads: file("threads.csv", "seen_ns,tid,pid,name,unit")?,
            bursts: file("bursts.csv", "from_ns,to_ns,cpu,tid,unit,left")?,
            waits: file("waits.csv", "from_ns,to_ns,cpu,tid,unit,woken")?,
            usage: file("usage.csv", "to_ns,over_ns,tid,ran_ns,waited_ns,turns")?,
            units: file(
                "units.csv",
                "at_ns,unit,processes,entitled_micro_cpus,owned,entitled_ns,used_ns,lent_ns,borrowed_ns,waited_ns,\
                 called_back,memory_entitled_bytes,memory_used_bytes,memory_lent_bytes,memory_borrowed_bytes,\
                 memory_stalled_ns,memory_refaulted_bytes,disk_read_bytes,disk_written_bytes,disk_stalled_ns",
            )?,
            processes: file(
                "processes.csv",
                "at_ns,pid,anonymous_bytes,of_files_bytes,faults,major_faults,read_bytes,written_bytes",
            )?,
            disks: file("disks.csv", "at_ns,disk,reads,read_bytes,writes,written_bytes,busy_ns")?,
        })
    }

    /// Writes a block's rows, except those of events.
    pub(super) fn block(&mut self, block: &Block) -> io::Result<()> {
        match block {
            Block::Threads(threads) => {
                for thread in threads {
                    let (name, unit) = (field(&thread.name), field(&thread.unit));
                    writeln!(self.threads, "{},{},{},{name},{unit}", thread.seen_ns, thread.tid, thread.pid)?;
                }
                Ok(())
            }
            Block::Usage(usage) => {
                for used in &usage.threads {
                    let (at_ns, over_ns) = (usage.at_ns, usage.over_ns);
                    writeln!(
                        self.usage,
                        "{at_ns},{over_ns},{},{},{},{}",
                        used.tid, used.ran_ns, used.waited_ns, used.turns
                    )?;
                }
                Ok(())
            }
            Block::Sample(sample) => self.sample(sample),
            Block::Events(_) | Block::Contract(_) | Block::End(_) => Ok(()),
        }
    }

    /// Writes a burst or a wait that ended at `to_ns`.
    pub(super) fn ended(&mut self, to_ns: u64, follower: &Follower, ended: Ended) -> io::Result<()> {
        match ended {
            Ended::Ran { thread, cpu, from_ns, left } => {
                let left = match left {
                    Some(Left::Preempted) => "preempted",
                    Some(Left::Asleep) => "asleep",
                    Some(Left::Blocked) => "blocked",
                    Some(Left::Ended) => "ended",
                    None => "unknown",
                };
                let unit = field(follower.unit(thread));
                writeln!(self.bursts, "{from_ns},{to_ns},{cpu},{thread},{unit},{left}")
            }
            Ended::Waited { thread, cpu, from_ns, woken, .. } => {
                let unit = field(follower.unit(thread));
                writeln!(self.waits, "{from_ns},{to_ns},{cpu},{thread},{unit},{woken}")
            }
        }
    }

    fn sample(&mut self, sample: &Sample) -> io::Result<()> {
        let at_ns = sample.at_ns;
        for unit in &sample.units {
            let memory = unit.memory.unwrap_or_default();
            let disk = unit.disk.unwrap_or_default();
            let numbers = [
                unit.entitled_ns,
                unit.used_ns,
                unit.lent_ns,
                unit.borrowed_ns,
                unit.waited_ns,
                unit.call_backs.count,
                memory.entitled,
                memory.used,
                memory.lent,
                memory.borrowed,
                memory.stalled_ns,
                memory.refaulted,
                disk.read,
                disk.written,
                disk.stalled_ns,
            ];
            let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
            let (path, owned) = (field(&unit.path), field(&unit.owned));
            let (processes, entitled) = (unit.processes, unit.entitled_micro_cpus);
            writeln!(self.units, "{at_ns},{path},{processes},{entitled},{owned},{}", numbers.join(","))?;
        }
        for process in &sample.processes {
            let numbers = [
                process.anonymous,
                process.of_files,
                process.faults,
                process.major_faults,
                process.read,
                process.written,
            ];
            let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
            writeln!(self.processes, "{at_ns},{},{}", process.pid, numbers.join(","))?;
        }
        for disk in &sample.disks {
            let ((reads, read), (writes, written)) = (disk.reads, disk.writes);
            let name = field(&disk.name);
            writeln!(self.disks, "{at_ns},{name},{reads},{read},{writes},{written},{}", disk.busy_ns)?;
        }
        Ok(())
    }

    /// Completes the files.
    pub(super) fn finish(self) -> io::Result<()> {
        let Tables { threads, bursts, waits, usage, units, processes, disks } = self;
        for mut file in [threads, bursts, waits, usage, units, processes, disks] {
            file.flush()?;
        }
        Ok(())
    }
}

/// A text as a field. One that begins with `=`, `+`, `-` or `@` has an apostrophe before it, so that a
/// spreadsheet does not evaluate it.
fn field(text: &str) -> String {
    let text = commonhold_command::output::shown(text);
    let text = if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted() {
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(field("=1+1"), "'=1+1");
        assert_eq!(field("plain"), "plain");
    }
}
