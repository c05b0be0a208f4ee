/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Finds the unit of a process that executes a program, before the program's first instruction.
 *
 * Problem. The policy decides which process belongs to which unit (policy/src/membership.rs). But the policy
 * sees a new process only at its next poll. Until then the process would be in no unit. A process that exits
 * before that poll would never be in any unit.
 *
 * Algorithm. The policy's rules come as lists (struct dispatch_match), the most specific first. The decision
 * begins at the unit of the control group that the process is in. For a process in no unit's control group,
 * it begins at the outermost units. So a process in a unit's control group stays in that unit, or moves to a
 * sub-unit of it.
 *
 * Properties. For most processes, the result equals the policy's; live/src/apply/kernel/matches.rs tests that at random. The
 * exceptions are processes that a `cgroup:` or `pid:` rule matches, and processes that entered by `exec`, or whose
 * parent did. The same source is compiled for the kernel, and natively for that test.
 *
 * Names. A program has two names: that of the executable file (mm->exe_file, as in /proc/PID/exe), and that
 * of the executed path (bprm->filename). The two differ for a script and for a symbolic link. Arguments are
 * ignored: a process can choose them.
 *
 * Limits. Texts are compared as bytes. The name of the executable file is known if it has fewer than
 * DISPATCH_FILE_NAME bytes. The name of the executed path is known if both names fit into DISPATCH_TEXTS.
 *
 * A file that includes this one defines match_at(number), parent_of(unit), has_group(group), and nought(), which is 0. The
 * verifier does not know that nought() is 0, and discards what it knows about a number when nought() is added. Otherwise
 * it would explore a loop once for each state of every position in a text.
 */
#ifndef DISPATCH_MATCHES_H
#define DISPATCH_MATCHES_H

#define GLOB_STEPS (DISPATCH_GLOB_MAX * DISPATCH_TEXTS)

/*
 * Whether the pattern of an entry matches the whole text at offset `text`; never for an empty text. After a mismatch, the match
 * is tried again with one byte more consumed by the last `*`. That byte may be within a multi-byte character, where no character
 * of the pattern can match.
 */
VERIFIED_ALONE(bool) glob_matches(u32 number, const struct dispatch_texts *texts, u32 text)
{
	const struct dispatch_match *match = match_at(number);
	u32 glob = 0, star = DISPATCH_GLOB_MAX, swallowed = 0, step;
	u32 within = 0; /* 1: `?` matched a first byte, and its character may have more bytes */
	u32 nothing = nought();
	u8 byte, wanted;

	if (!match || !texts || !texts->bytes[text % DISPATCH_TEXTS])
		return false;
	bpf_for(step, 0, GLOB_STEPS) {
		glob += nothing;
		star += nothing;
		swallowed += nothing;
		text += nothing;
		within += nothing;
		byte = texts->bytes[text % DISPATCH_TEXTS];
		wanted = match->glob[glob % DISPATCH_GLOB_MAX];
		if (within && (byte & 0xc0) == 0x80) {
			text++;
			continue;
		}
		within = 0;
		if (wanted == '*') {
			star = glob++;
			swallowed = text;
		} else if (!byte) {
			return !wanted;
		} else if (wanted == '?' || wanted == byte) {
			within = wanted == '?';
			glob++;
			text++;
		} else if (star < DISPATCH_GLOB_MAX) {
			glob = star + 1;
			text = ++swallowed;
		} else {
			return false;
		}
	}
	return false;
}

/*
 * The direct sub-unit of `level` that is a unit or encloses it; DISPATCH_NOBODY if `level` does not enclose the unit. With
 * DISPATCH_NOBODY as the level: the outermost unit that is or encloses it.
 */
VERIFIED_ALONE(u32) unit_below(u32 level, u32 unit)
{
	u32 parent, step;

	bpf_for(step, 0, DISPATCH_DEPTH_MAX) {
		parent = unit == DISPATCH_NOBODY ? DISPATCH_NOBODY : parent_of(unit);
		if (parent == level)
			return unit;
		unit = parent;
	}
	return DISPATCH_NOBODY;
}

/* Whether the pattern of an entry matches one of the two names of the program. */
static bool executes(u32 number, const struct dispatch_facts *facts)
{
	return glob_matches(number, &facts->texts, 0) || glob_matches(number, &facts->texts, facts->program);
}

/* The unit of an entry if the process passes its test, or DISPATCH_NOBODY. */
static u32 passed(u32 number, const struct dispatch_match *match, const struct dispatch_facts *facts, u32 level)
{
	bool hit = false;

	switch (match->test) {
	case DISPATCH_TEST_COMMAND:
		hit = executes(number, facts);
		break;
	case DISPATCH_TEST_COMMAND_OF_USER:
		hit = match->value == facts->user && executes(number, facts);
		break;
	case DISPATCH_TEST_COMMAND_OF_GROUP:
		hit = has_group(match->value) && executes(number, facts);
		break;
	case DISPATCH_TEST_INHERITED:
		return facts->heir == DISPATCH_NOBODY ? DISPATCH_NOBODY : unit_below(level, facts->heir);
	case DISPATCH_TEST_USER:
		hit = match->value == facts->user;
		break;
	case DISPATCH_TEST_GROUP:
		hit = has_group(match->value);
		break;
	case DISPATCH_TEST_USERS:
		hit = match->value <= facts->user && facts->user <= match->last;
		break;
	case DISPATCH_TEST_OTHERWISE:
		hit = true;
		break;
	}
	return hit ? match->unit : DISPATCH_NOBODY;
}

/*
 * The unit of a process whose control group is that of unit `base`, and what determined it. Follows the lists from `base` down
 * the tree. A test that cannot be made ends the search: then the unit is `base`.
 */
static struct dispatch_place place(const struct dispatch_facts *facts, u32 base)
{
	u32 level = base == DISPATCH_COMMON ? DISPATCH_NOBODY : base, at = base, unit, step;
	struct dispatch_place unchanged = { .unit = base, .by = DISPATCH_BY_CGROUP }, found = unchanged;
	const struct dispatch_match *match;
	u32 nothing = nought();

	bpf_for(step, 0, DISPATCH_MATCHES_MAX) {
		at += nothing;
		level += nothing;
		found.unit += nothing;
		found.by += nothing;
		match = match_at(at);
		if (!match || match->test == DISPATCH_TEST_UNKNOWN)
			return unchanged;
		if (match->test == DISPATCH_TEST_END)
			break;
		if (match->test == DISPATCH_TEST_LIST) {
			at = match->value;
			continue;
		}
		unit = passed(at, match, facts, level);
		if (unit == DISPATCH_NOBODY) {
			at++;
			continue;
		}
		found.by = match->test >= DISPATCH_TEST_COMMAND && match->test <= DISPATCH_TEST_INHERITED ?
				   DISPATCH_BY_COMMAND : DISPATCH_BY_RULE;
		found.unit = level = at = unit;
	}
	return found;
}

#endif
