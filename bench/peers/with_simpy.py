"""Round robin in SimPy: tasks that compute for ever, one slice at a time, on several CPUs.

usage: with_simpy.py pool|lean CPUS TASKS SLICE_US SECONDS: virtual seconds; prints slices and CPU seconds
"""
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


def main():
    form = {"pool": pool, "lean": lean}[sys.argv[1]]
    cpus, tasks, slice_us, seconds = map(int, sys.argv[2:])
    env, count = simpy.Environment(), Count()
    form(env, cpus, tasks, slice_us, count)
    begun = time.process_time()
    env.run(until=seconds * 1_000_000 + 1)
    print(count.slices, time.process_time() - begun)


main()
