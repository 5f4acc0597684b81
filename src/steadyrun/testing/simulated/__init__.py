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

`faults` is what can go wrong with any server, `server` is HTTP, `script` hands out the steps:
none of them knows a wire. `messages` is the Anthropic Messages API, with `blocks` and `encoding`
behind it. `python -m steadyrun.testing.simulated script.json` is the same as a process of its own.
It takes nothing but the standard library.
"""
