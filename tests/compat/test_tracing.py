"""Steps become graphs as they should."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.mirrored import mirrored

from loopwright.compat import tensorflow_internals
from loopwright.errors import StepError

# --- autograph ------------------------------------------------------------------------------------


def absolute(x):
    if x < 0:
        x = -x
    return x


def test_a_branch_on_a_tensor_becomes_part_of_the_graph():
    def step(x):
        return tensorflow_internals.autograph(absolute)(x)

    function = tensorflow_internals.compiled(step, [tf.TensorSpec(())])

    assert [float(function(tf.constant(x))) for x in (-2.0, 3.0)] == [2.0, 3.0]


def test_a_converted_function_can_merge_replicas():
    def merged(x):
        if x < 0:
            x = -x
        return tf.distribute.get_replica_context().merge_call(lambda strategy, v: v, args=(x,))

    strategy = mirrored()

    def step():
        return strategy.run(tensorflow_internals.autograph(merged), args=(tf.constant(-2.0),))

    results = strategy.experimental_local_results(tensorflow_internals.compiled(step)())

    assert [float(x) for x in results] == [2.0, 2.0]


def test_an_error_of_ours_leaves_a_converted_function_as_it_is():
    error = StepError("ours")

    def step():
        raise error

    with tensorflow_internals.scratch_graph(), pytest.raises(StepError) as caught:
        tensorflow_internals.autograph(step)()

    assert caught.value is error


# --- graphs ---------------------------------------------------------------------------------------


def test_a_scratch_graph_takes_all_operations_runs_none_and_makes_real_variables():
    counter, dense = tf.Variable(0), keras.layers.Dense(1, kernel_initializer="ones")

    with tensorflow_internals.scratch_graph() as graph:
        counter.assign_add(1)
        dense(tf.ones((2, 3)))

    assert tf.executing_eagerly()
    assert "AssignAddVariableOp" in {op.type for op in graph.get_operations()}
    assert int(counter.numpy()) == 0
    np.testing.assert_array_equal(dense.get_weights()[0], np.ones((3, 1)))


def test_many_compiled_functions_from_one_line_are_no_reason_for_a_warning(
    caplog: pytest.LogCaptureFixture,
):
    def each_anew(make: Any) -> list[str]:
        caplog.clear()
        for _ in range(8):
            make(lambda x: x + 1.0)(tf.constant(1.0))
        return [record.message for record in caplog.records]

    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        assert each_anew(tensorflow_internals.compiled) == []
        assert "triggered tf.function retracing" in each_anew(tf.function)[0]
    finally:
        logger.removeHandler(caplog.handler)


# --- written_handles ------------------------------------------------------------------------------


def test_variables_that_a_graph_changes_are_told_from_those_that_it_reads():
    changed, read, branch, looped, called, only_read_in_branch = (
        tf.Variable(1.0) for _ in range(6)
    )

    @tf.function
    def function(x):
        called.assign(x)

    with tensorflow_internals.scratch_graph() as graph:
        x = read + changed.assign_add(1.0)
        tf.cond(x > 0, lambda: branch.assign(x), only_read_in_branch.read_value)
        tf.while_loop(lambda i: i < 3, lambda i: i + tf.cast(looped.assign(x), tf.int32), [0])
        function(x)

    written = tensorflow_internals.written_handles(graph)

    assert written == {id(v.handle) for v in (changed, branch, looped, called)}
    assert len(tensorflow_internals.captures_of(graph, {id(read.handle)})) == 1
