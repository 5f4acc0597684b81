"""Tests that each span is exported once and unchanged, for any events and any restarts."""

from collections import Counter
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from steadyrun.model import event as ev
from steadyrun.model.event import Event, EventId, StoredEvent
from steadyrun.model.ids import RunId
from steadyrun.telemetry.spans import SpanBuilder, SpanData
from steadyrun.testing.clock import START

SAID = "crimson"
calls = st.sampled_from(["call_1", "call_2", "call_3"])
tools: st.SearchStrategy[Event] = st.one_of(
    st.builds(ev.ToolStarted, calls, st.just("Bash"), st.just(SAID)),
    st.builds(ev.ToolCompleted, calls, st.just("Bash"), st.just(SAID), st.just(SAID)),
    st.builds(ev.ToolFailed, calls, st.just("Bash"), error=st.just(SAID)),
)
others: st.SearchStrategy[Event] = st.sampled_from(
    [ev.TextFinal(SAID), ev.StatsUpdated("m"), ev.TokenBound("tok"), ev.Note(SAID)]
)
endings: st.SearchStrategy[Event] = st.sampled_from(
    [ev.RunCompleted("completed", text=SAID), ev.RunFailed("failed"), ev.RunCancelled("cancelled")]
)


@st.composite
def records(draw: st.DrawFn) -> list[StoredEvent]:
    """Several runs, each in its order, mixed with each other."""
    left: dict[str, list[Event]] = {}
    for number in range(draw(st.integers(1, 3))):
        begun = [ev.RunStarted("claude", item="itm_1")] if draw(st.booleans()) else []
        middle = draw(st.lists(tools | others, max_size=8))
        left[f"run_{number}"] = [*begun, *middle, draw(endings)]
    found: list[StoredEvent] = []
    while left:
        run = draw(st.sampled_from(sorted(left)))
        event = left[run].pop(0)
        left = {name: events for name, events in left.items() if events}
        n = len(found) + 1
        # A clock may be set back.
        at = START + timedelta(seconds=draw(st.integers(-5, 5)) + n)
        found.append(StoredEvent(n, n, EventId(f"e{n}"), at, "ada", RunId(run), "claude", event))
    return found


def heard(spans: SpanBuilder, seen: list[StoredEvent]) -> list[SpanData]:
    return [span for each in seen for span in spans.read(each)]


@given(records())
def test_every_run_and_every_tool_has_one_span(seen: list[StoredEvent]) -> None:
    spans = heard(SpanBuilder(), seen)

    runs = {span.attributes["steadyrun.run"]: span for span in spans if span.parent is None}
    assert set(runs) == {each.run for each in seen}
    assert len(runs) == sum(span.parent is None for span in spans)
    assert max(Counter(span.id for span in spans).values()) == 1
    for span in spans:
        assert span.start <= span.end
        assert SAID not in str(span)
        if span.parent is not None:
            run = runs[span.attributes["steadyrun.run"]]
            assert (span.parent, span.trace) == (run.id, run.trace)


@given(records())
def test_no_tool_is_without_a_span(seen: list[StoredEvent]) -> None:
    told = Counter(
        span.attributes.get("gen_ai.tool.call.id") for span in heard(SpanBuilder(), seen)
    )
    ended = Counter(
        each.event.tool_call_id
        for each in seen
        if isinstance(each.event, ev.ToolCompleted | ev.ToolFailed)
    )
    begun = {e.event.tool_call_id for e in seen if isinstance(e.event, ev.ToolStarted)}

    assert all(told[call] >= ended[call] for call in ended)
    assert all(told[call] >= 1 for call in begun)


@given(records(), st.data())
def test_new_builder_continues_with_the_same_spans(
    seen: list[StoredEvent], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(seen)))
    whole = heard(SpanBuilder(content=True), seen)
    before = heard(SpanBuilder(content=True), seen[:cut])

    # As one that starts again does: for an unknown run it first gets the earlier events.
    anew, rest = SpanBuilder(content=True), list[SpanData]()
    for each in seen[cut:]:
        assert each.run is not None
        if not anew.has_open(each.run):
            heard(anew, [e for e in seen if e.run == each.run and e.cursor < each.cursor])
        rest += anew.read(each)

    assert before + rest == whole
