/*
 * The jobs of the lab's tests and of bench/lab in the guest, and probes for some of them. A probe prints one line of `name value`
 * pairs.
 *
 *   work cycle NAME COMPUTE_MS SLEEP_MS SEED   alternates for ever between COMPUTE_MS of CPU time and SLEEP_MS of sleep, each
 *   time
 *                                         multiplied by half to one and a half, drawn from SEED; the process is called NAME
 *   work fork NAME COMPUTE_MS SLEEP_MS SEED    like `work cycle`, but a child process computes, and the process waits for it
 *   work heavy SPINNERS FORKERS           keeps SPINNERS processes spinning, and FORKERS processes forking, until it is killed
 *   work compile JOBS WIDTH LOOPS REPEATS the load of a parallel make: JOBS short processes, WIDTH at a time, REPEATS times
 *   work latency SECONDS LOOPS            repeatedly sleeps until the next 10 ms and computes LOOPS. Prints the wake-up latency,
 *                                         the time from the due moment to the end, and the part of that spent off the CPU
 *   work pipe SECONDS                     two processes pass a byte back and forth
 *   work used SECONDS CGROUP...           the mean CPU time per second of control groups, over SECONDS
 *   work read NAME FILE KIB DEPTH [MS]    DEPTH processes called NAME read blocks of KIB KiB at random places in FILE with direct
 *                                         I/O, until they are killed. After each block a process computes until it has used MS of
 *                                         CPU time since the previous one, reading included
 *   work files NAME DIR COUNT KIB         COUNT times writes a file, syncs it, and reads it back from the disk; prints the time
 *   work build NAME DIR COUNT KIB REST_MS a compiler's disk accesses: COUNT times reads a file, sleeps for REST_MS instead of
 *                                         computing (so that the speed of the emulated CPUs does not matter), writes a file and
 *                                         syncs it; `work files` makes the files. Prints the total time, and that of the reads.
 *                                         After 30 s it ends and extrapolates the total
 *   work touch NAME MIB PASSES [FILE [SKIP_MIB]]  maps MIB of anonymous memory and writes to it, or of FILE from SKIP_MIB on and
 *                                         reads it; touches every page PASSES times (0: for ever), and again at every SIGUSR1;
 *                                         prints the duration of each pass
 *   work sum NAME MIB PASSES [FILE [SKIP_MIB]]  like `work touch`, but reads the whole contents of the pages, which is also CPU
 *                                         work
 *   work cached NAME FILE MIB SECONDS     reads random pages of the first MIB of FILE through the page cache, one per ms; prints
 *                                         the latency
 *   work play NAME COUNT START_S MIB REUSE_MS TIMES STEP...    COUNT processes called NAME wait until the guest's clock
 *                                         (/proc/uptime) reaches START_S, take the steps TIMES times (0: for ever), and exit. As
 *                                         in a workload of the simulator (scenarios/lab-linux), a STEP is sleep:MS, or cpu:MS,
 *                                         which computes until the process has used MS of CPU time since its last such step,
 *                                         faults and reads included, or read:FILE:SKIP_MIB:MIB:KIB, which reads KIB from a random
 *                                         page in MIB of FILE after SKIP_MIB, through the page cache. A time with a trailing ~ is
 *                                         multiplied by a random factor from half to one and a half. While a process computes, it
 *                                         touches MIB of its own, each page once in REUSE_MS of CPU time
 *   work loops                            prints how many LOOPS take one ms of CPU time here
 *   work turns                            from now on the emulator switches between its CPUs at least every 50 us (see turns())
 *
 * Loops access no memory: their duration depends on the CPU time alone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

static const uint64_t BUILD_NS_MAX = 30000000000u;

enum { REPEATS_MAX = 64, SAMPLES_MAX = 20000, CGROUPS_MAX = 16, PERIOD_NS = 10000000, LOOPS_PER_FORK = 20000, LOOPS_PER_LOOK = 5000,
       PAGE = 4096, MIB = 1 << 20 };

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

static void compute(long loops)
{
	for (volatile long i = 0; i < loops; i++)
		;
}

static void fail(const char *what)
{
	fprintf(stderr, "work: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Computes until the process has used `ms` of CPU time. */
static void compute_ms(double ms)
{
	uint64_t until = clock_ns(CLOCK_PROCESS_CPUTIME_ID) + (uint64_t)(ms * 1e6);

	while (clock_ns(CLOCK_PROCESS_CPUTIME_ID) < until)
		compute(LOOPS_PER_LOOK);
}

static void rest(double seconds)
{
	struct timespec span = { .tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9) };

	nanosleep(&span, NULL);
}

/* Forks a child that is killed when this process ends. */
static pid_t child(void)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("cannot start a process");
	if (!pid)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

/* A random duration between half and one and a half of `mean`. */
static double around(double mean, uint64_t *chance)
{
	*chance = *chance * 6364136223846793005u + 1442695040888963407u;
	return mean * (0.5 + (double)(*chance >> 33) / (double)(1u << 31));
}

static int cycle(int forks, const char *name, double computed_ms, double slept_ms, uint64_t chance)
{
	prctl(PR_SET_NAME, name);
	for (;;) {
		double ms = around(computed_ms, &chance);

		if (!forks) {
			compute_ms(ms);
		} else if (!child()) {
			compute_ms(ms);
			_exit(0);
		} else {
			wait(NULL);
		}
		rest(around(slept_ms, &chance) / 1e3);
	}
}

static int heavy(int spinners, int forkers)
{
	for (int i = 0; i < spinners; i++) {
		if (!child())
			for (;;)
				compute(1000000);
	}
	for (int i = 0; i < forkers; i++) {
		if (child())
			continue;
		for (;;) {
			pid_t pid = child();

			if (!pid) {
				compute(LOOPS_PER_FORK);
				_exit(0);
			}
			waitpid(pid, NULL, 0);
		}
	}
	for (;;)
		pause();
}

/* The idle time of all CPUs so far. */
static uint64_t idle_us(void)
{
	unsigned long user, nice, system, idle, waiting;
	FILE *stat = fopen("/proc/stat", "r");
	int found = stat ? fscanf(stat, "cpu %lu %lu %lu %lu %lu", &user, &nice, &system, &idle, &waiting) : 0;

	if (stat)
		fclose(stat);
	return found == 5 ? (idle + waiting) * 1000000ul / (unsigned long)sysconf(_SC_CLK_TCK) : 0;
}

/* `work compile`: prints the duration of each repetition, and the busy time of all CPUs meanwhile. */
static int compile(int jobs, int width, long loops, int repeats)
{
	uint64_t used_us[REPEATS_MAX];

	if (repeats > REPEATS_MAX)
		repeats = REPEATS_MAX;
	printf("compile_us");
	for (int repeat = 0; repeat < repeats; repeat++) {
		uint64_t begun = now_ns(), idle_before = idle_us(), took_us;
		int running = 0;

		for (int job = 0; job < jobs; job++) {
			if (running == width) {
				wait(NULL);
				running--;
			}
			if (!child()) {
				compute(loops);
				_exit(0);
			}
			running++;
		}
		while (running--)
			wait(NULL);
		took_us = (now_ns() - begun) / 1000;
		used_us[repeat] = took_us * (uint64_t)sysconf(_SC_NPROCESSORS_ONLN) - (idle_us() - idle_before);
		printf(" %lu", (unsigned long)took_us);
		fflush(stdout);
	}
	printf(" used_us");
	for (int repeat = 0; repeat < repeats; repeat++)
		printf(" %lu", (unsigned long)used_us[repeat]);
	printf("\n");
	return 0;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Prints quantiles of the samples, and sorts them. */
static void print_quantiles(const char *name, uint64_t *samples, int count)
{
	const int parts[] = { 500, 950, 990, 1000 };
	const char *names[] = { "p50", "p95", "p99", "max" };

	qsort(samples, (size_t)count, sizeof(*samples), by_size);
	for (int i = 0; i < 4; i++) {
		int at = (count * parts[i] + 999) / 1000 - 1;

		printf(" %s_%s_ns %lu", name, names[i], (unsigned long)samples[at < 0 ? 0 : at]);
	}
}

static int latency(double seconds, long loops)
{
	static uint64_t late[SAMPLES_MAX], took[SAMPLES_MAX], ran[SAMPLES_MAX], waited[SAMPLES_MAX];
	uint64_t end = now_ns() + (uint64_t)(seconds * 1e9), due = now_ns();
	int count = 0;

	prctl(PR_SET_TIMERSLACK, 1); /* the default slack lengthens a sleep by up to 50 us */
	while (due < end && count < SAMPLES_MAX) {
		struct timespec at;

		due = now_ns() + PERIOD_NS;
		at.tv_sec = (time_t)(due / 1000000000);
		at.tv_nsec = (long)(due % 1000000000);
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
			;
		late[count] = now_ns() - due;
		ran[count] = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		compute(loops);
		ran[count] = clock_ns(CLOCK_THREAD_CPUTIME_ID) - ran[count];
		took[count] = now_ns() - due;
		waited[count] = took[count] > ran[count] ? took[count] - ran[count] : 0;
		count++;
	}
	printf("latency samples %d", count);
	print_quantiles("late", late, count);
	print_quantiles("took", took, count);
	print_quantiles("ran", ran, count);
	print_quantiles("waited", waited, count);
	printf("\n");
	return 0;
}

static int ping_pong(double seconds)
{
	int there[2], back[2];
	uint64_t begun, end, ticks, trips = 0;
	char byte = 0;

	if (pipe(there) || pipe(back))
		fail("pipe");
	if (!child()) {
		while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
			;
		_exit(0);
	}
	for (int i = 0; i < 100; i++)
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			fail("pipe");
	begun = now_ns();
	ticks = __rdtsc();
	end = begun + (uint64_t)(seconds * 1e9);
	do {
		for (int i = 0; i < 20; i++)
			if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
				fail("pipe");
		trips += 20;
	} while (now_ns() < end);
	ticks = __rdtsc() - ticks;
	end = now_ns();
	printf("pipe trips %lu trip_ns %lu trip_ticks %lu\n", (unsigned long)trips, (unsigned long)((end - begun) / trips),
	       (unsigned long)(ticks / trips));
	return 0;
}

static uint64_t usage_us(const char *cgroup)
{
	char path[4096];
	unsigned long usage = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/cpu.stat", cgroup);
	file = fopen(path, "r");
	if (!file || fscanf(file, "usage_usec %lu", &usage) != 1)
		fail(path);
	fclose(file);
	return usage;
}

/*
 * Reads a group's CPU time, and the moment of the reading. On a busy machine the reader may be delayed, by up to half a second,
 * between the readings of two groups. So each group is measured over a time of its own, from the middle of its first reading to
 * the middle of its second, and the reader has real-time priority (be_first).
 */
static void read_usage(const char *cgroup, uint64_t *usage, uint64_t *at)
{
	uint64_t begun = now_ns();

	*usage = usage_us(cgroup);
	*at = begun / 2 + now_ns() / 2;
}

static void be_first(int policy)
{
	struct sched_param first = { .sched_priority = policy == SCHED_FIFO ? 1 : 0 };

	if (sched_setscheduler(0, policy, &first))
		fail("sched_setscheduler");
}

static int used(double seconds, int count, char **cgroups)
{
	uint64_t before[CGROUPS_MAX], from[CGROUPS_MAX], after[CGROUPS_MAX], to[CGROUPS_MAX];

	if (count > CGROUPS_MAX)
		count = CGROUPS_MAX;
	be_first(SCHED_FIFO);
	for (int i = 0; i < count; i++)
		read_usage(cgroups[i], &before[i], &from[i]);
	rest(seconds);
	for (int i = 0; i < count; i++)
		read_usage(cgroups[i], &after[i], &to[i]);
	be_first(SCHED_OTHER);
	printf("used us_per_s");
	for (int i = 0; i < count; i++)
		printf(" %.0f", (double)(after[i] - before[i]) * 1e9 / (double)(to[i] - from[i]));
	printf("\n");
	return 0;
}

static int calibrate(void)
{
	const long loops = 2000000;
	uint64_t begun = clock_ns(CLOCK_PROCESS_CPUTIME_ID);

	compute(loops);
	printf("loops %lu\n", (unsigned long)((uint64_t)loops * 1000000 / (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - begun)));
	return 0;
}

/* Reads `count` blocks from random places, or blocks for ever if `count` is 0. After each block, computes until the process has
 * used `ms` of CPU time since the block before. */
static void read_blocks(int fd, size_t block, uint64_t places, uint64_t count, uint64_t chance, double ms)
{
	uint64_t until = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
	void *buffer;

	if (posix_memalign(&buffer, PAGE, block) != 0)
		fail("no memory");
	for (uint64_t i = 0; count == 0 || i < count; i++) {
		off_t place = (off_t)((uint64_t)around(1e9, &chance) % places * block);

		if (pread(fd, buffer, block, place) != (ssize_t)block)
			fail("cannot read");
		until += (uint64_t)(ms * 1e6);
		while (ms > 0 && clock_ns(CLOCK_PROCESS_CPUTIME_ID) < until)
			compute(LOOPS_PER_LOOK);
	}
	free(buffer);
}

static int read_file(const char *name, const char *file, size_t block, int depth, double ms)
{
	int fd = open(file, O_RDONLY | O_DIRECT);
	off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);

	if (size < (off_t)block)
		fail(file);
	prctl(PR_SET_NAME, name);
	for (int i = 0; i < depth; i++)
		if (!child())
			read_blocks(fd, block, (uint64_t)size / block, 0, (uint64_t)getpid(), ms);
	while (wait(NULL) > 0)
		;
	return 0;
}

static int small_files(const char *name, const char *folder, long count, size_t bytes)
{
	char path[4096], *content = calloc(1, bytes);
	uint64_t begun = now_ns();

	prctl(PR_SET_NAME, name);
	for (long i = 0; content && i < count; i++) {
		snprintf(path, sizeof path, "%s/%ld", folder, i);
		int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

		if (fd < 0 || write(fd, content, bytes) != (ssize_t)bytes || fsync(fd) || close(fd))
			fail(path);
		fd = open(path, O_RDONLY | O_DIRECT);
		if (fd < 0)
			fail(path);
		read_blocks(fd, bytes, 1, 1, 0, 0);
		close(fd);
	}
	printf("files_ms %lu\n", (unsigned long)((now_ns() - begun) / 1000000));
	free(content);
	return 0;
}

static int build(const char *name, const char *folder, int count, size_t bytes, double rest_ms)
{
	static uint64_t took[SAMPLES_MAX];
	char path[4096], *content = calloc(1, bytes);
	uint64_t begun = now_ns(), first_ns = 0;
	int done = 0;

	prctl(PR_SET_NAME, name);
	while (content && done < count && done < SAMPLES_MAX && now_ns() - begun < BUILD_NS_MAX) {
		uint64_t asked = now_ns();
		int i = done, fd;

		snprintf(path, sizeof path, "%s/%d", folder, i);
		fd = open(path, O_RDONLY | O_DIRECT);
		if (fd < 0)
			fail(path);
		read_blocks(fd, bytes, 1, 1, 0, 0);
		close(fd);
		took[done++] = now_ns() - asked;
		rest(rest_ms / 1e3);
		snprintf(path, sizeof path, "%s/%d.o", folder, i);
		fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
		if (fd < 0 || write(fd, content, bytes) != (ssize_t)bytes || fsync(fd) || close(fd))
			fail(path);
		if (done == 1)
			first_ns = now_ns() - begun;
	}
	printf("build_ms %lu", (unsigned long)((now_ns() - begun) / 1000000 * (uint64_t)count / (uint64_t)(done ? done : 1)));
	print_quantiles("read", took, done);
	printf(" first_ms %lu\n", (unsigned long)(first_ns / 1000000));
	free(content);
	return 0;
}

/* Maps anonymous memory, or a file from `skip` on. NULL, with errno set, on failure. */
static volatile uint64_t *memory_of(size_t bytes, const char *file, off_t skip)
{
	void *at;

	if (file) {
		int fd = open(file, O_RDONLY);

		at = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, skip);
	} else {
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		/* Without huge pages, exactly the touched pages are resident. */
		if (at != MAP_FAILED)
			madvise(at, bytes, MADV_NOHUGEPAGE);
	}
	return at == MAP_FAILED ? NULL : at;
}

/* One pass over the memory: writes or reads every `step`th word, and prints the pass's duration. */
static void touch_all(volatile uint64_t *at, size_t bytes, int write, size_t step, unsigned long number)
{
	double begun = (double)now_ns() / 1e6;
	uint64_t sum = 0;

	for (size_t i = 0; i < bytes / sizeof *at; i += step) {
		if (write)
			at[i] = i + number;     /* not zero: a page of zeros would not be written to swap */
		else
			sum += at[i];
	}
	(void)sum;
	printf("pass %lu: %.1f ms\n", number, (double)now_ns() / 1e6 - begun);
	fflush(stdout);
}

static int touch(int argc, char **argv)
{
	size_t bytes = strtoull(argv[3], NULL, 10) * MIB;
	unsigned long passes = strtoul(argv[4], NULL, 10);
	const char *file = argc > 5 ? argv[5] : NULL;
	off_t skip = argc > 6 ? strtoll(argv[6], NULL, 10) * MIB : 0;
	size_t step = strcmp(argv[1], "sum") ? PAGE / sizeof(uint64_t) : 1;
	volatile uint64_t *at = memory_of(bytes, file, skip);
	sigset_t again;
	int which;

	if (!at)
		fail("no memory");
	prctl(PR_SET_NAME, argv[2]);
	sigemptyset(&again);
	sigaddset(&again, SIGUSR1);
	sigprocmask(SIG_BLOCK, &again, NULL);
	for (unsigned long number = 1;; number++) {
		touch_all(at, bytes, !file, step, number);
		if (passes && number >= passes)
			sigwait(&again, &which);
	}
	return 0;
}

/*
 * Under instruction counting, the emulator runs its CPUs one after another, each for an eighth of the time to the emulator's next
 * timer. On a quiet machine that is several ms, and a woken task waits until all other CPUs have had their turns. So this starts
 * a timer whose interrupt is delivered nowhere: the legacy PC timer (PIT), which this kernel does not use, with its I/O APIC pin
 * masked. The kernel must run with iomem=relaxed.
 */
static int turns(void)
{
	enum { IO_APIC = 0xfec00000, SELECT = 0, WINDOW = 4, PIN = 2, ENTRY = 16 + 2 * PIN, MASKED = 1 << 16 };
	enum { COUNTER = 0x40, CONTROL = 0x43, RATE_GENERATOR = 0x34, EVERY_50_US = 60 };
	int memory = open("/dev/mem", O_RDWR | O_SYNC);
	volatile uint32_t *pins = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, IO_APIC);

	if (memory < 0 || pins == MAP_FAILED)
		fail("the interrupt controller in /dev/mem");
	if (ioperm(COUNTER, 4, 1))
		fail("the ports of the timer");
	pins[SELECT] = ENTRY;
	pins[WINDOW] |= MASKED;
	outb(RATE_GENERATOR, CONTROL);
	outb(EVERY_50_US, COUNTER);
	outb(0, COUNTER);
	return 0;
}

static int cached(const char *name, const char *file, uint64_t pages, double seconds)
{
	static uint64_t took[SAMPLES_MAX];
	uint64_t end = now_ns() + (uint64_t)(seconds * 1e9), chance = 1;
	int count = 0, fd = open(file, O_RDONLY);
	char page[PAGE];

	if (fd < 0)
		fail(file);
	/* Read-ahead would hide page faults. */
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	prctl(PR_SET_NAME, name);
	while (now_ns() < end && count < SAMPLES_MAX) {
		off_t place = (off_t)((uint64_t)around(1e9, &chance) % pages * PAGE);
		uint64_t begun = now_ns();

		if (pread(fd, page, PAGE, place) != PAGE)
			fail(file);
		took[count++] = now_ns() - begun;
		rest(0.001);
	}
	printf("cached reads %d", count);
	print_quantiles("read", took, count);
	printf("\n");
	return 0;
}

/* A player's state: the memory that it cycles through, and its progress. */
struct player {
	volatile uint64_t *memory;
	size_t pages, touched;
	/* CPU time per cycle through the memory, and CPU time computed so far. */
	uint64_t reuse_ns, computed_ns;
	uint64_t chance;
};

/* One step `cpu`: computes until the process has used `work_ns` of CPU time since its last such step, and touches the pages that
 * are due meanwhile. */
static void play_cpu(struct player *self, uint64_t work_ns)
{
	uint64_t begun = self->computed_ns;

	self->computed_ns += work_ns;
	for (;;) {
		uint64_t now = clock_ns(CLOCK_PROCESS_CPUTIME_ID);

		if (self->pages) {
			uint64_t at = now < begun ? begun : now < self->computed_ns ? now : self->computed_ns;
			size_t due = (size_t)((double)at / (double)self->reuse_ns * (double)self->pages);

			for (; self->touched < due; self->touched++)
				self->memory[self->touched % self->pages * (PAGE / sizeof *self->memory)] = self->touched;
		}
		if (now >= self->computed_ns)
			return;
		compute(LOOPS_PER_LOOK / 10);
	}
}

/* The time that a step names, in ms; random around it if the text has a `~`. */
static double play_ms(struct player *self, const char *text)
{
	double ms = atof(text);

	return strchr(text, '~') ? around(ms, &self->chance) : ms;
}

/* One step `read`: reads KIB from a random page of a region of a file. `region` is `:SKIP_MIB:MIB:KIB`. */
static void play_read(struct player *self, int fd, const char *region, char *buffer)
{
	uint64_t skip, mib, kib;

	if (sscanf(region, ":%lu:%lu:%lu", &skip, &mib, &kib) != 3)
		fail(region);
	uint64_t places = mib * (MIB / PAGE) - kib * 1024 / PAGE + 1;
	uint64_t place = (uint64_t)((around(1, &self->chance) - 0.5) * (double)places);

	if (pread(fd, buffer, kib * 1024, (off_t)(skip * MIB + place * PAGE)) != (ssize_t)(kib * 1024))
		fail("cannot read");
}

/* Waits until `start_s`, and takes all steps `times` times, or for ever if `times` is 0. */
static void play(struct player *self, double start_s, unsigned long times, int count, char **steps)
{
	char *buffer = malloc(MIB);
	int fds[32];

	for (int i = 0; i < count && i < 32; i++) {
		char path[256];

		/* Read-ahead would hide page faults. */
		if (sscanf(steps[i], "read:%255[^:]", path) == 1 &&
		    ((fds[i] = open(path, O_RDONLY)) < 0 || posix_fadvise(fds[i], 0, 0, POSIX_FADV_RANDOM)))
			fail(path);
	}
	rest(start_s - (double)clock_ns(CLOCK_BOOTTIME) / 1e9);
	self->computed_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
	for (unsigned long round = 0; times == 0 || round < times; round++) {
		for (int i = 0; i < count; i++) {
			if (!strncmp(steps[i], "cpu:", 4))
				play_cpu(self, (uint64_t)(play_ms(self, steps[i] + 4) * 1e6));
			else if (!strncmp(steps[i], "sleep:", 6))
				rest(play_ms(self, steps[i] + 6) / 1e3);
			else if (!strncmp(steps[i], "read:", 5))
				play_read(self, fds[i], strchr(steps[i] + 5, ':'), buffer);
			else
				fail(steps[i]);
		}
	}
}

static int players(int argc, char **argv)
{
	prctl(PR_SET_NAME, argv[2]);
	for (int i = 0; i < atoi(argv[3]); i++) {
		struct player self = { .pages = strtoull(argv[5], NULL, 10) * (MIB / PAGE), .chance = (uint64_t)now_ns() + (uint64_t)i };

		if (child())
			continue;
		self.reuse_ns = (uint64_t)(atof(argv[6]) * 1e6);
		if (self.pages && !(self.memory = memory_of(self.pages * PAGE, NULL, 0)))
			fail("no memory");
		play(&self, atof(argv[4]), strtoul(argv[7], NULL, 10), argc - 8, argv + 8);
		_exit(0);
	}
	while (wait(NULL) > 0)
		;
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if ((!strcmp(what, "cycle") || !strcmp(what, "fork")) && argc == 6)
		return cycle(!strcmp(what, "fork"), argv[2], atof(argv[3]), atof(argv[4]), strtoull(argv[5], NULL, 10));
	if (!strcmp(what, "heavy") && argc == 4)
		return heavy(atoi(argv[2]), atoi(argv[3]));
	if (!strcmp(what, "compile") && argc == 6)
		return compile(atoi(argv[2]), atoi(argv[3]), atol(argv[4]), atoi(argv[5]));
	if (!strcmp(what, "latency") && argc == 4)
		return latency(atof(argv[2]), atol(argv[3]));
	if (!strcmp(what, "pipe") && argc == 3)
		return ping_pong(atof(argv[2]));
	if (!strcmp(what, "used") && argc > 3)
		return used(atof(argv[2]), argc - 3, argv + 3);
	if (!strcmp(what, "read") && (argc == 6 || argc == 7))
		return read_file(argv[2], argv[3], strtoull(argv[4], NULL, 10) * 1024, atoi(argv[5]), argc == 7 ? atof(argv[6]) : 0);
	if (!strcmp(what, "files") && argc == 6)
		return small_files(argv[2], argv[3], atol(argv[4]), strtoull(argv[5], NULL, 10) * 1024);
	if (!strcmp(what, "build") && argc == 7)
		return build(argv[2], argv[3], atoi(argv[4]), strtoull(argv[5], NULL, 10) * 1024, atof(argv[6]));
	if ((!strcmp(what, "touch") || !strcmp(what, "sum")) && argc >= 5 && argc <= 7)
		return touch(argc, argv);
	if (!strcmp(what, "cached") && argc == 6)
		return cached(argv[2], argv[3], strtoull(argv[4], NULL, 10) * (MIB / PAGE), atof(argv[5]));
	if (!strcmp(what, "play") && argc > 8)
		return players(argc, argv);
	if (!strcmp(what, "loops") && argc == 2)
		return calibrate();
	if (!strcmp(what, "turns") && argc == 2)
		return turns();
	fprintf(stderr, "usage: see the head of lab/guest/work.c\n");
	return 2;
}
