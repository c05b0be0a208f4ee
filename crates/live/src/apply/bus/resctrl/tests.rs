//! Tests with a folder that behaves like `resctrl`, in what the groups need.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;

use commonhold_contract::{Amount, Gangs, GangsShare, JobKind, Member, MemberKind};
use commonhold_policy::{JobFacts, JobId};

use super::*;
use crate::host::{Answer, Kind, Tampering, tamper};
use crate::observe::files::fake;
use crate::observe::roster::Scan;

/// Beyond any `pid_max`: no real process has it.
const PID: u32 = 90_000_001;

struct World {
    dir: tempfile::TempDir,
    contract: Contract,
    roster: Roster,
    journal: Journal,
    bus: Bus,
    /// The threads written to groups, in order.
    written: Rc<RefCell<Vec<(String, String)>>>,
    #[allow(dead_code, reason = "it goes with this")]
    hook: Tampering,
}

impl World {
    /// Unit `a` has the command `a`, its sub-unit `a/x` the command `x`; likewise `b`.
    fn new(groups_max: usize) -> World {
        let dir = fake::tree(&[
            ("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/resctrl rw - resctrl resctrl rw\n"),
            ("/sys/fs/resctrl/info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n"),
            ("/sys/fs/resctrl/info/L3_MON/num_rmids", "2\n"),
            ("/sys/fs/resctrl/info/MB/min_bandwidth", "10\n"),
            ("/sys/fs/resctrl/info/MB/bandwidth_gran", "10\n"),
            ("/sys/fs/resctrl/schemata", "MB:0=100;1=100\nL3:0=f;1=f\n"),
            ("/sys/fs/resctrl/tasks", ""),
            ("/run/x", ""),
            ("/sys/fs/resctrl/mon_groups/x", ""),
        ]);
        let mut contract = Contract::default();
        for (parent, name) in [(None, "a"), (Some("a"), "x"), (None, "b")] {
            let parent = parent.and_then(|parent| contract.find(parent));
            let unit = contract.add(parent, name);
            let kind = MemberKind::Command(name.to_owned());
            contract.units[unit.index()].members.push(Member { kind, span: 0..0 });
            // A sub-unit's rules select among its encloser's members.
            if name == "a" {
                let kind = MemberKind::Command("x".to_owned());
                contract.units[unit.index()].members.push(Member { kind, span: 0..0 });
            }
            contract.units[unit.index()].limit.bus = Some(Amount::Part(500_000));
        }
        let written = Rc::new(RefCell::new(Vec::new()));
        let hook = behave(groups_max, Rc::clone(&written));
        let roster = Roster::new(&dir.path().join("proc"), &[]).unwrap();
        let (journal, _) = Journal::create(&dir.path().join("run")).unwrap();
        World { dir, contract, roster, journal, bus: Bus::default(), written, hook }
    }

    fn opened(groups_max: usize) -> World {
        let mut world = World::new(groups_max);
        let mut problems = Vec::new();
        world.bus.open(world.dir.path(), &world.contract, &mut world.journal, &mut problems);
        assert!(problems.is_empty() && world.bus.filesystem.is_some(), "{problems:?}");
        world
    }

    fn put(&self, pid: u32, comm: &str, threads: &[u32]) {
        let proc = self.dir.path().join("proc").join(pid.to_string());
        fs::create_dir_all(proc.join("task")).unwrap();
        let stat = format!("{pid} ({comm}) S 0 1 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 101 0\n");
        fs::write(proc.join("stat"), stat).unwrap();
        fs::write(proc.join("status"), "Uid:\t0\t0\nGid:\t0\t0\nGroups:\t\n").unwrap();
        fs::write(proc.join("cmdline"), format!("/bin/{comm}\0")).unwrap();
        fs::write(proc.join("cgroup"), "0::/\n").unwrap();
        for tid in threads {
            fs::create_dir_all(proc.join("task").join(tid.to_string())).unwrap();
        }
    }

    fn look(&mut self, now: Time) -> Vec<String> {
        self.roster.refresh(&self.contract, now, Scan::Full).unwrap();
        let World { bus, contract, roster, journal, .. } = self;
        bus.follow(now, true, contract, roster, journal).iter().map(ToString::to_string).collect()
    }

    fn written(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.written.borrow_mut())
    }

    fn group(&self, path: &str) -> PathBuf {
        self.dir.path().join("sys/fs/resctrl").join(path)
    }

    fn count(&self, group: &str, domain: u32, text: &str) {
        let dir = self.group(group).join(format!("mon_data/mon_L3_{domain:02}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("mbm_total_bytes"), text).unwrap();
    }

    fn bytes(&self, name: &str) -> Option<u64> {
        let mut facts = vec![UnitFacts::default(); self.contract.units.len()];
        self.bus.tell(&mut facts);
        facts[self.contract.find(name).unwrap().index()].bus.map(|bus| bus.bytes)
    }

    fn order(&mut self, name: &str, percent: u32) -> Result<(), String> {
        let unit = self.contract.find(name).unwrap();
        let World { bus, roster, journal, .. } = self;
        bus.order(unit, percent, roster, journal).map_err(|error| error.to_string())
    }
}

/// A group has its files from the start, takes one thread per write, and is removed with its content.
fn behave(groups_max: usize, written: Rc<RefCell<Vec<(String, String)>>>) -> Tampering {
    let made = RefCell::new(0);
    tamper(move |call| {
        let in_group = call.path.to_string_lossy().contains("commonhold-");
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        match call.kind {
            Kind::MakeDir if in_group => {
                if *made.borrow() == groups_max {
                    return Answer::Refuse(libc::ENOSPC);
                }
                *made.borrow_mut() += 1;
            }
            Kind::RemoveDir if in_group => {
                *made.borrow_mut() -= 1;
                if let Ok(entries) = fs::read_dir(call.path) {
                    for entry in entries {
                        let path = entry.unwrap().path();
                        if path.is_dir() {
                            fs::remove_dir_all(path).unwrap();
                        } else {
                            fs::remove_file(path).unwrap();
                        }
                    }
                }
            }
            Kind::Write if call.path.ends_with("tasks") => {
                let text = String::from_utf8_lossy(call.bytes).into_owned();
                let group = name(call.path.parent().unwrap());
                let inside = fs::read_to_string(call.path).unwrap_or_default();
                fs::write(call.path, format!("{}{inside}", text.clone() + "\n")).unwrap();
                written.borrow_mut().push((group, text));
            }
            Kind::Read if call.path.ends_with("schemata") && !call.path.exists() => {
                fs::write(call.path, "    MB:0=100;1=100\n    L3:0=f;1=f\n").unwrap();
            }
            Kind::Write if call.path.ends_with("schemata") => fs::write(call.path, "").unwrap(),
            _ => {}
        }
        Answer::GoOn
    })
}

fn pairs(all: &[(&str, u32)]) -> Vec<(String, String)> {
    all.iter().map(|(group, tid)| ((*group).to_owned(), tid.to_string())).collect()
}

#[test]
fn threads_of_a_unit_and_its_sub_units_are_counted_together() {
    let mut world = World::opened(9);
    world.put(PID, "a", &[PID, PID + 1]);
    world.put(PID + 10, "x", &[PID + 10]);
    world.put(PID + 20, "other", &[PID + 20]);
    assert_eq!(world.look(1), [""; 0]);
    let a = format!("commonhold-{}-a", world.contract.find("a").unwrap().0);
    assert_eq!(world.written(), pairs(&[(&a, PID), (&a, PID + 1), (&a, PID + 10)]));
    let entries = Journal::read(world.journal.path()).unwrap();
    assert!(entries.contains(&Entry::ResourceGroup { dir: world.group(&format!("mon_groups/{a}")) }));
    world.count(&format!("mon_groups/{a}"), 0, "500\n");
    world.look(2_000_000_000);
    world.count(&format!("mon_groups/{a}"), 0, "900\n");
    world.look(4_000_000_000);
    assert_eq!((world.bytes("a"), world.bytes("a/x"), world.bytes("b")), (Some(400), None, None));
    assert_eq!(world.written(), [], "processes in their group stay");
    // One of them leaves its unit for none: it goes to the default group.
    world.put(PID, "other", &[PID, PID + 1]);
    world.look(6_000_000_000);
    assert_eq!(world.written(), pairs(&[("resctrl", PID), ("resctrl", PID + 1)]));
}

#[test]
fn a_removed_process_is_moved_back_and_another_programs_stay() {
    let mut world = World::opened(9);
    world.put(PID, "a", &[PID]);
    world.put(PID + 1, "b", &[PID + 1]);
    fs::write(world.dir.path().join(format!("proc/{}/cpu_resctrl_groups", PID + 1)), "res:p0\nmon:/\n")
        .unwrap();
    let problems = world.look(1);
    assert!(problems.len() == 1 && problems[0].contains("another program"), "{problems:?}");
    let a = format!("commonhold-{}-a", world.contract.find("a").unwrap().0);
    assert_eq!(world.written(), pairs(&[(&a, PID)]));
    fs::write(world.group(&format!("mon_groups/{a}/tasks")), "").unwrap();
    assert_eq!(world.look(2), [""; 0], "it is reported once, and not checked again so soon");
    assert_eq!(world.written(), []);
    world.look(2_000_000_000);
    assert_eq!(world.written(), pairs(&[(&a, PID)]));
}

#[test]
fn units_for_which_no_group_is_left_are_not_measured_and_that_is_reported_once() {
    let mut world = World::opened(1);
    let problems = world.look(1);
    assert!(
        problems.len() == 1 && problems[0].contains("unit b") && problems[0].contains("no group left of 2"),
        "{problems:?}"
    );
    assert_eq!(world.look(2_000_000_000), [""; 0]);
}

#[test]
fn a_throttled_unit_has_its_own_control_group() {
    let mut world = World::opened(9);
    world.put(PID, "a", &[PID]);
    world.look(1);
    let a = format!("commonhold-{}-a", world.contract.find("a").unwrap().0);
    let monitored = format!("mon_groups/{a}");
    world.count(&monitored, 0, "100\n");
    world.look(2_000_000_000);
    world.count(&monitored, 0, "160\n");
    world.written();
    assert_eq!(world.order("a", 100), Ok(()), "nothing to do");
    assert!(!world.group(&a).exists());
    // A value between two steps is rounded up.
    assert_eq!(world.order("a", 31), Ok(()));
    assert_eq!(fs::read_to_string(world.group(&a).join("schemata")).unwrap(), "MB:0=40;1=40\n");
    assert_eq!(world.written(), pairs(&[(&a, PID)]));
    assert!(!world.group(&monitored).exists(), "its group is free for another");
    world.count(&a, 0, "7\n");
    world.look(4_000_000_000);
    world.count(&a, 0, "17\n");
    world.look(6_000_000_000);
    assert_eq!(world.bytes("a"), Some(70), "60 in the one group and 10 in the other");
    assert_eq!(world.order("a", 100), Ok(()));
    assert_eq!(fs::read_to_string(world.group(&a).join("schemata")).unwrap(), "MB:0=100;1=100\n");
    // A contract without the unit removes its group.
    world.bus.follow_contract(&Contract::default());
    assert!(!world.group(&a).exists() && world.bytes("a").is_none());
}

#[test]
fn a_throttle_that_is_not_in_force_is_an_error_and_leaves_no_group() {
    let mut world = World::opened(9);
    world.put(PID, "a", &[PID]);
    world.look(1);
    let _hook = tamper(|call| {
        let group = call.path.to_string_lossy().contains("commonhold-");
        if group && call.is(Kind::Read, "schemata") {
            return Answer::Falsify(b"MB:0=100;1=50\n".to_vec());
        }
        if group && call.is(Kind::Write, "schemata") {
            fs::write(call.path, "").unwrap();
        }
        if call.kind == Kind::RemoveDir {
            fs::remove_file(call.path.join("schemata")).unwrap();
        }
        Answer::GoOn
    });
    let a = format!("commonhold-{}-a", world.contract.find("a").unwrap().0);
    let problems = world.order("a", 50).unwrap_err();
    assert!(problems.contains("wrote `MB:0=50;1=50` but reads back `MB:0=100;1=50`"), "{problems}");
    assert!(!world.group(&a).exists());
}

#[test]
fn a_contract_without_the_bus_changes_nothing() {
    let mut world = World::new(9);
    for unit in &mut world.contract.units {
        unit.limit.bus = None;
    }
    world.bus.open(world.dir.path(), &world.contract, &mut world.journal, &mut Vec::new());
    assert!(world.bus.throttles().is_none() && world.look(1).is_empty());
    assert!(Journal::read(world.journal.path()).unwrap().is_empty());
}

/// A job that is one process, in a contract that chooses gangs by cache occupancy.
fn job(world: &World, number: u32, unit: &str) -> JobFacts {
    let unit = world.contract.find(unit).unwrap();
    let name = String::new();
    JobFacts { job: JobId(number), name, unit, threads: Vec::new(), memory: None, shared: None }
}

impl World {
    fn by_cache(groups_max: usize) -> World {
        let mut world = World::opened(groups_max);
        world.contract.machine.gangs.by = Gangs::LatestQuantum;
        world.contract.machine.gangs.share = GangsShare::Cache;
        for unit in &mut world.contract.units {
            unit.job = Some(JobKind::Process);
        }
        world
    }

    /// A scan at units and then at jobs (process, job, unit). Returns each job's reported occupancy, and the
    /// problems.
    fn jobs(&mut self, now: Time, processes: &[(u32, u32, &str)]) -> (Vec<Option<u64>>, Vec<String>) {
        let mut problems = self.look(now);
        let key = |pid| ProcessKey { pid, start: 101 };
        let members = processes.iter().map(|(pid, number, _)| (key(*pid), JobId(*number))).collect();
        let mut jobs: Vec<JobFacts> =
            processes.iter().map(|(_, number, unit)| job(self, *number, unit)).collect();
        let World { bus, contract, roster, journal, .. } = self;
        let units = jobs.iter().map(|facts| (facts.job, facts.unit)).collect();
        let found = bus.settle_jobs(now, contract, units, &members, (roster, journal));
        bus.tell_jobs(now, &mut jobs);
        problems.extend(found.iter().map(ToString::to_string));
        (jobs.iter().map(|facts| facts.shared.map(|shared| shared.amount)).collect(), problems)
    }

    fn holds(&self, group: &str, text: &str) {
        let dir = self.group(group).join("mon_data/mon_L3_00");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("llc_occupancy"), text).unwrap();
    }
}

const S: Time = 1_000_000_000;

/// Two processes of `a` are a job each, with groups beside the unit's. Their occupancy is counted separately,
/// their memory traffic in the unit.
#[test]
fn jobs_have_groups_within_their_units() {
    let mut world = World::by_cache(9);
    let (first, second) = (PID, PID + 1);
    world.put(first, "a", &[first]);
    world.put(second, "a", &[second, second + 100]);
    let processes = [(first, 1, "a"), (second, 2, "a")];
    let a = format!("commonhold-{}-a", world.contract.find("a").unwrap().0);
    assert_eq!(world.jobs(S, &processes), (vec![None, None], vec![]));
    let (one, two) = ("mon_groups/commonhold-job-1", "mon_groups/commonhold-job-2");
    let expected = pairs(&[(&a, first), (&a, second), (&a, second + 100)]);
    let written = world.written();
    assert_eq!(written[..3], expected);
    assert_eq!(
        written[3..],
        pairs(&[
            ("commonhold-job-1", first),
            ("commonhold-job-2", second),
            ("commonhold-job-2", second + 100)
        ])
    );
    world.holds(one, "4000\n");
    world.holds(two, "Unavailable\n");
    world.count(one, 0, "100\n");
    assert_eq!(world.jobs(3 * S, &processes), (vec![Some(8_000), None], vec![]));
    assert_eq!(world.written(), [], "each is where it belongs");
    world.holds(one, "1000\n");
    world.holds(two, "70\n");
    world.count(one, 0, "150\n");
    assert_eq!(world.jobs(4 * S, &processes), (vec![Some(9_000), Some(70)], vec![]));
    assert_eq!(world.bytes("a"), Some(50), "what the job transferred");
    // One ends.
    let left = [(second, 2, "a")];
    world.jobs(5 * S, &left);
    assert!(!world.group(one).exists() && world.group(two).exists());
    // The unit is throttled: its job's group is then inside its own.
    world.written();
    assert_eq!(world.order("a", 50), Ok(()));
    fs::create_dir(world.group(&a).join("mon_groups")).unwrap(); // as the kernel does
    assert_eq!(world.jobs(6 * S, &left).1, Vec::<String>::new());
    let within = format!("{a}/mon_groups/commonhold-job-2");
    assert!(!world.group(two).exists() && world.group(&within).exists());
    assert_eq!(world.written().last().unwrap().0, "commonhold-job-2");
    // If gangs are chosen by something else, jobs have no groups, and their tasks go back to the unit's.
    world.contract.machine.gangs.share = GangsShare::Bus;
    assert_eq!(world.jobs(7 * S, &left), (vec![None], vec![]));
    assert!(!world.group(&within).exists());
    world.look(8 * S);
    assert_eq!(world.written().last().unwrap().0, a);
    let journal = Journal::read(world.journal.path()).unwrap();
    assert_eq!(journal.iter().filter(|entry| matches!(entry, Entry::ResourceGroup { .. })).count(), 6);
}

/// Units a and b have a group each, and one job.
#[test]
fn jobs_without_a_group_are_not_measured_and_that_is_reported_once() {
    let mut world = World::by_cache(3);
    let processes: Vec<(u32, u32, &str)> = (0..3).map(|at| (PID + at, at, "a")).collect();
    for (pid, ..) in &processes {
        world.put(*pid, "a", &[*pid]);
    }
    let (_, problems) = world.jobs(S, &processes);
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].contains("no group left of 2") && problems[0].contains("`first-rate`"),
        "{}",
        problems[0]
    );
    world.holds("mon_groups/commonhold-job-0", "10\n");
    assert_eq!(world.jobs(2 * S, &processes), (vec![Some(10), None, None], vec![]));
    // The job with a group ends: the next one gets it.
    assert_eq!(world.jobs(3 * S, &processes[1..]), (vec![None, None], vec![]));
    assert!(world.group("mon_groups/commonhold-job-1").exists());
}

/// The process ends, and its number is reused while it is moved. Fails if the owner of the number is not
/// checked again.
#[test]
fn a_reused_number_goes_to_the_default_group() {
    let mut world = World::opened(2);
    world.put(PID, "a", &[PID]);
    world.look(1);
    let dir = world.bus.groups[&world.contract.find("a").unwrap()].dir.clone();
    let key = world.roster.member(PID).unwrap().key;
    fs::remove_dir_all(world.dir.path().join(format!("proc/{PID}"))).unwrap();
    world.written();
    // The number is in the group's file, as the kernel lists it.
    fs::write(dir.join("tasks"), format!("{PID}\n")).unwrap();
    move_to_default(&dir, PID);
    let to: Vec<String> = world.written().into_iter().map(|(_, thread)| thread).collect();
    assert_eq!(to, [PID.to_string()]);
    move_threads(key, &dir, world.roster.procfs()).unwrap();
    assert_eq!(world.written(), [], "nothing is written for a process that has ended");
}
