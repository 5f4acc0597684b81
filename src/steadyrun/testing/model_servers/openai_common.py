"""Contains what OpenAI's APIs share: errors, the list of models, and headers of limits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from steadyrun.testing.model_servers.faults import Fault, Refusal
from steadyrun.testing.model_servers.http_server import HttpReply, HttpRequest
from steadyrun.testing.model_servers.protocol import Fields

MODELS = "/v1/models"


@dataclass(frozen=True)
class OpenAIError:
    """The status, type, code and message of a fault in OpenAI's APIs."""

    status: int
    type: str
    code: str | None
    message: str


ERRORS: Mapping[Fault, OpenAIError] = {
    "rate_limit": OpenAIError(429, "requests", "rate_limit_exceeded", "Rate limit reached."),
    "usage_limit": OpenAIError(
        429, "usage_limit_reached", None, "The usage limit has been reached"
    ),
    "no_credit": OpenAIError(
        429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota."
    ),
    "overloaded": OpenAIError(
        503, "service_unavailable_error", "server_is_overloaded", "Our servers are overloaded."
    ),
    "server": OpenAIError(500, "server_error", "server_error", "The server had an error."),
    "auth": OpenAIError(
        401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."
    ),
    "not_found": OpenAIError(
        404, "invalid_request_error", "model_not_found", "There is no such model."
    ),
    "too_long": OpenAIError(
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "Your input exceeds the context window of this model.",
    ),
    "invalid": OpenAIError(400, "invalid_request_error", "invalid_prompt", "Invalid request."),
}


def build_codex_limit_headers(
    used_percent: float, resets_at: int, window_minutes: int = 300, slot: str = "primary"
) -> dict[str, str]:
    """Build the headers that report a subscription's window to Codex."""
    return {
        f"x-codex-{slot}-used-percent": f"{used_percent:g}",
        f"x-codex-{slot}-window-minutes": str(window_minutes),
        f"x-codex-{slot}-reset-at": str(resets_at),
    }


class OpenAIApi:
    """The errors and the list of models of an API of OpenAI."""

    def build_error(self, refusal: Refusal) -> tuple[int, Fields]:
        found = ERRORS[refusal.fault]
        error = {
            "message": refusal.message or found.message,
            "type": found.type,
            "param": None,
            "code": found.code,
            **refusal.detail,
        }
        return found.status, {"error": error}

    def answer_lookup(self, request: HttpRequest) -> HttpReply | None:
        """Answer a request for the models: an empty list, under the names of Codex and the API."""
        if request.method != "GET" or request.path.partition("?")[0] != MODELS:
            return None
        return HttpReply(200, (json.dumps({"object": "list", "data": [], "models": []}).encode(),))
