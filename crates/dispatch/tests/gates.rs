//! Gangs whose gates are shut and opened. No task of a gang that is shut runs, and none of them is lost.

use commonhold_dispatch::{BORROWS, Kernel, LENDS, NOBODY, Settings, TaskId, UnitRules, near};
use commonhold_machine::Machine;

const MS: u64 = 1_000_000;
const SLICE: u64 = 5 * MS;
const CPUS: u32 = 4;
const A: u32 = 2;
const B: u32 = 3;

fn kernel() -> Kernel {
    let machine = Machine::synthetic("nodes:2 cpus:2").expect("a machine's shape");
    let mut kernel = Kernel::new(&Settings {
        preempt_ns: Settings::preempt_ns(SLICE),
        near: near(&machine, CPUS),
        gated: true,
        ..Settings::of(CPUS, 4, SLICE)
    });
    for unit in [A, B] {
        let rules = UnitRules { parent: NOBODY, weight: 100, flags: LENDS | BORROWS, ..UnitRules::USUAL };
        assert!(kernel.set_unit(0, unit, rules));
    }
    for cpu in 0..CPUS {
        kernel.own(0, cpu, if cpu < 2 { A } else { B });
        kernel.schedule(0, cpu, false);
    }
    settle(&mut kernel, 0, &mut [None; CPUS as usize]);
    kernel
}

/// Lets every kicked CPU choose a task.
fn settle(kernel: &mut Kernel, now: u64, runs: &mut [Option<TaskId>; CPUS as usize]) {
    let mut kicks = Vec::new();
    loop {
        kernel.kicks(&mut kicks);
        if kicks.is_empty() {
            break;
        }
        for kick in kicks.drain(..) {
            let at = kick.cpu as usize;
            runs[at] = kernel.schedule(now, kick.cpu, runs[at].is_some());
        }
    }
}

/// Tasks that compute, by gang.
struct World {
    kernel: Kernel,
    now: u64,
    runs: [Option<TaskId>; CPUS as usize],
    gang: Vec<u32>,
    awake: Vec<bool>,
}

impl World {
    fn new() -> World {
        World { kernel: kernel(), now: 0, runs: [None; CPUS as usize], gang: Vec::new(), awake: Vec::new() }
    }

    fn comes(&mut self, unit: u32, gang: u32) -> TaskId {
        let id = TaskId::try_from(self.gang.len()).expect("a few");
        self.kernel.start(self.now, id, unit);
        self.kernel.join(id, gang);
        self.gang.push(gang);
        self.awake.push(false);
        self.wakes(id);
        id
    }

    fn wakes(&mut self, id: TaskId) {
        self.awake[id as usize] = true;
        self.kernel.wake(self.now, id);
        settle(&mut self.kernel, self.now, &mut self.runs);
    }

    /// What a CPU runs falls asleep.
    fn sleeps(&mut self, cpu: usize) {
        if let Some(id) = self.runs[cpu] {
            self.awake[id as usize] = false;
            self.runs[cpu] = self.kernel.schedule(self.now, u32::try_from(cpu).expect("a few"), false);
            settle(&mut self.kernel, self.now, &mut self.runs);
        }
    }

    fn gate(&mut self, gangs: &[(u32, bool)]) {
        self.kernel.gate(self.now, gangs);
        settle(&mut self.kernel, self.now, &mut self.runs);
    }

    /// A slice passes on each CPU.
    fn passes(&mut self) {
        for cpu in 0..CPUS {
            self.now += SLICE / u64::from(CPUS);
            self.kernel.give_turn_up(cpu);
            let at = cpu as usize;
            self.runs[at] = self.kernel.schedule(self.now, cpu, self.runs[at].is_some());
            settle(&mut self.kernel, self.now, &mut self.runs);
        }
    }

    fn running(&self) -> Vec<TaskId> {
        let mut running: Vec<TaskId> = self.runs.iter().flatten().copied().collect();
        running.sort_unstable();
        running
    }
}

#[test]
fn gangs_change_places_at_once() {
    let mut w = World::new();
    let first: Vec<TaskId> = (0..4).map(|_| w.comes(A, 0)).collect();
    assert_eq!(w.running(), first);
    w.gate(&[(1, true)]);
    let second: Vec<TaskId> = (0..4).map(|_| w.comes(A, 1)).collect();
    assert_eq!((w.running(), w.kernel.parked(), w.kernel.waiting()), (first.clone(), 4, 0), "born behind it");
    w.gate(&[(0, true), (1, false)]);
    assert_eq!((w.running(), w.kernel.parked(), w.kernel.waiting()), (second, 4, 0));
    w.gate(&[(0, false), (1, true)]);
    assert_eq!(w.running(), first);
    w.gate(&[(0, true)]);
    assert_eq!((w.running(), w.kernel.parked()), (Vec::new(), 8));
    // One with active tasks would keep its parent.
    for parent in [B, NOBODY] {
        let rules = UnitRules { parent, weight: 100, flags: LENDS | BORROWS, ..UnitRules::USUAL };
        assert!(w.kernel.set_unit(w.now, A, rules), "who is parked is not active");
    }
    w.gate(&[(0, false), (1, false)]);
    assert_eq!((w.kernel.parked(), w.kernel.waiting()), (0, 4), "none is lost");
}

/// The owner's tasks are parked: its CPUs are lent meanwhile, and called back when the gate opens.
#[test]
fn parked_tasks_call_no_cpu_back() {
    let mut w = World::new();
    w.gate(&[(0, true)]);
    let owners: Vec<TaskId> = (0..2).map(|_| w.comes(A, 0)).collect();
    let guests: Vec<TaskId> = (0..4).map(|_| w.comes(B, NOBODY)).collect();
    for _ in 0..4 {
        w.passes();
        assert_eq!(w.running(), guests);
    }
    assert_eq!(w.kernel.unit(A).call_backs().count, 0);
    let waited = |w: &World| w.kernel.account(A).waited_ns.iter().sum::<u64>();
    assert_eq!(waited(&w), 0);
    w.gate(&[(0, false)]);
    let running = w.running();
    assert!(owners.iter().all(|id| running.contains(id)), "{running:?}");
    assert_eq!((w.kernel.unit(A).call_backs().count, waited(&w)), (2, 0), "parked is not waited");
}

/// Random events: no task of a shut gang runs, no CPU idles while another task waits, and all counts return
/// to 0.
#[test]
fn no_task_passes_a_shut_gate_and_no_task_is_lost() {
    let mut random: u64 = 1;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for _ in 0..50 {
        let mut w = World::new();
        let mut shut = [false; 4];
        for _ in 0..200 {
            match draw(6) {
                0 if w.gang.len() < 16 => {
                    let gang = u32::try_from(draw(5)).expect("a few");
                    w.comes(if draw(2) == 0 { A } else { B }, if gang == 4 { NOBODY } else { gang });
                }
                1 => w.sleeps(usize::try_from(draw(4)).expect("a few")),
                2 => {
                    if let Some(id) = w.awake.iter().position(|awake| !awake) {
                        w.wakes(TaskId::try_from(id).expect("a few"));
                    }
                }
                3 => {
                    let gangs: Vec<(u32, bool)> = (0..4).map(|gang| (gang, draw(2) == 0)).collect();
                    for (gang, is) in &gangs {
                        shut[*gang as usize] = *is;
                    }
                    w.gate(&gangs);
                }
                4 => {
                    let id = draw(16);
                    if let Some(gang) = w.gang.get(usize::try_from(id).expect("a few")) {
                        let unit = if draw(2) == 0 { A } else { B };
                        w.kernel.move_to_unit(w.now, TaskId::try_from(id).expect("a few"), unit);
                        w.kernel.join(TaskId::try_from(id).expect("a few"), *gang);
                        settle(&mut w.kernel, w.now, &mut w.runs);
                        // A running task that joins a shut gang is found at the end of its slice.
                        w.passes();
                    }
                }
                _ => w.passes(),
            }
            let is_shut = |id: TaskId| shut.get(w.gang[id as usize] as usize).copied().unwrap_or(false);
            let running = w.running();
            assert!(!running.iter().any(|id| is_shut(*id)), "{running:?} {shut:?}");
            let ids = || 0..TaskId::try_from(w.gang.len()).expect("a few");
            let parked = ids().filter(|id| w.awake[*id as usize] && is_shut(*id)).count();
            // A task that already waited when its gate was shut is parked when a CPU finds it.
            assert!(w.kernel.parked() as usize <= parked, "{} of {parked}", w.kernel.parked());
            let wait = ids().filter(|id| w.awake[*id as usize] && !is_shut(*id)).count() - running.len();
            assert!(wait == 0 || running.len() == CPUS as usize, "{wait} wait: {running:?}");
        }
        w.gate(&[0, 1, 2, 3].map(|gang| (gang, false)));
        assert_eq!(w.kernel.parked(), 0);
        while let Some(cpu) = w.runs.iter().position(Option::is_some) {
            w.sleeps(cpu);
        }
        assert_eq!((w.kernel.runnable(), w.awake.iter().filter(|awake| **awake).count()), (0, 0));
        for unit in [A, B] {
            assert_eq!(w.kernel.waiting_in(unit), 0);
            // A count left over would refuse another parent.
            let rules = UnitRules { parent: A + B - unit, weight: 100, flags: 0, ..UnitRules::USUAL };
            assert!(w.kernel.set_unit(w.now, unit, rules), "tasks of unit {unit} are still counted");
            assert!(w.kernel.set_unit(w.now, unit, UnitRules { parent: NOBODY, ..rules }));
        }
    }
}
