"""Bad input: the SDK's typed exceptions, with the code and the parameter; afterwards the server goes on."""

import http.client
import json
import os
import re
import struct

import openai
import pytest

from conftest import sdk, serve, servers

USER = {"role": "user", "content": "Hello"}

BAD_REQUESTS = {
    "unknown role": {"messages": [{"role": "wizard", "content": "Hello"}]},
    "no role": {"messages": [{"content": "Hello"}]},
    "no content": {"messages": [{"role": "user"}]},
    "empty messages": {"messages": []},
    "messages is a string": {"messages": "Hello"},
    "message is a string": {"messages": ["Hello"]},
    "content is a number": {"messages": [{"role": "user", "content": 7}]},
    "unknown part": {"messages": [{"role": "user", "content": [{"type": "smell", "smell": "rose"}]}]},
    "temperature is a string": {"messages": [USER], "temperature": "hot"},
    "temperature below zero": {"messages": [USER], "temperature": -1},
    "top_p above one": {"messages": [USER], "top_p": 1.5},
    "max_tokens is a string": {"messages": [USER], "max_tokens": "many"},
    "max_tokens is a fraction": {"messages": [USER], "max_tokens": 1.5},
    "n is zero": {"messages": [USER], "n": 0},
    "stop is a number": {"messages": [USER], "stop": 5},
    "stop is empty": {"messages": [USER], "stop": ""},
    "top_logprobs alone": {"messages": [USER], "top_logprobs": 3},
    "too many top_logprobs": {"messages": [USER], "logprobs": True, "top_logprobs": 1000},
    "bias of an unknown token": {"messages": [USER], "logit_bias": {"999999999": 1}},
    "stream_options is a string": {"messages": [USER], "stream": True, "stream_options": "usage"},
    "tools is a string": {"messages": [USER], "tools": "look"},
    "tool without a name": {"messages": [USER], "tools": [{"type": "function", "function": {}}]},
    "schema that cannot be kept": {"messages": [USER], "response_format": {"type": "json_schema", "json_schema": {
        "name": "a", "strict": True, "schema": {"type": "array", "uniqueItems": True, "items": {"type": "string"}}}}},
    "grammar that is none": {"messages": [USER], "grammar": "root ::= ("},
    "grammar and schema": {"messages": [USER], "grammar": "root ::= \"a\"",
                           "response_format": {"type": "json_object"}},
}


@pytest.mark.parametrize("body", BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
def test_bad_request(client, model, chat, body):
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body={"model": model, **body}, cast_to=object)
    error = caught.value.body
    assert error["message"] and error["type"] == "invalid_request_error"
    assert {"param", "code"} <= error.keys()
    assert chat("Hello", max_tokens=1).usage.completion_tokens == 1


def test_unsupported_parameters_are_named(chat):
    with pytest.raises(openai.BadRequestError, match="modalities") as caught:
        chat("Hello", modalities=["text", "audio"])
    assert caught.value.param == "modalities"


def test_prompt_longer_than_the_context(chat):
    with pytest.raises(openai.BadRequestError) as caught:
        chat("A long story. " * 4000)
    error = caught.value
    assert error.code == "context_length_exceeded"
    assert "4096" in error.message
    assert str(error.body["n_prompt_tokens"]) in error.message


def test_bad_request_on_a_stream(chat):
    with pytest.raises(openai.BadRequestError):
        chat([], stream=True)


@pytest.mark.parametrize("prompt", [None, 5, [[]], [-1], ["a", True], {"text": "a"}], ids=repr)
def test_bad_prompt(client, model, prompt):
    with pytest.raises(openai.BadRequestError):
        client.post("/completions", body={"model": model, "prompt": prompt, "max_tokens": 1}, cast_to=object)


def test_not_found(client):
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")
    with pytest.raises(openai.NotFoundError):
        client.get("/no/such/path", cast_to=object)


@pytest.mark.parametrize("path", ["/api/v1/models", "/api/tags", "/version"])
def test_no_other_server_is_imitated(server, path):
    assert raw(server, "GET", path)[0] == 404


def raw(server, method, path, body=None, headers=None):
    """Status and decoded body of a request that no SDK would send."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    try:
        connection.request(method, path, body, headers or {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"{\"messages\": [}", b"\xff\xfe", b"{}x", b"[" * 100000,
                                  b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}"])
def test_malformed_json(server, body):
    status, answer = raw(server, "POST", "/v1/chat/completions", body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"]


def test_wrong_method(server):
    assert raw(server, "GET", "/v1/chat/completions")[0] == 405
    assert raw(server, "DELETE", "/v1/models")[0] == 405


def test_keys(engine_flags):
    with serve(*engine_flags, "-c", "512", "-np", "1", "--api-key", "secret,other") as running:
        for key in ("wrong", "secre", "secret,other"):
            with pytest.raises(openai.AuthenticationError):
                sdk(running, api_key=key).chat.completions.create(model="any", messages=[USER], max_tokens=1)
        for key in ("secret", "other"):
            assert sdk(running, api_key=key).chat.completions.create(model="any", messages=[USER], max_tokens=1)
        assert raw(running, "POST", "/v1/chat/completions", json.dumps({"messages": [USER]}))[0] == 401
        assert raw(running, "GET", "/health")[0] == 200


def test_body_over_the_limit(engine_flags):
    with serve(*engine_flags, "-c", "512", "-np", "1", "--max-body", "1") as running:
        client = sdk(running)
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model="any", messages=[{"role": "user", "content": "x" * (3 << 19)}])
        assert caught.value.status_code == 413
        assert client.chat.completions.create(model="any", messages=[USER], max_tokens=1)


def test_far_too_much_text_is_refused_by_its_length(engine_flags):
    """Six megabytes have more tokens than the context whatever they are; who counts them is told how many."""
    text = "the rooms of the museum " * 250_000
    with serve(*engine_flags, "-c", "512", "-np", "1") as running:
        client = sdk(running)
        for path, body in (("/chat/completions", {"messages": [{"role": "user", "content": text}]}),
                           ("/completions", {"prompt": text}), ("/responses", {"input": text})):
            with pytest.raises(openai.BadRequestError) as caught:
                client.post(path, body={"model": "any", **body}, cast_to=object)
            assert caught.value.code == "context_length_exceeded"
            assert "at least" in caught.value.body["message"]
        status, answer = raw(running, "POST", "/v1/messages", json.dumps(
            {"max_tokens": 1, "messages": [{"role": "user", "content": text}]}))
        assert status == 400
        found = re.fullmatch(r"prompt is too long: (\d+) tokens > 511 maximum", answer["error"]["message"])
        assert found and int(found[1]) > 511
        few = {"messages": [{"role": "user", "content": "the rooms of the museum " * 1000}]}
        status, answer = raw(running, "POST", "/v1/messages/count_tokens", json.dumps(few))
        assert status == 200 and answer["input_tokens"] > 4000
        # The oldest go until the rest fits, however much they are.
        turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}, USER]
        reply = client.responses.create(model="any", input=turns, truncation="auto", max_output_tokens=1)
        assert reply.usage.input_tokens < 200


def test_more_choices_than_may_wait(engine_flags):
    """A request is taken as a whole, or not at all: it would be refused for ever otherwise."""
    with serve(*engine_flags, "-c", "2048", "-np", "2", "--queue", "1") as running:
        client = sdk(running)
        reply = client.chat.completions.create(model="any", messages=[USER], max_tokens=1, n=9)
        assert len(reply.choices) == 9
        reply = client.completions.create(model="any", prompt=["One", "Two", "Three", "Four", "Five"], max_tokens=1)
        assert len(reply.choices) == 5


@pytest.mark.llama
@pytest.mark.parametrize("letter, count", [
    (" ", 200_000), *(pytest.param(letter, count, marks=pytest.mark.long)
                      for letter, count in (("A", 200_000), ("!", 200_000), ("a", 3_000_000)))])
def test_long_runs(tmp_path, letter, count):
    """llama.cpp splits the text of some vocabularies with std::regex, which goes a level deeper for each character of a
    run: that must not cost the server its stack."""
    with open(os.path.join(servers.models_dir(), "tiny.gguf"), "rb") as file:
        model = file.read()
    mark = b"tokenizer.ggml.pre" + struct.pack("<IQ", 8, 6)
    assert mark + b"smollm" in model
    path = tmp_path / "tekken.gguf"
    path.write_bytes(model.replace(mark + b"smollm", mark + b"tekken", 1))
    with serve("-m", str(path), "-c", "512", "-np", "1", "-t", "1") as running:
        status, answer = raw(running, "POST", "/tokenize", json.dumps({"content": count * letter}))
        assert status == 200 and len(answer["tokens"]) > 100
        assert raw(running, "GET", "/health")[0] == 200
