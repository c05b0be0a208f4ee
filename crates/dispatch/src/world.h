/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Access to the scheduler's tables: BPF maps in the kernel, a structure per simulated machine natively. Both implement the
 * same functions:
 *
 *   rules(), unit_at(id), cpu_at(id)     entries of the tables; NULL for a number out of range, including DISPATCH_NOBODY
 *   account_at(unit, cpu)                likewise; natively one account for all CPUs
 *   history_at(cpu), pairs_at(cpu)       likewise: a CPU's latest intervals, and the waits of units for each other: see waits.h
 *   occupancy_at(unit, cpu)              how long a unit had a CPU; any number but a unit's stands for higher classes
 *   masked(index, size)                  an index modulo a power of two
 *   waits_add(unit, by), waits_in(unit)  the number of tasks of a unit that wait, or are about to
 *   waiting(block), lowest(bits)         a bit mask of a block's units with waiting tasks; the number of the lowest bit
 *   task_of(p), new_task(p)              the scheduler's state of a task: look-up; creation
 *   unit_of(p, args)                     the unit that a new task belongs to
 *   inherit(task, args)                  gives a new task the unit and the gang that it inherits from its parent
 *   world_pass(), world_pass_at_least()  the clock of the outermost units on time-shared CPUs
 *   rescues()                            the state of rescues: see rescue.h
 *   world_loan_pass(), and so on         the clock of borrowers
 *   mask_*(id, which, ...)               sets of CPUs: a unit's, or the machine's if id is DISPATCH_NOBODY
 *   any_idle()                           whether any CPU is idle
 *   mask_take_near(), pick_idle(...)     removes from a mask, or claims if idle, the CPU nearest to another that the task may use
 *   may_run(p, cpu)                      whether the task's affinity allows the CPU
 *   comes_next(p, cpu)                   whether the task would run next if dispatched directly to this CPU
 *   higher_has(cpu)                      whether a higher class has the CPU
 *   is_held_here(p, enq_flags)           whether the task has migration disabled
 *   add(), add64()                       counters that several CPUs write; add() returns the old value
 *   swap64(p, by), replace64(p, is, by)  atomic exchange: the old value; compare and exchange: whether it succeeded
 *   disciplined()                        whether units may have disciplines other than stride
 *   seated()                             whether tasks may have seats
 *   away()                               the counter of CPUs that run tasks with seats in other pools
 *   take_fitting(queue, pool, late)      moves the first task of a queue for which fits_pool() is true to this CPU: see seats.h
 *   idles(cpu)                           whether the CPU is idle
 *   gated()                              whether there may be gangs
 *   gate_is_shut(gang)                   whether the gang's tasks must not run; false for DISPATCH_NOBODY
 *   gang_of(p, task)                     the gang of the task's process, or DISPATCH_NOBODY
 *   is_in_call(p), sleeps_deeply(p)      whether a preempted, or a sleeping, task is inside: see gates.h
 *   is_ending(p)                         whether the task exits, or will exit when it runs
 *   is_current(p), parked_since(p)       whether the task is the one that stops on this CPU; when it was parked
 *   swap32(p, by)                        atomic exchange, and a full barrier: the old value
 *   random_bits()                        32 random bits
 *   set_slice(p, ns)                     sets the remaining slice of a task
 */
#ifndef DISPATCH_WORLD_H
#define DISPATCH_WORLD_H

/* Queues are numbered: first one per unit, by the unit's number; from here on one per CPU, for tasks that must run there; */
#define QUEUE_OF_CPU DISPATCH_UNITS_MAX

/* and last the queue of parked tasks. */
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

/* Whether a time, or a key, is less than another. Both may wrap, so their difference is compared. */
static bool before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

/* The time; never 0, which stands for "never" in the tables. A simulation begins at 0: there it is 1. */
static u64 moment(void)
{
	return scx_bpf_now() ?: 1;
}

/* Raises a value to a lower bound. */
static void at_least(u64 *value, u64 least)
{
	if (before(*value, least))
		*value = least;
}

#endif
