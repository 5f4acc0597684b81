"""Starts the scripted CLI as a file, in an interpreter without site packages."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # With -I and -S the package is not on the path. It is added at the end, so that the standard
    # library comes first. The packages above this module must import nothing, to start fast.
    sys.path.append(str(Path(__file__).parents[4]))
    from steadyrun.providers.scripted.child.player import main

    sys.exit(main(sys.argv[1:]))
