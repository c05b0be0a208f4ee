//! Notifications to the service manager that started the daemon: systemd, for a service of `Type=notify`.
//!
//! A message is a few lines to the socket that `NOTIFY_SOCKET` names (`sd_notify(3)`). Nothing blocks: a message that the
//! manager cannot take now is lost. Without a manager, nothing is sent.

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
    /// The interval of watchdog messages that it expects.
    every: Option<Time>,
    /// When the last one was sent.
    alive: Time,
}

impl Service {
    /// From the environment variables of `sd_notify(3)` and `sd_watchdog_enabled(3)`.
    pub(super) fn of_environment() -> Service {
        let variable = |name: &str| std::env::var(name).ok();
        let manager = variable("NOTIFY_SOCKET").and_then(|name| manager(&name).ok());
        // The variables were meant for another process if this one was started by the manager's program.
        let is_ours = variable("WATCHDOG_PID").is_none_or(|pid| pid == process::id().to_string());
        let within = variable("WATCHDOG_USEC").filter(|_| is_ours).and_then(|us| us.parse().ok());
        // A third of the timeout, so that one slow turn does not trip the watchdog.
        let every = within.map(|us| Duration::from_micros(us) / 3);
        let every = every.map(|every| u64::try_from(every.as_nanos()).unwrap_or(u64::MAX));
        Service { manager, every, alive: 0 }
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
        if self.every.is_some_and(|every| now >= self.alive.saturating_add(every)) {
            self.alive = now;
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
        let mut service = Service { manager: Some(manager), every: Some(u64::MAX), alive: 0 };
        service.ready("two\nlines");
        assert_eq!(heard(), "READY=1\nSTATUS=two lines");
        service.reloading();
        assert!(heard().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        service.alive();
        service.ending();
        assert_eq!(heard(), "STOPPING=1\nSTATUS=undoing what was done", "no sign of life was due");
        service.every = Some(0);
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
