"""Requests of every dialect as chat completions, by value: for lib/ledger.py, which counts what is new in them.

What two requests have in common must not depend on how a client writes it down: a string or a list of blocks, keys in
another order, a mark for the cache, an effort that no template prints. So a body is read as a person would read it, and
only what is said is kept: system text, tools, messages, calls with their arguments as values, results.

A tool that is loaded late (`defer_loading`) stands where the reference to it stands, not at the head.
"""

import json

BILLING = "x-anthropic-billing-header:"


def dialect(path):
    """Of a request's path: chat, messages, responses, or None for what asks no model."""
    path = path.split("?")[0]
    for end, name in (("/chat/completions", "chat"), ("/v1/messages", "messages"), ("/responses", "responses")):
        if path.endswith(end):
            return name
    return None


def body(path, request):
    """`messages` and `tools` of a request."""
    return {"chat": _of_chat, "messages": _of_messages, "responses": _of_responses}[dialect(path)](request)


def reply(path, answer):
    """The message that an answer is, as its client will send it back: a chat completion's from whole_reply(), the
    others' from whole_events(), of lib/record.py."""
    kind = dialect(path)
    if kind == "chat":
        return _chat_message(answer["message"])
    said = (_message({"role": "assistant", "content": answer["content"]}, {}) if kind == "messages"
            else _items(answer["output"]))
    return said[0] if said else {"role": "assistant", "content": ""}


def _ordered(value):
    """The same value, with keys in order."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [_ordered(each) for each in value] if isinstance(value, list) else value


def _function(name, description, parameters):
    return {"type": "function", "function": {"name": name, "description": description or "",
                                             "parameters": _ordered(parameters or {"type": "object", "properties": {}})}}


def _call(identity, name, arguments):
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            arguments = {"input": arguments}
    return {"id": identity, "type": "function",
            "function": {"name": name, "arguments": json.dumps(_ordered(arguments), ensure_ascii=False)}}


def _body(messages, tools):
    """Without messages that say nothing; calls are numbered in their order."""
    messages = [message for message in messages if message.get("tool_calls") or message["role"] == "tool"
                or message["content"]]
    numbers = {}
    for message in messages:
        for made in message.get("tool_calls") or ():
            made["id"] = numbers[made["id"]] = f"call{len(numbers):05}"
        if message["role"] == "tool":
            message["tool_call_id"] = numbers.get(message["tool_call_id"], "call")
    return {"messages": messages, **({"tools": tools} if tools else {})}


def _text(content):
    """The text of a content: what is not text is named by its type."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] if "text" in part else f"[{part.get('type')}]" for part in content)


def _system(text):
    return "\n".join(line for line in text.split("\n") if not line.startswith(BILLING)).strip("\n")


# ---- chat completions

def _chat_message(message):
    text = _text(message.get("content"))
    out = {"role": message["role"], "content": _system(text) if message["role"] in ("system", "developer") else text}
    if message.get("tool_calls"):
        out["tool_calls"] = [_call(made["id"], made["function"]["name"], made["function"]["arguments"])
                             for made in message["tool_calls"]]
    if message["role"] == "tool":
        out["tool_call_id"] = message["tool_call_id"]
    if message.get("reasoning_content"):
        out["reasoning_content"] = message["reasoning_content"]
    return out


def _of_chat(request):
    tools = [_function(tool["function"]["name"], tool["function"].get("description"), tool["function"].get("parameters"))
             for tool in request.get("tools") or () if tool.get("type") == "function"]
    return {**_body([_chat_message(message) for message in request["messages"]], tools),
            **{name: request[name] for name in ("chat_template_kwargs",) if request.get(name)}}


# ---- Messages

def _named(tool):
    return _function(tool["name"], tool.get("description"), tool["input_schema"])


def _result(content, deferred):
    """A tool's result; a reference in it is the definition of the tool."""
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(json.dumps(deferred.get(part["tool_name"]), ensure_ascii=False) + "\n"
                   if part.get("type") == "tool_reference" else _text([part]) for part in content)


def _message(message, deferred):
    """The messages that one of Messages is: results of tools first, then text."""
    role, content = message["role"], message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    results = [block for block in blocks if block["type"] == "tool_result"]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    text = _text([block for block in blocks
                  if block["type"] not in ("tool_result", "tool_use", "thinking", "redacted_thinking")])
    out = [{"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result(block.get("content"), deferred)}
           for block in results]
    if text or calls or not results:
        said = {"role": role, "content": _system(text) if role == "system" else text}
        out.append({**said, "tool_calls": [_call(block["id"], block["name"], block["input"])
                                               for block in calls]} if calls else said)
    return out


def _of_messages(request):
    tools = [tool for tool in request.get("tools") or () if "input_schema" in tool]
    deferred = {tool["name"]: _named(tool) for tool in tools if tool.get("defer_loading")}
    system = request.get("system") or ""
    texts = [system] if isinstance(system, str) else [block["text"] for block in system]
    messages = [{"role": "system", "content": _system("\n".join(texts))}]
    for message in request["messages"]:
        messages += _message(message, deferred)
    return _body(messages, [_named(tool) for tool in tools if not tool.get("defer_loading")])


# ---- Responses

def _items(items):
    """The messages that items are: what the model says in a row is one message."""
    out = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            text = _text(item.get("content"))
            if item["role"] == "assistant":
                _joined(out, text)
            elif text:
                out.append({"role": item["role"], "content": text})
        elif kind in ("function_call", "custom_tool_call"):
            _joined(out, "")
            arguments = item["arguments"] if kind == "function_call" else {"input": item["input"]}
            made = _call(item["call_id"], item["name"], arguments)
            out[-1].setdefault("tool_calls", []).append(made)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            out.append({"role": "tool", "tool_call_id": item["call_id"], "content": _text(item["output"])})
    return out


def _joined(out, text):
    if out and out[-1]["role"] == "assistant":
        out[-1]["content"] += text
    else:
        out.append({"role": "assistant", "content": text})


def _of_responses(request):
    given, tools = request["input"], []
    for tool in request.get("tools") or ():
        inside = tool["tools"] if tool["type"] == "namespace" else [tool]
        tools += [_function(each["name"], each.get("description"), each.get("parameters"))
                  for each in inside if each["type"] in ("function", "custom")]
    messages = [{"role": "system", "content": request.get("instructions") or ""}]
    messages += _items([{"role": "user", "content": given}] if isinstance(given, str) else given)
    return _body(messages, tools)
