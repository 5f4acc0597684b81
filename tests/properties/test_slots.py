"""However runs come, wait and go, the slots are what is left."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from steadyrun.model.ids import AgentId
from steadyrun.runtime.slots import Slots

runs = st.sampled_from([AgentId(f"run_{n}") for n in range(6)])
providers = st.sampled_from(["claude", "codex", "shell"])


class Counting(RuleBasedStateMachine):
    """The model is one line for each run: its provider, and whether it uses its slot."""

    @initialize(most=st.integers(0, 4), caps=st.dictionaries(providers, st.integers(0, 3)))
    def begin(self, most: int, caps: dict[str, int]) -> None:
        self.most, self.caps = most, caps
        self.slots = Slots(most, caps)
        self.lines = dict[AgentId, tuple[str, bool]]()

    @rule(run=runs, provider=providers)
    def take(self, run: AgentId, provider: str) -> None:
        self.slots.take(run, provider)
        if run not in self.lines:
            self.lines[run] = (provider, True)

    @rule(run=runs)
    def suspend(self, run: AgentId) -> None:
        self.slots.set_waiting(run, True)
        if run in self.lines:
            self.lines[run] = (self.lines[run][0], False)

    @rule(run=runs)
    def resume(self, run: AgentId) -> None:
        self.slots.set_waiting(run, False)
        if run in self.lines:
            self.lines[run] = (self.lines[run][0], True)

    @rule(run=runs)
    def leave(self, run: AgentId) -> None:
        self.slots.leave(run)
        self.lines.pop(run, None)

    @invariant()
    def free_slots_are_the_unused_ones(self) -> None:
        used = [provider for provider, is_used in self.lines.values() if is_used]
        assert self.slots.free == max(0, self.most - len(used))
        full = {name for name, most in self.caps.items() if used.count(name) >= most}
        assert self.slots.full_providers == full


TestCounting = Counting.TestCase
TestCounting.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_run_that_waits_for_a_person_frees_its_slot() -> None:
    slots, first, second = Slots(1, {"claude": 1}), AgentId("run_1"), AgentId("run_2")
    slots.take(first, "claude")
    assert slots.free == 0
    assert slots.full_providers == {"claude"}

    slots.set_waiting(first, True)
    assert slots.free == 1
    assert not slots.full_providers

    slots.take(second, "claude")
    slots.set_waiting(first, False)
    slots.leave(second)
    assert slots.free == 0

    slots.leave(first)
    assert slots.free == 1
    assert not slots.full_providers
