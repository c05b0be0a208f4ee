/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The layout of the file in memory that the lock meter writes and `meter.rs` reads. `meter.rs` repeats these constants; a test
 * there compares them.
 *
 *   header | processes | slabs
 *
 * A process entry holds the lines of its /proc/self/maps that name files, from which addresses are resolved later. Each thread
 * writes only its own slab, so counting takes no lock and shares no cache line.
 */
#ifndef METER_H
#define METER_H

#include <stdatomic.h>
#include <stdint.h>

#define METER_MAGIC 0x31726574656d6b6cull /* "lkmeter1" */

enum {
	METER_HEADER_BYTES = 4096,
	METER_PROCESSES = 512,
	METER_PROCESS_BYTES = 65536,
	METER_SLABS = 2048,
	METER_SLAB_BYTES = 65536,
	METER_RECORD_BYTES = 192,
	METER_RECORDS = 340, /* 64 bytes of the slab's head and 340 records fit */
};

/* Written by the reader before the program starts, except for the counters at the end. */
struct meter_header {
	uint64_t magic;
	uint64_t use_tsc;      /* times are in TSC ticks; otherwise in ns */
	uint64_t ticks_per_ms; /* TSC frequency */
	uint64_t target;       /* the class of locks that is delayed and sampled; 0: none */
	uint64_t delay_in_ns;  /* busy loop at the end of each hold */
	uint64_t delay_out_ns; /* busy loop after each hold */
	uint64_t sample_ns;    /* shortest time between two samples of a thread */
	_Atomic uint32_t processes, slabs;      /* how many were allocated; may exceed the capacity */
	_Atomic uint32_t full;                  /* locks not counted because a slab was full */
	uint32_t unused;
};

struct meter_process {
	uint32_t pid, length; /* length: bytes used of maps */
	char maps[METER_PROCESS_BYTES - 8];
};

enum meter_kind { METER_NONE, METER_MUTEX, METER_RWLOCK, METER_SPIN };
/* The subject of a record. */
enum meter_about { METER_LOCK = 1, METER_SITE = 2, METER_PAIR = 3 };

struct meter_record {
	uint64_t lock, site, holder, class;
	uint32_t kind, about;
	union {
		struct { /* METER_SITE: a lock at a call site. METER_PAIR: waits there while held from call site `holder` */
			uint64_t total, shared, waited, wait, wait_max, hold, hold_max, rejected, retaken;
		};
		struct { /* METER_LOCK */
			uint64_t first, last, released, gap, gaps, injected, injections;
			uint64_t samples, hold_wall, hold_cpu, hold_queue;
			uint64_t gap_samples, gap_wall, gap_cpu, gap_queue;
		};
	};
	uint64_t pad[4];
};

struct meter_slab {
	uint32_t process, tid, threads, used;
	uint64_t unused[6];
	struct meter_record records[METER_RECORDS];
};

_Static_assert(sizeof(struct meter_header) <= METER_HEADER_BYTES, "the header fits");
_Static_assert(sizeof(struct meter_process) == METER_PROCESS_BYTES, "a process is as long as the reader thinks");
_Static_assert(sizeof(struct meter_record) == METER_RECORD_BYTES, "a record is as long as the reader thinks");
_Static_assert(sizeof(struct meter_slab) <= METER_SLAB_BYTES, "a slab fits");

#endif
