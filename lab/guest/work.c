/*
 * work cycle|fork NAME COMPUTE_MS SLEEP_MS SEED: for ever, in turns computes for so much CPU time and sleeps, each time
 * for half as much to one and a half times as much, drawn from SEED. With `fork`, a child computes, and is waited for.
 *
 * Its processes are called NAME. The loop touches no memory, so that what it takes does not depend on where it runs.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOOPS_PER_LOOK = 5000 };

static uint64_t chance;

/* Half of `mean` to one and a half of it. */
static double around(double mean)
{
	chance = chance * 6364136223846793005u + 1442695040888963407u;
	return mean * (0.5 + (double)(chance >> 33) / (double)(1u << 31));
}

static double cpu_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void compute(double ms)
{
	double until = cpu_ms() + ms;

	while (cpu_ms() < until)
		for (volatile int i = 0; i < LOOPS_PER_LOOK; i++)
			;
}

static void rest(double ms)
{
	long ns = (long)(ms * 1e6);
	struct timespec span = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };

	nanosleep(&span, NULL);
}

static int compute_in_child(double ms)
{
	pid_t child = fork();

	if (child == 0) {
		compute(ms);
		_exit(0);
	}
	return child > 0 && waitpid(child, NULL, 0) == child;
}

int main(int argc, char **argv)
{
	if (argc != 6 || (strcmp(argv[1], "cycle") != 0 && strcmp(argv[1], "fork") != 0)) {
		fprintf(stderr, "usage: work cycle|fork NAME COMPUTE_MS SLEEP_MS SEED\n");
		return 2;
	}
	prctl(PR_SET_NAME, argv[2]);
	chance = strtoull(argv[5], NULL, 10);
	for (;;) {
		double ms = around(atof(argv[3]));

		if (strcmp(argv[1], "cycle") == 0) {
			compute(ms);
		} else if (!compute_in_child(ms)) {
			perror("work: cannot start a child");
			return 1;
		}
		rest(around(atof(argv[4])));
	}
}
