/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Classes: sub-units of a higher class go first, whatever the tickets.
 *
 * Idea. A sub-unit's own discipline determines its class. One of a lower class runs when no task of a higher one waits.
 * Within a class, the sub-unit with the least CPU time for its weight is next, as under stride.
 *
 *   class = 0, real time: dwcs, fifo, rr
 *           1, time share: stride, lottery, decay, job-currency, gang, smp, classes; a unit's own tasks
 *           2, entitlement
 *           3, batch
 *   pass += used / weight
 *   key   = class * CLASS + pass
 *
 * Good at: keeping background work strictly behind everything else.
 * Bad at: that background work. While a higher class uses all CPUs, a lower one gets only rescues (rescue.h).
 *
 * Source: seed 002, scheduler classes; the order is that of its list.
 */
#ifndef DISPATCH_CLASSES_H
#define DISPATCH_CLASSES_H

#define CLASS (1ull << 61) /* larger than any pass; 3 * CLASS still is a positive difference of two keys */

static u32 class_of(u32 discipline)
{
	switch (discipline) {
	case DISPATCH_DWCS:
	case DISPATCH_FIFO:
	case DISPATCH_RR:
		return 0;
	case DISPATCH_ENTITLEMENT:
		return 2;
	case DISPATCH_BATCH:
		return 3;
	}
	return 1;
}

static void classes_comes(struct party *party, bool woke)
{
	if (woke)
		stride_comes(&party->mark, party->clock, over_weight(rules()->slice_ns, party->weight));
	party->key = party->class * CLASS + party->mark;
}

static void classes_ran(struct party *party, u64 used)
{
	party->mark += over_weight(used, party->weight);
	party->key = party->class * CLASS + party->mark;
}

/*
 * Advances the clock of a class to the pass of the party that begins, less the distance by which it may be ahead: see
 * clock_by().
 */
static void classes_begins(struct party *party)
{
	u64 slice = over_weight(rules()->slice_ns, party->weight);

	at_least(&party->mark, party->clock - slice);
	at_least(&party->clock, party->mark - 2 * (rules()->cpus - 1) * slice);
}

#endif
