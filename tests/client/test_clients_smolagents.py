"""smolagents: calls are always required, stop strings are set, nothing is streamed, calls come back as text."""

import json

import pytest

import lazy
from museum import Museum, calls, says, stage
from conftest import sdk
from lib.text import Text

smolagents = lazy.module("smolagents")
pytestmark = pytest.mark.filterwarnings("ignore:Function .* has decorators other than @tool")

SCRIPT = [
    says(calls(("look_up", {"number": 4})), last="What is number 4"),
    says(calls(("look_up", {"number": 5})), last="vase no. 4"),
    says(calls(("note", {"text": "4 and 5 are alike"})), last="vase no. 5"),
    says(calls(("final_answer", {"answer": "Number 4 is a vase."})), last="note 1 written"),
    says(calls(("lend", {"number": 4, "borrower": "the town", "days": 7})), last="Lend it"),
    says(calls(("final_answer", {"answer": "It is lent."})), last="lent 4 to the town"),
]


def tools_of(museum):
    @smolagents.tool
    def look_up(number: int) -> str:
        """Looks an object up in the catalogue.

        Args:
            number: The object's number.
        """
        return museum.run("look_up", {"number": number})

    @smolagents.tool
    def lend(number: int, borrower: str, days: int) -> str:
        """Lends an object to somebody.

        Args:
            number: The object's number.
            borrower: Who gets it.
            days: For how long.
        """
        return museum.run("lend", {"number": number, "borrower": borrower, "days": days})

    @smolagents.tool
    def note(text: str) -> str:
        """Writes a note.

        Args:
            text: What to write.
        """
        return museum.run("note", {"text": text})

    return [look_up, lend, note]


def agent_of(port, museum, **sampling):
    model = smolagents.OpenAIModel(model_id="any", api_base=f"http://127.0.0.1:{port}/v1", api_key="none",
                                   client_kwargs={"max_retries": 0}, **sampling)
    return smolagents.ToolCallingAgent(tools=tools_of(museum), model=model, max_steps=6, max_tool_threads=1,
                                       verbosity_level=smolagents.LogLevel.OFF,
                                       instructions="You look after a small museum. " + Text("smol").words(200))


def test_session(tmp_path):
    museum = Museum()
    with stage(tmp_path, SCRIPT) as played:
        agent = agent_of(played.port, museum)
        assert agent.run("What is number 4?") == "Number 4 is a vase."
        assert museum.looked == [4, 5] and museum.notes == ["4 and 5 are alike"]
        assert agent.run("Lend it to the town for a week.", reset=False) == "It is lent."
        assert museum.loans == {4: "the town"}
        bodies = [exchange.body for exchange in played.chats()]
        assert len(bodies) == 6
        assert {body["tool_choice"] for body in bodies} == {"required"}
        assert all("Observation:" in body["stop"] for body in bodies)
        # The calls in the history are the client's own text, not what was sampled.
        played.assert_nothing_twice()


@pytest.mark.long
@pytest.mark.language
@pytest.mark.llama
def test_smollm2_is_made_to_call(server, model):
    """Whatever it calls, each step is a call of a tool that exists, with arguments that fit it."""
    museum = Museum()
    agent = agent_of(server.port, museum, temperature=0, max_tokens=160)
    agent.max_steps = 2
    steps = []
    agent.step_callbacks.register(smolagents.ActionStep, lambda step, **_: steps.append(step))
    agent.run("Look up number 4.")
    made = [call for step in steps for call in step.tool_calls or []]
    assert made
    names = {"look_up", "lend", "note", "final_answer"}
    for call in made:
        assert call.name in names
        assert isinstance(call.arguments, dict), json.dumps(call.arguments)
    with sdk(server) as client:
        assert client.models.list().data
