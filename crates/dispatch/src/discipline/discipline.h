/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The interface between the scheduler and its disciplines, each of which orders a unit's own tasks and its sub-units.
 *
 * `stride` is the fast path, inlined where it is needed (tree.h, waking.h). The others are called here, through struct
 * party. A scheduler where every unit uses stride is loaded without them (see disciplined()).
 */
#ifndef DISPATCH_DISCIPLINE_H
#define DISPATCH_DISCIPLINE_H

#include "party.h"
#include "stride.h"
#include "lottery.h"
#include "usage.h"
#include "entitlement.h"
#include "decay.h"
#include "fifo.h"
#include "rr.h"
#include "batch.h"
#include "job_currency.h"
#include "gang.h"
#include "dwcs.h"
#include "smp.h"
#include "classes.h"

/* Whether a discipline's events are handled by the functions of this file: stride, which smp uses too, is inlined elsewhere. */
static bool is_other(u32 discipline)
{
	return disciplined() && discipline != DISPATCH_STRIDE && discipline != DISPATCH_SMP;
}

/* The unit in whose queue a unit's own tasks wait: under smp an ancestor, otherwise the unit itself. */
static u32 orders(u32 id, const struct dispatch_unit *unit)
{
	return disciplined() ? unit->orders : id;
}

/* Whether a discipline's keys are sequence numbers: the clock plus one, drawn for each turn. */
static bool has_numbers(u32 discipline)
{
	return discipline >= DISPATCH_FIFO && discipline <= DISPATCH_GANG;
}

/* The discipline among a unit's own tasks. Tasks have no gangs, deadlines or classes: there, they take turns round robin. */
static u32 among_tasks(u32 discipline)
{
	return discipline == DISPATCH_GANG || discipline == DISPATCH_DWCS || discipline == DISPATCH_CLASSES ? DISPATCH_RR :
													     discipline;
}

/* Inlined: BPF passes at most five arguments. */
#define PART static inline __attribute__((always_inline))

/* Events of a party. */
enum event {
	COMES_AWAKE, /* it becomes runnable: it slept, or is new */
	COMES,       /* its turn has ended, and it waits again */
	WOULD_COME,  /* it runs, and the caller asks for the key that it would have after COMES */
	BEGINS,      /* its turn begins */
	GOES_ON,     /* COMES and BEGINS: it continues, since no other party has a better claim */
	RAN,         /* it ran on one CPU for some time since the last event */
	WAITS,       /* time has passed while it waits */
};

PART void party_comes(u32 discipline, struct party *party, struct dispatch_order *order,
		      struct dispatch_deadlines *deadline, u64 now, bool woke)
{
	switch (discipline) {
	case DISPATCH_LOTTERY:
		lottery_comes(party, now, woke);
		break;
	case DISPATCH_ENTITLEMENT:
		entitlement_comes(party, now);
		break;
	case DISPATCH_DECAY:
		decay_comes(party, now);
		break;
	case DISPATCH_FIFO:
		fifo_comes(party, woke);
		break;
	case DISPATCH_RR:
		rr_comes(party);
		break;
	case DISPATCH_BATCH:
		batch_comes(party, woke);
		break;
	case DISPATCH_JOB:
		job_comes(party, order, woke);
		break;
	case DISPATCH_GANG:
		gang_comes(party, now, woke);
		break;
	case DISPATCH_DWCS:
		dwcs_comes(party, deadline, now, woke);
		break;
	case DISPATCH_CLASSES:
		classes_comes(party, woke);
		break;
	}
}

PART void party_ran(u32 discipline, struct party *party, struct dispatch_order *order,
		    struct dispatch_deadlines *deadline, u64 used, u32 weights, u64 now)
{
	switch (discipline) {
	case DISPATCH_LOTTERY:
		lottery_ran(party, used, now);
		break;
	case DISPATCH_ENTITLEMENT:
		entitlement_ran(party, used, now);
		break;
	case DISPATCH_DECAY:
		decay_ran(party, used, now);
		break;
	case DISPATCH_RR:
		rr_ran(party);
		break;
	case DISPATCH_BATCH:
		batch_ran(party, used);
		break;
	case DISPATCH_JOB:
		job_ran(party, order, used, weights);
		break;
	case DISPATCH_DWCS:
		dwcs_ran(party, deadline, used, now);
		break;
	case DISPATCH_CLASSES:
		classes_ran(party, used);
		break;
	}
}

/*
 * Handles an event of a party. For GOES_ON, the beginning of a turn is handled before the key is computed: under gang, the key
 * depends on when the gang's turn began.
 */
PART void happens(u32 discipline, enum event event, struct party *party, struct dispatch_order *order,
		  struct dispatch_deadlines *deadline, u64 used, u32 weights)
{
	u64 now = moment();

	if (event == BEGINS || event == GOES_ON) {
		if (discipline == DISPATCH_LOTTERY)
			lottery_begins(party);
		else if (discipline == DISPATCH_GANG)
			gang_begins(party, now);
		else if (discipline == DISPATCH_CLASSES)
			classes_begins(party);
	}
	if (event == COMES_AWAKE || event == COMES || event == WOULD_COME || event == GOES_ON)
		party_comes(discipline, party, order, deadline, now, event == COMES_AWAKE);
	else if (event == RAN)
		party_ran(discipline, party, order, deadline, used, weights, now);
	else if (event == WAITS && discipline == DISPATCH_DWCS)
		dwcs_passes(party, deadline, now);
	else if (event == WAITS && discipline == DISPATCH_JOB)
		job_waits(party, order);
}

/* Advances the clock to a sequence number that was drawn, so that the number is not drawn twice. */
static void count_numbers(u32 discipline, u64 *clock, u64 key)
{
	if (has_numbers(discipline))
		at_least(clock, key & (OVER - 1));
}

/* At the end of an interval of `job-currency`: the sum of the weights of a unit's active sub-units and own tasks; else 0. */
VERIFIED_ALONE(u32) weights_to_hand_out_by(u32 id, u32 discipline, u32 event)
{
	struct dispatch_unit *around = unit_at(id), *unit;
	u32 sum, other;

	if (!around || discipline != DISPATCH_JOB || event != RAN || !job_hands_out(&around->subs, moment()))
		return 0;
	sum = around->own_active ? OWN_WEIGHT : 0;
	bpf_for(other, 0, rules()->units) {
		unit = unit_at(other);
		if (unit && unit->parent == id && unit->active)
			sum += unit->weight;
	}
	return sum;
}

/* Handles an event of a task among its unit's tasks, under a discipline other than stride. Returns 0. */
VERIFIED_ALONE(u32) to_task(struct party *party, u32 id, u32 event, u64 used)
{
	struct dispatch_unit *unit = unit_at(id);
	u32 weights = 0;

	if (!party || !unit)
		return 0;
	party->clock = unit->vtime;
	if (unit->discipline == DISPATCH_JOB && event == RAN && job_hands_out(&unit->tasks, moment()))
		weights = unit->own_active * SHARE_UNIT;
	happens(among_tasks(unit->discipline), event, party, &unit->tasks, &unit->deadlines, used, weights);
	return 0;
}

/* The clock by which a party is placed among a unit's sub-units and its own tasks. */
static u64 *clock_for(struct dispatch_unit *around, u32 discipline, u32 class)
{
	return discipline == DISPATCH_CLASSES ? &around->clocks[class % DISPATCH_RANKS] : &around->frontier;
}

/* Handles an event of a unit among its siblings, under a discipline other than stride. Returns 0. */
VERIFIED_ALONE(u32) to_unit(u32 id, u32 event, u64 used)
{
	struct dispatch_unit *unit = unit_at(id), *around;
	struct party party = {};
	u64 *clock;

	if (!unit || !(around = unit_at(unit->parent)))
		return 0;
	party.key = unit->pass;
	party.mark = unit->memory.mark;
	party.at = unit->memory.at;
	party.weight = unit->weight ? unit->weight : 1;
	party.class = class_of(unit->discipline);
	clock = clock_for(around, unit->among, party.class);
	party.clock = *clock;
	happens(unit->among, event, &party, &around->subs, &unit->deadlines, used,
		weights_to_hand_out_by(unit->parent, unit->among, event));
	unit->pass = party.key;
	unit->memory.mark = party.mark;
	unit->memory.at = party.at;
	at_least(clock, party.clock);
	count_numbers(unit->among, &around->frontier, party.key);
	return 0;
}

/* Handles an event of a unit's own tasks together, as one party among the unit's sub-units, without a deadline. Returns 0. */
VERIFIED_ALONE(u32) to_own_tasks(u32 id, u32 event, u64 used)
{
	struct dispatch_deadlines none = {};
	struct dispatch_unit *unit = unit_at(id);
	struct party party = {};
	u64 *clock;

	if (!unit)
		return 0;
	party.key = unit->own_pass;
	party.mark = unit->own_memory.mark;
	party.at = unit->own_memory.at;
	party.weight = OWN_WEIGHT;
	party.class = class_of(DISPATCH_STRIDE);
	clock = clock_for(unit, unit->discipline, party.class);
	party.clock = *clock;
	happens(unit->discipline, event, &party, &unit->subs, &none, used,
		weights_to_hand_out_by(id, unit->discipline, event));
	unit->own_pass = party.key;
	unit->own_memory.mark = party.mark;
	unit->own_memory.at = party.at;
	at_least(clock, party.clock);
	count_numbers(unit->discipline, &unit->frontier, party.key);
	return 0;
}

/* Whether a waking party with the key `mine` preempts one with the key `its` that has run for `ran` ns in this turn. */
static bool interrupts(u32 discipline, u64 mine, u64 its, u64 ran)
{
	switch (discipline) {
	case DISPATCH_LOTTERY:
		return before(mine, its) && ran < LOTTERY_NAP;
	case DISPATCH_ENTITLEMENT:
		return before(mine + ENTITLEMENT_HALF_LIFE / 16, its);
	case DISPATCH_DECAY:
		return before(mine + DECAY_HALF_LIFE / 16, its);
	case DISPATCH_JOB:
		return before(mine + OVER / 2, its);
	case DISPATCH_CLASSES:
		return before(mine + CLASS / 2, its);
	case DISPATCH_DWCS:
		return before(mine, its);
	}
	return false;
}

/*
 * The time to add to the key of a party that runs on `busy` CPUs: one slice for each of them, which will be charged later. Keys
 * that are sequence numbers or deadlines do not advance by use, so nothing is added.
 */
static u64 pending(u32 discipline, u32 busy, u64 slice)
{
	if (!is_other(discipline))
		return busy * slice;
	return discipline >= DISPATCH_FIFO && discipline <= DISPATCH_DWCS ? 0 : busy * slice;
}

#endif
