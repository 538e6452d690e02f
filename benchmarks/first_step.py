"""Time a process from its start to its first step: `python -m benchmarks.first_step`.

Imports stand where they happen: their time is what is measured.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Reach = Callable[[str], None]


def main(began: str, contender: str, workload: str) -> None:
    """Print the seconds since `began`, by stage."""
    reached: dict[str, float] = {}

    def reach(stage: str) -> None:
        reached.setdefault(stage, time.monotonic() - float(began))

    train = _loopwright if contender == "Loopwright" else _keras
    train(workload, reach)
    print(json.dumps(reached))


def _loopwright(workload: str, reach: Reach) -> None:
    import loopwright as lw

    reach("Loopwright imported")
    work = _work(workload, reach)
    trainer = lw.Trainer(work.task())
    reach("ready to fit")
    for event in trainer.events(**work.given()):
        if isinstance(event, lw.Trained):
            reach("first step")
            break


def _keras(workload: str, reach: Reach) -> None:
    work = _work(workload, reach)
    import keras

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            reach("first step")

    model = work.keras_model()
    reach("ready to fit")
    model.fit(**work.given(), steps_per_epoch=1, callbacks=[Watch()], verbose=0)


def _work(workload: str, reach: Reach) -> Any:
    import tensorflow  # noqa: F401

    reach("TensorFlow imported")
    from benchmarks.workloads import WORKLOADS

    return WORKLOADS[workload]()


if __name__ == "__main__":
    main(*sys.argv[1:])
