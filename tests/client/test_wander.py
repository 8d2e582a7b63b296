"""A conversation that changes the box with every turn, as each API has it: chat completions with the history in the request,
Responses by id, Messages with a session; on models with pages, with a window and with snapshots. Two boxes share a Redis and
a PostgreSQL, and compute what is new.

A prompt of chat completions is the history that this client sends, with replies of its own: text that is the same tokens on
each box. By id and by session the server has the reply as it was sampled, on whichever box that was.
"""

import contextlib
import json
import random
import socket
import subprocess

import pytest

import faulty
import store as redis
from conftest import serve
from lib import server as servers
from lib.text import Text
from ondisk import Talk, computed, model_flags, request
from postgres import BIN, MISSING, Postgres

pytestmark = [pytest.mark.skipif(not BIN, reason=MISSING),
              pytest.mark.skipif(not redis.PROGRAM, reason="Redis is not installed")]
TURNS = 6


@pytest.fixture(scope="module")
def server():
    with Postgres() as running:
        yield running


def chat():
    talk = Talk("wanders", system_words=400, foreign=True)

    def turn(running, _):
        answer = request(running.client, talk.ask())
        talk.hear(answer)
        return answer["usage"]["prompt_tokens"], computed(answer)
    return turn


def responses():
    previous, text = {}, Text("wanders by id")

    def turn(running, number):
        answer = running.client.post("/v1/responses", {
            "model": "any", "input": text.words(400 if number == 0 else 40), "max_output_tokens": 16, "temperature": 0, **previous})
        previous["previous_response_id"] = answer["id"]
        return answer["usage"]["input_tokens"], answer["hearth"]["computed"]
    return turn


def messages():
    text = Text("wanders in a session")

    def turn(running, number):
        answer = running.client.post("/v1/messages", {
            "model": "any", "max_tokens": 16, "temperature": 0, "session_id": "wanders",
            "messages": [{"role": "user", "content": text.words(400 if number == 0 else 40)}]})
        receipt = answer["hearth"]
        return sum(receipt["reused"].values()) + receipt["computed"], receipt["computed"]
    return turn


@pytest.mark.parametrize("model", [
    "sim", pytest.param("tiny", marks=pytest.mark.llama), pytest.param("tiny-window", marks=pytest.mark.llama),
    pytest.param("tiny-hybrid", marks=pytest.mark.llama)])
@pytest.mark.parametrize("dialect", [chat, responses, messages])
def test_a_conversation_changes_the_box_with_every_turn(server, tmp_path, dialect, model):
    turn, new, spent, known = dialect(), 0, 0, 0
    database = server.database(f"wander-{random.randrange(10**9)}")
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(redis.Store(tmp_path))
        boxes = [stack.enter_context(serve(
            *model_flags(model), "-c", "8192", "-np", "2", "--cache-ram", "256", "--kv-disk", "0", "--kv-min-tokens", "0",
            "--session-db", database, "--kv-remote", shared.url())) for _ in range(2)]
        for number in range(TURNS):
            running = boxes[number % 2]
            prompt, cost = turn(running, number)
            new, spent, known = new + prompt - known, spent + cost, prompt
            redis.wait_written(running)
    print(f"{spent} tokens computed of {new} that were new")
    assert new > 600 and spent <= 1.05 * new, (spent, new)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What makes several.test a name of two addresses: at 127.0.0.2 no server listens, at 127.0.0.1 both do."""
    return {"LD_PRELOAD": faulty.library(tmp_path_factory.mktemp("names"), "names"),
            "ASAN_OPTIONS": servers.surroundings().get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


@pytest.mark.parametrize("first", ["refuses", "is silent"])
def test_addresses_of_a_name_are_tried_in_turn(server, tmp_path, names, first):
    database = server.database(f"names-{random.randrange(10**9)}").replace("127.0.0.1", "several.test")
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(redis.Store(tmp_path))
        url = f"redis://several.test:{shared.port}"
        if first == "is silent":  # connects, and answers nothing
            stack.enter_context(socket.create_server(("127.0.0.2", shared.port)))
        running = stack.enter_context(serve(
            "--engine", "sim", "--kv-disk", "0", "--kv-min-tokens", "0", "--session-db", database, "--kv-remote", url,
            "--kv-remote-timeout", "500", env=names))
        _, computed_tokens = messages()(running, 0)
        assert computed_tokens > 300
        redis.wait_written(running)
        health = running.client.get("/health")
        assert health["remote"]["state"] == "ok" and shared.keys("s"), health
        if first == "refuses":
            listed = subprocess.run([servers.hearth_path(), "kv", "ls", "--kv-remote", url, "--json"], capture_output=True,
                                    text=True, timeout=60, env=servers.surroundings(names), check=True)
            assert json.loads(listed.stdout)["models"], listed
