"""Reads the metadata of a GGUF file: enough to know a model's shape. Format: ggml's docs/gguf.md, versions 2 and 3."""

import struct

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def _read(file, code):
    return struct.unpack("<" + code, file.read(struct.calcsize("<" + code)))[0]


def _string(file):
    return file.read(_read(file, "Q")).decode("utf-8", "replace")


def _value(file, kind):
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        item, count = _read(file, "I"), _read(file, "Q")
        return [_value(file, item) for _ in range(count)]
    return _read(file, _SCALARS[kind])


def metadata(path):
    """All key-value pairs of the file at `path`."""
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        version = _read(file, "I")
        if version not in (2, 3):
            raise ValueError(f"{path}: GGUF version {version} is not known")
        _read(file, "Q")  # tensors
        pairs = _read(file, "Q")
        out = {}
        for _ in range(pairs):
            key = _string(file)
            out[key] = _value(file, _read(file, "I"))
        return out


class Model:
    """What the benches need to know about a model."""

    def __init__(self, path):
        self.path = path
        self._keys = keys = metadata(path)
        self.arch = keys["general.architecture"]
        self.has_template = bool(keys.get("tokenizer.chat_template"))
        # Anything but plain attention needs a snapshot to be resumed.
        self.plain_attention = not any(
            key.startswith((f"{self.arch}.ssm.", f"{self.arch}.wkv", f"{self.arch}.attention.sliding_window"))
            for key in keys
        )

    def _get(self, name, default=None):
        return self._keys.get(f"{self.arch}.{name}", default)

    def kv_bytes_per_token(self):
        """Bytes of K and V in f16 for one position, all layers. Plain attention only."""
        assert self.plain_attention
        heads = self._get("attention.head_count")
        width = self._get("embedding_length") // heads
        key, value = self._get("attention.key_length", width), self._get("attention.value_length", width)
        return 2 * self._get("block_count") * self._get("attention.head_count_kv", heads) * (key + value)
