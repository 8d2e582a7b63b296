"""The openai SDK as an agent: sessions with tools over many turns, structured replies, reasoning.

In the scripted sessions the history holds the server's own replies, re-printed as agents do: nothing may be computed
twice. Where SmolLM2 speaks for itself, calls are forced.
"""

import json
import typing

import openai
import pydantic
import pytest

from museum import CLASSES, EACH_WAY, SYSTEM, THINKER, TOOLS, Museum, calls, says, stage, words
from conftest import sdk
from lib.text import Text


class Agent:
    """A loop as everybody writes it: ask, run the calls, ask again, until there are none."""

    def __init__(self, client, stream, tools=None, **options):
        self.client, self.stream, self.tools, self.options = client, stream, tools or TOOLS, options
        self.messages, self.museum = [SYSTEM], Museum()

    def ask(self, text):
        self.messages.append({"role": "user", "content": text})
        while True:
            request = {"model": "any", "messages": self.messages, "tools": self.tools, **self.options}
            content, made = self._streamed(request) if self.stream else self._whole(request)
            # Printed anew, as clients do: keys sorted, compact, no white space around the content.
            message = {"role": "assistant", "content": content.strip()}
            if made:
                message["tool_calls"] = [
                    {"id": identity, "type": "function", "function": {
                        "name": name, "arguments": json.dumps(json.loads(arguments), sort_keys=True,
                                                              separators=(",", ":"), ensure_ascii=True)}}
                    for identity, name, arguments in made]
            self.messages.append(message)
            if not made:
                return content
            for identity, name, arguments in made:
                self.messages.append({"role": "tool", "tool_call_id": identity,
                                      "content": self.museum.run(name, json.loads(arguments))})

    def _whole(self, request):
        choice = self.client.chat.completions.create(**request).choices[0]
        made = [(each.id, each.function.name, each.function.arguments) for each in choice.message.tool_calls or ()]
        assert choice.finish_reason == ("tool_calls" if made else "stop")
        return choice.message.content or "", made

    def _streamed(self, request):
        content, made, finish = "", [], None
        for chunk in self.client.chat.completions.create(**request, stream=True):
            for choice in chunk.choices:
                content += choice.delta.content or ""
                finish = choice.finish_reason or finish
                for piece in choice.delta.tool_calls or ():
                    if piece.index == len(made):
                        assert piece.id and piece.function.name
                        made.append([piece.id, piece.function.name, ""])
                    else:
                        assert piece.index == len(made) - 1 and not piece.function.name
                    made[piece.index][2] += piece.function.arguments or ""
        assert finish == ("tool_calls" if made else "stop")
        return content, [tuple(each) for each in made]


SESSION = [
    says(calls(("look_up", {"number": 4}), text="I look it up."), last="What is number 4?"),
    says("It is a vase. " + Text("reply", 1).words(50), last="vase no. 4"),
    says(calls(("look_up", {"number": 11}), ("look_up", {"number": 12}), ("note", {"text": "über 11 & 12: \"ähnlich\""})),
         last="Compare 11 and 12"),
    says("They are alike. " + Text("reply", 2).words(50), last="note 1 written"),
    says(calls(("lend", {"number": 12, "days": 30, "borrower": "Städtische Galerie"})), last="Lend 12"),
    says(calls(("note", {"text": "12 is away"})), last="lent 12 to Städtische Galerie for 30 days"),
    says("Done. " + Text("reply", 3).words(30), last="note 2 written"),
    says("You are welcome.", last="Thank you"),
]


def hold(agent):
    assert agent.ask("What is number 4?").startswith("It is a vase.")
    assert agent.ask("Compare 11 and 12, please.").startswith("They are alike.")
    assert agent.ask("Lend 12 to the gallery.").startswith("Done.")
    assert agent.ask("Thank you!") == "You are welcome."
    assert agent.museum.looked == [4, 11, 12]
    assert agent.museum.notes == ["über 11 & 12: \"ähnlich\"", "12 is away"]
    assert agent.museum.loans == {12: "Städtische Galerie"}


@EACH_WAY
def test_session(tmp_path, stream, model):
    with stage(tmp_path, SESSION, model=model) as played:
        hold(Agent(sdk(played), stream))
        assert len(played.chats()) == 8
        played.assert_nothing_twice()


@pytest.mark.parametrize("model", CLASSES)
def test_three_sessions_take_turns_on_one_lane(tmp_path, model):
    """Each message of one is followed by those of the others, with a request of another kind in between."""
    script = [{**entry, "times": 0} for entry in SESSION] + [says("A title", tools=False, times=0)]
    with stage(tmp_path, script, "-np", "1", model=model) as played:
        client = sdk(played)
        agents = [Agent(client, stream=number == 1, user=f"{number}") for number in range(3)]
        for number, agent in enumerate(agents):
            agent.messages = [SYSTEM, {"role": "user", "content": f"I am visitor {number}. " + Text("v", number).words(60)},
                              {"role": "assistant", "content": "Welcome."}]
        for text in ("What is number 4?", "Compare 11 and 12, please.", "Lend 12 to the gallery.", "Thank you!"):
            for agent in agents:
                agent.ask(text)
                client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Title: " + text}])
        assert len(played.chats()) == 3 * 8 + 12
        played.assert_nothing_twice()


@pytest.mark.parametrize("model", CLASSES)
def test_a_removed_nudge_costs_what_follows_it(tmp_path, model):
    script = [says("I edited it. " + Text("edit").words(40), last="Edit"),
              says("I checked. " + Text("check").words(40), last="[System: You edited code"),
              says("All fine.", last="Next")]
    with stage(tmp_path, script, model=model) as played:
        agent = Agent(sdk(played), stream=True)
        agent.ask("Edit the file.")
        agent.ask("[System: You edited code. " + Text("nudge").words(80) + "]")
        del agent.messages[-2:]
        agent.ask("Next, please.")
        played.assert_nothing_twice()


def test_whole_sdk_objects_come_back(tmp_path):
    """The SDK's message objects are sent back as they are: with nulls, refusal, annotations, ids."""
    script = [says(calls(("look_up", {"number": 4}), text="I look."), last="number 4"), says("A vase.", last="vase no. 4")]
    with stage(tmp_path, script) as played:
        client, museum = sdk(played), Museum()
        messages = [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "What is number 4?"}]}]
        first = client.chat.completions.create(model="any", messages=messages, tools=TOOLS).choices[0].message
        messages[1] = {"role": "user", "content": "What is number 4?"}
        messages.append({**first.model_dump(), "annotations": [], "audio": None})
        made = first.tool_calls[0]
        messages.append({"role": "tool", "tool_call_id": made.id, "name": None,
                         "content": [{"type": "text", "text": museum.run("look_up", json.loads(made.function.arguments))}]})
        assert client.chat.completions.create(model="any", messages=messages, tools=TOOLS).choices[0].message.content \
            == "A vase."
        played.assert_nothing_twice()


def test_stream_helper_puts_calls_together(tmp_path):
    script = [says(calls(("look_up", {"number": 7}), ("note", {"text": "seven"})), last="seven")]
    with stage(tmp_path, script) as played:
        with sdk(played).chat.completions.stream(model="any", messages=[{"role": "user", "content": "Number seven?"}],
                                                 tools=TOOLS) as stream:
            kinds = {event.type for event in stream}
            made = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.done" in kinds
    assert [each.function.name for each in made] == ["look_up", "note"]
    assert [json.loads(each.function.arguments) for each in made] == [{"number": 7}, {"text": "seven"}]


# ---- a model speaks for itself: calls are forced, replies have a schema ----

@pytest.mark.llama
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_forced_calls_over_turns(server, model, stream):
    """The model is made to call; what it got is in the history of the next turn, and is not computed again."""
    client, messages, computed = sdk(server), [SYSTEM], []
    for number in range(4):
        messages.append({"role": "user", "content": f"Lend object {number + 3} to the town for {10 * number + 7} days."})
        request = {"model": model, "messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 120,
                   "tool_choice": {"type": "function", "function": {"name": "lend"}}}
        if stream:
            with client.chat.completions.stream(**request, stream_options={"include_usage": True}) as streamed:
                reply = streamed.get_final_completion()
        else:
            reply = client.chat.completions.create(**request)
        made = reply.choices[0].message.tool_calls
        assert [each.function.name for each in made] == ["lend"]
        arguments = json.loads(made[0].function.arguments)
        assert set(arguments) == {"number", "borrower", "days"}
        assert type(arguments["number"]) is type(arguments["days"]) is int
        messages.append({"role": "assistant", "tool_calls": [
            {"id": made[0].id, "type": "function",
             "function": {"name": "lend", "arguments": json.dumps(arguments, sort_keys=True)}}]})
        messages.append({"role": "tool", "tool_call_id": made[0].id, "content": Museum().run("lend", arguments)})
        computed.append(reply.usage.prompt_tokens - reply.usage.prompt_tokens_details.cached_tokens)
    assert max(computed[1:]) < 80, computed


@pytest.mark.language
@pytest.mark.llama
def test_required_calls_some_tool(chat):
    reply = chat("Write a note that says hello.", tools=TOOLS, tool_choice="required", max_tokens=160)
    made = reply.choices[0].message.tool_calls
    assert made and {each.function.name for each in made} <= {"look_up", "lend", "note"}
    for each in made:
        assert isinstance(json.loads(each.function.arguments), dict)
    assert reply.choices[0].finish_reason in ("tool_calls", "stop")


@pytest.mark.llama
def test_one_call_at_a_time(chat):
    made = chat("Look up 1 and look up 2.", tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
                max_tokens=160).choices[0].message.tool_calls
    assert len(made) == 1


class Visitor(pydantic.BaseModel):
    name: str
    age: int
    ticket: typing.Literal["adult", "child"]


class Visit(pydantic.BaseModel):
    visitors: list[Visitor]
    guided: bool


@pytest.mark.llama
def test_parse_into_pydantic(client, model):
    parsed = client.chat.completions.parse(
        model=model, temperature=0, max_tokens=300, response_format=Visit,
        messages=[{"role": "user", "content": "Ada (34) and her son Boris (7) want a guided tour."}])
    visit = parsed.choices[0].message.parsed
    assert isinstance(visit, Visit)
    assert parsed.choices[0].finish_reason == "stop"


class Lookup(pydantic.BaseModel):
    """Looks up an object."""
    number: int


@pytest.mark.llama
def test_pydantic_tools(client, model):
    parsed = client.chat.completions.parse(
        model=model, temperature=0, max_tokens=100, tools=[openai.pydantic_function_tool(Lookup)], tool_choice="required",
        messages=[{"role": "user", "content": "What is object 12?"}])
    made = parsed.choices[0].message.tool_calls[0]
    assert made.function.name == "Lookup"
    assert isinstance(made.function.parsed_arguments, Lookup)


# ---- reasoning: a template with thinking, over the same model ----

THOUGHTS = [
    says("<think>\nThe visitor wants number 4.\n</think>\n\n" + calls(("look_up", {"number": 4})), last="What is number 4?"),
    says("<think>\nIt is a vase, then.\n</think>\n\nA vase. " + Text("thought", 1).words(30), last="vase no. 4"),
    says("<think>\nPolite.\n</think>\n\nYou are welcome.", last="Thank you"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_reasoning_is_apart_and_never_missed(tmp_path, stream):
    """Reasoning comes beside the content. The agent drops it, as agents do; within a turn that costs nothing, and in
    the next turn at most the replies whose thinking the template takes out."""
    with stage(tmp_path, THOUGHTS, "--chat-template-file", THINKER) as played:
        agent = Agent(sdk(played), stream)
        assert agent.ask("What is number 4?").strip().startswith("A vase.")
        assert agent.museum.looked == [4]
        assert agent.ask("Thank you!").strip() == "You are welcome."
        replies = played.replies()
        assert [reply["message"]["reasoning_content"].strip() for reply in replies] \
            == ["The visitor wants number 4.", "It is a vase, then.", "Polite."]
        assert not any("think>" in (reply["message"]["content"] or "") for reply in replies)
        loop = replies[1]
        assert loop["hearth"]["computed"] < 60 + len(words(agent.messages[3]["content"])) * 3


def test_keep_thinking(tmp_path):
    """With --keep-thinking the history stays as it was sampled."""
    with stage(tmp_path, THOUGHTS, "--chat-template-file", THINKER, "--keep-thinking") as played:
        agent = Agent(sdk(played), stream=True)
        agent.ask("What is number 4?")
        agent.ask("Thank you!")
        assert played.replies()[-1]["hearth"]["computed"] < 25
