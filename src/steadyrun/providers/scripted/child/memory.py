"""Stores the texts of conversations, one file for each, named by its token."""

import json
import os
import re
import secrets
from pathlib import Path

from steadyrun.providers.scripted.child.json_lines import decode_json
from steadyrun.providers.scripted.child.script import TurnFailed

VERSION = 1
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class Memory:
    """The texts of all turns. With a `problem`, nothing is stored and every turn fails."""

    def __init__(self, directory: Path, resume: str | None) -> None:
        self.token: str | None = resume or f"scr_{secrets.token_hex(8)}"
        self.turns: list[list[str]] = []
        self.problem: TurnFailed | None = None
        self._file = directory / f"{self.token}.json"
        try:
            self._load() if resume else self._write()
        except TurnFailed as problem:
            self.token, self.problem = None, problem

    def add(self, texts: list[str]) -> None:
        """Store the texts of one turn."""
        if self.problem is None:
            self.turns.append(texts)
            self._write()

    def _load(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", self.token or ""):
            raise TurnFailed("resume_not_found", f"{self.token!r} is not a token of this CLI")
        try:
            self.turns = decode_json(self._file.read_bytes())["turns"]
        except FileNotFoundError:
            raise TurnFailed("resume_not_found", f"there is no conversation {self.token}") from None
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise TurnFailed("resume_corrupt", f"cannot read {self._file}: {error}") from error

    def _write(self) -> None:
        draft = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(draft, _WRITE, 0o600), "w") as file:
                json.dump({"v": VERSION, "turns": self.turns}, file)
            draft.replace(self._file)
        except OSError as error:
            raise TurnFailed(
                "memory_failed", f"cannot write {self._file}: {error.strerror}"
            ) from error
