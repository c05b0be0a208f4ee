/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Gates: stop all tasks of a gang, and let all of them run again at the same moment.
 *
 * Problem. The policy decides which gangs run in each quantum of some 100 ms. To stop each process by a
 * signal would be slow and visible to the process's parent, and the process would stay stopped if the daemon
 * died. The scheduler can notify all CPUs at once. When the scheduler ends, the tasks that it held back run
 * again.
 *
 * Terms. A process may belong to a *gang*, which is a number. Each gang has a *gate*, which is open or shut.
 * A task is *parked* while it waits for its gang's gate; there is one queue of parked tasks for all gangs. A
 * task is *inside* while it may hold something that other tasks wait for: while it is within a system call or
 * in an RCU read-side critical section, or after it was woken from uninterruptible sleep. A parked task takes
 * a *breath* when it is put onto a CPU, and taken off the CPU again before it executes an instruction.
 *
 * Algorithm.
 * - A gate is a number in memory. After gates were shut, dispatch_turn() preempts every CPU that runs a task
 *   of a shut gang. A CPU records its task's gang before it reads the gate, and dispatch_turn() reads the
 *   CPUs' gangs after the gates were written. So the CPU sees that the gate is shut, or dispatch_turn() sees
 *   the task's gang.
 * - A task of a shut gang is parked when it is enqueued, unless it is inside or exits. If a task of a shut
 *   gang is already queued, it is put onto a CPU in its turn, recognised there, and parked before it
 *   executes. A task that is inside continues, and is checked again at each tick.
 * - When gates are opened, the tasks parked behind them move to their units' queues, and CPUs are kicked for them.
 * - A task parked for BREATH_NS takes a breath. Otherwise the kernel would end the scheduler because a task
 *   has waited for too long.
 *
 * Properties.
 * - A parked task is not active, keeps no other task waiting, calls no CPU back, and is not late.
 * - A task belongs to its process's gang, and a new process to its parent's, from before its first instruction. A task that
 *   changes its unit leaves its gang.
 * - A parked task that is to exit is released when gates change, and at each later poll by the program that
 *   sets the gates.
 * - Without gangs, the verifier removes this code.
 *
 * Limits.
 * - A task that is inside runs until its system call ends, and up to a tick longer.
 * - A running process that joins a shut gang continues to the end of its slice.
 * - A task preempted within a page fault is not known to be inside.
 * - dispatch_turn() visits all parked tasks. It writes only fields for which a delay does no harm; the other
 *   fields of a task's state are written under the lock of the task's CPU. If a task's affinity changes
 *   during the visit, the task may be counted as waiting until it runs.
 */
#ifndef DISPATCH_GATES_H
#define DISPATCH_GATES_H

#define BREATH_NS 5000000000ull /* a sixth of the kernel's watchdog timeout */

/* Whether the gate of a task's gang is shut: the task must stop, at the latest when it is not inside any more. */
static bool is_shut(struct task_struct *p, const struct dispatch_task *task)
{
	return gated() && gate_is_shut(gang_of(p, task));
}

/* Whether a task is to be parked now: its gate is shut, and it neither is inside nor exits. */
static bool stays_out(struct task_struct *p, const struct dispatch_task *task)
{
	return is_shut(p, task) && !(task->state & DISPATCH_INSIDE) && !is_ending(p);
}

/* The current task stops, but is still runnable: records whether it is inside. A parked task, taking a breath, is not. */
static void note_inside(struct task_struct *p, struct dispatch_task *task)
{
	if (!gated() || task->state & DISPATCH_PARKED)
		return;
	task->state &= ~DISPATCH_INSIDE;
	if (gang_of(p, task) != DISPATCH_NOBODY && is_in_call(p))
		task->state |= DISPATCH_INSIDE;
}

/* The current task goes to sleep: records whether it will be inside when it wakes. */
static void note_sleep(const struct task_struct *p, struct dispatch_task *task)
{
	if (!gated())
		return;
	task->state &= ~DISPATCH_INSIDE;
	if (sleeps_deeply(p))
		task->state |= DISPATCH_INSIDE;
}

/* A task begins to run on a CPU: records its gang there. If its gate is shut, it is preempted at once. */
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
