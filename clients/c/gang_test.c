/* Tests commonhold_gang.h against a daemon simulated by this program: run by crates/commonhold/tests/daemon/gangs.rs. With an
 * argument, it only prints the layout of the page.
 *
 * Compiled with -DCOUNTED it counts page faults, which every machine can, instead of cache misses; additionally with
 * -DCH__GANG_INHERIT_THREAD_BIT=63, as on a kernel that cannot count later threads automatically. Exit status: 0 passed,
 * 1 failed, 3 the kernel refuses counters. */
#define _GNU_SOURCE
#ifdef COUNTED
#include <linux/perf_event.h>
#define CH__GANG_EVENT_KIND PERF_TYPE_SOFTWARE
#define CH__GANG_EVENT PERF_COUNT_SW_PAGE_FAULTS
#endif
#define COMMONHOLD_GANG_IMPLEMENTATION
#include "commonhold_gang.h"

#include <fcntl.h>
#include <sys/wait.h>

static int failures;

static void expect(int holds, const char *what) {
	if (!holds) {
		printf("not so: %s\n", what);
		failures++;
	}
}

/* How the daemon handles the next client. */
enum plays { ANSWERS, REFUSES, FORGETS_THE_PAGE, SENDS_A_SHORT_ONE, SENDS_ANOTHER_VERSION, HANGS_UP };

static struct {
	char path[64];
	int listener;
	enum plays plays;
	ch_gang_page *page;
	int asked;
} daemon_side;

static void send_with(int to, const char *words, size_t length, int descriptor) {
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} beside;
	struct iovec from;
	struct msghdr message;
	memset(&message, 0, sizeof message);
	memset(&beside, 0, sizeof beside);
	from.iov_base = (void *)(uintptr_t)words;
	from.iov_len = length;
	message.msg_iov = &from;
	message.msg_iovlen = 1;
	if (descriptor >= 0) {
		message.msg_control = &beside;
		message.msg_controllen = sizeof beside;
		beside.header.cmsg_level = SOL_SOCKET;
		beside.header.cmsg_type = SCM_RIGHTS;
		beside.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&beside.header), &descriptor, sizeof descriptor);
	}
	if (sendmsg(to, &message, MSG_NOSIGNAL) != (ssize_t)length)
		exit(2);
}

#define SAYS(words, descriptor) send_with(to, words, sizeof words, descriptor)

static void *serve(void *none) {
	(void)none;
	for (;;) {
		char request[256];
		int to = accept(daemon_side.listener, NULL, NULL), page = memfd_create("page", MFD_CLOEXEC);
		enum plays plays = daemon_side.plays;
		if (to < 0 || page < 0)
			exit(2);
		if (recv(to, request, sizeof request, 0) < 0)
			exit(2);
		daemon_side.asked = strstr(request, "\"io.commonhold.Join\"") != NULL;
		if (ftruncate(page, plays == SENDS_A_SHORT_ONE ? 8 : 4096) != 0)
			exit(2);
		if (plays == ANSWERS || plays == SENDS_ANOTHER_VERSION) {
			daemon_side.page = (ch_gang_page *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
			daemon_side.page->version = plays == ANSWERS ? CH_GANG_VERSION : 999;
			daemon_side.page->every_ns = 2000000;
			daemon_side.page->looked_at_ns = ch__gang_now();
		}
		if (plays == REFUSES)
			SAYS("{\"error\":\"io.commonhold.NotAGang\",\"parameters\":{\"message\":\"no gangs here\"}}", -1);
		else if (plays != HANGS_UP)
			SAYS("{\"parameters\":{\"page_bytes\":4096}}", plays == FORGETS_THE_PAGE ? -1 : page);
		close(page);
		close(to);
	}
	return NULL;
}

static void nap(void) {
	struct timespec time = {0, 1000000};
	nanosleep(&time, NULL);
}

/* Waits until the page reports more than `bytes`; 0: it never does. */
static int has_more_than(uint64_t bytes) {
	int n;
	for (n = 0; n < 20000; n++, nap())
		if (__atomic_load_n(&daemon_side.page->bytes, __ATOMIC_ACQUIRE) > bytes)
			return 1;
	return 0;
}

static int descriptors(void) {
	int fd, count = 0;
	for (fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

/* The work of a thread: touches this many bytes. */
static void *work(void *bytes) {
	ch_gang_thread();
#ifdef COUNTED
	size_t length = *(size_t *)bytes, at;
	volatile char *pages = (volatile char *)mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		exit(2);
	for (at = 0; at < length; at += 4096)
		pages[at] = 1;
	munmap((void *)(uintptr_t)pages, length);
#else
	ch_transferred(*(size_t *)bytes);
#endif
	return NULL;
}

static void threads(void) {
	size_t each = 64 << 12, n;
	uint64_t before = daemon_side.page->bytes;
	pthread_t several[8];
	for (n = 0; n < 8; n++)
		if (pthread_create(&several[n], NULL, work, &each) != 0)
			exit(2);
	for (n = 0; n < 8; n++)
		pthread_join(several[n], NULL);
#ifdef COUNTED
	/* A fault counts as a miss: a line. */
	expect(has_more_than(before + 8 * 64 * ch__gang.line - 1), "threads that came and went are counted");
#else
	expect(has_more_than(before + 8 * each - 1), "what threads told is there");
#endif
}

static void forks(void) {
	uint64_t sequence, bytes;
	int status, went = 0;
	pid_t child = fork();
	if (child == 0) {
		size_t much = 1 << 24;
		char why[CH_GANG_WORDS];
		went = ch_gang_is_joined() || daemon_side.page == ch__gang.page;
		work(&much);
		/* Neither of these writes into a page that does not exist. */
		ch_gang_tell();
		ch_gang_leave();
		/* It may join for itself: with another page. */
		went |= ch_gang_join("/nowhere/socket", why) != CH_SYSTEM || !*why;
		_exit(went);
	}
	waitpid(child, &status, 0);
	expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child is not joined, and lives");
	ch_gang_tell();
	bytes = daemon_side.page->bytes;
	expect(bytes < UINT64_C(1) << 24, "what a child does is not its parent's");
	sequence = daemon_side.page->sequence;
	expect(sequence % 2 == 0, "nobody writes now, or it is luck");
}

static void refusals(void) {
	char why[CH_GANG_WORDS];
	int before = descriptors();
	daemon_side.plays = REFUSES;
	expect(ch_gang_join(daemon_side.path, why) == CH_REFUSED && strcmp(why, "no gangs here") == 0, why);
	daemon_side.plays = FORGETS_THE_PAGE;
	expect(ch_gang_join(daemon_side.path, why) == CH_NOT_UNDERSTOOD, "an answer without a page");
	daemon_side.plays = SENDS_A_SHORT_ONE;
	expect(ch_gang_join(daemon_side.path, why) == CH_NOT_UNDERSTOOD, "a page that is too short");
	daemon_side.plays = SENDS_ANOTHER_VERSION;
	expect(ch_gang_join(daemon_side.path, why) == CH_NOT_UNDERSTOOD, "a page of another version");
	daemon_side.plays = HANGS_UP;
	expect(ch_gang_join(daemon_side.path, why) != CH_OK && *why, "no answer");
	expect(ch_gang_join("/nowhere/socket", why) == CH_SYSTEM && strstr(why, "/nowhere/socket"), why);
	expect(ch_gang_join("/nowhere/socket", NULL) == CH_SYSTEM, "nobody wants to know why");
	expect(!ch_gang_is_joined(), "it has not joined");
	ch_gang_leave();
	ch_gang_tell();
	/* The daemon's end of a connection may be closed a moment later. */
	for (int n = 0; n < 5000 && descriptors() > before; n++)
		nap();
	expect(descriptors() <= before, "no descriptor is left open");
}

int main(int count, char **arguments) {
	struct sockaddr_un address;
	pthread_t server;
	char why[CH_GANG_WORDS];
	size_t some = 4096000;
	int times, waited;
	if (count > 1) {
		printf("%zu %zu %zu %zu %zu %zu %zu %zu %zu %llu %llu\n", sizeof(ch_gang_page), offsetof(ch_gang_page, version),
		       offsetof(ch_gang_page, every_ns), offsetof(ch_gang_page, looked_at_ns), offsetof(ch_gang_page, sequence),
		       offsetof(ch_gang_page, at_ns), offsetof(ch_gang_page, bytes), offsetof(ch_gang_page, writer),
		       offsetof(ch_gang_page, unmeasured), (unsigned long long)CH_GANG_VERSION,
		       (unsigned long long)CH_GANG_LEFT);
		return 0;
	}
	(void)arguments;
	snprintf(daemon_side.path, sizeof daemon_side.path, "/tmp/gang-test-%ld", (long)getpid());
	memset(&address, 0, sizeof address);
	address.sun_family = AF_UNIX;
	strcpy(address.sun_path, daemon_side.path);
	daemon_side.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	unlink(daemon_side.path);
	if (bind(daemon_side.listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(daemon_side.listener, 8) != 0 ||
	    pthread_create(&server, NULL, serve, NULL) != 0)
		return 2;
#ifdef COUNTED
	if (ch__gang_open(0, 0) < 0)
		return unlink(daemon_side.path), 3;
#endif
	refusals();
	for (times = 0; times < 2; times++) {
		daemon_side.plays = ANSWERS;
		expect(ch_gang_join(daemon_side.path, why) == CH_OK && ch_gang_is_joined() && daemon_side.asked, why);
		expect(ch_gang_join(daemon_side.path, why) == CH_OK, "it may join twice");
#ifndef COUNTED
		if (!ch_gang_is_counted()) {
			ch_gang_tell();
			expect(!ch_gang_is_measured() && daemon_side.page->unmeasured, "without counters or a word, it is unknown");
			ch_transferred(0);
			ch_gang_tell();
			expect(ch_gang_is_measured() && !daemon_side.page->unmeasured, "0 bytes are a word");
		}
#else
		expect(ch_gang_is_counted(), "it is counted");
		ch_gang_tell();
		expect(ch_gang_is_measured() && !daemon_side.page->unmeasured, "what is counted is known");
		ch_transferred(UINT64_C(1) << 40);
		ch_gang_tell();
		expect(daemon_side.page->bytes < UINT64_C(1) << 40, "what is told does not count beside what is counted");
#endif
		work(&some);
		expect(has_more_than(0), "its thread writes by itself");
		expect(daemon_side.page->at_ns <= ch__gang_now() && daemon_side.page->at_ns + 10000000000 > ch__gang_now(), "when it was so");
		for (waited = 0; waited < 20000 && __atomic_load_n(&daemon_side.page->writer, __ATOMIC_RELAXED) == 0; waited++)
			nap();
		expect(daemon_side.page->writer != 0 && daemon_side.page->writer != (uint64_t)getpid(), "which thread writes");
		threads();
		forks();
		/* A writer that ended in the middle of a write: the next one recovers. */
		pthread_mutex_lock(&ch__gang.lock);
		daemon_side.page->sequence = 7;
		ch__gang_put(ch__gang_now());
		expect(daemon_side.page->sequence == 8, "an odd number is made even");
		pthread_mutex_unlock(&ch__gang.lock);
		ch_gang_leave();
		expect(!ch_gang_is_joined() && daemon_side.page->at_ns == CH_GANG_LEFT, "it has left, and says so");
	}
	unlink(daemon_side.path);
	return failures != 0;
}
