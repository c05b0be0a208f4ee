//! Talks to systemd: reads the state of its control groups, and sets properties of its units at run time.
//!
//! Problem: systemd owns and writes the control groups of its units. A value that another program writes into
//! such a group is lost at the next `daemon-reload`, and `systemctl show` does not report the value. So
//! limits are set as run-time *properties*: systemd writes each property into the control group, and keeps it
//! in a file, its *drop-in*.
//!
//! What is sent, and when: [`apply/cgroup/systemd`](crate::apply).
//!
//! Terms: a *systemd unit* is a slice, a service or a scope, and owns a control group. It is not a unit of
//! the contract.
//!
//! Algorithm: `message` and `connection` speak D-Bus over the system bus, or over systemd's private socket if
//! there is no bus. [`Manager`] has the calls. [`Queue`] makes the calls in a thread, for a loop that may not
//! block. `former` records a property's former state for the journal, and reverts the property. [`unit_of`]
//! maps a control group's path to the systemd unit that owns the group.
//!
//! Properties: a call takes at most two seconds. A lost connection is reopened. Reverting restores the former
//! properties and drop-ins, and keeps what an administrator has set meanwhile.
//!
//! Limits: needs systemd 244 (`AllowedCPUs`). When a device's weight is removed, the kernel keeps the old
//! weight; so the weight is first set to the unit's general weight.

mod connection;
#[cfg(test)]
pub(crate) mod fake;
mod former;
mod manager;
mod message;
mod names;
mod property;
mod queue;
mod scope;

use std::io;
use std::path::{Path, PathBuf};

use crate::LiveError;
use crate::host;

pub use former::{PropertyChange, PropertyState, Reverted};
pub use manager::{Manager, UnitState};
pub use names::{GroupOwner, group_of_slice, slice_for, unit_of};
pub use property::{Property, UNSET, Value};
pub use queue::{Answer, Change, Done, Queue, Request};
pub use scope::Scope;

/// A systemd instance: the machine's, or a user's own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance {
    /// The folder of the instance's sockets and files: `/run`, or the user's run-time directory.
    run: PathBuf,
    is_user: bool,
}

impl Instance {
    /// The machine's systemd.
    pub fn system() -> Instance {
        Instance { run: PathBuf::from("/run"), is_user: false }
    }

    /// The systemd of the user who runs this program. Its folder is `$XDG_RUNTIME_DIR`, or `/run/user/UID` if
    /// that is unset.
    pub fn user() -> Instance {
        let uid = rustix::process::geteuid().as_raw();
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        Instance { run: folder.unwrap_or_else(|| format!("/run/user/{uid}").into()), is_user: true }
    }

    /// An instance with another folder: in tests, and from an entry of the journal.
    pub fn at(run: &Path, is_user: bool) -> Instance {
        Instance { run: run.to_owned(), is_user }
    }

    /// The folder of the instance's sockets and files.
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// Whether the instance is a user's systemd.
    pub fn is_user(&self) -> bool {
        self.is_user
    }

    /// Whether the instance runs. False if process 1 is not systemd, or the user has no systemd.
    pub fn is_there(&self) -> bool {
        host::is_dir(&self.run.join("systemd")) && self.is_user
            || host::is_dir(&self.run.join("systemd/system"))
    }

    /// The socket of the bus.
    fn bus(&self) -> PathBuf {
        self.run.join(if self.is_user { "bus" } else { "dbus/system_bus_socket" })
    }

    /// systemd's private socket.
    fn private_socket(&self) -> PathBuf {
        self.run.join("systemd/private")
    }

    /// The folder of drop-ins for run-time properties of units that are transient or not.
    fn drop_ins(&self, is_transient: bool) -> PathBuf {
        self.run.join(match (is_transient, self.is_user) {
            (true, _) => "systemd/transient",
            (false, true) => "systemd/user.control",
            (false, false) => "systemd/system.control",
        })
    }

    /// The folder of drop-ins for properties that survive a reboot. `None` for a user's systemd, whose
    /// persistent drop-ins are not examined.
    fn persistent_drop_ins(&self) -> Option<PathBuf> {
        (!self.is_user).then(|| self.run.with_file_name("etc").join("systemd/system.control"))
    }
}

/// Why a request to systemd failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// systemd is not running, or its socket cannot be used.
    #[error("{}: cannot call systemd: {source}; {remedy}", path.display())]
    Unreachable {
        /// The socket of the bus, or systemd's private one.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
        /// The remedy.
        remedy: String,
    },
    /// The connection ended before the reply, or the reply did not come in time.
    #[error("systemd did not answer {call}: {source}; it is asked again later")]
    Silent {
        /// The D-Bus method.
        call: String,
        /// The error of the connection.
        source: io::Error,
    },
    /// An earlier call was not answered, and systemd is not called again until the back-off ends.
    #[error("systemd is not called until its back-off ends: {why}")]
    Resting {
        /// The error of the earlier call.
        why: String,
    },
    /// systemd refused the request.
    #[error("systemd refused {call}: {message} ({name})")]
    Refused {
        /// The D-Bus method.
        call: String,
        /// The D-Bus name of the error.
        name: String,
        /// The error's text.
        message: String,
    },
    /// A malformed reply.
    #[error("systemd sent a malformed reply to {call}: {what}; its version may not be supported")]
    Unexpected {
        /// The D-Bus method.
        call: String,
        /// What is wrong with the reply.
        what: String,
    },
    /// A drop-in could not be read or written.
    #[error("{}: {source}; {remedy}", path.display())]
    Files {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
        /// The remedy.
        remedy: String,
    },
    /// The systemd unit has no such property, or the property takes no such value.
    #[error("{unit}: {property} cannot be {value}; {remedy}")]
    Unsuitable {
        /// The systemd unit.
        unit: String,
        /// The property.
        property: String,
        /// The value.
        value: String,
        /// The remedy.
        remedy: String,
    },
}

impl Error {
    /// Whether the systemd unit does not exist, or no longer exists.
    pub fn is_gone(&self) -> bool {
        self.is_named(&["org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.systemd1.UnitMasked"])
    }

    /// Whether this user lacks the permission.
    pub fn is_denied(&self) -> bool {
        self.is_named(&[
            "org.freedesktop.DBus.Error.AccessDenied",
            "org.freedesktop.DBus.Error.AuthFailed",
            "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
        ])
    }

    /// Whether systemd was not reached, or did not answer: the request may be retried later.
    pub fn is_silence(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::Silent { .. } | Error::Resting { .. })
            || self.is_off_the_bus()
    }

    /// Whether systemd does not know a property that it was asked to set.
    fn is_unknown_property(&self) -> bool {
        self.is_named(&[
            "org.freedesktop.DBus.Error.PropertyReadOnly",
            "org.freedesktop.DBus.Error.UnknownProperty",
        ])
    }

    /// Whether the bus reports that systemd is not connected at the moment: it is being re-executed
    /// (`daemon-reexec`).
    fn is_off_the_bus(&self) -> bool {
        self.is_named(&[
            "org.freedesktop.DBus.Error.Disconnected",
            "org.freedesktop.DBus.Error.NameHasNoOwner",
            "org.freedesktop.DBus.Error.NoReply",
            "org.freedesktop.DBus.Error.ServiceUnknown",
        ])
    }

    fn is_named(&self, names: &[&str]) -> bool {
        matches!(self, Error::Refused { name, .. } if names.contains(&name.as_str()))
    }
}

impl From<Error> for LiveError {
    fn from(error: Error) -> LiveError {
        let remedy = match &error {
            _ if error.is_denied() => "run commonhold as root, or use the user's own systemd",
            _ if error.is_gone() => "nothing to do: its processes have ended",
            _ => "see `systemctl status` and the journal of systemd",
        };
        LiveError::Unavailable { what: error.to_string(), remedy: remedy.to_owned() }
    }
}
