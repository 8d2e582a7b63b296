"""Ten probes of what a model can be used for. Timing probes look at the numbers, not at how large they are."""

import json
import re
import statistics
import time

import pytest

from museum import LOOK, THINKER, tiny_flags
from conftest import sdk, serve
from lib.text import Text

pytestmark = pytest.mark.llama

NAMED = {"type": "function", "function": {"name": "look_up"}}


@pytest.mark.language
def test_smoke(chat):
    assert "4" in chat("What is 2 + 2?", max_tokens=40).choices[0].message.content


def test_latency(chat):
    """The first text of a short request comes before its end."""
    spent = []
    for number in range(3):
        start, first = time.monotonic(), None
        for chunk in chat(f"Say hello to visitor {number}.", stream=True, max_tokens=12):
            if chunk.choices and chunk.choices[0].delta.content and first is None:
                first = time.monotonic() - start
        assert first is not None and 0 < first < time.monotonic() - start
        spent.append(first)
    assert statistics.median(spent) > 0


def test_tokens_per_second(chat):
    timings = chat("Tell a story.", max_tokens=64, extra_body={"ignore_eos": True}).model_extra["timings"]
    assert timings["predicted_n"] == 64
    assert timings["predicted_per_second"] > 0 and timings["prompt_per_second"] > 0
    assert timings["predicted_per_second"] == pytest.approx(64e3 / timings["predicted_ms"], rel=0.1)


def test_json_object(chat):
    reply = chat("Describe a cat as a JSON object with a name and an age.", response_format={"type": "json_object"},
                 max_tokens=400)
    assert reply.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(reply.choices[0].message.content), dict)


def test_json_schema(chat):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20},
                                               "population": {"type": "integer"}},
              "required": ["city", "country", "population"], "additionalProperties": False}
    reply = chat("Paris, France has two million people.", max_tokens=200, response_format={
        "type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}})
    value = json.loads(reply.choices[0].message.content)
    assert set(value) == {"city", "country", "population"} and isinstance(value["population"], int)


def test_tools(chat):
    made = chat("Look up object 12.", tools=[LOOK], tool_choice=NAMED, max_tokens=120).choices[0].message.tool_calls
    assert made[0].function.name == "look_up"
    assert isinstance(json.loads(made[0].function.arguments)["number"], int)


def test_chinese_prose(chat):
    """Characters of several tokens arrive whole, streamed and not."""
    def ask(**options):
        return chat("请用中文写一句关于春天的话。", max_tokens=100, **options, extra_body={
            "cache_prompt": False, "grammar": "root ::= [一-龯]{12} \"。\""})
    whole = ask().choices[0].message.content
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True))
    assert whole == streamed
    assert re.fullmatch("[一-龯]{12}。", whole)


def test_thinking(tmp_path, engine_flags):
    """Reasoning is told apart, and its budget is kept: SmolLM2 with a template that makes it begin with a thought."""
    with open(THINKER, encoding="utf-8") as file:
        template = file.read()
    opened = template.replace("{{- '<|im_start|>assistant\\n' -}}\n    {%- if enable",
                              "{{- '<|im_start|>assistant\\n<think>\\n' -}}\n    {%- if enable")
    assert opened != template
    path = tmp_path / "thinking.jinja"
    path.write_text(opened, encoding="utf-8")
    with serve(*engine_flags, "-c", "2048", "-np", "1", "--chat-template-file", str(path),
               "--reasoning-budget", "12") as running:
        reply = sdk(running).chat.completions.create(
            model="any", temperature=0, max_tokens=60, extra_body={"ignore_eos": True},
            messages=[{"role": "user", "content": "Is 3 less than 5?"}])
    message = reply.choices[0].message
    assert message.model_extra["reasoning_content"].strip()
    assert 0 < reply.usage.completion_tokens_details.reasoning_tokens <= 16
    assert message.content and "think>" not in message.content


@pytest.fixture(scope="module")
def long_context():
    with serve(*tiny_flags(), "-np", "2") as running:
        yield running


@pytest.mark.parametrize("tokens", [6000, pytest.param(32000, marks=pytest.mark.long)])
def test_long_prompt(long_context, tokens):
    """A long prompt is read once: the next question about it costs the question."""
    client = sdk(long_context, timeout=600)
    words = Text("long", tokens).words(tokens * 3 // 4)

    def ask(*turns):
        return client.chat.completions.create(model="any", messages=[{"role": "user", "content": words}, *turns],
                                              max_tokens=4, temperature=0).usage
    first = ask()
    assert first.prompt_tokens > tokens * 9 // 10
    second = ask({"role": "assistant", "content": "I have read it."}, {"role": "user", "content": "What is it about?"})
    assert second.prompt_tokens - second.prompt_tokens_details.cached_tokens < 40
