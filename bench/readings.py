"""Reads figures of PROMISES.md from the output that lab/test prints of a test.

    ok 12 - unit b has its share while all are busy (-0.43 %, 6 % allowed)

is read by `Reading("%", "unit * has its share *", value=off)`. A test prints checks, with details in brackets, and notes. In a
template, `*` matches any text; `{}` matches a number, which is read; and `<BFQ>` matches the word BFQ, where the test's script
has a variable. bench/all --check verifies that the literal parts of a template occur in the script, in this order, so that a
renamed check is detected.
"""
import dataclasses
import re
import typing

NUMBER = r"([-+]?\d+(?:\.\d+)?)"
VARIABLE = re.compile(r"(\{\}|\*|<[^>]*>)")
# The format of a check by lab/test: indented, to distinguish it from lab/test's own lines.
CHECK = re.compile(r"^ {4}(ok|not ok) \d+ - (.*)$")
NOTE = re.compile(r"^ {4}# (.*)$")
HOLDS, FAILS = "holds", "fails"


def off(found):
    """The largest deviation from a target, from details such as `+1.20 %, 6 % allowed`."""
    return max(abs(numbers[0]) for numbers in found)


def least(per=1):
    """The smallest value, divided by `per` to convert the test's unit."""
    return lambda found: min(numbers[0] for numbers in found) / per


def most(per=1):
    return lambda found: max(numbers[0] for numbers in found) / per


def expression(template):
    """The regular expression for a line with this text."""
    known = {"{}": NUMBER, "*": ".*"}
    parts = VARIABLE.split(template)
    return "".join(known.get(part) or re.escape(part.strip("<>") if VARIABLE.fullmatch(part) else part) for part in parts)


def literals(template):
    return [part for part in VARIABLE.split(template) if part.strip() and not VARIABLE.fullmatch(part)]


@dataclasses.dataclass
class Reading:
    """A figure in `unit`: the result of `value` for a list with the numbers of each matching line. Without `value`: whether all
    checks that match one of the templates hold."""
    unit: str = ""
    check: str | list[str] = ""
    # The template of the text in a check's brackets; by default, the text begins with the number.
    saw: str = ""
    note: str = ""
    value: typing.Callable | None = None

    def templates(self):
        return [self.note] if self.note else [self.check] if isinstance(self.check, str) else self.check

    def read(self, lines):
        """A number, `holds` or `fails`; None if a required line is missing."""
        if self.value is None:
            return self.holds(lines)
        found = [numbers for numbers in map(self.numbers, lines) if numbers]
        return self.value(found) if found else None

    def numbers(self, line):
        match = NOTE.match(line) if self.note else CHECK.match(line)
        if not match:
            return None
        inner = expression(self.saw) if self.saw else rf"(?:got ')?{NUMBER}\b.*"
        after = "" if self.note else rf" \({inner}\)"
        for template in self.templates():
            found = re.fullmatch(expression(template) + after, match[match.lastindex])
            if found:
                return [float(number) for number in found.groups()]
        return None

    def holds(self, lines):
        checks = [match for match in map(CHECK.match, lines) if match]
        # A failed check has details in brackets, and a check that held may have some.
        matching = [[check[1] for check in checks if re.fullmatch(expression(template) + r"(?: \(.*\))?", check[2])]
                    for template in self.templates()]
        if any("not ok" in verdicts for verdicts in matching):
            return FAILS
        return HOLDS if all(matching) else None

    def missing_in(self, script):
        """The first template that this script cannot print, or None."""
        for template in self.templates():
            if not re.search(".*".join(map(re.escape, literals(template))), script):
                return template
        return None


def percent(found):
    """The smallest ratio of two numbers in a line, in percent."""
    return min(part * 100 / whole for part, whole in found)


READINGS = {
    # lab/test 10
    "cgroup.shares": Reading("%", "unit * has its share *", value=off),
    "cgroup.asleep": Reading("%", "the others use c's idle CPU time, from the first moment on", value=least(per=100)),
    "cgroup.reload": Reading(check=["a reload drops c, which lent and borrowed", "the daemon goes on"]),
    # lab/test 20
    "undone.after": Reading("s", "within a second, in hundredths *", value=most(per=100)),
    # lab/test 25
    **{f"systemd.cpus.{backend}": Reading("%", f"two busy processes have two CPUs, in thousandths, *<({backend})>", value=off)
       for backend in ("cgroup", "kernel")},
    # lab/test 49
    **{f"jobs.node.{backend}": Reading("%", f"<{backend}>: a job runs in one node for 95 % of its time", value=least())
       for backend in ("cgroup", "kernel")},
    **{f"jobs.pages.{backend}": Reading("%", f"<{backend}>: 95 % of its pages are there in the end", value=least())
       for backend in ("cgroup", "kernel")},
    "jobs.idle": Reading("%", "five jobs, <kernel>: no CPU idles while a thread waits", value=most(per=10)),
    # lab/test 51
    **{f"jobs.{mix}.{backend}": Reading("times", note=f"<{mix}>, <{backend}>: {{}} ms, {{}} of the kernel's own {{}}; the daemon {{}} ms",
                                        value=lambda found: min(numbers[1] for numbers in found))
       for mix in ("few", "more", "large", "short") for backend in ("cgroup", "kernel")},
    # lab/test 52
    **{f"gangs.together.{by}": Reading("%", f"<{by}>: the threads of a gang run together, in 1/100 %", value=least(per=100))
       for by in ("kernel", "freezer", "signals")},
    **{f"gangs.stopped.{by}": Reading("millionths", f"<{by}>: no thread runs of a gang that is stopped, but in *", value=most())
       for by in ("kernel", "freezer", "signals")},
    **{f"gangs.edge.{by}": Reading("ms", note=f"<{by}>: an edge took {{}} us until all threads of a gang had stopped, {{}} us until all of another ran, at worst {{}} and {{}}",
                                   value=lambda found: max(max(numbers[:2]) for numbers in found) / 1000)
       for by in ("kernel", "freezer", "signals")},
    "gangs.killed": Reading(check="*: all gangs go on within a second of the daemon's end"),
    "gangs.long": Reading(check="kernel, long quanta: the scheduler has not been ended"),
    # lab/test 60, thousandths of a CPU, of eight
    "scheduler.halves": Reading("%", "both have the same*", value=off),
    "scheduler.asleep": Reading("%", "a has the machine while b sleeps", value=least(per=80)),
    "scheduler.weights": Reading("%", "time-shared CPUs are divided by weight", value=off),
    "scheduler.borrowing": Reading("%", "borrowers divide lent CPUs by weight", value=off),
    "scheduler.near": Reading("of 16", "a waking task stays on its node", value=least()),
    # lab/test 64
    "faults.ends": Reading(check=["*: the kernel's own scheduler is back", "*: it says why", "*: its tasks continue",
                                  "a hog: the scheduler is there after it"]),
    "faults.taken": Reading("s", "a CPU taken: a runs on its other one", value=least(per=1_000_000)),
    "faults.told": Reading("s", "a hog: a's wait for a higher class is reported", value=least(per=1000)),
    "faults.rcu": Reading("of 24 looks", note="a CPU taken: RCU's thread waited from one look to the next {} times of *", value=most()),
    # lab/test 65
    "units.nested": Reading("%", ["q has the half that is its own", "x has a quarter of the other half", "y has three"], value=off),
    "units.asleep": Reading("%", "x, not q, uses y's idle time", value=off),
    "units.nice": Reading("%", "nice values divide a unit's time", value=off),
    "units.nice.one-cpu": Reading("%", "nice values divide a single CPU", value=off),
    "units.strays": Reading("%", "an owner has half of its CPU beside strays, however many", value=off),
    "units.thousand": Reading(check=["the kernel takes a thousand units", "every unit's process comes to its end"]),
    # lab/test 67 to 71
    "forks.wait": Reading("s", "it was not kept waiting, in ms", value=most(per=1000)),
    "forks.half": Reading("%", "the forking unit has its half", value=off),
    "daemon.thousand": Reading("%", "three times the tickets give three times the time", value=off),
    "starvation.turns": Reading(check=["the kernel keeps the scheduler", "each of *"]),
    "starvation.small": Reading("%", "and had little more than its part", value=most(per=10)),
    "kernel.lends": Reading("%", "a, which holds one CPU, has those that the others leave idle", value=least(per=80)),
    "kernel.counts": Reading(check="the CPU time of *, the scheduler and the kernel count alike, within 1 %"),
    "kernel.first-step": Reading("of 40", "* is in its unit before its first step", value=least()),
    "kernel.ended": Reading(check=["CPU sets are in force", "it comes back", "every unit has its CPU set", "it comes back again",
                                   "the scheduler is there without it", "the scheduler is there with it"]),
    "kernel.thirds": Reading("%", "* has a third", value=off),
    "kernel.quarters": Reading("%", "* has a quarter", value=off),
    # lab/test 90
    "memory.lent": Reading("%", note="MiB: the owner holds {} and uses {}; lent {} of {}, the borrower uses {} of {}",
                           value=lambda found: percent([numbers[2:4] for numbers in found])),
    "memory.lent.used": Reading("%", note="MiB: the owner holds {} and uses {}; lent {} of {}, the borrower uses {} of {}",
                                value=lambda found: percent([numbers[4:6] for numbers in found])),
    "memory.clean": Reading("s", "the longest is bounded, in ms", value=most(per=1000)),
    "memory.hard.large": Reading("MiB", "the large reservation of 200 MiB holds, to 1 %", value=least()),
    "memory.hard.small": Reading("MiB", "the small one of 140 MiB too", value=least()),
    "memory.all": Reading("%", ["the guarantee of 60 % holds to 1 %, in thousandths", "that of 35 % too"],
                          value=lambda found: max(100 - thousandths / 10 for (thousandths,) in found)),
    "memory.bounds": Reading("looks", "no bound was below a guarantee", value=most()),
    "memory.killed": Reading("processes", "no process was killed", value=most()),
    # lab/test 91 to 99
    "memory.mapped": Reading("MiB", "memory charged for others is detected", value=least()),
    "memory.zram": Reading("MiB", "used is charged plus packed, and the bound is lower by packed",
                           saw="{} of {} MiB: charged {}, packed {}, bound {}",
                           value=lambda found: max(abs(used - charged - packed) for used, _, charged, packed, _ in found)),
    "user.memory": Reading("MiB", "status reports its use", value=least()),
    "oom.owner": Reading("processes", "no process of the owner's was killed", value=most()),
    "memory.taken": Reading("%", note="pages of {} that came back: {}; *",
                            value=lambda found: max(back * 100 / pages for pages, back in found)),
    "memory.kept": Reading("MiB", "its unit keeps its memory, in MiB", value=least()),
    "memory.dirty": Reading("s", "within the stated 5 s, in ms", value=most(per=1000)),
    # lab/test 95: a disk of 8,000 kB/s; the check's bound is half of the bandwidth that the job leaves
    "disk.half": Reading("%", "a unit with half reserved makes four times the progress of each of the four", value=off),
    "disk.build": Reading("times", "a compiler's way is hardly slowed by a large reader", value=most(per=100)),
    "disk.build.first": Reading("s", "once its requests in flight are done, in ms", value=most(per=1000)),
    "disk.build.used": Reading("%", "which uses the idle bandwidth", saw="{}, at least {}",
                               value=lambda found: min(used * 50 / half for used, half in found)),
    "disk.idle": Reading("%", "the others use its idle bandwidth", value=least(per=80)),
    "disk.limit": Reading("%", "a limit holds on an idle disk", value=off),
    "disk.array": Reading("KiB", "writes to the array are charged to the unit, in KiB", value=least()),
    "disk.array.time": Reading("s", "and its limit holds for it: 3 MiB at 1 MB/s, in ms", saw="{}, no fewer than *",
                               value=least(per=1000)),
    # lab/test 96
    "disk.cost": Reading("%", "<io.cost>: three to one", value=off),
    "disk.bfq": Reading("%", "<BFQ>: three to one", value=off),
}
