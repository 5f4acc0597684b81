"""What was piped in? All of standard input, as text."""

import os
import sys

from steadyrun.errors import InvalidUsage


def read_stdin(what: str, *, is_requested: bool, hint: str) -> str:
    if sys.stdin is None or (sys.stdin.isatty() and not is_requested):
        raise InvalidUsage(f"there is no {what}", hint=hint)
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidUsage(f"the {what} on standard input is not UTF-8: {error.reason}") from error
    except OSError as error:
        raise InvalidUsage(
            f"standard input cannot be read: {os.strerror(error.errno or 0)}"
        ) from error
