/*
 * work cycle|fork NAME COMPUTE_MS SLEEP_MS SEED: for ever, in turns computes for so much CPU time and sleeps, each time
 * for half as much to one and a half times as much, drawn from SEED. With `fork`, a child computes, and is waited for.
 *
 * work touch NAME MIB PASSES [FILE [SKIP_MIB]]: has so much memory and touches every page of it, so many times (0: for
 * ever), and again whenever it gets SIGUSR1; says after each pass how long that took. The memory is its own, and written to,
 * or with FILE it is that file's from SKIP_MIB on, and read.
 *
 * Its processes are called NAME. The loop of `cycle` touches no memory, so that what it takes does not depend on where it
 * runs.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOOPS_PER_LOOK = 5000, PAGE = 4096, MIB = 1 << 20 };

static uint64_t chance;

/* Half of `mean` to one and a half of it. */
static double around(double mean)
{
	chance = chance * 6364136223846793005u + 1442695040888963407u;
	return mean * (0.5 + (double)(chance >> 33) / (double)(1u << 31));
}

static double ms_of(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void compute(double ms)
{
	double until = ms_of(CLOCK_PROCESS_CPUTIME_ID) + ms;

	while (ms_of(CLOCK_PROCESS_CPUTIME_ID) < until)
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

static int cycle(char **argv)
{
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

/* Memory of its own, or a file's. NULL, and errno says why, if there is none. */
static volatile uint64_t *memory_of(size_t bytes, const char *file, off_t skip)
{
	void *at;

	if (file) {
		int fd = open(file, O_RDONLY);

		at = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, skip);
	} else {
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		/* Pages that are touched are the pages that there are. */
		if (at != MAP_FAILED)
			madvise(at, bytes, MADV_NOHUGEPAGE);
	}
	return at == MAP_FAILED ? NULL : at;
}

static void pass(volatile uint64_t *at, size_t bytes, int write, unsigned long number)
{
	double begun = ms_of(CLOCK_MONOTONIC);
	uint64_t sum = 0;

	for (size_t i = 0; i < bytes / sizeof *at; i += PAGE / sizeof *at) {
		if (write)
			at[i] = i + number;     /* a page of zeros would not be written to swap */
		else
			sum += at[i];
	}
	(void)sum;
	printf("pass %lu: %.0f ms\n", number, ms_of(CLOCK_MONOTONIC) - begun);
	fflush(stdout);
}

static int touch(int argc, char **argv)
{
	size_t bytes = strtoull(argv[3], NULL, 10) * MIB;
	unsigned long passes = strtoul(argv[4], NULL, 10);
	const char *file = argc > 5 ? argv[5] : NULL;
	off_t skip = argc > 6 ? strtoll(argv[6], NULL, 10) * MIB : 0;
	volatile uint64_t *at = memory_of(bytes, file, skip);
	sigset_t again;
	int which;

	if (!at) {
		perror("work: no memory");
		return 1;
	}
	sigemptyset(&again);
	sigaddset(&again, SIGUSR1);
	sigprocmask(SIG_BLOCK, &again, NULL);
	for (unsigned long number = 1;; number++) {
		pass(at, bytes, !file, number);
		if (passes && number >= passes)
			sigwait(&again, &which);
	}
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	int cycles = argc == 6 && (strcmp(kind, "cycle") == 0 || strcmp(kind, "fork") == 0);
	int touches = argc >= 5 && argc <= 7 && strcmp(kind, "touch") == 0;

	if (!cycles && !touches) {
		fprintf(stderr, "usage: work cycle|fork NAME COMPUTE_MS SLEEP_MS SEED\n"
				"       work touch NAME MIB PASSES [FILE [SKIP_MIB]]\n");
		return 2;
	}
	prctl(PR_SET_NAME, argv[2]);
	return touches ? touch(argc, argv) : cycle(argv);
}
