/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/* What had a CPU during a wait, compiled for the test that compares it with a plain list of intervals. */
#include "../kernel.h"
#include "../intf.h"
#include "../world.h"
#include "../waits.h"

void dispatch_waits_begin(struct dispatch_world *machine, u32 unit);
void dispatch_waits_stop(struct dispatch_world *machine);
void dispatch_waits_higher(struct dispatch_world *machine, u64 from);
void dispatch_waits_end(struct dispatch_world *machine, u32 waiter, u64 since);

/* A task of a unit begins to run on CPU 0. */
void dispatch_waits_begin(struct dispatch_world *machine, u32 unit)
{
	world = machine;
	note_begins(cpu_at(0), 0, unit, moment());
	cpu_at(0)->since = moment();
}

/* The task of CPU 0 stops. */
void dispatch_waits_stop(struct dispatch_world *machine)
{
	world = machine;
	cpu_at(0)->since = moment();
	note_stops(cpu_at(0));
}

/* A higher class had CPU 0 until now. */
void dispatch_waits_higher(struct dispatch_world *machine, u64 from)
{
	world = machine;
	note_higher_interval(cpu_at(0), 0, from, moment());
}

/* A task of a unit is dispatched on CPU 0. */
void dispatch_waits_end(struct dispatch_world *machine, u32 waiter, u64 since)
{
	world = machine;
	divide(account_at(waiter, 0), cpu_at(0), 0, waiter, since, moment());
}
