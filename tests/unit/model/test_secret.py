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
from steadyrun.model.secret import SHORTEST_SECRET, Scrubber, Secret
from steadyrun.model.token_shapes import REDACTED
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
    "sk-" + "ant-api03-" + "a1_B2" * 18 + "-AA",
    "sk-" + "ant-oat01-" + "a1_B2" * 18,
    "sk-" + "proj-" + "a1_B2-" * 20,
    "sk-" + "svcacct-" + "a1_B2-" * 20,
    "sk-" + "or-v1-" + "0a9f" * 16,
    "ya29." + "a0AfH6SM-b_" * 10,
    "GOCSPX-" + "a1_B" * 7,
    "gsk_" + "a1B2" * 13,
    "xai-" + "a1B2" * 20,
    "hf_" + "a1B2" * 8 + "cD",
    "glpat-" + "a1_B2" * 4,
    "npm_" + "a1B2" * 9,
    "pypi-" + "AgEIcHlwaS5vcmcC" + "a1_B2" * 20,
    "dckr_pat_" + "a1_B2" * 5 + "xy",
    "ASIA" + "ABCD0123" * 2,
    "Ab1" + "8Q~" + "a1_B.~" * 5 + "abcd",
    "sk_live_" + "a1B2" * 6,
    "rk_test_" + "a1B2" * 6,
    "whsec_" + "a1B2" * 8,
    "xoxc-" + "1234567890-" * 3 + "aB",
    "hooks.slack.com/services/" + "T0123ABCD/B0123ABCD/" + "a1B2" * 6,
    "MTA5" + "ODc2NTQzMjEwOTg3NjU0" + "Mw" + ".Gh-1_x." + "a1_B2-" * 6 + "ab",
    "MTM0" + "NTY3ODkwMTIzNDU2Nzg5" + "MA" + ".GaBcDe." + "a1_B2-" * 6 + "ab",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    PEM,
]
# Texts that look a little like tokens.
ORDINARY = [
    "task-force", "sk-short", "ghp_short", "risk-" + "a" * 30, "AKIA is a prefix", "xox",
    "xoxo, love", "the AMTA meeting, MTA and MTI", "npm_config_registry=https://registry.example",
    "npm_lifecycle_event", "hf_hub_download(repo_id, filename)", "self.hf_token_is_set = True",
    "gsk_ is the prefix of Groq keys", "xai-grok-4-fast-reasoning", "pypi-publish and pypi-mirror",
    "eyJ begins every JSON object in base 64", "eyJhIjoxfQ==", "sk_live_ and sk_test_ keys",
    "aws_secret_access_key = ${AWS_SECRET_ACCESS_KEY}", "AWS_SECRET_ACCESS_KEY is not set",
    "AccountKey=<your key>", "arn:aws:iam::123456789012:role/ASIA-team", "ya29.com", "r8_t, g8_t",
    "d41d8cd98f00b204e9800998ecf8427e", "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "tvly-search, pplx-api",
    "https://hooks.slack.com/services/ is the address", "-----BEGIN CERTIFICATE-----",
    "the end of a key is -----END CERTIFICATE-----", "whsec_ is a prefix", "https://eyJ.example.com",
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk", "dop_v1_ tokens", "glpat-short",
]  # fmt: skip
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


def test_secret_is_shown_only_by_reveal() -> None:
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


def test_secret_cannot_be_encoded() -> None:
    with pytest.raises(TypeError):
        msgspec.json.encode({"key": Secret("hunter22")})


@pytest.mark.parametrize("canary", CANARIES)
def test_known_secret_is_removed_at_every_depth(canary: str) -> None:
    scrubber = Scrubber([Secret(canary)])
    value = {"a": [f"it is {canary}!", {canary: 1}], "b": nested({"c": f"x {canary}"}), "d": 1}

    assert scrubbed(scrubber, value) == {
        "a": [f"it is {REDACTED}!", {REDACTED: 1}],
        "b": nested({"c": f"x {REDACTED}"}),
        "d": 1,
    }


@pytest.mark.parametrize("token", TOKENS)
def test_common_token_formats_are_removed(token: str) -> None:
    for text in (token, f"key={token}", f"({token})", f'"{token}"', f"a {token}, b"):
        assert scrubbed(Scrubber(), [text]) == [text.replace(token, REDACTED)]


@pytest.mark.parametrize(
    ("before", "secret", "after"),
    [
        ("aws_secret_access_key = ", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzEXAMPLEKE", "\n[other]"),
        ('"SecretAccessKey": "', "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzEXAMPLEKE", '"'),
        ("export AWS_SECRET_ACCESS_KEY='", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzEXAMPLEKE", "'"),
        ("AccountName=a;AccountKey=", "aB1+" * 21 + "aB==", ";EndpointSuffix=core.windows.net"),
    ],
)
def test_secret_behind_a_name_is_removed_and_the_name_stays(
    before: str, secret: str, after: str
) -> None:
    text = f"{before}{secret}{after}"

    assert scrubbed(Scrubber(), [text]) == [f"{before}{REDACTED}{after}"]


@pytest.mark.parametrize("cut", [30, 90, 130, 300])
def test_private_key_without_its_beginning_is_removed(cut: int) -> None:
    line = "MIIEowIBAAKCAQEA7Zq3+x/Kd9mQ2bWv5nT8yLr1cXh4PfUo6GsJkE0aBiDlNtRw"
    key = "\n".join(
        ["-----BEGIN PRIVATE KEY-----", *[line] * 8, "Zt9Q==", "-----END PRIVATE KEY-----"]
    )

    cleaned = Scrubber().clean_end(f"{key} after"[cut:])

    assert "MIIEow" not in cleaned
    assert "Zt9Q" not in cleaned
    assert cleaned.endswith(" after")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_words_are_unchanged(text: str) -> None:
    assert scrubbed(Scrubber(), [text]) == [text]


def test_short_values_are_not_secrets() -> None:
    assert scrubbed(Scrubber([Secret("1" * (SHORTEST_SECRET - 1))]), ["1111111"]) == ["1111111"]
    assert scrubbed(Scrubber([Secret("1" * SHORTEST_SECRET)]), ["111111"]) == [REDACTED]


@pytest.mark.parametrize("word", ["default", "completed", "text.final", "tool_name"])
def test_plain_words_are_not_secrets(word: str) -> None:
    assert scrubbed(Scrubber([Secret(word)]), [f"the {word} one"]) == [f"the {word} one"]


def test_secret_may_have_any_bytes() -> None:
    scrubber = Scrubber([Secret(b"k\xff\xfe-long-enough".decode(errors="surrogateescape"))])

    assert scrubbed(scrubber, ["nothing"]) == ["nothing"]


def test_bytes_are_scrubbed() -> None:
    event = Emitted(1, 0, START, Unknown(raw=b"\xff canary-1 \xfe"))

    [back] = decode_events(encode_events([event], Scrubber([Secret("canary-1")])))

    assert back.event == Unknown(raw=b"\xff " + REDACTED.encode() + b" \xfe")


def test_event_of_a_later_version_is_scrubbed() -> None:
    def later(key: str) -> Foreign:
        raw = msgspec.msgpack.encode({"type": "later.thing", "key": key})
        return Foreign("later.thing", 2, raw)

    event = later("canary-1")
    emitted = Emitted(1, 0, START, event)

    [back] = decode_events(encode_events([emitted], Scrubber([Secret("canary-1")])))

    assert back.event == later(REDACTED)


def test_secret_that_contains_another_is_removed_completely() -> None:
    scrubber = Scrubber([Secret("canary1"), Secret("canary1-and-more")])

    assert scrubbed(scrubber, ["canary1-and-more", "canary1!"]) == [REDACTED, f"{REDACTED}!"]


texts = st.text().filter(lambda text: "canary" not in text)


@given(st.text(max_size=12), st.lists(texts, min_size=2, max_size=4), st.integers(0, 2))
def test_secret_is_replaced_in_every_string(tail: str, parts: list[str], depth: int) -> None:
    canary = f"canary-{tail}"
    before, after = canary.join(parts), REDACTED.join(parts)
    for _ in range(depth):
        before, after = nested([before]), nested([after])
    if depth == 2:
        # Deeper than two levels only what needs no escaping is recognized.
        return

    assert scrubbed(Scrubber([Secret(canary)]), {"x": [before]}) == {"x": [after]}


@given(st.lists(st.lists(st.text() | st.sampled_from([*CANARIES, *TOKENS]), max_size=4)))
def test_scrubbed_events_keep_their_type_and_place(lines: list[list[str]]) -> None:
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
def test_text_without_secrets_is_unchanged(text: str, other: str) -> None:
    scrubber = Scrubber([Secret(f"canary-{other}")])
    if "canary" not in text:
        assert scrubbed(scrubber, [text]) == [text]


@pytest.mark.parametrize("token", TOKENS[:-1])
@pytest.mark.parametrize("before", ["\n", "\t", "\r"])
def test_token_at_the_start_of_a_line_is_removed(token: str, before: str) -> None:
    assert scrubbed(Scrubber(), [f"key:{before}{token}"]) == [f"key:{before}{REDACTED}"]


def test_private_key_in_nested_json_is_removed() -> None:
    service_account = nested({"private_key": PEM})

    assert "MIIEow" not in scrubbed(Scrubber(), [service_account])[0]


@pytest.mark.parametrize("canary", ["canary-grüße-🐤", "canary-\x7f-ü"])
def test_known_secret_in_ascii_json_is_removed(canary: str) -> None:
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
def test_secret_that_looks_like_json_syntax_breaks_nothing(secret: str, value: Any) -> None:
    assert scrubbed(Scrubber([Secret(secret)]), value) == value


@pytest.mark.parametrize("secret", ["text.final", "2026-01-01"])
def test_secret_equal_to_an_event_type_or_a_date_loses_no_event(secret: str) -> None:
    event = Emitted(1, 0, START, TextFinal("words"))

    [back] = decode_events(encode_events([event], Scrubber([Secret(secret)])))

    assert back == event
