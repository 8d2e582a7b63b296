"""Claude Code: the program as it is, a process for each turn, with its tools at work. docs/clients.md says how it is set
up; without the program (scripts/programs.sh) these tests are left out. `make test-long` adds what test_programs_codex.py
has, too: two sessions at once, another effort; and longer sessions."""

import json

import pytest

from lib.text import Text
from museum import calls, says
from program import Program, assert_first_prompt, needs, play, png

pytestmark = [pytest.mark.llama, pytest.mark.tiny, needs("claude")]
MODELS = pytest.mark.parametrize("model", [pytest.param("tiny", marks=pytest.mark.long), "tiny-hybrid"])


def claude(folder, played):
    return Program("claude", "Claude Code", folder, played.port)


def bash(command, text=None):
    return calls(("Bash", {"command": command, "description": "Run it"}), text=text)


@pytest.mark.parametrize("model, turns", [
    ("tiny-hybrid", 4), *(pytest.param(model, 10, marks=pytest.mark.long) for model in ("tiny", "tiny-hybrid"))])
def test_many_turns(tmp_path, model, turns):
    """Turns with a call or two each, alone and in parallel, in a process each."""
    work = tmp_path / "work"
    script = [
        says(calls(("Read", {"file_path": f"{work}/museum.md"}), ("Bash", {"command": "ls | wc -l", "description": "C"}),
                   text="I look around."), last="look around"),
        says("A museum. " + Text("cc", 1).words(80), last="north room"),
        says(calls(("Write", {"file_path": f"{work}/rooms.md", "content": "# Rooms\n\nÄ: \"north\"\n"})), last="Turn 2"),
        says("Written.", last="created successfully"),
        says(calls(("Read", {"file_path": f"{work}/rooms.md"})), last="Turn 3"),
        says(calls(("Edit", {"file_path": f"{work}/rooms.md", "old_string": "north", "new_string": "south"})), last="Ä:"),
        says("Turned.", last="updated"),
    ]
    for turn in range(4, turns + 1):
        script += [says(bash(f"echo turn {turn}; cat rooms.md"), last=f"Turn {turn}."),
                   says(f"This was turn {turn}. " + Text("cc", turn).words(40), last=f"turn {turn}\n")]
    with play(tmp_path, script, model=model) as played:
        user = claude(tmp_path, played)
        user.write("museum.md", "# Museum\n\nnorth room\n" + Text("museum").words(200))
        assert user.ask("Please look around.").startswith("A museum.")
        assert user.ask("Turn 2.") == "Written."
        assert user.ask("Turn 3.") == "Turned."
        for turn in range(4, turns + 1):
            assert user.ask(f"Turn {turn}.").startswith(f"This was turn {turn}.")
        assert (work / "rooms.md").read_text() == "# Rooms\n\nÄ: \"south\"\n"
        ledger = played.assert_well()
        assert len(ledger.rows) == 1 + 2 * turns
        assert_first_prompt(ledger, "Claude Code")


@pytest.mark.long
@MODELS
def test_two_sessions_at_once(tmp_path, model):
    """Two sessions in one folder, turn by turn beside each other."""
    turns = 2
    script = [entry for name in ("A", "B") for turn in range(turns) for entry in (
        says(bash(f"echo {name} did {turn}"), last=f"Step {name}{turn}."),
        says(f"{name} has done {turn}. " + Text(name, turn).words(40), last=f"{name} did {turn}"))]
    with play(tmp_path, script, model=model) as played:
        user, sessions = claude(tmp_path, played), {"A": "01234567-89ab-4cde-8f01-23456789abcd",
                                                    "B": "11234567-89ab-4cde-8f01-23456789abcd"}
        for turn in range(turns):
            flag = "--session-id" if turn == 0 else "--resume"
            running = {name: user.start(f"Step {name}{turn}.", flag, sessions[name], new=True) for name in sessions}
            for name, process in running.items():
                assert user.answer(process).startswith(f"{name} has done {turn}.")
        assert len(played.assert_well(each=False).rows) == 4 * turns


@MODELS
def test_sub_agents(tmp_path, model):
    """Two at once, each with a tool of its own at work, beside the session that waits for them."""
    script = [
        says(calls(*(("Agent", {"description": f"Count {name}", "prompt": f"Count hall {name}.",
                                "subagent_type": "Explore"}) for name in ("one", "two"))), last="Delegate it."),
        *(entry for name in ("one", "two") for entry in (
            says(bash(f"echo counted {name}"), last=f"Count hall {name}."),
            says(f"Hall {name} has nine. " + Text(name).words(60), last=f"counted {name}"))),
        says("Both were counted.", last="Hall one has nine."),
        says("Both were counted.", last="Hall two has nine."),
        says("Agents are at work.", last="agent", times=0),
        says("It was so.", last="Was it so?"),
    ]
    with play(tmp_path, script, model=model) as played:
        user = claude(tmp_path, played)
        user.ask("Delegate it.")
        assert user.ask("Was it so?") == "It was so."
        played.assert_well(each=False)


@MODELS
def test_a_picture_and_a_summary(tmp_path, model):
    """A picture is read by tool; the session is summarised and goes on."""
    work = tmp_path / "work"
    script = [
        says(calls(("Read", {"file_path": f"{work}/vase.png"}), text="I look at it."), last="the picture"),
        says("A small picture.", last="image"),
        says("<analysis>Short.</analysis>\n<summary>We looked at a vase.</summary>", last="detailed summary"),
        says(bash("echo after it"), last="After it."),
        says("That came after.", last="after it"),
    ]
    with play(tmp_path, script, model=model) as played:
        user = claude(tmp_path, played)
        user.write("vase.png", png())
        assert user.ask("Look at the picture.") == "A small picture."
        user.ask("/compact")
        assert user.ask("After it.") == "That came after."
        assert len(played.assert_well().rows) == 5


@pytest.mark.long
@MODELS
def test_effort(tmp_path, model):
    """The effort changes for a turn, and back, and by a command in the session: no template prints it."""
    script = [says(bash("echo begun"), last="Begin."), says("Begun. " + Text("e").words(60), last="begun"),
              says("Low it is.", last="Less effort."), says("As it was.", last="As before."),
              says("Still here.", last="Still there?")]
    with play(tmp_path, script, model=model) as played:
        user = claude(tmp_path, played)
        assert user.ask("Begin.").startswith("Begun.")
        assert user.ask("Less effort.", "--effort", "low") == "Low it is."
        assert user.ask("As before.") == "As it was."
        user.ask("/effort low")
        assert user.ask("Still there?") == "Still here."
        played.assert_well()


@MODELS
def test_tool_search(tmp_path, model):
    """Loads of tools: each costs what it prints."""
    loads = ["NotebookEdit,CronList", "EnterWorktree"]
    script = [entry for load in loads for entry in (
        says(calls(("ToolSearch", {"query": f"select:{load}", "max_results": 5})), last=f"Load {load}."),
        says(f"Loaded {load}.", last=load.split(",")[0]))]
    with play(tmp_path, script, model=model) as played:
        user = claude(tmp_path, played)
        for load in loads:
            assert user.ask(f"Load {load}.") == f"Loaded {load}."
        ledger = played.assert_well()
        assert len(ledger.rows) == 2 * len(loads)


def test_full_context(tmp_path):
    """The server's context is smaller than the program takes it for. When it is full the program summarises the session
    by itself, and the turn goes on."""
    script = [says("<analysis>Short.</analysis>\n<summary>We count far.</summary>", last="detailed summary", times=0),
              *(says(bash(f"seq {turn}000 {turn}999"), last=f"Turn {turn}.") for turn in range(1, 3)),
              *(says(f"Counted {turn}.", last=f"{turn}998") for turn in range(1, 3)),
              says("It was so.", last="Was it so?")]
    with play(tmp_path, script, "-c", "20480") as played:
        user = claude(tmp_path, played)
        for turn in range(1, 3):
            assert user.ask(f"Turn {turn}.") == f"Counted {turn}."
        assert user.ask("Was it so?") == "It was so."
        assert played.full()
        assert "We count far." in json.dumps(played.exchanges()[-1].body)
        played.assert_well()


@MODELS
def test_killed_server(tmp_path, model):
    """The server is killed while a reply streams. It comes back, the program asks again by itself, and nothing that was
    on disk is computed again."""
    before = [says(bash("echo one; echo two"), last="Begin."), says("Begun. " + Text("k").words(60), last="one\ntwo")]
    with play(tmp_path, [*before, says(Text("endless").words(6000), last="Go on.")], model=model) as played:
        user = claude(tmp_path, played)
        assert user.ask("Begin.").startswith("Begun.")
        played.written()
        turn = user.start("Go on.")
        played.kill_in_mid_stream()
        played.start([says("Gone on.", last="Go on."), says("And on.", last="And then?")])
        assert user.answer(turn).endswith("Gone on.")
        assert user.ask("And then?") == "And on."
        played.assert_well()
