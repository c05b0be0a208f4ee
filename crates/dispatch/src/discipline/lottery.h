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
 * A party that used a fraction f of its slice wins 1/f times as often, as with compensation tickets. A party that sleeps keeps
 * them until its next turn begins: where draws have passed it by, it draws again, at the rate of its last turn.
 *
 *   key = clock + wait * used in the last turn / weight
 *
 * A draw needs a winner that is runnable. A party that sleeps for less than LOTTERY_NAP, because it waits for a lock or hands
 * over a message, would miss the draw at which its turn ended, and with it a whole turn of another, which no compensation
 * makes up for. So it counts as if it had not slept: it keeps its key, and if that would have won, preempts the winner.
 *
 * Good at: shares without history. Turns cannot be predicted, nor exploited.
 * Bad at: short times. After n turns a share p is off by the square root of (1 - p) / (n p): a twelfth by 10 % after
 * 1,000 turns.
 *
 * Source: Waldspurger and Weihl: Lottery scheduling, OSDI 1994. The race of exponential waits and the nap are ours.
 */
#ifndef DISPATCH_LOTTERY_H
#define DISPATCH_LOTTERY_H

#define LOTTERY_NAP 100000ull /* ns: the cost of ten switches */

/*
 * The mark: the wait of the turn in the lower half, and in the upper half the CPU time that the turn has used, in ns. It is 0
 * before the first turn.
 */
#define LOTTERY_WAIT 0xffffffffull
#define LOTTERY_USED 32

/* CPU time used in the turn so far, up to a slice. */
static u64 lottery_used(const struct party *party, u64 more)
{
	u64 used = (party->mark >> LOTTERY_USED) + more;

	return used < rules()->slice_ns ? used : rules()->slice_ns;
}

static void lottery_comes(struct party *party, u64 now, bool woke)
{
	u64 used = lottery_used(party, 0);

	if (!woke || !before(party->key, party->clock) || (party->at && before(now, party->at + LOTTERY_NAP)))
		return;
	if (!used)
		used = rules()->slice_ns;
	party->key = party->clock + (over_weight(used, party->weight) * random_wait() >> 16);
}

static void lottery_begins(struct party *party)
{
	party->mark = random_wait();
}

static void lottery_ran(struct party *party, u64 used, u64 now)
{
	u64 wait = party->mark & LOTTERY_WAIT, sum = lottery_used(party, used);

	party->key += over_weight(used, party->weight) * wait >> 16;
	party->mark = (sum < LOTTERY_WAIT ? sum : LOTTERY_WAIT) << LOTTERY_USED | wait;
	party->at = now;
}

#endif
