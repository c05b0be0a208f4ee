"""A client of the daemon `commonhold run`: reads tickets, offers some for others, and waits until an offer is served.

    import commonhold

    with commonhold.Client("/run/commonhold/socket") as client:
        # The offer, and the exchange that serves it, last as long as this client at most.
        offer = client.offer(client.own_unit(), "disk:30", "cpu:20", while_connected=True)
        exchange = client.wait_until_served(offer.number, at_most=10)
        ...  # the work

A client is one connection, with synchronous requests: several threads use a client each. The daemon authenticates a client by
the socket's peer credentials: the user of the process when it connected. A forked process keeps its parent's connection open,
and so the offers that end with the connection. A process that `subprocess` starts does not.

This module needs Python 3.9 and nothing else.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from typing import Any, List, Optional, TypedDict, cast

__all__ = [
    "Client", "Made", "Awaited", "Tickets", "Standing", "Lent", "Exchange", "Offers",
    "Error", "Refused", "HungUp", "NotUnderstood", "Withdrawn",
]

SOCKET = "/run/commonhold/socket"
"""The socket of root's daemon."""

PATIENCE_S = 20.0
"""Timeout of a request: a daemon answers within milliseconds, unless it is stopped or stuck."""

ANSWER_BYTES_MAX = 64 << 20


class Error(Exception):
    """A request failed: the daemon refused it, did not answer, or answered in another format."""


class Refused(Error):
    """The daemon refused the request. `name` is such as `io.commonhold.TooFewTickets`; docs/protocol.md lists the names."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message or name)
        self.name = name
        self.message = message


class HungUp(Error):
    """The daemon closed the connection: it exited, or evicted the client for others. The client's held offers have ended."""


class NotUnderstood(Error):
    """The answer does not have the format of this version."""


class Withdrawn(Error):
    """An offer was not served: it was withdrawn, or its unit is gone."""


@dataclass(frozen=True)
class Made:
    """An offer that was made: its number, and the number of the exchange that served it at once; None: it is not served yet."""

    number: int
    exchange: Optional[int]


@dataclass(frozen=True)
class Awaited:
    """The outcome of waiting for an offer or an exchange."""

    number: int
    state: str
    """Of an offer `stands`, `served` or `withdrawn`; of an exchange `in-force` or `ended`."""
    exchange: Optional[int] = None
    """The exchange that served an offer."""
    why: Optional[str] = None
    """Why an exchange ended: `over`, `ended`, `gone` or `too-few`."""


class _Held(TypedDict, total=False):
    lent: int
    got: int


class Tickets(_Held):
    """A unit's tickets of one resource. `lent` and `got` are omitted where they are 0."""

    unit: str
    resource: str
    contract: int
    tickets: int
    entitled: int
    active: bool


# In functional syntax, because the key `with` is a keyword of Python.
_Terms = TypedDict("_Terms", {"with": str, "for_ns": int, "at_least": str, "waits": str}, total=False)


class Standing(_Terms):
    """An open offer. `with`, `for_ns`, `at_least` and `waits` are omitted where they do not apply."""

    number: int
    unit: str
    gives: str
    wants: str


# In functional syntax, because the key `from` is a keyword of Python.
Lent = TypedDict("Lent", {"from": str, "to": str, "what": str, "of": str}, total=False)


class _Ends(TypedDict, total=False):
    until_ns: int
    ended_ns: int
    why: str


class Exchange(_Ends):
    """An exchange. Times are in ns since the accounts were opened. If the key `ended_ns` is there, the exchange has ended."""

    number: int
    lent: List[Lent]
    began_ns: int


class Offers(TypedDict):
    """Open offers, and exchanges: those in force, and the last ones that ended."""

    offers: List[Standing]
    exchanges: List[Exchange]
    elapsed_ns: int


class Client:
    """A connection to the daemon. Offers that were made with `while_connected` end with the connection."""

    def __init__(self, path: str | os.PathLike[str] = SOCKET) -> None:
        """Connects to the daemon's socket. Raises OSError if no daemon listens there."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The bytes received after the last message's NUL.
        self._rest = b""
        try:
            self._socket.connect(os.fspath(path))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects. Offers that this client holds end."""
        self._socket.close()

    def status(self) -> dict[str, Any]:
        """All accounts, as `commonhold status --json` describes them."""
        return self.call("io.commonhold.Status")

    def unit_of(self, pid: int) -> str:
        """The path of the unit of a process; `shared` if it is in no other unit."""
        return str(self._field(self.call("io.commonhold.Where", pid=pid), "unit"))

    def own_unit(self) -> str:
        """The path of the unit of this process."""
        return self.unit_of(os.getpid())

    def tickets(self) -> list[Tickets]:
        """Every unit's tickets of every resource."""
        return self._tickets(self.call("io.commonhold.Tickets"))

    def transfer(self, source: str, to: str, resource: str, tickets: int) -> list[Tickets]:
        """Transfers tickets of a unit to a sibling, permanently. Returns the present tickets of both units."""
        return self._tickets(self._change("transfer", **{"from": source}, to=to, resource=resource, tickets=tickets))

    def offers(self) -> Offers:
        """Open offers, and exchanges."""
        return cast(Offers, self.call("io.commonhold.Offers"))

    def offer(
        self,
        unit: str,
        gives: str,
        wants: str,
        *,
        at_least: Optional[str] = None,
        to: Optional[str] = None,
        lasting: Optional[float] = None,
        while_connected: bool = False,
    ) -> Made:
        """Offers tickets of a unit, such as `disk:300`, for tickets of another unit. The offer may be served at once.

        at_least         the minimum that the unit accepts of `wants`, for a proportional part of `gives`; None: all
        to               the only unit that may serve the offer; None: any
        lasting          the longest duration of an exchange, in seconds; None: until a call ends the exchange
        while_connected  the offer, and the exchange that serves it, end with this connection, however the program ends
        """
        terms: dict[str, Any] = {"unit": unit, "gives": gives, "wants": wants, "while_connected": while_connected}
        if at_least is not None:
            terms["at_least"] = at_least
        if to is not None:
            terms["with"] = to
        if lasting is not None:
            terms["for_ns"] = _ns(lasting)
        answer = self._change("offer", **terms)
        return Made(int(self._field(answer, "offer")), answer.get("exchange"))

    def wait(self, number: int, at_most: Optional[float] = None) -> Awaited:
        """Waits until an offer is served or withdrawn, or an exchange has ended, but no longer than `at_most` seconds.

        None: no limit. If that time expires, the state is still `stands` or `in-force`. With 0, returns at once.
        """
        parameters: dict[str, Any] = {"number": number}
        if at_most is not None:
            parameters["at_most_ns"] = _ns(at_most)
        # The daemon answers when `at_most` has expired, so the socket's timeout is longer.
        timeout = None if at_most is None else at_most + PATIENCE_S
        answer = self._call("io.commonhold.Await", parameters, timeout)
        state = str(self._field(answer, "state"))
        return Awaited(number, state, answer.get("exchange"), answer.get("why"))

    def wait_until_served(self, offer: int, at_most: Optional[float] = None) -> Optional[int]:
        """Waits until an offer is served, but no longer than `at_most` seconds (None: no limit).

        Returns the exchange that serves the offer, or None if that time expires. Raises Withdrawn if the offer was not served.
        """
        awaited = self.wait(offer, at_most)
        if awaited.state == "served":
            return awaited.exchange
        if awaited.state == "stands":
            return None
        raise Withdrawn(f"offer {offer} was closed without a match")

    def cancel(self, number: int) -> list[Tickets]:
        """Withdraws an offer, or ends an exchange. Returns the present tickets of the units that took part."""
        return self._tickets(self._change("cancel", number=number))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Makes any call, and returns the parameters of its answer."""
        return self._call(method, parameters, PATIENCE_S)

    def _change(self, kind: str, **parameters: Any) -> dict[str, Any]:
        return self.call("io.commonhold.Change", kind=kind, **parameters)

    def _call(self, method: str, parameters: dict[str, Any], timeout: Optional[float]) -> dict[str, Any]:
        """Sends a request, and returns the parameters of its answer. A failed connection is closed."""
        request = json.dumps({"method": method, "parameters": parameters}).encode() + b"\0"
        try:
            self._socket.settimeout(PATIENCE_S)
            self._socket.sendall(request)
            self._socket.settimeout(timeout)
            message = self._receive()
        except BaseException as error:
            # A late answer would be taken for the answer to the next request.
            self.close()
            if isinstance(error, (BrokenPipeError, ConnectionResetError)):
                raise HungUp("the daemon hung up") from None
            if isinstance(error, socket.timeout):
                raise Error("the daemon does not answer in time") from None
            if isinstance(error, OSError):
                raise Error(f"the daemon cannot be reached: {error}") from error
            raise
        try:
            answer = json.loads(message)
        except ValueError as error:
            raise NotUnderstood(f"the daemon's answer is not understood: {error}") from None
        if not isinstance(answer, dict):
            raise NotUnderstood("the daemon's answer is no object")
        result = answer.get("parameters", {})
        if not isinstance(result, dict):
            raise NotUnderstood("the daemon's answer has parameters that are no object")
        if "error" in answer:
            raise Refused(str(answer["error"]), str(result.get("message") or result.get("parameter", "")))
        return result

    def _receive(self) -> bytes:
        """Waits for a message, and returns it without its NUL."""
        parts = [self._rest]
        length = len(self._rest)
        while b"\0" not in parts[-1]:
            part = self._socket.recv(1 << 16)
            if not part:
                raise HungUp("the daemon hung up")
            parts.append(part)
            length += len(part)
            if length > ANSWER_BYTES_MAX:
                raise NotUnderstood("the daemon's answer has no end")
        message, _, self._rest = b"".join(parts).partition(b"\0")
        return message

    @staticmethod
    def _field(answer: dict[str, Any], name: str) -> Any:
        try:
            return answer[name]
        except KeyError:
            raise NotUnderstood(f"the daemon's answer has no `{name}`") from None

    def _tickets(self, answer: dict[str, Any]) -> list[Tickets]:
        return cast("list[Tickets]", self._field(answer, "tickets"))


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1_000_000_000))
