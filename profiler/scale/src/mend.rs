//! The fourth question: would mending it help?
//!
//! Problem: threads wait for a lock. How much would throughput grow if the work under the lock were done
//! without the lock? Usually less than the waits suggest, because the next bottleneck is the CPUs, another
//! lock, or the number of threads.
//!
//! Algorithm: an experiment, as in causal profiling (Curtsinger and Berger 2015), and a model to interpret
//! the experiment. There are three kinds of runs. In the first, every hold of the lock is prolonged by a
//! short computation. In the second, the same computation follows the release, where it costs the same CPU
//! time and delays no waiter. In the third, nothing is added. The model is the closed queueing system of
//! `chain`: the threads, the lock, the CPUs, and the measured times of a cycle from one request of the lock
//! to the next. Two parameters are fitted to the throughput of all these runs:
//!
//! - the hand-over time, during which no thread has the lock;
//! - the *randomness* of the program. At 1 all durations are exponential. At 0 they are deterministic, and
//!   throughput is the minimum of what the lock, the CPUs and the threads allow. In between, the time per
//!   piece of work is interpolated.
//!
//! Other programs may use the CPUs too. The model adds competing threads: as many as explain how long the
//! program's own threads queued for a CPU.
//!
//! The model then predicts the throughput of the same cycle with no work under the lock (*apart*), and with
//! half of that work under it. The gain is relative to the model's present throughput. Parts of a run that do
//! not use the lock keep their length.
//!
//! The confidence interval contains the prediction of every parameter pair whose squared residuals are within
//! Student's t of the minimum. The interval is widened by the variation of the measured cycle from run to
//! run, and by the model's error for the delays.
//!
//! Properties: no gain is below 1 or above what the CPUs and the threads allow.
//!
//! Limits: one lock. The next bottleneck, such as another lock, is known only as sleep outside of this lock.
//! Waits of threads for each other keep their length.

mod chain;

use crate::chance::student;
use crate::locks::{Cycle, Delay, Kind, Locks, Trial};
use crate::study::Measure;
use chain::System;

/// A gain, as a factor of the present throughput, with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Gain {
    /// The estimate.
    pub times: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The conclusion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Mending the lock helps.
    Gain,
    /// Mending the lock does not help enough to be worth the work.
    None,
    /// The runs do not determine it.
    Unclear,
}

/// The effect of a delay on throughput.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Effect {
    /// Where the delay was injected.
    pub delay: Delay,
    /// The length of the delay per acquisition.
    pub delay_s: f64,
    /// Measured throughput while the lock is used, relative to that without a delay.
    pub times: f64,
    /// The model's prediction of `times`.
    pub model: f64,
}

/// The result of the experiment.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Mend {
    /// The gain if all work under the lock were done without the lock.
    pub apart: Gain,
    /// The gain if half of the work under the lock were done without the lock.
    pub half: Gain,
    /// The conclusion for `apart`.
    pub verdict: Verdict,
    /// The gain at which the CPUs are saturated.
    pub cpus_allow: f64,
    /// Mean number of competing threads of other programs.
    pub others: f64,
    /// The fraction of a run's length during which the lock is not used.
    pub elsewhere: f64,
    /// The model's largest relative error for a delay, beyond the variation of equal runs.
    pub misses: f64,
    /// The effects of the delays.
    pub effects: Vec<Effect>,
    /// The fitted randomness: 0 deterministic, 1 exponential.
    pub random: f64,
    /// The fitted hand-over time.
    pub hand_over_s: f64,
}

/// Why the gain cannot be determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoAnswer {
    /// No lock was delayed.
    NotTried,
    /// Several locks of the class are contended: the gain of mending one of them is unknown.
    Several,
    /// Too few runs or sampled cycles.
    TooFew,
}

/// Interprets the experiment with a lock.
pub fn mend(locks: &Locks, measure: &Measure) -> Result<Mend, NoAnswer> {
    let lock = locks.tried().ok_or(NoAnswer::NotTried)?;
    if lock.busiest < BUSIEST_MIN {
        return Err(NoAnswer::Several);
    }
    // Runs per second include the part of a run that does not use the lock. A printed rate is taken to
    // exclude that part.
    let has_fixed_part = *measure == Measure::Runs;
    study(&locks.trials, locks.cpus, lock.kind == Kind::Spin, has_fixed_part).ok_or(NoAnswer::TooFew)
}

/// The busiest lock represents its class if it has at least this fraction of the acquisitions.
const BUSIEST_MIN: f64 = 0.8;
/// A run with fewer sampled cycles is not used.
const SAMPLES_MIN: u64 = 8;
/// Tail probability of the confidence intervals.
const TAILS: f64 = 0.05;
/// Gains below this are not worth the work.
const GAIN_MIN: f64 = 1.05;
/// The smallest relative residual that counts as noise: no model is more exact.
const NOISE_MIN: f64 = 0.003;

/// The resolution of the grid in which the parameters are searched.
const RANDOM_STEPS: u32 = 20;
const HAND_OVER_STEPS: u32 = 24;

fn verdict(apart: &Gain) -> Verdict {
    if apart.high < GAIN_MIN {
        Verdict::None
    } else if apart.low > 1.0 && apart.times >= GAIN_MIN.midpoint(1.0) {
        Verdict::Gain
    } else {
        Verdict::Unclear
    }
}

/// `has_fixed_part`: whether the part of a run that does not use the lock counts for throughput; its length
/// does not change.
fn study(trials: &[Trial], cpus: u32, spins: bool, has_fixed_part: bool) -> Option<Mend> {
    let data = Data::of(trials, cpus, spins)?;
    let best = Fitted::of(&data, &data.base)?;
    let available_cpus = data.base.cpus_at_most().min(f64::from(cpus));
    let elsewhere = if has_fixed_part { data.elsewhere } else { 0.0 };
    // The gain of a whole run, from the gain of the part that uses the lock (Amdahl's law).
    let of_whole_run = |times: f64| 1.0 / (elsewhere + (1.0 - elsewhere) / times.max(1.0));
    let apart = data.gain(&best, of_whole_run, System::apart)?;
    let half = data.gain(&best, of_whole_run, half_apart)?;
    let verdict = verdict(&apart);
    let present_rate = best.model(&data.base);
    let cpu = data.base.hold_cpu + data.base.gap_cpu;
    Some(Mend {
        apart,
        half,
        verdict,
        cpus_allow: of_whole_run(if cpu > 0.0 { available_cpus / cpu / present_rate } else { f64::INFINITY }),
        others: data.base.others,
        elsewhere,
        misses: best.misses,
        effects: data.effects(&best),
        random: best.random,
        hand_over_s: best.hand_over,
    })
}

/// The system with half of the work under the lock moved outside.
fn half_apart(system: System) -> System {
    System {
        hold_cpu: system.hold_cpu / 2.0,
        hold_sleep: system.hold_sleep / 2.0,
        gap_cpu: system.gap_cpu + system.hold_cpu / 2.0,
        gap_sleep: system.gap_sleep + system.hold_sleep / 2.0,
        ..system
    }
}

/// The number of competing threads of other programs that explains the measured time `queue` queued for a
/// CPU, by bisection. Exponential durations overestimate queueing, so an otherwise idle machine is never
/// taken for a loaded one.
fn others(alone: &System, queue: f64) -> f64 {
    if alone.queue() >= queue {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, 64.0);
    for _ in 0..16 {
        let middle = f64::midpoint(low, high);
        if (System { others: middle, ..*alone }).queue() < queue {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// The usable trials of an experiment.
struct Data {
    /// The model's input without delays: means over all trials.
    base: System,
    /// Variants of `base`, each with one time of the cycle longer by that time's standard error.
    shifted: Vec<System>,
    groups: Vec<Group>,
    runs: u32,
    /// The mean fraction of a run during which the lock is not used.
    elsewhere: f64,
}

/// The trials with the same delay.
struct Group {
    delay: Delay,
    /// The mean delay per acquisition under the lock, in seconds.
    inside: f64,
    /// The mean delay per acquisition after the release, in seconds.
    outside: f64,
    /// Acquisitions per second of each run.
    rates: Vec<f64>,
}

impl Data {
    /// `None` without two usable runs without a delay, and two with a delay under the lock.
    fn of(trials: &[Trial], cpus: u32, spins: bool) -> Option<Data> {
        let usable = |trial: &&Trial| {
            let Cycle { span_s, taken, samples, .. } = trial.cycle;
            span_s > 0.0 && taken > 0 && samples >= SAMPLES_MIN
        };
        let trials: Vec<&Trial> = trials.iter().filter(usable).collect();
        let has_two = |delay: Delay| trials.iter().filter(|trial| trial.delay == delay).count() >= 2;
        if !has_two(Delay::No) || !has_two(Delay::Inside) {
            return None;
        }
        // The times of the cycle, without the injected delays.
        let without_delay = |trial: &Trial, cpu_s: f64, place: Delay| {
            (cpu_s - if trial.delay == place { trial.cycle.injected_s } else { 0.0 }).max(0.0)
        };
        let over_trials = |value: &dyn Fn(&Trial) -> f64| -> (f64, f64) {
            let values: Vec<f64> = trials.iter().map(|trial| value(trial)).collect();
            mean_and_error(&values)
        };
        let times = [
            over_trials(&|trial| without_delay(trial, trial.cycle.hold_cpu_s, Delay::Inside)),
            over_trials(&|trial| trial.cycle.hold_sleep_s),
            over_trials(&|trial| without_delay(trial, trial.cycle.gap_cpu_s, Delay::Outside)),
            over_trials(&|trial| trial.cycle.gap_sleep_s),
        ];
        let threads = over_trials(&|trial| trial.cycle.threads).0.round().max(1.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let threads = threads.min(1e6) as u32;
        let [hold_cpu, hold_sleep, gap_cpu, gap_sleep] = times.map(|(mean, _)| mean);
        let alone = System {
            threads,
            cpus: f64::from(cpus),
            others: 0.0,
            hold_cpu,
            hold_sleep,
            gap_cpu,
            gap_sleep,
            spins,
        };
        let undelayed = || trials.iter().filter(|trial| trial.delay == Delay::No);
        let queue = mean_and_error(&undelayed().map(|trial| trial.cycle.queue_s).collect::<Vec<_>>()).0;
        let base = System { others: others(&alone, queue), ..alone };
        let [hold_cpu_error, hold_sleep_error, gap_cpu_error, gap_sleep_error] =
            times.map(|(_, error)| error);
        let shifted = vec![
            System { hold_cpu: hold_cpu + hold_cpu_error, ..base },
            System { hold_sleep: hold_sleep + hold_sleep_error, ..base },
            System { gap_cpu: gap_cpu + gap_cpu_error, ..base },
            System { gap_sleep: gap_sleep + gap_sleep_error, ..base },
        ];
        let mut delays: Vec<(Delay, u64)> =
            trials.iter().map(|trial| (trial.delay, trial.delay_ns)).collect();
        delays.sort_unstable();
        delays.dedup();
        let group = |(delay, ns): (Delay, u64)| {
            let members: Vec<&&Trial> =
                trials.iter().filter(|t| (t.delay, t.delay_ns) == (delay, ns)).collect();
            let injected = mean_and_error(&members.iter().map(|t| t.cycle.injected_s).collect::<Vec<_>>()).0;
            let injected_at = |place: Delay| if delay == place { injected } else { 0.0 };
            let rate = |trial: &&&Trial| crate::real(trial.cycle.taken) / trial.cycle.span_s;
            Group {
                delay,
                inside: injected_at(Delay::Inside),
                outside: injected_at(Delay::Outside),
                rates: members.iter().map(rate).collect(),
            }
        };
        let unused: Vec<f64> =
            undelayed().map(|t| (1.0 - t.cycle.span_s / t.wall_s).clamp(0.0, 1.0)).collect();
        Some(Data {
            base,
            shifted,
            groups: delays.into_iter().map(group).collect(),
            runs: u32::try_from(trials.len()).unwrap_or(u32::MAX),
            elsewhere: mean_and_error(&unused).0,
        })
    }

    /// The gain of a change, with its confidence interval. `of_whole_run` turns the gain of the part of a run
    /// that uses the lock into that of the whole run.
    fn gain(
        &self,
        best: &Fitted,
        of_whole_run: impl Fn(f64) -> f64,
        change: impl Fn(System) -> System,
    ) -> Option<Gain> {
        let gain = |base: &System, random: f64, hand_over: f64| {
            let changed = change(*base);
            let is_unlocked = changed.hold_cpu + changed.hold_sleep <= 0.0;
            let after = model(&changed, random, if is_unlocked { 0.0 } else { hand_over });
            (after / model(base, random, hand_over)).max(1.0)
        };
        let times = gain(&self.base, best.random, best.hand_over);
        // The range over all parameters that the runs do not exclude.
        let (mut low, mut high) = (times, times);
        for (random, hand_over) in &best.not_excluded {
            let candidate = gain(&self.base, *random, *hand_over);
            (low, high) = (low.min(candidate), high.max(candidate));
        }
        // The error due to the measured times of the cycle, each shifted by its standard error.
        let mut squares = 0.0;
        for shifted in &self.shifted {
            let fitted = Fitted::of(self, shifted)?;
            let difference = gain(shifted, fitted.random, fitted.hand_over) - times;
            squares += difference * difference;
        }
        let error = student(TAILS, u64::from(self.runs.saturating_sub(2)).max(1)) * squares.sqrt();
        let (low, high) = ((low - error) / (1.0 + best.misses), (high + error) * (1.0 + best.misses));
        Some(Gain { times: of_whole_run(times), low: of_whole_run(low), high: of_whole_run(high) })
    }

    /// The measured and the modelled effect of each delay.
    fn effects(&self, best: &Fitted) -> Vec<Effect> {
        let undelayed = self.groups.iter().find(|group| group.delay == Delay::No);
        let undelayed_rate = undelayed.map_or(1.0, |group| mean_and_error(&group.rates).0);
        let undelayed_model = best.model(&self.base);
        let effect = |group: &Group| Effect {
            delay: group.delay,
            delay_s: group.inside + group.outside,
            times: mean_and_error(&group.rates).0 / undelayed_rate,
            model: best.model(&group.delayed(&self.base)) / undelayed_model,
        };
        self.groups.iter().filter(|group| group.delay != Delay::No).map(effect).collect()
    }
}

impl Group {
    /// The system with this group's delay.
    fn delayed(&self, base: &System) -> System {
        System { hold_cpu: base.hold_cpu + self.inside, gap_cpu: base.gap_cpu + self.outside, ..*base }
    }
}

/// Acquisitions per second by the model.
fn model(system: &System, random: f64, hand_over: f64) -> f64 {
    let system = System { hold_sleep: system.hold_sleep + hand_over, ..*system };
    interpolate(system.throughput(), system.bound(), random)
}

/// Interpolates the time per acquisition between that of exponential durations (randomness 1) and of
/// deterministic ones (0).
fn interpolate(exponential_rate: f64, bound: f64, random: f64) -> f64 {
    1.0 / (random / exponential_rate.min(bound) + (1.0 - random) / bound)
}

/// The best parameters, and the parameters that are not significantly worse.
struct Fitted {
    random: f64,
    hand_over: f64,
    /// Pairs of randomness and hand-over time that are not significantly worse.
    not_excluded: Vec<(f64, f64)>,
    /// The largest relative error of the model for a group, beyond the group's own confidence interval.
    misses: f64,
}

impl Fitted {
    fn model(&self, system: &System) -> f64 {
        model(system, self.random, self.hand_over)
    }

    /// Fits both parameters to the rates of all groups.
    fn of(data: &Data, base: &System) -> Option<Fitted> {
        let undelayed = data.groups.iter().find(|group| group.delay == Delay::No)?;
        let undelayed_rate = mean_and_error(&undelayed.rates).0;
        // With a longer hand-over, even a lock that is always held would be taken less often than measured.
        let hand_over_max = (1.05 / undelayed_rate - base.hold_cpu - base.hold_sleep).max(0.0);
        // A coarse grid first, then a finer one around its best point.
        let coarse = grid(data, base, 0.0, hand_over_max, HAND_OVER_STEPS);
        let best = |points: &[Point]| points.iter().copied().min_by(|a, b| a.squares.total_cmp(&b.squares));
        let around = best(&coarse)?;
        let step = hand_over_max / f64::from(HAND_OVER_STEPS);
        let (from, to) = ((around.hand_over - step).max(0.0), (around.hand_over + step).min(hand_over_max));
        let mut points = coarse;
        points.extend(grid(data, base, from, to, HAND_OVER_STEPS / 2));
        let best = best(&points)?;
        let freedom = u64::from(data.runs.saturating_sub(2)).max(1);
        let noise = (best.squares / crate::real(freedom)).max(NOISE_MIN * NOISE_MIN);
        let t = student(TAILS, freedom);
        let not_excluded = points.iter().filter(|point| point.squares <= best.squares + t * t * noise);
        let misses = data.groups.iter().map(|group| {
            let (mean, error) = mean_and_error(&group.rates);
            let deviation = (mean / model(&group.delayed(base), best.random, best.hand_over) - 1.0).abs();
            deviation - student(TAILS, group.rates.len().max(2) as u64 - 1) * error / mean
        });
        Some(Fitted {
            misses: misses.fold(0.0, f64::max),
            random: best.random,
            hand_over: best.hand_over,
            not_excluded: not_excluded.map(|point| (point.random, point.hand_over)).collect(),
        })
    }
}

/// A pair of parameters, and the sum of the squared relative residuals of all runs.
#[derive(Clone, Copy)]
struct Point {
    random: f64,
    hand_over: f64,
    squares: f64,
}

/// A grid of both parameters, with hand-over times between `from` and `to`.
fn grid(data: &Data, base: &System, from: f64, to: f64, steps: u32) -> Vec<Point> {
    let mut points = Vec::new();
    for step in 0..=steps {
        let hand_over = from + (to - from) * f64::from(step) / f64::from(steps);
        // The rates at randomness 1 and 0 do not depend on the inner loop.
        let extremes: Vec<(f64, f64)> = data
            .groups
            .iter()
            .map(|group| {
                let system = group.delayed(base);
                let system = System { hold_sleep: system.hold_sleep + hand_over, ..system };
                (system.throughput(), system.bound())
            })
            .collect();
        for random in (0..=RANDOM_STEPS).map(|step| f64::from(step) / f64::from(RANDOM_STEPS)) {
            let squares = data.groups.iter().zip(&extremes).flat_map(|(group, (exponential_rate, bound))| {
                let model = interpolate(*exponential_rate, *bound, random);
                group.rates.iter().map(move |rate| (rate / model - 1.0) * (rate / model - 1.0))
            });
            points.push(Point { random, hand_over, squares: squares.sum() });
        }
        if to <= from {
            break;
        }
    }
    points
}

/// The mean of values, and the standard error of the mean.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = crate::real(values.len().max(1) as u64);
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|x| (x - mean) * (x - mean)).sum();
    (mean, if values.len() < 2 { 0.0 } else { (squares / (n - 1.0) / n).sqrt() })
}

#[cfg(test)]
#[path = "mend/tests.rs"]
mod tests;
