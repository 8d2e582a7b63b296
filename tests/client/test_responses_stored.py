"""Responses that the server keeps: retrieved, deleted, gone on from, branched, and what that costs."""

import json

import openai
import pytest

from museum import LOOK, NOTE, THINKER, says, stage, tiny_flags
from conftest import sdk, serve
from dialects import Tally, chain, cost, flat
from lib.text import Text

pytestmark = pytest.mark.llama
TOOLS = [flat(LOOK), flat(NOTE)]


@pytest.fixture(scope="module")
def running():
    with serve(*tiny_flags(), "-np", "4", "--cache-ram", "1024") as server:
        yield server


@pytest.fixture(scope="module")
def client(running):
    return sdk(running)


@pytest.fixture
def respond(client):
    def create(what, **options):
        return client.responses.create(**{"model": "any", "input": what, "temperature": 0, "max_output_tokens": 16,
                                          **options})
    return create


def gone(client, call, *arguments, **options):
    with pytest.raises(openai.NotFoundError) as caught:
        call(*arguments, **options)
    assert caught.value.body["type"] == "not_found_error" and caught.value.body["message"]


# ---- the store ----

def test_retrieve(client, respond):
    made = respond("Hello.", metadata={"visit": "12"}, instructions="Be brief.", tools=TOOLS)
    found = client.responses.retrieve(made.id)
    assert found.model_dump(exclude={"hearth", "timings"}) == made.model_dump(exclude={"hearth", "timings"})


def test_retrieve_a_streamed_one(client, respond):
    final = list(respond("Hello.", stream=True))[-1].response
    found = client.responses.retrieve(final.id)
    assert found.output == final.output and found.usage == final.usage and found.status == final.status


def test_delete(client, respond):
    made = respond("Hello.")
    assert client.responses.delete(made.id) is None
    gone(client, client.responses.retrieve, made.id)
    gone(client, client.responses.delete, made.id)
    gone(client, client.responses.input_items.list, made.id)
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
        respond("Go on.", previous_response_id=made.id)


def test_delete_says_so(client, respond):
    made = respond("Hello.")
    assert client.delete(f"/responses/{made.id}", cast_to=object) \
        == {"id": made.id, "object": "response", "deleted": True}


def test_not_stored(client, respond):
    made = respond("Hello.", store=False)
    gone(client, client.responses.retrieve, made.id)
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        respond("Go on.", previous_response_id=made.id)
    assert caught.value.body["param"] == "previous_response_id"


def test_a_deleted_beginning_does_not_harm_the_rest(client, respond):
    """What went on from a deleted response is whole."""
    first = respond(Text("deleted").words(60))
    second = respond("Go on.", previous_response_id=first.id)
    client.responses.delete(first.id)
    third = respond("And on.", previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens
    chain([first, second, third]).assert_nothing_twice()


# ---- going on ----

@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_previous_response(respond, stream):
    """Each turn sends a sentence, and costs that."""
    responses, previous = [], None
    for number in range(6):
        made = respond(Text("turn", number).words(150 if number == 0 else 20), previous_response_id=previous, stream=stream)
        responses.append(list(made)[-1].response if stream else made)
        assert responses[-1].previous_response_id == previous
        previous = responses[-1].id
    chain(responses).assert_nothing_twice()
    assert responses[-1].usage.input_tokens > responses[0].usage.input_tokens + 5 * 20


def test_the_context_is_that_of_a_resent_history(client, respond):
    first = respond(Text("context").words(80))
    by_id = respond("Go on.", previous_response_id=first.id)
    resent = respond([{"role": "user", "content": Text("context").words(80)},
                      *(each.model_dump(exclude_none=True) for each in first.output), {"role": "user", "content": "Go on."}])
    assert by_id.usage.input_tokens == resent.usage.input_tokens
    assert cost(resent.usage)[1] <= 8


def test_branches(respond):
    """Two go on from one, again and again; both cost what is new in them."""
    stem = respond(Text("stem").words(200))
    tallies, tips = [Tally(), Tally()], [stem, stem]
    for tally in tallies:
        tally.add(stem.usage)
    for number in range(3):
        for which in range(2):
            tips[which] = respond(Text("branch", which, number).words(15), previous_response_id=tips[which].id)
            tallies[which].add(tips[which].usage)
    for tally in tallies:
        tally.assert_nothing_twice()


def test_instructions_are_not_carried_over(respond):
    with_them = respond("Hello.", instructions=Text("pirate").words(40))
    without = respond("Go on.", previous_response_id=with_them.id)
    assert without.instructions is None
    assert without.usage.input_tokens < with_them.usage.input_tokens + 30 + with_them.usage.output_tokens - 40


def test_new_instructions_replace_the_old(respond):
    first = respond("Hello.", instructions="Be brief.")
    second = respond("Go on.", previous_response_id=first.id, instructions="Be brief.")
    third = respond("And on.", previous_response_id=second.id, instructions="Be long.")
    chain([first, second]).assert_nothing_twice()
    assert third.instructions == "Be long."


def test_unknown_call_output_leaves_the_conversation_as_it_is(client, respond):
    first = respond("Hello.")
    with pytest.raises(openai.BadRequestError) as caught:
        respond([{"type": "function_call_output", "call_id": "call_gone", "output": "?"}], previous_response_id=first.id,
                tools=TOOLS)
    assert "call_gone" in caught.value.body["message"] and caught.value.body["type"] == "invalid_request_error"
    chain([first, respond("Go on.", previous_response_id=first.id)]).assert_nothing_twice()


def test_metadata_is_of_one_response(respond):
    first = respond("Hello.", metadata={"turn": "1"})
    assert respond("Go on.", previous_response_id=first.id).metadata == {}


# ---- input items ----

def test_input_items(client, respond):
    made = respond([{"role": "user", "content": "First."}, {"role": "assistant", "content": "Second."},
                    {"role": "user", "content": [{"type": "input_text", "text": "Third."}]}])
    newest = client.responses.input_items.list(made.id)
    oldest = client.responses.input_items.list(made.id, order="asc")
    assert [item.role for item in oldest.data] == ["user", "assistant", "user"]
    assert [item.content[0].text for item in oldest.data] == ["First.", "Second.", "Third."]
    assert [item.id for item in newest.data] == [item.id for item in oldest.data][::-1]
    assert oldest.data[0].type == "message" and oldest.data[0].content[0].type == "input_text"
    assert len({item.id for item in oldest.data}) == 3


def test_input_items_of_a_string(client, respond):
    items = client.responses.input_items.list(respond("Hello.").id).data
    assert [(item.role, item.content[0].text) for item in items] == [("user", "Hello.")]


def test_input_items_in_pages(client, respond):
    made = respond([{"role": "user", "content": f"Number {number}."} for number in range(7)])
    page = client.responses.input_items.list(made.id, order="asc", limit=3)
    assert [item.content[0].text for item in page.data] == ["Number 0.", "Number 1.", "Number 2."]
    assert page.has_more and page.has_next_page()
    after = client.responses.input_items.list(made.id, order="asc", after=page.data[-1].id, limit=2)
    assert [item.content[0].text for item in after.data] == ["Number 3.", "Number 4."]
    assert [item.content[0].text for item in client.responses.input_items.list(made.id, limit=2)] \
        == [f"Number {number}." for number in range(6, -1, -1)]
    raw = client.get(f"/responses/{made.id}/input_items", cast_to=object, options={"params": {"limit": 2}})
    assert raw["object"] == "list" and raw["first_id"] == raw["data"][0]["id"] and raw["last_id"] == raw["data"][-1]["id"]


def test_input_items_of_a_chain(client, respond):
    """All that was in the context comes back: the turns before, too."""
    first = respond("First.")
    second = respond("Second.", previous_response_id=first.id)
    texts = [item.content[0].text for item in client.responses.input_items.list(second.id, order="asc")]
    assert texts == ["First.", first.output_text, "Second."]


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": 101}, {"order": "sideways"}, {"after": "msg_gone"}])
def test_input_items_bad_query(client, respond, options):
    made = respond("Hello.")
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.input_items.list(made.id, **options)
    assert caught.value.status_code in (400, 404) and caught.value.body["message"]


# ---- calls, over turns; the model's part is written down ----

LOOKED = [says("<tool_call>\n{\"name\": \"look_up\", \"arguments\": {\"number\": 4}}\n</tool_call>", last="number 4"),
          says("A vase. " + Text("reply").words(30), last="vase no. 4"), says("Bye.", last="Thank you")]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_call_and_its_output_by_id(tmp_path, stream):
    with stage(tmp_path, LOOKED) as played:
        client = sdk(played)

        def ask(what, previous):
            made = client.responses.create(model="any", input=what, previous_response_id=previous, tools=TOOLS, stream=stream)
            return list(made)[-1].response if stream else made
        first = ask("What is number 4?", None)
        made = first.output[-1]
        assert made.type == "function_call" and json.loads(made.arguments) == {"number": 4}
        second = ask([{"type": "function_call_output", "call_id": made.call_id, "output": "vase no. 4"}], first.id)
        assert second.output_text.startswith("A vase.")
        third = ask("Thank you!", second.id)
        assert third.output_text == "Bye."
        chain([first, second, third]).assert_nothing_twice()
        items = client.responses.input_items.list(third.id, order="asc").data
        assert [item.type for item in items] \
            == ["message", "function_call", "function_call_output", "message", "message"]


def test_items_by_reference(tmp_path):
    """A stateless client may name an item that the server has."""
    with stage(tmp_path, LOOKED) as played:
        client = sdk(played)
        first = client.responses.create(model="any", input="What is number 4?", tools=TOOLS)
        made = first.output[-1]
        second = client.responses.create(model="any", tools=TOOLS, input=[
            {"role": "user", "content": "What is number 4?"}, {"type": "item_reference", "id": made.id},
            {"type": "function_call_output", "call_id": made.call_id, "output": "vase no. 4"}])
        assert second.output_text.startswith("A vase.")
        chain([first, second]).assert_nothing_twice(1.02)


# ---- reasoning ----

THOUGHTS = [says("<think>\nNumber 4, then.\n</think>\n\n" + LOOKED[0]["reply"], last="number 4"),
            says("<think>\nIt is a vase.\n</think>\n\nA vase.", last="vase no. 4"),
            says("<think>\nPolite.\n</think>\n\nBye.", last="Thank you")]


@pytest.fixture
def thinking(tmp_path):
    with stage(tmp_path, THOUGHTS, "--chat-template-file", THINKER) as played:
        yield sdk(played)


def test_reasoning_item(thinking):
    response = thinking.responses.create(model="any", input="Thank you!", reasoning={"effort": "low", "summary": "auto"})
    assert [item.type for item in response.output] == ["reasoning", "message"]
    thought = response.output[0]
    assert thought.id.startswith("rs_") and "Polite." in "".join(
        part.text for part in [*thought.summary, *(thought.content or ())])
    assert thought.encrypted_content is None and response.output_text.strip() == "Bye."
    assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_reasoning_streamed(thinking):
    events = list(thinking.responses.create(model="any", input="Thank you!", stream=True, reasoning={"summary": "auto"}))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    for kind in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
        pieces = [event for event in events if event.type == kind]
        assert "".join(piece.delta for piece in pieces).strip() == "Polite."
        assert {piece.output_index for piece in pieces} == {0}
    assert {event.output_index for event in events if event.type == "response.output_text.delta"} == {1}


def test_encrypted_reasoning_comes_back(thinking):
    """Nothing is stored; the client sends everything again, the reasoning sealed and without its text."""
    said, tally = [{"role": "user", "content": "What is number 4?"}], Tally()
    options = {"model": "any", "store": False, "include": ["reasoning.encrypted_content"], "tools": TOOLS,
               "prompt_cache_key": "all", "parallel_tool_calls": True, "tool_choice": "auto"}
    first = thinking.responses.create(input=said, **options)
    tally.add(first.usage)
    assert first.output[0].type == "reasoning" and first.output[0].encrypted_content
    for item in first.output:
        said.append(item.model_dump(exclude_none=True, exclude={"content", "status"} if item.type == "reasoning" else None))
    said.append({"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "vase no. 4"})
    second = thinking.responses.create(input=said, **options)
    tally.add(second.usage)
    assert second.output_text.strip() == "A vase."
    tally.assert_nothing_twice(1.02)


def test_reasoning_by_id(thinking):
    """Within a turn nothing is computed twice, though the reasoning stands in the prompt."""
    first = thinking.responses.create(model="any", input="What is number 4?", tools=TOOLS)
    second = thinking.responses.create(model="any", previous_response_id=first.id, tools=TOOLS, input=[
        {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "vase no. 4"}])
    assert second.output_text.strip() == "A vase."
    chain([first, second]).assert_nothing_twice()
