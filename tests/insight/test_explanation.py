"""The cause of a difference is said in words."""

from typing import Any

import pytest

from loopwright.insight.comparison import Differs, explained
from loopwright.insight.first_difference import Difference

SAME: dict[str, Any] = {"plan": "graph", "batch": "ab", "rates": {"learning_rate": 0.1}}
ONEDNN = Differs("environment", "oneDNN", ("on", "off"))
SEED = Differs("config", "seed", ("0", "1"))
CODE = Differs("code", "task.train_step", ("digest 1", "digest 2"))


@pytest.mark.parametrize(
    ("step", "other", "found", "relative", "words"),
    [
        (0, {}, [SEED], None, "begin with different weights. seed: 0 (a), 1 (b)."),
        (7, {"batch": "cd"}, [SEED], None, "different batches. seed: 0 (a), 1 (b)."),
        (
            7,
            {"batch": "cd"},
            [Differs("data", "digest", ("x", "y"))],
            None,
            "The data itself differs: digest: x (a), y (b).",
        ),
        (7, {"batch": "cd"}, [], None, "an unseeded shuffle"),
        (7, {"rates": {"learning_rate": 0.2}}, [], None, "The learning rate: 0.1 in a, 0.2 in b."),
        (7, {"plan": "fused"}, [], 1e-7, "The plan: a ran this step by graph, b by fused."),
        (7, {}, [ONEDNN, CODE], 1e-7, "how numbers are rounded: oneDNN: on (a), off (b)."),
        (7, {}, [ONEDNN, CODE], 0.5, "The code: task.train_step"),
        (7, {}, [Differs("config", "model.flip", ("0", "7"))], 0.5, "The config: model.flip: 0"),
        (7, {}, [], 1e-7, "Nothing that is recorded differs"),
    ],
)
def test_the_likely_cause_is_named(step, other, found, relative, words):
    facts = SAME, {**SAME, **other}
    assert words in explained(Difference(step, ["w"]), facts, found, relative=relative)


def test_what_cannot_be_repeated_is_named_before_the_unknown_and_then_what_is_the_same():
    reasons = ["Task.train_step draws from tf.random.normal"]
    found = explained(Difference(7, ["w"]), (SAME, SAME), [], relative=0.5, reasons=reasons)
    assert "draws from tf.random.normal" in found
    assert found.endswith("The same in both: the batch, the learning rate, the plan.")
