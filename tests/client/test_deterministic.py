"""--deterministic: a reply is a function of its request alone, to the last bit of every log-probability, whether its
prompt was computed at once, taken from RAM, from disk after a restart, beside other requests, or in parts between which
somebody else had its lane."""

import threading

import pytest

from conftest import serve
from ondisk import model_flags, serve_disk, wait_written
from lib.text import Text

MODELS = ("tiny", "tiny-hybrid", "tiny-window")
FLAGS = ("--deterministic", "--speculate", "off")


def prompt(name, words):
    return [{"role": "user", "content": Text(name).words(words)}]


def ask(running, messages, max_tokens=6, **options):
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "logprobs": True, "top_logprobs": 3,
            "ignore_eos": True, **options}
    answer = running.client.post("/v1/chat/completions", body)
    return answer["choices"][0]["logprobs"]["content"], answer["hearth"]


def crowd(running, name, number=3):
    """Requests that run until their threads are joined."""
    threads = [threading.Thread(target=ask, args=(running, prompt(f"{name} {i}", 120 + 40 * i), 60))
               for i in range(number)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.llama
@pytest.mark.parametrize("model", MODELS)
def test_a_reply_depends_on_its_request_alone(model, tmp_path):
    messages = prompt("the one", 400)
    longer = [*messages, {"role": "assistant", "content": "So it is."}, {"role": "user", "content": "Go on."}]
    with serve(*model_flags(model), "-c", "4096", "-np", "1", "--cache-ram", "0", *FLAGS) as cold:
        want, want_longer = ask(cold, messages)[0], ask(cold, longer)[0]
    with serve_disk(model, tmp_path, "-np", "4", "-t", "2", *FLAGS) as running:
        others = crowd(running, "before")
        assert ask(running, messages)[0] == want, "beside others, with two threads"
        for other in others:
            other.join()
        again, about = ask(running, messages)
        assert again == want and sum(about["reused"].values()) > 0, "from the engine or RAM"
        wait_written(running)
        assert running.stop() == 0
    with serve_disk(model, tmp_path, "-np", "4", "-b", "96", *FLAGS) as running:
        others = crowd(running, "after", 2)
        got, about = ask(running, longer)
        assert got == want_longer and about["reused"]["disk"] > 0, "from disk, in other batches"
        for other in others:
            other.join()
        assert ask(running, messages)[0] == want


@pytest.mark.llama
@pytest.mark.parametrize("model", MODELS)
def test_a_reply_that_gave_way_is_the_same(model):
    messages, got = prompt("patient", 300), []
    with serve(*model_flags(model), "-c", "4096", "-np", "1", "--cache-ram", "256", *FLAGS) as running:
        want = ask(running, messages, 500)[0]
        patient = threading.Thread(target=lambda: got.append(ask(running, messages, 500, priority="background")))
        patient.start()
        while running.client.metrics()["hearth_lanes_busy"] == 0 and patient.is_alive():
            pass
        for number in range(8):
            ask(running, prompt(f"urgent {number}", 150), 4)
        patient.join()
    assert got[0][1]["preemptions"] > 0
    assert got[0][0] == want
