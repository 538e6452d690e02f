"""TensorFlow's cache of XLA programs: its functions are where we look for them."""

from pathlib import Path

import pytest
import tensorflow as tf

from loopwright.compat import xla_programs


def test_the_installed_tensorflow_has_the_flags_of_its_cache():
    assert xla_programs.can_use_directory()


def test_levels_of_the_log_are_put_back_after_a_program_was_loaded():
    level = xla_programs._function(xla_programs._LEVEL)  # pyright: ignore[reportPrivateUsage]
    before = level()
    with xla_programs.without_load_messages():
        assert level() > 2, "errors are left out"
    assert level() == before <= 2


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("--xla_a=1 --xla_b=2", "--xla_b=2  --xla_a=1", True),
        ("--xla_a=1", "--xla_a=2 --xla_a=1", True),
        ("--xla_a=1 --xla_dump_to=/x", "--xla_a=1", True),
        ("--xla_a=1", "--xla_a=2", False),
        ("", "--xla_a=1", False),
    ],
)
def test_flags_count_by_their_meaning(
    one: str, other: str, is_same: bool, monkeypatch: pytest.MonkeyPatch
):
    def kind(flags: str) -> str:
        monkeypatch.setenv("XLA_FLAGS", flags)
        return xla_programs.kind_of_programs()

    assert (kind(one) == kind(other)) == is_same


@pytest.mark.parametrize("variable", ["TF_NUM_INTRAOP_THREADS", "TF_ENABLE_ONEDNN_OPTS"])
def test_programs_of_other_process_settings_are_of_another_kind(
    variable: str, monkeypatch: pytest.MonkeyPatch
):
    """XLA splits its loops among the threads that it finds when it compiles."""
    monkeypatch.delenv(variable, raising=False)
    before = xla_programs.kind_of_programs()
    monkeypatch.setenv(variable, "1")
    assert xla_programs.kind_of_programs() != before


def test_an_error_of_the_data_is_not_one_of_the_cache(tmp_path: Path):
    def error(text: str) -> Exception:
        return tf.errors.OutOfRangeError(None, None, text)

    def is_of_cache(error: Exception, *, has_files: bool = True) -> bool:
        return xla_programs.is_failure_of_cache(error, tmp_path, has_files=has_files)

    assert is_of_cache(error("Read less bytes than requested"))
    assert is_of_cache(error(f"{tmp_path}/x.pb; No space left on device"), has_files=False)
    assert not is_of_cache(error("Read less bytes than requested"), has_files=False)
    assert not is_of_cache(error("Read less bytes than requested [[{{node IteratorGetNext}}]]"))
    assert not is_of_cache(error("End of sequence"))
    assert not is_of_cache(ValueError("Read less bytes than requested"))
