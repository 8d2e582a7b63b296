"""hearth replay --boxes: a model of several boxes, held against two real ones over a real store."""

import json
import random
import subprocess

import pytest

from conftest import serve
from lib import server as servers
from store import PROGRAM, Store
from test_remote import metric, wait_written

BLOCK, HEAD, TALKS, TURNS = 64, 12, 5, 8


def requests():
    """Conversations that take turns, an odd number of them, so that each comes to the other box with every turn."""
    pick = random.Random(4)
    lengths = [0] * TALKS
    for turn in range(TURNS):
        for talk in range(TALKS):
            lengths[talk] += pick.randrange(4, 16)
            first = 1000 * (talk + 1)
            yield {"t": 30 * (turn * TALKS + talk), "in": BLOCK * (HEAD + lengths[talk]) + 5, "stop": "tool_use",
                   "blocks": [[0, HEAD - 1], [first, first + lengths[talk] - 1]]}


def tokens_of(request, number):
    """A prompt with the same prefixes as the trace says."""
    tokens = []
    for first, last in request["blocks"]:
        for name in range(first, last + 1):
            tokens += random.Random(name).choices(range(97, 123), k=BLOCK)
    return tokens + random.Random(f"rest {number}").choices(range(97, 123), k=5)


def replay(trace, *args):
    return subprocess.run([servers.hearth_path(), "replay", str(trace), *map(str, args)], capture_output=True, text=True,
                          timeout=60, check=False)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(request) + "\n" for request in requests()))
    return path


@pytest.mark.skipif(not PROGRAM, reason="Redis is not installed")
def test_two_boxes_do_what_the_model_says(trace, tmp_path):
    done = replay(trace, "--boxes", 2, "--router", "least-loaded", "--token-bytes", 64, "--ram", "512M", "--prefill", 1000,
                  "--remote", "default", "--json")
    assert done.returncode == 0, done.stderr
    model = json.loads(done.stdout)["runs"][0]
    computed = 0
    with Store(tmp_path) as store:
        flags = ["--engine", "sim", "-c", "65536", "-np", "1", "--cache-ram", "512", "--kv-disk", "0", "--kv-compress", "none",
                 "--kv-remote", store.url()]
        with serve(*flags) as first, serve(*flags) as second:
            boxes = (first, second)
            for number, request in enumerate(requests()):
                running = boxes[number % 2]
                answer = running.client.post("/v1/completions", {"prompt": tokens_of(request, number), "max_tokens": 1})
                assert answer["usage"]["prompt_tokens"] == request["in"]
                computed += answer["hearth"]["computed"]
                wait_written(running)
            read, written = (sum(metric(running, name) for running in boxes)
                             for name in ("read_bytes_total", "written_bytes_total"))
    assert computed == pytest.approx(model["computed_tokens"], rel=0.05)
    assert read == pytest.approx(model["store"]["read_bytes"], rel=0.1)
    assert written == pytest.approx(model["store"]["written_bytes"], rel=0.15)
    assert model["recompute_ratio"] < 1.02 and model["store"]["read_bytes"] > 0


def test_what_is_lost(trace):
    done = replay(trace, "--boxes", "2,4", "--router", "affinity,random", "--remote", "rate=1gbit,latency=1ms,size=64g",
                  "--network", "1gbit", "--lose", "box@5m+5m,store@10m", "--json")
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [(run["boxes"], run["router"], run["lost"]) for run in runs] == [
        (boxes, router, lost) for boxes in (2, 4) for router in ("affinity", "random")
        for lost in (None, "box@5m+5m,store@10m")]
    for before, after in zip(runs[::2], runs[1::2]):
        assert before["ttft_seconds"]["requests"] == after["ttft_seconds"]["requests"] == TALKS * TURNS
        assert before["recompute_ratio"] >= 1
        if before["router"] == "random":  # a box of one's own has what the store had
            assert after["recompute_ratio"] > before["recompute_ratio"]
    table = replay(trace, "--boxes", 2, "--lose", "box1@10m").stdout
    assert "nothing" in table and "box1@10m" in table


@pytest.mark.parametrize("args, about", [
    (["--boxes", "0"], "--boxes"), (["--boxes", "129"], "--boxes"), (["--boxes", "2", "--router", "best"], "--router"),
    (["--boxes", "2", "--remote", "rate=fast"], "--remote"), (["--boxes", "2", "--network", "0"], "--network"),
    (["--boxes", "2", "--lose", "store@1h"], "--remote"), (["--boxes", "2", "--lose", "box7@1h"], "box 7"),
    (["--boxes", "2", "--lose", "box@"], "--lose"), (["--router", "random"], "--boxes"),
    (["--boxes", "2", "--policy", "best"], "--policy")])
def test_mistakes(trace, args, about):
    done = replay(trace, *args)
    assert done.returncode == 2 and about in done.stderr, done.stderr
