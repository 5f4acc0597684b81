"""Where does the conversation go on? Per provider, the token that reopens it."""

from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace


class ResumeToken(Struct, frozen=True):
    """The provider's own name for the conversation. It is good only on `machine` and in `cwd`."""

    token: str
    machine: str
    cwd: str
    model: str | None
    bound_at: datetime
    # Why it is not used any more, if it was retired.
    ended: str | None = None


class Session(Struct, frozen=True):
    """One agent's conversation with one provider: the present token, if there is one, and those
    before it."""

    provider: str
    current: ResumeToken | None
    history: tuple[ResumeToken, ...] = ()

    def bind(self, token: ResumeToken) -> "Session":
        """Make `token` the present one; the same token seen again changes nothing."""
        if self.current is None:
            return Session(self.provider, token, self.history)
        if token.token == self.current.token:
            return self
        return Session(self.provider, token, (*self.history, self.current))

    def retire(self, reason: str) -> "Session":
        """Without a present token: the next turn begins a new conversation."""
        if self.current is None:
            return self
        ended = replace(self.current, ended=reason)
        return Session(self.provider, None, (*self.history, ended))
