//! Moves a job's pages to its nodes.
//!
//! Algorithm: a thread of the daemon makes the system calls, because they block until the pages are copied.
//! If a job is in one pool, `migrate_pages(2)` moves its pages from all other nodes, process by process. That
//! call cannot divide the pages of one node among several. So if a job is in several pools, `move_pages(2)`
//! moves its pages in blocks of [`BLOCK_PAGES`], as many as a huge page has; [`spread`] decides which blocks
//! move.
//!
//! Limits: only a process itself can set where its new pages go (`set_mempolicy(2)`, `mbind(2)`). So new
//! pages go to the node where they are first touched, and the policy orders another move when enough pages
//! are misplaced. A division moves no pages that several processes map. Moving pages of other users'
//! processes needs `CAP_SYS_PTRACE`. The kernel's own balancing (`kernel.numa_balancing`) may move pages
//! back.

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

/// The number of pages that are examined and moved together: as many as a huge page has.
const BLOCK_PAGES: u64 = 512;

/// A mapping may be sparse, so the number of blocks that are examined in one mapping is bounded: `SPARSE`
/// times the number of blocks that its pages would fill, but at least `BLOCKS_MIN`.
const SPARSE: u64 = 16;
const BLOCKS_MIN: u64 = 512;

/// A move of pages of several processes, in a thread of its own.
#[derive(Debug)]
pub(super) struct Moving {
    thread: Option<JoinHandle<Vec<LiveError>>>,
}

impl Moving {
    /// Begins to move pages of these processes. If `divided`, moves pages so that each of these nodes has its
    /// part; otherwise, moves every page that is in none of these nodes.
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
                false => pinned.iter().filter_map(|process| move_all(process, &from, &to).err()).collect(),
            }
        };
        let thread = thread::Builder::new().name("pages".to_owned()).spawn(work);
        let thread = thread.map_err(|source| LiveError::Unavailable {
            what: format!("pages of a job cannot be moved: no thread: {source}"),
            remedy: "they stay where they are; raise the limit of processes (ulimit -u)".to_owned(),
        })?;
        Ok(Moving { thread: Some(thread) })
    }

    /// The errors of the move once it has ended; `None` until then. Returns each error once.
    pub(super) fn ended(&mut self) -> Option<Vec<LiveError>> {
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        has_ended.then(|| self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default())
    }
}

/// Pins these processes, without those that have ended.
///
/// `migrate_pages(2)` and `move_pages(2)` take bare process numbers, so each call is made only after a check
/// that the pinned process still exists. One race remains: the process ends, and its number is reused,
/// between this check and the kernel's look-up. Then pages of a new process move to another node, once, which
/// does no further harm.
fn pinned(processes: Vec<ProcessKey>) -> Result<Vec<(ProcessKey, Pinned)>, LiveError> {
    let mut procfs = ProcFs::open(Path::new("/proc"))?;
    let pin = |key| Ok(pin(&mut procfs, key)?.map(|pinned| (key, pinned)));
    processes.into_iter().map(pin).filter_map(Result::transpose).collect()
}

/// The number of a process. Error: `ESRCH` if it has ended.
fn pid_if_running(process: &Pinned) -> io::Result<u32> {
    if process.is_running()? { Ok(process.pid()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

/// Moves all pages of a process that are in the nodes `from` to the nodes `to`.
fn move_all((key, process): &(ProcessKey, Pinned), from: &[u32], to: &[u32]) -> Result<(), LiveError> {
    outcome(*key, to, pid_if_running(process).and_then(|pid| migrate(pid, from, to)))
}

/// Turns the result of moving a process's pages into an error for the user. That the process has ended is no
/// error.
fn outcome(key: ProcessKey, to: &[u32], moved: io::Result<()>) -> Result<(), LiveError> {
    match moved {
        Ok(()) => Ok(()),
        // The process has ended.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        // The process is ending, and has released its memory.
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

/// Moves pages of these processes so that each node has its part of the sum of their pages.
fn divide(processes: &[(ProcessKey, Pinned)], parts: &[NodePart]) -> Vec<LiveError> {
    let mapped: Vec<(&(ProcessKey, Pinned), Vec<Mapped>)> =
        processes.iter().map(|process| (process, mapped(process.0.pid))).collect();
    let mut pages_by_node: BTreeMap<u32, u64> = BTreeMap::new();
    for (node, pages) in mapped.iter().flat_map(|(_, areas)| areas).flat_map(|area| &area.pages) {
        *pages_by_node.entry(*node).or_default() += pages;
    }
    let mut spread = Spread::new(&pages_by_node, parts);
    let to: Vec<u32> = parts.iter().map(|part| part.node).collect();
    let mut failed = Vec::new();
    for ((key, process), areas) in &mapped {
        let has_movable = |area: &&Mapped| area.pages.keys().any(|node| spread.has_excess(*node));
        let areas: Vec<&Mapped> = areas.iter().filter(has_movable).collect();
        let moved = areas.into_iter().try_for_each(|area| divide_area(process, area, &mut spread));
        failed.extend(outcome(*key, &to, moved).err());
    }
    failed
}

/// Divides the pages of one mapping. The end of a very sparse mapping is left alone, because examining absent
/// pages takes time.
fn divide_area(process: &Pinned, area: &Mapped, spread: &mut Spread) -> io::Result<()> {
    let mut pages_left: u64 = area.pages.values().sum();
    let blocks_max = (pages_left / BLOCK_PAGES).saturating_mul(SPARSE).max(BLOCKS_MIN);
    let page_bytes = page_bytes();
    let block_bytes = page_bytes * BLOCK_PAGES;
    let mut begin = area.from;
    for _ in 0..blocks_max {
        if pages_left == 0 || begin >= area.to {
            break;
        }
        let end = ((begin / block_bytes + 1) * block_bytes).min(area.to);
        let addresses: Vec<u64> = (0..(end - begin) / page_bytes).map(|n| begin + n * page_bytes).collect();
        begin = end;
        // Pages of a block in the same node move, or stay, together.
        let mut by_node: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (address, node) in addresses.iter().zip(nodes_of(pid_if_running(process)?, &addresses, None)?) {
            // A page that is not present has an error code instead of a node.
            if let Ok(node) = u32::try_from(node) {
                by_node.entry(node).or_default().push(*address);
            }
        }
        for (node, addresses) in by_node {
            let page_count = addresses.len() as u64;
            pages_left = pages_left.saturating_sub(page_count);
            let target = spread.target(node, page_count).and_then(|target| i32::try_from(target).ok());
            if let Some(target) = target {
                nodes_of(pid_if_running(process)?, &addresses, Some(&vec![target; addresses.len()]))?;
            }
        }
    }
    Ok(())
}

/// Whether a process has released its memory, or has ended.
fn has_no_memory(pid: u32) -> bool {
    let path = PathBuf::from(format!("/proc/{pid}/statm"));
    host::read_to_string(&path).map_or(true, |statm| statm.starts_with("0 "))
}

fn list(nodes: &[u32]) -> String {
    nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A key with another start time denotes a process that has ended. Fails if only the process number is
    /// compared.
    #[test]
    fn pages_of_a_process_with_a_reused_number_stay() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let key = procfs.stat(child.id()).unwrap().unwrap().key;
        let earlier = ProcessKey { start: key.start - 1, ..key };
        let processes = pinned(vec![key, earlier]).unwrap();
        assert_eq!(processes.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [key]);
        assert_eq!(pid_if_running(&processes[0].1).unwrap(), key.pid);
        child.kill().and_then(|()| child.wait()).unwrap();
        assert_eq!(pid_if_running(&processes[0].1).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    /// Both before and after the process is waited for.
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
