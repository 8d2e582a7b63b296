"""What the tests of the disk have in common: servers over a directory, conversations, and a look into the directory."""

import contextlib
import json
import os
import stat
import tempfile
import threading
import time

import pytest

from conftest import serve
from lib import server as servers
from lib.ledger import new_tokens
from lib.text import Text

# Other splits of a batch give slightly different logits, so the best two tokens may change places where they are about
# equally likely. Anywhere else a difference is an error of the cache.
NOISE = 0.7
# What a reply that has ended is safe after, in a conversation that is long enough to be written (--kv-min-tokens; a
# reply's last token is sampled and never computed).
SAFE_S = 2.0
SAFE_TOKENS = 256 + 1
QUICK_SIM = ["--engine", "sim", "--sim-speed", "10"]


def model_flags(model):
    """Flags of a server with this model, or sim, which has its time's costs in a tenth of the time; the test is skipped
    where the file is not."""
    if model == "sim":
        return QUICK_SIM
    path = os.path.join(servers.models_dir(), f"{model}.gguf")
    if not os.path.exists(path):
        pytest.skip(f"{path} is not there (scripts/models.sh all)")
    flags = ["-m", path]
    if model.startswith("tiny"):
        flags += ["-t", "1"]
    return flags


def serve_disk(model, directory, *flags, scanned=True, **options):
    """A server over a directory, which has looked at it, unless `scanned` is false or it cannot; later flags win."""
    running = serve(*model_flags(model), "-c", "8192", "-np", "2", "--cache-ram", "512", "--kv-dir", str(directory),
                    "--kv-disk", "8192", *flags, **options)
    try:
        wait_until(lambda: not scanned or disk(running)["state"] != "scanning", "the directory has been looked at")
    except BaseException:
        running.kill()
        raise
    return running


def disk(running):
    """/health's word on the disk, which it tells whoever has a key where keys are needed."""
    command = running.command
    keys = command[command.index("--api-key") + 1].split(",") if "--api-key" in command else ["none"]
    connection, response = running.client.open("GET", "/health", headers={"Authorization": f"Bearer {keys[0]}"})
    try:
        return json.load(response)["disk"]
    finally:
        connection.close()


def wait_until(condition, what="what is waited for", timeout_s=60.0):
    """Waits until the condition holds. The limit is for servers that never get there, not a measure."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)


def kept(running, identity):
    """What is kept of a request: it is there a moment after its answer."""
    def found():
        return next((one for one in running.client.get("/requests?limit=100")["data"] if one["id"] == identity), None)

    return wait_until(found, f"{identity} is kept")


def reasons(running):
    """Why a server says that it is not well: its words by their condition."""
    answer = running.client.get("/health")
    assert answer["status"] == ("degraded" if answer["reasons"] else "ok")
    return {reason["condition"]: reason["message"] for reason in answer["reasons"]}


def wait_written(running):
    """Waits until nothing is left to be written."""
    last = []

    def quiet():
        metrics = running.client.metrics()
        last.append((metrics["hearth_disk_queued_bytes"], metrics["hearth_disk_written_total"],
                     metrics["hearth_disk_dropped_total"]))
        return len(last) > 10 and last[-1][0] == 0 and len(set(last[-10:])) == 1

    wait_until(quiet, "the queue is empty")
    return running.client.metrics()


def wait_scanned(running):
    wait_until(lambda: running.client.metrics()["hearth_disk_scanned"] == 1, "the directory has been looked at")


def files_below(directory):
    """Paths and lstat() of the files below a directory. A server may be at work in it: what goes away meanwhile is not
    there."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                yield path, os.lstat(path)


def _items(directory):
    return {path: status.st_size for path, status in files_below(directory) if path.endswith((".page", ".snap"))
            and os.path.basename(os.path.dirname(path)) not in ("bad", "tmp")}


def _is_learnt(path):
    """A note (label 255) of two tokens: docs/disk-format.md, src/cache/learnt.c."""
    with contextlib.suppress(OSError):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                head = file.read(128)
            return len(head) == 128 and head[125] == 255 and int.from_bytes(head[116:120], "little") == 2
    return False


def learnt_files(directory):
    """What the policy has learnt: of how conversations come back, and of none of them."""
    return {path: size for path, size in _items(directory).items() if path.endswith(".snap") and _is_learnt(path)}


def state_files(directory):
    """Names and sizes of the pages and snapshots in a directory, whatever they are."""
    return {path: size for path, size in _items(directory).items() if not (path.endswith(".snap") and _is_learnt(path))}


def bad_files(directory):
    folder = os.path.join(directory, "bad")
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def assert_private(directory):
    """Nobody else may look into it."""
    for folder, _, _ in os.walk(directory):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700, folder
    for path, status in files_below(directory):
        assert stat.S_IMODE(status.st_mode) & 0o077 == 0, path


class DiskClock:
    """Seconds in which the disk was quick: what a crash may cost is told in these, as a disk that stalls holds every
    writer up. A file is synchronised again and again, and no such round counts for more than ROUND_S."""
    ROUND_S = 0.2

    def __init__(self):
        self._quick_s, self._ends = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self._ends.set()
        self._thread.join()

    def now_s(self):
        """As of the end of the last round."""
        return self._quick_s

    def _run(self):
        with tempfile.TemporaryFile() as file:
            while not self._ends.is_set():
                begin_s = time.monotonic()
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
                self._ends.wait(self.ROUND_S / 2)
                self._quick_s += min(time.monotonic() - begin_s, self.ROUND_S)


def wait_safe():
    """Waits for as long as a crash may cost."""
    with DiskClock() as clock:
        wait_until(lambda: clock.now_s() >= SAFE_S, "the disk is quick", 300)


class Talk:
    """A conversation. With `foreign`, its history holds replies that no server has given: its prompts are then made of
    text alone, the same tokens for every server. Otherwise a server prints its own replies as it sampled them, and
    another one, or one whose transcripts are lost, may read the same text as other tokens."""

    def __init__(self, name, system_words=250, asked_words=40, foreign=False):
        self.text, self.asked_words, self.foreign = Text("talk", name), asked_words, foreign
        self.messages = []
        if system_words:
            self.messages.append({"role": "system", "content": Text("talk system").words(system_words)})
        self.turns = []        # since the last crash: when a reply ended (DiskClock), and known_tokens then
        self.safe_tokens = 0   # of known_tokens, those that no crash so far must have cost
        self.known_tokens = 0  # that the last prompt and its reply have in common with the next prompt

    def ask(self):
        """The next question, put behind the messages."""
        self.messages.append({"role": "user", "content": self.text.ask(self.asked_words)})
        return list(self.messages)

    def hear(self, answer, ended_s=0.0):
        said = self.text.words(12) if self.foreign else content(answer)
        self.messages.append({"role": "assistant", "content": said})
        self.known_tokens = answer["usage"]["prompt_tokens"]
        if not self.foreign:
            self.known_tokens += answer["usage"]["completion_tokens"]
        self.turns.append((ended_s, self.known_tokens))

    def crashed(self, when_s):
        """A server has crashed: what it had replied for long enough is safe."""
        self.safe_tokens = max([self.safe_tokens, *(turn[1] for turn in self.turns if self.is_safe(turn, when_s))])
        self.turns.clear()

    @staticmethod
    def is_safe(turn, when_s):
        """Whether a server that crashes at when_s has the reply of this turn on its disk."""
        ended_s, known_tokens = turn
        return ended_s < when_s - SAFE_S - DiskClock.ROUND_S and known_tokens >= SAFE_TOKENS


def request(client, messages, max_tokens=16, **options):
    """A whole reply at temperature 0, with the likeliest alternatives of its tokens."""
    return client.post("/v1/chat/completions", {"messages": messages, "max_tokens": max_tokens, "temperature": 0,
                                                "logprobs": True, "top_logprobs": 2, **options})


def content(answer):
    return answer["choices"][0]["message"]["content"]


def computed(answer):
    return answer["hearth"]["computed"]


def reused(answer, tier="disk"):
    return answer["hearth"]["reused"][tier]


def assert_same(model, cold, cached):
    """Equal replies, by the entries of their logprobs; with a real model up to the noise of other batch splits."""
    noise = 0 if model == "sim" else NOISE
    for here, there in zip(cold, cached):
        if here["token"] != there["token"]:
            best, second = here["top_logprobs"]
            assert best["logprob"] - second["logprob"] < noise, (here, there)
            return
    assert len(cold) == len(cached)


def assert_same_reply(model, expected, got):
    assert_same(model, *(answer["choices"][0]["logprobs"]["content"] for answer in (expected, got)))


class Counter:
    """Prompt tokens of a whole test: what was computed, and what was new. What is new is counted on the text: replies
    stand in the server's own prompts as they were sampled, which may be a few tokens more or less."""

    def __init__(self):
        self.known, self.computed, self.new = [], 0, 0

    def count(self, client, messages, answer):
        text = client.apply_template(messages)
        prompt = client.tokenize(text)
        assert sum(answer["hearth"]["reused"].values()) + computed(answer) == answer["usage"]["prompt_tokens"]
        self.computed += computed(answer)
        self.new += new_tokens(prompt, self.known)
        self.known.append(client.tokenize(text + content(answer)))

    @property
    def ratio(self):
        return self.computed / self.new
