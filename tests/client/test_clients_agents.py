"""openai-agents: its runner with function tools, over Responses (its default) and chat completions, resent, chained by id
and with the session that it has for OpenAI's conversations."""

import asyncio
import contextlib

import openai
import pytest

import lazy
from dialects import Tally
from lib.text import Text
from museum import CLASSES, SYSTEM, THINKER, Museum, calls, says, stage

pytestmark = pytest.mark.llama
agents = lazy.module("agents")

SESSION = [
    says(calls(("look_up", {"number": 4}), text="I look it up."), last="What is number 4?"),
    says("It is a vase. " + Text("reply", 1).words(50), last="vase no. 4"),
    says(calls(("look_up", {"number": 11}), ("look_up", {"number": 12})), last="Compare 11 and 12"),
    says(calls(("note", {"text": "über 11 & 12: \"ähnlich\""})), last="vase no. 12"),
    says("They are alike. " + Text("reply", 2).words(50), last="note 1 written"),
    says("You are welcome.", last="Thank you"),
]
QUESTIONS = {"What is number 4?": "It is a vase.", "Compare 11 and 12, please.": "They are alike.",
             "Thank you!": "You are welcome."}


class Talk:
    """An agent and its museum. `mode`: "resend" gives the runner its whole list of items, "previous" the last response's
    id, "automatic" lets it chain within a run as well, "session" has the conversation in the server, "id" names one."""

    def __init__(self, client, mode, stream, api="responses", **settings):
        museum = self.museum = Museum()
        agents.set_tracing_disabled(True)

        @agents.function_tool
        def look_up(number: int) -> str:
            """Looks an object up in the catalogue."""
            return museum.run("look_up", {"number": number})

        @agents.function_tool
        def note(text: str) -> str:
            """Writes a note."""
            return museum.run("note", {"text": text})

        kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
        self.agent = agents.Agent(name="Guide", instructions=SYSTEM["content"], tools=[look_up, note],
                                  model=kind(model="any", openai_client=client),
                                  model_settings=agents.ModelSettings(include_usage=True, **settings))
        self.client, self.mode, self.stream = client, mode, stream
        self.items, self.last, self.tally, self.responses = [], None, Tally(), []
        self.session = agents.OpenAIConversationsSession(openai_client=client) if mode == "session" else None
        self.conversation = None

    async def _how(self, text):
        if self.mode == "resend":
            return [*self.items, {"role": "user", "content": text}], {}
        if self.mode == "session":
            return text, {"session": self.session}
        if self.mode == "id":
            self.conversation = self.conversation or (await self.client.conversations.create()).id
            return text, {"conversation_id": self.conversation}
        if self.mode == "automatic":
            return text, {"previous_response_id": self.last, "auto_previous_response_id": True}
        return text, {"previous_response_id": self.last}

    async def ask(self, text):
        what, options = await self._how(text)
        if self.stream:
            result = agents.Runner.run_streamed(self.agent, what, **options)
            kinds = {event.type async for event in result.stream_events()}
            assert "raw_response_event" in kinds
        else:
            result = await agents.Runner.run(self.agent, what, **options)
        self.items, self.last = result.to_input_list(), result.last_response_id
        for response in result.raw_responses:
            usage = response.usage
            self.tally.add({"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens,
                            "input_tokens_details": usage.input_tokens_details.model_dump()})
        self.responses += result.raw_responses
        return result.final_output


@contextlib.asynccontextmanager
async def client_of(played):
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{played.port}/v1", api_key="none", max_retries=0) as client:
        yield client


async def hold(played, *arguments, **options):
    async with client_of(played) as client:
        talk = Talk(client, *arguments, **options)
        for question, begin in QUESTIONS.items():
            assert (await talk.ask(question)).startswith(begin)
        assert talk.museum.looked == [4, 11, 12] and talk.museum.notes == ["über 11 & 12: \"ähnlich\""]
        assert talk.tally.requests == 6
        if talk.session:
            talk.items = await talk.session.get_items()
        return talk


@pytest.mark.parametrize("model", CLASSES)
@pytest.mark.parametrize("mode", ["resend", "previous", "automatic", "session", "id"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_responses(tmp_path, mode, stream, model):
    """Items come back with ids, status, annotations; by id only what is new is sent."""
    if model != "tiny" and (stream or mode == "previous"):
        pytest.skip("the other classes go through each way once")
    with stage(tmp_path, SESSION, model=model) as played:
        talk = asyncio.run(hold(played, mode, stream))
        talk.tally.assert_nothing_twice(1.02 if mode in ("resend", "session") else 1.0)
        if mode == "session":
            kinds = [item["type"] for item in talk.items]
            assert kinds.count("function_call") == kinds.count("function_call_output") == 4


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_chat_completions(tmp_path, stream):
    with stage(tmp_path, SESSION) as played:
        asyncio.run(hold(played, "resend", stream, api="chat")).tally.assert_nothing_twice(1.02)


def test_pop_and_clear(tmp_path):
    """The session's other operations: the last item is taken back; the conversation is deleted."""
    async def play(played):
        async with client_of(played) as client:
            talk = Talk(client, "session", False)
            await talk.ask("What is number 4?")
            before = await talk.session.get_items()
            assert (await talk.session.pop_item())["id"] == before[-1]["id"]
            assert [item["id"] for item in await talk.session.get_items()] == [item["id"] for item in before[:-1]]
            assert [item["id"] for item in await talk.session.get_items(limit=2)] == [item["id"] for item in before[-3:-1]]
            conversation = talk.session.session_id
            await talk.session.clear_session()
            with pytest.raises(openai.NotFoundError):
                await client.conversations.retrieve(conversation)

    with stage(tmp_path, SESSION) as played:
        asyncio.run(play(played))


@pytest.mark.parametrize("mode", ["resend", "previous"])
def test_reasoning(tmp_path, mode):
    """Reasoning items come back without their content; in the turn they belong to, nothing is computed twice."""
    script = [says("<think>\nNumber 4, then.\n</think>\n\n" + calls(("look_up", {"number": 4})), last="number 4"),
              says("<think>\nIt is a vase.\n</think>\n\nA vase.", last="vase no. 4")]

    async def play(played):
        async with client_of(played) as client:
            talk = Talk(client, mode, False)
            assert (await talk.ask("What is number 4?")).strip() == "A vase."
            return talk

    with stage(tmp_path, script, "--chat-template-file", THINKER) as played:
        talk = asyncio.run(play(played))
        assert [item.type for item in talk.responses[0].output] == ["reasoning", "function_call"]
        talk.tally.assert_nothing_twice(1.02)


def test_handoff(tmp_path):
    """A second agent takes over, with instructions and tools of its own."""
    async def play(played):
        async with client_of(played) as client:
            model = agents.OpenAIResponsesModel(model="any", openai_client=client)
            expert = agents.Agent(name="Expert", instructions="You know vases.", model=model)
            guide = agents.Agent(name="Guide", instructions=SYSTEM["content"], handoffs=[expert], model=model)
            return await agents.Runner.run(guide, "What is number 4?")

    script = [says(calls(("transfer_to_expert", {})), last="number 4"), says("A vase.", last="Expert")]
    with stage(tmp_path, script) as played:
        result = asyncio.run(play(played))
    assert result.final_output == "A vase." and result.last_agent.name == "Expert"
