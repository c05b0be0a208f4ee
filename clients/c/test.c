/* Tests how commonhold.h reads and writes JSON: run by crates/commonhold/tests/daemon/programs.rs, with an address sanitizer if
 * the compiler has one. */
#define _POSIX_C_SOURCE 200809L
#define COMMONHOLD_IMPLEMENTATION
#include "commonhold.h"

static int failures;

static void expect(int holds, const char *what) {
	if (!holds) {
		printf("not so: %s\n", what);
		failures++;
	}
}

/* A copy without a NUL, so that any read behind its end is out of bounds. */
static int is_json(const char *text, size_t length) {
	char *copy = (char *)malloc(length + !length);
	int found;
	if (!copy)
		exit(2);
	memcpy(copy, text, length);
	found = ch__is_json(copy, length);
	free(copy);
	return found;
}

static ch__json json(const char *text) {
	ch__json all;
	all.at = text;
	all.end = text + strlen(text);
	return all;
}

/* A client of a daemon that has already answered, with these bytes, and disconnected. */
static ch_error waited(const char *answer, size_t length, ch_client *client, ch_awaited *what) {
	int ends[2];
	ch_error found;
	memset(client, 0, sizeof *client);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || send(ends[1], answer, length, 0) != (ssize_t)length)
		exit(2);
	shutdown(ends[1], SHUT_WR);
	client->fd = ends[0];
	found = ch_wait(client, 1, CH_SECOND, what);
	close(ends[1]);
	ch_close(client);
	return found;
}

#define WAITED(answer) waited(answer, sizeof answer - 1, &client, &what)

static void answers(void) {
	static ch_client client;
	ch_awaited what;
	expect(WAITED("{\"parameters\":{\"number\":1,\"state\":\"served\",\"exchange\":7,\"new\":[]}}\0") == CH_OK &&
	           what.state == CH_SERVED && what.exchange == 7,
	       "an answer");
	expect(WAITED("{\"error\":\"io.commonhold.NoSuchOffer\",\"parameters\":{\"message\":\"no\"}}\0") == CH_REFUSED &&
	           strcmp(ch_message(&client), "no") == 0 && strcmp(ch_error_name(&client), "io.commonhold.NoSuchOffer") == 0,
	       "an error with words");
	expect(WAITED("{\"error\":\"io.commonhold.Later\"}\0") == CH_REFUSED &&
	           strcmp(ch_message(&client), "io.commonhold.Later") == 0,
	       "an error without words");
	expect(WAITED("nonsense\0") == CH_NOT_UNDERSTOOD, "nonsense");
	expect(WAITED("\0") == CH_NOT_UNDERSTOOD, "nothing");
	expect(WAITED("{}\0") == CH_NOT_UNDERSTOOD, "no parameters");
	expect(WAITED("{\"parameters\":[]}\0") == CH_NOT_UNDERSTOOD, "parameters that are no object");
	expect(WAITED("{\"parameters\":{\"state\":\"lost\"}}\0") == CH_NOT_UNDERSTOOD, "an unknown state");
	expect(WAITED("{\"parameters\":{\"state\":\"ended\"}}\0{}\0") == CH_NOT_UNDERSTOOD, "two answers to one request");
	expect(WAITED("{\"parameters\":{}}") == CH_HUNG_UP, "an answer without an end");
	expect(ch_wait(&client, 1, 0, &what) == CH_HUNG_UP, "a client that was closed");
	expect(ch_connect(&client, "/nowhere/socket") == CH_SYSTEM && strstr(ch_message(&client), "/nowhere/socket: "), "no daemon");
	ch_close(&client);
}

int main(void) {
	static const char *const good[] = {"{}", "[]", " [1 , -2.5e+3,0] ", "\"a\\u00e9\\ud83d\\ude00\\n\"", "{\"a\":{\"b\":[null,true,false]}}", "0", "-0.1"};
	static const char *const bad[] = {"", "{", "[1,]", "{\"a\"}", "{\"a\":}", "{a:1}", "01", "1.", "1e", "-", "+1", ".5", "nul", "nulll",
	    "\"\\x\"", "\"\\u12\"", "\"\\ud800\"", "\"\\ud800\\u0041\"", "\"\\udc00\"", "\"\\u0000\"", "\"\n\"", "\"a", "[1 2]", "[1]]", "{\"a\":1,}", "{,}", "[,]", "'a'", "{\"a\":1 \"b\":2}"};
	static const char answer[] = "{\"x\\u0041\":1,\"number\":18446744073709551615,\"big\":18446744073709551616,\"part\":1.5,\"sign\":-1,"
	                             "\"none\":null,\"unit\":\"a/\\\"b\\\"\",\"list\":[{\"n\":1},{\"n\":2}],\"inner\":{\"deep\":7}}";
	char deep[200], out[8];
	size_t n, length;
	uint64_t number;
	ch__json list, one;
	static ch__text text;
	for (n = 0; n < sizeof good / sizeof *good; n++)
		expect(is_json(good[n], strlen(good[n])), good[n]);
	for (n = 0; n < sizeof bad / sizeof *bad; n++)
		expect(!is_json(bad[n], strlen(bad[n])), bad[n]);
	expect(!is_json("{}\0", 3), "a NUL is no space");
	for (length = 0; length < strlen(answer); length++)
		expect(!is_json(answer, length), "a part of an object is none");
	memset(deep, '[', 100);
	memset(deep + 100, ']', 100);
	expect(!is_json(deep, 200) && is_json(deep + 80, 40), "so many levels and no more");

	expect(ch__key_u64(json(answer), "number", &number) && number == UINT64_MAX, "the largest number");
	expect(!ch__key_u64(json(answer), "big", &number), "a larger one");
	expect(!ch__key_u64(json(answer), "part", &number) && !ch__key_u64(json(answer), "sign", &number), "no whole number");
	expect(!ch__key_u64(json(answer), "deep", &number), "a key of an object within");
	expect(ch__key_u64(json(answer), "xA", &number) && number == 1, "a key with an escape");
	expect(ch__maybe_u64(json(answer), "none", &number) && number == 0, "null is nothing");
	expect(ch__maybe_u64(json(answer), "nowhere", &number) && number == 0, "what is left out is nothing");
	expect(ch__key_string(json(answer), "unit", out, 6) && strcmp(out, "a/\"b\"") == 0, "a text that just fits");
	expect(!ch__key_string(json(answer), "unit", out, 5), "a text is never cut short");
	expect(!ch__key_string(json(answer), "number", out, sizeof out), "a number is no text");
	expect(ch__key(json(answer), "list", &list), "the list is there");
	for (n = 0; ch__next(&list, &one); n++)
		expect(ch__key_u64(one, "n", &number) && number == n + 1, "the elements in their order");
	expect(n == 2, "two elements");

	ch__begin(&text);
	ch__add_text(&text, "a\"", "b\\\n\x01");
	ch__add_u64(&text, "n", UINT64_MAX);
	ch__add(&text, "}");
	expect(strcmp(text.bytes, "{\"a\\\"\":\"b\\\\\\u000a\\u0001\",\"n\":18446744073709551615}") == 0, text.bytes);
	for (n = 0; n < CH_REQUEST_MAX; n++)
		ch__add(&text, "x");
	expect(!text.fits, "a request is bounded");
	answers();
	return failures != 0;
}
