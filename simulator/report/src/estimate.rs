//! Means of figures, one per seed, with confidence intervals.
//!
//! Terms: the *half-width* of a confidence interval is t s / √n, where s is the standard deviation with n - 1
//! in the denominator, and t the quantile of Student's distribution with n - 1 degrees of freedom. The
//! interval is the mean plus and minus the half-width.
//!
//! Algorithm: up to 29 degrees of freedom, t is in a table. Above, it is Fisher's expansion around the
//! quantile of the normal distribution, whose error is below 0.0002 there.
//!
//! Limits: one figure has no interval.

use crate::claims::Measured;

/// Student's t for two-sided intervals of 95 %, by degrees of freedom from 1.
const T_95: [f64; 29] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
];

/// Student's t for two-sided intervals of 90 %, by degrees of freedom from 1.
const T_90: [f64; 29] = [
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
    1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699,
];

/// The quantiles of the normal distribution for the same intervals.
const Z_95: f64 = 1.959_964;
const Z_90: f64 = 1.644_854;

/// Mean and half-widths of figures, one per seed; `None` without figures. One figure has no half-widths.
pub fn summarise(figures: &[f64]) -> Option<Measured> {
    if figures.is_empty() {
        return None;
    }
    let n = real(figures.len());
    let mean = figures.iter().sum::<f64>() / n;
    let freedom = figures.len() - 1;
    let standard_error = (freedom > 0).then(|| {
        let squares: f64 = figures.iter().map(|figure| (figure - mean) * (figure - mean)).sum();
        libm::sqrt(squares / (n - 1.0) / n)
    });
    let half_width = |table, z| standard_error.map(|error| student(freedom, table, z) * error);
    let (half_95, half_90) = (half_width(&T_95, Z_95), half_width(&T_90, Z_90));
    Some(Measured { mean, half_95, half_90, by_seed: figures.to_vec() })
}

/// The quantile of Student's distribution for at least one degree of freedom.
fn student(freedom: usize, table: &[f64; 29], z: f64) -> f64 {
    if let Some(t) = table.get(freedom - 1) {
        return *t;
    }
    let (nu, z2) = (real(freedom), z * z);
    let first = z * (z2 + 1.0) / (4.0 * nu);
    let second = z * ((5.0 * z2 + 16.0) * z2 + 3.0) / (96.0 * nu * nu);
    z + first + second
}

#[expect(clippy::cast_precision_loss, reason = "a count of seeds")]
fn real(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn mean_and_intervals_by_hand() {
        // 1, 2, 3: mean 2, s² = (1 + 0 + 1) / 2 = 1, error √(1/3) = 0.57735; times 4.303 and 2.920.
        let three = summarise(&[1.0, 2.0, 3.0]).unwrap();
        assert!((three.mean - 2.0).abs() < 1e-12);
        assert!((three.half_95.unwrap() - 2.484_34).abs() < 1e-4, "{three:?}");
        assert!((three.half_90.unwrap() - 1.685_86).abs() < 1e-4, "{three:?}");
        // 0 and 2: s² = 2, error √(2/2) = 1: the table's own numbers.
        let two = summarise(&[0.0, 2.0]).unwrap();
        assert_eq!((two.half_95, two.half_90), (Some(12.706), Some(6.314)));
        let one = summarise(&[5.0]).unwrap();
        assert_eq!((one.mean, one.half_95), (5.0, None));
        assert!(summarise(&[]).is_none());
    }

    #[test]
    fn many_seeds_use_the_expansion() {
        for (freedom, t_95, t_90) in
            [(30, 2.0423, 1.6973), (60, 2.0003, 1.6706), (99, 1.9842, 1.6604), (1000, 1.9623, 1.6464)]
        {
            assert!((student(freedom, &T_95, Z_95) - t_95).abs() < 2e-4, "{freedom}");
            assert!((student(freedom, &T_90, Z_90) - t_90).abs() < 2e-4, "{freedom}");
        }
    }
}
