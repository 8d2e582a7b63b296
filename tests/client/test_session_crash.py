"""SIGKILL in the middle of turns, again and again over one database: what a client was told is complete is there whole,
nothing is half there, and every conversation goes on from what its client knows.

HEARTH_CRASHES is how many times (default 6; the full proof is 200), HEARTH_SEED makes a run repeatable.
"""

import glob
import http.client
import os
import random
import sqlite3
import threading
import time

import pytest

from lib.client import HttpError, events
from lib.text import Text
from ondisk import serve_disk

CRASHES = int(os.environ.get("HEARTH_CRASHES", "6"))
CLIENTS = 4
WAYS = ["whole", "streamed", "chat", "messages"]  # how the clients speak, in turns


def serve_sessions(model, folder):
    return serve_disk(model, folder / "kv", "--session-db", str(folder / "hearth.db"), "-np", str(CLIENTS), "-c", "16384")


class Line:
    """One conversation and what its client knows of it: what was acknowledged, and a response that has begun."""

    def __init__(self, number):
        self.text, self.way, self.name = Text("line", number), WAYS[number % len(WAYS)], f"line-{number}"
        self.acknowledged, self.begun = [], set()  # [response]; ids of those whose end was not seen

    @property
    def last(self):
        return self.acknowledged[-1]["id"] if self.acknowledged else None

    def turn(self, running):
        words = self.text.words(40 if not self.acknowledged else 8)
        if self.way in ("chat", "messages"):
            self._by_name(running, words)
        elif self.way == "whole":
            self._know(running.client.post("/v1/responses", self._body(words)))
        else:
            self._streamed(running, words)

    def _body(self, words):
        return {"input": words, "previous_response_id": self.last, "max_output_tokens": 8, "temperature": 0}

    def _streamed(self, running, words):
        connection, response = running.client.open("POST", "/v1/responses", {**self._body(words), "stream": True})
        try:
            for event in events(response):
                if event["type"] == "response.created":
                    self.begun.add(event["response"]["id"])
                elif event["type"] in ("response.completed", "response.incomplete"):
                    self._know(event["response"])
        finally:
            connection.close()

    def _by_name(self, running, words):
        """Over another dialect; the receipt names the turn."""
        message = {"role": "user", "content": words}
        path = "/v1/chat/completions" if self.way == "chat" else "/v1/messages"
        answer = running.client.post(path, {"model": "any", "messages": [message], "max_tokens": 8, "temperature": 0,
                                            "session_id": self.name})
        identity = "resp_" + answer["hearth"]["turn"].partition("_")[2]
        text = answer["choices"][0]["message"]["content"] if self.way == "chat" else "".join(
            block["text"] for block in answer["content"])
        self.acknowledged.append({"id": identity, "text": text})

    def _know(self, response):
        self.begun.discard(response["id"])
        self.acknowledged.append(response)


class Load:
    def __init__(self, running, lines):
        self.running, self.lines, self.errors, self.stopping = running, lines, [], threading.Event()
        self.threads = [threading.Thread(target=self._client, args=(part,)) for part in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def _client(self, part):
        while not self.stopping.is_set():
            for line in self.lines[part::CLIENTS]:
                try:
                    line.turn(self.running)
                except HttpError as error:
                    self.errors.append(error)
                except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                    if not self.stopping.is_set():
                        self.errors.append(error)
                    return

    def crash(self):
        self.stopping.set()
        self.running.kill()
        for thread in self.threads:
            thread.join()


def text_of(response):
    if "text" in response and isinstance(response["text"], str):
        return response["text"]
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def check(running, lines):
    """Everything acknowledged is whole; what had begun is whole, has failed, or is not there."""
    found = 0
    for line in lines:
        for known in line.acknowledged:
            kept = running.client.get(f"/v1/responses/{known['id']}")
            expected = text_of(known)
            if line.way == "messages" and not expected:
                assert not text_of(kept).strip()  # this dialect has no block for text that is only white space
            else:
                assert text_of(kept) == expected, line.way
            if "output" in known:
                assert kept["status"] == known["status"] and kept["output"] == known["output"]
                assert kept["usage"] == known["usage"] and kept["previous_response_id"] == known["previous_response_id"]
            items = running.client.get(f"/v1/responses/{known['id']}/input_items?limit=100")
            assert items["data"]
            found += 1
        for identity in line.begun:
            try:
                kept = running.client.get(f"/v1/responses/{identity}")
            except HttpError as error:
                assert error.status == 404
                continue
            assert kept["status"] in ("completed", "incomplete", "failed"), kept["status"]
            assert kept["status"] == "failed" or kept["output"] and kept["usage"]
        line.begun.clear()
        if line.way in ("chat", "messages") and line.acknowledged:
            session = running.client.get(f"/v1/sessions/{line.name}")
            assert session["turns"] >= len(line.acknowledged)  # one may have been kept that nobody was told of
    return found


def check_database(folder):
    path = folder / "hearth.db"
    assert not glob.glob(f"{path}.bad-*")
    database = sqlite3.connect(path)  # takes in what stands in the write-ahead log
    try:
        assert database.execute("PRAGMA quick_check").fetchall() == [("ok",)]
    finally:
        database.close()


@pytest.mark.parametrize("model", ["sim", pytest.param("tiny", marks=pytest.mark.llama)])
def test_crashes(model, tmp_path):
    chance = random.Random(os.environ.get("HEARTH_SEED", f"session crashes {model}"))
    lines, checked, numbers = [Line(number) for number in range(2 * CLIENTS)], 0, 2 * CLIENTS
    for crash in range(CRASHES):
        running = serve_sessions(model, tmp_path)
        try:
            checked += check(running, lines)
            load = Load(running, lines)
            time.sleep(chance.uniform(0.05, 1.2))
            load.crash()
            assert not load.errors, load.errors
        finally:
            running.kill()
        check_database(tmp_path)
        # Conversations are started over before they fill the context, and so that a check stays short.
        for at, line in enumerate(lines):
            if len(line.acknowledged) > 25:
                with_all, lines[at] = line, Line(numbers - numbers % len(WAYS) + at)
                lines[at].way, numbers = with_all.way, numbers + len(WAYS)
    with serve_sessions(model, tmp_path) as running:
        checked += check(running, lines)
        for line in lines:
            line.turn(running)
        checked += check(running, lines)
    assert checked > 0


def test_background_responses_fail_with_their_server(tmp_path):
    """What was under way in the background when the server died has failed; it does not stay in progress."""
    with serve_sessions("sim", tmp_path) as running:
        made = running.client.post("/v1/responses", {"input": "Tell a story.", "background": True, "ignore_eos": True,
                                                     "max_output_tokens": 8000})
        assert made["status"] in ("queued", "in_progress")
        running.kill()
    with serve_sessions("sim", tmp_path) as running:
        kept = running.client.get(f"/v1/responses/{made['id']}")
        assert kept["status"] in ("failed", "completed", "incomplete")
        assert kept["status"] != "failed" or kept["error"]["code"] == "server_error"
