/* A program that computes and hardly reads. It offers disk tickets for CPU tickets, waits a while, works, and leaves.
 *
 * usage: trade [SOCKET [LIMIT]]     counts the primes below LIMIT; run it in a unit: commonhold exec UNIT -- ./trade
 * build: cc -std=c99 -O2 -I clients/c -o trade examples/trade/trade.c */
#define _POSIX_C_SOURCE 200809L
#define COMMONHOLD_IMPLEMENTATION
#include "commonhold.h"

static int is_prime(unsigned long n) {
	unsigned long divisor;
	for (divisor = 2; divisor * divisor <= n; divisor++)
		if (n % divisor == 0)
			return 0;
	return n > 1;
}

static int trade_and_work(ch_client *client, const char *socket, unsigned long below) {
	char unit[CH_PATH_SIZE];
	ch_offer_terms terms = {.unit = unit, .gives = "disk:30", .wants = "cpu:20", .while_connected = 1};
	ch_made offer;
	ch_awaited what;
	unsigned long part, n, primes = 0;
	uint64_t exchange;
	if (ch_connect(client, socket) || ch_unit_of(client, getpid(), unit, sizeof unit))
		return 1;
	/* The offer and its exchange end with this program, however that ends. */
	if (ch_offer(client, &terms, &offer))
		return 1;
	printf("offer %llu is open\n", (unsigned long long)offer.number);
	if (ch_wait(client, offer.number, 10 * CH_SECOND, &what))
		return 1;
	exchange = what.exchange;
	if (what.state == CH_SERVED) {
		printf("exchange %llu is in force\n", (unsigned long long)exchange);
	} else {
		if (what.state == CH_STANDS && ch_cancel(client, offer.number))
			return 1;
		printf("nobody wants disk tickets: working without more of the CPUs\n");
	}
	for (part = 0; part < 10; part++) {
		for (n = below * part / 10; n < below * (part + 1) / 10; n++)
			primes += (unsigned long)is_prime(n);
		if (exchange && ch_wait(client, exchange, 0, &what))
			return 1;
		if (exchange && what.state == CH_ENDED) {
			printf("exchange %llu is over: going on with fewer tickets\n", (unsigned long long)exchange);
			exchange = 0;
		}
	}
	printf("%lu primes below %lu\n", primes, below);
	return 0;
}

int main(int count, char **arguments) {
	ch_client client;
	int failed;
	setvbuf(stdout, NULL, _IOLBF, 0);
	failed = trade_and_work(&client, count > 1 ? arguments[1] : "/run/commonhold/socket",
	                            count > 2 ? strtoul(arguments[2], NULL, 10) : 200000);
	if (failed)
		fprintf(stderr, "trade: %s\n", ch_message(&client));
	ch_close(&client);
	return failed;
}
