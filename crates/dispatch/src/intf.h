/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The interface between the switch-time scheduler and the programs that set it up. The daemon uses it through the
 * kernel's maps, and the simulator through memory. crates/dispatch/src/tables.rs mirrors it; assertions below and
 * there hold the two together.
 */
#ifndef DISPATCH_INTF_H
#define DISPATCH_INTF_H

#define DISPATCH_UNITS_MAX   1024u
#define DISPATCH_CPUS_MAX    4096u
#define DISPATCH_DEPTH_MAX   20u         /* units within units: levels */
#define DISPATCH_NOBODY      0xffffffffu /* no unit, no CPU, no group of CPUs */
#define DISPATCH_KERNEL      0u          /* the unit of the kernel's own threads: runs anywhere, at once */
#define DISPATCH_COMMON      1u          /* the unit of tasks that belong to no other */
#define DISPATCH_GLOB_MAX    64u         /* bytes of a pattern, with its end */
#define DISPATCH_MATCHES_MAX 4096u       /* in all lists of a contract: see dispatch_match */
#define DISPATCH_WINDOW_MAX  1000u       /* deadlines in a window: see dispatch_deadline */
#define DISPATCH_LATENCIES   24u         /* classes of latencies: see dispatch_unit.recall_classes */
#define DISPATCH_RANKS       4u          /* classes of sub-units: see discipline/classes.h */
#define DISPATCH_STRETCHES   8u          /* see dispatch_cpu.higher; a power of two */

/* How a lent CPU is called back. */
enum dispatch_recall {
	DISPATCH_RECALL_NOW,  /* the borrower is interrupted */
	DISPATCH_RECALL_TICK, /* at the next tick (seed 000, section 3.1: within 10 ms) */
};

enum dispatch_unit_flags {
	DISPATCH_LENDS    = 1, /* its idle home CPUs may run tasks of other units */
	DISPATCH_BORROWS  = 2, /* its tasks may run on CPUs that others lend */
	DISPATCH_ANYWHERE = 4, /* of DISPATCH_COMMON alone: every CPU runs its tasks in turns with its owner's */
};

/* Who of a unit's own tasks and sub-units is next: see discipline/. */
enum dispatch_discipline {
	DISPATCH_STRIDE,
	DISPATCH_LOTTERY,
	DISPATCH_ENTITLEMENT,
	DISPATCH_DECAY,
	DISPATCH_FIFO,
	DISPATCH_RR,
	DISPATCH_BATCH,
	DISPATCH_JOB,
	DISPATCH_GANG,
	DISPATCH_DWCS,
	DISPATCH_SMP,
	DISPATCH_CLASSES,
	DISPATCH_DISCIPLINES,
};

/* What a discipline remembers of one that it orders: see discipline/party.h. */
struct dispatch_memory {
	u64 mark;
	u64 at;
};

/* What a discipline keeps of all that it orders: see discipline/job_currency.h. */
struct dispatch_order {
	u64 handed;
	u64 used;
	u64 at;
	u64 last; /* the largest key that one waits with, or did */
};

/* What a unit wants under the discipline `dwcs`, in ns, and how often it had not: see discipline/dwcs.h. */
struct dispatch_deadline {
	u32 period; /* 0: none */
	u32 budget;
	u16 misses; /* so many deadlines may be missed */
	u16 of;     /* of so many */
	u32 unused;
	u64 met;
	u64 missed;
	u64 violated; /* of those that were missed */
};

/* What a task that could run waited for. */
enum dispatch_cause {
	DISPATCH_WAIT_OWN,    /* tasks of its own unit, or another's on a CPU that is time-shared */
	DISPATCH_WAIT_LOAN,   /* a CPU on loan that was called back for it */
	DISPATCH_WAIT_HIGHER, /* real-time, deadline or stop tasks that had its CPU, or the one where it came to run */
	DISPATCH_CAUSES,
};

/* How far a task moved from the CPU where it ran last. */
enum dispatch_distance {
	DISPATCH_MOVED_CACHE, /* to one that shares the last-level cache */
	DISPATCH_MOVED_NODE,  /* to one of the same NUMA node */
	DISPATCH_MOVED_FAR,
	DISPATCH_DISTANCES,
};

/* Set before the scheduler starts, and constant from then on. */
struct dispatch_rules {
	u64 slice_ns;   /* how long a task runs before others get their turn */
	u64 preempt_ns; /* a task that wakes interrupts one that had so much more than its part; 0: none */
	u32 units;      /* units that may exist: 0 .. units - 1 */
	u32 cpus;       /* CPU numbers are below this */
	u32 recall;     /* enum dispatch_recall */
	u32 unused;
};

/* One unit. dispatch_set_unit() sets the first five, `credit` and the disciplines; the scheduler writes the rest. */
struct dispatch_unit {
	u32 parent;        /* the unit around it, or DISPATCH_NOBODY */
	u32 top;           /* the outermost unit around it, or itself: the one that owns CPUs */
	u32 depth;         /* units around it */
	u32 weight;        /* its part among its siblings, 1 .. 10,000; its own tasks have 100 among its sub-units */
	u32 flags;         /* enum dispatch_unit_flags */
	u32 below;         /* sub-units */
	u32 own_active;    /* tasks of its own that run or wait */
	u32 active;        /* of its own tasks (as one) and its sub-units, those that run or wait */
	u32 away;          /* of the outermost: home CPUs that run others' tasks now and are not called back */
	u32 busy;          /* CPUs that run its tasks or its sub-units' */
	u32 own_busy;      /* CPUs that run its own tasks, since it has sub-units */
	u16 discipline;    /* enum dispatch_discipline: that of its own tasks and its sub-units */
	u16 among;         /* and that of the unit around it, which orders this one */
	u32 number;        /* its own */
	u32 orders;        /* the unit among whose tasks its own are ordered: itself, or one around it: see discipline/smp.h */
	u64 vtime;         /* its tasks' virtual time: that of the task that ran last; a task that wakes starts no earlier */
	u64 served;        /* when a task of its own came to run last */
	u64 slice;         /* a slice, in the measure of its passes */
	u64 pass;          /* CPU time over weight, among its siblings: the smallest is next */
	u64 own_pass;      /* the same of its own tasks, among its sub-units */
	u64 loan_pass;     /* of the outermost: CPU time on others' CPUs over weight: the smallest, less `credit`, borrows next */
	u64 credit;        /* of the outermost: what it lent, less what it was lent, in the same measure */
	u64 frontier;      /* the pass of the sub-unit (or of its own tasks) that ran last: one that wakes starts no earlier */
	u64 slow_ns;       /* how long its tasks wait of late: see rescue.h */
	u64 clock_set;     /* when the virtual time was last seen to go on with time: likewise */
	u64 clock_was;     /* and what it was then */
	struct dispatch_memory memory;     /* of it, among its siblings */
	struct dispatch_memory own_memory; /* of its own tasks, among its sub-units */
	struct dispatch_deadline deadline;
	struct dispatch_order tasks;       /* of its own tasks */
	struct dispatch_order subs;        /* of its sub-units and its own tasks */
	u64 clocks[DISPATCH_RANKS];        /* of its sub-units' classes: see discipline/classes.h */
	u64 recalls;       /* CPUs called back */
	u64 recall_ns;     /* from the call to the first task of its own that ran there, summed */
	u64 recall_ns_max; /* the longest of them */
	/* How many took less than 1.024 us, 2.048 us, and so on, doubling; the last class has no end. */
	u32 recall_classes[DISPATCH_LATENCIES];
};

/* One unit's account of one CPU, in ns since the start. Only that CPU writes it. */
struct dispatch_account {
	u64 home_ns;                      /* its tasks, where it owned the CPU */
	u64 borrowed_ns;                  /* its tasks, where another unit did, which lent it and could call it back */
	u64 visiting_ns;                  /* its tasks, where another did, and they had turns: see dispatch.bpf.c on strays */
	u64 shared_ns;                    /* its tasks, where no unit did */
	u64 lent_ns;                      /* others' tasks that borrowed, where it owned the CPU */
	u64 visited_ns;                   /* others' tasks that visited, where it owned the CPU */
	u64 waited_ns[DISPATCH_CAUSES];   /* its tasks that came to run here, before */
	u64 moved[DISPATCH_DISTANCES];    /* its tasks that came to run here and ran elsewhere before */
	u64 strays;                       /* times its tasks waited here since their affinity allows no CPU of the unit's */
	u64 switches;                     /* times that a task of its began to run */
	u64 rescues;                      /* times that one did out of turn, after waiting for too long: see rescue.h */
};

/* Among whose busy CPUs one is counted. */
enum dispatch_occupied {
	DISPATCH_BY_NOBODY,
	DISPATCH_BY_LEAF,  /* its task's unit's, and those around it */
	DISPATCH_BY_INNER, /* and among those that run a unit's own tasks, which has sub-units */
};

/* Whether a CPU has taken a task out of turn that had waited for too long: see rescue.h. */
enum dispatch_rescue {
	DISPATCH_RESCUE_NONE,
	DISPATCH_RESCUE_TAKEN, /* it is about to run */
	DISPATCH_RESCUE_RUNS,
};

/* A time in which a higher class had a CPU: all of it, or the greater part. */
struct dispatch_stretch {
	u64 from, to;
	u64 had; /* ns of it */
};

/* One CPU. Its user sets `cache` and `node` before the start, and `home` by dispatch_own(); the scheduler the rest. */
struct dispatch_cpu {
	u64 since;    /* up to when its task was charged, or it idled */
	u64 booked;   /* up to when its time stands in the accounts */
	u64 recalled; /* when it was called back; 0: it is not */
	u64 vtime;    /* its task's virtual time when it was charged last */
	u64 looks_at; /* when it looks for late tasks next, */
	u64 seeks_at; /* and for stranded ones: see rescue.h */
	struct dispatch_stretch higher[DISPATCH_STRETCHES]; /* when a higher class had it of late, in a ring */
	u32 home;     /* the unit that owns it, or DISPATCH_NOBODY: time-shared */
	u32 runs;     /* the unit whose task it runs, or DISPATCH_NOBODY */
	u32 cache;    /* CPUs that share its last-level cache, and its node's: two groups of CPUs, by number below 2 * cpus; */
	u32 node;     /* DISPATCH_NOBODY: the group is the whole machine, or the one above */
	u32 turn;     /* whose turn is next: see dispatch.bpf.c */
	u32 strays;   /* tasks that wait in its own queue, or are about to */
	u32 looks;    /* how often it looked again since it fell idle */
	u32 on_loan;  /* 1: its task borrows it */
	u32 rescue;   /* enum dispatch_rescue */
	u32 outranked; /* 1: a message waits until its task, of the same unit, has run for a while */
	u32 stretches; /* when a higher class had it: times so far, the last of them at this place of the ring */
	u32 occupied;  /* enum dispatch_occupied */
	u32 pays;      /* the unit that its task belongs to; `runs` is the one that orders it */
	u32 unused;
};

enum dispatch_task_state {
	DISPATCH_COUNTED = 1, /* among its unit's active tasks */
	DISPATCH_WAITS   = 2, /* among those that wait in its unit's queue */
	DISPATCH_STRAY   = 4, /* pinned to CPUs of others */
	DISPATCH_AT_CPU  = 8, /* among those that wait in a CPU's own queue */
	DISPATCH_HELD    = 16, /* in the middle of something that it may not leave its CPU for */
	DISPATCH_TOLD    = 32, /* woken by one that is about to sleep, and not queued yet */
	DISPATCH_WOKE    = 64, /* it slept, or is new in its unit, and has no place among the unit's tasks yet */
};

/* One task. */
struct dispatch_task {
	u64 vtime; /* CPU time it has had over its weight, in its unit's measure */
	u64 placed_at; /* when a program that it executed put it into its unit, in ns */
	u64 since; /* since when it waits */
	struct dispatch_memory memory; /* of it, among its unit's tasks */
	u32 unit;  /* the unit among whose tasks it is ordered: its own, or one around that: see discipline/smp.h */
	u16 state; /* enum dispatch_task_state */
	u8 cause;  /* enum dispatch_cause */
	u8 placed; /* enum dispatch_placed */
	u32 cpu;   /* where it ran last, or DISPATCH_NOBODY */
	u32 at;    /* in which CPU's own queue it waits */
	u32 destined; /* the unit that it has come to by executing a program, or DISPATCH_NOBODY */
	u32 heir;  /* the unit that a `command:` rule had put its parent into when it was born, or DISPATCH_NOBODY */
	u32 base;  /* the unit of its control group */
	u32 pays;  /* its own unit, whose accounts have its time */
};

/* What put a task into its unit. */
enum dispatch_placed {
	DISPATCH_BY_CGROUP,  /* its control group */
	DISPATCH_BY_RULE,    /* its user or its groups, or the default unit where nothing matches */
	DISPATCH_BY_COMMAND, /* its program, or its parent's: what it starts belongs there, too */
};

/* What is tested of a process that executes a program. */
enum dispatch_test {
	DISPATCH_TEST_END,       /* none: the list ends, and a process that came so far stays */
	DISPATCH_TEST_LIST,      /* none: the list goes on at the entry `value` */
	DISPATCH_TEST_COMMAND,   /* whether `glob` matches its name or its program's */
	DISPATCH_TEST_INHERITED, /* whether it is the heir of a unit of this level, or of one below: that is its unit then */
	DISPATCH_TEST_USER,      /* whether it is the effective user `value`'s */
	DISPATCH_TEST_GROUP,     /* whether it is in the group `value` */
	DISPATCH_TEST_OTHERWISE, /* passed by all */
	DISPATCH_TEST_UNKNOWN,   /* what cannot be tested here: then it stays where its control group says */
};

/*
 * The rules of the contract, in lists, for a process that executes a program: the first test that it passes says the
 * unit, and the unit's own list goes on. The entry with a unit's number says where its list begins, DISPATCH_COMMON's
 * that of the outermost units; the entries after the units' are the lists, in two halves, of which one is in force
 * while the other is written.
 */
struct dispatch_match {
	u32 test;   /* enum dispatch_test */
	u32 value;
	u32 unit;   /* of a process that passes */
	u32 unused;
	char glob[DISPATCH_GLOB_MAX]; /* `*` is any text, `?` any character; ends with 0 */
};

/* The argument of dispatch_own(): a CPU and its owner from now on, an outermost unit or DISPATCH_NOBODY. */
struct dispatch_owned {
	u32 cpu;
	u32 unit;
};

/* The argument of dispatch_set_unit(): what a unit is from now on. */
struct dispatch_setting {
	u32 unit;
	u32 parent;
	u32 weight;
	u32 flags;
	s32 credit_ms; /* of an outermost unit: CPU time that it lent beyond what it was lent, as far as it counts */
	u32 discipline; /* enum dispatch_discipline */
	u32 period;     /* see struct dispatch_deadline */
	u32 budget;
	u32 misses;
	u32 of;
};

_Static_assert(sizeof(struct dispatch_rules) == 32, "mirrored in tables.rs");
_Static_assert(sizeof(struct dispatch_unit) == 432, "mirrored in tables.rs");
_Static_assert(sizeof(struct dispatch_account) == 120, "mirrored in tables.rs");
_Static_assert(sizeof(struct dispatch_cpu) == 296, "mirrored in tables.rs");
_Static_assert(sizeof(struct dispatch_task) == 72, "mirrored in tables.rs");
_Static_assert(sizeof(struct dispatch_setting) == 40, "mirrored in tables.rs");
_Static_assert(sizeof(struct dispatch_match) == 80, "mirrored in matches.rs");

#endif
