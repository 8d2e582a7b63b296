"""Probes of the OpenAI API, one function each, with the official SDK: models, chat, streams, tools, formats, caching,
errors, plain completions. What another server does wrong is mostly found among the errors.

The model is small, and most probes have one with random weights: where a probe needs a certain reply, it is forced (a
grammar, a tool choice, strings that are short) or taken from an earlier one; no probe needs the model to be clever.
"""

import http.client
import json
import typing

import jsonschema
import openai
import pydantic
import pytest

from conftest import sdk, serve

pytestmark = pytest.mark.llama

USER = {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"type": "string", "enum": ["C", "F"]}},
    "required": ["city", "unit"], "additionalProperties": False}}}
CLOCK = {"type": "function", "function": {"name": "get_time", "description": "The time in a zone.", "parameters": {
    "type": "object", "properties": {"zone": {"type": "string", "maxLength": 20}}, "required": ["zone"]}}}
PING = {"type": "function", "function": {"name": "ping"}}
CALL = {"id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\", \"unit\": \"C\"}"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ONE_CALL = {"parallel_tool_calls": False, "max_tokens": 200}


def choice(reply):
    return reply.choices[0]


def text(reply):
    return choice(reply).message.content


def the_call(reply):
    """The only call of a reply: its name and arguments."""
    made = choice(reply).message.tool_calls
    assert len(made) == 1 and made[0].type == "function" and made[0].id
    return made[0].function.name, json.loads(made[0].function.arguments)


def joined(chunks):
    return "".join(each.delta.content or "" for chunk in chunks for each in chunk.choices)


@pytest.fixture
def refused(client, model):
    """A request that must get a 400 with the API's error object; returns that."""
    def ask(path="/chat/completions", **body):
        with pytest.raises(openai.BadRequestError) as caught:
            client.post(path, body={"model": model, **body}, cast_to=object)
        error = caught.value.body
        assert error["message"] and error["type"] == "invalid_request_error" and {"param", "code"} <= error.keys()
        return error
    return ask


@pytest.fixture
def complete(client, model):
    def create(prompt="The capital of France is", **options):
        return client.completions.create(**{"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, **options})
    return create


def raw(server, method, path, body=None, headers=None):
    """Status, headers and body of a request that the SDK would not send."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body, headers or {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


# ---- models ----

def test_models_list(client, model):
    listed = client.models.list()
    assert listed.object == "list" and [entry.id for entry in listed.data] == [model]
    assert listed.data[0].object == "model" and listed.data[0].created > 0 and listed.data[0].owned_by


def test_models_retrieve(client, model):
    assert client.models.retrieve(model).id == model


def test_models_retrieve_unknown(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no-such-model")
    assert caught.value.body["message"]


def test_models_say_the_context_size(client, model):
    extra = client.models.retrieve(model).model_extra
    assert extra["context_length"] == extra["max_model_len"] > 0


# ---- chat ----

def test_chat_object(chat, model):
    reply = chat([USER])
    assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl-") and reply.created > 1_700_000_000
    assert reply.model == model and choice(reply).index == 0 and choice(reply).message.role == "assistant"
    assert choice(reply).logprobs is None and not choice(reply).message.tool_calls


def test_chat_request_id(chat):
    assert chat([USER])._request_id and chat([USER])._request_id != chat([USER])._request_id


def test_chat_usage_adds_up(chat):
    usage = chat([USER], max_tokens=5, extra_body={"ignore_eos": True}).usage
    assert usage.completion_tokens == 5 and usage.prompt_tokens > 5
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_chat_system_role(chat):
    assert chat([{"role": "system", "content": "You are a pirate."}, USER]).usage.prompt_tokens > 0


def test_chat_developer_role(chat):
    """A developer message is a system message."""
    as_system = chat([{"role": "system", "content": "You are a pirate."}, USER])
    as_developer = chat([{"role": "developer", "content": "You are a pirate."}, USER])
    assert text(as_developer) == text(as_system) and as_developer.usage.prompt_tokens == as_system.usage.prompt_tokens


def test_chat_content_parts(chat):
    parts = [{"type": "text", "text": "What is the capital of France? "}, {"type": "text", "text": "Answer in one sentence."}]
    assert text(chat([{"role": "user", "content": parts}]))


def test_chat_multi_turn(chat):
    reply = chat([USER, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Spain?"}])
    assert text(reply)


def test_chat_participant_name(chat):
    assert text(chat([{**USER, "name": "ada"}]))


def test_chat_n(chat):
    reply = chat([USER], n=3, temperature=1, max_tokens=4)
    assert [each.index for each in reply.choices] == [0, 1, 2]
    assert reply.usage.completion_tokens <= 12


def test_chat_stop_string(chat):
    whole = text(chat([USER]))
    stop = max(whole.split(), key=len)
    reply = chat([USER], stop=stop)
    assert text(reply) == whole[:whole.index(stop)] and choice(reply).finish_reason == "stop"


def test_chat_stop_list(chat):
    whole = text(chat([USER]))
    assert text(chat([USER], stop=["~~~", whole[3:6]])) == whole[:whole.index(whole[3:6])]


def test_chat_seed(chat):
    first, second = (chat([USER], temperature=1, seed=11, extra_body={"cache_prompt": False}) for _ in range(2))
    assert text(first) == text(second)


def test_chat_temperature_zero(chat):
    assert text(chat([USER])) == text(chat([USER]))


def test_chat_max_tokens(chat):
    reply = chat([USER], max_tokens=3, extra_body={"ignore_eos": True})
    assert reply.usage.completion_tokens == 3 and choice(reply).finish_reason == "length"


def test_chat_max_completion_tokens(chat):
    reply = chat([USER], max_tokens=openai.NOT_GIVEN, max_completion_tokens=3, extra_body={"ignore_eos": True})
    assert reply.usage.completion_tokens == 3 and choice(reply).finish_reason == "length"


def test_chat_finish_reason_stop(chat):
    reply = chat([USER], extra_body={"grammar": 'root ::= "yes"'})
    assert choice(reply).finish_reason == "stop" and text(reply) == "yes"


def test_chat_logprobs(chat):
    entries = choice(chat([USER], logprobs=True)).logprobs.content
    assert entries and all(entry.logprob <= 0 and bytes(entry.bytes) is not None for entry in entries)


def test_chat_top_logprobs(chat):
    entries = choice(chat([USER], logprobs=True, top_logprobs=5)).logprobs.content
    assert all(len(entry.top_logprobs) == 5 for entry in entries)


def test_chat_logit_bias_bans(chat, server):
    first = text(chat([USER], max_tokens=1))
    token = server.client.post("/tokenize", {"content": first})["tokens"][0]
    assert text(chat([USER], max_tokens=1, logit_bias={str(token): -100})) != first


def test_chat_logit_bias_forces(chat, server):
    token = server.client.post("/tokenize", {"content": " banana"})["tokens"]
    assert len(token) == 1
    assert text(chat([USER], max_tokens=1, logit_bias={str(token[0]): 100})) == " banana"


def test_chat_penalties(chat):
    assert text(chat([USER], presence_penalty=1.5, frequency_penalty=1.5))


def test_chat_ignores_what_it_needs_not(chat):
    assert text(chat([USER], user="me", metadata={"a": "b"}, store=False, service_tier="auto"))


# ---- streams ----

def test_stream_role_comes_first(chat):
    chunks = list(chat([USER], stream=True))
    assert choice(chunks[0]).delta.role == "assistant" and chunks[0].object == "chat.completion.chunk"
    assert all(choice(chunk).delta.role is None for chunk in chunks[1:])


def test_stream_is_the_whole_reply(chat):
    assert joined(chat([USER], stream=True)) == text(chat([USER]))


def test_stream_finish_comes_last(chat):
    reasons = [choice(chunk).finish_reason for chunk in chat([USER], stream=True)]
    assert reasons[-1] in ("stop", "length") and set(reasons[:-1]) == {None}


def test_stream_has_one_id(chat):
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chat([USER], stream=True)}) == 1


def test_stream_usage_chunk(chat):
    *chunks, last = chat([USER], stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_without_usage(chat):
    chunks = list(chat([USER], stream=True, stream_options={"include_usage": False}))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_stream_ends_with_done(server):
    status, headers, body = raw(server, "POST", "/v1/chat/completions", json.dumps(
        {"messages": [USER], "max_tokens": 3, "stream": True}))
    assert status == 200 and headers["Content-Type"].startswith("text/event-stream")
    assert body.rstrip().endswith(b"data: [DONE]")


@pytest.mark.language
def test_stream_helper(client, model):
    with client.chat.completions.stream(model=model, messages=[USER], max_tokens=8, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        assert "".join(deltas) == text(stream.get_final_completion())


def test_stream_n(chat):
    indices = {each.index for chunk in chat([USER], stream=True, n=2, max_tokens=4) for each in chunk.choices}
    assert indices == {0, 1}


def test_stream_logprobs(chat):
    chunks = [choice(chunk) for chunk in chat([USER], stream=True, logprobs=True, top_logprobs=2)]
    assert any(each.logprobs and each.logprobs.content for each in chunks)


# ---- tools ----

def test_tools_auto(chat):
    reply = chat([USER], tools=[WEATHER], tool_choice="auto", max_tokens=40)
    assert text(reply) or choice(reply).message.tool_calls


def test_tools_are_in_the_prompt(chat):
    assert chat([USER], tools=[WEATHER]).usage.prompt_tokens > chat([USER]).usage.prompt_tokens + 20


def test_tools_none(chat):
    reply = chat([USER], tools=[WEATHER], tool_choice="none", max_tokens=40)
    assert not choice(reply).message.tool_calls and text(reply)


def test_tools_required(chat):
    reply = chat([USER], tools=[WEATHER], tool_choice="required", **ONE_CALL)
    name, arguments = the_call(reply)
    assert name == "get_weather"
    jsonschema.validate(arguments, WEATHER["function"]["parameters"])
    assert choice(reply).finish_reason == "tool_calls"


def test_tools_named(chat):
    reply = chat([USER], tools=[CLOCK, WEATHER], tool_choice=NAMED, max_tokens=100)
    name, arguments = the_call(reply)
    assert name == "get_weather" and set(arguments) == {"city", "unit"}


def test_tools_content_of_a_call_is_null(chat):
    assert not text(chat([USER], tools=[WEATHER], tool_choice="required", max_tokens=100))


def test_tools_without_parameters(chat):
    name, arguments = the_call(chat([USER], tools=[PING], tool_choice="required", max_tokens=40))
    assert name == "ping" and arguments == {}


def test_tools_not_parallel(chat):
    reply = chat([USER], tools=[WEATHER, CLOCK], tool_choice="required", parallel_tool_calls=False, max_tokens=120)
    assert len(choice(reply).message.tool_calls) == 1


def test_tools_ids_differ(chat):
    first, second = (choice(chat([USER], tools=[PING], tool_choice="required", max_tokens=40)).message.tool_calls[0].id
                     for _ in range(2))
    assert first != second


def test_tools_streamed(chat):
    """The first delta of a call has id and name; the arguments' pieces concatenate."""
    arguments, finish = "", None
    for chunk in chat([USER], tools=[WEATHER], tool_choice="required", **ONE_CALL, stream=True):
        for piece in choice(chunk).delta.tool_calls or ():
            if not arguments and piece.id:
                assert piece.function.name == "get_weather" and piece.index == 0 and piece.type == "function"
            else:
                assert not piece.id and not piece.function.name
            arguments += piece.function.arguments or ""
        finish = choice(chunk).finish_reason or finish
    jsonschema.validate(json.loads(arguments), WEATHER["function"]["parameters"])
    assert finish == "tool_calls"


def test_tools_streamed_in_pieces(chat):
    pieces = [piece.function.arguments for chunk in chat([USER], tools=[WEATHER], tool_choice="required", max_tokens=100,
                                                         stream=True)
              for piece in choice(chunk).delta.tool_calls or () if piece.function.arguments]
    assert len(pieces) > 1


def test_tools_stream_helper(client, model):
    with client.chat.completions.stream(model=model, messages=[USER], tools=[WEATHER], tool_choice="required",
                                        **ONE_CALL, temperature=0) as stream:
        assert the_call(stream.get_final_completion())[0] == "get_weather"


def test_tools_result_follow_up(chat):
    reply = chat([USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                  {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"}], tools=[WEATHER], max_tokens=24)
    assert text(reply) or choice(reply).message.tool_calls


def test_tools_results_of_parallel_calls_in_any_order(chat):
    other = {"id": "call_2", "type": "function", "function": {"name": "get_time", "arguments": "{\"zone\": \"CET\"}"}}
    reply = chat([USER, {"role": "assistant", "tool_calls": [CALL, other]},
                  {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
                  {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"}], tools=[WEATHER, CLOCK])
    assert reply.usage.prompt_tokens > 0


def test_tools_result_as_parts(chat):
    assert chat([USER, {"role": "assistant", "tool_calls": [CALL]},
                 {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "21"}]}], tools=[WEATHER])


def test_tools_history_without_tools(chat):
    assert text(chat([USER, {"role": "assistant", "tool_calls": [CALL]},
                      {"role": "tool", "tool_call_id": "call_1", "content": "21"}]))


def test_tools_strict(chat):
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    _, arguments = the_call(chat([USER], tools=[strict], tool_choice="required", **ONE_CALL))
    jsonschema.validate(arguments, WEATHER["function"]["parameters"])


def test_tools_nested_arguments(chat):
    parameters = {"type": "object", "required": ["where"], "properties": {"where": {
        "type": "object", "required": ["lat", "tags"],
        "properties": {"lat": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 2}}}}}
    nested = {"type": "function", "function": {"name": "mark", "parameters": parameters}}
    _, arguments = the_call(chat([USER], tools=[nested], tool_choice="required", **ONE_CALL))
    jsonschema.validate(arguments, parameters)


def test_tools_cut_by_the_limit(chat):
    """A call that does not fit is no error: the reply is well-formed and says why it ended."""
    reply = chat([USER], tools=[WEATHER], tool_choice="required", max_tokens=6)
    assert choice(reply).finish_reason == "length"
    for made in choice(reply).message.tool_calls or ():
        assert made.function.name


def test_tools_with_n(chat):
    reply = chat([USER], tools=[WEATHER], tool_choice="required", n=2, max_tokens=100)
    assert all(each.message.tool_calls for each in reply.choices)


# ---- formats ----

def test_json_object(chat):
    reply = chat("A person as JSON.", response_format={"type": "json_object"}, max_tokens=300)
    if choice(reply).finish_reason == "stop":
        assert isinstance(json.loads(text(reply)), dict)
    assert text(reply).lstrip().startswith("{")


def schema_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}


def test_json_schema(chat):
    value = json.loads(text(chat("Ada is 36.", response_format=schema_format(PERSON, strict=True), max_tokens=120)))
    jsonschema.validate(value, PERSON)


def test_json_schema_streamed(chat):
    pieces = joined(chat("Ada is 36.", response_format=schema_format(PERSON), max_tokens=120, stream=True))
    jsonschema.validate(json.loads(pieces), PERSON)


def test_json_schema_nested(chat):
    schema = {"type": "object", "required": ["people"], "properties": {"people": {
        "type": "array", "minItems": 1, "maxItems": 2, "items": PERSON}}, "additionalProperties": False}
    jsonschema.validate(json.loads(text(chat("Ada is 36.", response_format=schema_format(schema), max_tokens=300))), schema)


def test_json_schema_enum(chat):
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]}
    assert json.loads(text(chat("Grass?", response_format=schema_format(schema), max_tokens=60)))["colour"] in ("red", "green")


def test_json_schema_with_references(chat):
    schema = {"type": "object", "properties": {"who": {"$ref": "#/$defs/person"}}, "required": ["who"],
              "$defs": {"person": PERSON}}
    jsonschema.validate(json.loads(text(chat("Ada is 36.", response_format=schema_format(schema), max_tokens=120)))["who"], PERSON)


def test_pydantic_parse(client, model):
    class Answer(pydantic.BaseModel):
        city: typing.Annotated[str, pydantic.Field(max_length=20)]
        sure: typing.Literal["yes", "no"]
    parsed = client.chat.completions.parse(model=model, messages=[USER], response_format=Answer, max_tokens=150,
                                           temperature=0)
    assert isinstance(choice(parsed).message.parsed, Answer)


def test_response_format_text(chat):
    assert text(chat([USER], response_format={"type": "text"})) == text(chat([USER]))


# ---- caching ----

def test_cached_tokens_grow(chat):
    story = [{"role": "user", "content": "A story about caches. " * 30}]
    first, second = (chat(story, max_tokens=2).usage for _ in range(2))
    assert second.prompt_tokens_details.cached_tokens > first.prompt_tokens_details.cached_tokens
    assert second.prompt_tokens_details.cached_tokens == second.prompt_tokens - 1


def test_cached_tokens_of_a_second_turn(chat):
    first = chat([{"role": "user", "content": "Count to ten. " * 20}], max_tokens=20)
    second = chat([{"role": "user", "content": "Count to ten. " * 20}, {"role": "assistant", "content": text(first)},
                   {"role": "user", "content": "Go on."}], max_tokens=4)
    assert second.usage.prompt_tokens - second.usage.prompt_tokens_details.cached_tokens < 20


def test_prompt_cache_key(chat):
    assert text(chat([USER], prompt_cache_key="session-1", extra_body={"prompt_cache_retention": "24h"}))


# ---- errors ----

def test_error_empty_messages(refused):
    assert refused(messages=[])["param"] == "messages"


def test_error_no_messages(refused):
    refused()


def test_error_message_without_role(refused):
    refused(messages=[{"content": "Hello"}])


def test_error_unknown_role(refused):
    refused(messages=[{"role": "wizard", "content": "Hello"}])


def test_error_messages_is_a_string(refused):
    refused(messages="Hello")


def test_error_content_is_a_number(refused):
    refused(messages=[{"role": "user", "content": 5}])


def test_error_tools_is_a_string(refused):
    assert "tools" in refused(messages=[USER], tools="get_weather")["param"]


def test_error_tool_without_function(refused):
    refused(messages=[USER], tools=[{"type": "function"}])


def test_error_tool_without_name(refused):
    refused(messages=[USER], tools=[{"type": "function", "function": {"description": "nameless"}}])


def test_error_temperature(refused):
    assert refused(messages=[USER], temperature=9)["param"] == "temperature"


def test_error_top_p(refused):
    assert refused(messages=[USER], top_p=7)["param"] == "top_p"


def test_error_top_logprobs(refused):
    assert refused(messages=[USER], logprobs=True, top_logprobs=500)["param"] == "top_logprobs"


def test_error_undeclared_tool(refused):
    refused(messages=[USER], tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "get_money"}})


def test_error_tool_choice_without_tools(refused):
    refused(messages=[USER], tool_choice="required")


def test_error_unknown_tool_choice(refused):
    refused(messages=[USER], tools=[WEATHER], tool_choice="perhaps")


def test_error_json_schema_without_schema(refused):
    refused(messages=[USER], response_format={"type": "json_schema"})


def test_error_json_schema_is_not_one(refused):
    refused(messages=[USER], response_format=schema_format({"type": "wizard"}))


def test_error_unknown_response_format(refused):
    refused(messages=[USER], response_format={"type": "yaml"})


def test_error_negative_max_tokens(refused):
    refused(messages=[USER], max_tokens=-5)


def test_error_huge_n(refused):
    assert refused(messages=[USER], n=100000)["param"] == "n"


def test_error_logit_bias(refused):
    refused(messages=[USER], logit_bias={"banana": 1})


def test_error_wrong_type_names_the_field(refused):
    assert refused(messages=[USER], stream="yes")["param"] == "stream"


def test_error_too_long(refused):
    error = refused(messages=[{"role": "user", "content": "long " * 20000}])
    assert error["code"] == "context_length_exceeded"


def test_error_bad_json(server):
    status, _, body = raw(server, "POST", "/v1/chat/completions", b"{\"messages\": [")
    assert status == 400 and json.loads(body)["error"]["type"] == "invalid_request_error"


def test_error_unknown_route(server):
    status, _, body = raw(server, "POST", "/v1/chat/nothing", b"{}")
    assert status == 404 and json.loads(body)["error"]["message"]


def test_error_wrong_method(server):
    status, _, body = raw(server, "GET", "/v1/chat/completions")
    assert status == 405 and json.loads(body)["error"]["message"]


def test_error_on_a_stream(client, model):
    with pytest.raises(openai.BadRequestError):
        list(client.chat.completions.create(model=model, messages=[], stream=True))


def test_error_leaves_the_server_well(refused, chat):
    refused(messages=[])
    assert text(chat([USER]))


def test_error_keys(engine_flags):
    with serve(*engine_flags, "-c", "512", "-np", "1", "--api-key", "secret") as running:
        with pytest.raises(openai.AuthenticationError) as caught:
            sdk(running, api_key="wrong").chat.completions.create(model="any", messages=[USER])
        assert caught.value.body["message"]
        with pytest.raises(openai.AuthenticationError):
            sdk(running, api_key="wrong").models.list()
        assert sdk(running, api_key="secret").chat.completions.create(model="any", messages=[USER], max_tokens=2)


# ---- plain completions ----

def test_completion_object(complete, model):
    reply = complete()
    assert reply.object == "text_completion" and reply.id.startswith("cmpl-") and reply.model == model
    assert choice(reply).text and choice(reply).finish_reason in ("stop", "length") and choice(reply).logprobs is None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_completion_of_several(complete):
    reply = complete(["One, two,", "Red, green,"], max_tokens=2)
    assert [each.index for each in reply.choices] == [0, 1]


def test_completion_of_tokens(complete):
    assert complete([5, 6, 7], max_tokens=2).usage.prompt_tokens == 3


def test_completion_of_several_token_lists(complete):
    assert len(complete([[5, 6, 7], [8, 9]], max_tokens=2).choices) == 2


def test_completion_echo(complete):
    assert choice(complete(echo=True)).text.startswith("The capital of France is")


def test_completion_n(complete):
    assert len(complete(n=2, temperature=1).choices) == 2


def test_completion_stop(complete):
    whole = choice(complete()).text
    assert choice(complete(stop=whole[4:7])).text == whole[:whole.index(whole[4:7])]


def test_completion_stream(complete):
    counted = "1, 2, 3, 4, 5, 6,"  # no near tie that what else is in a batch could decide
    assert "".join(choice(chunk).text for chunk in complete(counted, stream=True)) == choice(complete(counted)).text


def test_completion_stream_usage(complete):
    *_, last = complete(stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens == 8 and last.choices == []


def test_completion_logprobs(complete):
    logprobs = choice(complete(logprobs=3)).logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset)
    assert all(len(tops) >= 3 for tops in logprobs.top_logprobs)


def test_completion_max_tokens_zero_with_echo(complete):
    assert choice(complete(echo=True, max_tokens=0)).text == "The capital of France is"


def test_completion_suffix_is_refused(refused):
    assert refused("/completions", prompt="a", suffix="b")["param"] == "suffix"


def test_completion_best_of(refused, complete):
    assert complete(best_of=1)
    assert refused("/completions", prompt="a", best_of=3)["param"] == "best_of"


def test_completion_without_prompt(refused):
    refused("/completions")


def test_completion_json_schema(complete):
    value = json.loads(choice(complete("A person: ", max_tokens=100, extra_body={"json_schema": PERSON})).text)
    jsonschema.validate(value, PERSON)


def test_completion_grammar(complete):
    assert choice(complete(extra_body={"grammar": "root ::= \"yes\" | \"no\""})).text in ("yes", "no")
