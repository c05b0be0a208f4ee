//! Fitting Gunther's law to measured throughput.
//!
//! Problem: estimate serialisation and contention, with confidence intervals. There are few sizes, runs of
//! one size differ by a few per cent, and neither coefficient may be negative.
//!
//! Terms: the *cost* of a point is T = n / X, the CPU time that a piece of work takes at that size, including
//! the time of idle CPUs. Noise is relative: a few per cent of the cost at every size.
//!
//! Algorithm: for the cost, the law is linear in three coefficients,
//!
//! ```text
//! T(n) = a + b (n - 1) + c n (n - 1)        lambda = 1 / a, alpha = b / a, beta = c / a
//! ```
//!
//! So least squares of relative residuals, which is nonlinear in lambda, alpha and beta, is linear in a, b
//! and c, and is solved exactly. An iterative solver (Gauss-Newton, Levenberg-Marquardt) would need a first
//! guess, might stop at a local minimum, and could at best find the same solution. Each point is weighted by
//! the inverse square of the mean cost of its size. The bounds b >= 0 and c >= 0 leave four cases, in which
//! each of b and c is free or 0. The best case that satisfies the bounds is the optimum, since the problem is
//! convex.
//!
//! Confidence intervals are exact for linear models: alpha = b / a is a ratio of two estimates, and so is the
//! square of the peak, (a - b) / c. The interval contains each r for which b - r a is within Student's t of
//! 0, a quadratic inequality (Fieller 1954). This is the profile of the sum of squares. The intervals are
//! those of the unbounded fit, cut at 0: their coverage is as promised if the true values satisfy the bounds.
//!
//! If the points deviate from the best curve significantly more than the runs of one size differ (Fisher's F
//! at 1 %), the law does not hold. Then the fit reports a misfit, and the deviation counts as noise.
//!
//! Properties: without noise, the coefficients are exact. Both intervals contain the truth at once in at
//! least 95 of 100 studies (each is made for 97.5 %). The curve's band is pointwise.
//!
//! Limits: with fewer than three sizes the coefficients cannot be distinguished: [`Undetermined`]. Without
//! more runs than coefficients there is no interval.

use std::collections::BTreeMap;

use crate::chance::{fisher_tail, student};
use crate::law::Law;
use crate::real;

/// One run: a size, and the throughput there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The size.
    pub size: u32,
    /// Work per second. Above 0.
    pub throughput: f64,
}

/// A confidence interval over a study's runs.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Band {
    /// Lower end, at least 0.
    pub low: f64,
    /// Upper end; `None` if it is unbounded.
    pub high: Option<f64>,
}

impl Band {
    /// Whether the interval contains a value.
    pub fn has(&self, value: f64) -> bool {
        self.low <= value && self.high.is_none_or(|high| value <= high)
    }

    /// The interval cut at an upper bound.
    fn capped_at(self, bound: f64) -> Band {
        Band { low: self.low.min(bound), high: Some(self.high.map_or(bound, |high| high.min(bound))) }
    }

    /// The interval extended so that it contains a value.
    fn extended_to(self, value: f64) -> Band {
        Band { low: self.low.min(value), high: self.high.map(|high| high.max(value)) }
    }
}

/// The fitted law.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The estimate.
    pub law: Law,
    /// Confidence intervals; `None` if there are no more runs than coefficients.
    pub bands: Option<Bands>,
    /// Whether the law does not hold: the points deviate from the curve significantly more than runs of one
    /// size differ.
    pub misfit: bool,
    line: Line,
}

/// The confidence intervals of a fit.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Bands {
    /// The interval of serialisation. With 95 % confidence, this interval and that of contention both contain
    /// the true value.
    pub alpha: Band,
    /// The interval of contention.
    pub beta: Band,
    /// The 95 % interval of the size with the highest throughput.
    pub peak: Band,
}

/// Why the coefficients are undetermined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undetermined {
    /// Fewer than three sizes: their number.
    TooFewSizes(usize),
    /// All sizes are far from 1, and the line extrapolated to size 1 is not positive.
    FarFromOne,
}

/// Tail probability of each of the intervals of alpha and beta: half of 5 %, so that both hold at once
/// (Bonferroni).
const TAILS_EACH: f64 = 0.025;
/// Tail probability of a single interval.
const TAILS: f64 = 0.05;
/// Significance level of the test that the law does not hold.
const MISFIT: f64 = 0.01;

/// Fits the law to the points of a study.
pub(crate) fn fit(points: &[Point]) -> Result<Fit, Undetermined> {
    let sizes = mean_costs(points);
    if sizes.len() < 3 {
        return Err(Undetermined::TooFewSizes(sizes.len()));
    }
    let rows: Vec<Row> = points
        .iter()
        .map(|point| {
            // Weights come from the mean of a size: weights from single runs would favour fast runs.
            let mean = sizes[&point.size].0;
            Row { terms: terms(f64::from(point.size)), cost: cost(point), weight: 1.0 / mean }
        })
        .collect();
    let cases: [&[usize]; 4] = [&[0, 1, 2], &[0, 1], &[0, 2], &[0]];
    let candidates: Vec<Line> = cases.into_iter().filter_map(|free| Line::through(&rows, free)).collect();
    let by_squares = |a: &Line, b: &Line| a.squares.total_cmp(&b.squares);
    let within_bounds =
        || candidates.iter().filter(|line| line.coefficients[1..].iter().all(|c| *c >= 0.0)).cloned();
    // If the best line is not positive at size 1, the points do not determine the throughput of size 1.
    if within_bounds().min_by(by_squares).is_none_or(|line| line.coefficients[0] <= 0.0) {
        return Err(Undetermined::FarFromOne);
    }
    // Alpha is at most 1, since all of the work is the most that can be serial.
    let is_alpha_possible = |line: &Line| line.coefficients[1] <= line.coefficients[0];
    let bounded = within_bounds().filter(is_alpha_possible).chain(all_serial(&rows)).min_by(by_squares);
    let unbounded = Line::through(&rows, &[0, 1, 2]);
    let (Some(bounded), Some(mut line)) = (bounded, unbounded) else { return Err(Undetermined::FarFromOne) };
    let [a, b, c] = bounded.coefficients;
    if a <= 0.0 {
        return Err(Undetermined::FarFromOne);
    }
    let law = Law { lambda: 1.0 / a, alpha: b / a, beta: c / a };
    let misfit = line.estimate_noise(points, &sizes);
    let mut fit = Fit { law, bands: None, misfit, line };
    fit.bands = fit.make_bands();
    Ok(fit)
}

/// The best lines with alpha at its maximum, 1, where all work is serial: a = b. Any further cost is
/// contention by the law, so falling throughput is never attributed to alpha.
fn all_serial(rows: &[Row]) -> impl Iterator<Item = Line> {
    // With a = b, both share one column: the sum of their terms.
    let joined: Vec<Row> = rows
        .iter()
        .map(|row| Row { terms: [row.terms[0] + row.terms[1], 0.0, row.terms[2]], ..*row })
        .collect();
    let cases: [&[usize]; 2] = [&[0, 2], &[0]];
    let lines: Vec<Line> = cases.into_iter().filter_map(|free| Line::through(&joined, free)).collect();
    let with_b = |line: Line| {
        let [a, _, c] = line.coefficients;
        Line { coefficients: [a, a, c], ..line }
    };
    lines.into_iter().map(with_b).filter(|line| line.coefficients[2] >= 0.0)
}

impl Fit {
    /// The confidence intervals; `None` without degrees of freedom.
    fn make_bands(&self) -> Option<Bands> {
        let coefficients = self.line.coefficients;
        let var = |one: [f64; 3], other: [f64; 3]| self.line.covariance(one, other);
        // Numerators and denominators are linear combinations of the coefficients a, b and c.
        let [a, b, c, a_minus_b] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, -1.0, 0.0]];
        let ratio = |above: [f64; 3], below: [f64; 3], t: f64| {
            let variances = [var(above, above), var(above, below), var(below, below)];
            ratio_band(dot(above, coefficients), dot(below, coefficients), variances, t)
        };
        let simultaneous_t = self.line.student_t(TAILS_EACH)?;
        let squared_peak = ratio(a_minus_b, c, self.line.student_t(TAILS)?);
        let peak = Band {
            low: squared_peak.low.sqrt().max(1.0),
            high: squared_peak.high.map(|high| high.sqrt().max(1.0)),
        };
        Some(Bands {
            alpha: ratio(b, a, simultaneous_t).capped_at(1.0).extended_to(self.law.alpha),
            beta: ratio(c, a, simultaneous_t).extended_to(self.law.beta),
            peak: self.law.peak().map_or(Band { high: None, ..peak }, |size| peak.extended_to(size)),
        })
    }

    /// The 95 % confidence interval of the throughput at a size.
    pub fn throughput_band(&self, n: f64) -> Option<Band> {
        let terms = terms(n);
        let error = self.line.student_t(TAILS)? * self.line.covariance(terms, terms).max(0.0).sqrt();
        let cost = dot(terms, self.line.coefficients);
        // Throughput is n / cost: the highest cost is the lowest throughput.
        let (cost_high, cost_low) = (cost + error, cost - error);
        let low = if cost_high > 0.0 { n / cost_high } else { 0.0 };
        let band = Band { low, high: (cost_low > 0.0).then(|| n / cost_low) };
        Some(band.extended_to(self.law.throughput(n)))
    }
}

/// The regressors of a + b (n - 1) + c n (n - 1).
fn terms(n: f64) -> [f64; 3] {
    [1.0, n - 1.0, n * (n - 1.0)]
}

/// The cost of a piece of work: size over throughput.
pub(crate) fn cost(point: &Point) -> f64 {
    f64::from(point.size) / point.throughput
}

/// The mean; 1 if there are no values.
pub(crate) fn mean(costs: &[f64]) -> f64 {
    if costs.is_empty() { 1.0 } else { costs.iter().sum::<f64>() / real(costs.len() as u64) }
}

/// The mean cost of each size, and the number of its runs.
fn mean_costs(points: &[Point]) -> BTreeMap<u32, (f64, u64)> {
    let mut sums: BTreeMap<u32, (f64, u64)> = BTreeMap::new();
    for point in points {
        let sum = sums.entry(point.size).or_default();
        *sum = (sum.0 + cost(point), sum.1 + 1);
    }
    sums.into_iter().map(|(size, (sum, n))| (size, (sum / real(n), n))).collect()
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// One run as an equation: `terms * coefficients = cost`, both sides multiplied by `weight`.
struct Row {
    terms: [f64; 3],
    cost: f64,
    weight: f64,
}

/// A least-squares solution, and its residuals.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    /// The coefficients a, b and c.
    coefficients: [f64; 3],
    /// Inverse of the matrix of the normal equations; 0 for coefficients that are not free.
    inverse: [[f64; 3]; 3],
    /// The sum of the squared relative residuals.
    squares: f64,
    /// The variance of one run, relative to its cost.
    noise: f64,
    /// The degrees of freedom of `noise`.
    freedom: u64,
}

impl Line {
    /// The best line with only the coefficients of these indices free, and the others 0; `None` if the sizes
    /// do not determine it.
    fn through(rows: &[Row], free: &[usize]) -> Option<Line> {
        // Normalise the columns: with sizes of thousands, the column of c is 10^6 times that of a.
        let mut length = [0.0; 3];
        for &i in free {
            length[i] = rows.iter().map(|row| row.terms[i] * row.weight).map(|x| x * x).sum::<f64>().sqrt();
            if length[i] <= 0.0 {
                return None;
            }
        }
        let column = |row: &Row, i: usize| row.terms[i] * row.weight / length[i];
        let mut matrix = vec![vec![0.0; free.len()]; free.len()];
        let mut right = vec![0.0; free.len()];
        for row in rows {
            for (p, &i) in free.iter().enumerate() {
                right[p] += column(row, i) * row.cost * row.weight;
                for (q, &j) in free.iter().enumerate() {
                    matrix[p][q] += column(row, i) * column(row, j);
                }
            }
        }
        let normalised_inverse = invert(matrix)?;
        let (mut coefficients, mut inverse) = ([0.0; 3], [[0.0; 3]; 3]);
        for (p, &i) in free.iter().enumerate() {
            let row = normalised_inverse[p].iter();
            coefficients[i] = row.zip(&right).map(|(x, y)| x * y).sum::<f64>() / length[i];
            for (q, &j) in free.iter().enumerate() {
                inverse[i][j] = normalised_inverse[p][q] / (length[i] * length[j]);
            }
        }
        let residual = |row: &Row| (row.cost - dot(row.terms, coefficients)) * row.weight;
        let squares = rows.iter().map(residual).map(|x| x * x).sum();
        Some(Line { coefficients, inverse, squares, noise: 0.0, freedom: 0 })
    }

    /// Estimates the noise. Returns whether there is a misfit: the means of the sizes deviate from the line
    /// significantly more than the runs of one size differ. Then the deviation of the means is the noise.
    fn estimate_noise(&mut self, points: &[Point], sizes: &BTreeMap<u32, (f64, u64)>) -> bool {
        let deviations = points.iter().map(|point| cost(point) / sizes[&point.size].0 - 1.0);
        let squares_within_sizes: f64 = deviations.map(|x| x * x).sum();
        let (runs, sizes) = (points.len() as u64, sizes.len() as u64);
        (self.freedom, self.noise) = (runs.saturating_sub(3), 0.0);
        if self.freedom > 0 {
            self.noise = self.squares / real(self.freedom);
        }
        let (freedom_between, freedom_within) = (sizes - 3, runs - sizes);
        if freedom_between == 0 || freedom_within == 0 {
            return false;
        }
        let variance_between = (self.squares - squares_within_sizes).max(0.0) / real(freedom_between);
        let variance_within = squares_within_sizes / real(freedom_within);
        let is_misfit = squares_within_sizes > 0.0
            && fisher_tail(variance_between / variance_within, freedom_between, freedom_within) < MISFIT;
        if is_misfit {
            (self.freedom, self.noise) = (freedom_between, variance_between);
        }
        is_misfit
    }

    /// Student's t for these tails; `None` without degrees of freedom.
    fn student_t(&self, tails: f64) -> Option<f64> {
        (self.freedom > 0).then(|| student(tails, self.freedom))
    }

    /// The covariance of two linear combinations of the coefficients.
    fn covariance(&self, one: [f64; 3], other: [f64; 3]) -> f64 {
        self.noise * dot(one, self.inverse.map(|row| dot(row, other)))
    }
}

/// Inverse of a symmetric matrix by Gauss-Jordan elimination with partial pivoting; `None` if the matrix is
/// singular.
fn invert(mut matrix: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    let n = matrix.len();
    let mut inverse: Vec<Vec<f64>> =
        (0..n).map(|i| (0..n).map(|j| if i == j { 1.0 } else { 0.0 }).collect()).collect();
    for i in 0..n {
        let pivot = (i..n).max_by(|p, q| matrix[*p][i].abs().total_cmp(&matrix[*q][i].abs()))?;
        if matrix[pivot][i].abs() < 1e-13 {
            return None;
        }
        matrix.swap(i, pivot);
        inverse.swap(i, pivot);
        let divisor = matrix[i][i];
        for j in 0..n {
            matrix[i][j] /= divisor;
            inverse[i][j] /= divisor;
        }
        for k in (0..n).filter(|k| *k != i) {
            let factor = matrix[k][i];
            for j in 0..n {
                matrix[k][j] -= factor * matrix[i][j];
                inverse[k][j] -= factor * inverse[i][j];
            }
        }
    }
    Some(inverse)
}

/// Fieller's interval of the ratio of two estimates, cut at 0. It contains every r for which
/// `above - r below` differs from 0 by at most `t` standard errors. `errors` are the variance of `above`, the
/// covariance, and the variance of `below`.
pub(crate) fn ratio_band(above: f64, below: f64, errors: [f64; 3], t: f64) -> Band {
    let [above_above, above_below, below_below] = errors;
    // The quadratic inequality: quadratic r^2 - 2 half_linear r + constant <= 0.
    let quadratic = below * below - t * t * below_below;
    let half_linear = above * below - t * t * above_below;
    let constant = above * above - t * t * above_above;
    let discriminant = half_linear * half_linear - quadratic * constant;
    if quadratic > 0.0 {
        // Without noise, rounding may make the discriminant slightly negative.
        let root = discriminant.max(0.0).sqrt();
        let high = ((half_linear + root) / quadratic).max(0.0);
        return Band { low: ((half_linear - root) / quadratic).max(0.0), high: Some(high) };
    }
    if discriminant <= 0.0 || quadratic == 0.0 {
        return Band { low: 0.0, high: None };
    }
    // The parabola opens downwards: the inequality holds everywhere except between the two roots.
    let root = discriminant.sqrt();
    let (p, q) = ((half_linear + root) / quadratic, (half_linear - root) / quadratic);
    let (first, second) = (p.min(q), p.max(q));
    Band { low: if first >= 0.0 { 0.0 } else { second.max(0.0) }, high: None }
}

#[cfg(test)]
#[path = "fit/tests.rs"]
mod tests;
