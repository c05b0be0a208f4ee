/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Traces which kernel locks the threads of one program wait for, and what wakes these threads.
 *
 * Problem: lock waits in the kernel and wake-ups leave no record. They occur up to some hundred thousand times a second, so
 * reporting each event would cost more than the event itself.
 *
 * Algorithm: events are aggregated in the kernel. Lock waits: by the waiter's stack, and by the lock if it is a variable of the
 * kernel. Wake-ups: by the names of waker and sleeper, and by the sleeper's stack. A process belongs to the program if its parent
 * does, or if its parent is `maker`, which starts the program.
 *
 * Limits: events that do not fit into a table are counted in `lost`. Lock waits of an interrupt count for the interrupted thread.
 */
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;
typedef _Bool bool;
typedef u8 __u8;
typedef unsigned short u16;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6, BPF_MAP_TYPE_STACK_TRACE = 7 };
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "Dual MIT/GPL";

/* The fields of kernel types that are used here; CO-RE relocates them by name. */
#define CORE __attribute__((preserve_access_index))
typedef struct { s64 counter; } atomic_long_t;
struct mutex { atomic_long_t owner; } CORE;
struct rw_semaphore { atomic_long_t owner; } CORE;
struct task_struct { s32 pid, tgid; u32 __state; s32 on_cpu; char comm[16]; } CORE;

extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *task) __ksym __weak;
/* The kernel's variables are within this distance of its start. */
extern const void _stext __ksym;
#define IMAGE_MAX (128ull << 20)

/* include/trace/events/lock.h */
enum { SPIN = 1, READ = 2, WRITE = 4, RT = 8, PERCPU = 16, MUTEX = 32 };

#define STACK_MAX 64
#define HOLDER_STACK_MAX 24
#define TABLE_MAX 16384
#define NAME 16

/* The process that starts the program. */
const volatile u32 maker;

struct lock_key {
	u64 lock; /* 0: not a variable of the kernel */
	s32 stack;
	u32 flags;
};
struct sum {
	u64 ns;
	u64 times;
};
struct waiting_key {
	u64 lock;
	u64 tid;
};
struct waiting {
	u64 since;
	u32 flags;
	s32 stack;
	u32 holder_stack; /* 0: none */
	u32 holder_runs; /* 0: it sleeps, 1: it runs or is ready to, 2: unknown */
	char holder[NAME];
};
struct hold_key {
	struct lock_key lock;
	u32 stack;
	u32 runs;
	char name[NAME];
};
struct wake_key {
	s32 stack;
	u32 who; /* 0: a thread of the program, 1: another program, 2: an interrupt */
	char waiter[NAME];
	char waker[NAME];
};
struct slept {
	u64 since;
	s32 stack;
	u32 unused;
};
struct holder_stack {
	u64 at[HOLDER_STACK_MAX];
};

#define TABLE(name, kind, size, k, v)                                                                                          \
	struct {                                                                                                                   \
		__uint(type, kind);                                                                                                    \
		__uint(max_entries, size);                                                                                             \
		__type(key, k);                                                                                                        \
		__type(value, v);                                                                                                      \
	} name SEC(".maps")

TABLE(program, BPF_MAP_TYPE_HASH, 65536, u32, u8);
TABLE(under_way, BPF_MAP_TYPE_HASH, TABLE_MAX, struct waiting_key, struct waiting);
TABLE(asleep, BPF_MAP_TYPE_HASH, 65536, u32, struct slept);
TABLE(locks, BPF_MAP_TYPE_HASH, TABLE_MAX, struct lock_key, struct sum);
TABLE(holds, BPF_MAP_TYPE_HASH, TABLE_MAX, struct hold_key, struct sum);
TABLE(wakes, BPF_MAP_TYPE_HASH, TABLE_MAX, struct wake_key, struct sum);
TABLE(holder_stacks, BPF_MAP_TYPE_HASH, 4096, u32, struct holder_stack);
TABLE(scratch, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, struct holder_stack);
TABLE(depth, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, s32);
TABLE(lost, BPF_MAP_TYPE_ARRAY, 1, u32, u64);

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, TABLE_MAX);
	__uint(key_size, sizeof(u32));
	__uint(value_size, STACK_MAX * sizeof(u64));
} stacks SEC(".maps");

static bool is_ours(u32 tgid)
{
	return bpf_map_lookup_elem(&program, &tgid) != 0;
}

static void lose(void)
{
	u32 first = 0;
	u64 *count = bpf_map_lookup_elem(&lost, &first);

	if (count)
		__sync_fetch_and_add(count, 1);
}

/* Adds to a sum. Two CPUs may try to create the sum at once: the one that fails finds the sum present. */
static void add(void *table, const void *key, u64 ns)
{
	struct sum one = { ns, 1 };
	struct sum *sum = bpf_map_lookup_elem(table, key);

	if (!sum) {
		if (!bpf_map_update_elem(table, key, &one, BPF_NOEXIST))
			return;
		sum = bpf_map_lookup_elem(table, key);
	}
	if (!sum) {
		lose();
		return;
	}
	__sync_fetch_and_add(&sum->ns, ns);
	__sync_fetch_and_add(&sum->times, 1);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(made, struct task_struct *parent, struct task_struct *child)
{
	u32 from = parent->tgid, to = child->tgid;
	u8 yes = 1;

	if (from != to && (from == maker || is_ours(from)) && bpf_map_update_elem(&program, &to, &yes, BPF_ANY))
		lose();
	return 0;
}

/* Stores the stack of a sleeping thread; returns the stack's hash, or 0 if the stack cannot be read. */
static u32 stack_of(s32 pid)
{
	u32 first = 0, hash = 2166136261u;
	struct holder_stack *stack = bpf_map_lookup_elem(&scratch, &first);
	struct task_struct *task;
	s64 size;

	if (!stack || !bpf_task_from_pid || !bpf_task_release)
		return 0;
	task = bpf_task_from_pid(pid);
	if (!task)
		return 0;
	__builtin_memset(stack, 0, sizeof(*stack));
	size = bpf_get_task_stack(task, stack->at, sizeof(stack->at), 0);
	bpf_task_release(task);
	if (size <= 0)
		return 0;
	for (int i = 0; i < HOLDER_STACK_MAX; i++)
		hash = (hash ^ (u32)stack->at[i] ^ (u32)(stack->at[i] >> 32)) * 16777619u;
	hash = hash ? hash : 1;
	bpf_map_update_elem(&holder_stacks, &hash, stack, BPF_ANY);
	return hash;
}

/* The low bits of a lock's owner are flags. A reader that is recorded as the owner is only one of several, and may be gone. */
#define OWNER_FLAGS 7ull
#define READER_OWNED 1ull

/* Records what the holder of a lock does, if the lock stores its holder. */
static void find_holder(void *lock, struct waiting *waiting)
{
	struct task_struct *holder = 0;
	u32 flags = waiting->flags;
	u64 owner = 0;
	s32 pid = 0;

	waiting->holder_runs = 2;
	if (flags & MUTEX)
		owner = BPF_CORE_READ((struct mutex *)lock, owner.counter);
	else if ((flags & (READ | WRITE)) && !(flags & (SPIN | RT | PERCPU)))
		owner = BPF_CORE_READ((struct rw_semaphore *)lock, owner.counter);
	if (!(flags & MUTEX) && (owner & READER_OWNED))
		return;
	holder = (struct task_struct *)(owner & ~OWNER_FLAGS);
	if (!holder)
		return;
	/* If the holder releases the lock and exits at this moment, this reads stale data or zeros. */
	pid = BPF_CORE_READ(holder, pid);
	BPF_CORE_READ_STR_INTO(&waiting->holder, holder, comm);
	waiting->holder_runs = BPF_CORE_READ(holder, on_cpu) || !BPF_CORE_READ(holder, __state);
	if (!waiting->holder_runs)
		waiting->holder_stack = stack_of(pid);
}

SEC("tp_btf/contention_begin")
int BPF_PROG(begins, void *lock, u32 flags)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct waiting_key key = { (u64)lock, (u32)thread };
	struct waiting waiting = {};

	if (!is_ours(thread >> 32))
		return 0;
	/* For a mutex, the tracepoint fires twice in one wait: when it spins, and when it sleeps. */
	if (bpf_map_lookup_elem(&under_way, &key))
		return 0;
	waiting.since = bpf_ktime_get_ns();
	waiting.flags = flags;
	waiting.stack = bpf_get_stackid(ctx, &stacks, 0);
	find_holder(lock, &waiting);
	if (bpf_map_update_elem(&under_way, &key, &waiting, BPF_ANY))
		lose();
	return 0;
}

SEC("tp_btf/contention_end")
int BPF_PROG(ends, void *lock, int result)
{
	struct waiting_key key = { (u64)lock, (u32)bpf_get_current_pid_tgid() };
	struct waiting *waiting = bpf_map_lookup_elem(&under_way, &key);
	struct hold_key hold = {};
	u64 ns;

	if (!waiting)
		return 0;
	ns = bpf_ktime_get_ns() - waiting->since;
	if ((u64)lock - (u64)&_stext < IMAGE_MAX)
		hold.lock.lock = (u64)lock;
	hold.lock.stack = waiting->stack;
	hold.lock.flags = waiting->flags;
	add(&locks, &hold.lock, ns);
	hold.stack = waiting->holder_stack;
	hold.runs = waiting->holder_runs;
	__builtin_memcpy(hold.name, waiting->holder, NAME);
	add(&holds, &hold, ns);
	bpf_map_delete_elem(&under_way, &key);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switches, bool preempted, struct task_struct *prev, struct task_struct *next, u32 state)
{
	struct slept slept = {};
	u32 tid = prev->pid;

	if (preempted || !state || !is_ours(prev->tgid))
		return 0;
	slept.since = bpf_ktime_get_ns();
	slept.stack = bpf_get_stackid(ctx, &stacks, 0);
	if (bpf_map_update_elem(&asleep, &tid, &slept, BPF_ANY))
		lose();
	return 0;
}

/*
 * Changes the nesting depth of interrupts, timers and softirqs of this CPU. The ends are attached first: an end whose beginning
 * was missed is ignored.
 */
static int deeper(s32 by)
{
	u32 first = 0;
	s32 *now = bpf_map_lookup_elem(&depth, &first);

	if (now && *now + by >= 0)
		*now += by;
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(end_interrupt) { return deeper(-1); }
SEC("tp_btf/softirq_exit")
int BPF_PROG(end_softirq) { return deeper(-1); }
SEC("tp_btf/hrtimer_expire_exit")
int BPF_PROG(end_timer) { return deeper(-1); }
SEC("tp_btf/irq_handler_entry")
int BPF_PROG(interrupt) { return deeper(1); }
SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq) { return deeper(1); }
SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(timer) { return deeper(1); }

static bool in_interrupt(void)
{
	u32 first = 0;
	s32 *now = bpf_map_lookup_elem(&depth, &first);

	return now && *now;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(wakes_up, struct task_struct *task)
{
	u32 tid = task->pid, waker;
	struct slept *slept;
	struct wake_key key = {};
	u64 ns;

	/* The table has only threads of the program. */
	slept = bpf_map_lookup_elem(&asleep, &tid);
	if (!slept)
		return 0;
	ns = bpf_ktime_get_ns() - slept->since;
	key.stack = slept->stack;
	bpf_probe_read_kernel_str(key.waiter, NAME, task->comm);
	waker = bpf_get_current_pid_tgid() >> 32;
	/* The idle task itself wakes no thread. */
	if (in_interrupt() || !waker) {
		key.who = 2;
	} else {
		key.who = !is_ours(waker);
		bpf_get_current_comm(key.waker, NAME);
	}
	add(&wakes, &key, ns);
	bpf_map_delete_elem(&asleep, &tid);
	return 0;
}
