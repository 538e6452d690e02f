"""PyTorch as a contender: eager, channels_last, `torch.compile`; always the fused Adam."""
# pyright: reportMissingModuleSource=false

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from benchmarks.data import DATA, IMAGES, Data
from benchmarks.measuring import Contender, Ready
from benchmarks.outcomes import MATMUL, PYTORCH
from benchmarks.peers.torch_models import SUPERVISED

Step = Callable[..., Any]
"""Train on the parts of a batch and return the loss."""


def versions() -> dict[str, str]:
    """Return the versions of what is measured here."""
    return {"PyTorch": torch.__version__.partition("+")[0]}


def contenders(key: str, settle_seconds: float) -> list[Contender]:
    """Return every way to train this workload with the threads of this process."""
    data = DATA[key]()
    if key == "matmul":
        return [Contender(MATMUL, functools.partial(_matmul, data), "PyTorch")]
    step = _gan_step if key == "gan" else functools.partial(_supervised_step, key)
    ways = {"eager": (False, False), "compile": (True, False)}
    if key in IMAGES:
        ways |= {"channels_last": (False, True), "compile, channels_last": (True, True)}
    return [
        Contender(PYTORCH, functools.partial(_ready, data, step, *how), way)
        for way, how in ways.items()
    ]


def _ready(
    data: Data, make_step: Callable[..., Step], is_compiled: bool, is_channels_last: bool
) -> Ready:
    torch.manual_seed(0)
    compiled = torch.compile if is_compiled else lambda function: function
    layout = torch.channels_last if is_channels_last else torch.contiguous_format
    step = make_step(compiled, layout)
    arrays = [torch.from_numpy(array.copy()) for array in (data.x, data.y) if array is not None]
    if data.key in IMAGES:
        # Images are channels first in PyTorch, however they lie in memory.
        arrays = [
            a.movedim(-1, 1).contiguous(memory_format=layout) if a.dim() == 4 else a for a in arrays
        ]
    if "transformer" in data.key:
        arrays = [array.long() for array in arrays]
    batches = _loader if data.key == "pipeline" else _resident

    def train(epochs: int) -> None:
        total = 0.0
        for _ in range(epochs):
            for batch in batches(arrays, data.batch_size):
                total += step(*batch).item()

    return Ready(train)


def _resident(arrays: list[Any], batch_size: int) -> Iterable[list[Any]]:
    for rows in torch.randperm(len(arrays[0])).split(batch_size):
        yield [array[rows] for array in arrays]


def _loader(arrays: list[Any], batch_size: int) -> Iterable[list[Any]]:
    dataset = torch.utils.data.TensorDataset(*arrays)
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True)


def _supervised_step(key: str, compiled: Any, layout: Any) -> Step:
    make_model, loss = SUPERVISED[key]
    model = make_model().to(memory_format=layout)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    @compiled
    def loss_of(x: Any, y: Any) -> Any:
        return loss(model(x), y)

    def step(x: Any, y: Any) -> Any:
        value = loss_of(x.to(memory_format=layout) if key in IMAGES else x, y)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def _gan_step(compiled: Any, layout: Any) -> Step:
    maker = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid())
    critic = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    maker_optimizer = torch.optim.Adam(maker.parameters(), 2e-4, fused=True)
    critic_optimizer = torch.optim.Adam(critic.parameters(), 2e-4, fused=True)
    softplus = nn.functional.softplus

    @compiled
    def critic_loss(real: Any, noise: Any) -> Any:
        made = maker(noise).detach()
        return softplus(-critic(real)).mean() + softplus(critic(made)).mean()

    @compiled
    def maker_loss(noise: Any) -> Any:
        return softplus(-critic(maker(noise))).mean()

    def step(real: Any) -> Any:
        on_critic = critic_loss(real, torch.randn(len(real), 16))
        critic_optimizer.zero_grad(set_to_none=True)
        on_critic.backward()
        critic_optimizer.step()
        on_maker = maker_loss(torch.randn(len(real), 16))
        maker_optimizer.zero_grad(set_to_none=True)
        on_maker.backward()
        maker_optimizer.step()
        return (on_critic + on_maker).detach()

    return step


def _matmul(data: Data) -> Ready:
    matrix = torch.from_numpy(data.x[0])

    def train(epochs: int) -> None:
        for _ in range(epochs):
            torch.matmul(matrix, matrix)

    return Ready(train)
