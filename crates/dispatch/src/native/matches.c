/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/* The decision at exec, compiled for the test that compares it with the policy's. */
#include "../kernel.h"
#include "../intf.h"

static _Thread_local const struct dispatch_case *now;

static const struct dispatch_match *match_at(u32 number)
{
	return number < now->matches_count ? &now->matches[number] : NULL;
}

static u32 parent_of(u32 unit)
{
	return unit < now->units ? now->parents[unit] : DISPATCH_NOBODY;
}

static u32 nought(void)
{
	return 0;
}

static bool has_group(u32 group)
{
	u32 at;

	for (at = 0; at < now->groups_count; at++)
		if (now->groups[at] == group)
			return true;
	return false;
}

#include "../matches.h"

struct dispatch_place dispatch_place(const struct dispatch_case *of, const struct dispatch_facts *facts);

struct dispatch_place dispatch_place(const struct dispatch_case *of, const struct dispatch_facts *facts)
{
	now = of;
	return place(facts, of->base);
}
