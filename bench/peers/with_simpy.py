"""Round robin in SimPy: tasks that compute for ever, one slice at a time, on several CPUs. And M/M/1.

usage: with_simpy.py pool|lean CPUS TASKS SLICE_US SECONDS: virtual seconds; prints slices and CPU seconds
       with_simpy.py mm1 CUSTOMERS: with a utilisation of 0.8; prints the customers, the mean time in the system by the mean
                                    service time, and CPU seconds
"""
import random
import sys
import time
from collections import deque

import simpy


class Count:
    """Slices that have ended, of all tasks."""

    slices = 0


def task(env, cpus, slice_us, count):
    """A task: waits for a CPU in the order of arrival, computes for a slice, and waits again."""
    while True:
        with cpus.request() as turn:
            yield turn
            yield env.timeout(slice_us)
            count.slices += 1


def pool(env, cpus, tasks, slice_us, count):
    resource = simpy.Resource(env, capacity=cpus)
    for _ in range(tasks):
        env.process(task(env, resource, slice_us, count))


def cpu(env, queue, slice_us, count):
    """A CPU: one event per slice, the minimum for SimPy."""
    while True:
        running = queue.popleft()
        yield env.timeout(slice_us)
        queue.append(running)
        count.slices += 1


def lean(env, cpus, tasks, slice_us, count):
    queue = deque(range(tasks))
    for _ in range(cpus):
        env.process(cpu(env, queue, slice_us, count))


class Line(deque):
    """The customers in the system, by their times of arrival, and the event that the next one triggers."""

    arrived = None


def server(env, present, customers, done):
    """The server: takes the customers in order."""
    chance, total = random.Random(2), 0.0
    for _ in range(customers):
        if not present:
            present.arrived = env.event()
            yield present.arrived
        yield env.timeout(chance.expovariate(1.0))
        total += env.now - present.popleft()
    done.succeed(total / customers)


def customers_of(env, present):
    """Customers: each arrives after the one before."""
    chance = random.Random(1)
    while True:
        yield env.timeout(chance.expovariate(0.8))
        present.append(env.now)
        if present.arrived is not None and not present.arrived.triggered:
            present.arrived.succeed()


def mm1(customers):
    env, present = simpy.Environment(), Line()
    done = env.event()
    env.process(customers_of(env, present))
    env.process(server(env, present, customers, done))
    begun = time.process_time()
    mean = env.run(until=done)
    print(customers, mean, time.process_time() - begun)


def main():
    if sys.argv[1] == "mm1":
        mm1(int(sys.argv[2]))
        return
    form = {"pool": pool, "lean": lean}[sys.argv[1]]
    cpus, tasks, slice_us, seconds = map(int, sys.argv[2:])
    env, count = simpy.Environment(), Count()
    form(env, cpus, tasks, slice_us, count)
    begun = time.process_time()
    env.run(until=seconds * 1_000_000 + 1)
    print(count.slices, time.process_time() - begun)


main()
