/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Bounds every wait, whatever share a unit has and however many tasks divide it.
 *
 * Problem. In a queue ordered by virtual time, a task waits until its unit's CPU time has gone round: tasks times
 * slices, over the unit's share. A contract can make that share a thousandth. A user can start ten thousand tasks. A
 * nice value can make a task wait for seventy rounds. But the kernel's watchdog ends a scheduler as soon as one task has
 * waited for 30 s, and all units lose their isolation with it.
 *
 * Terms.
 * - A unit is *late* if its tasks wait for more than 5 s, or if its tasks wait and none was dispatched for 5 s.
 * - A unit is *overdue* if one of its tasks has waited for more than 5 s, although others of it run. It is late, too.
 * - A task is *stranded* if it waits in the queue of one CPU, a higher scheduling class has taken that CPU since, and
 *   other CPUs may run it.
 * - A *rescue* is an extra turn, on any CPU, regardless of its owner.
 *
 * Algorithm. Each unit keeps the longest recent wait of its tasks. Every shorter wait since then reduces it by an
 * eighth. Below a tenth of a second it counts as zero.
 * - An enqueued task is placed by its unit's clock. That clock advances by at least 1/64 of elapsed time
 *   (`let_clock_go_on`). With up to 64 tasks of nice 0 per CPU, it does so anyhow. No task is placed further ahead of
 *   the clock than 32 slices (`LEAD_MAX`). So nice values order tasks enqueued within 10 s of each other. A task that
 *   has waited for longer precedes all new ones.
 * - From 2 s of waiting on, the unit's slices shrink to an eighth, also for tasks already queued, and each is charged as
 *   a whole slice. A kernel with a tick of 1 ms then fits five turns into one.
 * - From 5 s on, the unit is late, and its tasks are rescued. Rescues are frequent enough for every waiting task of a
 *   late unit to run once in 5 s. They are rare enough to use at most a tenth of the machine. Late units are detected
 *   once a second.
 * - Disciplines other than stride can starve one task while its unit's others take turns: under `fifo`, a preempted task
 *   goes first again. So waits have an age, which grows every 5 s. A unit counts the tasks that waited already when the
 *   age last grew. If any of them still wait when it grows again, the unit is overdue until the next time. While a unit
 *   is late, its tasks are queued first-come, first-served, whatever its discipline, so that each gets a turn.
 * - Stranded tasks are rescued too. Each CPU that may run them polls for them once a second. While it finds any, it
 *   takes one with each slice.
 * - A CPU checks all this once a slice.
 *
 * Properties.
 * - A rescue is charged like any other turn, and so reduces the unit's regular turns. Shares stay as the contract sets
 *   them. One exception: where the rescues alone exceed the unit's share, it gets more than its share, one short slice
 *   for each task in 5 s.
 * - Only tasks enqueued within 10 s after a waiting task can run before it.
 * - A late unit is detected within 6 s, and one round of its tasks then takes 5 s. So each task runs within 21 s. An
 *   overdue unit is detected within 11 s and queues no task ahead of those that wait: there it is 16 s. This holds as long
 *   as a tenth of the machine serves all late tasks in 5 s. On eight CPUs, that is 800 tasks by slices of 5 ms, and 6,400
 *   by short ones.
 * - simulator/sim/tests/starvation.rs tries contracts, crowds and modes.
 *
 * Limits.
 * - Some nice values count for less than under the kernel's own scheduler: those of -18 and less, and all where more than 64
 *   tasks share a CPU.
 * - A unit that slept may count as late when it wakes. A task of it then runs sooner than it should.
 * - Without isolation (`pool`), there is no unit to take time from.
 */
#ifndef DISPATCH_RESCUE_H
#define DISPATCH_RESCUE_H

#define SECOND    1000000000ull
#define SLOW_NS   (SECOND / 10) /* shorter waits are not remembered */
#define CROWD_NS  (2 * SECOND)  /* from here on, slices are short, */
#define LATE_NS   (5 * SECOND)  /* and from here on, tasks are rescued */
#define ROUND_NS  (5 * SECOND)  /* within which every late task has a turn */
#define GIVEN_MAX 64            /* rescues of one unit in a row, before the next unit */
#define LEAD_MAX  32            /* slices that a task may be ahead of its unit's clock, */
#define CLOCK_PART 64           /* which advances by at least this fraction of elapsed time: LEAD_MAX in 10 s */
#define CLOCK_NS  (SECOND / 10) /* interval at which the clock is advanced */

/* Factor by which a unit's turns are shortened, and its virtual time accelerated. */
static u32 pace(const struct dispatch_unit *unit)
{
	return unit->slow_ns > CROWD_NS ? 8 : 1;
}

/* A unit's clock advances with real time, however many tasks share its CPU time. */
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

/* A task begins to wait in its unit's queue. */
static void note_wait_begins(struct dispatch_task *task)
{
	if (disciplined())
		task->age = rescues()->age;
}

/* It no longer waits there. */
static void note_wait_ends(const struct dispatch_task *task)
{
	struct dispatch_unit *unit;

	if (disciplined() && task->age != rescues()->age && (unit = unit_at(task->unit)))
		add(&unit->old, -1);
}

/* Whether a unit's tasks are queued first-come, first-served, so that those that have waited long run. */
static bool takes_turns(const struct dispatch_unit *unit)
{
	return unit->slow_ns > LATE_NS || unit->overdue;
}

static bool is_late(const struct dispatch_unit *unit, u64 now)
{
	return unit->slow_ns > LATE_NS || !before(now, unit->served + LATE_NS) || (disciplined() && unit->overdue);
}

/*
 * Ages waits every 5 s: tasks that waited already the last time, and still do, make their units overdue. One CPU does
 * this at a time.
 *
 * The race is harmless: a task that begins to wait between the read of its unit and the last line is not counted as old,
 * but the end of its wait decrements the count. Another task may then be found overdue one round later. In the opposite
 * order, the count could stay too large, and a unit would get rescues that it does not need.
 */
VERIFIED_ALONE(u32) grow_older(u64 now)
{
	u64 aged = rescues()->aged;
	struct dispatch_unit *unit;
	u32 id;

	if (before(now, aged + LATE_NS) || !replace64(&rescues()->aged, aged, now))
		return 0;
	bpf_for(id, 0, rules()->units) {
		if (!(unit = unit_at(id)))
			continue;
		unit->overdue = (s32)unit->old > 0;
		unit->old = waits_in(id);
	}
	rescues()->age++;
	return id;
}

/* A task of this unit is dispatched after a wait. */
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
 * The next late unit with waiting tasks, or DISPATCH_NOBODY: round robin, each for as many rescues as it has tasks, up to
 * GIVEN_MAX, so that a crowd does not delay the others. Also sets the time of the next rescue.
 */
VERIFIED_ALONE(u32) next_late(u64 now)
{
	u32 id, waits, first = DISPATCH_NOBODY, after = DISPATCH_NOBODY, tasks = 0, last = rescues()->unit;
	u64 pause, least = rules()->slice_ns * 10 / rules()->cpus;
	struct dispatch_unit *unit;
	bool stays = false;

	if (disciplined())
		grow_older(now);
	bpf_for(id, 0, rules()->units) {
		unit = unit_at(id);
		waits = waits_in(id);
		if (!unit || !waits || !is_late(unit, now))
			continue;
		tasks += waits;
		if (id == last && rescues()->given < (waits < GIVEN_MAX ? waits : GIVEN_MAX))
			stays = true;
		if (first == DISPATCH_NOBODY)
			first = id;
		if (after == DISPATCH_NOBODY && id > last)
			after = id;
	}
	if (!tasks) {
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

/* Whether the dispatched task is the one that this CPU rescued. */
static bool is_rescued(struct dispatch_cpu *cpu)
{
	cpu->rescue = cpu->rescue == DISPATCH_RESCUE_TAKEN ? DISPATCH_RESCUE_RUNS : DISPATCH_RESCUE_NONE;
	return cpu->rescue;
}

/* Gives this CPU a stranded task that may run here. */
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

/* Gives a CPU a stranded task, if a poll is due. After one is found, the next poll is due with the next slice. */
static bool rescue_stranded(struct dispatch_cpu *cpu, u64 now)
{
	if (before(now, cpu->seeks_at))
		return false;
	if (take_stranded())
		return true;
	cpu->seeks_at = now + SECOND;
	return false;
}

/* Gives a CPU the first task of a late unit, if a rescue is due. */
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
