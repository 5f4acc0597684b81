"""Runs the simulated APIs as a process: `python -m steadyrun.testing.model_servers SCRIPT`.

The first line of output is the URL. The process ends when its stdin is closed. `--log` writes the
requests as lines of JSON.
"""

import argparse
import sys
from pathlib import Path

from steadyrun.testing.model_servers.model_server import AllApisServer
from steadyrun.testing.model_servers.script_json import read_script


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m steadyrun.testing.model_servers")
    parser.add_argument("script", type=Path, help="a file of steps as JSON, see script_json.py")
    parser.add_argument("--log", type=Path, help="append each request to this file, one per line")
    arguments = parser.parse_args()
    with AllApisServer(read_script(arguments.script), log=arguments.log) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
