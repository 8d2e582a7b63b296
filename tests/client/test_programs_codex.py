"""Codex: the program as it is, a process for each turn, with its tools at work. docs/clients.md says how it is set up;
without the program (scripts/programs.sh) these tests are left out. `make test-long` adds what test_programs_claude.py has,
too: sub-agents, a picture; and longer sessions."""

import pytest

from lib.text import Text
from museum import calls, says
from program import Program, assert_first_prompt, needs, play, png

pytestmark = [pytest.mark.llama, pytest.mark.tiny, needs("codex")]
MODELS = pytest.mark.parametrize("model", [pytest.param("tiny", marks=pytest.mark.long), "tiny-hybrid"])


def codex(folder, played):
    return Program("codex", "Codex", folder, played.port)


def run(*commands, text=None):
    return calls(*(("exec_command", {"cmd": command}) for command in commands), text=text)


@pytest.mark.parametrize("model, turns", [
    ("tiny-hybrid", 4), *(pytest.param(model, 10, marks=pytest.mark.long) for model in ("tiny", "tiny-hybrid"))])
def test_many_turns(tmp_path, model, turns):
    """Turns with a call or two each, alone and in parallel, in a process each."""
    script = [says(run("cat museum.md", "ls | wc -l", text="I look around."), last="look around"),
              says("A museum. " + Text("cx", 1).words(80), last="north room")]
    for turn in range(2, turns + 1):
        script += [says(run(f"echo turn {turn} >>log.md; cat log.md"), last=f"Turn {turn}!"),
                   says(f"This was turn {turn}. " + Text("cx", turn).words(40), last=f"turn {turn}\n")]
    with play(tmp_path, script, model=model) as played:
        user = codex(tmp_path, played)
        user.write("museum.md", "# Museum\n\nnorth room\n" + Text("museum").words(200))
        assert user.ask("Please look around.").startswith("A museum.")
        for turn in range(2, turns + 1):
            assert user.ask(f"Turn {turn}!").startswith(f"This was turn {turn}.")
        assert (tmp_path / "work" / "log.md").read_text().splitlines() == [f"turn {turn}" for turn in range(2, turns + 1)]
        ledger = played.assert_well()
        assert len(ledger.rows) == 2 * turns
        assert_first_prompt(ledger, "Codex")


@MODELS
def test_two_sessions_at_once(tmp_path, model):
    """Two sessions in one folder begin beside each other; the newer one goes on."""
    script = [entry for name in ("A", "B") for entry in (
        says(run(f"echo {name} did it"), last=f"Step {name}."),
        says(f"{name} has done it. " + Text(name).words(40), last=f"{name} did it"))]
    with play(tmp_path, [*script, says("Both have.", last="And now?")], model=model) as played:
        user = codex(tmp_path, played)
        running = {name: user.start(f"Step {name}.", new=True) for name in ("A", "B")}
        for name, process in running.items():
            assert user.answer(process).startswith(f"{name} has done it.")
        assert user.ask("And now?") == "Both have."
        assert len(played.assert_well(each=False).rows) == 5


@pytest.mark.long
@MODELS
def test_sub_agents(tmp_path, model):
    """One at work beside the session that waits for what it makes."""
    script = [
        says(calls(("multi_agent_v1__spawn_agent", {"message": "Count hall one."}), text="I ask for help."),
             last="Delegate it."),
        says(run("echo nine >hall; echo counted one"), last="Count hall one."),
        says("Hall one has nine. " + Text("one").words(60), last="counted one"),
        says(run("until [ -s hall ]; do sleep 0.1; done; cat hall"), last="agent_id"),
        says("It has counted them.", last="subagent_notification"),
        says("It has counted them.", last="nine\n"),
        says("It was so.", last="Was it so?"),
    ]
    with play(tmp_path, script, model=model) as played:
        user = codex(tmp_path, played)
        assert user.ask("Delegate it.") == "It has counted them."
        assert user.ask("Was it so?") == "It was so."
        assert len(played.assert_well(each=False).rows) >= 5


def test_agents_that_write_to_each_other(tmp_path):
    """The second edition of its sub-agents: the task and what came of it are items of their own."""
    script = [
        says(calls(("collaboration__spawn_agent", {"message": "Count hall one.", "task_name": "count"}), text="I ask."),
             last="Delegate it."),
        says("Hall one has nine.", last="Count hall one."),
        says(calls(("collaboration__wait_agent", {"timeout_ms": 60000})), last="task_name"),
        says("It has counted nine.", last="Hall one has nine."),
        says("It was so.", last="Was it so?"),
    ]
    with play(tmp_path, script, model="tiny-hybrid") as played:
        user = codex(tmp_path, played)
        edition = ("-c", "features.multi_agent_v2=true")
        assert user.ask("Delegate it.", *edition) == "It has counted nine."
        assert user.ask("Was it so?", *edition) == "It was so."
        assert len(played.assert_well(each=False).rows) == 5


@MODELS
def test_effort(tmp_path, model):
    with play(tmp_path, [says(run("echo high"), last="Begin."), says("Begun. " + Text("e").words(60), last="high\n"),
                         says("Low it is.", last="Less effort."), says("As it was.", last="As before.")],
              model=model) as played:
        user = codex(tmp_path, played)
        assert user.ask("Begin.", "-c", 'model_reasoning_effort="high"').startswith("Begun.")
        assert user.ask("Less effort.", "-c", 'model_reasoning_effort="low"') == "Low it is."
        assert user.ask("As before.") == "As it was."
        played.assert_well()


@pytest.mark.long
@MODELS
def test_picture(tmp_path, model):
    with play(tmp_path, [says("I cannot see it.", last="In the picture?"), says("Nothing.", last="What else?")],
              model=model) as played:
        user = codex(tmp_path, played)
        path = user.write("vase.png", png())
        assert user.ask("In the picture?", "-i", path, "--") == "I cannot see it."
        assert user.ask("What else?") == "Nothing."
        played.assert_well()


@MODELS
def test_compaction(tmp_path, model):
    """The session is summarised by itself, at a limit of the user's, and goes on."""
    script = [says(run("cat museum.md"), last="Begin."), says("Begun. " + Text("c").words(60), last="north room"),
              says("We looked at a museum.", last="CONTEXT CHECKPOINT COMPACTION"), says("After it.", last="And then?"),
              says("And on.", last="And further?")]
    with play(tmp_path, script, model=model) as played:
        user = codex(tmp_path, played)
        user.write("museum.md", "# Museum\n\nnorth room\n" + Text("museum").words(1000))
        limit = ("-c", "model_auto_compact_token_limit=9500")
        assert user.ask("Begin.").startswith("Begun.")
        assert user.ask("And then?", *limit) == "After it."
        assert user.ask("And further?") == "And on."
        assert [bool(exchange.body["tools"]) for exchange in played.exchanges()] == [True, True, False, True, True]
        played.assert_well()


def test_full_context(tmp_path):
    """The program does not know what the server's context holds. When that is full the server has it summarise the
    session, and the turn goes on."""
    script = [says("We looked at a museum.", last="CONTEXT CHECKPOINT COMPACTION"),
              *(says(run("cat museum.md"), last=f"Turn {turn}!") for turn in range(1, 4)),
              says("A museum.", last="north room", times=0), says("Gone on.", last="We looked at a museum."),
              says("It was so.", last="Was it so?")]
    with play(tmp_path, script, "-c", "16384") as played:
        user = codex(tmp_path, played)
        user.change("~/.codex/config.toml", "model_context_window = 65536\n", "")
        user.write("museum.md", "# Museum\n\nnorth room\n" + Text("museum").words(1800))
        for turn in range(1, 4):
            assert user.ask(f"Turn {turn}!") == ("Gone on." if turn == 3 else "A museum.")
        assert user.ask("Was it so?") == "It was so."
        # The turn is told; then the summary, which does not fit before the program leaves something out.
        assert [exchange.reply["status"] for exchange in played.full()] == ["completed", "failed"]
        assert len([exchange for exchange in played.exchanges() if not exchange.body["tools"]]) == 2
        played.assert_well()


@MODELS
def test_killed_server(tmp_path, model):
    """The server is killed while a reply streams. It comes back, the program asks again by itself, and nothing that was
    on disk is computed again."""
    before = [says(run("echo one; echo two"), last="Begin."), says("Begun. " + Text("k").words(60), last="one\ntwo")]
    with play(tmp_path, [*before, says(Text("endless").words(6000), last="Go on.")], model=model) as played:
        user = codex(tmp_path, played)
        assert user.ask("Begin.").startswith("Begun.")
        played.written()
        turn = user.start("Go on.")
        played.kill_in_mid_stream()
        played.start([says("Gone on.", last="Go on."), says("And on.", last="And then?")])
        assert user.answer(turn).endswith("Gone on.")
        assert user.ask("And then?") == "And on."
        played.assert_well()
