/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Round robin with long turns. Idea: a switch costs a cache, so turns are as long as BATCH_TURN of CPU time.
 *
 *   key = the number of its turn among those of all
 *
 * Weights count for nothing, and no party that wakes interrupts another.
 *
 * Good at: work that nobody waits for: few switches, and warm caches.
 * Bad at: answers: one that wakes waits for all the turns before it.
 *
 * Source: seed 002, scheduler classes.
 */
#ifndef DISPATCH_BATCH_H
#define DISPATCH_BATCH_H

#define BATCH_TURN 100000000ull

static void batch_comes(struct party *party, bool woke)
{
	if (!woke && party->mark < BATCH_TURN)
		return;
	party->key = party->clock + 1;
	party->mark = 0;
}

static void batch_ran(struct party *party, u64 used)
{
	party->mark += used;
}

#endif
