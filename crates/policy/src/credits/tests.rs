use super::*;
use proptest::prelude::*;

const A: UnitId = UnitId(2);
const B: UnitId = UnitId(3);
const HALF_LIFE: Time = 64_000 * MS;

fn of_two() -> Credits {
    let mut credits = Credits::default();
    credits.resize(4);
    credits
}

/// A lends 2 to B for a second, and nothing for a half-life: 2 s, then 1 s, within a millionth.
#[test]
fn a_half_life_halves() {
    let mut credits = of_two();
    let flow = |unit| i128::from(unit == A) * 2 - i128::from(unit == B) * 2;
    credits.charge(0, HALF_LIFE, flow);
    credits.charge(500 * MS, HALF_LIFE, flow);
    credits.charge(500 * MS, HALF_LIFE, flow);
    credits.charge(999 * MS, HALF_LIFE, flow);
    assert_eq!((credits.of(A), credits.of(B)), (1_998_000_000, -1_998_000_000));
    credits.charge(999 * MS + HALF_LIFE, HALF_LIFE, |_| 0);
    assert!((credits.of(A) - 999_000_000).abs() < 1_000, "{}", credits.of(A));
    assert_eq!(credits.of(B), -credits.of(A));
}

#[test]
fn a_half_life_of_0_disables_credits() {
    let mut credits = of_two();
    credits.charge(0, HALF_LIFE, |_| 0);
    credits.charge(MS, HALF_LIFE, |unit| i128::from(unit == A));
    assert_eq!(credits.listed(1), [0, -1_000_000, 1_000_000, 0]);
    credits.charge(2 * MS, 0, |unit| i128::from(unit == A));
    assert_eq!(credits, Credits::default());
}

/// A new unit with a reassigned number does not inherit the credit, and sums stay 0.
#[test]
fn a_unit_that_left_has_no_credit() {
    let mut contract = Contract::default();
    contract.add(None, "a");
    contract.add(None, "b");
    let mut credits = of_two();
    credits.enter(A, 5);
    credits.enter(B, -5);
    contract.vacant.insert(A);
    credits.forget_gone(&contract);
    assert_eq!(credits.listed(1), [0, 5, 0, -5]);
}

#[test]
fn a_clock_that_stands_or_goes_back_charges_nothing() {
    let mut credits = of_two();
    for at in [5 * MS, 5 * MS, 3 * MS, 5 * MS] {
        credits.charge(at, HALF_LIFE, |unit| i128::from(unit == A));
    }
    assert_eq!(credits.of(A), 0);
}

/// A machine that was suspended for a hundred years catches up at once, and its units start from 0.
#[test]
fn a_long_gap_is_charged_quickly() {
    let mut credits = of_two();
    credits.enter(A, 1 << 80);
    credits.charge(1, 100 * MS, |_| 0);
    credits.charge(3_000_000_000_000_000_000, 100 * MS, |_| 0);
    assert_eq!(credits.listed(1), [0; 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]
    /// Credits do not depend on the sampling rate, to the last digit, and sum to 0.
    #[test]
    fn credits_do_not_depend_on_the_sampling_rate(
        stretches in proptest::collection::vec((1u64..3_000, -5i128..6, -5i128..6, 1usize..6), 1..12),
        half_life_ms in 128u64..5_000,
        begin in 0u64..1_000_000_000,
    ) {
        let (mut once, mut often) = (of_two(), of_two());
        let mut at = begin;
        for credits in [&mut once, &mut often] {
            credits.charge(at, half_life_ms * MS, |_| 0);
        }
        for (ms, a, b, looks) in stretches {
            let flow = |unit| if unit == A { a } else if unit == B { b } else { 0 };
            let (from, ns) = (at, ms * MS + 7);
            at += ns;
            once.charge(at, half_life_ms * MS, flow);
            for look in 1..=looks as u64 {
                often.charge(from + ns * look / looks as u64, half_life_ms * MS, flow);
            }
            prop_assert_eq!(&once, &often);
            prop_assert_eq!(once.by_unit.iter().sum::<i128>(), 0);
        }
    }

    /// After any gap, a credit follows the exponential within a millionth and a grain.
    #[test]
    fn decay_is_by_half_lives(credit in 1i128 << 40..1 << 70, half_lives in 0u32..9) {
        let mut credits = of_two();
        credits.charge(0, HALF_LIFE, |_| 0);
        credits.enter(A, credit);
        credits.charge(HALF_LIFE * u64::from(half_lives), HALF_LIFE, |_| 0);
        let exact = credit >> half_lives;
        prop_assert!((credits.of(A) - exact).abs() <= (exact >> 20) + 600, "{} is not {exact}", credits.of(A));
    }
}
