"""Tests which of its providers an agent works with, and with which model."""

from steadyrun.model.agent import Agent, choose_provider
from steadyrun.model.ids import AgentId

ADA = Agent(AgentId("agt"), "ada", ("claude", "codex", "shell"), "/home/ada", "a model")


def test_first_provider_that_is_not_closed_is_chosen() -> None:
    assert choose_provider(ADA.providers, set()) == "claude"
    assert choose_provider(ADA.providers, {"claude", "other"}) == "codex"
    assert choose_provider(ADA.providers, {*ADA.providers}) is None


def test_agent_with_another_provider_loses_the_model() -> None:
    assert ADA.with_provider("claude") == ADA
    codex = ADA.with_provider("codex")
    assert (codex.provider, codex.providers) == ("codex", ("codex", "claude", "shell"))
    assert (codex.model, codex.name, codex.home) == (None, "ada", "/home/ada")
