"""hermes-agent over Messages and over Responses: the program as it is, its tools at work, a process for each turn, which
sends everything again; and what is special about how it speaks each dialect. `make test` has Messages, the dialect that it
marks what is to be cached in; `make test-long` both.

HEARTH_HERMES names it (scripts/test.sh installs it, with what it needs for Messages); without it these tests are left
out.
"""

import os

import pytest

from dialects import Tally
from lib import hermes
from lib.text import Text
from museum import calls, says, stage
from test_clients_hermes import home, project  # noqa: F401 (fixtures)

pytestmark = [pytest.mark.llama,
              pytest.mark.skipif(not hermes.program(), reason="HEARTH_HERMES does not name hermes-agent")]
PATHS = {"messages": "/messages", "responses": "/responses"}


def settings(dialect, port):
    """A user's settings. It marks what is to be cached for models that are called Claude."""
    if dialect == "messages":
        return {"model": {"default": "claude-hearth", "base_url": f"http://127.0.0.1:{port}/anthropic"}}
    return {"model": {"default": "hearth", "provider": "custom:museum", "base_url": f"http://127.0.0.1:{port}/v1"},
            "custom_providers": [{"name": "museum", "base_url": f"http://127.0.0.1:{port}/v1", "api_key": "none",
                                  "api_mode": "codex_responses"}]}


def script_of(project):
    path = os.path.join(project, "museum.md")
    rooms = os.path.join(project, "rooms.md")
    return [
        says(calls(("read_file", {"path": path}), ("terminal", {"command": "ls | wc -l"}), text="I look around."),
             last="look around"),
        says("One note. " + Text("h", 1).words(60), last="exit_code"),
        says(calls(("write_file", {"path": rooms, "content": "# Rooms\n\nÄ: \"north\"\n"})), last="Write down"),
        says(calls(("terminal", {"command": "cat rooms.md"})), last="bytes_written"),
        says("It is in the north.", last="north"),
    ]


def made_of(played, dialect):
    """The requests with tools: the session itself."""
    played.recorder.await_end()
    found = [exchange for exchange in played.recorder.of(PATHS[dialect]) if exchange.body.get("tools")]
    assert [exchange.status for exchange in found] == [200] * len(found), [exchange.reply for exchange in found]
    return found


@pytest.mark.parametrize("dialect", ["messages", pytest.param("responses", marks=pytest.mark.long)])
def test_a_process_per_turn(tmp_path, project, home, dialect):  # noqa: F811
    with stage(tmp_path, script_of(project)) as played:
        user = hermes.Hermes(home, played.port, settings(dialect, played.port))
        answer, session = user.ask("Please look around.", project)
        assert answer.startswith("One note.")
        assert user.ask("Write down the rooms.", project, session)[0].endswith("It is in the north.")
        assert (project / "rooms.md").read_text() == "# Rooms\n\nÄ: \"north\"\n"
        made, tally = made_of(played, dialect), Tally()
        assert len(made) == 5 and not played.recorder.of("/chat/completions")
        for exchange in made:
            tally.add(exchange.reply["usage"])
        tally.assert_nothing_twice(1.02)
        check = says_messages if dialect == "messages" else says_responses
        check(made)


def says_messages(made):
    """More tokens than there are, marks that move with each request, blocks and strings in turns."""
    last = made[-1].body
    assert last["max_tokens"] >= 64000 and last["system"][-1]["cache_control"]
    marked = [["cache_control" in str(message["content"]) for message in exchange.body["messages"]] for exchange in made]
    assert all(sum(each) <= 3 and each[-1] for each in marked)
    assert {type(exchange.body["messages"][0]["content"]) for exchange in made} == {list, str}


def says_responses(made):
    """Nothing is stored, everything comes again, one cache key."""
    bodies = [exchange.body for exchange in made]
    assert all(body["store"] is False and "previous_response_id" not in body for body in bodies)
    assert len({body["prompt_cache_key"] for body in bodies}) == 1
    assert all(body["include"] == ["reasoning.encrypted_content"] for body in bodies)
    assert len(bodies[-1]["input"]) > 8
