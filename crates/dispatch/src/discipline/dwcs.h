/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Dynamic window-constrained scheduling: deadlines of which a few may be missed.
 *
 * Idea. A sub-unit wants `budget` of CPU time in each `period`, by the period's end, its deadline. It bears at most x
 * missed deadlines in each y that follow one another. The earliest deadline is next. Of equal deadlines, the one is next
 * that bears least:
 *
 *   the smallest x'/y', what is left of the window; of two with x' = 0, the largest y'; of others, the smallest x'
 *   served in time:  y' - 1, while more than x' are left; when the window is over, it begins anew
 *   missed:          x' - 1 and y' - 1; with x' = 0 the constraint is violated, and y' grows, so that it is served first
 *
 * What was missed is dropped: the next period begins. A sub-unit that has its budget has what is left until then, in
 * turns with those without a deadline. What it has there counts for nothing.
 *
 *   key = deadline, and in its last bits the order among equal ones; of those that have turns, far behind all deadlines
 *
 * Good at: media, which bear a lost frame now and then, on a machine that could not serve every frame of all.
 * Bad at: periods or budgets that differ, where not all budgets fit: windows are violated now and then. Where they are
 * alike, none is, as long as the sum of (1 - x/y) budget/period is no more than a CPU: the contract's check adds up.
 *
 * Source: West and Poellabauer: Analysis of a window-constrained scheduler, RTSS 2000; West and others, IEEE TC 53(6), 2004.
 */
#ifndef DISPATCH_DWCS_H
#define DISPATCH_DWCS_H

#define TIE_BITS    14 /* moments nearer to each other than 16 us are equal */
#define MISSES_MAX  8  /* looked at one by one, of deadlines that passed since */
#define NO_DEADLINE (1ull << 50) /* behind all that have one: in ns, 13 days */

/* What is remembered: the budget that is left, in ns, and of the window x' and y'. `at` is the deadline. */
struct window {
	u32 left;
	u16 misses, of;
};

static struct window window_of(const struct party *party)
{
	return (struct window){ party->mark, party->mark >> 32, party->mark >> 48 };
}

/* The period of its deadline may not have begun. */
static void remember_window(struct party *party, const struct dispatch_deadlines *deadline, struct window window, u64 now)
{
	u32 tie;

	party->mark = window.left | (u64)window.misses << 32 | (u64)window.of << 48;
	if (before(now + (1 << TIE_BITS), party->at - deadline->period)) {
		party->key = now + NO_DEADLINE;
		return;
	}
	if (!window.misses)
		tie = window.of < 127 ? 127 - window.of : 0;
	else
		tie = (window.misses * 63u / (window.of ? window.of : 1) + 1) << 7 | (window.misses < 127 ? window.misses : 127);
	party->key = (party->at >> TIE_BITS << TIE_BITS) | (tie & ((1 << TIE_BITS) - 1));
}

static struct window begin_window(const struct dispatch_deadlines *deadline, struct window window)
{
	window.misses = deadline->misses;
	window.of = deadline->of;
	return window;
}

static struct window dwcs_served(struct dispatch_deadlines *deadline, struct window window)
{
	deadline->had.met++;
	if (window.of > window.misses)
		window.of--;
	else if (window.misses) {
		window.misses--;
		window.of--;
	}
	return window.of ? window : begin_window(deadline, window);
}

static struct window dwcs_missed(struct dispatch_deadlines *deadline, struct window window)
{
	u32 x, y;

	deadline->had.missed++;
	if (window.misses) {
		window.misses--;
		window.of--;
		return window.of ? window : begin_window(deadline, window);
	}
	deadline->had.violated++;
	x = deadline->misses;
	y = deadline->of;
	window.of += x ? (y - 1) / x : y; /* (y - x) / x, rounded up */
	return window;
}

/* Deadlines that have passed are missed, and those before which the budget cannot be had any more. */
static void dwcs_passes(struct party *party, struct dispatch_deadlines *deadline, u64 now)
{
	struct window window = window_of(party);
	u64 late = now - (1 << TIE_BITS);
	u32 look;

	if (!deadline->period)
		return;
	if (before(party->at, late + window.left)) {
		late += deadline->budget;
		bpf_for(look, 0, MISSES_MAX) {
			if (look && !before(party->at, late))
				break;
			window = dwcs_missed(deadline, window);
			party->at += deadline->period;
		}
		if (before(party->at, late))
			party->at += (late - party->at) / deadline->period * deadline->period + deadline->period;
		window.left = deadline->budget;
	}
	remember_window(party, deadline, window, now);
}

static void dwcs_comes(struct party *party, const struct dispatch_deadlines *deadline, u64 now, bool woke)
{
	struct window window = window_of(party);

	if (!deadline->period) {
		party->key = now + NO_DEADLINE;
		return;
	}
	if (woke && (!party->at || !before(now, party->at))) {
		party->at = now + deadline->period;
		window.left = deadline->budget;
		if (!window.of)
			window = begin_window(deadline, window);
	}
	remember_window(party, deadline, window, now);
}

static void dwcs_ran(struct party *party, struct dispatch_deadlines *deadline, u64 used, u64 now)
{
	struct window window = window_of(party);
	u64 begun = now + (1 << TIE_BITS) - (party->at - deadline->period);

	if (!deadline->period)
		return;
	if ((s64)begun < 0)
		begun = 0;
	if (used > begun)
		used = begun;
	if (used < window.left || before(party->at + (1 << TIE_BITS), now)) {
		window.left = used < window.left ? window.left - used : 1;
		remember_window(party, deadline, window, now);
		dwcs_passes(party, deadline, now);
		return;
	}
	window = dwcs_served(deadline, window);
	window.left = deadline->budget;
	party->at += deadline->period;
	remember_window(party, deadline, window, now);
}

#endif
