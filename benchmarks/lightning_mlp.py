"""The mlp in PyTorch Lightning, in a process without TensorFlow: the two break each other."""

import dataclasses
import functools
import importlib
import importlib.util
import logging
import os
import warnings
from typing import Any

import numpy as np

from benchmarks.measuring import Contender, Ready, take_turns
from benchmarks.outcomes import LIGHTNING

_ROWS, _BATCH_SIZE = 8192, 32


def is_installed() -> bool:
    """Return whether Lightning is installed."""
    return all(map(importlib.util.find_spec, ("torch", "lightning")))


def measure(rounds: int, round_seconds: float) -> list[dict[str, Any]]:
    """Return steps per second in a form that JSON can represent."""
    # For small layers one thread is much faster than those that torch takes.
    thread_counts = sorted({1, os.cpu_count() or 1})
    measured = take_turns(
        [
            Contender(LIGHTNING, functools.partial(_prepare, n), f"{n} threads")
            for n in thread_counts
        ],
        steps_per_epoch=_ROWS // _BATCH_SIZE,
        rounds=rounds,
        round_seconds=round_seconds,
    )
    return [dataclasses.asdict(one) for one in measured]


def _prepare(threads: int) -> Ready:
    torch: Any = importlib.import_module("torch")
    lightning: Any = importlib.import_module("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    linear, relu = torch.nn.Linear, torch.nn.ReLU

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            hidden = [linear(20, 64), relu(), linear(64, 64), relu()]
            self.model = torch.nn.Sequential(*hidden, linear(64, 1))

        def training_step(self, batch: Any, _: int) -> Any:
            x, y = batch
            return torch.nn.functional.mse_loss(self.model(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(_ROWS, width)).astype("float32") for width in (20, 1)]
    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, arrays))
    batches = torch.utils.data.DataLoader(data, batch_size=_BATCH_SIZE, shuffle=True)
    module = Regression()

    def train(epochs: int) -> None:
        torch.set_num_threads(threads)
        with warnings.catch_warnings():
            # It advises worker processes, which make data in memory slower.
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(
                max_epochs=epochs,
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(module, batches)

    return Ready(train)
