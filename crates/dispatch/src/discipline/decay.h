/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Fair share by decayed usage, after Kay and Lauder.
 *
 * Idea. Users have shares, however many processes they run. Each user's usage is remembered for minutes, so that a user who
 * worked all morning yields to one who arrives at noon. Processes of one user are ordered in the same way. To use it, give each
 * user a sub-unit, and their parent unit this discipline.
 *
 *   usage = usage / 2^(passed / half-life) + used, with a half-life of a minute
 *   usage / shares^2: the smallest is next
 *
 * Because of the square, shares count twice: in the charge, and in the entitlement. In the long run, the CPU time of
 * always-busy users is proportional to the squares of their shares.
 *
 * See usage.h for the key.
 *
 * Good at: users who come and go.
 * Bad at: guarantees at short time scales: a user who was away for long keeps all others waiting for some time.
 *
 * Source: Kay and Lauder: A fair share scheduler, CACM 31(1), 1988. The half-life is ours.
 */
#ifndef DISPATCH_DECAY_H
#define DISPATCH_DECAY_H

#define DECAY_HALF_LIFE 60000000000ull

static void decay_comes(struct party *party, u64 now)
{
	usage_comes(party, now, DECAY_HALF_LIFE, 2 * log_2(party->weight));
}

static void decay_ran(struct party *party, u64 used, u64 now)
{
	usage_ran(party, used, now, DECAY_HALF_LIFE, 2 * log_2(party->weight));
}

#endif
