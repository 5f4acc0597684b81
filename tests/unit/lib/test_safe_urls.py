"""Tests which URLs are refused: difficult ones by name. The property tests have the others."""

from collections.abc import Sequence

import anyio
import pytest

from steadyrun.errors import AddressRefused
from steadyrun.lib.safe_urls import Target, resolve


class Names:
    """A name server that gives one answer after another, and remembers what it was asked."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self._answers.pop(0)


def target(url: str, *answers: Sequence[str]) -> Target:
    return anyio.run(resolve, url, Names(*answers))


def refused(url: str, *answers: Sequence[str]) -> AddressRefused:
    with pytest.raises(AddressRefused) as caught:
        target(url, *answers)
    assert (caught.value.exit_code, caught.value.code) == (4, "address_refused")
    return caught.value


def test_name_is_resolved_once_and_its_addresses_are_returned() -> None:
    names = Names(["8.8.8.8", "2606:4700::1"], ["127.0.0.1"])

    found = anyio.run(resolve, "https://Example.com:8443/x?y#z", names)

    assert found == Target("example.com", 8443, ("8.8.8.8", "2606:4700::1"))
    assert names.asked == [("example.com", 8443)]


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://example.com", "example.com"),
        ("HTTPS://EXAMPLE.com.", "example.com"),
        ("https://bücher.example/ü", "xn--bcher-kva.example"),
        ("https://_x.a-b.example?q=@[]", "_x.a-b.example"),
        ("https://localhost.example", "localhost.example"),
    ],
)
def test_host_has_one_canonical_form(url: str, host: str) -> None:
    assert target(url, ["8.8.8.8"]) == Target(host, 443, ("8.8.8.8",))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://8.8.8.8", "8.8.8.8"),
        ("https://8.8.8.8./", "8.8.8.8"),
        ("https://[2606:4700:0::1]:443/", "2606:4700::1"),
        ("https://[64:ff9b::8.8.8.8]", "64:ff9b::808:808"),
    ],
)
def test_ip_address_is_not_looked_up(url: str, address: str) -> None:
    assert target(url).addresses == (address,)


@pytest.mark.parametrize(
    "url",
    [
        "", "example.com", "//example.com", "http://example.com", "ftp://example.com", "file:///x",
        "https:", "https://", "https:///x", "https://:443", "https:example.com", "https://?x",
        "https://example.com:0", "https://example.com:65536", "https://example.com:",
        "https://example.com:+80", "https://example.com:٤٤٣", "https://example.com:80:80",
        "https://user@example.com", "https://user:pw@example.com", "https://@example.com",
        "https://example.com\\@127.0.0.1", "https://a b", " https://example.com", "https://a\tb",
        "https://example.com\n", "https://exa\u00admple\x00.com", "https://\ud800.com",
        "https://a..b", "https://.a", "https://a..", "https://-a.b", "https://a-.b",
        "https://%6cocalhost", "https://a,b", "https://a℀b.com", f"https://{'a' * 64}.com",
        f"https://{'a.' * 127}com", f"https://example.com/{'x' * 5000}",
        "https://[::1", "https://[v1.x]", "https://[fe80::1%25eth0]", "https://[1.2.3.4]",
        "https://[2606::1]x", "https://localhost", "https://LOCALHOST.", "https://a.localhost",
        "https://printer.local", "https://metadata.google.internal", "https://ⓛocalhost",
    ],
)  # fmt: skip
def test_invalid_url_is_refused_without_a_lookup(url: str) -> None:
    refused(url)


@pytest.mark.parametrize(
    "host",
    [
        "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "127.0.0.1.",
        "127.0.0.01", "1.2.3.4.5", "256.1.1.1", "0", "0x", "a.0x7f", "a.1",
        "\uff11\uff12\uff17.0.0.\uff11",
        "127。0。0。1", "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[::]", "[::1]",
        "[2002:7f00:1::]", "[2001:0:808:808::]", "[fd00:ec2::254]", "[ff0e::1]", "168.63.129.16",
        "169.254.169.254", "100.100.100.200", "192.0.0.192", "255.255.255.255",
    ],
)  # fmt: skip
def test_unusual_notation_of_a_private_address_is_refused(host: str) -> None:
    refused(f"https://{host}/latest/meta-data")


@pytest.mark.parametrize(
    "answer",
    [[], ["nonsense"], ["8.8.8.8", "10.0.0.1"], ["10.0.0.1", "8.8.8.8"], ["2606:4700::1%eth0"],
     ["8.8.8.8", "::ffff:a00:1"], ["127.1"], ["fe80::1%eth0"]],
)  # fmt: skip
def test_one_private_address_in_the_answer_is_refused(answer: list[str]) -> None:
    assert refused("https://example.com", answer).host == "example.com"


def test_error_contains_only_the_host() -> None:
    for url in ("https://me:secret@example.com", "https://10.0.0.1/?secret", "http://x/secret"):
        assert "secret" not in str(refused(url))


def test_error_of_the_lookup_is_raised() -> None:
    async def fails(host: str, port: int) -> Sequence[str]:
        raise OSError("no such host")

    with pytest.raises(OSError, match="no such host"):
        anyio.run(resolve, "https://example.com", fails)
