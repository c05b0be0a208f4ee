/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Chooses the unit whose task a CPU runs next. The owner of the CPU and its sub-units come first; they are
 * compared by pass. If the owner leaves the CPU idle, the CPU is lent, and the units that may borrow it are
 * compared by claim (loan_of). On machines where this scheduler does not run, policy/src/cpu/lend.rs lends
 * CPUs instead.
 */
#ifndef DISPATCH_CHOICE_H
#define DISPATCH_CHOICE_H

#define RACES_MAX  4u  /* attempts, if another CPU takes the task that this one saw waiting */
#define LOAN_SLICES 4 /* bound on how far a borrower may lag: see advance_loan() */

/*
 * A unit's key among borrowers: the smallest is next. Each CPU that runs its tasks counts as one slice: see
 * struct competitor. A unit's credit, for CPU time that it lent before, is subtracted from the CPU time that
 * it borrowed. So a unit that lent before goes first until its credit is spent.
 */
static u64 loan_of(const struct dispatch_unit *unit)
{
	return unit->loan_pass - unit->credit + unit->busy * unit->slice;
}

/*
 * Whether one outermost unit has a larger claim on a loan than another: whether it borrowed less for its
 * weight. Ties go to the unit with more waiting tasks.
 */
static bool larger_claim(u32 one, u32 other)
{
	struct dispatch_unit *a = unit_at(one), *b = unit_at(other);
	u64 mine, its;

	if (!a || !b)
		return a != NULL;
	mine = loan_of(a);
	its = loan_of(b);
	return before(mine, its) || (mine == its && waits_in(one) > waits_in(other));
}

/*
 * Advances an outermost unit's loan pass by CPU time used on another unit's CPU. A unit that has not borrowed
 * for long has a bounded advantage: LOAN_SLICES for each CPU that runs its tasks. The bound is that large
 * because slices end with ticks and are charged late: even the pass of a unit that borrows all the time may
 * lag that far behind.
 */
static void advance_loan(struct dispatch_unit *top, u64 used)
{
	at_least(&top->loan_pass, world_loan_pass() - (top->busy + 1) * LOAN_SLICES * top->slice);
	add64(&top->loan_pass, over_weight(used, top->weight));
}

/* The units that compete for a CPU. */
enum among {
	AMONG_HOME,      /* units within the CPU's owner */
	AMONG_BORROWERS, /* units outside the CPU's owner that borrow */
	AMONG_ALL,
};

static bool is_among(const struct dispatch_unit *unit, u32 home, enum among among)
{
	if (among == AMONG_HOME)
		return unit->top == home;
	if (among == AMONG_BORROWERS)
		return unit->top != home && unit->flags & DISPATCH_BORROWS;
	return true;
}

/* Whether a unit's tasks precede those of the best unit so far. */
static bool goes_before(u32 id, const struct dispatch_unit *unit, u32 best, u32 best_top, enum among among)
{
	if (best == DISPATCH_NOBODY)
		return true;
	if (among == AMONG_BORROWERS && unit->top != best_top)
		return larger_claim(unit->top, best_top);
	return had_less(id, best);
}

/* Units with waiting tasks that have no task for this CPU: another CPU took it, or its affinity excludes this CPU. */
struct tried {
	u32 unit[RACES_MAX];
};

/* A search for the next unit. */
struct search {
	u32 home;
	enum among among;
	u32 best, best_top; /* DISPATCH_NOBODY: none yet */
};

/*
 * Makes a unit with waiting tasks the best so far, if it precedes the present best. A task is counted as
 * waiting shortly before it is in the queue, so the queue is checked, too. `alone`: there is no other such
 * unit; then the check is left to the caller.
 */
static void consider(struct search *search, u32 id, const struct tried *tried, bool alone)
{
	struct dispatch_unit *unit = unit_at(id);

	if (tried && tried->unit[0] != DISPATCH_NOBODY &&
	    (id == tried->unit[0] || id == tried->unit[1] || id == tried->unit[2]))
		return;
	if (!unit || !is_among(unit, search->home, search->among) || (!alone && scx_bpf_dsq_nr_queued(id) <= 0))
		return;
	if (is_other(unit->among) && (unit->among == DISPATCH_DWCS || unit->among == DISPATCH_JOB))
		to_unit(id, WAITS, 0);
	if (goes_before(id, unit, search->best, search->best_top, search->among)) {
		search->best = id;
		search->best_top = unit->top;
	}
}

/* Considers the units of a block that have waiting tasks. Usually there is only one: then no loop is needed. */
static void search_block(struct search *search, u32 block, const struct tried *tried, bool alone)
{
	u32 bits = waiting(block), look;

	if (!bits)
		return;
	consider(search, block * WAITS_BLOCK + lowest(bits), tried, alone && !(bits & (bits - 1)));
	bits &= bits - 1;
	if (!bits)
		return;
	bpf_for(look, 1, WAITS_BLOCK) {
		if (!bits)
			break;
		consider(search, block * WAITS_BLOCK + lowest(bits), tried, false);
		bits &= bits - 1;
	}
}

/* The unit that a CPU owned by `home` should run next, among those with waiting tasks, except the `tried`; or DISPATCH_NOBODY. */
VERIFIED_ALONE(u32) next_unit(u32 home, enum among among, const struct tried *tried)
{
	struct search search = { .home = home, .among = among, .best = DISPATCH_NOBODY, .best_top = DISPATCH_NOBODY };
	u32 blocks = (rules()->units + WAITS_BLOCK - 1) / WAITS_BLOCK, block;

	search_block(&search, 0, tried, tried && blocks == 1);
	if (blocks > 1)
		bpf_for(block, 1, blocks)
			search_block(&search, block, tried, false);
	return search.best;
}

#endif
