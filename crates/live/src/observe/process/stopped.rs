//! Whether SIGSTOP stopped a process, and whether its terminal asked for a stop as well.

use super::{ProcFs, ProcessKey, Stat, ThreadState};
use crate::LiveError;

/// SIGTSTP in a signal mask as /proc/PID/status shows it: what Ctrl-Z sends.
const SIGTSTP_BIT: u64 = 1 << (libc::SIGTSTP - 1);

impl Stat {
    /// Whether SIGSTOP stopped it, and not its terminal (SIGTSTP, SIGTTIN, SIGTTOU) or a debugger. The kernel forgets the signal
    /// once the parent has waited for the stop; SIGSTOP is then assumed.
    pub(crate) fn is_stopped_by_sigstop(&self) -> bool {
        self.state == ThreadState::Stopped && matches!(self.stop_signal, 0 | libc::SIGSTOP)
    }
}

impl ProcFs {
    /// The processes that stopped together with `first`: itself, and those `among` other processes that are in its process group
    /// and were stopped by SIGSTOP. A program may stop its whole group when its child stops, as sudo does. Children come before
    /// their parents.
    ///
    /// Empty if the terminal asked for a stop of that group meanwhile (Ctrl-Z), because the group must then stay stopped. The
    /// request is a pending SIGTSTP, which SIGCONT would discard.
    pub(crate) fn stopped_with(&mut self, first: &Stat, among: &[u32]) -> Result<Vec<ProcessKey>, LiveError> {
        let mut stopped = vec![first.key];
        for pid in among.iter().filter(|pid| **pid != first.key.pid) {
            let stat = self.stat(*pid)?.filter(|stat| stat.group == first.group);
            stopped.extend(stat.filter(Stat::is_stopped_by_sigstop).map(|stat| stat.key));
        }
        for key in &stopped {
            if self.parsed(&format!("{}/status", key.pid), parse_asked_to_stop)?.unwrap_or(false) {
                return Ok(Vec::new());
            }
        }
        stopped.sort_by_key(|key| std::cmp::Reverse((key.start, key.pid)));
        Ok(stopped)
    }
}

/// Whether a SIGTSTP that the process neither blocks nor ignores is pending.
fn parse_asked_to_stop(text: &[u8]) -> Option<bool> {
    let mask = |name: &[u8]| {
        let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(std::str::from_utf8(line).ok()?.trim(), 16).ok()
    };
    let pending = mask(b"SigPnd:")? | mask(b"ShdPnd:")?;
    Some(pending & !mask(b"SigBlk:")? & !mask(b"SigIgn:")? & SIGTSTP_BIT != 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_that_the_terminal_asked_for_is_pending() {
        let status = |private: &str, shared: &str, blocked: &str, ignored: &str| {
            let text = format!(
                "Name:\tsh\nSigQ:\t0/1\nSigPnd:\t{private}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n"
            );
            parse_asked_to_stop(text.as_bytes())
        };
        assert_eq!(status("0000000000000000", "0000000000080000", "0", "0"), Some(true));
        assert_eq!(status("0000000000080000", "0000000000000000", "0", "0"), Some(true));
        assert_eq!(status("0", "0000000000040000", "0", "0"), Some(false), "another signal");
        assert_eq!(status("0", "0000000000080000", "fffffffe7ffbfeff", "0"), Some(false), "su blocks it");
        assert_eq!(status("0", "0000000000080000", "0", "0000000000080000"), Some(false));
        assert_eq!(parse_asked_to_stop(b"SigPnd:\t0\n"), None);
    }
}
