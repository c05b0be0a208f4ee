/*
 * work cycle|fork NAME COMPUTE_MS SLEEP_MS SEED: for ever, in turns computes for so much CPU time and sleeps, each time
 * for half as much to one and a half times as much, drawn from SEED. With `fork`, a child computes, and is waited for.
 *
 * work touch NAME MIB PASSES [FILE [SKIP_MIB]]: has so much memory and touches every page of it, so many times (0: for
 * ever), and again whenever it gets SIGUSR1; says after each pass how long that took. The memory is its own, and written to,
 * or with FILE it is that file's from SKIP_MIB on, and read.
 *
 * work read NAME FILE KIB DEPTH [MIB]: DEPTH processes read blocks of so many KiB from places drawn at random in FILE, past the
 * page cache, so much each or for ever.
 *
 * work write NAME FILE MIB: writes so much through the page cache and waits until it is on the disk. 0: again and again.
 *
 * work files NAME DIR COUNT KIB: as a compiler does, COUNT times reads a file that is not in memory and writes one as large,
 * which reaches the disk before the next.
 *
 * Its processes are called NAME. The loop of `cycle` touches no memory, so that what it takes does not depend on where it
 * runs.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

/* Reads blocks for ever, or so many: 0, or 1 with the reason said. */
static int read_blocks(int fd, size_t block, uint64_t places, uint64_t count)
{
	void *buffer;

	if (posix_memalign(&buffer, PAGE, block) != 0)
		return 1;
	for (uint64_t i = 0; count == 0 || i < count; i++) {
		off_t place = (off_t)((uint64_t)(around(1.0) * 1e9) % places * block);

		if (pread(fd, buffer, block, place) != (ssize_t)block) {
			perror("work: cannot read");
			return 1;
		}
	}
	free(buffer);
	return 0;
}

static int read_file(int argc, char **argv)
{
	size_t block = strtoull(argv[4], NULL, 10) * 1024;
	long depth = strtol(argv[5], NULL, 10);
	uint64_t count = argc > 6 ? strtoull(argv[6], NULL, 10) * MIB / block : 0;
	int fd = open(argv[3], O_RDONLY | O_DIRECT);
	off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
	int failed = 0, status;

	if (size < (off_t)block) {
		perror("work: cannot open the file, or it is too small");
		return 1;
	}
	for (long i = 0; i < depth; i++) {
		if (fork() == 0) {
			chance = (uint64_t)getpid();
			_exit(read_blocks(fd, block, (uint64_t)size / block, count));
		}
	}
	while (wait(&status) > 0)
		failed |= status;
	return failed != 0;
}

/* Writes a file of so many bytes and waits until it is on the disk. */
static int write_file(const char *path, size_t bytes)
{
	static char block[MIB];
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	memset(block, 'x', sizeof block);
	for (size_t left = bytes; fd >= 0 && left > 0;) {
		ssize_t n = write(fd, block, left < sizeof block ? left : sizeof block);

		if (n <= 0)
			break;
		left -= (size_t)n;
		if (left == 0 && fsync(fd) == 0 && close(fd) == 0)
			return 0;
	}
	perror("work: cannot write");
	return 1;
}

static int write_again(char **argv)
{
	size_t mib = strtoull(argv[4], NULL, 10);

	while (mib == 0)
		if (write_file(argv[3], 64ull * MIB) != 0)
			return 1;
	return write_file(argv[3], mib * MIB);
}

static int files(char **argv)
{
	long count = strtol(argv[4], NULL, 10);
	size_t bytes = strtoull(argv[5], NULL, 10) * 1024;
	double begun = ms_of(CLOCK_MONOTONIC);
	char path[4096];

	for (long i = 0; i < count; i++) {
		snprintf(path, sizeof path, "%s/%ld", argv[3], i);
		if (write_file(path, bytes) != 0)
			return 1;
		int fd = open(path, O_RDONLY | O_DIRECT);

		if (fd < 0 || read_blocks(fd, bytes, 1, 1) != 0)
			return 1;
		close(fd);
	}
	printf("%.0f ms\n", ms_of(CLOCK_MONOTONIC) - begun);
	return 0;
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	int cycles = argc == 6 && (strcmp(kind, "cycle") == 0 || strcmp(kind, "fork") == 0);
	int touches = argc >= 5 && argc <= 7 && strcmp(kind, "touch") == 0;
	int reads = (argc == 6 || argc == 7) && strcmp(kind, "read") == 0;
	int writes = argc == 5 && strcmp(kind, "write") == 0;
	int many = argc == 6 && strcmp(kind, "files") == 0;

	if (!cycles && !touches && !reads && !writes && !many) {
		fprintf(stderr, "usage: work cycle|fork NAME COMPUTE_MS SLEEP_MS SEED\n"
				"       work touch NAME MIB PASSES [FILE [SKIP_MIB]]\n"
				"       work read NAME FILE KIB DEPTH [MIB]\n"
				"       work write NAME FILE MIB\n"
				"       work files NAME DIR COUNT KIB\n");
		return 2;
	}
	prctl(PR_SET_NAME, argv[2]);
	if (reads)
		return read_file(argc, argv);
	if (writes)
		return write_again(argv);
	if (many)
		return files(argv);
	return touches ? touch(argc, argv) : cycle(argv);
}
