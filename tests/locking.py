"""An SQLite database that another process has locked."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HOLDER = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
held.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Let another process hold the lock of a database until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            yield
        finally:
            holder.communicate("\n")
