"""Starts a program as a user would: `loopwright find settings`, then `loopwright run`."""

import os
import subprocess
import sys


def main() -> None:
    """Measure the settings of the program that the arguments name, then become this program."""
    command = [sys.executable, "-m", "loopwright"]
    subprocess.run(
        [*command, "find", "settings", *sys.argv[1:]],
        stdin=subprocess.DEVNULL,  # its lines are for the program
        stdout=sys.stderr,
        check=False,
    )
    os.execv(command[0], [*command, "run", *sys.argv[1:]])


if __name__ == "__main__":
    main()
