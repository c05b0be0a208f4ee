/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Counters per unit and CPU: CPU time by who owns the CPU, waits by cause, migrations by distance, and the latency of
 * call-backs.
 */
#ifndef DISPATCH_ACCOUNTS_H
#define DISPATCH_ACCOUNTS_H

/* The unit that a task is charged to. Under `smp`, it waits in an ancestor's queue. */
static u32 payer(const struct dispatch_task *task)
{
	return disciplined() ? task->pays : task->unit;
}

/* The unit that the task of a CPU is charged to. */
static u32 payer_on(const struct dispatch_cpu *cpu)
{
	return disciplined() ? cpu->pays : cpu->runs;
}

/* Books CPU time of the running task since the last booking: home, shared, borrowed or visiting, by the owner of the CPU. */
static void book(struct dispatch_cpu *cpu, u32 id, const struct dispatch_unit *unit, u64 now)
{
	struct dispatch_account *account = account_at(payer_on(cpu), id), *owner;
	u64 used = now - cpu->booked;

	cpu->booked = now;
	if (!account || !unit || (s64)used <= 0)
		return;
	if (cpu->home == DISPATCH_NOBODY) {
		account->shared_ns += used;
	} else if (cpu->home == unit->top) {
		account->home_ns += used;
	} else if ((owner = account_at(cpu->home, id))) {
		*(cpu->on_loan ? &account->borrowed_ns : &account->visiting_ns) += used;
		*(cpu->on_loan ? &owner->lent_ns : &owner->visited_ns) += used;
	}
}

/* The latency of a call-back: until the owner's first task runs. */
static void came_back(struct dispatch_cpu *cpu, struct dispatch_unit *owner, u64 now)
{
	u64 took = now - cpu->recalled, end = 1024;
	u32 class;

	cpu->recalled = 0;
	if ((s64)took < 0)
		took = 0; /* the clocks of two CPUs */
	add64(&owner->recalls, 1);
	add64(&owner->recall_ns, took);
	if (took > owner->recall_ns_max)
		owner->recall_ns_max = took;
	bpf_for(class, 0, DISPATCH_LATENCIES) {
		if (took < end || class == DISPATCH_LATENCIES - 1) {
			add(&owner->recall_classes[class], 1);
			break;
		}
		end *= 2;
	}
}

/*
 * A task is dispatched on a CPU. The kernel does not report when a higher class takes one. So a higher class is taken to
 * have had the CPU if, for longer than a switch takes, it neither ran a task of this scheduler nor idled. Short intervals
 * near each other are merged.
 */
static __attribute__((noinline)) void note_higher(struct dispatch_cpu *cpu, u64 now)
{
	struct dispatch_stretch *last = &cpu->higher[cpu->stretches % DISPATCH_STRETCHES];
	u64 from = cpu->since;

	if (!from)
		return; /* it has not run anything yet */
	if (last->to && before(now, last->from + STRETCH_NS)) {
		last->had += now - from;
	} else {
		last = &cpu->higher[++cpu->stretches % DISPATCH_STRETCHES];
		last->from = from;
		last->had = now - from;
	}
	last->to = now;
}

/* The part of a wait during which a higher class had the CPU where the task is now dispatched, within recorded intervals. */
static __attribute__((noinline)) u64 higher_ns(const struct dispatch_cpu *cpu, u64 since)
{
	const struct dispatch_stretch *stretch;
	u64 from, sum = 0;
	u32 back;

	bpf_for(back, 0, DISPATCH_STRETCHES) {
		stretch = &cpu->higher[(cpu->stretches - back) % DISPATCH_STRETCHES];
		if (!before(since, stretch->to))
			break;
		from = stretch->from;
		at_least(&from, since);
		sum += stretch->had < stretch->to - from ? stretch->had : stretch->to - from;
	}
	return sum;
}

/* Counts a migration, by distance. */
static void move(struct dispatch_task *task, struct dispatch_account *account, const struct dispatch_cpu *to, u32 id)
{
	struct dispatch_cpu *from = cpu_at(task->cpu);

	task->cpu = id;
	if (!from)
		return;
	if (from->node != to->node)
		account->moved_far++;
	else if (from->cache != to->cache)
		account->moved_node++;
	else
		account->moved_cache++;
}

/* Books the wait of a dispatched task by cause, and its migration. */
static void arrive(struct task_struct *p, struct dispatch_task *task, struct dispatch_unit *unit, struct dispatch_cpu *cpu,
		   u32 id, u64 now)
{
	struct dispatch_account *account = account_at(payer(task), id);
	u32 cause = task->cause;
	u64 waited, higher = 0;

	if (!account)
		return;
	if (now - cpu->since > HIGHER_NS)
		note_higher(cpu, now);
	account->switches++;
	if (cpu->rescue)
		account->rescues++;
	if (task->since && before(task->since, now) && cause < DISPATCH_CAUSES) {
		waited = now - task->since;
		/* Usually the wait is too short to contain a recorded interval. */
		if (waited > HIGHER_NS)
			account->waited_ns[DISPATCH_WAIT_HIGHER] += higher = higher_ns(cpu, task->since);
		account->waited_ns[cause] += waited - higher;
		if (waited > SLOW_NS || unit->slow_ns)
			note_wait(p, unit, waited);
	}
	task->since = 0;
	if (task->cpu != id)
		move(task, account, cpu, id);
}

#endif
