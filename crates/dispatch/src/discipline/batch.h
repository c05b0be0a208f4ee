/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Round robin with long turns. Idea: a switch loses a warm cache, so each turn is BATCH_TURN of CPU time.
 *
 *   key = a sequence number, drawn for each turn
 *
 * Weights are ignored, and a waking party preempts no other.
 *
 * Good at: throughput of background work: few switches, and warm caches.
 * Bad at: latency: a waking party waits for all the turns before it.
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
