"""What lies in a run directory beside its checkpoints."""

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util.tensor_util import make_ndarray
from tests.resume.program import FailsAt, Noisy, arrays, train
from tests.resume.test_resume import failing

import loopwright as lw
from loopwright.task import variables


def scalars(run_dir: Path, part: str) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads: points by tag."""
    read = EventAccumulator(str(run_dir / "tensorboard" / part), {"tensors": 0}).Reload()
    return {
        tag: [(point.step, float(make_ndarray(point.tensor_proto))) for point in read.Tensors(tag)]
        for tag in read.Tags()["tensors"]
        if read.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> tuple[Path, Any]:
    run_dir = tmp_path_factory.mktemp("files") / "run"
    _, history = train(run_dir, "arrays", "graph", callbacks=[FailsAt()])
    return run_dir, history


def test_tensorboard_shows_the_history_under_the_tags_of_keras(whole: Any):
    run_dir, history = whole
    shown = scalars(run_dir, "train")
    assert [step for step, _ in shown["epoch_loss"]] == history.epoch
    assert [value for _, value in shown["epoch_loss"]] == pytest.approx(history.history["loss"])
    assert [value for _, value in shown["epoch_learning_rate"]] == pytest.approx([0.01] * 5)
    assert "batch_loss" in shown
    held = scalars(run_dir, "validation")
    steps = [step for step, _ in held["evaluation_loss_vs_iterations"]]
    assert steps == history.validation_steps
    assert [step for step, _ in held["epoch_loss"]] == history.epoch


def test_a_run_that_failed_and_went_on_shows_every_point_once(whole: Any, tmp_path: Path):
    failing(tmp_path / "run", "arrays", "graph", 18, 9)
    for part in ("train", "validation"):
        ours, theirs = scalars(tmp_path / "run", part), scalars(whole[0], part)
        for tag in theirs:
            if not tag.startswith("batch_") and "per_second" not in tag:
                assert [s for s, _ in ours[tag]] == [s for s, _ in theirs[tag]], tag


def test_the_history_lies_beside_it_as_keras_has_it(whole: Any):
    run_dir, history = whole
    assert json.loads((run_dir / "history.json").read_text()) == history.history


def test_the_status_tells_where_a_run_is(whole: Any, tmp_path: Path):
    def status(run_dir: Path) -> Any:
        return json.loads((run_dir / "status.json").read_text())

    known = status(whole[0])
    assert known.keys() == {"status", "step", "time", "process"}
    assert (known["status"], known["step"]) == ("completed", 65)
    with pytest.raises(RuntimeError):
        train(tmp_path / "run", "arrays", "graph", callbacks=[FailsAt(18)])
    assert status(tmp_path / "run")["status"] == "failed"
    trainer = lw.Trainer(Noisy(), run_dir=tmp_path / "left", plan="graph")
    with trainer.events(*arrays(), batch_size=8) as events:
        next(event for event in events if isinstance(event, lw.Trained))
        assert status(tmp_path / "left")["status"] == "running"
    assert status(tmp_path / "left")["status"] == "completed"


def test_the_environment_and_a_readable_log_are_kept(whole: Any):
    run_dir, _ = whole
    known = json.loads((run_dir / "environment.json").read_text())
    assert known["loopwright"] == lw.__version__
    assert {"tensorflow", "keras", "python", "command", "git", "processor"} <= known.keys()
    log = (run_dir / "train.log").read_text()
    assert log.count("epoch ") >= 5
    assert "\x1b" not in log


def test_the_rates_of_several_optimizers_are_told_apart(tmp_path: Path):
    class Two(Noisy):
        def __init__(self):
            super().__init__()
            self.other = keras.optimizers.SGD(0.5)
            self.other.build(self.model.trainable_variables)

    trainer = lw.Trainer(Two(), run_dir=tmp_path, plan="graph", silence=["idle-optimizer"])
    trainer.fit(*arrays(), batch_size=8, verbose=0)
    shown = scalars(tmp_path, "train")
    assert shown["epoch_other_learning_rate"] == [(0, 0.5)]
    assert shown["epoch_optimizer_learning_rate"][0][1] == pytest.approx(0.01)


def test_files_that_cannot_be_written_cost_no_training(tmp_path: Path):
    (tmp_path / "tensorboard").write_text("in the way")
    trainer = lw.Trainer(Noisy(), run_dir=tmp_path, plan="graph")
    with (
        pytest.warns(lw.LoopwrightWarning, match="graph for TensorBoard could not be written"),
        pytest.warns(lw.LoopwrightWarning, match="TensorBoardFiles failed and was disabled for"),
    ):
        history = trainer.fit(*arrays(), batch_size=8, verbose=0)
    assert history.epoch == [0]


def test_what_a_run_wrote_that_was_killed_before_its_first_checkpoint_is_forgotten(
    whole: Any, tmp_path: Path
):
    shutil.copytree(whole[0] / "tensorboard", tmp_path / "run" / "tensorboard")
    _, history = train(tmp_path / "run", "arrays", "graph", epochs=1)
    assert [step for step, _ in scalars(tmp_path / "run", "train")["epoch_loss"]] == history.epoch


def test_models_hyper_parameters_the_graph_and_the_report_are_kept(whole: Any):
    run_dir, _ = whole
    model = (run_dir / "model.txt").read_text()
    assert "Param #" in model
    assert "Total params" in model
    assert "loss over steps" in (run_dir / "report.html").read_text()
    assert "learning rate over steps" in (run_dir / "report.html").read_text()
    read = EventAccumulator(str(run_dir / "tensorboard" / "train"))
    read.Reload()
    assert any("MatMul" in node.op for node in read.Graph().node)
    session = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    (tag,) = session.PluginTagToContent("hparams")
    content = session.SummaryMetadata(tag).plugin_data.content
    data: Any = plugin_data_pb2
    told = data.HParamsPluginData.FromString(content).session_start_info.hparams
    assert told["optimizer"].string_value == "Adam"
    assert told["batch_size"].number_value == 8
    assert told["learning_rate"].number_value == pytest.approx(0.01)


class Painting(Noisy):
    """Draws its pictures from the generator that its steps draw from."""

    def images(self) -> dict[str, Any]:
        return {"noise": self.generator.uniform((2, 4, 4, 1)).numpy()}


def test_images_of_a_task_are_shown_and_leave_the_training_as_it_is(whole: Any, tmp_path: Path):
    x, y = arrays()
    trainer = lw.Trainer(Painting(), run_dir=tmp_path, plan="graph")
    trainer.fit(x, y, epochs=2, batch_size=8, verbose=0)
    read = EventAccumulator(str(tmp_path / "tensorboard" / "train"), {"tensors": 0})
    read.Reload()
    shown = read.Tensors("noise")
    assert [event.step for event in shown] == [13, 26]
    assert len(shown[0].tensor_proto.string_val) == 2 + 2  # width and height come first
    plain = lw.Trainer(Noisy(), plan="graph")
    plain.fit(x, y, epochs=2, batch_size=8, verbose=0)
    ours = [v.numpy() for v in variables.named(trainer.task).values()]
    theirs = [v.numpy() for v in variables.named(plain.task).values()]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_images_that_fail_warn_once_and_training_goes_on(tmp_path: Path):
    class Failing(Noisy):
        def images(self) -> dict[str, Any]:
            raise ValueError("no canvas")

    x, y = arrays()
    trainer = lw.Trainer(Failing(), run_dir=tmp_path, plan="graph")
    with pytest.warns(lw.LoopwrightWarning, match="ValueError: no canvas") as warned:
        trainer.fit(x, y, epochs=2, batch_size=8, verbose=0)
    assert len(warned) == 1
    assert len(scalars(tmp_path, "train")["epoch_loss"]) == 2
