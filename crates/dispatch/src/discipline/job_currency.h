/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Job currency: an allowance of CPU time for each job, renewed at intervals.
 *
 * Idea. A job is a sub-unit. At the end of each interval, the CPU time that all jobs used together is credited to them, by
 * weight. A job that used less than its credit is under its entitlement. It precedes all jobs that are over their entitlements.
 * Within either of these two bands, jobs take turns.
 *
 *   handed += used by all jobs / sum of the weights of active jobs, once an interval
 *   used   += used / weight
 *   key = a sequence number, drawn for each turn, plus OVER if used > handed
 *
 * A job that becomes active starts with `used` = `handed`: unused credit is not saved.
 *
 * Good at: jobs of many processes; deciding is as cheap as for round robin.
 * Bad at: short time scales. Within an interval shares are arbitrary, and a job over its entitlement waits until no other job
 * is under its entitlement.
 *
 * Source: seed 002, job currency (IRIX).
 */
#ifndef DISPATCH_JOB_CURRENCY_H
#define DISPATCH_JOB_CURRENCY_H

#define INTERVAL 100000000ull
#define OVER     (1ull << 60) /* larger than any sequence number */

static void job_comes(struct party *party, const struct dispatch_order *order, bool woke)
{
	if (woke)
		at_least(&party->mark, order->handed);
	party->key = party->clock + 1 + (before(order->handed, party->mark) ? OVER : 0);
}

/* Charges a job. `weights`: at the end of an interval, the sum of the weights of all active jobs, which are credited; else 0. */
static void job_ran(struct party *party, struct dispatch_order *order, u64 used, u32 weights)
{
	party->mark += over_weight(used, party->weight);
	add64(&order->used, used);
	if (weights)
		add64(&order->handed, over_weight(swap64(&order->used, 0), weights));
}

/* Whether an interval has ended, and this CPU, of all that ask, is the one that credits the interval's CPU time. */
static bool job_hands_out(struct dispatch_order *order, u64 now)
{
	u64 at = order->at;

	return !before(now, at + INTERVAL) && replace64(&order->at, at, now);
}

/* Moves a waiting job to the better band if credit since its last turn has brought it under its entitlement. */
static void job_waits(struct party *party, const struct dispatch_order *order)
{
	if (party->key & OVER && !before(order->handed, party->mark))
		party->key -= OVER;
}

#endif
