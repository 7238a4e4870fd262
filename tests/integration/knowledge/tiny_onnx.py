"""A cross-encoder of a few nodes, written byte by byte: a pair's logit counts the words that both texts have.

An ONNX file is a protobuf message; `field` encodes one field of it (onnx.proto, field numbers in the calls).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import tokenizers

FLOAT, INT64, BOOL = 1, 7, 9


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def node(kind: str, inputs: str, output: str, **attributes: int) -> bytes:
    body = b"".join(field(1, name) for name in inputs.split()) + field(2, output) + field(4, kind)
    made = (field(1, name) + field(3, value) + field(20, 2) for name, value in attributes.items())
    return field(1, body + b"".join(field(5, one) for one in made))


def tensor(name: str, kind: int, values: Iterable[float]) -> bytes:
    listed = list(values)
    raw = struct.pack(f"<{len(listed)}{'f' if kind == FLOAT else 'q'}", *listed)
    return field(5, field(1, len(listed)) + field(2, kind) + field(8, name) + field(9, raw))


def value(number: int, name: str, kind: int, *dimensions: str) -> bytes:
    shape = b"".join(field(1, field(2, one)) for one in dimensions)
    return field(number, field(1, name) + field(2, field(1, field(1, kind) + field(2, shape))))


def model(outputs: int) -> bytes:
    """Args: outputs: numbers for each pair; with two classes, the second is "fits"."""
    nodes = [
        node("Cast", "token_type_ids", "second", to=FLOAT), node("Cast", "attention_mask", "real", to=FLOAT),
        node("Cast", "input_ids", "is_known", to=BOOL), node("Cast", "is_known", "known", to=FLOAT),
        node("Sub", "real second", "question"), node("Mul", "question known", "first"),
        node("Unsqueeze", "input_ids two", "rows"), node("Unsqueeze", "input_ids one", "columns"),
        node("Equal", "rows columns", "same"), node("Cast", "same", "equal", to=FLOAT),
        node("Unsqueeze", "first two", "of_first"), node("Unsqueeze", "second one", "of_second"),
        node("Mul", "of_first of_second", "between"), node("Mul", "equal between", "shared"),
        node("ReduceSum", "shared both", "count", keepdims=0), node("Sub", "count least", "centred"),
        node("Unsqueeze", "centred one", "single"), node("Neg", "single", "opposite"),
        node("Concat", "opposite single" if outputs == 2 else "single", "logits", axis=1),
    ]  # fmt: skip
    tensors = [
        tensor("one", INT64, [1]), tensor("two", INT64, [2]), tensor("both", INT64, [1, 2]),
        tensor("least", FLOAT, [1.5]),
    ]  # fmt: skip
    ins = [value(11, one, INT64, "n", "t") for one in ("input_ids", "attention_mask", "token_type_ids")]
    graph = b"".join([*nodes, field(2, "overlap"), *tensors, *ins, value(12, "logits", FLOAT, "n", "k")])
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13))


def write_cross_encoder(folder: Path, words: Iterable[str], outputs: int = 1) -> None:
    """Writes model and tokenizer; other words than these are all the same unknown one, which never counts."""
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model(outputs))
    vocabulary = {"[PAD]": 0, **{word: number for number, word in enumerate(words, 1)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[PAD]"))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A:0", pair="$A:0 $B:1", special_tokens=[]
    )
    made.save(str(folder / "tokenizer.json"))
