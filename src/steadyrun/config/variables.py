"""Expands `${VAR}` in values, and finds secret values.

A variable is read only when its value is needed.
"""

import re
from collections.abc import Iterator, Mapping

from steadyrun.errors import VariableUnset

_TOKEN = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "AUTHORIZATION")
# The endings of settings that name a variable, as those of Codex do.
_NAMING = ("env_key", "env_var", "env_vars")
_URL_PASSWORD = re.compile(r"://[^/@:\s]*:([^/@\s]+)@")


def is_malformed(template: str) -> bool:
    return any(token[0] == "${" for token in _TOKEN.finditer(template))


def find_variables(template: str) -> list[str]:
    return [token[1] for token in _TOKEN.finditer(template) if token[1]]


def is_secret_name(name: str) -> bool:
    return any(word in name.upper() for word in _SECRET_WORDS)


def expand(template: str, environ: Mapping[str, str], *, setting: str) -> str:
    """Replace every `${VAR}` by its value and `$$` by a dollar sign; an error names `setting`."""

    def find_value(token: re.Match[str]) -> str:
        if token[1] is None:
            return "$"
        if token[1] not in environ:
            raise VariableUnset(token[1], setting=setting)
        return environ[token[1]]

    return _TOKEN.sub(find_value, template)


def find_secret_values(name: str, template: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Find the secret values of `name = template`, as far as the variables are set.

    The value of each variable is secret too: of "Bearer ${TOKEN}" an agent may print the token.
    """
    names = find_variables(template)
    yield from (environ[variable] for variable in names if variable in environ)
    yield from _URL_PASSWORD.findall(template)
    if (names or is_secret_name(name)) and all(variable in environ for variable in names):
        yield expand(template, environ, setting=name)


def find_header_secrets(name: str, template: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Find the secrets of a header: it is secret under any name; of "Bearer xyz" also the end."""
    yield from find_secret_values(name, template, environ)
    if all(variable in environ for variable in find_variables(template)):
        value = expand(template, environ, setting=name)
        yield value
        yield value.split()[-1] if value.strip() else value


def find_secret_options(name: str, value: object) -> Iterator[str]:
    """Find the texts under the name of a secret, at any depth of a provider's options."""
    match value:
        case str() if name.endswith(_NAMING):
            # The setting names the variable of a secret.
            return
        case str() if is_secret_name(name):
            yield value
        case str():
            yield from _URL_PASSWORD.findall(value)
        case dict():
            for key, inner in value.items():
                yield from find_secret_options(key, inner)
        case list():
            for inner in value:
                yield from find_secret_options(name, inner)
        case _:
            return
