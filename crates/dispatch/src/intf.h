/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * What the switch-time scheduler and those who set it up tell each other: the daemon through the kernel's maps, the
 * simulator through memory. crates/dispatch/src/tables.rs mirrors it; the assertions below and there hold them together.
 */
#ifndef DISPATCH_INTF_H
#define DISPATCH_INTF_H

#define DISPATCH_UNITS_MAX 1024u
#define DISPATCH_CPUS_MAX  4096u
#define DISPATCH_NOBODY    0xffffffffu /* no unit, and no CPU */
#define DISPATCH_KERNEL    0u          /* the unit of the kernel's own threads: runs anywhere, at once */

/* How a lent CPU is called back. */
enum dispatch_recall {
	DISPATCH_RECALL_NOW,  /* the borrower is interrupted */
	DISPATCH_RECALL_TICK, /* at the next tick (seed 000, section 3.1: within 10 ms) */
};

enum dispatch_unit_flags {
	DISPATCH_LENDS   = 1, /* its idle home CPUs may run tasks of other units */
	DISPATCH_BORROWS = 2, /* its tasks may run on CPUs that others lend */
};

/* Set before the scheduler starts, and constant from then on but for `pool`. */
struct dispatch_rules {
	u64 slice_ns; /* how long a task runs before others get their turn */
	u32 units;    /* units that exist: 0 .. units - 1 */
	u32 cpus;     /* CPU numbers are below this */
	u32 pool;     /* 1: no isolation; every task on any CPU, all tasks equal */
	u32 recall;   /* enum dispatch_recall */
};

/* One unit. Its user sets weight and flags; the scheduler writes the rest. */
struct dispatch_unit {
	u64 vtime;         /* its tasks' virtual time: that of the task that ran last; who wakes starts no earlier */
	u64 pass;          /* CPU time over weight on time-shared CPUs: the unit with the smallest is next */
	u64 used_ns;       /* CPU time of its tasks */
	u64 lent_ns;       /* CPU time of others on its home CPUs */
	u64 borrowed_ns;   /* CPU time of its tasks on others' home CPUs */
	u64 recalls;       /* CPUs called back */
	u64 recall_ns;     /* from the call to the first task of its own that ran there, summed */
	u64 recall_ns_max; /* the longest of them */
	u32 weight;        /* its part of time-shared CPUs, 1 .. 10,000 */
	u32 flags;         /* enum dispatch_unit_flags */
	u32 away;          /* home CPUs that run others' tasks now and are not called back */
	u32 busy;          /* CPUs that run its tasks */
};

/* One CPU. Its user sets `home` by dispatch_own(); the scheduler writes the rest. */
struct dispatch_cpu {
	u64 since;    /* when its task started */
	u64 recalled; /* when it was called back; 0: it is not */
	u64 owned;    /* since when it has its owner */
	u32 home;     /* the unit that owns it, or DISPATCH_NOBODY: time-shared */
	u32 runs;     /* the unit whose task it runs, or DISPATCH_NOBODY */
};

/* One task. */
struct dispatch_task {
	u64 vtime; /* CPU time it has had, in its unit's measure */
	u32 unit;  /* its unit */
	u32 unused;
};

/* The argument of dispatch_own(): a CPU and its owner from now on, or DISPATCH_NOBODY. */
struct dispatch_owned {
	u32 cpu;
	u32 unit;
};

_Static_assert(sizeof(struct dispatch_rules) == 24, "mirrored in tables.rs");
_Static_assert(sizeof(struct dispatch_unit) == 80, "mirrored in tables.rs");
_Static_assert(sizeof(struct dispatch_cpu) == 32, "mirrored in tables.rs");
_Static_assert(sizeof(struct dispatch_task) == 16, "mirrored in tables.rs");

#endif
