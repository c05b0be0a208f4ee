/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Counters per unit and CPU: CPU time by who owns the CPU, waits by cause and by what had the CPU (waits.h), migrations by
 * distance, and the latency of call-backs.
 */
#ifndef DISPATCH_ACCOUNTS_H
#define DISPATCH_ACCOUNTS_H

/* The unit in whose account a task's time is booked. Under `smp`, the task waits in the queue of another unit, an ancestor. */
static u32 payer(const struct dispatch_task *task)
{
	return disciplined() ? task->pays : task->unit;
}

/* The unit in whose account the time of a CPU's task is booked. */
static u32 payer_on(const struct dispatch_cpu *cpu)
{
	return disciplined() ? cpu->pays : cpu->runs;
}

/* Books the CPU time of a CPU's task since the last booking: as home, shared, borrowed or visiting, by the owner of the CPU. */
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

/* A CPU that was called back runs a task of its owner: records the latency of the call-back. */
static void came_back(struct dispatch_cpu *cpu, struct dispatch_unit *owner, u64 now)
{
	u64 latency = now - cpu->recalled, end = 1024;
	u32 class;

	cpu->recalled = 0;
	if ((s64)latency < 0)
		latency = 0; /* the clocks of two CPUs differ slightly */
	add64(&owner->recalls, 1);
	add64(&owner->recall_ns, latency);
	if (latency > owner->recall_ns_max)
		owner->recall_ns_max = latency;
	bpf_for(class, 0, DISPATCH_LATENCIES) {
		if (latency < end || class == DISPATCH_LATENCIES - 1) {
			add(&owner->recall_classes[class], 1);
			break;
		}
		end *= 2;
	}
}

/*
 * Records that a higher class had a CPU from cpu->since until now, when a task is dispatched there. The kernel does not report
 * when a higher class takes a CPU. So this is inferred if the CPU neither ran a task of this scheduler nor idled for longer
 * than a switch takes. Intervals near each other are merged.
 */
static __attribute__((noinline)) void note_higher(struct dispatch_cpu *cpu, u32 id, u64 now)
{
	struct dispatch_stretch *last = &cpu->higher[cpu->stretches % DISPATCH_STRETCHES];
	u64 from = cpu->since;

	if (!from)
		return; /* the CPU has not run anything yet */
	if (last->to && before(now, last->from + STRETCH_NS)) {
		last->had += now - from;
	} else {
		last = &cpu->higher[++cpu->stretches % DISPATCH_STRETCHES];
		last->from = from;
		last->had = now - from;
	}
	last->to = now;
	note_higher_interval(cpu, id, from, now);
}

/*
 * Of a wait that began at `since`: the time for which a higher class had the CPU on which the task is now dispatched. Only the
 * latest DISPATCH_STRETCHES intervals are known.
 */
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

/* Records the CPU on which a task is dispatched, and counts a migration by its distance. */
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

/* Books the wait of a dispatched task, by cause and by what had the CPU, and its migration. */
static void arrive(struct task_struct *p, struct dispatch_task *task, struct dispatch_unit *unit, struct dispatch_cpu *cpu,
		   u32 id, u64 now)
{
	struct dispatch_account *account = account_at(payer(task), id);
	u32 cause = task->cause;
	u64 waited, higher = 0;

	if (!account)
		return;
	if (now - cpu->since > HIGHER_NS)
		note_higher(cpu, id, now);
	account->switches++;
	if (cpu->rescue)
		account->rescues++;
	if (task->since && before(task->since, now) && cause < DISPATCH_CAUSES) {
		waited = now - task->since;
		/* A wait that is shorter than any recorded interval, the usual case, contains none. */
		if (waited > HIGHER_NS)
			account->waited_ns[DISPATCH_WAIT_HIGHER] += higher = higher_ns(cpu, task->since);
		account->waited_ns[cause] += waited - higher;
		divide(account, cpu, id, payer(task), task->since, now);
		if (waited > SLOW_NS || unit->slow_ns)
			note_wait(p, unit, waited);
	}
	task->since = 0;
	if (task->cpu != id)
		move(task, account, cpu, id);
}

#endif
