"""What may be put into the environment of a process? Whatever is not ours to say."""

import re

from steadyrun.model.text import Problem

OURS = "STEADYRUN_"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def variable_flaw(name: str) -> Problem | None:
    if name.startswith(OURS):
        hint = "Choose another name: these tell a process of its agent."
        return Problem(f"may not be set: names that begin with {OURS} are ours", hint=hint)
    if _VARIABLE.fullmatch(name):
        return None
    return Problem("cannot be the name of a variable", hint="Use letters, digits and _.")
