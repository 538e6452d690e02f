"""Strategies beside each other."""

from typing import Any

import tensorflow as tf

from loopwright.compat import tensorflow_internals


def test_two_strategies_in_one_process_do_not_meet_in_their_collectives():
    def summed(strategy: Any, size: int) -> Any:
        @tf.function
        def every() -> Any:
            return strategy.reduce("SUM", strategy.run(lambda: tf.ones([size])), axis=None)

        return every().numpy().tolist()

    one, other = (tensorflow_internals.mirrored_strategy(["CPU:0", "CPU:1"]) for _ in range(2))
    assert summed(one, 3) == [2.0] * 3
    assert summed(other, 5) == [2.0] * 5
    assert summed(one, 4) == [2.0] * 4
