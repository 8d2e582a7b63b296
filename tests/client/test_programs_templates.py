"""Claude Code and Codex on templates that refuse what they send: their histories are printed in a form that the template
takes (docs/models.md), the same in every turn. The model's part is as such a model writes it."""

import json
import os

import pytest

from museum import says
from program import Program, needs, play

FOLDER = os.environ.get("HEARTH_TEMPLATES")
pytestmark = [pytest.mark.llama, pytest.mark.skipif(not FOLDER, reason="no HEARTH_TEMPLATES (scripts/deps.sh templates)")]


def mistral(name, arguments):
    return f"[TOOL_CALLS]{name}[CALL_ID]abcDEF123[ARGS]{json.dumps(arguments)}"


def qwen(name, arguments):
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


# Mistral: roles alternate, and ids have nine letters. Qwen: a system message comes first, and thoughts of the past go.
TEMPLATES = pytest.mark.parametrize("template, call, thoughts", [
    ("Mistral-Small-3.2-24B-Instruct-2506", mistral, ""), ("Qwen3.5-4B", qwen, "I think.\n</think>\n\n")])


def session(folder, program, template, call, thoughts):
    """A turn with a call, and one without, in two processes. `program`: its name, its title, and a call."""
    name, title, tool, arguments = program
    script = [says(thoughts + call(tool, arguments), last="Look around."),
              says(thoughts + "A museum.", last="north room"), says(thoughts + "The same.", last="And now?")]
    with play(folder, script, "--chat-template-file", os.path.join(FOLDER, f"{template}.jinja")) as played:
        user = Program(name, title, folder, played.port)
        assert user.ask("Look around.") == "A museum."
        assert user.ask("And now?") == "The same."
        assert len(played.assert_well().rows) == 3


@needs("claude")
@TEMPLATES
def test_claude_code(tmp_path, template, call, thoughts):
    arguments = {"command": "echo north room", "description": "Look"}
    session(tmp_path, ("claude", "Claude Code", "Bash", arguments), template, call, thoughts)


@needs("codex")
@TEMPLATES
def test_codex(tmp_path, template, call, thoughts):
    session(tmp_path, ("codex", "Codex", "exec_command", {"cmd": "echo north room"}), template, call, thoughts)
