/*
 * Threads that queue for a known lock.
 *
 * usage: queue THREADS TIMES files|memory|table
 *
 *   files    each thread makes, renames and removes a file of its own, all in one folder: they queue for the kernel's lock of
 *            that folder
 *   memory   each thread maps a mebibyte, touches a part of it, and unmaps it: they queue for the kernel's lock of the process's
 *            address space
 *   table    each thread takes the program's `table_lock` in insert(), and every fourth time in rebuild(), which holds the lock
 *            for a millisecond
 *
 * The threads do this TIMES times in total. Exit status: 0, 1 if a call failed, 2 for a wrong command line.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 256, BYTES = 1 << 20, TOUCHED = 1 << 17 };

pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static long times;
static int kind;

static void check(int is_right, const char *what)
{
	if (!is_right) {
		perror(what);
		exit(1);
	}
}

static void compute(long us)
{
	struct timespec begun, now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	while ((now.tv_sec - begun.tv_sec) * 1000000 + (now.tv_nsec - begun.tv_nsec) / 1000 < us);
}

__attribute__((noinline)) static void insert(void)
{
	pthread_mutex_lock(&table_lock);
	compute(20);
	pthread_mutex_unlock(&table_lock);
}

__attribute__((noinline)) static void rebuild(void)
{
	pthread_mutex_lock(&table_lock);
	compute(1000);
	pthread_mutex_unlock(&table_lock);
}

static void files(long number)
{
	char from[32], to[32];
	int file;

	snprintf(from, sizeof(from), "queue-%ld", number);
	snprintf(to, sizeof(to), "queued-%ld", number);
	file = open(from, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	check(file >= 0, from);
	close(file);
	check(!rename(from, to), from);
	check(!unlink(to), to);
}

static void memory(void)
{
	char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(at != MAP_FAILED, "mmap");
	memset(at, 1, TOUCHED);
	check(!munmap(at, BYTES), "munmap");
}

static void *work(void *number)
{
	for (long i = 0; i < times; i++) {
		switch (kind) {
		case 'f':
			files((long)number);
			break;
		case 'm':
			memory();
			break;
		default:
			i % 4 ? insert() : rebuild();
		}
	}
	return NULL;
}

int main(int count, char **words)
{
	pthread_t threads[THREADS_MAX];
	long number = count == 4 ? atol(words[1]) : 0;

	if (number < 1 || number > THREADS_MAX) {
		fprintf(stderr, "usage: queue THREADS TIMES files|memory|table\n");
		return 2;
	}
	times = atol(words[2]) / number;
	kind = words[3][0];
	for (long i = 0; i < number; i++)
		check(!pthread_create(&threads[i], NULL, work, (void *)i), "pthread_create");
	for (long i = 0; i < number; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
