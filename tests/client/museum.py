"""What the tests of real clients share: scripts, a server that speaks them, and what was recorded of a session.

A small model calls tools badly, so the model's part is written beforehand (`hearth serve --script`); everything else is
real: the client, the server, the tokens and their state, on a model with random weights and a long context ("tiny").
"""

import contextlib
import json
import os
import re

import pytest

from conftest import serve
from lib import server as servers
from lib.ledger import of_exchanges
from lib.record import Recorder
from lib.scripted import call
from lib.text import Text

CHAT = "/chat/completions"
CTX_TOKENS = 131072
CLASSES = ["tiny", "tiny-hybrid", "tiny-window"]  # plain attention, recurrent layers too, a sliding window too
# Whole with each of them, streamed with the first; `make test-long` has all of both.
EACH_WAY = pytest.mark.parametrize("stream, model", [
    pytest.param(stream, model, marks=[pytest.mark.long] if stream and model != "tiny" else [],
                 id=f"{'streamed' if stream else 'whole'}-{model}") for stream in (False, True) for model in CLASSES])
THINKER = os.path.join(os.path.dirname(__file__), "thinking.jinja")
UNSCRIPTED = "This is not in the script."


def says(reply, last=None, tools=None, times=1, system=None):
    """One line of a script: `reply` when a request fits."""
    when = {name: value for name, value in (("last", last), ("tools", tools), ("system", system)) if value is not None}
    return {"when": when, "reply": reply, "times": times}


def calls(*made, text=None):
    """A reply with calls: pairs of a name and arguments."""
    return "\n".join([*([text] if text else []), *(call(name, **arguments) for name, arguments in made)])


def tiny_flags(model="tiny"):
    """Flags for the model with the long context. One thread: its layers are too small to share."""
    return ["-m", os.path.join(servers.models_dir(), f"{model}.gguf"), "-c", str(CTX_TOKENS), "-t", "1"]


class Stage:
    """A server that speaks a script, with a recorder before it."""

    def __init__(self, server, recorder):
        self.server, self.recorder, self.port = server, recorder, recorder.port

    def chats(self):
        self.recorder.await_end()
        return self.recorder.of(CHAT)

    def replies(self):
        return [exchange.reply for exchange in self.chats()]

    def assert_nothing_twice(self, limit=1.02):
        """Every chat completion was answered, and the prompts cost what is new in them."""
        assert [exchange.status for exchange in self.chats()] == [200] * len(self.chats())
        assert not [reply["error"] for reply in self.replies() if reply["error"]]
        assert UNSCRIPTED not in [reply["message"]["content"] for reply in self.replies()]
        ledger = of_exchanges(self.server.client, self.chats())
        assert ledger.requests == len(self.chats())
        rows = [(exchange.reply["hearth"]["computed"], exchange.reply["hearth"]["reason"]) for exchange in self.chats()]
        assert ledger.ratio <= limit, f"computed {ledger.computed}, new {ledger.new}: {rows}"


@contextlib.contextmanager
def stage(folder, script, *flags, model="tiny"):
    path = os.path.join(folder, "script.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in [*script, says(UNSCRIPTED, times=0)])
    with serve(*(flags if "-m" in flags else (*tiny_flags(model), *flags)), "--script", path) as server:
        with Recorder(server.port) as recorder:
            yield Stage(server, recorder)


def tool(name, description, required=None, **properties):
    """A function tool of the OpenAI API. Properties: name to type or schema."""
    properties = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties) if required is None else required}}}


SYSTEM = {"role": "system", "content": "You look after a small museum.\n\n" + Text("agents").words(400)}
LOOK = tool("look_up", "Looks an object up in the catalogue.", number="integer")
LEND = tool("lend", "Lends an object to somebody.", number="integer", borrower={"type": "string", "maxLength": 20}, days="integer")
NOTE = tool("note", "Writes a note.", text={"type": "string", "maxLength": 200})
TOOLS = [LOOK, LEND, NOTE]


class Museum:
    """The tools at work."""

    def __init__(self):
        self.notes, self.loans, self.looked = [], {}, []

    def run(self, name, arguments):
        if name == "look_up":
            self.looked.append(arguments["number"])
            return json.dumps({"number": arguments["number"], "name": f"vase no. {arguments['number']}",
                               "history": Text("vase", arguments["number"]).words(60)})
        if name == "lend":
            self.loans[arguments["number"]] = arguments["borrower"]
            return f"lent {arguments['number']} to {arguments['borrower']} for {arguments['days']} days"
        assert name == "note", name
        self.notes.append(arguments["text"])
        return f"note {len(self.notes)} written"


def words(text):
    return re.findall(r"\w+", text or "")
