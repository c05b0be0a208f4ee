//! Student's and Fisher's distributions, for whole degrees of freedom.
//!
//! Problem: confidence intervals, and tests of the deviation of points from a curve, need these
//! distributions.
//!
//! Algorithm: both are the regularised incomplete beta function `I_x(a, b)` of half-integers. That has a
//! closed form where a and b are 1/2 or 1, and steps by one from there:
//!
//! ```text
//! I_x(a + 1, b) = I_x(a, b) - D / a        D = x^a (1 - x)^b / B(a, b)
//! I_x(a, b + 1) = I_x(a, b) + D / b
//! ```
//!
//! Limits: the error is that of a few additions per degree of freedom, far below what an interval needs. Of
//! the platform's mathematics only square roots and one arc tangent are used.

use std::f64::consts::PI;

use crate::real;

/// n / 2.
fn halves(n: u64) -> f64 {
    real(n) / 2.0
}

/// The regularised incomplete beta function `I_x(a/2, b/2)`.
fn beta(x: f64, a: u64, b: u64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let rest = 1.0 - x;
    // Begin at 1/2 or 1, in each parameter, where a closed form exists, and step up to a/2 and b/2.
    let (mut at_a, mut at_b) = (2 - a % 2, 2 - b % 2);
    let (mut sum, mut step) = match (at_a, at_b) {
        (1, 1) => (2.0 / PI * (x / rest).sqrt().atan(), (x * rest).sqrt() / PI),
        (1, _) => (x.sqrt(), x.sqrt() * rest / 2.0),
        (_, 1) => (1.0 - rest.sqrt(), x * rest.sqrt() / 2.0),
        _ => (x, x * rest),
    };
    while at_b < b {
        sum += step / halves(at_b);
        step *= rest * halves(at_a + at_b) / halves(at_b);
        at_b += 2;
    }
    while at_a < a {
        sum -= step / halves(at_a);
        step *= x * halves(at_a + at_b) / halves(at_a);
        at_a += 2;
    }
    sum.clamp(0.0, 1.0)
}

/// The two-sided tail probability of Student's t.
fn student_tails(t: f64, freedom: u64) -> f64 {
    let nu = real(freedom);
    beta(nu / (nu + t * t), freedom, 1)
}

/// The two-sided quantile of Student's t, by bisection: `tails` is the probability of both tails together.
pub(crate) fn student(tails: f64, freedom: u64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while student_tails(high, freedom) > tails && high < 1e6 {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if student_tails(middle, freedom) > tails { low = middle } else { high = middle }
    }
    high
}

/// The upper tail probability of Fisher's F, for the degrees of freedom of numerator and denominator.
pub(crate) fn fisher_tail(f: f64, above: u64, below: u64) -> f64 {
    let (above_f, below_f) = (real(above) * f, real(below));
    beta(below_f / (below_f + above_f), below, above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_equal_those_of_printed_tables() {
        for (tails, freedom, t) in [
            (0.05, 1, 12.706),
            (0.05, 2, 4.303),
            (0.05, 5, 2.571),
            (0.05, 30, 2.042),
            (0.05, 10_000, 1.960),
            (0.01, 3, 5.841),
            (0.01, 120, 2.617),
            (0.025, 1, 25.452),
            (0.025, 10, 2.634),
        ] {
            let found = student(tails, freedom);
            assert!((found - t).abs() < 6e-4, "{freedom}: {found}, not {t}");
        }
        for (above, below, f, tail) in [
            (1, 1, 161.448, 0.05),
            (2, 10, 4.103, 0.05),
            (3, 7, 8.451, 0.01),
            (5, 12, 3.106, 0.05),
            (4, 20, 4.431, 0.01),
        ] {
            let found = fisher_tail(f, above, below);
            assert!((found - tail).abs() < 2e-5, "F({above}, {below}) = {f}: {found}, not {tail}");
        }
        assert!((fisher_tail(0.0, 3, 4) - 1.0).abs() < 1e-12);
    }
}
