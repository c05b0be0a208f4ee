// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Threads that take a lock again and again, with known times, to verify what `commonhold scale --locks` measures.
 *
 * usage: locks KIND THREADS ROUNDS HOLD HOLD_SLEEP GAP GAP_SLEEP
 *
 * Together the threads make ROUNDS rounds. In each, a thread computes for GAP us and sleeps for GAP_SLEEP us, takes the lock,
 * computes for HOLD us and sleeps for HOLD_SLEEP us, and releases it. Each time varies between half and one and a half times.
 * KIND: mutex, spin, read (an rwlock, all readers), write (an rwlock, all writers), apart (a mutex per thread), none.
 * At the end it prints the rounds per second, and how often the lock was taken.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t counter_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spinlock;
static _Atomic long left, taken;
static long hold, hold_sleep, gap, gap_sleep;
static enum { MUTEX, SPIN, READ, WRITE, APART, NONE } kind;
static const char *const KINDS[] = { "mutex", "spin", "read", "write", "apart", "none" };

static uint64_t cpu_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static __attribute__((noinline)) void compute(long us)
{
	uint64_t from = us ? cpu_ns() : 0;
	while (us && cpu_ns() - from < (uint64_t)us * 1000)
		;
}

static long about(long us, uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return us / 2 + (long)((*seed >> 33) % (uint64_t)(us + 1));
}

static void sleep_us(long us)
{
	struct timespec time = { us / 1000000, us % 1000000 * 1000 };
	if (us)
		nanosleep(&time, NULL);
}

static void step(long work, long sleep, uint64_t *seed)
{
	compute(about(work, seed));
	sleep_us(about(sleep, seed));
}

static void change(uint64_t *seed)
{
	step(hold, hold_sleep, seed);
	taken++;
}

static void *run(void *number)
{
	pthread_mutex_t mine = PTHREAD_MUTEX_INITIALIZER;
	uint64_t seed = (uint64_t)(uintptr_t)number * 0x9e3779b97f4a7c15u + 1;
	while (left-- > 0) {
		step(gap, gap_sleep, &seed);
		switch (kind) {
		case MUTEX:
			pthread_mutex_lock(&counter_lock);
			change(&seed);
			pthread_mutex_unlock(&counter_lock);
			break;
		case SPIN:
			pthread_spin_lock(&spinlock);
			change(&seed);
			pthread_spin_unlock(&spinlock);
			break;
		case READ:
			pthread_rwlock_rdlock(&table_lock);
			change(&seed);
			pthread_rwlock_unlock(&table_lock);
			break;
		case WRITE:
			pthread_rwlock_wrlock(&table_lock);
			change(&seed);
			pthread_rwlock_unlock(&table_lock);
			break;
		case APART:
			pthread_mutex_lock(&mine);
			change(&seed);
			pthread_mutex_unlock(&mine);
			break;
		case NONE:
			change(&seed);
		}
	}
	return NULL;
}

int main(int count, char **words)
{
	if (count != 8) {
		fprintf(stderr, "usage: locks mutex|spin|read|write|apart|none THREADS ROUNDS HOLD HOLD_SLEEP GAP GAP_SLEEP\n");
		return 2;
	}
	for (kind = MUTEX; kind < NONE && strcmp(KINDS[kind], words[1]); kind++)
		;
	long threads = atol(words[2]), rounds = atol(words[3]);
	hold = atol(words[4]);
	hold_sleep = atol(words[5]);
	gap = atol(words[6]);
	gap_sleep = atol(words[7]);
	left = rounds;
	pthread_spin_init(&spinlock, PTHREAD_PROCESS_PRIVATE);
	struct timespec from, to;
	clock_gettime(CLOCK_MONOTONIC, &from);
	pthread_t *all = calloc((size_t)threads, sizeof *all);
	for (long i = 0; i < threads; i++)
		pthread_create(&all[i], NULL, run, (void *)(uintptr_t)i);
	for (long i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
	clock_gettime(CLOCK_MONOTONIC, &to);
	double s = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
	printf("rate: %.3f rounds/s\ntaken: %ld\n", (double)rounds / s, (long)taken);
	return 0;
}
