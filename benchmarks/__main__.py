"""Run benchmarks on this machine: `make bench`, or `python -m benchmarks speed --only mlp`.

Machines are noisy: compare only figures of the same run.
"""

import argparse
import sys
from pathlib import Path

from benchmarks import (
    checkpoints,
    distribution,
    examples,
    features,
    growth,
    memory,
    refits,
    speed,
    startup,
    tuning,
)

SECTIONS = {
    "speed": speed,
    "examples": examples,
    "startup": startup,
    "growth": growth,
    "memory": memory,
    "refits": refits,
    "checkpoints": checkpoints,
    "features": features,
    "tuning": tuning,
    "distribution": distribution,
}
BY_DEFAULT = (
    "speed",
    "examples",
    "startup",
    "growth",
    "memory",
    "refits",
    "checkpoints",
    "features",
)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    sections = made.add_subparsers(dest="section", metavar="SECTION")
    for name, section in SECTIONS.items():
        summary = (section.__doc__ or "").splitlines()[0]
        part = sections.add_parser(name, help=summary, description=summary)
        part.add_argument(
            "--results",
            type=Path,
            help="output directory; default: benchmarks/results, unless --only",
        )
        section.add_arguments(part)
    return made


def main() -> None:
    read = parser()
    arguments = read.parse_args()
    requested = [arguments]
    if arguments.section is None:
        requested = [read.parse_args([name]) for name in BY_DEFAULT]
    failed = False
    for section in requested:
        print(f"# {section.section}\n", flush=True)
        try:
            print(SECTIONS[section.section].run(section), flush=True)
        except RuntimeError as error:  # a measured process failed
            failed = True
            print(f"failed: {error}\n", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
