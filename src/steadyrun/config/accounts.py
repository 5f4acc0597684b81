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
_TELLING = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|AUTH|AUTHORIZATION|BEARER|CREDENTIALS?|HEADERS"
    r"|(?:BASE|API)_UR[IL]|API_(?:BASE|HOST)|ENDPOINT|CONFIG_DIR|PROFILE|ACCOUNT|ORG|ORGANIZATION"
    r"|PROJECT|REGION|BEDROCK|VERTEX|FOUNDRY|MODEL_PROVIDER)(?:_|$)"
    r"|^(?:HOME|XDG_CONFIG_HOME|CODEX_HOME)$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|-")
# What an agent's tools log in with says nothing about its provider.
_OF_TOOLS = "mcp"


def tells_account(name: str) -> bool:
    """Whether a setting of this name says on whose account a provider works."""
    return _TELLING.search(_CAMEL.sub("_", name).upper()) is not None


def account_values(
    env: Mapping[str, str], options: Mapping[str, object], environ: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    """Give each such setting that is not empty, None where a variable is not set: whoever launches
    the provider hears of that, and nobody before."""
    found = list(_in_options("options", options, is_told=False))
    # Codex is told in which variable its key is, whatever the name of that is.
    named = {value for _, value in found}
    yield from found
    for name, template in env.items():
        if tells_account(name) or name in named:
            value = _expanded(template, environ)
            if value != "":
                yield f"env.{name}", value


def _in_options(path: str, value: object, *, is_told: bool) -> Iterator[tuple[str, str]]:
    match value:
        case str() if value and is_told:
            yield path, value
        case dict():
            for name, inner in value.items():
                if not name.startswith(_OF_TOOLS):
                    told = is_told or tells_account(name)
                    yield from _in_options(f"{path}.{name}", inner, is_told=told)
        case list():
            for n, inner in enumerate(value):
                yield from _in_options(f"{path}.{n}", inner, is_told=is_told)
        case _:
            return


def _expanded(template: str, environ: Mapping[str, str]) -> str | None:
    try:
        return expand(template, environ, setting="")
    except VariableUnset:
        return None
