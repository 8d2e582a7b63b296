"""hermes-agent: the program as it is, with its 18 tools and 14,000 tokens of system text, working in a folder.

HEARTH_HERMES names it (scripts/test.sh installs it); without it these tests are left out. `make test` has the interactive
program here, a process per turn in test_programs.py and test_clients_hermes_dialects.py.
"""

import os

import pytest

from museum import CHAT, calls, says, stage
from lib import hermes
from lib.text import Text

pytestmark = pytest.mark.skipif(not hermes.program(), reason="HEARTH_HERMES does not name hermes-agent")


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "museum.md").write_text("# Museum\n\n" + Text("hermes").words(300) + "\n")
    return folder


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def no_tool_failed(played):
    results = [message["content"] for exchange in played.chats() for message in exchange.body["messages"]
               if message["role"] == "tool"]
    assert results
    assert not [text for text in results if '"error": "' in text or "Error executing" in text]


@pytest.mark.long
def test_one_shot(tmp_path, project, home):
    script = [says(calls(("terminal", {"command": "printf 'alpha %s' beta > made.txt && cat made.txt"})), last="Make"),
              says("It says alpha beta.", last="alpha beta")]
    with stage(tmp_path, script) as played:
        assert hermes.Hermes(home, played.port).shot("Make the file.", project) == "It says alpha beta."
        assert (project / "made.txt").read_text() == "alpha beta"
        no_tool_failed(played)
        played.assert_nothing_twice()


@pytest.mark.long
def test_a_process_per_turn(tmp_path, project, home):
    """Four turns with calls, alone and in parallel, in four processes; each resends everything."""
    path = os.path.join(project, "museum.md")
    script = [
        says(calls(("read_file", {"path": path}), ("terminal", {"command": "ls | wc -l"}), text="I look around."),
             last="look around"),
        says("One note. " + Text("h", 1).words(60), last="exit_code"),
        says(calls(("write_file", {"path": os.path.join(project, "rooms.md"), "content": "# Rooms\n\nÄ: \"north\"\n"})),
             last="Write down"),
        says("Written.", last="bytes_written"),
        says(calls(("patch", {"mode": "replace", "path": os.path.join(project, "rooms.md"), "old_string": "north",
                              "new_string": "south"})), last="Turn it"),
        says(calls(("terminal", {"command": "cat rooms.md"})), last="diff"),
        says("It is in the south.", last="south"),
        says("Nothing more to do. " + Text("h", 2).words(20), last="anything else"),
    ]
    with stage(tmp_path, script) as played:
        user = hermes.Hermes(home, played.port)
        answer, session = user.ask("Please look around.", project)
        assert answer.startswith("One note.")
        assert user.ask("Write down the rooms.", project, session)[0].endswith("Written.")
        assert user.ask("Turn it round.", project, session)[0].endswith("It is in the south.")
        assert user.ask("Is there anything else?", project, session)[0].startswith("Nothing more")
        assert (project / "rooms.md").read_text() == "# Rooms\n\nÄ: \"south\"\n"
        assert len(played.chats()) == 8
        no_tool_failed(played)
        played.assert_nothing_twice()


@pytest.mark.long
def test_two_sessions_take_turns_on_one_lane(tmp_path, project, home):
    turns = 3  # of the first session, of the second, and of the first again
    script = [entry for number in range(turns) for entry in (
        says(calls(("terminal", {"command": f"echo room {number}; head -c 300 museum.md"})), last=f"Room {number}?"),
        says(f"This was room {number}. " + Text("two", number).words(40), last=f"room {number}\\n"))]
    with stage(tmp_path, script, "-np", "1") as played:
        user, sessions = hermes.Hermes(home, played.port), [None, None]
        for number in range(turns):
            answer, sessions[number % 2] = user.ask(f"Room {number}?", project, sessions[number % 2])
            assert answer.startswith(f"This was room {number}.")
        assert sessions[0] != sessions[1]
        no_tool_failed(played)
        played.assert_nothing_twice()


def test_terminal_session(tmp_path, project, home):
    """The interactive program: a title is asked for beside the second turn; an edit brings two nudges, which are gone in
    the next turn; a tool loop is interrupted by a message."""
    (project / "pyproject.toml").write_text("[project]\nname = \"museum\"\nversion = \"1\"\n")
    script = [
        says("A small museum", tools=False, times=0),
        says("Nothing to save.", last="Review the conversation", times=0),
        says("A museum. " + Text("t", 1).words(60), last="What is this"),
        says(calls(("write_file", {"path": os.path.join(project, "count.py"), "content": "print(6 * 7)\n"})),
             last="Write a program"),
        says(calls(("terminal", {"command": "python3 count.py"})), last="bytes_written"),
        says("It prints 42.", last="42"),
        says("I ran it, see above.", last="[System: You edited code"),
        says("There is no test suite here.", last="[System: You edited code"),
        says("I know of one program.", last="programs are there"),
        says(calls(("terminal", {"command": "sleep 30"})), last="wait a little"),
        says("Stopped.", last="Never mind"),
    ]
    with stage(tmp_path, script) as played:
        def answered(count):
            return lambda: len(played.recorder.of(CHAT)) >= count and not played.recorder.open()

        with hermes.Hermes(home, played.port).terminal(project) as terminal:
            terminal.wait_text("❯")
            terminal.read(1)
            for text, count in (("What is this?", 2), ("Write a program that counts.", 7),
                                ("Which programs are there?", 8), ("Please wait a little.", 9)):
                terminal.type(text)
                terminal.wait(answered(count))
                terminal.read(1)
            terminal.type("Never mind.")
            terminal.wait(answered(10))
            terminal.read(1)
        bodies = [exchange.body for exchange in played.chats()]
        assert [bool(body.get("tools")) for body in bodies].count(False) == 1
        assert any("[System: You edited code" in str(body["messages"][-1]["content"]) for body in bodies)
        assert "[System: You edited code" not in str(bodies[-1]["messages"])
        assert (project / "count.py").exists()
        played.assert_nothing_twice()
