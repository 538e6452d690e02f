"""Configs: a training as a file. Pure: reading one imports no TensorFlow and runs nothing.

config = load("digits.yaml", ["fit.epochs=5"], environment=os.environ)
config.fit.epochs                                                        # 5
"""

from loopwright.config.changes import Change, changes, refuse_changes
from loopwright.config.loading import (
    FILE,
    from_content,
    load,
    plain,
    save,
    saved_in,
    start,
    written,
)
from loopwright.config.schema import Config, Fit, Named

__all__ = [
    "FILE",
    "Change",
    "Config",
    "Fit",
    "Named",
    "changes",
    "from_content",
    "load",
    "plain",
    "refuse_changes",
    "save",
    "saved_in",
    "start",
    "written",
]
