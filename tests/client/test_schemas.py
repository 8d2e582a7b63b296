"""Random JSON schemas, as formats of replies and as parameters of a tool that must be called: what comes back is valid
by the schema, or the request is refused with a 400 that names a keyword."""

import json
import random

import jsonschema
import openai
import pytest

NAMES = ["a", "b", "name", "city", "minLength", "$ref", "x-y", "ünï"]
WORDS = ["", "a", "foo", 'b"c', "d\\e", "é\n"]
PATTERNS = ["^[a-z]+$", "foo", r"^\d{3}-\d{4}$", r"^[^@\s]+@[a-z]+\.[a-z]{2,}$", "^(a|b)*c?$", r"\bx\b", '^"q"$', "^.{2,4}$"]
FORMATS = ["date", "uuid", "email", "uri"]


class Schemas:
    """A small generator: every keyword that a client may think of, most of them where they make sense."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def maybe(self, chance):
        return self.random.random() < chance

    def value(self):
        return self.random.choice([None, True, 1, -3, 2.5, *WORDS, [], ["a"], {"a": 1}])

    def numbers(self, kind):
        schema = {"type": kind}
        if self.maybe(0.5):
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = self.random.choice([-300, 0, 0.5, 1, 105])
        if self.maybe(0.5):
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = self.random.choice([-1, 0.9, 3, 255, 12345])
        if self.maybe(0.2):
            schema["multipleOf"] = self.random.choice([1, 5, 0.01])
        return schema

    def string(self):
        schema = {"type": "string", "maxLength": self.random.choice([3, 11, 40])}
        if self.maybe(0.3):
            schema["minLength"] = self.random.choice([1, 2, 12])
        if self.maybe(0.3):
            schema["pattern"] = self.random.choice(PATTERNS)
        if self.maybe(0.2):
            schema["format"] = self.random.choice(FORMATS)
        return schema

    def array(self, depth):
        schema = {"type": "array", "items": self.schema(depth + 1), "maxItems": self.random.randrange(4)}
        if self.maybe(0.3):
            schema["minItems"] = self.random.randrange(3)
        if self.maybe(0.2):
            schema["uniqueItems"] = True
        if self.maybe(0.2):
            schema["prefixItems"] = [self.schema(depth + 1)]
        return schema

    def object(self, depth):
        names = self.random.sample(NAMES, self.random.randrange(1, 4))
        schema = {"type": "object", "properties": {name: self.schema(depth + 1) for name in names}}
        if self.maybe(0.7):
            schema["required"] = names[: self.random.randrange(len(names) + 1)]
        if self.maybe(0.4):
            schema["additionalProperties"] = self.random.choice([False, True, {"type": "null"}])
        for keyword in ("minProperties", "maxProperties"):
            if self.maybe(0.1):
                schema[keyword] = self.random.randrange(1, 3)
        if self.maybe(0.05):
            schema["patternProperties"] = {"^x": {}}
        return schema

    def schema(self, depth=0):
        kinds = ["boolean", "null", "number", "integer", "string", "enum", "any of", "one of", "all of"]
        kind = self.random.choice(kinds + ["array", "object", "object"] * (depth < 3)) if depth else "object"
        if kind in ("boolean", "null"):
            return {"type": kind}
        if kind in ("number", "integer"):
            return self.numbers(kind)
        if kind == "enum":
            return {"enum": [self.value() for _ in range(3)]}
        if kind.endswith(" of"):
            branches = [self.schema(depth + 1) for _ in range(self.random.randrange(1, 3))]
            return {kind[:3] + "Of": branches}
        return self.string() if kind == "string" else getattr(self, kind)(depth)


def checked(schema, text):
    value = json.loads(text)
    jsonschema.Draft202012Validator(schema).validate(value)


def refused(error):
    assert error.status_code == 400 and ":" in error.body["message"], error
    return True


@pytest.mark.llama
@pytest.mark.parametrize("seed", range(10))
def test_formats_are_kept(chat, seed):
    schema = Schemas(seed).schema()
    try:
        reply = chat("Write JSON.", max_tokens=150, temperature=1, seed=seed,
                     response_format={"type": "json_schema", "json_schema": {
                         "name": "x", "strict": True, "schema": schema}})
    except openai.APIStatusError as error:
        assert refused(error)
        return
    if reply.choices[0].finish_reason == "stop":
        checked(schema, reply.choices[0].message.content)


@pytest.mark.llama
@pytest.mark.parametrize("seed", range(100, 110))
def test_arguments_are_kept(chat, seed):
    schema = Schemas(seed).schema()
    tool = {"type": "function", "function": {"name": "f", "description": "does it", "parameters": schema}}
    try:
        reply = chat("Call it.", max_tokens=150, temperature=1, seed=seed, tools=[tool], tool_choice="required")
    except openai.APIStatusError as error:
        assert refused(error)
        return
    if reply.choices[0].finish_reason == "tool_calls":
        for call in reply.choices[0].message.tool_calls:
            assert call.function.name == "f"
            checked(schema, call.function.arguments)
