/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Entitlements by decayed usage, after Williams.
 *
 * Idea. A party's usage is its CPU time, of which half counts after a half-life of two seconds. The one whose usage is
 * least for its entitlement is next. A party that slept catches up over several half-lives, and not at once.
 *
 *   u' = a u + (1 - a) rho, where rho is its part of the CPU in the last step
 *   priority = u / entitlement: the smallest is next
 *
 * See usage.h for how a key stands for that.
 *
 * Good at: parties that work in bursts. They have their entitlement over seconds, where stride forgets what they left.
 * Bad at: guarantees within a half-life: one that slept for long has the CPU to itself for a while.
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
