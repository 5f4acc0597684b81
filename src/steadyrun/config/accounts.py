"""Which settings say on whose account a provider works? Credentials, where it is reached, and the
directories in which its CLI keeps its login.

They are known by their names: a provider's `env` may hold anything. What is taken for one and is
none only makes another account of the same one when it changes.
"""

import re
from collections.abc import Iterator, Mapping

from steadyrun.config.variables import expand
from steadyrun.errors import VariableUnset

# Whole words of a name: MAX_OUTPUT_TOKENS is none, nor is DATABASE_URL.
_IDENTIFYING = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|AUTH|AUTHORIZATION|BEARER|CREDENTIALS?|HEADERS"
    r"|(?:BASE|API)_UR[IL]|API_(?:BASE|HOST)|ENDPOINT|CONFIG_DIR|PROFILE|ACCOUNT|ORG|ORGANIZATION"
    r"|PROJECT|REGION|BEDROCK|VERTEX|FOUNDRY|MODEL_PROVIDER)(?:_|$)"
    r"|^(?:HOME|XDG_CONFIG_HOME|CODEX_HOME)$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|-")
# What an agent's tools log in with says nothing about its provider.
_OF_TOOLS = "mcp"


def identifies_account(name: str) -> bool:
    """Whether a setting of this name says on whose account a provider works."""
    return _IDENTIFYING.search(_CAMEL.sub("_", name).upper()) is not None


def find_account_values(
    env: Mapping[str, str], options: Mapping[str, object], environ: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    """Give each such setting that is not empty, None where a variable is not set: whoever launches
    the provider hears of that, and nobody before."""
    found = list(_find_in_options("options", options, is_part=False))
    # Codex is told in which variable its key is, whatever the name of that is.
    named = {value for _, value in found}
    yield from found
    for name, template in env.items():
        if identifies_account(name) or name in named:
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
                    told = is_part or identifies_account(name)
                    yield from _find_in_options(f"{path}.{name}", inner, is_part=told)
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
