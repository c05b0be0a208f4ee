/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/* The functions of ../gates.h that read kernel structures. */
#ifndef DISPATCH_BPF_GATES_H
#define DISPATCH_BPF_GATES_H

SEC(".rodata.gated") const volatile u32 dispatch_gated; /* set before loading: the verifier removes the code that it disables */
SEC(".data.gates") u32 dispatch_gates[DISPATCH_GANGS_MAX]; /* 1: shut; the loader writes it */
u32 turns_of_all; /* written only for the barrier in dispatch_turn() */

static __always_inline bool gated(void)
{
	return dispatch_gated;
}

static __always_inline bool gate_is_shut(u32 gang)
{
	return gang < DISPATCH_GANGS_MAX && *(volatile u32 *)&dispatch_gates[masked(gang, DISPATCH_GANGS_MAX)];
}

static __always_inline u32 gang_of(struct task_struct *p, const struct dispatch_task *task)
{
	struct task_struct *leader = p->group_leader;
	struct dispatch_task *its;

	/* Kernel workers within a process may hold the same locks as kernel threads. */
	if (p->flags & (PF_IO_WORKER | PF_USER_WORKER))
		return DISPATCH_NOBODY;
	if (!leader || leader == p)
		return task->gang;
	its = task_of(leader);
	return its ? its->gang : DISPATCH_NOBODY;
}

/*
 * Whether a runnable task that ran until now is in a system call, or in an RCU read-side critical section. A task that was
 * preempted in user mode did not enter the kernel by a call. At entry, the kernel sets the result register to ENOSYS; a
 * finished call has replaced that. With preemptible RCU, a task counts its critical sections, of which this program is one.
 */
static bool is_in_call(struct task_struct *p)
{
	struct pt_regs *entry = (struct pt_regs *)bpf_task_pt_regs(p);

	if (bpf_core_field_exists(p->rcu_read_lock_nesting) && p->rcu_read_lock_nesting > 1)
		return true;
	if (bpf_core_field_exists(entry->orig_ax))
		return (s64)entry->orig_ax >= 0 && (s64)entry->ax == -ENOSYS;
	return bpf_core_field_exists(entry->syscallno) && entry->syscallno >= 0;
}

static __always_inline bool is_current(const struct task_struct *p)
{
	return bpf_get_current_task_btf() == p;
}

/* When a task was parked. */
static __always_inline u64 parked_since(const struct task_struct *p)
{
	return p->scx.dsq_vtime;
}

static __always_inline bool sleeps_deeply(const struct task_struct *p)
{
	return p->__state & TASK_UNINTERRUPTIBLE;
}

static __always_inline bool is_ending(const struct task_struct *p)
{
	return p->flags & PF_EXITING || p->pending.signal.sig[0] & SIGKILL_BIT;
}

#endif
