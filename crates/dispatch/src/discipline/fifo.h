/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * First in, first out. Idea: the party that came first runs until it sleeps.
 *
 *   key = its number among those that came
 *
 * Weights count for nothing, and no party that wakes interrupts another.
 *
 * Good at: jobs of one owner that are to be done one after the other.
 * Bad at: everything else: one that never sleeps keeps all others out. These are rescued after some
 * seconds (rescue.h).
 *
 * Source: seed 002, scheduler classes.
 */
#ifndef DISPATCH_FIFO_H
#define DISPATCH_FIFO_H

static void fifo_comes(struct party *party, bool woke)
{
	if (woke)
		party->key = party->clock + 1;
}

#endif
