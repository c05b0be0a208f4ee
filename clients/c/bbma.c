/* Two programs of seed 003, section 3: BBMA saturates the memory bus, and nBBMA leaves the bus alone. -DNBBMA compiles nBBMA.
 *
 *     bbma [SECONDS [SOCKET [WRITES]]]
 *
 * BBMA has an array of twice the size of the last-level cache. Each row is a cache line, and the array is written column by
 * column, so each write is to another line, which was evicted since its last write. nBBMA has an array of half the cache,
 * written row by row, so every write hits the cache.
 *
 * The program joins the daemon at SOCKET, or at COMMONHOLD_SOCKET; without a daemon it runs alone. It counts its own transfers:
 * BBMA a line for each write, as a counter of misses would, and nBBMA its array once. After SECONDS (0: never), after WRITES
 * writes, or on SIGTERM or SIGINT, the program prints writes, ns per write, and MB transferred per second. */
#define _GNU_SOURCE
#define COMMONHOLD_GANG_IMPLEMENTATION
#include "commonhold_gang.h"

#include <inttypes.h>

/* Transfers are reported after this number of rows. */
#define TOLD_ROWS 4096

static volatile sig_atomic_t ends;

static void end(int signal_number) {
	(void)signal_number;
	ends = 1;
}

/* One pass over the array; returns the number of writes. */
static uint64_t write_once(volatile unsigned char *array, uint64_t rows, uint64_t line) {
	uint64_t row, column;
#ifdef NBBMA
	for (row = 0; row < rows; row++)
		for (column = 0; column < line; column++)
			array[row * line + column] = (unsigned char)row;
	return rows * line;
#else
	/* Each call writes one column: the next call writes the next column. */
	static uint64_t next_column;
	column = next_column++ % line;
	for (row = 0; row < rows; row++) {
		array[row * line + column] = (unsigned char)row;
		/* Reported in small parts, for a finer resolution in time. */
		if (row % TOLD_ROWS == TOLD_ROWS - 1)
			ch_transferred(TOLD_ROWS * line);
	}
	ch_transferred(rows % TOLD_ROWS * line);
	return rows;
#endif
}

int main(int count, char **arguments) {
	uint64_t size = 8 << 20, line = 64, row, rows, writes = 0, began, took;
	double seconds = count > 1 ? strtod(arguments[1], NULL) : 0;
	uint64_t writes_max = count > 3 ? strtoull(arguments[3], NULL, 10) : 0;
	const char *path = count > 2 ? arguments[2] : getenv("COMMONHOLD_SOCKET");
	char why[CH_GANG_WORDS];
	unsigned char *array;
	struct sigaction act;
	memset(&act, 0, sizeof act);
	act.sa_handler = end;
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGINT, &act, NULL);
	if (path && *path && ch_gang_join(path, why) != CH_OK)
		fprintf(stderr, "%s: %s; it runs alone\n", arguments[0], why);
	ch__gang_cache(&size, &line);
#ifdef NBBMA
	rows = size / 2 / line;
#else
	rows = size * 2 / line;
#endif
	array = (unsigned char *)malloc(rows * line);
	if (!array) {
		fprintf(stderr, "%s: no memory for %" PRIu64 " bytes\n", arguments[0], rows * line);
		return 1;
	}
	/* Touch every line, through a volatile pointer: nothing reads the array, so the compiler would remove a memset, and the
	 * transfers reported below would be false. */
	for (row = 0; row < rows; row++)
		((volatile unsigned char *)array)[row * line] = 1;
	ch_transferred(rows * line);
	began = ch__gang_now();
	do {
		writes += write_once(array, rows, line);
		took = ch__gang_now() - began;
	} while (!ends && (!writes_max || writes < writes_max) && (seconds <= 0 || (double)took < seconds * 1e9));
	printf("%" PRIu64 " writes, %.3f ns each, %.1f MB/s\n", writes, (double)took / (double)writes,
#ifdef NBBMA
	       (double)(rows * line) / (double)took * 1e3);
#else
	       (double)(writes * line) / (double)took * 1e3);
#endif
	free(array);
	ch_gang_leave();
	return 0;
}
