#!/usr/bin/env python3
"""Tests of bench/all, bench/readings.py and bench/reproduction; nothing is measured."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
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



def program(name):
    """A program of bench/ as a module."""
    loader = importlib.machinery.SourceFileLoader(f"bench_{name}", os.path.join(HERE, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


bench = program("all")
reproduction = program("reproduction")

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


def claim(name, basis="predicted", word="hit", **fields):
    """A row as `commonhold claims --json` prints it."""
    return {"id": name, "place": "001, section 2", "says": "A is faster | by", "expected": "+56 %", "basis": basis, "unit": "ratio",
            "tolerance": {"kind": "between", "low": 1.48, "high": 1.64}, "note": "", "runs": [], "verdict": {"word": word},
            "measured": {"mean": 1.553, "half_95": 0.021, "half_90": 0.015, "by_seed": [1.54, 1.56]}, **fields}


def claims():
    """The output of `commonhold claims --json`, with two rows of each document and a row for each other beginning of names."""
    given = {"schema": "commonhold.claims", "version": 1, "rows": [], "studies": []}
    for number, (_, _, prefixes) in reproduction.DOCUMENTS.items():
        first = prefixes[0]
        given["rows"] += [claim(f"{first}1"), claim(f"{first}2", word="miss")]
        given["rows"] += [claim(f"{prefix}9", "beyond") for prefix in prefixes[1:]]
        fit = {"expected": "", "tolerance": {"kind": "none"}, "unit": "ratio", "frozen": {"mean": 1.5, "met": True}, "interval": [1.4, 12.34],
               "moved_by": ["memory", 0.634]}
        given["studies"].append({
            "seed": number, "settings": 8, "seeds": 2, "plots": [], "groups": [{"scenario": "bus", "fitted": 1, "best": 1, "kept": 3}],
            "rows": [{**fit, "id": f"{first}1", "is_held_out": False, "is_met": True}, {**fit, "id": f"{first}2", "is_held_out": True, "is_met": None}],
            "unknowns": [{"name": "memory", "says": "its size", "range": "1.00 MiB..2.00 MiB", "guess": "1.00 MiB", "kept": "even | odd", "source": "table 2"}],
        })
    return given


class Reproduction(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.place)
        self.file = os.path.join(self.place, "claims.json")
        os.makedirs(os.path.join(self.place, "docs/reproduction"))
        for page, _, _ in reproduction.DOCUMENTS.values():
            self.write(page, "# Title\n\n" + "".join(self.block(name) for name in reproduction.BLOCKS) + "Text.\n")
        self.write(reproduction.OVERVIEW, self.block("results"))

    def block(self, name):
        return f"<!-- generated: {name}; by bench/reproduction -->\nold\n<!-- end -->\n\n"

    def write(self, page, text):
        with open(os.path.join(self.place, page), "w") as file:
            file.write(text)

    def pages(self):
        return {page: bench.contents(os.path.join(self.place, page))
                for page in [reproduction.OVERVIEW, *(page for page, _, _ in reproduction.DOCUMENTS.values())]}

    def run_on(self, given, *options):
        """The exit status and all output."""
        with open(self.file, "w") as file:
            file.write(given if isinstance(given, str) else json.dumps(given))
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = reproduction.main([*options, self.file], self.place)
        return status, said.getvalue()

    def test_tables_are_written_and_text_stays(self):
        self.assertEqual(self.run_on(claims())[0], 0)
        pools = self.pages()["docs/reproduction/pools.md"]
        self.assertIn("# Title\n\n<!-- generated: unknowns; by bench/reproduction -->\n\n| unknown |", pools)
        self.assertIn("| memory | its size | 1.00 MiB to 2.00 MiB | 1.00 MiB | even; odd | table 2 |\n\n| scenario |", pools)
        self.assertIn("| `scenarios/bus` | 1 | 1 | 3 of 8 |\n\n<!-- end -->\n", pools)
        self.assertIn("Predicted rows: 1 of 2 within tolerance.", pools)
        self.assertIn("| PP-1 | section 2 | A is faster \\| by | +56 % | 1.48 to 1.64 | 1.55 ± 0.02 | hit | 1.50, met | fitted | 1.40 to 12.3 | met "
                      "| memory (63 %) |\n", pools)
        self.assertIn("| miss | 1.50, met | held out | 1.40 to 12.3 | undecided | memory (63 %) |\n", pools)
        self.assertIn("| OURS-POOLS9 | section 2 | beyond |", pools)
        self.assertTrue(pools.endswith("Text.\n"))
        overview = self.pages()[reproduction.OVERVIEW]
        self.assertIn("| [001, processor pools](reproduction/pools.md) | 1 of 2 | 1 of 1 | 0 | 0 | 1 |\n", overview)
        self.assertIn("| all | 5 of 10 | 5 of 5 | 0 | 0 | 5 |\n", overview)
        self.assertNotIn("old", "".join(self.pages().values()))

    def test_check_writes_nothing_and_finds_changes(self):
        before = self.pages()
        status, said = self.run_on(claims(), "--check")
        self.assertEqual((status, self.pages()), (1, before))
        self.assertIn("docs/reproduction/bus.md: its tables have other results", said)
        self.run_on(claims())
        self.assertEqual(self.run_on(claims(), "--check"), (0, ""))
        self.assertEqual(self.run_on(claims()), (0, "no page changes\n"))

    def test_rows_without_a_value_are_listed(self):
        given = claims()
        given["rows"] += [
            claim("PP-3", "parameter", measured=None, verdict={"word": "parameter", "held_by": ["a.rs: b"]}),
            claim("PP-4", "lost", measured=None, note="a picture", verdict={"word": "not-measured", "reason": "a picture"}),
            claim("PP-5", "calibrated", unit="milliseconds", measured={"mean": 12.0, "half_95": 0.0, "half_90": 0.0, "by_seed": [12.0, 12.0]}),
        ]
        self.assertEqual(self.run_on(given)[0], 0)
        pools = self.pages()["docs/reproduction/pools.md"]
        self.assertIn("| PP-3 | section 2 | parameter | A is faster \\| by | +56 % | a test checks it |\n", pools)
        self.assertIn("| PP-4 | section 2 | lost | A is faster \\| by | +56 % | a picture |\n", pools)
        self.assertIn("| 12.0 const ms | hit, calibrated | - | - | - | - | - |\n", pools)
        self.assertIn("Calibrated rows: 1 of 1 within tolerance.", pools)

    def test_results_that_cannot_be_used_are_refused(self):
        def without(change):
            given = claims()
            change(given)
            return given
        before = self.pages()
        for given, mistake in [
            ("{", "no JSON"), ("[]", "not commonhold.claims, version 1"), (without(lambda it: it.update(version=2)), "version 1"),
            (without(lambda it: it.pop("studies")), "malformed"), (without(lambda it: it["studies"].pop()), "no fit of seed 004"),
            (without(lambda it: it["rows"].pop()), "no row OURS-NEG-* of seed 004"), (without(lambda it: it["rows"].pop(0)), "the fit of seed 000 has PI-1"),
            (without(lambda it: it["rows"][0].update(verdict={"word": "odd"})), "malformed"),
            (without(lambda it: it["rows"][0].update(unit="miles")), "malformed"),
            (without(lambda it: it["studies"][2]["rows"][0].pop("interval")), "malformed"),
            (without(lambda it: it["rows"].append(claim("XX-1"))), "the row XX-1 has no page"),
        ]:
            with self.subTest(mistake):
                status, said = self.run_on(given)
                self.assertEqual((status, self.pages()), (2, before))
                self.assertIn(mistake, said)
                self.assertIn("claims.json", said)

    def test_pages_that_cannot_be_used_are_refused(self):
        whole = self.pages()["docs/reproduction/bus.md"]
        begin, end = "<!-- generated: rows; by bench/reproduction -->\n", "<!-- end -->\n"
        for text, mistake in [
            (whole.replace(self.block("rows"), ""), "no block rows; add `<!-- generated: rows; by bench/reproduction -->`"),
            (whole.replace("generated: rows", "generated: rose"), "no block is called `rose`"),
            (whole + self.block("rows"), "is here twice"), (whole + end, "ends no block"),
            (whole.replace(begin, begin + begin), "a block begins within `rows`"),
            (whole.replace(self.block("other rows"), self.block("other rows").replace(end, "")), "has no end"),
        ]:
            with self.subTest(mistake):
                self.write("docs/reproduction/bus.md", text)
                before = self.pages()
                status, said = self.run_on(claims())
                self.assertEqual((status, self.pages()), (2, before))
                self.assertIn("docs/reproduction/bus.md", said)
                self.assertIn(mistake, said)
        os.unlink(os.path.join(self.place, "docs/reproduction/bus.md"))
        self.assertEqual(self.run_on(claims())[0], 2)

    def test_an_error_while_writing_leaves_every_page_as_it_was(self):
        before = self.pages()
        self.addCleanup(setattr, reproduction.os, "fsync", reproduction.os.fsync)
        calls = []

        def full(_):
            calls.append(1)
            if len(calls) == 3:
                raise OSError("no space")
        reproduction.os.fsync = full
        with self.assertRaises(OSError):
            self.run_on(claims())
        self.assertEqual((self.pages(), len(os.listdir(os.path.join(self.place, "docs/reproduction")))), (before, 5))

    def test_the_pages_have_their_markers(self):
        made = reproduction.tables(json.dumps(claims()), "results")
        self.assertEqual(len(reproduction.changed(made, ROOT)), len(made))

    def test_wrong_usage_is_refused(self):
        for arguments in [["--chekc"], ["a", "b"], ["--check", "--check", "a"]]:
            with self.subTest(arguments=arguments), contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(reproduction.main(arguments, self.place), 2)


if __name__ == "__main__":
    unittest.main()
