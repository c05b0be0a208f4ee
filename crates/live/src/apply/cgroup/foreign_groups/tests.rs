#![allow(clippy::unwrap_used)]

use super::*;
use crate::systemd::fake::FakeSystemd;

const GROUP: &str = "/jobs/job_1";

struct Bench {
    root: tempfile::TempDir,
    foreign: ForeignGroups,
    contract: Contract,
    unit: UnitId,
    journal: Journal,
    disks: Disks,
}

impl Bench {
    fn new() -> Bench {
        let root = tempfile::tempdir().unwrap();
        let mut contract = Contract::default();
        let unit = contract.add(None, "job");
        let (journal, _) = Journal::create(root.path()).unwrap();
        let foreign = ForeignGroups::new(&root.path().join("cgroup"));
        let bench = Bench { foreign, contract, unit, journal, disks: Disks::default(), root };
        for group in ["", "/jobs", GROUP] {
            bench.put(group, "cgroup.controllers", "cpu cpuset io memory");
            bench.put(group, "cgroup.subtree_control", "cpu cpuset io memory");
        }
        for (file, text) in [("cpuset.cpus", "0-5"), ("memory.high", "max"), ("memory.max", "max")] {
            bench.put(GROUP, file, text);
        }
        bench
    }

    fn path(&self, group: &str, file: &str) -> PathBuf {
        self.root.path().join("cgroup").join(group.trim_start_matches('/')).join(file)
    }

    fn put(&self, group: &str, file: &str, text: &str) {
        let path = self.path(group, file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn cpus(&self) -> String {
        read(&self.path(GROUP, "cpuset.cpus")).unwrap()
    }

    fn follow(&mut self, is_place: bool) {
        let places = is_place.then(|| (GROUP.to_owned(), self.unit)).into_iter().collect();
        let mut problems = Vec::new();
        self.foreign.follow(&self.contract, &places, &mut self.disks, &mut self.journal, &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
    }

    fn confine(&mut self, cpus: &str) {
        let order = PartOrder::Confine {
            unit: self.unit,
            at: self.foreign.groups[0].id,
            cpus: Some(cpus.parse().unwrap()),
        };
        assert!(self.foreign.carry_out(&order, None, &mut self.disks, &mut self.journal).is_empty());
    }

    fn most(&mut self) -> GroupBounds {
        self.foreign.facts(&BTreeMap::new(), &BTreeMap::new()).remove(0).most
    }

    fn undo(&self) {
        crate::undo::undo(&Journal::read(self.journal.path()).unwrap(), Path::new("/proc"));
    }
}

/// A value that a manager writes bounds orders from then on, and is restored at the end.
#[test]
fn a_managers_value_bounds_orders_and_is_restored() {
    let mut bench = Bench::new();
    bench.follow(true);
    assert_eq!(bench.most().cpus, Some("0-5".parse().unwrap()));
    bench.confine("0-2");
    bench.foreign.poll(POLL_NS, None, &mut bench.journal);
    assert_eq!(bench.most().cpus, Some("0-5".parse().unwrap()), "what was written here is no bound");
    bench.put(GROUP, "cpuset.cpus", "4-7");
    bench.put(GROUP, "memory.max", "4096");
    bench.foreign.poll(POLL_NS + 1, None, &mut bench.journal);
    assert_eq!(bench.most().memory, None, "polled every five seconds");
    bench.foreign.poll(2 * POLL_NS, None, &mut bench.journal);
    let most = bench.most();
    assert_eq!((most.cpus, most.memory), (Some("4-7".parse().unwrap()), Some(4096)));
    bench.confine("4-5");
    assert_eq!(bench.cpus(), "4-5");
    bench.undo();
    assert_eq!(bench.cpus(), "4-7");
}

/// Slurm sets a job's CPUs after its first process came, and after the daemon has written the file.
#[test]
fn cpus_that_a_manager_sets_later_are_reported() {
    let mut bench = Bench::new();
    bench.put(GROUP, "cpuset.cpus", "");
    bench.contract.units[bench.unit.index()].each = Some(commonhold_contract::Each::Cgroup);
    let job = commonhold_contract::Newcomer::group(bench.unit, GROUP, commonhold_contract::Given::default());
    bench.contract.welcome(&[job], &BTreeSet::new());
    bench.follow_all(&[(GROUP, bench.contract.find("job/job_1").unwrap())]);
    bench.unit = bench.contract.find("job/job_1").unwrap();
    bench.confine("0-5");
    bench.foreign.poll(POLL_NS, None, &mut bench.journal);
    assert_eq!(bench.foreign.given_cpus(&bench.contract), [], "what was written here is no manager's");
    bench.put(GROUP, "cpuset.cpus", "2-3");
    bench.foreign.poll(2 * POLL_NS, None, &mut bench.journal);
    assert_eq!(bench.foreign.given_cpus(&bench.contract), [(bench.unit, 2)]);
}

/// `MemoryMax=` is not set here, so it is read from the kernel's file, both before the group is held and
/// later.
#[test]
fn a_bound_that_an_administrator_sets_later_is_seen() {
    let mut bench = Bench::new();
    let systemd = FakeSystemd::new(true);
    systemd.unit("a.slice", false, &[]);
    bench.foreign.properties = Some(Properties::of(systemd.instance()).unwrap());
    let group = "/a.slice";
    bench.put(group, "memory.max", "max");
    let mut problems = Vec::new();
    let places = BTreeMap::from([(group.to_owned(), bench.unit)]);
    bench.foreign.follow(&bench.contract, &places, &mut bench.disks, &mut bench.journal, &mut problems);
    let mut now = POLL_NS;
    bench.foreign.poll(now, None, &mut bench.journal);
    assert_eq!(bench.most().memory, None);
    bench.put(group, "memory.max", "314572800");
    while bench.most().memory != Some(314_572_800) {
        std::thread::sleep(std::time::Duration::from_millis(1));
        now += POLL_NS;
        bench.foreign.poll(now, None, &mut bench.journal);
        assert!(now < 10_000 * POLL_NS, "it is not seen");
    }
}

/// systemd writes a bound into the kernel's file itself, and would block there while the kernel reclaims.
#[test]
fn systemd_gets_a_stable_bound_when_the_group_is_within_it() {
    let mut bench = Bench::new();
    let systemd = FakeSystemd::new(true);
    systemd.unit("a.slice", false, &[]);
    bench.foreign.properties = Some(Properties::of(systemd.instance()).unwrap());
    let group = "/a.slice";
    for (file, text) in [("memory.high", "max"), ("memory.max", "max"), ("memory.current", "2000")] {
        bench.put(group, file, text);
    }
    // An administrator's protection is not removed.
    systemd.set("a.slice", Property::MemoryMin, Value::Number(70));
    let places = BTreeMap::from([(group.to_owned(), bench.unit)]);
    bench.foreign.follow(&bench.contract, &places, &mut bench.disks, &mut bench.journal, &mut Vec::new());
    let mut pager = Pager::default();
    let mut now = POLL_NS;
    let mut bound = |bench: &mut Bench, bytes: Option<u64>, times: u32| {
        if let Some(bytes) = bytes {
            bench.foreign.bound(0, bytes, Some(&mut pager), &mut bench.journal).unwrap();
        }
        for _ in 0..times {
            std::thread::sleep(std::time::Duration::from_millis(5));
            now += POLL_NS;
            bench.foreign.poll(now, None, &mut bench.journal);
        }
        (read(&bench.path(group, "memory.high")).unwrap(), systemd.value("a.slice", Property::MemoryHigh))
    };
    assert_eq!(bound(&mut bench, Some(1_000), 40), ("1000".to_owned(), Value::Number(UNSET)));
    bench.put(group, "memory.current", "900");
    assert_eq!(bound(&mut bench, None, 200), ("1000".to_owned(), Value::Number(1_000)));
    // Before a bound grows, systemd is sent no bound. It writes that, and the file is rewritten after its
    // reply.
    bench.put(group, "memory.current", "4000");
    assert_eq!(bound(&mut bench, Some(3_000), 0).0, "3000");
    bench.put(group, "memory.high", "max");
    assert_eq!(bound(&mut bench, None, 200), ("3000".to_owned(), Value::Number(UNSET)));
    bench.put(group, "memory.current", "2000");
    assert_eq!(bound(&mut bench, None, 200), ("3000".to_owned(), Value::Number(3_000)));
    assert_eq!(systemd.value("a.slice", Property::MemoryMin), Value::Number(70));
    bench.undo();
    // The fake systemd does not write the kernel's file.
    assert_eq!(systemd.value("a.slice", Property::MemoryHigh), Value::Number(UNSET));
}

impl Bench {
    /// A bench with a fake systemd that has these units, and groups with memory files and cpu.max.
    fn with_systemd(units: &[&str], groups: &[&str]) -> (Bench, FakeSystemd) {
        let mut bench = Bench::new();
        let systemd = FakeSystemd::new(true);
        for unit in units {
            systemd.unit(unit, false, &[]);
        }
        bench.foreign.properties = Some(Properties::of(systemd.instance()).unwrap());
        for group in groups {
            bench.memory(group);
        }
        (bench, systemd)
    }

    fn memory(&self, group: &str) {
        for (file, text) in [
            ("memory.high", "max"),
            ("memory.max", "max"),
            ("memory.low", "0"),
            ("memory.min", "0"),
            ("memory.current", "0"),
            (CAP, "max 100000"),
        ] {
            self.put(group, file, text);
        }
    }

    fn content(&self, group: &str, file: &str) -> String {
        read(&self.path(group, file)).unwrap()
    }

    fn follow_all(&mut self, groups: &[(&str, UnitId)]) {
        let places = groups.iter().map(|(group, unit)| ((*group).to_owned(), *unit)).collect();
        let mut problems = Vec::new();
        self.foreign.follow(&self.contract, &places, &mut self.disks, &mut self.journal, &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
    }

    fn keep(&mut self, index: usize, min: u64, low: u64) {
        self.foreign.protect(index, min, low, &mut self.journal).unwrap();
    }

    /// Replaces a group by another of the same path. The first one is moved away, so that its inode is not
    /// reused.
    fn make_anew(&self, group: &str) {
        let gone = self.root.path().join(format!("gone{}", group.replace('/', "-")));
        std::fs::rename(self.path(group, ""), gone).unwrap();
        self.memory(group);
    }

    /// Polls `times` times, five seconds apart.
    fn poll_times(&mut self, now: &mut Time, times: u32) {
        for _ in 0..times {
            std::thread::sleep(std::time::Duration::from_millis(5));
            *now += POLL_NS;
            let problems = self.foreign.poll(*now, None, &mut self.journal);
            assert!(problems.is_empty(), "{problems:?}");
        }
    }
}

/// systemd does not know the cap, and resets cpu.max when any property is set.
#[test]
fn a_cap_that_systemd_overwrote_is_written_again() {
    let (mut bench, systemd) = Bench::with_systemd(&["a.slice"], &["/a.slice"]);
    bench.follow_all(&[("/a.slice", bench.unit)]);
    bench.foreign.put(0, CAP, "50000 100000", &mut bench.journal).unwrap();
    let mut now = 0;
    bench.poll_times(&mut now, 20);
    bench.put("/a.slice", CAP, "max 100000");
    bench.foreign.set_property(0, Property::CPUWeight, Value::Number(7));
    now += POLL_NS / 5;
    while systemd.value("a.slice", Property::CPUWeight) != Value::Number(7)
        || bench.content("/a.slice", CAP) != "50000 100000"
    {
        std::thread::sleep(std::time::Duration::from_millis(1));
        bench.foreign.poll(now, None, &mut bench.journal);
        now += MS;
        assert!(now < 23 * POLL_NS, "it is not there again");
    }
    // A `daemon-reload` is not announced.
    bench.put("/a.slice", CAP, "max 100000");
    bench.poll_times(&mut now, 1);
    assert_eq!(bench.content("/a.slice", CAP), "50000 100000");
    // An administrator's cap stays.
    bench.put("/a.slice", CAP, "20000 100000");
    bench.poll_times(&mut now, 2);
    assert_eq!(bench.content("/a.slice", CAP), "20000 100000");
}

/// A CPU was called back, and systemd writes the former set, since it did not get the new one yet.
#[test]
fn a_cpu_set_that_systemd_did_not_get_is_written_again() {
    let (mut bench, _played) = Bench::with_systemd(&["a.slice"], &["/a.slice"]);
    bench.put("/a.slice", CPUS, "0-5");
    bench.follow_all(&[("/a.slice", bench.unit)]);
    bench.confine("0-2");
    let mut now = 0;
    bench.poll_times(&mut now, 40);
    bench.confine("0-1");
    bench.put("/a.slice", CPUS, "0-2");
    assert!(bench.foreign.rewrite("a.slice", None).is_empty());
    assert_eq!(bench.content("/a.slice", CPUS), "0-1");
    // Once systemd has the new set, the file is systemd's to write.
    bench.poll_times(&mut now, 40);
    bench.put("/a.slice", CPUS, "4-5");
    bench.foreign.rewrite("a.slice", None);
    assert_eq!(bench.content("/a.slice", CPUS), "4-5");
}

/// After a `daemon-reload`, systemd writes the CPUs that it knows, of a second ago.
#[test]
fn a_cpu_set_that_systemd_overwrote_is_written_again_within_half_a_second() {
    let (mut bench, systemd) = Bench::with_systemd(&["a.slice"], &["/a.slice"]);
    bench.put("/a.slice", CPUS, "0-5");
    bench.follow_all(&[("/a.slice", bench.unit)]);
    bench.confine("0-2");
    let mut now = 0;
    bench.poll_times(&mut now, 40);
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        bench.foreign.poll(now, None, &mut bench.journal);
    }
    bench.confine("0-1");
    bench.put("/a.slice", CPUS, "0-2");
    bench.foreign.poll(now + OVERWRITTEN_POLL_NS, None, &mut bench.journal);
    assert_eq!(bench.content("/a.slice", CPUS), "0-1");
    for tries in 0.. {
        assert!(tries < 1_000, "without a request to systemd");
        if systemd.value("a.slice", Property::AllowedCPUs) == Value::Cpus("0-1".parse().unwrap()) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        bench.foreign.poll(now + OVERWRITTEN_POLL_NS, None, &mut bench.journal);
    }
}

/// A user's slice is protected, and user.slice as much. Then an administrator sets protection there.
#[test]
fn an_administrators_protection_of_an_ancestor_stays() {
    let groups = ["/user.slice", "/user.slice/user-1.slice"];
    let (mut bench, systemd) = Bench::with_systemd(&["user.slice", "user-1.slice"], &groups);
    bench.follow_all(&[(groups[1], bench.unit)]);
    bench.keep(0, 20, 20);
    assert_eq!(bench.content(groups[0], "memory.min"), "20");
    let mut now = 0;
    bench.poll_times(&mut now, 40);
    let min = |unit: &str| systemd.value(unit, Property::MemoryMin);
    assert_eq!((min("user.slice"), min("user-1.slice")), (Value::Number(20), Value::Number(20)));
    systemd.set("user.slice", Property::MemoryMin, Value::Number(99));
    bench.put(groups[0], "memory.min", "99");
    bench.poll_times(&mut now, 40);
    bench.keep(0, 30, 30);
    bench.poll_times(&mut now, 40);
    assert_eq!((min("user.slice"), min("user-1.slice")), (Value::Number(99), Value::Number(30)));
    assert_eq!(bench.content(groups[0], "memory.min"), "99");
}

/// Two jobs in different groups. First one ends with its parent group, then the other.
#[test]
fn the_protection_of_ancestors_ends_with_their_groups() {
    let mut bench = Bench::new();
    for group in ["/jobs", GROUP, "/others", "/others/job_2"] {
        bench.memory(group);
        bench.put(group, "cgroup.controllers", "cpu cpuset io memory");
        bench.put(group, "cgroup.subtree_control", "cpu cpuset io memory");
    }
    bench.follow_all(&[(GROUP, bench.unit), ("/others/job_2", bench.unit)]);
    bench.keep(0, 10, 20);
    bench.keep(1, 1, 2);
    assert_eq!(
        (bench.content("/jobs", "memory.low"), bench.content("/others", "memory.min")),
        ("20".into(), "1".into())
    );
    std::fs::remove_dir_all(bench.path("/jobs", "")).unwrap();
    bench.follow_all(&[("/others/job_2", bench.unit)]);
    bench.keep(0, 3, 4);
    assert_eq!(bench.content("/others", "memory.min"), "3");
    assert!(bench.foreign.ancestors.keys().eq([&bench.path("/others", "")]));
    bench.follow_all(&[]);
    assert_eq!(
        (bench.content("/others", "memory.low"), bench.content("/others", "memory.min")),
        ("0".into(), "0".into())
    );
}

/// A reload gives a group to another unit. The manager's values are kept, and the first unit's orders lifted.
#[test]
fn a_group_that_gets_another_unit_keeps_its_managers_values() {
    let mut bench = Bench::new();
    bench.memory(GROUP);
    bench.memory("/jobs");
    let other = bench.contract.add(None, "other");
    bench.follow(true);
    bench.confine("0-2");
    bench.keep(0, 1, 2);
    let before = bench.foreign.groups[0].id;
    bench.follow_all(&[(GROUP, other)]);
    assert_ne!(bench.foreign.groups[0].id, before);
    assert_eq!(
        (bench.content(GROUP, "memory.low"), bench.content("/jobs", "memory.low")),
        ("0".into(), "0".into())
    );
    assert_eq!(bench.cpus(), "0-5");
    bench.foreign.poll(POLL_NS, None, &mut bench.journal);
    assert_eq!(bench.most().cpus, Some("0-5".parse().unwrap()));
    bench.follow(false);
    assert_eq!(bench.cpus(), "0-5");
}

/// Until a thread has written a lower bound, the former bound in the file is not taken for a manager's.
#[test]
fn a_former_bound_of_ours_is_not_taken_for_the_managers() {
    let mut bench = Bench::new();
    bench.follow(true);
    let mut pager = Pager::default();
    bench.foreign.bound(0, 5_000, Some(&mut pager), &mut bench.journal).unwrap();
    bench.foreign.groups[0].former_highs.push("6000".to_owned());
    std::thread::sleep(std::time::Duration::from_millis(50));
    bench.put(GROUP, "memory.high", "6000");
    bench.foreign.poll(POLL_NS, None, &mut bench.journal);
    assert_eq!(bench.most().memory, None);
    bench.put(GROUP, "memory.high", "5000");
    bench.foreign.poll(2 * POLL_NS, None, &mut bench.journal);
    bench.put(GROUP, "memory.high", "6000");
    bench.foreign.poll(3 * POLL_NS, None, &mut bench.journal);
    assert_eq!(bench.most().memory, Some(6_000), "it had been written");
}

/// A group that is no longer held has its manager's values, and nothing is left to undo.
#[test]
fn restored_values_are_not_undone_again() {
    let mut bench = Bench::new();
    bench.follow(true);
    bench.confine("0-2");
    bench.follow(false);
    assert_eq!(bench.cpus(), "0-5");
    bench.put(GROUP, "cpuset.cpus", "4-7");
    bench.undo();
    assert_eq!(bench.cpus(), "4-7");
    bench.follow(true);
    bench.confine("4-5");
    bench.undo();
    assert_eq!(bench.cpus(), "4-7");
}

/// Slurm runs a job again: its group is removed and made again between two polls.
#[test]
fn a_group_that_was_made_again_is_a_new_group() {
    let mut bench = Bench::new();
    bench.follow(true);
    bench.confine("0-2");
    let before = bench.foreign.groups[0].id;
    bench.make_anew(GROUP);
    bench.put(GROUP, "cpuset.cpus", "4-7");
    bench.follow(true);
    assert_ne!(bench.foreign.groups[0].id, before);
    assert_eq!((bench.cpus().as_str(), bench.most().cpus), ("4-7", Some("4-7".parse().unwrap())));
    bench.undo();
    assert_eq!(bench.cpus(), "4-7");
    bench.confine("4-5");
    bench.undo();
    assert_eq!(bench.cpus(), "4-7");
}

/// A user logs out and in again, or a service restarts: its group is removed and made again between two
/// polls. It has the properties sent to systemd, but no other values. The former values are still known.
#[test]
fn a_group_that_systemd_made_again_is_a_new_group() {
    let group = "/a.slice";
    let (mut bench, systemd) = Bench::with_systemd(&["a.slice"], &[group]);
    bench.put(group, CPUS, "");
    bench.follow_all(&[(group, bench.unit)]);
    bench.confine("0-2");
    bench.foreign.put(0, CAP, "50000 100000", &mut bench.journal).unwrap();
    bench.keep(0, 1, 2);
    let mut now = 0;
    bench.poll_times(&mut now, 40);
    assert_eq!(systemd.value("a.slice", Property::AllowedCPUs), Value::Cpus("0-2".parse().unwrap()));
    bench.foreign.bound(0, 5_000, None, &mut bench.journal).unwrap();
    let before = bench.foreign.groups[0].id;
    bench.make_anew(group);
    bench.put(group, CPUS, "0-2");
    bench.put(group, "memory.low", "2");
    bench.put(group, "memory.min", "1");
    bench.follow_all(&[(group, bench.unit)]);
    let after = bench.foreign.groups[0].id;
    assert_ne!(after, before);
    assert_eq!(
        (bench.content(group, "memory.low"), bench.content(group, CAP)),
        ("0".into(), "max 100000".into())
    );
    bench.foreign.rewrite("a.slice", None);
    assert_eq!(bench.content(group, "memory.high"), "max", "systemd never got this value");
    bench.follow_all(&[(group, bench.unit)]);
    assert_eq!(bench.foreign.groups[0].id, after, "once");
    bench.poll_times(&mut now, 40);
    assert_eq!(bench.most(), GroupBounds::default());
    bench.confine("0-1");
    bench.undo();
    assert_eq!((bench.content(group, CPUS).trim(), bench.content(group, "memory.low").as_str()), ("", "0"));
}

/// A manager sets a job's CPUs, and a loan ends before the next poll.
#[test]
fn a_value_that_a_manager_has_just_written_is_not_overwritten() {
    let mut bench = Bench::new();
    bench.follow(true);
    bench.confine("0-2");
    bench.put(GROUP, "cpuset.cpus", "4-7");
    bench.confine("0-1");
    assert_eq!((bench.cpus().as_str(), bench.most().cpus), ("4-7", Some("4-7".parse().unwrap())));
    bench.confine("4-5");
    assert_eq!(bench.cpus(), "4-5");
    bench.undo();
    assert_eq!(bench.cpus(), "4-7");
    // The same for memory, before the first write.
    let mut bench = Bench::new();
    bench.follow(true);
    bench.put(GROUP, "cpuset.cpus", "2-3");
    bench.confine("0-5");
    assert_eq!((bench.cpus().as_str(), bench.most().cpus), ("2-3", Some("2-3".parse().unwrap())));
    let mut pager = Pager::default();
    bench.foreign.bound(0, 5_000, None, &mut bench.journal).unwrap();
    bench.put(GROUP, "memory.high", "4000");
    bench.foreign.bound(0, 4_500, Some(&mut pager), &mut bench.journal).unwrap();
    assert_eq!(bench.most().memory, Some(4_000));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(bench.content(GROUP, "memory.high"), "4000");
}

/// A manager repeats its former value. That is no new bound, and the order is written again.
#[test]
fn a_manager_that_repeats_its_former_value_ends_no_order() {
    let mut bench = Bench::new();
    bench.follow(true);
    bench.confine("0-2");
    bench.put(GROUP, "cpuset.cpus", "0-5");
    let problems = bench.foreign.poll(POLL_NS, None, &mut bench.journal);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!((bench.cpus().as_str(), bench.most().cpus), ("0-2", Some("0-5".parse().unwrap())));
    bench.undo();
    assert_eq!(bench.cpus(), "0-5");
}

/// A rate of the first unit does not apply to the second.
#[test]
fn a_group_that_gets_another_unit_has_no_rate() {
    let (mut bench, systemd) = Bench::with_systemd(&["a.slice"], &["/a.slice"]);
    let other = bench.contract.add(None, "other");
    bench.follow_all(&[("/a.slice", bench.unit)]);
    bench.foreign.set_rates(0, &mut bench.disks, ("sda", Some(5), None), &mut bench.journal).unwrap();
    let mut now = 0;
    bench.poll_times(&mut now, 40);
    let reads = || systemd.value("a.slice", Property::IOReadBandwidthMax);
    assert_eq!(reads(), Value::Devices(vec![("/dev/sda".to_owned(), 5)]));
    bench.follow_all(&[("/a.slice", other)]);
    bench.poll_times(&mut now, 40);
    assert_eq!(reads(), Value::Devices(Vec::new()));
}

/// Kernels such as 6.1 refuse an empty set of CPUs where there are processes.
#[test]
fn an_empty_cpu_set_is_restored_as_the_parents_cpus() {
    let mut bench = Bench::new();
    bench.put(GROUP, "cpuset.cpus", "");
    bench.put("/jobs", "cpuset.cpus.effective", "0-7\n");
    bench.follow(true);
    bench.confine("0-2");
    let refuses = || {
        host::tamper(|access| match access.is(host::Kind::Write, CPUS) && access.bytes == b"\n" {
            true => host::Answer::Refuse(libc::ENOSPC),
            false => host::Answer::GoOn,
        })
    };
    let hook = refuses();
    let lifted = PartOrder::Confine { unit: bench.unit, at: bench.foreign.groups[0].id, cpus: None };
    let problems = bench.foreign.carry_out(&lifted, None, &mut bench.disks, &mut bench.journal);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(bench.cpus(), "0-7");
    bench.confine("0-2");
    bench.undo();
    assert_eq!(bench.cpus(), "0-7");
    bench.confine("0-2");
    bench.follow(false);
    assert_eq!(bench.cpus(), "0-7");
    drop(hook);
}

/// A failed restore stays in the journal.
#[test]
fn values_that_could_not_be_restored_are_undone_later() {
    let mut bench = Bench::new();
    bench.follow(true);
    bench.confine("0-2");
    let hook = host::tamper(|access| match access.is(host::Kind::Write, CPUS) {
        true => host::Answer::Refuse(libc::EBUSY),
        false => host::Answer::GoOn,
    });
    let mut problems = Vec::new();
    bench.foreign.follow(
        &bench.contract,
        &BTreeMap::new(),
        &mut bench.disks,
        &mut bench.journal,
        &mut problems,
    );
    assert_eq!(problems.len(), 1, "{problems:?}");
    drop(hook);
    bench.undo();
    assert_eq!(bench.cpus(), "0-5");
}
