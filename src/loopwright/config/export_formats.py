"""The formats of exports as data: their files, their extras, and what they accept."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final, get_args

from loopwright.errors import ConfigurationError
from loopwright.extras import Extra, require_extra

Format = Literal["saved_model", "keras", "litert", "onnx"]
Quantize = Literal["dynamic", "float16", "int8"]


@final
@dataclass(frozen=True)
class Kind:
    """What a format is: its file, who reads it, and what must be installed."""

    suffix: str
    """Of its file; empty for a directory of versions."""
    read_by: str
    runtime: str = "tensorflow"
    """The package that loads and runs it."""
    extra: Extra | None = None
    """The extra of Loopwright that has its converter and its runtime."""
    most_signatures: int | None = None
    is_converted: bool = False
    """Whether a converter makes it from a SavedModel, for a runtime other than TensorFlow."""


KINDS: Final[dict[Format, Kind]] = {
    "saved_model": Kind("", "TensorFlow Serving"),
    "keras": Kind(".keras", "keras.models.load_model", most_signatures=1),
    "litert": Kind(".tflite", "LiteRT", "ai-edge-litert", "litert", is_converted=True),
    "onnx": Kind(
        ".onnx", "ONNX Runtime", "onnxruntime", "onnx", most_signatures=1, is_converted=True
    ),
}


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """What is exported: the format, and the choices that change the file."""

    format: Format = "saved_model"
    quantize: Quantize | None = None
    batch_size: int | None = None
    """The only batch size that the file accepts; None: any."""
    signatures: tuple[str, ...] | None = None
    """Which models of the task; None: all."""

    @property
    def kind(self) -> Kind:
        """The row of the format."""
        return KINDS[self.format]

    def file_name(self, step: int | None, *, averaged: bool = False) -> str:
        """Return the name of its file in a run directory; empty for a directory of versions.

        >>> Target(format="litert", quantize="int8").file_name(60)
        'step-60-int8.tflite'
        """
        if not self.kind.suffix:
            return ""
        parts = [f"step-{step}", *(self.signatures or ()), "averaged" if averaged else ""]
        parts += [self.quantize or "", f"batch-{self.batch_size}" if self.batch_size else ""]
        name = re.sub(r"[^\w.-]", "_", "-".join(filter(None, parts)))
        return f"{name}{self.kind.suffix}"


def target_for(
    path_name: str,
    format: str | None = None,
    quantize: str | None = None,
    batch_size: int | None = None,
    signatures: Sequence[str] | None = None,
) -> Target:
    """Return the target that arguments ask for; the suffix of the path decides without `format`.

    >>> target_for("model.onnx").format
    'onnx'
    >>> target_for("export", quantize="int8")
    Traceback (most recent call last):
    loopwright.errors.ConfigurationError: Only LiteRT files are quantized...
    """
    suffixes = {row.suffix: name for name, row in KINDS.items() if row.suffix}
    named = next((name for end, name in suffixes.items() if path_name.endswith(end)), "saved_model")
    found = named if format is None else format
    if found not in KINDS:
        raise ConfigurationError(
            "Unknown export format.",
            expected=f"one of {', '.join(KINDS)}",
            received=f"{found!r:.80}",
            do="choose one of these, or leave the format out",
        )
    if quantize is not None and quantize not in get_args(Quantize):
        raise ConfigurationError(
            "Unknown quantization.",
            expected=f"one of {', '.join(get_args(Quantize))}",
            received=f"quantize={quantize!r:.80}",
            do="choose one of these, or leave quantize out",
        )
    if quantize is not None and found != "litert":
        raise ConfigurationError(
            "Only LiteRT files are quantized.",
            expected="quantize with format litert",
            received=f"quantize={quantize}, format={found}",
            do="export format litert, or leave quantize out",
        )
    is_whole = isinstance(batch_size, int) and not isinstance(batch_size, bool)
    if batch_size is not None and not (is_whole and batch_size > 0 and KINDS[found].is_converted):
        raise ConfigurationError(
            "A fixed batch size is for LiteRT and ONNX files.",
            expected="a whole number of 1 or more, with format litert or onnx",
            received=f"batch_size={batch_size!r:.80}, format={found}",
            do="leave batch_size out: the export accepts any batch size",
        )
    return Target(
        format=found,
        quantize=quantize,  # pyright: ignore[reportArgumentType]  (checked above)
        batch_size=batch_size,
        signatures=None if signatures is None else tuple(signatures),
    )


def require_installed(format: Format) -> None:
    """Raise if the extra of a format is missing; nothing is imported."""
    row = KINDS[format]
    if row.extra is not None:
        require_extra(
            row.extra,
            f"An export for {row.read_by}",
            instead="export another format: the SavedModel needs none",
        )
