use proptest::prelude::*;

use super::*;

const WHOLE: u32 = 1_000_000;

fn kernel(lock_demand: u64, stall: u64, cpus: usize) -> Kernel {
    Kernel::new(&Contention { lock_demand, stall }, cpus)
}

/// The slowdown of `cpus` CPUs that work in the kernel only.
fn all_in_kernel(kernel: &Kernel, cpus: u64) -> Slowdown {
    kernel.slowdown(WHOLE, (cpus - 1) * MILLIONTH)
}

// D = 1/2, Z = 1/2. One: R = 1/2, Q = 1/2 * 1/2 / (1/2 + 1/2) ... worked per customer:
//   P=1: W = 0,                R = 1/2,  Q = 1 * (1/2) / (1/2 + 1/2) = 1/2
//   P=2: W = 1/2 * 1/2 = 1/4,  R = 3/4,  Q = 2 * (3/4) / (1/2 + 3/4) = 6/5
//   P=3: W = 1/2 * 6/5 = 3/5,  R = 11/10, Q = 3 * (11/10) / (1/2 + 11/10) = 33/16
//   P=4: W = 1/2 * 33/16 = 33/32 = 1.03125
#[test]
fn waiting_for_the_lock_by_hand() {
    let kernel = kernel(500_000, 0, 4);
    let waits = [1, 2, 3, 4].map(|cpus| all_in_kernel(&kernel, cpus).lock);
    assert_eq!(waits, [0, 250_000, 600_000, 1_031_250]);
}

// 3 others at 2 % each: 6 %.
#[test]
fn stall_grows_with_each_other_cpu() {
    let slowdown = all_in_kernel(&kernel(0, 20_000, 4), 4);
    assert_eq!(slowdown, Slowdown { total: 1_060_000, lock: 0, stall: 60_000 });
}

// D = 1/2, as above: beside 1.5 others half way between 1/4 and 3/5, 0.425; the stall is 1.5 * 2 % = 3 %. A
// task with 40 % kernel work feels 40 % of both: 0.17 and 0.012.
#[test]
fn part_time_kernel_work_is_interpolated_and_weighted() {
    let slowdown = kernel(500_000, 20_000, 4).slowdown(400_000, 1_500_000);
    assert_eq!(slowdown, Slowdown { total: 1_182_000, lock: 170_000, stall: 12_000 });
}

#[test]
fn alone_or_outside_the_kernel_nothing_is_slowed() {
    let kernel = kernel(117_256, 17_714, 8);
    let free = Slowdown { total: MILLIONTH, lock: 0, stall: 0 };
    assert_eq!(kernel.slowdown(WHOLE, 0), free);
    assert_eq!(kernel.slowdown(0, 7 * MILLIONTH), free);
    assert_eq!(Kernel::new(&Contention { lock_demand: 0, stall: 0 }, 8).slowdown(WHOLE, 7 * MILLIONTH), free);
}

// Nobody thinks: everyone else is always in front. W(P) = P - 1.
#[test]
fn work_that_is_all_lock_is_served_in_turn() {
    let kernel = kernel(MILLIONTH, 0, 5);
    assert_eq!([1, 2, 5].map(|cpus| all_in_kernel(&kernel, cpus).lock), [0, MILLIONTH, 4 * MILLIONTH]);
    assert_eq!(
        Kernel::new(&Contention { lock_demand: 5 * MILLIONTH, stall: 0 }, 5),
        kernel,
        "no more than all"
    );
}

// Seed 000, section 4.2.3: eight CPUs, each with a kernel-intensive job, take 31 % longer than one; 60 % of
// that is synchronisation, 18.6 %, and 40 % stall, 12.4 %.
//   γ = 12.4 % / 7 others = 1.7714 %
//   D: W(8) = 18.6 %, by bisection = 11.7256 %
// With these, what one job takes on 4 CPUs and on 2, against one: +10.35 % and +3.15 %, a ratio of +6.99 %.
// (Section 4.4 reports +4 %, for a workload that also waits for its disk.)
#[test]
fn calibration_on_the_published_eight_cpus() {
    let waits = |demand: u64| all_in_kernel(&kernel(demand, 0, 8), 8).lock;
    let (mut low, mut high) = (0, MILLIONTH);
    while high - low > 1 {
        let middle = u64::midpoint(low, high);
        if waits(middle) < 186_000 { low = middle } else { high = middle }
    }
    assert_eq!(high, 117_256);

    let kernel = kernel(117_256, 124_000 / 7, 8);
    assert_eq!(all_in_kernel(&kernel, 8), Slowdown { total: 1_309_999, lock: 186_001, stall: 123_998 });
    assert_eq!(all_in_kernel(&kernel, 4), Slowdown { total: 1_103_523, lock: 50_381, stall: 53_142 });
    assert_eq!(all_in_kernel(&kernel, 2), Slowdown { total: 1_031_463, lock: 13_749, stall: 17_714 });
}

#[test]
fn a_machine_of_4096_cpus_saturates_at_the_demand_per_cpu() {
    // The lock carries 1/D = 10 CPUs' work at most: 4,096 CPUs take 4,096 * D = 409.6 each, of which 408.6
    // they wait.
    let kernel = kernel(100_000, 0, 4_096);
    assert_eq!(all_in_kernel(&kernel, 4_096).lock, 408_600_000);
    assert_eq!(all_in_kernel(&kernel, 4_095).lock, 408_500_000);
}

#[test]
#[should_panic(expected = "more kernel work (4000001) than other CPUs (4000000)")]
fn more_running_tasks_than_cpus_are_refused() {
    let _ = kernel(0, 0, 5).slowdown(WHOLE, 4 * MILLIONTH + 1);
}

#[test]
fn a_stall_beyond_all_bounds_is_the_largest_number() {
    assert_eq!(all_in_kernel(&kernel(0, u64::MAX, 4_096), 4_096).total, u64::MAX);
}

proptest! {
    /// One million, the lock and the stall add up, and neither is off by more than its rounding.
    #[test]
    fn parts_add_up(demand in 0..=MILLIONTH, stall in 0..MILLIONTH, k in 0..=WHOLE, others in 0..31 * MILLIONTH) {
        let slowdown = kernel(demand, stall, 32).slowdown(k, others);
        prop_assert_eq!(slowdown.total, MILLIONTH + slowdown.lock + slowdown.stall);
        let exact = real(stall) * real(others) * f64::from(k) / 1e12;
        prop_assert!((real(slowdown.stall) - exact).abs() <= 1.0);
    }

    /// More kernel work, one's own or others', makes nobody faster.
    #[test]
    fn monotone(demand in 0..=MILLIONTH, k in 0..WHOLE, others in 0..31 * MILLIONTH, more in 0..MILLIONTH) {
        let kernel = kernel(demand, 10_000, 33);
        let before = kernel.slowdown(k, others);
        let beside = kernel.slowdown(k, others + more);
        prop_assert!(beside.lock >= before.lock && beside.stall >= before.stall);
        prop_assert!(kernel.slowdown(k + 1, others).total >= before.total);
    }

    /// The lock is never held for more than the whole time: P customers each hold it for D out of every 1 +
    /// W.
    #[test]
    fn the_lock_is_held_by_one_at_a_time(demand in 1..=MILLIONTH, cpus in 1u64..500) {
        let wait = all_in_kernel(&kernel(demand, 0, 500), cpus).lock;
        prop_assert!(cpus * demand <= MILLIONTH + wait + 1, "{cpus} CPUs, wait {wait}");
    }

    /// Each further CPU makes the others wait longer by a larger step than the one before, and never by more
    /// than D. Each of the three entries may be off by half a millionth.
    #[test]
    fn steps_grow_up_to_the_demand(demand in 0..=MILLIONTH, cpus in 2u64..500) {
        let kernel = kernel(demand, 0, 501);
        let [below, at, above] = [cpus - 1, cpus, cpus + 1].map(|n| all_in_kernel(&kernel, n).lock);
        prop_assert!(above - at <= demand + 1);
        prop_assert!(above - at + 2 >= at - below);
    }
}
