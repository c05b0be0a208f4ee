//! Notifications to the service manager that started the daemon: systemd, for a service of `Type=notify`.
//!
//! A message is a few lines of text, sent to the socket that `NOTIFY_SOCKET` names (`sd_notify(3)`). Sending
//! never blocks: a message that the manager cannot take at once is dropped. Without a manager, nothing is
//! sent.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::time::Duration;

use commonhold_live::host::clock;
use commonhold_policy::Time;

/// The manager that started this daemon, if any.
#[derive(Debug, Default)]
pub(super) struct Service {
    manager: Option<(UnixDatagram, SocketAddr)>,
    /// The interval at which to send watchdog messages; `None` if the manager expects none.
    watchdog_ns: Option<Time>,
    /// When the last watchdog message was sent.
    alive_sent_at: Time,
}

impl Service {
    /// Finds the manager by the environment variables of `sd_notify(3)` and `sd_watchdog_enabled(3)`.
    pub(super) fn of_environment() -> Service {
        let variable = |name: &str| std::env::var(name).ok();
        let manager = variable("NOTIFY_SOCKET").and_then(|name| manager(&name).ok());
        // The manager sets the watchdog variables for the process that it starts. If that is not this process
        // but its parent, the variables do not apply here.
        let is_for_this_process = variable("WATCHDOG_PID").is_none_or(|pid| pid == process::id().to_string());
        let timeout_us =
            variable("WATCHDOG_USEC").filter(|_| is_for_this_process).and_then(|us| us.parse().ok());
        // The interval is a third of the timeout, so that one slow turn does not trip the watchdog.
        let interval = timeout_us.map(|us| Duration::from_micros(us) / 3);
        let watchdog_ns = interval.map(|interval| u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX));
        Service { manager, watchdog_ns, alive_sent_at: 0 }
    }

    /// Reports that the contract is held, with the status for `systemctl status`.
    pub(super) fn ready(&self, status: &str) {
        self.notify(&format!("READY=1\nSTATUS={}", status.replace('\n', " ")));
    }

    /// Reports that the contract is being reloaded, until [`Service::ready`].
    pub(super) fn reloading(&self) {
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", clock::now() / 1_000));
    }

    /// Reports that changes are being undone.
    pub(super) fn ending(&self) {
        self.notify("STOPPING=1\nSTATUS=undoing what was done");
    }

    /// Sends a watchdog message, if one is due.
    pub(super) fn alive(&mut self) {
        let now = clock::now();
        if self.watchdog_ns.is_some_and(|interval| now >= self.alive_sent_at.saturating_add(interval)) {
            self.alive_sent_at = now;
            self.notify("WATCHDOG=1");
        }
    }

    fn notify(&self, message: &str) {
        if let Some((socket, manager)) = &self.manager {
            // A missing or busy manager does not stop the daemon from holding the contract.
            let _ = socket.send_to_addr(message.as_bytes(), manager);
        }
    }
}

/// A socket for messages, and the address of the manager's socket. A name that begins with `@` is an abstract
/// address.
fn manager(name: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_notified_and_never_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let heard = || {
            let mut room = [0; 256];
            let n = listener.recv(&mut room).unwrap();
            String::from_utf8_lossy(&room[..n]).into_owned()
        };
        let manager = manager(path.to_str().unwrap()).unwrap();
        let mut service = Service { manager: Some(manager), watchdog_ns: Some(u64::MAX), alive_sent_at: 0 };
        service.ready("two\nlines");
        assert_eq!(heard(), "READY=1\nSTATUS=two lines");
        service.reloading();
        assert!(heard().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        service.alive();
        service.ending();
        assert_eq!(heard(), "STOPPING=1\nSTATUS=undoing what was done", "no sign of life was due");
        service.watchdog_ns = Some(0);
        // Until its queue is full, and beyond.
        for _ in 0..10_000 {
            service.alive();
        }
        assert_eq!(heard(), "WATCHDOG=1");
        drop(listener);
        service.ending();
        Service::default().ending();
    }
}
