/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Dynamic window-constrained scheduling: deadlines of which a few may be missed.
 *
 * Idea. A sub-unit wants `budget` of CPU time in each `period`, by the period's end, its deadline. It tolerates at most x
 * missed deadlines in every y consecutive ones (its window). Earliest deadline first. Ties go to the lowest tolerance:
 *
 *   x' and y': the rest of the window: of the next y' deadlines, x' may still be missed
 *   first the smallest x'/y'; among those with x' = 0, the largest y'; among others, the smallest x'
 *   deadline met:     y' - 1, while y' > x'; at y' = 0 the next window begins
 *   deadline missed:  x' - 1 and y' - 1; with x' = 0 the constraint is violated, and y' grows, so that the unit is served first
 *
 * A missed budget is dropped: the next period begins. A sub-unit that has used up its budget competes for leftover CPU time
 * until its next period, round robin with sub-units without a deadline. That time is not charged to any budget.
 *
 *   key = deadline, with the tie-break in its low bits; for round robin, a sequence number far behind all deadlines
 *
 * Good at: media, which tolerate an occasional lost frame, on an overloaded machine.
 * Bad at: differing periods or budgets under overload: windows are violated now and then. With equal ones, no window is
 * violated while the sum of (1 - x/y) budget/period is at most one CPU: the contract's check adds these up.
 *
 * Source: West and Poellabauer: Analysis of a window-constrained scheduler, RTSS 2000; West and others, IEEE TC 53(6), 2004.
 */
#ifndef DISPATCH_DWCS_H
#define DISPATCH_DWCS_H

#define TIE_BITS    14 /* deadlines within 16 us of each other tie */
#define MISSES_MAX  8  /* passed deadlines that are counted one by one; more are skipped at once */
#define NO_DEADLINE (1ull << 50) /* added to keys that shall be behind all deadlines: in ns, 13 days */

/*
 * The state of a party, which is packed into its `mark`: the rest of the budget, in ns, and the window's x' (`misses`) and y'
 * (`of`). The party's `at` is its next deadline.
 */
struct window {
	u32 left;
	u16 misses, of;
};

static struct window window_of(const struct party *party)
{
	return (struct window){ party->mark, party->mark >> 32, party->mark >> 48 };
}

/*
 * Stores a party's state, and computes its key: the deadline with the tie-break, or if the period of that deadline has not begun,
 * a round-robin key behind all deadlines.
 */
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

/* The state at the beginning of a window: all of its deadlines, and all misses that it tolerates. */
static struct window begin_window(const struct dispatch_deadlines *deadline, struct window window)
{
	window.misses = deadline->misses;
	window.of = deadline->of;
	return window;
}

/* The window after a deadline that was met, which is counted. */
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

/* The window after a deadline that was missed, which is counted. */
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

/* Counts a deadline as missed if it has passed, or is too near for the rest of the budget, and moves on to the next ones. */
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

/*
 * Charges a party for CPU time used, at most the time since its period began. If that uses up the budget in time, the deadline is
 * met, and the party waits for its next period.
 */
static void dwcs_ran(struct party *party, struct dispatch_deadlines *deadline, u64 used, u64 now)
{
	struct window window = window_of(party);
	u64 since_begin = now + (1 << TIE_BITS) - (party->at - deadline->period);

	if (!deadline->period)
		return;
	if ((s64)since_begin < 0)
		since_begin = 0;
	if (used > since_begin)
		used = since_begin;
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
