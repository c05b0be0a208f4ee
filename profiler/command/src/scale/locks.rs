//! The experiment with one lock: runs with delays, from which the gain of mending the lock is predicted.

use commonhold_measure::program::MeterOptions;
use commonhold_scale::locks::{Cycle, Delay, Locks, Trial};
use commonhold_scale::states::State;
use commonhold_scale::study::{Run, Size};

use super::{Made, Runs};
use crate::exit::Failure;
use crate::progress::Progress;

/// The minimum number of rounds: with fewer, confidence intervals are useless.
const ROUNDS_MIN: u32 = 3;
/// The range of the injected delay.
const DELAY_NS: std::ops::RangeInclusive<u64> = 100..=20_000_000;

/// The study was interrupted.
pub(super) struct Interrupted;

/// The outcome of one run.
enum Outcome {
    /// The run, its locks, and the number of locks that were not counted for lack of room.
    Run(Box<Run>, Vec<commonhold_scale::locks::Lock>, u64),
    /// Why the run failed.
    Failed(String),
}

impl Runs<'_> {
    /// Counts the locks at the largest measured size, and delays the suspect. `None` if no size was measured.
    pub(super) fn try_locks(
        &mut self,
        sizes: &[Size],
    ) -> Result<Result<Option<Locks>, Interrupted>, Failure> {
        let Some(size) = sizes.iter().rfind(|size| !size.runs.is_empty()) else { return Ok(Ok(None)) };
        let cpus = u32::try_from(size.cpus.iter().count()).unwrap_or(u32::MAX);
        let mut locks = Locks { size: size.n, cpus, ..Locks::default() };
        match self.try_run(size, true, Some(MeterOptions::default()))? {
            None => return Ok(Err(Interrupted)),
            Some(Outcome::Failed(why)) => locks.failed = Some(why),
            Some(Outcome::Run(run, counted, overflowed)) => {
                let times = run.watched.map(|watched| watched.times).unwrap_or_default();
                (locks.lives_ns, locks.lock_ns) = (times.sum(), times.of(State::Lock));
                (locks.locks, locks.overflowed) = (counted, overflowed);
            }
        }
        let Some(suspect) = locks.suspect() else { return Ok(Ok(Some(locks))) };
        let class = suspect.class;
        let hold_ns = suspect.counts.hold_ns / suspect.counts.total.max(1);
        let delay_ns = hold_ns.clamp(*DELAY_NS.start(), *DELAY_NS.end());
        locks.tried = Some(class);
        // Without the meter, and with the meter and different delays.
        let plans = [
            None,
            Some((Delay::No, 0)),
            Some((Delay::Inside, delay_ns / 2)),
            Some((Delay::Inside, delay_ns)),
            Some((Delay::Outside, delay_ns)),
        ];
        let rounds = self.plan.args.repeat.max(ROUNDS_MIN);
        let progress = Progress::new("runs for the lock", rounds as usize * plans.len());
        for round in 0..rounds {
            let mut order = plans.to_vec();
            if round % 2 == 1 {
                order.reverse();
            }
            for plan in order {
                let options = plan.map(|(delay, ns)| meter_options(class, delay, ns));
                match self.try_run(size, false, options)? {
                    None => return Ok(Err(Interrupted)),
                    Some(Outcome::Failed(why)) => {
                        locks.failed = Some(why);
                        return Ok(Ok(Some(locks)));
                    }
                    Some(Outcome::Run(run, counted, _)) => add_trial(&mut locks, plan, &run, &counted),
                }
                progress.step();
            }
        }
        Ok(Ok(Some(locks)))
    }

    /// Makes one run, with the meter if `meter` is set; returns `None` if the study was interrupted.
    fn try_run(
        &mut self,
        size: &Size,
        watch: bool,
        meter: Option<MeterOptions>,
    ) -> Result<Option<Outcome>, Failure> {
        let Some(mut done) = self.done(size, watch, meter)? else { return Ok(None) };
        let metered = done.locks.take().unwrap_or_default();
        Ok(match self.judge(*done) {
            Made::Run(run) => Some(Outcome::Run(run, metered.locks, metered.overflowed)),
            Made::Failed(why) => Some(Outcome::Failed(why)),
            Made::Stopped => None,
        })
    }
}

fn meter_options(class: u64, delay: Delay, ns: u64) -> MeterOptions {
    let at = |place: Delay| if delay == place { ns } else { 0 };
    MeterOptions { class, inside_ns: at(Delay::Inside), outside_ns: at(Delay::Outside) }
}

/// Adds a run to the experiment. `plan` is the delay of the run; `None` for a run without the meter.
fn add_trial(
    locks: &mut Locks,
    plan: Option<(Delay, u64)>,
    run: &Run,
    counted: &[commonhold_scale::locks::Lock],
) {
    let Some((delay, delay_ns)) = plan else {
        locks.plain.push(run.throughput);
        return;
    };
    if delay == Delay::No {
        locks.metered.push(run.throughput);
    }
    let tried = counted.iter().find(|lock| Some(lock.class) == locks.tried);
    let cycle: Option<Cycle> = tried.and_then(|lock| lock.cycle);
    if let Some(cycle) = cycle {
        locks.trials.push(Trial { delay, delay_ns, wall_s: run.wall_s(), throughput: run.throughput, cycle });
    }
}
