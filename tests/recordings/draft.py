"""Prints the events of a recording in the form of an expectation, for review.

    python -m tests.recordings.draft CLI-NAME

It writes no file: an expectation is what a person has found right, not what the code does.
"""

import json
import sys

from tests.recordings.recorded import recordings, telling


def main(name: str) -> None:
    recording = next(each for each in recordings() if str(each) == name)
    for event in telling(recording.play()):
        sys.stdout.write(f"{json.dumps(event, ensure_ascii=False)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
