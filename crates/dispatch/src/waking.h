/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The decisions when a task wakes: which virtual time the task gets, which idle CPU it takes, which loan it
 * calls back, and which task it preempts.
 */
#ifndef DISPATCH_WAKING_H
#define DISPATCH_WAKING_H

#define UNDISTURBED_NS 1000000ull /* a turn that no message within the unit preempts: the cost of a hundred switches */

/* Handles an event of a task under a discipline other than stride. Returns its new key. WOULD_COME changes nothing. */
static __attribute__((noinline)) u64 task_happens(const struct task_struct *p, struct dispatch_task *task,
						  struct dispatch_unit *unit, u32 event, u64 used)
{
	struct party party = {};

	party.key = task->vtime;
	party.mark = task->memory.mark;
	party.at = task->memory.at;
	party.weight = p->scx.weight ? p->scx.weight : 1;
	to_task(&party, unit->number, event, used);
	if (event == WOULD_COME)
		return party.key;
	task->vtime = party.key;
	task->memory.mark = party.mark;
	task->memory.at = party.at;
	count_numbers(among_tasks(unit->discipline), &unit->vtime, party.key);
	return party.key;
}

/*
 * The key with which a task waits in its unit's queue, under a discipline other than stride. While the unit is late, each task
 * is queued last, so that rescued tasks take turns, whatever the discipline.
 */
static u64 place_of(struct task_struct *p, struct dispatch_task *task, struct dispatch_unit *unit)
{
	u32 event = task->state & DISPATCH_WOKE ? COMES_AWAKE : COMES;

	task->state &= ~DISPATCH_WOKE;
	task_happens(p, task, unit, event, 0);
	if (takes_turns(unit))
		at_least(&task->vtime, unit->tasks.last + 1);
	at_least(&unit->tasks.last, task->vtime);
	return task->vtime;
}

/*
 * The key with which a task waits in its unit's queue. Under stride, the key is the task's virtual time, kept
 * within two bounds. The lower bound is the unit's clock less one slice: sleeping earns at most one slice of
 * credit. The upper bound, LEAD_MAX slices after the clock, keeps a task that had much CPU time for its nice
 * value from waiting too long.
 */
static u64 start_of(struct task_struct *p, struct dispatch_task *task, struct dispatch_unit *unit)
{
	u64 slice_ns = rules()->slice_ns;

	if (is_other(unit->discipline))
		return place_of(p, task, unit);
	let_clock_go_on(unit, task->since);
	stride_comes(&task->vtime, unit->vtime, slice_ns);
	if (before(unit->vtime + LEAD_MAX * slice_ns, task->vtime))
		task->vtime = unit->vtime + LEAD_MAX * slice_ns;
	return task->vtime;
}

/* The class of tasks whose turn it is on a CPU. A task that continues uses up its class's turn, too. */
enum turn {
	TURN_OWN,    /* tasks of the CPU's owner; on a time-shared CPU, of any unit */
	TURN_STRAYS, /* tasks that must run there */
	TURN_COMMON, /* tasks that run anywhere */
	TURNS,
};

/* Marks a lent CPU as called back: its owner's tasks come first. The caller has removed it from the owner's MASK_LENT. */
static void note_recall(struct dispatch_cpu *cpu, struct dispatch_unit *owner)
{
	add(&owner->away, -1);
	cpu->recalled = moment();
	cpu->turn = TURN_OWN;
}

/* Calls a lent CPU back: at once by an interrupt, or at its next tick, as the rules say. */
static void recall(struct dispatch_cpu *cpu, u32 id, struct dispatch_unit *owner)
{
	note_recall(cpu, owner);
	if (rules()->recall == DISPATCH_RECALL_NOW)
		scx_bpf_kick_cpu(id, SCX_KICK_PREEMPT);
}

/* Calls back the lent home CPU nearest to `last` that was not called back yet. Returns whether there was one. */
static bool call_back(struct task_struct *p, u32 top, u32 last)
{
	struct dispatch_unit *owner = unit_at(top);
	struct dispatch_cpu *cpu;
	u32 found;

	if (!owner || !owner->away)
		return false;
	/* Prefer the task's last CPU: it has warm caches, and if the task was woken there, no other CPU has to be interrupted. */
	found = may_run(p, last) && mask_take(top, MASK_LENT, last) ? last : mask_take_near(p, top, MASK_LENT, last);
	cpu = cpu_at(found);
	if (!cpu)
		return false; /* the lent CPU came back by itself between the two checks */
	recall(cpu, found, owner);
	return true;
}

/* Whether any task within an outermost unit waits. */
static bool waits_for_home(u32 home, const struct dispatch_unit *owner)
{
	if (owner->below)
		return next_unit(home, AMONG_HOME, NULL) != DISPATCH_NOBODY;
	return scx_bpf_dsq_nr_queued(home) > 0;
}

/* Whether a unit's tasks may run on any idle CPU. */
static bool runs_anywhere(u32 id, const struct dispatch_unit *unit)
{
	return id == DISPATCH_KERNEL || unit->flags & DISPATCH_ANYWHERE;
}

/* Claims an idle CPU that a task of this unit may use: its last one if possible, else the nearest. Negative: there is none. */
static s32 take_idle(struct task_struct *p, u32 id, const struct dispatch_unit *unit, s32 last)
{
	struct dispatch_cpu *cpu = cpu_at(last);
	s32 found;

	if (!any_idle())
		return -1; /* the usual case, in which no mask has to be searched */
	if (runs_anywhere(id, unit)) {
		if (cpu && may_run(p, last) && scx_bpf_test_and_clear_cpu_idle(last))
			return last;
		return pick_idle(p, DISPATCH_NOBODY, MASK_ALL, last);
	}
	if (cpu && (cpu->home == unit->top || cpu->home == DISPATCH_NOBODY) && may_run(p, last) &&
	    scx_bpf_test_and_clear_cpu_idle(last))
		return last;
	found = pick_idle(p, unit->top, MASK_HOMES, last);
	if (found < 0)
		found = pick_idle(p, DISPATCH_NOBODY, MASK_SHARED, last);
	if (found < 0 && unit->flags & DISPATCH_BORROWS) {
		if (cpu && may_run(p, last) && mask_test(DISPATCH_NOBODY, MASK_LENDABLE, last) &&
		    scx_bpf_test_and_clear_cpu_idle(last))
			return last;
		found = pick_idle(p, DISPATCH_NOBODY, MASK_LENDABLE, last);
	}
	return found;
}

/*
 * Whether the task of a CPU is so far ahead of a woken task, by more than `preempt_ns`, that the woken task preempts it.
 * Inlined into both callers: a call would cost each wake-up some thirty instructions.
 */
static inline __attribute__((always_inline)) bool is_ahead(const struct dispatch_task *task, const struct dispatch_unit *unit,
							   const struct dispatch_cpu *cpu)
{
	u64 ran = task->since - cpu->since, margin = rules()->preempt_ns, counted = cpu->occupied ? rules()->slice_ns : 0;
	struct competitor mine = { .weight = 1 }, its = { .weight = 1 };
	struct dispatch_unit *other = unit_at(cpu->runs);

	if ((s64)ran < 0)
		ran = 0; /* the clocks of two CPUs differ slightly */
	if (cpu->runs == task->unit && is_other(unit->discipline))
		return interrupts(unit->discipline, task->vtime, cpu->vtime, ran);
	if (cpu->runs == task->unit)
		return before(task->vtime + margin, cpu->vtime + ran);
	/* Passes do not apply to a guest, to kernel threads, which go first, or to a rescue. */
	if (!other || cpu->runs == DISPATCH_KERNEL || cpu->rescue == DISPATCH_RESCUE_RUNS)
		return false;
	if (cpu->home != DISPATCH_NOBODY && (cpu->home != unit->top || cpu->home != other->top))
		return false;
	meet(task->unit, cpu->runs, &mine, &its);
	if (disciplined() && (other = unit_at(mine.within)) && other->discipline != DISPATCH_STRIDE) {
		if (other->discipline == DISPATCH_LOTTERY)
			its.pass -= over_weight(counted, its.weight); /* the draw was decided by the keys as they were then */
		return interrupts(other->discipline, mine.pass, its.pass, ran);
	}
	/* The running task is counted as a whole slice (struct competitor): replace that by the time that it ran. */
	its.pass += over_weight(ran, its.weight) - over_weight(counted, its.weight);
	return before(mine.pass + over_weight(margin, mine.weight), its.pass);
}

/*
 * Some tasks cannot wait in their unit's queue, and wait in the queue of one CPU instead. Returns that CPU:
 * the CPU on which the task ran last or, if a higher class has that CPU, another CPU that the task may use.
 * The higher class may keep the CPU indefinitely, while other tasks depend on this task (for example, on an
 * unbound kernel thread such as RCU's).
 */
static __attribute__((noinline)) u32 where_it_may_wait(struct task_struct *p, u32 last)
{
	struct dispatch_cpu *cpu = cpu_at(last);
	u32 id;

	if (!cpu || !higher_has(cpu) || p->nr_cpus_allowed <= 1)
		return last;
	bpf_for(id, 0, rules()->cpus) {
		cpu = cpu_at(id);
		if (cpu && !higher_has(cpu) && may_run(p, id))
			return id;
	}
	return last;
}

/*
 * Preempts the task on the CPU on which a woken task ran last, if the running task is far enough ahead. It is
 * preempted now or, if a message from its own unit woke the other task, after UNDISTURBED_NS of its turn.
 */
static void outrank(const struct dispatch_task *task, const struct dispatch_unit *unit, u32 last)
{
	struct dispatch_cpu *cpu = cpu_at(last);

	if (!rules()->preempt_ns || !cpu || !is_ahead(task, unit, cpu))
		return;
	if (task->state & DISPATCH_TOLD && cpu->runs == task->unit &&
	    before(task->since, cpu->since + UNDISTURBED_NS))
		cpu->outranked = 1;
	else
		scx_bpf_kick_cpu(last, SCX_KICK_PREEMPT);
}

/*
 * Calls back the home CPU where a woken task ran last, if the CPU is lent and the task would be next there: no other task of
 * the owner waits. Returns whether it did so.
 */
static bool takes_back(struct task_struct *p, struct dispatch_task *task, const struct dispatch_unit *unit,
		       struct dispatch_cpu *cpu, u32 last)
{
	struct dispatch_unit *owner = unit_at(unit->top);

	if (!owner || !owner->away || rules()->recall != DISPATCH_RECALL_NOW || !comes_next(p, last) ||
	    waits_for_home(unit->top, owner) || !mask_take(unit->top, MASK_LENT, last))
		return false;
	note_recall(cpu, owner);
	task->cause = DISPATCH_WAIT_LOAN;
	return true;
}

/* Whether a woken task would be next on the time-shared CPU where it ran last. */
static bool takes_over(struct task_struct *p, const struct dispatch_task *task, const struct dispatch_unit *unit,
		       const struct dispatch_cpu *cpu, u32 last)
{
	u32 next;

	if (cpu->runs == task->unit || !rules()->preempt_ns || !comes_next(p, last) || waits_in(task->unit) ||
	    !is_ahead(task, unit, cpu))
		return false;
	next = next_unit(DISPATCH_NOBODY, AMONG_ALL, NULL);
	return next == DISPATCH_NOBODY || had_less(task->unit, next);
}

/*
 * Dispatches a woken task directly to this CPU, if it ran here last and would be next after an interrupt. That saves the
 * interrupt and the queue. Returns whether it did so.
 *
 * A task is dispatched directly to this CPU only: while an interrupt to another CPU is in flight, a third CPU
 * may become free. And never ahead of a kernel thread that is already dispatched here. If a higher class
 * takes the CPU first, the task is enqueued again.
 *
 * Not inlined, so that a task that wakes elsewhere pays nothing for this path.
 */
static __attribute__((noinline)) bool take_here(struct task_struct *p, struct dispatch_task *task, struct dispatch_unit *unit,
						u64 enq_flags)
{
	u32 id = scx_bpf_task_cpu(p);
	struct dispatch_cpu *cpu = cpu_at(id);

	if (!cpu)
		return false;
	if (cpu->home == unit->top ? !takes_back(p, task, unit, cpu, id) :
				     cpu->home != DISPATCH_NOBODY || !takes_over(p, task, unit, cpu, id))
		return false;
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, rules()->slice_ns, enq_flags | SCX_ENQ_PREEMPT | enq_immed());
	start_of(p, task, unit);
	return true;
}

#endif
