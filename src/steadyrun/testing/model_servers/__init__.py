"""What does a real CLI do when its model says this? Simulated model servers on 127.0.0.1.

    gate = Gate()
    script = [
        answer(call("Bash", command="echo hi")),            # the first main request
        answer(text("It ", gate, "works."), tokens=Tokens(output=7)),
        rate_limited(retry_after=1),                        # the third is refused
    ]
    with MessagesServer(script) as server:
        start_the_cli(env={"ANTHROPIC_BASE_URL": server.url, ...})
        gate.wait_until_reached()                           # "It " is out, nothing more
        gate.open()
    [first, second, third] = server.main_asks

The same script does for any wire: `ResponsesServer` is what Codex takes for OpenAI (its base URL is
`server.url` with `/v1` behind it), `ChatServer` an OpenAI-compatible API, `EveryServer` all three.
What a wire has of its own goes into a `raw` block, or into a refusal's `detail`.

`faults` is what can go wrong with any server, `server` is HTTP, `script` hands out the steps,
`blocks` is what a model can say: none of them knows a wire. `wire` is the contract of one, `model`
the server above it. `messages`, `responses` and `chat` are the wires, each with its `_events`
behind it; `openai` is what the last two share.
`python -m steadyrun.testing.model_servers script.json` is `EveryServer` as a process of its own.
It takes nothing but the standard library.
"""
