"""Conversations that live in the server, as clients of several dialects see them: a session named by its client, one
conversation carried on in another dialect, restarts and crashes in between, forks, warming, deletion.

Where a conversation goes on by its name, exactly what is new is computed.
"""

import json
import os

import openai
import pytest

from conftest import sdk
from dialects import Tally, claude, cost, flat, for_messages
from lib.text import Text
from museum import SYSTEM, TOOLS, calls, says
from ondisk import disk, serve_disk, state_files, wait_until, wait_written
from test_restart import end

MODELS = ["sim", *(pytest.param(model, marks=pytest.mark.llama) for model in ("tiny", "tiny-hybrid", "tiny-window"))]
DIALECTS = ["chat", "messages", "conversation"]
TERSE = Text("terse").words(150)


def serve_sessions(model, folder, *flags, **options):
    return serve_disk(model, folder / "kv", "--session-db", str(folder / "hearth.db"), *flags, **options)


class Said:
    """A reply: its text, its calls (identity, name, arguments), its usage."""

    def __init__(self, text, made, usage, identity=None):
        self.text, self.calls, self.usage, self.id = text, made, usage, identity


def say(server, dialect, session, new, system=None, tools=None, max_tokens=16):
    """Sends what is new in a session: a text, or a pair of a call's identity and its result."""
    if dialect == "chat":
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": new} if isinstance(new, str)
                        else {"role": "tool", "tool_call_id": new[0], "content": new[1]})
        reply = sdk(server).chat.completions.create(
            model="any", messages=messages, max_tokens=max_tokens, temperature=0, tools=tools or openai.NOT_GIVEN,
            extra_body={"session_id": session})
        assert reply.model_extra["hearth"]["session"] == session
        message = reply.choices[0].message
        return Said(message.content, [(made.id, made.function.name, made.function.arguments)
                                      for made in message.tool_calls or ()], reply.usage)
    if dialect == "messages":
        message = {"role": "user", "content": new if isinstance(new, str) else [
            {"type": "tool_result", "tool_use_id": new[0], "content": new[1]}]}
        options = {"system": system} if system else {}
        if tools:
            options["tools"] = [for_messages(tool) for tool in tools]
        with claude(server) as client:
            reply = client.messages.create(model="any", messages=[message], max_tokens=max_tokens,
                                           extra_headers={"x-session-id": session}, extra_body={"temperature": 0}, **options)
        return Said("".join(block.text for block in reply.content if block.type == "text"),
                    [(block.id, block.name, json.dumps(block.input)) for block in reply.content
                     if block.type == "tool_use"], reply.usage)
    item = {"role": "user", "content": new} if isinstance(new, str) else {"type": "function_call_output",
                                                                          "call_id": new[0], "output": new[1]}
    reply = sdk(server).responses.create(
        model="any", input=[item], conversation=session, max_output_tokens=max_tokens, temperature=0,
        instructions=system or openai.NOT_GIVEN, tools=[flat(tool) for tool in tools or ()])
    return Said(reply.output_text, [(made.call_id, made.name, made.arguments) for made in reply.output
                                    if made.type == "function_call"], reply.usage, reply.id)


def new_session(server):
    return sdk(server).conversations.create().id


# ---- one conversation, several dialects ----

@pytest.mark.parametrize("model", MODELS)
def test_dialects_take_turns(tmp_path, model):
    with serve_sessions(model, tmp_path) as server:
        session, tally = new_session(server), Tally()
        for number, dialect in enumerate(DIALECTS * 2):
            tally.add(say(server, dialect, session, Text("turn", number).words(60 if number == 0 else 15)).usage)
        tally.assert_nothing_twice()
        items = sdk(server).conversations.items.list(session, order="asc", limit=100).data
        assert [item.role for item in items] == ["user", "assistant"] * 6


@pytest.mark.parametrize("first", DIALECTS)
def test_system_text_and_tools_are_the_same_in_all(tmp_path, first):
    """Each client sends them in its own dialect's form; a call that one was given is answered by the next, by the name
    that it has there: call_… is toolu_… in Messages."""
    script = tmp_path / "script.jsonl"
    script.write_text("".join(json.dumps(entry) + "\n" for entry in [
        says(calls(("look_up", {"number": 4}), text="I look."), last="number 4"), says("A vase.", last="vase no. 4"),
        says(calls(("look_up", {"number": 5})), last="number 5"), says("A bowl.", last="bowl no. 5"),
        says("Bye.", last="Thank you")]))
    order = DIALECTS[DIALECTS.index(first):] + DIALECTS[:DIALECTS.index(first)]
    given = {"system": SYSTEM["content"], "tools": TOOLS, "max_tokens": 200}
    with serve_sessions("tiny", tmp_path, "--script", str(script)) as server:
        session, tally = new_session(server), Tally()

        def turn(dialect, new):
            if not isinstance(new, str):
                rest = new[0].partition("_")[2]
                new = (f"toolu_{rest}" if dialect == "messages" else f"call_{rest}", new[1])
            said = say(server, dialect, session, new, **given)
            tally.add(said.usage)
            return said
        asked = turn(order[0], "What is number 4?")
        assert [each[1] for each in asked.calls] == ["look_up"]
        assert turn(order[1], (asked.calls[0][0], "vase no. 4")).text == "A vase."
        asked = turn(order[2], "What is number 5?")
        assert turn(order[0], (asked.calls[0][0], "bowl no. 5")).text == "A bowl."
        assert turn(order[1], "Thank you!").text == "Bye."
        tally.assert_nothing_twice()


# ---- what stands in front, and replies that a client begins ----

MODES = """{%- if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif -%}
{{- '<|im_start|>system\n/' + ('think' if enable_thinking else 'no_think') + '<|im_end|>\n' -}}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""


def test_thinking_that_is_told_in_front(tmp_path):
    """Where a template says at the very beginning whether there is to be thinking, what is known is not what a request
    without thinking begins with."""
    template = tmp_path / "modes.jinja"
    template.write_text(MODES)
    with serve_sessions("sim", tmp_path, "--chat-template-file", str(template)) as server:
        def respond(thinks, previous=None):
            reply = sdk(server).responses.create(
                model="any", input=Text("modes", thinks).words(40), max_output_tokens=8, temperature=0,
                previous_response_id=previous, reasoning=openai.NOT_GIVEN if thinks else {"effort": "none"})
            prompt, computed, _ = cost(reply.usage)
            return reply.id, prompt - computed, prompt
        first, _, length = respond(True)
        assert respond(True, first)[1] > length
        without, reused, _ = respond(False, first)
        assert reused < length // 2
        assert respond(False, without)[1] > length


def test_a_begun_reply_goes_on_in_a_session(tmp_path):
    """What a client begins and what the model adds are one message; a side question may begin its reply, too."""
    with serve_sessions("sim", tmp_path) as server:
        def ask(*messages):
            reply = sdk(server).chat.completions.create(
                model="any", messages=[{"role": role, "content": text} for role, text in messages], max_tokens=8,
                temperature=0, extra_body={"session_id": "begun"})
            return reply.choices[0].message.content, reply.model_extra["hearth"]
        ask(("user", TERSE))
        _, aside = ask(("system", "You write titles."), ("user", "A title?"), ("assistant", "Title:"))
        assert "session" not in aside
        said, receipt = ask(("user", "Count."), ("assistant", "One, two,"))
        assert receipt["session"] == "begun" and sum(receipt["reused"].values()) > 100
        _, receipt = ask(("user", "And then?"))
        assert receipt["computed"] < 60
        prompt = server.client.post("/apply-template", {
            "session_id": "begun", "messages": [{"role": "user", "content": "So?"}]})["prompt"]
        assert "One, two," + said.rstrip() in prompt


def cases(*values):
    """Parameters that begin with a model."""
    return [pytest.param(*each, marks=() if each[0] == "sim" else pytest.mark.llama) for each in values]


@pytest.mark.parametrize("model, how, dialect", cases(
    ("sim", "SIGTERM", "chat"), ("sim", "SIGTERM", "messages"), ("sim", "SIGTERM", "conversation"),
    ("sim", "SIGKILL", "conversation"), ("tiny", "SIGTERM", "conversation"), ("tiny", "SIGKILL", "chat"),
    ("tiny-hybrid", "SIGTERM", "messages"), ("tiny-hybrid", "SIGKILL", "conversation"),
    ("tiny-window", "SIGTERM", "chat"), ("tiny-window", "SIGKILL", "messages")))
def test_restart(tmp_path, model, how, dialect):
    """The same client goes on after a restart, and then one of another dialect after another restart."""
    other = DIALECTS[(DIALECTS.index(dialect) + 1) % 3]
    tally, session = Tally(), None
    for part, now in enumerate((dialect, dialect, other)):
        with serve_sessions(model, tmp_path) as server:
            session = session or new_session(server)
            for number in range(2):
                words = 150 if part == number == 0 else 15
                tally.add(say(server, now, session, Text("restart", part, number).words(words)).usage)
            end(server, how)
    assert tally.requests == 6
    tally.assert_nothing_twice()


@pytest.mark.parametrize("model, how", cases(("sim", "SIGTERM"), ("sim", "SIGKILL"), ("tiny", "SIGTERM"),
                                              ("tiny-hybrid", "SIGKILL"), ("tiny-window", "SIGTERM")))
def test_restart_by_previous_response(tmp_path, model, how):
    """A chain goes on, and a second branch at its middle."""
    tally, branch, ids = Tally(), Tally(), [None]

    def ask(server, number, previous):
        return sdk(server).responses.create(model="any", input=Text("chain", number).words(150 if number == 0 else 15),
                                            previous_response_id=previous, max_output_tokens=16, temperature=0)
    for part in range(2):
        with serve_sessions(model, tmp_path) as server:
            for number in (2 * part, 2 * part + 1):
                response = ask(server, number, ids[-1])
                ids.append(response.id)
                tally.add(response.usage)
                if number < 2:
                    branch.add(response.usage)
            end(server, how)
    with serve_sessions(model, tmp_path) as server:
        branch.add(ask(server, 9, ids[2]).usage)
        assert [item.id for item in sdk(server).responses.input_items.list(ids[-1], limit=100)]
    tally.assert_nothing_twice()
    branch.assert_nothing_twice()


@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_whole_history_or_only_what_is_new(tmp_path, dialect):
    """A client of a session may send either; the conversation and its cost are the same."""
    with serve_sessions("sim", tmp_path) as server:
        history, tally, asked = [], Tally(), ["One. " + TERSE, "Two.", "Three.", "Four."]
        for number, text in enumerate(asked):
            history.append({"role": "user", "content": text})
            sent = history if number % 2 else history[-1:]
            if dialect == "chat":
                reply = sdk(server).chat.completions.create(model="any", messages=sent, max_tokens=16, temperature=0,
                                                            extra_body={"session_id": "work"})
                said = reply.choices[0].message.content
            else:
                with claude(server) as client:
                    reply = client.messages.create(model="any", messages=sent, max_tokens=16,
                                                   extra_body={"temperature": 0, "session_id": "work"})
                said = reply.content[0].text
            history.append({"role": "assistant", "content": said})
            tally.add(reply.usage)
        tally.assert_nothing_twice()
        items = sdk(server).conversations.items.list("work", order="asc", limit=100).data
        assert [item.content[0].text for item in items] == [message["content"] for message in history]


def test_another_client_reads_and_goes_on(tmp_path):
    """It fetches the items of a conversation and sends them as its own history."""
    with serve_sessions("sim", tmp_path) as server:
        session, tally = new_session(server), Tally()
        tally.add(say(server, "conversation", session, "One. " + TERSE).usage)
        tally.add(say(server, "conversation", session, "Two.").usage)
        items = sdk(server).conversations.items.list(session, order="asc").data
        messages = [{"role": item.role, "content": item.content[0].text} for item in items]
        messages.append({"role": "user", "content": "Three."})
        tally.add(sdk(server).chat.completions.create(model="any", messages=messages, max_tokens=16).usage)
        tally.assert_nothing_twice(1.02)


# ---- /v1/sessions ----

@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with serve_sessions("sim", tmp_path_factory.mktemp("sessions")) as server:
        yield server


def api(server):
    return server.client


def test_a_session_is_a_conversation(running):
    say(running, "chat", "both", "Hello.")
    session = api(running).get("/v1/sessions/both")
    assert session["id"] == "both" and session["turns"] == 1 and session["tokens"] > 0
    assert sdk(running).conversations.retrieve("both").id == "both"
    assert "both" in [each["id"] for each in api(running).get("/v1/sessions")["data"]]


def test_the_receipt_names_session_and_turn(running):
    reply = sdk(running).chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello."}],
                                                 max_tokens=4, extra_headers={"x-session-id": "named"})
    receipt = reply.model_extra["hearth"]
    assert receipt["session"] == "named"
    assert sdk(running).responses.retrieve("resp_" + receipt["turn"].partition("_")[2]).id


def test_fork(running):
    """Both lines go on; each costs what is new in it."""
    tallies = [Tally(), Tally()]
    first = say(running, "chat", "trunk", TERSE)
    fork = api(running).post("/v1/sessions/trunk/fork", {"name": "branch"})
    assert fork["id"] == "branch" and fork["turns"] == 1
    for tally in tallies:
        tally.add(first.usage)
    for number in range(2):
        for tally, session, dialect in zip(tallies, ("trunk", "branch"), ("chat", "messages")):
            tally.add(say(running, dialect, session, Text(session, number).words(15)).usage)
    for tally in tallies:
        tally.assert_nothing_twice()
    assert [api(running).get(f"/v1/sessions/{name}")["turns"] for name in ("trunk", "branch")] == [3, 3]


def test_a_side_question_leaves_the_session_alone(running):
    say(running, "chat", "main", "Plan a trip.", system="You plan trips.")
    sdk(running).chat.completions.create(model="any", max_tokens=4, extra_body={"session_id": "main"}, messages=[
        {"role": "system", "content": "You write titles."}, {"role": "user", "content": "Plan a trip. Its title?"}])
    assert api(running).get("/v1/sessions/main")["turns"] == 1


def test_names(running):
    """Any text is a name; in a path it is quoted."""
    say(running, "chat", "Reise nach Köln / 2", "Hello.")
    assert api(running).get("/v1/sessions/Reise%20nach%20K%C3%B6ln%20%2F%202")["turns"] == 1
    for bad in ("", "a\u0007b", "x" * 300):
        with pytest.raises(openai.BadRequestError) as caught:
            sdk(running).chat.completions.create(model="any", messages=[{"role": "user", "content": "a"}],
                                                 extra_body={"session_id": bad})
        assert caught.value.body["param"] == "session_id"


def test_warm(tmp_path):
    """After a restart a session is warmed before its client comes back."""
    tally = Tally()
    with serve_sessions("sim", tmp_path) as server:
        tally.add(say(server, "chat", "warm", TERSE).usage)
        end(server, "SIGTERM")
    with serve_sessions("sim", tmp_path) as server:
        warm = api(server).post("/v1/sessions/warm/warm", {})
        assert warm["object"] == "session.warm" and warm["tokens"] == tally.known
        tally.add(say(server, "chat", "warm", "Go on.").usage)
        tally.assert_nothing_twice()


def test_where_its_state_is(tmp_path):
    """In the engine, in RAM, on disk, nowhere: told without bringing it back, and while every lane is busy."""
    def state(server, name="one"):
        told = api(server).get(f"/v1/sessions/{name}/state")
        assert sum(told["there"].values()) + told["computed"] == told["tokens"]
        return told

    with serve_sessions("sim", tmp_path) as server:
        usage = say(server, "chat", "one", TERSE).usage
        told = state(server)
        assert told["tokens"] == usage.prompt_tokens + usage.completion_tokens
        assert told["there"]["live"] == told["tokens"] - 1 and told["computed"] == 1  # the last one was only sampled
        assert told["read_bytes"] == told["restore_ms"] == 0
        api(server).post("/v1/sessions/one/fork", {"name": "fork"})
        assert state(server, "fork")["there"] == told["there"]
        for other in ("two", "three"):
            say(server, "chat", other, Text(other).words(150))
        assert state(server)["there"]["ram"] > told["tokens"] * 0.9
        kept = api(server).get("/requests")["data"]
        assert len(kept) == 3 and not any("state" in one["endpoint"] for one in kept)
        with pytest.raises(Exception, match="404"):
            state(server, "unknown")
        end(server, "SIGTERM")
    with serve_sessions("sim", tmp_path) as server:
        wait_until(lambda: state(server)["there"]["disk"], "the cache has been told what the scan has found")
        for _ in range(2):  # looking at it does not bring it back
            told = state(server)
            assert told["there"]["disk"] > told["tokens"] * 0.9 and told["read_bytes"] > 0 and told["restore_ms"] > 0
        end(server, "SIGTERM")
    for path in state_files(tmp_path / "kv"):
        os.unlink(path)
    with serve_sessions("sim", tmp_path, "-np", "1") as server:
        with sdk(server).chat.completions.create(
                model="any", messages=[{"role": "user", "content": "Tell me all."}], max_tokens=4000, stream=True,
                extra_body={"ignore_eos": True}) as busy:
            next(iter(busy))
            told = state(server)
            assert told["computed"] > told["tokens"] * 0.9 and told["prefill_ms"] > 0
            assert server.client.metrics()["hearth_lanes_busy"] == 1


def test_no_tokens_is_a_warm_up(running):
    messages = [{"role": "user", "content": Text("no tokens").words(100)}]
    none = sdk(running).chat.completions.create(model="any", messages=messages, max_tokens=0)
    assert not none.choices[0].message.content and none.usage.completion_tokens == 0
    again = sdk(running).chat.completions.create(model="any", messages=messages, max_tokens=4)
    assert cost(again.usage)[1] <= 2


@pytest.mark.parametrize("model", ["sim", pytest.param("tiny", marks=pytest.mark.llama)])
def test_deletion_takes_the_state_along(tmp_path, model):
    """What nobody else shares leaves the disk; a second session over the same beginning keeps that."""
    shared = Text("shared").words(600)
    with serve_sessions(model, tmp_path) as server:
        tally = Tally()
        tally.add(say(server, "chat", "stays", shared).usage)
        say(server, "chat", "goes", shared)
        wait_written(server)
        before = set(state_files(tmp_path / "kv"))
        say(server, "chat", "goes", Text("goes").words(700))
        wait_written(server)
        more = set(state_files(tmp_path / "kv")) - before
        assert more and disk(server)
        sdk(server).conversations.delete("goes")
        # The page in which the two part holds what both need.
        wait_until(lambda: len(more & set(state_files(tmp_path / "kv"))) <= 1, "its pages are gone")
        tally.add(say(server, "chat", "stays", "Go on.").usage)
        tally.assert_nothing_twice()


def test_deleted_after_a_restart(tmp_path):
    """What is deleted stays deleted."""
    with serve_sessions("sim", tmp_path) as server:
        made = say(server, "conversation", new_session(server), "Hello.")
        sdk(server).responses.delete(made.id)
        say(server, "chat", "gone", "Hello.")
        sdk(server).conversations.delete("gone")
        end(server, "SIGKILL")
    with serve_sessions("sim", tmp_path) as server:
        with pytest.raises(openai.NotFoundError):
            sdk(server).responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            sdk(server).conversations.retrieve("gone")


def test_tenants_do_not_see_each_other(tmp_path):
    """With two keys, each has sessions of its own, whatever they are called."""
    with serve_sessions("sim", tmp_path, "--api-key", "ada,boris") as server:
        ada, boris = (sdk(server, api_key=key) for key in ("ada", "boris"))
        made = ada.responses.create(model="any", input="Hello.", max_output_tokens=8)
        conversation = ada.conversations.create()
        for call in (lambda: boris.responses.retrieve(made.id), lambda: boris.conversations.retrieve(conversation.id),
                     lambda: boris.responses.delete(made.id), lambda: boris.conversations.delete(conversation.id)):
            with pytest.raises(openai.NotFoundError):
                call()
        with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
            boris.responses.create(model="any", input="Go on.", previous_response_id=made.id)
        assert ada.responses.retrieve(made.id).id == made.id

