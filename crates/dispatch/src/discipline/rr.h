/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Round robin. Idea: parties take turns of one slice each.
 *
 *   key = a sequence number, drawn when the party begins to wait, when its turn begins and when it ends
 *
 * The number drawn at the beginning keeps other CPUs from choosing the same sub-unit again before the rest. The one drawn at
 * the end lets those go first that woke during the turn.
 *
 * Weights are ignored, and a waking party preempts no other.
 *
 * Good at: parties that are alike.
 * Bad at: fairness between owners: one with many parties has as many turns.
 *
 * Source: seed 002, scheduler classes.
 */
#ifndef DISPATCH_RR_H
#define DISPATCH_RR_H

static void rr_comes(struct party *party)
{
	party->key = party->clock + 1;
}

static void rr_ran(struct party *party)
{
	rr_comes(party);
}

#endif
