"""Defines sessions: per provider, the token that resumes the conversation."""

from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace


class ResumeToken(Struct, frozen=True):
    """The name of a conversation at its provider. It is valid only on `machine` and in `cwd`."""

    token: str
    machine: str
    cwd: str
    model: str | None
    bound_at: datetime
    # Why it was retired.
    ended: str | None = None


class Session(Struct, frozen=True):
    """The conversation of one agent with one provider: the present token, if any, and the earlier
    ones."""

    provider: str
    current: ResumeToken | None
    history: tuple[ResumeToken, ...] = ()

    def bind(self, token: ResumeToken) -> "Session":
        """Make `token` the present one; the same token again has no effect."""
        if self.current is None:
            return Session(self.provider, token, self.history)
        if token.token == self.current.token:
            return self
        return Session(self.provider, token, (*self.history, self.current))

    def retire(self, reason: str) -> "Session":
        """Remove the present token: the next turn starts a new conversation."""
        if self.current is None:
            return self
        ended = replace(self.current, ended=reason)
        return Session(self.provider, None, (*self.history, ended))
