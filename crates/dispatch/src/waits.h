/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Which unit had a CPU while a task waited for it.
 *
 * A wait is attributed when it ends: by what happened, since the wait began, on the CPU on which the task is dispatched.
 *
 * Each CPU records the *intervals* in which one unit had it. An interval includes the switches between the unit's tasks, but no
 * time in which the CPU idled. What lies between two intervals is idle time, or a switch between units. Intervals of higher
 * classes have the number of units in place of a unit: see note_higher().
 *
 * Usually one interval covers the whole wait. Otherwise divide_wait() does not add up the intervals: where two units alternate
 * at every switch, a wait has many. Each interval has the sums before it, of its unit and of all units. So the part of a unit
 * follows from its sum now and its sum before its first interval in the wait. The search ends when the parts add up to the
 * whole.
 *
 * The parts of other units go to a hash table per CPU, by waiter and runner. The loader empties it once a second: CPUs add to
 * one half of the table while the loader reads and clears the other.
 *
 * Properties (tested): the parts of a wait add up to the wait. Except for the part before the oldest interval, they are exact.
 */
#ifndef DISPATCH_WAITS_H
#define DISPATCH_WAITS_H

#define PROBES 8u /* entries of the hash table that are tried for a pair */

/* Adds to a unit's wait for another unit. Returns whether the table has room for that pair. */
VERIFIED_ALONE(bool) add_pair(u32 id, u32 waiter, u32 runner, u64 ns)
{
	u32 key = waiter << 16 | runner, first = key * 0x9e3779b1u >> 16, half = rules()->pairs_half & 1, probe;
	struct dispatch_pairs *pairs = pairs_at(id);
	struct dispatch_pair *pair;

	if (!pairs)
		return false;
	for (probe = 0; probe < PROBES; probe++) {
		pair = &pairs->halves[half][masked(first + probe, DISPATCH_PAIRS)];
		if (!pair->key) {
			pair->key = key;
			pairs->used[half]++;
		}
		if (pair->key == key) {
			pair->ns += ns;
			return true;
		}
	}
	return false;
}

/* Books a part of a unit's wait, in which `runner` had the CPU. */
static void book_part(struct dispatch_account *account, u32 id, u32 waiter, u32 runner, u64 ns)
{
	if (runner == waiter)
		account->waited_for_ns[DISPATCH_HOLDER_OWN] += ns;
	else if (runner >= rules()->units)
		account->waited_for_ns[DISPATCH_HOLDER_HIGHER] += ns;
	else if (!add_pair(id, waiter, runner, ns))
		account->waited_for_ns[DISPATCH_HOLDER_UNKNOWN] += ns;
}

/* The part of an interval that lies before a moment. */
static u64 length_before(const struct dispatch_interval *interval, u64 moment)
{
	return before(interval->from, moment) ? moment - interval->from : 0;
}

/* Books a unit's wait that began before the latest interval of the CPU. */
VERIFIED_ALONE(u32) divide_wait(u32 id, u32 waiter, u64 since, u64 now)
{
	struct dispatch_account *account = account_at(waiter, id);
	struct dispatch_history *history = history_at(id);
	struct dispatch_cpu *cpu = cpu_at(id);
	struct dispatch_interval *latest, *interval;
	struct dispatch_occupancy *occupancy;
	u64 rest = now - since, length, left, part;
	u32 first, step, at;

	if (!account || !history || !cpu)
		return 0;
	latest = &history->intervals[masked(history->count, DISPATCH_INTERVALS)];
	latest->until = cpu->had_until;
	length = cpu->had_until - cpu->had_from;
	/* A binary search, without branches, for the first interval that ends after `since`: the latest one does. */
	first = history->count + 1;
	for (step = DISPATCH_INTERVALS / 2; step; step /= 2) {
		interval = &history->intervals[masked(first + step - 1, DISPATCH_INTERVALS)];
		first += step & (u32)((s64)(interval->until - since - 1) >> 63);
	}
	interval = &history->intervals[masked(first, DISPATCH_INTERVALS)];
	if (first == history->count + 1 && before(since, interval->from)) {
		part = interval->from - since;
		if (part > rest)
			part = rest;
		account->waited_for_ns[DISPATCH_HOLDER_UNKNOWN] += part;
		rest -= part;
		since = interval->from;
	}
	left = latest->all + length - interval->all - length_before(interval, since);
	bpf_for(at, 0, DISPATCH_INTERVALS) {
		if (!left)
			break;
		interval = &history->intervals[masked(first + at, DISPATCH_INTERVALS)];
		if (before(since, interval->before))
			continue; /* an earlier interval of the same unit was found */
		occupancy = occupancy_at(interval->unit, id);
		if (!occupancy)
			break;
		part = interval->unit == cpu->had_by ? latest->had + length : occupancy->had;
		part -= interval->had + length_before(interval, since);
		left -= part;
		if (part > rest)
			part = rest; /* the clocks of two CPUs differ slightly */
		rest -= part;
		book_part(account, id, waiter, interval->unit, part);
	}
	account->waited_for_ns[DISPATCH_HOLDER_IDLE] += rest;
	return 0;
}

/* Books a unit's wait, from `since` until now, when a task is dispatched on a CPU. */
static void divide(struct dispatch_account *account, const struct dispatch_cpu *cpu, u32 id, u32 waiter, u64 since, u64 now)
{
	u64 until = before(now, cpu->had_until) ? now : cpu->had_until, part = 0;

	if (before(since, cpu->had_from)) {
		divide_wait(id, waiter, since, now);
		return;
	}
	if (before(since, until))
		book_part(account, id, waiter, cpu->had_by, part = until - since);
	account->waited_for_ns[DISPATCH_HOLDER_IDLE] += now - since - part;
}

/* A CPU's latest interval has ended, and that of `unit` begins. */
VERIFIED_ALONE(u32) begin_interval(u32 id, u32 unit, u64 from)
{
	struct dispatch_history *history = history_at(id);
	struct dispatch_cpu *cpu = cpu_at(id);
	struct dispatch_occupancy *ended, *begun;
	struct dispatch_interval *interval;
	u64 length, had, all, last;

	if (!history || !cpu)
		return 0;
	interval = &history->intervals[masked(history->count, DISPATCH_INTERVALS)];
	length = cpu->had_until - cpu->had_from;
	had = interval->had + length;
	all = interval->all + length;
	last = length ? cpu->had_until : interval->before;
	interval->until = cpu->had_until;
	if (unit != cpu->had_by) {
		ended = occupancy_at(cpu->had_by, id);
		begun = occupancy_at(unit, id);
		if (!ended || !begun)
			return 0;
		ended->had = had;
		ended->until = last;
		had = begun->had;
		last = begun->until;
	}
	if (length)
		history->count++; /* an empty interval is overwritten */
	at_least(&from, cpu->had_until);
	interval = &history->intervals[masked(history->count, DISPATCH_INTERVALS)];
	interval->from = interval->until = from;
	interval->had = had;
	interval->all = all;
	interval->before = last;
	interval->unit = unit;
	cpu->had_from = cpu->had_until = from;
	cpu->had_by = unit;
	return 0;
}

/* A unit's task begins to run: continues the CPU's latest interval if that is the unit's, and the CPU did not idle since. */
static void note_begins(struct dispatch_cpu *cpu, u32 id, u32 unit, u64 now)
{
	if (unit != cpu->had_by || cpu->since != cpu->had_until || now - cpu->had_until > SWITCH_NS)
		begin_interval(id, unit, now);
}

/* The CPU's task stops. */
static void note_stops(struct dispatch_cpu *cpu)
{
	at_least(&cpu->had_until, cpu->since);
}

/* A higher class had a CPU. */
static void note_higher_interval(struct dispatch_cpu *cpu, u32 id, u64 from, u64 until)
{
	begin_interval(id, rules()->units, from);
	at_least(&cpu->had_until, until);
}

#endif
