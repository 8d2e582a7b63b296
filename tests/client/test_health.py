"""What does not work is said at the start and by /health, and costs nobody anything else."""

import contextlib
import os
import subprocess

import httpx
import pytest

from conftest import serve
from faulty import Faults
from lib import server as servers
from ondisk import reasons, wait_until

SIM = ["--engine", "sim", "-c", "4096"]
USER = {"role": "user", "content": "Hello."}
# A server whose user may not do what rights forbid, root or not.
NO_MORE_THAN_RIGHTS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def health(running):
    return running.client.get("/health")


def call(running, method, path, body=None):
    answer = httpx.request(method, f"http://127.0.0.1:{running.port}{path}", json=body, timeout=60)
    return answer.status_code, answer.json()


def chat(running, **more):
    return call(running, "POST", "/v1/chat/completions", {"messages": [USER], "max_tokens": 2, **more})


def respond(running, **more):
    return call(running, "POST", "/v1/responses", {"model": "any", "input": "Hello.", "max_output_tokens": 2, **more})


def test_two_servers_on_one_database(tmp_path):
    flags = [*SIM, "--session-db", str(tmp_path / "sessions.db")]
    with serve(*flags) as first:
        assert reasons(first) == {}
        with serve(*flags) as second:
            for running in (second, first):
                wait_until(lambda: "session_shared" in reasons(running), "it is said")
                message = reasons(running)["session_shared"]
                assert str(tmp_path / "sessions.db") in message and running.log().count(message) == 1


def test_two_servers_on_one_cache_directory(tmp_path):
    flags = [*SIM, "--kv-dir", str(tmp_path)]
    told = f"disk: another server uses {tmp_path}, too"
    with serve(*flags) as first:
        assert health(first)["disk"]["shared"] is False
        with serve(*flags) as second:
            assert health(second)["disk"]["shared"] is True  # since its start
            wait_until(lambda: health(first)["disk"]["shared"], "the other one sees it, too")
            assert health(first)["status"] == health(second)["status"] == "ok"
            assert 'hearth_disk_shared 1' in httpx.get(f"http://127.0.0.1:{first.port}/metrics").text
            assert first.log().count(told) == second.log().count(told) == 1
            second.kill()
        wait_until(lambda: not health(first)["disk"]["shared"], "a server that died is none")


@contextlib.contextmanager
def on_faulty_disk(faulty_fs, tmp_path, *rules):
    """A server with all that it keeps on a disk with these faults."""
    faults = Faults(faulty_fs, tmp_path, tmp_path)
    faults.set(*rules)
    with serve(*SIM, "--kv-dir", str(tmp_path / "kv"), "--kv-disk", "64", "--session-db",
               str(tmp_path / "data" / "sessions.db"), "--kv-io", "threads", env=faults.env) as running:
        yield running, faults


def test_a_nearly_full_disk(faulty_fs, tmp_path):
    with on_faulty_disk(faulty_fs, tmp_path, "space SHORT") as (running, faults):
        wait_until(lambda: set(reasons(running)) == {"kv_disk", "session_disk"}, "both are said")
        for message in reasons(running).values():
            assert "nearly full" in message and running.log().count(message) == 1
        metrics = httpx.get(f"http://127.0.0.1:{running.port}/metrics").text
        for condition in ("kv_disk", "session_disk"):
            assert f'hearth_degraded{{condition="{condition}"}} 1' in metrics
        assert chat(running)[0] == 200 and chat(running, session_id="diary")[0] == 200
        faults.set()
        wait_until(lambda: reasons(running) == {}, "it is over", 60)


def test_a_disk_that_is_full_at_the_start(faulty_fs, tmp_path):
    """A budget that nobody chose follows from what is free: nothing is kept until something is."""
    faults = Faults(faulty_fs, tmp_path, tmp_path)
    faults.set("space SHORT")
    with serve(*SIM, "--kv-dir", str(tmp_path / "kv"), "--kv-io", "threads", env=faults.env) as running:
        wait_until(lambda: "a fifth of what is free" in reasons(running).get("kv_disk", ""), "it is said")
        faults.set()
        wait_until(lambda: reasons(running) == {} and health(running)["disk"]["budget_bytes"] > 1 << 20, "it is over", 60)


@pytest.mark.parametrize("error", ["EROFS", "ENOSPC"])
def test_a_database_that_can_be_read_only(faulty_fs, tmp_path, error):
    """From some moment on nothing can be written. What needs no store works; what was stored can be read; what cannot
    be stored is an error, and what was said is there when it can be written again."""
    with on_faulty_disk(faulty_fs, tmp_path) as (running, faults):
        assert chat(running, session_id="diary")[0] == 200
        status, made = respond(running)
        assert status == 200
        rules = f"write {error}", f"sync {error}", f"open {error}"
        faults.set(*rules)
        assert chat(running)[0] == 200 and respond(running, store=False)[0] == 200
        assert call(running, "GET", f"/v1/responses/{made['id']}")[1]["id"] == made["id"]
        for answer in (chat(running, session_id="diary"), chat(running, session_id="new"), respond(running),
                       respond(running, previous_response_id=made["id"])):
            assert answer[0] in (500, 503) and answer[1]["error"]["message"], answer
        faults.set(*rules, "space SHORT")
        wait_until(lambda: "kv_disk" in reasons(running), "the disk was looked at", 60)
        assert "cannot be written" in reasons(running)["session_disk"]  # which says more than that it is nearly full
        assert call(running, "GET", "/v1/sessions/diary")[1]["turns"] == 1
        faults.set()
        again = {"role": "user", "content": "Hello again."}
        assert chat(running, session_id="diary", messages=[again])[0] == 200
        assert call(running, "GET", "/v1/sessions/diary")[1]["turns"] == 2
        wait_until(lambda: "session_disk" not in reasons(running), "it is over")


def stand_ins(folder, kind):
    """Makes a database that cannot be used where the usual one is."""
    database = folder / "hearth" / "hearth.db"
    database.parent.mkdir()
    if kind == "of somebody else":
        database.write_text("Milk, eggs, a new kettle.\n")
    else:
        with serve(*SIM, "--session-db", str(database)) as running:
            assert chat(running, session_id="diary")[0] == 200
        database.chmod(0o400)
    return database


@pytest.mark.parametrize("kind", ["of somebody else", "read-only"])
def test_a_usual_database_that_cannot_be_used(tmp_path, kind):
    """Conversations are kept in memory; one that is not there may be in the file, and is never begun anew."""
    database = stand_ins(tmp_path, kind)
    before = database.read_bytes()
    env = {**servers.surroundings(), "HEARTH_SESSION_DB": "", "XDG_DATA_HOME": str(tmp_path)}
    command = [*NO_MORE_THAN_RIGHTS, servers.hearth_path(), "serve", *SIM]
    with servers.Server(command, env=env) as running:
        message = reasons(running)["session_db"]
        assert str(database) in message and running.log().count(message) == 1
        status, made = respond(running)
        assert status == 200 and chat(running)[0] == 200 and respond(running, previous_response_id=made["id"])[0] == 200
        named = "resp_0123456789abcdef0123456789abcdef"
        for status, answer in (chat(running, session_id="diary"), respond(running, previous_response_id=named),
                               respond(running, conversation="diary"), call(running, "GET", "/v1/sessions/diary"),
                               call(running, "DELETE", "/v1/sessions/diary"),
                               call(running, "GET", "/v1/conversations/diary"),
                               call(running, "GET", "/v1/conversations/diary/items"),
                               call(running, "GET", f"/v1/responses/{named}")):
            assert status == 503 and answer["error"]["code"] == "session_store_unavailable", answer
        assert call(running, "POST", "/v1/sessions", {"name": "new"})[0] == 200
        assert chat(running, session_id="new")[0] == 200
    assert database.read_bytes() == before
    done = subprocess.run([*NO_MORE_THAN_RIGHTS, servers.hearth_path(), "serve", "--port", "0", *SIM, "--session-db",
                           str(database)], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and str(database) in done.stderr


PAGE = 4096


def swapped(data):
    """Two pages in the place of each other."""
    count = len(data) // PAGE
    pages = [data[i * PAGE:(i + 1) * PAGE] for i in range(count)]
    pages[count // 2], pages[count - 1] = pages[count - 1], pages[count // 2]
    return b"".join(pages)


DAMAGE = {
    "cut in the middle": lambda data: data[:len(data) // 2 // PAGE * PAGE],
    "cut within a page": lambda data: data[:-1000],
    "the end is zeroes": lambda data: data[:len(data) // 2] + bytes(len(data) - len(data) // 2),
    "two pages swapped": swapped,
    "one page of noise": lambda data: data[:-3 * PAGE] + bytes(range(256)) * 16 + data[-2 * PAGE:],
}


@pytest.fixture(scope="module")
def diary(tmp_path_factory):
    """A database with a conversation of four turns, as a server that has ended leaves it."""
    path = tmp_path_factory.mktemp("diary") / "sessions.db"
    with serve(*SIM, "--session-db", str(path)) as running:
        for day in range(4):
            told = {"role": "user", "content": f"Dear diary, day {day}. " + "It rained. " * 50}
            assert chat(running, session_id="diary", messages=[told])[0] == 200
    return path.read_bytes()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_database_is_an_error(diary, tmp_path, damage):
    """A conversation is there as it was, or it is an error: never shorter, empty or begun anew."""
    path = tmp_path / "sessions.db"
    path.write_bytes(DAMAGE[damage](diary))
    path.chmod(0o600)
    before = path.read_bytes()
    try:
        running = serve(*SIM, "--session-db", str(path))
    except RuntimeError as error:
        assert "ended with 1" in str(error) and str(path) in str(error) and path.read_bytes() == before
        return
    with running:
        assert chat(running)[0] == 200
        status, answer = call(running, "GET", "/v1/sessions/diary")
        assert answer["turns"] == 4 if status == 200 else status in (500, 503)
        status, answer = call(running, "GET", "/v1/conversations/diary/items?limit=100")
        assert len(answer["data"]) == 8 if status == 200 else status in (500, 503)
        status, answer = chat(running, session_id="diary", messages=[{"role": "user", "content": "And today?"}])
        if status == 200:
            assert answer["usage"]["prompt_tokens"] > 400
        else:
            assert status in (500, 503) and answer["error"]["message"]
            assert "session_db" in reasons(running)
