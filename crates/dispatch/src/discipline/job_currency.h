/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Job currency: time is handed to jobs at intervals.
 *
 * Idea. A job is a sub-unit. At the end of each interval, the CPU time of all jobs is handed out among them, by weight. A
 * job that used less than it was handed is under its entitlement, and goes before all that are over theirs. Within
 * either band, jobs take turns.
 *
 *   handed = used by all / weights of all, as it was at the last interval's end
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

static void job_comes(struct party *party, struct dispatch_order *order, bool woke)
{
	if (woke) {
		at_least(&party->mark, order->handed);
		if (!party->at)
			add(&order->weights, party->weight);
		party->at = party->weight;
	}
	party->key = party->clock + 1 + (before(order->handed, party->mark) ? OVER : 0);
}

static void job_ran(struct party *party, struct dispatch_order *order, u64 used, u64 now)
{
	party->mark += over_weight(used, party->weight);
	add64(&order->used, over_weight(used, order->weights));
	if (before(now, order->at + INTERVAL))
		return;
	order->at = now;
	order->handed = order->used;
}

/* What was handed out since may bring it back among those that go first. */
static void job_waits(struct party *party, const struct dispatch_order *order)
{
	if (party->key & OVER && !before(order->handed, party->mark))
		party->key -= OVER;
}

static void job_leaves(struct party *party, struct dispatch_order *order)
{
	add(&order->weights, -(s32)party->at);
	party->at = 0;
}

#endif
