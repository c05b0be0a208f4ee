/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * Round robin. Idea: parties take turns of one slice each.
 *
 *   key = a sequence number, drawn for each turn
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

#endif
