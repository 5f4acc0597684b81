"""What does `${VAR}` in a value stand for, and which values are secret?

Nothing is filled in before it is needed.
"""

import re
from collections.abc import Iterator, Mapping

from steadyrun.errors import VariableUnset

_TOKEN = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def is_malformed(template: str) -> bool:
    return any(token[0] == "${" for token in _TOKEN.finditer(template))


def variables(template: str) -> list[str]:
    return [token[1] for token in _TOKEN.finditer(template) if token[1]]


def looks_secret(name: str) -> bool:
    return any(word in name.upper() for word in _SECRET_WORDS)


def expand(template: str, environ: Mapping[str, str], *, setting: str) -> str:
    """Fill in every `${VAR}` and make `$$` a dollar; `setting` is named if one is unset."""

    def value(token: re.Match[str]) -> str:
        if token[1] is None:
            return "$"
        if token[1] not in environ:
            raise VariableUnset(token[1], setting=setting)
        return environ[token[1]]

    return _TOKEN.sub(value, template)


def secret_values(name: str, template: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Give what must not be recorded of `name = template`, as far as the variables are set.

    A variable named like a secret counts by itself too: of "Bearer ${TOKEN}" an agent may print
    only the token.
    """
    names = variables(template)
    for variable in names:
        if variable in environ and (looks_secret(variable) or looks_secret(name)):
            yield environ[variable]
    if (names or looks_secret(name)) and all(variable in environ for variable in names):
        yield expand(template, environ, setting=name)
