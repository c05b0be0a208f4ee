/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Usage that is forgotten by half-lives: what `entitlement` and `decay` share.
 *
 * Idea. Of all parties, half of the usage counts after a half-life. So the order of those that wait does not change.
 * The binary logarithm of each usage sinks by one in a half-life. So a key can be a time that holds until the party runs
 * again:
 *
 *   key = now + half-life * log2(usage / entitlement)
 *
 * The difference of two keys is how long the one must rest to stand where the other does.
 *
 * A usage of nothing would be infinitely far ahead. It counts as USAGE_MIN at the least.
 */
#ifndef DISPATCH_USAGE_H
#define DISPATCH_USAGE_H

#define USAGE_MIN 1000000ull /* ns */
#define GRAIN     (ONE / 64) /* of a half-life: what is used within it counts in full, since less is lost in rounding */

static u64 usage_key(u64 usage, u64 now, u64 half_life, u64 weight_log)
{
	return now + (half_life >> 16) * (log_2(usage < USAGE_MIN ? USAGE_MIN : usage) - weight_log);
}

/* What it used may be less by now than what counts at the least. */
static void usage_comes(struct party *party, u64 now, u64 half_life, u64 weight_log)
{
	u64 least = usage_key(USAGE_MIN, now, half_life, weight_log);

	if (!party->at || before(party->key, least))
		party->key = least;
	if (!party->at)
		party->at = now;
}

static void usage_ran(struct party *party, u64 used, u64 now, u64 half_life, u64 weight_log)
{
	u64 passed = before(party->at, now) ? (now - party->at) / (half_life >> 16) : 0;

	if (passed >= GRAIN) {
		party->mark = halved(party->mark, passed);
		party->at += passed * (half_life >> 16);
	}
	party->mark += used;
	party->key = usage_key(party->mark, party->at, half_life, weight_log);
}

#endif
