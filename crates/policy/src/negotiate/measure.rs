//! Measurements of progress over several windows, and a significance test for the difference of two
//! measurements.

/// The direction in which a later sample differs from an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// Less, beyond noise.
    Less,
    /// No significant difference.
    Same,
    /// More, beyond noise.
    More,
}

/// The moments of a sample: count, sum, and sum of squares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sample {
    n: u32,
    sum: u128,
    squares: u128,
}

impl Sample {
    pub(super) fn add(&mut self, value: u64) {
        let value = u128::from(value);
        self.n += 1;
        self.sum += value;
        self.squares = self.squares.saturating_add(value.saturating_mul(value));
    }

    pub(super) fn n(&self) -> u32 {
        self.n
    }

    pub(super) fn mean(&self) -> u64 {
        let mean = self.sum.checked_div(u128::from(self.n)).unwrap_or(0);
        u64::try_from(mean).unwrap_or(u64::MAX)
    }

    /// Sample variance; 0 for fewer than two values.
    fn variance(&self) -> u128 {
        let n = u128::from(self.n);
        let of_mean = self.sum.saturating_mul(self.sum).checked_div(n).unwrap_or(0);
        self.squares.saturating_sub(of_mean).checked_div(n.saturating_sub(1)).unwrap_or(0)
    }

    /// Sample standard deviation.
    pub(super) fn spread(&self) -> u64 {
        u64::try_from(self.variance().isqrt()).unwrap_or(u64::MAX)
    }

    /// The smallest significant difference between the means of two samples: three standard errors, or 0.5 %
    /// of this sample's mean if that is larger.
    pub(super) fn noise(&self, other: &Sample) -> u64 {
        let of_mean = |sample: &Sample| sample.variance().checked_div(u128::from(sample.n)).unwrap_or(0);
        let error = of_mean(self).saturating_add(of_mean(other)).isqrt();
        u64::try_from(error).unwrap_or(u64::MAX).saturating_mul(3).max(self.mean() / 200)
    }

    /// Compares a later sample with this one.
    pub(super) fn sign(&self, later: &Sample) -> Sign {
        let (before, after, noise) = (self.mean(), later.mean(), self.noise(later));
        if after > before.saturating_add(noise) {
            Sign::More
        } else if before > after.saturating_add(noise) {
            Sign::Less
        } else {
            Sign::Same
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[u64]) -> Sample {
        let mut sample = Sample::default();
        for value in values {
            sample.add(*value);
        }
        sample
    }

    #[test]
    fn a_sample_by_hand() {
        // Mean 5, variance (9 + 1 + 1 + 9) / 3 = 6.
        let one = sample(&[2, 4, 6, 8]);
        assert_eq!((one.mean(), one.variance(), one.spread()), (5, 6, 2));
        // Standard error: sqrt(6/4 + 6/4), rounded down to 1; three of them.
        assert_eq!(one.noise(&one), 3);
        assert_eq!(sample(&[]).mean(), 0);
    }

    #[test]
    fn differences_within_noise_are_not_significant() {
        let before = sample(&[1_000; 4]);
        for (value, sign) in [(1_005, Sign::Same), (1_006, Sign::More), (995, Sign::Same), (994, Sign::Less)]
        {
            assert_eq!(before.sign(&sample(&[value; 4])), sign, "{value}");
        }
        assert_eq!(sample(&[900, 1_100, 900, 1_100]).sign(&sample(&[1_050; 4])), Sign::Same);
    }
}
