"""After a start the heads that most conversations share are in RAM before the first request asks for them."""

import contextlib

import pytest

from conftest import serve
from ondisk import assert_same_reply, model_flags, request, wait_until
from ondisk import wait_written as wait_on_disk
from store import PROGRAM, Store
from test_remote import wait_written as wait_in_store

MODELS = ["sim", *(pytest.param(model, marks=pytest.mark.llama) for model in ("tiny", "tiny-hybrid", "tiny-window"))]
HEAD = "You are careful, and you know these rules. " + " ".join(f"Rule {i} says what comes behind {i}." for i in range(90))
RARE = HEAD.replace("careful", "quick")


def conversation(number, system=HEAD):
    return [{"role": "system", "content": system}, {"role": "user", "content": f"{number} is my number. What is yours?"}]


def box(model, *flags):
    return serve(*model_flags(model), "-c", "16384", "-np", "2", "--cache-ram", "256", *flags)


def warmed(running):
    return running.client.metrics()["hearth_warmed_tokens_total"]


@pytest.fixture(params=["disk", "store", "both"])
def place(request, tmp_path):
    """Flags of a server, of one that starts later, and how to wait until all is written."""
    with contextlib.ExitStack() as stack:
        disk = ["--kv-dir", str(tmp_path / "kv")]
        if request.param == "disk":
            yield disk, disk, wait_on_disk
            return
        if not PROGRAM:
            pytest.skip("Redis is not installed")
        store = ["--kv-remote", stack.enter_context(Store(tmp_path)).url()]
        first = disk if request.param == "both" else ["--kv-disk", "0"]
        yield [*store, *first], [*store, "--kv-disk", "0"], wait_in_store


@pytest.mark.parametrize("model", MODELS)
def test_the_first_request_finds_the_shared_head_in_ram(place, model):
    before, after, wait_written = place
    with box(model, *before) as running:
        for number in range(4):
            answer = request(running.client, conversation(number))
        request(running.client, conversation(9, RARE))
        wait_written(running)
        assert warmed(running) == 0
    with box(model, *after) as running:
        wait_until(lambda: warmed(running) > 0, "it has prefetched them")
        wait_until(lambda: "prefetched: 1 shared head," in running.log(), "it says so")
        messages = conversation(7)
        fresh = request(running.client, messages, cache_prompt=False)
        answer = request(running.client, messages)
        assert_same_reply(model, fresh, answer)
        receipt = answer["hearth"]
        assert receipt["reused"]["disk"] == 0, receipt
        assert receipt["computed"] < 256 + 60 and receipt["reused"]["ram"] + receipt["reused"]["live"] > 500, receipt


def test_a_request_that_comes_at_once_is_served(place):
    before, after, wait_written = place
    with box("sim", *before) as running:
        expected = [request(running.client, conversation(number)) for number in range(4)]
        wait_written(running)
    with box("sim", *after) as running:
        for number in range(4):
            assert_same_reply("sim", expected[number], request(running.client, conversation(number)))


def test_more_than_fits_is_left_where_it_is(tmp_path):
    """A quarter of RAM is the most that is brought."""
    flags = ["--kv-dir", str(tmp_path / "kv")]
    with box("sim", *flags) as running:
        for system in range(12):
            for number in range(2):
                request(running.client, conversation(number, HEAD.replace("careful", f"careful {system}")))
        wait_on_disk(running)
    with box("sim", *flags, "--cache-ram", "1") as running:
        wait_until(lambda: "prefetched: " in running.log(), "it has prefetched them")
        metrics = running.client.metrics()
        assert 0 < metrics["hearth_page_bytes"] <= 2**20 / 4 + 65536
        assert warmed(running) < 12 * 2000
