//! Instructions of a switch: what the scheduler's C source, compiled natively, executes for each, counted by
//! valgrind. The count is the same to the instruction on every run, whatever else the machine does.
//!
//! The test runs itself under valgrind, with the number of switches in its environment. Counting is on within
//! the scheduler's entry points, and off where it calls the simulated kernel, which is Rust and no part of
//! it. The difference between a long and a short run is the cost of the switches, without set-up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::process::Command;

use commonhold_dispatch::{
    BORROWS, Deadline, Discipline, Kernel, LENDS, NOBODY, Settings, TaskId, UnitRules,
};

#[path = "../../../bench/bounds.rs"]
mod bounds;

const MS: u64 = 1_000_000;
const SLICE: u64 = 5 * MS;
/// How long who sleeps does so, after each millisecond of work: not all CPUs are busy then, and not all idle.
const SLEEP: u64 = MS * 3 / 4;
const CPUS: u32 = 8;
/// Three units beside the built-in ones. The first owns half of the CPUs and lends them, the others own two
/// each.
const OWNER: u32 = 2;
const OTHERS: [u32; 2] = [3, 4];
/// Tasks of each of the others.
const TASKS: u32 = 8;

/// What is played, and how many switches: in the environment of the test that is counted.
const PLAY: &str = "COMMONHOLD_PLAY";
const SHORT: u32 = 1_000;
const LONG: u32 = 5_000;

/// Where counting begins and ends: `extern "C"` in src/kernel.rs, the scheduler's own and what it calls.
const TOGGLES: [&str; 16] = [
    "dispatch_select_cpu",
    "dispatch_enqueue",
    "dispatch_dispatch",
    "dispatch_running",
    "dispatch_stopping",
    "dispatch_tick",
    "dispatch_init_task",
    "dispatch_own",
    "dispatch_set_unit",
    "dispatch_change_unit",
    "dispatch_enter",
    "scx_bpf_dsq_insert",
    "scx_bpf_dsq_insert_vtime",
    "scx_bpf_dsq_move_to_local",
    "first_in",
    "scx_bpf_kick_cpu",
];

/// What happens at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wakes(TaskId),
    /// A CPU's task has computed for so long; and which of the CPU's switches that was, since it may be gone
    /// by then.
    Due(u32, u32),
}

/// A machine at work.
struct Play {
    kernel: Kernel,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// Of each CPU: the task that it runs, and its switches.
    cpus: Vec<(Option<TaskId>, u32)>,
    /// Tasks sleep after each millisecond; else they compute for ever.
    sleeps: bool,
    switches: u32,
}

fn kernel(disciplined: bool) -> Kernel {
    Kernel::new(&Settings {
        preempt_ns: Settings::preempt_ns(SLICE),
        disciplined,
        seed: 1,
        ..Settings::of(CPUS, 5, SLICE)
    })
}

impl Play {
    /// One unit lends its CPUs to the two others.
    fn lent(sleeps: bool) -> Play {
        let mut kernel = kernel(false);
        for (unit, weight, flags) in
            [(OWNER, 100, LENDS), (OTHERS[0], 100, BORROWS), (OTHERS[1], 300, BORROWS)]
        {
            assert!(kernel.set_unit(
                0,
                unit,
                UnitRules { parent: NOBODY, weight, flags, ..UnitRules::USUAL }
            ));
        }
        for cpu in 0..CPUS {
            let owner = if cpu < CPUS / 2 { OWNER } else { OTHERS[(cpu % 2) as usize] };
            kernel.own(0, cpu, owner);
            kernel.schedule(0, cpu, false);
        }
        Play::begin(kernel, sleeps)
    }

    /// One unit owns all CPUs, and orders the two others, which are its sub-units, by a discipline.
    fn ordered(discipline: Discipline, sleeps: bool) -> Play {
        let mut kernel = kernel(true);
        let rules = |parent, weight| UnitRules { parent, weight, discipline, ..UnitRules::USUAL };
        assert!(kernel.set_unit(0, OWNER, rules(NOBODY, 100)));
        let deadline = Deadline { period_ns: 40_000_000, budget_ns: 10_000_000, misses: 1, of: 10 };
        for (unit, weight) in [(OTHERS[0], 100), (OTHERS[1], 300)] {
            assert!(kernel.set_unit(0, unit, UnitRules { deadline, ..rules(OWNER, weight) }));
        }
        for cpu in 0..CPUS {
            kernel.own(0, cpu, OWNER);
            kernel.schedule(0, cpu, false);
        }
        Play::begin(kernel, sleeps)
    }

    fn begin(mut kernel: Kernel, sleeps: bool) -> Play {
        kernel.kicks(&mut Vec::new());
        let mut play = Play {
            kernel,
            events: BinaryHeap::new(),
            cpus: vec![(None, 0); CPUS as usize],
            sleeps,
            switches: 0,
        };
        for id in 0..2 * TASKS {
            play.kernel.start(0, id, OTHERS[(id % 2) as usize]);
            play.events.push(Reverse((u64::from(id) * MS / 7, Event::Wakes(id))));
        }
        play
    }

    fn run(&mut self, switches: u32) {
        while self.switches < switches {
            let Some(Reverse((now, event))) = self.events.pop() else { panic!("everybody sleeps for ever") };
            match event {
                Event::Wakes(id) => self.kernel.wake(now, id),
                Event::Due(cpu, number) if self.cpus[cpu as usize].1 == number => {
                    self.switch(now, cpu, !self.sleeps);
                }
                Event::Due(..) => {}
            }
            self.answer(now);
        }
    }

    /// A CPU whose task computes on, or falls asleep for a while, has its next one.
    fn switch(&mut self, now: u64, cpu: u32, computes: bool) {
        let (task, number) = self.cpus[cpu as usize];
        if let Some(id) = task.filter(|_| !computes) {
            self.events.push(Reverse((now + SLEEP, Event::Wakes(id))));
        }
        let next = self.kernel.schedule(now, cpu, task.is_some() && computes);
        self.switches += 1;
        self.cpus[cpu as usize] = (next, number + 1);
        if next.is_some() {
            let length = if self.sleeps { MS } else { self.kernel.slice_left(now, cpu).min(SLICE) };
            self.events.push(Reverse((now + length, Event::Due(cpu, number + 1))));
        }
    }

    /// Lets every kicked CPU choose a task.
    fn answer(&mut self, now: u64) {
        let mut kicks = Vec::new();
        while self.kernel.has_kicks() {
            self.kernel.kicks(&mut kicks);
            for kick in kicks.drain(..) {
                if kick.preempt || self.cpus[kick.cpu as usize].0.is_none() {
                    self.switch(now, kick.cpu, true);
                }
            }
        }
    }
}

/// Instructions of the scheduler for `switches` switches, counted by a run of this test under valgrind.
fn counted(test: &str, switches: u32) -> u64 {
    let program = std::env::current_exe().unwrap_or_else(|error| panic!("where is this program? {error}"));
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    command.args(TOGGLES.map(|name| format!("--toggle-collect={name}")));
    command.arg(program).args(["--exact", test]).env(PLAY, switches.to_string());
    let done = command.output().unwrap_or_else(|error| panic!("valgrind: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}{said}", String::from_utf8_lossy(&done.stdout));
    let collected = said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    collected.unwrap_or_else(|| panic!("valgrind counted nothing: {said}"))
}

/// In the test that is counted, plays; otherwise counts, and holds that against the bound of this name.
fn hold(name: &str, test: &str, play: impl FnOnce() -> Play) {
    if let Ok(switches) = std::env::var(PLAY) {
        let switches = switches.parse().unwrap_or_else(|error| panic!("{PLAY}={switches}: {error}"));
        play().run(switches);
        return;
    }
    if !bounds::has_tool("valgrind", "lab/packages") {
        return;
    }
    let short = counted(test, SHORT);
    assert_eq!(counted(test, SHORT), short, "two runs of the same differ");
    let each = (counted(test, LONG) - short).div_ceil(u64::from(LONG - SHORT));
    bounds::hold(name, each, file!());
}

#[test]
fn the_cost_of_a_turn_of_a_task_that_computes() {
    hold("switch-busy", "the_cost_of_a_turn_of_a_task_that_computes", || Play::lent(false));
}

#[test]
fn the_cost_of_a_turn_of_a_task_that_sleeps() {
    hold("switch-wakes", "the_cost_of_a_turn_of_a_task_that_sleeps", || Play::lent(true));
}

/// Two sub-units with eight tasks each, on eight CPUs, under each discipline.
macro_rules! disciplines {
    ($($discipline:ident $busy:ident $named_busy:literal $wakes:ident $named_wakes:literal;)*) => {$(
        #[test]
        fn $busy() {
            hold($named_busy, stringify!($busy), || Play::ordered(Discipline::$discipline, false));
        }

        #[test]
        fn $wakes() {
            hold($named_wakes, stringify!($wakes), || Play::ordered(Discipline::$discipline, true));
        }
    )*};
}

disciplines! {
    Stride stride_busy "stride-busy" stride_wakes "stride-wakes";
    Lottery lottery_busy "lottery-busy" lottery_wakes "lottery-wakes";
    Entitlement entitlement_busy "entitlement-busy" entitlement_wakes "entitlement-wakes";
    Decay decay_busy "decay-busy" decay_wakes "decay-wakes";
    Fifo fifo_busy "fifo-busy" fifo_wakes "fifo-wakes";
    Rr rr_busy "rr-busy" rr_wakes "rr-wakes";
    Batch batch_busy "batch-busy" batch_wakes "batch-wakes";
    Job job_currency_busy "job-currency-busy" job_currency_wakes "job-currency-wakes";
    Gang gang_busy "gang-busy" gang_wakes "gang-wakes";
    Dwcs dwcs_busy "dwcs-busy" dwcs_wakes "dwcs-wakes";
    Smp smp_busy "smp-busy" smp_wakes "smp-wakes";
    Classes classes_busy "classes-busy" classes_wakes "classes-wakes";
}
