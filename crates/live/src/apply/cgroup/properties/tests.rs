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

fn former(property: Property, value: Value) -> Former {
    Former { property, value, file: "/run/x.conf".into(), content: None }
}

/// The value that was given is found, and then another one.
#[test]
fn a_value_of_an_administrators_takes_the_place_of_what_was_before() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::create(dir.path()).unwrap();
    let property = Property::MemoryHigh;
    let mut told = Told::default();
    let mut hear = |told: &mut Told, value: u64| {
        let (list, mut problems) = (vec![former(property, Value::Number(value))], Vec::new());
        assert!(!told.hear(&Instance::system(), "a.slice", list, &mut journal, &mut problems));
        assert!(problems.is_empty(), "{problems:?}");
    };
    hear(&mut told, UNSET);
    told.given.insert(property, vec![Value::Number(5), Value::Number(6)]);
    // The last of ours is wanted again where an earlier one is in force, or none.
    for (ours, wanted) in [(6, 0), (5, 1), (UNSET, 1)] {
        hear(&mut told, ours);
        assert_eq!((told.held().len(), told.wanted.len()), (1, wanted), "{ours}");
        told.wanted.clear();
    }
    hear(&mut told, 1_000);
    assert_eq!(told.held(), []);
    assert_eq!(told.former[&property].value, Value::Number(1_000));
    assert_eq!(told.wanted, BTreeMap::new());
    let entries = Journal::read(journal.path()).unwrap();
    assert!(matches!(entries.as_slice(), [Entry::PropertyReverted { .. }]));
}

/// A played systemd with one slice, which is held.
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
        scene.properties.come(A);
        scene
    }

    /// The same, and what was before is known.
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

    /// How often systemd has read its files anew.
    fn reloads(&self) -> usize {
        self.systemd.stage().heard.iter().filter(|method| *method == "Reload").count()
    }

    fn others(&self) -> GroupBounds {
        self.properties.set_by_others(A).unwrap()
    }

    /// So many looks; what was said.
    fn look(&mut self, looks: usize, apart: Time) -> Vec<String> {
        let mut said = Vec::new();
        for _ in 0..looks {
            self.now += apart;
            said.extend(self.properties.look(self.now, &mut self.journal));
            while self.properties.queue.waiting() > 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
                said.extend(self.properties.look(self.now, &mut self.journal));
            }
        }
        said.iter().map(ToString::to_string).collect()
    }

    /// Looks until all is told that there is to tell.
    fn settle(&mut self) {
        assert_eq!(self.look(4, 2 * LOOK_NS), [""; 0]);
    }
}

/// A slice is bounded; an administrator bounds it more, and then less; it is held no more.
#[test]
fn systemd_has_what_holds_and_then_what_it_had() {
    let mut scene = Scene::new(&[(Property::AllowedCPUs, cpus("0-5"))]);
    scene.want(Property::MemoryHigh, Value::Number(200));
    scene.want(Property::AllowedCPUs, cpus("4-5"));
    assert_eq!(scene.properties.set_by_others(A), None);
    scene.settle();
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("4-5"));
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(200));
    assert_eq!(scene.value(Property::IOAccounting), Value::Flag(true));
    assert_eq!(scene.value(Property::CPUWeight), WEIGHT_USUAL, "or the controller is off");
    let set = GroupBounds { cpus: "0-5".parse().ok(), ..GroupBounds::default() };
    assert_eq!(scene.properties.set_by_others(A), Some(set));

    scene.systemd.set(A, Property::MemoryHigh, Value::Number(150));
    scene.settle();
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(150));
    assert_eq!(scene.others().memory, Some(150));
    scene.want(Property::MemoryHigh, Value::Number(100));
    scene.settle();
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(100));

    // It comes again before systemd has answered, and is held anew.
    scene.properties.leave(A);
    scene.now += LOOK_NS;
    scene.properties.look(scene.now, &mut scene.journal);
    scene.properties.come(A);
    scene.settle();
    assert_eq!(
        (scene.value(Property::MemoryHigh), scene.value(Property::IOAccounting)),
        (Value::Number(150), Value::Flag(true))
    );

    scene.properties.leave(A);
    scene.settle();
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(150));
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("0-5"));
    assert_eq!(scene.value(Property::CPUWeight), Value::Number(UNSET));
    assert!(scene.properties.units.is_empty());
    assert_eq!(scene.reloads(), 2, "once each time it was let go");
    assert_eq!(scene.systemd.files(), ["user-1001.slice.d", "50-MemoryHigh.conf"], "the administrator's own");
}

#[test]
fn what_systemd_did_not_answer_for_is_told_again() {
    let mut scene = Scene::known();
    scene.systemd.fail("SetUnitProperties", Fault::Silence);
    scene.want(Property::MemoryHigh, Value::Number(200));
    assert_eq!(scene.look(1, ASK_NS).len(), 0);
    // It lasts, and says what was seen.
    let silence = scene.properties.silence().map(ToString::to_string);
    assert!(silence.is_some_and(|it| it.starts_with("systemd did not answer: ")));
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(UNSET));
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    scene.look(2, ASK_NS);
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(200));
    // It answers, but not for long yet. A second silence meanwhile is the same one.
    let said = scene.properties.silence().map(ToString::to_string);
    assert!(said.is_some());
    scene.systemd.fail("GetUnit", Fault::Silence);
    scene.look(1, LOOK_NS);
    assert_eq!(scene.properties.silence().map(ToString::to_string), said);
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    scene.look(1, ANSWERS_NS);
    assert!(scene.properties.silence().is_some(), "it begins to answer again");
    scene.look(1, ANSWERS_NS);
    assert!(scene.properties.silence().is_none());
}

/// systemd takes no bound of 0. The set of CPUs that was asked for with it is in force all the same, and that it refused is said
/// once.
#[test]
fn what_is_refused_takes_nothing_along() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryHigh, Value::Number(0));
    scene.want(Property::AllowedCPUs, cpus("4-5"));
    let said = scene.look(20, ASK_NS);
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("4-5"));
}

/// `systemctl revert` takes away what we gave as well.
#[test]
fn what_somebody_took_away_is_given_again() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryHigh, Value::Number(200));
    scene.settle();
    scene.systemd.set(A, Property::MemoryHigh, Value::Number(UNSET));
    scene.settle();
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(200));
}

#[test]
fn what_an_administrator_sets_before_ours_is_told_stays() {
    let mut scene = Scene::known();
    scene.systemd.set(A, Property::MemoryMin, Value::Number(300));
    scene.want(Property::MemoryMin, Value::Number(100));
    scene.settle();
    assert_eq!(scene.value(Property::MemoryMin), Value::Number(300));
    assert!(scene.others().kept);
}

/// A user logs out: nothing of ours is in force at the next login.
#[test]
fn of_a_unit_that_is_gone_no_file_is_left() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryHigh, Value::Number(200));
    scene.settle();
    assert!(scene.systemd.drop_in(A, Property::MemoryHigh).exists());
    scene.systemd.stage().units.remove(A);
    scene.look(20, ASK_NS);
    assert_eq!(scene.systemd.files(), [""; 0]);
}

/// A slice has 200, and is to have 100; an administrator gives it 150 when systemd was asked what it has.
#[test]
fn what_an_administrator_sets_after_the_look_is_not_written_over() {
    let (mut scene, property) = (Scene::new(&[]), Property::MemoryHigh);
    scene.want(property, Value::Number(200));
    scene.settle();
    scene.want(property, Value::Number(100));
    scene.systemd.set(A, property, Value::Number(150));
    let looked = BTreeMap::from([(property, Value::Number(200))]);
    scene.properties.set(A, &looked, &mut scene.journal).unwrap();
    scene.look(1, 0);
    assert_eq!(scene.value(property), Value::Number(150));
    // It is learnt at once, not at the next look for what administrators set.
    scene.look(1, 0);
    assert_eq!(scene.others().memory, Some(150));
}

/// systemd has the controller `cpu` on for it, whether an administrator's weight or ours is the reason; the administrator's
/// stays.
#[test]
fn a_weight_keeps_the_cpu_controller_on() {
    let mut scene = Scene::new(&[(Property::CPUWeight, Value::Number(300))]);
    scene.settle();
    assert_eq!(scene.value(Property::CPUWeight), Value::Number(300));
    assert!(scene.others().weight);

    scene.systemd.set(A, Property::CPUWeight, Value::Number(UNSET));
    scene.settle();
    assert_eq!(scene.value(Property::CPUWeight), WEIGHT_USUAL);
    assert!(!scene.others().weight);

    scene.want(Property::CPUWeight, Value::Number(57));
    scene.settle();
    assert_eq!(scene.value(Property::CPUWeight), Value::Number(57), "what the policy orders");
}

/// systemd adds to a list. The rates of both of ours are of sda; the administrator's is of sdb.
#[test]
fn of_rates_to_which_an_administrator_added_one_ours_go() {
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
        // What was ordered before the policy saw that.
        scene.want(reads, rates(&[("/dev/sda", 6)]));
        scene.want(writes, rates(&[("/dev/sda", 6)]));
        scene.settle();
        assert_eq!((scene.value(reads), scene.value(writes)), (theirs.clone(), rates(&[])), "{lasts}");

        scene.properties.leave(A);
        scene.settle();
        assert_eq!(scene.value(reads), theirs, "{lasts}");
        let file: &[&str] = if lasts { &[] } else { &["user-1001.slice.d", "50-IOReadBandwidthMax.conf"] };
        assert_eq!(scene.systemd.files(), file, "{lasts}");
        // And so do the files.
        Manager::new(scene.systemd.instance()).reload().unwrap();
        assert_eq!(scene.value(reads), theirs, "{lasts}");
    }
}

/// The daemon is killed when it has learnt that, before it has told systemd.
#[test]
fn what_an_administrator_added_to_is_in_the_journal() {
    let (mut scene, reads) = (Scene::known(), Property::IOReadBandwidthMax);
    scene.want(reads, rates(&[("/dev/sda", 5)]));
    scene.settle();
    scene.systemd.set(A, reads, rates(&[("/dev/sdb", 7)]));
    let list = Manager::new(scene.systemd.instance()).former(A, &PROPERTIES).unwrap();
    let told = scene.properties.units.get_mut(A).unwrap();
    told.hear(&scene.properties.instance, A, list, &mut scene.journal, &mut Vec::new());
    let entries = Journal::read(scene.journal.path()).unwrap();
    let undone = crate::undo::undo(&entries, std::path::Path::new("/proc"));
    assert!(undone.problems.is_empty(), "{undone:?}");
    assert_eq!(scene.value(reads), rates(&[("/dev/sdb", 7)]));
}

/// `systemctl set-property` without `--runtime`: what the administrator sets is in a file of its own.
#[test]
fn where_an_administrator_has_another_file_ours_goes() {
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
    scene.properties.leave(A);
    scene.settle();
    assert_eq!(scene.value(property), Value::Number(500));
    assert_eq!(scene.systemd.files(), [""; 0]);
}

/// systemd has just not answered, and is left alone for a second.
#[test]
fn a_reload_that_systemd_did_not_answer_is_asked_again() {
    let mut scene = Scene::known();
    scene.systemd.fail("GetUnit", Fault::Silence);
    scene.look(1, LOOK_NS);
    scene.properties.is_to_read = true;
    scene.look(1, ASK_NS);
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    scene.look(1, ASK_NS);
    assert_eq!(scene.reloads(), 0, "it is not asked at every look");
    scene.look(2, LOOK_NS);
    assert_eq!(scene.reloads(), 1);
}

#[test]
fn a_reload_that_is_refused_is_said_once_and_asked_again() {
    let mut scene = Scene::known();
    for _ in 0..2 {
        scene.systemd.fail("Reload", Fault::Refuse("org.freedesktop.DBus.Error.LimitsExceeded"));
    }
    scene.properties.leave(A);
    let said = scene.look(5, LOOK_NS);
    assert_eq!((said.len(), scene.reloads()), (1, 3), "{said:?}");
}

#[test]
fn that_files_were_written_by_taking_back_is_told() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryHigh, Value::Number(200));
    scene.settle();
    scene.properties.leave(A);
    scene.properties.take_rewritten();
    scene.look(1, 2 * LOOK_NS);
    assert!(scene.properties.units.is_empty());
    assert!(scene.properties.take_rewritten().contains(A));
}

/// A unit's slice is a place, and then one around the place of a sub-unit.
#[test]
fn what_is_wanted_after_it_was_left_is_told() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryMin, Value::Number(100));
    scene.settle();
    scene.properties.leave(A);
    scene.want(Property::MemoryMin, Value::Number(300));
    scene.settle();
    assert_eq!(scene.value(Property::MemoryMin), Value::Number(300));
    assert_eq!(scene.value(Property::IOAccounting), Value::Flag(false), "it is no place");
    scene.properties.leave(A);
    scene.settle();
    assert_eq!((scene.value(Property::MemoryMin), scene.systemd.files()), (Value::Number(0), vec![]));
}

/// What was wanted before is not, also where systemd was silent.
#[test]
fn what_was_wanted_before_it_was_left_is_not_told() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryHigh, Value::Number(200));
    scene.properties.leave(A);
    let change =
        Change { property: Property::MemoryHigh, from: Value::Number(UNSET), to: Value::Number(200) };
    scene.properties.not_set(A, vec![change], true);
    scene.settle();
    assert!(scene.properties.units.is_empty());
}

/// A user logs out and in again.
#[test]
fn a_unit_that_was_gone_is_given_the_same_again() {
    for (then, now) in [(UNSET, 200), (50, 50)] {
        let (then, now) = (Value::Number(then), Value::Number(now));
        let mut scene = Scene::new(&[]);
        // It is not ours to begin with, and is not there at the next login.
        scene.systemd.set(A, Property::IOAccounting, Value::Flag(true));
        scene.settle();
        std::fs::remove_file(scene.systemd.drop_in(A, Property::IOAccounting)).unwrap();
        scene.want(Property::MemoryHigh, Value::Number(200));
        scene.want(Property::MemoryMin, Value::Number(100));
        scene.settle();
        scene.systemd.stage().units.remove(A);
        scene.look(20, ASK_NS);
        assert_eq!(scene.systemd.files(), [""; 0]);
        assert_eq!(scene.properties.set_by_others(A), None);
        scene.systemd.unit(A, false, &[(Property::MemoryHigh, then.clone())]);
        scene.settle();
        assert_eq!(scene.value(Property::MemoryHigh), now, "an administrator's is not widened");
        assert_eq!(scene.value(Property::MemoryMin), Value::Number(100));
        assert_eq!(scene.value(Property::IOAccounting), Value::Flag(true));
        assert_eq!(scene.value(Property::CPUWeight), WEIGHT_USUAL);
        scene.properties.leave(A);
        scene.settle();
        assert_eq!(scene.value(Property::MemoryMin), Value::Number(0));
        assert_eq!(scene.value(Property::MemoryHigh), then);
        assert_eq!((scene.properties.units.len(), scene.systemd.files()), (0, vec![]));
    }
}

/// A service is restarted between two looks. Its place is another, of the same name; systemd never said that the unit was gone.
#[test]
fn of_a_unit_that_is_another_nothing_of_the_former_one_counts() {
    let (mut scene, property) = (Scene::new(&[(Property::AllowedCPUs, cpus("0-5"))]), Property::MemoryHigh);
    scene.settle();
    scene.want(property, Value::Number(200));
    scene.want(Property::AllowedCPUs, cpus("4-5"));
    scene.settle();
    scene.systemd.stage().units.remove(A);
    scene.systemd.unit(A, false, &[(property, Value::Number(300)), (Property::AllowedCPUs, cpus("0-5"))]);

    scene.properties.leave(A);
    scene.properties.come(A);
    scene.want(property, Value::Number(100));
    let said = scene.look(4, 2 * LOOK_NS);
    assert_eq!(
        said,
        ["user-1001.slice: MemoryHigh stays `300`: an administrator has set it; nothing is to be done"]
    );
    assert_eq!((scene.value(property), scene.others().memory), (Value::Number(100), Some(300)));
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("0-5"), "the policy has not ordered any");
    assert_eq!(scene.value(Property::IOAccounting), Value::Flag(true));

    scene.properties.leave(A);
    scene.settle();
    assert_eq!(
        (scene.value(property), scene.value(Property::AllowedCPUs)),
        (Value::Number(300), cpus("0-5"))
    );
    assert_eq!((scene.properties.units.len(), scene.systemd.files()), (0, vec![]));
}

/// What cannot be taken back of one that is held again is held on.
#[test]
fn one_that_is_held_again_goes_on_where_systemd_takes_nothing_back() {
    let mut scene = Scene::known();
    scene.want(Property::MemoryHigh, Value::Number(200));
    scene.settle();
    scene.properties.leave(A);
    scene.properties.come(A);
    scene.want(Property::MemoryHigh, Value::Number(100));
    scene.systemd.fail("SetUnitProperties", Fault::Refuse("org.freedesktop.DBus.Error.AccessDenied"));
    let said = scene.look(2, 2 * LOOK_NS);
    assert_eq!((said.len(), scene.value(Property::MemoryHigh)), (1, Value::Number(100)), "{said:?}");
    scene.properties.leave(A);
    scene.settle();
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(UNSET));
}

/// CPUs are lent and called back ten times a second. systemd learns of them every five seconds; once they rest, within two.
#[test]
fn of_loans_that_come_and_go_systemd_is_seldom_told() {
    let mut scene = Scene::known();
    let told = |scene: &Scene| {
        scene.systemd.stage().heard.iter().filter(|method| *method == "SetUnitProperties").count()
    };
    scene.want(Property::AllowedCPUs, cpus("4-7"));
    scene.look(1, ASK_NS);
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("4-7"), "the first time, at once");
    let before = told(&scene);
    for loan in 0..200 {
        scene.want(Property::AllowedCPUs, cpus(["2-7", "3-7", "4-7"][loan % 3]));
        scene.look(1, 100 * MS);
    }
    let often = told(&scene) - before;
    assert!((2..=4).contains(&often), "{often} times in 20 seconds");
    scene.want(Property::AllowedCPUs, cpus("5-7"));
    scene.look(20, 100 * MS);
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("5-7"));
    // Not where something else is to be told, which takes them with it.
    scene.want(Property::AllowedCPUs, cpus("1-7"));
    scene.want(Property::MemoryHigh, Value::Number(100));
    scene.look(1, ASK_NS);
    assert_eq!(scene.value(Property::AllowedCPUs), cpus("1-7"));
}
