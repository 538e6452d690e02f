"""What batches are like, as JSON."""

import json
from collections import namedtuple
from typing import Any

import pytest
import tensorflow as tf

from loopwright.data.batches import decoded, encoded

SPECS = {
    "one tensor": tf.TensorSpec([None, 3], tf.float32),
    "a pair": (tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int64)),
    "named": {
        "image": tf.TensorSpec([None, 8, 8, 1], tf.uint8),
        "text": [tf.TensorSpec([None], tf.string)],
    },
    "ragged": tf.RaggedTensorSpec([None, None, 4], tf.float32, ragged_rank=1),
    "sparse": (tf.SparseTensorSpec([None, 100], tf.float32), tf.TensorSpec([None])),
    "of any rank": tf.TensorSpec(None, tf.float32),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_a_spec_survives_a_file(spec: Any):
    again = decoded(json.loads(json.dumps(encoded(spec))))
    assert again == spec
    assert type(again) is type(spec)


def test_what_a_file_cannot_hold_is_nothing():
    pair = namedtuple("pair", "x y")
    assert encoded(pair(tf.TensorSpec([None]), tf.TensorSpec([None]))) is None
    assert encoded({1: tf.TensorSpec([None])}) is None
    assert encoded(None) is None
