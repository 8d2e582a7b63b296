"""How agents use a server, as sequences of requests.

A scenario is a generator: it yields a Turn, is sent the reply's text and goes on from there. Text is deterministic,
replies are the model's own, so the requests of two servers differ only where their replies do.
"""

import json
from dataclasses import dataclass

from .text import Text

SYSTEM_WORDS = 500


@dataclass
class Turn:
    conversation: object
    messages: list


class Chat:
    """A conversation: its messages so far."""

    def __init__(self, messages=(), system=None):
        self.messages = list(messages)
        if system is not None:
            self.messages.append({"role": "system", "content": system})

    def say(self, content, role="user"):
        """Adds a message, asks for a reply and keeps it: `yield from chat.say(…)`."""
        self.messages.append({"role": role, "content": content})
        reply = yield Turn(self, list(self.messages))
        self.messages.append({"role": "assistant", "content": reply})
        return reply

    def fork(self):
        return Chat(self.messages)


def system_text(*seed, scale=1.0):
    notes = Text("system", *seed).words(int(SYSTEM_WORDS * scale))
    return f"You are the assistant of a small museum. Follow these notes.\n\n{notes}"


# `scale` shortens what is long, for a quick look.

def alternating(scale=1.0):
    """Three alternating conversations over a shared system prompt"""
    text, system = Text("alternating"), system_text(scale=scale)
    chats = [Chat(system=system) for _ in range(3)]
    for turn in range(5):
        for chat in chats:
            yield from chat.say(text.ask(int(300 * scale) if turn == 0 else 25))


def side_prompts(scale=1.0):
    """One conversation with title requests in between"""
    text, main = Text("side prompts"), Chat(system=system_text(scale=scale))
    for turn in range(8):
        asked = text.ask(60)
        answered = yield from main.say(asked)
        title = Chat(system="Write a title of three to five words for the conversation. Answer with the title alone.")
        yield from title.say(f"User: {asked}\nAssistant: {answered}")


def sub_agents(scale=1.0):
    """A long conversation with sub-agents over the same system prompt"""
    text, system = Text("sub-agents"), system_text(scale=scale)
    main = Chat(system=system)
    yield from main.say(text.ask(int(1000 * scale)))
    for _ in range(5):
        agent = Chat(system=system)
        yield from agent.say("Sub-task: " + text.ask(50))
        yield from agent.say(text.ask(20))
        yield from main.say(text.ask(25))


def branches(scale=1.0):
    """Two alternating branches of one conversation"""
    text, stem = Text("branches"), Chat(system=system_text(scale=scale))
    for _ in range(3):
        yield from stem.say(text.ask(100))
    forks = [stem.fork(), stem.fork()]
    for _ in range(4):
        for fork in forks:
            yield from fork.say(text.ask(40))


def probes(scale=1.0):
    """A tool loop of twelve turns, with ten probes in between"""
    text, chat = Text("tool loop"), Chat(system=system_text(scale=scale))
    yield from chat.say(text.ask(80))
    for call in range(11):
        if call < 10:
            probe = Chat(system="You review commands. Answer with one word: safe or unsafe.")
            yield from probe.say(f"Command {call}: " + text.words(20))
        result = {"call": call, "status": "ok", "output": text.words(60)}
        yield from chat.say(json.dumps(result), role="tool")


def fan_out(scale=1.0):
    """Twelve conversations over one system prompt, visited twice"""
    text, system = Text("twelve"), system_text(scale=scale)
    chats = [Chat(system=system) for _ in range(12)]
    for words in (40, 25):
        for chat in chats:
            yield from chat.say(text.ask(words))


def separate(scale=1.0, count=6, visits=3):
    """Conversations that share nothing, each visited several times, in turn"""
    text = Text("separate")
    chats = [Chat(system=system_text("separate", number, scale=scale)) for number in range(count)]
    for visit in range(visits):
        for chat in chats:
            yield from chat.say(text.ask(60 if visit == 0 else 25))
