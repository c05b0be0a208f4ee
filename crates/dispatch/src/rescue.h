/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Bounds the wait of every task, whatever the unit's share is and however many tasks divide that share.
 *
 * Problem. In a queue ordered by virtual time, a task waits until all tasks before it have had a turn. One
 * such round takes a time of (number of tasks) * slice / (the unit's share). A contract can make that share a
 * thousandth. A user can start ten thousand tasks. A nice value can make a task wait for seventy rounds. But
 * the kernel's watchdog ends a scheduler as soon as one task has waited for 30 s, and then all units lose
 * their isolation.
 *
 * Terms.
 * - A unit is *late* if its tasks wait for more than 5 s, or if its tasks wait and none was dispatched for 5 s.
 * - A unit is *overdue* if one of its tasks has waited for more than 5 s, although other tasks of the unit run. An overdue unit
 *   is late, too.
 * - A task is *stranded* if it waits in the queue of one CPU, a higher scheduling class has taken that CPU since, and
 *   other CPUs may run it.
 * - A *rescue* is an extra turn, on any CPU, regardless of its owner.
 *
 * Algorithm. Each unit keeps the longest recent wait of its tasks. Every shorter wait since then reduces it
 * by an eighth. If the result is below a tenth of a second, it counts as zero.
 * - An enqueued task is placed by its unit's clock. That clock advances by at least 1/64 of elapsed time
 *   (`let_clock_go_on`). With up to 64 tasks of nice 0 per CPU, it advances that fast without help. No task
 *   is placed further ahead of the clock than 32 slices (`LEAD_MAX`). So nice values order tasks enqueued
 *   within 10 s of each other. A task that has waited for longer precedes all new ones.
 * - Once tasks of a unit have waited for 2 s, the unit's slices shrink to an eighth, also for tasks already
 *   queued. Each short slice is charged as a whole slice. With a kernel tick of 1 ms, five turns then take as
 *   long as one before.
 * - From 5 s on, the unit is late, and its tasks are rescued. Rescues are frequent enough for every waiting task of a
 *   late unit to run once in 5 s. They are rare enough to use at most a tenth of the machine. Late units are detected
 *   once a second.
 * - Disciplines other than stride can starve one task while other tasks of its unit take turns: under `fifo`, a preempted task
 *   goes first again. So an *age* counts periods of 5 s. At each new period, a unit counts the tasks that wait. If any of them
 *   still waits when the next period begins, the unit is overdue for that period. While a unit is late, its tasks are queued
 *   first-come, first-served, whatever its discipline, so that each gets a turn.
 * - Stranded tasks are rescued too. Each CPU polls for stranded tasks that it may run once a second. While it finds any, it
 *   takes one with each slice.
 * - A CPU checks once a slice whether a rescue is due.
 *
 * Properties.
 * - A rescue is charged like any other turn, and so reduces the unit's regular turns. Shares stay as the contract sets
 *   them. One exception: where the rescues alone exceed the unit's share, it gets more than its share, one short slice
 *   for each task in 5 s.
 * - Only tasks enqueued within 10 s after a waiting task can run before it.
 * - A late unit is detected within 6 s, and one round of its tasks then takes 5 s. With the tasks enqueued within 10 s, each
 *   task runs within 21 s. An overdue unit is detected within 11 s and queues no task ahead of those that wait: its tasks run
 *   within 16 s. Both hold if a tenth of the machine can serve all late tasks in 5 s. On eight CPUs, that is 800 tasks with
 *   slices of 5 ms, and 6,400 with short ones.
 * - simulator/sim/tests/starvation.rs tests these properties with many contracts, crowds and modes.
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
#define CROWD_NS  (2 * SECOND)  /* a unit with longer waits gets short slices */
#define LATE_NS   (5 * SECOND)  /* a unit with longer waits is late: its tasks are rescued */
#define ROUND_NS  (5 * SECOND)  /* the time in which rescues give every late task a turn */
#define GIVEN_MAX 64            /* rescues of one unit in a row, before the next unit */
#define LEAD_MAX  32            /* slices by which a task may be ahead of its unit's clock */
#define CLOCK_PART 64           /* a unit's clock advances by at least elapsed time over this: by LEAD_MAX in 10 s */
#define CLOCK_NS  (SECOND / 10) /* interval at which the clock is advanced */

/* The factor by which a unit's slices are shortened, and its tasks' virtual time accelerated, because its tasks wait long. */
static u32 pace(const struct dispatch_unit *unit)
{
	return unit->slow_ns > CROWD_NS ? 8 : 1;
}

/* Advances a unit's clock with real time, by 1 / CLOCK_PART, however many tasks share the unit's CPU time. */
static void let_clock_go_on(struct dispatch_unit *unit, u64 now)
{
	u64 elapsed = now - unit->clock_set;

	if ((s64)elapsed < (s64)CLOCK_NS)
		return;
	if (unit->clock_set)
		at_least(&unit->vtime, unit->clock_was + elapsed / CLOCK_PART);
	unit->clock_set = now;
	unit->clock_was = unit->vtime;
}

/* A task begins to wait in its unit's queue. */
static void note_wait_begins(struct dispatch_task *task)
{
	if (disciplined())
		task->age = rescues()->age;
}

/* A task no longer waits in its unit's queue: subtracts it from the unit's old waits, if it was counted there. */
static void note_wait_ends(const struct dispatch_task *task)
{
	struct dispatch_unit *unit;

	if (disciplined() && task->age != rescues()->age && (unit = unit_at(task->unit)))
		add(&unit->old, -1);
}

/* Whether a unit's tasks are queued first-come, first-served, since some have waited for too long. */
static bool takes_turns(const struct dispatch_unit *unit)
{
	return unit->slow_ns > LATE_NS || unit->overdue;
}

static bool is_late(const struct dispatch_unit *unit, u64 now)
{
	return unit->slow_ns > LATE_NS || !before(now, unit->served + LATE_NS) || (disciplined() && unit->overdue);
}

/*
 * Begins a new period, every 5 s. A unit with tasks that have waited since the beginning of the previous period becomes
 * overdue. Only one CPU does this at a time. Returns the number of units, for the verifier's sake.
 *
 * The race is harmless: a task that begins to wait between the count of its unit's waits and the last line is not counted as
 * old, but the end of its wait decrements the count. Another task may then be found overdue one period later. In the opposite
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

/* A task of this unit is dispatched after a wait: updates the unit's longest recent wait, and shortens the slice if needed. */
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
 * The late unit whose task is rescued next, or DISPATCH_NOBODY. Late units with waiting tasks take turns, round robin. A turn has
 * one rescue for each waiting task of the unit, at most GIVEN_MAX, so that a crowd does not delay other units. Also sets the time
 * of the next rescue.
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

/* Whether the task that a CPU dispatches is a rescued one. Call it once for each dispatch: it advances the state. */
static bool is_rescued(struct dispatch_cpu *cpu)
{
	cpu->rescue = cpu->rescue == DISPATCH_RESCUE_TAKEN ? DISPATCH_RESCUE_RUNS : DISPATCH_RESCUE_NONE;
	return cpu->rescue;
}

/* Moves a stranded task that may run on this CPU here, from the queue of a CPU that a higher class has. */
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

/* Moves a stranded task to a CPU, if a poll is due. If one is found, the next poll is due with the next slice. */
static bool rescue_stranded(struct dispatch_cpu *cpu, u64 now)
{
	if (before(now, cpu->seeks_at))
		return false;
	if (take_stranded())
		return true;
	cpu->seeks_at = now + SECOND;
	return false;
}

/* Moves the first task of a late unit to this CPU, if a rescue is due. */
static bool rescue_late(u64 now)
{
	u32 late = before(now, rescues()->at) ? DISPATCH_NOBODY : next_late(now);

	return late != DISPATCH_NOBODY && scx_bpf_dsq_move_to_local(late);
}

/* Moves a stranded task or a task of a late unit to a CPU, if a rescue is due. Returns whether there was one. */
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
