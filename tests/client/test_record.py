"""hearth record: what a server is asked for becomes a trace that hearth replay reads, without a word of it."""

import contextlib
import json
import os
import signal
import subprocess

import httpx

from conftest import serve
from lib import server as servers

SIM = ("--engine", "sim", "-c", "16384", "-np", "2")
SYSTEM = "You are an agent that is named Zebulon. " * 60


def ask(server, messages, key=None, **fields):
    answer = httpx.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", timeout=60,
                        headers={"Authorization": f"Bearer {key}"} if key else {},
                        json={"messages": messages, "max_tokens": 8, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def converse(server, turns, about, key=None):
    """The usage of each turn of a conversation."""
    messages, usage = [{"role": "system", "content": SYSTEM}], []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{about} {turn}: " + "what is the secret of Zanzibar? " * 20})
        answer = ask(server, messages, key)
        messages.append(answer["choices"][0]["message"])
        usage.append(answer["usage"])
    return usage


@contextlib.contextmanager
def recording(server, *args, key=None):
    """`hearth record`, once it records; the caller waits for its end."""
    command = [servers.hearth_path(), "record", *map(str, args), "--url", f"http://127.0.0.1:{server.port}"]
    process = subprocess.Popen(command + (["--api-key", key] if key else []), stderr=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    try:
        assert process.stderr.readline().startswith("recording"), process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


def read(path):
    """The requests of a recording; the first line says what the server keeps its state in."""
    server, *requests = [json.loads(line) for line in path.read_text().splitlines()]
    assert set(server["server"]) == {"ram_bytes", "token_bytes", "snapshot_bytes", "page_tokens", "lanes"}
    return requests


def blocks(line):
    return [name for first, last in line["blocks"] for name in range(first, last + 1)]


def test_a_recording_can_be_replayed(tmp_path):
    trace = tmp_path / "trace.jsonl"
    with serve(*SIM) as server:
        converse(server, 1, "before")  # what came before the recording is not in it
        with recording(server, trace, "--limit", 7) as process:
            usage = converse(server, 4, "ships") + converse(server, 3, "shoes")
            _, said = process.communicate(timeout=30)
            assert process.returncode == 0 and said.startswith("7 requests of "), said
    lines = read(trace)
    assert [line["in"] for line in lines] == [use["prompt_tokens"] for use in usage]
    for line in lines:  # of the reply what its sequence held: its last token was not computed
        assert line["in"] // 64 <= len(blocks(line)) <= (line["in"] + line["out"]) // 64
    assert [line["served"]["reused"] for line in lines] == [use["prompt_tokens_details"]["cached_tokens"] for use in usage]
    assert all(line["stop"] in ("end_turn", "max_tokens") and line["api_time"] > 0 and line["out"] > 0 for line in lines)
    assert [line["t"] for line in lines] == sorted(line["t"] for line in lines)
    for one, next_one in zip(lines[:3], lines[1:4]):  # a turn begins with the one before it
        whole = one["in"] // 64
        assert blocks(next_one)[:whole] == blocks(one)[:whole]
    shared = os.path.commonprefix([blocks(lines[0]), blocks(lines[4])])  # system text, and no more
    assert 0 < lines[4]["head"] // 64 <= len(shared) < len(blocks(lines[0]))
    done = subprocess.run([servers.hearth_path(), "replay", trace, "--json"], capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    assert found["requests"] == 7 and found["prompt_tokens"] == sum(use["prompt_tokens"] for use in usage)
    assert found["policies"]["infinite"]["computed_tokens"] < found["prompt_tokens"]


def test_it_has_no_text(tmp_path):
    trace = tmp_path / "trace.jsonl"
    with serve(*SIM) as server:
        with recording(server, trace, "--limit", 2) as process:
            with httpx.stream("GET", f"http://127.0.0.1:{server.port}/record", timeout=60) as stream:
                lines = stream.iter_lines()
                assert "server" in json.loads(next(lines))
                converse(server, 2, "ships")
                sent = [next(lines), next(lines)]
            process.wait(timeout=30)
        assert read(trace)
    for text in (trace.read_text(), *sent):
        assert not any(word in text.lower() for word in ("zebulon", "zanzibar", "ships", "secret"))
    assert {key for line in read(trace) for key in line} == {
        "t", "in", "out", "stop", "api_time", "head", "served", "blocks"}
    assert set(json.loads(sent[0])) == {
        "t", "in", "out", "stop", "api_time", "head", "served", "digests"}


def test_calls_are_told(tmp_path):
    trace = tmp_path / "trace.jsonl"
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    with serve(*SIM) as server, recording(server, trace, "--limit", 1) as process:
        answer = ask(server, [{"role": "user", "content": "Look."}], tools=[tool], tool_choice="required", max_tokens=200)
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        process.wait(timeout=30)
    assert read(trace)[0]["stop"] == "tool_use"


def test_keys(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a-key\nb-key\nroot scope=admin\n")
    keys.chmod(0o600)
    trace = tmp_path / "trace.jsonl"
    with serve(*SIM, "--api-key-file", keys) as server:
        url = f"http://127.0.0.1:{server.port}/record"
        assert httpx.get(url).status_code == 401
        denied = httpx.get(url, headers={"Authorization": "Bearer a-key"}, timeout=10)
        assert denied.status_code == 403 and "admin" in denied.text
        with recording(server, trace, "--limit", 4, key="root") as process:
            for key in ("a-key", "b-key"):
                converse(server, 2, "ships", key)
            process.wait(timeout=30)
    lines = read(trace)
    assert blocks(lines[1])[:len(blocks(lines[0]))] == blocks(lines[0])
    assert not set(blocks(lines[0])) & set(blocks(lines[2]))  # two keys share no state


def test_prompts_that_nothing_is_computed_ahead_for(tmp_path):
    """Completions, several choices, and chats of a server that computes nothing in idle time."""
    trace, prompt = tmp_path / "trace.jsonl", "what is the secret of Zanzibar? " * 20
    with serve(*SIM, "--idle-compute", "0") as server, recording(server, trace, "--limit", 3) as process:
        usage = converse(server, 1, "ships")
        usage.append(ask(server, [{"role": "user", "content": prompt}], n=2)["usage"])
        answer = httpx.post(f"http://127.0.0.1:{server.port}/v1/completions", timeout=60,
                            json={"prompt": prompt, "max_tokens": 8})
        usage.append(answer.json()["usage"])
        process.wait(timeout=30)
    lines = read(trace)
    assert [line["in"] for line in lines] == [use["prompt_tokens"] for use in usage]
    assert all(len(blocks(line)) >= line["in"] // 64 > 0 for line in lines)


def test_ends(tmp_path):
    trace = tmp_path / "trace.jsonl"
    with serve(*SIM) as server:
        with recording(server) as process:
            converse(server, 2, "ships")
            assert "server" in json.loads(process.stdout.readline())
            assert all(json.loads(process.stdout.readline())["in"] > 0 for _ in range(2))
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
            assert process.returncode == 0 and said.startswith("2 requests")
        trace.touch()
        again = subprocess.run([servers.hearth_path(), "record", trace, "--url", f"http://127.0.0.1:{server.port}"],
                               capture_output=True, text=True, timeout=30)
        assert again.returncode == 1 and "File exists" in again.stderr
        with recording(server) as process:
            server.stop()
            out, said = process.communicate(timeout=30)
            assert process.returncode == 1 and "the server has ended the recording" in said
            assert list(json.loads(out)) == ["server"]


def test_no_file_stays_of_what_has_not_begun(tmp_path):
    trace = tmp_path / "trace.jsonl"
    done = subprocess.run([servers.hearth_path(), "record", trace, "--url", f"http://127.0.0.1:{servers.free_port()}"],
                          capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "no server answers" in done.stderr
    assert not trace.exists()


def test_blocks_of_another_size(tmp_path):
    trace = tmp_path / "trace.jsonl"
    with serve(*SIM) as server:
        for block in (0, 3, 128, "x"):
            refused = httpx.get(f"http://127.0.0.1:{server.port}/record?block={block}", timeout=10)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "block"
        with recording(server, trace, "--limit", 1, "--block", 16) as process:
            converse(server, 1, "ships")
            process.wait(timeout=30)
    line, = read(trace)
    assert line["block"] == 16 and len(blocks(line)) >= line["in"] // 16
