/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Parts of the scheduler that only the kernel needs:
 * - initialisation and exit;
 * - tasks that change their control group, or execute a program;
 * - CPUs that fall idle while other CPUs enqueue tasks (the simulated kernel is sequential);
 * - the table of callbacks.
 */
#ifndef DISPATCH_BPF_OPS_H
#define DISPATCH_BPF_OPS_H

#define LOOKS_MAX  4u  /* polls by a CPU that fell idle, for tasks enqueued meanwhile */
#define TIMEOUT_MS 30000 /* the wait after which the watchdog ends this scheduler: the most that the kernel allows */

void BPF_STRUCT_OPS(dispatch_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct dispatch_task *task = task_of(p);
	u32 unit = unit_in(p, to);

	/* If both control groups belong to the same unit, the unit chosen at exec stays in force. */
	if (!task || (task->placed != DISPATCH_BY_CGROUP && unit == task->base))
		return;
	task->base = unit;
	task->destined = DISPATCH_NOBODY;
	task->placed = DISPATCH_BY_CGROUP;
	change_unit(task, unit);
}

/*
 * A task executes a program, perhaps as another user than before. Before the program's first instruction, the task moves to
 * the unit that the contract's rules select: see matches.h. Process 1 is in no unit.
 */
SEC("tp_btf/sched_process_exec") int BPF_PROG(dispatch_exec, struct task_struct *p, s32 before, struct linux_binprm *bprm)
{
	struct dispatch_task *task = task_of(p);
	struct dispatch_facts facts = {};
	struct dispatch_place found;
	u32 unit;

	if (!task || p->tgid == 1)
		return 0;
	read_facts(p, bprm, &facts);
	facts.heir = task->heir;
	found = place(&facts, task->base);
	task->placed = found.by;
	task->placed_at = scx_bpf_now();
	unit = task->destined == DISPATCH_NOBODY ? task->pays : task->destined;
	if (found.unit == unit)
		return 0;
	/*
	 * The task changes its unit when it next stops running, which the interrupt causes. Not here, where no lock excludes
	 * other callbacks on this CPU, or dispatch_cgroup_move() on another, that change the task.
	 */
	task->destined = found.unit;
	scx_bpf_kick_cpu(bpf_get_smp_processor_id(), SCX_KICK_PREEMPT);
	return 0;
}

/* Whether tasks of any unit among these wait, or are about to. */
VERIFIED_ALONE(bool) any_waits(u32 home, enum among among)
{
	u32 block, look, bits;
	struct dispatch_unit *unit;

	bpf_for(block, 0, (rules()->units + WAITS_BLOCK - 1) / WAITS_BLOCK) {
		bits = waiting(block);
		if (!bits)
			continue;
		bpf_for(look, 0, WAITS_BLOCK) {
			if (!bits)
				break;
			unit = unit_at(block * WAITS_BLOCK + lowest(bits));
			bits &= bits - 1;
			if (unit && is_among(unit, home, among))
				return true;
		}
	}
	return false;
}

/* Whether a task that this CPU should run may be waiting. */
static bool may_have_work(const struct dispatch_cpu *cpu)
{
	struct dispatch_unit *owner = unit_at(cpu->home);

	if (cpu->strays || !owner)
		return cpu->strays || any_waits(DISPATCH_NOBODY, AMONG_ALL);
	return waits_in(DISPATCH_COMMON) || any_waits(cpu->home, AMONG_HOME) ||
	       (owner->flags & DISPATCH_LENDS && any_waits(cpu->home, AMONG_BORROWERS));
}

/*
 * A CPU becomes idle or busy. If a task was enqueued after this CPU polled, but before the CPU was marked idle, no CPU was
 * woken for the task. So a CPU that becomes idle polls again. It does so more than once, since the kernel inserts a task into
 * its queue some time after the task was counted. It does so at most LOOKS_MAX times, since a counted task may be in flight to
 * another CPU.
 */
void BPF_STRUCT_OPS(dispatch_update_idle, s32 id, bool idle)
{
	struct dispatch_cpu *cpu = cpu_at(id);

	if (!cpu)
		return;
	cpu->since = scx_bpf_now(); /* until now, no higher class had the CPU: see note_higher() */
	if (!idle || cpu->looks >= LOOKS_MAX || !may_have_work(cpu))
		return;
	cpu->looks++;
	scx_bpf_kick_cpu(id, SCX_KICK_IDLE);
}

/*
 * A higher class has taken a CPU: its current or next task is enqueued again, and may run elsewhere. For newer kernels, see
 * enq_immed().
 */
void BPF_STRUCT_OPS(dispatch_cpu_release, s32 id, struct scx_cpu_release_args *args)
{
	if (bpf_ksym_exists(scx_bpf_reenqueue_local___before_7_1))
		scx_bpf_reenqueue_local___before_7_1();
}

/* A task leaves this scheduler: it ends, or changes its scheduling class, perhaps while it waits. */
void BPF_STRUCT_OPS(dispatch_disable, struct task_struct *p)
{
	struct dispatch_task *task = task_of(p);
	struct dispatch_unit *unit;

	if (!task)
		return;
	end_wait(task);
	unit = unit_at(task->unit);
	if (unit)
		uncount(task, unit);
}

/* Stores a new mask in a table, empty or with all CPUs. */
static s32 make_mask(void *table, u32 index, bool full)
{
	struct mask_slot *slot = bpf_map_lookup_elem(table, &index);
	struct bpf_cpumask *mask = bpf_cpumask_create();
	u32 cpu;

	if (!mask)
		return -ENOMEM;
	if (!slot) {
		bpf_cpumask_release(mask);
		return -ENOMEM;
	}
	if (full)
		bpf_for(cpu, 0, rules()->cpus)
			bpf_cpumask_set_cpu(cpu, mask);
	mask = bpf_kptr_xchg(&slot->set, mask);
	if (mask)
		bpf_cpumask_release(mask);
	return 0;
}

/* Adds a CPU to a group of near CPUs. The group is created when its first CPU is added. */
static s32 join_group(u32 group, u32 cpu)
{
	struct bpf_cpumask *mask;
	s32 error;

	if (group == DISPATCH_NOBODY)
		return 0;
	bpf_rcu_read_lock();
	mask = group_at(group);
	if (mask)
		bpf_cpumask_set_cpu(cpu, mask);
	bpf_rcu_read_unlock();
	if (mask)
		return 0;
	error = make_mask(&groups, group, false);
	if (error)
		return error;
	bpf_rcu_read_lock();
	mask = group_at(group);
	if (mask)
		bpf_cpumask_set_cpu(cpu, mask);
	bpf_rcu_read_unlock();
	return 0;
}

static s32 make_groups(struct dispatch_cpu *cpu, u32 id)
{
	s32 error = make_mask(&scratches, id, false);

	if (!error)
		error = join_group(cpu->cache, id);
	if (!error)
		error = join_group(cpu->node, id);
	if (!error)
		error = join_group(cpu->socket, id);
	return error;
}

static s32 make_unit(u32 id)
{
	s32 error = scx_bpf_create_dsq(id, SCX_ANY_NODE);

	if (!error)
		error = make_mask(&masks, 2 * id + MASK_HOMES, false);
	if (!error)
		error = make_mask(&masks, 2 * id + MASK_LENT, false);
	return error;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(dispatch_init)
{
	struct dispatch_cpu *cpu;
	s32 error;
	u32 id;

	bpf_for(id, 0, rules()->cpus) {
		cpu = cpu_at(id);
		if (!cpu)
			break;
		error = make_groups(cpu, id);
		if (!error)
			error = scx_bpf_create_dsq(QUEUE_OF_CPU + id, SCX_ANY_NODE);
		if (error)
			return error;
	}
	bpf_for(id, 0, rules()->units) {
		error = make_unit(id);
		if (error)
			return error;
	}
	error = scx_bpf_create_dsq(QUEUE_OF_GATES, SCX_ANY_NODE);
	if (error)
		return error;
	error = make_mask(&masks, 2 * MACHINE + MASK_SHARED, true);
	if (!error)
		error = make_mask(&masks, 2 * MACHINE + MASK_LENDABLE, false);
	return error;
}

void BPF_STRUCT_OPS(dispatch_exit, struct scx_exit_info *info)
{
	bpf_probe_read_kernel_str(dispatch_end.reason, sizeof(dispatch_end.reason), info->reason);
	bpf_probe_read_kernel_str(dispatch_end.message, sizeof(dispatch_end.message), info->msg);
	dispatch_end.code = info->exit_code;
	barrier();
	dispatch_end.kind = info->kind;
}

/*
 * The loader calls the following programs through BPF_PROG_TEST_RUN, with the struct as the context. This one is
 * dispatch_own().
 */
SEC("syscall") int dispatch_own_cpu(struct dispatch_owned *owned)
{
	int result;

	bpf_rcu_read_lock();
	result = dispatch_own(owned);
	bpf_rcu_read_unlock();
	return result;
}

/* Sets a thread's seat: in the pool of a CPU, or with DISPATCH_NOBODY none. */
SEC("syscall") int dispatch_seat(struct dispatch_seated *seated)
{
	struct dispatch_seated own = *seated;
	struct dispatch_task *task;
	struct task_struct *p = task_from(own.thread);

	if (!p)
		return 0; /* it has exited */
	task = task_of(p);
	if (task)
		task->seat = own.cpu;
	bpf_task_release(p);
	return 0;
}

/*
 * Puts a thread into a unit other than that of its control group, which has threads of several units. settle() moves the thread
 * when it next wakes or stops; a running thread is preempted for that. Its children inherit the unit.
 */
SEC("syscall") int dispatch_put_thread(struct dispatch_put *put)
{
	struct dispatch_put own = *put;
	struct dispatch_task *task;
	struct task_struct *p = task_from(own.thread);
	u32 unit;

	if (!p)
		return 0; /* it has exited */
	task = task_of(p);
	if (task && unit_at(own.unit)) {
		task->base = own.unit;
		task->placed = DISPATCH_BY_DAEMON;
		unit = task->destined == DISPATCH_NOBODY ? task->pays : task->destined;
		if (unit != own.unit) {
			task->destined = own.unit;
			if (task->cpu != DISPATCH_NOBODY)
				scx_bpf_kick_cpu(task->cpu, SCX_KICK_PREEMPT);
		}
	}
	bpf_task_release(p);
	return 0;
}

/* Sets the gang of a process; DISPATCH_NOBODY: none. */
SEC("syscall") int dispatch_join(struct dispatch_joined *joined)
{
	struct dispatch_joined own = *joined;
	struct dispatch_task *task;
	struct task_struct *p = task_from(own.process);

	if (!p)
		return 0; /* it has exited */
	task = task_of(p);
	if (task)
		task->gang = own.gang;
	bpf_task_release(p);
	return 0;
}

/* Applies gates that the loader has written: see gates.h. The swap is a barrier between these writes and the reads here. */
SEC("syscall") int dispatch_turn(struct dispatch_turned *turned)
{
	swap32(&turns_of_all, 1);
	bpf_rcu_read_lock();
	turn_gates();
	bpf_rcu_read_unlock();
	return 0;
}

/* dispatch_set_unit() for the loader. */
SEC("syscall") int dispatch_set_unit_from_outside(struct dispatch_setting *setting)
{
	struct dispatch_setting own = *setting; /* for the verifier, an instruction accesses a context or other memory, not both */
	int result;

	bpf_rcu_read_lock();
	result = dispatch_set_unit(&own);
	bpf_rcu_read_unlock();
	return result;
}

#define CALLBACKS \
	.select_cpu = (void *)dispatch_select_cpu, \
	.enqueue = (void *)dispatch_enqueue, \
	.dispatch = (void *)dispatch_dispatch, \
	.running = (void *)dispatch_running, \
	.stopping = (void *)dispatch_stopping, \
	.tick = (void *)dispatch_tick, \
	.update_idle = (void *)dispatch_update_idle, \
	.init_task = (void *)dispatch_init_task, \
	.disable = (void *)dispatch_disable, \
	.cgroup_move = (void *)dispatch_cgroup_move, \
	.init = (void *)dispatch_init, \
	.exit = (void *)dispatch_exit,

/*
 * ENQ_EXITING and ENQ_MIGRATION_DISABLED: without these flags, the kernel itself inserts exiting tasks, and tasks with migration
 * disabled, into their last CPU's local queue, which goes first. Such a task, preempted by a call-back, would be chosen again
 * at once, be preempted again, and so on.
 */
SEC(".struct_ops.link") struct sched_ext_ops commonhold = {
	CALLBACKS
	.flags = SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_EXITING | SCX_OPS_ENQ_MIGRATION_DISABLED | SCX_OPS_KEEP_BUILTIN_IDLE,
	.timeout_ms = TIMEOUT_MS,
	.name = "commonhold",
};

/* For kernels without SCX_ENQ_IMMED. */
SEC(".struct_ops.link") struct sched_ext_ops commonhold_before_7_1 = {
	CALLBACKS
	.cpu_release = (void *)dispatch_cpu_release,
	.flags = SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_EXITING | SCX_OPS_ENQ_MIGRATION_DISABLED | SCX_OPS_KEEP_BUILTIN_IDLE,
	.timeout_ms = TIMEOUT_MS,
	.name = "commonhold",
};

/* For kernels without SCX_ENQ_IMMED and without SCX_OPS_ENQ_MIGRATION_DISABLED. */
SEC(".struct_ops.link") struct sched_ext_ops commonhold_before_6_14 = {
	CALLBACKS
	.cpu_release = (void *)dispatch_cpu_release,
	.flags = SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_EXITING | SCX_OPS_KEEP_BUILTIN_IDLE,
	.timeout_ms = TIMEOUT_MS,
	.name = "commonhold",
};

#endif
