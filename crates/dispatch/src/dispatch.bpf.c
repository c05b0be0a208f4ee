/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The switch-time scheduler: which task a CPU runs next, which CPU a woken task takes, which loan is called back.
 *
 * Problem. The policy says who owns which CPU, a few times a second. Whether an owner has work for its CPU changes a
 * thousand times as often; so lending an idle CPU, and calling it back, is decided here, at every wake-up and switch.
 *
 * Terms. A unit's *home* CPUs are those it owns. A CPU is *lent* while it runs a task of a unit that does not own it; it is
 * *called back* when its owner has a task that waits. A CPU without an owner is *time-shared*.
 *
 * Algorithm. Each unit has one queue, ordered by the tasks' virtual time: who had least CPU time is next (in the place of
 * the degrading priorities of seed 000, section 3.1). A woken task takes an idle home CPU, its last one if it can; else an
 * idle CPU that somebody lends; else it waits in its unit's queue, and one lent home CPU is called back: at once by an
 * interrupt, or at the next tick. A CPU that needs a task takes the first of its home unit's queue; if there is none and
 * the owner lends, the first task of the unit with most tasks waiting; if it is time-shared, the first of the unit with the
 * smallest pass (CPU time over weight: stride scheduling over units).
 *
 * Properties. A CPU never runs another's task while its owner's wait, for longer than the call-back takes; a unit that does
 * not lend never has others on its CPUs; no CPU idles while a task waits that may run there. A unit that waits long is not
 * given credit for it: its pass and its tasks' virtual times catch up on waking, so nobody can save up CPU time.
 *
 * Limits. Which unit borrows is found by looking at all of them: fine for hundreds. Counters of a unit are written by many
 * CPUs without a lock where a lost update would only make a report a little wrong; the others are atomic.
 *
 * The same source is compiled for the kernel (BPF, sched_ext) and natively for the simulator, which plays the kernel.
 * Source: seed 000, sections 3.1 and table 1.
 */
#include "kernel.h"
#include "intf.h"
#include "world.h"

char _license[] SEC("license") = "Dual MIT/GPL";

#define QUEUE_POOL DISPATCH_UNITS_MAX /* the queue of all units, where nothing is isolated; units' queues have their numbers */
#define RACES_MAX  4   /* another CPU may take what this one saw waiting: then it looks again, so many times */
#define SHARE_UNIT 100 /* a weight of 100 advances the pass by the time used */

static bool before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

static u64 queue_of(const struct dispatch_task *task)
{
	return rules()->pool ? QUEUE_POOL : task->unit;
}

/* Whose virtual time a task's is measured by: its unit's, or one for all where all wait in one queue. */
static struct dispatch_unit *clock_of(const struct dispatch_task *task)
{
	return unit_at(rules()->pool ? DISPATCH_KERNEL : task->unit);
}

/* Who slept starts where those are that it competes with, less one slice: it runs soon, and has saved nothing up. */
static u64 start_of(struct dispatch_task *task)
{
	struct dispatch_unit *clock = clock_of(task);
	u64 now = clock ? clock->vtime : 0;
	/* Virtual time begins at 0: before that would be the end of a queue that is ordered by unsigned numbers. */
	u64 earliest = now > rules()->slice_ns ? now - rules()->slice_ns : 0;

	if (before(task->vtime, earliest))
		task->vtime = earliest;
	return task->vtime;
}

/*
 * A unit that ran nothing has saved nothing up either: when it wakes, it is where the time-shared CPUs are. One that ran on
 * fewer CPUs than it may, for want of tasks, stays one slice behind at most: else its next tasks would keep all others
 * waiting for as long as it had been alone with its share.
 */
static void catch_up(const struct dispatch_task *task, struct dispatch_unit *unit)
{
	bool idle = !unit->busy && scx_bpf_dsq_nr_queued(queue_of(task)) <= 0;
	u64 earliest = world_pass() - (idle ? 0 : rules()->slice_ns * SHARE_UNIT / (unit->weight ? unit->weight : 1));

	if (before(unit->pass, earliest))
		unit->pass = earliest;
}

/* Calls one lent home CPU of a unit back, if there is one that was not called yet. */
static void call_back(u32 id, struct dispatch_unit *unit)
{
	struct dispatch_cpu *cpu;
	u32 found;

	if (!unit->away)
		return;
	found = mask_take_first(id, MASK_LENT);
	cpu = cpu_at(found);
	if (!cpu)
		return; /* it came back by itself between the two looks */
	add(&unit->away, -1);
	cpu->recalled = scx_bpf_now();
	if (rules()->recall == DISPATCH_RECALL_NOW)
		scx_bpf_kick_cpu(found, SCX_KICK_PREEMPT);
}

/* An idle CPU that a task of this unit may use, taken; its last one if that is one of them. */
static s32 take_idle(struct task_struct *p, u32 id, const struct dispatch_unit *unit, s32 last)
{
	struct dispatch_cpu *cpu = cpu_at(last);
	s32 found;

	if (rules()->pool) {
		if (cpu && may_run(p, last) && scx_bpf_test_and_clear_cpu_idle(last))
			return last;
		return pick_idle(p, DISPATCH_NOBODY, MASK_ALL);
	}
	if (cpu && (cpu->home == id || cpu->home == DISPATCH_NOBODY) && may_run(p, last) &&
	    scx_bpf_test_and_clear_cpu_idle(last))
		return last;
	found = pick_idle(p, id, MASK_HOMES);
	if (found < 0)
		found = pick_idle(p, DISPATCH_NOBODY, MASK_SHARED);
	if (found < 0 && unit->flags & DISPATCH_BORROWS) {
		if (cpu && may_run(p, last) && mask_test(DISPATCH_NOBODY, MASK_LENDABLE, last) &&
		    scx_bpf_test_and_clear_cpu_idle(last))
			return last;
		found = pick_idle(p, DISPATCH_NOBODY, MASK_LENDABLE);
	}
	return found;
}

s32 BPF_STRUCT_OPS(dispatch_select_cpu, struct task_struct *p, s32 last, u64 wake_flags)
{
	struct dispatch_task *task = task_of(p);
	struct dispatch_unit *unit;
	s32 cpu;

	if (!task || !(unit = unit_at(task->unit)))
		return last;
	cpu = take_idle(p, task->unit, unit, last);
	if (cpu < 0)
		return last;
	catch_up(task, unit);
	start_of(task);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, rules()->slice_ns, 0);
	return cpu;
}

/* Whether a task can be served from its unit's queue at all: it may run on one of the CPUs that look there. */
static bool fits_queue(struct task_struct *p, u32 id)
{
	if (rules()->pool || (u32)p->nr_cpus_allowed >= rules()->cpus)
		return true;
	return mask_meets(id, MASK_HOMES, p) || mask_meets(DISPATCH_NOBODY, MASK_SHARED, p);
}

void BPF_STRUCT_OPS(dispatch_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct dispatch_task *task = task_of(p);
	struct dispatch_unit *unit;
	s32 cpu;

	/*
	 * The kernel's threads go first where they are, but only on waking: one that always went first would keep the others
	 * waiting for as long as it ran. Who is pinned to others' CPUs stays there as well, without going first.
	 */
	if (!task || !(unit = unit_at(task->unit)) || task->unit == DISPATCH_KERNEL) {
		if (enq_flags & SCX_ENQ_WAKEUP)
			enq_flags |= SCX_ENQ_PREEMPT;
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, rules()->slice_ns, enq_flags);
		return;
	}
	if (!fits_queue(p, task->unit)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, rules()->slice_ns, enq_flags);
		return;
	}
	if (enq_flags & SCX_ENQ_WAKEUP)
		catch_up(task, unit);
	scx_bpf_dsq_insert_vtime(p, queue_of(task), rules()->slice_ns, start_of(task), enq_flags);
	/* A CPU that looked before the task was in the queue may have gone idle: it must look again. */
	cpu = take_idle(p, task->unit, unit, scx_bpf_task_cpu(p));
	if (cpu >= 0) {
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		return;
	}
	if (!rules()->pool)
		call_back(task->unit, unit);
}

/* The unit that a lent CPU helps most: the one with most tasks waiting. */
static u32 most_waiting(u32 home)
{
	u32 best = DISPATCH_NOBODY, id;
	s32 most = 0, waiting;

	bpf_for(id, 0, rules()->units) {
		struct dispatch_unit *unit = unit_at(id);

		if (!unit || id == home || !(unit->flags & DISPATCH_BORROWS))
			continue;
		waiting = scx_bpf_dsq_nr_queued(id);
		if (waiting > most) {
			most = waiting;
			best = id;
		}
	}
	return best;
}

/* The unit that had least of the time-shared CPUs for its weight, among those that wait. */
static u32 least_served(void)
{
	u32 best = DISPATCH_NOBODY, id;
	u64 pass = 0;

	bpf_for(id, 0, rules()->units) {
		struct dispatch_unit *unit = unit_at(id);

		if (!unit || scx_bpf_dsq_nr_queued(id) <= 0)
			continue;
		if (best == DISPATCH_NOBODY || before(unit->pass, pass)) {
			pass = unit->pass;
			best = id;
		}
	}
	return best;
}

/* Books what a task of one unit ran on another's CPU, up to now: as lent by the one and borrowed by the other. */
static void book_loan(const struct dispatch_cpu *cpu, u32 id, u64 now)
{
	struct dispatch_unit *unit = unit_at(id), *owner = unit_at(cpu->home);
	u64 from = before(cpu->since, cpu->owned) ? cpu->owned : cpu->since;

	if (cpu->home == id || !unit || !owner)
		return;
	add64(&unit->borrowed_ns, now - from);
	add64(&owner->lent_ns, now - from);
}

/* Charges a unit for what its task ran on this CPU since the last time, and whoever's CPU it is. */
static void charge(struct dispatch_cpu *cpu, struct dispatch_task *task, struct dispatch_unit *unit)
{
	u64 now = scx_bpf_now(), used = now - cpu->since;

	if (!rules()->pool) {
		if (cpu->home == DISPATCH_NOBODY)
			add64(&unit->pass, used * SHARE_UNIT / (unit->weight ? unit->weight : 1));
		else
			book_loan(cpu, task->unit, now);
	}
	cpu->since = now;
	task->vtime += used;
	add64(&unit->used_ns, used);
}

/* A slice begins: the clocks by which those are placed who wake meanwhile are at least where its task and its unit are. */
static void advance_clocks(const struct dispatch_cpu *cpu, const struct dispatch_task *task, const struct dispatch_unit *unit)
{
	struct dispatch_unit *clock = clock_of(task);

	if (clock && before(clock->vtime, task->vtime))
		clock->vtime = task->vtime;
	if (!rules()->pool && cpu->home == DISPATCH_NOBODY)
		world_pass_at_least(unit->pass);
}

/*
 * Lets a task that is at the end of its slice run on: nobody with a better claim waits. Its next slice begins like any
 * other: whoever has a CPU alone for long would else owe all that time to the first who comes.
 */
static void run_on(struct task_struct *prev, const struct dispatch_cpu *cpu, const struct dispatch_task *task)
{
	struct dispatch_unit *unit;

	if (!task || !(prev->scx.flags & SCX_TASK_QUEUED))
		return;
	if ((unit = unit_at(task->unit)))
		advance_clocks(cpu, task, unit);
	set_slice(prev, rules()->slice_ns);
}

/* The next task of a CPU that nobody owns. */
static void dispatch_shared(const struct dispatch_cpu *cpu, struct task_struct *prev, const struct dispatch_task *task)
{
	struct dispatch_unit *unit, *mine;
	u32 look, next;

	bpf_for(look, 0, RACES_MAX) {
		next = least_served();
		unit = unit_at(next);
		if (!unit)
			break;
		/* Whoever ran does not wait in a queue: its unit goes on if it had less than those that do. */
		if (task && task->unit != next && prev->scx.flags & SCX_TASK_QUEUED) {
			mine = unit_at(task->unit);
			if (mine && before(mine->pass, unit->pass))
				break;
		}
		if (scx_bpf_dsq_move_to_local(next))
			return;
	}
	run_on(prev, cpu, task);
}

/* A home CPU runs another's task from now on: its owner may call it back. */
static void lend(struct dispatch_cpu *cpu, u32 id, struct dispatch_unit *owner)
{
	cpu->recalled = 0;
	mask_set(cpu->home, MASK_LENT, id);
	add(&owner->away, 1);
}

/* The next task of a CPU whose owner has none for it. */
static void dispatch_lent(u32 id, struct dispatch_cpu *cpu, struct task_struct *prev, const struct dispatch_task *task)
{
	struct dispatch_unit *owner = unit_at(cpu->home), *unit;
	u32 look, next;

	cpu->recalled = 0; /* whoever it was called back for has run elsewhere */
	if (!owner || !(owner->flags & DISPATCH_LENDS))
		return; /* a guest that ran here goes back to its unit's queue */
	bpf_for(look, 0, RACES_MAX) {
		next = most_waiting(cpu->home);
		if (next == DISPATCH_NOBODY)
			break;
		if (scx_bpf_dsq_move_to_local(next))
			return;
	}
	if (task && prev->scx.flags & SCX_TASK_QUEUED && (unit = unit_at(task->unit)) && unit->flags & DISPATCH_BORROWS) {
		/* It was called back, or has another owner since: it is lent on, and may be called back. */
		if (!mask_test(cpu->home, MASK_LENT, id))
			lend(cpu, id, owner);
		run_on(prev, cpu, task);
	}
}

void BPF_STRUCT_OPS(dispatch_dispatch, s32 id, struct task_struct *prev)
{
	struct dispatch_task *task = prev ? task_of(prev) : NULL;
	struct dispatch_cpu *cpu = cpu_at(id);
	struct dispatch_unit *unit;

	if (!cpu)
		return;
	/* Who may run on is charged first: it is compared with those that wait. */
	if (task && prev->scx.flags & SCX_TASK_QUEUED && (unit = unit_at(task->unit)))
		charge(cpu, task, unit);
	if (rules()->pool) {
		if (!scx_bpf_dsq_move_to_local(QUEUE_POOL))
			run_on(prev, cpu, task);
	} else if (cpu->home == DISPATCH_NOBODY) {
		dispatch_shared(cpu, prev, task);
	} else if (!scx_bpf_dsq_move_to_local(cpu->home)) {
		if (task && task->unit == cpu->home && prev->scx.flags & SCX_TASK_QUEUED)
			run_on(prev, cpu, task);
		else
			dispatch_lent(id, cpu, prev, task);
	}
}

/* The time from a call-back to the first task of the owner's. */
static void came_back(struct dispatch_cpu *cpu, struct dispatch_unit *owner, u64 now)
{
	u64 took = now - cpu->recalled;

	cpu->recalled = 0;
	owner->recalls++;
	owner->recall_ns += took;
	if (took > owner->recall_ns_max)
		owner->recall_ns_max = took;
}

void BPF_STRUCT_OPS(dispatch_running, struct task_struct *p)
{
	struct dispatch_task *task = task_of(p);
	u32 id = scx_bpf_task_cpu(p);
	struct dispatch_cpu *cpu = cpu_at(id);
	struct dispatch_unit *unit, *owner;

	if (!task || !cpu || !(unit = unit_at(task->unit)))
		return;
	cpu->since = scx_bpf_now();
	cpu->runs = task->unit;
	add(&unit->busy, 1);
	advance_clocks(cpu, task, unit);
	if (rules()->pool || cpu->home == DISPATCH_NOBODY)
		return;
	if (cpu->home == task->unit) {
		if (cpu->recalled)
			came_back(cpu, unit, cpu->since);
	} else if (task->unit != DISPATCH_KERNEL && (owner = unit_at(cpu->home))) {
		/* Not the kernel's threads: called back, one would go on at once, be called back, and never come to its end. */
		lend(cpu, id, owner);
		/* The owner's task may have come while this one was on its way here. */
		if (scx_bpf_dsq_nr_queued(cpu->home) > 0)
			call_back(cpu->home, owner);
	}
}

void BPF_STRUCT_OPS(dispatch_stopping, struct task_struct *p, bool runnable)
{
	struct dispatch_task *task = task_of(p);
	u32 id = scx_bpf_task_cpu(p);
	struct dispatch_cpu *cpu = cpu_at(id);
	struct dispatch_unit *unit, *owner;
	u32 ran;

	if (!task || !cpu || !(unit = unit_at(task->unit)))
		return;
	charge(cpu, task, unit);
	ran = cpu->runs; /* it may have moved to another unit since */
	cpu->runs = DISPATCH_NOBODY;
	if ((unit = unit_at(ran)))
		add(&unit->busy, -1);
	if (!rules()->pool && cpu->home != ran && (owner = unit_at(cpu->home)) && mask_take(cpu->home, MASK_LENT, id))
		add(&owner->away, -1);
}

void BPF_STRUCT_OPS(dispatch_tick, struct task_struct *p)
{
	struct dispatch_cpu *cpu = cpu_at(scx_bpf_task_cpu(p));

	if (cpu && cpu->recalled)
		set_slice(p, 0);
}

s32 BPF_STRUCT_OPS(dispatch_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct dispatch_task *task = new_task(p);
	struct dispatch_unit *clock;

	if (!task)
		return -ENOMEM;
	task->unit = unit_of(p, args);
	clock = clock_of(task);
	task->vtime = clock ? clock->vtime : 0;
	return 0;
}

/* A CPU gets another owner, or none. Called a few times a second, by whoever carries out the policy's plan. */
int dispatch_own(struct dispatch_owned *owned)
{
	struct dispatch_cpu *cpu = cpu_at(owned->cpu);
	struct dispatch_unit *owner, *unit;

	if (!cpu || cpu->home == owned->unit)
		return 0;
	/* What the task there ran so far, it ran under the owner so far. */
	if (cpu->home != DISPATCH_NOBODY)
		book_loan(cpu, cpu->runs, scx_bpf_now());
	cpu->owned = scx_bpf_now();
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
	/* Whoever runs there is looked at anew: it may be at home now, or a guest. */
	scx_bpf_kick_cpu(owned->cpu, SCX_KICK_PREEMPT);
	return 0;
}

#ifdef __bpf__
/* What only the kernel needs: making and ending it all, tasks that change their control group, and the table of callbacks. */

#define TIMEOUT_MS 20000 /* a task that waits for longer ends the scheduler: the kernel's own takes over */

void BPF_STRUCT_OPS(dispatch_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct dispatch_task *task = task_of(p);
	struct dispatch_unit *unit;

	if (!task)
		return;
	task->unit = unit_in(p, to);
	unit = unit_at(task->unit);
	task->vtime = unit ? unit->vtime : 0;
}

/* Puts a mask with no CPU, or with all of them, in its place. */
static s32 make_mask(u32 index, bool full)
{
	struct mask_slot *slot = bpf_map_lookup_elem(&masks, &index);
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

static s32 make_unit(u32 id)
{
	s32 error = scx_bpf_create_dsq(id, SCX_ANY_NODE);

	if (!error)
		error = make_mask(2 * id + MASK_HOMES, false);
	if (!error)
		error = make_mask(2 * id + MASK_LENT, false);
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
		cpu->home = DISPATCH_NOBODY;
		cpu->runs = DISPATCH_NOBODY;
	}
	bpf_for(id, 0, rules()->units) {
		error = make_unit(id);
		if (error)
			return error;
	}
	error = scx_bpf_create_dsq(QUEUE_POOL, SCX_ANY_NODE);
	if (!error)
		error = make_mask(2 * MACHINE + MASK_SHARED, true);
	if (!error)
		error = make_mask(2 * MACHINE + MASK_LENDABLE, false);
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

/* dispatch_own(), for user space: BPF_PROG_TEST_RUN with the struct as the context. */
SEC("syscall") int dispatch_own_cpu(struct dispatch_owned *owned)
{
	int result;

	bpf_rcu_read_lock();
	result = dispatch_own(owned);
	bpf_rcu_read_unlock();
	return result;
}

SEC(".struct_ops.link") struct sched_ext_ops commonhold = {
	.select_cpu = (void *)dispatch_select_cpu,
	.enqueue = (void *)dispatch_enqueue,
	.dispatch = (void *)dispatch_dispatch,
	.running = (void *)dispatch_running,
	.stopping = (void *)dispatch_stopping,
	.tick = (void *)dispatch_tick,
	.init_task = (void *)dispatch_init_task,
	.cgroup_move = (void *)dispatch_cgroup_move,
	.init = (void *)dispatch_init,
	.exit = (void *)dispatch_exit,
	.flags = SCX_OPS_ENQ_LAST,
	.timeout_ms = TIMEOUT_MS,
	.name = "commonhold",
};
#endif
