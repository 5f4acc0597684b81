"""Tests properties of every recording of Claude Code, also of changed ones."""

import pytest
from msgspec.structs import replace

from steadyrun.drivers.replay import RecordedLine
from tests.recordings.played import KINDS, outcomes, played, texts
from tests.recordings.recorded import Recording, recordings
from tests.recordings.shape_claude import CLAUDE
from tests.recordings.shapes import changed

RECORDINGS = recordings("claude")
by_name = pytest.mark.parametrize("recording", RECORDINGS, ids=str)


@by_name
@pytest.mark.parametrize("sign", ["api_error_status", "error"])
def test_rate_limit_is_detected_by_either_sign(recording: Recording, sign: str) -> None:
    before = [outcome[0] for outcome in outcomes(recording.play())]
    if "rate_limited" in before:
        others = changed(recording.lines(), lambda message: message | {sign: None})
        assert [outcome[0] for outcome in outcomes(played(recording, others))] == before


@by_name
def test_text_of_a_sub_agent_is_not_reported(recording: Recording) -> None:
    lines: list[RecordedLine] = []
    for line in recording.lines():
        copies = [_of_a_sub_agent(line)] if CLAUDE.kind_of(line).startswith("out assistant") else []
        lines += [*copies, line, *copies]

    assert texts(played(recording, lines)) == texts(recording.play())


def test_empty_result_is_not_a_success() -> None:
    recording, place = KINDS["claude out result success"]
    lines = recording.lines()
    lines[place] = replace(lines[place], msg={"type": "result"})

    assert outcomes(played(recording, lines))[0][0] == "failed"


def _of_a_sub_agent(line: RecordedLine) -> RecordedLine:
    assert isinstance(line.msg, dict)
    text = [{"type": "text", "text": "text of another agent"}]
    message = line.msg["message"] | {"content": text}
    more = {"message": message, "parent_tool_use_id": "toolu_other", "error": "rate_limit"}
    return replace(line, msg=line.msg | more)
