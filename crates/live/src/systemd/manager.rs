//! Calls to `org.freedesktop.systemd1.Manager`, and to the properties of systemd units.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use zvariant::{OwnedObjectPath, OwnedValue, Value as Sent};

use super::connection::{Connection, new_call};
use super::message::{Call, Message};
use super::{Error, Instance, Property, Value};

/// The timeout of a call.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// The timeout of a reload, during which systemd answers no other call.
const RELOADS_WITHIN: Duration = Duration::from_secs(4);

/// The delay before a call is repeated while systemd is re-executed, and between polls.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

pub(super) const PATH: &str = "/org/freedesktop/systemd1";
pub(super) const MANAGER: &str = "org.freedesktop.systemd1.Manager";
pub(super) const UNIT: &str = "org.freedesktop.systemd1.Unit";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// A client of one systemd instance. Each call blocks for at most two seconds: a loop that may not block uses
/// a [`Queue`](super::Queue).
#[derive(Debug)]
pub struct Manager {
    instance: Instance,
    connection: Option<Connection>,
    /// Whether to try systemd's private socket before the bus, because the last call over the bus was not
    /// answered.
    prefers_private_socket: bool,
    /// Whether this version of systemd does not know the property `OOMPolicy` of scopes.
    pub(super) has_no_oom_policy: bool,
}

/// The state of a systemd unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitState {
    /// The systemd unit's primary name, if it has several names.
    pub id: String,
    /// Whether the systemd unit's file was found: `loaded`, `not-found`.
    pub load: String,
    /// Whether the systemd unit runs: `active`, `activating`, `deactivating`, `inactive`, `failed`.
    pub active: String,
    /// Whether a program made the systemd unit at run time, so that an administrator has written no file for
    /// it.
    pub is_transient: bool,
    /// The path of the control group below the root of systemd's groups; empty if the systemd unit has no
    /// control group.
    pub group: String,
    /// Whether the systemd unit's files have changed since systemd read them.
    pub needs_reload: bool,
}

impl Manager {
    /// A client that connects at its first call.
    pub fn new(instance: Instance) -> Manager {
        Manager { instance, connection: None, prefers_private_socket: false, has_no_oom_policy: false }
    }

    /// A client that connects now.
    pub fn connect(instance: Instance) -> Result<Manager, Error> {
        let mut manager = Manager::new(instance);
        manager.open(Instant::now() + ANSWERS_WITHIN)?;
        Ok(manager)
    }

    /// The systemd instance that this client calls.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The socket to which the client is connected; `None` if it is not connected.
    pub fn connected_at(&self) -> Option<&Path> {
        self.connection.as_ref().map(Connection::path)
    }

    /// Closes the connection until the next call. An idle connection over systemd's private socket would make
    /// systemd buffer signals: it sends every signal to every client there.
    pub fn disconnect(&mut self) {
        self.connection = None;
        self.prefers_private_socket = false;
    }

    /// The current values of properties of a systemd unit. Properties that this version of systemd does not
    /// know are left out.
    pub fn show(&mut self, unit: &str, properties: &[Property]) -> Result<Vec<(Property, Value)>, Error> {
        let until = Instant::now() + ANSWERS_WITHIN;
        let path = self.path_of(unit, until)?;
        let interface = interface_of(unit)?;
        let mut all = Vec::new();
        for property in properties {
            let received = match self.get(&path, interface, property.name(), until) {
                Err(Error::Refused { name, .. }) if name.ends_with(".UnknownProperty") => continue,
                received => received?,
            };
            let types = received.value_signature().to_string();
            let value = property.parse_message(received.into());
            let value = value
                .ok_or_else(|| unexpected(property.name(), &format!("values of the types `{types}`")))?;
            all.push((*property, value));
        }
        Ok(all)
    }

    /// The state of a systemd unit.
    pub fn state(&mut self, unit: &str) -> Result<UnitState, Error> {
        let until = Instant::now() + ANSWERS_WITHIN;
        let path = self.path_of(unit, until)?;
        Ok(UnitState {
            id: self.text(&path, UNIT, "Id", until)?,
            load: self.text(&path, UNIT, "LoadState", until)?,
            active: self.text(&path, UNIT, "ActiveState", until)?,
            is_transient: self.flag(&path, UNIT, "Transient", until)?,
            group: self.text(&path, interface_of(unit)?, "ControlGroup", until)?,
            needs_reload: self.flag(&path, UNIT, "NeedDaemonReload", until)?,
        })
    }

    /// Sets properties until the next reboot, all of them or none. A list of devices replaces the old list,
    /// but the kernel keeps the weight of a device that is no longer listed.
    pub fn set_runtime(&mut self, unit: &str, properties: &[(Property, Value)]) -> Result<(), Error> {
        let until = Instant::now() + ANSWERS_WITHIN;
        self.set_until(unit, properties, until)
    }

    /// Like [`Manager::set_runtime`], with a deadline.
    pub(super) fn set_until(
        &mut self,
        unit: &str,
        properties: &[(Property, Value)],
        until: Instant,
    ) -> Result<(), Error> {
        self.set(unit, properties, true, until)
    }

    /// Sets properties until the next reboot (`is_runtime`), or persistently.
    pub(super) fn set(
        &mut self,
        unit: &str,
        properties: &[(Property, Value)],
        is_runtime: bool,
        until: Instant,
    ) -> Result<(), Error> {
        if properties.is_empty() {
            return Ok(());
        }
        let values = &(unit, is_runtime, to_send(unit, properties)?);
        let call = new_call(PATH, MANAGER, "SetUnitProperties", values)?;
        self.ask(&call, until)?.values::<()>().map_err(|what| unexpected(call.method, &what))
    }

    /// Makes systemd reload all its files. False if the reload takes longer than four seconds; it then
    /// continues.
    pub fn reload(&mut self) -> Result<bool, Error> {
        let call = new_call(PATH, MANAGER, "Reload", &())?;
        match self.ask(&call, Instant::now() + RELOADS_WITHIN) {
            Ok(_) => Ok(true),
            Err(Error::Silent { source, .. }) if source.kind() == io::ErrorKind::TimedOut => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The D-Bus path of a loaded systemd unit. A unit that is not loaded is an error: this must not load it.
    pub(super) fn path_of(&mut self, unit: &str, until: Instant) -> Result<String, Error> {
        let call = new_call(PATH, MANAGER, "GetUnit", &(unit,))?;
        let answer = self.ask(&call, until)?;
        let (path,) = answer.values::<(OwnedObjectPath,)>().map_err(|what| unexpected(call.method, &what))?;
        Ok(path.to_string())
    }

    /// Gets the value of one property by D-Bus path, interface and name.
    fn get(
        &mut self,
        path: &str,
        interface: &'static str,
        name: &str,
        until: Instant,
    ) -> Result<OwnedValue, Error> {
        let call = new_call(path, PROPERTIES, "Get", &(interface, name))?;
        let answer = self.ask(&call, until)?;
        answer.values::<(OwnedValue,)>().map(|(value,)| value).map_err(|what| unexpected(name, &what))
    }

    /// Like `get`, for a string.
    pub(super) fn text(
        &mut self,
        path: &str,
        interface: &'static str,
        name: &str,
        until: Instant,
    ) -> Result<String, Error> {
        let value = self.get(path, interface, name, until)?;
        String::try_from(value).map_err(|error| unexpected(name, &error))
    }

    /// Like `get`, for a Boolean.
    fn flag(
        &mut self,
        path: &str,
        interface: &'static str,
        name: &str,
        until: Instant,
    ) -> Result<bool, Error> {
        let value = self.get(path, interface, name, until)?;
        bool::try_from(value).map_err(|error| unexpected(name, &error))
    }

    /// Makes a call, as [`Manager::ask_idempotently`] does.
    pub(super) fn ask(&mut self, call: &Call, until: Instant) -> Result<Message, Error> {
        self.ask_idempotently(call, until, &mut false)
    }

    /// Makes a call, and repeats it over a new connection if the old one ended before the reply. A call may
    /// thus be made twice, so it must be idempotent. `repeated` is set to true if the call was repeated.
    pub(super) fn ask_idempotently(
        &mut self,
        call: &Call,
        until: Instant,
        repeated: &mut bool,
    ) -> Result<Message, Error> {
        loop {
            let error = match self.ask_once(call, until) {
                Err(error) if error.is_silence() => error,
                answered => return answered,
            };
            let was_by_bus = self.connection.take().is_some_and(|connection| connection.is_by_bus());
            // In a container, systemd may never connect to the bus, so the private socket is tried next. A
            // systemd that only re-executes itself reconnects to the bus at once. So after a failure at the
            // private socket, the bus is tried again.
            self.prefers_private_socket = was_by_bus;
            let is_final = match &error {
                Error::Unreachable { .. } => true,
                Error::Silent { source, .. } => source.kind() == io::ErrorKind::TimedOut,
                _ => false,
            };
            if is_final || Instant::now() + PAUSE >= until {
                return Err(error);
            }
            *repeated = true;
            thread::sleep(PAUSE);
        }
    }

    /// Makes a call over the present connection, or a new one.
    fn ask_once(&mut self, call: &Call, until: Instant) -> Result<Message, Error> {
        self.open(until)?.call(call, until)
    }

    /// The connection, opened if there is none: over the bus, or, if the bus cannot be reached, over
    /// systemd's private socket. After a call over the bus that was not answered, the private socket is tried
    /// before the bus.
    fn open(&mut self, until: Instant) -> Result<&mut Connection, Error> {
        if self.connection.is_none() {
            let private = self.instance.private_socket();
            let by_bus = || Connection::open(&self.instance.bus(), true, until);
            let opened = match self.prefers_private_socket {
                true => Connection::open(&private, false, until).or_else(|_| by_bus()),
                false => by_bus().or_else(|error| match Connection::open(&private, false, until) {
                    // If both fail, the error of a socket that exists is more informative.
                    Err(Error::Unreachable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                        Err(error)
                    }
                    opened => opened,
                }),
            };
            self.connection = Some(opened?);
        }
        self.connection.as_mut().ok_or_else(|| unexpected("a connection", &"not connected"))
    }
}

/// Encodes properties for a D-Bus call: in the order of their files, and each list of devices preceded by an
/// empty list, which clears the old list. An error if systemd would not accept a value.
pub(super) fn to_send(
    unit: &str,
    properties: &[(Property, Value)],
) -> Result<Vec<(&'static str, Sent<'static>)>, Error> {
    let mut sorted: Vec<&(Property, Value)> = properties.iter().collect();
    sorted.sort_by_key(|(property, _)| *property);
    let mut all = Vec::new();
    for (property, value) in sorted {
        property.validate(value).map_err(|remedy| Error::Unsuitable {
            unit: unit.to_owned(),
            property: property.name().to_owned(),
            value: format!("`{}`", value.text(*property).replace('\n', ", ")),
            remedy: remedy.to_owned(),
        })?;
        let nothing = property.nothing();
        if property.is_by_device() && *value != nothing {
            all.push((property.name(), nothing.to_message()));
        }
        all.push((property.name(), value.to_message()));
    }
    Ok(all)
}

/// The D-Bus interface with a systemd unit's control group and limits: each type of systemd unit has its own
/// interface. An error if the type has no control group.
fn interface_of(unit: &str) -> Result<&'static str, Error> {
    Ok(match unit.rsplit_once('.').map_or("", |(_, kind)| kind) {
        "slice" => "org.freedesktop.systemd1.Slice",
        "scope" => "org.freedesktop.systemd1.Scope",
        "service" => "org.freedesktop.systemd1.Service",
        "socket" => "org.freedesktop.systemd1.Socket",
        "mount" => "org.freedesktop.systemd1.Mount",
        "swap" => "org.freedesktop.systemd1.Swap",
        _ => {
            return Err(Error::Unsuitable {
                unit: unit.to_owned(),
                property: "any limit".to_owned(),
                value: "set or shown".to_owned(),
                remedy: "name a slice, a scope or a service, which have control groups".to_owned(),
            });
        }
    })
}

pub(super) fn unexpected(call: &str, what: &impl ToString) -> Error {
    Error::Unexpected { call: call.to_owned(), what: what.to_string() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::UNSET;
    use super::super::fake::{FakeSystemd, Fault};
    use super::*;
    use crate::host::{Access, Answer, Kind, tamper};

    const U: &str = "user-7.slice";

    fn weight(weight: u64) -> Vec<(Property, Value)> {
        vec![(Property::CPUWeight, Value::Number(weight))]
    }

    fn devices(all: &[(&str, u64)]) -> Value {
        Value::Devices(all.iter().map(|(device, n)| ((*device).to_owned(), *n)).collect())
    }

    fn weight_of(manager: &mut Manager) -> Result<Vec<(Property, Value)>, Error> {
        manager.show(U, &[Property::CPUWeight])
    }

    #[test]
    fn properties_are_shown_and_set_over_the_bus_and_without_one() {
        for by_bus in [true, false] {
            let systemd = FakeSystemd::new(by_bus);
            systemd.unit(U, false, &weight(42));
            let mut manager = Manager::connect(systemd.instance()).unwrap();
            let socket = if by_bus { "system_bus_socket" } else { "private" };
            assert!(manager.connected_at().unwrap().ends_with(socket));
            let properties = Property::ALL;
            let all: Vec<(Property, Value)> =
                properties.iter().map(|property| (*property, property.nothing())).collect();
            manager.set_runtime(U, &all).unwrap();
            // The simulated systemd lacks one of the properties.
            assert_eq!(manager.show(U, properties).unwrap().len(), properties.len() - 1);
            manager.set_runtime(U, &weight(7)).unwrap();
            assert_eq!(weight_of(&mut manager).unwrap(), weight(7));
            let state = manager.state(U).unwrap();
            assert_eq!((state.id.as_str(), state.active.as_str(), state.is_transient), (U, "active", false));
            assert_eq!((state.group.as_str(), state.load.as_str()), ("/user-7.slice", "loaded"));
            assert_eq!(systemd.stage().connections, 1);
        }
    }

    #[test]
    fn a_list_of_devices_replaces_the_old_one() {
        let systemd = FakeSystemd::new(true);
        systemd.unit(U, false, &[(Property::IOReadIOPSMax, devices(&[("/dev/a", 1), ("/dev/b", 2)]))]);
        let mut manager = Manager::new(systemd.instance());
        let list = devices(&[("/dev/b", 3)]);
        manager.set_runtime(U, &[(Property::IOReadIOPSMax, list.clone())]).unwrap();
        assert_eq!(systemd.value(U, Property::IOReadIOPSMax), list);
    }

    /// systemd finds its files only in the order of their names.
    #[test]
    fn properties_are_sent_in_the_order_of_their_files() {
        let set = [
            (Property::MemoryMax, Value::Number(UNSET)),
            (Property::AllowedCPUs, Property::AllowedCPUs.nothing()),
        ];
        let sent: Vec<&str> = to_send(U, &set).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(sent, ["AllowedCPUs", "MemoryMax"]);
    }

    #[test]
    fn a_refusal_is_reported_and_the_connection_stays() {
        let systemd = FakeSystemd::new(true);
        systemd.unit(U, false, &[]);
        let mut manager = Manager::new(systemd.instance());
        systemd.fail("SetUnitProperties", Fault::Refuse("org.freedesktop.DBus.Error.AccessDenied"));
        let error = manager.set_runtime(U, &weight(7)).unwrap_err();
        assert!(error.is_denied() && !error.is_gone() && !error.is_silence(), "{error}");
        let error = manager.set_runtime("none.slice", &weight(7)).unwrap_err();
        assert!(error.is_gone(), "{error}");
        let error = manager.show("none.target", &[]).unwrap_err();
        assert!(error.is_gone(), "{error}");
        let error = manager.set_runtime(U, &weight(10_001)).unwrap_err();
        assert!(matches!(error, Error::Unsuitable { .. }), "{error}");
        systemd.fail("GetUnit", Fault::Malformed);
        let error = weight_of(&mut manager).unwrap_err();
        assert!(matches!(error, Error::Unexpected { .. }), "{error}");
        assert!(error.to_string().contains("`us` instead of `o`"), "{error}");
        assert_eq!(manager.show(U, &[]).unwrap(), []);
        assert_eq!(systemd.stage().connections, 1);
    }

    /// What happens when the bus is restarted, and at `daemon-reexec`.
    #[test]
    fn a_connection_that_ends_is_made_again() {
        for fault in [
            Fault::End,
            Fault::EndAfter,
            Fault::Refuse("org.freedesktop.DBus.Error.NoReply"),
            Fault::Refuse("org.freedesktop.DBus.Error.NameHasNoOwner"),
        ] {
            let systemd = FakeSystemd::new(true);
            systemd.unit(U, false, &[]);
            let mut manager = Manager::connect(systemd.instance()).unwrap();
            systemd.fail("SetUnitProperties", fault);
            manager.set_runtime(U, &weight(7)).unwrap();
            assert_eq!(systemd.value(U, Property::CPUWeight), Value::Number(7), "{fault:?}");
            assert_eq!(systemd.stage().connections, 2, "{fault:?}");
        }
    }

    #[test]
    fn a_systemd_that_is_not_on_the_bus_is_called_at_its_private_socket() {
        let systemd = FakeSystemd::new(true);
        systemd.unit(U, false, &[]);
        let mut manager = Manager::new(systemd.instance());
        systemd.fail("SetUnitProperties", Fault::Refuse("org.freedesktop.DBus.Error.ServiceUnknown"));
        manager.set_runtime(U, &weight(7)).unwrap();
        assert!(manager.connected_at().unwrap().ends_with("private"));
    }

    #[test]
    fn a_silent_systemd_is_not_waited_for() {
        let systemd = FakeSystemd::new(true);
        systemd.unit(U, false, &[]);
        let mut manager = Manager::new(systemd.instance());
        systemd.fail("GetUnit", Fault::Silence);
        let error = weight_of(&mut manager).unwrap_err();
        assert!(error.is_silence(), "{error}");
        assert_eq!(manager.connected_at(), None, "a late reply must not be taken for the next call's");
        assert_eq!(weight_of(&mut manager).unwrap(), weight(UNSET));
        assert!(
            manager.connected_at().unwrap().ends_with("private"),
            "it may be the bus that does not answer"
        );
    }

    #[test]
    fn a_missing_systemd_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let instance = Instance::at(dir.path(), false);
        assert!(!instance.is_there());
        let error = Manager::connect(instance).unwrap_err();
        assert!(error.is_silence() && error.to_string().contains("has no systemd"), "{error}");
        let systemd = FakeSystemd::new(false);
        assert!(systemd.instance().is_there());
    }

    /// Each call to the kernel fails in turn: there is an error or a success, and the next call succeeds.
    #[test]
    fn the_call_after_any_failure_succeeds() {
        for kind in [Kind::Connect, Kind::Send, Kind::Receive] {
            for (n, answer) in (0..12).flat_map(|n| {
                let nonsense = Answer::Falsify(b"what is this?\r\n\0\0\0\0\0\0\0\0\0\0".to_vec());
                [(n, Answer::Refuse(libc::ECONNRESET)), (n, Answer::Shorten(0)), (n, nonsense)]
            }) {
                let systemd = FakeSystemd::new(false);
                systemd.unit(U, false, &[]);
                let mut manager = Manager::new(systemd.instance());
                let mut left = n;
                let hook = tamper(move |access: &Access<'_>| {
                    if access.kind != kind || access.path.ends_with("system_bus_socket") {
                        return Answer::GoOn;
                    }
                    left -= 1;
                    if left == -1 { answer.clone() } else { Answer::GoOn }
                });
                let set = manager.set_runtime(U, &weight(7));
                drop(hook);
                if let Err(error) = set {
                    assert!(error.is_silence(), "{error}");
                    manager.set_runtime(U, &weight(7)).unwrap();
                }
                assert_eq!(systemd.value(U, Property::CPUWeight), Value::Number(7));
            }
        }
    }
}
