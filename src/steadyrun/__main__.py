"""The entry point of the command `steadyrun`. `--version` is as fast as Python itself."""

# The built-in half of `signal`. The other half is a Python file, which is slow to load.
import _signal  # type: ignore[import-not-found]
import sys

from steadyrun import __version__


def main() -> int:
    """Run the command line and return its exit code."""
    # Until the command starts, Ctrl-C ends the process at once. An interrupt that is raised during
    # an import can be lost or crash the interpreter (seen with msgspec 0.22).
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    if sys.argv[1:] == ["--version"] and sys.stdout is not None:
        return _print_version()
    from steadyrun.cli.main import main as run_command  # noqa: PLC0415 (start-up time)

    return run_command(sys.argv[1:])


def _print_version() -> int:
    try:
        print(f"steadyrun {__version__}", flush=True)
    except OSError as error:
        # Without this, Python would flush stdout again at exit and report the same error.
        sys.stdout = None
        print(f"steadyrun: cannot write: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
