/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Exponentially decayed usage, for `entitlement` and `decay`.
 *
 * Idea. All usages halve in the same half-life, so the order of waiting parties does not change. The binary logarithm of
 * each usage decreases by one per half-life. So a key can be a time, which stays valid until the party runs again:
 *
 *   key = now + half-life * log2(usage / entitlement)
 *
 * The difference of two keys is how long one party must rest to tie with the other.
 *
 * The logarithm of zero usage would be minus infinity, so usage is at least USAGE_MIN.
 */
#ifndef DISPATCH_USAGE_H
#define DISPATCH_USAGE_H

#define USAGE_MIN 1000000ull /* ns */
#define GRAIN     (ONE / 64) /* of a half-life: decay is applied in steps of at least this, since each step loses by rounding */

/* The key of a usage at time `now`: see above. `weight_log` is the logarithm of the entitlement. */
static u64 usage_key(u64 usage, u64 now, u64 half_life, u64 weight_log)
{
	return now + (half_life >> 16) * (log_2(usage < USAGE_MIN ? USAGE_MIN : usage) - weight_log);
}

/* A party becomes runnable: raises its key to that of USAGE_MIN, below which its usage may have decayed. */
static void usage_comes(struct party *party, u64 now, u64 half_life, u64 weight_log)
{
	u64 least = usage_key(USAGE_MIN, now, half_life, weight_log);

	if (!party->at || before(party->key, least))
		party->key = least;
	if (!party->at)
		party->at = now;
}

/* A party ran: decays its usage since `at`, in 1/65536ths of half-lives, and adds the time used. */
static void usage_ran(struct party *party, u64 used, u64 now, u64 half_life, u64 weight_log)
{
	u64 half_lives = before(party->at, now) ? (now - party->at) / (half_life >> 16) : 0;

	if (half_lives >= GRAIN) {
		party->mark = halved(party->mark, half_lives);
		party->at += half_lives * (half_life >> 16);
	}
	party->mark += used;
	party->key = usage_key(party->mark, party->at, half_life, weight_log);
}

#endif
