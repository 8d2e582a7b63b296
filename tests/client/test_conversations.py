"""Probes of the Conversations API with the official SDK: conversations, their items, and responses within them."""

import openai
import pytest

from museum import LOOK, calls, says, stage, tiny_flags
from conftest import sdk, serve
from dialects import chain, flat
from lib.text import Text

pytestmark = pytest.mark.llama
GONE = "conv_" + "0" * 32


@pytest.fixture(scope="module")
def client():
    with serve(*tiny_flags(), "-np", "4", "--cache-ram", "1024") as running:
        with sdk(running) as client:
            yield client


@pytest.fixture
def respond(client):
    def create(what, **options):
        return client.responses.create(**{"model": "any", "input": what, "temperature": 0, "max_output_tokens": 16,
                                          **options})
    return create


def user(text):
    return {"type": "message", "role": "user", "content": text}


def texts(items):
    return [item.content[0].text for item in items]


def error_of(status, call, *arguments, **options):
    with pytest.raises(openai.APIStatusError) as caught:
        call(*arguments, **options)
    error = caught.value.body
    assert caught.value.status_code == status, error
    assert error["message"] and {"param", "code"} <= error.keys()
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    return error


def test_create(client):
    made = client.conversations.create()
    assert made.id.startswith("conv_") and made.object == "conversation" and made.created_at > 1_700_000_000
    assert made.metadata == {} and client.conversations.items.list(made.id).data == []


def test_create_with_metadata_and_items(client):
    made = client.conversations.create(metadata={"topic": "vases"}, items=[user("Hello."), {
        "role": "assistant", "content": "Hi."}])
    assert made.metadata == {"topic": "vases"}
    items = client.conversations.items.list(made.id, order="asc").data
    assert texts(items) == ["Hello.", "Hi."] and [item.role for item in items] == ["user", "assistant"]
    assert [item.type for item in items] == ["message"] * 2 and [item.status for item in items] == ["completed"] * 2


def test_retrieve(client):
    made = client.conversations.create(metadata={"topic": "vases"})
    assert client.conversations.retrieve(made.id) == made


def test_update(client):
    made = client.conversations.create(metadata={"topic": "vases", "guide": "Ada"})
    assert client.conversations.update(made.id, metadata={"topic": "bowls"}).metadata == {"topic": "bowls"}
    assert client.conversations.retrieve(made.id).metadata == {"topic": "bowls"}


def test_delete(client):
    made = client.conversations.create(items=[user("Hello.")])
    deleted = client.conversations.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
    error_of(404, client.conversations.retrieve, made.id)
    error_of(404, client.conversations.delete, made.id)
    error_of(404, client.conversations.items.list, made.id)


@pytest.mark.parametrize("identity", [GONE, "conv_1", "no-such-thing", "conv_" + "g" * 32])
def test_unknown(client, respond, identity):
    error_of(404, client.conversations.retrieve, identity)
    error_of(404, client.conversations.items.create, identity, items=[user("a")])
    error_of(404, respond, "a", conversation=identity)


def test_items_create(client):
    made = client.conversations.create()
    added = client.conversations.items.create(made.id, items=[user("First."), user("Second.")])
    assert added.object == "list" and texts(added.data) == ["First.", "Second."] and added.has_more is False
    assert (added.first_id, added.last_id) == (added.data[0].id, added.data[1].id)
    client.conversations.items.create(made.id, items=[user("Third.")])
    assert texts(client.conversations.items.list(made.id, order="asc")) == ["First.", "Second.", "Third."]


def test_items_retrieve(client):
    made = client.conversations.create(items=[user("First."), user("Second.")])
    second = client.conversations.items.list(made.id).data[0]
    assert client.conversations.items.retrieve(second.id, conversation_id=made.id) == second
    assert second.content[0].text == "Second."
    error_of(404, client.conversations.items.retrieve, "msg_gone", conversation_id=made.id)


def test_items_of_another_conversation_are_not_found(client):
    made, other = client.conversations.create(items=[user("First.")]), client.conversations.create()
    item = client.conversations.items.list(made.id).data[0]
    error_of(404, client.conversations.items.retrieve, item.id, conversation_id=other.id)
    error_of(404, client.conversations.items.delete, item.id, conversation_id=other.id)


def test_items_delete(client):
    made = client.conversations.create(items=[user("First."), user("Second."), user("Third.")])
    second = client.conversations.items.list(made.id, order="asc").data[1]
    assert client.conversations.items.delete(second.id, conversation_id=made.id).id == made.id
    assert texts(client.conversations.items.list(made.id, order="asc")) == ["First.", "Third."]
    error_of(404, client.conversations.items.retrieve, second.id, conversation_id=made.id)


def test_items_in_pages(client):
    made = client.conversations.create(items=[user(f"Number {number}.") for number in range(7)])
    page = client.conversations.items.list(made.id, order="asc", limit=3)
    assert texts(page.data) == ["Number 0.", "Number 1.", "Number 2."] and page.has_more and page.last_id == page.data[-1].id
    after = client.conversations.items.list(made.id, order="asc", after=page.last_id, limit=2)
    assert texts(after.data) == ["Number 3.", "Number 4."]
    assert texts(client.conversations.items.list(made.id, limit=2)) == [f"Number {number}." for number in range(6, -1, -1)]


def test_bad_items(client):
    made = client.conversations.create()
    for items in ([{"type": 7}], [user(f"{number}") for number in range(21)]):
        error_of(400, client.conversations.items.create, made.id, items=items)
    assert client.conversations.items.list(made.id).data == []


# ---- responses within a conversation ----

@pytest.mark.parametrize("form", ["id", "object"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_responses_go_on(client, respond, form, stream):
    """Only what is new is sent, and only that is computed; items of both sides are in the conversation."""
    made, responses = client.conversations.create(), []
    for number in range(4):
        response = respond(Text("conversation", number).words(100 if number == 0 else 15), stream=stream,
                           conversation=made.id if form == "id" else {"id": made.id})
        responses.append(list(response)[-1].response if stream else response)
        assert responses[-1].conversation.id == made.id
    chain(responses).assert_nothing_twice()
    items = client.conversations.items.list(made.id, order="asc", limit=50).data
    assert [item.role for item in items] == ["user", "assistant"] * 4
    assert texts(items)[1::2] == [response.output_text for response in responses]
    assert items[1].id == responses[0].output[0].id


def test_items_are_context(client, respond):
    made = client.conversations.create(items=[user(Text("context").words(100)), {"role": "assistant", "content": "I see."}])
    response = respond("Go on.", conversation=made.id)
    assert response.usage.input_tokens > 100 + respond("Go on.").usage.input_tokens


def test_added_items_are_context(client, respond):
    """Items that were put between two responses: computed once, with what came before them reused."""
    made = client.conversations.create()
    first = respond(Text("before").words(100), conversation=made.id)
    client.conversations.items.create(made.id, items=[user(Text("between").words(20)), {"role": "assistant",
                                                                                        "content": "Noted."}])
    second = respond("Go on.", conversation=made.id)
    third = respond("And on.", conversation=made.id)
    chain([first, second, third]).assert_nothing_twice()
    assert second.usage.input_tokens > first.usage.input_tokens + 20


def test_deleted_items_are_not_context(client, respond):
    made = client.conversations.create(items=[user(Text("deleted").words(100)), user("Hello.")])
    with_it = respond("Go on.", conversation=made.id).usage.input_tokens
    first = client.conversations.items.list(made.id, order="asc").data[0]
    client.conversations.items.delete(first.id, conversation_id=made.id)
    assert respond("And on.", conversation=made.id).usage.input_tokens < with_it - 60


def test_a_response_is_retrieved_with_its_conversation(client, respond):
    made = client.conversations.create()
    response = respond("Hello.", conversation=made.id)
    assert client.responses.retrieve(response.id).conversation.id == made.id


def test_calls_within_a_conversation(tmp_path):
    script = [says(calls(("look_up", {"number": 4})), last="number 4"), says("A vase.", last="vase no. 4")]
    with stage(tmp_path, script) as played:
        client = sdk(played)
        made = client.conversations.create()
        first = client.responses.create(model="any", input="What is number 4?", conversation=made.id, tools=[flat(LOOK)])
        second = client.responses.create(model="any", conversation=made.id, tools=[flat(LOOK)], input=[
            {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "vase no. 4"}])
        assert second.output_text == "A vase."
        chain([first, second]).assert_nothing_twice()
        items = client.conversations.items.list(made.id, order="asc").data
        assert [item.type for item in items] == ["message", "function_call", "function_call_output", "message"]
        assert items[1].call_id == items[2].call_id and items[2].output == "vase no. 4"


def test_not_stored_responses_stay_outside(client, respond):
    """A title request beside the conversation."""
    made = client.conversations.create(items=[user("Hello.")])
    respond("A title, please.", store=False)
    assert texts(client.conversations.items.list(made.id)) == ["Hello."]


def test_counting_within_a_conversation(client, respond):
    made = client.conversations.create(items=[user(Text("count").words(50))])
    counted = client.responses.input_tokens.count(model="any", input="Go on.", conversation=made.id).input_tokens
    assert counted == respond("Go on.", conversation=made.id).usage.input_tokens


def test_a_deleted_conversation_cannot_go_on(client, respond):
    made = client.conversations.create()
    respond("Hello.", conversation=made.id)
    client.conversations.delete(made.id)
    error_of(404, respond, "Go on.", conversation=made.id)


def test_pages_of_large_items_are_shorter(client):
    """The limit counts items, which may be as large as a body; a page of a hundred of them is not."""
    conversation = client.conversations.create()
    for mark in "abc":
        client.conversations.items.create(conversation.id, items=[
            {"type": "message", "role": "user", "content": mark * (9 << 20)}])
    page = client.conversations.items.list(conversation.id, limit=100, order="asc")
    assert [item.content[0].text[0] for item in page.data] == ["a", "b"] and page.has_more
    rest = client.conversations.items.list(conversation.id, limit=100, order="asc", after=page.data[-1].id)
    assert [item.content[0].text[0] for item in rest.data] == ["c"] and not rest.has_more
    client.conversations.delete(conversation.id)
