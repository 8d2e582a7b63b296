"""A chat completion said in another dialect, as hermes-agent says it there: for sending recorded sessions again
(lib/replay.py).

A Dialect turns the body of a chat completion into a request of its own (`request`: path, body, headers) and reads the
answer's stream (`read`: text and computed tokens). The prompt is the same: system text, tools and messages, in their
order.
"""

import json

from .client import HttpError, events

MARK = {"type": "ephemeral"}
BETAS = "interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14,context-1m-2025-08-07"
MARKED_MESSAGES = 3


class Chat:
    name = "chat"

    @staticmethod
    def request(body, max_tokens):
        return "/v1/chat/completions", {**body, "model": "any", "max_tokens": max_tokens, "temperature": 0, "stream": True,
                                        "stream_options": {"include_usage": True}}, {}

    @staticmethod
    def read(stream):
        text, timings = "", None
        for chunk in stream:
            text += "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ()))
            timings = chunk.get("timings") or timings
        return text, timings["prompt_n"]


class Messages:
    """Everything is sent again. The system text and the last three messages are marked; a message is a list of blocks
    while it is marked, and afterwards a string if it is text alone."""

    name = "messages"

    @staticmethod
    def request(body, max_tokens):
        out = {"model": "claude-any", "max_tokens": max_tokens, "temperature": 0, "stream": True}
        messages = body["messages"]
        if messages[0]["role"] == "system":
            out["system"] = [{"type": "text", "text": messages[0]["content"], "cache_control": MARK}]
            messages = messages[1:]
        marked = len(messages) - MARKED_MESSAGES
        out["messages"] = _joined([_message(message, number >= marked) for number, message in enumerate(messages)])
        if body.get("tools"):
            out["tools"] = [{"name": tool["function"]["name"], "description": tool["function"].get("description", ""),
                             "input_schema": tool["function"]["parameters"]} for tool in body["tools"]]
            out["tool_choice"] = {"type": "auto"}
        headers = {"x-api-key": "none", "anthropic-version": "2023-06-01", "anthropic-beta": BETAS}
        return "/anthropic/v1/messages", out, headers

    @staticmethod
    def read(stream):
        text, usage, ended = "", {}, False
        for event in stream:
            kind = event["type"]
            if kind == "message_start":
                usage.update(event["message"]["usage"])
            elif kind == "content_block_delta":
                text += event["delta"].get("text", "")
            elif kind == "message_delta":
                usage.update((name, value) for name, value in event["usage"].items() if value is not None)
            ended = ended or kind == "message_stop"
        if not ended:
            raise HttpError(200, "the stream has no end")
        return text, usage["input_tokens"] + usage["cache_creation_input_tokens"]


class Responses:
    """Nothing is stored, everything is sent again, under one cache key for all sessions."""

    name = "responses"

    @staticmethod
    def request(body, max_tokens):
        out = {"model": "any", "max_output_tokens": max_tokens, "temperature": 0, "stream": True, "store": False,
               "prompt_cache_key": "pck_all", "include": ["reasoning.encrypted_content"],
               "reasoning": {"effort": "medium", "summary": "auto"}}
        messages = body["messages"]
        if messages[0]["role"] == "system":
            out["instructions"], messages = messages[0]["content"], messages[1:]
        out["input"] = [item for message in messages for item in _items(message)]
        if body.get("tools"):
            out |= {"tools": [{"type": "function", "strict": False, **tool["function"]} for tool in body["tools"]],
                    "tool_choice": "auto", "parallel_tool_calls": True}
        return "/v1/responses", out, {}

    @staticmethod
    def read(stream):
        text, usage = "", None
        for event in stream:
            if event["type"] == "response.output_text.delta":
                text += event["delta"]
            elif event["type"] in ("response.completed", "response.incomplete"):
                usage = event["response"]["usage"]
        if usage is None:
            raise HttpError(200, "the stream has no end")
        return text, usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]


ALL = {dialect.name: dialect for dialect in (Chat, Messages, Responses)}


def _calls(message):
    return [(made["id"], made["function"]["name"], made["function"]["arguments"])
            for made in message.get("tool_calls") or ()]


def _message(message, marked):
    """One message of Messages; a tool's result is one of the user."""
    text, role = message.get("content") or "", message["role"]
    if role == "tool":
        blocks = [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text}]
    else:
        blocks = [{"type": "text", "text": text}] if text else []
        blocks += [{"type": "tool_use", "id": identity, "name": name, "input": json.loads(arguments)}
                   for identity, name, arguments in _calls(message)]
    if marked and blocks:
        blocks[-1]["cache_control"] = MARK
    elif role != "tool" and not _calls(message):
        blocks = text
    return {"role": "assistant" if role == "assistant" else "user", "content": blocks}


def _joined(messages):
    """Results of tools that stand next to each other are one message."""
    out = []
    for message in messages:
        last = out[-1] if out else None
        if (last and message["role"] == last["role"] == "user"
                and all(isinstance(each["content"], list) and each["content"][-1]["type"] == "tool_result"
                        for each in (last, message))):
            last["content"] += message["content"]
        else:
            out.append(message)
    return out


def _items(message):
    """The items of Responses that a message is."""
    text, role = message.get("content") or "", message["role"]
    if role == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": text}]
    kind = "output_text" if role == "assistant" else "input_text"
    said = [{"role": role, "content": [{"type": kind, "text": text}]}] if text else []
    return said + [{"type": "function_call", "call_id": identity, "name": name, "arguments": arguments}
                   for identity, name, arguments in _calls(message)]


def send(client, dialect, body, max_tokens):
    """Sends a chat completion's body in a dialect; returns the reply's text and the prompt tokens computed."""
    path, said, headers = dialect.request(body, max_tokens)
    connection, response = client.open("POST", path, said, headers)
    try:
        return dialect.read(_checked(events(response)))
    finally:
        connection.close()


def _checked(stream):
    for event in stream:
        if event.get("error") or event.get("type") in ("error", "response.failed"):
            raise HttpError(200, json.dumps(event))
        yield event
