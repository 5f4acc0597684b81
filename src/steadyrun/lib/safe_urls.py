"""Resolves untrusted URLs and checks that they lead to the public network.

This machine, its network and its cloud are refused. A name may resolve to another address a moment
later, so the caller connects to the checked addresses and not to the name.
"""

import ipaddress
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from steadyrun.errors import AddressRefused

LONGEST_URL = 4096
# Finds all addresses of a host. It has its own time limit; its errors are passed on.
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LONGEST_HOST = 253
_HTTPS = 443
# Characters that parsers of URLs treat differently.
_AMBIGUOUS = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029\ud800-\udfff]")
_PLACE = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:@%]+)(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
# A host with such an end is an address to some parsers: 127.1, 0x7f.1, 2130706433, 0177.0.0.1.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_OURS = ("localhost", "local", "internal")

# https://www.iana.org/assignments/iana-ipv4-special-registry, without the public ones; the
# last is an internal address of a cloud (Azure).
_CLOSED_4 = tuple(
    ipaddress.IPv4Network(each)
    for each in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",
    )
)  # fmt: skip
# The allocated range, and its parts for protocols (also Teredo), examples and 6to4.
_GIVEN_OUT = ipaddress.IPv6Network("2000::/3")
_CLOSED_6 = tuple(
    ipaddress.IPv6Network(each) for each in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
# They contain an IPv4 address at their end and lead to it.
_WRAPPED = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, and under which name; every address was checked."""

    host: str
    port: int
    addresses: tuple[str, ...]


async def resolve(url: str, lookup: Lookup) -> Target:
    """Resolve a URL, or raise `AddressRefused`. A redirect is a new URL: refuse it, or resolve it,
    too.
    """
    host, port = _parse_place(url)
    literal = _find_literal(host)
    found = [literal] if literal is not None else await lookup(host, port)
    if not found:
        raise AddressRefused("it has no address", host=host)
    return Target(host, port, tuple(_check_address(each, host) for each in found))


def is_public(address: _Address) -> bool:
    """Whether an address is in the public network; a wrapped address is checked itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in each for each in _CLOSED_4)
    if any(address in each for each in _WRAPPED):
        return is_public(ipaddress.IPv4Address(address.packed[-4:]))
    return address in _GIVEN_OUT and not any(address in each for each in _CLOSED_6)


def _parse_place(url: str) -> tuple[str, int]:
    """The host and the port that a URL names."""
    if len(url) > LONGEST_URL:
        raise AddressRefused(f"expected at most {LONGEST_URL} characters, found {len(url)}")
    if _AMBIGUOUS.search(url):
        raise AddressRefused("it has blanks, backslashes or control characters")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise AddressRefused("it is not a URL") from error
    if parts.scheme != "https":
        raise AddressRefused("expected https")
    if "@" in parts.netloc:
        raise AddressRefused("it contains a user name")
    found = _PLACE.fullmatch(parts.netloc)
    if found is None:
        raise AddressRefused("expected https:// followed by a host and optionally a port")
    return _parse_host(found["host"]), _parse_port(found["port"])


def _parse_port(given: str | None) -> int:
    port = _HTTPS if given is None else int(given)
    if not 0 < port < 65536:
        raise AddressRefused(f"expected a port from 1 to 65535, found {port}")
    return port


def _parse_host(given: str) -> str:
    """The host in its canonical form."""
    if given.startswith("["):
        return given.lower()
    if len(given) > _LONGEST_HOST + 1:
        raise AddressRefused(f"expected a host of at most {_LONGEST_HOST} characters")
    try:
        # This also normalizes digits and dots of other scripts.
        host = given.encode("idna").decode().lower().removesuffix(".")
    except UnicodeError as error:
        raise AddressRefused("its host is not a valid name", host=given) from error
    labels = host.split(".")
    if len(host) > _LONGEST_HOST or not all(map(_LABEL.fullmatch, labels)):
        raise AddressRefused("its host is not a valid name", host=host)
    if labels[-1] in _OURS:
        raise AddressRefused("it is a name of this machine or its network", host=host)
    return host


def _find_literal(host: str) -> str | None:
    """The address, if the host is an address; None if it is a name."""
    if host.startswith("["):
        return host[1:-1]
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        return host
    return None


def _check_address(text: str, host: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise AddressRefused(f"expected an IP address, found {text[:80]!r}", host=host) from error
    if getattr(address, "scope_id", None) is not None or not is_public(address):
        raise AddressRefused(f"{address} is not in the public network", host=host)
    return str(address)
