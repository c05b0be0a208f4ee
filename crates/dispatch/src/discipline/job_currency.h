/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Job currency: time is handed to jobs at intervals.
 *
 * Idea. A job is a sub-unit. At the end of each interval, the CPU time of all jobs is handed out among them, by weight. A
 * job that used less than it was handed is under its entitlement, and goes before all that are over theirs. Within
 * either band, jobs take turns.
 *
 *   handed += used by all / weights of all that are active, once an interval
 *   used   += used / weight
 *   key = its number among the turns, and OVER more if it used more than was handed
 *
 * A job that comes back has used as much as was handed: what it left is not saved up.
 *
 * Good at: jobs of many processes; deciding is as cheap as for round robin.
 * Bad at: moments. Within an interval a share can be anything, and a job that waits in the upper band waits until no other
 * is under its entitlement.
 *
 * Source: seed 002, job currency (IRIX).
 */
#ifndef DISPATCH_JOB_CURRENCY_H
#define DISPATCH_JOB_CURRENCY_H

#define INTERVAL 100000000ull
#define OVER     (1ull << 60) /* beyond all numbers */

static void job_comes(struct party *party, const struct dispatch_order *order, bool woke)
{
	if (woke)
		at_least(&party->mark, order->handed);
	party->key = party->clock + 1 + (before(order->handed, party->mark) ? OVER : 0);
}

/* `weights`: of all that are active, at an interval's end; else 0. */
static void job_ran(struct party *party, struct dispatch_order *order, u64 used, u32 weights)
{
	party->mark += over_weight(used, party->weight);
	add64(&order->used, used);
	if (weights)
		add64(&order->handed, over_weight(swap64(&order->used, 0), weights));
}

/* An interval is over: one CPU hands out what all used. */
static bool job_hands_out(struct dispatch_order *order, u64 now)
{
	u64 at = order->at;

	return !before(now, at + INTERVAL) && replace64(&order->at, at, now);
}

/* What was handed out since may bring it back among those that go first. */
static void job_waits(struct party *party, const struct dispatch_order *order)
{
	if (party->key & OVER && !before(order->handed, party->mark))
		party->key -= OVER;
}

#endif
