/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * No isolation within a unit, as on a symmetric multiprocessor without units.
 *
 * Idea. All tasks within the unit are equal, whatever sub-unit each is in. They wait in one queue, and are ordered as
 * under stride: the one with the least CPU time for its nice value is next. Sub-units' tickets count for nothing.
 * Accounts stay with the sub-unit that a task belongs to.
 *
 *   orders(unit) = the outermost unit around it that is under smp; itself where there is none
 *
 * Good at: using every CPU. It is what users know, and what isolation is compared with.
 * Bad at: a sub-unit has as much as it has tasks.
 *
 * Source: seed 000, section 4 (the scheme SMP).
 */
#ifndef DISPATCH_SMP_H
#define DISPATCH_SMP_H

/* The unit among whose tasks those of a new unit are ordered. `parent`: what is around it, by number and as it is. */
static u32 smp_orders(u32 id, u32 around, const struct dispatch_unit *parent)
{
	if (!parent)
		return id;
	if (parent->orders != around)
		return parent->orders;
	return parent->discipline == DISPATCH_SMP ? around : id;
}

#endif
