/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Lottery scheduling, with compensation tickets.
 *
 * Idea. At each decision a ticket is drawn, and its holder is next. Here no list is walked: each party waits for a time
 * that is drawn from an exponential distribution, whose rate is the party's tickets. The first to end is the winner.
 * Among exponential waits, it is each party in proportion to its rate. What is left of the others' waits has the same
 * distribution as a new draw, so they need not draw again.
 *
 *   key += wait * used / weight, with a wait of mean 1 that is drawn for each turn
 *
 * A party that used a part f of its slice comes again 1/f times as often. This is what compensation tickets do.
 *
 * Good at: shares without any memory; one that comes back needs no rule. Nobody can plan for whose turn it is.
 * Bad at: short times. After n turns a share p is off by the square root of (1 - p) / (n p): a twelfth by 10 % after
 * 1,000 turns.
 *
 * Source: Waldspurger and Weihl: Lottery scheduling, OSDI 1994. The race of exponential waits is ours.
 */
#ifndef DISPATCH_LOTTERY_H
#define DISPATCH_LOTTERY_H

static void lottery_comes(struct party *party, bool woke)
{
	if (woke && before(party->key, party->clock))
		party->key = party->clock + (over_weight(rules()->slice_ns, party->weight) * random_wait() >> 16);
}

static void lottery_begins(struct party *party)
{
	party->mark = random_wait();
}

static void lottery_ran(struct party *party, u64 used)
{
	party->key += over_weight(used, party->weight) * party->mark >> 16;
}

#endif
