/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Lottery scheduling, with compensation tickets.
 *
 * Idea. At each decision a ticket is drawn, and its holder is next. To avoid walking a list of tickets, each party draws a wait
 * from an exponential distribution, with its tickets as the rate. The shortest wait wins, with a probability in proportion
 * to the rate. The distribution is memoryless: the remaining waits of the other parties are distributed like new draws, so
 * these parties need not draw again.
 *
 *   key += wait * used / weight, with a wait of mean 1 that is drawn for each turn
 *
 * A party that used a fraction f of its slice wins 1/f times as often, as with compensation tickets.
 *
 * Good at: shares without history: a party that wakes needs no special rule. Turns cannot be predicted, nor exploited.
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
