/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The interface between the switch-time scheduler and the programs that set it up. tables/mod.rs defines the interface, and
 * build.rs generates the header tables.h from that. This file adds names that only the scheduler uses.
 */
#ifndef DISPATCH_INTF_H
#define DISPATCH_INTF_H

#include "tables.h"

#define DISPATCH_WINDOW_MAX 1000u /* deadlines in a window: see struct dispatch_deadlines */

/* The counts of busy CPUs that include a CPU: see occupy(). */
enum dispatch_occupied {
	DISPATCH_BY_NOBODY,
	DISPATCH_BY_LEAF,  /* those of its task's unit and of all units that enclose it */
	DISPATCH_BY_INNER, /* also that of the unit's own tasks, since the unit has sub-units */
};

enum dispatch_task_state {
	DISPATCH_COUNTED = 1, /* counted among its unit's active tasks */
	DISPATCH_WAITS   = 2, /* counted as waiting in its unit's queue */
	DISPATCH_STRAY   = 4, /* its affinity has none of its unit's CPUs */
	DISPATCH_AT_CPU  = 8, /* counted as waiting in a CPU's own queue */
	DISPATCH_HELD    = 16, /* its migration is disabled */
	DISPATCH_TOLD    = 32, /* woken by a message, and not queued yet */
	DISPATCH_WOKE    = 64, /* slept, or is new in its unit, and has no key there yet */
	DISPATCH_PARKED  = 128, /* waits for its gang's gate: see gates.h */
	DISPATCH_INSIDE  = 256, /* may hold a lock: see gates.h */
};

_Static_assert(DISPATCH_DISCIPLINES == DISPATCH_SENTINEL, "DISCIPLINES in tables/mod.rs is not the number of disciplines");
_Static_assert(DISPATCH_CAUSES == DISPATCH_WAIT_SENTINEL, "CAUSES in tables/mod.rs is not the number of causes");
_Static_assert(DISPATCH_HOLDERS == DISPATCH_HOLDER_SENTINEL, "HOLDERS in tables/mod.rs is not the number of holders");

#endif
