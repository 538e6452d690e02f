"""The models of the benchmarks in PyTorch, layer by layer those of `benchmarks.models`."""
# pyright: reportMissingModuleSource=false

from collections.abc import Callable
from typing import Any, final

import torch
from torch import nn

F = nn.functional


def mlp(dropout: float = 0.0) -> Any:
    hidden = [nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*hidden, *([nn.Dropout(dropout)] if dropout else []), nn.Linear(64, 1))


def cnn() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 5 * 5, 10),
    )


@final
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shallow, self.middle, self.deep = _two(1, 8), _two(8, 16), _two(16, 32)
        self.up_middle, self.joined_middle = nn.ConvTranspose2d(32, 16, 2, 2), _two(32, 16)
        self.up_shallow, self.joined_shallow = nn.ConvTranspose2d(16, 8, 2, 2), _two(16, 8)
        self.mask = nn.Conv2d(8, 1, 1)

    def forward(self, image: Any) -> Any:
        shallow = self.shallow(image)
        middle = self.middle(F.max_pool2d(shallow, 2))
        deep = self.deep(F.max_pool2d(middle, 2))
        middle = self.joined_middle(torch.cat([self.up_middle(deep), middle], 1))
        return self.mask(self.joined_shallow(torch.cat([self.up_shallow(middle), shallow], 1)))


def resnet() -> Any:
    blocks = [
        _Residual(before, filters, 2 if stage and not block else 1)
        for stage, filters in enumerate((64, 128, 256, 512))
        for block, before in enumerate((max(64, filters // 2), filters))
    ]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 100),
    )


@final
class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.output = nn.LSTM(64, 64, batch_first=True), nn.Linear(64, 1)

    def forward(self, x: Any) -> Any:
        return self.output(self.lstm(x)[0][:, -1])


@final
class Transformer(nn.Module):
    def __init__(self, length: int, blocks: int, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.05)
        self.blocks = nn.Sequential(*(_Block(width, heads, hidden) for _ in range(blocks)))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Any) -> Any:
        return self.output(self.norm(self.blocks(self.tokens(tokens) + self.places)))


def _next_token_loss(logits: Any, tokens: Any) -> Any:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


SUPERVISED: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "cnn": (cnn, F.cross_entropy),
    "unet": (UNet, F.binary_cross_entropy_with_logits),
    "resnet": (resnet, F.cross_entropy),
    "lstm": (LSTM, F.mse_loss),
    "transformer": (lambda: Transformer(64, 2, 64, 4, 128), _next_token_loss),
    "transformer_large": (lambda: Transformer(128, 6, 256, 8, 1024), _next_token_loss),
    "mlp": (mlp, F.mse_loss),
    "dropout": (lambda: mlp(dropout=0.2), F.mse_loss),
    "pipeline": (mlp, F.mse_loss),
}


def _two(before: int, filters: int) -> Any:
    first, second = (
        nn.Conv2d(before, filters, 3, padding=1),
        nn.Conv2d(filters, filters, 3, padding=1),
    )
    return nn.Sequential(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True))


@final
class _Residual(nn.Module):
    def __init__(self, before: int, filters: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, filters, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(filters)
        self.second = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(filters)
        self.shortcut = nn.Identity()
        if stride != 1:
            convolution = nn.Conv2d(before, filters, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(filters))

    def forward(self, x: Any) -> Any:
        inner = F.relu(self.first_norm(self.first(x)), inplace=True)
        return F.relu(self.shortcut(x) + self.second_norm(self.second(inner)), inplace=True)


@final
class _Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.hidden_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(self, x: Any) -> Any:
        x = x + self._attention(self.attention_norm(x))
        return x + self.hidden(self.hidden_norm(x))

    def _attention(self, x: Any) -> Any:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*qkv.unbind(), is_causal=True)
        return self.mixed(found.transpose(1, 2).flatten(2))
