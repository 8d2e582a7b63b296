"""An agent's trace (W3C Trace Context) finds what the server did for it: in the log, in GET /requests, by hearth why."""

import json
import os
import subprocess
import urllib.request

import pytest

from conftest import serve
from lib import server as servers
from ondisk import kept

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def sim():
    with serve("--engine", "sim") as server:
        yield server


def url(server):
    return f"http://127.0.0.1:{server.port}"


def ask(server, traceparent):
    """The report of a request with that header."""
    request = urllib.request.Request(
        url(server) + "/v1/chat/completions",
        json.dumps({"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}).encode(),
        {"Content-Type": "application/json", "traceparent": traceparent})
    with urllib.request.urlopen(request, timeout=60) as answer:
        identity = answer.headers["x-request-id"]
        answer.read()
    return kept(server, identity)


@pytest.mark.parametrize("header", [
    f"00-{TRACE}-{PARENT}-01",
    f"00-{TRACE}-{PARENT}-00",
    f"00-{TRACE}-{PARENT}-ff",
    f"cc-{TRACE}-{PARENT}-01",
    f"cc-{TRACE}-{PARENT}-01-what-comes-later",
    f"  00-{TRACE}-{PARENT}-01  ",
])
def test_well_formed(sim, header):
    assert ask(sim, header)["trace"] == TRACE


@pytest.mark.parametrize("header", [
    "", "00", "00-", TRACE, f"00-{TRACE}", f"00-{TRACE}-{PARENT}", f"00-{TRACE}-{PARENT}-", f"00-{TRACE}-{PARENT}-0",
    f"00-{TRACE}-{PARENT}-01-", f"00-{TRACE}-{PARENT}-01-more", f"00-{TRACE}-{PARENT}-011",
    f"ff-{TRACE}-{PARENT}-01", f"cc-{TRACE}-{PARENT}-01.", f"0-{TRACE}-{PARENT}-01", f"0x-{TRACE}-{PARENT}-01",
    f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{PARENT}-01",
    f"00-{TRACE[1:]}-{PARENT}-01", f"00-{TRACE}a-{PARENT}-01", f"00-{TRACE}-{PARENT[1:]}-01",
    f"00-{TRACE[:-1]}g-{PARENT}-01", f"00_{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-0G", "00-" * 1000,
])
def test_malformed_is_no_error(sim, header):
    assert ask(sim, header)["trace"] is None


def test_log_list_and_why():
    with serve("--engine", "sim") as server:
        other = "a" * 32
        reports = [ask(server, f"00-{trace}-{PARENT}-01") for trace in (TRACE, other, TRACE)]
        found = server.client.get(f"/requests?trace={TRACE}")["data"]
        assert [one["id"] for one in found] == [reports[2]["id"], reports[0]["id"]]
        assert server.client.get(f"/requests?trace={TRACE[:16]}")["data"] == []
        assert server.client.get(f"/requests/{reports[0]['id']}")["trace"] == TRACE

        def why(*arguments, status=0):
            done = subprocess.run([servers.hearth_path(), "why", "--url", url(server), *arguments], text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
                                  env={**os.environ, "HEARTH_URL": "", "HEARTH_API_KEY": ""})
            assert done.returncode == status, done
            return done

        text = why(TRACE).stdout
        assert text.index(reports[0]["id"]) < text.index(reports[2]["id"])
        assert reports[1]["id"] not in text and f"trace {TRACE}" in text
        assert [one["id"] for one in json.loads(why(TRACE, "--json").stdout)] == [one["id"] for one in found]
        assert "no request of the trace" in why("b" * 32, status=1).stderr
        lines = [line for line in server.log().splitlines() if f" trace={TRACE}" in line]
    assert len(lines) == 2 and reports[0]["id"] in lines[0]
