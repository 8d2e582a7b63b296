"""Deleting a conversation deletes it: its text from every file, its state from the directory, unless others share it."""

import contextlib
import sqlite3
import subprocess

import pytest

from conftest import serve
from lib import server as servers
from ondisk import files_below, model_flags, state_files, wait_until, wait_written

SYSTEM = "You answer with few words. " * 40


def flags(model, folder):
    return [*model_flags(model), "-c", "8192", "-np", "2", "--kv-dir", str(folder / "kv"), "--kv-min-tokens", "0",
            "--session-db", str(folder / "data" / "hearth.db")]


def say(running, session, text, system=None):
    messages = [{"role": "user", "content": text}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return running.client.post("/v1/chat/completions", {"session_id": session, "messages": messages, "max_tokens": 12,
                                                        "temperature": 0})


def holds(folder, text):
    """Files below the folder that hold a text as it is."""
    found = []
    for path, _ in files_below(folder):
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            if text.encode() in file.read():
                found.append(path)
    return found


def wait_forgotten(folder):
    """Waits until nothing is left to be forgotten: the state, and after it the transcripts."""
    database = folder / "data" / "hearth.db"

    def done():
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as rows:
            return rows.execute("select count(*) from forgets").fetchone()[0] == 0

    wait_until(done, "everything is forgotten")


@pytest.mark.parametrize("model", ["sim", "tiny", "tiny-hybrid"])
def test_nothing_is_left(tmp_path, model):
    folder = tmp_path
    with serve(*flags(model, folder)) as running:
        say(running, "first", "A secret about walnuts, once.", SYSTEM)
        say(running, "first", "A secret about walnuts, twice.")
        wait_written(running)
        wait_until(lambda: holds(folder / "kv", "walnuts"), "the transcripts hold what was said")
        assert state_files(folder / "kv")
        running.client.delete("/v1/sessions/first")
        assert running.client.get("/v1/sessions")["data"] == []
        wait_forgotten(folder)
    assert not state_files(folder / "kv")
    assert holds(folder, "walnuts") == []


def test_what_others_need_stays(tmp_path):
    folder = tmp_path
    with serve(*flags("sim", folder)) as running:
        first = say(running, "first", "A secret about walnuts.", SYSTEM)
        running.client.post("/v1/sessions/first/fork", {"name": "second"})
        say(running, "second", "A word about hazels.")
        say(running, "first", "Another about almonds.")
        say(running, "third", "Almonds again.", SYSTEM)
        wait_written(running)
        running.client.delete("/v1/sessions/first")
        wait_until(lambda: running.client.metrics()["hearth_forgets_total"] == 1, "it is forgotten")
        went_on = say(running, "second", "And more.")
        assert went_on["hearth"]["computed"] < 60, "the fork has lost nothing"
        third = say(running, "third", "More, too.")
        assert third["hearth"]["computed"] < 60
        assert first["usage"]["prompt_tokens"] > 300
        wait_written(running)
        for session in ("second", "third"):
            running.client.delete(f"/v1/sessions/{session}")
        wait_until(lambda: not state_files(folder / "kv"), "nothing is left of what they shared")


def test_deleted_while_no_server_ran(tmp_path):
    """What a command deletes, the next server forgets."""
    folder = tmp_path
    with serve(*flags("sim", folder)) as running:
        say(running, "first", "A secret about walnuts.", SYSTEM)
        wait_written(running)
    subprocess.run([servers.hearth_path(), "sessions", "rm", "first", "--yes", "--db",
                    str(folder / "data" / "hearth.db")], check=True, timeout=60, capture_output=True)
    assert state_files(folder / "kv")
    with serve(*flags("sim", folder)) as running:
        wait_forgotten(folder)
    assert not state_files(folder / "kv")
    assert holds(folder, "walnuts") == []
