//! Scopes: control groups that systemd makes for existing processes.
//!
//! A scope ends with its last process, even if that process failed (`CollectMode`). If the kernel kills one
//! of the scope's processes for lack of memory, the others stay (`OOMPolicy`, available for scopes since
//! version 253).

use std::io;
use std::thread;
use std::time::Instant;

use zvariant::{OwnedObjectPath, Value as Sent};

use super::connection::new_call;
use super::manager::{ANSWERS_WITHIN, MANAGER, PATH, PAUSE, UNIT, to_send, unexpected};
use super::message::{Call, Message};
use super::{Error, Manager, Property, Value};

/// A scope to start, for existing processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// The scope's name: `commonhold-a.scope`.
    pub name: String,
    /// The slice in which the scope is made.
    pub slice: String,
    /// The description that `systemctl status` shows.
    pub description: String,
    /// The processes to put into the scope: at least one.
    pub pids: Vec<u32>,
    /// The scope's initial properties.
    pub properties: Vec<(Property, Value)>,
}

impl Manager {
    /// Starts a scope, and waits until the scope is active and has its processes.
    pub fn start_scope(&mut self, scope: &Scope) -> Result<(), Error> {
        let until = Instant::now() + ANSWERS_WITHIN;
        let name = scope.name.as_str();
        let mut repeated = false;
        let mut call = scope.call(!self.has_no_oom_policy)?;
        let mut answer = self.ask_idempotently(&call, until, &mut repeated);
        // An older systemd: try again without the property that it does not know.
        if !self.has_no_oom_policy && answer.as_ref().is_err_and(Error::is_unknown_property) {
            self.has_no_oom_policy = true;
            call = scope.call(false)?;
            answer = self.ask_idempotently(&call, until, &mut repeated);
        }
        match answer {
            // The first attempt started this scope, and its reply was lost.
            Err(Error::Refused { name, .. }) if repeated && name.ends_with(".UnitExists") => {}
            answer => drop(job(&call, &answer?)?),
        }
        self.wait_for(name, until, |active| match active {
            "active" => Some(true),
            "failed" | "inactive" => Some(false),
            _ => None,
        })
        .and_then(|is_active| match is_active {
            Some(true) => Ok(()),
            Some(false) => {
                Err(refused(call.method, format!("{name} ended at once, or could not be started")))
            }
            None => Err(late(call.method, format!("{name} is still being started"))),
        })
    }

    /// Stops a systemd unit, which ends its processes. False if that takes longer than two seconds; stopping
    /// then continues.
    pub fn stop(&mut self, unit: &str) -> Result<bool, Error> {
        let until = Instant::now() + ANSWERS_WITHIN;
        let call = new_call(PATH, MANAGER, "StopUnit", &(unit, "replace"))?;
        match self.ask(&call, until) {
            Err(error) if error.is_gone() => return Ok(true),
            answer => drop(job(&call, &answer?)?),
        }
        let ended =
            self.wait_for(unit, until, |active| matches!(active, "inactive" | "failed").then_some(true));
        Ok(ended?.is_some())
    }

    /// Polls a systemd unit's `ActiveState` until `outcome_of` returns an outcome for the state, and returns
    /// that outcome; `None` at the deadline. A unit that is gone counts as `inactive`.
    fn wait_for<T>(
        &mut self,
        unit: &str,
        until: Instant,
        outcome_of: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        loop {
            let active = match self.path_of(unit, until) {
                Ok(path) => self.text(&path, UNIT, "ActiveState", until),
                Err(error) => Err(error),
            };
            let active = match active {
                Err(error) if error.is_gone() => "inactive".to_owned(),
                active => active?,
            };
            if let Some(outcome) = outcome_of(&active) {
                return Ok(Some(outcome));
            }
            if Instant::now() + PAUSE >= until {
                return Ok(None);
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Scope {
    /// The call that starts the scope. systemd before version 253 does not know a scope's `OOMPolicy`.
    fn call(&self, with_oom_policy: bool) -> Result<Call, Error> {
        let name = self.name.as_str();
        let mut properties: Vec<(&str, Sent<'_>)> = vec![
            ("Slice", self.slice.as_str().into()),
            ("Description", self.description.as_str().into()),
            ("PIDs", self.pids.clone().into()),
            ("CollectMode", "inactive-or-failed".into()),
        ];
        if with_oom_policy {
            properties.push(("OOMPolicy", "continue".into()));
        }
        properties.extend(to_send(name, &self.properties)?);
        let auxiliary_units: Vec<(&str, Vec<(&str, Sent<'_>)>)> = Vec::new();
        new_call(PATH, MANAGER, "StartTransientUnit", &(name, "fail", properties, auxiliary_units))
    }
}

/// The D-Bus path of the job that systemd started for a call.
fn job(call: &Call, answer: &Message) -> Result<OwnedObjectPath, Error> {
    answer.values::<(OwnedObjectPath,)>().map(|(job,)| job).map_err(|what| unexpected(call.method, &what))
}

/// The error for a call whose job failed.
fn refused(call: &str, message: String) -> Error {
    Error::Refused { call: call.to_owned(), name: "failed".to_owned(), message }
}

/// The error for a call whose job did not end in time.
fn late(call: &str, what: String) -> Error {
    Error::Silent { call: call.to_owned(), source: io::Error::new(io::ErrorKind::TimedOut, what) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::fake::{FakeSystemd, Fault};
    use super::*;

    fn scope() -> Scope {
        Scope {
            name: "a.scope".to_owned(),
            slice: "user-7.slice".to_owned(),
            description: "a test".to_owned(),
            pids: vec![7, 8],
            properties: vec![(Property::AllowedCPUs, Value::Cpus("0".parse().unwrap()))],
        }
    }

    /// Version 252 does not know `OOMPolicy` of scopes.
    #[test]
    fn an_older_systemd_is_asked_once_for_an_unknown_property() {
        let systemd = FakeSystemd::new(true);
        let mut manager = Manager::new(systemd.instance());
        systemd.fail("StartTransientUnit", Fault::Refuse("org.freedesktop.DBus.Error.PropertyReadOnly"));
        for name in ["a.scope", "b.scope"] {
            manager.start_scope(&Scope { name: name.to_owned(), ..scope() }).unwrap();
        }
        let heard: Vec<bool> = systemd
            .stage()
            .heard
            .iter()
            .filter(|heard| heard.contains("PIDs"))
            .map(|heard| heard.contains("OOMPolicy"))
            .collect();
        assert_eq!((heard, systemd.stage().heard.len()), (vec![false, false], 5));
        systemd.fail("StartTransientUnit", Fault::Refuse("org.freedesktop.DBus.Error.PropertyReadOnly"));
        let error = manager.start_scope(&Scope { name: "c.scope".to_owned(), ..scope() }).unwrap_err();
        assert!(error.is_unknown_property(), "{error}");
    }

    #[test]
    fn a_scope_is_started_and_stopped() {
        let scope = scope();
        for fault in [None, Some(Fault::EndAfter)] {
            let systemd = FakeSystemd::new(true);
            let mut manager = Manager::new(systemd.instance());
            if let Some(fault) = fault {
                systemd.fail("StartTransientUnit", fault);
            }
            manager.start_scope(&scope).unwrap();
            let heard = "Slice s, Description s, PIDs au, CollectMode s, OOMPolicy s, AllowedCPUs ay";
            assert_eq!(systemd.stage().heard[1], heard);
            if fault.is_none() {
                let error = manager.start_scope(&scope).unwrap_err();
                assert!(
                    matches!(&error, Error::Refused { name, .. } if name.ends_with("UnitExists")),
                    "{error}"
                );
            }
            assert!(manager.stop("a.scope").unwrap());
            assert!(manager.stop("a.scope").unwrap(), "it is gone");
            manager.start_scope(&scope).unwrap();
            systemd.stage().units.get_mut("a.scope").unwrap().active = "failed";
            assert_eq!(manager.state("a.scope").unwrap().active, "failed");
        }
    }
}
