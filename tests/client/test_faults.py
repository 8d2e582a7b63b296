"""Memory that is refused and system calls that fail end nothing: a start says why, a reload keeps what was in force, a
request is answered, and the server ends when it is told to.

Allocations are refused by tests/support/faulty_alloc.c, system calls fail by tests/support/faulty_fs.c; both are loaded
into the program. HEARTH_FAULTS=all tries every allocation (`make faults`), otherwise a share of them.
"""

import json
import mmap
import os
import resource
import signal
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

from conftest import serve
from faulty import library
from lib import server as servers
from ondisk import QUICK_SIM
from store import PROGRAM, Store

SHARE = 12  # of the allocations of a start; a start takes a while
ALL = "HEARTH_FAULTS" in os.environ
CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}
FLAGS = (*QUICK_SIM, "-c", "4096", "-np", "1")
BODY = {"temperature": 0, "seed": 7, "max_tokens": 16, "messages": [{"role": "user", "content": "Say it, please."}]}


class Allocations:
    """The state of a program's allocator; see faulty_alloc.h."""

    FORMAT = "5q"

    def __init__(self, preload, path):
        path.write_bytes(bytes(struct.calcsize(self.FORMAT)))
        self.env = {"LD_PRELOAD": preload, "FAULTY_ALLOC": str(path),
                    "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)

    def arm(self, nth, count=1):
        struct.pack_into("4q", self.map, 0, 0, count, 0, 0)
        struct.pack_into("q", self.map, 0, nth)

    def disarm(self):
        struct.pack_into("q", self.map, 0, 0)
        return struct.unpack_from("q", self.map, 16)[0]

    def hits(self):
        return struct.unpack_from("q", self.map, 24)[0]


@pytest.fixture(scope="module")
def faulty_alloc(tmp_path_factory):
    if servers.sanitizer():
        pytest.skip("a sanitizer has an allocator of its own")
    return library(tmp_path_factory.mktemp("alloc"), "faulty_alloc")


@pytest.fixture
def allocations(faulty_alloc, tmp_path):
    return Allocations(faulty_alloc, tmp_path / "allocations")


def spread(total, first=1):
    return range(first, total + 1, 1 if ALL else max(1, (total - first) // SHARE))


def before_main(allocations):
    """How many allocations a program begins with: constructors of llama.cpp's globals end it when they are refused one."""
    allocations.arm(1 << 60)
    subprocess.run([servers.hearth_path(), "--version"], stdout=subprocess.DEVNULL, check=True,
                   env=servers.surroundings(allocations.env))
    return allocations.disarm()


def ask(port, path="/v1/chat/completions", body=None, timeout_s=60):
    """Status and JSON of an answer; 0 when the connection was closed."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read()
        assert error.code != 503 or error.headers["Retry-After"]
        return error.code, json.loads(text)
    except (OSError, EOFError):
        return 0, None


def reply(answer):
    return answer["choices"][0]["message"]["content"]


class Files:
    """What a server of these tests reads and writes."""

    def __init__(self, directory):
        self.keys, self.config = directory / "keys", directory / "hearth.conf"
        self.keys.write_text("alpha\n")
        self.keys.chmod(0o600)
        self.config.write_text("request-timeout = 600\n")
        self.flags = [*FLAGS, "--kv-dir", str(directory / "kv"), "--session-db", str(directory / "sessions.db"),
                      "--config", str(self.config)]


def start(flags, env):
    """A server that starts, or ends by itself; and what it said."""
    port = servers.free_port()
    process = subprocess.Popen([servers.hearth_path(), "serve", *flags, "--host", "127.0.0.1", "--port", str(port)],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env=servers.surroundings(env))
    said = []
    reader = threading.Thread(target=lambda: said.extend(process.stdout), daemon=True)
    reader.start()
    while process.poll() is None and ask(port, "/health")[0] == 0:
        time.sleep(0.01)
    if process.poll() is not None:
        reader.join()
    return process, port, said


def end(process):
    process.send_signal(signal.SIGTERM)
    return process.wait(120)


def test_a_start_without_memory(allocations, tmp_path):
    """It starts and serves, or it ends with 1 and a line that says why; it is never ended by a signal."""
    files = Files(tmp_path)
    process, port, _ = start(files.flags, allocations.env)
    want = reply(ask(port, body=BODY)[1])
    assert end(process) == 0
    allocations.arm(1 << 60)
    process, port, _ = start(files.flags, allocations.env)
    total = allocations.disarm()
    assert end(process) == 0
    started = ended = 0
    for nth in spread(total, before_main(allocations)):
        allocations.arm(nth)
        process, port, said = start(files.flags, allocations.env)
        allocations.disarm()
        text = "".join(said)
        assert process.poll() not in CRASHES, (nth, text)
        if process.poll() is None:
            status, answer = ask(port, body=BODY)
            assert (status, reply(answer)) == (200, want), nth
            assert end(process) == 0, nth
            started += 1
        else:
            assert process.returncode == 1 and "memory" in text.lower(), (nth, process.returncode, text)
            ended += 1
    print(f"{total} allocations: {started} starts served, {ended} ended with an error")


def test_a_reload_and_an_end_without_memory(allocations, tmp_path):
    """What cannot be read again stays as it is; whatever is refused on the way to the end, it ends."""
    files = Files(tmp_path)
    process, port, _ = start(files.flags, allocations.env)
    want = reply(ask(port, body=BODY)[1])

    def reload_once(nth):
        stamp = time.time()
        os.utime(files.config, (stamp, stamp))
        allocations.arm(nth)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.05)
        return allocations.disarm()

    total = max(reload_once(1 << 60), 1)
    for nth in spread(total):
        reload_once(nth)
        assert process.poll() is None, nth
        status, answer = ask(port, body=BODY)
        assert (status, reply(answer)) == (200, want), nth
    allocations.arm(1 << 60)
    assert end(process) == 0
    total = allocations.disarm()
    for nth in spread(max(total, 1)):
        process, port, _ = start(files.flags, allocations.env)
        assert ask(port, body=BODY)[0] == 200
        allocations.arm(nth)
        assert end(process) not in CRASHES, nth
        allocations.disarm()


def first_event(port):
    """Of GET /events; None: there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/events", timeout=60) as stream:
            return json.loads(stream.readline().removeprefix(b"data: "))
    except urllib.error.HTTPError as error:
        assert error.code == 503, error.code
    except (OSError, EOFError):
        return None


@pytest.mark.skipif(not PROGRAM, reason="Redis is not installed")
def test_what_goes_on_beside_requests_without_memory(allocations, tmp_path):
    """Shared and layered tiers, spans, reports and their journal, what is computed ahead, and the pages' endpoints: each
    answer is right or an error, and the server lives and ends well."""
    thought = "<think>\nIt needs a thought that goes on for a while, step by step, before it is said.\n</think>\n\n"
    script, keys = tmp_path / "script", iter(range(1 << 30))
    script.write_text(json.dumps({"when": {"last": "sky"}, "reply": thought + "The sky is blue, as it was.", "times": 0}) + "\n")
    template = os.path.join(os.path.dirname(__file__), "thinking.jinja")

    def turns():
        """Two turns, with other tokens than before; then all that tells of them."""
        name, answers = f"{next(keys):06}", []
        messages = [{"role": "user", "content": f"{name}: what is the sky like? " + f"{name} " * 60}]
        for _ in range(2):
            status, answer = ask(port, body={"messages": messages, "temperature": 0})
            answers.append(status)
            if status == 200:
                assert reply(answer) == "The sky is blue, as it was.", answer
                messages += [answer["choices"][0]["message"], {"role": "user", "content": "And the sky over there?"}]
        for path in ("/requests?limit=2", "/trends"):
            answers.append(ask(port, path)[0])
        event = first_event(port)
        assert event is None or "server" in event
        return answers

    with Store(tmp_path) as store:
        files = Files(tmp_path)
        flags = [*files.flags, "--kv-min-tokens", "0", "--page-tokens", "16", "--cache-ram", "1", "--kv-remote", store.url(),
                 "--trace", str(tmp_path / "trace"), "--chat-template-file", template, "--script", str(script)]
        process, port, said = start(flags, allocations.env)
        assert turns() == [200] * 4
        allocations.arm(1 << 60)
        assert turns() == [200] * 4
        total = allocations.disarm()
        errors = tries = 0
        for nth in range(1, total + 1, max(1, total // (2000 if ALL else 3 * SHARE))):
            allocations.arm(nth, 1 + 2 * (tries % 2))
            statuses = turns()
            allocations.disarm()
            assert process.poll() is None, (nth, "".join(said)[-2000:])
            assert set(statuses) <= {0, 200, 503}, (nth, statuses)
            errors, tries = errors + (statuses != [200] * 4), tries + 1
        assert turns() == [200] * 4
        assert end(process) == 0, "".join(said)[-2000:]
    json.loads((tmp_path / "trace").read_text())
    print(f"{total} allocations, {tries} tries, {errors} with an error")


def test_a_replay_without_memory(allocations, tmp_path):
    """It says what it says otherwise, or ends with an error."""
    trace = tmp_path / "trace"
    requests = [{"t": i, "in": 64 * (i + 4) + 9, "stop": "tool_use", "api_time": 0.5, "blocks": [[1, i + 4]]} for i in range(6)]
    lines = [{"tool_tokens": 128, "system_tokens": 64, "requests": requests}] * 3
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def replay():
        done = subprocess.run([servers.hearth_path(), "replay", str(trace), "--cache-tokens", "1k", "--json"], text=True,
                              capture_output=True, timeout=60, env=servers.surroundings(allocations.env), check=False)
        return done, {**json.loads(done.stdout), "policies": None} if done.returncode == 0 else None

    want = replay()[1]
    allocations.arm(1 << 60)
    replay()
    total = allocations.disarm()
    first = before_main(allocations)
    for nth in spread(total - 60, first):  # destructors of globals are its last ones, and cannot be refused either
        allocations.arm(nth)
        done, got = replay()
        allocations.disarm()
        assert got == want if done.returncode == 0 else done.returncode == 1 and "hearth replay: " in done.stderr, (nth, done)
    print(f"{total} allocations")


@pytest.mark.skipif(servers.sanitizer() is not None, reason="a sanitizer ends a process that it can get no memory for")
def test_less_and_less_address_space():
    """Under a limit that falls until nothing goes any more, each answer is right or an error, and the server lives."""
    with serve(*FLAGS) as running:
        want = reply(running.client.post("/v1/chat/completions", BODY))
        with open(f"/proc/{running.process.pid}/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * mmap.PAGESIZE
        statuses = []
        for more in (256, 64, 16, 8, 4, 2, 1, 0):
            resource.prlimit(running.process.pid, resource.RLIMIT_AS, (now + more * 1024 * 1024, resource.RLIM_INFINITY))
            for text in ("Say it, please.", "word " * 3000, "\u00e9" * 200000):
                body = {**BODY, "messages": [{"role": "user", "content": text}]}
                status, answer = ask(running.port, body=body)
                assert running.process.poll() is None, running.log()[-2000:]
                assert status in (0, 200, 400, 413, 503), (more, status, answer)
                statuses.append(status)
                assert text != BODY["messages"][0]["content"] or status != 200 or reply(answer) == want
        resource.prlimit(running.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        status, answer = ask(running.port, body=BODY)
        assert (status, reply(answer)) == (200, want)
        assert statuses.count(200) > 0


# ---------------------------------------------------------------------------------------------------- system calls

# Every class of calls, and what it can fail with (SHORT: half of it is done).
CALLS = {
    "open": "EACCES EMFILE ENFILE ENOMEM EIO EROFS ENOSPC EINTR ELOOP",
    "read": "EIO EINTR SHORT",
    "write": "ENOSPC EDQUOT EIO EINTR EFBIG SHORT",
    "sync": "EIO ENOSPC EDQUOT",
    "rename": "EIO ENOSPC EROFS EACCES EXDEV",
    "unlink": "EIO EROFS EACCES",
    "mkdir": "ENOSPC EROFS EACCES",
    "touch": "EIO EROFS EPERM",
    "list": "EIO EMFILE ENOMEM EACCES",
    "stat": "EIO EACCES ENOMEM",
    "map": "ENOMEM EACCES ENODEV",
    "lock": "ENOLCK EINTR EAGAIN",
    "space": "EIO ENOSYS",
    "close": "EIO EINTR ENOSPC",
}
NTH = range(1, 33) if ALL else (1, 3)
NTH_START = range(1, 65) if ALL else (1, 5)


class Disk:
    """A directory with all files of a server, whose calls can fail; see faulty_fs.c."""

    def __init__(self, preload, tmp_path):
        self.directory = tmp_path / "all"
        self.directory.mkdir(mode=0o700)
        self.files = Files(self.directory)
        self.control = tmp_path / "rules"
        self.flags = [*self.files.flags, "--kv-io", "threads", "--cache-ram", "0", "--confine", "off"]
        self.env = {"LD_PRELOAD": preload, "FAULTY_DIR": os.path.realpath(self.directory),
                    "FAULTY_CONTROL": str(self.control),
                    "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}

    def fail(self, rule=""):
        beside = self.control.with_suffix(".new")
        beside.write_text(rule + "\n")
        beside.rename(self.control)

    def hits(self):
        hits = self.control.with_suffix(".hits")
        return len(hits.read_text().split()) if hits.exists() else 0


@pytest.fixture
def broken(faulty_fs, tmp_path):
    return Disk(faulty_fs, tmp_path)


@pytest.fixture(scope="module")
def steady():
    """What replies must be."""
    with serve(*FLAGS) as running:
        yield running


def say(port, session, text):
    body = {**BODY, "session_id": session, "messages": [{"role": "user", "content": text}]}
    return ask(port, body=body)


def converse(port, steady, session, fault):
    """Two turns and a reload, in which a call fails; afterwards what was acknowledged is there, and is gone once it is
    deleted. Returns how many answers were errors."""
    acknowledged, errors = 0, 0
    for text in ("Hello there.", "And now?"):
        status, answer = say(port, session, text)
        errors += status != 200
        if status != 200:
            assert status >= 500 and answer["error"]["message"], (fault, status, answer)
            break
        assert reply(answer) == reply(say(steady.port, session, text)[1]), fault
        acknowledged += 1
    return acknowledged, errors


@pytest.mark.parametrize("call", CALLS)
def test_a_call_fails_once_while_serving(call, broken, steady):
    broken.fail()
    process, port, said = start(broken.flags, broken.env)
    errors = tries = 0
    try:
        for error in CALLS[call].split():
            for nth in NTH:
                session, fault = f"{call}-{error}-{nth}", (call, error, nth)
                broken.fail(f"{call} {error} {nth} 1")
                acknowledged, failed = converse(port, steady, session, fault)
                process.send_signal(signal.SIGHUP)
                status, _ = ask(port, f"/v1/sessions/{session}")
                assert status in (200, 404, 500, 503), (fault, status)
                broken.fail()
                assert process.poll() is None, (fault, "".join(said)[-2000:])
                if acknowledged == 2:
                    status, answer = ask(port, f"/v1/sessions/{session}")
                    assert status == 200 and answer["turns"] >= 2, (fault, answer)
                    status, answer = say(port, session, "The end.")
                    assert status == 200, (fault, answer)
                    assert reply(answer) == reply(say(steady.port, session, "The end.")[1]), fault
                errors, tries = errors + failed, tries + 1
        print(f"{call}: {tries} faults, {broken.hits()} calls failed, {errors} answers were errors")
    finally:
        broken.fail()
        status = end(process)
    assert status == 0, "".join(said)[-2000:]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_fails_once_at_the_start(call, broken, steady):
    """It serves, or it ends with 1 and names the file."""
    broken.fail()
    process, port, _ = start(broken.flags, broken.env)
    want = reply(say(port, "before", "Hello there.")[1])
    assert end(process) == 0
    served = ended = 0
    for error in CALLS[call].split()[:None if ALL else 1]:
        for nth in NTH_START:
            broken.fail(f"{call} {error} {nth} 1")
            process, port, said = start(broken.flags, broken.env)
            broken.fail()
            text = "".join(said)
            if process.poll() is None:
                status, answer = ask(port, "/v1/sessions/before")
                assert status == 200 and answer["turns"] == 1, (error, nth, answer, text)
                assert reply(say(port, f"start-{error}-{nth}", "Hello there.")[1]) == want
                assert end(process) == 0, (error, nth)
                served += 1
            else:
                assert process.returncode == 1 and str(broken.directory) in text, (error, nth, text)
                ended += 1
    print(f"{call}: {served} starts served, {ended} ended with an error")
