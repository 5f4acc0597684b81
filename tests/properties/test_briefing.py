"""Whatever the record has: a briefing is short, and passes nothing off as our own words."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    FollowupAbsorbed,
    TextFinal,
    ToolCompleted,
    ToolFailed,
    ToolStarted,
)
from steadyrun.model.ids import AgentId, ItemId, RunId
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.model.secret import Scrubber
from steadyrun.runtime.prompt.briefing import (
    Handover,
    MissedRun,
    write_briefing,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
# The promise of `write_briefing`.
LARGEST_BRIEFING_BYTES = 16 * 1024
# All line separators, our own markers, half a character, and long texts.
BREAKS = ["\n", "\r", "\x0b", "\x1c", "\x85", "\u2028", "\u2029", "[End of the record.]", "Asked:"]
words = st.text(max_size=40) | st.sampled_from([*BREAKS, "\ud800", "> ", "🐤" * 900, "x" * 5000])
texts = st.lists(words, max_size=6).map("".join)
given_to = st.fixed_dictionaries({}, optional={"file_path": texts, "command": texts, "x": texts})
outputs: st.SearchStrategy[Any] = texts | st.none() | st.lists(texts, max_size=2)
names = st.sampled_from(["Bash", "Read", "Write", "fileChange", "mcp__a__b"]) | texts
calls = st.sampled_from(["a", "b"])
events: st.SearchStrategy[Any] = st.one_of(
    st.builds(TextFinal, texts),
    st.builds(ToolStarted, calls, names, given_to),
    st.builds(ToolCompleted, calls, names, given_to, outputs),
    st.builds(ToolFailed, calls, names, given_to, outputs),
    st.builds(FollowupAbsorbed, texts, texts),
    st.builds(ApprovalRequested, calls, calls, names, given_to),
    st.builds(ApprovalResolved, calls, st.sampled_from(["allow", "deny"]), texts),
)


def _told(n: int, text: str, said: list[Any]) -> MissedRun:
    agent, item = AgentId("agt"), ItemId(f"itm_{n}")
    asked = Item(
        id=item, agent=agent, seq=n, kind="message", text=text, on_lost="resume", created_at=NOW
    )
    run = Run(RunId("run"), agent, item, "claude", NOW)
    return MissedRun(asked, run, tuple(said), {"a": text})


@given(
    why=texts,
    runs=st.lists(st.tuples(texts, st.lists(events, max_size=30)), max_size=6),
)
def test_briefing_is_short_and_marks_quotations(
    why: str, runs: list[tuple[str, list[Any]]]
) -> None:
    told = tuple(_told(n, text, said) for n, (text, said) in enumerate(runs))

    text = write_briefing(Handover(why, ItemId("itm_none"), told), Scrubber())

    assert len(text.encode()) <= LARGEST_BRIEFING_BYTES
    head, *lines = text.splitlines()
    assert head.startswith("[From the record. ")
    ours = [line for line in lines if not line.startswith("> ")]
    assert [line for line in ours if not _is_ours(line)] == []
    assert ours.count("[End of the record.]") == 1
    assert lines[-1] == "[End of the record.]"


def _is_ours(line: str) -> bool:
    known = (
        "", "Asked:", "Done, with results:", "Statements and decisions:",
        "Files, the last used one last:", "[End of the record.]",
    )  # fmt: skip
    begins = ("This is the work that is not in", "What to do next: continue with")
    return line in known or line.startswith(begins) or line.endswith(" more in the record)")
