"""Simulates the APIs of models on 127.0.0.1, for tests with real CLIs.

    gate = StreamGate()
    script = [
        answer(call("Bash", command="echo hi")),            # the first main request
        answer(make_text("It ", gate, "works."), tokens=AnswerTokens(output=7)),
        refuse_rate_limit(retry_after=1),                   # the third is refused
    ]
    with MessagesServer(script) as server:
        start_the_cli(env={"ANTHROPIC_BASE_URL": server.url, ...})
        gate.wait_until_reached()                           # "It " is out, nothing more
        gate.open()
    [first, second, third] = server.main_requests

The same script works with every API. `ResponsesServer` simulates OpenAI for Codex (the base URL is
`server.url` followed by `/v1`), `ChatServer` an OpenAI-compatible API, `AllApisServer` all three.
Details of one API go into a `raw` block, or into the `detail` of a refusal.

`faults`, `http_server` and `content` are independent of the API. `protocol` is the contract of an
API; `anthropic`, `openai_responses` and `openai_chat` are the APIs, and the last two share
`openai_common`. `model_server` has the servers, which answer from a script.
`python -m steadyrun.testing.model_servers script.json` runs `AllApisServer` as a process.
The package needs only the standard library.
"""
