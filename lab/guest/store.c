/*
 * A key-value store like those of real programs: an LMDB environment (Debian's liblmdb), read through a memory mapping.
 *
 *   store fill FILE RECORDS BYTES         makes FILE with RECORDS records of BYTES bytes: record I has the key I, and its data
 *                                         begins with the key
 *   store read FILE SECONDS [SEED]        for SECONDS looks up records drawn at random from SEED, each in its own transaction,
 *                                         and reads the whole record. Prints a line each second: the guest's clock, as in
 *                                         /proc/uptime, in hundredths of a second, and the number of transactions so far
 *
 * The store has no cache besides the page cache. MDB_NORDAHEAD switches off read-ahead, so that a transaction whose page is in
 * memory needs no disk. MDB_NOLOCK is for readers without a concurrent writer, and for a read-only file system.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <lmdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { RECORDS_PER_TRANSACTION = 4096, LINE_CS = 100 };

static void check(int status, const char *what)
{
	if (status) {
		fprintf(stderr, "store: %s: %s\n", what, mdb_strerror(status));
		exit(1);
	}
}

static MDB_txn *begin(MDB_env *store, unsigned flags)
{
	MDB_txn *transaction;

	check(mdb_txn_begin(store, NULL, flags, &transaction), "cannot begin a transaction");
	return transaction;
}

/* There is one table, whose keys are numbers. */
static MDB_dbi table(MDB_txn *transaction)
{
	MDB_dbi found;

	check(mdb_dbi_open(transaction, NULL, MDB_INTEGERKEY, &found), "cannot open the table");
	return found;
}

static MDB_env *open_store(const char *file, size_t size, unsigned flags)
{
	MDB_env *store;

	check(mdb_env_create(&store), "cannot make an environment");
	check(mdb_env_set_mapsize(store, size), "cannot map so much");
	check(mdb_env_open(store, file, MDB_NOSUBDIR | MDB_NOLOCK | MDB_NORDAHEAD | flags, 0644), file);
	return store;
}

static int fill(const char *file, uint32_t records, size_t bytes)
{
	/* A leaf of the tree is at least half full. */
	MDB_env *store = open_store(file, ((size_t)records * (bytes + 64) * 2 + (1 << 20)) & ~(size_t)4095, MDB_NOSYNC);
	unsigned char *record = calloc(1, bytes);

	if (!record)
		check(ENOMEM, "no memory for a record");
	for (uint32_t next = 0; next < records;) {
		MDB_txn *transaction = begin(store, 0);
		MDB_dbi to = table(transaction);

		for (int i = 0; i < RECORDS_PER_TRANSACTION && next < records; i++, next++) {
			MDB_val key = { sizeof next, &next }, value = { bytes, record };

			memcpy(record, &next, sizeof next);
			/* Keys are inserted in order, so each leaf is full. */
			check(mdb_put(transaction, to, &key, &value, MDB_APPEND), "cannot store a record");
		}
		check(mdb_txn_commit(transaction), "cannot keep a transaction");
	}
	check(mdb_env_sync(store, 1), "cannot write it to the disk");
	mdb_env_close(store);
	return 0;
}

static uint64_t clock_cs(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 100 + (uint64_t)now.tv_nsec / 10000000;
}

static int read_store(const char *file, uint64_t seconds, uint64_t chance)
{
	struct stat there;
	MDB_env *store;
	MDB_txn *transaction;
	MDB_dbi from;
	MDB_stat has;
	uint64_t until = clock_cs() + seconds * 100, shown = 0, now, transactions = 0, sum = 0;

	check(stat(file, &there) ? errno : 0, file);
	store = open_store(file, (size_t)there.st_size, MDB_RDONLY);
	transaction = begin(store, MDB_RDONLY);
	from = table(transaction);
	check(mdb_stat(transaction, from, &has), "cannot see the table");
	if (!has.ms_entries)
		check(MDB_NOTFOUND, file);
	while ((now = clock_cs()) < until) {
		uint32_t number;
		MDB_val key = { sizeof number, &number }, value;

		if (now >= shown + LINE_CS) {
			printf("%llu %llu\n", (unsigned long long)now, (unsigned long long)transactions);
			fflush(stdout);
			shown = now;
		}
		chance = chance * 6364136223846793005u + 1442695040888963407u;
		number = (uint32_t)((chance >> 32) * has.ms_entries >> 32);
		mdb_txn_reset(transaction);
		check(mdb_txn_renew(transaction), "cannot begin a transaction");
		check(mdb_get(transaction, from, &key, &value), "a record is missing");
		if (value.mv_size < sizeof number || memcmp(value.mv_data, &number, sizeof number))
			check(MDB_CORRUPTED, file);
		for (size_t i = 0; i < value.mv_size; i++)
			sum += ((const unsigned char *)value.mv_data)[i];
		transactions++;
	}
	printf("%llu %llu\n# the sum of all bytes is %llu\n", (unsigned long long)now, (unsigned long long)transactions,
	       (unsigned long long)sum);
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (argc == 5 && !strcmp(what, "fill") && atol(argv[3]) > 0 && atol(argv[4]) >= (long)sizeof(uint32_t))
		return fill(argv[2], (uint32_t)atol(argv[3]), (size_t)atol(argv[4]));
	if ((argc == 4 || argc == 5) && !strcmp(what, "read") && atol(argv[3]) > 0)
		return read_store(argv[2], (uint64_t)atol(argv[3]), argc == 5 ? (uint64_t)atol(argv[4]) : 1);
	fputs("usage: store fill FILE RECORDS BYTES | store read FILE SECONDS [SEED]\n", stderr);
	return 2;
}
