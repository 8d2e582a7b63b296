"""litellm: completion() over both of its providers, and responses()."""

import json
import os

import pytest

import lazy
from dialects import Tally
from museum import SYSTEM, TOOLS, Museum, calls, says, stage
from lib.text import Text

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it would ask the network when it is imported
litellm = lazy.module("litellm", telemetry=False, suppress_debug_info=True)
pytestmark = [pytest.mark.llama, pytest.mark.filterwarnings("ignore")]

SESSION = [
    says(calls(("look_up", {"number": 4}), text="I look it up."), last="What is number 4?"),
    says("It is a vase. " + Text("reply", 1).words(50), last="vase no. 4"),
    says(calls(("lend", {"number": 12, "days": 30, "borrower": "Städtische Galerie"})), last="Lend 12"),
    says("Done. " + Text("reply", 3).words(30), last="lent 12 to Städtische Galerie for 30 days"),
    says("You are welcome.", last="Thank you"),
]
QUESTIONS = {"What is number 4?": "It is a vase.", "Lend 12 to the gallery.": "Done.", "Thank you!": "You are welcome."}
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


class Chat:
    """An agent over litellm.completion()."""

    def __init__(self, played, provider, stream):
        root = f"http://127.0.0.1:{played.port}"
        self.options = {"model": f"{provider}/claude-any", "api_base": root + ("/v1" if provider == "openai" else ""),
                        "api_key": "none", "tools": TOOLS, "max_tokens": 1000, "num_retries": 0, "stream": stream}
        if stream:
            self.options["stream_options"] = {"include_usage": True}
        self.messages, self.museum, self.tally = [SYSTEM], Museum(), Tally()

    def _complete(self):
        reply = litellm.completion(messages=self.messages, **self.options)
        if self.options["stream"]:
            reply = litellm.stream_chunk_builder(list(reply), messages=self.messages)
        details = reply.usage.prompt_tokens_details
        self.tally.add({"prompt_tokens": reply.usage.prompt_tokens, "completion_tokens": reply.usage.completion_tokens,
                        "prompt_tokens_details": {"cached_tokens": (details and details.cached_tokens) or 0}})
        return reply.choices[0].message

    def ask(self, text):
        self.messages.append({"role": "user", "content": text})
        while True:
            message = self._complete()
            self.messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content
            for made in message.tool_calls:
                self.messages.append({"role": "tool", "tool_call_id": made.id, "content": self.museum.run(
                    made.function.name, json.loads(made.function.arguments))})


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@STREAMED
def test_completion(tmp_path, provider, stream):
    with stage(tmp_path, SESSION) as played:
        chat = Chat(played, provider, stream)
        for question, begin in QUESTIONS.items():
            assert chat.ask(question).startswith(begin)
        assert chat.museum.looked == [4] and chat.museum.loans == {12: "Städtische Galerie"}
        assert chat.tally.requests == 5
        chat.tally.assert_nothing_twice(1.02)


@pytest.mark.parametrize("chained", [False, True], ids=["resent", "chained"])
@STREAMED
def test_responses(tmp_path, chained, stream):
    with stage(tmp_path, SESSION) as played:
        options = {"model": "openai/any", "api_base": f"http://127.0.0.1:{played.port}/v1", "api_key": "none",
                   "instructions": SYSTEM["content"], "stream": stream, "num_retries": 0,
                   "tools": [{"type": "function", **tool["function"]} for tool in TOOLS]}
        museum, tally, history, last = Museum(), Tally(), [], None
        for question, begin in QUESTIONS.items():
            items = [{"role": "user", "content": question}]
            while items:
                history += items
                reply = litellm.responses(input=items if chained else history,
                                          previous_response_id=last if chained else None, **options)
                if stream:
                    reply = list(reply)[-1].response
                last = reply.id
                tally.add(reply.usage)
                output = [item if isinstance(item, dict) else item.model_dump(exclude_none=True) for item in reply.output]
                history += output
                items = [{"type": "function_call_output", "call_id": item["call_id"],
                          "output": museum.run(item["name"], json.loads(item["arguments"]))}
                         for item in output if item["type"] == "function_call"]
            assert output[-1]["content"][0]["text"].startswith(begin)
        assert museum.looked == [4] and tally.requests == 5
        tally.assert_nothing_twice(1.0 if chained else 1.02)


def test_structured_output(tmp_path):
    with stage(tmp_path, [says("{\"name\": \"Ada\"}", last="Ada")]) as played:
        reply = litellm.completion(
            model="openai/any", api_base=f"http://127.0.0.1:{played.port}/v1", api_key="none",
            messages=[{"role": "user", "content": "Ada?"}], response_format={"type": "json_object"})
    assert json.loads(reply.choices[0].message.content) == {"name": "Ada"}
