"""What the tests of Responses and Messages share: clients, tools in each dialect's form, and what prompts cost."""

import lazy

anthropic = lazy.module("anthropic")
# Beside the server's own: what a client that was made for Anthropic's service sends.
BETAS = "interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14"


def claude(server, path="", **options):
    """Anthropic's SDK for a server."""
    return anthropic.Anthropic(**{"base_url": f"http://127.0.0.1:{server.port}{path}", "api_key": "none", "max_retries": 0,
                                  "timeout": 120, **options})


def flat(tool, **more):
    """A chat completion's function tool as the Responses API has it."""
    return {"type": "function", **tool["function"], **more}


def for_messages(tool, **more):
    """A chat completion's function tool as the Messages API has it."""
    function = tool["function"]
    return {"name": function["name"], "description": function.get("description", ""),
            "input_schema": function["parameters"], **more}


def cost(usage):
    """Of any dialect's usage (an object or JSON): tokens of the prompt, those of them that were computed, and tokens of
    the reply."""
    usage = usage if isinstance(usage, dict) else usage.model_dump()
    if "prompt_tokens" in usage:
        prompt, reply = usage["prompt_tokens"], usage["completion_tokens"]
        return prompt, prompt - usage["prompt_tokens_details"]["cached_tokens"], reply
    if "input_tokens_details" in usage:
        prompt, reply = usage["input_tokens"], usage["output_tokens"]
        return prompt, prompt - usage["input_tokens_details"]["cached_tokens"], reply
    made = usage["input_tokens"] + (usage["cache_creation_input_tokens"] or 0)
    return made + usage["cache_read_input_tokens"], made, usage["output_tokens"]


class Tally:
    """The cost of one conversation, request by request. New is what stands behind the prompt and the reply before, and
    that reply's last token, which was sampled and not computed. A sub-conversation has a tally of its own."""

    def __init__(self):
        self.known = self.computed = self.new = self.requests = 0
        self.rows = []

    def add(self, usage):
        prompt, computed, reply = cost(usage)
        new = prompt - self.known + (1 if self.known else 0)
        assert new > 0, f"the prompt is shorter than what was said: {self.rows}, now {prompt}"
        self.rows.append((prompt, computed, new))
        self.known, self.computed, self.new = prompt + reply, self.computed + computed, self.new + new
        self.requests += 1

    def assert_nothing_twice(self, limit=1.0):
        assert self.computed <= self.new * limit, f"(prompt, computed, new) of each request: {self.rows}"


def chain(responses):
    """The tally of responses, oldest first."""
    tally = Tally()
    for response in responses:
        tally.add(response.usage)
    return tally


