/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Access to the scheduler's tables: BPF maps in the kernel, a structure per simulated machine natively. Both implement the
 * same functions:
 *
 *   rules(), unit_at(id), cpu_at(id)     the tables; NULL for a number that is out of range, DISPATCH_NOBODY included
 *   account_at(unit, cpu)                likewise; natively one account for all CPUs
 *   waits_add(unit, by), waits_in(unit)  tasks that wait, or are about to, by unit
 *   waiting(block), lowest(bits)         a bit per unit of a block of which tasks wait; the number of the lowest bit
 *   task_of(p), new_task(p)              a task's own storage
 *   unit_of(p, args)                     the unit that a new task belongs to
 *   inherit(task, args)                  the unit of a new task outside of all units' control groups
 *   world_pass(), world_pass_at_least()  the clock of the outermost units on time-shared CPUs
 *   rescues()                            whose tasks are rescued, and when
 *   world_loan_pass(), and so on         the clock of borrowers
 *   mask_*(id, which, ...)               sets of CPUs: a unit's, or for DISPATCH_NOBODY the machine's
 *   any_idle()                           whether any CPU is idle
 *   mask_take_near(), pick_idle(...)     takes the CPU nearest to another, within the task's affinity
 *   may_run(p, cpu)                      within the task's affinity
 *   higher_has(cpu)                      whether a higher class has that CPU
 *   is_held_here(p, enq_flags)           whether it has migration disabled
 *   add(), add64()                       counters that several CPUs write; add() returns the old value
 *   swap64(p, by), replace64(p, is, by)  atomic exchange: the old value; compare and exchange: whether it succeeded
 *   disciplined()                        whether any unit may have another discipline than stride
 *   seated()                             whether tasks may have seats
 *   away()                               how many CPUs run tasks that have their seats elsewhere
 *   take_fitting(queue, pool, late)      moves the first task of a queue that fits here to this CPU: see seats.h
 *   idles(cpu)                           whether that CPU is idle
 *   gated()                              whether there may be gangs
 *   gate_is_shut(gang)                   whether the gang's tasks must not run; false for DISPATCH_NOBODY
 *   gang_of(p, task)                     its process's gang, or DISPATCH_NOBODY
 *   is_in_call(p), sleeps_deeply(p)      whether a task is inside: see gates.h
 *   is_ending(p)                         whether it exits, or will when it runs
 *   is_current(p), parked_since(p)       whether it is the task that stops here; when it was parked
 *   swap32(p, by)                        atomic exchange, and a full barrier: the old value
 *   random_bits()                        32 random bits
 *   set_slice(p, ns)                     sets the remaining slice of a task
 */
#ifndef DISPATCH_WORLD_H
#define DISPATCH_WORLD_H

/* Queue numbers: first one per unit, then one per CPU, for tasks that must run there, */
#define QUEUE_OF_CPU DISPATCH_UNITS_MAX

/* then the queue of parked tasks. */
#define QUEUE_OF_GATES (QUEUE_OF_CPU + DISPATCH_CPUS_MAX)

enum mask {
	MASK_HOMES = 0,    /* of a unit: its home CPUs */
	MASK_LENT = 1,     /* of a unit: home CPUs that are lent, and not called back yet */
	MASK_SHARED = 0,   /* of the machine: time-shared CPUs */
	MASK_LENDABLE = 1, /* of the machine: CPUs whose owner lends */
	MASK_ALL = 2,      /* of the machine: all CPUs */
};

#define SEAT_LOOKS 8u /* tasks of a queue that a CPU examines for one that fits it: see seats.h */

#ifdef __bpf__
#include "bpf/world.h"
#else
#include "native/world.h"
#endif

static bool before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

/* The time, but never 0, which means "never": a simulation begins at 0. */
static u64 moment(void)
{
	return scx_bpf_now() ?: 1;
}

static void at_least(u64 *value, u64 least)
{
	if (before(*value, least))
		*value = least;
}

#endif
