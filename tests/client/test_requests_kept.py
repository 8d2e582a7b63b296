"""What is told of the last requests outlasts the server where there is a session database, and goes with what it is
about."""

import json
import os
import sqlite3
import subprocess
import urllib.error
import urllib.request

import pytest

from conftest import serve
from lib import server as servers
from ondisk import wait_until

SIM = ("--engine", "sim", "-np", "2")
SYSTEM = "You are an assistant that keeps to the facts.\nToday: {}\n" + "Say what you know, and say it in few words. " * 8


def url(server):
    return f"http://127.0.0.1:{server.port}"


def call(server, method, path, body=None, headers=None, status=200):
    request = urllib.request.Request(url(server) + path, None if body is None else json.dumps(body).encode(),
                                     {"Content-Type": "application/json", **(headers or {})}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer), answer.headers["x-request-id"]
    except urllib.error.HTTPError as error:
        assert error.code == status, error.read()
        return None, None


def ask(server, text, day="2026-11-23", session=None, headers=None):
    """Asks, and returns the id of the request."""
    headers = {**({"x-session-id": session} if session else {}), **(headers or {})}
    messages = [{"role": "user", "content": text}]
    messages = messages if session and day is None else [{"role": "system", "content": SYSTEM.format(day)}, *messages]
    return call(server, "POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 4}, headers)[1]


def requests(server, headers=None):
    return {one["id"]: one for one in call(server, "GET", "/requests?limit=1000", headers=headers)[0]["data"]}


def stored(database):
    """The ids that are on disk."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return {row[0] for row in connection.execute("SELECT request FROM requests")}


@pytest.fixture()
def database(tmp_path):
    return tmp_path / "sessions.db"


def begin(database, *flags):
    return serve(*SIM, "--session-db", str(database), *flags)


def diverged(server):
    """A request whose prompt left an earlier one, and what is told of it."""
    ask(server, "Who was the first?")
    identity = ask(server, "Who was the first?", day="2026-11-24")
    wait_until(lambda: identity in requests(server))
    return identity, call(server, "GET", f"/requests/{identity}")[0]


@pytest.mark.parametrize("killed", [False, True], ids=["SIGTERM", "SIGKILL"])
def test_a_restart(database, killed):
    with begin(database) as server:
        identity, report = diverged(server)
        wait_until(lambda: identity in stored(database))
        listed = requests(server)
        if killed:
            server.kill()
        else:
            last = ask(server, "Once more.")  # what is still in memory when the server ends is written
    assert report["divergence"]["before"] and report["divergence"]["cause"] == "volatile_line"
    with begin(database) as server:
        found = requests(server)
        assert {name: found[name] for name in listed} == listed
        assert killed or last in found
        assert call(server, "GET", f"/requests/{identity}")[0] == report
        why = subprocess.run([servers.hearth_path(), "why", "--url", url(server), identity], capture_output=True,
                             text=True, timeout=60, env={**os.environ, "HEARTH_URL": "", "HEARTH_API_KEY": ""})
        assert "line 2 of the system text" in why.stdout, why
        newest = ask(server, "And now?")
        wait_until(lambda: newest in stored(database))
        assert list(requests(server))[0] == newest


def test_only_so_many(database):
    with begin(database, "--keep-requests", "3") as server:
        asked = [ask(server, f"Question {i}.") for i in range(6)]
        wait_until(lambda: stored(database) == set(asked[-3:]))
    with begin(database, "--keep-requests", "2") as server:
        assert set(requests(server)) == set(asked[-2:])
    with begin(database, "--keep-requests", "0"):
        assert stored(database) == set()


def test_no_texts(database):
    with begin(database, "--no-keep-texts") as server:
        identity, report = diverged(server)
        assert "before" not in report["divergence"]
        assert report["verdicts"][0]["cause"] == "volatile_line"
        assert "2026-11-24" not in json.dumps([report, call(server, "GET", "/requests")[0]])
    with begin(database) as server:
        assert "before" not in call(server, "GET", f"/requests/{identity}")[0]["divergence"]
        identity, _ = diverged(server)
    with begin(database, "--no-keep-texts") as server:  # what was stored with texts is not told
        assert identity not in requests(server)
        assert "2026-11-24" not in json.dumps(call(server, "GET", "/requests")[0])


@pytest.mark.parametrize("running", [True, False], ids=["at once", "after a restart"])
def test_a_session_that_is_deleted(database, running):
    with begin(database) as server:
        gone = [ask(server, "My secret is a badger.", session="the diary"),
                ask(server, "Another secret.", day=None, session="the diary")]
        left = ask(server, "What is a badger?", session="animals")
        wait_until(lambda: {*gone, left} <= stored(database))
        if running:
            call(server, "DELETE", "/v1/sessions/the%20diary")
            assert not set(gone) & set(requests(server))
            call(server, "GET", f"/requests/{gone[0]}", status=404)
    if not running:
        subprocess.run([servers.hearth_path(), "sessions", "rm", "--db", str(database), "--yes", "the diary"],
                       check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert stored(database) == {left}
    with begin(database) as server:
        assert set(requests(server)) == {left}


def test_a_session_that_another_process_deletes(database):
    with begin(database) as server:
        gone = ask(server, "My secret is a badger.", session="the diary")
        left = ask(server, "What is a badger?", session="animals")
        wait_until(lambda: {gone, left} <= stored(database))
        subprocess.run([servers.hearth_path(), "sessions", "rm", "--db", str(database), "--yes", "the diary"],
                       check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        wait_until(lambda: set(requests(server)) == {left})


def test_a_response_that_is_deleted(database):
    with begin(database) as server:
        answer, gone = call(server, "POST", "/v1/responses", {"input": "My secret is a badger.", "max_output_tokens": 16})
        _, left = call(server, "POST", "/v1/responses", {"input": "What is a badger?", "max_output_tokens": 16})
        wait_until(lambda: {gone, left} <= stored(database))
        call(server, "DELETE", f"/v1/responses/{answer['id']}")
        assert set(requests(server)) == {left}
        assert stored(database) == {left}


def test_keys_see_their_own_after_a_restart(database, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k-olga name=olga\nk-ivan name=ivan\nk-root name=root scope=infer,sessions,admin\n")
    keys.chmod(0o600)
    olga, ivan, root = ({"Authorization": f"Bearer k-{name}"} for name in ("olga", "ivan", "root"))
    with begin(database, "--api-key-file", str(keys)) as server:
        first, second = ask(server, "I am Olga.", headers=olga), ask(server, "I am Ivan.", headers=ivan)
    with begin(database, "--api-key-file", str(keys)) as server:
        assert set(requests(server, olga)) == {first}
        assert set(requests(server, ivan)) == {second}
        assert {first, second} <= set(requests(server, root))
        call(server, "GET", f"/requests/{first}", headers=ivan, status=404)
