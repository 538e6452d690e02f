"""What the bits of a run depend on, beside its own code."""

import json
import sys

import pytest
import tensorflow as tf
from tests.processes import run_command

from loopwright.environment import changes, environment, for_digest
from loopwright.launch import (
    ONEDNN,
    Settings,
    onednn_by_default,
    onednn_is_on,
)
from loopwright.processor import cpu_flags


def test_it_names_the_versions_the_processor_and_the_threads_as_json():
    known = environment()
    assert json.loads(json.dumps(known)) == known
    text = json.dumps(known)
    assert tf.__version__ in text
    assert "threads" in text


def test_the_same_environment_has_no_changes():
    assert changes(environment(), environment()) == []


def test_what_changed_is_told_by_name(monkeypatch: pytest.MonkeyPatch):
    before = environment()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    now = "XLA flags: None then, --xla_cpu_multi_thread_eigen=false now"
    assert changes(before, environment()) == [now]


def test_settings_count_by_their_meaning(monkeypatch: pytest.MonkeyPatch):
    before = environment()
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_persistent_cache_directory=/somewhere")
    # Set after the import, it has no effect on TensorFlow.
    monkeypatch.setenv(ONEDNN, "0" if onednn_is_on() else "1")
    assert changes(before, environment()) == []


PRODUCT = """
import hashlib, tensorflow as tf
from loopwright.environment import environment
x = tf.random.stateless_normal((64, 300), [1, 2])
print(environment()["processor instructions"])
print(hashlib.sha256(tf.matmul(x, x, transpose_b=True).numpy().tobytes()).hexdigest())
"""


@pytest.mark.skipif("avx512f" not in cpu_flags(), reason="there is one kind of kernel only")
def test_processors_of_one_name_with_other_instructions_are_told_apart_as_their_bits_are():
    def computed(**limit: str) -> list[str]:
        done = run_command([sys.executable, "-c", PRODUCT], env={ONEDNN: "0", **limit})
        return done.stdout.splitlines()[-2:]

    (one, bits), (other, others) = computed(), computed(ONEDNN_MAX_CPU_ISA="AVX2")
    assert bits != others
    before, now = ({**environment(), "processor instructions": each} for each in (one, other))
    assert changes(before, now) == [f"processor instructions: {one} then, {one} at most AVX2 now"]


def test_a_record_without_the_instructions_of_its_processor_may_be_of_this_one():
    before = {name: v for name, v in environment().items() if name != "processor instructions"}
    assert changes(before, environment()) == []


@pytest.mark.parametrize("word", ["0", "1"])
def test_a_process_knows_whether_tensorflow_runs_onednn(word: str):
    code = "import tensorflow, loopwright.launch as s; print(s.onednn_is_on())"
    done = run_command([sys.executable, "-c", code], env={ONEDNN: word})
    assert done.stdout.split()[-1] == str(word == "1")


def test_digests_of_the_first_version_still_match():
    """Records name a kind of step by a digest of this dict, in this order."""
    default = Settings(onednn_by_default())
    found = for_digest(default)
    assert list(found)[-3:] == ["XLA_FLAGS", "TF_XLA_FLAGS", ONEDNN]
    assert [found[name] for name in list(found)[-3:]] == [None, None, None]
    other = for_digest(Settings(not default.onednn))
    assert other[ONEDNN] == str(int(not default.onednn))
