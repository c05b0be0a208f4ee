/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Where the scheduler's tables are, and how they are reached: the kernel's maps for BPF, a structure per simulated
 * machine natively. Both offer the same functions:
 *
 *   rules(), unit_at(id), cpu_at(id)     the tables; NULL for a number that is out of range, DISPATCH_NOBODY included
 *   account_at(unit, cpu)                likewise; natively one account for all CPUs
 *   waits_add(unit, by), waits_in(unit)  tasks that wait, or are about to, by unit
 *   waiting(block), lowest(bits)         a bit per unit of a block of which tasks wait; the number of the lowest bit
 *   task_of(p), new_task(p)              a task's own storage
 *   unit_of(p, args)                     the unit that a new task belongs to
 *   inherit(task, args)                  where a new task is that is in no unit's control group
 *   world_pass(), world_pass_at_least()  how far the time-shared CPUs are
 *   rescues()                            whose tasks are rescued, and when
 *   world_loan_pass(), and so on         how far those are that borrow
 *   mask_*(id, which, ...)               sets of CPUs: a unit's, or for DISPATCH_NOBODY the machine's
 *   any_idle()                           whether any CPU is
 *   mask_take_near(), pick_idle(...)     the nearest to a CPU, within the task's affinity
 *   may_run(p, cpu)                      within the task's affinity
 *   higher_has(cpu)                      a higher class has that CPU
 *   is_held_here(p, enq_flags)           for a moment it may run nowhere else, whatever its affinity is
 *   add(), add64()                       counters that several CPUs write; add() returns what was there before
 *   swap64(p, by), replace64(p, is, by)  the same: what was there; whether it was replaced
 *   disciplined()                        whether any unit may have another discipline than stride
 *   seated()                             whether tasks may have seats
 *   away()                               how many CPUs run tasks that have their seats elsewhere
 *   take_fitting(queue, pool, late)      moves the first task of a queue that fits here to this CPU: see seats.h
 *   idles(cpu)                           whether that CPU does
 *   gated()                              whether there may be gangs
 *   gate_is_shut(gang)                   whether its tasks may not run; false for DISPATCH_NOBODY
 *   gang_of(p, task)                     its process's gang, or DISPATCH_NOBODY
 *   is_in_call(p), sleeps_deeply(p)      what makes a task be inside: see gates.h
 *   is_ending(p)                         it ends, or will when it runs
 *   is_current(p), parked_since(p)       it is the one that stops here; when it was parked
 *   swap32(p, by)                        a barrier as well: what was there
 *   random_bits()                        32 of them
 *   set_slice(p, ns)                     what a task has left to run
 */
#ifndef DISPATCH_WORLD_H
#define DISPATCH_WORLD_H

/* Units' queues have their numbers. Then there is, with its number, that of each CPU, for tasks that must run there. */
#define QUEUE_OF_CPU DISPATCH_UNITS_MAX

/* And that of tasks whose gangs are shut. */
#define QUEUE_OF_GATES (QUEUE_OF_CPU + DISPATCH_CPUS_MAX)

enum mask {
	MASK_HOMES = 0,    /* of a unit: its home CPUs */
	MASK_LENT = 1,     /* of a unit: home CPUs that run others' tasks and are not called back */
	MASK_SHARED = 0,   /* of the machine: time-shared CPUs */
	MASK_LENDABLE = 1, /* of the machine: CPUs whose owner lends */
	MASK_ALL = 2,      /* of the machine: all CPUs */
};

#define SEAT_LOOKS 8u /* of so many that wait, one that fits a CPU is taken before the others: see seats.h */

#ifdef __bpf__
#include "bpf/world.h"
#else
#include "native/world.h"
#endif

static bool before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

/* Now, where 0 says "never": which it is at the beginning of a simulation. */
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
