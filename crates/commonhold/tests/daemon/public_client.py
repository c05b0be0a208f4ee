"""Calls the daemon by the public varlink module (https://pypi.org/project/varlink), which knows nothing of Commonhold.

usage: public_client.py SOCKET      (varlink.rs runs it; exit status 77: the module is missing)
"""

import sys

try:
    import varlink
except ImportError:
    sys.exit(77)


def refused(call, error: str, parameters: dict) -> None:
    """Checks that a call fails by an error of varlink's own that names what is wrong."""
    try:
        call()
    except varlink.VarlinkError as why:
        assert (why.error(), why.parameters()) == ("org.varlink.service." + error, parameters), why
    else:
        raise AssertionError(f"{error} was expected")


client = varlink.Client("unix:" + sys.argv[1])
assert sorted(client.get_interfaces()) == ["io.commonhold", "org.varlink.service"], client.info
assert client.info["product"] == "commonhold", client.info

# The module asks for the interface's description, parses it, and makes methods of it.
with client.open("io.commonhold") as daemon:
    status = daemon.Status()
    assert [account["unit"] for account in status["statement"]["accounts"]] == ["a", "b"], status
    assert daemon.Tickets()["tickets"], "more calls over the same connection"
    refused(lambda: daemon.Monitor(every_ms=1), "InvalidParameter", {"parameter": "every_ms: it must be at least 250"})

with client.open("io.commonhold") as daemon:
    replies = daemon.Monitor(every_ms=250, _more=True)
    first, later = next(replies), [next(replies) for _ in range(2)]
    assert first["whole"] and [unit["unit"] for unit in first["units"]] == ["a", "b"], first
    assert not any(reply["whole"] for reply in later), later

# The module itself refuses a method that is not described: here the description has one too many.
with client.open("io.commonhold") as daemon:
    described = daemon._interface
    described.members["Nothing"] = described.get_method("Tickets")
    refused(lambda: daemon._call("Nothing"), "MethodNotFound", {"method": "io.commonhold.Nothing"})

refused(lambda: client.open("io.nothing"), "InterfaceNotFound", {"interface": "io.nothing"})
