"""Print which internals of Keras and TensorFlow are used, and whether they exist.

python -m loopwright.compat
"""

import sys
import textwrap

from loopwright.compat import quiet_start, registry
from loopwright.compat.internal import Internal
from loopwright.compat.internals import INTERNALS

_WIDTH, _INDENT = 100, " " * 12


def main() -> int:
    """Print the list; return 1 if something is gone for which there is no fallback."""
    with quiet_start.quiet_start():
        import keras
        import tensorflow as tf
    print(f"Internals of TensorFlow {tf.__version__} and Keras {keras.__version__}")
    gone = {internal.used_by: registry.missing(internal) for internal in INTERNALS}
    for internal in INTERNALS:
        print("\n" + _described(internal, gone[internal.used_by]))
    moved = [internal for internal in INTERNALS if gone[internal.used_by]]
    failing = [internal.used_by for internal in moved if internal.outcome == "fails"]
    print(f"\n{len(INTERNALS)} uses, {len(moved)} of them moved, {len(failing)} without a fallback")
    return 1 if failing else 0


def _described(internal: Internal, gone: list[str]) -> str:
    used = [f"{'moved  ' if n in gone else 'present'} {_breakable(n)}" for n in internal.names]
    rows = {
        "uses": used or ["texts of messages: checked by tests"],
        "why": [internal.why],
        "if moved": [f"{internal.outcome}: {internal.if_moved}"],
    }
    lines = [internal.used_by]
    for title, texts in rows.items():
        for index, text in enumerate(texts):
            start = f"  {'' if index else title:<10}"
            lines += textwrap.wrap(
                text,
                _WIDTH,
                initial_indent=start,
                subsequent_indent=_INDENT,
                break_on_hyphens=False,
                break_long_words=False,
            )
    return "\n".join(lines)


def _breakable(name: str) -> str:
    path, dot, attribute = name.rpartition(".")
    return name if len(name) < _WIDTH - 2 * len(_INDENT) else f"{path} {dot}{attribute}"


if __name__ == "__main__":
    sys.exit(main())
