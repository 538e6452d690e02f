"""Print which internals of Keras and TensorFlow are used, and whether they exist.

python -m loopwright.compat
"""

import importlib
import pkgutil
import sys

from loopwright import compat
from loopwright.compat.internals import INTERNALS, Internal
from loopwright.compat.quiet_start import quiet_start


def main() -> int:
    """Print the list; return 1 if something is gone for which there is no fallback."""
    with quiet_start():
        for found in pkgutil.iter_modules(compat.__path__):
            if found.name != "__main__":
                importlib.import_module(f"{compat.__name__}.{found.name}")
        import keras
        import tensorflow as tf
    print(f"Internals of TensorFlow {tf.__version__} and Keras {keras.__version__}")
    moved = [_print(internal) for _, internal in sorted(INTERNALS.items())]
    failing = moved.count("fails")
    names = {name for internal in INTERNALS.values() for name in internal.names}
    print(
        f"\n{len(INTERNALS)} functions use {len(names)} internals; {len(moved) - moved.count('')} "
        f"have moved, {failing} without a fallback"
    )
    return 1 if failing else 0


def _print(internal: Internal) -> str:
    """Print an entry; return what happens since it has moved, empty if it has not."""
    missing = internal.missing()
    print(f"\n{internal.used_by}")
    for name in internal.names:
        print(f"  {'moved  ' if name in missing else 'present'} {name}")
    outcome = "fails" if not internal.if_moved else "refuses" if internal.refuses else "degrades"
    print(f"  if moved, it {outcome}{internal.if_moved and f': {internal.if_moved}'}")
    return outcome if missing else ""


if __name__ == "__main__":
    sys.exit(main())
