"""Streams of events and lines are read the same however they are cut; untrusted addresses are judged."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astromesh.errors import AddressForbidden, AnswerTooLarge
from astromesh.net.ssrf_guard import SsrfGuard, is_public
from astromesh.net.stream_parsers import LineParser, ServerEvent, SseParser

# -- server-sent events --------------------------------------------------------------------------------------

lines = st.sampled_from(
    [
        "data: a",
        "data:b",
        "data",
        "data: ",
        "data:  two",
        "event: tick",
        "id: 7",
        ": note",
        "retry: 1",
        "x: y",
        "",
    ]
)
line_ends = st.sampled_from(["\n", "\r\n", "\r"])


def reference(text: str) -> list[ServerEvent]:
    """The standard's algorithm, line by line, over the whole text at once (WHATWG HTML 9.2.6).

    But without those events whose data is empty.
    """
    events: list[ServerEvent] = []
    data: list[str] = []
    event, last_id = "", ""
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]:
        field, colon, value = line.partition(":")
        value = value.removeprefix(" ") if colon else ""
        if not line:
            if "\n".join(data):
                events.append(ServerEvent("\n".join(data).encode(), event, last_id))
            data, event, last_id = [], "", ""
        elif field == "data":
            data.append(value)
        elif field == "event":
            event = value
        elif field == "id":
            last_id = value
    return events


@st.composite
def cut_streams(draw) -> tuple[str, list[bytes]]:
    text = "".join(line + end for line, end in draw(st.lists(st.tuples(lines, line_ends), max_size=25)))
    raw = text.encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    return text, chunks


@given(cut_streams())
def test_events_are_those_of_the_standard_however_the_stream_is_cut(stream):
    text, chunks = stream
    parser = SseParser()
    got = [event for chunk in chunks for event in parser.feed(chunk)]
    expected = reference(text)
    # a carriage return at the very end may still become a line end of two characters
    assert got == expected or got + parser.finish() == expected


def test_a_mark_at_the_beginning_is_no_part_of_the_first_event():
    assert SseParser().feed(b"\xef\xbb\xbfdata: a\n\n") == [ServerEvent(b"a")]


def test_the_last_event_may_lack_its_blank_line():
    parser = SseParser()
    assert parser.feed(b"data: [DONE]\n") == []
    assert parser.finish() == [ServerEvent(b"[DONE]")]


@pytest.mark.parametrize("parser", [SseParser(limit=100), LineParser(limit=100)])
def test_an_event_without_an_end_is_bounded(parser):
    for _ in range(10):
        assert parser.feed(b"x" * 10) == []
    with pytest.raises(AnswerTooLarge):
        parser.feed(b"x")


@given(st.lists(st.binary().filter(lambda b: b.strip() == b and b and b"\n" not in b)), st.integers(1, 7))
def test_lines_are_the_same_however_the_stream_is_cut(given_lines, size):
    raw = b"\n\n".join(given_lines)
    parser = LineParser()
    got = [line for i in range(0, len(raw), size) for line in parser.feed(raw[i : i + size])]
    assert [line.data for line in got + parser.finish()] == given_lines


# -- the forgery guard ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.2.1",
        "::1", "::", "fe80::1", "fd00::1", "fec0::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1",
        "2001:db8::1", "64:ff9b:1::a00:1", "::ffff:0:7f00:1", "192.0.0.8", "3fff::1", "5f00::1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_of_the_open_internet_are_refused(address):
    assert not is_public(ip_address(address))
    with pytest.raises(AddressForbidden):
        SsrfGuard().check_literal(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_pass(address):
    assert is_public(ip_address(address))
    SsrfGuard().check_literal(address)


@given(st.integers(0, 2**32 - 1))
def test_an_address_is_judged_the_same_however_it_is_wrapped(number):
    plain = ip_address(number)
    for prefix in (0xFFFF << 32, 0x64FF9B << 96):
        assert is_public(ip_address(prefix | number)) == is_public(plain)


def test_an_operator_may_allow_names_suffixes_addresses_and_networks():
    guard = SsrfGuard(["wiki.local", "*.corp.local", "10.1.0.0/16", "127.0.0.1"])
    assert guard.allows_name("WIKI.local.")
    assert guard.allows_name("a.b.corp.local")
    assert not guard.allows_name("corp.local.evil.test")
    assert not guard.allows_name("evilcorp.local")
    assert guard.permits("10.1.2.3")
    assert guard.permits("127.0.0.1")
    assert not guard.permits("10.2.0.1")
    assert not guard.permits("no address")


@pytest.mark.parametrize("entry", ["", "*", "a*.test", "10.0.0.0/99"])
def test_an_entry_that_means_nothing_is_refused(entry):
    with pytest.raises(ValueError):  # noqa: PT011 (the config names file and line)
        SsrfGuard([entry])
