"""Recorded texts, made unreadable: every word becomes another one of its length, the same one each time.

What a client sent is its authors' text. Where prompts part, how long they are and what they share does not depend on
the words, so recordings are kept in this form.
"""

import hashlib
import re

_VOWELS, _CONSONANTS = "aeiou", "bcdfghklmnprstvw"
_WORD = re.compile(r"[A-Za-z]{3,}")


def _word(match):
    word = match.group(0)
    digest = hashlib.sha256(word.lower().encode()).digest()
    letters = []
    for i, char in enumerate(word):
        alphabet = _VOWELS if i % 2 else _CONSONANTS
        letter = alphabet[digest[i % len(digest)] % len(alphabet)]
        letters.append(letter.upper() if char.isupper() else letter)
    return "".join(letters)


def text(value):
    return _WORD.sub(_word, value)


def content(value):
    """The content of a message: a string, or parts."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return [{**part, "text": text(part["text"])} if "text" in part else part for part in value]
    return value


def _schema(value):
    """A schema: descriptions only, so that names keep meaning what they mean."""
    if isinstance(value, dict):
        return {key: text(item) if key == "description" and isinstance(item, str) else _schema(item)
                for key, item in value.items()}
    return [_schema(item) for item in value] if isinstance(value, list) else value


def message(value):
    """A message; calls are the model's own words, which were written for the recording."""
    out = dict(value)
    if "content" in out:
        out["content"] = content(out["content"])
    if isinstance(out.get("reasoning_content"), str):
        out["reasoning_content"] = text(out["reasoning_content"])
    return out


def tools(value):
    return _schema(value)
