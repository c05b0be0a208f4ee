// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A lock meter for programs, as lockmeter was for the kernel. It counts how often each lock is taken, by call site, and measures
 * hold times, wait times, and at which call site the holder had taken the lock during a wait. It is loaded before the C library
 * (LD_PRELOAD) and interposes the functions that take and release locks.
 *
 * For experiments it also runs a busy loop during or after each hold of one class of locks, if the header (meter.h) says so.
 *
 * To leave the program's behaviour unchanged, the meter allocates no memory, takes no lock of the C library and preserves
 * errno. A lock that finds no room in a table is taken without being counted.
 *
 * Limits: the meter does not see locks taken by other means: futexes of Go and of Rust's standard library, locks inside the C
 * library, C11's mtx_lock.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "meter.h"

#define ENVIRONMENT "COMMONHOLD_METER"
#define EXPORT __attribute__((visibility("default")))
#define SITE ((uint64_t)__builtin_return_address(0))
#define HERE(address) ((uint64_t)(uintptr_t)(address))
#define unlikely(x) __builtin_expect(!!(x), 0)

enum { HELD = 32, RANGES = 384, PLACES = 8192, PROBES = 8, FREED = 64, AGAIN = 64, RECENT = 8, FAR_NS = 5000 };

/* The interposed functions. */
static struct {
	int (*lock)(pthread_mutex_t *), (*trylock)(pthread_mutex_t *), (*unlock)(pthread_mutex_t *);
	int (*timedlock)(pthread_mutex_t *, const struct timespec *);
	int (*clocklock)(pthread_mutex_t *, clockid_t, const struct timespec *);
	int (*rdlock)(pthread_rwlock_t *), (*tryrdlock)(pthread_rwlock_t *);
	int (*wrlock)(pthread_rwlock_t *), (*trywrlock)(pthread_rwlock_t *), (*rwunlock)(pthread_rwlock_t *);
	int (*spin)(pthread_spinlock_t *), (*tryspin)(pthread_spinlock_t *), (*unspin)(pthread_spinlock_t *);
	int (*wait)(pthread_cond_t *, pthread_mutex_t *);
	int (*timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
	int (*clockwait)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
	_Atomic int found;
} real;

static void *find_real(const char *name, const char *version)
{
	/* glibc has two versions of condition variables. Programs of the last twenty years use the newer one. */
#ifdef __GLIBC__
	void *found = version ? dlvsym(RTLD_NEXT, name, version) : NULL;
#else
	void *found = NULL;
	(void)version;
#endif
	return found ? found : dlsym(RTLD_NEXT, name);
}

static __attribute__((noinline, cold)) void find_all(void)
{
#define FIND(field, name) real.field = (__typeof__(real.field))find_real(name, NULL)
#define FIND_NEWER(field, name) real.field = (__typeof__(real.field))find_real(name, "GLIBC_2.3.2")
	FIND(lock, "pthread_mutex_lock");
	FIND(trylock, "pthread_mutex_trylock");
	FIND(unlock, "pthread_mutex_unlock");
	FIND(timedlock, "pthread_mutex_timedlock");
	FIND(clocklock, "pthread_mutex_clocklock");
	FIND(rdlock, "pthread_rwlock_rdlock");
	FIND(tryrdlock, "pthread_rwlock_tryrdlock");
	FIND(wrlock, "pthread_rwlock_wrlock");
	FIND(trywrlock, "pthread_rwlock_trywrlock");
	FIND(rwunlock, "pthread_rwlock_unlock");
	FIND(spin, "pthread_spin_lock");
	FIND(tryspin, "pthread_spin_trylock");
	FIND(unspin, "pthread_spin_unlock");
	FIND_NEWER(wait, "pthread_cond_wait");
	FIND_NEWER(timedwait, "pthread_cond_timedwait");
	FIND(clockwait, "pthread_cond_clockwait");
	atomic_store_explicit(&real.found, 1, memory_order_release);
}

static inline void need_real(void)
{
	if (unlikely(!atomic_load_explicit(&real.found, memory_order_acquire)))
		find_all();
}

/*
 * A lock that this thread holds. `since`: when it was taken. `sampled`: whether `cpu` and `queue` have the clocks at that time.
 */
struct held {
	void *lock;
	uint64_t since;
	struct meter_record *of_lock, *of_site;
	uint32_t depth, sampled;
	uint64_t cpu, queue;
};

/* The meter's state of a thread. `held`: the locks in `stack`. `off`: the meter ignores what this thread does. */
struct self {
	struct meter_slab *slab;
	uint32_t slab_at, held, off, process_at;
	uint64_t sampled_at;
	/* The sampled gap: from a release to the next request. */
	struct meter_record *gap_of;
	uint64_t gap_from, gap_cpu, gap_queue;
	struct held stack[HELD];
	/* A cache of lookups: searching the tables would double the meter's cost. */
	struct request {
		void *lock;
		uint64_t site, at;
		struct meter_record *of_lock, *of_site;
		struct place *place;
	} recent[RECENT];
};

static __thread struct self self __attribute__((tls_model("initial-exec")));

static struct meter_header *header;
static _Atomic int process_at = -1;
static pthread_key_t key;
static int has_key;
/* Free list of slabs of ended threads: index plus 1; 0 for an empty slot. */
static _Atomic uint32_t freed[FREED];

/* The mappings of the process, sorted by address. */
static struct range {
	uint64_t from, to, base, module;
	int is_code;
} ranges[RANGES];
static _Atomic int ranges_used;
static _Atomic int reading;
static int readings;

/* Locks by address: the class, and the holder's call site while it is held. */
static struct place {
	_Atomic uint64_t lock;
	_Atomic uint64_t class;
	_Atomic uint64_t holder;
} places[PLACES];

static inline uint64_t clock_ns(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
	if (header->use_tsc)
		return __builtin_ia32_rdtsc();
#endif
	return clock_ns(CLOCK_MONOTONIC);
}

static inline uint64_t ticks_of(uint64_t ns)
{
	return header->use_tsc ? ns * header->ticks_per_ms / 1000000 : ns;
}

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

/* A busy loop of `ns`; returns its actual length. Long delays are measured in CPU time, so that a thread that is preempted
 * continues its delay afterwards. For short delays, reading the CPU clock costs too much, and preemption is unlikely. */
static uint64_t compute(uint64_t ns)
{
	if (ns >= FAR_NS) {
		uint64_t from = clock_ns(CLOCK_THREAD_CPUTIME_ID), now;
		do {
			for (int i = 0; i < 8; i++)
				relax();
			now = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		} while (now - from < ns);
		return now - from;
	}
	uint64_t from = ticks(), least = ticks_of(ns), now;
	do {
		relax();
		now = ticks();
	} while (now - from < least);
	return header->use_tsc ? (now - from) * 1000000 / header->ticks_per_ms : now - from;
}

/* Time that this thread was runnable without a CPU: the second number in its schedstat. */
static uint64_t queued_ns(void)
{
	char text[64];
	int file = (int)syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return 0;
	long length = syscall(SYS_read, file, text, sizeof text - 1);
	syscall(SYS_close, file);
	uint64_t number = 0;
	long at = 0;
	while (at < length && text[at] != ' ')
		at++;
	for (at++; at < length && text[at] >= '0' && text[at] <= '9'; at++)
		number = number * 10 + (uint64_t)(text[at] - '0');
	return number;
}

static uint64_t hash(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
}

/* Parses a line of maps: "from-to rwxp offset dev inode   path\n". Returns its end; the path may be empty. */
static const char *parse(const char *at, const char *end, uint64_t *from, uint64_t *to, int *is_code, const char **path)
{
	uint64_t number[2] = { 0, 0 };
	for (int i = 0; i < 2; i++, at++)
		for (; at < end && *at != '-' && *at != ' '; at++)
			number[i] = number[i] << 4 | (uint64_t)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
	*from = number[0];
	*to = number[1];
	*is_code = at + 2 < end && at[2] == 'x';
	const char *line_end = at;
	while (line_end < end && *line_end != '\n')
		line_end++;
	*path = line_end;
	for (const char *p = at; p < line_end; p++)
		if (*p == '/') {
			*path = p;
			break;
		}
	return line_end;
}

static uint64_t fnv(const char *from, const char *to)
{
	uint64_t sum = 0xcbf29ce484222325ull;
	for (; from < to; from++)
		sum = (sum ^ (uint8_t)*from) * 0x100000001b3ull;
	return sum;
}

/* Adds one line to the table, and its text to the process entry. An unnamed line right after a named one is the .bss of that
 * file. */
static void take_line(struct meter_process *process, int *used, const char *line, const char *end)
{
	uint64_t from, to;
	int is_code;
	const char *path, *line_end = parse(line, end, &from, &to, &is_code, &path);
	struct range *before = *used ? &ranges[*used - 1] : NULL;
	int is_zeroes = path == line_end && before && before->to == from;
	if ((path == line_end && !is_zeroes) || *used == RANGES)
		return;
	uint64_t module = is_zeroes ? before->module : fnv(path, line_end);
	uint64_t base = before && before->module == module ? before->base : from;
	ranges[*used] = (struct range){ from, to, base, module, is_code };
	++*used;
	uint32_t length = (uint32_t)(line_end - line) + 1;
	if (path != line_end && process->length + length < sizeof process->maps) {
		memcpy(process->maps + process->length, line, length - 1);
		process->maps[process->length + length - 1] = '\n';
		process->length += length;
	}
}

static void read_ranges(struct meter_process *process)
{
	static char text[8192];
	if (atomic_exchange(&reading, 1))
		return;
	int file = readings++ < AGAIN ? (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC) : -1;
	if (file >= 0) {
		int used = 0;
		long have = 0, more;
		process->length = 0;
		while ((more = syscall(SYS_read, file, text + have, sizeof text - (size_t)have)) > 0) {
			const char *line = text, *end = text + have + more, *newline;
			while ((newline = memchr(line, '\n', (size_t)(end - line)))) {
				take_line(process, &used, line, newline + 1);
				line = newline + 1;
			}
			have = end - line;
			memmove(text, line, (size_t)have);
			if (have == (long)sizeof text)
				break;
		}
		syscall(SYS_close, file);
		atomic_store_explicit(&ranges_used, used, memory_order_release);
	}
	atomic_store(&reading, 0);
}

static const struct range *range_of(uint64_t address)
{
	int used = atomic_load_explicit(&ranges_used, memory_order_acquire);
	for (int i = 0; i < used; i++)
		if (address >= ranges[i].from && address < ranges[i].to)
			return &ranges[i];
	return NULL;
}

static struct meter_process *process_of(int at)
{
	return (struct meter_process *)((char *)header + METER_HEADER_BYTES + (size_t)at * METER_PROCESS_BYTES);
}

static struct meter_slab *slab_of(uint32_t at)
{
	return (struct meter_slab *)((char *)header + METER_HEADER_BYTES + (size_t)METER_PROCESSES * METER_PROCESS_BYTES +
				     (size_t)at * METER_SLAB_BYTES);
}

/* The number of this process's entry; -2 if all entries are used. */
static int enter_process(void)
{
	int at = atomic_load(&process_at);
	if (at != -1)
		return at;
	uint32_t next = atomic_fetch_add(&header->processes, 1);
	int entry = next < METER_PROCESSES ? (int)next : -2, current = -1;
	if (entry >= 0) {
		process_of(entry)->pid = (uint32_t)getpid();
		read_ranges(process_of(entry));
	}
	/* If two threads race, the entry of the slower one stays unused. */
	return atomic_compare_exchange_strong(&process_at, &current, entry) ? entry : current;
}

/* Called when a thread ends: puts its slab on the free list. */
static void end_thread(void *unused)
{
	(void)unused;
	uint32_t mine = self.slab_at + 1;
	struct meter_slab *slab = self.slab;
	self.off = 1;
	self.slab = NULL;
	for (int i = 0; slab && i < FREED; i++) {
		uint32_t none = 0;
		if (atomic_compare_exchange_strong(&freed[i], &none, mine))
			return;
	}
}

static __attribute__((noinline, cold)) int enter_thread(void)
{
	self.off = 1; /* the functions called here may take locks */
	int process = enter_process();
	uint32_t at = 0;
	for (int i = 0; process >= 0 && i < FREED && !at; i++)
		if (atomic_load_explicit(&freed[i], memory_order_relaxed))
			at = atomic_exchange(&freed[i], 0);
	if (process < 0)
		return 0;
	if (at)
		self.slab_at = at - 1;
	else if ((self.slab_at = atomic_fetch_add(&header->slabs, 1)) >= METER_SLABS)
		return 0;
	self.slab = slab_of(self.slab_at);
	self.slab->process = (uint32_t)process;
	self.slab->tid = (uint32_t)syscall(SYS_gettid);
	self.slab->threads++;
	self.held = 0;
	self.gap_of = NULL;
	memset(self.recent, 0, sizeof self.recent);
	if (has_key)
		pthread_setspecific(key, &self);
	self.off = 0;
	return 1;
}

static inline int is_metered(void)
{
	return header && !self.off && (self.slab || enter_thread());
}

/* Called in the child after fork: the child gets entries of its own. */
static void in_child(void)
{
	self.slab = NULL;
	self.held = 0;
	self.gap_of = NULL;
	self.off = 0;
	readings = 0;
	atomic_store(&reading, 0);
	atomic_store(&process_at, -1);
	for (int i = 0; i < FREED; i++)
		atomic_store(&freed[i], 0);
}

/* Finds or adds a lock in the table; NULL if there is no room near its hash. */
static struct place *place_of(uint64_t lock, uint64_t site)
{
	uint64_t at = hash(lock);
	for (int i = 0; i < PROBES; i++) {
		struct place *place = &places[(at + (uint64_t)i) % PLACES];
		uint64_t found = atomic_load_explicit(&place->lock, memory_order_acquire);
		if (!found && atomic_compare_exchange_strong(&place->lock, &found, lock)) {
			/* A lock in a variable is its own class. On the heap, the class is the call site that took it first. */
			const struct range *range = range_of(lock);
			const struct range *code = range ? range : range_of(site);
			uint64_t offset = (range ? lock : site) - (code ? code->base : 0);
			uint64_t class = hash(offset) ^ (code ? code->module : 0) ^ (range ? 0 : 1);
			atomic_store_explicit(&place->class, class ? class : 1, memory_order_release);
			return place;
		}
		if (found == lock || atomic_load(&place->lock) == lock)
			return place;
	}
	return NULL;
}

/* Finds or adds a record in a slab; NULL if the slab has no room, which is counted. */
static struct meter_record *record_of(struct meter_slab *slab, uint64_t lock, uint64_t site, uint64_t holder, uint32_t about,
				      uint32_t kind)
{
	uint64_t at = hash(lock ^ hash(site + about) ^ holder * 0x9e3779b97f4a7c15ull);
	for (int i = 0; i < METER_RECORDS; i++) {
		struct meter_record *record = &slab->records[(at + (uint64_t)i) % METER_RECORDS];
		if (record->about == about && record->lock == lock && record->site == site && record->holder == holder)
			return record;
		if (record->about)
			continue;
		/* Probing a table that is nearly full would cost too much at every lock. */
		if (slab->used >= METER_RECORDS * 7 / 8)
			break;
		slab->used++;
		record->lock = lock;
		record->site = site;
		record->holder = holder;
		record->kind = kind;
		record->about = about;
		return record;
	}
	atomic_fetch_add_explicit(&header->full, 1, memory_order_relaxed);
	return NULL;
}

static struct held *held_of(void *lock)
{
	for (uint32_t i = self.held; i-- > 0;)
		if (self.stack[i].lock == lock)
			return &self.stack[i];
	return NULL;
}

static int is_target(const struct meter_record *lock)
{
	return header->target && lock->class == header->target;
}

/* Called before a request: ends the gap since this thread's last release of the lock. */
static void end_gap(struct meter_record *lock, uint64_t now)
{
	if (!lock->first)
		lock->first = now;
	if (!lock->released)
		return;
	lock->gap += now - lock->released;
	lock->gaps++;
	lock->released = 0;
	if (unlikely(self.gap_of == lock)) {
		int error = errno;
		lock->gap_wall += now - self.gap_from;
		lock->gap_cpu += clock_ns(CLOCK_THREAD_CPUTIME_ID) - self.gap_cpu;
		lock->gap_queue += queued_ns() - self.gap_queue;
		lock->gap_samples++;
		errno = error;
	}
}

/* Looks a lock up in the tables, adding it if needed, and caches the result. Returns 0 if there is no room. */
static __attribute__((noinline)) int find(struct request *recent, void *lock, uint64_t site, uint32_t kind)
{
	struct meter_slab *slab = self.slab;
	struct request found = { lock, site, 0, NULL, NULL, NULL };
	found.of_lock = record_of(slab, HERE(lock), 0, 0, METER_LOCK, kind);
	found.of_site = record_of(slab, HERE(lock), site, 0, METER_SITE, kind);
	if (!found.of_lock || !found.of_site)
		return 0;
	if (!found.of_site->total && readings < AGAIN && !range_of(site))
		read_ranges(process_of((int)slab->process)); /* a library may have been loaded since */
	found.place = place_of(HERE(lock), site);
	if (!found.of_lock->class)
		found.of_lock->class = found.place ? atomic_load(&found.place->class) : 1;
	*recent = found;
	return 1;
}

/* Begins a request of a lock. Returns 0 if the lock cannot be counted. */
static inline int begin(struct request *request, void *lock, uint64_t site, uint32_t kind)
{
	struct request *recent = &self.recent[(HERE(lock) >> 3 ^ HERE(lock) >> 9 ^ site) % RECENT];
	if (unlikely(self.held == HELD))
		return 0;
	if (unlikely(recent->lock != lock || recent->site != site) && !find(recent, lock, site, kind))
		return 0;
	*request = *recent;
	request->at = ticks();
	end_gap(request->of_lock, request->at);
	return 1;
}

/* Called after a lock was taken; `waited_from`: when the wait began, 0 without a wait. `holder`: the holder's call site then. */
static void taken(const struct request *request, void *lock, uint64_t site, uint64_t waited_from, uint64_t holder, int shared)
{
	struct meter_record *of_site = request->of_site;
	struct held *held = &self.stack[self.held++];
	uint64_t now = waited_from ? ticks() : request->at;
	if (waited_from) {
		uint64_t wait = now - waited_from;
		struct meter_record *pair = record_of(self.slab, HERE(lock), site, holder, METER_PAIR, of_site->kind);
		of_site->waited++;
		of_site->wait += wait;
		if (wait > of_site->wait_max)
			of_site->wait_max = wait;
		if (pair && holder) {
			pair->waited++;
			pair->wait += wait;
		}
	}
	of_site->total++;
	of_site->shared += (uint64_t)shared;
	if (request->place)
		atomic_store_explicit(&request->place->holder, site, memory_order_relaxed);
	*held = (struct held){ lock, now, request->of_lock, of_site, 1, 0, 0, 0 };
	if (unlikely(self.gap_of == request->of_lock)) {
		int error = errno;
		held->sampled = 1;
		held->queue = queued_ns();
		held->cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		held->since = ticks(); /* excludes the time that sampling took */
		errno = error;
	}
	self.gap_of = NULL;
}

/* Called before a release. Returns the lock's record if a delay or sampling follows the release, otherwise NULL. */
static struct meter_record *releasing(void *lock)
{
	struct held *held = held_of(lock);
	if (!held || --held->depth)
		return NULL;
	struct meter_record *of_lock = held->of_lock, *of_site = held->of_site;
	int target = is_target(of_lock);
	if (unlikely(target && header->delay_in_ns)) {
		of_lock->injected += compute(header->delay_in_ns);
		of_lock->injections++;
	}
	uint64_t now = ticks(), hold = now - held->since;
	of_site->hold += hold;
	if (hold > of_site->hold_max)
		of_site->hold_max = hold;
	if (unlikely(held->sampled)) {
		int error = errno;
		of_lock->hold_cpu += clock_ns(CLOCK_THREAD_CPUTIME_ID) - held->cpu;
		of_lock->hold_queue += queued_ns() - held->queue;
		of_lock->hold_wall += hold;
		of_lock->samples++;
		errno = error;
	}
	of_lock->last = of_lock->released = now;
	self.held--;
	for (struct held *last = &self.stack[self.held]; held < last; held++)
		held[0] = held[1];
	return target ? of_lock : NULL;
}

/* Called after a release with the result of releasing(): delays this thread, and maybe begins to sample a cycle. */
static void released(struct meter_record *target)
{
	if (!target)
		return;
	if (header->delay_out_ns) {
		target->injected += compute(header->delay_out_ns);
		target->injections++;
	}
	/* Sampling is by the clock: triggering it by waits would bias samples towards cycles that follow a wait. */
	if (!self.gap_of && target->last - self.sampled_at >= ticks_of(header->sample_ns)) {
		int error = errno;
		self.sampled_at = target->last;
		self.gap_of = target;
		self.gap_queue = queued_ns();
		self.gap_cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		self.gap_from = ticks();
		if (header->delay_out_ns)
			self.gap_cpu -= header->delay_out_ns, self.gap_from -= ticks_of(header->delay_out_ns);
		errno = error;
	}
}

/* EOWNERDEAD: taken from a thread that ended while it held the lock. */
static int is_taken(int result)
{
	return result == 0 || result == EOWNERDEAD;
}

/* For a lock that this thread holds already: takes it once more, if the lock allows that, and returns. */
#define AGAIN_IF_HELD(lock, call)                                                                                              \
	do {                                                                                                                   \
		struct held *mine = self.held ? held_of(lock) : NULL;                                                          \
		if (mine) {                                                                                                    \
			int result = call;                                                                                     \
			if (is_taken(result))                                                                                  \
				mine->depth++;                                                                                 \
			return result;                                                                                         \
		}                                                                                                              \
	} while (0)

#define TAKE(lock, kind, shared, try, call)                                                                                    \
	do {                                                                                                                   \
		need_real();                                                                                                   \
		if (!is_metered())                                                                                             \
			return call;                                                                                           \
		AGAIN_IF_HELD(lock, call);                                                                                     \
		struct request request;                                                                                        \
		uint64_t site = SITE, from = 0, holder = 0;                                                                    \
		if (!begin(&request, (void *)(lock), site, kind))                                                              \
			return call;                                                                                           \
		int result = try;                                                                                              \
		if (result == EBUSY) {                                                                                         \
			holder = request.place ? atomic_load_explicit(&request.place->holder, memory_order_relaxed) : 0;       \
			from = request.at;                                                                                     \
			result = call;                                                                                         \
		}                                                                                                              \
		if (is_taken(result))                                                                                          \
			taken(&request, (void *)(lock), site, from, holder, shared);                                           \
		else                                                                                                           \
			request.of_site->rejected++;                                                                           \
		return result;                                                                                                 \
	} while (0)

#define TRY(lock, kind, shared, call)                                                                                          \
	do {                                                                                                                   \
		need_real();                                                                                                   \
		if (!is_metered())                                                                                             \
			return call;                                                                                           \
		AGAIN_IF_HELD(lock, call);                                                                                     \
		struct request request;                                                                                        \
		uint64_t site = SITE;                                                                                          \
		if (!begin(&request, (void *)(lock), site, kind))                                                              \
			return call;                                                                                           \
		int result = call;                                                                                             \
		if (is_taken(result))                                                                                          \
			taken(&request, (void *)(lock), site, 0, 0, shared);                                                   \
		else                                                                                                           \
			request.of_site->rejected++;                                                                           \
		return result;                                                                                                 \
	} while (0)

#define RELEASE(lock, call)                                                                                                    \
	do {                                                                                                                   \
		need_real();                                                                                                   \
		if (!is_metered())                                                                                             \
			return call;                                                                                           \
		struct meter_record *target = releasing((void *)(lock));                                                       \
		int result = call;                                                                                             \
		if (unlikely(target))                                                                                          \
			released(target);                                                                                      \
		return result;                                                                                                 \
	} while (0)

EXPORT int pthread_mutex_lock(pthread_mutex_t *lock)
{
	TAKE(lock, METER_MUTEX, 0, real.trylock(lock), real.lock(lock));
}

EXPORT int pthread_mutex_trylock(pthread_mutex_t *lock)
{
	TRY(lock, METER_MUTEX, 0, real.trylock(lock));
}

EXPORT int pthread_mutex_timedlock(pthread_mutex_t *lock, const struct timespec *until)
{
	TAKE(lock, METER_MUTEX, 0, real.trylock(lock), real.timedlock(lock, until));
}

EXPORT int pthread_mutex_clocklock(pthread_mutex_t *lock, clockid_t clock, const struct timespec *until)
{
	TAKE(lock, METER_MUTEX, 0, real.trylock(lock), real.clocklock(lock, clock, until));
}

EXPORT int pthread_mutex_unlock(pthread_mutex_t *lock)
{
	RELEASE(lock, real.unlock(lock));
}

EXPORT int pthread_rwlock_rdlock(pthread_rwlock_t *lock)
{
	TAKE(lock, METER_RWLOCK, 1, real.tryrdlock(lock), real.rdlock(lock));
}

EXPORT int pthread_rwlock_tryrdlock(pthread_rwlock_t *lock)
{
	TRY(lock, METER_RWLOCK, 1, real.tryrdlock(lock));
}

EXPORT int pthread_rwlock_wrlock(pthread_rwlock_t *lock)
{
	TAKE(lock, METER_RWLOCK, 0, real.trywrlock(lock), real.wrlock(lock));
}

EXPORT int pthread_rwlock_trywrlock(pthread_rwlock_t *lock)
{
	TRY(lock, METER_RWLOCK, 0, real.trywrlock(lock));
}

EXPORT int pthread_rwlock_unlock(pthread_rwlock_t *lock)
{
	RELEASE(lock, real.rwunlock(lock));
}

EXPORT int pthread_spin_lock(pthread_spinlock_t *lock)
{
	TAKE((void *)lock, METER_SPIN, 0, real.tryspin(lock), real.spin(lock));
}

EXPORT int pthread_spin_trylock(pthread_spinlock_t *lock)
{
	TRY((void *)lock, METER_SPIN, 0, real.tryspin(lock));
}

EXPORT int pthread_spin_unlock(pthread_spinlock_t *lock)
{
	RELEASE((void *)lock, real.unspin(lock));
}

/*
 * Waiting on a condition variable releases the lock and retakes it at the end. How long the retaking waits for the lock is
 * unknown, since that is part of the wait on the condition.
 */
#define WAIT(lock, call)                                                                                                       \
	do {                                                                                                                   \
		need_real();                                                                                                   \
		struct held *mine = is_metered() ? held_of(lock) : NULL;                                                       \
		if (!mine || mine->depth != 1)                                                                                 \
			return call;                                                                                           \
		struct request request = { lock, mine->of_site->site, 0, mine->of_lock, mine->of_site, NULL };                 \
		releasing(lock);                                                                                               \
		request.place = place_of(HERE(lock), request.of_site->site);                                                   \
		int result = call;                                                                                             \
		request.at = ticks();                                                                                          \
		end_gap(request.of_lock, request.at);                                                                          \
		taken(&request, lock, request.of_site->site, 0, 0, 0);                                                         \
		request.of_site->retaken++;                                                                                    \
		return result;                                                                                                 \
	} while (0)

EXPORT int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock)
{
	WAIT(lock, real.wait(condition, lock));
}

EXPORT int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *until)
{
	WAIT(lock, real.timedwait(condition, lock, until));
}

EXPORT int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *lock, clockid_t clock, const struct timespec *until)
{
	WAIT(lock, real.clockwait(condition, lock, clock, until));
}

__attribute__((constructor)) static void load(void)
{
	need_real();
	const char *path = NULL;
	extern char **environ;
	for (char **entry = environ; *entry; entry++)
		if (!strncmp(*entry, ENVIRONMENT "=", sizeof ENVIRONMENT))
			path = *entry + sizeof ENVIRONMENT;
	if (!path)
		return;
	int error = errno;
	int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
	if (file >= 0) {
		size_t bytes = METER_HEADER_BYTES + (size_t)METER_PROCESSES * METER_PROCESS_BYTES +
			       (size_t)METER_SLABS * METER_SLAB_BYTES;
		struct meter_header *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		syscall(SYS_close, file);
		if (found != MAP_FAILED && found->magic == METER_MAGIC) {
			has_key = !pthread_key_create(&key, end_thread);
			pthread_atfork(NULL, NULL, in_child);
			header = found;
			/* Must run while there is one thread: a second would find the table of mappings half filled. */
			enter_process();
		}
	}
	errno = error;
}
