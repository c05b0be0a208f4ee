//! Whether SIGSTOP stopped a process, and whether its terminal has requested a stop as well.

use super::{ProcFs, ProcessKey, Stat, ThreadState};
use crate::LiveError;

/// The bit of SIGTSTP, which Ctrl-Z sends, in a signal mask of /proc/PID/status.
const SIGTSTP_BIT: u64 = 1 << (libc::SIGTSTP - 1);

impl Stat {
    /// Whether SIGSTOP stopped the process, and not its terminal (SIGTSTP, SIGTTIN, SIGTTOU) or a debugger.
    /// The kernel forgets the signal once the parent has waited for the stop; SIGSTOP is then assumed.
    pub(crate) fn is_stopped_by_sigstop(&self) -> bool {
        self.state == ThreadState::Stopped && matches!(self.stop_signal, 0 | libc::SIGSTOP)
    }
}

impl ProcFs {
    /// The processes to continue together with `first`: itself, and each of `candidates` that is in its
    /// process group and was stopped by SIGSTOP. A program may stop its whole group when its child stops, as
    /// sudo does. Children come before their parents.
    ///
    /// Empty if the terminal has requested a stop of the group meanwhile (Ctrl-Z), because the group must
    /// then stay stopped. The request is a pending SIGTSTP, which SIGCONT would discard.
    pub(crate) fn stopped_with(
        &mut self,
        first: &Stat,
        candidates: &[u32],
    ) -> Result<Vec<ProcessKey>, LiveError> {
        let mut stopped = vec![first.key];
        for pid in candidates.iter().filter(|pid| **pid != first.key.pid) {
            let stat = self.stat(*pid)?.filter(|stat| stat.group == first.group);
            stopped.extend(stat.filter(Stat::is_stopped_by_sigstop).map(|stat| stat.key));
        }
        for key in &stopped {
            if self.parsed(&format!("{}/status", key.pid), parse_stop_is_pending)?.unwrap_or(false) {
                return Ok(Vec::new());
            }
        }
        stopped.sort_by_key(|key| std::cmp::Reverse((key.start, key.pid)));
        Ok(stopped)
    }
}

/// Parses /proc/PID/status: whether a SIGTSTP is pending that the process neither blocks nor ignores.
fn parse_stop_is_pending(text: &[u8]) -> Option<bool> {
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
            parse_stop_is_pending(text.as_bytes())
        };
        assert_eq!(status("0000000000000000", "0000000000080000", "0", "0"), Some(true));
        assert_eq!(status("0000000000080000", "0000000000000000", "0", "0"), Some(true));
        assert_eq!(status("0", "0000000000040000", "0", "0"), Some(false), "another signal");
        assert_eq!(status("0", "0000000000080000", "fffffffe7ffbfeff", "0"), Some(false), "su blocks it");
        assert_eq!(status("0", "0000000000080000", "0", "0000000000080000"), Some(false));
        assert_eq!(parse_stop_is_pending(b"SigPnd:\t0\n"), None);
    }
}
