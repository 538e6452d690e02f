"""What the bits of a run depend on, beside its own code."""

import json

import pytest
import tensorflow as tf

from loopwright.compat.environment import changes, environment


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
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert changes(before, environment()) == ["TF_ENABLE_ONEDNN_OPTS: None then, 0 now"]
