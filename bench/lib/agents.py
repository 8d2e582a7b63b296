"""Agents that take turns: which conversation asks next, when many are at work at once.

Rhythms are those of recorded coding sessions: quantiles of 448 sessions of Claude Code with 27,000 requests. An agent
works for a user: a loop of requests, each a tool's gap behind the one before it; then the user reads, thinks or goes
away, and asks again; in the end the conversation is over, and another one begins in its place. Sizes of prompts are the
same quantiles, scaled down.
"""

import heapq
import math
import random
from dataclasses import dataclass

# What 5, 10, 25, 50, 75, 90 and 95 % of all are below.
SHARES = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
TOOL_GAP_S = (3.4, 4.0, 5.4, 9.0, 20.8, 84.1, 175.8)   # from a reply that calls a tool to the next request
USER_GAP_S = (3.8, 6.5, 71.5, 217.9, 971, 2996, 7858)  # from one that does not
LOOP = (1, 1, 2, 5, 16, 35, 52)                        # requests until a reply calls no tool
REQUESTS = (3, 5, 13, 33, 87, 146, 218)                # of a session
FIRST_TOKENS = (13048, 15459, 18940, 26790, 105228, 259335, 423052)
MORE_TOKENS = (150, 192, 339, 694, 1680, 3910, 6703)   # that a prompt has more than the one before it
REPLY_S = 8
SIDE_SHARE = 0.06   # of requests: a title or a check of a command is asked for first
SIDE_TOKENS = 400


@dataclass
class Ask:
    conversation: int
    tokens: int          # more than its prompt before
    user: bool           # a user asks; otherwise a tool's result comes
    calls: bool = False  # the reply is to call a tool
    side: bool = False   # a prompt of its own, which nobody goes on with


def _draw(dice, values):
    """A number of a distribution that is known by quantiles: between them by logarithm, and never beyond them."""
    share = min(max(dice.random(), SHARES[0]), SHARES[-1])
    above = next(i for i, known in enumerate(SHARES) if share <= known and i > 0)
    part = (share - SHARES[above - 1]) / (SHARES[above] - SHARES[above - 1])
    return math.exp((1 - part) * math.log(values[above - 1]) + part * math.log(values[above]))


class _Agent:
    def __init__(self, dice, conversation, scale, most_tokens):
        self._dice, self._scale, self._conversation = dice, scale, conversation
        self._left, self._loop, self._room = round(_draw(dice, REQUESTS)), 0, most_tokens
        self._first, self._user, self.over = True, True, False

    def ask(self):
        """The next request, and how long after it the one behind it comes."""
        dice = self._dice
        tokens = int(self._scale * _draw(dice, FIRST_TOKENS if self._first else MORE_TOKENS))
        tokens = max(16, min(tokens, self._room // 3 if self._first else self._room))
        if self._user:
            self._loop = round(_draw(dice, LOOP))
        self._left, self._loop, self._room = self._left - 1, self._loop - 1, self._room - tokens
        self.over = self._left <= 0 or self._room < 1000
        found = Ask(self._conversation, tokens, self._user, calls=self._loop > 0 and not self.over)
        self._first, self._user = False, not found.calls
        return found, REPLY_S + _draw(dice, USER_GAP_S if self._user else TOOL_GAP_S)


def asks(count, seed, at_once=16, scale=0.25, most_tokens=20000):
    """So many requests of so many agents at once, in the order in which they come."""
    dice, names = random.Random(f"agents/{seed}"), iter(range(1 << 30))
    waiting = [(60 * dice.random(), number, _Agent(dice, next(names), scale, most_tokens))
               for number in range(at_once)]
    heapq.heapify(waiting)
    out = []
    while len(out) < count:
        at_s, number, agent = heapq.heappop(waiting)
        if dice.random() < SIDE_SHARE:
            out.append(Ask(next(names), SIDE_TOKENS, True, side=True))
        found, gap_s = agent.ask()
        out.append(found)
        if agent.over:
            agent = _Agent(dice, next(names), scale, most_tokens)
        heapq.heappush(waiting, (at_s + gap_s, number, agent))
    return out[:count]


def mean_prompt(found):
    """The mean length of the conversations' prompts, in tokens."""
    lengths, prompts = {}, []
    for ask in found:
        lengths[ask.conversation] = lengths.get(ask.conversation, 0) + ask.tokens
        prompts += [] if ask.side else [lengths[ask.conversation]]
    return sum(prompts) // len(prompts)
