"""Finds the settings that identify the account of a provider: credentials, addresses, and the
directories in which its CLI keeps its login.

They are recognized by their names, because a provider's `env` may contain any variable. If another
setting is taken for one of them, its change only looks like a change of the account.
"""

import re
from collections.abc import Iterator, Mapping

from steadyrun.config.variables import expand
from steadyrun.errors import VariableUnset

# Matches whole words of a name. MAX_OUTPUT_TOKENS and DATABASE_URL do not match.
_IDENTIFYING = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|AUTH|AUTHORIZATION|BEARER|CREDENTIALS?|HEADERS"
    r"|(?:BASE|API)_UR[IL]|API_(?:BASE|HOST)|ENDPOINT|CONFIG_DIR|PROFILE|ACCOUNT|ORG|ORGANIZATION"
    r"|PROJECT|REGION|BEDROCK|VERTEX|FOUNDRY|MODEL_PROVIDER)(?:_|$)"
    r"|^(?:HOME|XDG_CONFIG_HOME|CODEX_HOME)$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|-")
# The credentials of an agent's tools do not identify the account of its provider.
_OF_TOOLS = "mcp"


def is_account_setting(name: str) -> bool:
    """Whether a setting of this name identifies the account of a provider."""
    return _IDENTIFYING.search(_CAMEL.sub("_", name).upper()) is not None


def find_account_values(
    env: Mapping[str, str], options: Mapping[str, object], environ: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    """Yield each such setting that is not empty.

    The value is None if its variable is not set; that is an error only when the provider is
    launched.
    """
    found = list(_find_in_options("options", options, is_part=False))
    # An option of Codex names the variable of its key, which may have any name.
    named = {value for _, value in found}
    yield from found
    for name, template in env.items():
        if is_account_setting(name) or name in named:
            value = _expand_or_none(template, environ)
            if value != "":
                yield f"env.{name}", value


def _find_in_options(path: str, value: object, *, is_part: bool) -> Iterator[tuple[str, str]]:
    match value:
        case str() if value and is_part:
            yield path, value
        case dict():
            for name, inner in value.items():
                if not name.startswith(_OF_TOOLS):
                    part = is_part or is_account_setting(name)
                    yield from _find_in_options(f"{path}.{name}", inner, is_part=part)
        case list():
            for n, inner in enumerate(value):
                yield from _find_in_options(f"{path}.{n}", inner, is_part=is_part)
        case _:
            return


def _expand_or_none(template: str, environ: Mapping[str, str]) -> str | None:
    try:
        return expand(template, environ, setting="")
    except VariableUnset:
        return None
