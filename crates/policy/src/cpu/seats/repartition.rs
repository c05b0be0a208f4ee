//! Repartitioning: moves scattered threads of a job to the pool where most of its threads are. This is step 3
//! of the algorithm in [`super`], which also defines cohesion, gain and cost.

use alloc::vec::Vec;

use super::board::PoolAt;
use super::{Boards, GAIN_PART, Job, MOVE_NS, Seating, Thread, count, in_pool};
use crate::plan::Reason;
use crate::snapshot::{JobId, ThreadId};
use crate::time::Time;

/// By how much a job's cohesion grows if a thread moves from one pool to another: with t threads in the pool
/// `to` and f in the pool `from`, (t + 1)² - t² + (f - 1)² - f² = 2 (t - f + 1). Negative if the job becomes
/// more scattered.
fn growth(spread: &[(PoolAt, u32)], from: PoolAt, to: PoolAt) -> i64 {
    2 * (i64::from(in_pool(spread, to)) - i64::from(in_pool(spread, from)) + 1)
}

/// The CPU time that a job of `threads` threads is expected to save by a `growth` of its cohesion, in
/// nanoseconds; negative if it loses time. Of the n² pairs of its threads, cohesion counts those in one pool.
/// The job is expected to run for as long as it has run since its last move.
///
/// For example, 4 threads that ran for 100 ms save at most a tenth of 400 ms. If a thread joins 3 others,
/// cohesion grows from 10 to 16, by 6 of 16 pairs: they save 15 ms.
fn gain_ns(job: &Job, threads: u32, growth: i64, now: Time) -> i128 {
    let age = i128::from(now.saturating_sub(job.settled_since));
    age * i128::from(growth) / (i128::from(threads.max(1)) * i128::from(GAIN_PART))
}

/// A move of a thread to its job's main pool, and the thread of another job that changes places with it, if
/// no seat is free.
struct Move {
    thread: ThreadId,
    from: PoolAt,
    to: PoolAt,
    exchanged_with: Option<(JobId, ThreadId)>,
}

/// Makes moves that pay, until no further move pays.
pub(super) fn step(state: &mut Seating, now: Time, boards: &mut Boards<'_>) {
    let mut moved: Vec<JobId> = Vec::new();
    // Repeat until no job moves: a seat that one job gives up may be useful to another, and an exchange may
    // scatter a job.
    loop {
        let moved_before = moved.len();
        let scattered = state.jobs.iter().filter(|(_, job)| job.spread().len() > 1);
        let scattered: Vec<JobId> = scattered.map(|(id, _)| *id).collect();
        for id in scattered {
            while let Some(best) = best_move(state, id, now, boards) {
                carry_out(state, id, &best, boards);
                moved.push(id);
                moved.extend(best.exchanged_with.map(|(job, _)| job));
            }
        }
        if moved.len() == moved_before {
            break;
        }
    }
    for id in moved {
        if let Some(job) = state.jobs.get_mut(&id) {
            job.settled_since = now;
        }
    }
}

/// The best move for one job: from the pool with the fewest of its threads to the pool with the most. `None`
/// if it does not pay, or if no thread may move there.
fn best_move(state: &Seating, id: JobId, now: Time, boards: &Boards<'_>) -> Option<Move> {
    let job = state.jobs.get(&id)?;
    let spread = job.spread();
    let threads: u32 = spread.iter().map(|(_, count)| count).sum();
    let (to, _) = *spread.iter().max_by_key(|(pool, count)| (*count, core::cmp::Reverse(*pool)))?;
    let (from, _) =
        *spread.iter().filter(|(pool, _)| *pool != to).min_by_key(|(pool, count)| (*count, *pool))?;
    let can_move = |thread: &Thread, seat_in, target| {
        thread.seat == Some(seat_in) && boards.may_use(job.unit, thread, target)
    };
    let thread = *job.threads.iter().find(|(_, thread)| can_move(thread, from, to))?.0;
    let own_growth = growth(&spread, from, to);
    let own_gain = gain_ns(job, threads, own_growth, now);
    if boards.existing(job.unit)?.free(to) > 0 {
        let pays = own_growth > 0 && own_gain >= i128::from(MOVE_NS);
        return pays.then_some(Move { thread, from, to, exchanged_with: None });
    }
    // No free seat: change places with the thread there whose own job loses the least.
    let key = boards.key(job.unit);
    let others = state.jobs.iter().filter(|(other, job)| **other != id && boards.key(job.unit) == key);
    let exchanges = others.filter_map(|(other_id, other)| {
        let thread = *other.threads.iter().find(|(_, thread)| can_move(thread, to, from))?.0;
        let spread = other.spread();
        let growth = growth(&spread, to, from);
        let threads = spread.iter().map(|(_, count)| count).sum();
        Some((growth, gain_ns(other, threads, growth, now), (*other_id, thread)))
    });
    let (other_growth, other_gain, other) = exchanges
        .max_by_key(|(growth, gain, (other_id, _))| (*growth, *gain, core::cmp::Reverse(*other_id)))?;
    let pays = own_growth + other_growth > 0 && own_gain + other_gain >= 2 * i128::from(MOVE_NS);
    pays.then_some(Move { thread, from, to, exchanged_with: Some(other) })
}

/// Carries out a move of job `id`. In an exchange, the other thread first frees its seat, since the pool is
/// full.
fn carry_out(state: &mut Seating, id: JobId, planned: &Move, boards: &mut Boards<'_>) {
    if let Some((other, other_thread)) = planned.exchanged_with {
        reseat(state, other, other_thread, planned.to, None, boards);
        reseat(state, id, planned.thread, planned.from, Some(planned.to), boards);
        reseat(state, other, other_thread, planned.to, Some(planned.from), boards);
    } else {
        reseat(state, id, planned.thread, planned.from, Some(planned.to), boards);
    }
}

/// Frees a thread's seat, unless it is free already, and gives it one in the pool `to`, unless that is
/// `None`. The reason reported for the new seat names the pool `from`.
fn reseat(
    state: &mut Seating,
    id: JobId,
    thread: ThreadId,
    from: PoolAt,
    to: Option<PoolAt>,
    boards: &mut Boards<'_>,
) {
    let Some(job) = state.jobs.get_mut(&id) else { return };
    let mut spread = job.spread();
    let board = boards.board(job.unit);
    let Some(thread) = job.threads.get_mut(&thread) else { return };
    if let Some(pool) = thread.seat.take() {
        board.vacate(pool, in_pool(&spread, pool) == 1);
        count(&mut spread, pool, -1);
    }
    let Some(to) = to else { return };
    let beside = in_pool(&spread, to);
    board.occupy(to, beside == 0);
    thread.seat = Some(to);
    let from = u32::try_from(from).unwrap_or(u32::MAX);
    thread.because = Reason::Together { from, threads: beside };
}
