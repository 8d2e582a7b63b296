"""A restart or a crash costs nothing: state on disk, as a client sees it."""

import concurrent.futures
import http.client
import json
import os
import shutil
import subprocess
import time
import urllib.request

import pytest

import faulty
from conftest import serve
from ondisk import (QUICK_SIM, Counter, Talk, assert_private, assert_same_reply, bad_files, computed, content, disk,
                    learnt_files, model_flags, request, reused, serve_disk, state_files, wait_safe, wait_scanned, wait_until,
                    wait_written)
from lib import server as servers
from lib.text import Text

LONG = (pytest.mark.llama, pytest.mark.long)
TINY = [pytest.param(model, marks=pytest.mark.llama) for model in ("tiny", "tiny-hybrid", "tiny-window")]


def end(running, how):
    """SIGTERM lets it write what it has; a crash is only promised what is old enough."""
    if how == "SIGTERM":
        assert running.stop() == 0
    else:
        wait_safe()
        running.kill()


def turn(running, talk, counter=None, **options):
    messages = talk.ask()
    answer = request(running.client, messages, **options)
    talk.hear(answer)
    if counter:
        counter.count(running.client, messages, answer)
    return messages, answer


# ---------------------------------------------------------------------------------------------------- restarts

@pytest.mark.parametrize("model, how", [
    ("sim", "SIGTERM"), ("sim", "SIGKILL"), pytest.param("tiny", "SIGKILL", marks=pytest.mark.llama),
    pytest.param("tiny-hybrid", "SIGTERM", marks=pytest.mark.llama), pytest.param("hybrid", "SIGTERM", marks=LONG),
    pytest.param("hybrid", "SIGKILL", marks=LONG), pytest.param("smollm2", "SIGTERM", marks=LONG),
    pytest.param("smollm2", "SIGKILL", marks=LONG), pytest.param("gemma3-270m", "SIGTERM", marks=LONG),
    pytest.param("gemma3-270m", "SIGKILL", marks=LONG), pytest.param("tiny-window", "SIGTERM", marks=pytest.mark.llama)])
def test_conversations_go_on(model, how, tmp_path):
    """Two conversations, with restarts: nothing is computed again, and the replies are those of a run without any."""
    talks, counter = [Talk("first"), Talk("second")], Counter()
    with serve(*model_flags(model), "-c", "8192", "-np", "2", "--cache-ram", "512") as steady:
        for part in range(3 if model == "sim" else 2):
            with serve_disk(model, tmp_path / "kv") as running:
                for number in range(2):
                    for talk in talks:
                        messages, answer = turn(running, talk, counter)
                        if part > 0 and number == 0:
                            assert reused(answer) > 0, answer["hearth"]
                        assert_same_reply(model, request(steady.client, messages), answer)
                end(running, how)
    assert counter.ratio <= 1.05
    assert_private(tmp_path / "kv")
    assert not bad_files(tmp_path / "kv")


@pytest.mark.llama
@pytest.mark.skipif(bool(servers.sanitizer()), reason="a library that is loaded before the sanitizer's")
def test_a_small_read_that_took_long(faulty_fs, tmp_path):
    """Some kilobytes that took a tenth of a second say nothing of the disk: the next conversation is not computed again."""
    talks = [Talk("first"), Talk("second")]
    (tmp_path / "kv").mkdir()
    with serve_disk("tiny-window", tmp_path / "kv") as running:
        for talk in talks * 2:
            turn(running, talk)
        assert running.stop() == 0
    faults = faulty.Faults(faulty_fs, tmp_path, tmp_path / "kv")
    with serve_disk("tiny-window", tmp_path / "kv", env=faults.env) as running:
        faults.set("open SLOW 1 0")
        assert reused(turn(running, talks[0])[1]) > 0 and faults.hits()
        faults.set()
        _, answer = turn(running, talks[1])
        assert reused(answer) > 0, answer["hearth"]


@pytest.mark.parametrize("model", ["sim", pytest.param("smollm2", marks=LONG)])
def test_a_crash_within_a_long_prompt(tmp_path, model):
    """What was computed of a prompt before the crash is not computed again."""
    flags = ["--kv-interval-tokens", "512", "-t", "1", "-b", "256", "-ub", "256", "-c", "65536"]
    text = Text("long prompt").words(8000)
    messages = [{"role": "user", "content": text}]
    with serve_disk(model, tmp_path, *flags) as running:
        connection = start(running, messages)
        wait_until(lambda: running.client.metrics()["hearth_disk_written_total"] >= 2, "pages are written", 120)
        done = max(slot["n_prompt_tokens_processed"] for slot in running.client.get("/slots"))
        running.kill()
        connection.close()
    assert done < 8000, "the prompt was too short for this test"
    messages = [{"role": "user", "content": text[:4000]}]  # its beginning, so that the rest need not be waited for
    with serve_disk(model, tmp_path, *flags) as running:
        assert reused(request(running.client, messages, 1)) >= 512


def start(running, messages):
    """Sends a request and does not wait for its reply; returns the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=300)
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": messages, "max_tokens": 4}),
                       {"Content-Type": "application/json"})
    return connection


@pytest.mark.parametrize("model", ["sim", *TINY])
def test_the_system_text_is_on_disk_once(model, tmp_path):
    """Twelve conversations over one system text: whole pages of it are files of their own, once."""
    with serve_disk(model, tmp_path) as running:
        talks = [Talk(number, system_words=900, asked_words=20) for number in range(12)]
        for talk in talks:
            _, answer = turn(running, talk)
        prompt = answer["usage"]["prompt_tokens"]
        wait_written(running)
    pages = [path for path in state_files(tmp_path) if path.endswith(".page")]
    shared = prompt // 256
    assert shared >= 3
    assert shared <= len(pages) <= shared + 3 * len(talks)


@pytest.mark.parametrize("model", TINY)
def test_a_turn_writes_what_is_new(model, tmp_path):
    """A hundred new tokens on a long conversation: two pages and a snapshot at the most; with a window, whose state is
    stored beside each page, two of these."""
    snapshots = 2 if "window" in model else 1
    with serve_disk(model, tmp_path) as running:
        talk = Talk("long", system_words=3500, asked_words=60)
        turn(running, talk)
        turn(running, talk)
        before, files = wait_written(running), state_files(tmp_path)
        page, snapshot = (max((size for path, size in files.items() if path.endswith(ending)), default=0)
                          for ending in (".page", ".snap"))
        assert page > 0
        for _ in range(4):
            turn(running, talk)
            after = wait_written(running)
            written = after["hearth_disk_written_bytes_total"] - before["hearth_disk_written_bytes_total"]
            assert 0 < written <= 2 * page + snapshots * snapshot
            assert after["hearth_disk_written_total"] - before["hearth_disk_written_total"] <= 2 + snapshots
            before = after


def test_what_is_there_is_not_written_again(tmp_path):
    talk = Talk("again")
    with serve_disk("sim", tmp_path) as running:
        turn(running, talk)
        wait_written(running)
    before = state_files(tmp_path)
    with serve_disk("sim", tmp_path) as running:
        assert reused(request(running.client, talk.messages[:-1])) > 0
        assert wait_written(running)["hearth_disk_written_bytes_total"] < max(before.values()) * 2
    assert set(before) <= set(state_files(tmp_path))


@pytest.mark.parametrize("model, words, mib", [
    ("sim", 6000, "1"), pytest.param("smollm2", 300, "16", marks=LONG), pytest.param("smollm2", 900, "48", marks=LONG)])
def test_what_ram_cannot_hold_comes_from_disk(tmp_path, model, words, mib):
    """Three conversations on one lane, and RAM for one and a half."""
    talks = [Talk(f"ram {number}", system_words=0, asked_words=words) for number in range(3)]
    with serve_disk(model, tmp_path, "-np", "1", "-c", "65536", "--cache-ram", mib) as running:
        for talk in talks:
            turn(running, talk)
            wait_written(running)
        for talk in talks:
            before = talk.known_tokens
            talk.asked_words = 20
            _, answer = turn(running, talk)
            assert reused(answer) > 0, answer["hearth"]
            assert computed(answer) <= answer["usage"]["prompt_tokens"] - before + 8, answer["hearth"]


@pytest.mark.parametrize("model, words, mib, token_bytes", [
    ("sim", 10000, 1, 64), pytest.param("smollm2", 1200, 16, 23000, marks=LONG)])
def test_a_conversation_larger_than_ram(tmp_path, model, words, mib, token_bytes):
    """It goes to disk piece by piece, and comes back through the little RAM there is."""
    talk = Talk("larger than RAM", system_words=0, asked_words=words)
    flags = ["-np", "1", "-c", "131072", "--cache-ram", str(mib)]
    with serve_disk(model, tmp_path, *flags) as running:
        turn(running, talk)
        wait_written(running)
        running.kill()
    before = talk.known_tokens
    assert before * token_bytes > 2 * (mib << 20), before
    talk.asked_words = 20
    with serve_disk(model, tmp_path, *flags) as running:
        _, answer = turn(running, talk)
        assert computed(answer) <= answer["usage"]["prompt_tokens"] - before + 8, answer["hearth"]


@pytest.mark.parametrize("model", ["sim", pytest.param("tiny-hybrid", marks=pytest.mark.llama)])
def test_two_servers_share_a_directory(model, tmp_path):
    """What one has computed the other finds, while both run."""
    talk = Talk("shared")
    with serve_disk(model, tmp_path) as one, serve_disk(model, tmp_path) as other:
        messages, answer = turn(one, talk)
        files = wait_written(one)["hearth_disk_files"]
        wait_until(lambda: disk(other)["files"] >= files, "the other has seen the files")
        time.sleep(3)  # found files are told to the cache between requests
        found = request(other.client, messages)
        assert reused(found) > 0, found["hearth"]
        assert computed(found) <= 8  # what the template prints behind the last message
        assert_same_reply(model, answer, found)
        turn(other, talk)
        turn(one, talk)
    assert not bad_files(tmp_path)


# ---------------------------------------------------------------------------------------------------- tenants

def test_salts_do_not_share(tmp_path):
    messages = Talk("salts").ask()
    with serve_disk("sim", tmp_path) as running:
        for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}):
            first, second = (request(running.client, messages, **salt) for _ in range(2))
            assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, salt
            assert first["hearth"]["divergence"] is None
            assert computed(second) == 1
            assert content(first) == content(second)
        wait_written(running)
    with serve_disk("sim", tmp_path) as running:
        assert reused(request(running.client, messages, cache_salt="a")) > 0
        stranger = request(running.client, messages, cache_salt="c")
        assert computed(stranger) == stranger["usage"]["prompt_tokens"]


def test_keys_do_not_share(tmp_path):
    messages = Talk("keys").ask()
    body = {"messages": messages, "max_tokens": 4, "temperature": 0}

    def ask(running, key):
        call = urllib.request.Request(f"http://127.0.0.1:{running.port}/v1/chat/completions", json.dumps(body).encode(),
                                      {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(call, timeout=60) as response:
            return json.load(response)

    flags = ["--api-key", "alpha,beta"]
    with serve_disk("sim", tmp_path, *flags) as running:
        assert computed(ask(running, "alpha")) > 100
        assert computed(ask(running, "beta")) > 100
        assert computed(ask(running, "alpha")) == 1
        assert computed(ask(running, "beta")) == 1
        wait_safe()
        running.kill()
    with serve_disk("sim", tmp_path, *flags) as running:
        assert reused(ask(running, "beta")) > 0


# ---------------------------------------------------------------------------------------------------- keys of the disk

def make_key(path, bytes_=b"0123456789abcdef0123456789abcdef", mode=0o600):
    path.write_bytes(bytes_)
    path.chmod(mode)
    return str(path)


def test_a_key(tmp_path):
    """With the key as without one; with another key a clean miss, after which the first one still opens everything."""
    folder, talk = tmp_path / "kv", Talk("secret")
    right, wrong = make_key(tmp_path / "right"), make_key(tmp_path / "wrong", b"another key, just as long as that")
    with serve_disk("sim", folder, "--kv-key", right) as running:
        messages, answer = turn(running, talk)
        wait_written(running)
    words = messages[0]["content"][:24].encode()
    for base, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(base, name), "rb") as file:
                assert words not in file.read(), name
    for flags in (["--kv-key", wrong], []):
        with serve_disk("sim", folder, *flags) as running:
            again = request(running.client, messages)
            assert computed(again) == again["usage"]["prompt_tokens"]
            assert content(again) == content(answer)
            assert running.client.metrics()["hearth_disk_bad_total"] == 0
    with serve_disk("sim", folder, "--kv-key", right) as running:
        again = request(running.client, messages)
        assert reused(again) > 0
        assert content(again) == content(answer)
    assert not bad_files(folder)


@pytest.mark.parametrize("bytes_,mode", [(None, 0), (b"short", 0o600), (b"0123456789abcdef" * 2, 0o644)],
                         ids=["missing", "short", "readable by others"])
def test_a_key_that_is_not_good_stops_the_start(tmp_path, bytes_, mode):
    """What was to be encrypted is not written otherwise."""
    path = tmp_path / "key"
    if bytes_ is not None:
        make_key(path, bytes_, mode)
    done = subprocess.run([servers.hearth_path(), "serve", "--engine", "sim", "--port", "0", "--kv-dir",
                           str(tmp_path / "kv"), "--kv-key", str(path)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60)
    lines = [line for line in done.stderr.splitlines() if line.startswith("hearth:")]
    assert done.returncode == 1
    assert len(lines) == 1 and str(path) in lines[0], done.stderr
    assert not state_files(tmp_path)


# ---------------------------------------------------------------------------------------------------- directories

@pytest.mark.llama
def test_models_share_a_directory(tmp_path):
    """Each model finds its own; what another one has left is no trouble."""
    talk, answers = Talk("models"), {}
    messages = talk.ask()
    for model in ("tiny", "tiny-hybrid", "tiny", "tiny-hybrid"):
        with serve_disk(model, tmp_path) as running:
            answer = request(running.client, messages)
            if model in answers:
                assert reused(answer) > 0 and computed(answer) <= 8
                assert_same_reply(model, answers[model], answer)
            else:
                assert computed(answer) == answer["usage"]["prompt_tokens"]
            answers[model] = answer
            assert running.client.metrics()["hearth_disk_bad_total"] == 0
            wait_written(running)
    assert not bad_files(tmp_path)


def test_things_that_are_not_ours_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "0123.page").write_text("mine too")
    with serve_disk("sim", tmp_path) as running:
        turn(running, Talk("others"))
        wait_written(running)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "folder" / "0123.page").read_text() == "mine too"


def assert_serves_without_disk(caches, *words):
    """A default directory (below $XDG_CACHE_HOME) that cannot be used; one that is named ends the start: test_paths."""
    with serve("--engine", "sim", env={"HEARTH_KV_DIR": "", "XDG_CACHE_HOME": str(caches)}) as running:
        assert disk(running) == {"state": "off"}
        turn(running, Talk("no disk"))
        lines = [line for line in running.log().splitlines() if " warn " in line and "disk" in line]
        assert len(lines) == 1, running.log()
        for word in words:
            assert word in lines[0]


def test_a_directory_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("not a directory")
    assert_serves_without_disk(path, str(path))
    assert path.read_text() == "not a directory"


def test_a_directory_that_cannot_be_made():
    assert_serves_without_disk("/proc", "/proc/hearth")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else(tmp_path):
    path = tmp_path / "hearth" / "kv"
    path.mkdir(0o777, parents=True)
    os.chown(path, 12345, 12345)
    assert_serves_without_disk(tmp_path, str(path), "12345")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_not_writable(tmp_path):
    path = tmp_path / "hearth" / "kv"
    path.mkdir(0o500, parents=True)
    assert_serves_without_disk(tmp_path, str(path))


def test_the_default_directory(tmp_path):
    """$XDG_CACHE_HOME/hearth/kv is made, and nobody else may look into it."""
    env, talk = {"HEARTH_KV_DIR": "", "XDG_CACHE_HOME": str(tmp_path)}, Talk("default")
    folder = tmp_path / "hearth" / "kv"
    with serve("--engine", "sim", env=env) as running:
        assert disk(running)["state"] in ("ok", "scanning")
        wait_until(lambda: str(folder) in running.log(), "the banner tells of it")
        turn(running, talk)
        wait_written(running)
    assert state_files(folder)
    assert_private(folder)
    with serve("--engine", "sim", env=env) as running:
        wait_scanned(running)
        assert reused(turn(running, talk)[1]) > 0


@pytest.mark.parametrize("flags", [["--kv-dir", "none"], ["--kv-disk", "0"], ["--cache-ram", "0"]])
def test_off(tmp_path, flags):
    env = {"HEARTH_KV_DIR": "", "XDG_CACHE_HOME": str(tmp_path)}
    with serve("--engine", "sim", *flags, env=env) as running:
        assert disk(running) == {"state": "off"}
        wait_until(lambda: "  disk     off" in running.log(), "the banner tells of it")
        turn(running, Talk("off"))
        assert not [name for name in running.client.metrics() if name.startswith("hearth_disk_")]
    assert not os.listdir(tmp_path)


def test_short_conversations_stay_in_ram(tmp_path):
    with serve_disk("sim", tmp_path, "--kv-min-tokens", "2000") as running:
        turn(running, Talk("short", system_words=20))
        assert wait_written(running)["hearth_disk_written_total"] == 0
    assert not state_files(tmp_path)


def test_the_budget_is_kept(tmp_path):
    """A megabyte, and conversations of more than that: small pages are 8 KiB each with their headers."""
    with serve_disk("sim", tmp_path, "--kv-disk", "1", "--page-tokens", "16") as running:
        for number in range(10):
            turn(running, Talk(f"budget {number}", system_words=0, asked_words=120), max_tokens=2)
        wait_written(running)
        wait_until(lambda: disk(running)["bytes"] <= 1 << 20, "the budget is kept")
        assert disk(running)["budget_bytes"] == 1 << 20
        assert running.client.metrics()["hearth_disk_evicted_total"] > 0
    on_disk = sum((size + 4095) // 4096 * 4096 for size in state_files(tmp_path).values())
    assert 0 < on_disk <= 1 << 20


@pytest.mark.parametrize("confine", ["auto", "off"])
def test_a_directory_that_is_removed_under_a_server(confine, tmp_path):
    """Where the server may make it again, it does; confined to it, it answers without it and says so. It ends."""
    directory, talk, other = tmp_path / "kv", Talk("removed"), Talk("after that")
    with serve_disk("sim", directory, "--confine", confine) as running:
        turn(running, talk)
        wait_written(running)
        shutil.rmtree(directory)
        for _ in range(3):
            turn(running, talk)
            turn(running, other)
        if "Landlock ABI" in running.log():
            wait_until(lambda: disk(running)["state"] == "failing", "the server has noticed")
            health = running.client.get("/health")
            assert health["status"] == "degraded" and str(directory) in health["reasons"][0]["message"], health
        else:
            wait_until(lambda: state_files(directory), "it is made again")
            assert disk(running)["state"] == "ok"
        assert reused(turn(running, talk)[1], "disk") == 0
        assert running.stop() == 0


def test_servers_that_start_together(tmp_path):
    """Three on one directory and one database, all at once; what was acknowledged is there after SIGKILL."""
    flags = ("--session-db", str(tmp_path / "sessions.db"))
    said = {}

    def start(_):
        return serve_disk("sim", tmp_path / "kv", *flags)

    def talk(number_and_server):
        number, running = number_and_server
        for part in range(3):
            answer = running.client.post("/v1/responses", {"input": f"{number} {part} some words", "max_output_tokens": 4})
            said[answer["id"]] = answer["output"]
            request(running.client, [{"role": "user", "content": f"part {part}"}], 4, session_id=f"talk {number}")

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            servers_now = list(pool.map(start, range(3)))
            try:
                list(pool.map(talk, enumerate(servers_now)))
            finally:
                for running in servers_now:
                    running.kill()
    with serve_disk("sim", tmp_path / "kv", *flags) as running:
        assert len(said) == 18
        for name, output in said.items():
            assert running.client.get(f"/v1/responses/{name}")["output"] == output
        for number in range(3):
            assert running.client.get(f"/v1/sessions/talk%20{number}")["turns"] == 6


# ---------------------------------------------------------------------------------------------------- what was learnt

KNOWN = "the policy knows again what"


def test_what_the_policy_has_learnt_outlasts_a_restart(tmp_path):
    """One small file, which the next start reads, which the end replaces, and which costs nothing when it is damaged."""
    quick = [*QUICK_SIM, "-c", "4096", "-np", "4", "--cache-ram", "64", "--kv-dir", str(tmp_path), "--kv-disk", "1024"]
    talk = Talk("learnt", system_words=250, foreign=True)
    with serve(*quick) as running:
        for _ in range(3):
            turn(running, talk)
        assert running.stop() == 0
    [path] = learnt_files(tmp_path)
    assert os.path.getsize(path) <= 4096 + 32768
    with serve(*quick) as running:
        wait_until(lambda: KNOWN in running.log(), "it is read")
        turn(running, talk)
        assert running.stop() == 0
    [later] = learnt_files(tmp_path)
    assert later != path
    with open(later, "r+b") as file:
        file.seek(5000)
        was = file.read(1)
        file.seek(5000)
        file.write(bytes([was[0] ^ 1]))
    with serve(*quick) as running:
        wait_until(lambda: bad_files(tmp_path), "it is quarantined")
        turn(running, talk)
        assert KNOWN not in running.log()
        assert running.stop() == 0
    assert len(learnt_files(tmp_path)) == 1
