/* Lets an unmodified program take part in gang scheduling (docs/gangs.md):
 *
 *     LD_PRELOAD=libcommonhold-gang.so ./program
 *
 * If a daemon is running, the process joins when it starts, and when it executes a dynamically linked program. Without a
 * daemon, or if the contract has no gangs, nothing happens, and nothing is printed. If the process joins and hardware counters
 * are unavailable, the process prints a warning on standard error: once, and not again in the programs that it executes.
 * COMMONHOLD_SOCKET names a socket other than /run/commonhold/socket. A forked process joins when it starts its first thread.
 *
 * The only interposed symbol is pthread_create, with which OpenMP starts its threads, too. */
#define _GNU_SOURCE
#define COMMONHOLD_GANG_IMPLEMENTATION
#include "commonhold_gang.h"

#include <dlfcn.h>

typedef int create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

/* A thread's function and argument. */
struct begin {
	void *(*run)(void *);
	void *argument;
};

static create *next_create;
/* The process that has tried to join: each process tries once. */
static pid_t tried;
/* Whether this thread is joining, so that pthread_create is called by the library for its writer thread. */
static __thread int is_joining;

/* The environment variable by which an executed program knows that the warning was already printed. */
#define SAID "COMMONHOLD_GANG_SAID"

/* Whether this process has printed the warning. */
static int has_warned;

/* Prints the warning if the process has joined without counters: the daemon then treats the process like one that has not
 * joined. */
static void warn_if_unmeasured(void) {
	int refused;
	pthread_mutex_lock(&ch__gang.lock);
	refused = ch__gang.joined ? ch__gang.refused : 0;
	pthread_mutex_unlock(&ch__gang.lock);
	if (!refused || has_warned || getenv(SAID))
		return;
	has_warned = 1;
	dprintf(STDERR_FILENO,
	        "commonhold-gang: process %ld cannot count what it transfers over the memory bus (perf_event_open: %s); the daemon "
	        "counts it if it can, and else takes `first-rate` for its job: see `commonhold doctor`\n",
	        (long)getpid(), strerror(refused));
}

/* Joins, unless this process has tried before. Keeps errno. */
static void join_once(void) {
	const char *path = getenv("COMMONHOLD_SOCKET");
	pid_t pid = getpid();
	int previous_errno = errno;
	if (__atomic_exchange_n(&tried, pid, __ATOMIC_ACQ_REL) != pid) {
		is_joining = 1;
		ch_gang_join(path && *path ? path : "/run/commonhold/socket", NULL);
		is_joining = 0;
		warn_if_unmeasured();
	}
	errno = previous_errno;
}

/* The C library's pthread_create; NULL: there is none. */
static create *real_create(void) {
	create *function = __atomic_load_n(&next_create, __ATOMIC_ACQUIRE);
	if (!function) {
		/* By memcpy, because ISO C has no cast from an object's address to a function's. */
		void *symbol = dlsym(RTLD_NEXT, "pthread_create");
		memcpy(&function, &symbol, sizeof function);
		__atomic_store_n(&next_create, function, __ATOMIC_RELEASE);
	}
	return function;
}

__attribute__((constructor)) static void begin(void) {
	if (real_create())
		join_once();
	/* Set here and not when warning later: at present no other thread reads the environment. */
	if (has_warned)
		setenv(SAID, "1", 1);
}

/* A thread's start routine: registers the thread, and then runs the program's function. */
static void *run(void *allocated) {
	struct begin copy = *(struct begin *)allocated;
	free(allocated);
	ch_gang_thread();
	return copy.run(copy.argument);
}

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                                          void *(*start)(void *), void *argument) {
	create *next = real_create();
	struct begin *allocated;
	int refused;
	if (!next)
		return EAGAIN;
	if (is_joining)
		return next(thread, attributes, start, argument);
	join_once();
	if (!ch_gang_is_joined())
		return next(thread, attributes, start, argument);
	allocated = (struct begin *)malloc(sizeof *allocated);
	if (!allocated)
		return EAGAIN;
	allocated->run = start;
	allocated->argument = argument;
	refused = next(thread, attributes, run, allocated);
	if (refused)
		free(allocated);
	return refused;
}
