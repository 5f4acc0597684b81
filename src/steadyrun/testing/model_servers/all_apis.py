"""Provides a server with all APIs, for tests that work with any CLI."""

from steadyrun.testing.model_servers.anthropic import MESSAGES_API
from steadyrun.testing.model_servers.model_server import ModelServer
from steadyrun.testing.model_servers.openai_chat import CHAT_API
from steadyrun.testing.model_servers.openai_responses import RESPONSES_API


class AllApisServer(ModelServer):
    """The Messages, Responses and Chat Completions APIs on 127.0.0.1, with one script."""

    apis = (MESSAGES_API, RESPONSES_API, CHAT_API)
