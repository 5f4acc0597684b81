"""Where does the conversation go on? Per provider, the token that reopens it."""

from datetime import datetime

from msgspec import Struct


class ResumeToken(Struct, frozen=True):
    """The provider's own name for the conversation. It is good only on `machine` and in `cwd`."""

    token: str
    machine: str
    cwd: str
    model: str | None
    bound_at: datetime


class Session(Struct, frozen=True):
    """One agent's conversation with one provider: the present token and those before it."""

    provider: str
    current: ResumeToken
    history: tuple[ResumeToken, ...] = ()

    def bound(self, token: ResumeToken) -> "Session":
        """Make `token` the present one; the same token seen again changes nothing."""
        if token.token == self.current.token:
            return self
        return Session(self.provider, token, (*self.history, self.current))
