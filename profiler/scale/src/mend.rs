//! The fourth question: would mending it help?
//!
//! Problem: threads wait for a lock. How much would throughput grow if the work under the lock were done outside of it? Mostly by less
//! than the waits suggest, because the next bottleneck is the CPUs, another lock, or the number of threads.
//!
//! Algorithm: an experiment, as in causal profiling (Curtsinger and Berger 2015), and a model to interpret it. In some runs every hold
//! of the lock is prolonged by a short computation. In others the same computation follows the release, where it costs the same
//! CPU time and delays no waiter. In others nothing is added. The model is the closed queueing system of `chain`: the threads, the
//! lock, the CPUs, and the measured times of a cycle. Two parameters are fitted to the throughput of all these runs:
//!
//! - the hand-over time, during which no thread has the lock;
//! - the *randomness* of the program. At 1 all durations are exponential. At 0 they are deterministic, and throughput is the minimum of
//!   what the lock, the CPUs and the threads allow. In between, the time per piece of work is interpolated.
//!
//! Other programs may use the CPUs too. The model adds as many competing threads as make the program's own threads queue for a CPU as
//! long as they did.
//!
//! The model then predicts the same cycle with no work under the lock (*apart*), and with half of it there. The gain is relative to the
//! model's present throughput. Parts of a run that do not use the lock keep their length.
//!
//! The confidence interval contains the prediction of every parameter pair whose squared residuals are within Student's t of the
//! minimum. It is widened by the variation of the measured cycle from run to run, and by the model's error for the delays.
//!
//! Properties: no gain is below 1 or above what the CPUs and the threads allow.
//!
//! Limits: one lock. The next bottleneck, such as another lock, is known only as sleep outside of this lock. Waits of threads for each
//! other keep their length.

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
    /// Removing the bottleneck helps.
    Gain,
    /// It does not help enough to be worth the work.
    None,
    /// The runs do not determine it.
    Unclear,
}

/// The effect of a delay on throughput.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Effect {
    /// Where it was injected.
    pub delay: Delay,
    /// Its length per acquisition.
    pub delay_s: f64,
    /// Throughput while the lock is used, relative to that without a delay.
    pub times: f64,
    /// The same by the model.
    pub model: f64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Mend {
    /// The same work, none of it under the lock.
    pub apart: Gain,
    /// Half of the work under the lock is moved outside.
    pub half: Gain,
    /// The conclusion for `apart`.
    pub verdict: Verdict,
    /// The gain at which the CPUs are saturated.
    pub cpus_allow: f64,
    /// Mean number of competing threads of other programs.
    pub others: f64,
    /// The part of a run that does not use the lock.
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

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Untold {
    /// No lock was delayed.
    NotTried,
    /// Several locks of the class are contended: the gain of one of them is unknown.
    Several,
    /// Too few runs or sampled cycles.
    TooFew,
}

/// The answer.
pub fn mend(locks: &Locks, measure: &Measure) -> Result<Mend, Untold> {
    let lock = locks.tried().ok_or(Untold::NotTried)?;
    if lock.busiest < BUSIEST_MIN {
        return Err(Untold::Several);
    }
    let stays = *measure == Measure::Runs;
    study(&locks.trials, locks.cpus, lock.kind == Kind::Spin, stays).ok_or(Untold::TooFew)
}

/// The busiest lock represents its class from this part of the acquisitions on.
const BUSIEST_MIN: f64 = 0.8;
/// Fewest sampled cycles of a run.
const SAMPLES_MIN: u64 = 8;
const TAILS: f64 = 0.05;
/// Gains below this are not worth the work.
const GAIN_MIN: f64 = 1.05;
/// Smallest residual: no model is more exact than this.
const NOISE_MIN: f64 = 0.003;

/// Fitted parameters.
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

/// `stays`: the part of a run without the lock, whose length does not change.
fn study(trials: &[Trial], cpus: u32, spins: bool, stays: bool) -> Option<Mend> {
    let data = Data::of(trials, cpus, spins)?;
    let best = Fitted::of(&data, &data.base)?;
    let left = data.base.cpus_at_most().min(f64::from(cpus));
    let elsewhere = if stays { data.elsewhere } else { 0.0 };
    let whole = |times: f64| 1.0 / (elsewhere + (1.0 - elsewhere) / times.max(1.0));
    let apart = data.gain(&best, whole, System::apart)?;
    let half = data.gain(&best, whole, half_apart)?;
    let verdict = verdict(&apart);
    let now = best.model(&data.base);
    let cpu = data.base.hold_cpu + data.base.gap_cpu;
    Some(Mend {
        apart,
        half,
        verdict,
        cpus_allow: whole(if cpu > 0.0 { left / cpu / now } else { f64::INFINITY }),
        others: data.base.others,
        elsewhere,
        misses: best.misses,
        effects: data.effects(&best),
        random: best.random,
        hand_over_s: best.hand_over,
    })
}

fn half_apart(system: System) -> System {
    System {
        hold_cpu: system.hold_cpu / 2.0,
        hold_sleep: system.hold_sleep / 2.0,
        gap_cpu: system.gap_cpu + system.hold_cpu / 2.0,
        gap_sleep: system.gap_sleep + system.hold_sleep / 2.0,
        ..system
    }
}

/// How many competing threads of other programs explain the time queued for a CPU. Exponential durations overestimate queueing, so an
/// otherwise idle machine is never taken for a loaded one.
fn others(all: &System, queue: f64) -> f64 {
    if all.queue() >= queue {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, 64.0);
    for _ in 0..16 {
        let middle = f64::midpoint(low, high);
        if (System { others: middle, ..*all }).queue() < queue {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// The trials by delay.
struct Data {
    /// Without delays.
    base: System,
    /// The same, each with one time of the cycle longer by its standard error.
    shifted: Vec<System>,
    groups: Vec<Group>,
    runs: u32,
    elsewhere: f64,
}

struct Group {
    delay: Delay,
    inside: f64,
    outside: f64,
    /// Acquisitions per second of each run.
    rates: Vec<f64>,
}

impl Data {
    fn of(trials: &[Trial], cpus: u32, spins: bool) -> Option<Data> {
        let usable = |trial: &&Trial| {
            let Cycle { span_s, taken, samples, .. } = trial.cycle;
            span_s > 0.0 && taken > 0 && samples >= SAMPLES_MIN
        };
        let trials: Vec<&Trial> = trials.iter().filter(usable).collect();
        let has = |delay: Delay| trials.iter().filter(|trial| trial.delay == delay).count() >= 2;
        if !has(Delay::No) || !has(Delay::Inside) {
            return None;
        }
        let cpu = |trial: &Trial, of: f64, at: Delay| {
            (of - if trial.delay == at { trial.cycle.injected_s } else { 0.0 }).max(0.0)
        };
        let over = |of: &dyn Fn(&Trial) -> f64| -> (f64, f64) {
            let all: Vec<f64> = trials.iter().map(|trial| of(trial)).collect();
            mean_and_error(&all)
        };
        let times = [
            over(&|trial| cpu(trial, trial.cycle.hold_cpu_s, Delay::Inside)),
            over(&|trial| trial.cycle.hold_sleep_s),
            over(&|trial| cpu(trial, trial.cycle.gap_cpu_s, Delay::Outside)),
            over(&|trial| trial.cycle.gap_sleep_s),
        ];
        let threads = over(&|trial| trial.cycle.threads).0.round().max(1.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let threads = threads.min(1e6) as u32;
        let [hold_cpu, hold_sleep, gap_cpu, gap_sleep] = times.map(|(mean, _)| mean);
        let all = System {
            threads,
            cpus: f64::from(cpus),
            others: 0.0,
            hold_cpu,
            hold_sleep,
            gap_cpu,
            gap_sleep,
            spins,
        };
        let plain = trials.iter().filter(|trial| trial.delay == Delay::No);
        let queue = mean_and_error(&plain.map(|trial| trial.cycle.queue_s).collect::<Vec<_>>()).0;
        let base = System { others: others(&all, queue), ..all };
        let [a, b, c, d] = times.map(|(_, error)| error);
        let shifted = vec![
            System { hold_cpu: hold_cpu + a, ..base },
            System { hold_sleep: hold_sleep + b, ..base },
            System { gap_cpu: gap_cpu + c, ..base },
            System { gap_sleep: gap_sleep + d, ..base },
        ];
        let mut kinds: Vec<(Delay, u64)> = trials.iter().map(|trial| (trial.delay, trial.delay_ns)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let group = |(delay, ns): (Delay, u64)| {
            let of: Vec<&&Trial> = trials.iter().filter(|t| (t.delay, t.delay_ns) == (delay, ns)).collect();
            let injected = mean_and_error(&of.iter().map(|t| t.cycle.injected_s).collect::<Vec<_>>()).0;
            let at = |place: Delay| if delay == place { injected } else { 0.0 };
            let rate = |trial: &&&Trial| crate::real(trial.cycle.taken) / trial.cycle.span_s;
            Group {
                delay,
                inside: at(Delay::Inside),
                outside: at(Delay::Outside),
                rates: of.iter().map(rate).collect(),
            }
        };
        let plain = trials.iter().filter(|trial| trial.delay == Delay::No);
        let parts: Vec<f64> = plain.map(|t| (1.0 - t.cycle.span_s / t.wall_s).clamp(0.0, 1.0)).collect();
        Some(Data {
            base,
            shifted,
            groups: kinds.into_iter().map(group).collect(),
            runs: u32::try_from(trials.len()).unwrap_or(u32::MAX),
            elsewhere: mean_and_error(&parts).0,
        })
    }

    /// The gain of a change, with its confidence interval.
    fn gain(
        &self,
        best: &Fitted,
        whole: impl Fn(f64) -> f64,
        change: impl Fn(System) -> System,
    ) -> Option<Gain> {
        let gain = |base: &System, random: f64, hand_over: f64| {
            let changed = change(*base);
            let gone = changed.hold_cpu + changed.hold_sleep <= 0.0;
            let after = model(&changed, random, if gone { 0.0 } else { hand_over });
            (after / model(base, random, hand_over)).max(1.0)
        };
        let times = gain(&self.base, best.random, best.hand_over);
        let (mut low, mut high) = (times, times);
        for (random, hand_over) in &best.open {
            let one = gain(&self.base, *random, *hand_over);
            (low, high) = (low.min(one), high.max(one));
        }
        let mut squares = 0.0;
        for shifted in &self.shifted {
            let fitted = Fitted::of(self, shifted)?;
            let moved = gain(shifted, fitted.random, fitted.hand_over) - times;
            squares += moved * moved;
        }
        let reach = student(TAILS, u64::from(self.runs.saturating_sub(2)).max(1)) * squares.sqrt();
        let (low, high) = ((low - reach) / (1.0 + best.misses), (high + reach) * (1.0 + best.misses));
        Some(Gain { times: whole(times), low: whole(low), high: whole(high) })
    }

    fn effects(&self, best: &Fitted) -> Vec<Effect> {
        let now = self.groups.iter().find(|group| group.delay == Delay::No);
        let now = now.map_or(1.0, |group| mean_and_error(&group.rates).0);
        let without = best.model(&self.base);
        let of = |group: &Group| Effect {
            delay: group.delay,
            delay_s: group.inside + group.outside,
            times: mean_and_error(&group.rates).0 / now,
            model: best.model(&group.delayed(&self.base)) / without,
        };
        self.groups.iter().filter(|group| group.delay != Delay::No).map(of).collect()
    }
}

impl Group {
    fn delayed(&self, base: &System) -> System {
        System { hold_cpu: base.hold_cpu + self.inside, gap_cpu: base.gap_cpu + self.outside, ..*base }
    }
}

/// Acquisitions per second.
fn model(system: &System, random: f64, hand_over: f64) -> f64 {
    let system = System { hold_sleep: system.hold_sleep + hand_over, ..*system };
    between(system.throughput(), system.bound(), random)
}

fn between(chance: f64, bound: f64, random: f64) -> f64 {
    1.0 / (random / chance.min(bound) + (1.0 - random) / bound)
}

/// The best parameters, and all that are not significantly worse.
struct Fitted {
    random: f64,
    hand_over: f64,
    open: Vec<(f64, f64)>,
    misses: f64,
}

impl Fitted {
    fn model(&self, system: &System) -> f64 {
        model(system, self.random, self.hand_over)
    }

    fn of(data: &Data, base: &System) -> Option<Fitted> {
        let slowest = data.groups.iter().find(|group| group.delay == Delay::No)?;
        let slowest = mean_and_error(&slowest.rates).0;
        // With a longer hand-over, even a lock that is always held would be taken less often than measured.
        let most = (1.05 / slowest - base.hold_cpu - base.hold_sleep).max(0.0);
        let coarse = tried(data, base, 0.0, most, HAND_OVER_STEPS);
        let best = |tried: &[Point]| tried.iter().copied().min_by(|a, b| a.squares.total_cmp(&b.squares));
        let around = best(&coarse)?;
        let step = most / f64::from(HAND_OVER_STEPS);
        let (from, to) = ((around.hand_over - step).max(0.0), (around.hand_over + step).min(most));
        let mut all = coarse;
        all.extend(tried(data, base, from, to, HAND_OVER_STEPS / 2));
        let best = best(&all)?;
        let freedom = u64::from(data.runs.saturating_sub(2)).max(1);
        let noise = (best.squares / crate::real(freedom)).max(NOISE_MIN * NOISE_MIN);
        let t = student(TAILS, freedom);
        let open = all.iter().filter(|point| point.squares <= best.squares + t * t * noise);
        let missed = data.groups.iter().map(|group| {
            let (mean, error) = mean_and_error(&group.rates);
            let by = (mean / model(&group.delayed(base), best.random, best.hand_over) - 1.0).abs();
            by - student(TAILS, group.rates.len().max(2) as u64 - 1) * error / mean
        });
        Some(Fitted {
            misses: missed.fold(0.0, f64::max),
            random: best.random,
            hand_over: best.hand_over,
            open: open.map(|point| (point.random, point.hand_over)).collect(),
        })
    }
}

#[derive(Clone, Copy)]
struct Point {
    random: f64,
    hand_over: f64,
    squares: f64,
}

/// The squared relative residuals of all runs, for a grid of both parameters.
fn tried(data: &Data, base: &System, from: f64, to: f64, steps: u32) -> Vec<Point> {
    let mut points = Vec::new();
    for step in 0..=steps {
        let hand_over = from + (to - from) * f64::from(step) / f64::from(steps);
        let ends: Vec<(f64, f64)> = data
            .groups
            .iter()
            .map(|group| {
                let system = group.delayed(base);
                let system = System { hold_sleep: system.hold_sleep + hand_over, ..system };
                (system.throughput(), system.bound())
            })
            .collect();
        for random in (0..=RANDOM_STEPS).map(|step| f64::from(step) / f64::from(RANDOM_STEPS)) {
            let squares = data.groups.iter().zip(&ends).flat_map(|(group, (chance, bound))| {
                let model = between(*chance, *bound, random);
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

/// The mean, and its standard error.
fn mean_and_error(of: &[f64]) -> (f64, f64) {
    let n = crate::real(of.len().max(1) as u64);
    let mean = of.iter().sum::<f64>() / n;
    let squares: f64 = of.iter().map(|x| (x - mean) * (x - mean)).sum();
    (mean, if of.len() < 2 { 0.0 } else { (squares / (n - 1.0) / n).sqrt() })
}

#[cfg(test)]
#[path = "mend/tests.rs"]
mod tests;
