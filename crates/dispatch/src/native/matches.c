/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/* The decision at exec, compiled for the test that compares it with the policy's. */
#include "../kernel.h"
#include "../intf.h"

static _Thread_local const struct dispatch_case *input;

static const struct dispatch_match *match_at(u32 number)
{
	return number < input->matches_count ? &input->matches[number] : NULL;
}

static u32 parent_of(u32 unit)
{
	return unit < input->units ? input->parents[unit] : DISPATCH_NOBODY;
}

static u32 nought(void)
{
	return 0;
}

static bool has_group(u32 group)
{
	u32 index;

	for (index = 0; index < input->groups_count; index++)
		if (input->groups[index] == group)
			return true;
	return false;
}

#include "../matches.h"

struct dispatch_place dispatch_place(const struct dispatch_case *test_case, const struct dispatch_facts *facts);

struct dispatch_place dispatch_place(const struct dispatch_case *test_case, const struct dispatch_facts *facts)
{
	input = test_case;
	return place(facts, input->base);
}
