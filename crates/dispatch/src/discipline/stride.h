/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Stride scheduling, the default.
 *
 * Idea. A party's key is the CPU time that it had, over its weight. The one that had least for its weight is next.
 *
 *   key += used / weight
 *
 * A party that comes back starts no earlier than where those are that were next meanwhile (the clock), less one slice.
 *
 * Good at: exact shares, at any number of parties; a bounded reward for sleeping.
 * Bad at: nothing is remembered of one that slept: of two with equal tickets, the one that works in bursts has less in
 * the long run.
 *
 * Source: Waldspurger and Weihl: Stride scheduling, MIT/LCS/TM-528, 1995. The clock: start-time fair queueing.
 */
#ifndef DISPATCH_STRIDE_H
#define DISPATCH_STRIDE_H

#define SHARE_UNIT 100 /* a weight of 100 advances the key by the time used */
#define OWN_WEIGHT 100 /* of a unit's own tasks, among its sub-units */

/* CPU time in the measure of keys. */
static u64 over_weight(u64 used, u32 weight)
{
	return used * SHARE_UNIT / (weight ? weight : 1);
}

/* Sleeping earns one slice at most, in the measure of keys. */
static void stride_comes(u64 *key, u64 clock, u64 slice)
{
	at_least(key, clock - slice);
}

#endif
