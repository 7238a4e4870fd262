"""Large values of Tasks: what is taken out, what stays in place, and that all of it comes back."""

from __future__ import annotations

import random
import string
from typing import Any

import orjson
import pytest

from astromesh.durable.sql_tasks import MAX_INLINE, Joiner, Splitter, references, to_json, unpack

LARGE = "x" * (MAX_INLINE + 1)


def stored(value: Any, splitter: Splitter | None = None) -> tuple[bytes, dict[str, bytes]]:
    splitter = splitter or Splitter()
    text = to_json(splitter.split(value))
    return text, {name: unpack(content) for name, content in splitter.found.items()}


@pytest.mark.parametrize(
    "value",
    [
        LARGE,
        {"a": LARGE, "b": {"c": [LARGE, 1, None]}},
        [{"n": n, "text": "short"} for n in range(1000)],
        {"$payload": "not ours"},
        {"$payload": "a" * 64, "other": LARGE},
        {"$payload": {"literal": {"$payload": LARGE}}},
        [{"$payload": {"literal": 1}}, LARGE],
        f'{{"$payload":"{"a" * 64}"}}',
        1.5,
        None,
    ],
)
def test_every_value_comes_back(value: Any) -> None:
    text, payloads = stored(value)
    assert Joiner(payloads).join(text) == value
    assert references(text) >= {name for name in payloads if name.encode() in text}


def test_values_made_at_random_come_back() -> None:
    rng = random.Random(18)

    def made(depth: int) -> Any:
        kind = rng.choice(["text", "number", "list", "object"] if depth else ["text", "number"])
        if kind == "text":
            return "".join(rng.choices(string.printable, k=rng.choice([3, 50, 5000])))
        if kind == "number":
            return rng.choice([1, 2.5, None, True])
        size = rng.randint(0, 4)
        if kind == "list":
            return [made(depth - 1) for _ in range(size)]
        return {rng.choice(["a", "b", "$payload", "literal", "c"]): made(depth - 1) for _ in range(size)}

    for _ in range(200):
        value = made(4)
        text, payloads = stored(value)
        assert len(text) <= MAX_INLINE
        assert orjson.dumps(Joiner(payloads).join(text)) == orjson.dumps(value)


def test_what_is_small_stays_in_place() -> None:
    text, payloads = stored({"a": "x" * (MAX_INLINE - 20)})
    assert payloads == {} and orjson.loads(text) == {"a": "x" * (MAX_INLINE - 20)}


def test_a_large_part_is_taken_out_once_whatever_stands_around_it() -> None:
    splitter = Splitter()
    values = [{"text": LARGE, "step": n} for n in range(5)]
    texts = [to_json(splitter.split(value)) for value in values]
    assert len(splitter.found) == 1 and max(map(len, texts)) < 200
    again = Splitter(splitter.found)
    again.split(values[0])
    assert again.found == {}


def test_equal_parts_come_back_as_one_object() -> None:
    text, payloads = stored([{"one": LARGE}, {"two": LARGE}])
    one, two = Joiner(payloads).join(text)
    assert one["one"] is two["two"]


def test_a_reference_without_its_payload_stays_what_it_is() -> None:
    text, _ = stored(LARGE)
    assert Joiner({}).join(text) == orjson.loads(text)
