/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * No isolation within a unit, as on a symmetric multiprocessor without units.
 *
 * Idea. All tasks within the unit are equal, whatever sub-unit they are in. They wait in one queue, ordered as under stride: the
 * task with the least CPU time for its nice value is next. Sub-units' tickets are ignored. CPU time is still accounted to
 * the sub-unit of each task.
 *
 *   orders(unit) = the outermost enclosing unit under smp; the unit itself otherwise
 *
 * Good at: using every CPU. It is what users know, and the baseline that isolation is compared with.
 * Bad at: isolation: a sub-unit's share is proportional to its number of tasks.
 *
 * Source: seed 000, section 4 (the scheme SMP).
 */
#ifndef DISPATCH_SMP_H
#define DISPATCH_SMP_H

/* The unit in whose queue the tasks of unit `id` wait. The parent is given by number, `around`, and by pointer. */
static u32 smp_orders(u32 id, u32 around, const struct dispatch_unit *parent)
{
	if (!parent)
		return id;
	if (parent->orders != around)
		return parent->orders;
	return parent->discipline == DISPATCH_SMP ? around : id;
}

#endif
