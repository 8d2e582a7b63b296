"""The server and hearth replay take the same decisions: what a server with a small cache was asked is recorded, and the
replay plans, evicts and stores it as the server did, request by request.

The server's clock is virtual, so that it is at the same place for both: with it, two runs are the same to the digit. How
requests that are computed side by side share batches is nothing that a replay knows: here they follow each other, and a
lane is free, as a long prompt that has the last one is stored on the way."""

import json
import random
import subprocess

import pytest

from conftest import serve
from lib import server as servers
from test_record import ask, recording

SYSTEM = "You are an agent that reads ledgers and answers briefly. " * 20


def busy(say, seed, turns):
    """Conversations that come back in no order, fork, and end; their prompts are up to some thousand tokens. Returns how
    many requests these are."""
    rng = random.Random(seed)
    talks = []
    for turn in range(turns):
        if len(talks) < 9 and rng.random() < 0.3 or not talks:
            talks.append([{"role": "system", "content": SYSTEM}])
        at = rng.randrange(len(talks))
        messages = talks[at]
        messages.append({"role": "user", "content": f"{seed}.{turn}: " + "which page was torn out? " * rng.randrange(4, 90)})
        messages.append(say(messages, rng.randrange(1, 40)))
        if len(messages) > 14 or rng.random() < 0.08:
            talks.pop(at)
        elif rng.random() < 0.1:  # a fork: the last turn is asked in another way later
            talks.append(messages[:-2])
    for messages in talks:  # what is kept of each
        say(messages + [{"role": "user", "content": "And now?"}], 2)
    return turns + len(talks)


def replay(*args):
    done = subprocess.run([servers.hearth_path(), "replay", *map(str, args), "--json"], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("lanes, policy, mine, other", [(2, "returns", "hearth", "lru"), (5, "returns", "hearth", "lru"),
                                                        (2, "lru", "lru", "hearth")])
def test_the_replay_does_what_the_server_did(tmp_path, lanes, policy, mine, other):
    trace = tmp_path / "trace.jsonl"
    with serve("--engine", "sim", "--sim-clock", "virtual", "-c", "65536", "-np", str(lanes), "--cache-ram", "1",
               "--cache-policy", policy) as server:
        def say(messages, tokens):
            return ask(server, messages, max_tokens=tokens)["choices"][0]["message"]

        requests = busy(lambda messages, tokens: {"role": "assistant", "content": ""}, seed=lanes, turns=110)
        with recording(server, trace, "--block", 1, "--limit", requests) as process:
            assert busy(say, seed=lanes, turns=110) == requests
            process.wait(timeout=30)
    lines = [json.loads(line) for line in trace.read_text().splitlines()][1:]
    assert len(lines) == requests
    assert lines[-1]["served"]["evicted"] > 100
    found = replay(trace, "--prefill", 1000, "--import", "1g")
    assert found["policies"][mine]["as_served"] == {"requests": requests, "same": requests, "first": 0}
    reused = sum(line["served"]["reused"] for line in lines)
    assert found["prompt_tokens"] - found["policies"][mine]["computed_tokens"] == reused
    assert found["policies"][other]["as_served"]["same"] < requests  # another policy does other things
    assert found["policies"]["belady"]["computed_tokens"] <= found["policies"][mine]["computed_tokens"]


def test_a_key_keeps_its_share(tmp_path):
    """A key with many conversations pushes out none of another key's, and the replay shares in the same way."""
    keys, trace = tmp_path / "keys", tmp_path / "trace.jsonl"
    keys.write_text("quiet-key\nloud-key\nroot scope=admin\n")
    keys.chmod(0o600)
    with serve("--engine", "sim", "--sim-clock", "virtual", "-c", "65536", "-np", "2", "--cache-ram", "1",
               "--cache-share", "60", "--api-key-file", keys) as server:
        def turn(key, messages, at):
            messages.append({"role": "user", "content": f"{key} {at}: " + "which page was torn out? " * 40})
            answer = ask(server, messages, key, max_tokens=4)
            messages.append(answer["choices"][0]["message"])
            return answer["usage"]

        quiet = [[{"role": "system", "content": f"{i}. {SYSTEM}"}] for i in range(3)]
        loud = [[{"role": "system", "content": f"{i}: {SYSTEM}"}] for i in range(12)]
        with recording(server, trace, "--block", 1, "--limit", 60, key="root") as process:
            for i in range(6):
                first = [turn("quiet-key", messages, 0) for messages in quiet] if i == 0 else first
                for k in range(9):
                    turn("loud-key", loud[(9 * i + k) % 12], i)
            for usage, messages in zip(first, quiet):
                reused = turn("quiet-key", messages, 1)["prompt_tokens_details"]["cached_tokens"]
                assert reused >= usage["prompt_tokens"]
            process.wait(timeout=30)
    found = replay(trace, "--prefill", 1000, "--import", "1g", "--cache-share", 60)["policies"]["hearth"]
    assert found["as_served"] == {"requests": 60, "same": 60, "first": 0}
    assert set(found["computed_tokens_of_keys"]) == {"1", "2"}
    one_key_may = replay(trace, "--prefill", 1000, "--import", "1g", "--cache-share", 100)["policies"]["hearth"]
    assert one_key_may["computed_tokens_of_keys"]["1"] > found["computed_tokens_of_keys"]["1"]
