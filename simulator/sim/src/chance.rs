//! Reproducible random numbers. Each task has its own stream, so that an additional task does not change the
//! numbers that the other tasks draw.
//!
//! `SplitMix64` (Steele, Lea and Flood 2014): eight bytes of state, any seed is good, and a stream's seed can
//! be drawn from another's.

use crate::Time;
use crate::scenario::{Amount, Spread};

/// A stream of random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chance(u64);

impl Chance {
    /// The stream that continues from this state.
    pub fn from_state(state: u64) -> Self {
        Chance(state)
    }

    /// The stream of an entity, such as a task: a function of the run's seed and the entity's number.
    pub(crate) fn of(seed: u64, number: u64) -> Self {
        let mut chance = Chance(seed ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Chance(chance.bits())
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A uniform number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product is uniform, up to an error of 2^-64 times the bound.
        u64::try_from((u128::from(self.bits()) * u128::from(bound)) >> 64).unwrap_or(0)
    }

    /// Draws an amount from its distribution. Exponential amounts are capped at 20 times the mean, which
    /// changes one draw in 500 million.
    pub fn amount(&mut self, amount: Amount) -> Time {
        match amount.spread {
            Spread::None => amount.mean,
            Spread::Uniform(millionths) => {
                // The product by parts, so that it does not overflow.
                let half_width = amount.mean / 1_000_000 * u64::from(millionths)
                    + amount.mean % 1_000_000 * u64::from(millionths) / 1_000_000;
                amount.mean - half_width + self.below(half_width.saturating_mul(2).saturating_add(1))
            }
            Spread::Exponential => self.exponential(amount.mean),
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "53 of the 64 bits are drawn, means stay below 2^53, and no result is negative"
    )]
    fn exponential(&mut self, mean: u64) -> Time {
        let uniform = (self.bits() >> 11) as f64 / (1u64 << 53) as f64;
        (-libm::log(1.0 - uniform) * mean as f64).min(mean as f64 * 20.0) as Time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_of(spread: Spread) -> u64 {
        let mut chance = Chance::of(1, 2);
        (0..100_000).map(|_| chance.amount(Amount { mean: 1_000_000, spread })).sum::<u64>() / 100_000
    }

    /// The standard error of the mean of 100,000 draws is 0.2 % for uniform amounts within 100 %, and 0.3 %
    /// for exponential ones. The test allows 1 %.
    #[test]
    fn amounts_have_their_mean() {
        assert_eq!(mean_of(Spread::None), 1_000_000);
        for spread in [Spread::Uniform(1_000_000), Spread::Uniform(200_000), Spread::Exponential] {
            assert!(mean_of(spread).abs_diff(1_000_000) < 10_000, "{spread:?}: {}", mean_of(spread));
        }
    }

    #[test]
    fn streams_differ_and_repeat() {
        let draw = |seed, number| Chance::of(seed, number).bits();
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }
}
