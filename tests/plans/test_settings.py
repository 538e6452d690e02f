"""Process settings as values: by meaning, recorded, refused if unknown."""

import json
from pathlib import Path

import pytest

from loopwright.errors import ConfigurationError
from loopwright.plans import plan_history, settings
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import PlanHistory
from loopwright.plans.settings import Settings, from_environment, parsed

ON, OFF = Settings(onednn=True), Settings(onednn=False)


def test_settings_survive_json():
    given = Settings(True, ("--xla_cpu_multi_thread_eigen=false",), 2, 1)
    assert parsed(json.loads(json.dumps(given.content()))) == given


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (7, "the file: expected an object"),
        ({}, "onednn: missing"),
        ({"onednn": 1}, "onednn: expected a valid boolean, received 1"),
        ({"onednn": True, "malloc": "arena"}, "the file: unknown field 'malloc'"),
        ({"onednn": True, "xla_flags": "--a"}, "xla_flags: expected a valid array"),
        ({"onednn": True, "xla_flags": [7]}, "xla_flags.0: expected a valid string"),
        (
            {"onednn": True, "intra_op_threads": "2"},
            "expected a valid integer, received '2'",
        ),
        ({"onednn": True, "inter_op_threads": -1}, "greater than or equal to 0"),
        ({"onednn": True, "inter_op_threads": True}, "expected a valid integer"),
        ({"onednn": True, "inter_op_threads": float("inf")}, "expected a valid integer"),
        ({"onednn": True, "intra_op_threads": 10**9}, "less than or equal to 1024"),
    ],
)
def test_unknown_settings_are_refused_with_a_reason(content: object, why: str):
    with pytest.raises(ValueError, match=why):
        parsed(content)


def test_a_flag_that_only_names_a_file_has_no_meaning():
    cached = {"TF_XLA_FLAGS": "--tf_xla_persistent_cache_directory=/a --tf_xla_auto_jit=2"}
    plain = {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2", "XLA_FLAGS": "--xla_dump_to=/b"}
    assert from_environment(cached, onednn=False) == from_environment(plain, onednn=False)


def test_the_order_of_flags_has_no_meaning():
    one, other = ({"XLA_FLAGS": text} for text in ("--a=1  --b=2", "--b=2 --a=1"))
    assert from_environment(one, onednn=True) == from_environment(other, onednn=True)


HOSTILE = [
    "--xla_dump_to=/home/me",
    "--xla_dump_hlo_as_text",
    "--tf_xla_persistent_cache_directory=runs/theirs/cache",
    "--tf_xla_persistent_cache_read_only=true",
    "--xla_gpu_cuda_data_dir=/tmp",
    "--xla_cpu_enable_fast_math=true --xla_dump_to=/home/me",
    "--xla_cpu_enable_fast_math=true\n--xla_dump_to=/home/me",
    "--xla_cpu_enable_fast_math=/home/me",
    "--xla_force_host_platform_device_count=1000000",
    "flags.txt",
]


@pytest.mark.parametrize("flag", HOSTILE)
def test_a_recorded_flag_is_applied_only_if_its_name_and_value_are_harmless(
    flag: str, monkeypatch: pytest.MonkeyPatch
):
    """What `compare` starts a replay with; the record itself is kept as it is."""
    from loopwright.cli import replay_child

    for name in settings.XLA_FLAGS:
        monkeypatch.delenv(name, raising=False)
    harmless = ["--tf_xla_auto_jit=2", "--xla_cpu_multi_thread_eigen=false"]
    recorded = parsed({"onednn": False, "xla_flags": sorted([*harmless, flag])})
    assert flag in recorded.xla_flags
    found = replay_child._variables(recorded)
    assert found["TF_XLA_FLAGS"] == "--tf_xla_auto_jit=2"
    assert found["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"


def test_a_recorded_flag_that_the_user_has_set_too_is_applied(monkeypatch: pytest.MonkeyPatch):
    from loopwright.cli import replay_child

    monkeypatch.setenv("XLA_FLAGS", "--xla_a_new_flag=7 --xla_other=1")
    found = replay_child._variables(Settings(xla_flags=("--xla_a_new_flag=7",)))
    assert found["XLA_FLAGS"] == "--xla_a_new_flag=7"


def test_a_file_of_flags_that_a_record_names_is_not_read(tmp_path: Path):
    (tmp_path / "flags").write_text("--a=1\n")
    raw = {"XLA_FLAGS": str(tmp_path / "flags")}
    found = from_environment(raw, onednn=False, is_recorded=True)
    assert found.xla_flags == (str(tmp_path / "flags"),)


def test_a_huge_number_of_threads_in_the_environment_can_be_recorded():
    found = from_environment({"TF_NUM_INTRAOP_THREADS": "5000"}, onednn=False)
    assert parsed(found.content()) == found


def test_flags_may_be_in_a_file(tmp_path: Path):
    (tmp_path / "flags").write_text("--a=1\n--b=2\n")
    found = from_environment({"XLA_FLAGS": str(tmp_path / "flags")}, onednn=False)
    assert found.xla_flags == ("--a=1", "--b=2")
    missing = from_environment({"XLA_FLAGS": str(tmp_path / "none")}, onednn=False)
    assert missing.xla_flags == (str(tmp_path / "none"),)


@pytest.mark.parametrize(
    ("text", "asked"), [("1", True), ("true", True), ("0", False), ("", None), ("2", None)]
)
def test_the_variable_of_onednn_is_read_as_tensorflow_reads_it(text: str, asked: bool | None):
    assert settings.onednn_asked({settings.ONEDNN: text}) is asked


def history() -> PlanHistory:
    return PlanHistory().changed(0, Plan()).with_settings(0, OFF).with_settings(40, ON)


def test_a_history_says_which_settings_ran_which_steps():
    recorded = history()
    assert [recorded.settings_after(step) for step in (0, 39, 40, 900)] == [OFF, OFF, ON, ON]
    assert [recorded.steps_to_settings_change(step) for step in (0, 39, 40)] == [40, 1, None]
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
    history().save(tmp_path / "plan.json")
    assert plan_history.load(tmp_path / "plan.json") == history()


def test_a_history_of_an_earlier_version_has_no_settings():
    content = history().content()
    del content["settings"]
    assert plan_history.parsed(content).settings == ()


def test_a_history_with_unknown_settings_is_refused():
    content = history().content()
    content["settings"][1]["onednn"] = "perhaps"
    with pytest.raises(ValueError, match=r"settings.1.onednn: .*boolean, received 'perhaps'"):
        plan_history.parsed(content)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ([{"step": 0, "onednn": True, "malloc": "arena"}], "settings.0: unknown field 'malloc'"),
        ([{"step": 0, "onednn": "perhaps"}], "settings.0.onednn: expected a valid boolean"),
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
        plan_history.load(tmp_path / "plan.json")
    text = str(caught.value)
    assert "The plan history cannot be read." in text
    assert why in text
    assert all(part in text for part in ("expected:", "received:", "do:"))
