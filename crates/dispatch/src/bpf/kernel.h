/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The kernel's side of sched_ext, for BPF, written by hand with only the fields that are used. The loader relocates each
 * field by its name in the running kernel (CO-RE), so order and sizes may differ from the kernel's.
 *
 * Kernel functions differ between kernels. The newest prototype is tried first, the previous one is the fallback. The
 * loader resolves both as weak symbols, and removes the branch that the running kernel lacks. A name is looked up without
 * its last `___` suffix. Linux 6.12, the first kernel with sched_ext, has other names for three of the functions, and
 * everything else that is used here.
 */
#ifndef DISPATCH_BPF_KERNEL_H
#define DISPATCH_BPF_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;
typedef _Bool bool;

/* The names that tables.h uses. */
typedef u8 uint8_t;
typedef u16 uint16_t;
typedef u32 uint32_t;
typedef u64 uint64_t;
typedef s32 int32_t;
typedef s64 int64_t;
#define UINT32_MAX 0xffffffffu

/* The names that libbpf's headers use. */
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;

enum { false = 0, true = 1 };

/* If a CPU neither ran a task of this scheduler nor idled for longer than this, a higher class had it: see note_higher(). */
#define HIGHER_NS 100000ull
/* Such an interval is merged with the previous one if that began less than this ago. */
#define STRETCH_NS 20000000ull
/* A switch takes at most this long: see waits.h. */
#define SWITCH_NS HIGHER_NS

/* include/uapi/linux/bpf.h */
enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_TASK_STORAGE = 29 };
enum { BPF_F_NO_PREALLOC = 1, BPF_F_MMAPABLE = 1024 };
enum { BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };

struct bpf_iter_num {
	u64 state[1];
} __attribute__((aligned(8)));

/* kernel/sched/ext: the verifier requires the kernel's name and size. */
struct bpf_iter_scx_dsq {
	u64 state[6];
} __attribute__((aligned(8)));

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define ENOMEM 12
#define EINVAL 22
#define ENOSYS 38
#define PF_KTHREAD 0x00200000u
#define PF_EXITING 0x00000004u
#define PF_IO_WORKER 0x00000010u
#define PF_USER_WORKER 0x00004000u
#define TASK_UNINTERRUPTIBLE 2u
#define SIGKILL_BIT (1ul << 8)

/* include/linux/sched/ext.h and kernel/sched/ext/: stable values. */
#define SCX_DSQ_LOCAL      ((1ull << 63) | 2)
#define SCX_DSQ_LOCAL_ON   ((1ull << 63) | (1ull << 62))
#define SCX_TASK_QUEUED    1u
#define SCX_WAKE_SYNC      16ull /* the waker is about to sleep */
#define SCX_ENQ_WAKEUP     1ull
#define SCX_ENQ_PREEMPT    (1ull << 32)
#define SCX_ENQ_IMMED      (1ull << 33) /* since 7.1 */
#define SCX_ENQ_REENQ      (1ull << 40)
#define SCX_ENQ_LAST       (1ull << 41)
#define SCX_KICK_IDLE      1ull
#define SCX_KICK_PREEMPT   2ull
#define SCX_OPS_KEEP_BUILTIN_IDLE 1ull
#define SCX_OPS_ENQ_LAST   2ull
#define SCX_OPS_ENQ_EXITING 4ull
#define SCX_OPS_ENQ_MIGRATION_DISABLED 16ull
#define SCX_OPS_NAME_LEN   128
#define SCX_ANY_NODE       (-1)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	u64 id;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

struct sched_ext_entity {
	u32 flags; /* SCX_TASK_QUEUED: runnable */
	u64 slice; /* remaining, in ns */
	u32 weight; /* of its nice value: 100 is usual */
	u64 dsq_vtime; /* its key in the queue that it waits in */
};

struct user_number {
	u32 val;
};

struct group_number {
	u32 val;
};

struct group_info {
	s32 ngroups;
	struct group_number gid[]; /* ascending */
};

struct cred {
	struct user_number euid;
	struct group_number egid;
	struct group_info *group_info; /* of the supplementary groups */
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct path f_path;
};

struct mm_struct {
	struct file *exe_file; /* the target of /proc/PID/exe */
};

struct linux_binprm {
	const char *filename; /* the executed path: for a script, the script */
};

typedef struct {
	unsigned long sig[1];
} sigset_t;

struct sigpending {
	sigset_t signal;
};

/* A task's registers at its entry into the kernel, by architecture. */
struct pt_regs {
	unsigned long ax; /* x86 */
	unsigned long orig_ax;
	s32 syscallno; /* arm64 */
};

struct task_struct {
	u32 __state;
	u32 flags; /* PF_KTHREAD, PF_EXITING */
	s32 tgid;
	struct task_struct *group_leader;
	struct sigpending pending;
	char comm[16];
	struct mm_struct *mm;
	const struct cred *cred;
	struct sched_ext_entity scx;
	s32 nr_cpus_allowed;
	const struct cpumask *cpus_ptr;
	u16 migration_disabled;
	s32 rcu_read_lock_nesting; /* only where RCU is preemptible */
};

/* Only used through pointers. It is defined since the loader compares prototypes, where a forward declaration is no struct. */
struct cpumask {
	unsigned long bits[1];
};

struct bpf_cpumask {
	struct cpumask cpumask;
};

struct scx_init_task_args {
	bool fork;
	struct cgroup *cgroup; /* the nearest ancestor with the `cpu` controller */
};

struct scx_cpu_release_args {
	struct task_struct *task; /* of a higher class, which now runs on the CPU */
};

enum scx_exit_kind {
	SCX_EXIT_NONE,
};

struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
};

#pragma clang attribute pop

/* Without `preserve_access_index`, since this program builds these and passes them to the kernel. */
struct scx_bpf_dsq_insert_vtime_args {
	u64 dsq_id;
	u64 slice;
	u64 vtime;
	u64 enq_flags;
};

struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*update_idle)(s32 cpu, bool idle);
	void (*cpu_release)(s32 cpu, struct scx_cpu_release_args *args); /* until some kernel after 7.1 */
	void (*disable)(struct task_struct *p);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*cgroup_move)(struct task_struct *p, struct cgroup *from, struct cgroup *to);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	char name[SCX_OPS_NAME_LEN];
};

/* Declares a callback. */
#define BPF_STRUCT_OPS(name, args...) SEC("struct_ops/" #name) BPF_PROG(name, ##args)
#define BPF_STRUCT_OPS_SLEEPABLE(name, args...) SEC("struct_ops.s/" #name) BPF_PROG(name, ##args)

/*
 * Marks a global function: the verifier checks it once, on its own. A static function is checked again at every call, and
 * with nested loops that exceeds the verifier's limit. Parameters of a global function are numbers, or pointers that may be
 * NULL. Its result is a number: up to Linux 6.18 at least, a global function must not be void.
 */
#define VERIFIED_ALONE(type)                                                                                                   \
	_Static_assert(!__builtin_types_compatible_p(type, void), "older kernels refuse such a function without a result");    \
	__attribute__((noinline)) type

/* Kernel functions of all supported kernels. */
void bpf_rcu_read_lock(void) __ksym;
void bpf_rcu_read_unlock(void) __ksym;
struct bpf_cpumask *bpf_cpumask_create(void) __ksym;
void bpf_cpumask_release(struct bpf_cpumask *mask) __ksym;
void bpf_cpumask_set_cpu(u32 cpu, struct bpf_cpumask *mask) __ksym;
void bpf_cpumask_clear_cpu(u32 cpu, struct bpf_cpumask *mask) __ksym;
bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *mask) __ksym;
bool bpf_cpumask_test_and_clear_cpu(u32 cpu, struct bpf_cpumask *mask) __ksym;
u32 bpf_cpumask_first(const struct cpumask *mask) __ksym;
bool bpf_cpumask_and(struct bpf_cpumask *result, const struct cpumask *one, const struct cpumask *other) __ksym;
bool bpf_cpumask_empty(const struct cpumask *mask) __ksym;
bool bpf_cpumask_intersects(const struct cpumask *one, const struct cpumask *other) __ksym;
s32 scx_bpf_create_dsq(u64 queue, s32 node) __ksym;
s32 scx_bpf_dsq_nr_queued(u64 queue) __ksym;
s32 bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *at, u64 queue, u64 flags) __ksym;
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *at) __ksym;
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *at) __ksym;
void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
const struct cpumask *scx_bpf_get_idle_cpumask(void) __ksym;
void scx_bpf_put_idle_cpumask(const struct cpumask *mask) __ksym;
s32 scx_bpf_pick_idle_cpu(const struct cpumask *among, u64 flags) __ksym;
bool scx_bpf_test_and_clear_cpu_idle(s32 cpu) __ksym;
s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
void bpf_task_release(struct task_struct *p) __ksym;

/* Kernel functions that were added or changed later. */
struct task_struct *bpf_task_from_vpid___since_6_14(s32 pid) __ksym __weak;
u64 scx_bpf_now___since_6_14(void) __ksym __weak;
bool scx_bpf_task_set_slice___since_6_19(struct task_struct *p, u64 slice) __ksym __weak;
bool scx_bpf_dsq_insert___v2___since_6_19(struct task_struct *p, u64 queue, u64 slice, u64 flags) __ksym __weak;
void scx_bpf_dsq_insert___since_6_13(struct task_struct *p, u64 queue, u64 slice, u64 flags) __ksym __weak;
void scx_bpf_dispatch___first(struct task_struct *p, u64 queue, u64 slice, u64 flags) __ksym __weak;
bool __scx_bpf_dsq_insert_vtime___since_6_19(struct task_struct *p, struct scx_bpf_dsq_insert_vtime_args *args) __ksym __weak;
void scx_bpf_dsq_insert_vtime___since_6_13(struct task_struct *p, u64 queue, u64 slice, u64 vtime, u64 flags) __ksym __weak;
void scx_bpf_dispatch_vtime___first(struct task_struct *p, u64 queue, u64 slice, u64 vtime, u64 flags) __ksym __weak;
bool scx_bpf_dsq_move___since_6_13(struct bpf_iter_scx_dsq *at, struct task_struct *p, u64 queue, u64 flags) __ksym __weak;
bool scx_bpf_dispatch_from_dsq___first(struct bpf_iter_scx_dsq *at, struct task_struct *p, u64 queue, u64 flags) __ksym __weak;
void scx_bpf_dsq_move_set_vtime___since_6_13(struct bpf_iter_scx_dsq *at, u64 vtime) __ksym __weak;
void scx_bpf_dispatch_from_dsq_set_vtime___first(struct bpf_iter_scx_dsq *at, u64 vtime) __ksym __weak;
bool scx_bpf_dsq_move_vtime___since_6_13(struct bpf_iter_scx_dsq *at, struct task_struct *p, u64 queue, u64 flags) __ksym __weak;
bool scx_bpf_dispatch_vtime_from_dsq___first(struct bpf_iter_scx_dsq *at, struct task_struct *p, u64 queue, u64 flags) __ksym __weak;
bool scx_bpf_dsq_move_to_local___v2___since_7_1(u64 queue, u64 flags) __ksym __weak;
bool scx_bpf_dsq_move_to_local___since_6_13(u64 queue) __ksym __weak;
bool scx_bpf_consume___first(u64 queue) __ksym __weak;
u32 scx_bpf_reenqueue_local___before_7_1(void) __ksym __weak;

/* Virtual time and weight of the first task of a queue; false if the queue is empty. */
static __always_inline bool first_in(u64 queue, u64 *vtime, u32 *weight)
{
	struct bpf_iter_scx_dsq at;
	struct task_struct *p = NULL;

	if (!bpf_iter_scx_dsq_new(&at, queue, 0))
		p = bpf_iter_scx_dsq_next(&at);
	if (p) {
		*vtime = p->scx.dsq_vtime;
		*weight = p->scx.weight;
	}
	bpf_iter_scx_dsq_destroy(&at);
	return p;
}

static __always_inline u64 scx_bpf_now(void)
{
	return bpf_ksym_exists(scx_bpf_now___since_6_14) ? scx_bpf_now___since_6_14() : bpf_ktime_get_ns();
}

static __always_inline void scx_bpf_dsq_insert(struct task_struct *p, u64 queue, u64 slice, u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert___v2___since_6_19))
		scx_bpf_dsq_insert___v2___since_6_19(p, queue, slice, flags);
	else if (bpf_ksym_exists(scx_bpf_dsq_insert___since_6_13))
		scx_bpf_dsq_insert___since_6_13(p, queue, slice, flags);
	else
		scx_bpf_dispatch___first(p, queue, slice, flags);
}

static __always_inline void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 queue, u64 slice, u64 vtime, u64 flags)
{
	struct scx_bpf_dsq_insert_vtime_args args = {
		.dsq_id = queue,
		.slice = slice,
		.vtime = vtime,
		.enq_flags = flags,
	};

	if (bpf_ksym_exists(__scx_bpf_dsq_insert_vtime___since_6_19))
		__scx_bpf_dsq_insert_vtime___since_6_19(p, &args);
	else if (bpf_ksym_exists(scx_bpf_dsq_insert_vtime___since_6_13))
		scx_bpf_dsq_insert_vtime___since_6_13(p, queue, slice, vtime, flags);
	else
		scx_bpf_dispatch_vtime___first(p, queue, slice, vtime, flags);
}

/*
 * The flag for a task that a CPU is about to run: if a higher class takes the CPU before the slice has expired, the task is
 * enqueued again, and may run elsewhere. Kernels before 7.1 leave it there, and call dispatch_cpu_release() instead.
 */
static __always_inline u64 enq_immed(void)
{
	return bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___since_7_1) ? SCX_ENQ_IMMED : 0;
}

static __always_inline bool scx_bpf_dsq_move_to_local(u64 queue)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___since_7_1))
		return scx_bpf_dsq_move_to_local___v2___since_7_1(queue, SCX_ENQ_IMMED);
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___since_6_13))
		return scx_bpf_dsq_move_to_local___since_6_13(queue);
	return scx_bpf_consume___first(queue);
}

/* Moves a task found in a queue to this CPU. Its affinity must allow it. */
static __always_inline bool move_here(struct bpf_iter_scx_dsq *at, struct task_struct *p)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move___since_6_13))
		return scx_bpf_dsq_move___since_6_13(at, p, SCX_DSQ_LOCAL, enq_immed());
	return scx_bpf_dispatch_from_dsq___first(at, p, SCX_DSQ_LOCAL, 0);
}

/* Moves a task found in a queue to another queue: a CPU's local queue, or a unit's queue with `vtime` as the key. */
static __always_inline bool move_from(struct bpf_iter_scx_dsq *at, struct task_struct *p, u64 queue, u64 vtime)
{
	if ((queue & SCX_DSQ_LOCAL_ON) == SCX_DSQ_LOCAL_ON)
		return bpf_ksym_exists(scx_bpf_dsq_move___since_6_13) ? scx_bpf_dsq_move___since_6_13(at, p, queue, 0) :
									 scx_bpf_dispatch_from_dsq___first(at, p, queue, 0);
	if (bpf_ksym_exists(scx_bpf_dsq_move_vtime___since_6_13)) {
		scx_bpf_dsq_move_set_vtime___since_6_13(at, vtime);
		return scx_bpf_dsq_move_vtime___since_6_13(at, p, queue, 0);
	}
	scx_bpf_dispatch_from_dsq_set_vtime___first(at, vtime);
	return scx_bpf_dispatch_vtime_from_dsq___first(at, p, queue, 0);
}

/* The thread with a number in the current task's PID namespace, or NULL. The caller must release it. */
static __always_inline struct task_struct *task_from(u32 thread)
{
	if (bpf_ksym_exists(bpf_task_from_vpid___since_6_14))
		return bpf_task_from_vpid___since_6_14(thread);
	return bpf_task_from_pid(thread);
}

/* Since 7.x the kernel warns about direct writes to a task's slice, which kernels before 6.19 require. */
static __always_inline void task_set_slice(struct task_struct *p, u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice___since_6_19))
		scx_bpf_task_set_slice___since_6_19(p, slice);
	else
		p->scx.slice = slice;
}

#endif
