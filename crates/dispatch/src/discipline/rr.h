/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Round robin. Idea: all have turns, of a slice each.
 *
 *   key = the number of its last turn among those of all
 *
 * Weights count for nothing, and no party that wakes interrupts another.
 *
 * Good at: parties that are alike.
 * Bad at: owners: one with many parties has as many turns.
 *
 * Source: seed 002, scheduler classes.
 */
#ifndef DISPATCH_RR_H
#define DISPATCH_RR_H

static void rr_comes(struct party *party)
{
	party->key = party->clock + 1;
}

#endif
