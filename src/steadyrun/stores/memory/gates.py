"""Gates of the reference store. A gate changes in the same step as the run that causes it."""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from steadyrun.model.event import Emitted, make_event_id
from steadyrun.model.event_codec import decode_events, encode_events
from steadyrun.model.gate import (
    Accounts,
    Dispatched,
    Gate,
    GateReport,
    GateRules,
    Limited,
    NotLaunched,
    UnavailableProviders,
    build_gate_event,
    find_account,
    find_unavailable_providers,
    is_present_account,
    report_run_end,
    step_gate,
)
from steadyrun.model.run import Run
from steadyrun.model.secret import Scrubber
from steadyrun.stores.memory.tables import Placed, Tables, find_next_cursor


class MemoryGateUpdater(NamedTuple):
    """Updates the gates of the reference store."""

    scrubber: Scrubber
    rules: GateRules
    accounts: Accounts

    def list_present(self, t: Tables) -> list[Gate]:
        found = sorted(t.gates.items())
        return [gate for key, gate in found if is_present_account(*key, self.accounts)]

    def find_unavailable(
        self, t: Tables, now: datetime, excluded: Collection[str] = ()
    ) -> UnavailableProviders:
        closed, suspect = find_unavailable_providers(self.list_present(t), now)
        return UnavailableProviders(closed, suspect.union(excluded))

    def update(
        self, t: Tables, provider: str, account: str | None, news: GateReport, now: datetime
    ) -> Gate:
        account = find_account(provider, self.accounts) if account is None else account
        gate = t.gates.get((provider, account), Gate(provider, account))
        return self._step(t, gate, news, now)

    def on_run_started(self, t: Tables, run: Run) -> None:
        gate = t.gates.get((run.provider, run.account))
        if gate and gate.is_closed:
            self._step(t, gate, Dispatched(run.id), run.created_at)

    def on_run_ended(self, t: Tables, run: Run) -> None:
        assert run.ended_at
        news, gate = report_run_end(run), t.gates.get((run.provider, run.account))
        if gate is None and isinstance(news, Limited | NotLaunched):
            gate = Gate(run.provider, run.account)
        if gate:
            self._step(t, gate, news, run.ended_at)

    def _step(self, t: Tables, before: Gate, news: GateReport, now: datetime) -> Gate:
        after = step_gate(before, news, now, self.rules)
        after = replace(after, reason=self.scrubber.clean(after.reason))
        if after != before:
            t.gates[after.provider, after.account] = after
        event = build_gate_event(before, after, now)
        if event:
            cursor = find_next_cursor(t)
            body = encode_events([Emitted(f"gate:{cursor}", 0, now, event)], self.scrubber)
            [emitted] = decode_events(body)
            name = make_event_id(None, emitted.place, emitted.n)
            t.events.append(Placed(cursor, None, None, None, name, emitted))
        return after
