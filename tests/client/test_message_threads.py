"""Threads of the Messages API (a beta of Anthropic's SDK): the server keeps the conversation under the id of its last
message, and the client sends only what is new. The SDK's tool runner does so by itself."""

import pytest

import lazy
from dialects import Tally, claude, for_messages
from lib.text import Text
from museum import CLASSES, LOOK, SYSTEM, calls, says, stage

pytestmark = pytest.mark.llama
anthropic = lazy.module("anthropic")
SCRIPT = [says(calls(("look_up", {"number": 4}), text="I look."), last="number 4"), says("A vase.", last="vase no. 4"),
          says("Bye.", last="Thank you", times=0)]


@pytest.fixture
def client(tmp_path):
    with stage(tmp_path, SCRIPT) as played, claude(played) as client:
        yield client


def look_up(number: int) -> str:
    """Looks an object up in the catalogue."""
    return f"vase no. {number}"


def text(message):
    return "".join(block.text for block in message.content if block.type == "text")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_tool_runner(client, stream):
    """The SDK's own loop: it runs the tools and sends their results alone."""
    runner = client.beta.messages.tool_runner(model="any", max_tokens=1000, tools=[anthropic.beta_tool(look_up)], stream=stream, messages=[
        {"role": "user", "content": "What is number 4?"}])
    tally, last = Tally(), None
    for turn in runner:
        last = turn.get_final_message() if stream else turn
        tally.add(last.usage)
    assert text(last) == "A vase." and tally.requests == 2
    tally.assert_nothing_twice()


@pytest.mark.parametrize("model", CLASSES)
def test_thread(tmp_path, model):
    """System text and tools are sent once."""
    with stage(tmp_path, SCRIPT, model=model) as played, claude(played) as client:
        thread = client.beta.messages.thread(model="any", max_tokens=1000, system=SYSTEM["content"],
                                             tools=[for_messages(LOOK)])
        tally, first = Tally(), thread.send({"role": "user", "content": "What is number 4?"})
        tally.add(first.usage)
        second = thread.send({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "vase no. 4"}]})
        tally.add(second.usage)
        assert text(second) == "A vase." and thread.previous_message_id == second.id
        for number in range(2):
            with thread.stream({"role": "user", "content": "Thank you! " + Text("thread", number).words(15)}) as stream:
                tally.add(stream.get_final_message().usage)
        tally.assert_nothing_twice()


def test_thread_in_the_body(client):
    """Without the SDK's helper; and the same beginning may be gone on from twice."""
    first = client.beta.messages.create(model="any", max_tokens=100, messages=[{"role": "user", "content": "Thank you!"}],
                                        thread={"type": "create"})
    for _ in range(2):
        second = client.beta.messages.create(model="any", max_tokens=100, messages=[
            {"role": "user", "content": "Thank you again."}], thread={"type": "continue", "previous_message_id": first.id})
        tally = Tally()
        tally.add(first.usage)
        tally.add(second.usage)
        tally.assert_nothing_twice()


def test_a_lost_thread_is_replayed(client):
    """The SDK sends everything again when the server no longer has the conversation: the error says so in its words."""
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.beta.messages.create(model="any", max_tokens=100, messages=[{"role": "user", "content": "Thank you!"}],
                                    thread={"type": "continue", "previous_message_id": "msg_" + "0" * 32})
    assert caught.value.status_code in (400, 404)
    assert caught.value.body["error"]["details"]["error_code"] == "thread_not_found"


def test_a_thread_keeps_its_system_text(client):
    first = client.beta.messages.create(model="any", max_tokens=100, system="Be brief.", thread={"type": "create"},
                                        messages=[{"role": "user", "content": "Thank you!"}])
    with pytest.raises(anthropic.BadRequestError):
        client.beta.messages.create(model="any", max_tokens=100, system="Be long.", messages=[
            {"role": "user", "content": "Thank you!"}], thread={"type": "continue", "previous_message_id": first.id})


@pytest.mark.parametrize("thread", [{"type": "fork"}, {"type": "continue"}, "create"])
def test_malformed(client, thread):
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.post("/v1/messages", cast_to=object, body={
            "model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": "a"}], "thread": thread})
    assert "thread" in caught.value.body["error"]["message"]
