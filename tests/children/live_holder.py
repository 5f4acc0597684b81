"""Joins as a holder, starts a child that inherits its descriptors, and waits to be killed.

live_holder.py FOLDER HOLDER    says the process id of its child on stdout
"""

import os
import subprocess
import sys
from pathlib import Path

from steadyrun.model.ids import HolderId
from steadyrun.stores.sqlite.db.liveness import Liveness


def main(folder: str, holder: str) -> None:
    Liveness(Path(folder)).acquire(HolderId(holder))
    # Careless on purpose: nothing is closed for it. It ends when our stdin, which it shares, ends.
    with subprocess.Popen(["cat"], close_fds=False) as heir:
        os.write(1, b"%d\n" % heir.pid)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
