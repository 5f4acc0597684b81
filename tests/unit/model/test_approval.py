"""Tests that a question shows the whole action it asks about."""

from steadyrun.cli.output.ask import format_question
from steadyrun.model.event import ApprovalRequested


def test_question_shows_the_whole_input() -> None:
    command = "touch a " + "#" * 100_000 + "\ntouch hidden"

    shown = format_question(ApprovalRequested("1", "c1", "Bash", {"command": command}))

    assert shown.startswith("Bash ")
    assert shown.count("#") == 100_000
    assert "touch hidden" in shown
