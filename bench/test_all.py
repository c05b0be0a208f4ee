#!/usr/bin/env python3
"""Tests of bench/all and bench/readings.py; nothing is measured."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import shutil
import signal
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import figures
import readings

loader = importlib.machinery.SourceFileLoader("bench_all", os.path.join(HERE, "all"))
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_all", loader))
sys.modules["bench_all"] = bench
loader.exec_module(bench)

ROOT = bench.ROOT
HEAD = f"| {' | '.join(bench.COLUMNS)} |\n|{' --- |' * len(bench.COLUMNS)}\n"
ROWS = {
    "check.thousand": "| check.thousand | a large contract | at most 50 ms | 15 ms | kept | 2026-11-24 | 1234567 | `bench/promises check` |\n",
    "cgroup.shares": "| cgroup.shares | off its share | at most 2 % | 0.5 % | kept | 2026-11-24 | 1234567 | `lab/test 10` |\n",
    "cgroup.reload": "| cgroup.reload | goes on | always | holds | kept | 2026-11-24 | 1234567 | `lab/test 10` |\n",
    "borrowing.turn": "| borrowing.turn | near | always | - | - | - | - | `cargo test -p commonhold-dispatch --test borrowing` |\n",
}


def row(name="check.thousand", **cells):
    made = bench.Page(HEAD + ROWS[name]).rows[0]
    for cell, value in cells.items():
        setattr(made, cell, value)
    return made


class Pages(unittest.TestCase):
    def test_what_is_read_is_written_back(self):
        text = "# Title\n\nText | with a bar.\n\n" + HEAD + "".join(ROWS.values()) + "\n| another | table |\n| --- | --- |\n| a | b |\n"
        page = bench.Page(text)
        self.assertEqual(page.text(), text)
        self.assertEqual([row.name for row in page.rows], list(ROWS))

    def test_a_row_without_a_cell_is_refused_with_its_line(self):
        with self.assertRaisesRegex(bench.Mistake, "line 3: it must have 8 cells"):
            bench.Page(HEAD + "| a | b | at most 1 s | - | - | - | `lab/test 10` |\n")


class Verdicts(unittest.TestCase):
    def test_they_follow_from_bound_and_value(self):
        for bound, last, verdict in [
            ("at most 1.05 times", "1.05 times", "kept"), ("at most 1.05 times", "1.051 times", "missed"),
            ("at most 1.05 times (aim)", "1.06 times", "missed"), ("at least 95 %", "94.9 %", "missed"),
            ("at least 95 %", "95 %, 95 to 99 of 3", "kept"), ("190 to 210 MiB", "211 MiB", "missed"),
            ("190 to 210 MiB", "189 MiB", "missed"), ("190 to 210 MiB", "200 MiB", "kept"),
            ("always", "holds", "kept"), ("always", "fails", "missed"), ("always", "-", "-"), ("at most 5 s", "-", "-"),
        ]:
            with self.subTest(bound=bound, last=last):
                self.assertEqual(row(bound=bound, last=last).due_verdict(), verdict)

    def test_mistakes_are_refused(self):
        for cells in [{"bound": "below 5 s"}, {"bound": "at most 5 s"}, {"last": "15"}, {"bound": "always"},
                      {"last": "15 ms, 15 to 60 of 2"}]:
            with self.subTest(**cells), self.assertRaises(bench.Mistake):
                row(**cells).due_verdict()

    def test_of_several_runs_the_worst_counts(self):
        taken = row()
        taken.take([15.0, 60.25, 14.0], "2026-11-25", "89abcde+")
        self.assertEqual((taken.last, taken.verdict, taken.date, taken.commit),
                         ("60.25 ms, 14 to 60.25 of 3", "missed", "2026-11-25", "89abcde+"))
        taken = row(bound="190 to 210 MiB")
        taken.take([209.0, 195.0, 188.0], "2026-11-25", "89abcde")
        self.assertEqual((taken.last, taken.verdict), ("188 MiB, 188 to 209 of 3", "missed"))

    def test_rounding_never_crosses_the_bound(self):
        bound = bench.Bound.parse("at most 1.05 times")
        self.assertEqual(bench.written(1.05000001, bound), "1.05000001")
        self.assertEqual(bench.written(1.0412345, bound), "1.041")
        self.assertEqual(bench.written(7712345.6, bound), "7712346")
        self.assertEqual(bench.written(1000.4, bench.Bound.parse("at most 1000 us")), "1000.4")


class Measuring(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.place)
        self.path = os.path.join(self.place, "PROMISES.md")
        self.before = "Words.\n\n" + HEAD + "".join(ROWS.values())
        with open(self.path, "w") as file:
            file.write(self.before)
        target, bench.TARGET = bench.TARGET, self.place
        self.addCleanup(setattr, bench, "TARGET", target)

    def measure(self, names, printed, status=0, repeat=1):
        """How many were not measured, and the output."""
        outputs = iter(printed if isinstance(printed, list) else [printed] * repeat)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            left_over = bench.measure([self.path], set(names), repeat, lambda command, log: (next(outputs), status))
        return left_over, said.getvalue()

    def text(self):
        with open(self.path) as file:
            return file.read()

    def cells(self, name):
        found = bench.Page(self.text()).row(name)
        return found.last, found.verdict

    def test_a_figure_is_written_with_date_and_commit(self):
        left_over, _ = self.measure(["check.thousand"], "kept    check: 61.5 ms\nfigure: check.thousand 61.5 ms\n", status=1)
        self.assertEqual((left_over, self.cells("check.thousand")), (0, ("61.5 ms", "missed")))
        written = bench.Page(self.text()).row("check.thousand")
        self.assertRegex(written.date, r"^20\d\d-\d\d-\d\d$")
        self.assertEqual(written.commit, bench.commit())
        self.assertIn(ROWS["cgroup.shares"], self.text())

    def test_what_fails_keeps_its_value_and_is_said(self):
        for printed, reason in [("Traceback: no such file\n", "ended with status 1"),
                                ("figure: check.thousand 15 s\n", "it told s, but the bound is in ms")]:
            with self.subTest(printed=printed):
                left_over, said = self.measure(["check.thousand"], printed, status=1)
                self.assertEqual((left_over, self.text()), (1, self.before))
                self.assertIn("not measured, 15 ms of 2026-11-24 is kept", said)
                self.assertIn(reason, said)

    def test_one_run_of_several_that_fails_keeps_it_too(self):
        left_over, _ = self.measure(["check.thousand"], ["figure: check.thousand 60 ms\n", ""], repeat=2)
        self.assertEqual((left_over, self.text()), (1, self.before))

    def test_a_program_that_is_missing_keeps_it_too(self):
        def absent(command, log):
            raise FileNotFoundError("bench/promises")
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(bench.measure([self.path], {"check.thousand"}, 1, absent), 1)
        self.assertEqual(self.text(), self.before)

    def test_an_interruption_leaves_the_page_as_it_was(self):
        def interrupted(command, log):
            raise KeyboardInterrupt
        with contextlib.redirect_stdout(io.StringIO()), self.assertRaises(KeyboardInterrupt):
            bench.measure([self.path], {"check.thousand"}, 1, interrupted)
        self.assertEqual((self.text(), sorted(os.listdir(self.place))), (self.before, ["PROMISES.md", "bench"]))

    def test_an_interruption_ends_what_a_command_started(self):
        told, log = os.path.join(self.place, "pid"), os.path.join(self.place, "log")

        def interrupt(*_):
            # Once it exists.
            if os.path.exists(told) and bench.contents(told).endswith("\n"):
                raise KeyboardInterrupt
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with self.assertRaises(KeyboardInterrupt):
            bench.run(f"sh -c 'sleep 60 & echo $! > {told}; wait'", log)
        state = "S"
        for _ in range(500):
            try:
                state = bench.contents(f"/proc/{bench.contents(told).strip()}/stat").rpartition(") ")[2][0]
            except OSError:
                state = "gone"
            if state in ("Z", "gone"):
                break
            time.sleep(0.05)
        self.assertIn(state, ("Z", "gone"))

    def test_checks_of_the_lab_are_read(self):
        printed = ("1..1\n    ok 1 - unit a has its share while all are busy (-0.43 %, 6 % allowed)\n"
                   "    # missed, measured again: unit b has its share after c came back (+9.00 %, 6 % allowed)\n"
                   "    ok 2 - unit b has its share after c came back (+2.50 %, 6 % allowed)\n"
                   "    ok 3 - a reload drops c, which lent and borrowed\n    not ok 4 - the daemon goes on (failed: dropped)\n")
        left_over, _ = self.measure(["cgroup.shares", "cgroup.reload"], printed + "not ok 1 - 10-shares\n", status=1)
        self.assertEqual((left_over, self.cells("cgroup.shares"), self.cells("cgroup.reload")),
                         (0, ("2.5 %", "missed"), ("fails", "missed")))
        with open(self.path, "w") as file:
            file.write(self.before)
        left_over, said = self.measure(["cgroup.shares", "cgroup.reload"], printed + "ok 1 - 10-shares # SKIP busy with other things (9 s)\n")
        self.assertEqual((left_over, self.text()), (2, self.before))
        self.assertIn("the test was skipped: busy with other things", said)

    def test_tests_hold_or_fail(self):
        for printed, status, value in [("test result: ok. 3 passed; 0 failed\n", 0, "holds"),
                                       ("test result: ok. 3 passed; 0 failed\ntest result: FAILED. 2 passed; 1 failed\n", 101, "fails"),
                                       ("test result: ok. 0 passed; 0 failed\n", 0, None), ("error: could not compile\n", 101, None)]:
            with self.subTest(printed=printed):
                self.assertEqual(bench.tests_verdict(printed, status), value)


class Checking(unittest.TestCase):
    def setUp(self):
        self.whole = bench.contents(bench.PAGES[0])

    def check(self, old="", new=""):
        self.assertIn(old, self.whole)
        with tempfile.TemporaryDirectory() as place:
            path = os.path.join(place, bench.PROMISES)
            with open(path, "w") as page:
                page.write(self.whole.replace(old, new, 1) if old else self.whole)
            return bench.check([path, bench.PAGES[1]])

    def replaced(self, which, **cells):
        """With other cells in one row."""
        found = bench.Page(self.whole).row(which)
        before = " | ".join(found.cells())
        for cell, value in cells.items():
            setattr(found, cell, value)
        return self.check(before, " | ".join(found.cells()))

    def test_the_page_as_it_is(self):
        self.assertEqual(self.check(), [])

    def test_what_does_not_fit_is_found(self):
        for which, cells, mistake in [
            ("cgroup.shares", {"held_by": "`lab/test 03`"}, "must name one test of lab/tests, and names 0"),
            ("cgroup.shares", {"held_by": "`lab/test 20`"}, "prints no `unit * has its share *`"),
            ("cgroup.shares", {"name": "cgroup.sharing"}, "bench/readings.py has no reading of that name"),
            ("cgroup.shares", {"name": "cgroup.sharing"}, "reads cgroup.shares, which has no row"),
            ("cgroup.shares", {"bound": "at most 2 s", "last": "0.5 s"}, "its reading is in %, but the bound is in s"),
            ("check.thousand", {"name": "check.many"}, "bench/promises tells no figure of that name"),
            ("check.thousand", {"name": "check.many"}, "bench/promises prints the figure check.thousand, which has no row"),
            ("check.thousand", {"held_by": "`bench/nothing`"}, "there is no program bench/nothing"),
            ("check.thousand", {"held_by": "`sleep 1`"}, "nothing is known that measures by `sleep`"),
            ("check.thousand", {"held_by": "by hand"}, "must be one command in backquotes"),
            ("check.thousand", {"last": "51 ms", "verdict": "kept"}, "`51 ms` under the bound `at most 50 ms` is `missed`, not `kept`"),
            ("check.thousand", {"last": "51 ms", "verdict": "missed"}, "move the row to docs/benchmarks.md"),
            ("check.thousand", {"bound": "at most 50 ms (aim)"}, "move the row to docs/benchmarks.md"),
            ("check.thousand", {"date": "today"}, "is no date"),
            ("check.thousand", {"commit": "-"}, "value, date and commit are all there, or all `-`"),
            ("check.thousand", {"held_by": "`bench/promises check`, [x](docs/none.md)"}, "there is no docs/none.md"),
            ("policy.own", {"held_by": "`cargo test -p commonhold-policy --lib no_such_test`"}, "no test no_such_test is in commonhold-policy"),
            ("policy.own", {"held_by": "`cargo test -p commonhold-none`"}, "there is no commonhold-none"),
            ("policy.own", {"held_by": "`cargo test -p commonhold-policy --test none`"}, "there is no crates/policy/tests/none.rs"),
        ]:
            with self.subTest(which, cells=cells):
                mistakes = self.replaced(which, **cells)
                self.assertTrue(any(mistake in found for found in mistakes), mistakes)

    def test_a_name_that_two_rows_have_and_other_spacing_are_found(self):
        found = next(line for line in self.whole.splitlines() if line.startswith("| check.thousand "))
        self.assertTrue(any("check.thousand: another row has that name" in mistake for mistake in self.check(found, f"{found}\n{found}")))
        self.assertTrue(any("one blank" in mistake for mistake in self.check(found, found.replace("| kept |", "|  kept |"))))


class Readings(unittest.TestCase):
    def read(self, name, *lines):
        return readings.READINGS[name].read([f"    {line}" for line in lines])

    def test_numbers_are_found(self):
        self.assertEqual(self.read("memory.killed", "ok 1 - no process was killed (0)", "not ok 2 - no process was killed (got '3', expected '0')"), 3)
        self.assertEqual(self.read("memory.lent", "# MiB: the owner holds 500 and uses 20; lent 99 of 100, the borrower uses 95 of 96"), 99)
        self.assertEqual(self.read("disk.bfq", "ok 1 - io.cost: three to one (+0.50 %, 12 % allowed)"), None)
        self.assertEqual(self.read("disk.cost", "ok 1 - io.cost: three to one (-0.50 %, 12 % allowed)"), 0.5)
        self.assertEqual(self.read("disk.build.used", "ok 1 - which uses the idle bandwidth (3000, at least 2000)"), 75)
        self.assertEqual(self.read("memory.zram", "ok 1 - used is charged plus packed, and the bound is lower by packed "
                                                  "(600 of 610 MiB: charged 580, packed 22, bound 590)"), 2)

    def test_all_checks_must_be_there_to_hold(self):
        held = ["ok 1 - the kernel keeps the scheduler", "ok 2 - each of the 400"]
        self.assertEqual(self.read("starvation.turns", *held), "holds")
        self.assertEqual(self.read("starvation.turns", held[0]), None)
        self.assertEqual(self.read("starvation.turns", "not ok 1 - the kernel keeps the scheduler (failed: x)"), "fails")

    def test_figures_are_told_as_they_are_read(self):
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            mine = figures.Figures({"a.b": "times", "c": "% of a CPU"})
            mine.tell("a.b", 1 / 3)
            mine.tell("c", 1e-7)
            mine.tell("c", None)
        self.assertEqual(figures.found(told.getvalue()), {"a.b": [(0.333333, "times")], "c": [(1e-7, "% of a CPU")]})
        self.assertRaises(KeyError, mine.tell, "d", 1)


if __name__ == "__main__":
    unittest.main()
