"""Idle time: with a template that takes the thinking of earlier turns out, a turn costs what is new, also without a session
id. Small models of each kind of state; `make test-long` has larger ones."""

import contextlib
import json
import os
import tempfile

import pytest

from conftest import serve
from lib import server as servers
from ondisk import wait_until

BEYOND_TOKENS = 64  # more than what is new, at most
NEW_TOKENS = 40  # of a question or a result, at most
STEPS = 2
THOUGHT = "<think>\nThis needs some thought that goes on and on before a tool is called, step by step.\n</think>\n\n"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def script():
    """Each question gets a few calls with thoughts, then an answer with one."""
    look = THOUGHT + '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    lines = [{"when": {"last": f"step {i}."}, "reply": look, "times": 0} for i in range(STEPS)]
    lines.append({"when": {"last": "done"}, "reply": THOUGHT + "The sky is blue, and it stays blue.", "times": 0})
    return "".join(json.dumps(line) + "\n" for line in lines)


@contextlib.contextmanager
def server_of(model, *flags):
    template = os.path.join(os.path.dirname(__file__), "thinking.jinja")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(script())
        file.flush()
        path = os.path.join(servers.models_dir(), f"{model}.gguf")
        with serve("-m", path, "-c", "4096", "-np", "2", "--chat-template-file", template, "--script", file.name,
                   "--kv-dir", "none", "--cache-ram", "256", "--metrics", *flags) as running:
            yield running


def wait_until_idle(server):
    wait_until(lambda: server.client.metrics()["hearth_idle_running"] == 0, "nothing is computed ahead any more")


def ask(server, messages):
    return server.client.post("/v1/chat/completions", {"messages": messages, "tools": [TOOL]})


def converse(server, turns):
    """Receipts of the first request of each turn."""
    messages, receipts = [{"role": "system", "content": "You are careful."}], []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}: what is the sky like today? This is step 0."})
        for step in range(STEPS + 1):
            answer = ask(server, messages)
            wait_until_idle(server)
            if step == 0:
                receipts.append(answer["hearth"])
            messages.append(answer["choices"][0]["message"])
            if step < STEPS:
                assert messages[-1]["tool_calls"], answer
                result = f"It is blue, as far as one can see from here, in step {step + 1}." if step + 1 < STEPS else "done"
                messages.append({"role": "tool", "tool_call_id": messages[-1]["tool_calls"][0]["id"], "content": result})
    return receipts


@pytest.mark.parametrize("model", ["tiny", "tiny-hybrid", "tiny-window",
                                   *(pytest.param(model, marks=pytest.mark.long) for model in ("smollm2", "hybrid", "gemma3-270m"))])
def test_turns_cost_what_is_new(model):
    with server_of(model) as server:
        receipts = converse(server, 2)
        assert server.client.metrics()["hearth_idle_tokens_total"] > 0
    for receipt in receipts[1:]:
        assert receipt["computed"] <= NEW_TOKENS + BEYOND_TOKENS, receipts
        assert receipt["computed_idle"] > BEYOND_TOKENS and receipt["divergence"] is None, receipts


def test_it_can_be_switched_off():
    with server_of("tiny", "--idle-compute", "0") as server:
        receipts = converse(server, 2)
        assert server.client.metrics()["hearth_idle_tokens_total"] == 0
    for receipt in receipts[1:]:
        assert "computed_idle" not in receipt and receipt["computed"] > NEW_TOKENS + BEYOND_TOKENS, receipts
