"""Requests that are made to fit the models of a router: tools, images, the context window."""

from __future__ import annotations

from itertools import pairwise

import pytest

from astromesh.core.routing import NOTHING, ModelLimits, Outgrown, fitted, outgrown, shortened_summary
from astromesh.errors import InvalidInput, PayloadTooLarge
from astromesh.providers.base import Capabilities
from astromesh.testing import ScriptedProvider
from astromesh.tokens import estimate_request
from astromesh.types import Attachment, CompletionRequest, Image, Message, Role, ToolCall, ToolSpec

SYSTEM, QUESTION = Message("system", "Be brief."), Message("user", "And now?")
WINDOW = ModelLimits("local/m", window=1000)


def turns(number: int, size: int = 200, first: int = 0) -> list[Message]:
    """A history; each message names its place."""
    roles: tuple[Role, Role] = ("user", "assistant")
    return [Message(roles[i % 2], f"{i:03d} " + "x" * (size - 4)) for i in range(first, first + number)]


def calls(number: int, size: int = 800) -> list[Message]:
    found: list[Message] = []
    for i in range(number):
        found.append(Message("assistant", "", (ToolCall(f"c{i}", "look", "{}"),)))
        found.append(Message("tool", f"{i:03d} " + "r" * (size - 4), tool_call_id=f"c{i}", name="look"))
    return found


def request(*messages: Message) -> CompletionRequest:
    return CompletionRequest((SYSTEM, *messages))


def test_what_fits_is_left_as_it_is() -> None:
    small = request(*turns(4), QUESTION)
    assert fitted(small, WINDOW) == (small, NOTHING)
    assert fitted(request(*turns(400), QUESTION), ModelLimits())[1] is NOTHING


def test_the_oldest_turns_go_and_system_prompt_and_question_stay() -> None:
    found, left = fitted(request(*turns(40), QUESTION), WINDOW)
    assert estimate_request(found) <= 800
    assert (found.messages[0], found.messages[-1]) == (SYSTEM, QUESTION)
    kept = found.messages[1:-1]
    assert list(kept) == turns(40)[-len(kept) :]
    assert kept[0].role == "user"
    assert left.messages == 40 - len(kept) > 0


def test_the_cut_moves_in_blocks() -> None:
    """While a conversation grows turn by turn, its beginning changes rarely."""
    firsts = []
    for number in range(20, 60, 2):
        found, _ = fitted(request(*turns(number), QUESTION), WINDOW)
        firsts.append(found.messages[1].content[:3])
    changes = sum(one != other for one, other in pairwise(firsts))
    assert 0 < changes <= len(firsts) / 2


def test_the_cut_stays_while_memory_forgets_the_oldest_turns() -> None:
    """It is a multiple of a number of messages from the first of all, so the cache of the model holds."""
    firsts = []
    for earlier in range(2, 42, 2):
        found, left = fitted(request(*turns(400, 20, earlier), QUESTION), WINDOW, earlier)
        assert estimate_request(found) <= 800
        firsts.append(int(found.messages[1].content[:3]))
        assert left.messages == firsts[-1] - earlier
    assert sorted(set(firsts)) == [320, 336, 352, 368]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("number", [6, 12, 30])
def test_tool_calls_go_with_their_results(number: int) -> None:
    found, left = fitted(request(*turns(6), QUESTION, *calls(number)), WINDOW)
    assert estimate_request(found) <= 800
    assert found.messages[1] == QUESTION  # the history is older
    asked = [call.id for message in found.messages for call in message.tool_calls]
    answered = [message.tool_call_id for message in found.messages if message.role == "tool"]
    assert asked == answered
    assert asked[-1] == f"c{number - 1}"
    assert left == (6, number - len(asked))


def test_one_result_that_is_too_large_is_cut() -> None:
    found, left = fitted(request(QUESTION, *calls(1, size=40_000)), WINDOW)
    assert estimate_request(found) <= 800
    assert found.messages[-1].content.startswith("000 rrr")
    assert "characters are left out: the model's context window is full" in found.messages[-1].content
    assert left.tool_results == 1


def test_a_question_that_is_too_large_alone_is_refused_with_the_window() -> None:
    with pytest.raises(PayloadTooLarge, match="local/m, 1000 tokens"):
        fitted(request(Message("user", "x" * 4200)), WINDOW)
    nearly = request(*turns(4), Message("user", "x" * 3600))
    assert [m.role for m in fitted(nearly, WINDOW)[0].messages] == ["system", "user"]


def test_tools_are_left_out_where_no_model_can_call_them() -> None:
    tools = (ToolSpec("look"),)
    asked = CompletionRequest((QUESTION,), tools=tools, tool_choice="required")
    found, _ = fitted(asked, ModelLimits(tools=False))
    assert (found.tools, found.tool_choice) == ((), "auto")
    assert fitted(asked, ModelLimits())[0] is asked


def test_images_are_refused_where_no_model_accepts_them() -> None:
    picture = Message("user", "What is this?", attachments=(Image("https://example.org/x.png"),))
    with pytest.raises(InvalidInput, match="accepts no images"):
        fitted(request(picture), ModelLimits("local/m", images=False))


def test_audio_is_refused_where_no_model_accepts_it() -> None:
    spoken = Message(
        "user", "What is this?", attachments=(Attachment(data="UklGRg==", media_type="audio/wav"),)
    )
    with pytest.raises(InvalidInput, match="local/m accepts no audio") as refused:
        fitted(request(spoken), ModelLimits("local/m", audio=False))
    assert refused.value.param == "attachments"
    asked = request(spoken)
    assert fitted(asked, ModelLimits("local/m", images=False, audio=True))[0] is asked


# -- summaries of what does not fit --------------------------------------------------------------------------


def test_what_a_conversation_has_outgrown_is_asked_for_as_a_summary() -> None:
    history = turns(40)
    assert outgrown((SYSTEM, *history[:4], QUESTION), (), WINDOW) is None
    found = outgrown((SYSTEM, *history, QUESTION), (), WINDOW)
    assert found is not None
    assert [*found.dropped, *found.remaining[1:-1]] == history
    asked = found.prompt(WINDOW)
    share = 2000 // len(found.dropped)  # of half of the window
    lines = [f"{one.role}: {one.content[: max(share, 80)]}" for one in found.dropped]
    assert (asked.role, asked.answers, asked.messages[0].role) == ("summary", False, "system")
    assert asked.messages[1] == Message("user", "\n".join(lines))
    assert found.prompt(WINDOW, "Before.").messages[1].content.startswith("Before.\n\nuser: 000 xxx")


def test_a_summary_stands_in_the_system_prompt_in_place_of_the_one_before() -> None:
    kept = (QUESTION,)
    assert Outgrown((), kept).with_summary("S.") == (Message("system", "S."), QUESTION)
    assert Outgrown((), (SYSTEM, *kept)).with_summary("S.") == (
        Message("system", "Be brief.\n\nS."),
        QUESTION,
    )
    again = Outgrown((), (Message("system", "Be brief.\n\nOld. Old."), *kept))
    assert again.with_summary("S.", "Old.")[0].content == "Be brief.\n\nS. Old."
    assert again.with_summary("S.", "Other.")[0].content == "Be brief.\n\nOld. Old.\n\nS."
    assert shortened_summary(f" {'x' * 900} ", WINDOW) == "x" * 400


def test_the_limits_of_several_models_are_those_of_the_best() -> None:
    small = ScriptedProvider("a", capabilities=Capabilities(tools=False, text_only=True, context_window=1000))
    large = ScriptedProvider("b", capabilities=Capabilities(context_window=8000))
    unknown = ScriptedProvider("c", capabilities=Capabilities(tools=False))
    assert ModelLimits.of([small])[1:4] == (False, False, 1000)
    assert ModelLimits.of([small, large])[1:4] == (True, True, 8000)
    assert ModelLimits.of([small, unknown])[1:4] == (False, True, 0)
