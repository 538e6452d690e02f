"""A process that prepares its contenders, then trains a round of one whenever it is told to.

It answers on its standard output, one JSON object a line: first what it prepared, then each round.

    python -m benchmarks.contender TensorFlow mlp '{"columns": ["Keras fit"], "left_out": []}' 25
    {"prepared": [{"column": "Keras fit", "setting": "", "failure": null}], "versions": {...}}
    {"place": 0, "seconds": 1.0}                                  # read from standard input
    {"steps": 512, "seconds": 0.98, "found": {}}

It ends when its input ends. Until then it waits in `read`, which costs no processor time.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.data import DATA
from benchmarks.measuring import Contender, Ready, a_round, fitting_count, in_words

MODULES = {
    "TensorFlow": "benchmarks.contenders",
    "PyTorch": "benchmarks.peers.torch_contenders",
    "JAX": "benchmarks.peers.jax_contenders",
}


def main(framework: str, key: str, wanted: str, settle_seconds: str) -> None:
    """Serve the contenders of the wanted columns and settings until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Whatever a framework prints must not pass for an answer.
    os.dup2(2, 1)
    module = importlib.import_module(MODULES[framework])
    chosen = entered(module.contenders(key, float(settle_seconds)), **json.loads(wanted))

    def tell(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    serve(chosen, DATA[key]().steps_per_epoch, module.versions(), sys.stdin, tell)


def entered(
    everyone: Sequence[Contender], columns: Sequence[str], left_out: Sequence[str]
) -> list[Contender]:
    """Return the contenders of these columns, without settings that contain one of the words."""
    return [
        one
        for one in everyone
        if one.column in columns and not set(left_out) & set(one.setting.split())
    ]


def serve(
    chosen: Sequence[Contender],
    steps_per_epoch: int,
    versions: dict[str, str],
    orders: Iterable[str],
    tell: Callable[[dict[str, Any]], None],
) -> None:
    """Prepare everyone and say so; then answer each order. Who fails is out, with a reason."""
    prepared = [_prepared(one) for one in chosen]
    said = [
        {"column": one.column, "setting": one.setting, "failure": failure}
        for one, (_, failure) in zip(chosen, prepared, strict=True)
    ]
    tell({"prepared": said, "versions": versions})
    epochs = [1] * len(chosen)
    for line in orders:
        order = json.loads(line)
        place, wanted = order["place"], order["seconds"]
        ready = prepared[place][0]
        try:
            done, seconds = a_round(ready.train, epochs[place], wanted)
            epochs[place] = fitting_count(done, seconds, wanted)
            steps = done * steps_per_epoch
            tell({"steps": steps, "seconds": seconds, "found": ready.found()})
        except Exception as error:
            tell({"failure": in_words(error)})


def _prepared(contender: Contender) -> tuple[Ready, str | None]:
    try:
        ready = contender.prepare()
        ready.train(1)  # traces, compiles, fills caches
    except Exception as error:
        return Ready(lambda epochs: None), in_words(error)
    return ready, None


if __name__ == "__main__":
    main(*sys.argv[1:])
