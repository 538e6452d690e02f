"""Print which internals of Keras and TensorFlow are used, and whether they exist.

python -m loopwright.compat
"""

import importlib
import pkgutil
import sys

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

        from loopwright.compat.internals import INTERNALS, is_present
    print(f"Internals of TensorFlow {tf.__version__} and Keras {keras.__version__}")
    names, moved = set[str](), list[str]()
    for function, internal in sorted(INTERNALS.items()):
        missing = [name for name in internal.names if not is_present(name)]
        print(f"\n{function}")
        for name in internal.names:
            print(f"  {'moved  ' if name in missing else 'present'} {name}")
        print(f"  if moved: {internal.if_moved or 'fails'}")
        names.update(internal.names)
        moved += [internal.if_moved] if missing else []
    print(
        f"\n{len(INTERNALS)} functions use {len(names)} internals; {len(moved)} have moved, "
        f"{moved.count('')} without a fallback"
    )
    return 1 if "" in moved else 0


if __name__ == "__main__":
    sys.exit(main())
