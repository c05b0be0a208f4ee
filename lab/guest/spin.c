/*
 * spin SECONDS [THREADS]: keeps THREADS (default 1) threads busy for SECONDS, then prints each thread's CPU time and loop count.
 * On SIGTERM it prints them early.
 *
 * The loop accesses no memory, so that the work done follows from the CPU time alone.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { THREADS_MAX = 64, LOOPS_PER_LOOK = 20000 };

struct spinner {
	pthread_t thread;
	double cpu_s;
	unsigned long looks;
};

static volatile sig_atomic_t ended;
static double until_s;

static double seconds(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

static void *spin(void *argument)
{
	struct spinner *self = argument;

	while (!ended && seconds(CLOCK_MONOTONIC) < until_s) {
		for (volatile int i = 0; i < LOOPS_PER_LOOK; i++)
			;
		self->looks++;
	}
	self->cpu_s = seconds(CLOCK_THREAD_CPUTIME_ID);
	return NULL;
}

int main(int argc, char **argv)
{
	static struct spinner spinners[THREADS_MAX];
	double length_s = argc > 1 ? atof(argv[1]) : 0;
	int threads = argc > 2 ? atoi(argv[2]) : 1;

	if (length_s <= 0 || threads < 1 || threads > THREADS_MAX || argc > 3) {
		fprintf(stderr, "usage: spin SECONDS [THREADS], with 1 to %d threads\n", THREADS_MAX);
		return 2;
	}
	signal(SIGTERM, end);
	until_s = seconds(CLOCK_MONOTONIC) + length_s;
	for (int i = 0; i < threads; i++) {
		if (pthread_create(&spinners[i].thread, NULL, spin, &spinners[i]) != 0) {
			perror("spin: cannot start a thread");
			return 1;
		}
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(spinners[i].thread, NULL);
		printf("thread %d cpu_ms %.0f loops %lu\n", i, spinners[i].cpu_s * 1e3, spinners[i].looks);
	}
	return 0;
}
