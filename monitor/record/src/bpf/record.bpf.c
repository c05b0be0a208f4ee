/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Reports the scheduler's events and the requests to disks.
 *
 * Problem: there may be a million events a second, and each one delays the task whose event it is.
 *
 * Algorithm: each event is 24 bytes (32 for a transfer) in a ring buffer of the CPU on which it happens, so that CPUs do not
 * compete for a lock. No event wakes the recorder, which empties the buffers at intervals. If a buffer is full, the event is
 * counted as lost.
 *
 * Limits: a request to a device that maps others (LVM, RAID) is reported once for each device on its way.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;
typedef _Bool bool;
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;

enum { BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_ARRAY_OF_MAPS = 12, BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_RB_NO_WAKEUP = 1 };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "Dual MIT/GPL";

/* The fields of kernel types that are used here; CO-RE relocates them by name. */
#define CORE __attribute__((preserve_access_index))
struct task_struct { s32 pid; } CORE;
struct gendisk { s32 major, first_minor; } CORE;
struct block_device { struct gendisk *bd_disk; } CORE;
struct bvec_iter { u64 bi_sector; u32 bi_size; } CORE;
struct bio { struct block_device *bi_bdev; u32 bi_opf; struct bvec_iter bi_iter; } CORE;

/* The layout is read by events.rs. */
enum kind { SWITCH = 1, WAKE, FORK, TRANSFER };
struct event {
	u64 at;
	u32 thread; /* SWITCH: that left; WAKE: woken; FORK: parent; TRANSFER: that sends the request */
	u32 other; /* SWITCH: that runs next; WAKE: that ran on `cpu`; FORK: child; TRANSFER: device */
	u16 cpu;
	u8 kind;
	u8 detail; /* SWITCH: enum left; WAKE: 1 if an interrupt woke it; TRANSFER: 1 if it writes */
	u32 bytes;
	u64 sector; /* only TRANSFER has this field */
};
#define SHORT __builtin_offsetof(struct event, sector)
enum left { PREEMPTED, ASLEEP, BLOCKED, ENDED };

/* include/linux/sched.h */
enum { UNINTERRUPTIBLE = 2, DEAD = 0x10 | 0x20 | 0x80, NOLOAD = 0x400 };
/* include/linux/blk_types.h */
enum { OPERATION = 0xff, READ = 0, WRITE = 1 };

#define CPUS_MAX 1024

struct buffer {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 19);
};
/* A buffer for each CPU, made by the recorder. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, CPUS_MAX);
	__type(key, u32);
	__array(values, struct buffer);
} buffers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

/*
 * The bits of a CPU's preemption count that are set while it serves a software or hardware interrupt, or an NMI
 * (include/linux/preempt.h). The recorder sets them, as they differ between kernels.
 */
const volatile u32 interrupt_bits = 0;

/* The count is a variable of its own, or in Linux 6.2 to 6.14 a field. On other architectures it is elsewhere. */
struct pcpu_hot { int preempt_count; } CORE;
extern const struct pcpu_hot pcpu_hot __ksym __weak;
extern const int __preempt_count __ksym __weak;

/* Whether the CPU serves an interrupt. Unknown is yes: the running thread may have nothing to do with the wake-up. */
static bool in_interrupt(void)
{
	const struct pcpu_hot *hot;
	const int *count;

	if (bpf_ksym_exists(&__preempt_count)) {
		count = bpf_this_cpu_ptr(&__preempt_count);
		return *count & interrupt_bits;
	}
	if (bpf_ksym_exists(&pcpu_hot)) {
		hot = bpf_this_cpu_ptr(&pcpu_hot);
		return hot->preempt_count & interrupt_bits;
	}
	return 1;
}

static void lose(void)
{
	u32 first = 0;
	u64 *count = bpf_map_lookup_elem(&lost, &first);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static void report(struct event *event, u64 size)
{
	u32 cpu = bpf_get_smp_processor_id();
	void *buffer = bpf_map_lookup_elem(&buffers, &cpu);

	event->cpu = cpu;
	if (!buffer || bpf_ringbuf_output(buffer, event, size, BPF_RB_NO_WAKEUP))
		lose();
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *before, struct task_struct *next, u32 state)
{
	struct event event = {
		.at = bpf_ktime_get_ns(),
		.thread = before->pid,
		.other = next->pid,
		.kind = SWITCH,
		.detail = preempt || !state		 ? PREEMPTED
			  : state & DEAD		 ? ENDED
			  : !(state & UNINTERRUPTIBLE)	 ? ASLEEP
			  : state & NOLOAD		 ? ASLEEP
							 : BLOCKED,
	};

	report(&event, SHORT);
	return 0;
}

static int woken(struct task_struct *task, bool by_interrupt)
{
	struct event event = {
		.at = bpf_ktime_get_ns(),
		.thread = task->pid,
		.other = (u32)bpf_get_current_pid_tgid(),
		.kind = WAKE,
		.detail = by_interrupt,
	};

	report(&event, SHORT);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	return woken(task, in_interrupt());
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_first_wakeup, struct task_struct *task)
{
	return woken(task, in_interrupt());
}

/* Loaded instead of these two if the kernel does not give the address of its count: without CONFIG_KALLSYMS_ALL. */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup_by_any, struct task_struct *task)
{
	return woken(task, 1);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_first_wakeup_by_any, struct task_struct *task)
{
	return woken(task, 1);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct event event = {
		.at = bpf_ktime_get_ns(),
		.thread = parent->pid,
		.other = child->pid,
		.kind = FORK,
	};

	report(&event, SHORT);
	return 0;
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(on_request, struct bio *bio)
{
	u32 operation = bio->bi_opf & OPERATION;
	struct gendisk *disk = bio->bi_bdev->bd_disk;
	struct event event = {
		.at = bpf_ktime_get_ns(),
		.thread = (u32)bpf_get_current_pid_tgid(),
		.other = (u32)disk->major << 20 | disk->first_minor,
		.kind = TRANSFER,
		.detail = operation == WRITE,
		.bytes = bio->bi_iter.bi_size,
		.sector = bio->bi_iter.bi_sector,
	};

	if (operation == READ || operation == WRITE)
		report(&event, sizeof(event));
	return 0;
}
