/* A job for the lab: threads that share a buffer, and report the nodes where they ran and where the buffer lies.
 *
 * team THREADS MIB SECONDS [CPU]: the first thread touches the buffer, on CPU if given. Then all threads read and write the
 * buffer for SECONDS. From two seconds after its start, each thread repeatedly samples the node that it runs in. Prints one line:
 * the percentage of these samples in the most frequent node, the percentage of the buffer's pages in that node, the passes over
 * the buffer, the CPU time of all threads in ms, and the node: `ran 99.2 pages 100.0 passes 812 cpu 1650 node 1`.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { NODES = 64, THREADS = 64, PAGE = 4096 };

static volatile uint64_t *buffer;
static size_t pages;
static int threads, seconds;
static struct timespec begun;
static struct {
	uint64_t seen[NODES], passes;
} done[THREADS];

static double elapsed(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - begun.tv_sec) + (double)(now.tv_nsec - begun.tv_nsec) / 1e9;
}

static void *work(void *argument)
{
	size_t first = (size_t)(uintptr_t)argument, words = PAGE / sizeof *buffer;
	unsigned cpu, node;

	while (elapsed() < seconds) {
		for (size_t page = first; page < pages; page += (size_t)threads) {
			for (size_t word = page * words; word < (page + 1) * words; word++)
				buffer[word] = buffer[word] * 3 + 1;
			if (page / (size_t)threads % 64 == 0 && elapsed() > 2 && !getcpu(&cpu, &node) && node < NODES)
				done[first].seen[node]++;
		}
		done[first].passes++;
	}
	return NULL;
}

/* Pages by node of the mapping that begins at the buffer's address. */
static void count_pages(uint64_t *by_node)
{
	FILE *maps = fopen("/proc/self/numa_maps", "r");
	char line[4096];

	while (maps && fgets(line, sizeof line, maps)) {
		if (strtoull(line, NULL, 16) != (uintptr_t)buffer)
			continue;
		for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
			unsigned node;
			unsigned long long count;

			if (sscanf(word, "N%u=%llu", &node, &count) == 2 && node < NODES)
				by_node[node] = count;
		}
	}
	if (maps)
		fclose(maps);
}

int main(int argc, char **argv)
{
	pthread_t started[THREADS];
	uint64_t seen[NODES] = {0}, by_node[NODES] = {0}, passes = 0, looks = 0, all = 0;
	struct timespec used;
	cpu_set_t before, one;
	unsigned most = 0;

	if (argc < 4 || (threads = atoi(argv[1])) < 1 || threads > THREADS) {
		fprintf(stderr, "usage: team THREADS MIB SECONDS [CPU], with up to %d threads\n", THREADS);
		return 2;
	}
	pages = (size_t)atoi(argv[2]) << 8;
	seconds = atoi(argv[3]);
	sched_getaffinity(0, sizeof before, &before);
	if (argc > 4) {
		CPU_ZERO(&one);
		CPU_SET((size_t)atoi(argv[4]), &one);
		sched_setaffinity(0, sizeof one, &one);
	}
	buffer = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buffer == MAP_FAILED) {
		perror("team: mmap");
		return 1;
	}
	memset((void *)(uintptr_t)buffer, 1, pages * PAGE);
	sched_setaffinity(0, sizeof before, &before);
	clock_gettime(CLOCK_MONOTONIC, &begun);
	for (int i = 0; i < threads; i++)
		pthread_create(&started[i], NULL, work, (void *)(uintptr_t)i);
	for (int i = 0; i < threads; i++) {
		pthread_join(started[i], NULL);
		passes += done[i].passes;
		for (int node = 0; node < NODES; node++)
			seen[node] += done[i].seen[node];
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	count_pages(by_node);
	for (unsigned node = 0; node < NODES; node++) {
		looks += seen[node];
		all += by_node[node];
		if (seen[node] > seen[most])
			most = node;
	}
	printf("ran %.1f pages %.1f passes %llu cpu %lld node %u\n", 100.0 * (double)seen[most] / (double)(looks ? looks : 1),
	       100.0 * (double)by_node[most] / (double)(all ? all : 1), (unsigned long long)passes,
	       (long long)used.tv_sec * 1000 + used.tv_nsec / 1000000, most);
	return 0;
}
