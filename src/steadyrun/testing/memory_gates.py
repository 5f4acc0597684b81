"""How do gates change in the reference store? In the same step as the run that is the reason."""

from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from steadyrun.model.event import Emitted, event_id
from steadyrun.model.gate import (
    Dispatched,
    Gate,
    GateNews,
    GateRules,
    Limited,
    gate_step,
    gate_told,
    news_of,
)
from steadyrun.model.packed import decode_events, encode_events
from steadyrun.model.run import Run
from steadyrun.model.secret import Scrubber
from steadyrun.testing.tables import Placed, Tables


class GateKeeper(NamedTuple):
    """Tells gates what happens."""

    scrubber: Scrubber
    rules: GateRules

    def tell(
        self, t: Tables, provider: str, account: str | None, news: GateNews, now: datetime
    ) -> list[Gate]:
        known = [gate for gate in _of(t, provider) if account in {None, gate.account}]
        return [self._step(t, gate, news, now) for gate in known or [Gate(provider, account or "")]]

    def begun(self, t: Tables, run: Run) -> None:
        for gate in _of(t, run.provider):
            if gate.is_closed:
                self._step(t, gate, Dispatched(run.id), run.created_at)

    def ended(self, t: Tables, run: Run) -> None:
        assert run.ended_at
        news, known = news_of(run), _of(t, run.provider)
        if not known and isinstance(news, Limited):
            known = [Gate(run.provider)]
        for gate in known:
            self._step(t, gate, news, run.ended_at)

    def _step(self, t: Tables, before: Gate, news: GateNews, now: datetime) -> Gate:
        after = gate_step(before, news, now, self.rules)
        after = replace(after, reason=self.scrubber.clean(after.reason))
        if after != before:
            t.gates[after.provider, after.account] = after
        event = gate_told(before, after, now)
        if event:
            cursor = len(t.events) + 1
            written = encode_events([Emitted(f"gate:{cursor}", 0, now, event)], self.scrubber)
            [emitted] = decode_events(written)
            name = event_id(None, emitted.place, emitted.n)
            t.events.append(Placed(cursor, None, None, None, name, emitted))
        return after


def _of(t: Tables, provider: str) -> list[Gate]:
    return [gate for _, gate in sorted(t.gates.items()) if gate.provider == provider]
