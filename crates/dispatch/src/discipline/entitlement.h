/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Entitlements by decayed usage, after Williams.
 *
 * Idea. A party's usage is an exponential moving average of its CPU time, with a half-life of two seconds. The party with
 * the least usage for its entitlement is next. A party that slept catches up over several half-lives, not at once.
 *
 *   u' = a u + (1 - a) rho, where rho is its part of the CPU in the last step
 *   priority = u / entitlement: the smallest is next
 *
 * See usage.h for the key.
 *
 * Good at: bursty parties. They get their entitlement over seconds, where stride forgets what they left unused.
 * Bad at: guarantees within a half-life: a party that slept for long has the CPU to itself for a while.
 *
 * Source: seed 002, entitlement scheduling (Williams 2004).
 */
#ifndef DISPATCH_ENTITLEMENT_H
#define DISPATCH_ENTITLEMENT_H

#define ENTITLEMENT_HALF_LIFE 2000000000ull

static void entitlement_comes(struct party *party, u64 now)
{
	usage_comes(party, now, ENTITLEMENT_HALF_LIFE, log_2(party->weight));
}

static void entitlement_ran(struct party *party, u64 used, u64 now)
{
	usage_ran(party, used, now, ENTITLEMENT_HALF_LIFE, log_2(party->weight));
}

#endif
