/* Gangs for the lab: programs whose threads compute, and an analysis of their schedule from a trace.
 *
 * gang run NAME THREADS SECONDS [FORKS]   THREADS threads, called NAME.1, NAME.2 and so on, compute for SECONDS; the process
 *                                         is called `gang`. Prints their total CPU time in ms. With FORKS, that many threads
 *                                         start short processes instead, each also called NAME.n; the last line then has their
 *                                         number: `cpu 812 forks 90`
 * gang trace FILE                         reads tracefs's sched_switch events with timestamps of one clock, and events that
 *                                         mark a quantum's end (signal_generate, cgroup_freeze, sys_enter_bpf: the marks).
 *                                         Prints a line of `name value` pairs:
 *   gangs      the number of gangs that ran
 *   turns      the number of times that a gang ran for at least 20 ms, without those cut by the trace's beginning or end
 *   overlap    the time in which all threads of a gang ran, relative to that in which any did, in hundredths of a percent
 *   most       the largest number of threads of gangs that ran at once
 *   stop, stop-worst    from the mark before a turn's first thread stopped to the last thread's stop, in us: median and longest
 *   first, first-worst  from the mark before a turn's first thread ran to its start, in us
 *   all, all-worst      from that mark to when all threads ran, in us
 *   late       the time in turns shorter than 20 ms relative to that in which any thread of a gang ran, in millionths: threads
 *              that run while their gang is stopped
 *
 * A gang's turn ends when none of its threads has run for 20 ms.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GANGS = 128, THREADS = 64, TURNS = 1 << 16 };

static const double GAP_S = 0.020;

static double elapsed_since(const struct timespec *begun)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - begun->tv_sec) + (double)(now.tv_nsec - begun->tv_nsec) / 1e9;
}

static struct timespec begun;
static const char *name;
static int seconds, forkers;
static unsigned long forks;

static void *work(void *argument)
{
	int number = (int)(intptr_t)argument;
	char own[16];
	int status;

	snprintf(own, sizeof own, "%.8s.%d", name, number);
	prctl(PR_SET_NAME, own);
	while (elapsed_since(&begun) < seconds) {
		if (number <= forkers) {
			pid_t child = fork();

			if (!child)
				_exit(0);
			if (child > 0 && waitpid(child, &status, 0) == child)
				__sync_fetch_and_add(&forks, 1);
			continue;
		}
		for (volatile int loop = 0; loop < 20000; loop++)
			;
	}
	return NULL;
}

static int run(int argc, char **argv)
{
	pthread_t threads[THREADS];
	struct timespec used;
	int count = atoi(argv[3]);

	name = argv[2];
	seconds = atoi(argv[4]);
	forkers = argc > 5 ? atoi(argv[5]) : 0;
	clock_gettime(CLOCK_MONOTONIC, &begun);
	if (count < 1 || count > THREADS)
		return 2;
	for (int thread = 0; thread < count; thread++)
		if (pthread_create(&threads[thread], NULL, work, (void *)(intptr_t)(thread + 1)))
			return 1;
	for (int thread = 0; thread < count; thread++)
		pthread_join(threads[thread], NULL);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	printf("cpu %ld forks %lu\n", (long)(used.tv_sec * 1000 + used.tv_nsec / 1000000), forks);
	return 0;
}

static struct gang {
	char name[16];
	int threads;                    /* the gang's number of threads: the largest NUMBER in their names */
	int running;                    /* threads that run now */
	double since, any, all;         /* the last change; the sums of the time in which any thread ran, and all threads ran */
	double first_in, all_in;        /* this turn: when the first thread ran, and when all threads ran */
	double first_mark, stop_mark;   /* this turn: the marks before the first thread ran, and before the first thread stopped */
	double first_out, last_out;     /* this turn: when the first thread stopped after all had run, and when the last one stopped */
	double stray;                   /* the time in too short turns */
	int began_with_trace;
} gangs[GANGS];
static int known;
static double stops[TURNS], firsts[TURNS], alls[TURNS];
static int turns, with_all;
static double total_any, stray;

/* The gang of a thread, by the thread's name NAME.NUMBER; NULL if the thread is in no gang. */
static struct gang *gang_of(const char *comm)
{
	const char *dot = strrchr(comm, '.');
	size_t length = dot ? (size_t)(dot - comm) : 0;
	int number = dot ? atoi(dot + 1) : 0, at;

	if (!number || comm[0] != 'g' || length >= sizeof gangs->name)
		return NULL;
	for (at = 0; at < known; at++)
		if (strlen(gangs[at].name) == length && !memcmp(gangs[at].name, comm, length))
			break;
	if (at == known) {
		if (known == GANGS)
			return NULL;
		memcpy(gangs[known++].name, comm, length);
	}
	if (number > gangs[at].threads)
		gangs[at].threads = number;
	return &gangs[at];
}

/* Adds the time since the gang's last change to its sums. */
static void account(struct gang *gang, double now)
{
	if (gang->running)
		gang->any += now - gang->since;
	if (gang->threads && gang->running == gang->threads)
		gang->all += now - gang->since;
	gang->since = now;
}

/* Ends a gang's turn, since none of the gang's threads has run for a while. */
static void end_turn(struct gang *gang)
{
	double took = gang->last_out - gang->first_in;

	if (gang->first_in && took < GAP_S)
		stray += took;
	if (gang->first_in && !gang->began_with_trace && took >= GAP_S && turns < TURNS) {
		stops[turns] = gang->last_out - gang->stop_mark;
		firsts[turns++] = gang->first_in - gang->first_mark;
		if (gang->all_in)
			alls[with_all++] = gang->all_in - gang->first_mark;
	}
	gang->first_in = gang->all_in = gang->first_out = 0;
	gang->began_with_trace = 0;
}

static int by_size(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

/* Prints the median and the longest of some times, in us. */
static void print_times(const char *what, double *times, int count)
{
	qsort(times, (size_t)count, sizeof *times, by_size);
	printf(" %s %.0f %s-worst %.0f", what, count ? times[count / 2] * 1e6 : -1.0, what, count ? times[count - 1] * 1e6 : -1.0);
}

/* One pass over the trace. The first pass (`only_names`) finds each gang's number of threads, which the second pass needs. */
static int trace(const char *file, int only_names)
{
	FILE *lines = fopen(file, "r");
	char line[1024], prev[64], next[64];
	double now, mark = 0, from = 0;
	int most = 0, sum;

	if (!lines)
		return perror(file), 1;
	while (fgets(line, sizeof line, lines)) {
		char *event, *at;
		struct gang *out, *in;

		if (line[0] == '#' || !(at = strchr(line, ']')) || !(event = strstr(at, ": ")))
			continue;
		/* The time is the number before the event's colon: `[003] d..2. 12.345678: sched_switch: ...`. */
		char *number = event;

		while (number > at && number[-1] != ' ')
			number--;
		now = atof(number);
		event += 2;
		if (!from)
			from = now;
		if (strncmp(event, "sched_switch:", 13)) {
			mark = now;
			continue;
		}
		char *from_comm = strstr(event, "prev_comm="), *to_comm = strstr(event, "next_comm=");

		if (!from_comm || !to_comm || sscanf(from_comm + 10, "%63s", prev) != 1 || sscanf(to_comm + 10, "%63s", next) != 1)
			continue;
		/* The gangs of the thread that stops and of the thread that begins to run; NULL: in no gang. */
		out = gang_of(prev);
		in = gang_of(next);
		if (only_names)
			continue;
		if (in) {
			if (in->first_in && !in->running && now - in->last_out > GAP_S)
				end_turn(in);
			account(in, now);
			if (!in->first_in) {
				in->first_in = now;
				in->first_mark = mark;
				in->began_with_trace = now - from < 0.5 || !mark;
			}
			if (++in->running > in->threads)
				in->running = in->threads;
			if (in->running == in->threads) {
				if (!in->all_in)
					in->all_in = now;
				in->first_out = 0;
			}
		}
		if (out) {
			account(out, now);
			if (out->running)
				out->running--;
			if (!out->first_out) {
				out->first_out = now;
				out->stop_mark = mark;
			}
			out->last_out = now;
		}
		sum = 0;
		for (int gang = 0; gang < known; gang++)
			sum += gangs[gang].running;
		if (sum > most)
			most = sum;
	}
	fclose(lines);
	if (only_names)
		return 0;
	double all = 0;

	for (int gang = 0; gang < known; gang++) {
		total_any += gangs[gang].any;
		all += gangs[gang].all;
	}
	printf("gangs %d turns %d overlap %.0f most %d", known, turns, total_any ? all / total_any * 1e4 : 0, most);
	print_times("stop", stops, turns);
	print_times("first", firsts, turns);
	print_times("all", alls, with_all);
	printf(" late %.0f\n", total_any ? stray / total_any * 1e6 : 0);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 5 && !strcmp(argv[1], "run"))
		return run(argc, argv);
	if (argc == 3 && !strcmp(argv[1], "trace"))
		return trace(argv[2], 1) || trace(argv[2], 0);
	fprintf(stderr, "usage: gang run NAME THREADS SECONDS [FORKS] | gang trace FILE\n");
	return 2;
}
