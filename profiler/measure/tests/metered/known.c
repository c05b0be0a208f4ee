// SPDX-License-Identifier: MIT OR Apache-2.0
/* A program whose locks are taken a known number of times: `known CASE`. The test `locks` knows the numbers. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 1000 };

pthread_mutex_t counter_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
pthread_spinlock_t spinlock;
static int turn;

static void need(int holds)
{
	if (!holds)
		abort();
}

static void *count(void *rounds)
{
	for (long i = 0; i < (long)rounds; i++) {
		pthread_mutex_lock(&counter_lock);
		turn++;
		pthread_mutex_unlock(&counter_lock);
	}
	return NULL;
}

static void *once(void *unused)
{
	(void)unused;
	return count((void *)1);
}

static void all(void *(*run)(void *), void *argument, int threads)
{
	pthread_t started[THREADS];
	for (int i = 0; i < threads; i++)
		need(!pthread_create(&started[i], NULL, run, argument));
	for (int i = 0; i < threads; i++)
		need(!pthread_join(started[i], NULL));
}

static void *hold(void *unused)
{
	struct timespec time = { 0, 30000000 };
	pthread_mutex_lock(&counter_lock);
	nanosleep(&time, NULL);
	pthread_mutex_unlock(&counter_lock);
	return unused;
}

static void tries(void)
{
	pthread_t holder;
	struct timespec little = { 0, 10000000 }, until = { 1, 0 };
	need(!pthread_create(&holder, NULL, hold, NULL));
	nanosleep(&little, NULL);
	need(pthread_mutex_trylock(&counter_lock) == EBUSY);
	need(pthread_mutex_timedlock(&counter_lock, &until) == ETIMEDOUT);
	pthread_mutex_lock(&counter_lock); /* waits */
	pthread_mutex_unlock(&counter_lock);
	pthread_join(holder, NULL);
	need(pthread_mutex_trylock(&counter_lock) == 0);
	pthread_mutex_unlock(&counter_lock);
}

static void recursive(void)
{
	pthread_mutexattr_t kind;
	pthread_mutex_t *lock = malloc(sizeof *lock);
	pthread_mutexattr_init(&kind);
	pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(lock, &kind);
	for (int i = 0; i < 10; i++) {
		pthread_mutex_lock(lock);
		pthread_mutex_lock(lock);
		need(!pthread_mutex_trylock(lock));
		need(!pthread_mutex_unlock(lock) && !pthread_mutex_unlock(lock) && !pthread_mutex_unlock(lock));
		need(pthread_mutex_unlock(lock) == EPERM);
	}
	pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
	pthread_mutex_init(lock, &kind);
	pthread_mutex_lock(lock);
	need(pthread_mutex_lock(lock) == EDEADLK);
	pthread_mutex_unlock(lock);
}

static void *pong(void *unused)
{
	pthread_mutex_lock(&counter_lock);
	while (turn < 20) {
		while (turn % 2 == 0)
			pthread_cond_wait(&changed, &counter_lock);
		turn++;
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&counter_lock);
	return unused;
}

static void condition(void)
{
	pthread_t other;
	struct timespec past = { 1, 0 };
	pthread_create(&other, NULL, pong, NULL);
	pthread_mutex_lock(&counter_lock);
	need(pthread_cond_timedwait(&changed, &counter_lock, &past) == ETIMEDOUT || turn);
	while (turn < 20) {
		while (turn % 2 == 1)
			pthread_cond_wait(&changed, &counter_lock);
		turn++;
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&counter_lock);
	pthread_join(other, NULL);
}

static void others(void)
{
	pthread_spin_init(&spinlock, PTHREAD_PROCESS_PRIVATE);
	for (int i = 0; i < 7; i++) {
		pthread_rwlock_rdlock(&table_lock);
		pthread_rwlock_unlock(&table_lock);
		pthread_spin_lock(&spinlock);
		pthread_spin_unlock(&spinlock);
	}
	for (int i = 0; i < 3; i++) {
		pthread_rwlock_wrlock(&table_lock);
		need(pthread_rwlock_tryrdlock(&table_lock) != 0);
		pthread_rwlock_unlock(&table_lock);
	}
	need(pthread_rwlock_trywrlock(&table_lock) == 0);
	pthread_rwlock_unlock(&table_lock);
}

static void forks(int killed)
{
	pthread_mutex_lock(&counter_lock);
	pid_t child = fork();
	if (!child) {
		pthread_mutex_unlock(&counter_lock);
		count((void *)5);
		if (killed)
			kill(getpid(), SIGKILL);
		_exit(0);
	}
	pthread_mutex_unlock(&counter_lock);
	int status;
	need(waitpid(child, &status, 0) == child && (killed ? WIFSIGNALED(status) : !status));
	count((void *)2);
}

int main(int words, char **word)
{
	const char *name = words > 1 ? word[1] : "";
	if (!strcmp(name, "count"))
		all(count, (void *)ROUNDS, THREADS);
	else if (!strcmp(name, "tries"))
		tries();
	else if (!strcmp(name, "recursive"))
		recursive();
	else if (!strcmp(name, "condition"))
		condition();
	else if (!strcmp(name, "others"))
		others();
	else if (!strcmp(name, "fork"))
		forks(0);
	else if (!strcmp(name, "killed"))
		forks(1);
	else if (!strcmp(name, "threads"))
		for (int i = 0; i < 3000; i++)
			all(once, NULL, 1);
	else
		return 2;
	return 0;
}
