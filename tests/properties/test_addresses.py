"""Tests that no request goes to an address that is not public, in any spelling of the address.

The expected results come from other sources: Python's own table of networks, and the C library,
which accepts many unusual spellings of an address.
"""

import ipaddress
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

import anyio
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from steadyrun.errors import AddressRefused
from steadyrun.lib.safe_urls import resolve

PUBLIC = "8.8.8.8"
# The corners of what is closed, by the registries of IANA, and what clouds answer on.
CLOSED = [
    "0.0.0.0", "0.255.255.255", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255",
    "127.0.0.0", "127.0.0.1", "127.255.255.255", "169.254.0.0", "169.254.169.254",
    "169.254.255.255", "172.16.0.0", "172.31.255.255", "192.0.0.0", "192.0.0.192", "192.0.2.255",
    "192.168.0.0", "192.168.255.255", "198.18.0.0", "198.19.255.255", "198.51.100.0",
    "203.0.113.255", "224.0.0.0", "239.255.255.255", "240.0.0.0", "255.255.255.255",
    "100.100.100.200", "168.63.129.16",
]  # fmt: skip
# Public addresses next to those networks.
BESIDE = [
    "1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
    "128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0",
    "191.255.255.255", "192.0.1.0", "192.0.3.0", "192.167.255.255", "192.169.0.0",
    "198.17.255.255", "198.20.0.0", "198.51.99.255", "198.51.101.0", "203.0.112.255",
    "203.0.114.0", "223.255.255.255", "168.63.129.15", "168.63.129.17",
]  # fmt: skip
# Closed here though Python's table has them open: old relays, protocols, wrappers, Azure's inside.
STRICTER = [
    ipaddress.ip_network(each)
    for each in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "2001::/23", "2002::/16",
                 "3fff::/20")
]  # fmt: skip

any_4 = st.integers(0, 2**32 - 1).map(IPv4Address)
closed_4 = st.sampled_from(CLOSED).map(IPv4Address) | any_4.filter(
    lambda address: not address.is_global
)
given_out = st.integers(2**125, 2**126 - 1).map(IPv6Address)
any_6 = st.integers(0, 2**128 - 1).map(IPv6Address) | given_out


async def no_lookup(host: str, port: int) -> Sequence[str]:
    raise AssertionError(f"{host} was looked up")


def goes_to(url: str) -> tuple[str, ...] | None:
    """Where a request would go, if the host is an address; None if it is refused."""
    try:
        return anyio.run(resolve, url, no_lookup).addresses
    except AddressRefused:
        return None


def answered(*answer: str) -> tuple[str, ...] | None:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return answer

    try:
        return anyio.run(resolve, "https://example.com", lookup).addresses
    except AddressRefused:
        return None


def is_open(address: IPv4Address | IPv6Address) -> bool:
    """By Python's table, apart from what we are stricter with."""
    if any(address in each for each in STRICTER):
        return False
    if isinstance(address, IPv6Address) and address.packed[0] >> 5 != 1:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def digits(number: int, base: str) -> str:
    return {"decimal": str(number), "octal": f"0{number:o}", "hex": f"0x{number:X}"}[base]


@st.composite
def numbers(draw: st.DrawFn, address: IPv4Address) -> str:
    """One of the ways of the C library: one to four numbers, the last for all that is left."""
    count = draw(st.integers(1, 4))
    bases = st.sampled_from(["decimal", "octal", "hex"])
    head = list(address.packed[: count - 1])
    last = int.from_bytes(address.packed[count - 1 :])
    return ".".join(digits(number, draw(bases)) for number in (*head, last))


def wide(text: str) -> str:
    """The same in other characters, which names are freed of."""
    table = {ord("."): "\u3002", **{ord("0") + n: chr(0xFF10 + n) for n in range(10)}}
    return text.translate(table)


def wrapped(address: IPv4Address) -> list[IPv6Address]:
    """Every address of the other kind that leads to this one."""
    number = int(address)
    return [
        IPv6Address(number),
        IPv6Address(0xFFFF << 32 | number),
        IPv6Address(0xFFFF << 48 | number),
        IPv6Address(0x64FF9B << 96 | number),
        IPv6Address(0x64FF9B0001 << 80 | number),
        IPv6Address(0x2002 << 112 | number << 80),
        IPv6Address(0x20010000 << 96 | number << 64),
        IPv6Address(0x20010000 << 96 | int(IPv4Address(PUBLIC)) << 64 | number ^ 0xFFFFFFFF),
    ]


@settings(max_examples=500)
@given(closed_4, st.data())
def test_no_notation_of_a_private_address_is_accepted(
    address: IPv4Address, data: st.DataObject
) -> None:
    text = data.draw(numbers(address))
    assert socket.inet_aton(text) == address.packed

    ways = (text, text.upper(), f"{text}.", wide(text), str(address), wide(str(address)))

    assert [way for way in ways if goes_to(f"https://{way}:8443/x") is not None] == []


@given(closed_4, st.booleans())
def test_wrapped_private_address_is_refused(address: IPv4Address, is_long: bool) -> None:
    for each in wrapped(address):
        text = each.exploded.upper() if is_long else str(each)

        assert goes_to(f"https://[{text}]/") is None, each
        assert answered(PUBLIC, text) is None, each
    assert goes_to(f"https://[::ffff:{address}]/") is None


@settings(max_examples=500)
@given(any_4 | any_6 | st.sampled_from([*CLOSED, *BESIDE]).map(IPv4Address))
def test_only_public_addresses_are_accepted(
    address: IPv4Address | IPv6Address,
) -> None:
    host = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
    # Wrappers are looked into, which the table does not do; they have a property of their own.
    assume(isinstance(address, IPv4Address) or int(address) >> 32 not in {0xFFFF, 0x64FF9B << 64})

    expected = (str(address),) if is_open(address) else None

    event("open" if expected else "closed")
    assert goes_to(f"https://{host}") == expected
    assert answered(str(address)) == expected


@given(any_4.filter(is_open))
def test_wrapped_public_address_is_accepted(address: IPv4Address) -> None:
    for prefix in (0xFFFF << 32, 0x64FF9B << 96):
        text = str(IPv6Address(prefix | int(address)))

        assert answered(text) == (text,)


@given(st.lists(any_4.filter(is_open).map(str), max_size=4), closed_4, st.data())
def test_one_private_address_in_the_answer_is_refused(
    others: list[str], closed: IPv4Address, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(others)))

    assert answered(*others[:place], str(closed), *others[place:]) is None
    assert answered(*others) == (tuple(others) or None)


@settings(max_examples=500)
@given(
    st.text(max_size=40), st.sampled_from(["", "https://", "https://a", "https://a@", "https://["])
)
def test_any_text_is_resolved_or_refused(text: str, beginning: str) -> None:
    """Nothing else is raised, and a host that is taken can be written down anywhere."""

    async def lookup(host: str, port: int) -> Sequence[str]:
        assert host.isascii()
        assert set(host) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")
        return [PUBLIC]

    said = ""
    try:
        found = anyio.run(resolve, beginning + text, lookup)
        assert found.addresses
    except AddressRefused as refused:
        said = refused.message

    assert not said or said.isprintable()
