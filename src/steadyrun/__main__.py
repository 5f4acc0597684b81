"""The `steadyrun` command. Asking for the version costs no more than starting Python."""

import sys

from steadyrun import __version__


def main() -> int:
    """Run the command line and return its exit code."""
    if sys.argv[1:] == ["--version"]:
        print(f"steadyrun {__version__}")
        return 0
    from steadyrun.cli.main import main as run_command  # noqa: PLC0415 (the start-up budget)

    return run_command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
