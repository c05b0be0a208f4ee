/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Stride scheduling, the default.
 *
 * Idea. A party's key is its CPU time over its weight. The smallest is next.
 *
 *   key += used / weight
 *
 * When a party becomes active, its key is raised at least to the clock, the key of the latest party to run, less one slice.
 *
 * Good at: exact shares, at any number of parties; a bounded reward for sleeping.
 * Bad at: bursts: a party that slept is not compensated, so of two with equal tickets, a bursty one gets less in the long
 * run.
 *
 * Source: Waldspurger and Weihl: Stride scheduling, MIT/LCS/TM-528, 1995. The clock: start-time fair queueing.
 */
#ifndef DISPATCH_STRIDE_H
#define DISPATCH_STRIDE_H

#define SHARE_UNIT 100 /* a weight of 100 advances the key by the time used */
#define OWN_WEIGHT 100 /* the weight of a unit's own tasks together, among its sub-units */

/* CPU time scaled to keys: over the weight. */
static u64 over_weight(u64 used, u32 weight)
{
	return used * SHARE_UNIT / (weight ? weight : 1);
}

/* A party becomes active: raises its key so that sleeping earned at most one slice. `slice` is scaled to keys. */
static void stride_comes(u64 *key, u64 clock, u64 slice)
{
	at_least(key, clock - slice);
}

#endif
