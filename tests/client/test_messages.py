"""Probes of the Messages API with Anthropic's SDK, one function each, as somebody would write them who tries it out.

The model is small: calls are forced, stops are taken from earlier replies. Where it must think, its part is written
down (THOUGHTS).
"""

import asyncio
import json
import typing

import pydantic
import pytest

import lazy
from museum import LEND, LOOK, NOTE, THINKER, calls, says, stage, tiny_flags
from conftest import ended, serve
from dialects import BETAS, Tally, claude, cost, for_messages
from lib.text import Text

pytestmark = pytest.mark.llama
anthropic = lazy.module("anthropic")

QUESTION = {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
TOOLS = [for_messages(LOOK), for_messages(LEND), for_messages(NOTE)]
NAMED = {"type": "tool", "name": "lend"}
MARK = {"type": "ephemeral"}


@pytest.fixture
def claude_client(server):
    with claude(server) as client:
        yield client


def steady(options):
    """At temperature 0 (which the SDK has no argument for), with 16 tokens unless a test asks for something else."""
    more = {"temperature": 0, **options.pop("extra_body", {})}
    return {"max_tokens": 16, "extra_body": {name: value for name, value in more.items() if value is not None}, **options}


@pytest.fixture
def ask(claude_client, model):
    def create(messages=(QUESTION,), **options):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return claude_client.messages.create(model=model, messages=list(messages), **steady(options))
    return create


@pytest.fixture
def refused(claude_client):
    """A request that must get an error of the API's shape; returns that."""
    def post(status=400, kind="invalid_request_error", path="/v1/messages", method="post", **body):
        with pytest.raises(anthropic.APIStatusError) as caught:
            getattr(claude_client, method)(path, cast_to=object, **({"body": body} if method == "post" else {}))
        assert caught.value.status_code == status, caught.value.body
        assert caught.value.body["type"] == "error" and caught.value.body["error"]["type"] == kind
        assert caught.value.body["error"]["message"] and caught.value.type == kind
        return caught.value.body["error"]
    return post


def text(message):
    return "".join(block.text for block in message.content if block.type == "text")


def the_call(message):
    made = [block for block in message.content if block.type == "tool_use"]
    assert len(made) == 1 and made[0].id.startswith("toolu_") and message.stop_reason == "tool_use"
    return made[0]


# ---- one message ----

@pytest.mark.language
def test_object(ask, model):
    message = ended(lambda text: ask(text, max_tokens=200), lambda made: made.stop_reason == "end_turn")
    assert message.type == "message" and message.role == "assistant" and message.id.startswith("msg_")
    assert message.model == model and message.stop_reason == "end_turn" and message.stop_sequence is None
    assert [block.type for block in message.content] == ["text"] and text(message)


def test_usage(ask, claude_client, model):
    usage = ask(max_tokens=5, extra_body={"ignore_eos": True}).usage
    counted = claude_client.messages.count_tokens(model=model, messages=[QUESTION]).input_tokens
    assert usage.output_tokens == 5
    assert usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens == counted > 5


def test_max_tokens(ask):
    message = ask(max_tokens=3, extra_body={"ignore_eos": True})
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 3


@pytest.mark.language
def test_max_tokens_is_clamped(ask):
    """Clients ask for more than any context has."""
    message = ended(lambda text: ask(text, max_tokens=128000, timeout=600), lambda made: made.stop_reason == "end_turn")
    assert message.stop_reason == "end_turn"


def test_stop_sequences(ask):
    whole = text(ask())
    stop = max(whole.split(), key=len)
    message = ask(stop_sequences=["~~~", stop])
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    assert text(message) == whole[:whole.index(stop)]


def test_system_as_text_and_blocks(ask):
    as_text = ask(system="You are a pirate.")
    as_blocks = ask(system=[{"type": "text", "text": "You are a pirate."}])
    assert text(as_text) == text(as_blocks) and cost(as_text.usage)[0] == cost(as_blocks.usage)[0]
    assert cost(as_text.usage)[0] != cost(ask().usage)[0]


def test_content_as_text_and_blocks(ask):
    blocks = [{"type": "text", "text": QUESTION["content"]}]
    assert cost(ask([{"role": "user", "content": blocks}]).usage)[0] == cost(ask().usage)[0]


def test_multi_turn(ask):
    message = ask([QUESTION, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Spain?"}])
    assert cost(message.usage)[0] > cost(ask().usage)[0]


def test_system_message_within(ask):
    """A system message may stand among the messages."""
    assert ask([QUESTION, {"role": "assistant", "content": "Paris."}, {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "And of Spain?"}]).usage.output_tokens


@pytest.mark.language
def test_prefill(ask):
    """A last message of the assistant is continued."""
    whole = text(ask(max_tokens=24))
    begun = whole[:whole.index(" ", len(whole) // 2)]
    message = ask([QUESTION, {"role": "assistant", "content": begun}], max_tokens=24)
    assert (begun + text(message)).startswith(whole[:len(begun) + 8])
    assert not text(message).startswith(begun)


def test_sampling_settings(ask):
    assert ask(extra_body={"temperature": 0.7, "top_p": 0.9, "top_k": 20}).usage.output_tokens
    assert ask(extra_body={"temperature": None}).usage.output_tokens


def test_metadata_and_tier(ask):
    assert text(ask(metadata={"user_id": "visitor-1"}, service_tier="auto")) == text(ask())


def test_headers(server, ask, model):
    """A key in x-api-key, a version, betas."""
    with claude(server, default_headers={"anthropic-beta": BETAS, "anthropic-version": "2023-06-01"}) as client:
        message = client.beta.messages.create(model=model, max_tokens=8, messages=[QUESTION],
                                              betas=["context-1m-2025-08-07", "no-such-beta-1999-01-01"])
    assert message.type == "message"


def test_request_id(ask):
    assert ask()._request_id and ask()._request_id != ask()._request_id


def test_auth_token(server, model):
    """As Claude Code logs in with ANTHROPIC_AUTH_TOKEN."""
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", auth_token="none", api_key=None) as client:
        assert client.messages.create(model=model, max_tokens=4, messages=[QUESTION]).usage.output_tokens


def test_path_under_anthropic(server, model):
    with claude(server, "/anthropic") as client:
        assert client.messages.create(model=model, max_tokens=4, messages=[QUESTION]).usage.output_tokens
        assert client.messages.count_tokens(model=model, messages=[QUESTION]).input_tokens > 5


def test_any_model_name(ask, claude_client):
    assert claude_client.messages.create(model="claude-sonnet-4-6", max_tokens=4, messages=[QUESTION]).usage.output_tokens


def test_async_client(server, model):
    async def both():
        async with anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none") as client:
            async with client.messages.stream(model=model, messages=[QUESTION], **steady({})) as stream:
                pieces = [piece async for piece in stream.text_stream]
            return pieces, await client.messages.create(model=model, messages=[QUESTION], **steady({}))
    pieces, whole = asyncio.run(both())
    assert "".join(pieces) == text(whole)


def test_models(claude_client, model):
    listed = claude_client.models.list()
    assert [entry.id for entry in listed.data] == [model] and listed.has_more is False
    assert listed.first_id == listed.last_id == model
    entry = listed.data[0]
    assert entry.type == "model" and entry.display_name and entry.created_at.year > 2000 and entry.max_input_tokens == 4096
    assert claude_client.models.retrieve(model) == entry
    assert [each.id for each in claude_client.models.list()] == [model]


@pytest.mark.language
def test_structured_output(claude_client, model):
    class Visitor(pydantic.BaseModel):
        name: str
        ticket: typing.Literal["adult", "child"]

    parsed = claude_client.messages.parse(model=model, max_tokens=100, output_format=Visitor,
                                          messages=[{"role": "user", "content": "Ada is 34 years old."}],
                                          extra_body={"temperature": 0})
    assert isinstance(parsed.parsed_output, Visitor)


# ---- streams ----

@pytest.mark.language
def test_stream_events(ask):
    events = ended(lambda text: list(ask(text, stream=True, max_tokens=200)),
                   lambda made: made[-2].delta.stop_reason == "end_turn")
    assert [event.type for event in events if event.type not in ("content_block_delta", "ping")] \
        == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    start, delta = events[0].message, events[-2]
    assert start.content == [] and start.stop_reason is None and start.role == "assistant" and start.usage.input_tokens >= 0
    assert delta.delta.stop_reason == "end_turn" and delta.usage.output_tokens > 1
    pieces = [event for event in events if event.type == "content_block_delta"]
    assert {piece.index for piece in pieces} == {0} and {piece.delta.type for piece in pieces} == {"text_delta"}
    assert "".join(piece.delta.text for piece in pieces)


def test_stream_helper(claude_client, ask, model):
    with claude_client.messages.stream(model=model, messages=[QUESTION], **steady({})) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(pieces) == text(message) == text(ask()) and len(pieces) > 1
    assert cost(message.usage)[0] == cost(ask().usage)[0] and message.usage.output_tokens == ask().usage.output_tokens


def test_stream_helper_text_events(claude_client, model):
    with claude_client.messages.stream(model=model, messages=[QUESTION], **steady({})) as stream:
        seen = [event for event in stream if event.type == "text"]
        assert seen[-1].snapshot == stream.get_final_text() == "".join(event.text for event in seen)


def test_stream_stop_sequence(ask):
    stop = max(text(ask()).split(), key=len)
    events = list(ask(stop_sequences=[stop], stream=True))
    assert (events[-2].delta.stop_reason, events[-2].delta.stop_sequence) == ("stop_sequence", stop)


def test_stream_forced_call(ask):
    events = list(ask("Lend vase 4 to the town for 7 days.", tools=TOOLS, tool_choice=NAMED, stream=True, max_tokens=120))
    start = next(event for event in events if event.type == "content_block_start").content_block
    assert start.type == "tool_use" and start.name == "lend" and start.id.startswith("toolu_") and start.input == {}
    pieces = [event.delta.partial_json for event in events if event.type == "content_block_delta"]
    assert len(pieces) > 2 and set(json.loads("".join(pieces))) == {"number", "borrower", "days"}
    assert events[-2].delta.stop_reason == "tool_use"


def test_stream_helper_input_json(claude_client, model):
    with claude_client.messages.stream(model=model, tools=TOOLS, tool_choice=NAMED, messages=[
            {"role": "user", "content": "Lend vase 4 to the town for 7 days."}], **steady({"max_tokens": 120})) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    assert len(snapshots) > 1 and the_call(message).input == snapshots[-1]
    assert set(snapshots[-1]) == {"number", "borrower", "days"}


# ---- tools ----

def test_forced_call(ask):
    made = the_call(ask("Lend vase 4 to the town.", tools=TOOLS, tool_choice=NAMED, max_tokens=120))
    assert made.name == "lend" and type(made.input["number"]) is int


def test_any_call(ask):
    message = ask("Write a note that says hello.", tools=TOOLS, tool_choice={"type": "any"}, max_tokens=160)
    assert {block.name for block in message.content if block.type == "tool_use"} <= {"look_up", "lend", "note"}
    assert message.stop_reason in ("tool_use", "max_tokens")


def test_one_call_at_a_time(ask):
    the_call(ask("Look up 1 and look up 2.", tools=TOOLS, max_tokens=160,
                 tool_choice={"type": "any", "disable_parallel_tool_use": True}))


def test_no_call(ask):
    assert {block.type for block in ask("Look up 4.", tools=TOOLS, tool_choice={"type": "none"}).content} == {"text"}


CALL = {"role": "assistant", "content": [{"type": "text", "text": "I look."}, {
    "type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"number": 4}}]}


@pytest.mark.parametrize("result", [
    {"content": "A vase."}, {"content": [{"type": "text", "text": "A vase."}]}, {"content": "Broken.", "is_error": True}, {},
], ids=["string", "blocks", "error", "empty"])
def test_tool_result(ask, result):
    message = ask([QUESTION, CALL, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", **result}, {"type": "text", "text": "Well?"}]}], tools=TOOLS)
    assert message.usage.output_tokens


def test_tool_result_of_another_call(refused, model):
    refused(model=model, max_tokens=8, tools=TOOLS, messages=[QUESTION, CALL, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_gone", "content": "A vase."}]}])


# ---- caching ----

def marked(words, **mark):
    return [{"type": "text", "text": words, "cache_control": {**MARK, **mark}}]


@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_cache_control(ask, ttl):
    """A marked system text is written once and read afterwards; what stands behind the mark is computed."""
    system = marked(Text("system", ttl).words(300), ttl=ttl)
    first, second = (ask(f"Visitor {number} asks.", system=system, max_tokens=4).usage for number in range(2))
    assert first.cache_creation_input_tokens > 300 and first.cache_read_input_tokens < 30
    assert second.cache_read_input_tokens > 300 and second.cache_creation_input_tokens + second.input_tokens < 60
    written = first.cache_creation
    assert written.ephemeral_1h_input_tokens + written.ephemeral_5m_input_tokens == first.cache_creation_input_tokens
    assert (written.ephemeral_1h_input_tokens > 0) == (ttl == "1h")


def test_cache_control_at_the_top(ask):
    prompt = Text("top").words(200)
    ask(prompt, cache_control=MARK, max_tokens=4)
    assert ask(prompt, cache_control=MARK, max_tokens=4).usage.cache_read_input_tokens > 200


def test_cache_control_everywhere(ask):
    """On tools, blocks, calls and results."""
    tools = [*TOOLS[:-1], {**TOOLS[-1], "cache_control": MARK}]
    message = ask([{"role": "user", "content": marked("What is 4?")}, {"role": "assistant", "content": [
        {**CALL["content"][0]}, {**CALL["content"][1], "cache_control": MARK}]}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "A vase.", "cache_control": MARK}]}], tools=tools)
    assert message.usage.output_tokens


def test_too_many_marks(refused, model):
    refused(model=model, max_tokens=8, messages=[{"role": "user", "content": [
        {"type": "text", "text": f"{number}", "cache_control": MARK} for number in range(5)]}])


def test_bad_ttl(refused, model):
    refused(model=model, max_tokens=8, messages=[{"role": "user", "content": marked("a", ttl="2d")}])


def test_diagnostics(ask):
    """Why a prompt was not reused, in this dialect's words."""
    text = Text("diagnostics").words(80)
    first = ask(system=text, max_tokens=4, diagnostics={"previous_message_id": None})
    told = ask(system=text[:40] + " Other. " + text[40:], max_tokens=4,
               diagnostics={"previous_message_id": first.id}).diagnostics
    assert told.cache_miss_reason.type == "system_changed" and told.cache_miss_reason.cache_missed_input_tokens > 50


# ---- counting ----

def test_count_tokens(claude_client, ask, model):
    request = {"messages": [QUESTION], "system": "You are a pirate.", "tools": TOOLS}
    counted = claude_client.messages.count_tokens(model=model, **request)
    assert counted.input_tokens == cost(ask(request.pop("messages"), **request).usage)[0]


# ---- errors ----

@pytest.mark.parametrize("body, word", [
    ({"messages": [QUESTION]}, "max_tokens"), ({"max_tokens": 8}, "messages"), ({"max_tokens": 8, "messages": []}, "messages"),
    ({"max_tokens": 0.5, "messages": [QUESTION]}, "max_tokens"), ({"max_tokens": -1, "messages": [QUESTION]}, "max_tokens"),
    ({"max_tokens": 8, "messages": [{"role": "robot", "content": "a"}]}, "role"),
    ({"max_tokens": 8, "messages": [{"role": "user", "content": [{"type": "poem"}]}]}, "content"),
    ({"max_tokens": 8, "messages": [{"role": "user"}]}, "content"),
    ({"max_tokens": 8, "messages": [QUESTION], "tools": [{"name": "a"}]}, "tools"),
    ({"max_tokens": 8, "messages": [QUESTION], "tool_choice": {"type": "any"}}, "tool"),
    ({"max_tokens": 8, "messages": [QUESTION], "tools": TOOLS, "tool_choice": {"type": "tool", "name": "none_such"}}, "none_such"),
    ({"max_tokens": 8, "messages": [QUESTION], "stop_sequences": "a"}, "stop_sequences"),
    ({"max_tokens": 8, "messages": [QUESTION], "temperature": 5}, "temperature"),
    ({"max_tokens": 8, "messages": [QUESTION], "system": 5}, "system"),
    ({"max_tokens": 8, "messages": [QUESTION], "thinking": {"type": "enabled", "budget_tokens": 100}}, "budget_tokens"),
])
def test_bad_fields(refused, model, body, word):
    assert word in refused(model=model, **body)["message"]


def test_overflow():
    with serve(*tiny_flags()[:2], "-t", "1", "-c", "1024", "-np", "1") as running, claude(running) as client:
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.messages.create(model="any", max_tokens=8,
                                   messages=[{"role": "user", "content": Text("overflow").words(1500)}])
    error = caught.value.body["error"]
    assert caught.value.body["type"] == "error" and error["type"] == "invalid_request_error"
    assert "prompt is too long" in error["message"]  # clients look for these words


def test_no_batches(refused, claude_client):
    refused(status=404, kind="not_found_error", path="/v1/messages/batches", method="get")
    with pytest.raises(anthropic.NotFoundError):
        claude_client.messages.batches.list()


def test_wrong_key(engine_flags):
    with serve(*tiny_flags()[:2], "-c", "512", "-np", "1", "--api-key", "right") as running:
        with claude(running, api_key="wrong") as client:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                client.messages.create(model="any", max_tokens=4, messages=[QUESTION])
        assert caught.value.body["type"] == "error" and caught.value.body["error"]["type"] == "authentication_error"
        with claude(running, api_key="right") as client:
            assert client.messages.create(model="any", max_tokens=4, messages=[QUESTION]).usage.output_tokens


# ---- thinking ----

THOUGHTS = [says("<think>\nNumber 4, then.\n</think>\n\n" + calls(("look_up", {"number": 4})), last="number 4"),
            says("<think>\nIt is a vase.\n</think>\n\nA vase.", last="vase no. 4"),
            says("<think>\nPolite.\n</think>\n\nBye.", last="Thank you", times=0),
            says("Good night.", last="Good night")]
BUDGET = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture
def thinking(tmp_path):
    with stage(tmp_path, THOUGHTS, "--chat-template-file", THINKER) as played:
        with claude(played) as client:
            yield client


def think(client, *messages, **options):
    return client.messages.create(**{"model": "any", "max_tokens": 2000, "thinking": BUDGET, "messages": list(messages),
                                     "tools": TOOLS, **options})


def test_thinking(thinking):
    message = think(thinking, {"role": "user", "content": "Thank you!"})
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking.strip() == "Polite." and message.content[0].signature
    assert text(message).strip() == "Bye."


def test_thinking_streamed(thinking):
    with thinking.messages.stream(model="any", max_tokens=2000, thinking=BUDGET,
                                  messages=[{"role": "user", "content": "Thank you!"}]) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert "thinking" in kinds and "signature" in kinds and kinds.index("thinking") < kinds.index("signature")
    assert [block.type for block in message.content] == ["thinking", "text"] and message.content[0].signature


def test_adaptive_thinking(thinking):
    message = think(thinking, {"role": "user", "content": "Thank you!"}, thinking={"type": "adaptive"})
    assert [block.type for block in message.content] == ["thinking", "text"] and text(message).strip() == "Bye."


def test_disabled_thinking(thinking):
    message = think(thinking, {"role": "user", "content": "Good night."}, thinking={"type": "disabled"})
    assert [block.type for block in message.content] == ["text"] and text(message).strip() == "Good night."


def test_signature_round_trip(thinking):
    """The whole message comes back, thoughts and signature; nothing is computed twice."""
    said, tally = [{"role": "user", "content": "What is number 4?"}], Tally()
    first = think(thinking, *said)
    tally.add(first.usage)
    assert [block.type for block in first.content] == ["thinking", "tool_use"]
    said += [first.to_param(), {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": the_call(first).id, "content": "vase no. 4"}]}]
    second = think(thinking, *said)
    tally.add(second.usage)
    assert text(second).strip() == "A vase."
    tally.assert_nothing_twice()


@pytest.mark.parametrize("change", ["thinking", "signature"])
def test_tampered_thinking(thinking, change):
    block = think(thinking, {"role": "user", "content": "Thank you!"}).content[0].model_dump()
    block[change] = "A" + block[change][1:] if block[change][0] != "A" else "B" + block[change][1:]
    with pytest.raises(anthropic.BadRequestError) as caught:
        think(thinking, {"role": "user", "content": "Thank you!"}, {"role": "assistant", "content": [
            block, {"type": "text", "text": "Bye."}]}, {"role": "user", "content": "Thank you!"})
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert "signature" in caught.value.body["error"]["message"]


def test_redacted_thinking_is_let_through(thinking):
    """Of another server: it cannot be read, and does not hurt."""
    message = think(thinking, {"role": "user", "content": "Hello."}, {"role": "assistant", "content": [
        {"type": "redacted_thinking", "data": "c29tZXRoaW5n"}, {"type": "text", "text": "Hi."}]},
        {"role": "user", "content": "Thank you!"})
    assert text(message).strip() == "Bye."


# ---- helpers and habits of clients ----

def test_claude_code(server, model):
    """A request as Claude Code sends it: a billing line that changes, marks, betas, fields that mean nothing here."""
    def request(billing):
        return server.client.post("/v1/messages?beta=true", {
            "model": "claude-opus-4-6", "max_tokens": 32000, "stream": False, "temperature": 0,
            "stop_sequences": ["\n\nHuman:"], "metadata": {"user_id": "{\"device_id\":\"1\",\"session_id\":\"2\"}"},
            "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.0; cch={billing};"},
                       {"type": "text", "text": "You are Claude Code.", "cache_control": MARK},
                       {"type": "text", "text": Text("code").words(200), "cache_control": {**MARK, "ttl": "1h"}}],
            "tools": TOOLS, "messages": [{"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"},
                {"type": "text", "text": "Say yes.", "cache_control": MARK}]}]})
    first, second = request("a1b2c"), request("d3e4f")
    assert first["type"] == "message" and first["stop_reason"] in ("end_turn", "tool_use", "stop_sequence", "max_tokens")
    assert cost(second["usage"])[1] < 40, "a billing line is no part of a prompt"


def test_pictures_are_told_of(claude_client, ask, model):
    """An image that the model cannot see ends no session: a note stands for it, the same one in every turn."""
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    asked = {"role": "user", "content": [picture, {"type": "text", "text": "What is it?"}]}
    first = claude_client.messages.with_raw_response.create(model=model, messages=[asked], **steady({}))
    assert first.headers["warning"].startswith('299 - "') and "image/png, 8 bytes" in first.headers["warning"]
    reply = first.parse()
    assert "image/png, 8 bytes" in reply.model_extra["hearth"]["warnings"][0]
    tally = Tally()
    tally.add(reply.usage)
    tally.add(ask([asked, {"role": "assistant", "content": reply.content}, {"role": "user", "content": "And now?"}]).usage)
    tally.assert_nothing_twice()
