"""--trace: a file in the Chrome trace format. Perfetto's own parser is a program that is fetched from elsewhere, so the
file is held against the format's description here: members and their types, nesting on every track and within every
id, names for all tracks; also when the server was killed, and with names of clients that want to be markup."""

import json
import os
import subprocess
import threading
import time
import urllib.request

import pytest

from conftest import NEEDS_MODEL, serve
from lib import server as servers

SIM = ("--engine", "sim", "-np", "2", "-c", "16384")
HOSTILE = 'a"b\\c\u2028</script>'


def ask(server, text, session=None, client="test-agent/1.0", traceparent=None, max_tokens=8):
    headers = {"Content-Type": "application/json", "User-Agent": client}
    headers.update({"x-session-id": session} if session else {})
    headers.update({"traceparent": traceparent} if traceparent else {})
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "ignore_eos": True}
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/chat/completions", json.dumps(body).encode(),
                                     headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
        return answer.headers["x-request-id"]


def read(path, ended=True):
    """The events of a file. One that has no end (the server was killed) may lack the bracket, as the format has it."""
    text = path.read_text()
    assert ended == text.endswith("]\n")
    return json.loads(text if ended else text.rstrip().rstrip(",") + "]")


def is_time(value):
    return isinstance(value, int) and value >= 0


def check(events):
    """Raises where the events are not what the format describes. Returns the names of tracks."""
    names, tracks, ids = {}, {}, {}
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["hearth"]
    for event in events:
        assert all(type(event[number]) is int for number in ("pid", "tid")), event  # a bool is no number
        assert set(event) <= {"ph", "name", "cat", "pid", "tid", "ts", "dur", "id", "args", "s"}, event
        assert isinstance(event["name"], str) and event["name"], event
        assert event["pid"] == 1 and isinstance(event["tid"], int), event
        assert isinstance(event.get("args", {}), dict), event
        if event["ph"] == "M":
            assert not {"ts", "dur", "id"} & set(event), event
            if event["name"] == "thread_name":
                assert event["tid"] not in names and event["args"]["name"] not in names.values(), event
                names[event["tid"]] = event["args"]["name"]
            elif event["name"] == "thread_sort_index":
                assert isinstance(event["args"]["sort_index"], int), event
            else:
                assert event["name"] == "process_name", event
            continue
        assert is_time(event["ts"]), event
        if event["ph"] == "X":
            assert is_time(event["dur"]), event
            tracks.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
        elif event["ph"] in "be":
            assert event["cat"] in ("request", "disk") and isinstance(event["id"], str) and event["id"], event
            ids.setdefault((event["cat"], event["id"]), []).append(event)
        else:
            assert event["ph"] == "i" and event["s"] == "g", event
    for spans in [*tracks.values(), *(pairs(of_one) for of_one in ids.values())]:
        open_ends = []
        for begun, ended, name in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= begun:
                open_ends.pop()
            assert not open_ends or ended <= open_ends[-1], (begun, ended, name)
            open_ends.append(ended)
    assert set(tracks) <= set(names)
    assert {event["tid"] for event in events if event["ph"] in "bei"} <= set(names)
    return names


def pairs(events):
    """Begins and ends of one id, as spans."""
    begins = [event for event in events if event["ph"] == "b"]
    ends = [event for event in events if event["ph"] == "e"]
    assert [event["name"] for event in begins] == [event["name"] for event in ends]
    spans = [(begin["ts"], end["ts"], begin["name"]) for begin, end in zip(begins, ends)]
    assert all(begun <= ended for begun, ended, _ in spans), spans
    return spans


def of(events, name, phase="X"):
    return [event for event in events if event["name"] == name and event["ph"] == phase]


def test_a_trace(tmp_path):
    path = tmp_path / "trace.json"
    flags = (*SIM, "--trace", str(path), "--kv-dir", str(tmp_path / "kv"), "--kv-disk", "64")
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with serve(*flags) as server:
        asked = ask(server, "word " * 2000, session="the \"work\" \\\\ <b>", client=HOSTILE.encode().decode("latin-1"),
                    traceparent=f"00-{trace}-00f067aa0ba902b7-01")
        ask(server, "Go on.", session="the \"work\" \\\\ <b>")
    events = read(path)
    names = check(events)
    assert {"service", "disk writer", "lane 0", "lane 1"} == set(names.values())
    (request,) = [event for event in of(events, "request", "b") if event["id"] == asked]
    args = request["args"]
    assert args["session"] == "the \"work\" \\\\ <b>" and args["trace"] == trace and args["prompt"] > 2000
    assert args["generated"] == 8 and args["end"] == "length" and args["client"].startswith("a'b")
    assert {event["name"] for event in events if event.get("id") == asked} >= {"request", "prefill", "decode"}
    lane = {tid for tid, name in names.items() if name.startswith("lane")}
    for name in ("request", "prefill", "decode"):
        assert of(events, name) and {event["tid"] for event in of(events, name)} <= lane
    (of_lane,) = [event for event in of(events, "request") if event["args"]["task"] == args["task"]]
    shares = [event for event in of(events, "prefill") if event["tid"] == of_lane["tid"] and
              of_lane["ts"] <= event["ts"] < of_lane["ts"] + of_lane["dur"]]
    assert sum(event["args"]["tokens"] for event in shares) == args["computed"]
    assert of(events, "batch") and of(events, "capture") and of(events, "write")
    with serve(*flags) as server:  # a second file in its place; the state comes from disk
        ask(server, "word " * 2000)
    events = read(path)
    check(events)
    assert of(events, "read", "b") and sum(event["args"]["disk"] for event in of(events, "restore")) > 0


def test_a_server_that_is_killed(tmp_path):
    path = tmp_path / "trace.json"
    with serve(*SIM, "--trace", str(path)) as server:
        asked = ask(server, "word " * 500)
        end = time.monotonic() + 60
        while asked not in path.read_text() and time.monotonic() < end:
            time.sleep(0.02)
        server.kill()
    events = read(path, ended=False)
    check(events)
    assert [event["id"] for event in of(events, "request", "b")] == [asked]


def test_a_file_that_cannot_be_written(tmp_path):
    for path, cause in ((tmp_path / "nowhere" / "file", "No such file"), ("/dev/full", "No space left")):
        done = subprocess.run([servers.hearth_path(), "serve", *SIM, "--port", "0", "--trace", str(path)],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                              env=servers.surroundings())
        assert done.returncode == 1 and "--trace" in done.stderr and cause in done.stderr, done


def test_a_disk_that_fills_up(tmp_path):
    """One line of the log, and the server goes on. A pipe of which the reader has gone stands for the disk."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with serve(*SIM, "--trace", str(path)) as server:
        os.close(reader)
        for _ in range(3):
            ask(server, "word " * 100)
            time.sleep(0.3)
        ask(server, "Still there?")
        assert server.log().count("trace: the file cannot be written") == 1


def test_a_file_has_a_limit(tmp_path):
    """One that is full is begun again, and what happened last is in it."""
    path = tmp_path / "trace.json"
    with serve("--engine", "sim", "--sim-speed", "1000", "-np", "1", "--trace", str(path), "--trace-mib", "1") as server:
        for i in range(100):
            if i > 0 and "is begun again" in server.log():
                break
            ask(server, f"Say {i}.", max_tokens=400)
        else:
            raise AssertionError("it has no limit")
        ask(server, "The last one.", session="the-last")
    assert os.path.getsize(path) <= 1 << 20
    events = read(path)
    check(events)
    assert any("the-last" in json.dumps(event) for event in events)


@pytest.mark.parametrize("real", (False, True))
def test_what_overlaps(tmp_path, engine_flags, real):
    """Requests that preempt each other for a while: spans still lie inside each other. A viewer drops those that do not."""
    path = tmp_path / "trace.json"
    if real and "-m" not in engine_flags:
        pytest.skip(NEEDS_MODEL)
    flags = engine_flags if real else ("--engine", "sim")
    with serve(*flags, "-np", "2", "-c", "2048", "--trace", str(path)) as server:
        threads = [threading.Thread(target=ask, args=(server, f"{i} " + "word " * 300),
                                    kwargs={"max_tokens": 100}) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = read(path)
    check(events)
    assert len(of(events, "request", "b")) == 6 and of(events, "batch")
