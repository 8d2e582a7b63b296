"""Probes of the Responses API with the official SDK, one function each, as somebody would write them who tries it out.

The model is small: replies are forced (a schema, a tool choice), cut short or compared with earlier ones.
"""

import asyncio
import json
import time
import typing

import openai
import pydantic
import pytest

from museum import LEND, LOOK, NOTE, tiny_flags
from conftest import ended, sdk, serve
from dialects import cost, flat
from lib.text import Text

pytestmark = pytest.mark.llama

QUESTION = "What is the capital of France? Answer in one sentence."
TOOLS = [flat(LOOK), flat(LEND), flat(NOTE)]
NAMED = {"type": "function", "name": "lend"}
MISSING = "resp_" + "0" * 32


@pytest.fixture
def respond(client, model):
    """A response at temperature 0, of 16 tokens unless a test asks for something else."""
    def create(what=QUESTION, **options):
        return client.responses.create(**{"model": model, "input": what, "temperature": 0, "max_output_tokens": 16,
                                          **options})
    return create


@pytest.fixture
def refused(client, model):
    """A request that must get an error of the API's shape; returns that."""
    def ask(status=400, method="post", path="/responses", **body):
        with pytest.raises(openai.APIStatusError) as caught:
            options = {"body": {"model": model, "max_output_tokens": 8, **body}} if method == "post" else {}
            getattr(client, method)(path, cast_to=object, **options)
        error = caught.value.body
        assert caught.value.status_code in (status if isinstance(status, tuple) else (status,)), error
        assert error["message"] and {"param", "code"} <= error.keys()
        assert error["type"] == ("not_found_error" if caught.value.status_code == 404 else "invalid_request_error")
        return error
    return ask


def item(role, text, **more):
    return {"role": role, "content": [{"type": "output_text" if role == "assistant" else "input_text", "text": text}], **more}


def the_call(response):
    made = [each for each in response.output if each.type == "function_call"]
    assert len(made) == 1 and made[0].status == "completed" and made[0].call_id and made[0].id
    return made[0]


# ---- one response ----

@pytest.mark.language
def test_object(respond, model):
    response = ended(lambda text: respond(text, max_output_tokens=200), lambda made: made.status == "completed")
    assert response.object == "response" and response.id.startswith("resp_") and response.model == model
    assert response.status == "completed" and response.created_at > 1_700_000_000
    assert response.completed_at >= int(response.created_at)
    assert response.error is None and response.incomplete_details is None and response.background is False
    message = response.output[0]
    assert message.type == "message" and message.role == "assistant" and message.status == "completed"
    assert message.id.startswith("msg_") and message.content[0].type == "output_text"
    assert message.content[0].annotations == [] and response.output_text == message.content[0].text != ""


def test_defaults_echoed(respond):
    response = respond()
    assert response.parallel_tool_calls is True and response.tool_choice == "auto" and response.tools == []
    assert response.text.format.type == "text" and response.truncation == "disabled"
    assert response.previous_response_id is None and response.conversation is None
    assert response.metadata == {} and response.instructions is None


def test_metadata_and_instructions_echoed(respond):
    response = respond(metadata={"visit": "12", "guide": "Ada"}, instructions="You are a pirate.")
    assert response.metadata == {"visit": "12", "guide": "Ada"}
    assert response.instructions == "You are a pirate."


def test_settings_echoed(respond):
    response = respond(top_p=0.9, max_output_tokens=24, tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=False,
                       truncation="auto", prompt_cache_key="museum", safety_identifier="visitor-1",
                       text={"verbosity": "low"}, reasoning={"effort": "low"})
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0, 0.9, 24)
    assert [tool.name for tool in response.tools] == ["look_up", "lend", "note"]
    assert response.tools[1].parameters["required"] == ["number", "borrower", "days"]
    assert response.tool_choice.type == "function" and response.tool_choice.name == "lend"
    assert response.parallel_tool_calls is False and response.truncation == "auto"
    assert response.prompt_cache_key == "museum" and response.safety_identifier == "visitor-1"
    assert response.reasoning.effort == "low"


def test_instructions_are_a_system_message(respond):
    alone = respond(instructions="You are a pirate.")
    listed = respond([{"role": "developer", "content": "You are a pirate."}, {"role": "user", "content": QUESTION}])
    assert alone.usage.input_tokens == listed.usage.input_tokens
    assert alone.output_text == listed.output_text


def test_input_forms_are_one(respond):
    """A string, a short message, a message with parts and an item with a type are the same prompt."""
    forms = [QUESTION, [{"role": "user", "content": QUESTION}], [item("user", QUESTION)],
             [item("user", QUESTION, type="message", status="completed")]]
    responses = [respond(form) for form in forms]
    assert len({response.usage.input_tokens for response in responses}) == 1
    assert len({response.output_text for response in responses}) == 1


def test_history_in_the_input(respond):
    response = respond([item("user", "My name is Boris."), item("assistant", "Hello, Boris.", type="message", id="msg_1",
                                                                status="completed"), item("user", "What is my name?")])
    assert response.usage.input_tokens > respond("What is my name?").usage.input_tokens + 10


def test_incomplete_on_max_output_tokens(respond):
    response = respond(max_output_tokens=16, extra_body={"ignore_eos": True})
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.output_tokens == 16 and response.output[0].status == "incomplete"


def test_usage_adds_up(respond):
    usage = respond().usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.input_tokens > 5
    assert 0 <= usage.input_tokens_details.cached_tokens < usage.input_tokens
    assert usage.input_tokens_details.cache_write_tokens >= 0
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_cached_tokens(respond):
    """The same prompt again costs next to nothing; a cache key and a retention are taken."""
    prompt = Text("cached").words(120)
    options = {"prompt_cache_key": "museum", "prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m"}}
    respond(prompt, **options)
    total, computed, _ = cost(respond(prompt, **options).usage)
    assert total > 120 and computed <= 8


def test_request_id(respond):
    assert respond()._request_id and respond()._request_id != respond()._request_id


def test_raw_response(client, model):
    raw = client.responses.with_raw_response.create(model=model, input=QUESTION, max_output_tokens=4)
    assert raw.status_code == 200 and raw.headers["x-request-id"] and raw.parse().object == "response"


def test_logprobs(respond):
    response = respond(include=["message.output_text.logprobs"], top_logprobs=3)
    entries = response.output[0].content[0].logprobs
    assert entries and all(entry.logprob <= 0 and len(entry.top_logprobs) == 3 for entry in entries)


def test_async_client(server, model):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
            whole, stream = await asyncio.gather(
                client.responses.create(model=model, input=QUESTION, max_output_tokens=8, temperature=0),
                client.responses.create(model=model, input=QUESTION, max_output_tokens=8, temperature=0, stream=True))
            return whole, [event async for event in stream]
    whole, events = asyncio.run(ask())
    assert events[-1].response.output_text == whole.output_text


# ---- streams ----

@pytest.mark.language
def test_stream_events(respond):
    events = ended(lambda text: list(respond(text, stream=True, max_output_tokens=200)),
                   lambda made: made[-1].type == "response.completed")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert [kind for kind in kinds if not kind.endswith(".delta")] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"]
    created, final = events[0].response, events[-1].response
    assert created.status == "in_progress" and created.output == [] and created.id == final.id
    assert final.status == "completed" and final.usage.output_tokens > 0
    for event in events[2:-1]:
        assert event.output_index == 0
    parts = [event for event in events if "content_part" in event.type or "output_text" in event.type]
    assert {event.content_index for event in parts} == {0}
    assert {event.item_id for event in parts} == {final.output[0].id}
    done = next(event for event in events if event.type == "response.output_text.done")
    assert "".join(deltas) == done.text == final.output_text


def test_stream_incomplete(respond):
    events = list(respond(stream=True, max_output_tokens=4, extra_body={"ignore_eos": True}))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"


def test_stream_is_the_whole_response(respond):
    whole, final = respond(), list(respond(stream=True))[-1].response
    assert final.output_text == whole.output_text and final.usage.output_tokens == whole.usage.output_tokens
    assert set(final.model_dump()) == set(whole.model_dump())


def test_stream_function_call(respond):
    events = list(respond("Lend vase 4 to the town for 7 days.", tools=TOOLS, tool_choice=NAMED, stream=True,
                          max_output_tokens=120))
    added = next(event for event in events if event.type == "response.output_item.added")
    assert added.item.type == "function_call" and added.item.name == "lend" and added.item.arguments == ""
    pieces = [event for event in events if event.type == "response.function_call_arguments.delta"]
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert len(pieces) > 1 and {piece.item_id for piece in pieces} == {added.item.id}
    assert "".join(piece.delta for piece in pieces) == done.arguments == the_call(events[-1].response).arguments
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.language
def test_stream_helper(client, model):
    def ask(text):
        with client.responses.stream(model=model, input=text, temperature=0, max_output_tokens=200) as stream:
            texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
            return texts, stream.get_final_response()
    texts, final = ended(ask, lambda made: made[1].status == "completed")
    assert final.output_text == "".join(texts) != "" and final.status == "completed"


def test_stream_helper_snapshots_of_a_call(client, model):
    snapshot = None
    with client.responses.stream(model=model, input="Lend vase 4 to the town for 7 days.", temperature=0,
                                 tools=TOOLS, tool_choice=NAMED, max_output_tokens=120) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                snapshot = event.snapshot
        final = stream.get_final_response()
    assert set(json.loads(snapshot)) == {"number", "borrower", "days"}
    assert the_call(final).arguments == snapshot


class Visitor(pydantic.BaseModel):
    name: typing.Annotated[str, pydantic.Field(max_length=20)]
    age: int
    ticket: typing.Literal["adult", "child"]


class Lookup(pydantic.BaseModel):
    """Looks up an object."""
    number: int


def test_parse(client, model):
    parsed = client.responses.parse(model=model, input="Ada is 34 years old.", text_format=Visitor, temperature=0,
                                    max_output_tokens=100)
    assert isinstance(parsed.output_parsed, Visitor) and parsed.text.format.type == "json_schema"


def test_parse_tools(client, model):
    parsed = client.responses.parse(model=model, input="What is object 12?", tools=[openai.pydantic_function_tool(Lookup)],
                                    tool_choice="required", temperature=0, max_output_tokens=100)
    assert isinstance(the_call(parsed).parsed_arguments, Lookup)


def test_stream_helper_parses(client, model):
    with client.responses.stream(model=model, input="Ada is 34 years old.", text_format=Visitor, temperature=0,
                                 max_output_tokens=100) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Visitor)


# ---- formats and calls ----

def test_json_schema(respond):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
              "required": ["city", "people"], "additionalProperties": False}
    response = respond("Paris has two million people.", max_output_tokens=100,
                       text={"format": {"type": "json_schema", "name": "city", "strict": True, "schema": schema}})
    value = json.loads(response.output_text)
    assert set(value) == {"city", "people"} and isinstance(value["people"], int)
    assert response.text.format.name == "city" and response.text.format.schema_ == schema


def test_json_object(respond):
    response = respond("Describe a cat as a JSON object with a name.", text={"format": {"type": "json_object"}},
                       max_output_tokens=400)
    if response.status == "completed":
        assert isinstance(json.loads(response.output_text), dict)
    else:  # a small model may go on and on within its object
        assert response.output_text.lstrip().startswith("{") and response.usage.output_tokens == 400


@pytest.mark.language
def test_required_call(respond):
    response = respond("Write a note that says hello.", tools=TOOLS, tool_choice="required", max_output_tokens=160)
    made = [each for each in response.output if each.type == "function_call"]
    assert made and {each.name for each in made} <= {"look_up", "lend", "note"}
    assert all(isinstance(json.loads(each.arguments), dict) and each.id != each.call_id for each in made)


def test_named_call(respond):
    made = the_call(respond("Lend vase 4 to the town.", tools=TOOLS, tool_choice=NAMED, max_output_tokens=120))
    assert made.name == "lend" and set(json.loads(made.arguments)) == {"number", "borrower", "days"}


def test_allowed_tools(respond):
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "note"}]}
    assert the_call(respond("Look up 4.", tools=TOOLS, tool_choice=choice, parallel_tool_calls=False,
                            max_output_tokens=120)).name == "note"


def test_allowed_tools_that_do_not_run_here(respond):
    """Tools of a type that is unknown here are left out, be they hosted or newer than this server."""
    strange = {"type": "crystal_ball_preview", "spheres": 2}
    response = respond(tools=[*TOOLS, strange], max_output_tokens=200, tool_choice={
        "type": "allowed_tools", "mode": "required", "tools": [strange, {"type": "web_search"}, NAMED]})
    assert the_call(response).name == "lend"
    response = respond(tools=[*TOOLS, strange], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [strange]})
    assert [each.type for each in response.output] == ["message"]


def test_no_parallel_calls(respond):
    the_call(respond("Look up 1 and look up 2.", tools=TOOLS[:1], tool_choice="required", parallel_tool_calls=False,
                     max_output_tokens=160))


def test_tool_choice_none(respond):
    response = respond("Look up 4.", tools=TOOLS, tool_choice="none")
    assert [each.type for each in response.output] == ["message"]


@pytest.mark.parametrize("output", ["A vase.", [{"type": "input_text", "text": "A vase."}]], ids=["string", "parts"])
def test_call_output_in_the_input(respond, output):
    response = respond([item("user", "What is 4?"),
                        {"type": "function_call", "call_id": "call_1", "name": "look_up", "arguments": "{\"number\": 4}"},
                        {"type": "function_call_output", "call_id": "call_1", "output": output}], tools=TOOLS)
    assert response.output


def test_unknown_call_output(refused):
    error = refused(input=[item("user", "What is 4?"),
                           {"type": "function_call_output", "call_id": "call_gone", "output": "A vase."}])
    assert "call_gone" in error["message"]


def test_reasoning_without_content(respond):
    """As agents send it back: an id and an empty summary, nothing else."""
    plain = respond([item("user", "Hello."), item("assistant", "Hi."), item("user", "Bye.")])
    thought = respond([item("user", "Hello."), {"type": "reasoning", "id": "rs_1", "summary": []}, item("assistant", "Hi."),
                       item("user", "Bye.")])
    assert thought.usage.input_tokens == plain.usage.input_tokens


def test_reasoning_with_content(respond):
    assert respond([item("user", "Hello."),
                    {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "A greeting."}],
                     "summary": [{"type": "summary_text", "text": "They greet."}]},
                    item("assistant", "Hi."), item("user", "Bye.")]).output


# ---- errors ----

def test_no_input(refused):
    assert refused()["param"] == "input"


@pytest.mark.parametrize("body, param", [
    ({"input": 5}, "input"), ({"input": [{"type": "no_such_item"}]}, "input"), ({"input": [{"role": "robot", "content": "a"}]}, "input"),
    ({"input": "a", "max_output_tokens": "many"}, "max_output_tokens"), ({"input": "a", "temperature": 9}, "temperature"),
    ({"input": "a", "tools": [{"type": "function"}]}, "tools"), ({"input": "a", "truncation": "some"}, "truncation"),
    ({"input": "a", "text": {"format": {"type": "poem"}}}, "text"),
    ({"input": "a", "metadata": {str(number): "a" for number in range(17)}}, "metadata"),
    ({"input": "a", "tool_choice": {"type": "function", "name": "none_such"}, "tools": [flat(LOOK)]}, "tool_choice"),
])
def test_bad_fields(refused, body, param):
    assert (refused(**body)["param"] or "").startswith(param)


def test_unknown_previous_response(refused):
    error = refused(status=(400, 404), input="a", previous_response_id=MISSING)
    assert error["param"] == "previous_response_id" and MISSING in error["message"]


def test_malformed_previous_response(refused):
    assert refused(status=(400, 404), input="a", previous_response_id="42")["param"] == "previous_response_id"


def test_previous_response_beside_a_conversation(refused):
    refused(input="a", previous_response_id=MISSING, conversation="conv_" + "0" * 32)


@pytest.mark.parametrize("method, path", [
    ("get", MISSING), ("delete", MISSING), ("get", f"{MISSING}/input_items"), ("post", f"{MISSING}/cancel"), ("get", "42"),
    ("get", "../responses/x")])
def test_unknown_responses(refused, method, path):
    refused(status=404, method=method, path=f"/responses/{path}")


@pytest.fixture(scope="module")
def narrow():
    """A model with a context that is soon full."""
    with serve(*tiny_flags()[:2], "-t", "1", "-c", "1024", "-np", "1") as running:
        yield sdk(running)


def test_overflow_is_an_error(narrow):
    with pytest.raises(openai.BadRequestError) as caught:
        narrow.responses.create(model="any", input=Text("overflow").words(1500), max_output_tokens=8)
    assert caught.value.body["code"] == "context_length_exceeded" and caught.value.body["type"] == "invalid_request_error"


def test_truncation(narrow):
    """Without it a conversation that has grown too long is refused; with it its oldest turns go."""
    said = [item(role, Text(role, number).words(120)) for number in range(6) for role in ("user", "assistant")]
    said.append(item("user", "Go on."))
    with pytest.raises(openai.BadRequestError) as caught:
        narrow.responses.create(model="any", input=said, max_output_tokens=8, truncation="disabled")
    assert caught.value.body["code"] == "context_length_exceeded"
    response = narrow.responses.create(model="any", input=said, max_output_tokens=8, truncation="auto")
    assert 200 < response.usage.input_tokens < 1024 and response.truncation == "auto"


def test_truncation_in_many_steps(narrow):
    """What is oldest has few tokens in many bytes, so that step after step is not enough; and the place behind the last
    message, which moves each time, is to be kept."""
    said = [item(role, "=" * 1280) for _ in range(24) for role in ("user", "assistant")]
    said += [item(role, "1234567890" * 4) for _ in range(10) for role in ("user", "assistant")]
    response = narrow.responses.create(model="any", input=[*said, item("user", "Go on.")], max_output_tokens=8,
                                       truncation="auto", extra_body={"prompt_cache_retention": "1h"})
    assert 200 < response.usage.input_tokens < 1024
    assert response.model_extra["hearth"]["truncated"]["messages"] >= 40


def test_truncation_in_a_stored_conversation(narrow):
    """Going on by id past the end of the context, and then again."""
    previous = None
    for number in range(8):
        response = narrow.responses.create(model="any", input=Text("stored", number).words(150), max_output_tokens=8,
                                           truncation="auto", previous_response_id=previous)
        previous = response.id
        assert response.usage.input_tokens < 1024


# ---- counting and compaction ----

def test_input_tokens_count(client, model, respond):
    request = {"input": QUESTION, "instructions": "You are a pirate.", "tools": TOOLS}
    counted = client.responses.input_tokens.count(model=model, **request)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == respond(request.pop("input"), **request).usage.input_tokens


def test_input_tokens_count_of_a_chain(client, model, respond):
    first = respond()
    counted = client.responses.input_tokens.count(model=model, input="And of Spain?", previous_response_id=first.id)
    assert counted.input_tokens == respond("And of Spain?", previous_response_id=first.id).usage.input_tokens


def test_compact(narrow):
    """A summary takes the place of what was said; the conversation goes on from there."""
    said = [item(role, Text("compact", role, number).words(30)) for number in range(4) for role in ("user", "assistant")]
    compacted = narrow.responses.compact(model="any", input=said)
    assert compacted.object == "response.compaction" and compacted.usage.output_tokens > 0
    made = [each for each in compacted.output if each.type == "compaction"]
    assert len(made) == 1 and made[0].encrypted_content
    response = narrow.responses.create(model="any", max_output_tokens=8, input=[
        *(each.to_dict() for each in compacted.output), item("user", "Go on.")])
    assert response.output and response.usage.input_tokens < compacted.usage.input_tokens + compacted.usage.output_tokens


def test_compact_a_chain(narrow):
    first = narrow.responses.create(model="any", input=Text("chain").words(80), max_output_tokens=16)
    compacted = narrow.responses.compact(model="any", previous_response_id=first.id)
    assert [each.type for each in compacted.output][-1] == "compaction"


# ---- in the background ----

def finished(client, response, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < deadline, response.status
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    return response


def test_background(client, respond):
    started = respond("Say yes.", background=True, max_output_tokens=8)
    assert started.status in ("queued", "in_progress") and started.background is True and started.output == []
    response = finished(client, started)
    assert response.status in ("completed", "incomplete")
    assert response.output_text and response.usage.output_tokens > 0
    assert response.output_text == respond("Say yes.", max_output_tokens=8).output_text


def test_background_cancel(client, respond):
    started = respond("Tell a story.", background=True, max_output_tokens=3000, extra_body={"ignore_eos": True})
    cancelled = client.responses.cancel(started.id)
    assert cancelled.id == started.id and cancelled.status == "cancelled"
    assert client.responses.retrieve(started.id).status == "cancelled"
    assert client.responses.cancel(started.id).status == "cancelled"


def test_cancel_needs_the_background(refused, respond):
    refused(status=400, path=f"/responses/{respond().id}/cancel")


def test_background_needs_the_store(refused):
    refused(input="a", background=True, store=False)


def test_namespaces_with_a_tool_of_the_same_name(respond):
    """As two MCP servers that search: a call comes back under its own names, and counts as that tool's in a history."""
    lend = dict(flat(LEND), strict=True)
    tools = [{"type": "namespace", "name": name, "description": name, "tools": [lend]} for name in ("mcp__docs", "mcp__wiki")]
    choice = {"type": "function", "name": "lend", "namespace": "mcp__wiki"}
    options = {"tools": tools, "max_output_tokens": 200, "extra_body": {"tool_choice": choice}}
    call = the_call(respond(**options))
    assert (call.name, call.namespace) == ("lend", "mcp__wiki")
    events = list(respond(stream=True, **options))
    assert {(event.item.name, event.item.namespace) for event in events
            if event.type.startswith("response.output_item")} == {("lend", "mcp__wiki")}
    past = [item("user", QUESTION), call.model_dump(exclude_none=True),
            {"type": "function_call_output", "call_id": call.call_id, "output": "lent"}]
    assert respond(past, tools=tools).output_text is not None
