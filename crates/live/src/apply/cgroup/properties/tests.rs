#![allow(clippy::unwrap_used)]

use super::*;
use crate::systemd::UNSET;
use crate::systemd::played::{Fault, Played};

const A: &str = "user-1001.slice";

fn cpus(text: &str) -> Value {
    Value::Cpus(text.parse().unwrap())
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
        told.hear(&Whose::system(), "a.slice", vec![former(property, Value::Number(value))], &mut journal)
            .unwrap();
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
    assert!(matches!(entries.as_slice(), [Entry::PropertyBack { .. }]));
}

/// A played systemd with one slice, which is held.
struct Scene {
    played: Played,
    _dir: tempfile::TempDir,
    journal: Journal,
    properties: Properties,
    now: Time,
}

impl Scene {
    /// The slice has these values.
    fn new(base: &[(Property, Value)]) -> Scene {
        let played = Played::new(true);
        played.unit(A, false, base);
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::create(dir.path()).unwrap();
        let properties = Properties::of(played.whose()).unwrap();
        let mut scene = Scene { played, _dir: dir, journal, properties, now: 0 };
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
        self.played.value(A, property)
    }

    fn others(&self) -> PlaceBounds {
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
    let set = PlaceBounds { cpus: "0-5".parse().ok(), ..PlaceBounds::default() };
    assert_eq!(scene.properties.set_by_others(A), Some(set));

    scene.played.set(A, Property::MemoryHigh, Value::Number(150));
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
    let heard = scene.played.stage().heard.clone();
    assert_eq!(heard.iter().filter(|method| *method == "Reload").count(), 2, "once each time it was let go");
    assert_eq!(scene.played.files(), ["user-1001.slice.d", "50-MemoryHigh.conf"], "the administrator's own");
}

#[test]
fn what_systemd_did_not_answer_for_is_told_again() {
    let mut scene = Scene::known();
    scene.played.fail("SetUnitProperties", Fault::Silence);
    scene.want(Property::MemoryHigh, Value::Number(200));
    let said = scene.look(1, ASK_NS);
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(UNSET));
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    scene.look(2, ASK_NS);
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(200));
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
    scene.played.set(A, Property::MemoryHigh, Value::Number(UNSET));
    scene.settle();
    assert_eq!(scene.value(Property::MemoryHigh), Value::Number(200));
}

#[test]
fn what_an_administrator_sets_before_ours_is_told_stays() {
    let mut scene = Scene::known();
    scene.played.set(A, Property::MemoryMin, Value::Number(300));
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
    assert!(scene.played.drop_in(A, Property::MemoryHigh).exists());
    scene.played.stage().units.remove(A);
    scene.look(20, ASK_NS);
    assert_eq!(scene.played.files(), [""; 0]);
}

/// A slice has 200, and is to have 100; an administrator gives it 150 when systemd was asked what it has.
#[test]
fn what_an_administrator_sets_after_the_look_is_not_written_over() {
    let (mut scene, property) = (Scene::new(&[]), Property::MemoryHigh);
    scene.want(property, Value::Number(200));
    scene.settle();
    scene.want(property, Value::Number(100));
    scene.played.set(A, property, Value::Number(150));
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

    scene.played.set(A, Property::CPUWeight, Value::Number(UNSET));
    scene.settle();
    assert_eq!(scene.value(Property::CPUWeight), WEIGHT_USUAL);
    assert!(!scene.others().weight);

    scene.want(Property::CPUWeight, Value::Number(57));
    scene.settle();
    assert_eq!(scene.value(Property::CPUWeight), Value::Number(57), "what the policy orders");
}
