"""Calls the daemon with lines written by hand, and prints the last answer.

usage: raw_caller.py HOME METHOD PARAMS [orphan]

With `orphan`, the process that has connected ends, and its child goes on with the connection.
"""

import json
import os
import socket
import sys
import threading


def main() -> None:
    home, method, params = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    os.chdir(f"{home}/daemon")
    end = socket.socket(socket.AF_UNIX)
    end.connect("socket")
    if sys.argv[4:] == ["orphan"]:
        outlive_the_caller()
    calls = (("hello", {"version": "0.1.0"}), (method, params))
    for number, (name, given) in enumerate(calls):
        line = {"jsonrpc": "2.0", "id": number, "method": name, "params": given}
        end.sendall(json.dumps(line).encode() + b"\n")
    lines = end.makefile()
    answers = [json.loads(lines.readline()) for _ in calls]
    error = answers[-1].get("error")
    sys.stdout.write(json.dumps(answers[-1]))
    sys.exit(error["data"]["exit"] if error else 0)


def outlive_the_caller() -> None:
    """Go on in a child, once the parent has ended. The parent waits for nothing."""
    caller = os.getpid()
    if os.fork():
        os._exit(0)
    pause = threading.Event()
    while os.getppid() == caller:
        pause.wait(0.005)


if __name__ == "__main__":
    main()
