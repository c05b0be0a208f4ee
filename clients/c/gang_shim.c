/* Lets an unmodified program join the choice of gangs (docs/gangs.md):
 *
 *     LD_PRELOAD=libcommonhold-gang.so ./program
 *
 * If a daemon is running, the process joins when it starts, and when it executes a dynamically linked program. Without a
 * daemon, or if that has no gangs, nothing happens, and nothing is printed. If it joins, and hardware counters are unavailable,
 * it prints a warning on standard error: once, and not again in the programs that it executes. COMMONHOLD_SOCKET names a socket
 * other than /run/commonhold/socket. A forked process joins when it starts its first thread.
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
/* The process that joined, or tried to: it tries once. */
static pid_t tried;
/* This thread is starting the library's thread. */
static __thread int within;

/* In the environment of executed programs: the warning was already printed. */
#define SAID "COMMONHOLD_GANG_SAID"

static int has_said;

/* Warns that the transfers are unknown: the daemon then treats the process like one that has not joined. */
static void say_unmeasured(void) {
	int refused;
	pthread_mutex_lock(&ch__gang.lock);
	refused = ch__gang.joined ? ch__gang.refused : 0;
	pthread_mutex_unlock(&ch__gang.lock);
	if (!refused || has_said || getenv(SAID))
		return;
	has_said = 1;
	dprintf(STDERR_FILENO,
	        "commonhold-gang: process %ld cannot count what it transfers over the memory bus (perf_event_open: %s); the daemon "
	        "counts it if it can, and else takes `first-rate` for its job: see `commonhold doctor`\n",
	        (long)getpid(), strerror(refused));
}

static void join_once(void) {
	const char *path = getenv("COMMONHOLD_SOCKET");
	pid_t pid = getpid();
	int kept = errno;
	if (__atomic_exchange_n(&tried, pid, __ATOMIC_ACQ_REL) != pid) {
		within = 1;
		ch_gang_join(path && *path ? path : "/run/commonhold/socket", NULL);
		within = 0;
		say_unmeasured();
	}
	errno = kept;
}

static create *found(void) {
	create *at = __atomic_load_n(&next_create, __ATOMIC_ACQUIRE);
	if (!at) {
		/* ISO C has no cast from an object's address to a function's. */
		void *symbol = dlsym(RTLD_NEXT, "pthread_create");
		memcpy(&at, &symbol, sizeof at);
		__atomic_store_n(&next_create, at, __ATOMIC_RELEASE);
	}
	return at;
}

__attribute__((constructor)) static void begin(void) {
	if (found())
		join_once();
	/* Only here: no other thread reads the environment yet. */
	if (has_said)
		setenv(SAID, "1", 1);
}

static void *run(void *given) {
	struct begin what = *(struct begin *)given;
	free(given);
	ch_gang_thread();
	return what.run(what.argument);
}

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                                          void *(*start)(void *), void *argument) {
	create *next = found();
	struct begin *what;
	int refused;
	if (!next)
		return EAGAIN;
	if (within)
		return next(thread, attributes, start, argument);
	join_once();
	if (!ch_gang_is_joined())
		return next(thread, attributes, start, argument);
	what = (struct begin *)malloc(sizeof *what);
	if (!what)
		return EAGAIN;
	what->run = start;
	what->argument = argument;
	refused = next(thread, attributes, run, what);
	if (refused)
		free(what);
	return refused;
}
