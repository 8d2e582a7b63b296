"""Boxes that keep their conversations in a PostgreSQL, as clients see them: each goes on with what another one has begun,
what is deleted is gone on all of them, and a database that is away costs a 503."""

import contextlib
import json
import os
import random
import subprocess

import pytest

import store as redis
from boxes import box, fails, refuses, respond, status_of, two
from conftest import serve
from lib import server as servers
from lib.client import HttpError
from lib.text import Text
from ondisk import Talk, computed, model_flags, reasons, request, state_files, wait_until, wait_written
from postgres import BIN, MISSING, Postgres

pytestmark = pytest.mark.skipif(not BIN, reason=MISSING)
SECRET = "not to be told"


@pytest.fixture(scope="module")
def server():
    with Postgres() as running:
        yield running


@pytest.fixture
def database(server, request):
    return server.database(f"{request.node.name[:40]}-{random.randrange(10**6)}")


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
            redis.wait_written(running)
    assert spent <= 1.05 * new, (spent, new)


@pytest.mark.skipif(not redis.PROGRAM, reason="Redis is not installed")
def test_how_a_reply_was_sampled_is_known_on_every_box(server, database, tmp_path):
    """Histories that clients send themselves, with replies as the last box printed them."""
    talk, spent, new = Talk("wanders"), 0, 0
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(redis.Store(tmp_path))
        boxes = two(stack, database, "--kv-remote", shared.url())
        for number in range(8):
            running, known = boxes[number % 2], talk.known_tokens
            answer = request(running.client, talk.ask())
            talk.hear(answer)
            spent, new = spent + computed(answer), new + answer["usage"]["prompt_tokens"] - known
            replies = [[str(number + 1)]]
            redis.wait_written(running)
            wait_until(lambda: server.sql("SELECT count(*) FROM hearth_transcripts.replies", database.rpartition("/")[2]) == replies,
                       "and its reply")
    assert spent <= 1.05 * new, (spent, new)


def test_transcripts_of_a_file_are_carried_over(server, database, tmp_path):
    """What a server kept beside its state goes into the database, and not into a file."""
    talk = Talk("moves in")
    with serve(*model_flags("sim"), "-c", "8192", "--kv-dir", str(tmp_path), "--kv-disk", "64") as alone:
        for _ in range(3):
            talk.hear(request(alone.client, talk.ask()))
    [file] = tmp_path.glob("*/transcripts.db")
    words = [servers.hearth_path(), "sessions", "import", str(file), "--db", database]
    assert "imported" in subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert server.sql("SELECT count(*) FROM hearth_transcripts.replies", database.rpartition("/")[2]) == [["3"]]
    words[-1] = str(tmp_path / "file.db")
    assert "--db postgresql" in subprocess.run(words, capture_output=True, text=True, check=False).stderr


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


# ---------------------------------------------------------------------------------------------------- forgetting

def stored_box(url, directory, *flags, **options):
    return box(url, "--kv-dir", str(directory), "--kv-min-tokens", "0", *flags, **options)


def speak(running, session, text):
    return running.client.post("/v1/chat/completions", {"session_id": session, "max_tokens": 12, "temperature": 0,
                                                        "messages": [{"role": "user", "content": text}]})


def listed(directory):
    """The conversations whose state is in a directory."""
    return json.loads(subprocess.run([servers.hearth_path(), "kv", "ls", "--kv-dir", str(directory), "--json"],
                                     capture_output=True, text=True, check=True).stdout)


def left(own, database):
    rows = own.sql("SELECT (SELECT count(*) FROM hearth.forgets), (SELECT count(*) FROM hearth.box_forgets)",
                   database.rpartition("/")[2])
    return [int(count) for count in rows[0]]


def wanders(boxes, session):
    """A conversation that both boxes have computed."""
    for number in range(4):
        speak(boxes[number % 2], session, Text(f"{session} {number}").words(60))
    for running in boxes:
        wait_written(running)


def test_what_one_box_deletes_all_forget(server, database, tmp_path):
    places = [tmp_path / "one", tmp_path / "two"]
    with contextlib.ExitStack() as stack:
        boxes = [stack.enter_context(stored_box(database, place)) for place in places]
        wanders(boxes, "diary")
        asked = boxes[0].client.get("/requests")["data"]
        assert asked and all(state_files(place) for place in places)
        boxes[1].client.delete("/v1/sessions/diary")
        wait_until(lambda: not any(state_files(place) for place in places), "both have forgotten it")
        wait_until(lambda: left(server, database) == [0, 0], "nothing is left to be done")
        assert [running.client.metrics()["hearth_forgets_total"] > 0 for running in boxes] == [True, True]
        wait_until(lambda: boxes[0].client.get("/requests")["data"] == [], "nor what was told of its requests")
        cold = speak(boxes[0], "again", Text("diary 0").words(60))  # nor is it in its RAM
        assert sum(cold["hearth"]["reused"].values()) == 0
    assert "diary 0" not in json.dumps(listed(places[1])) and not state_files(places[1])


def test_a_box_that_was_down_forgets_when_it_is_back(server, database, tmp_path):
    places = [tmp_path / "one", tmp_path / "two"]
    with stored_box(database, places[0]) as living:
        with stored_box(database, places[1]) as other:
            wanders([living, other], "diary")
            wanders([living, other], "notes")
            other.kill()
        held = len(state_files(places[1]))
        living.client.delete("/v1/sessions/diary")
        wait_until(lambda: living.client.metrics()["hearth_forgets_total"] > 0, "it has forgotten it")
        assert left(server, database) != [0, 0] and len(state_files(places[1])) == held
        with stored_box(database, places[1]) as back:
            wait_until(lambda: back.client.metrics()["hearth_forgets_total"] > 0, "so has the other one")
            wait_until(lambda: len(state_files(places[1])) < held, "its files are gone")
            assert state_files(places[1]), "not those of others"
            living.client.delete("/v1/sessions/notes")
            wait_until(lambda: not any(state_files(place) for place in places), "nothing is left")


@pytest.mark.skipif(not redis.PROGRAM, reason="Redis is not installed")
def test_the_shared_store_forgets_what_no_box_remembers(database, tmp_path):
    """The box that has computed it is gone, RAM and all; another one carries the deletion out."""
    with redis.Store(tmp_path) as shared:
        with box(database, "--kv-disk", "0", "--kv-remote", shared.url()) as first:
            speak(first, "diary", Text("diary").words(700))
            wait_until(lambda: len(shared.keys("i")) > 1, "something is written")
            redis.wait_written(first)
            first.kill()
        with box(database, "--kv-disk", "0", "--kv-remote", shared.url()) as second:
            second.client.delete("/v1/sessions/diary")
            wait_until(lambda: not shared.keys("s") and not shared.keys("i"), "all of it is gone")


def test_a_response_of_a_box_that_died_has_failed(database):
    with contextlib.ExitStack() as stack:
        boxes = two(stack, database, "--sim-speed", "0.2")
        running = boxes[0].client.post("/v1/responses", {"model": "any", "input": "Talk for long.", "background": True,
                                                         "max_output_tokens": 4000})
        assert boxes[1].client.get(f"/v1/responses/{running['id']}")["status"] in ("queued", "in_progress")
        boxes[0].kill()
        wait_until(lambda: boxes[1].client.get(f"/v1/responses/{running['id']}")["status"] == "failed", "it has failed", 90)


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


def test_a_box_starts_without_its_database(tmp_path):
    chat = {"max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    with Postgres() as own:
        own.stop()
        with box(own.url()) as running:
            assert "session_db" in reasons(running)
            assert running.client.post("/v1/chat/completions", chat)["choices"]
            status, body, wait = fails(running, "/v1/responses", {"model": "any", "input": "Hello.", "max_output_tokens": 4})
            assert status == 503 and body["error"]["message"] and int(wait) > 0
            with pytest.raises(HttpError) as refused:
                running.client.get("/v1/sessions")
            assert refused.value.status == 503
            own.start()
            wait_until(lambda: status_of(running, "Hello.") == 200, "it makes its tables")
            wait_until(lambda: "session_db" not in reasons(running), "it is well")
            answer = respond(running, "And now?")
        with box(own.url()) as again:
            assert again.client.get(f"/v1/responses/{answer['id']}")["status"] in ("completed", "incomplete")
            own.sql("UPDATE hearth.steps SET taken = 1000")
            own.kill()
            own.start()
            wait_until(lambda: "newer" in reasons(again).get("session_db", ""), "it says what has come up")
            assert status_of(again, "And?") == 503
            assert again.client.post("/v1/chat/completions", chat)["choices"]


def test_what_no_waiting_mends_ends_the_start(tmp_path):
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    with Postgres(password=SECRET) as own:
        for role in ("poor", "owner"):
            own.sql(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
        for url, told in [(own.url().replace("not", "but"), "~/.pgpass"), (own.url(password=False), "~/.pgpass"),
                          (own.url("missing"), "createdb"), (own.url().replace("hearth:", "stranger:"), "~/.pgpass"),
                          (own.url() + "?sslmode=require", "~/.pgpass"),
                          (own.url().replace("hearth:", "poor:"), "needs CREATE on the database")]:
            said = refuses(url)
            assert "--session-db: postgresql://" in said and told in said and SECRET not in said, said
        own.database("owned")  # schemas that were made for it are enough
        own.sql("CREATE SCHEMA hearth AUTHORIZATION owner; CREATE SCHEMA hearth_transcripts AUTHORIZATION owner", "owned")
        with box(own.url("owned").replace("hearth:", "owner:")) as running:
            assert respond(running, "Hello.")["id"] and reasons(running) == {}
        with box(own.url()):
            pass
        assert "not encrypted" in refuses(own.url(), "--kv-key", str(key))
        own.sql("UPDATE hearth.steps SET taken = 1000")
        assert "newer" in refuses(own.url())


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
