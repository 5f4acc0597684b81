"""On whose account does each provider work, as it is configured now?

What a provider says about limits holds for an account, and its gate is that of the account. An
account is told apart by a fingerprint of credentials and base URL: nobody gets them back from it.
"""

import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from steadyrun.app.home_key import load_home_key
from steadyrun.config import Config
from steadyrun.model.secret import Secret

# Enough to tell the accounts of one home apart.
_CHARS = 12


def compute_accounts(config: Config) -> dict[str, str]:
    """Of each provider that has one; all others have that of the machine's own login."""
    found = {name: config.find_account(name) for name in config.settings.providers}
    told = {name: values for name, values in found.items() if values}
    key = load_home_key(config.locations.home) if told else b""
    return {name: compute_fingerprint(key, name, values) for name, values in told.items()}


def compute_fingerprint(key: bytes, provider: str, values: Mapping[str, Secret | None]) -> str:
    """The same for the same values, in whichever order they are written."""
    plain = sorted((name, _to_bytes(value)) for name, value in values.items())
    whole = msgspec.msgpack.encode(("account", provider, plain))
    return hmac.new(key, whole, hashlib.sha256).hexdigest()[:_CHARS]


def _to_bytes(value: Secret | None) -> bytes | None:
    """A variable may hold what is no text."""
    return None if value is None else value.reveal().encode(errors="surrogatepass")
