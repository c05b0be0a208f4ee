//! How fast the simulator is, with tasks that compute for ever, in turns, and nothing else. See
//! bench/simulator.
//!
//! usage: `round_robin CPUS TASKS SLICE_US SECONDS`. SECONDS are virtual. It prints events, and events per
//! second of real time.
#![allow(clippy::disallowed_types, reason = "it measures time")]

use commonhold_contract::{Scheme, UnitId};
use commonhold_machine::Machine;
use commonhold_sim::scenario::{
    Amount, CallBack, Enforces, Hardware, Job, KernelCosts, MemoryLoans, Op, Program, Scenario, Scheduler,
    Spread, Workload,
};

fn scenario(cpus: u32, tasks: u32, slice_ns: u64, seconds: u64, scheme: Scheme) -> Scenario {
    let text = "version = 1\n[unit.a]\n[unit.b]\n";
    let mut contract = commonhold_contract::parse(text).contract.expect("it is a contract");
    contract.machine.scheme = scheme;
    let machine = Machine::synthetic(&format!("cpus:{cpus} memory:64GiB")).expect("it is a machine");
    let kernel = KernelCosts {
        tick_ns: 0,
        scheduler: Scheduler::Commonhold,
        slice_ns,
        switch_ns: 0,
        signal_ns: 0,
        counter_age_ns: 0,
        ipi_ns: 0,
        ipi_delays_ns: Vec::new(),
        idle_delays_ns: Vec::new(),
        interrupt_ns: 0,
        fault_ns: 0,
        request_ns: 0,
        fork_ns: 0,
        call_back: CallBack::Now,
        frame_bytes: 4096,
        memory_bytes: 1 << 20,
        cluster_pages: 4,
        memory_period_ns: 100_000_000,
        memory_loans: MemoryLoans::InTime,
        read_ahead: 0,
        write_behind: 1,
        request_sectors: 8,
        dirty_limit: 100_000,
        dirty_age_ns: 30_000_000_000,
    };
    let work = Amount { mean: u64::MAX / 4, spread: Spread::None };
    let program = Program {
        name: "spin".to_owned(),
        memory_bytes: 0,
        resident: false,
        reuse_ns: 1,
        hot_bytes: 0,
        stalled: 0,
        shares: 0,
        of_first: 0,
        is_job: false,
        ops: vec![Op::Cpu { work, kernel: 0, bus_per_ms: 0, cache_bytes: 0, core: 0 }],
    };
    let job = |unit: u32| Job {
        name: format!("job{unit}"),
        unit: UnitId(unit),
        program: 0,
        start_ns: 0,
        count: tasks / 2,
        every_ns: 0,
        deadline_ns: None,
        disk: 0,
        background: false,
    };
    Scenario {
        contract,
        hardware: Hardware {
            machine,
            enforces: Enforces::Irix,
            kernel,
            latency: None,
            cache: None,
            last_cache_miss: 1_000_000,
            bus: None,
            contention: None,
            interrupts: None,
            disturbance: None,
            disks: Vec::new(),
        },
        workload: Workload {
            horizon_ns: seconds * 1_000_000_000,
            programs: vec![program],
            jobs: vec![job(2), job(3)],
            ..Workload::default()
        },
    }
}

fn main() {
    let argument = |n: usize, default: u32| -> u32 {
        std::env::args().nth(n).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (cpus, tasks) = (argument(1, 8), argument(2, 24));
    let (slice_us, seconds) = (argument(3, 1000), argument(4, 60));
    for scheme in [Scheme::Smp, Scheme::Isolate] {
        let scenario = scenario(cpus, tasks, u64::from(slice_us) * 1000, u64::from(seconds), scheme);
        let begun = std::time::Instant::now();
        let outcome = commonhold_sim::run(&scenario, 1).expect("there is memory enough");
        let took = begun.elapsed().as_secs_f64();
        println!(
            "{scheme}: {} events in {took:.3} s: {:.2} million a second; {} broken of {} checks {:?}",
            outcome.events,
            events(outcome.events) / took / 1e6,
            outcome.broken,
            outcome.checks,
            outcome.notes.first()
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn events(count: u64) -> f64 {
    count as f64
}
