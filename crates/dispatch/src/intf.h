/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The interface between the switch-time scheduler and the programs that set it up: tables/mod.rs defines it, and build.rs
 * generates the header tables.h from it. Names that only the scheduler uses are here.
 */
#ifndef DISPATCH_INTF_H
#define DISPATCH_INTF_H

#include "tables.h"

#define DISPATCH_WINDOW_MAX 1000u /* deadlines in a window: see struct dispatch_deadlines */

/* Which units' busy CPUs include a CPU. */
enum dispatch_occupied {
	DISPATCH_BY_NOBODY,
	DISPATCH_BY_LEAF,  /* its task's unit and all around it */
	DISPATCH_BY_INNER, /* likewise; the unit has sub-units, so its own tasks are counted, too */
};

enum dispatch_task_state {
	DISPATCH_COUNTED = 1, /* among its unit's active tasks */
	DISPATCH_WAITS   = 2, /* among those that wait in its unit's queue */
	DISPATCH_STRAY   = 4, /* pinned to CPUs of others */
	DISPATCH_AT_CPU  = 8, /* among those that wait in a CPU's own queue */
	DISPATCH_HELD    = 16, /* migration is disabled */
	DISPATCH_TOLD    = 32, /* woken by a message, and not queued yet */
	DISPATCH_WOKE    = 64, /* it slept, or is new in its unit, and has no key there yet */
	DISPATCH_PARKED  = 128, /* it waits for its gang's gate: see gates.h */
	DISPATCH_INSIDE  = 256, /* it may hold a lock: likewise */
};

_Static_assert(DISPATCH_DISCIPLINES == DISPATCH_SENTINEL, "DISCIPLINES in tables/mod.rs is not how many there are");
_Static_assert(DISPATCH_CAUSES == DISPATCH_WAIT_SENTINEL, "CAUSES in tables/mod.rs is not how many there are");

#endif
