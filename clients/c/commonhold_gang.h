/* Takes part in gang scheduling: a program reports its memory-bus transfers to the daemon `commonhold run` (docs/gangs.md). One
 * header beside commonhold.h, for Linux, GCC or Clang; programs are linked with -pthread.
 *
 * In exactly one file of a program, with _GNU_SOURCE defined before the first header is included:
 *
 *     #define COMMONHOLD_GANG_IMPLEMENTATION
 *     #include "commonhold_gang.h"
 *
 * and in others only the second line. Then:
 *
 *     char why[CH_GANG_WORDS];
 *     if (ch_gang_join("/run/commonhold/socket", why))
 *         fprintf(stderr, "alone: %s\n", why);
 *     // ... the work; its own count of transfers, in case hardware counters are unavailable: ...
 *     ch_transferred(64 * lines);
 *     ch_gang_leave();
 *
 * After ch_gang_join, a thread of this library, the writer thread, writes the number of transferred bytes, twice per quantum,
 * into a page that the daemon reads. Where the kernel permits, hardware counters of all threads measure that number: the misses
 * of the last-level cache, times the length of its lines. Otherwise the number is the sum of all calls of ch_transferred.
 * Without counters and calls, the page is marked as unmeasured, and the daemon treats the process like one that has not joined.
 *
 * Since Linux 5.13, new threads are counted automatically. On older kernels, each new thread must call ch_gang_thread. A forked
 * process has not joined, and writes nothing: it may join for itself. A process that executes another program leaves. If the
 * daemon exits and another daemon is running, the writer thread joins that daemon. */
#ifndef COMMONHOLD_GANG_H
#define COMMONHOLD_GANG_H

#include "commonhold.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The size of a buffer for an error message, with its NUL. */
#define CH_GANG_WORDS 512
/* The version of the page's layout. */
#define CH_GANG_VERSION UINT64_C(1)
/* `at_ns` of a process that left. */
#define CH_GANG_LEFT UINT64_MAX

/* The page that daemon and process share. crates/client/src/arena.rs declares its layout for Rust; a test compares the two. Each
 * number is written and read atomically. */
typedef struct {
	/* The daemon's part. */
	uint64_t version;
	uint64_t every_ns;     /* the interval at which the process should write */
	uint64_t looked_at_ns; /* when the daemon last polled, by CLOCK_MONOTONIC */
	uint64_t unused[5];
	/* The process's part, in a cache line of its own. */
	uint64_t sequence; /* sequence lock: odd while the numbers below are written */
	uint64_t at_ns;    /* when `bytes` was read, by CLOCK_MONOTONIC */
	uint64_t bytes;    /* transferred since the process joined */
	uint64_t writer;   /* the writer thread, which is excluded from the program's work */
	uint64_t unmeasured; /* not 0: `bytes` does not measure the transfers */
	uint64_t unused_too[3];
} ch_gang_page;

/* Joins the daemon at a socket. CH_OK also if the process has joined already. `why` receives an error's message: it has
 * CH_GANG_WORDS bytes, or is NULL. */
ch_error ch_gang_join(const char *socket_path, char *why);
/* Leaves. Does nothing if the process has not joined. */
void ch_gang_leave(void);
/* Whether this process has joined. */
int ch_gang_is_joined(void);
/* Whether hardware counters measure the transfers, so that ch_transferred is not needed. */
int ch_gang_is_counted(void);
/* Whether the transfers are known, by hardware counters or by ch_transferred. */
int ch_gang_is_measured(void);
/* Reports that `bytes` more were transferred. Ignored if hardware counters measure the transfers. May be called from any
 * thread. A program that leaves the bus alone calls it with 0: without any call, and without counters, its transfers are
 * unknown. */
void ch_transferred(uint64_t bytes);
/* Writes the present number of bytes into the page at once, instead of when the writer thread next does. */
void ch_gang_tell(void);
/* Registers a new thread: needed before Linux 5.13 only, and harmless since. */
void ch_gang_thread(void);

#ifdef __cplusplus
}
#endif
#endif /* COMMONHOLD_GANG_H */

#ifdef COMMONHOLD_GANG_IMPLEMENTATION
#ifndef COMMONHOLD_GANG_IMPLEMENTED
#define COMMONHOLD_GANG_IMPLEMENTED

#ifndef COMMONHOLD_IMPLEMENTED
#define COMMONHOLD_IMPLEMENTATION
#include "commonhold.h"
#endif

#include <dirent.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

/* The counted event. Tests define another event, which every machine can count. */
#ifndef CH__GANG_EVENT_KIND
#define CH__GANG_EVENT_KIND PERF_TYPE_HARDWARE
#define CH__GANG_EVENT PERF_COUNT_HW_CACHE_MISSES
#endif

/* The time without a poll of the page after which the daemon is taken to have ended. A daemon polls several times a second. */
#define CH__GANG_GONE_NS (10 * CH_SECOND)
#define CH__GANG_EVERY_MIN (CH_SECOND / 1000)
/* The bit of `inherit_thread`, for headers older than Linux 5.13. With it a counter includes threads that the counted thread
 * starts later, but not forked processes. */
#ifndef CH__GANG_INHERIT_THREAD_BIT
#define CH__GANG_INHERIT_THREAD_BIT 35
#endif

typedef struct {
	int fd;
	int is_open;
	uint64_t value; /* the highest value read */
} ch__counter;

static struct {
	/* Protects this structure, and writes into the page. */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t writer;
	uint64_t writer_tid;
	pid_t pid;
	int joined, ends, has_hooks;
	ch_gang_page *page;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	uint64_t line;       /* the length of a cache line, in bytes */
	uint64_t told;       /* the sum of ch_transferred, in bytes */
	uint64_t ended;      /* cache misses of threads that ended */
	uint64_t written;    /* bytes written so far, which never decrease */
	uint64_t before;     /* the part of `written` that was reported to an earlier daemon */
	int counted;         /* whether all threads have counters */
	int inherits;        /* whether new threads inherit counters */
	int has_counted; /* whether a counter was seen running: a counter that never gets a PMU register counts nothing */
	int has_told;    /* whether ch_transferred was called */
	int refused;     /* the errno for which threads have no counters; 0: they have counters */
	ch__counter *counters;
	size_t count, room; /* counters in use or closed; counters allocated */
	pthread_key_t thread_key;
} ch__gang = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t ch__gang_now(void) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Reads a file with a whole number, and optionally a letter behind it (as in `32K`) into `unit`; 0 if that fails. */
static uint64_t ch__gang_number(const char *path, char *unit) {
	unsigned long long number = 0;
	FILE *file = fopen(path, "re");
	*unit = 0;
	if (file) {
		if (fscanf(file, "%llu%c", &number, unit) < 1)
			number = 0;
		fclose(file);
	}
	return (uint64_t)number;
}

/* Reads the size of the first CPU's last-level cache, and the length of a cache line. Values that the kernel does not report
 * stay as they are. */
static void ch__gang_cache(uint64_t *size, uint64_t *line) {
	uint64_t highest_level = 0;
	int index;
	for (index = 0; index < 10; index++) {
		char path[96], unit;
		uint64_t level, number;
		snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", index);
		level = ch__gang_number(path, &unit);
		if (level < highest_level || level == 0)
			continue;
		highest_level = level;
		snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
		number = ch__gang_number(path, &unit) * (unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1);
		*size = number ? number : *size;
		snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/coherency_line_size", index);
		number = ch__gang_number(path, &unit);
		*line = number ? number : *line;
	}
}

/* ---- Counters. The caller holds the lock. ---- */

/* Opens a counter of a thread, and with `inherits` of the threads that it starts. Returns a descriptor, or -1. */
static int ch__gang_open(pid_t tid, int inherits) {
	struct {
		struct perf_event_attr known;
		char later[64];
	} attributes;
	uint64_t *flags;
	memset(&attributes, 0, sizeof attributes);
	attributes.known.type = CH__GANG_EVENT_KIND;
	attributes.known.size = PERF_ATTR_SIZE_VER5;
	attributes.known.config = CH__GANG_EVENT;
	attributes.known.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
	attributes.known.exclude_kernel = 1;
	attributes.known.exclude_hv = 1;
	attributes.known.inherit = inherits ? 1 : 0;
	if (inherits) {
		/* The structure's bit fields are one 64-bit number behind read_format. The first field is its lowest bit, or on a
		 * big-endian machine its highest. */
		flags = (uint64_t *)(void *)((char *)&attributes + offsetof(struct perf_event_attr, read_format) + sizeof(uint64_t));
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
		*flags |= UINT64_C(1) << (63 - CH__GANG_INHERIT_THREAD_BIT);
#else
		*flags |= UINT64_C(1) << CH__GANG_INHERIT_THREAD_BIT;
#endif
	}
	return (int)syscall(SYS_perf_event_open, &attributes, tid, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

/* Adds a counter for a thread, and stores its index in `place` unless that is NULL. 0: the kernel refuses the counter, or memory
 * is short. */
static int ch__gang_count(pid_t tid, int inherits, size_t *place) {
	size_t at;
	int fd = ch__gang_open(tid, inherits);
	if (fd < 0)
		return 0;
	for (at = 0; at < ch__gang.count && ch__gang.counters[at].is_open; at++)
		;
	if (at == ch__gang.room) {
		size_t room = ch__gang.room ? ch__gang.room * 2 : 16;
		ch__counter *larger = (ch__counter *)realloc(ch__gang.counters, room * sizeof *larger);
		if (!larger) {
			close(fd);
			return 0;
		}
		ch__gang.counters = larger;
		ch__gang.room = room;
	}
	if (at == ch__gang.count)
		ch__gang.count++;
	ch__gang.counters[at].fd = fd;
	ch__gang.counters[at].is_open = 1;
	ch__gang.counters[at].value = 0;
	if (place)
		*place = at;
	return 1;
}

/* The value of a counter, extrapolated to the whole time if the kernel multiplexed the processor's counters. If it cannot be
 * read, the last value counts. */
static uint64_t ch__gang_value(ch__counter *counter) {
	uint64_t read_now[3]; /* value, time enabled, time running */
	double value;
	if (read(counter->fd, read_now, sizeof read_now) == (ssize_t)sizeof read_now && read_now[2] > 0) {
		ch__gang.has_counted = 1;
		value = (double)read_now[0];
		if (read_now[2] < read_now[1])
			value = value * (double)read_now[1] / (double)read_now[2];
		if (value > (double)counter->value && value < 1e19)
			counter->value = (uint64_t)value;
	}
	return counter->value;
}

/* Closes all counters. */
static void ch__gang_uncount(void) {
	size_t at;
	for (at = 0; at < ch__gang.count; at++)
		if (ch__gang.counters[at].is_open)
			close(ch__gang.counters[at].fd);
	free(ch__gang.counters);
	ch__gang.counters = NULL;
	ch__gang.count = ch__gang.room = 0;
	ch__gang.counted = ch__gang.inherits = ch__gang.has_counted = 0;
	ch__gang.ended = 0;
}

/* Closes all counters because one thread cannot be counted: the sum of the others would understate the transfers. */
static void ch__gang_refuse(int why) {
	ch__gang_uncount();
	ch__gang.refused = why ? why : ENOENT;
}

/* Adds the count of a thread that ends to `ended`, and closes its counter. `number` is the counter's index plus one. */
static void ch__gang_thread_ends(void *number) {
	size_t at = (size_t)(uintptr_t)number - 1;
	pthread_mutex_lock(&ch__gang.lock);
	if (at < ch__gang.count && ch__gang.counters[at].is_open && ch__gang.pid == getpid()) {
		ch__gang.ended += ch__gang_value(&ch__gang.counters[at]);
		close(ch__gang.counters[at].fd);
		ch__gang.counters[at].is_open = 0;
	}
	pthread_mutex_unlock(&ch__gang.lock);
}

/* Adds counters for all present threads. Later threads inherit the counters, if the kernel supports that. */
static void ch__gang_count_threads(void) {
	DIR *tasks;
	struct dirent *task;
	int fd = ch__gang_open(0, 1);
	int why = 0;
	ch__gang.refused = 0;
	ch__gang.inherits = fd >= 0;
	if (fd >= 0)
		close(fd);
	tasks = opendir("/proc/self/task");
	if (!tasks)
		why = errno;
	while (tasks && why == 0 && (task = readdir(tasks)) != NULL) {
		long tid = strtol(task->d_name, NULL, 10);
		if (tid <= 0)
			continue;
		errno = 0;
		if (ch__gang_count((pid_t)tid, ch__gang.inherits, NULL))
			ch__gang.counted = 1;
		else if (errno != ESRCH) /* ESRCH: the thread has ended meanwhile */
			why = errno ? errno : ENOMEM;
	}
	if (tasks)
		closedir(tasks);
	if (why || !ch__gang.counted)
		ch__gang_refuse(why);
}

/* ---- The page. The caller holds the lock. ---- */

/* The bytes transferred so far: by the counters, or before any counter ran by ch_transferred. */
static uint64_t ch__gang_bytes(void) {
	uint64_t misses = ch__gang.ended;
	size_t at;
	for (at = 0; ch__gang.counted && at < ch__gang.count; at++)
		if (ch__gang.counters[at].is_open)
			misses += ch__gang_value(&ch__gang.counters[at]);
	if (!ch__gang.has_counted)
		return __atomic_load_n(&ch__gang.told, __ATOMIC_RELAXED);
	return misses * ch__gang.line;
}

/* Whether the transfers are known. */
static int ch__gang_measures(void) {
	return ch__gang.has_counted || __atomic_load_n(&ch__gang.has_told, __ATOMIC_ACQUIRE);
}

/* Writes a report into the page. `at_ns` is the present time, or CH_GANG_LEFT. */
static void ch__gang_put(uint64_t at_ns) {
	ch_gang_page *page = ch__gang.page;
	uint64_t bytes, sequence, unmeasured;
	if (!page || ch__gang.pid != getpid())
		return;
	bytes = ch__gang_bytes();
	ch__gang.written = bytes > ch__gang.written ? bytes : ch__gang.written;
	unmeasured = !ch__gang_measures();
	sequence = __atomic_load_n(&page->sequence, __ATOMIC_RELAXED) | 1;
	__atomic_store_n(&page->sequence, sequence, __ATOMIC_RELAXED);
	/* The numbers must be written after the sequence has become odd. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	__atomic_store_n(&page->writer, ch__gang.writer_tid, __ATOMIC_RELAXED);
	__atomic_store_n(&page->at_ns, at_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&page->bytes, ch__gang.written - ch__gang.before, __ATOMIC_RELAXED);
	__atomic_store_n(&page->unmeasured, unmeasured, __ATOMIC_RELAXED);
	__atomic_store_n(&page->sequence, sequence + 1, __ATOMIC_RELEASE);
}

/* Asks the daemon for a page, and maps it. `why` receives an error's message, unless it is NULL. */
static ch_error ch__gang_ask(const char *path, ch_gang_page **page, char *why) {
	ch_client client;
	ch__json answer;
	struct stat facts;
	uint64_t length = 0;
	int descriptor = -1;
	void *mapped = MAP_FAILED;
	ch_error error = ch_connect(&client, path);
	client.passed = &descriptor;
	if (error == CH_OK)
		error = ch__ask(&client, "io.commonhold.Join", "{}", CH__PATIENCE, &answer);
	if (error == CH_OK && (!ch__key_u64(answer, "page_bytes", &length) || length < sizeof **page || length > 1 << 20 ||
	                       descriptor < 0))
		error = ch__not_understood(&client);
	/* Writing to a page that is shorter than announced would kill this program. */
	if (error == CH_OK && (fstat(descriptor, &facts) != 0 || facts.st_size < (off_t)sizeof **page))
		error = ch__not_understood(&client);
	if (error == CH_OK) {
		mapped = mmap(NULL, sizeof **page, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
		if (mapped == MAP_FAILED || madvise(mapped, sizeof **page, MADV_DONTFORK) != 0)
			error = ch__fail(&client, CH_SYSTEM, "cannot map the page of the gang", strerror(errno));
	}
	if (error == CH_OK && __atomic_load_n(&((ch_gang_page *)mapped)->version, __ATOMIC_ACQUIRE) != CH_GANG_VERSION)
		error = ch__fail(&client, CH_NOT_UNDERSTOOD, "the page of the gang is not of this version", "");
	if (error == CH_OK)
		*page = (ch_gang_page *)mapped;
	else if (mapped != MAP_FAILED)
		munmap(mapped, sizeof **page);
	if (why)
		snprintf(why, CH_GANG_WORDS, "%.*s", CH_GANG_WORDS - 1, ch_message(&client));
	if (descriptor >= 0)
		close(descriptor);
	client.passed = NULL;
	ch_close(&client);
	return error;
}

/* Joins another daemon, if one is running, because the previous one no longer polls. Bytes reported to the previous daemon are
 * not reported again. Releases the lock meanwhile, because the new daemon's answer may take seconds. */
static void ch__gang_join_again(void) {
	ch_gang_page *page;
	pthread_mutex_unlock(&ch__gang.lock);
	if (ch__gang_ask(ch__gang.path, &page, NULL) != CH_OK)
		page = NULL;
	pthread_mutex_lock(&ch__gang.lock);
	if (page && !ch__gang.ends) {
		munmap(ch__gang.page, sizeof *page);
		ch__gang.page = page;
		ch__gang.before = ch__gang.written;
	} else if (page) {
		munmap(page, sizeof *page);
	}
}

/* The writer thread: writes reports at the daemon's interval until the process leaves. */
static void *ch__gang_write(void *none) {
	uint64_t asked_at = ch__gang_now(), next_write_at = asked_at;
	(void)none;
	pthread_mutex_lock(&ch__gang.lock);
	ch__gang.writer_tid = (uint64_t)syscall(SYS_gettid);
	while (!ch__gang.ends) {
		uint64_t now = ch__gang_now(), polled_at = __atomic_load_n(&ch__gang.page->looked_at_ns, __ATOMIC_RELAXED);
		uint64_t interval = __atomic_load_n(&ch__gang.page->every_ns, __ATOMIC_RELAXED);
		struct timespec time;
		int is_late;
		ch__gang_put(now);
		if (now > polled_at + CH__GANG_GONE_NS && now > asked_at + CH__GANG_GONE_NS) {
			ch__gang_join_again();
			asked_at = now;
		}
		interval = interval < CH__GANG_EVERY_MIN ? CH__GANG_EVERY_MIN : interval > CH_SECOND ? CH_SECOND : interval;
		/* If this thread is late by half an interval, the process was stopped and its quantum begins now. The daemon polls in
		 * the middle and at the end of a quantum. So write half an interval later, and then at whole intervals, just before
		 * each poll: the report is then fresh, and this thread does not run at the poll, where it would count as a thread. */
		is_late = now > next_write_at + interval / 2;
		next_write_at = now + (is_late ? interval / 2 : interval);
		time.tv_sec = (time_t)(next_write_at / UINT64_C(1000000000));
		time.tv_nsec = (long)(next_write_at % UINT64_C(1000000000));
		if (!ch__gang.ends)
			pthread_cond_timedwait(&ch__gang.wake, &ch__gang.lock, &time);
	}
	pthread_mutex_unlock(&ch__gang.lock);
	return NULL;
}

/* ---- Fork: the child has neither the writer thread nor the page. ---- */

static void ch__gang_before_fork(void) {
	pthread_mutex_lock(&ch__gang.lock);
}

static void ch__gang_after_fork(void) {
	pthread_mutex_unlock(&ch__gang.lock);
}

static void ch__gang_in_child(void) {
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	ch__gang.page = NULL;
	ch__gang.joined = ch__gang.ends = 0;
	pthread_setspecific(ch__gang.thread_key, NULL);
	/* The descriptors are copies: closing them does not affect the parent. */
	ch__gang_uncount();
	__atomic_store_n(&ch__gang.told, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&ch__gang.has_told, 0, __ATOMIC_RELAXED);
	ch__gang.written = ch__gang.before = 0;
	ch__gang.lock = fresh;
}

/* ---- Calls ---- */

ch_error ch_gang_join(const char *socket_path, char *why) {
	ch_error error = CH_OK;
	pthread_condattr_t clock;
	sigset_t all, before;
	uint64_t size = 0;
	if (why)
		*why = 0;
	pthread_mutex_lock(&ch__gang.lock);
	if (ch__gang.joined) {
		pthread_mutex_unlock(&ch__gang.lock);
		return CH_OK;
	}
	if (strlen(socket_path) >= sizeof ch__gang.path)
		error = CH_INVALID;
	else
		error = ch__gang_ask(socket_path, &ch__gang.page, why);
	if (error == CH_INVALID && why)
		snprintf(why, CH_GANG_WORDS, "the path is too long for a socket");
	if (error == CH_OK) {
		int refused;
		strcpy(ch__gang.path, socket_path);
		if (!ch__gang.has_hooks) {
			pthread_atfork(ch__gang_before_fork, ch__gang_after_fork, ch__gang_in_child);
			pthread_key_create(&ch__gang.thread_key, ch__gang_thread_ends);
			ch__gang.has_hooks = 1;
		}
		ch__gang.pid = getpid();
		ch__gang.line = 64;
		ch__gang_cache(&size, &ch__gang.line);
		ch__gang.written = ch__gang.before = 0;
		__atomic_store_n(&ch__gang.told, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&ch__gang.has_told, 0, __ATOMIC_RELAXED);
		ch__gang_count_threads();
		ch__gang.ends = 0;
		pthread_condattr_init(&clock);
		pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
		pthread_cond_init(&ch__gang.wake, &clock);
		pthread_condattr_destroy(&clock);
		/* The writer thread inherits the mask, so it receives none of the program's signals. */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		refused = pthread_create(&ch__gang.writer, NULL, ch__gang_write, NULL);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		ch__gang.joined = refused == 0;
		if (refused) {
			munmap(ch__gang.page, sizeof *ch__gang.page);
			ch__gang.page = NULL;
			ch__gang_uncount();
			error = CH_SYSTEM;
			if (why)
				snprintf(why, CH_GANG_WORDS, "cannot start a thread: %s", strerror(refused));
		}
	}
	pthread_mutex_unlock(&ch__gang.lock);
	return error;
}

void ch_gang_leave(void) {
	pthread_t writer;
	pthread_mutex_lock(&ch__gang.lock);
	if (!ch__gang.joined || ch__gang.ends) {
		pthread_mutex_unlock(&ch__gang.lock);
		return;
	}
	ch__gang.ends = 1;
	writer = ch__gang.writer;
	pthread_cond_signal(&ch__gang.wake);
	pthread_mutex_unlock(&ch__gang.lock);
	pthread_join(writer, NULL);
	pthread_mutex_lock(&ch__gang.lock);
	ch__gang_put(CH_GANG_LEFT);
	munmap(ch__gang.page, sizeof *ch__gang.page);
	ch__gang.page = NULL;
	ch__gang_uncount();
	pthread_cond_destroy(&ch__gang.wake);
	ch__gang.joined = ch__gang.ends = 0;
	pthread_mutex_unlock(&ch__gang.lock);
}

int ch_gang_is_joined(void) {
	int joined;
	pthread_mutex_lock(&ch__gang.lock);
	joined = ch__gang.joined && !ch__gang.ends;
	pthread_mutex_unlock(&ch__gang.lock);
	return joined;
}

int ch_gang_is_counted(void) {
	int counted;
	pthread_mutex_lock(&ch__gang.lock);
	counted = ch__gang.counted;
	pthread_mutex_unlock(&ch__gang.lock);
	return counted;
}

int ch_gang_is_measured(void) {
	int measured;
	pthread_mutex_lock(&ch__gang.lock);
	ch__gang_bytes(); /* for its effect: it notices a counter that has started to run */
	measured = ch__gang.joined && ch__gang_measures();
	pthread_mutex_unlock(&ch__gang.lock);
	return measured;
}

void ch_transferred(uint64_t bytes) {
	__atomic_fetch_add(&ch__gang.told, bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&ch__gang.has_told, 1, __ATOMIC_RELEASE);
}

void ch_gang_tell(void) {
	pthread_mutex_lock(&ch__gang.lock);
	ch__gang_put(ch__gang_now());
	pthread_mutex_unlock(&ch__gang.lock);
}

void ch_gang_thread(void) {
	size_t place;
	pthread_mutex_lock(&ch__gang.lock);
	if (ch__gang.joined && ch__gang.counted && !ch__gang.inherits && ch__gang.pid == getpid() &&
	    !pthread_getspecific(ch__gang.thread_key)) {
		if (ch__gang_count(0, 0, &place))
			pthread_setspecific(ch__gang.thread_key, (void *)(uintptr_t)(place + 1));
		else
			ch__gang_refuse(errno);
	}
	pthread_mutex_unlock(&ch__gang.lock);
}

#endif /* COMMONHOLD_GANG_IMPLEMENTED */
#endif /* COMMONHOLD_GANG_IMPLEMENTATION */
