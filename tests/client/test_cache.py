"""The cache as a client sees it: nothing is computed twice, and nothing changes."""

import json
import os

import pytest

from conftest import flags_of, serve
from ondisk import assert_same
from lib import server as servers
from lib.ledger import new_tokens
from lib.scenarios import Chat
from lib.text import Text
from museum import says


class Meter:
    """Plays conversations against a server and counts prompt tokens: computed, and new."""

    def __init__(self, running):
        self.client, self.known, self.computed, self.new = running.client, [], 0, 0

    def say(self, chat, content, max_tokens=12, **options):
        turns = chat.say(content)
        turn = next(turns)
        prompt_text = self.client.apply_template(turn.messages)
        prompt = self.client.tokenize(prompt_text)
        reply = self.client.chat(turn.messages, max_tokens, **options)
        cached = reply.usage["prompt_tokens_details"]["cached_tokens"]
        # A reply stays as it was sampled, which may be other tokens than its text has; so may the seam behind it.
        assert abs(reply.usage["prompt_tokens"] - len(prompt)) <= len(turn.messages)
        assert reply.computed_tokens == reply.usage["prompt_tokens"] - cached
        self.computed += reply.computed_tokens
        self.new += new_tokens(prompt, self.known)
        self.known.append(self.client.tokenize(prompt_text + reply.text))
        with pytest.raises(StopIteration):
            turns.send(reply.text)
        return reply

    @property
    def ratio(self):
        return self.computed / self.new


def turns(lanes):
    """A server with so many lanes, and how many turns to take."""
    return pytest.mark.parametrize("running, turns", [
        (("tiny", lanes), 2), pytest.param(("smollm2", lanes), 4, marks=pytest.mark.long)], indirect=["running"],
        ids=["tiny", "smollm2"])


@pytest.fixture
def running(request, engine, tmp_path):
    """What random weights say is no text, so they are told what to say."""
    model, lanes = request.param
    flags = [*flags_of(engine, model), "-c", "4096", "-np", str(lanes), "--cache-ram", "256"]
    if model == "tiny":
        replies = [says(Text("said", number).words(12), times=1 if number < 20 else 0) for number in range(21)]
        (tmp_path / "script").write_text("".join(json.dumps(line) + "\n" for line in replies))
        flags += ["--script", str(tmp_path / "script")]
    with serve(*flags) as server:
        yield server


@turns(lanes=4)
def test_turns_compute_what_is_new(running, turns):
    meter, text, chat = Meter(running), Text("turns"), Chat(system=Text("turns system").words(150))
    for _ in range(3 * turns):
        meter.say(chat, text.ask(30))
    assert meter.ratio <= 1.05


@pytest.mark.llama  # what sim samples is no text as its tokenizer would write it, so prompts have fewer tokens
@turns(lanes=1)
def test_three_conversations_on_one_lane(running, turns):
    meter, text, system = Meter(running), Text("three"), Text("three system").words(200)
    chats = [Chat(system=system) for _ in range(3)]
    for _ in range(turns):
        for chat in chats:
            meter.say(chat, text.ask(40))
    assert meter.ratio <= 1.05


@turns(lanes=1)
def test_branches_and_side_prompts_on_one_lane(running, turns):
    meter, text, stem = Meter(running), Text("branches"), Chat(system=Text("branches system").words(200))
    meter.say(stem, text.ask(60))
    forks = [stem.fork(), stem.fork()]
    for _ in range(turns):
        for fork in forks:
            meter.say(fork, text.ask(40))
            meter.say(Chat(), "Write a title for: " + text.ask(30))
    assert meter.ratio <= 1.05


def test_a_repeated_prompt_computes_one_token(server):
    meter, content = Meter(server), Text("again").ask(80)
    meter.say(Chat(), content)
    assert meter.say(Chat(), content).computed_tokens == 1


def test_cache_prompt_false_computes_everything(server):
    meter, content = Meter(server), Text("off").ask(80)
    meter.say(Chat(), content)
    reply = meter.say(Chat(), content, cache_prompt=False)
    assert reply.computed_tokens == reply.prompt_tokens
    assert reply.extra["reason"] == "cache_off"


def entries(client, messages, **options):
    body = {"messages": messages, "max_tokens": 24, "temperature": 0, "logprobs": True, "top_logprobs": 2, **options}
    return client.post("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 2, 3))])
def test_cached_is_cold(one_lane_shared, engine, number):
    """Out of RAM, after other conversations, the continuation is the one of a run without a cache."""
    client, text = one_lane_shared.client, Text("cached is cold", number)
    messages = [{"role": "system", "content": text.words(120)}, {"role": "user", "content": text.ask(40)}]
    cold = entries(client, messages, cache_prompt=False)
    entries(client, messages)
    for other in range(2):
        entries(client, [{"role": "user", "content": Text("other", number, other).ask(60)}])
    cached = client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert cached["timings"]["prompt_n"] == 1
    assert_same(engine, cold, entries(client, messages))


@pytest.fixture(scope="module")
def one_lane_shared(language_flags):
    with serve(*language_flags, "-c", "4096", "-np", "1", "--cache-ram", "256") as running:
        yield running


@pytest.mark.llama
def test_a_known_answer_out_of_the_cache(one_lane_shared):
    """The answer is the same, and right, after the state has been out and back."""
    client = one_lane_shared.client
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    first = client.chat(messages, 16).text
    client.chat([{"role": "user", "content": Text("between").ask(80)}], 8)
    assert "Paris" in first
    assert client.chat(messages, 16).text == first


def test_without_a_cache(engine_flags):
    with serve(*engine_flags, "-c", "1024", "-np", "1", "--cache-ram", "0") as running:
        for _ in range(2):
            assert running.client.chat([{"role": "user", "content": "Hello there"}], 4).text
        assert running.client.metrics()["hearth_page_bytes"] == 0


@pytest.mark.parametrize("model", ["tiny", "tiny-hybrid", "tiny-window"])
def test_a_short_first_question_leaves_the_system_text_behind(model):
    """Two conversations over one system text, each with a short question: the second computes the question."""
    system = {"role": "system", "content": Text("short questions").words(1500)}
    flags = ["-m", os.path.join(servers.models_dir(), f"{model}.gguf"), "-c", "8192", "-np", "1", "-t", "1"]
    with serve(*flags, "--cache-ram", "256") as running:
        first, second = (running.client.chat([system, {"role": "user", "content": f"What is in room {number}?"}], 4)
                         for number in (5, 6))
    assert first.computed_tokens > 1500
    assert second.computed_tokens < 40
