/*
 * crowd CGROUP PROCESSES THREADS BUSY: PROCESSES processes of THREADS threads each, in a control group. BUSY of the threads
 * compute; the others sleep. The process that starts, wakes and ends them stays outside.
 *
 * The program prints `there` once all threads exist. SIGUSR1 starts the busy threads, SIGUSR2 pauses them, and SIGTERM wakes and
 * ends all threads. At the end it prints `crowd ended N turns_min N`: the number of threads that ended, and the least number of
 * times that a busy thread lost its CPU to another thread after a turn.
 */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STACK_BYTES = 16384, LOOPS_PER_LOOK = 5000 };
enum { PROT = PROT_READ | PROT_WRITE, PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

/* Shared by all processes. */
struct shared {
	atomic_int working, ending; /* threads wait while these are 0 */
	atomic_int there, ended;
	atomic_long turns_min;
};

static struct shared *shared;

static void fail(const char *what)
{
	fprintf(stderr, "crowd: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void wait_for(atomic_int *word)
{
	while (!atomic_load(word))
		syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
}

static void tell(atomic_int *word)
{
	atomic_store(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

static void lower(atomic_long *value, long to)
{
	long known = atomic_load(value);

	while (to < known && !atomic_compare_exchange_weak(value, &known, to))
		;
}

static void *sleeper(void *unused)
{
	atomic_fetch_add(&shared->there, 1);
	wait_for(&shared->ending);
	atomic_fetch_add(&shared->ended, 1);
	return unused;
}

static void *worker(void *unused)
{
	struct rusage usage;

	atomic_fetch_add(&shared->there, 1);
	while (!atomic_load(&shared->ending)) {
		wait_for(&shared->working);
		for (volatile int i = 0; i < LOOPS_PER_LOOK; i++)
			;
	}
	getrusage(RUSAGE_THREAD, &usage);
	lower(&shared->turns_min, usage.ru_nivcsw);
	atomic_fetch_add(&shared->ended, 1);
	return unused;
}

static void enter(const char *cgroup)
{
	char path[4096];
	FILE *file;

	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	file = fopen(path, "w");
	if (!file || fprintf(file, "0") < 0 || fclose(file))
		fail(path);
}

/* One process of the crowd. All its stacks are one mapping, which saves mappings and system calls. */
static void process(const char *cgroup, int threads, int busy)
{
	char *stacks = mmap(NULL, (size_t)threads * STACK_BYTES, PROT, PRIVATE, -1, 0);
	pthread_t *all = calloc((size_t)threads, sizeof(*all));
	pthread_attr_t attributes;

	if (stacks == MAP_FAILED || !all)
		fail("no room for the threads");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	enter(cgroup);
	pthread_attr_init(&attributes);
	for (int i = 0; i < threads; i++) {
		pthread_attr_setstack(&attributes, stacks + (size_t)i * STACK_BYTES, STACK_BYTES);
		errno = pthread_create(&all[i], &attributes, i < busy ? worker : sleeper, NULL);
		if (errno)
			fail("cannot start a thread");
	}
	for (int i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
	exit(0);
}

/* Waits until all threads exist, or one process has failed. */
static void wait_until_there(int threads)
{
	const struct timespec look = { .tv_nsec = 50000000 };

	while (atomic_load(&shared->there) < threads) {
		if (waitpid(-1, NULL, WNOHANG) != 0)
			exit(1);
		nanosleep(&look, NULL);
	}
	printf("there\n");
	fflush(stdout);
}

/* Handles signals until one requests the end. */
static void obey(const sigset_t *signals)
{
	int signal;

	while (!sigwait(signals, &signal) && signal != SIGTERM) {
		if (signal == SIGUSR1)
			tell(&shared->working);
		else
			atomic_store(&shared->working, 0);
	}
	tell(&shared->ending);
	tell(&shared->working);
	while (wait(NULL) > 0)
		;
}

int main(int argc, char **argv)
{
	int processes = argc == 5 ? atoi(argv[2]) : 0, threads = processes ? atoi(argv[3]) : 0, busy = threads ? atoi(argv[4]) : -1;
	sigset_t signals;

	if (processes < 1 || threads < 1 || busy < 0 || busy > processes * threads) {
		fprintf(stderr, "usage: crowd CGROUP PROCESSES THREADS BUSY, with BUSY of all threads busy\n");
		return 2;
	}
	shared = mmap(NULL, sizeof(*shared), PROT, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fail("no memory");
	atomic_store(&shared->turns_min, LONG_MAX);
	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR1);
	sigaddset(&signals, SIGUSR2);
	sigaddset(&signals, SIGTERM);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	for (int i = 0; i < processes; i++) {
		pid_t pid = fork();

		if (pid < 0)
			fail("cannot start a process");
		if (!pid)
			process(argv[1], threads, busy / processes + (i < busy % processes));
	}
	wait_until_there(processes * threads);
	obey(&signals);
	printf("crowd ended %d turns_min %ld\n", atomic_load(&shared->ended), busy ? atomic_load(&shared->turns_min) : 0);
	return 0;
}
