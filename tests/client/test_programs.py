"""Smaller programs and frameworks, each through a short session with calls: docs/clients.md says how they are set up, and
scripts/programs.sh installs them; those that are missing are left out. Claude Code, Codex and Hermes have more tests of
their own. `make test` has one that resends everything, one that rewrites its prompt, and one with an
SDK for each API; `make test-long` has them all."""

import pytest

from lib.text import Text
from museum import calls, says
from program import Program, assert_first_prompt, needs, play, requirements, table

pytestmark = pytest.mark.llama


@needs("hermes")
def test_hermes(tmp_path):
    """As the page sets it up; test_clients_hermes.py has longer sessions."""
    script = [says(calls(("terminal", {"command": "cat museum.md"}), text="I look."), last="Look around."),
              says("A museum.", last="north room"), says("The same.", last="And now?"),
              says("A museum", tools=False, times=0)]
    with play(tmp_path, script) as played:
        user = Program("hermes", "Hermes", tmp_path, played.port)
        user.write("museum.md", "# Museum\n\nnorth room\n")
        assert user.ask("Look around.").endswith("A museum.")
        assert user.ask("And now?").endswith("The same.")
        ledger = played.assert_well()
        assert len(ledger.rows) == 3
        assert_first_prompt(ledger, "Hermes")


@needs("aider")
def test_aider(tmp_path):
    """It rewrites a good part of its prompt each turn; what stands before that is computed once."""
    edit = "museum.md\n```\n<<<<<<< SEARCH\nnorth room\n=======\nsouth room\n>>>>>>> REPLACE\n```\n"
    script = [says("A museum. " + Text("aider").words(60), last="Look around."), says(edit, last="Turn it.")]
    with play(tmp_path, script) as played:
        user = Program("aider", "aider", tmp_path, played.port)
        user.write("museum.md", "# Museum\n\nnorth room\n")
        assert "A museum." in user.ask("Look around.")
        assert "Applied edit" in user.ask("Turn it.")
        assert (tmp_path / "work" / "museum.md").read_text() == "# Museum\n\nsouth room\n"
        ledger = played.assert_well()
        assert len(ledger.rows) == 2
        assert_first_prompt(ledger, "aider")


@pytest.mark.long
@needs("mini")
def test_mini_swe_agent(tmp_path):
    script = [says(calls(("bash", {"command": "cat museum.md"}), text="I look."), last="Describe the museum."),
              says(calls(("bash", {"command": "echo a second; wc -l museum.md"}), text="I count."), last="north room"),
              says(calls(("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo done"}), text="Done."),
                   last="a second")]
    with play(tmp_path, script) as played:
        user = Program("mini", "mini-swe-agent", tmp_path, played.port)
        user.write("museum.md", "# Museum\n\nnorth room\n")
        user.ask("Describe the museum.")
        ledger = played.assert_well()
        assert len(ledger.rows) == 3
        assert_first_prompt(ledger, "mini-swe-agent")


@pytest.mark.long
@needs("vibe")
def test_vibe(tmp_path):
    script = [says(calls(("bash", {"command": "cat museum.md"}), text="I look."), last="Look around."),
              says("A museum.", last="north room"),
              says(calls(("bash", {"command": "echo again"})), last="And now?"), says("The same.", last="again")]
    with play(tmp_path, script) as played:
        user = Program("vibe", "Mistral Vibe", tmp_path, played.port)
        user.write("museum.md", "# Museum\n\nnorth room\n")
        assert user.ask("Look around.") == "A museum."
        assert user.ask("And now?") == "The same."
        ledger = played.assert_well()
        assert len(ledger.rows) == 4
        assert_first_prompt(ledger, "Mistral Vibe")


@needs("llm")
def test_llm(tmp_path):
    script = [says(calls(("llm_time", {}), text="I look at the clock."), last="What time is it?"),
              says("Late.", last="timezone"), says("It was.", last="Was it so?")]
    with play(tmp_path, script) as played:
        user = Program("llm", "llm", tmp_path, played.port)
        assert user.ask("What time is it?").endswith("Late.")
        assert user.ask("Was it so?") == "It was."
        ledger = played.assert_well()
        assert len(ledger.rows) == 3
        assert_first_prompt(ledger, "llm")


@needs("pydantic")
@pytest.mark.parametrize("model", ["openai-chat:hearth", "openai-responses:hearth", "anthropic:hearth"])
def test_pydantic_ai(tmp_path, model):
    script = [says(calls(("look_up", {"number": 12}), ("look_up", {"number": 13}), text="I look."), last="Look up 12."),
              says("Vases.", last="found in the north room"), says("Quite old.", last="Is it old?")]
    with play(tmp_path, script, model="tiny-hybrid") as played:
        user = Program("pydantic", "pydantic-ai", tmp_path, played.port)
        assert user.run("python", "museum.py", model, "Look up 12.", "Is it old?") == "Vases.\nQuite old."
        ledger = played.assert_well()
        assert len(ledger.rows) == 3
        assert_first_prompt(ledger, "pydantic-ai")


@pytest.mark.long
@needs("openhands")
def test_openhands(tmp_path):
    script = [says(calls(("think", {"thought": "There are nine of them."}), text="I think."), last="Think of 12."),
              says("I have thought.", last="logged"), says("It is so.", last="Is it so?")]
    with play(tmp_path, script) as played:
        user = Program("openhands", "OpenHands", tmp_path, played.port)
        assert "It is so." in user.run("python", "museum.py", "Think of 12.", "Is it so?")
        ledger = played.assert_well()
        assert len(ledger.rows) == 3
        assert_first_prompt(ledger, "OpenHands")


def test_the_page_names_the_versions():
    """The table of docs/clients.md has the version of each program that is installed for these tests."""
    pinned = requirements()
    assert table()
    for title, (package, version, _) in table().items():
        assert pinned.get(package) == version, f"docs/clients.md has {package} {version} for {title}"
