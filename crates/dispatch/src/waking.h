/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * What happens when a task wakes: where its virtual time begins, which idle CPU it takes, which loan it calls back,
 * and which task it interrupts.
 */
#ifndef DISPATCH_WAKING_H
#define DISPATCH_WAKING_H

#define UNDISTURBED_NS 1000000ull /* for so long no message interrupts a task of the same unit: the cost of a hundred switches */

/* Something happens to a task of a unit with another discipline than stride. Returns its key then. */
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
 * Where a task waits among those of its unit. While the unit is late, each comes last, so that those that are rescued take
 * turns, whatever the discipline says.
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
 * A task that slept starts where those are that it competes with, less one slice. So it runs soon, with at most one
 * slice of credit. A task that had much for its nice value starts not so far behind that it would wait for too long.
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

/* Whose turn it is at a CPU: a task that runs on has it as well. */
enum turn {
	TURN_OWN,    /* its owner's; of one that is time-shared, any unit's */
	TURN_STRAYS, /* of those that must run there */
	TURN_COMMON, /* of those that run anywhere */
	TURNS,
};

/* A lent CPU, which was taken out of its owner's mask of those, is on its way back: to the owner before anybody else. */
static void note_recall(struct dispatch_cpu *cpu, struct dispatch_unit *owner)
{
	add(&owner->away, -1);
	cpu->recalled = moment();
	cpu->turn = TURN_OWN;
}

/* And has to be told. */
static void recall(struct dispatch_cpu *cpu, u32 id, struct dispatch_unit *owner)
{
	note_recall(cpu, owner);
	if (rules()->recall == DISPATCH_RECALL_NOW)
		scx_bpf_kick_cpu(id, SCX_KICK_PREEMPT);
}

/* Calls one lent home CPU of an outermost unit back, if there is one that was not called yet: the nearest to `last`. */
static bool call_back(struct task_struct *p, u32 top, u32 last)
{
	struct dispatch_unit *owner = unit_at(top);
	struct dispatch_cpu *cpu;
	u32 found;

	if (!owner || !owner->away)
		return false;
	/* The one where it ran last needs no interrupt from elsewhere if that is where it was woken, and has its data. */
	found = may_run(p, last) && mask_take(top, MASK_LENT, last) ? last : mask_take_near(p, top, MASK_LENT, last);
	cpu = cpu_at(found);
	if (!cpu)
		return false; /* it came back by itself between the two looks */
	recall(cpu, found, owner);
	return true;
}

/* Whether a task of an outermost unit's, or of one within it, waits. */
static bool waits_for_home(u32 home, const struct dispatch_unit *owner)
{
	if (owner->below)
		return next_unit(home, AMONG_HOME, NULL) != DISPATCH_NOBODY;
	return scx_bpf_dsq_nr_queued(home) > 0;
}

/* Whether a unit's tasks may run on whatever CPU is idle. */
static bool runs_anywhere(u32 id, const struct dispatch_unit *unit)
{
	return id == DISPATCH_KERNEL || unit->flags & DISPATCH_ANYWHERE;
}

/* An idle CPU that a task of this unit may use, taken; its last one if that is one of them, else the nearest. */
static s32 take_idle(struct task_struct *p, u32 id, const struct dispatch_unit *unit, s32 last)
{
	struct dispatch_cpu *cpu = cpu_at(last);
	s32 found;

	if (!any_idle())
		return -1; /* mostly: then no set of CPUs has to be looked at */
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
 * Whether the task that a CPU runs is ahead of one that woke, by more than `preempt_ns`: then it has to go. A part of
 * both its callers: a call would cost each wake-up some thirty instructions.
 */
static inline __attribute__((always_inline)) bool is_ahead(const struct dispatch_task *task, const struct dispatch_unit *unit,
							   const struct dispatch_cpu *cpu)
{
	u64 ran = task->since - cpu->since, margin = rules()->preempt_ns, counted = cpu->occupied ? rules()->slice_ns : 0;
	struct competitor mine = { .weight = 1 }, its = { .weight = 1 };
	struct dispatch_unit *other = unit_at(cpu->runs);

	if ((s64)ran < 0)
		ran = 0; /* the clocks of two CPUs */
	if (cpu->runs == task->unit && is_other(unit->discipline))
		return interrupts(unit->discipline, task->vtime, cpu->vtime);
	if (cpu->runs == task->unit)
		return before(task->vtime + margin, cpu->vtime + ran);
	/* Passes say nothing of a guest, of the kernel's own threads, which go first, or of a turn that is out of turn. */
	if (!other || cpu->runs == DISPATCH_KERNEL || cpu->rescue == DISPATCH_RESCUE_RUNS)
		return false;
	if (cpu->home != DISPATCH_NOBODY && (cpu->home != unit->top || cpu->home != other->top))
		return false;
	meet(task->unit, cpu->runs, &mine, &its);
	if (disciplined() && (other = unit_at(mine.within)) && other->discipline != DISPATCH_STRIDE)
		return interrupts(other->discipline, mine.pass, its.pass);
	/* Of what runs there, not the slice that it counts as, but what it ran. */
	its.pass += over_weight(ran, its.weight) - over_weight(counted, its.weight);
	return before(mine.pass + over_weight(margin, mine.weight), its.pass);
}

/*
 * Where a task waits that cannot wait in its unit's queue: on its last CPU, unless a higher class has that one, for as
 * long as it likes, and others may wait for what the task does (unbound threads of the kernel's, RCU's for one): then
 * on another one.
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

/* The task that runs where the woken one ran last goes, if it is far enough ahead: at once, or when it has run for a while. */
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

/* Whether a task that woke may have the home CPU where it ran last in the guest's place: its unit's others do not wait. */
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

/* Whether a task that woke may have the time-shared CPU where it ran last: of all that wait, it would be next. */
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
 * Puts a task that woke right onto this CPU, if it ran there last and would be next there after an interrupt: without
 * one, and without a queue. Not onto another CPU: while that one's interrupt is on its way, a third may come free. Nor
 * before a thread of the kernel's that is on its way there. Should a higher class be before it, it comes to the
 * scheduler again.
 *
 * A function of its own, so that a task that wakes elsewhere pays nothing for it.
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
