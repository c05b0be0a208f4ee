/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/* The kernel's side of sched_ext in the simulator. Its types are in tables/native.rs. */
#ifndef DISPATCH_NATIVE_KERNEL_H
#define DISPATCH_NATIVE_KERNEL_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;
typedef int32_t s32;
typedef int64_t s64;

#define SEC(name)
#define BPF_STRUCT_OPS(name, ...) name(__VA_ARGS__)
#define VERIFIED_ALONE(type) static type
#define bpf_for(i, from, to) for ((i) = (from); (i) < (to); (i)++)

#define HIGHER_NS (~0ull) /* the simulated kernel has no higher classes */
#define STRETCH_NS 0ull
#define SWITCH_NS 0ull /* the scheduler sees switches as taking no time */

/* Values as in the kernel (include/linux/sched/ext.h). */
#define SCX_DSQ_LOCAL    ((1ull << 63) | 2)
#define SCX_DSQ_LOCAL_ON ((1ull << 63) | (1ull << 62))
#define SCX_TASK_QUEUED  1u
#define SCX_WAKE_SYNC    16ull
#define SCX_ENQ_WAKEUP   1ull
#define SCX_ENQ_PREEMPT  (1ull << 32)
#define SCX_ENQ_LAST     (1ull << 41)
#define SCX_KICK_IDLE    1ull
#define SCX_KICK_PREEMPT 2ull

/* No higher class can take a CPU. */
static inline u64 enq_immed(void)
{
	return 0;
}

struct scx_init_task_args;

/* A walk through a queue: the simulated kernel keeps it. */
struct bpf_iter_scx_dsq {
	u64 unused;
};

#endif
