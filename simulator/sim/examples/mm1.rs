//! M/M/1 on the simulator's event queue and random numbers, without its scheduler and its checks: what
//! `bench/simulator mm1` compares with the same queue in other simulators.
//!
//! usage: mm1 CUSTOMERS    with a utilisation of 0.8; prints the customers, and the mean time in the system in units
//! of the mean service time (5 in theory)
//!
//! An event is an arrival or a departure.

use std::collections::VecDeque;

use commonhold_sim::chance::Chance;
use commonhold_sim::scenario::{Amount, Spread};
use commonhold_sim::timers::Timers;

const ARRIVAL: u32 = 0;
const DEPARTURE: u32 = 1;
/// Mean times, in ns.
const BETWEEN: u64 = 1_250_000;
const SERVICE: u64 = 1_000_000;

fn main() {
    let customers: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10_000_000);
    let (mut arrivals, mut services) = (Chance::from_state(1), Chance::from_state(2));
    let exponential = |mean| Amount { mean, spread: Spread::Exponential };
    let mut timers = Timers::default();
    let mut present = VecDeque::new();
    let (mut served, mut sum_ns) = (0, 0_u128);
    timers.set(ARRIVAL, arrivals.amount(exponential(BETWEEN)));
    while let Some((now, timer)) = timers.pop() {
        if timer == ARRIVAL {
            timers.set(ARRIVAL, now + arrivals.amount(exponential(BETWEEN)));
            present.push_back(now);
            if present.len() == 1 {
                timers.set(DEPARTURE, now + services.amount(exponential(SERVICE)));
            }
        } else {
            sum_ns += u128::from(now - present.pop_front().unwrap_or(now));
            served += 1;
            if served == customers {
                break;
            }
            if !present.is_empty() {
                timers.set(DEPARTURE, now + services.amount(exponential(SERVICE)));
            }
        }
    }
    let in_system = sum_ns / u128::from(served.max(1));
    println!("{served} {:.3}", to_f64(in_system) / to_f64(u128::from(SERVICE)));
}

#[allow(clippy::cast_precision_loss, reason = "a mean to print")]
fn to_f64(number: u128) -> f64 {
    number as f64
}
