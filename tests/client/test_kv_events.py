"""KV events, as their consumers read them: vLLM's own types, and the indexer of NVIDIA Dynamo."""

import contextlib
import json
import os
import subprocess
import threading

import httpx

from conftest import serve
from lib import server as servers
from ondisk import Talk, request, wait_until
from program import installed, needs

pytestmark = needs("dynamo")
BLOCK = 32
SUBSCRIBER = os.path.join(os.path.dirname(__file__), "kv_subscriber.py")


def python():
    return os.path.join(installed("dynamo"), "bin", "python")


class Subscriber:
    """What a subscriber has heard; a context manager."""

    def __init__(self, endpoint, topic=""):
        self.process = subprocess.Popen([python(), SUBSCRIBER, endpoint, topic], stdout=subprocess.PIPE, text=True,
                                        preexec_fn=servers._die_with_parent)
        assert json.loads(self.process.stdout.readline()) == "ready"
        self.messages = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            self.messages.append(json.loads(line))

    def events(self, kind):
        return [event for message in list(self.messages) for event in message["events"] if event["type"] == kind]

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def publisher(*flags, **options):
    port, replay = servers.free_port(), servers.free_port()
    endpoints = f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{replay}"
    with serve("--engine", "sim", "-c", "8192", "-np", "1", "--page-tokens", str(BLOCK), "--kv-events", endpoints[0],
               "--kv-events-replay", endpoints[1], *flags, **options) as running:
        yield running, *endpoints


def prompt_tokens(running, messages):
    return running.client.tokenize(running.client.apply_template(messages))


def replayed(endpoint, start):
    ended = subprocess.run([python(), SUBSCRIBER, endpoint, "replay", str(start)], capture_output=True, text=True,
                           timeout=60, check=True)
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_blocks_are_told_and_can_be_told_again():
    talk = Talk("told", system_words=120)
    with publisher("--kv-events-topic", "kv") as (running, endpoint, replay), Subscriber(endpoint, "kv") as heard:
        request(running.client, talk.ask(), max_tokens=1)  # the subscription may be too late for this one
        wait_until(lambda: heard.messages or request(running.client, Talk("more", 90).ask(), max_tokens=1), "it is heard")
        tokens = prompt_tokens(running, talk.messages)
        whole = len(tokens) // BLOCK
        wait_until(lambda: sum(len(m["events"]) for m in replayed(replay, 0)) > whole, "all is published")
        messages = replayed(replay, 0)
        assert [message["number"] for message in messages] == list(range(len(messages)))
        assert messages[0]["events"][0]["type"] == "AllBlocksCleared"  # of an earlier process
        stored = {tuple(event["block_hashes"]): event for message in messages for event in message["events"]
                  if event["type"] == "BlockStored"}
        chain, parent = [], None
        for at in range(whole):
            event = next(event for event in stored.values() if event["parent_block_hash"] == parent
                         and event["token_ids"] == tokens[at * BLOCK:(at + 1) * BLOCK])
            assert event["block_size"] == BLOCK and event["medium"] == "CPU"
            parent = event["block_hashes"][0]
            chain.append(parent)
        assert len(set(chain)) == whole
        number = heard.messages[0]["number"]
        assert heard.messages == replayed(replay, number)[:len(heard.messages)]
        assert replayed(replay, 10 ** 9) == []


def test_what_is_evicted_is_told():
    with publisher("--cache-ram", "1") as (running, endpoint, _), Subscriber(endpoint) as heard:
        budget = 40
        for number in range(budget):
            request(running.client, Talk(f"evicts {number}", system_words=0, asked_words=700).ask(), max_tokens=1)
            if heard.events("BlockRemoved"):
                break
        wait_until(lambda: heard.events("BlockRemoved"), "an eviction is told")
        known = {event["block_hashes"][0] for event in heard.events("BlockStored")}
        assert {event["block_hashes"][0] for event in heard.events("BlockRemoved")} <= known


def test_what_the_disk_has_is_told_at_the_start(tmp_path):
    talk, disk = Talk("disk", system_words=200), ["--kv-dir", str(tmp_path), "--kv-min-tokens", "0"]
    with publisher(*disk) as (running, _, _):
        request(running.client, talk.ask(), max_tokens=1)
        whole = len(prompt_tokens(running, talk.messages)) // BLOCK
        assert running.stop() == 0
    with publisher(*disk) as (_, _, replay):
        wait_until(lambda: sum(event["type"] == "BlockStored" for message in replayed(replay, 0)
                               for event in message["events"]) >= whole, "what was found is told")


def test_dynamo_finds_the_longest_match(tmp_path):
    """NVIDIA Dynamo's own indexer says how much of a prompt this server has."""
    talk = Talk("dynamo", system_words=120)
    with publisher() as (running, endpoint, _), open(tmp_path / "log", "w", encoding="utf-8") as log:
        def start():
            return subprocess.Popen([python(), "-m", "dynamo.indexer", "--block-size", str(BLOCK), "--port", str(port),
                                     "--model-name", "m", "--workers", f"1={endpoint}"], stdout=log, stderr=log,
                                    preexec_fn=servers._die_with_parent)

        port = servers.free_port()
        indexer = start()
        try:
            def listens():
                nonlocal port, indexer
                if indexer.poll() is not None:  # another program was faster to take the port
                    port = servers.free_port()
                    indexer = start()
                with contextlib.suppress(httpx.HTTPError):
                    return httpx.get(f"http://127.0.0.1:{port}/workers").json()[0]["listeners"]["0"]["status"] == "active"

            wait_until(listens, "the indexer listens")
            request(running.client, talk.ask(), max_tokens=1)
            tokens = prompt_tokens(running, talk.messages)

            def match(asked):
                found = httpx.post(f"http://127.0.0.1:{port}/query", json={"token_ids": asked, "model_name": "m"}).json()
                return found["instances"].get("1", {}).get("longest_matched", 0)

            wait_until(lambda: match(tokens) == len(tokens) // BLOCK * BLOCK, "all whole blocks match")
            assert match(tokens[:BLOCK] + [7] * BLOCK) == BLOCK and match([7] * BLOCK) == 0
        finally:
            indexer.kill()
            indexer.wait()


def test_an_endpoint_that_cannot_be_bound():
    for endpoint in ("tcp://127.0.0.1:port", "http://here", "tcp://192.0.2.1:5557"):
        command = [servers.hearth_path(), "serve", "--engine", "sim", "--port", "0", "--kv-events", endpoint]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=servers.surroundings(), check=False)
        assert ended.returncode == 1 and f"--kv-events {endpoint}: " in ended.stderr, ended.stderr
