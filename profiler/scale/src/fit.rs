//! Fitting Gunther's law to measured throughput.
//!
//! Problem: runs of one size differ by a few per cent, sizes are few, and neither coefficient may be negative. Estimate serialisation
//! and contention, with confidence intervals.
//!
//! Terms: the *cost* of a point is T = n / X, the CPU time that a piece of work takes at that size, counting idle CPUs. Noise is
//! relative: a few per cent of the cost at every size.
//!
//! Algorithm: for the cost, the law is linear in three coefficients,
//!
//! ```text
//! T(n) = a + b (n - 1) + c n (n - 1)        lambda = 1 / a, alpha = b / a, beta = c / a
//! ```
//!
//! So least squares of relative residuals, nonlinear in lambda, alpha and beta, is linear here and solved exactly. An iterative
//! solver (Gauss-Newton, Levenberg-Marquardt) would need a first guess, might stop at a local minimum, and at best finds the
//! same solution. Each point is weighted by the inverse square of the mean cost of its size. The bounds b >= 0 and c >= 0 leave
//! four cases, in which each coefficient is free or 0. The best of those that satisfy the bounds is the optimum, since the problem
//! is convex.
//!
//! Confidence intervals are exact for linear models: alpha = b / a is a ratio of two estimates, and so is the square of the peak,
//! (a - b) / c. The interval contains each r for which b - r a is within Student's t of 0, a quadratic inequality (Fieller 1954).
//! This is the profile of the sum of squares. The intervals are those of the unbounded fit, whose coverage is as promised for a truth
//! within the bounds, and are then cut at 0.
//!
//! If the points deviate from the best curve by more than the runs of one size differ (Fisher's F at 1 %), the law does not hold.
//! That is reported, and the deviation counts as noise.
//!
//! Properties: without noise, the coefficients are exact. Both intervals contain the truth at once in at least 95 of 100 studies
//! (each is made for 97.5 %). The curve's band is pointwise.
//!
//! Limits: with fewer than three sizes the coefficients cannot be distinguished: [`Undetermined`]. Without more runs than
//! coefficients there is no interval.

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
    /// Whether it contains a value.
    pub fn has(&self, value: f64) -> bool {
        self.low <= value && self.high.is_none_or(|high| value <= high)
    }

    fn at_most(self, most: f64) -> Band {
        Band { low: self.low.min(most), high: Some(self.high.map_or(most, |high| high.min(most))) }
    }

    fn with(self, value: f64) -> Band {
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
    /// The points deviate from the curve by more than runs of one size differ: the law does not hold.
    pub misfit: bool,
    line: Line,
}

/// Confidence intervals.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Bands {
    /// Of serialisation; 95 % simultaneously with that of contention.
    pub alpha: Band,
    /// Of contention.
    pub beta: Band,
    /// Of the size with the highest throughput, 95 %.
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

/// Tails of the intervals of alpha and beta: half of 5 % each (Bonferroni).
const TAILS_EACH: f64 = 0.025;
const TAILS: f64 = 0.05;
/// Significance level of the test that the law does not hold.
const MISFIT: f64 = 0.01;

/// Fits the law.
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
            Row { terms: terms(f64::from(point.size)), cost: cost(point), by: 1.0 / mean }
        })
        .collect();
    let cases: [&[usize]; 4] = [&[0, 1, 2], &[0, 1], &[0, 2], &[0]];
    let free: Vec<Line> = cases.into_iter().filter_map(|free| Line::through(&rows, free)).collect();
    let least = |a: &Line, b: &Line| a.squares.total_cmp(&b.squares);
    let positive = || free.iter().filter(|line| line.at[1] >= 0.0 && line.at[2] >= 0.0).cloned();
    // If the best line is not positive at size 1, the points determine nothing there.
    if positive().min_by(least).is_none_or(|line| line.at[0] <= 0.0) {
        return Err(Undetermined::FarFromOne);
    }
    let bounded = positive().filter(|line| line.at[1] <= line.at[0]).chain(serial(&rows)).min_by(least);
    let unbounded = Line::through(&rows, &[0, 1, 2]);
    let (Some(bounded), Some(mut line)) = (bounded, unbounded) else { return Err(Undetermined::FarFromOne) };
    let [a, b, c] = bounded.at;
    if a <= 0.0 {
        return Err(Undetermined::FarFromOne);
    }
    let law = Law { lambda: 1.0 / a, alpha: b / a, beta: c / a };
    let misfit = line.weigh_noise(points, &sizes);
    let mut fit = Fit { law, bands: None, misfit, line };
    fit.bands = fit.make_bands();
    Ok(fit)
}

/// The best lines with alpha at its maximum, 1: all work is serial. Any further cost is contention by the law, so falling throughput
/// is never attributed to alpha.
fn serial(rows: &[Row]) -> impl Iterator<Item = Line> {
    let joined: Vec<Row> = rows
        .iter()
        .map(|row| Row { terms: [row.terms[0] + row.terms[1], 0.0, row.terms[2]], ..*row })
        .collect();
    let cases: [&[usize]; 2] = [&[0, 2], &[0]];
    let lines: Vec<Line> = cases.into_iter().filter_map(|free| Line::through(&joined, free)).collect();
    let whole = |line: Line| Line { at: [line.at[0], line.at[0], line.at[2]], ..line };
    lines.into_iter().map(whole).filter(|line| line.at[2] >= 0.0)
}

impl Fit {
    fn make_bands(&self) -> Option<Bands> {
        let Line { at: [a, b, c], .. } = self.line;
        let each = self.line.reach(TAILS_EACH)?;
        let var = |left: [f64; 3], right: [f64; 3]| self.line.covariance(left, right);
        let ([a1, b1, c1], less) = ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [1.0, -1.0, 0.0]);
        let ratio = |top: f64, of: [f64; 3], below: f64, by: [f64; 3], t: f64| {
            ratio_band(top, below, [var(of, of), var(of, by), var(by, by)], t)
        };
        let squared = ratio(a - b, less, c, c1, self.line.reach(TAILS)?);
        let peak =
            Band { low: squared.low.sqrt().max(1.0), high: squared.high.map(|high| high.sqrt().max(1.0)) };
        Some(Bands {
            alpha: ratio(b, b1, a, a1, each).at_most(1.0).with(self.law.alpha),
            beta: ratio(c, c1, a, a1, each).with(self.law.beta),
            peak: self.law.peak().map_or(Band { high: None, ..peak }, |at| peak.with(at)),
        })
    }

    /// The 95 % confidence interval of the throughput at a size.
    pub fn throughput_band(&self, n: f64) -> Option<Band> {
        let terms = terms(n);
        let reach = self.line.reach(TAILS)? * self.line.covariance(terms, terms).max(0.0).sqrt();
        let cost = dot(terms, self.line.at);
        let (low, high) = (cost + reach, cost - reach);
        let low = if low > 0.0 { n / low } else { 0.0 };
        let band = Band { low, high: (high > 0.0).then(|| n / high) };
        Some(band.with(self.law.throughput(n)))
    }
}

/// The regressors of a + b (n - 1) + c n (n - 1).
fn terms(n: f64) -> [f64; 3] {
    [1.0, n - 1.0, n * (n - 1.0)]
}

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

/// One run as an equation: `terms * numbers = cost`, each side times `by`.
struct Row {
    terms: [f64; 3],
    cost: f64,
    by: f64,
}

/// The coefficients a, b, c of the best line, and the residuals.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    at: [f64; 3],
    /// Inverse of the matrix of the normal equations; 0 for coefficients that are not free.
    inverse: [[f64; 3]; 3],
    /// The sum of the squared relative residuals.
    squares: f64,
    /// Variance of one run, and its degrees of freedom.
    noise: f64,
    freedom: u64,
}

impl Line {
    /// The best line with only these coefficients free; `None` if the sizes do not determine it.
    fn through(rows: &[Row], free: &[usize]) -> Option<Line> {
        // Normalise the columns: with sizes of thousands, those of c are 10^6 times those of a.
        let mut length = [0.0; 3];
        for &i in free {
            length[i] = rows.iter().map(|row| row.terms[i] * row.by).map(|x| x * x).sum::<f64>().sqrt();
            if length[i] <= 0.0 {
                return None;
            }
        }
        let column = |row: &Row, i: usize| row.terms[i] * row.by / length[i];
        let mut matrix = vec![vec![0.0; free.len()]; free.len()];
        let mut right = vec![0.0; free.len()];
        for row in rows {
            for (p, &i) in free.iter().enumerate() {
                right[p] += column(row, i) * row.cost * row.by;
                for (q, &j) in free.iter().enumerate() {
                    matrix[p][q] += column(row, i) * column(row, j);
                }
            }
        }
        let small = invert(matrix)?;
        let (mut at, mut inverse) = ([0.0; 3], [[0.0; 3]; 3]);
        for (p, &i) in free.iter().enumerate() {
            at[i] = small[p].iter().zip(&right).map(|(x, y)| x * y).sum::<f64>() / length[i];
            for (q, &j) in free.iter().enumerate() {
                inverse[i][j] = small[p][q] / (length[i] * length[j]);
            }
        }
        let left = |row: &Row| (row.cost - dot(row.terms, at)) * row.by;
        let squares = rows.iter().map(left).map(|x| x * x).sum();
        Some(Line { at, inverse, squares, noise: 0.0, freedom: 0 })
    }

    /// Estimates the noise. Returns whether the points deviate from the line significantly.
    fn weigh_noise(&mut self, points: &[Point], sizes: &BTreeMap<u32, (f64, u64)>) -> bool {
        let within = points.iter().map(|point| cost(point) / sizes[&point.size].0 - 1.0);
        let within: f64 = within.map(|x| x * x).sum();
        let (runs, sizes) = (points.len() as u64, sizes.len() as u64);
        (self.freedom, self.noise) = (runs.saturating_sub(3), 0.0);
        if self.freedom > 0 {
            self.noise = self.squares / real(self.freedom);
        }
        let (beside, inside) = (sizes - 3, runs - sizes);
        if beside == 0 || inside == 0 {
            return false;
        }
        let missed = (self.squares - within).max(0.0) / real(beside);
        let is_more = within > 0.0 && fisher_tail(missed / (within / real(inside)), beside, inside) < MISFIT;
        if is_more {
            (self.freedom, self.noise) = (beside, missed);
        }
        is_more
    }

    /// Student's t for these tails.
    fn reach(&self, tails: f64) -> Option<f64> {
        (self.freedom > 0).then(|| student(tails, self.freedom))
    }

    /// The interval of the ratio of two linear combinations of the coefficients.
    fn covariance(&self, left: [f64; 3], right: [f64; 3]) -> f64 {
        self.noise * dot(left, self.inverse.map(|row| dot(row, right)))
    }
}

/// Inverse of a symmetric matrix by Gauss-Jordan elimination with diagonal pivoting.
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
        let by = matrix[i][i];
        for j in 0..n {
            matrix[i][j] /= by;
            inverse[i][j] /= by;
        }
        for k in (0..n).filter(|k| *k != i) {
            let by = matrix[k][i];
            for j in 0..n {
                matrix[k][j] -= by * matrix[i][j];
                inverse[k][j] -= by * inverse[i][j];
            }
        }
    }
    Some(inverse)
}

/// Fieller's interval of a ratio of two estimates, cut at 0: every r for which `top - r below` is at most `t` standard errors from
/// 0. `errors`: variance above, covariance, variance below.
pub(crate) fn ratio_band(top: f64, below: f64, errors: [f64; 3], t: f64) -> Band {
    let [above_above, above_below, below_below] = errors;
    let squared = below * below - t * t * below_below;
    let half = top * below - t * t * above_below;
    let rest = top * top - t * t * above_above;
    let root = half * half - squared * rest;
    if squared > 0.0 {
        // Without noise, rounding may make it slightly negative.
        let root = root.max(0.0).sqrt();
        let high = ((half + root) / squared).max(0.0);
        return Band { low: ((half - root) / squared).max(0.0), high: Some(high) };
    }
    if root <= 0.0 || squared == 0.0 {
        return Band { low: 0.0, high: None };
    }
    // Everything except the range between the two roots.
    let (p, q) = ((half + root.sqrt()) / squared, (half - root.sqrt()) / squared);
    let (first, second) = (p.min(q), p.max(q));
    Band { low: if first >= 0.0 { 0.0 } else { second.max(0.0) }, high: None }
}

#[cfg(test)]
#[path = "fit/tests.rs"]
mod tests;
