"""Translates errors, warnings, and changes of the model and of MCP servers."""

from steadyrun.dialect import DialectOutput
from steadyrun.model import event as ev
from steadyrun.providers.codex import errors, frames, offers
from steadyrun.providers.codex.state import CodexState


def on_error(state: CodexState, notification: frames.ErrorNotification) -> list[DialectOutput]:
    """Handle an error. Codex retries by itself, or ends the turn after it."""
    turn = state.turn
    fact = errors.build_error(notification.error, state.windows.values())
    if turn is None or state.is_other(None, notification.turn_id):
        return [ev.Note(fact.message)]
    if not notification.will_retry:
        turn.error = fact
        return []
    turn.retry = fact
    turn.retries += 1
    return [*offers.absorb_taken(state), ev.ProviderRetrying(turn.retries, None, fact.code)]


def on_warning(state: CodexState, notification: frames.WarningNotification) -> list[DialectOutput]:
    """Report a warning once. Codex repeats some with each turn."""
    words = notification.message or notification.summary
    if not words or words in state.warnings:
        return []
    state.warnings.add(words)
    return [ev.Note(words)]


def on_reroute(state: CodexState, notification: frames.RerouteNotification) -> list[DialectOutput]:
    """Record the model that answers in place of the requested one."""
    state.model = notification.to_model
    note = ev.Note(f"{notification.to_model} answers in place of {notification.from_model}")
    return [note, ev.StatsUpdated(model=notification.to_model)]


def on_mcp_status(_: CodexState, notification: frames.McpStatusNotification) -> list[DialectOutput]:
    """Report an MCP server that did not start."""
    if notification.status != "failed":
        return []
    return [ev.Note(f"the MCP server {notification.name} did not start: {notification.error}")]
