//! Moves a job's pages to its nodes, in a thread: the system calls block until the pages are copied.
//!
//! Algorithm: for a job of one pool, pages elsewhere are moved by `migrate_pages(2)`, process by process. That call cannot
//! divide the pages of one node among several. So for a job of several pools, pages are moved by `move_pages(2)`, in blocks of
//! [`BLOCK_PAGES`], as many as a huge page has ([`spread`] decides which).
//!
//! Limits: memory that a process maps later is out of reach, because only the process itself can set where new pages go
//! (`set_mempolicy(2)`, `mbind(2)`). New pages go where they are first touched, and are divided again when enough of them are
//! misplaced. When pages are divided, those mapped by several processes stay. Processes of other users need `CAP_SYS_PTRACE`.
//! The kernel's own balancing (`kernel.numa_balancing`) may move pages back.

mod spread;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use commonhold_policy::plan::NodePart;

use spread::Spread;

use crate::LiveError;
use crate::host::{
    self, Pinned,
    pages::{migrate, nodes_of},
};
use crate::observe::mapped::{Mapped, mapped};
use crate::observe::memory::source::page_bytes;
use crate::observe::process::{ProcFs, ProcessKey, pin};
use crate::observe::topology;

/// Pages that are examined and moved together: as many as a huge page has.
const BLOCK_PAGES: u64 = 512;

/// Of one mapping, at most this multiple of the blocks that its pages would fill is examined, but at least `BLOCKS_MIN`.
const SPARSE: u64 = 16;
const BLOCKS_MIN: u64 = 512;

/// Pages of several processes in transit.
#[derive(Debug)]
pub(super) struct Moving {
    thread: Option<JoinHandle<Vec<LiveError>>>,
}

impl Moving {
    /// Begins to move pages of these processes to these nodes: every page that is on another node or, if `divided`, as many as
    /// give each node its part.
    pub(super) fn begin(
        processes: Vec<ProcessKey>,
        nodes: &[NodePart],
        divided: bool,
    ) -> Result<Moving, LiveError> {
        let parts = nodes.to_vec();
        let to: Vec<u32> = parts.iter().map(|part| part.node).collect();
        let all = topology::node_numbers();
        let from: Vec<u32> = all.into_iter().filter(|node| !to.contains(node)).collect();
        let work = move || {
            let pinned = match pinned(processes) {
                Ok(pinned) => pinned,
                Err(error) => return vec![error],
            };
            match divided {
                true => divide(&pinned, &parts),
                false => pinned.iter().filter_map(|process| bring(process, &from, &to).err()).collect(),
            }
        };
        let thread = thread::Builder::new().name("pages".to_owned()).spawn(work);
        let thread = thread.map_err(|source| LiveError::Unavailable {
            what: format!("pages of a job cannot be moved: no thread: {source}"),
            remedy: "they stay where they are; raise the limit of processes (ulimit -u)".to_owned(),
        })?;
        Ok(Moving { thread: Some(thread) })
    }

    /// The errors, once the move has ended; `None` while it goes on.
    pub(super) fn ended(&mut self) -> Option<Vec<LiveError>> {
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        has_ended.then(|| self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default())
    }
}

/// Pins those of some processes that have not ended.
///
/// `migrate_pages(2)` and `move_pages(2)` take bare process numbers, so each call is made only while the pinned process runs.
/// One race remains: the number is reused between that check and the kernel's lookup. Then pages of a newborn process move,
/// once, which affects only where they are.
fn pinned(processes: Vec<ProcessKey>) -> Result<Vec<(ProcessKey, Pinned)>, LiveError> {
    let mut procfs = ProcFs::open(Path::new("/proc"))?;
    let pin = |key| Ok(pin(&mut procfs, key)?.map(|pinned| (key, pinned)));
    processes.into_iter().map(pin).filter_map(Result::transpose).collect()
}

/// The process's number; an error if it has ended.
fn while_running(process: &Pinned) -> io::Result<u32> {
    if process.is_running()? { Ok(process.pid()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

fn bring((key, process): &(ProcessKey, Pinned), from: &[u32], to: &[u32]) -> Result<(), LiveError> {
    outcome(*key, to, while_running(process).and_then(|pid| migrate(pid, from, to)))
}

/// The outcome of moving a process's pages, without errors that do not matter.
fn outcome(key: ProcessKey, to: &[u32], moved: io::Result<()>) -> Result<(), LiveError> {
    match moved {
        Ok(()) => Ok(()),
        // It has ended.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        // It is ending, and has released its memory.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) && has_no_memory(key.pid) => Ok(()),
        Err(source) => {
            let remedy = match source.raw_os_error() {
                Some(libc::EPERM) => "; they stay where they are: run commonhold as root",
                _ => "; they stay where they are",
            };
            Err(LiveError::Process {
                pid: key.pid,
                name: String::new(),
                what: format!("move its pages to node {}", list(to)),
                source,
                remedy: remedy.to_owned(),
            })
        }
    }
}

/// Moves pages of processes that share their memory, so that each node gets its part of all of them.
fn divide(processes: &[(ProcessKey, Pinned)], parts: &[NodePart]) -> Vec<LiveError> {
    let mapped: Vec<(&(ProcessKey, Pinned), Vec<Mapped>)> =
        processes.iter().map(|process| (process, mapped(process.0.pid))).collect();
    let mut has: BTreeMap<u32, u64> = BTreeMap::new();
    for (node, pages) in mapped.iter().flat_map(|(_, areas)| areas).flat_map(|area| &area.pages) {
        *has.entry(*node).or_default() += pages;
    }
    let mut spread = Spread::new(&has, parts);
    let to: Vec<u32> = parts.iter().map(|part| part.node).collect();
    let mut failed = Vec::new();
    for ((key, process), areas) in &mapped {
        let mut areas = areas.iter().filter(|area| area.pages.keys().any(|node| spread.gives(*node)));
        let areas: Vec<&Mapped> = areas.by_ref().collect();
        let moved = areas.into_iter().try_for_each(|area| divide_area(process, area, &mut spread));
        failed.extend(outcome(*key, &to, moved).err());
    }
    failed
}

/// Divides one mapping. The end of a sparse one is left alone.
fn divide_area(process: &Pinned, area: &Mapped, spread: &mut Spread) -> io::Result<()> {
    let mut left: u64 = area.pages.values().sum();
    let blocks_max = (left / BLOCK_PAGES).saturating_mul(SPARSE).max(BLOCKS_MIN);
    let page = page_bytes();
    let block = page * BLOCK_PAGES;
    let mut from = area.from;
    for _ in 0..blocks_max {
        if left == 0 || from >= area.to {
            break;
        }
        let to = ((from / block + 1) * block).min(area.to);
        let pages: Vec<u64> = (0..(to - from) / page).map(|n| from + n * page).collect();
        from = to;
        let mut by_node: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (page, node) in pages.iter().zip(nodes_of(while_running(process)?, &pages, None)?) {
            // A page that is not present has an error code instead of a node.
            if let Ok(node) = u32::try_from(node) {
                by_node.entry(node).or_default().push(*page);
            }
        }
        for (node, pages) in by_node {
            let count = pages.len() as u64;
            left = left.saturating_sub(count);
            let target = spread.goes(node, count).and_then(|to| i32::try_from(to).ok());
            if let Some(to) = target {
                nodes_of(while_running(process)?, &pages, Some(&vec![to; pages.len()]))?;
            }
        }
    }
    Ok(())
}

/// Whether a process has released its memory, or has ended.
fn has_no_memory(pid: u32) -> bool {
    let path = PathBuf::from(format!("/proc/{pid}/statm"));
    host::read_to_string(&path).map_or(true, |pages| pages.starts_with("0 "))
}

fn list(nodes: &[u32]) -> String {
    nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A process that has ended has no memory, before and after it is waited for. Red if only the number is examined: a key
    /// with another start time denotes a process that has ended.
    #[test]
    fn pages_of_a_reused_number_stay() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let key = procfs.stat(child.id()).unwrap().unwrap().key;
        let earlier = ProcessKey { start: key.start - 1, ..key };
        let processes = pinned(vec![key, earlier]).unwrap();
        assert_eq!(processes.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [key]);
        assert_eq!(while_running(&processes[0].1).unwrap(), key.pid);
        child.kill().and_then(|()| child.wait()).unwrap();
        assert_eq!(while_running(&processes[0].1).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn an_ended_process_has_no_memory() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        assert!(!has_no_memory(std::process::id()));
        while !has_no_memory(pid) {
            thread::yield_now();
        }
        child.wait().unwrap();
        assert!(has_no_memory(pid));
    }
}
