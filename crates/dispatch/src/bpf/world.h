/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The tables as the kernel's maps. `units`, `accounts`, `cpus` and the section `.data.rules` are mapped into the
 * loader's memory (in_kernel.rs). The loader reads the counters there, at no cost to the scheduler.
 */
#ifndef DISPATCH_BPF_WORLD_H
#define DISPATCH_BPF_WORLD_H

#define CGROUP_DEPTH_MAX 32 /* below the root; a cgroup that lies deeper belongs to no unit */
#define RETRIES_MAX      8  /* attempts, if other CPUs claim a CPU that was found in a mask */
#define MACHINE          DISPATCH_UNITS_MAX /* the machine's number in the table of masks, after those of the units */

/* Inlined into their callers, which hold the RCU read lock that access to the masks requires. */
__hidden int dispatch_own(struct dispatch_owned *owned);
__hidden int dispatch_set_unit(struct dispatch_setting *setting);

struct mask_slot {
	struct bpf_cpumask __kptr *set;
};

SEC(".data.rules") struct dispatch_rules dispatch_rules;
SEC(".data.end") struct dispatch_end dispatch_end;
/* Set before loading: the verifier removes the code that they disable. */
SEC(".rodata.seated") const volatile u32 dispatch_seats;
SEC(".rodata.disciplined") const volatile u32 dispatch_disciplined;
u64 pass_of_world;
struct dispatch_rescues rescues_of_world;
u64 pass_of_loans;
u32 away_of_all;
volatile u32 nought_of_all; /* always 0, which neither the compiler nor the verifier knows: see matches.h */
u32 waits_of_unit[DISPATCH_UNITS_MAX];
u32 waits_of_block[DISPATCH_UNITS_MAX / WAITS_BLOCK];

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DISPATCH_UNITS_MAX);
	__type(key, u32);
	__type(value, struct dispatch_unit);
} units SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DISPATCH_CPUS_MAX);
	__type(key, u32);
	__type(value, struct dispatch_cpu);
} cpus SEC(".maps");

/* Index: cpu * rules.units + unit. Each account is written by its CPU alone, and the accounts of one CPU are adjacent. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* units times CPUs: set before loading */
	__type(key, u32);
	__type(value, struct dispatch_account);
} accounts SEC(".maps");

/* The next three are for waits.h. Each entry is written by its CPU alone. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* CPUs: set before loading */
	__type(key, u32);
	__type(value, struct dispatch_history);
} histories SEC(".maps");

/* Index: cpu * (rules.units + 1) + unit, where higher classes have the number of units. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* units, and one more, times CPUs: set before loading */
	__type(key, u32);
	__type(value, struct dispatch_occupancy);
} occupancies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* CPUs: set before loading */
	__type(key, u32);
	__type(value, struct dispatch_pairs);
} pairs SEC(".maps");

/* Two masks per unit and two of the machine. Index: 2 * id + which, where the machine's id is MACHINE. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * (DISPATCH_UNITS_MAX + 1));
	__type(key, u32);
	__type(value, struct mask_slot);
} masks SEC(".maps");

/* The masks of the groups of near CPUs, by number of the group. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * DISPATCH_CPUS_MAX);
	__type(key, u32);
	__type(value, struct mask_slot);
} groups SEC(".maps");

/* A scratch mask per CPU for intersections: the callbacks that use it do not nest. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DISPATCH_CPUS_MAX);
	__type(key, u32);
	__type(value, struct mask_slot);
} scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct dispatch_task);
} tasks SEC(".maps");

/*
 * The unit of a cgroup, by the cgroup's id (its directory's inode). A cgroup that is not listed belongs to the unit of its
 * nearest listed ancestor.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16 * DISPATCH_UNITS_MAX); /* a unit's own cgroup, and foreign ones that have its members */
	__type(key, u64);
	__type(value, u32);
} unit_of_cgroup SEC(".maps");

/* The contract's rules for processes that execute a program. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DISPATCH_UNITS_MAX + 2 * DISPATCH_MATCHES_MAX);
	__type(key, u32);
	__type(value, struct dispatch_match);
} matches SEC(".maps");

static __always_inline struct dispatch_rules *rules(void)
{
	return &dispatch_rules;
}

static __always_inline struct dispatch_unit *unit_at(u32 id)
{
	return id < dispatch_rules.units ? bpf_map_lookup_elem(&units, &id) : NULL;
}

static __always_inline struct dispatch_cpu *cpu_at(u32 id)
{
	return id < dispatch_rules.cpus ? bpf_map_lookup_elem(&cpus, &id) : NULL;
}

static __always_inline struct dispatch_account *account_at(u32 id, u32 cpu)
{
	u32 at = cpu * dispatch_rules.units + id;

	return id < dispatch_rules.units && cpu < dispatch_rules.cpus ? bpf_map_lookup_elem(&accounts, &at) : NULL;
}

static __always_inline struct dispatch_history *history_at(u32 cpu)
{
	return bpf_map_lookup_elem(&histories, &cpu);
}

static __always_inline struct dispatch_pairs *pairs_at(u32 cpu)
{
	return bpf_map_lookup_elem(&pairs, &cpu);
}

static __always_inline struct dispatch_occupancy *occupancy_at(u32 id, u32 cpu)
{
	u32 last = dispatch_rules.units, at = cpu * (last + 1) + (id < last ? id : last);

	return bpf_map_lookup_elem(&occupancies, &at);
}

/* Bounds an index by a power of two, in a form that the compiler keeps and the verifier recognises. */
static __always_inline u32 masked(u32 index, u32 size)
{
	asm volatile("" : "+r"(index));
	return index & (size - 1);
}

static __always_inline u32 waits_in(u32 id)
{
	return waits_of_unit[masked(id, DISPATCH_UNITS_MAX)];
}

/*
 * A bit mask of the counters, of eight, that are above 0: each bit is the sign of the negated counter. The code has no branch,
 * since the verifier would explore all 256 combinations. The `asm` hides the counter from the compiler, which would insert
 * branches.
 */
static __always_inline u32 bits_of(const u32 *counters)
{
	u32 bits = 0, slot;

#pragma unroll
	for (slot = 0; slot < 8; slot++) {
		u64 counter = counters[slot];

		asm volatile("" : "+r"(counter));
		bits |= (u32)(-counter >> 63) << slot;
	}
	return bits;
}

static __always_inline u32 waiting(u32 block)
{
	u32 at = masked(block, DISPATCH_UNITS_MAX / WAITS_BLOCK), bits;
	const u32 *counters = &waits_of_unit[at * WAITS_BLOCK];

	if (!waits_of_block[at])
		return 0;
	bits = bits_of(counters) | bits_of(counters + 8) << 8;
	if (dispatch_rules.units > 16)
		bits |= bits_of(counters + 16) << 16 | bits_of(counters + 24) << 24;
	return bits;
}

/* For lowest(): multiplying a de Bruijn sequence by a single bit gives a different number in the top five bits for each bit. */
static const u8 place_of_bit[32] = {
	0, 1, 28, 2, 29, 14, 24, 3, 30, 22, 20, 15, 25, 17, 4, 8, 31, 27, 13, 23, 21, 19, 16, 7, 26, 12, 18, 6, 11, 5, 10, 9,
};

static __always_inline u32 lowest(u32 bits)
{
	return place_of_bit[(u32)((bits & -bits) * 0x077cb531u) >> 27];
}

static __always_inline void waits_add(u32 id, s32 by)
{
	__sync_fetch_and_add(&waits_of_unit[masked(id, DISPATCH_UNITS_MAX)], by);
	__sync_fetch_and_add(&waits_of_block[masked(id / WAITS_BLOCK, DISPATCH_UNITS_MAX / WAITS_BLOCK)], by);
}

static __always_inline struct dispatch_task *task_of(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, NULL, 0);
}

static __always_inline struct dispatch_task *new_task(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

#include "gates.h"

/* The unit of a cgroup or of its nearest ancestor that belongs to one. */
static u32 unit_of_tree(struct cgroup *cgroup)
{
	u32 *unit, depth;
	u64 id;

	bpf_for(depth, 0, CGROUP_DEPTH_MAX) {
		if (!cgroup)
			break;
		id = cgroup->kn->id;
		unit = bpf_map_lookup_elem(&unit_of_cgroup, &id);
		if (unit)
			return *unit;
		cgroup = cgroup->self.parent->cgroup; /* of the root: NULL, since reading through NULL gives 0 here */
	}
	return DISPATCH_COMMON;
}

/* The unit of a task that is in, or about to enter, a cgroup. */
static u32 unit_in(struct task_struct *p, struct cgroup *cgroup)
{
	return p->flags & PF_KTHREAD ? DISPATCH_KERNEL : unit_of_tree(cgroup);
}

static u32 unit_of(struct task_struct *p, struct scx_init_task_args *args)
{
	/* A kernel without CONFIG_EXT_GROUP_SCHED does not pass the cgroup. */
	return unit_in(p, bpf_core_field_exists(args->cgroup) ? args->cgroup : NULL);
}

/*
 * A new task inherits its parent's gang. It also inherits its parent's unit, if that was determined by the parent's program,
 * user or groups: these are the same for the new task. In a unit's control group, it inherits only a unit within the same
 * outermost unit.
 */
static void inherit(struct dispatch_task *task, struct scx_init_task_args *args)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct dispatch_task *parent = args->fork ? task_of(current) : NULL;
	struct dispatch_unit *around, *own;
	u32 unit;

	task->heir = DISPATCH_NOBODY;
	if (gated() && parent)
		task->gang = gang_of(current, parent);
	if (!parent || parent->placed == DISPATCH_BY_CGROUP)
		return;
	unit = parent->destined == DISPATCH_NOBODY ? parent->pays : parent->destined;
	if (parent->placed == DISPATCH_BY_COMMAND)
		task->heir = unit;
	around = unit_at(task->unit);
	own = unit_at(unit);
	if (task->unit != DISPATCH_COMMON && (!around || !own || around->top != own->top))
		return;
	task->unit = unit;
	task->placed = parent->placed;
	task->placed_at = parent->placed_at;
}

static const struct dispatch_match *match_at(u32 number)
{
	return bpf_map_lookup_elem(&matches, &number);
}

static u32 parent_of(u32 id)
{
	struct dispatch_unit *unit = unit_at(id);

	return unit ? unit->parent : DISPATCH_NOBODY;
}

static __always_inline u32 nought(void)
{
	return nought_of_all;
}

VERIFIED_ALONE(bool) has_group(u32 group);

#include "../matches.h"

#define GROUPS_MAX 65536u /* the kernel's NGROUPS_MAX; a power of two */

/* Whether the current task is in a group: a binary search, since groups ascend. */
VERIFIED_ALONE(bool) has_group(u32 group)
{
	const struct cred *cred = bpf_get_current_task_btf()->cred;
	const struct group_info *groups = cred->group_info;
	u32 low = 0, high = groups->ngroups, nothing = nought(), middle, found, step;

	if (cred->egid.val == group)
		return true;
	bpf_for(step, 0, 17) {
		low += nothing;
		high += nothing;
		if (low >= high)
			break;
		middle = (low + high) / 2;
		if (bpf_probe_read_kernel(&found, sizeof(found), &groups->gid[middle % GROUPS_MAX]))
			break;
		if (found == group)
			return true;
		if (found < group)
			low = middle + 1;
		else
			high = middle;
	}
	return false;
}

/* The names of the program that the current task has just executed. Its arguments are ignored: it can choose them. */
static void read_facts(struct task_struct *p, struct linux_binprm *bprm, struct dispatch_facts *facts)
{
	const u32 room = DISPATCH_TEXTS - DISPATCH_FILE_NAME - 1;
	u8 *texts = facts->texts.bytes;
	long length = bpf_probe_read_kernel_str(&texts[DISPATCH_FILE_NAME], room, bprm->filename);
	u32 at, nothing = nought();

	facts->user = p->cred->euid.val;
	facts->program = nothing + DISPATCH_TEXTS - 1;
	if (bpf_probe_read_kernel_str(texts, DISPATCH_FILE_NAME, p->mm->exe_file->f_path.dentry->d_name.name) >= DISPATCH_FILE_NAME)
		texts[0] = 0; /* truncated */
	if (length <= 0 || length >= room)
		return; /* none, or truncated */
	facts->program = nothing + DISPATCH_FILE_NAME;
	/* Without `nothing` the compiler drops the remainder, since it knows the bounds; 6.12's verifier does not. */
	bpf_for(at, DISPATCH_FILE_NAME, DISPATCH_TEXTS)
		if (texts[(at + nothing) % DISPATCH_TEXTS] == '/')
			facts->program = at + 1;
}

static __always_inline void set_slice(struct task_struct *p, u64 ns)
{
	task_set_slice(p, ns);
}

static __always_inline struct dispatch_rescues *rescues(void)
{
	return &rescues_of_world;
}

static __always_inline u64 world_pass(void)
{
	return pass_of_world;
}

/*
 * If two CPUs write at once, the smaller value may win. Harmless: the clock lags for a moment, and a waking unit gets a bit
 * more credit.
 */
static __always_inline void world_pass_at_least(u64 pass)
{
	if ((s64)(pass_of_world - pass) < 0)
		pass_of_world = pass;
}

static __always_inline u64 swap64(u64 *p, u64 by)
{
	return __sync_lock_test_and_set(p, by);
}

static __always_inline u32 swap32(u32 *p, u32 by)
{
	return __sync_lock_test_and_set(p, by);
}

static __always_inline bool replace64(u64 *p, u64 is, u64 by)
{
	return __sync_val_compare_and_swap(p, is, by) == is;
}

static __always_inline bool disciplined(void)
{
	return dispatch_disciplined;
}

static __always_inline bool seated(void)
{
	return dispatch_seats;
}

static __always_inline u32 *away(void)
{
	return &away_of_all;
}

static __always_inline u32 random_bits(void)
{
	return bpf_get_prandom_u32();
}

static __always_inline u64 world_loan_pass(void)
{
	return pass_of_loans;
}

/* The same race is harmless here: a unit that begins to borrow gets a bit more credit. */
static __always_inline void world_loan_pass_at_least(u64 pass)
{
	if ((s64)(pass_of_loans - pass) < 0)
		pass_of_loans = pass;
}

static __always_inline u32 add(u32 *counter, s32 by)
{
	return __sync_fetch_and_add(counter, by);
}

static __always_inline void add64(u64 *counter, u64 by)
{
	__sync_fetch_and_add(counter, by);
}

/* A mask of a unit or of the machine; NULL before dispatch_init() has made it. */
static __always_inline struct bpf_cpumask *mask_at(u32 id, enum mask which)
{
	u32 index = 2 * (id < MACHINE ? id : MACHINE) + which;
	struct mask_slot *slot = bpf_map_lookup_elem(&masks, &index);

	return slot ? slot->set : NULL;
}

static __always_inline const struct cpumask *plain(struct bpf_cpumask *mask)
{
	return (const struct cpumask *)mask;
}

static __always_inline bool mask_test(u32 id, enum mask which, u32 cpu)
{
	struct bpf_cpumask *mask = mask_at(id, which);

	return mask && bpf_cpumask_test_cpu(cpu, plain(mask));
}

static __always_inline void mask_set(u32 id, enum mask which, u32 cpu)
{
	struct bpf_cpumask *mask = mask_at(id, which);

	if (mask)
		bpf_cpumask_set_cpu(cpu, mask);
}

static __always_inline void mask_clear(u32 id, enum mask which, u32 cpu)
{
	struct bpf_cpumask *mask = mask_at(id, which);

	if (mask)
		bpf_cpumask_clear_cpu(cpu, mask);
}

static __always_inline bool mask_take(u32 id, enum mask which, u32 cpu)
{
	struct bpf_cpumask *mask = mask_at(id, which);

	return mask && bpf_cpumask_test_and_clear_cpu(cpu, mask);
}

static __always_inline bool mask_meets(u32 id, enum mask which, struct task_struct *p)
{
	struct bpf_cpumask *mask = mask_at(id, which);

	return mask && bpf_cpumask_intersects(plain(mask), p->cpus_ptr);
}

static __always_inline bool may_run(struct task_struct *p, u32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/* Whether a higher class has a CPU: none of our tasks runs there. (Also true of an idle or switching CPU: harmless.) */
static __always_inline bool higher_has(const struct dispatch_cpu *cpu)
{
	return cpu->runs == DISPATCH_NOBODY;
}

/* Whether a task dispatched directly to this CPU would be next: its local queue is empty. */
static __always_inline bool comes_next(struct task_struct *p, u32 cpu)
{
	return scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL) <= 0 && may_run(p, cpu);
}

/*
 * Whether the task has migration disabled. On kernels with preemptible RCU (where tasks count their read locks), a running BPF
 * program disables migration of the current task. This program's own effect is subtracted.
 */
static __always_inline bool is_held_here(struct task_struct *p, u64 enq_flags)
{
	u32 own = 0;

	if (bpf_core_field_exists(p->rcu_read_lock_nesting) && bpf_get_current_task_btf() == p)
		own = enq_flags & SCX_ENQ_REENQ && !enq_immed() ? 2 : 1; /* dispatch_cpu_release() runs, too */
	return p->migration_disabled > own;
}

/* The mask of a group of near CPUs; NULL if there is no such group. */
static __always_inline struct bpf_cpumask *group_at(u32 group)
{
	struct mask_slot *slot = bpf_map_lookup_elem(&groups, &group);

	return slot ? slot->set : NULL;
}

/* The scratch mask of the calling CPU, or NULL. */
static __always_inline struct bpf_cpumask *scratch(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct mask_slot *slot = bpf_map_lookup_elem(&scratches, &cpu);

	return slot ? slot->set : NULL;
}

/* Whether the task may run on every CPU. */
static __always_inline bool is_free(struct task_struct *p)
{
	return (u32)p->nr_cpus_allowed >= dispatch_rules.cpus;
}

/*
 * The CPUs of a mask within the task's affinity and within a group of near CPUs, in the scratch mask. With DISPATCH_NOBODY as
 * the group: all CPUs. NULL if the intersection is empty.
 */
static const struct cpumask *near_part(struct task_struct *p, const struct cpumask *mask, u32 group)
{
	struct bpf_cpumask *part = scratch(), *near = NULL;

	if (!part)
		return NULL;
	if (group != DISPATCH_NOBODY && !(near = group_at(group)))
		return NULL;
	if (!bpf_cpumask_and(part, mask, near ? plain(near) : p->cpus_ptr))
		return NULL;
	if (near && !is_free(p) && !bpf_cpumask_and(part, plain(part), p->cpus_ptr))
		return NULL;
	return plain(part);
}

/* Removes the CPU nearest to `last`, within the task's affinity, from a mask; DISPATCH_NOBODY if it has no such CPU. */
static u32 mask_take_near(struct task_struct *p, u32 id, enum mask which, u32 last)
{
	struct dispatch_cpu *from = cpu_at(last);
	struct bpf_cpumask *mask = mask_at(id, which);
	const struct cpumask *part = NULL;
	u32 try, cpu;

	if (!mask)
		return DISPATCH_NOBODY;
	bpf_for(try, 0, RETRIES_MAX) {
		part = NULL;
		if (from && from->cache != DISPATCH_NOBODY)
			part = near_part(p, plain(mask), from->cache);
		if (!part && from && from->node != DISPATCH_NOBODY)
			part = near_part(p, plain(mask), from->node);
		if (!part && from && from->socket != DISPATCH_NOBODY)
			part = near_part(p, plain(mask), from->socket);
		if (!part)
			part = near_part(p, plain(mask), DISPATCH_NOBODY);
		if (!part)
			break;
		cpu = bpf_cpumask_first(part);
		if (cpu >= dispatch_rules.cpus)
			break;
		if (bpf_cpumask_test_and_clear_cpu(cpu, mask))
			return cpu;
	}
	return DISPATCH_NOBODY;
}

/* Claims an idle CPU of a mask, within the task's affinity and a group; negative if no CPU qualifies. */
static s32 pick_idle_in(struct task_struct *p, const struct cpumask *mask, u32 group)
{
	const struct cpumask *part;

	if (group == DISPATCH_NOBODY && is_free(p))
		return scx_bpf_pick_idle_cpu(mask, 0);
	part = near_part(p, mask, group);
	return part ? scx_bpf_pick_idle_cpu(part, 0) : -1;
}

static bool idles(u32 cpu)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	bool it = bpf_cpumask_test_cpu(cpu, idle);

	scx_bpf_put_idle_cpumask(idle);
	return it;
}

static bool any_idle(void)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	bool any = !bpf_cpumask_empty(idle);

	scx_bpf_put_idle_cpumask(idle);
	return any;
}

/* Claims the idle CPU of a mask nearest to `last`, within the task's affinity; negative if no CPU qualifies. */
static s32 pick_idle(struct task_struct *p, u32 id, enum mask which, u32 last)
{
	struct dispatch_cpu *from = cpu_at(last);
	struct bpf_cpumask *own = NULL;
	const struct cpumask *mask, *idle;
	s32 found = -1;
	bool any;

	if (which != MASK_ALL && !(own = mask_at(id, which)))
		return -1;
	mask = own ? plain(own) : p->cpus_ptr;
	/* Usually no CPU is idle, and then the search by distance is skipped. */
	idle = scx_bpf_get_idle_cpumask();
	any = bpf_cpumask_intersects(idle, mask);
	scx_bpf_put_idle_cpumask(idle);
	if (!any)
		return -1;
	if (from && from->cache != DISPATCH_NOBODY)
		found = pick_idle_in(p, mask, from->cache);
	if (found < 0 && from && from->node != DISPATCH_NOBODY)
		found = pick_idle_in(p, mask, from->node);
	if (found < 0 && from && from->socket != DISPATCH_NOBODY)
		found = pick_idle_in(p, mask, from->socket);
	return found < 0 ? pick_idle_in(p, mask, DISPATCH_NOBODY) : found;
}

static bool fits_pool(const struct dispatch_task *task, u32 pool, u64 late);

/*
 * See the list in ../world.h. Tasks with migration disabled are skipped: if one were moved, the kernel would end the scheduler.
 * Usually these queues have none.
 */
static __always_inline bool take_fitting(u64 queue, u32 pool, u64 late)
{
	struct bpf_iter_scx_dsq at;
	struct dispatch_task *task;
	struct task_struct *p;
	bool took = false;
	u32 look;

	if (!bpf_iter_scx_dsq_new(&at, queue, 0)) {
		bpf_for(look, 0, SEAT_LOOKS) {
			p = bpf_iter_scx_dsq_next(&at);
			if (!p)
				break;
			if (p->migration_disabled || !may_run(p, bpf_get_smp_processor_id()) || !(task = task_of(p)) ||
			    !fits_pool(task, pool, late) || !move_here(&at, p))
				continue;
			took = true;
			break;
		}
	}
	bpf_iter_scx_dsq_destroy(&at);
	return took;
}

#endif
