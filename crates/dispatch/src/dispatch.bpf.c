/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The switch-time scheduler. It decides which task a CPU runs next, which CPU a woken task takes, and which loan is
 * called back.
 *
 * Problem. The policy decides a few times a second which unit owns which CPU. But a thousand times as often,
 * an owner gets work for its CPU or has no more work for it. So lending an idle CPU, and calling it back, is
 * decided here, at every wake-up and switch.
 *
 * Terms.
 * - Units lie within units. The *outermost* units own CPUs, their *home* CPUs.
 * - A CPU is *lent* while it runs a task of a unit that does not own the CPU. A lent CPU is *called back*
 *   when a task of its owner waits.
 * - A CPU without an owner is *time-shared*.
 * - A unit's *pass* is the CPU time that the unit used, divided by its weight. Only the passes of siblings
 *   are compared. A unit's own tasks together compete with its sub-units as if they were one more sub-unit,
 *   of weight 100.
 * - A *message* is a wake-up by a task that is about to sleep.
 *
 * Algorithm, order in a queue. Each unit has one queue, ordered by the tasks' virtual time: CPU time over the
 * task's weight, which follows from its nice value. The task with the least virtual time is next. This
 * replaces the degrading priorities of seed 000, section 3.1.
 *
 * Algorithm, wake-up. A woken task takes the first available of:
 * - an idle home CPU of its unit: if possible the CPU on which the task ran last, else the home CPU nearest
 *   to that;
 * - an idle CPU that another unit lends;
 * - a position in its unit's queue. One lent home CPU of the unit is then called back: if possible the CPU on
 *   which the task ran last, else the lent one nearest to that. The call-back comes immediately by an
 *   interrupt, or at the next tick.
 *
 * A task may be woken by an interrupt on the CPU on which it ran last, for example by its timer. If it would be
 * next on that CPU, it is dispatched directly to that CPU instead.
 *
 * Algorithm, preemption. If the unit has no lent CPU, a woken task may preempt the task that runs on the CPU
 * on which the woken task ran last. It does so if the running task is ahead by more than `preempt_ns`. Two
 * tasks of one unit are compared by virtual time, tasks of two units by the units' passes. If a message wakes
 * a task of the running task's unit, the running task is not preempted in the first millisecond of its turn;
 * a tick does so afterwards. Otherwise each message would cause two switches, which would cost more than the
 * message.
 *
 * Algorithm, choice. A CPU that needs a task considers the units with waiting tasks within its home unit. At
 * every level of the tree, the unit with the smallest pass is next (stride scheduling). For each CPU that
 * runs a unit's tasks, one slice is added to the unit's pass in this comparison, since the time of the
 * present turn is not charged yet. An idle unit's share thus goes to its siblings, as in the currencies of
 * seed 004, section 5.2. If no unit there has a waiting task, and the owner lends, the borrower with the
 * largest claim is next: the borrower that has used the least lent CPU time for its weight (stride
 * scheduling, too). Claims cover only the last few slices. What each unit lent and borrowed over minutes is
 * recorded by the policy, which passes it on as a credit. Ties go to the borrower with the most waiting
 * tasks. On a time-shared CPU, all units of the machine are compared by pass.
 *
 * Algorithm, gangs. The tasks of a gang with a shut gate wait in a queue of their own: see gates.h.
 *
 * Algorithm, seats. Tasks of units with jobs may have seats in pools of CPUs, which they prefer: see seats.h.
 *
 * Properties of isolation.
 * - While tasks of an owner wait, no task of another unit runs on the owner's CPU for longer than a call-back
 *   takes.
 * - The CPUs of a unit that does not lend run no other unit's tasks, except visits: turns of tasks that run anywhere,
 *   of tasks that can run nowhere else, and of tasks that have waited for too long.
 * - Work-conserving: no CPU idles while a task that may run there waits. That includes a task that a higher scheduling
 *   class preempted.
 *
 * Properties of sleep. Sleeping earns at most one slice of credit. A waking task's virtual time is set to at
 * least the unit's virtual time less `slice_ns`. A waking unit's pass is set to at least the pass of the
 * siblings that were chosen lately, less one slice, and less two slices of these siblings for each other CPU:
 * the passes of these siblings may differ among themselves by that amount.
 *
 * Properties of waiting.
 * - No starvation: a waiting task's virtual time does not change, while that of every running task grows. The
 *   same holds at every level for the passes of waiting and running units. So after a bounded time the
 *   waiting task's virtual time and its unit's pass are the smallest.
 * - No task waits so long that the kernel's watchdog ends the scheduler. The policy gives no unit less than a
 *   thousandth of its level's time. A unit that holds a part of a CPU waits for its turn for at most 5 s, where turns
 *   of 10 ms are short enough for that. Tasks that still wait too long are rescued: see rescue.h.
 * - Some tasks wait in the queue of a single CPU, which alternates between them, its owner's tasks and those of
 *   DISPATCH_COMMON. These are the strays, whose affinity allows none of their unit's CPUs; kernel threads, except when
 *   they wake; and tasks with migration disabled, since other tasks may wait for these.
 *
 * Limits.
 * - A higher scheduling class may take a CPU while a task waits in that CPU's queue. If the task may run on other CPUs,
 *   the first of them to poll that queue takes it. Each polls once a second (rescue.h), and an idle one after it has run
 *   something. A task that may run on no other CPU waits until the higher class releases it, unless the kernel reserves
 *   some time for this class (newer kernels do).
 * - The next unit is found by a linear search among the units with waiting tasks. Units without waiting tasks
 *   are skipped in blocks of 32.
 * - Weights, and counters that several CPUs write, are atomic. Each account is written by one CPU only. An
 *   exception is the moment when a CPU changes its owner: then an interval of time may be booked twice.
 *
 * The same source is compiled for the kernel (BPF, sched_ext), and natively for the simulator, which plays the kernel.
 * Sources: seed 000, section 3.1 and table 1; seed 004, section 5.2; stride scheduling: Waldspurger and Weihl, 1995.
 */
#include "kernel.h"
#include "intf.h"
#include "world.h"
#include "rescue.h"
#include "discipline/discipline.h"
#include "tree.h"
#include "choice.h"
#include "waking.h"
#include "seats.h"
#include "gates.h"
#include "waits.h"
#include "accounts.h"

char _license[] SEC("license") = "Dual MIT/GPL";

#define HELD_NS    500000ull /* slice of a task with migration disabled: such sections take microseconds */
#define PLACED_NS  5000000000ull /* how long a unit chosen at exec holds without the daemon's confirmation: many of its polls */

/*
 * Sets whether a task counts as waiting. Returns whether that is a change. Where there may be gangs, the update is atomic:
 * another CPU may release a parked task.
 */
static bool set_waits(struct dispatch_task *task, bool waits)
{
	if (gated())
		return swap32(&task->waits, waits) != waits;
	if (!(task->state & DISPATCH_WAITS) == !waits)
		return false;
	task->state ^= DISPATCH_WAITS;
	return true;
}

/* A task counts as waiting in its unit's queue from before it is inserted there until it runs. */
static void begin_wait(struct dispatch_task *task)
{
	if (set_waits(task, true)) {
		note_wait_begins(task);
		waits_add(task->unit, 1);
	}
}

static void end_wait(struct dispatch_task *task)
{
	struct dispatch_cpu *cpu;

	if (task->state & DISPATCH_AT_CPU && (cpu = cpu_at(task->at))) {
		task->state &= ~DISPATCH_AT_CPU;
		add(&cpu->strays, -1);
	}
	if (set_waits(task, false)) {
		note_wait_ends(task);
		waits_add(task->unit, -1);
	}
}

/* Puts a task into the queue of the one CPU where it must run. That CPU takes turns between this queue and others. */
static void wait_at(struct task_struct *p, struct dispatch_task *task, u32 id, u64 slice_ns, u64 enq_flags)
{
	struct dispatch_cpu *cpu = cpu_at(id);

	end_wait(task);
	if (cpu) {
		task->state |= DISPATCH_AT_CPU;
		task->at = id;
		add(&cpu->strays, 1);
	}
	scx_bpf_dsq_insert(p, QUEUE_OF_CPU + id, slice_ns, enq_flags);
	scx_bpf_kick_cpu(id, SCX_KICK_IDLE);
}

/* Moves a task to another unit. It must neither run nor be queued during the call. */
static void change_unit(struct dispatch_task *task, u32 id)
{
	struct dispatch_unit *from = unit_at(task->unit), *to = unit_at(id);
	bool counted = task->state & DISPATCH_COUNTED;

	if (!from || !to)
		return;
	if (task->pays != id)
		task->gang = DISPATCH_NOBODY;
	task->pays = id;
	id = orders(id, to);
	if (task->unit == id || !(to = unit_at(id)))
		return;
	end_wait(task);
	uncount(task, from);
	task->unit = id;
	if (is_other(from->discipline) || is_other(to->discipline)) {
		task->vtime = to->vtime; /* keys of two disciplines are not comparable: it starts at the new unit's clock */
		task->memory = (struct dispatch_memory){};
	} else {
		task->vtime += to->vtime - from->vtime; /* keeps its distance from its unit's clock */
	}
	if (counted)
		count(task, to);
}

/*
 * Moves a task to the unit chosen when it executed a program: see dispatch_exec(). The daemon confirms the choice by moving
 * the task into the unit's control group, or by setting the task's unit (dispatch_put_thread()). If the daemon does neither
 * within PLACED_NS, it has decided otherwise, and the unit of the control group applies again.
 */
static void settle(struct dispatch_task *task)
{
	u32 unit = task->destined;

	if (unit == DISPATCH_NOBODY) {
		if (task->placed == DISPATCH_BY_CGROUP || task->placed == DISPATCH_BY_DAEMON ||
		    before(scx_bpf_now(), task->placed_at + PLACED_NS))
			return;
		unit = task->base;
		task->placed = DISPATCH_BY_CGROUP;
	}
	task->destined = DISPATCH_NOBODY;
	change_unit(task, unit);
}

s32 BPF_STRUCT_OPS(dispatch_select_cpu, struct task_struct *p, s32 last, u64 wake_flags)
{
	struct dispatch_task *task = task_of(p);
	struct dispatch_unit *unit;
	s32 cpu;

	if (!task)
		return last;
	settle(task);
	if (!(unit = unit_at(task->unit)) || stays_out(p, task))
		return last;
	cpu = take_idle(p, task->unit, unit, near_to(task, last));
	if (cpu < 0) {
		task->state &= ~DISPATCH_TOLD;
		if (wake_flags & SCX_WAKE_SYNC)
			task->state |= DISPATCH_TOLD;
		return task->unit == DISPATCH_KERNEL ? (s32)where_it_may_wait(p, last) : last;
	}
	count(task, unit);
	task->since = moment();
	start_of(p, task, unit);
	task->cause = DISPATCH_WAIT_OWN;
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, rules()->slice_ns, enq_immed());
	return cpu;
}

/*
 * Whether a task runs on this CPU because the CPU's owner lends it. A task that runs anywhere, or can run nowhere else, is no
 * guest: after a call-back it would run again immediately, be called back again, and make no progress. (The caller excludes
 * rescued tasks: see rescue.h.)
 */
static bool is_guest(const struct dispatch_cpu *cpu, const struct dispatch_task *task, const struct dispatch_unit *unit)
{
	return cpu->home != DISPATCH_NOBODY && cpu->home != unit->top && !runs_anywhere(task->unit, unit) &&
	       !(task->state & (DISPATCH_STRAY | DISPATCH_HELD));
}

/* Whether a task can be served from its unit's queue: its affinity includes a CPU that polls the queue. */
static bool fits_queue(struct task_struct *p, u32 id, const struct dispatch_unit *unit)
{
	if ((u32)p->nr_cpus_allowed >= rules()->cpus || unit->flags & DISPATCH_ANYWHERE)
		return true;
	return mask_meets(unit->top, MASK_HOMES, p) || mask_meets(DISPATCH_NOBODY, MASK_SHARED, p);
}

/* Parks a task of a shut gang, which then neither waits nor is active until the gate opens. Returns whether it was parked. */
static bool park(struct task_struct *p, struct dispatch_task *task, struct dispatch_unit *unit, u64 enq_flags)
{
	if (gated() && !(enq_flags & SCX_ENQ_WAKEUP) && is_current(p))
		note_inside(p, task);
	if (!stays_out(p, task) || is_held_here(p, enq_flags)) {
		task->state &= ~DISPATCH_PARKED;
		return false;
	}
	end_wait(task);
	uncount(task, unit);
	task->since = 0;
	task->state |= DISPATCH_PARKED;
	scx_bpf_dsq_insert_vtime(p, QUEUE_OF_GATES, rules()->slice_ns, scx_bpf_now(), enq_flags);
	return true;
}

void BPF_STRUCT_OPS(dispatch_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct dispatch_task *task = task_of(p);
	struct dispatch_account *account;
	struct dispatch_unit *unit;
	s32 cpu, last = scx_bpf_task_cpu(p);

	if (task)
		settle(task);
	if (!task || !(unit = unit_at(task->unit))) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, rules()->slice_ns, enq_flags);
		return;
	}
	if (gated() && park(p, task, unit, enq_flags))
		return;
	count(task, unit);
	task->since = moment();
	task->cause = DISPATCH_WAIT_OWN;
	/*
	 * A waking kernel thread preempts the task of its CPU. One whose slice ended does not: it would never let others run. A
	 * thread that may run on several CPUs is enqueued again if it cannot run at once.
	 */
	if (task->unit == DISPATCH_KERNEL) {
		if (enq_flags & SCX_ENQ_WAKEUP)
			scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, rules()->slice_ns,
					   enq_flags | SCX_ENQ_PREEMPT | (p->nr_cpus_allowed > 1 ? enq_immed() : 0));
		else
			wait_at(p, task, is_held_here(p, enq_flags) ? (u32)last : where_it_may_wait(p, last), rules()->slice_ns,
				enq_flags);
		return;
	}
	task->state &= ~(DISPATCH_STRAY | DISPATCH_HELD);
	/*
	 * The task has migration disabled, and other tasks may wait for it: it gets a turn on its CPU. Its slice is as short as
	 * such sections usually are.
	 */
	if (is_held_here(p, enq_flags)) {
		task->state |= DISPATCH_HELD;
		wait_at(p, task, last, HELD_NS < rules()->slice_ns ? HELD_NS : rules()->slice_ns, enq_flags);
		return;
	}
	if (!fits_queue(p, task->unit, unit)) {
		task->state |= DISPATCH_STRAY;
		if ((account = account_at(payer(task), last)))
			account->strays++;
		wait_at(p, task, where_it_may_wait(p, last), rules()->slice_ns, enq_flags);
		return;
	}
	if (seated() && !(enq_flags & SCX_ENQ_WAKEUP) && goes_to_seat(p, task, unit, last, enq_flags))
		return;
	/*
	 * Not for a message: its sender, on this CPU, is about to sleep. Nor for a task that may use only one CPU: the kernel
	 * does not call select_cpu() for it, which notes messages.
	 */
	if (p->nr_cpus_allowed > 1 && enq_flags & SCX_ENQ_WAKEUP && !(task->state & DISPATCH_TOLD) &&
	    bpf_get_smp_processor_id() == (u32)last && take_here(p, task, unit, enq_flags))
		return;
	begin_wait(task);
	scx_bpf_dsq_insert_vtime(p, task->unit, rules()->slice_ns, start_of(p, task, unit), enq_flags);
	/* A CPU that polled before the task was queued may have gone idle: it must poll again. */
	cpu = take_idle(p, task->unit, unit, near_to(task, last));
	if (cpu >= 0) {
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		return;
	}
	if (call_back(p, unit->top, near_to(task, last)))
		task->cause = DISPATCH_WAIT_LOAN;
	else if (enq_flags & SCX_ENQ_WAKEUP)
		outrank(task, unit, last);
	task->state &= ~DISPATCH_TOLD;
}

/* CPU time as virtual time: over the weight of the task's nice value. */
static u64 of_weight(u64 used, const struct task_struct *p)
{
	return over_weight(used, p->scx.weight);
}

/* Charges a task and its unit for CPU time since the last charge. It is booked later, once a slice: see book(). */
static void charge(struct task_struct *p, struct dispatch_cpu *cpu, struct dispatch_task *task, struct dispatch_unit *unit)
{
	u64 now = scx_bpf_now(), used = now - cpu->since;
	struct dispatch_unit *top;

	cpu->since = now;
	if (is_other(unit->discipline))
		task_happens(p, task, unit, RAN, used);
	else
		task->vtime += of_weight(used, p) * pace(unit);
	cpu->vtime = task->vtime;
	advance(unit, cpu->home == DISPATCH_NOBODY, used);
	if (cpu->on_loan && (top = unit_at(unit->top)))
		advance_loan(top, used);
}

/*
 * A task of a unit is dispatched in turn: advances the clocks by which the unit's siblings, and those of its ancestors, are
 * placed when they wake. The clocks follow the passes of the unit and of its ancestors. Not called for a task that runs out
 * of turn (a kernel thread, one pinned here, one rescued, one that continues after a higher class): its unit's pass may be far
 * ahead of those of all units that wait.
 */
static void advance_clocks(struct dispatch_unit *unit, bool time_shared)
{
	u64 slice;
	u32 level;

	if (unit->below) {
		slice = over_weight(rules()->slice_ns, OWN_WEIGHT);
		if (is_other(unit->discipline)) {
			if (!has_numbers(unit->discipline))
				at_least(&unit->frontier, unit->own_pass);
			to_own_tasks(unit->number, GOES_ON, 0);
		} else {
			at_least(&unit->own_pass, unit->frontier - slice);
			at_least(&unit->frontier, unit->own_pass - 2 * (rules()->cpus - 1) * slice);
		}
	}
	if (!(unit = advance_clock_around(unit, time_shared)))
		return;
	bpf_for(level, 1, DISPATCH_DEPTH_MAX)
		if (!(unit = advance_clock_around(unit, time_shared)))
			break;
}

/* A slice begins: advances the clock by which the unit's waking tasks are placed at least to the virtual time of this task. */
static void advance_clock_within(const struct dispatch_task *task, struct dispatch_unit *unit)
{
	if (!is_other(unit->discipline) || !has_numbers(unit->discipline))
		at_least(&unit->vtime, task->vtime);
}

/*
 * Renews the slice of a CPU's task whose slice has ended while no task with a better claim waits. The new slice advances the
 * clocks like any other. Otherwise, after a long time alone on the CPU, the task would have to wait as long for the first task
 * that wakes.
 */
static void run_on(struct task_struct *prev, struct dispatch_cpu *cpu, u32 id, struct dispatch_task *task)
{
	struct dispatch_unit *unit;

	if (!task || !(prev->scx.flags & SCX_TASK_QUEUED))
		return;
	unit = unit_at(task->unit);
	if (unit) {
		book(cpu, id, unit, cpu->since);
		if (is_other(unit->discipline))
			task_happens(prev, task, unit, GOES_ON, 0);
		advance_clock_within(task, unit);
		if (task->unit != DISPATCH_KERNEL && !(task->state & (DISPATCH_STRAY | DISPATCH_HELD)))
			advance_clocks(unit, cpu->home == DISPATCH_NOBODY);
	}
	if ((unit = unit_at(cpu->runs)))
		occupy(cpu, unit);
	cpu->outranked = 0;
	note_seat(cpu, task);
	note_gang(prev, task, cpu, id);
	set_slice(prev, unit ? slice_of(unit) : rules()->slice_ns);
}

/* The previous task of a CPU, at home or as a guest, if it is still runnable: a candidate to continue. */
struct incumbent {
	u32 unit;   /* DISPATCH_NOBODY: no such task */
	u32 weight; /* of its nice value; 0, which no task has, under a discipline other than stride */
	u64 after;  /* its virtual time after another slice; under other disciplines, the key that it would wait with */
};

static struct incumbent as_incumbent(struct dispatch_task *task, struct dispatch_unit *unit, const struct task_struct *p)
{
	if (is_other(unit->discipline))
		return (struct incumbent){ .unit = task->unit, .after = task_happens(p, task, unit, WOULD_COME, 0) };
	return (struct incumbent){
		.unit = task->unit,
		.weight = p->scx.weight,
		.after = task->vtime + of_weight(rules()->slice_ns, p),
	};
}

/* Whether the unit of `incumbent` precedes `next`, a unit with waiting tasks. */
static bool keeps(const struct incumbent *incumbent, u32 next, enum among among)
{
	struct dispatch_unit *unit, *other;

	if (among != AMONG_BORROWERS)
		return had_less(incumbent->unit, next);
	unit = unit_at(incumbent->unit);
	other = unit_at(next);
	return unit && other && goes_before(incumbent->unit, unit, next, other->top, among);
}

/*
 * Whether `incumbent` continues instead of the first task of its own queue. Tasks of the same nice value take turns. With
 * different nice values, `incumbent` continues if its virtual time would still be less after another slice: by strict
 * alternation, both tasks would get the same CPU time.
 */
static bool goes_on(u64 queue, const struct incumbent *incumbent)
{
	u64 vtime;
	u32 weight;

	return first_in(queue, &vtime, &weight) && weight != incumbent->weight && !before(vtime, incumbent->after);
}

/* Moves the first task of the next unit to this CPU, unless `incumbent` is next. Returns whether a task was moved. */
static bool take_next(u32 id, u32 home, enum among among, const struct incumbent *incumbent)
{
	struct tried tried = { { DISPATCH_NOBODY, DISPATCH_NOBODY, DISPATCH_NOBODY, DISPATCH_NOBODY } };
	u32 look, next;

	for (look = 0; look < RACES_MAX; look++) {
		next = next_unit(home, among, &tried);
		if (next == DISPATCH_NOBODY)
			break;
		/*
		 * The previous task is in no queue, so next_unit() did not consider it: it continues if it precedes those that
		 * wait.
		 */
		if (incumbent->unit != DISPATCH_NOBODY &&
		    (incumbent->unit == next ? goes_on(next, incumbent) : keeps(incumbent, next, among)))
			break;
		if (take_from(next, id, incumbent->unit != DISPATCH_NOBODY))
			return true;
		tried.unit[look] = next;
	}
	return false;
}

/* A home CPU begins to run another unit's task: its owner may call it back. */
static void lend(struct dispatch_cpu *cpu, u32 id, struct dispatch_unit *owner)
{
	cpu->recalled = 0;
	cpu->on_loan = 1;
	mask_set(cpu->home, MASK_LENT, id);
	add(&owner->away, 1);
}

/* Chooses the next task of a CPU whose owner has no task for it: lends the CPU, or leaves it idle. */
static void dispatch_lent(u32 id, struct dispatch_cpu *cpu, struct task_struct *prev, struct dispatch_task *task)
{
	struct dispatch_unit *owner = unit_at(cpu->home), *unit;
	struct incumbent incumbent = { .unit = DISPATCH_NOBODY };
	bool borrows = task && prev->scx.flags & SCX_TASK_QUEUED && (unit = unit_at(task->unit)) &&
		       unit->flags & DISPATCH_BORROWS;

	if (cpu->recalled && owner && waits_for_home(cpu->home, owner))
		cpu->in_vain = moment(); /* no waiting task may run here */
	cpu->recalled = 0; /* the call-back has ended: the task that called the CPU back does not wait for it any more */
	if (!owner || !(owner->flags & DISPATCH_LENDS))
		return; /* the previous task, if it is a guest, returns to its unit's queue */
	if (borrows)
		incumbent = as_incumbent(task, unit, prev);
	if (take_next(id, cpu->home, AMONG_BORROWERS, &incumbent))
		return;
	if (borrows) {
		/* The CPU was called back, or changed its owner: it is lent again, and may be called back again. */
		if (!mask_test(cpu->home, MASK_LENT, id))
			lend(cpu, id, owner);
		if ((unit = unit_at(unit->top)))
			world_loan_pass_at_least(unit->loan_pass);
		run_on(prev, cpu, id, task);
	}
}

/* Moves the next task of the CPU's owner to the CPU, unless `incumbent` is next. Returns whether a task was moved. */
static bool take_home(u32 id, const struct dispatch_cpu *cpu, const struct incumbent *incumbent)
{
	struct dispatch_unit *owner = unit_at(cpu->home);

	if (owner && owner->below)
		return take_next(id, cpu->home, AMONG_HOME, incumbent);
	if (incumbent->unit != DISPATCH_NOBODY && goes_on(cpu->home, incumbent))
		return false;
	return take_from(cpu->home, id, incumbent->unit != DISPATCH_NOBODY);
}

/* Moves the first task of DISPATCH_COMMON to this CPU, if that unit runs anywhere. Returns whether a task was moved. */
static bool take_common(void)
{
	struct dispatch_unit *common = unit_at(DISPATCH_COMMON);

	if (!waits_in(DISPATCH_COMMON) || !common || !(common->flags & DISPATCH_ANYWHERE))
		return false;
	return scx_bpf_dsq_move_to_local(DISPATCH_COMMON);
}

/* The turn that follows in rotation. Without `%`, which would be a division in BPF. */
static u32 after(u32 turn)
{
	return turn + 1 < TURNS ? turn + 1 : 0;
}

/* Moves a task of the class whose turn it is to this CPU, unless `incumbent` is next. Returns whether a task was moved. */
static bool take_turn(u32 id, const struct dispatch_cpu *cpu, u32 turn, const struct incumbent *incumbent)
{
	if (turn == TURN_STRAYS)
		return cpu->strays && scx_bpf_dsq_move_to_local(QUEUE_OF_CPU + id);
	if (turn == TURN_COMMON)
		return cpu->home != DISPATCH_NOBODY && take_common();
	if (cpu->home == DISPATCH_NOBODY)
		return take_next(id, DISPATCH_NOBODY, AMONG_ALL, incumbent);
	return take_home(id, cpu, incumbent);
}

void BPF_STRUCT_OPS(dispatch_dispatch, s32 id, struct task_struct *prev)
{
	struct dispatch_cpu *cpu = cpu_at(id);
	struct dispatch_task *task = NULL;
	struct dispatch_unit *unit = NULL, *ran;
	bool by_right = false, anywhere = false;
	struct incumbent incumbent = { .unit = DISPATCH_NOBODY };
	u32 look, turn;

	if (!cpu)
		return;
	/* If the previous task is still runnable, it is charged first, since it is then compared with those that wait. */
	if (prev && prev->scx.flags & SCX_TASK_QUEUED && (task = task_of(prev)) && (unit = unit_at(task->unit))) {
		charge(prev, cpu, task, unit);
		if ((ran = unit_at(cpu->runs)))
			vacate(cpu, ran);
		anywhere = task->state & DISPATCH_STRAY || runs_anywhere(task->unit, unit);
		by_right = !anywhere && (cpu->home == DISPATCH_NOBODY || cpu->home == unit->top);
		note_inside(prev, task);
		/*
		 * A task that changes its unit, had migration disabled, or has a shut gate does not continue: the kernel
		 * enqueues it.
		 */
		if (task->destined != DISPATCH_NOBODY || task->state & DISPATCH_HELD || stays_out(prev, task)) {
			anywhere = by_right = false;
			task = NULL;
		}
	}
	if (by_right && unit)
		incumbent = as_incumbent(task, unit, prev);
	/*
	 * The CPU was last charged now, or at most a slice ago, so cpu->since serves as the time. A CPU that is called back
	 * goes to its owner first: the slice of a rescue would lengthen the call-back.
	 */
	if (!before(cpu->since, cpu->looks_at) && !cpu->recalled && rescue(cpu))
		return;
	for (look = 0, turn = cpu->turn; look < TURNS; look++, turn = after(turn)) {
		if (!take_turn(id, cpu, turn, &incumbent)) {
			if (turn != TURN_OWN || !by_right)
				continue;
			if (seated() && task && better_place(prev, task, unit, id) != DISPATCH_NOBODY)
				return; /* enqueue() is called for it, and moves it there */
			run_on(prev, cpu, id, task);
		}
		cpu->turn = after(turn);
		return;
	}
	if (cpu->home == DISPATCH_NOBODY || anywhere)
		run_on(prev, cpu, id, task);
	else
		dispatch_lent(id, cpu, prev, task);
	if (seated() && !task && *away())
		call_to_seat(cpu);
}

void BPF_STRUCT_OPS(dispatch_running, struct task_struct *p)
{
	struct dispatch_task *task = task_of(p);
	u32 id = scx_bpf_task_cpu(p);
	struct dispatch_cpu *cpu = cpu_at(id);
	struct dispatch_unit *unit, *top, *owner;
	u64 now = scx_bpf_now();
	bool rescued, in_turn;

	if (!task || !cpu || !(unit = unit_at(task->unit)))
		return;
	rescued = is_rescued(cpu);
	in_turn = !rescued && !(task->state & DISPATCH_AT_CPU) && task->cause != DISPATCH_WAIT_HIGHER &&
		  task->unit != DISPATCH_KERNEL;
	end_wait(task);
	if (gated())
		count(task, unit); /* a task that was parked is not counted as active yet */
	arrive(p, task, unit, cpu, id, now);
	note_begins(cpu, id, payer(task), now);
	cpu->since = cpu->booked = now;
	cpu->looks = 0;
	cpu->on_loan = 0;
	cpu->outranked = 0;
	unit->served = now;
	cpu->runs = task->unit;
	if (disciplined())
		cpu->pays = task->pays;
	if (is_other(unit->discipline))
		task_happens(p, task, unit, BEGINS, 0);
	cpu->vtime = task->vtime;
	note_seat(cpu, task);
	note_gang(p, task, cpu, id);
	advance_clock_within(task, unit);
	if (in_turn)
		advance_clocks(unit, cpu->home == DISPATCH_NOBODY);
	occupy(cpu, unit);
	if (is_other(unit->among) && unit->among == DISPATCH_DWCS)
		set_slice(p, slice_of(unit));
	if (cpu->home == DISPATCH_NOBODY)
		return;
	top = unit->parent == DISPATCH_NOBODY ? unit : unit_at(unit->top);
	if (cpu->home == unit->top) {
		if (cpu->recalled && top)
			came_back(cpu, top, cpu->since);
	} else if (!rescued && is_guest(cpu, task, unit) && (owner = unit_at(cpu->home))) {
		if (top)
			world_loan_pass_at_least(top->loan_pass);
		lend(cpu, id, owner);
		/*
		 * A task of the owner may have been queued while this one was on its way to the CPU: then the CPU is called
		 * back at once. Not within a slice after a call-back in vain, when the owner's waiting tasks could not run
		 * here: a task that can calls the CPU back when it is queued.
		 */
		if (!(cpu->in_vain && before(now, cpu->in_vain + rules()->slice_ns)) && waits_for_home(cpu->home, owner) &&
		    mask_take(cpu->home, MASK_LENT, id))
			recall(cpu, id, owner);
	} else if (cpu->recalled && !rescued && (owner = unit_at(cpu->home)) && !waits_for_home(cpu->home, owner)) {
		cpu->recalled = 0; /* the task that called the CPU back has run elsewhere, and no task of its owner waits */
	}
}

void BPF_STRUCT_OPS(dispatch_stopping, struct task_struct *p, bool runnable)
{
	struct dispatch_task *task = task_of(p);
	u32 id = scx_bpf_task_cpu(p);
	struct dispatch_cpu *cpu = cpu_at(id);
	struct dispatch_unit *unit, *owner;

	if (!task || !cpu || !(unit = unit_at(task->unit)))
		return;
	charge(p, cpu, task, unit);
	note_stops(cpu);
	if (runnable) {
		/*
		 * Valid if a higher class took the CPU. If its slice ended instead, it is enqueued next, which sets both again.
		 */
		task->since = cpu->since;
		task->cause = DISPATCH_WAIT_HIGHER;
	} else {
		uncount(task, unit);
		note_sleep(p, task);
	}
	cpu->gang = DISPATCH_NOBODY;
	if (cpu->runs != task->unit)
		unit = unit_at(cpu->runs); /* the task has changed its unit since it was dispatched */
	book(cpu, id, unit, cpu->since);
	cpu->runs = DISPATCH_NOBODY;
	if (seated())
		note_wanted(cpu, DISPATCH_NOBODY);
	if (!unit)
		return;
	vacate(cpu, unit);
	if (cpu->home != unit->top && (owner = unit_at(cpu->home)) && mask_take(cpu->home, MASK_LENT, id))
		add(&owner->away, -1);
}

void BPF_STRUCT_OPS(dispatch_tick, struct task_struct *p)
{
	struct dispatch_cpu *cpu = cpu_at(scx_bpf_task_cpu(p));

	if (cpu && (cpu->recalled || (gated() && gate_is_shut(cpu->gang)) ||
		    (cpu->outranked && !before(scx_bpf_now(), cpu->since + UNDISTURBED_NS))))
		set_slice(p, 0);
}

s32 BPF_STRUCT_OPS(dispatch_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct dispatch_task *task = new_task(p);
	struct dispatch_unit *unit;

	if (!task)
		return -ENOMEM;
	task->unit = task->base = unit_of(p, args);
	task->cpu = DISPATCH_NOBODY;
	task->destined = DISPATCH_NOBODY;
	task->seat = DISPATCH_NOBODY;
	task->gang = DISPATCH_NOBODY;
	inherit(task, args);
	task->pays = task->unit;
	if ((unit = unit_at(task->pays)) && disciplined())
		unit = unit_at(task->unit = orders(task->pays, unit));
	task->vtime = unit ? unit->vtime : 0;
	return 0;
}

/*
 * The queue that a parked task moves to now, with its key there in `place`; QUEUE_OF_GATES: it stays parked. A task whose gate
 * is still shut moves to its CPU if it has been parked for BREATH_NS.
 */
static u64 leaves_gate(struct task_struct *p, struct dispatch_task *task, struct dispatch_unit *unit, u64 parked, u64 *place)
{
	if (is_shut(p, task) && !is_ending(p))
		return before(scx_bpf_now(), parked + BREATH_NS) ? QUEUE_OF_GATES : SCX_DSQ_LOCAL_ON | scx_bpf_task_cpu(p);
	task->since = moment();
	if (!fits_queue(p, task->unit, unit))
		return SCX_DSQ_LOCAL_ON | scx_bpf_task_cpu(p);
	*place = is_other(unit->discipline) ? task->vtime : start_of(p, task, unit);
	return task->unit;
}

/* After gates were opened or shut: moves released tasks to their units' queues, and preempts running tasks of shut gangs. */
static void turn_gates(void)
{
	struct bpf_iter_scx_dsq at;
	struct dispatch_task *task;
	struct dispatch_unit *unit;
	struct dispatch_cpu *cpu;
	struct task_struct *p;
	u64 queue, place;
	s32 idle;
	u32 id;

	if (!bpf_iter_scx_dsq_new(&at, QUEUE_OF_GATES, 0)) {
		while ((p = bpf_iter_scx_dsq_next(&at))) {
			if (!(task = task_of(p)) || !(unit = unit_at(task->unit)))
				continue;
			place = 0;
			queue = leaves_gate(p, task, unit, parked_since(p), &place);
			if (queue == QUEUE_OF_GATES)
				continue;
			if (queue == task->unit)
				begin_wait(task);
			if (!move_from(&at, p, queue, place) || queue != task->unit)
				continue;
			idle = take_idle(p, task->unit, unit, near_to(task, scx_bpf_task_cpu(p)));
			if (idle >= 0)
				scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
			else
				call_back(p, unit->top, near_to(task, scx_bpf_task_cpu(p)));
		}
	}
	bpf_iter_scx_dsq_destroy(&at);
	bpf_for(id, 0, rules()->cpus) {
		cpu = cpu_at(id);
		if (cpu && gate_is_shut(cpu->gang))
			scx_bpf_kick_cpu(id, SCX_KICK_PREEMPT);
	}
}

/* Changes the owner of a CPU. Called a few times a second, by the program that carries out the policy's plan. */
int dispatch_own(struct dispatch_owned *owned)
{
	struct dispatch_cpu *cpu = cpu_at(owned->cpu);
	struct dispatch_unit *owner, *unit;

	if (!cpu || cpu->home == owned->unit)
		return 0;
	/* CPU time until now is booked under the previous owner. */
	if (cpu->runs != DISPATCH_NOBODY)
		book(cpu, owned->cpu, unit_at(cpu->runs), scx_bpf_now());
	if ((owner = unit_at(cpu->home))) {
		mask_clear(cpu->home, MASK_HOMES, owned->cpu);
		if (mask_take(cpu->home, MASK_LENT, owned->cpu))
			add(&owner->away, -1);
	}
	cpu->home = owned->unit;
	cpu->recalled = 0;
	unit = unit_at(owned->unit);
	if (unit) {
		mask_set(owned->unit, MASK_HOMES, owned->cpu);
		mask_clear(DISPATCH_NOBODY, MASK_SHARED, owned->cpu);
	} else {
		mask_set(DISPATCH_NOBODY, MASK_SHARED, owned->cpu);
	}
	if (unit && unit->flags & DISPATCH_LENDS)
		mask_set(DISPATCH_NOBODY, MASK_LENDABLE, owned->cpu);
	else
		mask_clear(DISPATCH_NOBODY, MASK_LENDABLE, owned->cpu);
	/* Makes the CPU reconsider its task: with the new owner, the task may be at home, or a guest. */
	scx_bpf_kick_cpu(owned->cpu, SCX_KICK_PREEMPT);
	return 0;
}

/* Starts or stops lending a unit's home CPUs. */
static void lend_homes(u32 id, bool lends)
{
	struct dispatch_cpu *cpu;
	u32 at;

	bpf_for(at, 0, rules()->cpus) {
		cpu = cpu_at(at);
		if (!cpu || cpu->home != id)
			continue;
		if (lends)
			mask_set(DISPATCH_NOBODY, MASK_LENDABLE, at);
		else
			mask_clear(DISPATCH_NOBODY, MASK_LENDABLE, at);
	}
}

/*
 * Sets a unit's rules. Returns 0, or -EINVAL for an invalid unit, parent, weight, discipline or deadline, for too many levels,
 * for another parent of a unit with tasks or sub-units, or for another discipline of a unit with tasks.
 */
int dispatch_set_unit(struct dispatch_setting *setting)
{
	struct dispatch_unit *unit = unit_at(setting->unit), *parent = unit_at(setting->parent), *former;
	u32 lends;

	if (!unit || !setting->weight || setting->weight > 10000 || setting->parent == setting->unit)
		return -EINVAL;
	if (setting->discipline >= DISPATCH_DISCIPLINES || (!disciplined() && setting->discipline != DISPATCH_STRIDE))
		return -EINVAL;
	if (setting->misses > setting->of || setting->of > DISPATCH_WINDOW_MAX || setting->budget > setting->period)
		return -EINVAL;
	if (unit->discipline != setting->discipline && (unit->own_active || unit->active))
		return -EINVAL; /* keys of two disciplines are not comparable */
	if (unit->below && (unit->discipline == DISPATCH_SMP) != (setting->discipline == DISPATCH_SMP))
		return -EINVAL; /* smp determines in whose queue its sub-units' tasks wait: see smp.h */
	if (!parent != (setting->parent == DISPATCH_NOBODY) || (parent && parent->depth + 2 >= DISPATCH_DEPTH_MAX))
		return -EINVAL;
	if (unit->parent != setting->parent) {
		if (unit->own_active || unit->active || unit->below)
			return -EINVAL; /* its counts are included in those of the units around it */
		former = unit_at(unit->parent);
		if (former)
			add(&former->below, -1);
		if (parent)
			add(&parent->below, 1);
	}
	lends = (unit->flags ^ setting->flags) & DISPATCH_LENDS;
	unit->parent = setting->parent;
	unit->top = parent ? parent->top : setting->unit;
	unit->depth = parent ? parent->depth + 1 : 0;
	unit->orders = smp_orders(setting->unit, setting->parent, parent);
	unit->weight = setting->weight;
	unit->slice = over_weight(rules()->slice_ns, setting->weight);
	unit->credit = (u64)setting->credit_ms * (1000000 * SHARE_UNIT / setting->weight);
	unit->discipline = setting->discipline;
	unit->among = parent ? parent->discipline : DISPATCH_STRIDE;
	unit->deadlines.period = setting->period;
	unit->deadlines.budget = setting->budget;
	unit->deadlines.misses = setting->misses;
	unit->deadlines.of = setting->of;
	unit->flags = setting->flags;
	if (lends)
		lend_homes(setting->unit, setting->flags & DISPATCH_LENDS);
	return 0;
}

#ifdef __bpf__
#include "bpf/ops.h"
#endif
