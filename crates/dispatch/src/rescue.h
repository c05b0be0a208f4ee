/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Nobody waits for too long, whatever part a unit has and however many tasks share it.
 *
 * Problem. In queues ordered by virtual time, a task waits for as long as its unit's CPU time takes to go round: tasks times
 * slices over the unit's part. A contract can make that part a thousandth, a user can start ten thousand tasks, and a nice
 * value can make one of them wait for seventy rounds; but a kernel ends a scheduler, and with it the isolation of all units,
 * as soon as one task has waited for 30 s.
 *
 * Algorithm. Each unit remembers how long its tasks wait of late: the longest wait, less an eighth of it for every shorter one
 * since, and nothing below a tenth of a second.
 * - A unit's clock, by which those are placed that come to its queue, goes on by a 64th of the time that passes at least
 *   (`let_clock_go_on`), as it does anyhow where no more than 64 tasks of nice 0 share a CPU; and nobody is placed further
 *   ahead of it than 32 slices (`LEAD_MAX`). So nice values order those that came within 10 s; who waits for longer is before
 *   all who come.
 * - Slices are an eighth from 2 s on, of those that wait already too, and count as whole ones: a kernel with a tick of 1 ms
 *   has five turns where there was one.
 * - From 5 s on the unit is *late*, and so is one of which tasks wait and none came to run for so long. Late tasks are
 *   *rescued*: CPUs take them out of turn, whoever owns them, often enough that all that wait in late units run once in 5 s,
 *   and so seldom that they use a tenth of the machine at most. Who is late is looked for once a second.
 * - So are the *stranded*, who wait in the queue of one CPU that a higher class took since, and may run on others: each of
 *   those looks for them once a second, and takes one with each slice while there are any.
 * - A CPU thinks of all this once a slice.
 *
 * Properties. A rescue is charged like any other turn: what a late unit gets by it, it gets less of in its own. So shares
 * stay what the contract says, unless all of the unit's part is less than its rescues: then it gets more than its part, one
 * short slice for each task in 5 s. Whoever waits has all before it that come after it within 10 s, and no others; a unit is
 * known to be late within 6 s, and then one round of its tasks takes 5 s: so each comes to run within 21 s, as long as a tenth
 * of the machine serves all late tasks in 5 s: 800 of them on eight CPUs by slices of 5 ms, 6,400 by short ones.
 * crates/sim/tests/starvation.rs tries contracts, crowds and modes.
 *
 * Limits. Nice values of -18 and less, and any where more than 64 tasks share a CPU, count for less than the kernel gives them.
 * A unit that slept may be taken for late as it wakes: then a task of it runs sooner than it should. Without isolation
 * (`pool`) there is nobody to take time from.
 */
#ifndef DISPATCH_RESCUE_H
#define DISPATCH_RESCUE_H

#define SECOND    1000000000ull
#define SLOW_NS   (SECOND / 10) /* shorter waits are nothing to remember */
#define CROWD_NS  (2 * SECOND)  /* slices are short from here on, */
#define LATE_NS   (5 * SECOND)  /* and here tasks are rescued */
#define ROUND_NS  (5 * SECOND)  /* in which all that are late have a turn */
#define GIVEN_MAX 64            /* of one unit, before others have their turns */
#define LEAD_MAX  32            /* slices that a task may be ahead of its unit's clock, */
#define CLOCK_PART 64           /* which goes on by this part of the time that passes: by so much in 10 s */
#define CLOCK_NS  (SECOND / 10) /* looked at so often */

/* How many times faster than usual a unit's tasks take turns; their virtual time goes by as much faster. */
static u32 pace(const struct dispatch_unit *unit)
{
	return unit->slow_ns > CROWD_NS ? 8 : 1;
}

/* A unit's clock goes on with time, however many tasks share its part. */
static void let_clock_go_on(struct dispatch_unit *unit, u64 now)
{
	u64 passed = now - unit->clock_set;

	if ((s64)passed < (s64)CLOCK_NS)
		return;
	if (unit->clock_set)
		at_least(&unit->vtime, unit->clock_was + passed / CLOCK_PART);
	unit->clock_set = now;
	unit->clock_was = unit->vtime;
}

/* A task of this unit comes to run, and waited for so long. */
static void note_wait(struct task_struct *p, struct dispatch_unit *unit, u64 waited)
{
	u64 slow = unit->slow_ns - unit->slow_ns / 8;

	if (slow < waited)
		slow = waited;
	unit->slow_ns = slow > SLOW_NS ? slow : 0;
	if (pace(unit) > 1)
		set_slice(p, rules()->slice_ns / pace(unit));
}

/*
 * A late unit of which tasks wait, or DISPATCH_NOBODY: each in its turn, for as many tasks as it has, but not so many that the
 * others would wait for a crowd. Says when the next task is to be rescued.
 */
VERIFIED_ALONE(u32) next_late(u64 now)
{
	u32 id, waits, first = DISPATCH_NOBODY, after = DISPATCH_NOBODY, tasks = 0, last = rescues()->unit;
	u64 pause, least = rules()->slice_ns * 10 / rules()->cpus;
	struct dispatch_unit *unit;
	bool stays = false;

	bpf_for(id, 0, rules()->units) {
		unit = unit_at(id);
		waits = waits_in(id);
		if (!unit || !waits || (unit->slow_ns <= LATE_NS && before(now, unit->served + LATE_NS)))
			continue;
		tasks += waits;
		if (id == last && rescues()->given < (waits < GIVEN_MAX ? waits : GIVEN_MAX))
			stays = true;
		if (first == DISPATCH_NOBODY)
			first = id;
		if (after == DISPATCH_NOBODY && id > last)
			after = id;
	}
	if (!tasks || rules()->pool) {
		rescues()->at = now + SECOND;
		return DISPATCH_NOBODY;
	}
	pause = ROUND_NS / tasks;
	rescues()->at = now + (pause < least ? least : pause);
	if (!stays) {
		rescues()->unit = after == DISPATCH_NOBODY ? first : after;
		rescues()->given = 0;
	}
	rescues()->given++;
	return rescues()->unit;
}

/* Whether the task that comes to run is the one that this CPU has taken out of turn. */
static bool is_rescued(struct dispatch_cpu *cpu)
{
	cpu->rescue = cpu->rescue == DISPATCH_RESCUE_TAKEN ? DISPATCH_RESCUE_RUNS : DISPATCH_RESCUE_NONE;
	return cpu->rescue;
}

/* Gives this CPU one of those that wait in the queue of a CPU that a higher class has, and may run here. */
VERIFIED_ALONE(bool) take_stranded(void)
{
	struct dispatch_cpu *cpu;
	u32 id;

	bpf_for(id, 0, rules()->cpus) {
		cpu = cpu_at(id);
		if (cpu && cpu->strays && higher_has(cpu) && scx_bpf_dsq_move_to_local(QUEUE_OF_CPU + id))
			return true;
	}
	return false;
}

/* Gives a CPU a stranded task, if it is time to look for one. While there are any, there may be more. */
static bool rescue_stranded(struct dispatch_cpu *cpu, u64 now)
{
	if (before(now, cpu->seeks_at))
		return false;
	if (take_stranded())
		return true;
	cpu->seeks_at = now + SECOND;
	return false;
}

/* Gives a CPU the first task of a late unit, if it is time for one. */
static bool rescue_late(u64 now)
{
	u32 late = before(now, rescues()->at) ? DISPATCH_NOBODY : next_late(now);

	return late != DISPATCH_NOBODY && scx_bpf_dsq_move_to_local(late);
}

static bool rescue(struct dispatch_cpu *cpu)
{
	u64 now = cpu->since;

	cpu->looks_at = now + rules()->slice_ns;
	if (!rescue_stranded(cpu, now) && !rescue_late(now))
		return false;
	cpu->rescue = DISPATCH_RESCUE_TAKEN;
	return true;
}

#endif
