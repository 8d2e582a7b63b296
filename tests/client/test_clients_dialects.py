"""The openai and anthropic SDKs as agents over Responses, Conversations and Messages: sessions with tools over many
turns, streamed and not, on each class of model. By id a client sends only what is new, and exactly that is computed;
where it resends its history, nothing is computed twice either."""

import json

import pytest

from museum import EACH_WAY, SYSTEM, TOOLS, Museum, stage
from conftest import sdk
from dialects import BETAS, Tally, claude, flat, for_messages
from test_clients_openai import SESSION, hold

pytestmark = pytest.mark.llama


class Responses:
    """An agent over Responses. `mode`: "chain" goes on by previous_response_id, "conversation" within one, "resend" sends
    everything with each request, as the server gave it, and stores nothing."""

    def __init__(self, client, mode, stream):
        self.client, self.mode, self.stream = client, mode, stream
        self.museum, self.tally, self.history, self.last = Museum(), Tally(), [], None
        self.conversation = client.conversations.create().id if mode == "conversation" else None

    def _create(self, items):
        options = {"model": "any", "instructions": SYSTEM["content"], "tools": [flat(tool) for tool in TOOLS],
                   "input": items}
        if self.mode == "chain":
            options["previous_response_id"] = self.last
        elif self.mode == "conversation":
            options["conversation"] = self.conversation
        else:
            self.history += items
            options |= {"input": self.history, "store": False}
        if self.stream:
            with self.client.responses.stream(**options) as stream:
                response = stream.get_final_response()
        else:
            response = self.client.responses.create(**options)
        assert response.status == "completed" and response.error is None
        self.last = response.id
        self.history += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        self.tally.add(response.usage)
        return response

    def ask(self, text):
        items = [{"role": "user", "content": text}]
        while True:
            response = self._create(items)
            made = [item for item in response.output if item.type == "function_call"]
            if not made:
                return response.output_text
            items = [{"type": "function_call_output", "call_id": item.call_id,
                      "output": self.museum.run(item.name, json.loads(item.arguments))} for item in made]


class Messages:
    """An agent over Messages, which resends everything. With `marks` as many clients set them: on the system text and the
    last three messages, which are lists of blocks while they are marked and strings afterwards."""

    def __init__(self, client, stream, marks=False):
        self.client, self.stream, self.marks = client, stream, marks
        self.museum, self.tally, self.messages = Museum(), Tally(), []

    def _marked(self):
        out = [dict(message) for message in self.messages]
        for message in out[-3:]:
            blocks = message["content"]
            blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else [dict(block) for block in blocks]
            blocks[-1]["cache_control"] = {"type": "ephemeral"}
            message["content"] = blocks
        return out

    def _create(self):
        system = SYSTEM["content"]
        options = {"model": "any", "max_tokens": 128000, "system": system, "messages": self.messages,
                   "tools": [for_messages(tool) for tool in TOOLS], "timeout": 120}
        if self.marks:
            options |= {"messages": self._marked(), "extra_headers": {"anthropic-beta": BETAS},
                        "system": [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]}
        if self.stream:
            with self.client.messages.stream(**options) as stream:
                message = stream.get_final_message()
        else:
            message = self.client.messages.create(**options)
        self.tally.add(message.usage)
        return message

    def ask(self, text):
        self.messages.append({"role": "user", "content": text})
        while True:
            message = self._create()
            blocks = [block.model_dump(include={"type", "text", "id", "name", "input"}) for block in message.content]
            texts_only = all(block["type"] == "text" for block in blocks)
            said = "".join(block.get("text", "") for block in blocks)
            self.messages.append({"role": "assistant", "content": said if texts_only else blocks})
            made = [block for block in blocks if block["type"] == "tool_use"]
            assert message.stop_reason == ("tool_use" if made else "end_turn")
            if not made:
                return said
            self.messages.append({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": block["id"],
                 "content": self.museum.run(block["name"], block["input"])} for block in made]})


@pytest.mark.parametrize("mode", ["chain", "conversation"])
@EACH_WAY
def test_responses_by_id(tmp_path, mode, stream, model):
    with stage(tmp_path, SESSION, model=model) as played:
        agent = Responses(sdk(played), mode, stream)
        hold(agent)
        assert agent.tally.requests == 8
        agent.tally.assert_nothing_twice()


@EACH_WAY
def test_responses_resent(tmp_path, stream, model):
    with stage(tmp_path, SESSION, model=model) as played:
        agent = Responses(sdk(played), "resend", stream)
        hold(agent)
        agent.tally.assert_nothing_twice(1.02)


@pytest.mark.parametrize("marks", [False, True], ids=["plain", "marked"])
@EACH_WAY
def test_messages(tmp_path, stream, marks, model):
    with stage(tmp_path, SESSION, model=model) as played:
        with claude(played) as client:
            agent = Messages(client, stream, marks)
            hold(agent)
        assert agent.tally.requests == 8
        agent.tally.assert_nothing_twice(1.02)


def test_three_dialects_take_turns_on_one_lane(tmp_path):
    script = [{**entry, "times": 0} for entry in SESSION]
    with stage(tmp_path, script, "-np", "1", model="tiny-hybrid") as played:
        with claude(played) as client:
            agents = [Responses(sdk(played), "chain", True), Messages(client, True, True),
                      Responses(sdk(played), "conversation", False)]
            for text in ("What is number 4?", "Compare 11 and 12, please.", "Lend 12 to the gallery.", "Thank you!"):
                for agent in agents:
                    agent.ask(text)
        # The system text and the tools are the same for all: the first one has paid for them.
        for agent in agents:
            agent.tally.assert_nothing_twice(1.02)
