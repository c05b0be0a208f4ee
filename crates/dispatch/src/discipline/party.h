/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The entities that disciplines order, and shared arithmetic.
 *
 * Terms. A *party* is an entity that a discipline orders: a task among those of its unit, a sub-unit among its siblings,
 * or a unit's own tasks together, among its sub-units. Each party has a *key*. The smallest key is next. Keys are
 * compared by their difference, so they may wrap.
 *
 * A discipline only computes keys. Placement, lending, call-backs, rescues and accounting are the same for all.
 *
 *   NAME_comes(party, now, woke)   it becomes runnable, or has ended a turn; `woke`: it slept, or is new
 *   NAME_begins(party, now)        its turn begins
 *   NAME_ran(party, used, now)     it ran for `used` ns since the last call, on one CPU
 */
#ifndef DISPATCH_PARTY_H
#define DISPATCH_PARTY_H

#define ONE       65536u /* 1 in fixed point: fractions have 16 bits */
#define LN_2      45426u /* the natural logarithm of 2, in the same form */

/* The state of a party, as a discipline sees it: copied from the tables before an event, and back after it. */
struct party {
	u64 key;
	u64 mark;   /* the discipline's own state; 0 at first */
	u64 at;     /* the time to which `mark` refers */
	u32 weight; /* its tickets; 100 is usual, and never 0 */
	u32 class;  /* see classes.h */
	u64 clock;  /* by discipline: the largest key of a party that ran, the last sequence number, or the clock of its class */
};

/* The binary logarithm of a number that is not 0, with 16 bits of fraction; off by less than 0.0002. */
VERIFIED_ALONE(u64) log_2(u64 x)
{
	u64 f, correction;
	u32 whole = 0;

	if (x >> 32)
		whole += 32;
	if (x >> (whole + 16))
		whole += 16;
	if (x >> (whole + 8))
		whole += 8;
	if (x >> (whole + 4))
		whole += 4;
	if (x >> (whole + 2))
		whole += 2;
	if (x >> (whole + 1))
		whole += 1;
	f = (whole >= 16 ? x >> (whole - 16) : x << (16 - whole)) - ONE;
	/* log2(1 + f) is f plus a small correction: f (1 - f) times a fitted polynomial. */
	correction = 28730 - (15565 * f >> 16) + (5286 * (f * f >> 16) >> 16);
	return whole * ONE + f + ((f * (ONE - f) >> 16) * correction >> 16);
}

/* x / 2^times, where `times` has 16 bits of fraction; the relative error is below 0.0001. */
VERIFIED_ALONE(u64) halved(u64 x, u64 times)
{
	u64 f = times & (ONE - 1), factor;

	if (times >> 16 > 63)
		return 0;
	factor = ONE - f / 2 - ((f * (ONE - f) >> 16) * (12560 - (2593 * f >> 16)) >> 16);
	x >>= times >> 16;
	return x >> 32 ? (x >> 16) * factor : x * factor >> 16;
}

/* A random number from an exponential distribution with mean 1, in fixed point: minus the logarithm of a uniform one. */
static u64 random_wait(void)
{
	return (32 * ONE - log_2(((u64)random_bits() << 1) + 1) + ONE) * LN_2 >> 16;
}

#endif
