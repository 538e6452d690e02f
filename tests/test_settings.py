"""Process settings as values: by meaning, recorded, refused if unknown."""

import json
from pathlib import Path

import pytest

from loopwright import launch
from loopwright.errors import ConfigurationError
from loopwright.launch import Settings, from_environment
from loopwright.plans import record as plan_record
from loopwright.plans.plan import Plan
from loopwright.plans.record import PlanHistory

ON, OFF = Settings(onednn=True), Settings(onednn=False)


@pytest.mark.parametrize("text", ["--tf_xla_persistent_cache_directory=/a", "--xla_dump_to=/b", ""])
def test_a_flag_that_only_names_a_file_has_no_meaning(text: str):
    found = from_environment({"XLA_FLAGS": text, "TF_XLA_FLAGS": "--tf_xla_auto_jit=2"})
    assert found.xla_flags == ("--tf_xla_auto_jit=2",)


def test_the_order_of_flags_has_no_meaning():
    one, other = ({"XLA_FLAGS": text} for text in ("--a=1  --b=2", "--b=2 --a=1"))
    assert from_environment(one) == from_environment(other)


def test_recorded_flags_of_xla_are_never_applied():
    """Some name files to write or programs to run, and a record may come from anyone."""
    hostile = Settings(xla_flags=("--xla_dump_to=/home/me",), intra_op_threads=2)
    assert hostile.variables() == {launch.ONEDNN: "0", "TF_NUM_INTRAOP_THREADS": "2"}


def test_a_huge_number_of_threads_in_the_environment_can_be_recorded():
    found = from_environment({"TF_NUM_INTRAOP_THREADS": "5000"})
    recorded = PlanHistory().with_settings(0, found)
    assert plan_record.parsed(json.loads(recorded.text())) == recorded


@pytest.mark.parametrize(
    ("text", "asked"), [("1", True), ("true", True), ("0", False), ("", None), ("2", None)]
)
def test_the_variable_of_onednn_is_read_as_tensorflow_reads_it(text: str, asked: bool | None):
    expected = launch.onednn_by_default() if asked is None else asked
    assert from_environment({launch.ONEDNN: text}).onednn is expected


def history() -> PlanHistory:
    return PlanHistory().changed(0, Plan()).with_settings(0, OFF).with_settings(40, ON)


def test_a_history_says_which_settings_ran_which_steps():
    recorded = history()
    assert [recorded.settings_after(step) for step in (0, 39, 40, 900)] == [OFF, OFF, ON, ON]
    assert PlanHistory().settings_after(7) is None


def test_settings_that_stay_are_recorded_once():
    assert history().with_settings(60, ON) == history()
    assert len(history().with_settings(60, OFF).settings) == 3


def test_settings_that_ran_no_step_are_not_recorded():
    assert history().with_settings(40, OFF).settings == history().settings[:1]


def test_a_history_that_is_cut_ends_with_the_settings_of_its_last_step():
    assert history().until(40).settings == history().settings[:1]
    assert history().until(41) == history()


def test_a_history_survives_its_file(tmp_path: Path):
    recorded = history().with_settings(60, Settings(True, ("--a=false",), 2, 1))
    recorded.save(tmp_path / "plan.json")
    assert plan_record.load(tmp_path / "plan.json") == recorded


def test_a_history_of_an_earlier_version_has_no_settings():
    content = history().content()
    del content["settings"]
    assert plan_record.parsed(content).settings == ()


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ([{"step": 0, "onednn": True, "malloc": "arena"}], "settings.0: unknown field 'malloc'"),
        ([{"step": 0}], "settings.0.onednn: missing"),
        ([{"step": 0, "onednn": "perhaps"}], "settings.0.onednn: expected a valid boolean"),
        ([{"step": 0, "onednn": 1}], "onednn: expected a valid boolean, received 1"),
        ([{"step": 0, "onednn": True, "xla_flags": "--a"}], "xla_flags: expected a valid array"),
        ([{"step": 0, "onednn": True, "xla_flags": [7]}], "xla_flags.0: expected a valid string"),
        ([{"step": 0, "onednn": True, "intra_op_threads": "2"}], "integer, received '2'"),
        ([{"step": 0, "onednn": True, "inter_op_threads": -1}], "greater than or equal to 0"),
        ([{"step": 0, "onednn": True, "inter_op_threads": True}], "expected a valid integer"),
        ([{"step": 0, "onednn": True, "intra_op_threads": 10**9}], "less than or equal to 1024"),
        ([{"step": 2**60, "onednn": True}], "settings.0.step: expected less than"),
        ([{"onednn": True}], "settings.0.step: missing"),
        ([7], "settings.0: expected an object"),
        (7, "settings: expected a valid array"),
    ],
)
def test_a_plan_file_with_unknown_settings_is_refused_in_four_parts(
    tmp_path: Path, written: object, why: str
):
    content = history().content() | {"settings": written}
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ConfigurationError) as caught:
        plan_record.load(tmp_path / "plan.json")
    text = str(caught.value)
    assert "The plan history cannot be read." in text
    assert why in text
    assert all(part in text for part in ("expected:", "received:", "do:"))
