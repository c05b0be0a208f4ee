#!/usr/bin/env python3
"""Tests of bench/hardware, on folders and programs that imitate the kernel's; nothing is measured."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
loader = importlib.machinery.SourceFileLoader("bench_hardware", os.path.join(HERE, "hardware"))
hardware = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_hardware", loader))
loader.exec_module(hardware)


class Folder(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.at = place.name

    def put(self, path, text):
        path = os.path.join(self.at, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        hardware.write(text, path)

    def resctrl(self, **files):
        self.put("info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes\n")
        self.put("info/MB/min_bandwidth", "10\n")
        self.put("info/MB/bandwidth_gran", "30\n")
        self.put("schemata", "    MB:0=100;2=100\n    L3:0=f\n")
        os.makedirs(os.path.join(self.at, "mon_groups"), exist_ok=True)
        return hardware.Resctrl(self.at, mount=False)


class Groups(Folder):
    def test_percentages_are_those_of_the_processor(self):
        self.assertEqual(self.resctrl().percentages(), [100, 70, 40, 10])

    def test_rates_are_left_alone(self):
        found = self.resctrl()
        self.put("schemata", "MB:0=2048;1=  16\n")
        with self.assertRaisesRegex(hardware.Missing, "AMD"):
            found.percentages()

    def test_a_cap_is_for_all_domains_and_read_back(self):
        self.assertEqual(self.resctrl().cap(self.at, 40), {0: 40, 2: 40})

    def test_counts_are_summed_and_what_cannot_be_read_is_nothing(self):
        found = self.resctrl()
        for domain, text in (("mon_L3_00", "70\n"), ("mon_L3_01", "Unavailable\n"), ("mon_L3_02", "7\n"), ("mon_X", "9\n")):
            self.put(f"g/mon_data/{domain}/mbm_total_bytes", text)
        self.assertEqual(found.bytes(os.path.join(self.at, "g"), "mbm_total_bytes"), 77)
        self.assertEqual(found.events(), ["mbm_total_bytes"])

    def test_what_is_held_is_summed(self):
        found = self.resctrl()
        self.assertTrue(found.tells_occupancy())
        for domain, text in (("mon_L3_00", "65536\n"), ("mon_L3_01", "4096\n")):
            self.put(f"g/mon_data/{domain}/llc_occupancy", text)
        self.assertEqual(found.bytes(os.path.join(self.at, "g"), hardware.OCCUPANCY), 69632)
        self.put("info/L3_MON/mon_features", "mbm_total_bytes\n")
        self.assertFalse(found.tells_occupancy())

    def test_groups_are_removed_and_a_mount_of_anothers_stays(self):
        found = self.resctrl()
        made = [found.group(), found.group(control=True)]
        self.assertTrue(all(os.path.isdir(path) for path in made))
        with mock.patch.object(hardware.subprocess, "run") as run:
            found.close()
            run.assert_not_called()
        self.assertFalse(any(os.path.exists(path) for path in made))

    def test_a_machine_without_it_says_so(self):
        with self.assertRaisesRegex(hardware.Missing, "neither the kernel"):
            hardware.Resctrl(os.path.join(self.at, "nothing"))
        os.rename(self.resctrl().at + "/mon_groups", self.at + "/other")
        with self.assertRaisesRegex(hardware.Missing, "no group left"):
            hardware.Resctrl(self.at, mount=False).group()


class Programs(Folder):
    def program(self, text):
        self.put("bbma", f"#!/bin/sh\n{text}\n")
        os.chmod(os.path.join(self.at, "bbma"), 0o755)
        return mock.patch.object(hardware, "GANGS", self.at)

    def test_what_one_says_is_read_and_it_waits_until_it_is_counted(self):
        seen = []
        with self.program('echo "5 writes, 4.000 ns each, $$.0 MB/s"'):
            found = hardware.rates("bbma", 1, 1, seen.append)
        # It has the PID under which it was counted, and that from its beginning.
        self.assertEqual(found, [(float(seen[0]), 2.5e8)])

    def test_one_that_fails_is_an_error(self):
        with self.program("echo broken; exit 3"), self.assertRaisesRegex(RuntimeError, "bbma failed, and said `broken`"):
            hardware.rates("bbma", 1, 1)

    def test_instructions_that_nobody_counts_are_said_for_each(self):
        with self.program("sleep 0"), mock.patch.object(hardware, "Counter", side_effect=hardware.Missing("no such")):
            rows = hardware.kin(None, 0, 2)
        self.assertEqual([row[1:] for row in rows], [[copies, "not here: no such", "-"] for copies in (1, 2, 1, 2)])

    def test_instructions_and_what_is_held_are_of_each_copy(self):
        counter, resctrl = mock.Mock(), mock.Mock()
        counter.value.return_value = 0
        resctrl.group.return_value = self.at
        resctrl.bytes.return_value = 3 << 20
        with self.program('echo "5 writes, 4.000 ns each, 1.0 MB/s"'):
            os.link(os.path.join(self.at, "bbma"), os.path.join(self.at, "nbbma"))
            with mock.patch.object(hardware, "Counter", return_value=counter):
                rows = hardware.kin(resctrl, 0, 2)
        self.assertEqual(rows[1], ["bbma", 2, "0.00", "3.00"])
        self.assertEqual(counter.close.call_count, 6)

    def test_one_that_cannot_be_counted_is_ended(self):
        def refuse(pid):
            seen.append(pid)
            raise hardware.Missing("no")
        seen = []
        with self.program("sleep 100"), self.assertRaises(hardware.Missing):
            hardware.start("bbma", 1, refuse)
        self.assertFalse(os.path.exists(f"/proc/{seen[0]}"))

    def test_what_is_not_built_is_named(self):
        said = io.StringIO()
        with mock.patch.object(hardware, "PROGRAM", os.path.join(self.at, "no")), contextlib.redirect_stderr(said):
            self.assertEqual(hardware.main([]), 2)
        self.assertIn("make build gangs", said.getvalue())


class Words(unittest.TestCase):
    def test_numbers_stand_to_the_right(self):
        self.assertEqual(hardware.table(["a", "b"], [["long one", "1.5"], ["x", "100"]]), "a         b\nlong one  1.5\nx         100")

    def test_a_counter_that_is_not_there_is_said(self):
        with mock.patch.object(hardware.platform, "machine", return_value="odd"):
            with self.assertRaisesRegex(hardware.Missing, "odd"):
                hardware.Counter("cache misses", os.getpid())


if __name__ == "__main__":
    unittest.main()
