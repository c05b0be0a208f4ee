//! Repartitioning: brings scattered threads of a job together. See [`super`], step 3.

use alloc::vec::Vec;

use super::board::PoolAt;
use super::{Boards, GAIN_PART, Job, MOVE_NS, Seating, Thread, count, in_pool};
use crate::plan::Reason;
use crate::snapshot::{JobId, ThreadId};
use crate::time::Time;

/// By how much a job's cohesion grows if a thread moves from one pool to another.
fn growth(spread: &[(PoolAt, u32)], from: PoolAt, to: PoolAt) -> i64 {
    2 * (i64::from(in_pool(spread, to)) - i64::from(in_pool(spread, from)) + 1)
}

/// The saving of a job's CPU time in nanoseconds. Of n² pairs of threads, cohesion counts those that are together; the saving
/// lasts as long as the job's age since its last move.
fn gain_ns(job: &Job, threads: u32, growth: i64, now: Time) -> i128 {
    let age = i128::from(now.saturating_sub(job.since));
    age * i128::from(growth) / (i128::from(threads.max(1)) * i128::from(GAIN_PART))
}

/// A move of a thread to its job's main pool, and the thread of another job that changes places with it, if no seat is free.
struct Move {
    thread: ThreadId,
    from: PoolAt,
    to: PoolAt,
    other: Option<(JobId, ThreadId)>,
}

/// Makes moves that pay until none is left.
pub(super) fn step(state: &mut Seating, now: Time, boards: &mut Boards<'_>) {
    let mut moved: Vec<JobId> = Vec::new();
    // A seat that one job gives up may be taken by another, and a job that changed places may now be scattered itself.
    loop {
        let before = moved.len();
        let apart = state.jobs.iter().filter(|(_, job)| job.spread().len() > 1);
        let apart: Vec<JobId> = apart.map(|(id, _)| *id).collect();
        for id in apart {
            while let Some(found) = find(state, id, now, boards) {
                carry_out(state, id, &found, boards);
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

/// The best move for one job, if it pays.
fn find(state: &Seating, id: JobId, now: Time, boards: &Boards<'_>) -> Option<Move> {
    let job = state.jobs.get(&id)?;
    let spread = job.spread();
    let threads: u32 = spread.iter().map(|(_, count)| count).sum();
    // From the pool with the fewest of its threads to the pool with the most.
    let (to, _) = *spread.iter().max_by_key(|(pool, count)| (*count, core::cmp::Reverse(*pool)))?;
    let (from, _) =
        *spread.iter().filter(|(pool, _)| *pool != to).min_by_key(|(pool, count)| (*count, *pool))?;
    let sits = |thread: &Thread, at, may| thread.seat == Some(at) && boards.may_use(job.unit, thread, may);
    let thread = *job.threads.iter().find(|(_, thread)| sits(thread, from, to))?.0;
    let grows = growth(&spread, from, to);
    let gain = gain_ns(job, threads, grows, now);
    if boards.made(job.unit)?.free(to) > 0 {
        let pays = grows > 0 && gain >= i128::from(MOVE_NS);
        return pays.then_some(Move { thread, from, to, other: None });
    }
    // No free seat: change places with the thread there whose own job loses the least.
    let key = boards.key(job.unit);
    let others = state.jobs.iter().filter(|(other, job)| **other != id && boards.key(job.unit) == key);
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

fn carry_out(state: &mut Seating, id: JobId, found: &Move, boards: &mut Boards<'_>) {
    if let Some((other, thread)) = found.other {
        go(state, other, thread, found.to, None, boards);
        go(state, id, found.thread, found.from, Some(found.to), boards);
        go(state, other, thread, found.to, Some(found.from), boards);
    } else {
        go(state, id, found.thread, found.from, Some(found.to), boards);
    }
}

/// Moves a thread to a pool; with `to` `None`, only frees its seat. The seat may be freed already.
fn go(
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
