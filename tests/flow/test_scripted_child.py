"""The scripted CLI does what its page documents: the real process, over pipes."""

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steadyrun.dialect import (
    DialectOutput,
    Image,
    LaunchRequest,
    Offer,
    Refused,
    Send,
    Turn,
    TurnBegan,
    TurnEnded,
    Verdict,
)
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact
from steadyrun.model.usage import Cost, Usage
from steadyrun.providers.scripted.child.script import STEPS
from steadyrun.providers.scripted.child.steps import PLAY_STEPS
from steadyrun.providers.scripted.dialect import Scripted, ScriptedOptions

PATIENCE_SECONDS = 60.0
PAGE = (Path(__file__).parents[2] / "docs" / "providers.md").read_text(encoding="utf-8")
SECTION = PAGE.split("\n## scripted\n")[1].split("\n## ")[0]


class Cli:
    """The process and the Dialect that speaks with it."""

    def __init__(self, home: Path, script: str | None = None, **request: Any) -> None:
        self.dialect = Scripted(ScriptedOptions(script))
        self.directory = home / "processes" / f"prc_{time.monotonic_ns()}"
        self.directory.mkdir(parents=True)
        self.request = LaunchRequest(
            turn=Turn("", ""), directory=str(self.directory), cwd=str(home), **request
        )
        launch = self.dialect.launch(self.request)
        self.argv = launch.argv
        for name, content in launch.files.items():
            (self.directory / name).write_bytes(content)
        with (self.directory / "stderr").open("wb") as stderr:
            self.process = subprocess.Popen(
                launch.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=home,
                bufsize=0,
                env={},
            )
        self.said: list[DialectOutput] = []
        self._rest, self._end, self._turns = b"", 0, 0

    def open(self) -> str:
        """Shake hands; return the resume token."""
        self.send(self.dialect.open(self.request))
        [bound] = self.hear_until(lambda said: isinstance(said, ev.TokenBound))
        assert isinstance(bound, ev.TokenBound)
        return bound.token

    def begin(self, *steps: Any, text: str | None = None, **turn: Any) -> None:
        self._turns += 1
        asked = f"script:{json.dumps(steps)}" if text is None else text
        self.send(self.dialect.begin(Turn(f"t{self._turns}", asked, **turn)))

    def play(self, *steps: Any, **turn: Any) -> list[DialectOutput]:
        """Play one turn to its end; what was said in between, without its beginning."""
        self.begin(*steps, **turn)
        said = self.hear_end()
        assert said[0] == TurnBegan(f"t{self._turns}")
        return said[1:]

    def send(self, sends: list[Send]) -> None:
        """Write what is to be said in one piece."""
        self.write(b"".join(send.raw + b"\n" for send in sends))
        for send in sends:
            self.said += self.dialect.on_sent(Frame(send.raw, self._end, send.key))

    def write(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)

    def hear_end(self) -> list[DialectOutput]:
        return self.hear_until(lambda said: isinstance(said, TurnEnded))

    def hear_until(self, is_it: Callable[[DialectOutput], bool]) -> list[DialectOutput]:
        """Everything said since the last time, up to and with this."""
        while not any(map(is_it, self.said)):
            assert self._read(), f"it ended before: {self.said}"
        n = next(n for n, said in enumerate(self.said, 1) if is_it(said))
        heard, self.said = self.said[:n], self.said[n:]
        return heard

    def hear_exit(self) -> list[DialectOutput]:
        """Everything said up to its end, and no process is left."""
        while self._read():
            pass
        if self._rest:
            self._take(self._rest)
        self.process.wait(PATIENCE_SECONDS)
        with pytest.raises(ProcessLookupError):
            os.kill(self.process.pid, 0)
        heard, self.said = self.said, []
        return heard

    def eof(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def _read(self) -> bool:
        assert self.process.stdout
        readable = select.select([self.process.stdout], [], [], PATIENCE_SECONDS)[0]
        assert readable, f"it says nothing more after {self.said}"
        data = self.process.stdout.read(1 << 20)
        *lines, self._rest = (self._rest + (data or b"")).split(b"\n")
        for line in lines:
            self._take(line)
        return bool(data)

    def _take(self, line: bytes) -> None:
        self._end += len(line) + 1
        try:
            self.said += self.dialect.receive(Frame(line, self._end))
        except msgspec.DecodeError:
            self.said.append(ev.Unknown(raw=line))


Start = Callable[..., Cli]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes; none is left in the end."""
    started: list[Cli] = []

    def start(**settings: Any) -> Cli:
        started.append(Cli(tmp_path, **settings))
        return started[-1]

    yield start
    for cli in started:
        cli.process.kill()
        cli.process.wait(PATIENCE_SECONDS)
        for pipe in (cli.process.stdin, cli.process.stdout):
            assert pipe
            pipe.close()


@pytest.fixture
def cli(start: Start) -> Cli:
    cli = start()
    cli.open()
    return cli


def ended(said: list[DialectOutput]) -> TurnEnded:
    assert isinstance(said[-1], TurnEnded)
    return said[-1]


def error_of(said: list[DialectOutput]) -> ErrorFact:
    error = ended(said).error
    assert error
    return error


def recalled(said: list[DialectOutput]) -> Any:
    text = ended(said).text
    assert text
    return json.loads(text)


DONE = TurnEnded("completed", cost=Cost())


def done(text: str) -> TurnEnded:
    return TurnEnded("completed", text, cost=Cost())


def test_prompt_without_a_script_is_answered_by_the_demo(cli: Cli) -> None:
    said = cli.play(text="tell me all")

    assert said == [
        ev.TextFinal("You said: tell me all"),
        ev.ToolStarted("call-1", "Read", {"path": "README.md"}),
        ev.ToolCompleted("call-1", "Read", {"path": "README.md"}, "# Nothing was read"),
        ev.UsageUpdated(Usage(3, 12), Cost(0.0, "known")),
        ev.TextFinal("Done. A script answered; no model was asked."),
        TurnEnded(
            "completed",
            "Done. A script answered; no model was asked.",
            Usage(3, 12),
            Cost(0.0, "known"),
        ),
    ]


TOOL = {"name": "Bash", "input": {"command": "ls"}, "output": ["a", "b"]}


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], [DONE]),
        ([{"text": "hi ☃"}], [ev.TextFinal("hi ☃"), done("hi ☃")]),
        (
            [{"delta": ["a", "b"]}],
            [ev.TextDelta("a"), ev.TextDelta("b"), ev.TextFinal("ab"), done("ab")],
        ),
        ([{"thinking": "hm"}], [ev.ThinkingDelta("hm"), DONE]),
        ([{"result": "stated"}, {"text": "last"}], [ev.TextFinal("last"), done("stated")]),
        (
            [{"tool": TOOL}],
            [
                ev.ToolStarted("call-1", "Bash", {"command": "ls"}),
                ev.ToolCompleted("call-1", "Bash", {"command": "ls"}, ["a", "b"]),
                DONE,
            ],
        ),
        (
            [{"tool": {"name": "Bash", "error": "no disk", "seconds": 0.001}}],
            [
                ev.ToolStarted("call-1", "Bash"),
                ev.ToolFailed("call-1", "Bash", error="no disk"),
                DONE,
            ],
        ),
        (
            [{"tool": {"name": "Bash", "leave_open": True}}],
            [ev.ToolStarted("call-1", "Bash"), DONE],
        ),
        ([{"image": "a.png"}], [ev.ImageProduced("a.png", "image/png", 1), DONE]),
        (
            [{"stats": {"model": "m", "context_window": 9}}],
            [ev.StatsUpdated(model="m", context_window=9), DONE],
        ),
        (
            [{"compaction": {"tokens_before": 9, "tokens_after": 3}}],
            [ev.CompactionStarted("auto"), ev.CompactionCompleted("auto", 9, 3), DONE],
        ),
        (
            [{"compaction": {"error": "too big"}}],
            [ev.CompactionStarted("auto"), ev.CompactionFailed("too big"), DONE],
        ),
        (
            [{"retrying": {"reason": "overloaded", "attempt": 2, "delay_ms": 500}}],
            [ev.ProviderRetrying(2, 500, "overloaded"), DONE],
        ),
        ([{"wait": 0.001}, {"text": "waited"}], [ev.TextFinal("waited"), done("waited")]),
        ([{"unknown": "novelty"}], [ev.Unknown('{"type": "novelty"}'), DONE]),
        (
            [{"unknown": {"name": "text", "fields": {"kind": "odd"}}}],
            [ev.Unknown('{"type": "text", "kind": "odd"}'), DONE],
        ),
        (["garbage"], [ev.Unknown(raw=b"not JSON {"), DONE]),
        (
            [{"garbage": True}],
            [ev.Unknown(raw=b'{"type":"text","text":"\xff\xfe"}'), DONE],
        ),
        ([{"big_line": 3_000_000}], [ev.TextFinal("x" * 3_000_000), done("x" * 3_000_000)]),
        (
            [{"fail": {"message": "no luck", "code": "unlucky", "retryable": True}}, {"text": "n"}],
            [
                TurnEnded(
                    "failed",
                    cost=Cost(),
                    error=ErrorFact("unlucky", "no luck", retryable=True),
                )
            ],
        ),
    ],
)
def test_step_prints_the_documented_output(
    cli: Cli, steps: list[Any], said: list[DialectOutput]
) -> None:
    assert cli.play(*steps) == said


def test_usage_adds_up_and_missing_values_are_unknown(cli: Cli) -> None:
    said = cli.play({"usage": 3}, {"usage": {"input_tokens": 4, "cost_usd": 0.5}}, {"usage": 1})

    assert said[:2] == [
        ev.UsageUpdated(Usage(3)),
        ev.UsageUpdated(Usage(7), Cost(0.5, "known")),
    ]
    assert (ended(said).usage, ended(said).cost) == (Usage(8), Cost(0.5, "known"))


def test_usage_of_a_turn_does_not_count_for_the_next(cli: Cli) -> None:
    cli.play({"text": "a"}, {"result": "b"}, {"usage": 3})

    assert cli.play() == [DONE]


def test_rate_limit_has_the_time_of_its_end(cli: Cli) -> None:
    at = cli.play({"rate_limit": {"message": "slow down", "resets_at": 1800000000.5}})
    soon = cli.play({"rate_limit": {"resets_in": 3600}})
    never = cli.play("rate_limit")
    absurd = cli.play({"rate_limit": {"resets_at": 1e300}})

    assert [ended(said).status for said in (at, soon, never, absurd)] == ["rate_limited"] * 4
    stated = error_of(at).retry_at
    assert stated
    assert stated.timestamp() == 1800000000.5
    assert (error_of(at).code, error_of(at).message) == ("rate_limited", "slow down")
    assert error_of(soon).retry_at
    assert (error_of(never).retry_at, error_of(absurd).retry_at) == (None, None)


def test_flood_prints_the_requested_number_of_lines(cli: Cli) -> None:
    said = cli.play({"flood": {"count": 2345, "bytes": 50, "stderr": True}})

    texts = [each.text for each in said if isinstance(each, ev.TextFinal)]
    assert len(texts) == 2345
    assert {len(text) for text in texts} == {50}
    assert (cli.directory / "stderr").read_text().splitlines() == texts


def test_stderr_step_creates_no_event(cli: Cli) -> None:
    assert cli.play({"stderr": "oh"}) == [DONE]
    assert (cli.directory / "stderr").read_text() == "oh\n"


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ("crash", 1),
        ({"crash": 7}, 7),
        ({"crash": {"signal": 9}}, -9),
        ({"crash": {"signal": 2}}, -2),
        ({"crash": {"signal": 17, "code": 3}}, 3),
    ],
)
def test_crash_leaves_the_turn_open(cli: Cli, step: Any, code: int) -> None:
    cli.begin({"text": "a"}, step, {"text": "b"})

    assert cli.hear_exit() == [TurnBegan("t1"), ev.TextFinal("a")]
    assert cli.process.returncode == code


def test_last_line_without_a_line_break_is_read(cli: Cli) -> None:
    cli.begin({"no_newline": {"text": "a", "code": 4}})

    assert cli.hear_exit() == [TurnBegan("t1"), ev.TextFinal("a")]
    assert cli.process.returncode == 4


# -- ends from outside


@pytest.mark.parametrize(
    "step",
    [
        {"wait": 3600},
        {"until": "/nowhere"},
        "hang",
        {"tool": {"name": "T", "seconds": 3600}},
        {"approval": "T"},
        {"delta": {"pieces": ["a"], "seconds": 3600}},
        {"flood": {"count": 10**9}},
    ],
)
def test_interrupt_ends_the_turn_and_not_the_process(cli: Cli, step: Any) -> None:
    cli.begin({"text": "go"}, step)
    cli.hear_until(lambda said: isinstance(said, ev.TextFinal))
    interrupt = cli.dialect.interrupt()
    assert interrupt
    cli.send([interrupt])

    assert ended(cli.hear_end()).status == "cancelled"
    assert cli.play({"text": "alive"})[-1] == done("alive")


def test_interrupt_after_the_end_of_a_turn_has_no_effect(cli: Cli) -> None:
    cli.begin({"text": "quick"})
    interrupt = cli.dialect.interrupt()
    assert interrupt
    cli.hear_end()
    cli.send([interrupt])

    assert cli.play({"text": "alive"})[-1] == done("alive")


def test_hard_hang_is_ended_only_by_sigterm(cli: Cli) -> None:
    cli.begin({"text": "go"}, {"hang": True})
    cli.hear_until(lambda said: isinstance(said, ev.TextFinal))
    interrupt = cli.dialect.interrupt()
    assert interrupt
    cli.send([interrupt])
    cli.eof()
    cli.process.send_signal(signal.SIGINT)
    cli.process.send_signal(signal.SIGTERM)

    assert cli.hear_exit() == []
    assert cli.process.returncode == -signal.SIGTERM


def test_ignore_sigterm_step_survives_sigterm(cli: Cli, tmp_path: Path) -> None:
    cli.begin("ignore_sigterm", {"text": "go"}, {"until": str(tmp_path / "on")}, {"text": "alive"})
    cli.hear_until(lambda said: isinstance(said, ev.TextFinal))
    cli.process.send_signal(signal.SIGTERM)
    (tmp_path / "on").touch()

    assert cli.hear_end()[-1] == done("alive")


def test_turn_completes_after_the_end_of_stdin(cli: Cli) -> None:
    cli.begin({"self_turn": [{"text": "never"}]}, {"approval": "T"}, {"text": "a"})
    cli.begin({"text": "b"})
    cli.eof()

    said = cli.hear_exit()

    assert [each.text for each in said if isinstance(each, TurnEnded)] == ["a", "b"]
    assert [each.error for each in said if isinstance(each, ev.ToolFailed)] == [
        "denied: no answer is possible, because stdin is closed"
    ]
    assert cli.process.returncode == 0


def test_sigint_ends_turn_and_process(cli: Cli) -> None:
    cli.begin({"text": "go"}, "hang")
    cli.hear_until(lambda said: isinstance(said, ev.TextFinal))
    cli.process.send_signal(signal.SIGINT)

    assert ended(cli.hear_exit()).status == "cancelled"
    assert cli.process.returncode == 0


def test_sigint_ends_an_idle_process(cli: Cli) -> None:
    cli.process.send_signal(signal.SIGINT)

    assert cli.hear_exit() == []
    assert cli.process.returncode == 0


def test_process_ends_when_its_output_is_closed(cli: Cli) -> None:
    cli.begin({"flood": 10**9})
    assert cli.process.stdout
    cli.process.stdout.close()

    assert cli.process.wait(PATIENCE_SECONDS) == 0


# -- follow-ups


def offer(cli: Cli, text: str, name: str = "o1") -> Send:
    send = cli.dialect.steer(Offer(name, text))
    assert isinstance(send, Send)
    return send


def test_offer_is_absorbed_between_steps(cli: Cli, tmp_path: Path) -> None:
    cli.begin({"until": str(tmp_path / "on")}, {"text": "b"})
    cli.send([offer(cli, "and this")])
    (tmp_path / "on").touch()

    assert cli.hear_end() == [
        TurnBegan("t1"),
        ev.FollowupOffered("o1", "and this"),
        ev.FollowupAbsorbed("o1", "and this"),
        ev.TextFinal("b"),
        done("b"),
    ]
    assert cli.dialect.is_ready
    assert recalled(cli.play("recall"))["earlier"][1:] == ["and this"]


def test_offer_is_absorbed_when_a_tool_ends(cli: Cli) -> None:
    cli.begin({"approval": "T"})
    [*_, asked] = cli.hear_until(lambda said: isinstance(said, ev.ApprovalRequested))
    assert isinstance(asked, ev.ApprovalRequested)
    cli.send([offer(cli, "and this"), *cli.dialect.decide(asked.approval, Verdict(True))])

    assert [type(said) for said in cli.hear_end()] == [
        ev.FollowupOffered,
        ev.ApprovalResolved,
        ev.ToolCompleted,
        ev.FollowupAbsorbed,
        TurnEnded,
    ]


def test_offer_after_the_last_step_becomes_its_own_turn(cli: Cli) -> None:
    begin = cli.dialect.begin(Turn("t1", 'script:[{"text":"a"}]'))
    cli.dialect.on_sent(Frame(begin[0].raw, 0))
    offers = [offer(cli, 'script:[{"text":"b"},{"text":"c"}]'), offer(cli, "me too", "o2")]
    cli.send([*begin, *offers])

    assert not cli.dialect.is_ready
    assert cli.hear_end()[-1] == done("a")
    assert cli.hear_end() == [
        ev.FollowupOwnTurn("o1", 'script:[{"text":"b"},{"text":"c"}]'),
        TurnBegan("o1"),
        ev.TextFinal("b"),
        ev.FollowupAbsorbed("o2", "me too"),
        ev.TextFinal("c"),
        done("c"),
    ]
    assert cli.dialect.is_ready


def test_recalled_offer_is_returned(cli: Cli, tmp_path: Path) -> None:
    cli.begin({"until": str(tmp_path / "on")}, {"text": "b"})
    cli.send([offer(cli, "and this")])
    recall = cli.dialect.recall("o1")
    assert recall
    cli.send([recall])
    [*_, returned] = cli.hear_until(lambda said: isinstance(said, ev.FollowupReturned))
    (tmp_path / "on").touch()

    assert returned == ev.FollowupReturned("o1", "and this", "recalled")
    assert cli.hear_end() == [ev.TextFinal("b"), done("b")]
    assert cli.dialect.recall("o1") is None


def test_offer_is_returned_when_the_turn_is_interrupted(cli: Cli) -> None:
    cli.begin("hang")
    interrupt = cli.dialect.interrupt()
    assert interrupt
    cli.send([offer(cli, "and this"), interrupt])

    assert cli.hear_end()[-2:] == [
        ev.FollowupReturned("o1", "and this", "interrupted"),
        TurnEnded("cancelled", cost=Cost()),
    ]
    assert cli.dialect.is_ready


def test_offer_to_an_idle_process_is_refused(cli: Cli) -> None:
    assert cli.dialect.steer(Offer("o1", "hey")) == Refused("no turn is running")


# -- approvals


@pytest.mark.parametrize("is_allowed", [True, False])
def test_approval_answer_decides_the_outcome_of_the_tool(cli: Cli, is_allowed: bool) -> None:
    cli.begin({"approval": {"name": "Bash", "input": "ls", "output": "ok"}})
    [*_, asked] = cli.hear_until(lambda said: isinstance(said, ev.ApprovalRequested))
    assert isinstance(asked, ev.ApprovalRequested)
    cli.send(cli.dialect.decide(asked.approval, Verdict(is_allowed, "not now")))

    resolved, tool, _ = cli.hear_end()

    assert (asked.tool_call_id, asked.tool_name, asked.tool_input) == ("call-1", "Bash", "ls")
    if is_allowed:
        assert resolved == ev.ApprovalResolved(asked.approval, "allow", "user")
        assert tool == ev.ToolCompleted("call-1", "Bash", "ls", "ok")
    else:
        assert resolved == ev.ApprovalResolved(asked.approval, "deny", "user")
        assert tool == ev.ToolFailed("call-1", "Bash", "ls", error="denied: not now")


def test_full_auto_mode_requests_no_approval(start: Start) -> None:
    cli = start(mode="full_auto")
    cli.open()

    said = cli.play({"approval": {"name": "Bash", "output": "ok"}})

    assert [type(each) for each in said] == [ev.ToolStarted, ev.ToolCompleted, TurnEnded]


# -- turns of its own


def test_scripted_cli_starts_an_unprompted_turn(cli: Cli) -> None:
    cli.play({"self_turn": {"after": 0.01, "steps": [{"text": "by the way"}]}}, {"text": "a"})

    assert cli.hear_end() == [TurnBegan(None), ev.TextFinal("by the way"), done("by the way")]
    assert recalled(cli.play("recall"))["earlier"][1:] == []


def test_unprompted_turn_can_be_interrupted(cli: Cli) -> None:
    cli.play({"self_turn": ["hang"]})
    cli.hear_until(lambda said: said == TurnBegan(None))
    interrupt = cli.dialect.interrupt()
    assert interrupt
    cli.send([interrupt])

    assert ended(cli.hear_end()).status == "cancelled"


def test_turn_sent_in_an_unprompted_turn_follows_it(cli: Cli, tmp_path: Path) -> None:
    cli.play({"self_turn": [{"until": str(tmp_path / "on")}, {"text": "by the way"}]})
    other = Scripted()  # a driver that has not read that a turn began
    [send] = other.begin(Turn("t9", 'script:[{"text":"asked"}]'))
    cli.hear_until(lambda said: said == TurnBegan(None))
    cli.write(send.raw + b"\n")
    (tmp_path / "on").touch()

    assert cli.hear_end()[-1] == done("by the way")
    assert cli.hear_end() == [TurnBegan("t9"), ev.TextFinal("asked"), done("asked")]


def test_interrupt_of_a_waiting_turn_also_ends_the_unprompted_turn_before_it(cli: Cli) -> None:
    cli.play({"self_turn": ["hang"]})
    cli.hear_until(lambda said: said == TurnBegan(None))
    cli.write(b'{"type":"turn","key":"t9","text":"x"}\n{"type":"interrupt","turn":"t9"}\n')

    assert ended(cli.hear_end()).status == "cancelled"
    assert cli.hear_end() == [TurnBegan("t9"), TurnEnded("cancelled", cost=Cost())]


# -- memory


def test_conversation_continues_in_a_new_process(start: Start) -> None:
    first = start()
    token = first.open()
    first.play(text="my name is Ada")
    first.begin({"crash": {"signal": 9}})
    first.hear_exit()

    second = start(resume=token)

    assert second.open() == token
    assert recalled(second.play("recall"))["earlier"] == ["my name is Ada"]


@pytest.mark.parametrize(
    ("content", "code"), [(None, "resume_not_found"), (b"{", "resume_corrupt")]
)
def test_unreadable_conversation_fails_every_turn(
    start: Start, tmp_path: Path, content: bytes | None, code: str
) -> None:
    if content is not None:
        (tmp_path / "scripted").mkdir()
        (tmp_path / "scripted" / "scr_1.json").write_bytes(content)
    cli = start(resume="scr_1")
    cli.send(cli.dialect.open(cli.request))

    assert error_of(cli.play()).code == code
    assert error_of(cli.play()).code == code


def test_resume_token_is_not_used_as_a_path(start: Start) -> None:
    cli = start(resume="../../etc/passwd")
    cli.send(cli.dialect.open(cli.request))

    assert error_of(cli.play()).code == "resume_not_found"


def test_recall_step_prints_the_launch_options(start: Start) -> None:
    cli = start(system="be kind", model="m1", mode="plan")
    cli.open()

    known = recalled(cli.play("recall", images=(Image("image/png", b"12345"),)))

    assert known == {
        "earlier": [],
        "system": "be kind",
        "model": "m1",
        "mode": "plan",
        "images": [{"media_type": "image/png", "bytes": 5}],
    }


# -- limits and shapes


def test_tool_that_is_not_allowed_fails(start: Start) -> None:
    cli = start(tools=("Read",))
    cli.open()

    said = cli.play({"tool": "Bash"}, {"approval": "Bash"}, {"tool": "Read"})

    failed = [each.error for each in said if isinstance(each, ev.ToolFailed)]
    assert failed == ["the tool Bash is not allowed"] * 2
    assert ended(said).status == "completed"


def test_turn_with_more_tools_than_max_turns_fails(start: Start) -> None:
    cli = start(max_turns=1)
    cli.open()

    assert ended(cli.play({"tool": "Read"})).status == "completed"
    assert error_of(cli.play({"tool": "Read"}, {"tool": "Read"})).code == "max_turns"


def test_turn_above_max_cost_fails(start: Start) -> None:
    cli = start(max_cost_usd=1.0)
    cli.open()
    half = {"usage": {"cost_usd": 0.5}}

    assert ended(cli.play(half, half)).status == "completed"
    said = cli.play(half, half, half, {"text": "never"})
    assert error_of(said).code == "max_cost"
    assert ended(said).cost == Cost(1.5, "known")


SCHEMA = {
    "type": "object",
    "required": ["name", "kind", "tags", "child", "ok", "any", "none", "free"],
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "kind": {"enum": ["a", "b"]},
        "tags": {"type": "array", "items": {"type": "integer", "minimum": 3}, "minItems": 2},
        "child": {"$ref": "#/$defs/child"},
        "ok": {"type": ["boolean", "null"]},
        "any": {"anyOf": [{"const": 5}, {"type": "string"}]},
        "none": {"type": "null"},
        "left_out": {"type": "string"},
    },
    "$defs": {"child": {"required": ["n"], "properties": {"n": {"type": "number"}}}},
}


@pytest.mark.parametrize("turn", [{"text": "plain"}, {}])
def test_structured_answer_matches_the_schema(cli: Cli, turn: dict[str, Any]) -> None:
    said = cli.play("structured", schema=SCHEMA, **turn)

    assert recalled(said) == {
        "name": "xx",
        "kind": "a",
        "tags": [3, 3],
        "child": {"n": 0},
        "ok": False,
        "any": 5,
        "none": None,
        "free": "",
    }


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        (None, "schema_missing"),
        ({"$ref": "#/nowhere"}, "schema_invalid"),
        ({"required": 5}, "schema_invalid"),
    ],
)
def test_invalid_or_missing_schema_fails_the_turn(cli: Cli, schema: Any, code: str) -> None:
    assert error_of(cli.play("structured", schema=schema)).code == code


def test_recursive_schema_is_answered_with_null(cli: Cli) -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}
    schema = {"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}, **schema}

    assert ended(cli.play("structured", schema=schema)).text == "null"


# -- scripts


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("[", "the prompt: expected a list of steps in JSON, found: "),
        ("[" * 100_000, "the prompt: expected a list of steps in JSON, found: "),
        ('[{"wait":NaN}]', "the prompt: expected a list of steps in JSON, found: NaN is not"),
        ('[{"tool":{"name":"T","input":1e999}}]', "the prompt: expected a list of steps in JSON"),
        ("{}", "the script: expected a list of steps, found {}"),
        ('[{"text":"a"},5]', "step 2: expected an object with one key, found 5"),
        ('[{"text":"a","wait":1}]', "step 1: expected an object with one key, found {"),
        ('[{"txt":"a"}]', "step 1: expected one of text, delta, "),
        ('[{"text":5}]', "step 1 (text): expected text to be text, found 5"),
        ('["text"]', "step 1 (text): expected text, text, found none"),
        ('[{"recall":true}]', "step 1 (recall): expected {}, found true"),
        ('[{"recall":{"a":1}}]', 'step 1 (recall): expected {}, found "a"'),
        ('[{"wait":-1}]', "step 1 (wait): expected seconds to be a number from 0, found -1"),
        ('[{"wait":true}]', "step 1 (wait): expected seconds to be a number from 0, found true"),
        ('[{"flood":{"count":1,"size":2}}]', 'expected count, bytes, stderr, found "size"'),
        ('[{"crash":256}]', "step 1 (crash): expected code to be a number from 0 to 255"),
        ('[{"crash":{"signal":99}}]', "expected signal to be a number from 1 to 64, found 99"),
        ('[{"delta":"abc"}]', "expected pieces to be a list of texts"),
        (
            '[{"self_turn":["recall",{"text":5}]}]',
            "step 1 (self_turn): step 2 (text): expected text to be text, found 5",
        ),
    ],
)
def test_invalid_script_fails_the_turn_and_not_the_process(
    cli: Cli, script: str, problem: str
) -> None:
    error = error_of(cli.play(text=f"script:{script}"))

    assert error.code == "script_invalid"
    assert problem in error.message
    assert "docs/providers.md" in error.hint
    assert cli.play({"text": "alive"})[-1] == done("alive")
    assert (cli.directory / "stderr").read_bytes() == b""


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("s.json", '[{"text": "a"}]', ["a", "a", "a"]),
        ("s.json", '{"steps": [{"text": "a"}]}', ["a", "a", "a"]),
        ("s.json", '{"turns": [[{"text": "a"}], [{"text": "b"}]]}', ["a", "b", "b"]),
        ("s.toml", '[[steps]]\ntext = "a"\n[[steps]]\nrecall = {}\n', None),
        ("s.toml", 'turns = [[{text = "a"}], ["recall", {text = "b"}]]', ["a", "b", "b"]),
    ],
)
def test_script_file_is_played_for_every_prompt(
    start: Start, tmp_path: Path, name: str, content: str, texts: list[str] | None
) -> None:
    (tmp_path / name).write_text(content)
    cli = start(script=name)
    cli.open()

    said = [ended(cli.play(text=text)).text for text in ("one", "two", "three")]

    assert said == texts or texts is None
    assert cli.play({"text": "mine"})[-1] == done("mine")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("none.json", None, "cannot read the script none.json"),
        ("s.json", b"\xff", "cannot read the script s.json"),
        ("s.json", b'{"turns": []}', "s.json: expected steps, or turns"),
        ("s.json", b'{"step": []}', "s.json: expected steps, or turns"),
        ("s.toml", b"steps = [", "s.toml: expected steps in TOML, found: "),
        ("s.toml", b"steps = [{wait = nan}]", "s.toml: expected steps in TOML, found: "),
        ("s.toml", b"steps = [{wait = 2020-01-01}]", "expected seconds to be a number"),
    ],
)
def test_invalid_script_file_fails_the_turn_with_its_name(
    start: Start, tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    cli = start(script=name)
    cli.open()

    error = error_of(cli.play(text="hello"))

    assert error.code == "script_invalid"
    assert problem in error.message


# -- the process itself


def test_frame_sent_twice_is_handled_once(cli: Cli) -> None:
    begin = cli.dialect.begin(Turn("twice", 'script:[{"text":"a"},{"text":"b"}]'))
    cli.dialect.on_sent(Frame(begin[0].raw, 0))
    steer = offer(cli, "and this")
    cli.write(b"".join(send.raw + b"\n" for send in (*begin, steer, steer, *begin)))

    said = [*cli.hear_end(), *cli.play({"text": "next"})]

    assert said == [
        ev.TextFinal("a"),
        ev.FollowupAbsorbed("o1", "and this"),
        ev.TextFinal("b"),
        done("b"),
        ev.TextFinal("next"),
        done("next"),
    ]


@pytest.mark.parametrize("line", [b"{", b"5", b'{"type":"dance"}', b'{"type":"turn"}', b"\xff"])
def test_unreadable_input_is_ignored(cli: Cli, line: bytes) -> None:
    cli.write(line + b"\n")

    [note] = cli.hear_until(lambda said: isinstance(said, ev.Note))

    assert isinstance(note, ev.Note)
    assert "cannot read its input" in note.text
    assert cli.play({"text": "alive"})[-1] == done("alive")


def test_background_process_of_the_scripted_cli_outlives_it(cli: Cli) -> None:
    note, _ = cli.play("background")
    assert isinstance(note, ev.Note)
    [pid] = map(int, re.findall(r"\d+", note.text))
    handle = os.pidfd_open(pid)
    cli.eof()
    cli.hear_exit()

    try:
        assert select.select([handle], [], [], 0)[0] == []
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGKILL)
        gone = select.select([handle], [], [], PATIENCE_SECONDS)[0]
        os.close(handle)
    assert gone == [handle]


def test_child_without_arguments_prints_its_usage(cli: Cli) -> None:
    entry = cli.argv[:-2]

    asked = subprocess.run(entry, capture_output=True, check=False, timeout=PATIENCE_SECONDS)

    assert (asked.returncode, asked.stderr) == (2, b"usage: scripted_child MEMORY SETTINGS\n")


# -- the page


def test_every_step_is_played_and_documented() -> None:
    table = SECTION.split("| step |")[1].split("\n\n")[0]

    rows = re.findall(r"^\| `([a-z_]+)` \|([^|]*)\|", table, re.MULTILINE)
    documented = {name: re.findall(r"`([a-z_0-9]+)`", fields) for name, fields in rows}

    assert documented == {name: list(fields) for name, fields in STEPS.items()}
    assert PLAY_STEPS.keys() == STEPS.keys()


def test_example_of_the_providers_page_runs(start: Start, tmp_path: Path) -> None:
    [example] = re.findall(r"```json\n(.*?)```", SECTION, re.DOTALL)
    (tmp_path / "s.json").write_text(example)
    cli = start(script="s.json", mode="full_auto")
    cli.open()

    said = cli.play(text="go")

    assert ended(said).status == "completed"
    assert ended(said).text == "All tests pass."
    assert cli.hear_end()[0] == TurnBegan(None)
