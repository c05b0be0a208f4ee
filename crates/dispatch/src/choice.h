/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Chooses the unit whose task a CPU runs next. Units within the CPU's owner are compared by pass, and units that
 * borrow by claim.
 */
#ifndef DISPATCH_CHOICE_H
#define DISPATCH_CHOICE_H

#define RACES_MAX  4u  /* another CPU may take what this one saw waiting: then it looks again, so many times */
#define LOAN_SLICES 4 /* how far a borrower may be behind: see advance_loan() */

/*
 * What it runs on now counts as a slice each: see struct competitor. What it lent before counts as if it had been lent
 * so much less: a giver that is short goes first until that is spent.
 */
static u64 loan_of(const struct dispatch_unit *unit)
{
	return unit->loan_pass - unit->credit + unit->busy * unit->slice;
}

/* Whether one outermost unit had less of others' CPUs for its weight than another, or as much while more of it wait. */
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
 * An outermost unit's loan pass goes on by what was used on another's CPU. One that did not borrow for long has at most
 * some slices of credit for each CPU that it runs on. Slices end with ticks, and are charged so late that a unit which
 * does borrow may be as far behind.
 */
static void advance_loan(struct dispatch_unit *top, u64 used)
{
	at_least(&top->loan_pass, world_loan_pass() - (top->busy + 1) * LOAN_SLICES * top->slice);
	add64(&top->loan_pass, over_weight(used, top->weight));
}

/* Among which units a CPU looks for its next task. */
enum among {
	AMONG_HOME,      /* those within its owner */
	AMONG_BORROWERS, /* those outside its owner that borrow */
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

/* Whether a unit's tasks go before those of the best one so far. */
static bool goes_before(u32 id, const struct dispatch_unit *unit, u32 best, u32 best_top, enum among among)
{
	if (best == DISPATCH_NOBODY)
		return true;
	if (among == AMONG_BORROWERS && unit->top != best_top)
		return larger_claim(unit->top, best_top);
	return had_less(id, best);
}

/* Units that were found to wait, but none of whose tasks came to run: another CPU took them, or their affinity says no. */
struct tried {
	u32 unit[RACES_MAX];
};

/* What a CPU looks for, and what it has found. */
struct search {
	u32 home;
	enum among among;
	u32 best, best_top; /* DISPATCH_NOBODY: nothing yet */
};

/* Looks at a unit of which tasks wait. `alone`: no other does, and the caller sees whether its task is in the queue yet. */
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

/* Mostly tasks of one unit wait, and no loop is needed. */
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

/* The unit whose task a CPU should run next, among those that wait; not one of the `tried`. */
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
