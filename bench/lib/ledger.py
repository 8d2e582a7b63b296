"""Counts what a perfect cache would have to compute.

    new tokens of a request = its prompt's tokens - the longest beginning that an earlier prompt and its reply have

and at least one, because the next token is chosen from the last one's logits. Prompts are rendered and tokenised by the
server itself (/apply-template, /tokenize). A reply is known in two forms: as it was sampled, and as the template prints
it when it comes back in the history: going on from there computes only what stands behind it.
"""

from . import as_chat

# Of a request, what decides what its prompt is.
PROMPT_FIELDS = ("messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "chat_template_kwargs",
                 "reasoning_format")


def common_prefix(a, b):
    """How many elements two lists have in common at their beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def new_tokens(prompt, known):
    """Tokens of `prompt` that nothing in `known` begins with."""
    return max(1, len(prompt) - max((common_prefix(prompt, other) for other in known), default=0))


class Ledger:
    def __init__(self, client):
        self.client, self.known = client, []
        self.rows, self._asked, self._new = [], [], 0  # of each answer: its prompt, computed, new
        self.computed = self.new = self.prompts = self.requests = 0
        ended = self._render({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
                             whole=True)
        # What a template prints behind a reply: the end token is sampled, never computed.
        self._behind = len(self._tokenize(ended[ended.rindex("b") + 1:]))

    def _render(self, body, whole=False):
        fields = {name: body[name] for name in PROMPT_FIELDS if body.get(name) is not None}
        if whole:
            fields["add_generation_prompt"] = False
        return self.client.post("/apply-template", fields)["prompt"]

    def _tokenize(self, text):
        return self.client.post("/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]

    def prompt_of(self, body):
        return self.client.tokenize(self._render(body))

    def new_of(self, body):
        """How many tokens of a request are new, without noting it."""
        return new_tokens(self.prompt_of(body), self.known)

    def ask(self, body):
        """Notes a request when it is sent; returns its new tokens."""
        prompt = self.prompt_of(body)
        new = new_tokens(prompt, self.known)
        self.known.append(prompt)
        self._asked, self._new = prompt, new
        self.new += new
        self.prompts += len(prompt)
        self.requests += 1
        return new

    def answer(self, body, message, computed_tokens):
        """Notes the reply: the message as the client got it."""
        self.computed += computed_tokens
        self.rows.append((len(self._asked), computed_tokens, self._new))
        text = message.get("content") or ""
        if not message.get("tool_calls"):
            self.known.append(self.client.tokenize(self._render(body) + text))
        whole = self.client.tokenize(self._render({**body, "messages": [*body["messages"], message]}, whole=True))
        self.known.append(whole[:len(whole) - self._behind])

    @property
    def ratio(self):
        return self.computed / self.new


def of_exchanges(client, exchanges, lost=()):
    """A ledger of what was recorded (lib/record.py), in the order of arrival, in every dialect. Requests without a
    receipt, because the client went away or the server refused, are known as prompts and count nowhere; those in `lost`
    (their server was killed, or they did not fit its context) are not known either.

    A request without tools that holds a reply may go on from a conversation that had some (Codex summarises so): what is
    new in it is the least that any tools known so far leave. What a server computes because that is quicker than to
    bring it back (compute_cheaper) depends on the machine's speed, and counts as new."""
    ledger, toolsets = Ledger(client), [None]
    for exchange in exchanges:
        if exchange.body is None or exchange.status != 200 or as_chat.dialect(exchange.path) is None or exchange in lost:
            continue
        body = as_chat.body(exchange.path, exchange.body)
        if body.get("tools") and body["tools"] not in toolsets:
            toolsets.append(body["tools"])
        receipt = exchange.reply.get("hearth") if isinstance(exchange.reply, dict) else None
        goes_on = any(message.get("role") == "assistant" for message in body.get("messages", []))
        if goes_on and not body.get("tools") and len(toolsets) > 1:
            body = min(({**body, "tools": tools} for tools in toolsets), key=ledger.new_of)
        if receipt is None:
            ledger.known.append(ledger.prompt_of(body))
            continue
        new, computed = ledger.ask(body), receipt["computed"]
        computed = min(computed, new) if receipt["reason"] == "compute_cheaper" else computed
        ledger.answer(body, as_chat.reply(exchange.path, exchange.reply), computed)
    return ledger
