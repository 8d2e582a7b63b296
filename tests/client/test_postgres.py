"""Boxes that keep their conversations in a PostgreSQL, as clients see them: each goes on with what another one has begun,
what is deleted is gone on all of them, and a database that fails costs a 503, never a turn that was acknowledged.

HEARTH_KILLS is how often the database is killed in mid-turn (default 3).
"""

import contextlib
import http.client
import json
import os
import random
import subprocess
import threading
import time

import pytest

import store as redis
from conftest import serve
from lib import server as servers
from lib.client import HttpError
from lib.text import Text
from ondisk import model_flags, wait_until
from postgres import BIN, MISSING, Postgres

pytestmark = pytest.mark.skipif(not BIN, reason=MISSING)
KILLS = int(os.environ.get("HEARTH_KILLS", "3"))
SECRET = "not to be told"


@pytest.fixture(scope="module")
def server():
    with Postgres() as running:
        yield running


@pytest.fixture
def database(server, request):
    return server.database(f"{request.node.name[:40]}-{random.randrange(10**6)}")


def box(url, *flags, model="sim", **options):
    return serve(*model_flags(model), "-c", "8192", "-np", "2", "--cache-ram", "256", "--session-db", url, *flags, **options)


def two(stack, url, *flags):
    return [stack.enter_context(box(url, "--kv-disk", "0", *flags)) for _ in range(2)]


def respond(running, text, **more):
    return running.client.post("/v1/responses", {"model": "any", "input": text, "max_output_tokens": 8, "temperature": 0, **more})


def fails(running, path, body):
    """The status, the body and Retry-After of a request that is refused."""
    connection = http.client.HTTPConnection(running.client.host, running.client.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    with contextlib.closing(connection):
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.getheader("Retry-After")


def status_of(running, text, **more):
    return fails(running, "/v1/responses", {"model": "any", "input": text, "max_output_tokens": 4, **more})[0]


def reasons(running):
    return {reason["condition"]: reason["message"] for reason in running.client.get("/health")["reasons"]}


def test_a_response_goes_on_at_another_box(database):
    with contextlib.ExitStack() as stack:
        boxes = two(stack, database)
        answer = respond(boxes[0], "The first thing.")
        for number in range(1, 6):
            answer = respond(boxes[number % 2], f"Thing number {number}.", previous_response_id=answer["id"])
        assert boxes[1].client.get(f"/v1/responses/{answer['id']}")["id"] == answer["id"]
        assert boxes[0].client.get(f"/v1/responses/{answer['id']}")["id"] == answer["id"]


@pytest.mark.skipif(not redis.PROGRAM, reason="Redis is not installed")
def test_nothing_is_computed_again_where_state_is_shared_too(database, tmp_path):
    spent, known, new = 0, 0, 0
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(redis.Store(tmp_path))
        boxes = two(stack, database, "--kv-remote", shared.url())
        previous = {}
        for number in range(8):
            running = boxes[number % 2]
            answer = respond(running, Text(f"turn {number}").words(80), **previous)
            previous = {"previous_response_id": answer["id"]}
            usage = answer["usage"]
            spent += usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]
            new, known = new + usage["input_tokens"] - known, usage["input_tokens"]
            wait_until(lambda: running.client.metrics()["hearth_remote_queued_bytes"] == 0, "it is written")
    assert spent <= 1.05 * new, (spent, new)


def test_a_session_wanders_and_is_deleted_everywhere(database):
    with contextlib.ExitStack() as stack:
        boxes = two(stack, database)
        for number in range(4):
            boxes[number % 2].client.post("/v1/messages", {
                "model": "any", "max_tokens": 8, "session_id": "wanders",
                "messages": [{"role": "user", "content": f"Turn {number} of it."}]})
        assert [session["id"] for session in boxes[0].client.get("/v1/sessions")["data"]] == ["wanders"]
        assert boxes[1].client.get("/v1/sessions/wanders")["turns"] == 4
        boxes[1].client.delete("/v1/sessions/wanders")
        assert boxes[0].client.get("/v1/sessions")["data"] == []


def test_no_password_is_told(tmp_path):
    with Postgres(password=SECRET) as own:
        with box(own.url()) as running:
            respond(running, "Hello.")
            told = "".join(running.client._text("GET", path) for path in ["/props", "/health", "/metrics"])
            log = running.log()
    assert SECRET not in told and SECRET not in log and "not%20to" not in told + log


def test_a_database_that_is_gone_costs_a_503(tmp_path):
    with Postgres() as own, box(own.url()) as running:
        answer = respond(running, "Hello.")
        own.kill()
        status, body, wait = fails(running, "/v1/responses", {"model": "any", "input": "And?", "max_output_tokens": 4,
                                                              "previous_response_id": answer["id"]})
        assert status == 503 and body["error"]["message"] and int(wait) > 0
        status, body, wait = fails(running, "/v1/messages", {"model": "any", "max_tokens": 4, "session_id": "s",
                                                             "messages": [{"role": "user", "content": "Hi"}]})
        assert status == 503 and body["type"] == "error" and int(wait) > 0
        chat = running.client.post("/v1/chat/completions", {"max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]})
        assert chat["choices"]
        assert "session_db" in reasons(running) and "postgresql://" in reasons(running)["session_db"]
        own.start()
        wait_until(lambda: status_of(running, "And?", previous_response_id=answer["id"]) == 200, "it goes on")
        wait_until(lambda: "session_db" not in reasons(running), "it is well again")


def test_no_turn_that_was_acknowledged_is_lost(tmp_path):
    """The database is killed again and again while two boxes talk."""
    with Postgres() as own, contextlib.ExitStack() as stack:
        boxes, said, others, stop = two(stack, own.url()), [], set(), threading.Event()

        def talk(number):
            previous = {}
            while not stop.is_set():
                try:
                    answer = respond(boxes[number % 2], "On with it.", **previous)
                except (OSError, http.client.HTTPException, HttpError) as error:
                    others.update([str(error)] if getattr(error, "status", 503) != 503 else [])
                    time.sleep(0.02)  # a 503, or a connection: a client would try again
                    continue
                said.append((answer["id"], answer["status"], previous.get("previous_response_id")))
                previous = {"previous_response_id": answer["id"]} if len(said) % 20 else {}

        threads = [threading.Thread(target=talk, args=(number,), daemon=True) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            before = len(said)
            wait_until(lambda: len(said) > before + 5, f"they talk: {others}")
            time.sleep(random.random() * 0.2)
            own.kill()
            own.start()
        before = len(said)
        wait_until(lambda: len(said) > before + 5, "they talk again")
        stop.set()
        for thread in threads:
            thread.join()
        assert not others
        for identity, status, previous in said:
            found = boxes[0].client.get(f"/v1/responses/{identity}")
            assert found["previous_response_id"] == previous and found["status"] == status


def test_the_command_moves_conversations(database, tmp_path):
    program, file, moved = servers.hearth_path(), tmp_path / "other.db", str(tmp_path / "moved.json")

    def run(*words):
        return subprocess.run([program, "sessions", *words], capture_output=True, text=True, check=True).stdout

    with box(database) as running:
        for number in range(3):
            running.client.post("/v1/messages", {"model": "any", "max_tokens": 8, "session_id": "moves",
                                                 "messages": [{"role": "user", "content": f"Turn {number}."}]})
    assert "moves" in run("ls", "--db", database)
    run("export", "moves", moved, "--db", database)
    run("import", moved, "--db", str(file))
    run("import", moved, "--as", "again", "--db", database)
    assert "moves" in run("ls", "--db", str(file)) and "again" in run("ls", "--db", database)
    shown = [run("show", name, "--db", place).split("\n", 1)[1] for name, place in [("moves", str(file)), ("again", database)]]
    assert "Turn 2." in shown[0] and shown[0] == shown[1]
