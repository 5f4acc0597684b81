"""Builds the shell command that passes a prompt of any length to a CLI on stdin."""

from pathlib import Path

# The prompt, in the directory of the process.
PROMPT_FILE = "prompt"
# Executes the arguments, with the file $0 as standard input.
READ_FILE = 'exec "$@" <"$0"'


def build_prompt_prefix(directory: str, script: str = READ_FILE) -> tuple[str, ...]:
    """Build the words before the command line of the CLI; `script` gets the prompt file as $0."""
    return ("/bin/sh", "-c", script, str(Path(directory) / PROMPT_FILE))
