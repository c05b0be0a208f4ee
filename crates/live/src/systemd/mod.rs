//! The way to systemd: what it knows of the control groups that are its own, and properties that are set while it runs.
//!
//! Problem: a control group of systemd's is written by systemd. What another program writes there is gone at the next
//! `daemon-reload`, and `systemctl show` does not tell it. So limits are set there as *properties*, at run time: systemd
//! writes them into the control group, and keeps each in a file, its *drop-in*.
//!
//! Terms: a *systemd unit* is a slice, a service or a scope, and owns a control group. It is not a unit of the contract.
//!
//! Algorithm: `message` and `connection` speak D-Bus over the system's bus, or over systemd's own socket where there is no bus.
//! [`Manager`] has the calls. [`Queue`] makes them in a thread of its own, for a loop that may not wait. `former` remembers
//! what was before, as an entry of the journal, and takes back. [`unit_of`] tells from its path whose a control group is.
//!
//! Properties: a call is over within two seconds. A connection that ends is made again. What is taken back leaves
//! the properties and the files that were there before, and what an administrator has set meanwhile.
//!
//! Limits: systemd takes properties since version 244 (`AllowedCPUs`). A weight that was set for one device alone stays in
//! the kernel's file when the property goes; so it is set to what the unit's weight is, before.

mod connection;
mod former;
mod manager;
mod message;
mod names;
#[cfg(test)]
pub(crate) mod played;
mod property;
mod queue;
mod scope;

use std::io;
use std::path::{Path, PathBuf};

use crate::LiveError;
use crate::host;

pub use former::{Former, Held, Reverted};
pub use manager::{Manager, State};
pub use names::{Place, group_of_slice, slice_for, unit_of};
pub use property::{Property, UNSET, Value};
pub use queue::{Answer, Change, Done, Queue, Request};
pub use scope::Scope;

/// Whose systemd it is: the machine's, or a user's own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    /// Where it has its sockets and its files: `/run`, or the user's folder there.
    run: PathBuf,
    is_user: bool,
}

impl Whose {
    /// The machine's.
    pub fn system() -> Whose {
        Whose { run: PathBuf::from("/run"), is_user: false }
    }

    /// That of the user who runs this program. Its folder is `$XDG_RUNTIME_DIR`, if that is set.
    pub fn user() -> Whose {
        let uid = rustix::process::geteuid().as_raw();
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        Whose { run: folder.unwrap_or_else(|| format!("/run/user/{uid}").into()), is_user: true }
    }

    /// One that has its sockets and files elsewhere: in a test, and from an entry of the journal.
    pub fn at(run: &Path, is_user: bool) -> Whose {
        Whose { run: run.to_owned(), is_user }
    }

    /// Where it has its sockets and its files.
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// Whether it is a user's.
    pub fn is_user(&self) -> bool {
        self.is_user
    }

    /// Whether it is there at all: not where process 1 is something else, or where the user has no systemd of its own.
    pub fn is_there(&self) -> bool {
        host::is_dir(&self.run.join("systemd")) && self.is_user
            || host::is_dir(&self.run.join("systemd/system"))
    }

    fn bus(&self) -> PathBuf {
        self.run.join(if self.is_user { "bus" } else { "dbus/system_bus_socket" })
    }

    fn own_socket(&self) -> PathBuf {
        self.run.join("systemd/private")
    }

    /// Where the drop-ins are of what is set at run time.
    fn drop_ins(&self, is_transient: bool) -> PathBuf {
        self.run.join(match (is_transient, self.is_user) {
            (true, _) => "systemd/transient",
            (false, true) => "systemd/user.control",
            (false, false) => "systemd/system.control",
        })
    }

    /// Where those are of what is set for longer than until the machine's next start. A user's are not looked at.
    fn lasting_drop_ins(&self) -> Option<PathBuf> {
        (!self.is_user).then(|| self.run.with_file_name("etc").join("systemd/system.control"))
    }
}

/// Why systemd did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is none, or it cannot be called.
    #[error("{}: cannot call systemd: {source}; {remedy}", path.display())]
    Unreachable {
        /// Its socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
        /// What to do about it.
        remedy: String,
    },
    /// The connection ended before the answer, or the answer did not come in time.
    #[error("systemd was asked for {call}, and has not answered: {source}; it is asked again later")]
    Silent {
        /// What was asked.
        call: String,
        /// What was seen of the connection.
        source: io::Error,
    },
    /// It has not answered a moment ago, and is left alone for another.
    #[error("systemd is not asked for a second: {why}")]
    Resting {
        /// What came of the last question.
        why: String,
    },
    /// It says no.
    #[error("systemd refuses {call}: {message} ({name})")]
    Refused {
        /// What was asked.
        call: String,
        /// The name of the error, by which programs know it.
        name: String,
        /// The same for people.
        message: String,
    },
    /// The answer is none to the question.
    #[error(
        "systemd answers {call} with what is no answer to it: {what}; this program does not know its version"
    )]
    Unexpected {
        /// What was asked.
        call: String,
        /// What is wrong with the answer.
        what: String,
    },
    /// A file in which systemd keeps what was set.
    #[error("{}: {source}; {remedy}", path.display())]
    Files {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
        /// What to do about it.
        remedy: String,
    },
    /// There is no such property of such a systemd unit, or no such value of it.
    #[error("{unit}: {property} cannot be {value}; {remedy}")]
    Unsuitable {
        /// The systemd unit.
        unit: String,
        /// The property.
        property: String,
        /// The value.
        value: String,
        /// What to do about it.
        remedy: String,
    },
}

impl Error {
    /// Whether the systemd unit is not there, or not any more.
    pub fn is_gone(&self) -> bool {
        self.is_named(&["org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.systemd1.UnitMasked"])
    }

    /// Whether this user may not ask for that.
    pub fn is_denied(&self) -> bool {
        self.is_named(&[
            "org.freedesktop.DBus.Error.AccessDenied",
            "org.freedesktop.DBus.Error.AuthFailed",
            "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
        ])
    }

    /// Whether systemd was not reached, or did not answer: the same may be asked again later.
    pub fn is_silence(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::Silent { .. } | Error::Resting { .. })
            || self.is_nobody()
    }

    /// Whether it does not know something that it was to set.
    fn is_about_unknown(&self) -> bool {
        self.is_named(&[
            "org.freedesktop.DBus.Error.PropertyReadOnly",
            "org.freedesktop.DBus.Error.UnknownProperty",
        ])
    }

    /// Whether the bus says that systemd is not there at the moment: it is being replaced (`daemon-reexec`).
    fn is_nobody(&self) -> bool {
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
            _ if error.is_denied() => "run commonhold as root, or give it to the user's own systemd",
            _ if error.is_gone() => "nothing is to be done: its processes have ended",
            _ => "see `systemctl status` and the journal of systemd",
        };
        LiveError::Unavailable { what: error.to_string(), remedy: remedy.to_owned() }
    }
}
