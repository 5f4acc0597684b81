"""Secrets print as asterisks and leave nothing behind where they are scrubbed."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.model.event import (
    Emitted,
    Foreign,
    TextFinal,
    ToolCompleted,
    Unknown,
)
from steadyrun.model.event_codec import decode_events, encode_events
from steadyrun.model.secret import REDACTED, SHORTEST_SECRET, Scrubber, Secret
from steadyrun.testing.clock import START

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow/x+\nabc==\n-----END RSA PRIVATE KEY-----"
TOKENS = [
    "sk-" + "ant-" + "a1_B2" * 5,
    "ghp_" + "a1" * 18,
    "gho_" + "a1" * 18,
    "ghs_" + "a1" * 18,
    "github_pat_" + "a1" * 15,
    "xoxb-" + "1234567890-" * 2 + "aB",
    "xapp-1-A0123456789",
    "AKIA" + "ABCD0123" * 2,
    "AIza" + "a-B_0" * 7,
    PEM,
]
CANARIES = [
    "canary-plain",
    'canary-"quoted"',
    "canary-\\back\\slash\\",
    "canary-two\nlines\r\n\ttabbed",
    "canary-grüße-🐤-日本",
    "canary-</script>&'",
    "canary-\x00\x1f",
]


def in_json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def nested(value: Any) -> str:
    return in_json(value).decode()


def scrubbed(scrubber: Scrubber, value: Any) -> Any:
    """Clean a value as the store does: only when its encoding is suspected."""
    cleaned = scrubber.clean(value)
    assert scrubber.is_suspicious(msgspec.msgpack.encode(value)) or cleaned == value
    return cleaned


def test_a_secret_shows_itself_only_when_asked() -> None:
    secret = Secret("hunter22")

    assert secret.reveal() == "hunter22"
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r}", f"{[secret]}"]
    assert not any("hunter22" in text for text in shown)
    assert not hasattr(secret, "__dict__")


def test_secrets_are_equal_by_value() -> None:
    assert Secret("hunter22") == Secret("hunter22")
    assert Secret("hunter22") != Secret("hunter23")
    assert Secret("hunter22") != "hunter22"
    assert len({Secret("hunter22"), Secret("hunter22")}) == 1


def test_a_secret_is_not_encoded_by_accident() -> None:
    with pytest.raises(TypeError):
        msgspec.json.encode({"key": Secret("hunter22")})


@pytest.mark.parametrize("canary", CANARIES)
def test_a_known_value_is_gone_at_every_depth(canary: str) -> None:
    scrubber = Scrubber([Secret(canary)])
    value = {"a": [f"it is {canary}!", {canary: 1}], "b": nested({"c": f"x {canary}"}), "d": 1}

    assert scrubbed(scrubber, value) == {
        "a": [f"it is {REDACTED}!", {REDACTED: 1}],
        "b": nested({"c": f"x {REDACTED}"}),
        "d": 1,
    }


@pytest.mark.parametrize("token", TOKENS)
def test_the_shapes_of_common_tokens_are_known(token: str) -> None:
    for text in (token, f"key={token}", f"({token})", f'"{token}"', f"a {token}, b"):
        assert scrubbed(Scrubber(), [text]) == [text.replace(token, REDACTED)]


@pytest.mark.parametrize(
    "text", ["task-force", "sk-short", "ghp_short", "risk-" + "a" * 30, "AKIA is a prefix", "xox"]
)
def test_ordinary_words_are_left_alone(text: str) -> None:
    assert scrubbed(Scrubber(), [text]) == [text]


def test_short_values_are_no_secrets() -> None:
    assert scrubbed(Scrubber([Secret("1" * (SHORTEST_SECRET - 1))]), ["1111111"]) == ["1111111"]
    assert scrubbed(Scrubber([Secret("1" * SHORTEST_SECRET)]), ["111111"]) == [REDACTED]


@pytest.mark.parametrize("word", ["default", "completed", "text.final", "tool_name"])
def test_plain_words_are_no_secrets(word: str) -> None:
    assert scrubbed(Scrubber([Secret(word)]), [f"the {word} one"]) == [f"the {word} one"]


def test_a_variable_of_any_bytes_can_be_a_secret() -> None:
    scrubber = Scrubber([Secret(b"k\xff\xfe-long-enough".decode(errors="surrogateescape"))])

    assert scrubbed(scrubber, ["nothing"]) == ["nothing"]


def test_bytes_are_scrubbed_too() -> None:
    event = Emitted(1, 0, START, Unknown(raw=b"\xff canary-1 \xfe"))

    [back] = decode_events(encode_events([event], Scrubber([Secret("canary-1")])))

    assert back.event == Unknown(raw=b"\xff " + REDACTED.encode() + b" \xfe")


def test_an_event_of_a_later_version_is_scrubbed_too() -> None:
    def later(key: str) -> Foreign:
        raw = msgspec.msgpack.encode({"type": "later.thing", "key": key})
        return Foreign("later.thing", 2, raw)

    event = later("canary-1")
    emitted = Emitted(1, 0, START, event)

    [back] = decode_events(encode_events([emitted], Scrubber([Secret("canary-1")])))

    assert back.event == later(REDACTED)


def test_a_secret_within_a_secret_goes_as_a_whole() -> None:
    scrubber = Scrubber([Secret("canary1"), Secret("canary1-and-more")])

    assert scrubbed(scrubber, ["canary1-and-more", "canary1!"]) == [REDACTED, f"{REDACTED}!"]


texts = st.text().filter(lambda text: "canary" not in text)


@given(st.text(max_size=12), st.lists(texts, min_size=2, max_size=4), st.integers(0, 2))
def test_scrubbing_is_replacing_in_every_string(tail: str, parts: list[str], depth: int) -> None:
    canary = f"canary-{tail}"
    before, after = canary.join(parts), REDACTED.join(parts)
    for _ in range(depth):
        before, after = nested([before]), nested([after])
    if depth == 2:
        # Deeper than two levels only what needs no escaping is recognized.
        return

    assert scrubbed(Scrubber([Secret(canary)]), {"x": [before]}) == {"x": [after]}


@given(st.lists(st.lists(st.text() | st.sampled_from([*CANARIES, *TOKENS]), max_size=4)))
def test_events_stay_events(lines: list[list[str]]) -> None:
    scrubber = Scrubber([Secret(canary) for canary in CANARIES])
    events = [
        Emitted(n, 0, START, TextFinal(" ".join(parts)))
        if n % 2
        else Emitted(n, 0, START, ToolCompleted("t", "Bash", parts, nested(parts)))
        for n, parts in enumerate(lines)
    ]

    body = encode_events(events, scrubber)

    back = decode_events(body)
    assert [(e.place, e.at, type(e.event)) for e in back] == [
        (e.place, e.at, type(e.event)) for e in events
    ]
    assert not any(canary.encode() in body for canary in CANARIES)
    assert encode_events(back, scrubber) == body


@given(st.text(), st.text())
def test_text_without_secrets_is_untouched(text: str, other: str) -> None:
    scrubber = Scrubber([Secret(f"canary-{other}")])
    if "canary" not in text:
        assert scrubbed(scrubber, [text]) == [text]


@pytest.mark.parametrize("token", TOKENS[:-1])
@pytest.mark.parametrize("before", ["\n", "\t", "\r"])
def test_a_token_at_the_beginning_of_a_line_is_gone(token: str, before: str) -> None:
    assert scrubbed(Scrubber(), [f"key:{before}{token}"]) == [f"key:{before}{REDACTED}"]


def test_a_private_key_inside_json_inside_json_is_gone() -> None:
    service_account = nested({"private_key": PEM})

    assert "MIIEow" not in scrubbed(Scrubber(), [service_account])[0]


@pytest.mark.parametrize("canary", ["canary-grüße-🐤", "canary-\x7f-ü"])
def test_a_known_value_in_anothers_json_is_gone(canary: str) -> None:
    """Python's json writes everything beyond ASCII as an escape; agents print such JSON."""
    scrubber = Scrubber([Secret(canary)])

    assert scrubbed(scrubber, [json.dumps({"k": canary})]) == [json.dumps({"k": REDACTED})]


@pytest.mark.parametrize(
    ("secret", "value"),
    [
        ('secret"', {"text": "the secret"}),
        ('","beta', {"alpha": "x", "beta": "y"}),
        ("123456", {"input_tokens": 123456}),
        ("1234567", {"cost": 0.1234567}),
        ("nabcdef", {"text": "\nabcdef"}),
    ],
)
def test_a_value_that_happens_to_look_like_json_breaks_nothing(secret: str, value: Any) -> None:
    assert scrubbed(Scrubber([Secret(secret)]), value) == value


@pytest.mark.parametrize("secret", ["text.final", "2026-01-01"])
def test_a_value_that_happens_to_be_a_name_or_a_time_loses_no_event(secret: str) -> None:
    event = Emitted(1, 0, START, TextFinal("words"))

    [back] = decode_events(encode_events([event], Scrubber([Secret(secret)])))

    assert back == event
