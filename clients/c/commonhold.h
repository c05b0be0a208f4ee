/* A client of the daemon `commonhold run`: reads tickets, offers some for others, and waits until an offer is served. One
 * header, C99 and POSIX, no dependencies.
 *
 * In exactly one file of a program:
 *
 *     #define COMMONHOLD_IMPLEMENTATION
 *     #include "commonhold.h"
 *
 * and in others only the second line. In strict C99 mode (-std=c99), define `_POSIX_C_SOURCE` as 200809L before the first
 * header is included. Then:
 *
 *     ch_client client;
 *     char unit[CH_PATH_SIZE];
 *     ch_made made;
 *     ch_awaited awaited;
 *     ch_offer_terms terms = {.gives = "disk:30", .wants = "cpu:20", .while_connected = 1};
 *     if (ch_connect(&client, "/run/commonhold/socket") || ch_unit_of(&client, getpid(), unit, sizeof unit))
 *         fail(ch_message(&client));
 *     terms.unit = unit;
 *     // The offer, and the exchange that serves it, last until ch_close, or until the program ends.
 *     if (ch_offer(&client, &terms, &made) || ch_wait(&client, made.number, 10 * CH_SECOND, &awaited))
 *         fail(ch_message(&client));
 *     // ... the work ...
 *     ch_close(&client);
 *
 * Every function that can fail returns a `ch_error`, and CH_OK is 0. ch_message returns the message, and ch_error_name the
 * daemon's name of the error, such as io.commonhold.TooFewTickets.
 *
 * A client is one connection, with synchronous requests: several threads use a client each. The daemon authenticates a client
 * by the socket's peer credentials: the user of the process when it connected. A forked process that executes no other program
 * keeps its parent's connection open, and so the offers that end with the connection.
 *
 * Memory: ch_connect initialises a client, and ch_close frees what it owns, also after ch_connect failed. All results are
 * copied into the caller's structures; a text that does not fit is an error, and is never truncated. Only the results of
 * ch_call and ch_status remain owned by the client, until its next call. An answer is read up to CH_ANSWER_MAX bytes, and
 * validated as a whole before any part of it is used. */
#ifndef COMMONHOLD_H
#define COMMONHOLD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The size of a buffer for a unit's path, with its NUL. */
#define CH_PATH_SIZE 512
/* The size of a buffer for an amount such as `memory:2GiB`, with its NUL. */
#define CH_AMOUNT_SIZE 64
/* The size of a buffer for other names, with their NUL. */
#define CH_NAME_SIZE 64
/* The longest answer, in bytes. */
#ifndef CH_ANSWER_MAX
#define CH_ANSWER_MAX ((size_t)64 << 20)
#endif
/* The longest request, in bytes. */
#define CH_REQUEST_MAX ((size_t)32 << 10)
/* A second. All times are in nanoseconds. */
#define CH_SECOND INT64_C(1000000000)
/* No time limit. */
#define CH_FOREVER INT64_C(-1)

typedef enum {
	CH_OK = 0,
	/* The daemon refused the request: see ch_error_name. */
	CH_REFUSED,
	/* No daemon listens at the socket, or a system call failed. */
	CH_SYSTEM,
	/* The daemon does not answer in time. The connection is closed. */
	CH_TIMEOUT,
	/* The daemon closed the connection: it exited, or evicted the client for others. The offers that the client held have
	 * ended. */
	CH_HUNG_UP,
	/* The answer does not have the format of this version, or is too long. */
	CH_NOT_UNDERSTOOD,
	/* A text does not fit its buffer, or an argument is invalid. */
	CH_INVALID,
	/* Out of memory. */
	CH_NO_MEMORY
} ch_error;

typedef struct {
	int fd;
	/* The last answer, NUL-terminated, of `length` bytes. */
	char *answer;
	size_t length, room;
	/* Where to store a file descriptor that comes with an answer; NULL: such a descriptor is closed. */
	int *passed;
	char message[2048];
	char error_name[CH_NAME_SIZE];
} ch_client;

/* The terms of an offer. Optional fields that are 0 do not restrict the offer. */
typedef struct {
	const char *unit;  /* the path of the unit that offers */
	const char *gives; /* such as "disk:300" */
	const char *wants; /* such as "cpu:200" */
	const char *at_least; /* the minimum that the unit accepts of `wants`, for a proportional part of `gives`; 0: all */
	const char *with;  /* the only unit that may serve the offer; 0: any */
	int64_t for_ns;    /* the longest duration of an exchange; 0: until a call ends the exchange */
	int while_connected; /* the offer and its exchange end when this client disconnects, however the program ends */
} ch_offer_terms;

/* An offer that was made. */
typedef struct {
	uint64_t number;
	uint64_t exchange; /* the exchange that served the offer at once; 0: not served yet */
} ch_made;

typedef enum {
	CH_STANDS,    /* the offer waits to be served */
	CH_SERVED,    /* an exchange served the offer */
	CH_WITHDRAWN, /* the offer was withdrawn, or its unit is gone */
	CH_IN_FORCE,  /* the exchange is in force */
	CH_ENDED      /* the exchange has ended */
} ch_state;

/* The outcome of waiting for an offer or an exchange. */
typedef struct {
	uint64_t number;
	ch_state state;
	uint64_t exchange;      /* the exchange that served the offer; 0: not served */
	char why[CH_NAME_SIZE]; /* why the exchange ended: over, ended, gone or too-few */
} ch_awaited;

/* A unit's tickets of one resource. */
typedef struct {
	char unit[CH_PATH_SIZE];
	char resource[CH_NAME_SIZE]; /* cpu, memory, disk or bus */
	uint64_t contract;           /* the unit's tickets by the contract */
	uint64_t tickets;            /* the unit's tickets now */
	uint64_t lent, got;          /* tickets that the unit lends, and borrows, in exchanges */
	uint64_t entitled; /* the worth: millionths of a CPU, bytes of memory, or millionths of each disk or of the bus */
	int active;        /* whether the tickets count now */
} ch_tickets_row;

/* An open offer. */
typedef struct {
	uint64_t number;
	char unit[CH_PATH_SIZE];
	char gives[CH_AMOUNT_SIZE], wants[CH_AMOUNT_SIZE];
	char with[CH_PATH_SIZE]; /* empty: any unit */
	uint64_t for_ns;         /* 0: until a call ends the exchange */
} ch_standing;

/* Connects to the daemon's socket: /run/commonhold/socket for root's. */
ch_error ch_connect(ch_client *client, const char *socket_path);
/* Disconnects, and frees all memory of the client. Offers made with `while_connected` end. */
void ch_close(ch_client *client);
/* The error message of the last call; empty if it succeeded. */
const char *ch_message(const ch_client *client);
/* After CH_REFUSED, the daemon's name of the error; otherwise empty. */
const char *ch_error_name(const ch_client *client);

/* The path of the unit of a process; `shared` if it is in no other unit. */
ch_error ch_unit_of(ch_client *client, pid_t pid, char *unit, size_t size);
/* Makes an offer, which may be served at once. */
ch_error ch_offer(ch_client *client, const ch_offer_terms *terms, ch_made *made);
/* Waits until an offer is served or withdrawn, or an exchange has ended, but no longer than `at_most_ns` (CH_FOREVER: no limit).
 * If that time expires, the state is still CH_STANDS or CH_IN_FORCE. With 0, returns at once. */
ch_error ch_wait(ch_client *client, uint64_t number, int64_t at_most_ns, ch_awaited *awaited);
/* Withdraws an offer, or ends an exchange. */
ch_error ch_cancel(ch_client *client, uint64_t number);
/* Transfers tickets of a unit to a sibling, permanently. */
ch_error ch_transfer(ch_client *client, const char *from, const char *to, const char *resource, uint64_t tickets);
/* The first `room` rows of every unit's tickets, a row for each resource. `count` is the total number of rows. */
ch_error ch_tickets(ch_client *client, ch_tickets_row *rows, size_t room, size_t *count);
/* The first `room` open offers. `count` is the total number of open offers. */
ch_error ch_offers(ch_client *client, ch_standing *offers, size_t room, size_t *count);
/* All accounts, as JSON text, as `commonhold status --json` describes them. */
ch_error ch_status(ch_client *client, const char **json);
/* Makes any call. `parameters` is JSON text, and `json` receives the parameters of the answer, as JSON text. */
ch_error ch_call(ch_client *client, const char *method, const char *parameters, const char **json);

#ifdef __cplusplus
}
#endif
#endif /* COMMONHOLD_H */

#ifdef COMMONHOLD_IMPLEMENTATION
#ifndef COMMONHOLD_IMPLEMENTED
#define COMMONHOLD_IMPLEMENTED

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* Timeout of a request: a daemon answers within milliseconds, unless it is stopped or stuck. */
#define CH__PATIENCE_S 20
/* The deepest nesting of objects and arrays that an answer may have. */
#define CH__DEPTH_MAX 32

/* Stores an error's message, and returns the error. */
static ch_error ch__fail(ch_client *client, ch_error error, const char *what, const char *detail) {
	snprintf(client->message, sizeof client->message, "%s%s%s", what, *detail ? ": " : "", detail);
	return error;
}

/* ---- Reading JSON. Functions return 0 for malformed text, and read nothing beyond its end. ---- */

/* The part of a text that was not read yet. */
typedef struct {
	const char *at, *end;
} ch__json;

/* Skips white space. */
static void ch__space(ch__json *in) {
	while (in->at < in->end && (*in->at == ' ' || *in->at == '\t' || *in->at == '\n' || *in->at == '\r'))
		in->at++;
}

/* Consumes a character, if it is next. */
static int ch__sign(ch__json *in, char sign) {
	ch__space(in);
	if (in->at >= in->end || *in->at != sign)
		return 0;
	in->at++;
	return 1;
}

/* Consumes four hexadecimal digits. */
static int ch__hex4(ch__json *in, unsigned *code) {
	int n;
	*code = 0;
	for (n = 0; n < 4; n++, in->at++) {
		char c = in->at < in->end ? *in->at : 0;
		unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
		                 : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
		                 : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A') + 10
		                                        : 16;
		if (digit == 16)
			return 0;
		*code = *code << 4 | digit;
	}
	return 1;
}

/* Consumes a string. Unless `out` is NULL, copies the string, with a NUL, to the `size` bytes there. 0: not a string, or the
 * string has a NUL, or does not fit. */
static int ch__string(ch__json *in, char *out, size_t size) {
	size_t length = 0;
	if (!ch__sign(in, '"'))
		return 0;
	while (in->at < in->end && *in->at != '"') {
		unsigned char c = (unsigned char)*in->at++;
		char bytes[4];
		size_t n = 1, k;
		if (c < 0x20)
			return 0;
		bytes[0] = (char)c;
		if (c == '\\') {
			static const char escapes[] = "\"\\/bfnrt", characters[] = "\"\\/\b\f\n\r\t";
			const char *known;
			char escape = in->at < in->end ? *in->at++ : 0;
			if (escape == 'u') {
				unsigned code, low;
				if (!ch__hex4(in, &code) || code == 0 || (code >= 0xdc00 && code < 0xe000))
					return 0;
				/* Two UTF-16 surrogates are one character. */
				if (code >= 0xd800 && code < 0xdc00) {
					if (in->end - in->at < 2 || in->at[0] != '\\' || in->at[1] != 'u')
						return 0;
					in->at += 2;
					if (!ch__hex4(in, &low) || low < 0xdc00 || low >= 0xe000)
						return 0;
					code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
				}
				/* To UTF-8, of `n` bytes. */
				n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
				if (n == 1) {
					bytes[0] = (char)code;
				} else {
					for (k = n - 1; k > 0; k--, code >>= 6)
						bytes[k] = (char)(0x80 | (code & 0x3f));
					bytes[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | code);
				}
			} else {
				known = escape ? strchr(escapes, escape) : NULL;
				if (!known)
					return 0;
				bytes[0] = characters[known - escapes];
			}
		}
		if (out) {
			if (size == 0 || n >= size - length)
				return 0;
			memcpy(out + length, bytes, n);
			length += n;
		}
	}
	if (in->at >= in->end)
		return 0;
	in->at++;
	if (out) {
		if (size == 0)
			return 0;
		out[length] = 0;
	}
	return 1;
}

/* Consumes digits, at least one. */
static int ch__digits(ch__json *in) {
	const char *begin = in->at;
	while (in->at < in->end && *in->at >= '0' && *in->at <= '9')
		in->at++;
	return in->at > begin;
}

/* Consumes a number. */
static int ch__number(ch__json *in) {
	if (in->at < in->end && *in->at == '-')
		in->at++;
	if (in->at < in->end && *in->at == '0')
		in->at++;
	else if (!ch__digits(in))
		return 0;
	if (in->at < in->end && *in->at == '.') {
		in->at++;
		if (!ch__digits(in))
			return 0;
	}
	if (in->at < in->end && (*in->at == 'e' || *in->at == 'E')) {
		in->at++;
		if (in->at < in->end && (*in->at == '+' || *in->at == '-'))
			in->at++;
		if (!ch__digits(in))
			return 0;
	}
	return 1;
}

/* Consumes a word, such as `true`, if it is next. */
static int ch__word(ch__json *in, const char *word) {
	size_t length = strlen(word);
	ch__space(in);
	if ((size_t)(in->end - in->at) < length || memcmp(in->at, word, length) != 0)
		return 0;
	in->at += length;
	return 1;
}

/* Consumes a value. 0: malformed, or nested too deeply. */
static int ch__value(ch__json *in, int depth) {
	char open, close;
	ch__space(in);
	if (in->at >= in->end || depth > CH__DEPTH_MAX)
		return 0;
	open = *in->at;
	if (open == '"')
		return ch__string(in, NULL, 0);
	if (open == '-' || (open >= '0' && open <= '9'))
		return ch__number(in);
	if (open != '{' && open != '[')
		return ch__word(in, "true") || ch__word(in, "false") || ch__word(in, "null");
	close = open == '{' ? '}' : ']';
	in->at++;
	if (ch__sign(in, close))
		return 1;
	do {
		if (open == '{' && (!ch__string(in, NULL, 0) || !ch__sign(in, ':')))
			return 0;
		if (!ch__value(in, depth + 1))
			return 0;
	} while (ch__sign(in, ','));
	return ch__sign(in, close);
}

/* Whether a whole text is one JSON value. */
static int ch__is_json(const char *text, size_t length) {
	ch__json in = {text, text + length};
	if (!ch__value(&in, 0))
		return 0;
	ch__space(&in);
	return in.at == in.end;
}

/* Finds the value of a key of an object, in text that ch__is_json accepted. 0: no such key. */
static int ch__key(ch__json object, const char *key, ch__json *value) {
	char name[CH_NAME_SIZE];
	if (!ch__sign(&object, '{'))
		return 0;
	do {
		ch__json name_text = object;
		/* A name that does not fit is not the key. */
		int fits = ch__string(&name_text, name, sizeof name);
		if (!ch__string(&object, NULL, 0) || !ch__sign(&object, ':'))
			return 0;
		ch__space(&object);
		value->at = object.at;
		if (!ch__value(&object, 0))
			return 0;
		value->end = object.at;
		if (fits && strcmp(name, key) == 0)
			return 1;
	} while (ch__sign(&object, ','));
	return 0;
}

/* Finds the next element of an array. `in` starts at the array's bracket, and advances behind each element. 0: the array has
 * ended. */
static int ch__next(ch__json *in, ch__json *element) {
	if (!ch__sign(in, '[') && !ch__sign(in, ','))
		return 0;
	ch__space(in);
	element->at = in->at;
	if (!ch__value(in, 0))
		return 0;
	element->end = in->at;
	return 1;
}

/* Converts the text of a value to a whole number. 0: the text is no whole number, or exceeds 64 bits. */
static int ch__u64(ch__json value, uint64_t *out) {
	uint64_t number = 0;
	if (value.at >= value.end)
		return 0;
	for (; value.at < value.end; value.at++) {
		unsigned digit = (unsigned)(unsigned char)*value.at - '0';
		if (digit > 9 || number > (UINT64_MAX - digit) / 10)
			return 0;
		number = number * 10 + digit;
	}
	*out = number;
	return 1;
}

/* The whole number at a key of an object. 0: no such key, or no such number. */
static int ch__key_u64(ch__json object, const char *key, uint64_t *out) {
	ch__json value;
	return ch__key(object, key, &value) && ch__u64(value, out);
}

/* As ch__key_u64, but a missing key, or null, is the number 0 and no error. */
static int ch__maybe_u64(ch__json object, const char *key, uint64_t *out) {
	ch__json value;
	*out = 0;
	return !ch__key(object, key, &value) || ch__word(&value, "null") || ch__u64(value, out);
}

/* The string at a key of an object. 0: no such key, or no such string, or it does not fit. */
static int ch__key_string(ch__json object, const char *key, char *out, size_t size) {
	ch__json value;
	return ch__key(object, key, &value) && ch__string(&value, out, size);
}

/* As ch__key_string, but a missing key, or null, is an empty string and no error. */
static int ch__maybe_string(ch__json object, const char *key, char *out, size_t size) {
	ch__json value;
	*out = 0;
	return !ch__key(object, key, &value) || ch__word(&value, "null") || ch__string(&value, out, size);
}

/* ---- Writing JSON: into CH_REQUEST_MAX bytes. On overflow, `fits` becomes 0. ---- */

typedef struct {
	char bytes[CH_REQUEST_MAX];
	size_t length;
	int fits;
} ch__text;

/* Appends a text as it is. */
static void ch__add(ch__text *text, const char *bytes) {
	size_t length = strlen(bytes);
	text->fits = text->fits && length < sizeof text->bytes - text->length;
	if (text->fits) {
		memcpy(text->bytes + text->length, bytes, length + 1);
		text->length += length;
	}
}

/* Appends a string in quotes, with escapes. */
static void ch__add_string(ch__text *text, const char *string) {
	char one[8];
	ch__add(text, "\"");
	for (; *string; string++) {
		unsigned char c = (unsigned char)*string;
		if (c == '"' || c == '\\')
			snprintf(one, sizeof one, "\\%c", c);
		else if (c < 0x20)
			snprintf(one, sizeof one, "\\u%04x", c);
		else
			snprintf(one, sizeof one, "%c", c);
		ch__add(text, one);
	}
	ch__add(text, "\"");
}

/* Appends a key of an object, behind `{` if it is the first key. */
static void ch__add_key(ch__text *text, const char *key) {
	ch__add(text, text->length > 0 ? "," : "{");
	ch__add_string(text, key);
	ch__add(text, ":");
}

/* Appends a key with a string. */
static void ch__add_text(ch__text *text, const char *key, const char *string) {
	ch__add_key(text, key);
	ch__add_string(text, string);
}

/* Appends a key with a number. */
static void ch__add_u64(ch__text *text, const char *key, uint64_t number) {
	char digits[24];
	snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
	ch__add_key(text, key);
	ch__add(text, digits);
}

/* ---- The connection ---- */

ch_error ch_connect(ch_client *client, const char *socket_path) {
	struct sockaddr_un address;
	int connected;
	memset(client, 0, sizeof *client);
	memset(&address, 0, sizeof address);
	client->fd = -1;
	address.sun_family = AF_UNIX;
	if (strlen(socket_path) >= sizeof address.sun_path)
		return ch__fail(client, CH_INVALID, socket_path, "too long for a socket");
	memcpy(address.sun_path, socket_path, strlen(socket_path));
	/* Close-on-exec: an inherited connection would keep the offers alive when this program ends. */
	client->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (client->fd < 0)
		return ch__fail(client, CH_SYSTEM, "cannot open a socket", strerror(errno));
	do
		connected = connect(client->fd, (const struct sockaddr *)&address, sizeof address);
	while (connected != 0 && errno == EINTR);
	if (connected != 0) {
		ch__fail(client, CH_SYSTEM, socket_path, strerror(errno));
		close(client->fd);
		client->fd = -1;
		return CH_SYSTEM;
	}
	return CH_OK;
}

void ch_close(ch_client *client) {
	if (client->fd >= 0)
		close(client->fd);
	free(client->answer);
	client->fd = -1;
	client->answer = NULL;
	client->length = client->room = 0;
}

const char *ch_message(const ch_client *client) {
	return client->message;
}

const char *ch_error_name(const ch_client *client) {
	return client->error_name;
}

/* Closes the connection after an error: a late answer would be taken for the answer to the next request. */
static ch_error ch__lost(ch_client *client, ch_error error, const char *what, const char *detail) {
	close(client->fd);
	client->fd = -1;
	return ch__fail(client, error, what, detail);
}

/* Closes the connection after a failed system call, by its errno. */
static ch_error ch__lost_by(ch_client *client, int error) {
	if (error == EAGAIN || error == EWOULDBLOCK)
		return ch__lost(client, CH_TIMEOUT, "the daemon does not answer in time", "");
	if (error == EPIPE || error == ECONNRESET)
		return ch__lost(client, CH_HUNG_UP, "the daemon hung up", "");
	return ch__lost(client, CH_SYSTEM, "the daemon cannot be reached", strerror(error));
}

/* Sends all bytes. */
static ch_error ch__send(ch_client *client, const char *bytes, size_t length) {
	while (length > 0) {
		ssize_t sent = send(client->fd, bytes, length, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return ch__lost_by(client, errno);
		bytes += sent;
		length -= (size_t)sent;
	}
	return CH_OK;
}

/* As recv, but also stores a descriptor that comes with the bytes in `passed`, unless that is NULL. */
static ssize_t ch__recv(ch_client *client, char *bytes, size_t length) {
	union {
		struct cmsghdr header;
		char room[64];
	} ancillary;
	struct iovec to;
	struct msghdr message;
	struct cmsghdr *at;
	ssize_t n;
	if (!client->passed)
		return recv(client->fd, bytes, length, 0);
	memset(&message, 0, sizeof message);
	memset(&ancillary, 0, sizeof ancillary);
	to.iov_base = bytes;
	to.iov_len = length;
	message.msg_iov = &to;
	message.msg_iovlen = 1;
	message.msg_control = &ancillary;
	message.msg_controllen = sizeof ancillary;
	n = recvmsg(client->fd, &message, MSG_CMSG_CLOEXEC);
	for (at = n < 0 ? NULL : CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
		size_t index;
		if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
			continue;
		for (index = 0; CMSG_LEN((index + 1) * sizeof(int)) <= at->cmsg_len; index++) {
			int descriptor;
			memcpy(&descriptor, CMSG_DATA(at) + index * sizeof(int), sizeof descriptor);
			/* Only the last descriptor is kept. */
			if (*client->passed >= 0)
				close(*client->passed);
			*client->passed = descriptor;
		}
	}
	return n;
}

/* Reads one answer, up to its NUL: the daemon sends exactly one for each request. */
static ch_error ch__receive(ch_client *client) {
	client->length = 0;
	for (;;) {
		ssize_t n;
		char *end;
		if (client->room - client->length < 2) {
			size_t room = client->room ? client->room * 2 : 4096;
			char *larger = room > CH_ANSWER_MAX * 2 ? NULL : (char *)realloc(client->answer, room);
			if (!larger)
				return ch__lost(client, CH_NO_MEMORY, "the daemon's answer is too long", "");
			client->answer = larger;
			client->room = room;
		}
		n = ch__recv(client, client->answer + client->length, client->room - client->length - 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ch__lost_by(client, errno);
		if (n == 0)
			return ch__lost(client, CH_HUNG_UP, "the daemon hung up", "");
		end = (char *)memchr(client->answer + client->length, 0, (size_t)n);
		client->length += (size_t)n;
		if (end && end == client->answer + client->length - 1) {
			client->length--;
			return CH_OK;
		}
		if (end || client->length > CH_ANSWER_MAX)
			return ch__lost(client, CH_NOT_UNDERSTOOD, "the daemon's answer is too long", "");
	}
}

/* Sets a timeout of the socket: SO_SNDTIMEO or SO_RCVTIMEO. A negative time is no timeout. */
static ch_error ch__patience(ch_client *client, int option, int64_t ns) {
	struct timeval time;
	time.tv_sec = ns < 0 ? 0 : (time_t)(ns / CH_SECOND);
	time.tv_usec = ns < 0 ? 0 : (suseconds_t)(ns % CH_SECOND / 1000);
	if (setsockopt(client->fd, SOL_SOCKET, option, &time, sizeof time) != 0)
		return ch__fail(client, CH_SYSTEM, "cannot set a time for the daemon's answer", strerror(errno));
	return CH_OK;
}

/* Sends a call, and returns the parameters of its answer. `patience_ns` is the timeout of the answer. */
static ch_error ch__ask(ch_client *client, const char *method, const char *parameters, int64_t patience_ns, ch__json *answer) {
	ch__json whole, name;
	ch__text text;
	ch_error error;
	client->message[0] = client->error_name[0] = 0;
	if (client->fd < 0)
		return ch__fail(client, CH_HUNG_UP, "this client is not connected", "");
	text.length = 0;
	text.fits = 1;
	ch__add_text(&text, "method", method);
	ch__add_key(&text, "parameters");
	ch__add(&text, parameters);
	ch__add(&text, "}");
	if (!text.fits)
		return ch__fail(client, CH_INVALID, "the request is too long", "");
	if ((error = ch__patience(client, SO_SNDTIMEO, CH__PATIENCE_S * CH_SECOND)) != CH_OK ||
	    (error = ch__patience(client, SO_RCVTIMEO, patience_ns)) != CH_OK ||
	    (error = ch__send(client, text.bytes, text.length + 1)) != CH_OK || (error = ch__receive(client)) != CH_OK)
		return error;
	client->answer[client->length] = 0;
	whole.at = client->answer;
	whole.end = client->answer + client->length;
	if (!ch__is_json(client->answer, client->length))
		return ch__fail(client, CH_NOT_UNDERSTOOD, "the daemon's answer is no JSON", "");
	if (ch__key(whole, "error", &name)) {
		ch__json words;
		if (!ch__string(&name, client->error_name, sizeof client->error_name))
			return ch__fail(client, CH_NOT_UNDERSTOOD, "the daemon's answer has an error without a name", "");
		if (!ch__key(whole, "parameters", &words) ||
		    (!ch__key_string(words, "message", client->message, sizeof client->message) &&
		     !ch__key_string(words, "parameter", client->message, sizeof client->message)))
			return ch__fail(client, CH_REFUSED, client->error_name, "");
		return CH_REFUSED;
	}
	if (!ch__key(whole, "parameters", answer) || *answer->at != '{')
		return ch__fail(client, CH_NOT_UNDERSTOOD, "the daemon's answer has no parameters", "");
	return CH_OK;
}

/* The error for an answer that lacks a key, or has a value that does not fit. */
static ch_error ch__not_understood(ch_client *client) {
	return ch__fail(client, CH_NOT_UNDERSTOOD, "the daemon's answer lacks a value, or a value is too long", "");
}

/* ---- Calls ---- */

#define CH__PATIENCE (CH__PATIENCE_S * CH_SECOND)

/* Completes the parameters in `text`, and sends the call. */
static ch_error ch__ask_text(ch_client *client, const char *method, ch__text *text, int64_t patience_ns, ch__json *answer) {
	ch__add(text, "}");
	if (!text->fits)
		return ch__fail(client, CH_INVALID, "the request is too long", "");
	return ch__ask(client, method, text->bytes, patience_ns, answer);
}

/* Begins the parameters of a call. */
static void ch__begin(ch__text *text) {
	text->length = 0;
	text->fits = 1;
}

ch_error ch_call(ch_client *client, const char *method, const char *parameters, const char **json) {
	ch__json answer;
	ch_error error;
	if (!ch__is_json(parameters, strlen(parameters)))
		return ch__fail(client, CH_INVALID, "the parameters are no JSON", "");
	error = ch__ask(client, method, parameters, CH__PATIENCE, &answer);
	if (error == CH_OK) {
		/* Only the end of the answer follows the parameters. */
		client->answer[answer.end - client->answer] = 0;
		*json = answer.at;
	}
	return error;
}

ch_error ch_status(ch_client *client, const char **json) {
	return ch_call(client, "io.commonhold.Status", "{}", json);
}

ch_error ch_unit_of(ch_client *client, pid_t pid, char *unit, size_t size) {
	ch__json answer;
	ch__text text;
	ch_error error;
	if (pid <= 0)
		return ch__fail(client, CH_INVALID, "no process has such a number", "");
	ch__begin(&text);
	ch__add_u64(&text, "pid", (uint64_t)pid);
	error = ch__ask_text(client, "io.commonhold.Where", &text, CH__PATIENCE, &answer);
	if (error == CH_OK && !ch__key_string(answer, "unit", unit, size))
		return ch__not_understood(client);
	return error;
}

ch_error ch_offer(ch_client *client, const ch_offer_terms *terms, ch_made *made) {
	ch__json answer;
	ch__text text;
	ch_error error;
	if (!terms->unit || !terms->gives || !terms->wants || terms->for_ns < 0)
		return ch__fail(client, CH_INVALID, "an offer has a unit, what it gives, and what it wants", "");
	ch__begin(&text);
	ch__add_text(&text, "kind", "offer");
	ch__add_text(&text, "unit", terms->unit);
	ch__add_text(&text, "gives", terms->gives);
	ch__add_text(&text, "wants", terms->wants);
	if (terms->at_least)
		ch__add_text(&text, "at_least", terms->at_least);
	if (terms->with)
		ch__add_text(&text, "with", terms->with);
	if (terms->for_ns > 0)
		ch__add_u64(&text, "for_ns", (uint64_t)terms->for_ns);
	if (terms->while_connected) {
		ch__add_key(&text, "while_connected");
		ch__add(&text, "true");
	}
	error = ch__ask_text(client, "io.commonhold.Change", &text, CH__PATIENCE, &answer);
	if (error == CH_OK && (!ch__key_u64(answer, "offer", &made->number) || !ch__maybe_u64(answer, "exchange", &made->exchange)))
		return ch__not_understood(client);
	return error;
}

ch_error ch_wait(ch_client *client, uint64_t number, int64_t at_most_ns, ch_awaited *awaited) {
	static const char *const states[] = {"stands", "served", "withdrawn", "in-force", "ended"};
	ch__json answer;
	ch__text text;
	ch_error error;
	char state[CH_NAME_SIZE];
	int64_t patience = CH_FOREVER;
	int n;
	ch__begin(&text);
	ch__add_u64(&text, "number", number);
	if (at_most_ns >= 0) {
		ch__add_u64(&text, "at_most_ns", (uint64_t)at_most_ns);
		/* The daemon answers when `at_most_ns` has expired, so the socket's timeout is longer. */
		patience = at_most_ns > INT64_MAX - CH__PATIENCE ? CH_FOREVER : at_most_ns + CH__PATIENCE;
	}
	error = ch__ask_text(client, "io.commonhold.Await", &text, patience, &answer);
	if (error != CH_OK)
		return error;
	awaited->number = number;
	if (!ch__key_string(answer, "state", state, sizeof state) || !ch__maybe_u64(answer, "exchange", &awaited->exchange) ||
	    !ch__maybe_string(answer, "why", awaited->why, sizeof awaited->why))
		return ch__not_understood(client);
	for (n = 0; n < 5 && strcmp(states[n], state) != 0; n++)
		;
	if (n == 5)
		return ch__not_understood(client);
	awaited->state = (ch_state)n;
	return CH_OK;
}

ch_error ch_cancel(ch_client *client, uint64_t number) {
	ch__json answer;
	ch__text text;
	ch__begin(&text);
	ch__add_text(&text, "kind", "cancel");
	ch__add_u64(&text, "number", number);
	return ch__ask_text(client, "io.commonhold.Change", &text, CH__PATIENCE, &answer);
}

ch_error ch_transfer(ch_client *client, const char *from, const char *to, const char *resource, uint64_t tickets) {
	ch__json answer;
	ch__text text;
	ch__begin(&text);
	ch__add_text(&text, "kind", "transfer");
	ch__add_text(&text, "from", from);
	ch__add_text(&text, "to", to);
	ch__add_text(&text, "resource", resource);
	ch__add_u64(&text, "tickets", tickets);
	return ch__ask_text(client, "io.commonhold.Change", &text, CH__PATIENCE, &answer);
}

ch_error ch_tickets(ch_client *client, ch_tickets_row *rows, size_t room, size_t *count) {
	ch__json answer, all, one, value;
	ch_error error = ch__ask(client, "io.commonhold.Tickets", "{}", CH__PATIENCE, &answer);
	if (error != CH_OK)
		return error;
	if (!ch__key(answer, "tickets", &all) || *all.at != '[')
		return ch__not_understood(client);
	for (*count = 0; ch__next(&all, &one); ++*count) {
		ch_tickets_row *row = rows + *count;
		if (*count >= room)
			continue;
		if (!ch__key_string(one, "unit", row->unit, sizeof row->unit) ||
		    !ch__key_string(one, "resource", row->resource, sizeof row->resource) ||
		    !ch__key_u64(one, "contract", &row->contract) || !ch__key_u64(one, "tickets", &row->tickets) ||
		    !ch__maybe_u64(one, "lent", &row->lent) || !ch__maybe_u64(one, "got", &row->got) ||
		    !ch__key_u64(one, "entitled", &row->entitled) || !ch__key(one, "active", &value))
			return ch__not_understood(client);
		row->active = ch__word(&value, "true");
	}
	return CH_OK;
}

ch_error ch_offers(ch_client *client, ch_standing *offers, size_t room, size_t *count) {
	ch__json answer, all, one;
	ch_error error = ch__ask(client, "io.commonhold.Offers", "{}", CH__PATIENCE, &answer);
	if (error != CH_OK)
		return error;
	if (!ch__key(answer, "offers", &all) || *all.at != '[')
		return ch__not_understood(client);
	for (*count = 0; ch__next(&all, &one); ++*count) {
		ch_standing *offer = offers + *count;
		if (*count >= room)
			continue;
		if (!ch__key_u64(one, "number", &offer->number) || !ch__key_string(one, "unit", offer->unit, sizeof offer->unit) ||
		    !ch__key_string(one, "gives", offer->gives, sizeof offer->gives) ||
		    !ch__key_string(one, "wants", offer->wants, sizeof offer->wants) ||
		    !ch__maybe_string(one, "with", offer->with, sizeof offer->with) ||
		    !ch__maybe_u64(one, "for_ns", &offer->for_ns))
			return ch__not_understood(client);
	}
	return CH_OK;
}

#endif /* COMMONHOLD_IMPLEMENTED */
#endif /* COMMONHOLD_IMPLEMENTATION */
