"""The `steadyrun` command. Asking for the version costs no more than starting Python."""

# The built-in half of `signal`: the other half is a file that takes its time to load.
import _signal  # type: ignore[import-not-found]
import sys

from steadyrun import __version__


def main() -> int:
    """Run the command line and return its exit code."""
    # Until the command itself begins, Ctrl-C just ends the process: an interrupt raised in the
    # middle of an import can be swallowed, or crash the interpreter (seen with msgspec 0.22).
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    if sys.argv[1:] == ["--version"] and sys.stdout is not None:
        return _print_version()
    from steadyrun.cli.main import main as run_command  # noqa: PLC0415 (the start-up budget)

    return run_command(sys.argv[1:])


def _print_version() -> int:
    try:
        print(f"steadyrun {__version__}", flush=True)
    except OSError as error:
        # Closed for good, or Python would try, and complain, once more at exit.
        sys.stdout = None
        print(f"steadyrun: cannot write: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
