/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Seats: where the threads of a job should run.
 *
 * Problem. Threads that share memory should run near each other. The policy assigns each of them a seat in a pool of CPUs. A
 * hard affinity would keep the thread there, but would make it wait for these few CPUs while others idle.
 *
 * Terms. A task is *away* on a CPU outside the pool of its seat. It is *apart* if it is away, or has no seat at all.
 *
 * Algorithm. A seat is a soft affinity: a preference between tasks and CPUs, which never leaves a CPU idle.
 * - A waking task looks for an idle CPU by distance from its seat: in its pool first.
 * - A CPU examines the first SEAT_LOOKS tasks of a queue. It takes the first of them that has its seat in the
 *   CPU's pool, has no seat, or has waited for PATIENCE_NS. If there is no such task, the CPU's current task
 *   continues. A CPU without a current task then takes the first task of the queue.
 * - If a task is away at the end of its slice, it moves to the pool of its seat, provided that a CPU there is
 *   idle or runs a task that is apart. In the second case the task that is apart is displaced: it gets the
 *   CPU that becomes free, or another one. A CPU that becomes idle fetches a task that has its seat in the
 *   CPU's pool and is away.
 *
 * Properties. Work-conserving: an idle CPU takes any waiting task, as without seats. After PATIENCE_NS every
 * CPU takes a task in queue order. Each move increases the number of tasks in the pools of their seats by
 * one, so moves end. A task without a seat waits in queue order for every CPU. Where no unit has jobs, the
 * verifier removes this code.
 *
 * Limits. The order of a unit's queue is kept only among the tasks that fit a CPU. Tasks behind the first
 * SEAT_LOOKS of a queue are not examined. When a task wakes, distances to a pool that is no cache, node or
 * socket are measured from the pool's first CPU.
 */
#ifndef DISPATCH_SEATS_H
#define DISPATCH_SEATS_H

#define PATIENCE_NS 40000000ull /* several slices: within this time, a CPU of the pool usually becomes free */

/* The pool of a task's seat, or DISPATCH_NOBODY. */
static u32 pool_of(const struct dispatch_task *task)
{
	struct dispatch_cpu *seat = cpu_at(task->seat);

	return seat ? seat->pool : DISPATCH_NOBODY;
}

/* Whether a CPU of this pool should take a task: the task has no seat in another pool, or has waited since before `late`. */
static bool fits_pool(const struct dispatch_task *task, u32 pool, u64 late)
{
	u32 seat_pool = pool_of(task);

	return seat_pool == pool || seat_pool == DISPATCH_NOBODY || before(task->since, late);
}

/* The CPU from which a waking task measures distance: its last CPU, or its seat if the last CPU is in another pool. */
static s32 near_to(const struct dispatch_task *task, s32 last)
{
	struct dispatch_cpu *cpu;
	u32 pool;

	if (!seated() || task->seat == DISPATCH_NOBODY || !(cpu = cpu_at(last)))
		return last;
	pool = pool_of(task);
	return pool == DISPATCH_NOBODY || pool == cpu->pool ? last : (s32)task->seat;
}

/* Records the pool of the seat of a CPU's task, if that is another pool; else DISPATCH_NOBODY. Keeps count in away(). */
static void note_wanted(struct dispatch_cpu *cpu, u32 pool)
{
	if ((cpu->wanted == DISPATCH_NOBODY) != (pool == DISPATCH_NOBODY))
		add(away(), pool == DISPATCH_NOBODY ? -1 : 1);
	cpu->wanted = pool;
}

/* Records whether the dispatched task is apart, so that it may be displaced. Not for a guest, which leaves soon anyhow. */
static void note_seat(struct dispatch_cpu *cpu, const struct dispatch_task *task)
{
	struct dispatch_unit *unit;
	u32 pool;

	if (!seated() || !(unit = unit_at(task->unit)))
		return;
	pool = unit->flags & DISPATCH_SEATS ? pool_of(task) : cpu->pool;
	cpu->apart = pool != cpu->pool && (cpu->home == DISPATCH_NOBODY || cpu->home == unit->top);
	note_wanted(cpu, pool == cpu->pool ? DISPATCH_NOBODY : pool);
}

/* Called by a CPU without a task: interrupts another CPU whose task has its seat in this pool, so that the task moves here. */
static __attribute__((noinline)) void call_to_seat(const struct dispatch_cpu *here)
{
	struct dispatch_cpu *cpu;
	u32 id;

	bpf_for(id, 0, rules()->cpus) {
		cpu = cpu_at(id);
		if (!cpu || cpu->wanted == DISPATCH_NOBODY || cpu->wanted != here->pool)
			continue;
		scx_bpf_kick_cpu(id, SCX_KICK_PREEMPT);
		break;
	}
}

/*
 * For a task on CPU `here` outside the pool of its seat: a CPU of that pool to which it may move, preferably an idle one, else
 * one whose task is apart; or DISPATCH_NOBODY.
 */
static __attribute__((noinline)) u32 better_place(struct task_struct *p, const struct dispatch_task *task,
						  const struct dispatch_unit *unit, u32 here)
{
	struct dispatch_cpu *from = cpu_at(here), *cpu;
	u32 pool = pool_of(task), found = DISPATCH_NOBODY, id;

	if (!from || pool == DISPATCH_NOBODY || pool == from->pool)
		return DISPATCH_NOBODY;
	bpf_for(id, 0, rules()->cpus) {
		cpu = cpu_at(id);
		if (!cpu || cpu->pool != pool || (cpu->home != DISPATCH_NOBODY && cpu->home != unit->top) || !may_run(p, id))
			continue;
		if (idles(id))
			return id;
		if (cpu->apart && cpu->home == from->home && cpu->runs != DISPATCH_NOBODY)
			found = id;
	}
	return found;
}

/* Dispatches a task that is away directly to a CPU of its pool, if it may take one. Returns whether it did so. */
static bool goes_to_seat(struct task_struct *p, struct dispatch_task *task, struct dispatch_unit *unit, u32 last, u64 enq_flags)
{
	u32 id = better_place(p, task, unit, last);
	struct dispatch_cpu *cpu = cpu_at(id);

	if (!cpu)
		return false;
	if (!scx_bpf_test_and_clear_cpu_idle(id)) {
		if (!cpu->apart)
			return false;
		cpu->apart = 0; /* so that no other task moves there before this one arrives */
		enq_flags |= SCX_ENQ_PREEMPT;
	}
	start_of(p, task, unit);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | id, rules()->slice_ns, enq_flags | enq_immed());
	return true;
}

/*
 * Moves a task from the queue of a unit with seats to a CPU: one that fits the CPU's pool, or else the first, unless the CPU's
 * current task can continue (`goes_on`). Returns whether a task was moved.
 */
VERIFIED_ALONE(bool) take_seated(u32 queue, u32 id, bool goes_on)
{
	struct dispatch_cpu *cpu = cpu_at(id);

	if (cpu && take_fitting(queue, cpu->pool, scx_bpf_now() - PATIENCE_NS))
		return true;
	return !goes_on && scx_bpf_dsq_move_to_local(queue);
}

/* Moves a task from a unit's queue to a CPU. `goes_on`: the CPU's current task can continue. Returns whether a task was moved. */
static bool take_from(u32 queue, u32 id, bool goes_on)
{
	struct dispatch_unit *unit;

	if (seated() && (unit = unit_at(queue)) && unit->flags & DISPATCH_SEATS)
		return take_seated(queue, id, goes_on);
	return scx_bpf_dsq_move_to_local(queue);
}

#endif
