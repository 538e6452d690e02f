"""Print which internals of Keras and TensorFlow are used, and whether they exist.

python -m loopwright.compat
"""

import importlib
import pkgutil
import sys

from loopwright.compat.internals import INTERNALS, Internal
from loopwright.quiet_start import quiet_start

_ROOMS = ("loopwright.compat", "loopwright.rewrites")


def main() -> int:
    """Print the list; return 1 if something is gone for which there is no fallback."""
    with quiet_start():
        for room in map(importlib.import_module, _ROOMS):
            for module in pkgutil.iter_modules(room.__path__):
                if module.name != "__main__":
                    importlib.import_module(f"{room.__name__}.{module.name}")
        import keras
        import tensorflow as tf
    print(f"Internals of TensorFlow {tf.__version__} and Keras {keras.__version__}")
    moved = [internal for _, internal in sorted(INTERNALS.items()) if _print(internal)]
    failing = [internal.used_by for internal in moved if not internal.if_moved]
    names = {name for internal in INTERNALS.values() for name in internal.names}
    print(
        f"\n{len(INTERNALS)} functions use {len(names)} internals; {len(moved)} have moved, "
        f"{len(failing)} without a fallback"
    )
    return 1 if failing else 0


def _print(internal: Internal) -> bool:
    """Print an entry; return whether one of its internals has moved."""
    missing = internal.missing()
    print(f"\n{internal.used_by}")
    for name in internal.names:
        print(f"  {'moved  ' if name in missing else 'present'} {name}")
    print(f"  if moved: {internal.if_moved or 'fails'}")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
