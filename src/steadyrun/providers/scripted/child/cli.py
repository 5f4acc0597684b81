"""Runs the scripted CLI from its start to its end."""

import contextlib
from pathlib import Path

from steadyrun.providers.scripted.child.input_queue import InputQueue, PlayerSettings
from steadyrun.providers.scripted.child.memory import Memory
from steadyrun.providers.scripted.child.player import play_turn
from steadyrun.providers.scripted.child.wire import InputReader, decode_json, write


def main(argv: list[str]) -> int:
    """Run turns until stdin ends or SIGINT arrives."""
    if len(argv) != 2:
        write(2, b"usage: scripted_child MEMORY SETTINGS\n")
        return 2
    reader = InputReader()
    settings = PlayerSettings(**decode_json(Path(argv[1]).read_bytes()))
    queue = InputQueue(reader, settings, Memory(Path(argv[0]), settings.resume))
    with contextlib.suppress(BrokenPipeError):
        for turn in queue.iter_turns():
            play_turn(queue, turn)
    return 0
