/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The tree of units. Tracks which units are active, and each unit's pass: the unit's CPU time over its
 * weight. Passes are comparable among siblings only. To compare any two units of the tree, goes up from both
 * to ancestors that are siblings, and compares the passes of these.
 */
#ifndef DISPATCH_TREE_H
#define DISPATCH_TREE_H

#define SLICE_MIN  100000 /* ns: the cost of ten switches */

/* The slice of a task of this unit. For a unit with deadlines, it is at most the rest of the budget. */
static u64 slice_of(const struct dispatch_unit *unit)
{
	u64 slice = rules()->slice_ns;
	u32 budget_left = unit->memory.mark;

	if (!is_other(unit->among) || unit->among != DISPATCH_DWCS || !unit->deadlines.period || budget_left >= slice)
		return slice;
	return budget_left > SLICE_MIN ? budget_left : SLICE_MIN;
}

/*
 * A task is active if it runs or waits. A unit is active if one of its own tasks, or a sub-unit, is active. A
 * unit that becomes active has at most one slice of credit: its pass is raised to the clock of its parent
 * (see advance_clock_around()), less one slice. The pass of a unit that used less than its share, for lack of
 * tasks, is raised likewise when another of its tasks wakes or a slice begins. Otherwise that unit would keep
 * all others waiting for as long as it had too few tasks.
 *
 * Here and below, a function NAME_within() does the work of one level and returns the parent. The first level is unrolled,
 * since a BPF loop costs more than that work, and most units are outermost.
 *
 * Counts a task that becomes active. `comes`: whether the sub-unit or own tasks below this level became active by that.
 */
static struct dispatch_unit *count_within(struct dispatch_unit *unit, bool *comes)
{
	struct dispatch_unit *parent = unit_at(unit->parent);

	if (*comes)
		*comes = !add(&unit->active, 1);
	if (!is_other(unit->among))
		stride_comes(&unit->pass, parent ? parent->frontier : world_pass(), unit->slice);
	else if (*comes && parent)
		to_unit(unit->number, COMES_AWAKE, 0);
	return parent;
}

static void count(struct dispatch_task *task, struct dispatch_unit *unit)
{
	bool comes;
	u32 level;

	if (task->state & DISPATCH_COUNTED)
		return;
	task->state |= DISPATCH_COUNTED | DISPATCH_WOKE;
	comes = !add(&unit->own_active, 1);
	if (unit->below && !is_other(unit->discipline))
		stride_comes(&unit->own_pass, unit->frontier, over_weight(rules()->slice_ns, OWN_WEIGHT));
	else if (unit->below && comes)
		to_own_tasks(unit->number, COMES_AWAKE, 0);
	if (!(unit = count_within(unit, &comes)))
		return;
	bpf_for(level, 1, DISPATCH_DEPTH_MAX)
		if (!(unit = count_within(unit, &comes)))
			break;
}

/* Subtracts one from the number of a unit's active parties. Returns the parent if the unit thereby becomes inactive. */
static struct dispatch_unit *uncount_within(struct dispatch_unit *unit)
{
	return add(&unit->active, -1) == 1 ? unit_at(unit->parent) : NULL;
}

static void uncount(struct dispatch_task *task, struct dispatch_unit *unit)
{
	u32 level;

	if (!(task->state & DISPATCH_COUNTED))
		return;
	task->state &= ~DISPATCH_COUNTED;
	if (add(&unit->own_active, -1) != 1 || !(unit = uncount_within(unit)))
		return;
	bpf_for(level, 1, DISPATCH_DEPTH_MAX)
		if (!(unit = uncount_within(unit)))
			break;
}

/* Adds `by` to the number of busy CPUs of a unit and all its ancestors. Returns the number of these units. */
VERIFIED_ALONE(u32) count_busy(u32 id, s32 by)
{
	struct dispatch_unit *unit;
	u32 level;

	bpf_for(level, 0, DISPATCH_DEPTH_MAX) {
		if (!(unit = unit_at(id)))
			break;
		add(&unit->busy, by);
		id = unit->parent;
	}
	return level;
}

/* A slice of one of a unit's own tasks begins on a CPU: counts the CPU as busy. */
static void occupy(struct dispatch_cpu *cpu, struct dispatch_unit *unit)
{
	cpu->occupied = DISPATCH_BY_LEAF;
	if (unit->below) {
		cpu->occupied = DISPATCH_BY_INNER;
		add(&unit->own_busy, 1);
	}
	add(&unit->busy, 1);
	if (unit->parent != DISPATCH_NOBODY)
		count_busy(unit->parent, 1);
}

/* The slice has ended, and was charged: undoes occupy(). */
static void vacate(struct dispatch_cpu *cpu, struct dispatch_unit *unit)
{
	if (!cpu->occupied)
		return;
	if (cpu->occupied == DISPATCH_BY_INNER)
		add(&unit->own_busy, -1);
	cpu->occupied = DISPATCH_BY_NOBODY;
	add(&unit->busy, -1);
	if (unit->parent != DISPATCH_NOBODY)
		count_busy(unit->parent, -1);
}

/*
 * A party that competes at one level of the tree, on the way up: first a unit's own tasks, then the unit,
 * then its ancestors. For each CPU that runs the party's tasks, one slice counts as used already, although it
 * is charged later. Otherwise one unit would get every CPU that chooses a task before the charge, and would
 * then have to wait for as long.
 */
struct competitor {
	u64 pass;
	u32 weight;
	u32 within; /* the parent whose time it competes for; DISPATCH_NOBODY: the machine */
	u32 depth;
};

static struct competitor as_unit(const struct dispatch_unit *unit)
{
	return (struct competitor){
		.pass = unit->pass + pending(unit->among, unit->busy, unit->slice),
		.weight = unit->weight ? unit->weight : 1,
		.within = unit->parent,
		.depth = unit->depth,
	};
}

static struct competitor as_own_tasks(u32 id, const struct dispatch_unit *unit)
{
	return (struct competitor){
		.pass = unit->own_pass +
			pending(unit->discipline, unit->own_busy, over_weight(rules()->slice_ns, OWN_WEIGHT)),
		.weight = OWN_WEIGHT,
		.within = id,
		.depth = unit->depth + 1,
	};
}

static void climb(struct competitor *at)
{
	struct dispatch_unit *unit = unit_at(at->within);

	if (unit)
		*at = as_unit(unit);
}

/* The competitors of two units at the level where they meet: there, they or their ancestors compete within one parent. */
static void meet(u32 one, u32 other, struct competitor *x, struct competitor *y)
{
	struct dispatch_unit *a = unit_at(one), *b = unit_at(other);
	u32 level, depth;

	if (!a || !b)
		return;
	if (a->parent == b->parent && one != other) {
		*x = as_unit(a);
		*y = as_unit(b);
		return;
	}
	*x = as_own_tasks(one, a);
	*y = as_own_tasks(other, b);
	bpf_for(level, 0, 2 * DISPATCH_DEPTH_MAX) {
		if (x->within == y->within)
			break;
		depth = y->depth;
		if (y->depth >= x->depth)
			climb(y);
		if (x->depth >= depth)
			climb(x);
	}
}

/* Whether one unit's own tasks precede another unit's: whether they had less CPU time for their weight where the two meet. */
VERIFIED_ALONE(bool) had_less(u32 one, u32 other)
{
	struct competitor x = {}, y = {};

	meet(one, other, &x, &y);
	return before(x.pass, y.pass);
}

/* Advances a unit's pass by CPU time used. Outermost units compete only for time-shared CPUs. */
static struct dispatch_unit *advance_within(struct dispatch_unit *unit, bool time_shared, u64 used)
{
	struct dispatch_unit *parent = unit_at(unit->parent);

	if (is_other(unit->among) && parent)
		to_unit(unit->number, RAN, used);
	else if (parent || time_shared)
		add64(&unit->pass, over_weight(used, unit->weight));
	return parent;
}

/* Advances the passes of a unit's own tasks and of all units around them by CPU time used. */
static void advance(struct dispatch_unit *unit, bool time_shared, u64 used)
{
	u32 level;

	if (unit->below && is_other(unit->discipline))
		to_own_tasks(unit->number, RAN, used);
	else if (unit->below)
		add64(&unit->own_pass, used);
	if (!(unit = advance_within(unit, time_shared, used)))
		return;
	bpf_for(level, 1, DISPATCH_DEPTH_MAX)
		if (!(unit = advance_within(unit, time_shared, used)))
			break;
}

/*
 * A unit's task is dispatched in turn: advances the clock of its parent, or of the machine, to the unit's pass, less the
 * distance by which that pass may be ahead of the smallest one. It may be ahead for two reasons. A task that ends its slice is
 * briefly in no queue, and a CPU that chooses at that moment takes a task of another unit. And a unit that alone has waiting
 * tasks is dispatched on all CPUs, and charged for them later. (Slices end with ticks, and are up to twice as long.) If the
 * unit's pass is behind the clock by more than a slice, the unit lacked tasks: its pass catches up.
 */
static u64 clock_by(struct dispatch_unit *unit, u64 clock)
{
	if (before(unit->pass, clock - unit->slice))
		unit->pass = clock - unit->slice;
	else
		at_least(&clock, unit->pass - 2 * (rules()->cpus - 1) * unit->slice);
	return clock;
}

static struct dispatch_unit *advance_clock_around(struct dispatch_unit *unit, bool time_shared)
{
	struct dispatch_unit *parent;

	if (unit->parent == DISPATCH_NOBODY) {
		if (time_shared)
			world_pass_at_least(clock_by(unit, world_pass()));
		return NULL;
	}
	if (!(parent = unit_at(unit->parent)))
		return NULL;
	if (!is_other(unit->among)) {
		at_least(&parent->frontier, clock_by(unit, parent->frontier));
	} else {
		if (!has_numbers(unit->among))
			at_least(&parent->frontier, unit->pass);
		to_unit(unit->number, GOES_ON, 0);
	}
	return parent;
}

#endif
