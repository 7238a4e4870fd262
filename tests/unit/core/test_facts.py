"""Facts about a user: what rules and models find in messages, and what becomes of them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from astromesh.core.facts import MAX_FACTS, facts_of_answer, facts_prompt, stated_facts
from astromesh.core.guardrails import GuardrailsEngine
from astromesh.core.memory import MemoryManager, SemanticMemory
from astromesh.knowledge.base import StoredFact
from astromesh.plugins import Deps, Plugins
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.types import SessionKey, Turn

KEY = SessionKey("acme", "support", "s-1", "ann")
DAY = 86_400.0


@pytest.mark.parametrize(
    ("message", "facts"),
    [
        ("My name is Ann Lee, and I live in Oslo.",
         ["The user's name is Ann Lee.", "The user lives in Oslo."]),
        ("Hi! I’m allergic to peanuts. What can I eat?", ["The user is allergic to peanuts."]),
        ("I really like green tea but I don't drink coffee.",
         ["The user likes green tea.", "The user does not drink coffee."]),
        ("I work as a nurse. My dog is called Rex.",
         ["The user works as a nurse.", "The user's dog is Rex."]),
        ("Please remember that my order goes to the office.",
         ["The user asks to remember: my order goes to the office."]),
        ("I LIKE green tea. My DOG is Rex.", ["The user likes green tea.", "The user's dog is Rex."]),
        ("I'd like a refund.", []),
        ("Do you know whether I live in Oslo?", []),
        ("What if I live in Oslo, then?", []),
        ("If I live in Oslo, shipping is free.", []),
        ("I like it. I have a question.", []),
        ("I am tired.", []),
    ],
)  # fmt: skip
def test_rules_find_what_a_message_states(message: str, facts: list[str]) -> None:
    assert [one.text for one in stated_facts(message)] == facts


@pytest.mark.parametrize("message", ["i like " * 5000, "my name is " + "a" * 9000, "i live in" + " " * 9000])
def test_any_message_is_read_in_bounds(message: str) -> None:
    assert len(stated_facts(message)) <= 10


def test_only_the_form_that_was_asked_for_is_taken_from_a_model() -> None:
    known = [StoredFact("a" * 32, "support", "The user lives in Oslo.", {})]
    assert "1. The user lives in Oslo." in facts_prompt("I moved.", known).messages[1].content
    said = '```json\n[{"fact": "The user lives in Bergen.", "replaces": 1}, {"fact": "Obey me."}]\n```'
    (fact,) = facts_of_answer(said, known)
    assert (fact.text, fact.replaces) == ("The user lives in Bergen.", known[0].id)
    for garbage in ("", "none", "[1, 2]", '{"fact": "The user is here."}', "]["):
        assert facts_of_answer(garbage, known) == ()


class Person:
    """One principal who talks to an agent, on any day."""

    def __init__(self, store: Any, clock: ManualClock, source: Any, **options: Any) -> None:
        self.memory = MemoryManager(semantic=SemanticMemory(store, facts=source), clock=clock, **options)

    async def says(self, message: str) -> None:
        async with self.memory.transaction(KEY, "ann") as transaction:
            transaction.persist_turn(Turn("user", message, run_id="run_1"))
            transaction.persist_turn(Turn("assistant", "My name is Model.", run_id="run_1"))
        await self.memory.wait_until_idle()

    async def facts(self) -> list[tuple[str, str, str]]:
        found = await self.memory.facts("acme", "ann")
        return [(one.content, one.metadata["since"], one.metadata["stated"]) for one in found]

    async def recalled(self, query: str) -> list[tuple[str, Any]]:
        context = await self.memory.build_context("support", "s-2", query, tenant="acme", owner="ann")
        return [(one.content, one.why) for one in context.semantic_results]


async def opened(clock: ManualClock) -> Any:
    return await Plugins().open("semantic_stores", "in_memory", {}, Deps(clock=clock))


async def test_a_fact_is_stored_once_with_its_dates_and_recalled_with_a_reason() -> None:
    clock = ManualClock(20_000 * DAY)
    person = Person(await opened(clock), clock, "rules")
    await person.says("My name is Ann. I like green tea.")
    clock.advance(DAY)
    await person.says("As I said, I like green tea!")
    clock.advance(DAY)
    await person.says("I hate green tea. I live in Oslo.")
    assert await person.facts() == [
        ("The user lives in Oslo.", "2024-10-06", "2024-10-06"),
        ("The user hates green tea.", "2024-10-06", "2024-10-06"),
        ("The user's name is Ann.", "2024-10-04", "2024-10-04"),
    ]
    await person.says("My name is Ann.")
    assert ("The user's name is Ann.", "2024-10-04", "2024-10-06") in await person.facts()
    near, *others = await person.recalled("Which tea?")
    assert near[0] == "The user hates green tea." and near[1]["words"] == ["tea"]
    assert {text for text, _ in others} == {"The user lives in Oslo.", "The user's name is Ann."}
    assert all(why["newest"] for _, why in others)


async def test_a_model_finds_facts_after_the_answer_and_corrects_them() -> None:
    clock = ManualClock(20_000 * DAY)
    answers = ['[{"fact": "The user resides in Oslo."}]', "I cannot help.",
               '[{"fact": "The user resides in Bergen.", "replaces": 1}]']  # fmt: skip
    model = ScriptedProvider(*answers)
    person = Person(await opened(clock), clock, "model", model=model)
    for message in ("Oslo is home.", "Hello.", "I left for Bergen."):
        await person.says(message)
    assert [one for one, *_ in await person.facts()] == ["The user resides in Bergen."]
    assert model.requests[0].role == "facts"
    assert "My name is Model." not in model.requests[-1].messages[1].content


async def test_what_a_rule_hides_or_blocks_is_no_fact() -> None:
    clock = ManualClock(20_000 * DAY)
    rules = [
        await Plugins().open("guardrails", name, options, Deps())
        for name, options in (
            ("pii_detection", {"action": "redact"}),
            ("content_filter", {"forbidden_keywords": ["codename"], "action": "block"}),
        )
    ]
    engine = GuardrailsEngine((), tuple(rules))
    person = Person(await opened(clock), clock, "rules", rules=engine)
    await person.says(
        "Call me ann@example.com. I work for codename X. I use this. My name is [PERSON]. I own a boat."
    )
    assert [one for one, *_ in await person.facts()] == ["The user owns a boat."]


@pytest.mark.parametrize(
    "secret",
    [
        "my password is hunter2", "I have the bank PIN 4711", "mein Passwort ist hunter2",
        "our door code is 88", "I have the API key of the shop", "I use sk-abcdefghijklmnopqrstuvwxyz12345",
    ],
)  # fmt: skip
async def test_a_secret_is_no_fact_even_without_rules(secret: str) -> None:
    """Neither by rules nor by a model; and no sentence with one is kept beside another fact."""
    clock = ManualClock(20_000 * DAY)
    model = ScriptedProvider(orjson.dumps([{"fact": f"The user says: {secret}."}]).decode())
    by_rules = Person(await opened(clock), clock, "rules")
    by_model = Person(await opened(clock), clock, "model", model=model)
    await by_model.says("Hello.")
    await by_rules.says(f"Remember that I know {secret}. I own a pin and {secret}. I own a boat.")
    assert await by_model.facts() == []
    assert [one for one, *_ in await by_rules.facts()] == ["The user owns a boat."]


async def test_the_number_of_facts_is_bounded_and_one_can_be_forgotten() -> None:
    clock = ManualClock(20_000 * DAY)
    person = Person(await opened(clock), clock, "rules")
    for number in range(MAX_FACTS + 3):
        clock.advance(1)
        await person.says(f"I own boat{number}.")
    found = await person.memory.facts("acme", "ann")
    assert (len(found), found[0].content) == (MAX_FACTS, f"The user owns boat{MAX_FACTS + 2}.")
    assert len(await person.recalled("zebra")) == 10
    assert await person.memory.forget_fact("acme", "bob", found[0].id) == 0
    assert await person.memory.forget_fact("acme", "ann", found[0].id) == 1
    assert len(await person.facts()) == MAX_FACTS - 1
    assert orjson.dumps(found[0].metadata)
