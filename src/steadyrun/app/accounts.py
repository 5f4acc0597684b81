"""Computes the account of each configured provider.

The limits of a provider apply to an account, and so does its gate. An account is identified by a
fingerprint of credentials and base URL, from which neither can be recovered.
"""

from collections.abc import Mapping

from steadyrun.app.home_key import load_home_key
from steadyrun.config import Config
from steadyrun.model.fingerprint import compute_hmac
from steadyrun.model.secret import Secret

# Enough characters to distinguish the accounts of one home.
_CHARS = 12


def compute_accounts(config: Config) -> dict[str, str]:
    """Compute the account of each provider that has its own. The others use the login of the
    machine."""
    found = {name: config.find_account(name) for name in config.settings.providers}
    configured = {name: values for name, values in found.items() if values}
    key = load_home_key(config.locations.home) if configured else b""
    return {name: compute_fingerprint(key, name, values) for name, values in configured.items()}


def compute_fingerprint(key: bytes, provider: str, values: Mapping[str, Secret | None]) -> str:
    """Compute the same fingerprint for the same values, in any order."""
    plain = sorted((name, _to_bytes(value)) for name, value in values.items())
    return compute_hmac(key, ("account", provider, plain))[:_CHARS]


def _to_bytes(value: Secret | None) -> bytes | None:
    """Encode a value, which may contain bytes that are not UTF-8."""
    return None if value is None else value.reveal().encode(errors="surrogatepass")
