"""An error is the same on both sides of the socket."""

from pathlib import Path

import pytest

from steadyrun import errors
from steadyrun.api.errors import FailureDocument, build_error, from_refusal, to_document, to_refusal
from steadyrun.errors import NotFound, RpcRefused, SteadyrunError, StoreBusy
from tests.unit.test_errors import CLASSES


@pytest.mark.parametrize("kind", CLASSES.values(), ids=lambda kind: kind.__name__)
def test_every_error_is_rebuilt_as_its_own_class(kind: type[SteadyrunError]) -> None:
    failure = FailureDocument(kind.code, "what", "try", kind.retryable, kind.exit_code)

    error = build_error(failure)

    assert type(error) is kind
    assert (error.message, error.hint, str(error)) == ("what", "try", "what\ntry")
    assert to_document(error) == failure


def test_unknown_error_code_keeps_its_message_and_exit_code() -> None:
    failure = FailureDocument("new_kind", "what", "", retryable=True, exit=42)

    error = build_error(failure)

    assert (error.code, error.exit_code, error.retryable) == ("new_kind", 42, True)
    assert to_document(error) == failure
    assert "new_kind" not in {kind.code for kind in CLASSES.values()}


def test_error_survives_the_conversion_to_a_refusal_and_back() -> None:
    for error in (
        NotFound("agent", "ada", hint="look"),
        StoreBusy("locked", path=Path("/x")),
        errors.DaemonRunning(Path("/x"), pid=7),
    ):
        assert to_document(from_refusal(to_refusal(error))) == to_document(error)


def test_refusal_without_an_error_document_is_returned_unchanged() -> None:
    refused = RpcRefused("no method", number=-32601)

    assert from_refusal(refused) is refused
