"""Process settings at a prompt and in a notebook: nothing restarts, nothing is tried."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.compat import process
from loopwright.plans.settings import ONEDNN

pytestmark = pytest.mark.skipif(
    not process.onednn_may_help(), reason="oneDNN is on here, or is not for this processor"
)
# Images without a fixed size: no other plan is tried, and settings are decided after one step.
CELLS = [
    """
import os, sys
typed = "before"
def hook(event, words):
    if event in ("os.exec", "subprocess.Popen") and sys.executable in repr(words):
        print("AUDIT", event)

import keras, numpy as np, tensorflow as tf
import loopwright as lw
from loopwright.plans import settings_memory
from loopwright.plans.settings import Settings
""",
    """
def sized(x):
    return tf.raw_ops.PlaceholderWithDefault(input=x, shape=[None, None, 3]), x[0, 0, :1]
""",
    """
images = np.random.default_rng(0).normal(size=(64, 12, 12, 3)).astype("float32")
data = tf.data.Dataset.from_tensor_slices(images).map(sized).batch(8)
parts = [keras.layers.Conv2D(8, 3), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((None, None, 3)), *parts])
trainer = lw.Trainer(lw.Supervised(model, "mse", "sgd"), run_dir="run")
""",
    """
first = trainer.fit(data, epochs=1, verbose=0)
selector = trainer._parts.selector
identity = selector.identity_by(selector.settings)
rates = (48.0,), (72.0,)
settings_memory.remember(settings_memory.SettingsChoice(
    identity, Settings(), Settings(onednn=True), *rates, True, "2999-01-01T00:00:00+00:00"), "-")
sys.addaudithook(hook)
""",
    """
class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch > 3:
            self.model.stop_training = True
""",
    """
second = trainer.fit(data, epochs=100_000, verbose=2, callbacks=[Stop()])
print("typed", typed, os.getpid())
""",
]


def environment(tmp_path: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name != ONEDNN}
    return {**own, "LOOPWRIGHT_CACHE_DIR": str(tmp_path / "cache")}


def require_told_once(said: str, how: str) -> None:
    assert said.count("oneDNN") == 1, said[-3000:]
    assert f"this step ran 1.5x as fast with oneDNN on: {how}\n" in said, said[-3000:]
    assert "typed before" in said
    assert "AUDIT" not in said
    assert "measuring" not in said


def test_a_prompt_that_loopwright_has_started_is_not_replaced(tmp_path: Path):
    child = subprocess.Popen(
        [sys.executable, "-m", "loopwright", "run", "-m", "code", "-q"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said, _ = child.communicate("\n".join(CELLS) + "\n", timeout=200)
    assert child.returncode == 0, said[-3000:]
    require_told_once(said, f"set {ONEDNN}=1 before TensorFlow is imported")
    assert f"typed before {child.pid}" in said


def test_a_notebook_is_told_what_to_write_into_its_first_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With a real kernel, where one is installed."""
    pytest.importorskip("ipykernel")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(ONEDNN, raising=False)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    nbclient.NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    said = "".join(output.get("text", "") for output in outputs)
    require_told_once(
        said, f"set {ONEDNN}=1 before TensorFlow is imported, in the first cell of the notebook"
    )
