//! On which CPU a thread ran last, and on which nodes its process's memory is.
//!
//! Source: `proc_pid_stat(5)`, numa(7).

use super::ProcFs;
use crate::LiveError;

/// A thread's CPU, CPU time, and whether it wants to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OnCpu {
    /// Running, or waiting for a CPU.
    pub(crate) is_runnable: bool,
    /// CPU time so far, in clock ticks.
    pub(crate) ticks: u64,
    /// The CPU on which it runs, or ran last.
    pub(crate) cpu: u32,
}

impl ProcFs {
    /// A thread's CPU, CPU time, and whether it is runnable; `None` if it has ended.
    pub(crate) fn on_cpu(&mut self, pid: u32, tid: u32) -> Result<Option<OnCpu>, LiveError> {
        Ok(self.read(&format!("{pid}/task/{tid}/stat"))?.and_then(parse_on_cpu))
    }

    /// Bytes of a process's memory by node number, from `/proc/PID/numa_maps`; `None` if the process has
    /// ended, or the kernel does not show them.
    pub(crate) fn by_node(&mut self, pid: u32) -> Result<Option<Vec<(u32, u64)>>, LiveError> {
        Ok(self.read_lines(&format!("{pid}/numa_maps"))?.map(parse_by_node))
    }
}

/// Parses fields 3, 14, 15 and 39 of /proc/PID/task/TID/stat. The name before these fields may contain
/// anything.
fn parse_on_cpu(text: &[u8]) -> Option<OnCpu> {
    let name_end = text.iter().rposition(|byte| *byte == b')')? + 1;
    let fields: Vec<&[u8]> =
        text[name_end..].split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();
    let number = |field: usize| std::str::from_utf8(fields.get(field - 3)?).ok()?.parse::<u64>().ok();
    Some(OnCpu {
        is_runnable: *fields.first()? == b"R",
        ticks: number(14)? + number(15)?,
        cpu: u32::try_from(number(39)?).ok()?,
    })
}

/// Sums up lines like `7f00 default anon=300 dirty=300 N0=200 N2=100 kernelpagesize_kB=4` by node, in bytes.
fn parse_by_node(text: &[u8]) -> Vec<(u32, u64)> {
    let mut nodes: std::collections::BTreeMap<u32, u64> = std::collections::BTreeMap::new();
    for line in String::from_utf8_lossy(text).lines() {
        let page_kib = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok())
            .unwrap_or(4);
        for word in line.split_whitespace() {
            let Some((node, pages)) = word.strip_prefix('N').and_then(|word| word.split_once('=')) else {
                continue;
            };
            if let (Ok(node), Ok(pages)) = (node.parse::<u32>(), pages.parse::<u64>()) {
                *nodes.entry(node).or_default() += pages.saturating_mul(page_kib).saturating_mul(1024);
            }
        }
    }
    nodes.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_of_a_thread_is_parsed() {
        let text = b"12 (a) R b) R 1 2 3 0 -1 64 0 0 0 0 150 25 0 0 20 0 1 0 99 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 5 0 0\n";
        assert_eq!(parse_on_cpu(text), Some(OnCpu { is_runnable: true, ticks: 175, cpu: 5 }));
        assert_eq!(parse_on_cpu(b"12 (a) R 1 2"), None);
    }

    #[test]
    fn pages_by_node() {
        let text = b"7f00 default anon=300 N0=200 N2=100 kernelpagesize_kB=4\n\
            7f01 default file=/N1=3 N2=1 kernelpagesize_kB=2048\n";
        assert_eq!(parse_by_node(text), [(0, 200 << 12), (2, (100 << 12) + (2 << 20))]);
    }
}
