//! A simulated systemd, in a thread: it listens on systemd's sockets in a folder of its own, checks the
//! signatures of calls, keeps drop-ins as version 252 does, and fails on request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use zvariant::{ObjectPath, OwnedValue, Value as Sent};

use super::message::{fake, length};
use super::{Instance, Property, Value};

/// How a call fails.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The call is refused with this error.
    Refuse(&'static str),
    /// There is no reply.
    Silence,
    /// The connection ends before the call is carried out.
    End,
    /// The connection ends after the call was carried out, without a reply.
    EndAfter,
    /// The reply is malformed.
    Malformed,
}

#[derive(Default)]
pub(crate) struct Unit {
    /// The values from an administrator's files.
    pub(crate) base: BTreeMap<Property, Value>,
    /// The values in force.
    pub(crate) now: BTreeMap<Property, Value>,
    pub(crate) is_transient: bool,
    pub(crate) dropins: BTreeSet<PathBuf>,
    pub(crate) active: &'static str,
}

/// The state of the simulated systemd.
#[derive(Default)]
pub(crate) struct Stage {
    pub(crate) units: BTreeMap<String, Unit>,
    /// The methods that were called, without queries.
    pub(crate) heard: Vec<String>,
    /// The scopes that were started: name, slice and processes.
    pub(crate) scopes: Vec<(String, String, Vec<u32>)>,
    /// The methods whose next calls fail, in order.
    pub(crate) faults: VecDeque<(&'static str, Fault)>,
    pub(crate) connections: u32,
}

pub(crate) struct FakeSystemd {
    dir: tempfile::TempDir,
    stage: Arc<Mutex<Stage>>,
}

impl FakeSystemd {
    /// A systemd with its private socket and, with `by_bus`, also a bus.
    pub(crate) fn new(by_bus: bool) -> FakeSystemd {
        let dir = tempfile::tempdir().unwrap();
        let systemd = FakeSystemd { dir, stage: Arc::default() };
        for folder in ["systemd/system", "systemd/system.control", "systemd/transient", "dbus"] {
            fs::create_dir_all(systemd.run().join(folder)).unwrap();
        }
        systemd.listen("systemd/private", false);
        if by_bus {
            systemd.listen("dbus/system_bus_socket", true);
        }
        systemd
    }

    /// The folder that stands for `/run`. The folder that stands for `/etc` is beside it.
    fn run(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn listen(&self, name: &str, by_bus: bool) {
        let listener = UnixListener::bind(self.run().join(name)).unwrap();
        let (stage, run) = (self.stage.clone(), self.run());
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                stage.lock().unwrap().connections += 1;
                let (stage, run) = (stage.clone(), run.clone());
                thread::spawn(move || Actor { stage, run, by_bus }.speak(stream));
            }
        });
    }

    pub(crate) fn instance(&self) -> Instance {
        Instance::at(&self.run(), false)
    }

    pub(crate) fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap()
    }

    /// Adds a running systemd unit with these values from files.
    pub(crate) fn unit(&self, name: &str, is_transient: bool, base: &[(Property, Value)]) {
        let base: BTreeMap<Property, Value> = base.iter().cloned().collect();
        let unit = Unit { now: base.clone(), base, is_transient, active: "active", ..Unit::default() };
        self.stage().units.insert(name.to_owned(), unit);
    }

    pub(crate) fn fail(&self, method: &'static str, fault: Fault) {
        self.stage().faults.push_back((method, fault));
    }

    pub(crate) fn value(&self, unit: &str, property: Property) -> Value {
        now(&self.stage().units[unit], property)
    }

    /// Sets a value as an administrator's `systemctl set-property --runtime` does.
    pub(crate) fn set(&self, unit: &str, property: Property, value: Value) {
        set(&mut self.stage(), &self.run(), unit, true, vec![(property, value)]);
    }

    /// Sets a value as an administrator's `systemctl set-property` without `--runtime` does.
    pub(crate) fn set_lasting(&self, unit: &str, property: Property, value: Value) {
        set(&mut self.stage(), &self.run(), unit, false, vec![(property, value)]);
    }

    /// The path of a drop-in.
    pub(crate) fn drop_in(&self, unit: &str, property: Property) -> PathBuf {
        drop_in(&self.run(), unit, self.stage().units[unit].is_transient, property)
    }

    /// All run-time drop-ins.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        for folder in ["system.control", "transient"] {
            for unit in fs::read_dir(self.run().join("systemd").join(folder)).unwrap() {
                let unit = unit.unwrap();
                found.push(unit.file_name().into_string().unwrap());
                let files = fs::read_dir(unit.path()).unwrap();
                found.extend(files.map(|file| file.unwrap().file_name().into_string().unwrap()));
            }
        }
        found
    }
}

fn now(unit: &Unit, property: Property) -> Value {
    unit.now.get(&property).cloned().unwrap_or_else(|| property.nothing())
}

fn drop_in(run: &Path, unit: &str, is_transient: bool, property: Property) -> PathBuf {
    let folder = if is_transient { "transient" } else { "system.control" };
    run.join("systemd").join(folder).join(format!("{unit}.d/50-{property}.conf"))
}

/// The persistent drop-in, which takes precedence; a transient unit has none.
fn lasting(run: &Path, unit: &str, property: Property) -> PathBuf {
    drop_in(&run.with_file_name("etc"), unit, false, property)
}

fn set(stage: &mut Stage, run: &Path, name: &str, is_runtime: bool, all: Vec<(Property, Value)>) {
    let unit = stage.units.get_mut(name).unwrap();
    for (property, value) in all {
        let value = match (now(unit, property), value) {
            // An empty list clears the old list; any other list is merged with it.
            (Value::Devices(old), Value::Devices(new)) if !new.is_empty() => {
                let mut both: BTreeMap<String, u64> = old.into_iter().collect();
                both.extend(new);
                Value::Devices(both.into_iter().collect())
            }
            (_, value) => value,
        };
        let file = match is_runtime || unit.is_transient {
            true => drop_in(run, name, unit.is_transient, property),
            false => lasting(run, name, property),
        };
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut text = "# created via \"systemctl set-property\"\n[Slice]\n".to_owned();
        if property.is_by_device() || property == Property::AllowedCPUs {
            text.extend([property.name(), "=\n"]);
        }
        let text_value = value.text(property);
        let lines: Vec<&str> = if text_value.is_empty() { vec![""] } else { text_value.lines().collect() };
        for line in lines {
            text.extend([property.name(), "=", line, "\n"]);
        }
        fs::write(&file, text).unwrap();
        unit.dropins.insert(file);
        unit.now.insert(property, value);
    }
}

struct Actor {
    stage: Arc<Mutex<Stage>>,
    run: PathBuf,
    by_bus: bool,
}

impl Actor {
    fn speak(&self, mut stream: UnixStream) {
        let mut received = Vec::new();
        let hears = |received: &mut Vec<u8>, stream: &mut UnixStream| {
            let mut room = [0; 4096];
            let n = stream.read(&mut room).unwrap_or(0);
            received.extend_from_slice(&room[..n]);
            n > 0
        };
        let uid = rustix::process::geteuid().as_raw().to_string();
        let uid: String = uid.chars().flat_map(|digit| ['3', digit]).collect();
        // Like systemd, reads the whole authentication before it answers.
        let wanted = format!("\0AUTH EXTERNAL {uid}\r\nBEGIN\r\n");
        while received.len() < wanted.len() {
            if !hears(&mut received, &mut stream) {
                return;
            }
        }
        assert_eq!(received, wanted.as_bytes());
        received.clear();
        stream.write_all(b"OK 0123456789abcdef\r\n").unwrap();
        loop {
            while let Some(length) = length(&received).unwrap().filter(|length| *length <= received.len()) {
                let heard = fake::Heard::parse(&received[..length]);
                received.drain(..length);
                if !self.by_bus {
                    // On its private socket, systemd sends all signals to every client.
                    let _ = stream.write_all(&fake::signal());
                }
                match self.answer(&heard) {
                    Some(answer) if stream.write_all(&answer).is_ok() => {}
                    _ => return,
                }
            }
            if !hears(&mut received, &mut stream) {
                return;
            }
        }
    }

    fn answer(&self, heard: &fake::Heard) -> Option<Vec<u8>> {
        assert_eq!(heard.flags, 2, "the bus must not start systemd");
        let bus = "org.freedesktop.DBus";
        if heard.interface == bus {
            assert_eq!((self.by_bus, heard.method.as_str(), heard.to.as_deref()), (true, "Hello", Some(bus)));
            return Some(fake::answer(heard.number, &(":1.7",)));
        }
        assert_eq!(heard.to.as_deref(), self.by_bus.then_some("org.freedesktop.systemd1"));
        let mut stage = self.stage.lock().unwrap();
        if !matches!(heard.method.as_str(), "Get" | "GetUnit") {
            stage.heard.push(heard.method.clone());
        }
        let is_next = stage.faults.front().is_some_and(|(method, _)| *method == heard.method);
        let fault = if is_next { stage.faults.pop_front().map(|(_, fault)| fault) } else { None };
        match fault {
            Some(Fault::Refuse(name)) => {
                return Some(fake::refusal(heard.number, name, "requested by the test"));
            }
            Some(Fault::Silence) => {
                drop(stage);
                thread::sleep(std::time::Duration::from_secs(6));
                return None;
            }
            Some(Fault::End) => return None,
            Some(Fault::Malformed) => return Some(fake::answer(heard.number, &(7_u32, "what?"))),
            Some(Fault::EndAfter) | None => {}
        }
        let answer = self.act(&mut stage, heard);
        if fault.is_some() { None } else { Some(answer) }
    }

    fn act(&self, stage: &mut Stage, heard: &fake::Heard) -> Vec<u8> {
        let to = heard.number;
        let job = || ObjectPath::try_from("/org/freedesktop/systemd1/job/7").unwrap();
        let gone = |name: &str| {
            let says = format!("Unit {name} not loaded.");
            fake::refusal(to, "org.freedesktop.systemd1.NoSuchUnit", &says)
        };
        let unit_name = |path: &str| path.rsplit('/').next().unwrap().replace("_2e", ".").replace("_2d", "-");
        match (heard.method.as_str(), heard.types()) {
            ("GetUnit", "s") => {
                let (name,): (String,) = heard.message.values().unwrap();
                if !stage.units.contains_key(&name) {
                    return gone(&name);
                }
                let name = name.replace('-', "_2d").replace('.', "_2e");
                let path = format!("/org/freedesktop/systemd1/unit/{name}");
                fake::answer(to, &(ObjectPath::try_from(path).unwrap(),))
            }
            ("Get", "ss") => {
                let (interface, name): (String, String) = heard.message.values().unwrap();
                let unit = &stage.units[&unit_name(&heard.path)];
                let value: Sent<'_> = match name.as_str() {
                    "Id" => unit_name(&heard.path).into(),
                    "LoadState" => "loaded".into(),
                    "ActiveState" => unit.active.into(),
                    "Transient" => unit.is_transient.into(),
                    "ControlGroup" => format!("/{}", unit_name(&heard.path)).into(),
                    "NeedDaemonReload" => unit.dropins.iter().any(|file| !file.exists()).into(),
                    "MemoryLow" => {
                        let name = "org.freedesktop.DBus.Error.UnknownProperty";
                        return fake::refusal(to, name, "an older one");
                    }
                    other => {
                        assert!(
                            interface.ends_with(".Slice") || interface.ends_with(".Scope"),
                            "{interface}"
                        );
                        now(unit, Property::named(other).unwrap()).to_message()
                    }
                };
                fake::answer(to, &(value,))
            }
            ("SetUnitProperties", "sba(sv)") => {
                let (name, runtime, all): (String, bool, Vec<(String, OwnedValue)>) =
                    heard.message.values().unwrap();
                if !stage.units.contains_key(&name) {
                    return gone(&name);
                }
                let all = all.into_iter().map(|(name, value)| {
                    let property = Property::named(&name).unwrap();
                    assert!(runtime || property.is_by_device(), "{property} must not be persistent");
                    let types = property.nothing().to_message().value_signature().to_string();
                    assert_eq!(value.value_signature().to_string(), types, "{property}");
                    (property, property.parse_message(value.into()).unwrap())
                });
                set(stage, &self.run, &name, runtime, all.collect());
                fake::answer(to, &())
            }
            ("StartTransientUnit", "ssa(sv)a(sa(sv))") => {
                type Others = Vec<(String, Vec<(String, OwnedValue)>)>;
                let (name, mode, all, others): (String, String, Vec<(String, OwnedValue)>, Others) =
                    heard.message.values().unwrap();
                assert_eq!((mode.as_str(), others.len()), ("fail", 0));
                if stage.units.contains_key(&name) {
                    return fake::refusal(to, "org.freedesktop.systemd1.UnitExists", "it is there");
                }
                let types: Vec<String> =
                    all.iter().map(|(name, value)| format!("{name} {}", value.value_signature())).collect();
                stage.heard.push(types.join(", "));
                let initial =
                    |wanted: &str| all.iter().find(|(name, _)| name == wanted).unwrap().1.try_clone();
                let slice: String = initial("Slice").unwrap().try_into().unwrap();
                let pids: Vec<u32> = initial("PIDs").unwrap().try_into().unwrap();
                assert!(!pids.is_empty(), "systemd refuses a scope without processes");
                stage.scopes.push((name.clone(), slice, pids));
                stage.units.insert(name, Unit { is_transient: true, active: "active", ..Unit::default() });
                fake::answer(to, &(job(),))
            }
            ("StopUnit", "ss") => {
                let (name, mode): (String, String) = heard.message.values().unwrap();
                assert_eq!(mode, "replace");
                match stage.units.remove(&name) {
                    Some(_) => fake::answer(to, &(job(),)),
                    None => gone(&name),
                }
            }
            ("Reload", "") => {
                for (name, unit) in &mut stage.units {
                    unit.dropins.retain(|file| file.exists());
                    unit.now = unit.base.clone();
                    for property in Property::ALL {
                        let files = [
                            lasting(&self.run, name, *property),
                            drop_in(&self.run, name, unit.is_transient, *property),
                        ];
                        let text = files.into_iter().find_map(|file| fs::read_to_string(file).ok());
                        if let Some(value) = text.and_then(|text| property.parse_file(&text)) {
                            unit.now.insert(*property, value);
                        }
                    }
                }
                fake::answer(to, &())
            }
            (method, types) => panic!("{method} with values of the types `{types}`"),
        }
    }
}
