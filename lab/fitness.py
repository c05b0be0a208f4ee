#!/usr/bin/env python3
"""Watches whether this host is fit for measurements, during a measurement.

usage: lab/fitness.py [SECONDS]     watches for SECONDS (10) and prints the result; exit status 0 fit, 1 not

None of this kernel's figures shows the load of other virtual machines. A core whose sibling thread runs another machine does half
as much work per second of CPU time, and a core preempted by another machine counts the wait as CPU time. So this script samples
three facts: the CPU time of a small fixed piece of work on each core in turn, the other work on this host, and the steal time
that the kernel reports.
"""
import os
import sys
import threading
import time

# Ten samples a second, each of about a millisecond of CPU time: together a hundredth of one core.
INTERVAL_S, PIECE_LOOPS = 0.1, 20_000
# The least number of samples for a verdict.
LOOKS_MIN = 20
# The maximum ratio of the fast decile's speed to the slow decile's. Frequency scaling stays below that ratio; a core shared with
# another virtual machine reaches two.
UNEVEN_MAX = 1.4
# The maximum steal time, and the maximum CPU time of other work, as fractions of all cores' time.
STOLEN_MAX, OTHERS_MAX = 0.02, 0.15
# The minimum speed, in loops per microsecond of CPU time: a server core of 2020 makes 30, and if shared 17.
SPEED_MIN = 9.0

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def piece():
    """Does a fixed piece of work, and returns its speed in loops per microsecond of CPU time."""
    begun, total = time.thread_time_ns(), 0
    for number in range(PIECE_LOOPS):
        total += number & 7
    return PIECE_LOOPS * 1000 / max(1, time.thread_time_ns() - begun)


def host_time():
    """The busy time of all cores since boot, and the steal time, in seconds."""
    with open("/proc/stat") as stat:
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in stat.readline().split()[1:9])
    return (user + nice + system + irq + softirq) / TICKS_PER_S, steal / TICKS_PER_S


def time_of(names):
    """{process: seconds of CPU time} of the processes whose name begins with one of `names`."""
    used = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                name, _, rest = stat.read().partition("(")[2].rpartition(")")
        except OSError:
            continue                      # it ended meanwhile
        if name.startswith(names):
            fields = rest.split()
            used[pid] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return used


class Watch(threading.Thread):
    """Takes samples until `verdict` is called. Processes whose name begins with one of `names` belong to the measurement."""

    def __init__(self, names=("qemu-system",)):
        super().__init__(daemon=True)
        self.names, self.speeds, self.ended = names, [], threading.Event()
        self.since, self.time, self.own = time.monotonic(), host_time(), time_of(names)
        # The CPU time of the measurement's processes since the watch began, and by process at the last sample. The time is
        # summed sample by sample, because processes exit meanwhile.
        self.own_total, self.own_last = 0.0, self.own
        self.start()

    def run(self):
        cores = sorted(os.sched_getaffinity(0))
        number = 0
        while not self.ended.wait(INTERVAL_S):
            number += 1
            os.sched_setaffinity(0, {cores[number % len(cores)]})     # this thread
            self.speeds.append(piece())
            if number % 10 == 0:
                self.account()

    def account(self):
        current = time_of(self.names)
        self.own_total += sum(used - self.own_last.get(pid, 0.0) for pid, used in current.items())
        self.own_last = current

    def verdict(self):
        """Ends the watch. None if the host was fit since the watch began, or if there are too few samples; else the reason."""
        self.ended.set()
        self.join()
        self.account()
        speeds = sorted(self.speeds)
        if len(speeds) < LOOKS_MIN:
            return None
        cores = len(os.sched_getaffinity(0))
        whole = (time.monotonic() - self.since) * cores
        busy, stolen = (now - then for now, then in zip(host_time(), self.time))
        tenth = len(speeds) // 10
        slow, quick = sum(speeds[:tenth]) / tenth, sum(speeds[-tenth:]) / tenth
        self.seen = (f"{slow:.0f} to {quick:.0f} loops per us of CPU time, "
                     f"{stolen / whole:.1%} stolen, {max(0.0, busy - self.own_total) / whole:.1%} used by others")
        if quick > slow * UNEVEN_MAX:
            return f"its cores are shared with others: {self.seen}"
        if speeds[len(speeds) // 2] < SPEED_MIN:
            return f"its cores are too slow: {self.seen}, at least {SPEED_MIN:.0f} wanted"
        if stolen > whole * STOLEN_MAX or busy - self.own_total > whole * OTHERS_MAX:
            return f"it is busy with other things: {self.seen}"
        return None


def main():
    watch = Watch()
    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
    why = watch.verdict()
    print(f"not fit to measure on: {why}" if why else f"fit: {watch.seen}")
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
