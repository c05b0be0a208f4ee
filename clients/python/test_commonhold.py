"""What commonhold.py makes of what a daemon answers: run by crates/commonhold/tests/daemon/programs.rs."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import commonhold


class Daemon:
    """Answers one client with some bytes, and hangs up."""

    def __init__(self, answer: bytes) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "socket")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.answer, self.asked = answer, b""
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        client, _ = self.listener.accept()
        with client:
            self.asked = client.recv(4096)
            client.sendall(self.answer)

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.join()
        self.listener.close()
        self.folder.cleanup()


class Answers(unittest.TestCase):
    def waited(self, answer: bytes) -> commonhold.Awaited:
        with Daemon(answer) as daemon, commonhold.Client(daemon.path) as client:
            return client.wait(1, at_most=0)

    def test_an_offer_is_sent_with_its_terms(self) -> None:
        with Daemon(b'{"parameters":{"offer":4,"tickets":[]}}\0') as daemon, commonhold.Client(daemon.path) as client:
            made = client.offer("a", "disk:30", "memory:2GiB", to="c", lasting=0.5, while_connected=True)
        self.assertEqual(made, commonhold.Made(4, None))
        self.assertEqual(
            daemon.asked,
            b'{"method": "io.commonhold.Change", "parameters": {"kind": "offer", "unit": "a", "gives": "disk:30", '
            b'"wants": "memory:2GiB", "while_connected": true, "with": "c", "for_ns": 500000000}}\0',
        )

    def test_any_reply_is_a_result_or_an_error(self) -> None:
        served = self.waited(b'{"parameters":{"number":1,"state":"served","exchange":7}}\0')
        self.assertEqual(served, commonhold.Awaited(1, "served", 7))
        with self.assertRaises(commonhold.Refused) as refused:
            self.waited(b'{"error":"io.commonhold.NoSuchOffer","parameters":{"message":"no"}}\0')
        self.assertEqual((refused.exception.name, str(refused.exception)), ("io.commonhold.NoSuchOffer", "no"))
        for answer in b"nonsense\0", b"\0", b"[]\0", b'{"parameters":[]}\0', b'{"parameters":{}}\0', b"\xff\0":
            with self.subTest(answer), self.assertRaises(commonhold.NotUnderstood):
                self.waited(answer)
        for answer in b"", b'{"parameters":{}}':
            with self.subTest(answer), self.assertRaises(commonhold.HungUp):
                self.waited(answer)

    def test_a_program_that_is_started_does_not_inherit_the_connection(self) -> None:
        with Daemon(b"") as daemon, commonhold.Client(daemon.path) as client:
            fd = client._socket.fileno()
            code = f"import os, sys; sys.exit(os.path.exists('/proc/self/fd/{fd}'))"
            started = subprocess.run([sys.executable, "-c", code], close_fds=False)
            self.assertEqual(started.returncode, 0)

    def test_no_daemon(self) -> None:
        with self.assertRaises(OSError):
            commonhold.Client("/nowhere/socket")


if __name__ == "__main__":
    unittest.main()
