"""What the bits of a run depend on, beside its own code."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from loopwright.compat import process
from loopwright.compat.environment import by_name, changes, environment, for_digest
from loopwright.plans import launch
from loopwright.plans.settings import ONEDNN, Settings, onednn_by_default


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
    monkeypatch.setenv(ONEDNN, "0" if process.onednn_is_on() else "1")
    assert changes(before, environment()) == []


def test_a_fingerprint_of_an_earlier_version_is_read_by_its_meaning(
    monkeypatch: pytest.MonkeyPatch,
):
    raw = {"XLA_FLAGS": None, "TF_XLA_FLAGS": None, ONEDNN: None}
    now = environment()
    rest = {name: now[name] for name in now if name not in by_name(process.current())}
    assert changes({**rest, **raw}, now) == []
    other = "0" if process.onednn_is_on() else "1"
    words = ("off then, on now", "on then, off now")
    expected = f"oneDNN: {words[int(other)]}"
    assert changes({**rest, **raw, ONEDNN: other}, now) == [expected]


def test_onednn_that_a_record_has_switched_off_may_still_help(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "onednn_is_on", lambda: False)
    monkeypatch.setattr(process, "cpu_flags", lambda: frozenset({"avx2"}))
    monkeypatch.delenv(ONEDNN, raising=False)
    assert process.onednn_may_help()
    for name, value in launch.marked(os.environ, Settings(onednn=False)).items():
        monkeypatch.setenv(name, value)
    assert os.environ[ONEDNN] == "0"
    assert process.onednn_may_help()
    monkeypatch.delenv(launch.MARK)
    assert not process.onednn_may_help()


@pytest.mark.parametrize("word", ["0", "1"])
def test_a_process_knows_whether_tensorflow_runs_onednn(word: str):
    code = "from loopwright.compat import process; print(process.onednn_is_on())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, ONEDNN: word},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == str(word == "1")


def test_digests_of_the_first_version_still_match():
    """Records name a kind of step by a digest of this dict, in this order."""
    default = Settings(onednn_by_default(process.cpu_flags()))
    found = for_digest(default)
    assert list(found)[-3:] == ["XLA_FLAGS", "TF_XLA_FLAGS", ONEDNN]
    assert [found[name] for name in list(found)[-3:]] == [None, None, None]
    other = for_digest(Settings(not default.onednn))
    assert other[ONEDNN] == str(int(not default.onednn))
