//! Bringing a job's pages to its nodes, by a thread of its own: the kernel copies before it answers.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use crate::LiveError;
use crate::host::{self, pages::migrate};
use crate::observe::process::ProcessKey;
use crate::observe::topology;

/// Whether this kernel moves pages at all: it has more than one node, and the call is there.
pub(super) fn can_be_moved() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| topology::node_numbers().len() > 1 && migrate(0, &[0], &[0]).is_ok())
}

/// Pages of several processes that are on their way.
#[derive(Debug)]
pub(super) struct Moving {
    thread: Option<JoinHandle<Vec<LiveError>>>,
}

impl Moving {
    /// Begins to move the pages of these processes to these nodes, from all others.
    pub(super) fn begin(processes: Vec<ProcessKey>, nodes: &[u32]) -> Result<Moving, LiveError> {
        let all = topology::node_numbers();
        let from: Vec<u32> = all.into_iter().filter(|node| !nodes.contains(node)).collect();
        let to = nodes.to_vec();
        let work = move || processes.into_iter().filter_map(|key| bring(key, &from, &to).err()).collect();
        let thread = thread::Builder::new().name("pages".to_owned()).spawn(work);
        let thread = thread.map_err(|source| LiveError::Unavailable {
            what: format!("pages of a job cannot be moved: no thread: {source}"),
            remedy: "they stay where they are; raise the limit of processes (ulimit -u)".to_owned(),
        })?;
        Ok(Moving { thread: Some(thread) })
    }

    /// What went wrong, once all have moved; `None` as long as some are on their way.
    pub(super) fn ended(&mut self) -> Option<Vec<LiveError>> {
        let is_over = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        is_over.then(|| self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default())
    }
}

fn bring(key: ProcessKey, from: &[u32], to: &[u32]) -> Result<(), LiveError> {
    match migrate(key.pid, from, to) {
        Ok(()) => Ok(()),
        // It ended.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        // It is ending, and has no memory any more.
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

/// Whether a process has given its memory up, or is gone.
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

    /// One that has ended and is not waited for yet has none; no more has one that is gone.
    #[test]
    fn who_has_ended_has_no_memory() {
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
