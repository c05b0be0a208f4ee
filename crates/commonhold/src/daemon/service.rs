//! What a service manager is told of a daemon that it has started: systemd, of a service of `Type=notify`.
//!
//! A message is a few lines to the socket that `NOTIFY_SOCKET` names (`sd_notify(3)`). Nothing waits: a manager that takes no
//! messages now is told the next thing. Where no manager has started the daemon, nothing is told.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::time::Duration;

use commonhold_live::host::clock;
use commonhold_policy::Time;

/// The manager that has started this daemon, if one has.
#[derive(Debug, Default)]
pub(super) struct Service {
    manager: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants a sign of life.
    every: Option<Time>,
    /// When it had the last one.
    alive: Time,
}

impl Service {
    /// As the environment says.
    pub(super) fn of_environment() -> Service {
        let said = |name: &str| std::env::var(name).ok();
        let manager = said("NOTIFY_SOCKET").and_then(|name| manager(&name).ok());
        // Another process's, where a manager has started a program that has started this one.
        let is_ours = said("WATCHDOG_PID").is_none_or(|pid| pid == process::id().to_string());
        let within = said("WATCHDOG_USEC").filter(|_| is_ours).and_then(|us| us.parse().ok());
        // Twice in that time, and once more for a look that takes long.
        let every = within.map(|us| Duration::from_micros(us) / 3);
        let every = every.map(|every| u64::try_from(every.as_nanos()).unwrap_or(u64::MAX));
        Service { manager, every, alive: 0 }
    }

    /// The contract is held; what `systemctl status` says of it.
    pub(super) fn ready(&self, what: &str) {
        self.tell(&format!("READY=1\nSTATUS={}", what.replace('\n', " ")));
    }

    /// The contract is read again. [`Service::ready`] ends that.
    pub(super) fn reloading(&self) {
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", clock::now() / 1_000));
    }

    /// What was done is being undone.
    pub(super) fn ending(&self) {
        self.tell("STOPPING=1\nSTATUS=undoing what was done");
    }

    /// A sign of life, where one is due.
    pub(super) fn alive(&mut self) {
        let now = clock::now();
        if self.every.is_some_and(|every| now >= self.alive.saturating_add(every)) {
            self.alive = now;
            self.tell("WATCHDOG=1");
        }
    }

    fn tell(&self, what: &str) {
        if let Some((socket, manager)) = &self.manager {
            // A manager that is gone, or takes nothing now, is no reason to hold a contract less.
            let _ = socket.send_to_addr(what.as_bytes(), manager);
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
    fn a_manager_is_told_and_never_waited_for() {
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
