/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Gates: stop all tasks of a gang, and let all of them run again at the same moment.
 *
 * Problem. Which gangs run is decided for quanta of some 100 ms. A stop signal for each process is slow, visible to its
 * parent, and outlasts its sender. The scheduler can notify all CPUs at once, and tasks that it holds back run when it ends.
 *
 * Terms. A process is of a *gang*, by number, and each gang's *gate* is open or shut. A task is *parked* while it waits for its
 * gate, in one queue for all gangs. It is *inside* while it may hold something that others wait for: within a system call, in
 * an RCU read-side critical section, or woken from uninterruptible sleep. It takes a *breath* when it is put onto a CPU and
 * taken off again before it executes an instruction.
 *
 * Algorithm.
 * - A gate is a number in memory. After shutting gates, dispatch_turn() checks every CPU that runs a task of theirs. A CPU
 *   records its task's gang before it reads the gate, and gates are written before CPUs are checked. So at least one of the
 *   two sees the other's write.
 * - A task of a shut gang is parked when it is enqueued, unless it is inside or exits. One that is already queued is put onto
 *   a CPU, found there, and parked before it executes. One that is inside continues, and is checked again at each tick.
 * - Opening gates moves the tasks parked behind them to their units' queues, and kicks CPUs for them.
 * - A task parked for BREATH_NS takes a breath: the kernel ends a scheduler under which a task waits for too long.
 *
 * Properties.
 * - A task that is parked is not active, waits behind no other task, calls no CPU back, and is not late.
 * - A task belongs to its process's gang, and a new process to its parent's, from before its first instruction. A task that
 *   changes its unit leaves its gang.
 * - A task that exits is released: when gates change, and at each later poll by the program that sets them.
 * - Without gangs, the verifier removes this code.
 *
 * Limits.
 * - A task that is inside runs until its system call ends, and up to a tick longer.
 * - A running process that joins a shut gang continues to the end of its slice.
 * - A task preempted within a page fault is not known to be inside.
 * - dispatch_turn() visits all parked tasks. It writes only fields that tolerate delay: a task's state is written under its
 *   own CPU's lock. A task may be counted as waiting until it runs if its affinity changes meanwhile.
 */
#ifndef DISPATCH_GATES_H
#define DISPATCH_GATES_H

#define BREATH_NS 5000000000ull /* a sixth of the kernel's watchdog timeout */

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
