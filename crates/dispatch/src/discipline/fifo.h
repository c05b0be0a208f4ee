/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * First in, first out. Idea: the party that came first runs until it sleeps.
 *
 *   key = a sequence number, drawn when it becomes runnable
 *
 * Weights are ignored, and a waking party preempts no other.
 *
 * Good at: jobs of one owner that should run one after the other.
 * Bad at: everything else: a party that never sleeps starves all others, which are rescued after some seconds
 * (rescue.h).
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
