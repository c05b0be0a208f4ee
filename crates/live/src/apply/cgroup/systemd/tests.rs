#![allow(clippy::unwrap_used)]

use super::*;
use crate::systemd::fake::{FakeSystemd, Fault};
use crate::systemd::{Manager, UNSET};

const A: &str = "user-1001.slice";

fn cpus(text: &str) -> Value {
    Value::Cpus(text.parse().unwrap())
}

fn rates(all: &[(&str, u64)]) -> Value {
    Value::Devices(all.iter().map(|(disk, rate)| ((*disk).to_owned(), *rate)).collect())
}

fn former(property: Property, value: Value) -> PropertyState {
    PropertyState { property, value, file: "/run/x.conf".into(), content: None }
}

/// Finds the given value, and then another one.
#[test]
fn an_administrators_value_becomes_the_former_value() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::create(dir.path()).unwrap();
    let property = Property::MemoryHigh;
    let mut state = UnitProperties::default();
    let mut hear = |state: &mut UnitProperties, value: u64| {
        let (list, mut problems) = (vec![former(property, Value::Number(value))], Vec::new());
        assert!(!state.compare(&Instance::system(), "a.slice", list, &mut journal, &mut problems));
        assert!(problems.is_empty(), "{problems:?}");
    };
    hear(&mut state, UNSET);
    state.given.insert(property, vec![Value::Number(5), Value::Number(6)]);
    // The last given value is wanted again if an earlier one, or none, is in force.
    for (ours, wanted) in [(6, 0), (5, 1), (UNSET, 1)] {
        hear(&mut state, ours);
        assert_eq!((state.changes().len(), state.wanted.len()), (1, wanted), "{ours}");
        state.wanted.clear();
    }
    hear(&mut state, 1_000);
    assert_eq!(state.changes(), []);
    assert_eq!(state.former[&property].value, Value::Number(1_000));
    assert_eq!(state.wanted, BTreeMap::new());
    let entries = Journal::read(journal.path()).unwrap();
    assert!(matches!(entries.as_slice(), [Entry::PropertyReverted { .. }]));
}

/// A systemd systemd with one slice that is held.
struct Scene {
    systemd: FakeSystemd,
    _dir: tempfile::TempDir,
    journal: Journal,
    properties: Properties,
    now: Time,
}

impl Scene {
    /// The slice has these values.
    fn new(base: &[(Property, Value)]) -> Scene {
        let systemd = FakeSystemd::new(true);
        systemd.unit(A, false, base);
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::create(dir.path()).unwrap();
        let properties = Properties::of(systemd.instance()).unwrap();
        let mut scene = Scene { systemd, _dir: dir, journal, properties, now: 0 };
        scene.properties.begin_holding(A);
        scene
    }

    /// The same, with the former values known.
    fn known() -> Scene {
        let mut scene = Scene::new(&[]);
        scene.settle();
        scene
    }

    fn want(&mut self, property: Property, value: Value) {
        self.properties.want(A, property, value);
    }

    fn value(&self, property: Property) -> Value {
        self.systemd.value(A, property)
    }

    /// The number of `daemon-reload`s.
    fn reloads(&self) -> usize {
        self.systemd.stage().heard.iter().filter(|method| *method == "Reload").count()
    }

    fn others(&self) -> GroupBounds {
        self.properties.set_by_others(A).unwrap()
    }

    /// Polls `polls` times, `apart` nanoseconds apart. Returns the problems.
    fn poll(&mut self, polls: usize, apart: Time) -> Vec<String> {
        let mut reported = Vec::new();
        for _ in 0..polls {
            self.now += apart;
            reported.extend(self.properties.poll(self.now, &mut self.journal));
            while self.properties.queue.waiting() > 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
                reported.extend(self.properties.poll(self.now, &mut self.journal));
            }
        }
        reported.iter().map(ToString::to_string).collect()
    }

    /// Polls until no request is left to send.
    fn settle(&mut self) {
        assert_eq!(self.poll(4, 2 * POLL_NS), [""; 0]);
    }
}

/// A slice is bounded; an administrator lowers the bound, then raises it; the slice is left.
#[test]
fn systemd_gets_our_values_and_then_its_former_ones() {
    let mut scene = Scene::new(&[(Property::AllowedCPUs, cpus("0-5"))]);
    scene.want(Property::MemoryHigh, Value::Number(200));
    scene.want(Property::AllowedCPUs, cpus("4-5"));
    assert_eq!(scene.properties.set_by_others(A), None);
    scene.settle();
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("4-5"));
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(200));
    assert_eq!(scene.value(Property::IOAccounting), Value::Flag(true));
    assert_eq!(scene.value(Property::CPUWeight), WEIGHT_DEFAULT, "or the controller is off");
    let set = GroupBounds { cpus: "0-5".parse().ok(), ..GroupBounds::default() };
    assert_eq!(scene.properties.set_by_others(A), Some(set));

    scene.systemd.set(A, Property::MemoryHigh, Value::Number(150));
    scene.settle();
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(150));
    assert_eq!(scene.others().memory, Some(150));
    scene.want(Property::MemoryHigh, Value::Number(100));
    scene.settle();
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(100));

    // Held again before systemd has answered.
    scene.properties.end_holding(A);
    scene.now += POLL_NS;
    scene.properties.poll(scene.now, &mut scene.journal);
    scene.properties.begin_holding(A);
    scene.settle();
    assert_eq!(
        (scene.value(Property::MemoryHigh), scene.value(Property::IOAccounting)),
        (Value::Number(150), Value::Flag(true))
    );

    scene.properties.end_holding(A);
    scene.settle();
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(150));
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("0-5"));
    assert_eq!(scene.value(Property::CPUWeight), Value::Number(UNSET));
    assert!(scene.properties.units.is_empty());
    assert_eq!(scene.reloads(), 2, "once each time it was let go");
    assert_eq!(scene.systemd.files(), ["user-1001.slice.d", "50-MemoryHigh.conf"], "the administrator's own");
}

#[test]
fn values_without_an_answer_are_sent_again() {
    let mut scene = Scene::known();
    scene.systemd.fail("SetUnitProperties", Fault::Silence);
    scene.want(Property::MemoryHigh, Value::Number(200));
    assert_eq!(scene.poll(1, ASK_NS).len(), 0);
    // The problem persists with its first cause.
    let silence = scene.properties.silence().map(ToString::to_string);
    assert!(silence.is_some_and(|it| it.starts_with("systemd did not answer: ")));
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(UNSET));
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    scene.poll(2, ASK_NS);
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(200));
    // systemd answers again, but not for long enough. A second silence meanwhile is the same problem.
    let reported = scene.properties.silence().map(ToString::to_string);
    assert!(reported.is_some());
    scene.systemd.fail("GetUnit", Fault::Silence);
    scene.poll(1, POLL_NS);
    assert_eq!(scene.properties.silence().map(ToString::to_string), reported);
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    scene.poll(1, ANSWERS_NS);
    assert!(scene.properties.silence().is_some(), "it begins to answer again");
    scene.poll(1, ANSWERS_NS);
    assert!(scene.properties.silence().is_none());
}

/// systemd refuses a bound of 0. The CPU set of the same request is set nevertheless, and the refusal is
/// reported once.
#[test]
fn a_refused_value_does_not_prevent_the_others() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryHigh, Value::Number(0));
    scene.want(Property::AllowedCPUs, cpus("4-5"));
    let reported = scene.poll(20, ASK_NS);
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("4-5"));
}

/// `systemctl revert` resets our values too.
#[test]
fn a_value_that_another_program_reset_is_given_again() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryHigh, Value::Number(200));
    scene.settle();
    scene.systemd.set(A, Property::MemoryHigh, Value::Number(UNSET));
    scene.settle();
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(200));
}

#[test]
fn an_administrators_value_set_before_ours_was_sent_stays() {
    let mut scene = Scene::known();
    scene.systemd.set(A, Property::MemoryMin, Value::Number(300));
    scene.want(Property::MemoryMin, Value::Number(100));
    scene.settle();
    assert_eq!(scene.value(Property::MemoryMin), Value::Number(300));
    assert!(scene.others().kept);
}

/// A user logs out: no value of ours is in force at the next login.
#[test]
fn no_property_file_of_a_unit_that_went_away_remains() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryHigh, Value::Number(200));
    scene.settle();
    assert!(scene.systemd.drop_in(A, Property::MemoryHigh).exists());
    scene.systemd.stage().units.remove(A);
    scene.poll(20, ASK_NS);
    assert_eq!(scene.systemd.files(), [""; 0]);
}

/// 200 is to become 100; an administrator sets 150 after the daemon has read the value.
#[test]
fn an_administrators_value_set_after_the_reading_is_not_overwritten() {
    let (mut scene, property) = (Scene::new(&[]), Property::MemoryHigh);
    scene.want(property, Value::Number(200));
    scene.settle();
    scene.want(property, Value::Number(100));
    scene.systemd.set(A, property, Value::Number(150));
    let read_before = BTreeMap::from([(property, Value::Number(200))]);
    scene.properties.send_wanted(A, &read_before, &mut scene.journal).unwrap();
    scene.poll(1, 0);
    assert_eq!(scene.value(property), Value::Number(150));
    // It is read at once, not at the next periodic check.
    scene.poll(1, 0);
    assert_eq!(scene.others().memory, Some(150));
}

/// A weight keeps the `cpu` controller enabled, an administrator's or ours; an administrator's is not
/// replaced.
#[test]
fn a_weight_keeps_the_cpu_controller_on() {
    let mut scene = Scene::new(&[(Property::CPUWeight, Value::Number(300))]);
    scene.settle();
    assert_eq!(scene.value(Property::CPUWeight), Value::Number(300));
    assert!(scene.others().weight);

    scene.systemd.set(A, Property::CPUWeight, Value::Number(UNSET));
    scene.settle();
    assert_eq!(scene.value(Property::CPUWeight), WEIGHT_DEFAULT);
    assert!(!scene.others().weight);

    scene.want(Property::CPUWeight, Value::Number(57));
    scene.settle();
    assert_eq!(scene.value(Property::CPUWeight), Value::Number(57), "what the policy orders");
}

/// systemd appends to a list. Our rates are for sda, the administrator's for sdb.
#[test]
fn our_rates_are_removed_when_an_administrator_adds_one() {
    let (reads, writes) = (Property::IOReadBandwidthMax, Property::IOWriteBandwidthMax);
    let theirs = rates(&[("/dev/sdb", 7)]);
    for lasts in [false, true] {
        let mut scene = Scene::known();
        scene.want(reads, rates(&[("/dev/sda", 5)]));
        scene.want(writes, rates(&[("/dev/sda", 5)]));
        scene.settle();
        assert!(!scene.others().rates);
        match lasts {
            false => scene.systemd.set(A, reads, theirs.clone()),
            true => scene.systemd.set_lasting(A, reads, theirs.clone()),
        }
        assert_eq!(scene.value(reads), rates(&[("/dev/sda", 5), ("/dev/sdb", 7)]));
        scene.settle();
        assert_eq!((scene.value(reads), scene.value(writes)), (theirs.clone(), rates(&[])), "{lasts}");
        assert!(scene.others().rates);
        // Ordered before the policy saw it.
        scene.want(reads, rates(&[("/dev/sda", 6)]));
        scene.want(writes, rates(&[("/dev/sda", 6)]));
        scene.settle();
        assert_eq!((scene.value(reads), scene.value(writes)), (theirs.clone(), rates(&[])), "{lasts}");

        scene.properties.end_holding(A);
        scene.settle();
        assert_eq!(scene.value(reads), theirs, "{lasts}");
        let file: &[&str] = if lasts { &[] } else { &["user-1001.slice.d", "50-IOReadBandwidthMax.conf"] };
        assert_eq!(scene.systemd.files(), file, "{lasts}");
        // And so are the files.
        Manager::new(scene.systemd.instance()).reload().unwrap();
        assert_eq!(scene.value(reads), theirs, "{lasts}");
    }
}

/// The daemon is killed after it has read that, before it has removed its entries.
#[test]
fn a_list_to_which_an_administrator_added_is_in_the_journal() {
    let (mut scene, reads) = (Scene::known(), Property::IOReadBandwidthMax);
    scene.want(reads, rates(&[("/dev/sda", 5)]));
    scene.settle();
    scene.systemd.set(A, reads, rates(&[("/dev/sdb", 7)]));
    let list = Manager::new(scene.systemd.instance()).former(A, &PROPERTIES).unwrap();
    let state = scene.properties.units.get_mut(A).unwrap();
    state.compare(&scene.properties.instance, A, list, &mut scene.journal, &mut Vec::new());
    let entries = Journal::read(scene.journal.path()).unwrap();
    let undone = crate::undo::undo(&entries, std::path::Path::new("/proc"));
    assert!(undone.problems.is_empty(), "{undone:?}");
    assert_eq!(scene.value(reads), rates(&[("/dev/sdb", 7)]));
}

/// `systemctl set-property` without `--runtime` writes the administrator's value to another file.
#[test]
fn our_file_is_removed_if_an_administrator_wrote_another() {
    let (mut scene, property) = (Scene::known(), Property::MemoryHigh);
    scene.want(property, Value::Number(200));
    scene.settle();
    let ours = scene.systemd.drop_in(A, property);
    assert!(ours.exists());
    scene.systemd.set_lasting(A, property, Value::Number(500));
    scene.settle();
    assert_eq!((scene.others().memory, ours.exists(), scene.reloads()), (Some(500), false, 1));

    scene.want(property, Value::Number(300));
    scene.settle();
    assert_eq!((scene.value(property), ours.exists()), (Value::Number(300), true));
    scene.properties.end_holding(A);
    scene.settle();
    assert_eq!(scene.value(property), Value::Number(500));
    assert_eq!(scene.systemd.files(), [""; 0]);
}

/// After a timeout, systemd is not asked again for a second.
#[test]
fn a_reload_without_an_answer_is_requested_again() {
    let mut scene = Scene::known();
    scene.systemd.fail("GetUnit", Fault::Silence);
    scene.poll(1, POLL_NS);
    scene.properties.needs_reload = true;
    scene.poll(1, ASK_NS);
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    scene.poll(1, ASK_NS);
    assert_eq!(scene.reloads(), 0, "it is not retried at every poll");
    scene.poll(2, POLL_NS);
    assert_eq!(scene.reloads(), 1);
}

#[test]
fn a_refused_reload_is_reported_once_and_requested_again() {
    let mut scene = Scene::known();
    for _ in 0..2 {
        scene.systemd.fail("Reload", Fault::Refuse("org.freedesktop.DBus.Error.LimitsExceeded"));
    }
    scene.properties.end_holding(A);
    let reported = scene.poll(5, POLL_NS);
    assert_eq!((reported.len(), scene.reloads()), (1, 3), "{reported:?}");
}

#[test]
fn a_revert_reports_that_files_were_rewritten() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryHigh, Value::Number(200));
    scene.settle();
    scene.properties.end_holding(A);
    scene.properties.take_rewritten();
    scene.poll(1, 2 * POLL_NS);
    assert!(scene.properties.units.is_empty());
    assert!(scene.properties.take_rewritten().contains(A));
}

/// A unit's slice is held, and then is an ancestor of a sub-unit's.
#[test]
fn values_wanted_after_a_unit_left_are_sent() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryMin, Value::Number(100));
    scene.settle();
    scene.properties.end_holding(A);
    scene.want(Property::MemoryMin, Value::Number(300));
    scene.settle();
    assert_eq!(scene.value(Property::MemoryMin), Value::Number(300));
    assert_eq!(scene.value(Property::IOAccounting), Value::Flag(false), "it is no place");
    scene.properties.end_holding(A);
    scene.settle();
    assert_eq!((scene.value(Property::MemoryMin), scene.systemd.files()), (Value::Number(0), vec![]));
}

/// Values wanted before are dropped, also after a timeout.
#[test]
fn values_wanted_before_a_unit_left_are_not_sent() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryHigh, Value::Number(200));
    scene.properties.end_holding(A);
    let change =
        Change { property: Property::MemoryHigh, from: Value::Number(UNSET), to: Value::Number(200) };
    scene.properties.handle_failed_set(A, vec![change], true);
    scene.settle();
    assert!(scene.properties.units.is_empty());
}

/// A user logs out and in again.
#[test]
fn a_unit_that_comes_back_gets_its_given_values_again() {
    for (then, now) in [(UNSET, 200), (50, 50)] {
        let (then, now) = (Value::Number(then), Value::Number(now));
        let mut scene = Scene::new(&[]);
        // An administrator's value, which is gone at the next login.
        scene.systemd.set(A, Property::IOAccounting, Value::Flag(true));
        scene.settle();
        std::fs::remove_file(scene.systemd.drop_in(A, Property::IOAccounting)).unwrap();
        scene.want(Property::MemoryHigh, Value::Number(200));
        scene.want(Property::MemoryMin, Value::Number(100));
        scene.settle();
        scene.systemd.stage().units.remove(A);
        scene.poll(20, ASK_NS);
        assert_eq!(scene.systemd.files(), [""; 0]);
        assert_eq!(scene.properties.set_by_others(A), None);
        scene.systemd.unit(A, false, &[(Property::MemoryHigh, then.clone())]);
        scene.settle();
        assert_eq!(scene.value(Property::MemoryHigh), now, "an administrator's is not widened");
        assert_eq!(scene.value(Property::MemoryMin), Value::Number(100));
        assert_eq!(scene.value(Property::IOAccounting), Value::Flag(true));
        assert_eq!(scene.value(Property::CPUWeight), WEIGHT_DEFAULT);
        scene.properties.end_holding(A);
        scene.settle();
        assert_eq!(scene.value(Property::MemoryMin), Value::Number(0));
        assert_eq!(scene.value(Property::MemoryHigh), then);
        assert_eq!((scene.properties.units.len(), scene.systemd.files()), (0, vec![]));
    }
}

/// A service restarts between two polls. Its group is another one of the same name; systemd never reported
/// the unit as gone.
#[test]
fn a_new_unit_of_the_same_name_starts_afresh() {
    let (mut scene, property) = (Scene::new(&[(Property::AllowedCPUs, cpus("0-5"))]), Property::MemoryHigh);
    scene.settle();
    scene.want(property, Value::Number(200));
    scene.want(Property::AllowedCPUs, cpus("4-5"));
    scene.settle();
    scene.systemd.stage().units.remove(A);
    scene.systemd.unit(A, false, &[(property, Value::Number(300)), (Property::AllowedCPUs, cpus("0-5"))]);

    scene.properties.end_holding(A);
    scene.properties.begin_holding(A);
    scene.want(property, Value::Number(100));
    let reported = scene.poll(4, 2 * POLL_NS);
    assert_eq!(
        reported,
        ["user-1001.slice: MemoryHigh stays `300`: an administrator has set it; no action is needed"]
    );
    assert_eq!((scene.value(property), scene.others().memory), (Value::Number(100), Some(300)));
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("0-5"), "the policy has not ordered any");
    assert_eq!(scene.value(Property::IOAccounting), Value::Flag(true));

    scene.properties.end_holding(A);
    scene.settle();
    assert_eq!(
        (scene.value(property), scene.value(Property::AllowedCPUs)),
        (Value::Number(300), cpus("0-5"))
    );
    assert_eq!((scene.properties.units.len(), scene.systemd.files()), (0, vec![]));
}

/// Values that cannot be reverted stay, if the unit is held again.
#[test]
fn values_that_cannot_be_reverted_stay_if_the_unit_is_held_again() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryHigh, Value::Number(200));
    scene.settle();
    scene.properties.end_holding(A);
    scene.properties.begin_holding(A);
    scene.want(Property::MemoryHigh, Value::Number(100));
    scene.systemd.fail("SetUnitProperties", Fault::Refuse("org.freedesktop.DBus.Error.AccessDenied"));
    let reported = scene.poll(2, 2 * POLL_NS);
    assert_eq!((reported.len(), scene.value(Property::MemoryHigh)), (1, Value::Number(100)), "{reported:?}");
    scene.properties.end_holding(A);
    scene.settle();
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(UNSET));
}

/// CPUs are lent and called back ten times a second. systemd gets them every five seconds; once they are
/// stable, within two.
#[test]
fn values_that_change_with_loans_are_sent_seldom() {
    let mut scene = Scene::known();
    let requests = |scene: &Scene| {
        scene.systemd.stage().heard.iter().filter(|method| *method == "SetUnitProperties").count()
    };
    scene.want(Property::AllowedCPUs, cpus("4-7"));
    scene.poll(1, ASK_NS);
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("4-7"), "the first time, at once");
    let before = requests(&scene);
    for loan in 0..200 {
        scene.want(Property::AllowedCPUs, cpus(["2-7", "3-7", "4-7"][loan % 3]));
        scene.poll(1, 100 * MS);
    }
    let often = requests(&scene) - before;
    assert!((2..=4).contains(&often), "{often} times in 20 seconds");
    scene.want(Property::AllowedCPUs, cpus("5-7"));
    scene.poll(20, 100 * MS);
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("5-7"));
    // Not where another value is to be sent, which includes them.
    scene.want(Property::AllowedCPUs, cpus("1-7"));
    scene.want(Property::MemoryHigh, Value::Number(100));
    scene.poll(1, ASK_NS);
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("1-7"));
}
