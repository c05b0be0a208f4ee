#!/usr/bin/env python3
"""A program that computes and hardly reads. It offers disk tickets for CPU tickets, waits a while, works, and leaves.

usage: trade.py [SOCKET [LIMIT]]     counts the primes below LIMIT; run it in a unit: commonhold exec UNIT -- trade.py

The module is clients/python/commonhold.py: install it beside this file, or name its folder in PYTHONPATH.
"""

import sys

import commonhold


def is_prime(n: int) -> bool:
    divisor = 2
    while divisor * divisor <= n:
        if n % divisor == 0:
            return False
        divisor += 1
    return n > 1


def main(path: str = commonhold.SOCKET, limit: str = "200000") -> None:
    with commonhold.Client(path) as client:
        # The offer and its exchange end with this program, however that ends.
        offer = client.offer(client.own_unit(), "disk:30", "cpu:20", while_connected=True)
        print(f"offer {offer.number} is open", flush=True)
        exchange = client.wait_until_served(offer.number, at_most=10)
        if exchange is None:
            client.cancel(offer.number)
            print("nobody wants disk tickets: working without more of the CPUs", flush=True)
        else:
            print(f"exchange {exchange} is in force", flush=True)
        primes, below = 0, int(limit)
        for part in range(10):
            primes += sum(map(is_prime, range(below * part // 10, below * (part + 1) // 10)))
            if exchange is not None and client.wait(exchange, at_most=0).state == "ended":
                print(f"exchange {exchange} is over: going on with fewer tickets", flush=True)
                exchange = None
        print(f"{primes} primes below {below}", flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except (commonhold.Error, OSError) as error:
        sys.exit(f"trade.py: {error}")
