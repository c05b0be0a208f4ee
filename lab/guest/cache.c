// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A page cache like a kernel's: a tree of pages by their offset in a file, under one lock. Nearly all accesses are lookups.
 *
 * usage: cache LOCK THREADS LOOKUPS [BETWEEN]
 *
 * Together the threads look up LOOKUPS pages and copy their contents; each computes for BETWEEN loops (200 by default) between
 * two lookups. One lookup in 256 replaces the page. LOCK: spin, mutex, rw (shared by readers).
 * At the end it prints the lookups per second.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BITS = 6, FAN = 1 << BITS, LEVELS = 3, PAGES = FAN * FAN * 8, WRITE = 256 };

struct node {
	void *slots[FAN];
};

struct page {
	_Atomic long count;
	uint64_t data[8];
};

static struct node *tree;
static pthread_spinlock_t tree_spinlock;
static pthread_mutex_t tree_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t tree_rwlock = PTHREAD_RWLOCK_INITIALIZER;
static enum { SPIN, MUTEX, RW } kind;
static long looks, between = 200;

static void lock_tree(int writes)
{
	if (kind == SPIN)
		pthread_spin_lock(&tree_spinlock);
	else if (kind == MUTEX)
		pthread_mutex_lock(&tree_mutex);
	else if (writes)
		pthread_rwlock_wrlock(&tree_rwlock);
	else
		pthread_rwlock_rdlock(&tree_rwlock);
}

static void unlock_tree(void)
{
	if (kind == SPIN)
		pthread_spin_unlock(&tree_spinlock);
	else if (kind == MUTEX)
		pthread_mutex_unlock(&tree_mutex);
	else
		pthread_rwlock_unlock(&tree_rwlock);
}

static void **slot_of(long offset)
{
	struct node *node = tree;
	for (int level = LEVELS - 1; level > 0; level--) {
		void **next = &node->slots[offset >> level * BITS & (FAN - 1)];
		if (!*next)
			*next = calloc(1, sizeof *node);
		node = *next;
	}
	return &node->slots[offset & (FAN - 1)];
}

/* Finds the page and takes a reference. */
static __attribute__((noinline)) struct page *find_lock_page(long offset)
{
	lock_tree(0);
	struct page *page = *slot_of(offset);
	page->count++;
	unlock_tree();
	return page;
}

static __attribute__((noinline)) void replace_page(long offset)
{
	lock_tree(1);
	struct page *page = *slot_of(offset);
	page->data[offset % 8]++;
	unlock_tree();
}

static void *work(void *number)
{
	uint64_t seed = (uint64_t)(uintptr_t)number * 0x9e3779b97f4a7c15u + 1;
	volatile uint64_t sum = 0;
	for (long i = 0; i < looks; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		long offset = (long)(seed >> 33) % PAGES;
		if (i % WRITE == 0)
			replace_page(offset);
		struct page *page = find_lock_page(offset);
		for (int word = 0; word < 8; word++)
			sum += page->data[word];
		page->count--;
		for (long loop = 0; loop < between; loop++)
			sum += (uint64_t)loop;
	}
	return NULL;
}

int main(int count, char **words)
{
	if (count < 4 || count > 5) {
		fprintf(stderr, "usage: cache spin|mutex|rw THREADS LOOKUPS [BETWEEN]\n");
		return 2;
	}
	kind = !strcmp(words[1], "spin") ? SPIN : !strcmp(words[1], "mutex") ? MUTEX : RW;
	long threads = atol(words[2]), all = atol(words[3]);
	looks = all / threads;
	if (count == 5)
		between = atol(words[4]);
	pthread_spin_init(&tree_spinlock, PTHREAD_PROCESS_PRIVATE);
	tree = calloc(1, sizeof *tree);
	for (long offset = 0; offset < PAGES; offset++)
		*slot_of(offset) = calloc(1, sizeof(struct page));
	struct timespec from, to;
	clock_gettime(CLOCK_MONOTONIC, &from);
	pthread_t *started = calloc((size_t)threads, sizeof *started);
	for (long i = 0; i < threads; i++)
		pthread_create(&started[i], NULL, work, (void *)(uintptr_t)i);
	for (long i = 0; i < threads; i++)
		pthread_join(started[i], NULL);
	clock_gettime(CLOCK_MONOTONIC, &to);
	double s = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
	printf("looks/s: %.0f\n", (double)(looks * threads) / s);
	return 0;
}
