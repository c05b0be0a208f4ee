/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Gates: the tasks of a gang that is shut do not run, and all of them may run again from one moment on.
 *
 * Problem. Which gangs run is decided for quanta of some 100 ms. A stop signal for each process is slow, can be seen by its
 * parent, and outlasts whoever sent it. The scheduler can tell all CPUs at once, and what it holds back is free when it ends.
 *
 * Terms. A process is of a *gang*, by number, and each gang's *gate* is open or shut. A task is *parked* while it waits for its
 * gate, in one queue for all gangs. It is *inside* while it may hold something that others wait for: within a system call, in
 * a critical section of RCU's, or woken from a sleep that no signal ends. It takes a *breath* when it is put onto a CPU and
 * taken off again before it does anything.
 *
 * Algorithm.
 * - A gate is a number in memory. Whoever shuts some has every CPU looked at that runs a task of theirs: see dispatch_turn().
 *   A CPU notes its task's gang before it reads the gate, and these are written before CPUs are looked at. So one of the two
 *   sees the other.
 * - A task of a shut gang that comes to a queue is parked, unless it is inside or ends. One that waited already is put onto a
 *   CPU, found there, and parked without a step of its own. One that is inside goes on, and is looked at again by each tick.
 * - Who opens gates moves those that were parked behind them to their units' queues, and has CPUs found for them.
 * - What is parked for BREATH_NS takes a breath: the kernel ends a scheduler under which a task waits for too long.
 *
 * Properties.
 * - A task that is parked is not active, waits for nobody, calls no CPU back, and is not late.
 * - A task belongs to its process's gang, and a new process to its parent's, from before its first step. A task that comes to
 *   another unit has left its gang.
 * - A task that ends goes on: it is looked for when gates change, and at each look of whoever opens them.
 * - Where there are no gangs, the verifier drops all of it.
 *
 * Limits.
 * - A task that is inside runs on for as long as its system call takes, and up to a tick longer.
 * - A process that comes into a gang that is shut while it runs goes on to the end of its slice.
 * - A task that is interrupted within a page fault is not known to be inside.
 * - dispatch_turn() looks at all that are parked. It writes only what may be late without harm: a task's state is written
 *   under its own CPU's lock. While its owner changes its affinity it may be counted as waiting until it runs.
 */
#ifndef DISPATCH_GATES_H
#define DISPATCH_GATES_H

#define BREATH_NS 5000000000ull /* a sixth of what the kernel allows */

/* Whether a task may not go on now, or from when it is not inside any more. */
static bool is_shut(struct task_struct *p, const struct dispatch_task *task)
{
	return gated() && gate_is_shut(gang_of(p, task));
}

/* Whether it is to be parked. */
static bool stays_out(struct task_struct *p, const struct dispatch_task *task)
{
	return is_shut(p, task) && !(task->state & DISPATCH_INSIDE) && !is_ending(p);
}

/* The current task stops here, and could go on. Of one that has a breath, it is known. */
static void note_inside(struct task_struct *p, struct dispatch_task *task)
{
	if (!gated() || task->state & DISPATCH_PARKED)
		return;
	task->state &= ~DISPATCH_INSIDE;
	if (gang_of(p, task) != DISPATCH_NOBODY && is_in_call(p))
		task->state |= DISPATCH_INSIDE;
}

/* It sleeps. */
static void note_sleep(const struct task_struct *p, struct dispatch_task *task)
{
	if (!gated())
		return;
	task->state &= ~DISPATCH_INSIDE;
	if (sleeps_deeply(p))
		task->state |= DISPATCH_INSIDE;
}

/* A task runs here from now on. Should its gate be shut, it goes at once. */
static void note_gang(struct task_struct *p, struct dispatch_task *task, struct dispatch_cpu *cpu, u32 id)
{
	if (!gated())
		return;
	swap32(&cpu->gang, gang_of(p, task));
	if (stays_out(p, task))
		scx_bpf_kick_cpu(id, SCX_KICK_PREEMPT);
	else
		task->state &= ~DISPATCH_PARKED;
}

#endif
