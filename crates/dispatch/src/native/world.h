/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The tables of one simulated machine. Each thread simulates one machine at a time, so a thread-local pointer is all
 * that is needed. The simulated kernel's state is read here directly, without a call.
 */
#ifndef DISPATCH_NATIVE_WORLD_H
#define DISPATCH_NATIVE_WORLD_H

static _Thread_local struct dispatch_world *world;

/* Changes to the simulated kernel are calls into it (simulated_kernel.rs). */
void scx_bpf_dsq_insert(struct task_struct *p, u64 queue, u64 slice, u64 flags);
void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 queue, u64 slice, u64 vtime, u64 flags);
bool scx_bpf_dsq_move_to_local(u64 queue);
bool first_in(u64 queue, u64 *vtime, u32 *weight);
bool take_fitting(u64 queue, u32 pool, u64 late);
void scx_bpf_kick_cpu(u32 cpu, u64 flags);
s32 bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *at, u64 queue, u64 flags);
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *at);
bool move_from(struct bpf_iter_scx_dsq *at, struct task_struct *p, u64 queue, u64 vtime);

static inline void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *at)
{
	(void)at;
}

static inline u32 bpf_get_smp_processor_id(void)
{
	return world->here;
}

static inline u64 scx_bpf_now(void)
{
	return world->now;
}

static inline s32 scx_bpf_task_cpu(const struct task_struct *p)
{
	return p->cpu;
}

static inline s32 scx_bpf_dsq_nr_queued(u64 queue)
{
	return queue < world->rules.units ? world->queued[queue] : 0;
}

static inline struct dispatch_rules *rules(void)
{
	return &world->rules;
}

static inline struct dispatch_unit *unit_at(u32 id)
{
	return id < world->rules.units ? &world->units[id] : NULL;
}

static inline struct dispatch_cpu *cpu_at(u32 id)
{
	return id < world->rules.cpus ? &world->cpus[id] : NULL;
}

/* One account for all CPUs: they do not write concurrently here. */
static inline struct dispatch_account *account_at(u32 id, u32 cpu)
{
	return id < world->rules.units && cpu < world->rules.cpus ? &world->accounts[id] : NULL;
}

static inline struct dispatch_history *history_at(u32 cpu)
{
	return cpu < world->rules.cpus ? &world->histories[cpu] : NULL;
}

static inline struct dispatch_pairs *pairs_at(u32 cpu)
{
	return cpu < world->rules.cpus ? &world->pairs[cpu] : NULL;
}

static inline struct dispatch_occupancy *occupancy_at(u32 id, u32 cpu)
{
	u32 last = world->rules.units;

	return cpu < world->rules.cpus ? &world->occupancies[(u64)cpu * (last + 1) + (id < last ? id : last)] : NULL;
}

static inline u32 masked(u32 index, u32 size)
{
	return index & (size - 1);
}

static inline u32 waits_in(u32 id)
{
	return id < world->rules.units ? world->waits[id] : 0;
}

static inline u32 waiting(u32 block)
{
	u32 first = block * WAITS_BLOCK, bits = 0;

	if (!world->waits[world->rules.units + block])
		return 0;
	for (u32 slot = 0; slot < WAITS_BLOCK && first + slot < world->rules.units; slot++)
		bits |= (u32)(world->waits[first + slot] != 0) << slot;
	return bits;
}

static inline u32 lowest(u32 bits)
{
	return __builtin_ctz(bits);
}

static inline void waits_add(u32 id, s32 by)
{
	world->waits[id] += by;
	world->waits[world->rules.units + id / WAITS_BLOCK] += by;
}

static inline struct dispatch_task *task_of(struct task_struct *p)
{
	return &p->own;
}

static inline struct dispatch_task *new_task(struct task_struct *p)
{
	return &p->own;
}

static inline u32 unit_of(const struct task_struct *p, const struct scx_init_task_args *args)
{
	(void)args;
	return p->own.unit;
}

/* Every simulated task is created in a unit. */
static inline void inherit(struct dispatch_task *task, const struct scx_init_task_args *args)
{
	(void)args;
	task->heir = DISPATCH_NOBODY;
}

static inline void set_slice(struct task_struct *p, u64 ns)
{
	p->scx.slice = ns;
}

static inline bool disciplined(void)
{
	return world->disciplined;
}

static inline bool seated(void)
{
	return world->seated;
}

static inline u32 *away(void)
{
	return &world->away;
}

static inline bool gated(void)
{
	return world->gated;
}

static inline bool gate_is_shut(u32 gang)
{
	return gang < DISPATCH_GANGS_MAX && world->gates[gang];
}

/* Simulated tasks are their own processes. */
static inline u32 gang_of(const struct task_struct *p, const struct dispatch_task *task)
{
	(void)p;
	return task->gang;
}

/* Never true here, since a simulated task is never inside: see is_in_call(). */
static inline bool is_current(const struct task_struct *p)
{
	(void)p;
	return false;
}

/* Never long ago, so that no task takes a breath: the simulated kernel has no watchdog. */
static inline u64 parked_since(const struct task_struct *p)
{
	(void)p;
	return world->now;
}

/* A simulated task holds no locks when it is preempted or woken, and it is not queued after its end. */
static inline bool is_in_call(const struct task_struct *p)
{
	(void)p;
	return false;
}

static inline bool sleeps_deeply(const struct task_struct *p)
{
	(void)p;
	return false;
}

static inline bool is_ending(const struct task_struct *p)
{
	(void)p;
	return false;
}

/* Marsaglia's xorshift, 2003. */
static inline u32 random_bits(void)
{
	world->random ^= world->random << 13;
	world->random ^= world->random >> 7;
	world->random ^= world->random << 17;
	return world->random >> 32;
}

static inline struct dispatch_rescues *rescues(void)
{
	return &world->rescues;
}

static inline u64 world_pass(void)
{
	return world->pass;
}

static inline void world_pass_at_least(u64 pass)
{
	if ((s64)(world->pass - pass) < 0)
		world->pass = pass;
}

static inline u64 world_loan_pass(void)
{
	return world->loan_pass;
}

static inline void world_loan_pass_at_least(u64 pass)
{
	if ((s64)(world->loan_pass - pass) < 0)
		world->loan_pass = pass;
}

static inline u32 add(u32 *counter, s32 by)
{
	u32 was = *counter;

	*counter += by;
	return was;
}

static inline void add64(u64 *counter, u64 by)
{
	*counter += by;
}

static inline u64 swap64(u64 *p, u64 by)
{
	u64 was = *p;

	*p = by;
	return was;
}

static inline u32 swap32(u32 *p, u32 by)
{
	u32 was = *p;

	*p = by;
	return was;
}

static inline bool replace64(u64 *p, u64 is, u64 by)
{
	if (*p != is)
		return false;
	*p = by;
	return true;
}

static inline u64 *mask_at(u32 id, enum mask which)
{
	u32 index = id < world->rules.units ? id : world->rules.units;

	return world->masks + (u64)(index * 2 + which) * world->words;
}

static inline bool mask_test(u32 id, enum mask which, u32 cpu)
{
	return mask_at(id, which)[cpu / 64] >> cpu % 64 & 1;
}

static inline void mask_set(u32 id, enum mask which, u32 cpu)
{
	mask_at(id, which)[cpu / 64] |= 1ull << cpu % 64;
}

static inline void mask_clear(u32 id, enum mask which, u32 cpu)
{
	mask_at(id, which)[cpu / 64] &= ~(1ull << cpu % 64);
}

static inline bool mask_take(u32 id, enum mask which, u32 cpu)
{
	bool was = mask_test(id, which, cpu);

	mask_clear(id, which, cpu);
	return was;
}

static inline bool mask_meets(u32 id, enum mask which, const struct task_struct *p)
{
	const u64 *mask = mask_at(id, which);

	for (u32 word = 0; word < world->words; word++)
		if (mask[word] & (p->allowed ? p->allowed[word] : ~0ull))
			return true;
	return false;
}

static inline bool may_run(const struct task_struct *p, u32 cpu)
{
	return !p->allowed || p->allowed[cpu / 64] >> cpu % 64 & 1;
}

/* The simulated kernel has no higher classes. */
static inline bool higher_has(const struct dispatch_cpu *cpu)
{
	(void)cpu;
	return false;
}

/* The simulation is sequential: no other task can arrive first. */
static inline bool comes_next(const struct task_struct *p, u32 cpu)
{
	return may_run(p, cpu);
}

/* No task is preempted within the simulated kernel. */
static inline bool is_held_here(const struct task_struct *p, u64 enq_flags)
{
	(void)p;
	(void)enq_flags;
	return false;
}

static inline bool idles(u32 cpu)
{
	return world->idle[cpu / 64] >> cpu % 64 & 1;
}

static inline bool scx_bpf_test_and_clear_cpu_idle(u32 cpu)
{
	bool was = world->idle[cpu / 64] >> cpu % 64 & 1;

	world->idle[cpu / 64] &= ~(1ull << cpu % 64);
	world->idling -= was;
	return was;
}

/*
 * The CPU in both masks nearest to `last`, within the task's affinity: in its cache, in its node, in its socket, then anywhere;
 * DISPATCH_NOBODY if no CPU qualifies. A NULL mask has all CPUs.
 */
static inline u32 nearest(const struct task_struct *p, const u64 *mask, const u64 *other, u32 last)
{
	const struct dispatch_cpu *from = cpu_at(last);
	u32 groups[4] = { from ? from->cache : DISPATCH_NOBODY, from ? from->node : DISPATCH_NOBODY,
			  from ? from->socket : DISPATCH_NOBODY, DISPATCH_NOBODY };

	for (u32 level = 0; level < 4; level++) {
		const u64 *group = groups[level] == DISPATCH_NOBODY ? NULL : world->groups + (u64)groups[level] * world->words;

		if (!group && level < 3)
			continue;
		for (u32 word = 0; word < world->words; word++) {
			u64 found = (mask ? mask[word] : ~0ull) & (other ? other[word] : ~0ull) & (group ? group[word] : ~0ull) &
				    (p->allowed ? p->allowed[word] : ~0ull);

			if (found)
				return word * 64 + __builtin_ctzll(found);
		}
	}
	return DISPATCH_NOBODY;
}

/* Removes the CPU nearest to `last`, within the task's affinity, from a mask; DISPATCH_NOBODY if it has no such CPU. */
static inline u32 mask_take_near(const struct task_struct *p, u32 id, enum mask which, u32 last)
{
	u32 found = nearest(p, mask_at(id, which), NULL, last);

	if (found != DISPATCH_NOBODY)
		mask_clear(id, which, found);
	return found;
}

static inline bool any_idle(void)
{
	return world->idling;
}

/* Claims the idle CPU of a mask nearest to `last`, within the task's affinity; -1 if no CPU qualifies. */
static inline s32 pick_idle(const struct task_struct *p, u32 id, enum mask which, u32 last)
{
	u32 found = nearest(p, which == MASK_ALL ? NULL : mask_at(id, which), world->idle, last);

	return found != DISPATCH_NOBODY && scx_bpf_test_and_clear_cpu_idle(found) ? (s32)found : -1;
}

#endif
