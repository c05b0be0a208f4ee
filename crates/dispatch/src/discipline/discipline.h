/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The seam between the scheduler and its disciplines: which of them orders a unit's own tasks and its sub-units.
 *
 * `stride` is the fast path, written out where it is needed (tree.h, waking.h). The others are asked here, through
 * struct party. A scheduler under which no unit has another discipline is loaded without them (see disciplined()).
 */
#ifndef DISPATCH_DISCIPLINE_H
#define DISPATCH_DISCIPLINE_H

#include "party.h"
#include "stride.h"
#include "lottery.h"
#include "usage.h"
#include "entitlement.h"
#include "decay.h"
#include "fifo.h"
#include "rr.h"
#include "batch.h"
#include "job_currency.h"
#include "gang.h"
#include "dwcs.h"

#define APART __attribute__((noinline)) /* not a part of its callers: most never get there */

/* Whether a discipline is not the one that is written out. */
static bool is_other(u32 discipline)
{
	return disciplined() && discipline != DISPATCH_STRIDE;
}

/* Whether keys are numbers, which the clock gives out. */
static bool has_numbers(u32 discipline)
{
	return discipline >= DISPATCH_FIFO && discipline <= DISPATCH_GANG;
}

/* A party waits from now on, or its next turn is about to begin; `woke`: it slept, or is new. */
static APART void party_comes(u32 discipline, struct party *party, u64 now, bool woke)
{
	switch (discipline) {
	case DISPATCH_LOTTERY:
		lottery_comes(party, woke);
		break;
	case DISPATCH_ENTITLEMENT:
		entitlement_comes(party, now);
		break;
	case DISPATCH_DECAY:
		decay_comes(party, now);
		break;
	case DISPATCH_FIFO:
		fifo_comes(party, woke);
		break;
	case DISPATCH_RR:
		rr_comes(party);
		break;
	case DISPATCH_BATCH:
		batch_comes(party, woke);
		break;
	case DISPATCH_JOB:
		job_comes(party, woke);
		break;
	case DISPATCH_GANG:
		gang_comes(party, now, woke);
		break;
	case DISPATCH_DWCS:
		if (party->deadline)
			dwcs_comes(party, now, woke);
		break;
	}
}

/* It ran for so long since the last time, on one CPU. */
static APART void party_ran(u32 discipline, struct party *party, u64 used, u64 now)
{
	switch (discipline) {
	case DISPATCH_LOTTERY:
		lottery_ran(party, used);
		break;
	case DISPATCH_ENTITLEMENT:
		entitlement_ran(party, used, now);
		break;
	case DISPATCH_DECAY:
		decay_ran(party, used, now);
		break;
	case DISPATCH_BATCH:
		batch_ran(party, used);
		break;
	case DISPATCH_JOB:
		job_ran(party, used, now);
		break;
	case DISPATCH_DWCS:
		if (party->deadline)
			dwcs_ran(party, used, now);
		break;
	}
}

/* A turn of it begins. */
static void party_begins(u32 discipline, struct party *party, u64 now)
{
	if (discipline == DISPATCH_LOTTERY)
		lottery_begins(party);
	else if (discipline == DISPATCH_GANG)
		gang_begins(party, now);
}

/* It sleeps, or ends. */
static void party_leaves(u32 discipline, struct party *party)
{
	if (discipline == DISPATCH_JOB)
		job_leaves(party);
}

/* A number that was given out is not given out again. */
static void count_numbers(u32 discipline, u64 *clock, u64 key)
{
	if (has_numbers(discipline))
		at_least(clock, key & (OVER - 1));
}

/* Among a unit's own tasks there are no gangs, and no deadlines: they take turns. */
static u32 among_tasks(u32 discipline)
{
	return discipline == DISPATCH_GANG || discipline == DISPATCH_DWCS ? DISPATCH_RR : discipline;
}

/* Whether one that wakes interrupts another, by their keys. */
static bool interrupts(u32 discipline, u64 mine, u64 its)
{
	switch (discipline) {
	case DISPATCH_ENTITLEMENT:
		return before(mine + ENTITLEMENT_HALF_LIFE / 16, its);
	case DISPATCH_DECAY:
		return before(mine + DECAY_HALF_LIFE / 16, its);
	case DISPATCH_JOB:
		return before(mine + OVER / 2, its);
	case DISPATCH_DWCS:
		return before(mine, its);
	}
	return false;
}

/*
 * What is added to the key of a party that runs on CPUs now, each of which is charged a slice later. Where keys are
 * numbers or deadlines, nothing is charged.
 */
static u64 pending(u32 discipline, u32 busy, u64 slice)
{
	if (!is_other(discipline))
		return busy * slice;
	return discipline >= DISPATCH_FIFO ? 0 : busy * slice;
}

#endif
