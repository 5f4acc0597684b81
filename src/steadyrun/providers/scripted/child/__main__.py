"""How is the scripted CLI started? As a file, by an interpreter that knows nothing of us."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # -I and -S leave our package out of the path. It comes last: the standard library wins. Only
    # what the packages on the way import at once is imported here, and that must be nothing.
    sys.path.append(str(Path(__file__).parents[4]))
    from steadyrun.providers.scripted.child.cli import main

    sys.exit(main(sys.argv[1:]))
