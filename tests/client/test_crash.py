"""SIGKILL at random moments under load, again and again over one directory.

After every crash the next server serves at once; no reply differs from what a server without a cache says; what was
replied more than two seconds before the crash is restored; nothing in the directory is half written.

HEARTH_CRASHES is how many times (default 8; the full proof is 200), HEARTH_SEED makes a run repeatable.
"""

import os
import random
import subprocess
import threading
import time

import pytest

from conftest import serve
from ondisk import (DiskClock, Talk, assert_same_reply, bad_files, computed, model_flags, request, reused, serve_disk,
                    state_files, wait_scanned, wait_until)
from lib import server as servers

CRASHES = int(os.environ.get("HEARTH_CRASHES", "8"))
CLIENTS = 4
TALKS = 3 * CLIENTS
# Between a reply and a client's next request: a fast model would fill its contexts before anything is safe.
PAUSE_S = 0.2
# The model is given no more than this beyond a conversation's known tokens: the reply's last token is sampled and never
# computed, and a template may print a few tokens behind a reply.
SLACK_TOKENS = 8


def new_talk(number, crash):
    """A third of the conversations have a history that is not the server's own, so that another server, which knows no
    transcripts, can say what the replies to it must be."""
    return Talk(f"crash {crash} {number}", system_words=150, asked_words=20, foreign=number // CLIENTS == 0)


def own(talks):
    """Conversations whose history is the server's own."""
    return [talk for talk in talks if not talk.foreign]


class Load:
    """Clients that talk until the server is gone. A conversation belongs to one client at a time."""

    def __init__(self, running, talks, chance, clock):
        self.running, self.talks, self.clock, self.errors = running, talks, clock, []
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self._client, args=(part, random.Random(chance.random())))
                        for part in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def _client(self, part, chance):
        mine = self.talks[part::CLIENTS]
        while not self.stopping.is_set():
            talk = chance.choice(mine)
            saved = list(talk.messages)
            try:
                answer = request(self.running.client, talk.ask())
            except Exception as error:  # however the connection or the response breaks off
                talk.messages[:] = saved
                if not self.stopping.is_set():
                    self.errors.append(error)
                return
            talk.hear(answer, self.clock.now_s())
            self.stopping.wait(PAUSE_S)

    def wait_safe(self):
        """Waits until a reply is safe, in a conversation that check() will ask for."""
        def safe():
            now_s = self.clock.now_s()
            return self.errors or any(talk.is_safe(turn, now_s) for talk in own(self.talks) for turn in list(talk.turns))

        wait_until(safe, "a reply is safe", 300)

    def crash(self):
        """Kills the server."""
        self.stopping.set()
        killed_s = self.clock.now_s()
        self.running.kill()
        for thread in self.threads:
            thread.join()
        for talk in self.talks:
            talk.crashed(killed_s)


def check(model, running, steady, talks, chance, clock):
    """Continues some conversations: right replies, and of the safe ones nothing is computed again."""
    foreign = [talk for talk in talks if talk.foreign and talk.known_tokens]
    for talk in chance.sample(foreign, min(2, len(foreign))):
        messages = talk.ask()
        answer = request(running.client, messages)
        talk.hear(answer, clock.now_s())
        assert_same_reply(model, request(steady.client, messages), answer)
    wait_scanned(running)
    safe = [talk for talk in own(talks) if talk.safe_tokens]
    for talk in chance.sample(safe, min(3, len(safe))):
        known = talk.safe_tokens
        answer = request(running.client, talk.ask())
        talk.hear(answer, clock.now_s())
        prompt = answer["usage"]["prompt_tokens"]
        assert computed(answer) <= prompt - known + SLACK_TOKENS, \
            f"of {prompt} tokens {known} were safe: {answer['hearth']}"
    return len(safe)


def verify(directory):
    """`hearth kv verify` finds nothing wrong."""
    done = subprocess.run([servers.hearth_path(), "kv", "verify", "--kv-dir", str(directory)],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("model", ["sim", pytest.param("tiny", marks=pytest.mark.llama),
                                   pytest.param("tiny-hybrid", marks=pytest.mark.llama)])
def test_crashes(model, tmp_path):
    chance = random.Random(os.environ.get("HEARTH_SEED", f"crashes {model}"))
    flags = ["-np", str(CLIENTS), "-c", "16384"]
    talks = [new_talk(number, 0) for number in range(TALKS)]
    checked, from_disk = 0, 0
    # What replies must be, from a server that keeps nothing at all.
    with DiskClock() as clock, serve(*model_flags(model), "-c", "8192", "-np", "1", "--cache-ram", "0") as steady:
        for crash in range(CRASHES):
            running = serve_disk(model, tmp_path, *flags, scanned=False)
            try:
                if crash > 0:
                    checked += check(model, running, steady, talks, chance, clock)
                    from_disk += running.client.metrics()["hearth_prompt_reused_disk_tokens_total"]
                load = Load(running, talks, chance, clock)
                # Most crashes come soon; now and then there is time for replies to become safe.
                if crash % 4 == 0:
                    load.wait_safe()
                time.sleep(chance.uniform(0, 1.0))
                load.crash()
                assert not load.errors, load.errors
            finally:
                running.kill()
            # Conversations are started over before they fill the context.
            for number, talk in enumerate(talks):
                if talk.known_tokens > 2500:
                    talks[number] = new_talk(number, crash)
            if crash % 5 == 4 or crash == CRASHES - 1:
                verify(tmp_path)
        with serve_disk(model, tmp_path, *flags) as running:
            check(model, running, steady, talks, chance, clock)
    assert checked > 0, "no conversation was safe before a crash"
    assert from_disk > 0
    assert not bad_files(tmp_path)
    assert state_files(tmp_path)


@pytest.mark.llama
def test_a_crash_while_everything_is_written(tmp_path):
    """Large pages, killed in the middle of writing them: what has a name is whole."""
    chance = random.Random("large")
    for crash in range(max(3, CRASHES // 5)):
        with serve_disk("smollm2", tmp_path, "--kv-interval-tokens", "256") as running:
            talk = Talk(f"large {crash}", system_words=400)
            load = threading.Thread(target=lambda: ask_quietly(running, talk.ask()))
            load.start()
            time.sleep(chance.uniform(0.5, 2.5))
            running.kill()
            load.join()
    verify(tmp_path)
    with serve_disk("smollm2", tmp_path) as running:
        answer = request(running.client, talk.messages)
        assert reused(answer) + reused(answer, "ram") + computed(answer) + reused(answer, "live") > 0
        assert running.client.metrics()["hearth_disk_bad_total"] == 0
    # What dead processes have left in tmp/ goes when the directory is tidied up.
    subprocess.run([servers.hearth_path(), "kv", "gc", "--kv-dir", str(tmp_path)], check=True, timeout=60,
                   stdin=subprocess.DEVNULL, capture_output=True)
    assert not [name for folder, _, names in os.walk(tmp_path) if folder.endswith("/tmp") for name in names]


def ask_quietly(running, messages):
    try:
        request(running.client, messages)
    except Exception:
        pass
