/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Gang scheduling: the threads of a program run at the same time.
 *
 * Idea. A gang is a sub-unit: the threads of one program, which wait for each other. Gangs take turns, of GANG_TURN each.
 * During a gang's turn, its threads go first on every CPU of the parent unit. CPUs that the gang leaves idle run threads of the
 * next gangs. Within a gang, threads are ordered by the gang's own discipline.
 *
 *   key = a sequence number, drawn for each turn
 *
 * Weights are ignored, and a waking party preempts no other. A unit's own tasks together are a gang, too.
 *
 * Good at: parallel programs with barriers. A thread that lags keeps all others of its program waiting.
 * Bad at: gangs of fewer threads than CPUs, and programs that wait for input: the turn passes all the same.
 *
 * Source: seed 002, gang scheduling; Ousterhout: Scheduling techniques for concurrent systems, 1982.
 */
#ifndef DISPATCH_GANG_H
#define DISPATCH_GANG_H

#define GANG_TURN 100000000ull

static void gang_comes(struct party *party, u64 now, bool woke)
{
	if (woke ? party->at && before(now, party->at + GANG_TURN) : !party->at || before(now, party->at + GANG_TURN))
		return; /* it keeps its key, since its turn has not ended or not begun */
	party->key = party->clock + 1;
	party->at = 0;
}

static void gang_begins(struct party *party, u64 now)
{
	if (!party->at)
		party->at = now;
}

#endif
