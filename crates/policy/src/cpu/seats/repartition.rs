//! Repartitioning: threads of a job that lie apart come together.
//!
//! Terms, algorithm and properties are those of [`super`], point 3.

use alloc::vec::Vec;

use super::board::PoolAt;
use super::{GAIN_PART, Hall, Job, MOVE_NS, State, Thread, count, in_pool};
use crate::plan::Reason;
use crate::snapshot::{JobId, ThreadId};
use crate::time::Time;

/// By how much a job's togetherness grows if a thread goes from one pool to another.
fn growth(spread: &[(PoolAt, u32)], from: PoolAt, to: PoolAt) -> i64 {
    2 * (i64::from(in_pool(spread, to)) - i64::from(in_pool(spread, from)) + 1)
}

/// What the growth saves of a job's CPU time, in ns: its pairs of threads are c² of n², and it goes on for as long as it has
/// gone on since it moved.
fn gain_ns(job: &Job, threads: u32, growth: i64, now: Time) -> i128 {
    let age = i128::from(now.saturating_sub(job.since));
    age * i128::from(growth) / (i128::from(threads.max(1)) * i128::from(GAIN_PART))
}

/// A move that was found: a thread to its job's pool, and the thread that makes room for it.
struct Move {
    thread: ThreadId,
    from: PoolAt,
    to: PoolAt,
    other: Option<(JobId, ThreadId)>,
}

/// Makes the moves that pay, until there is none.
pub(super) fn step(state: &mut State, now: Time, hall: &mut Hall<'_>) {
    let mut moved: Vec<JobId> = Vec::new();
    // What one job gives up, another may take, and one that made room may lie apart: until none finds a move.
    loop {
        let before = moved.len();
        let apart = state.jobs.iter().filter(|(_, job)| job.spread().len() > 1);
        let apart: Vec<JobId> = apart.map(|(id, _)| *id).collect();
        for id in apart {
            while let Some(found) = find(state, id, now, hall) {
                carry_out(state, id, &found, hall);
                moved.push(id);
                moved.extend(found.other.map(|(job, _)| job));
            }
        }
        if moved.len() == before {
            break;
        }
    }
    for id in moved {
        if let Some(job) = state.jobs.get_mut(&id) {
            job.since = now;
        }
    }
}

/// The best move of a job's.
fn find(state: &State, id: JobId, now: Time, hall: &Hall<'_>) -> Option<Move> {
    let job = state.jobs.get(&id)?;
    let spread = job.spread();
    let threads: u32 = spread.iter().map(|(_, count)| count).sum();
    // To the pool where most are, from the one where fewest are.
    let (to, _) = *spread.iter().max_by_key(|(pool, count)| (*count, core::cmp::Reverse(*pool)))?;
    let (from, _) =
        *spread.iter().filter(|(pool, _)| *pool != to).min_by_key(|(pool, count)| (*count, *pool))?;
    let sits = |thread: &Thread, at, may| thread.seat == Some(at) && hall.may_sit(job.unit, thread, may);
    let thread = *job.threads.iter().find(|(_, thread)| sits(thread, from, to))?.0;
    let grows = growth(&spread, from, to);
    let gain = gain_ns(job, threads, grows, now);
    if hall.made(job.unit)?.free(to) > 0 {
        let pays = grows > 0 && gain >= i128::from(MOVE_NS);
        return pays.then_some(Move { thread, from, to, other: None });
    }
    // In exchange: the thread there that its own job misses least.
    let key = hall.key(job.unit);
    let others = state.jobs.iter().filter(|(other, job)| **other != id && hall.key(job.unit) == key);
    let others = others.filter_map(|(id, other)| {
        let thread = *other.threads.iter().find(|(_, thread)| sits(thread, to, from))?.0;
        let spread = other.spread();
        let grows = growth(&spread, to, from);
        let threads = spread.iter().map(|(_, count)| count).sum();
        Some((grows, gain_ns(other, threads, grows, now), (*id, thread)))
    });
    let (other_grows, other_gain, other) =
        others.max_by_key(|(grows, gain, (id, _))| (*grows, *gain, core::cmp::Reverse(*id)))?;
    let pays = grows + other_grows > 0 && gain + other_gain >= 2 * i128::from(MOVE_NS);
    pays.then_some(Move { thread, from, to, other: Some(other) })
}

fn carry_out(state: &mut State, id: JobId, found: &Move, hall: &mut Hall<'_>) {
    if let Some((other, thread)) = found.other {
        go(state, other, thread, found.to, None, hall);
        go(state, id, found.thread, found.from, Some(found.to), hall);
        go(state, other, thread, found.to, Some(found.from), hall);
    } else {
        go(state, id, found.thread, found.from, Some(found.to), hall);
    }
}

/// A thread gets up, and sits down where it is told. One that is without a seat already only sits down.
fn go(state: &mut State, id: JobId, thread: ThreadId, from: PoolAt, to: Option<PoolAt>, hall: &mut Hall<'_>) {
    let Some(job) = state.jobs.get_mut(&id) else { return };
    let mut spread = job.spread();
    let board = hall.board(job.unit);
    let Some(thread) = job.threads.get_mut(&thread) else { return };
    if let Some(pool) = thread.seat.take() {
        board.rise(pool, in_pool(&spread, pool) == 1);
        count(&mut spread, pool, -1);
    }
    let Some(to) = to else { return };
    let beside = in_pool(&spread, to);
    board.sit(to, beside == 0);
    thread.seat = Some(to);
    let from = u32::try_from(from).unwrap_or(u32::MAX);
    thread.because = Reason::Together { from, threads: beside };
}
