"""An error is the same on both sides of the socket."""

from pathlib import Path

import pytest

from steadyrun import errors
from steadyrun.api.errors import FailureDocument, build_error, from_refusal, to_document, to_refusal
from steadyrun.errors import NotFound, RpcRefused, SteadyrunError, StoreBusy
from tests.unit.test_errors import CLASSES


@pytest.mark.parametrize("kind", CLASSES.values(), ids=lambda kind: kind.__name__)
def test_every_error_comes_back_as_its_own_kind(kind: type[SteadyrunError]) -> None:
    failure = FailureDocument(kind.code, "what", "try", kind.retryable, kind.exit_code)

    error = build_error(failure)

    assert type(error) is kind
    assert (error.message, error.hint, str(error)) == ("what", "try", "what\ntry")
    assert to_document(error) == failure


def test_an_error_that_only_the_other_side_knows_keeps_its_facts() -> None:
    failure = FailureDocument("new_kind", "what", "", retryable=True, exit=42)

    error = build_error(failure)

    assert (error.code, error.exit_code, error.retryable) == ("new_kind", 42, True)
    assert to_document(error) == failure
    assert "new_kind" not in {kind.code for kind in CLASSES.values()}


def test_there_and_back_is_the_same() -> None:
    for error in (
        NotFound("agent", "ada", hint="look"),
        StoreBusy("locked", path=Path("/x")),
        errors.DaemonRunning(Path("/x"), pid=7),
    ):
        assert to_document(from_refusal(to_refusal(error))) == to_document(error)


def test_a_refusal_of_another_form_stays_one() -> None:
    refused = RpcRefused("no method", number=-32601)

    assert from_refusal(refused) is refused
