"""What the converters of LiteRT and ONNX print when a model cannot be converted."""

import re

_MOST_SHOWN = 300
_STATIC_SHAPE = re.compile(r"element_shape to be static|Lowering tensor list ops is failed")
_MISSING = (
    r"'(?:tf|tfl)\.(\w+)' op is neither a custom op nor a flex op",
    r"(?:TF Select ops|Custom ops|Flex ops|Select TF ops): ([\w, ]+)",
    r"Unsupported ops: Counter\(\{([^}]*)\}\)",
    r"Tensorflow op \[[^\]:]*: (\w+)\] is not supported",
)
_SHORT_FLOAT = re.compile(r"x(bf16|f16)>")
_NAMES = {"f16": "float16", "bf16": "bfloat16"}
_ERROR = re.compile(r"(?:\w*Error|error): *([^\n]+)")

FIXED_BATCH_SIZE = "a loop of a recurrent layer (LSTM, GRU, RNN) needs a fixed batch size"


def litert_reason(printed: str) -> str:
    """Return why a model cannot become a LiteRT file.

    >>> litert_reason("'tf.TensorListReserve' op requires element_shape to be static during")
    'a loop of a recurrent layer (LSTM, GRU, RNN) needs a fixed batch size'
    >>> litert_reason("error: 'tf.Cholesky' op is neither a custom op nor a flex op")
    'LiteRT has no operation for Cholesky'
    """
    if _STATIC_SHAPE.search(printed):
        return FIXED_BATCH_SIZE
    names, short = _missing_operations(printed), _SHORT_FLOAT.search(printed)
    dtype = f" in {_NAMES[short[1]]}" if short else ""
    return f"LiteRT has no operation for {names}{dtype}" if names else last_error(printed)


def onnx_reason(printed: str) -> str:
    """Return why a model cannot become an ONNX file; empty if tf2onnx reported no problem.

    >>> onnx_reason("tf2onnx: Unsupported ops: Counter({'StringLower': 1, 'Foo': 2})")
    'ONNX has no operation for Foo, StringLower'
    """
    names = _missing_operations(printed)
    return f"ONNX has no operation for {names}" if names else ""


def _missing_operations(printed: str) -> str:
    texts = " ".join(text for pattern in _MISSING for text in re.findall(pattern, printed))
    return ", ".join(sorted(set(re.findall(r"[A-Za-z]\w*", texts))))


def last_error(printed: str) -> str:
    """Return the last error in what a process printed.

    >>> last_error("Traceback (most recent call last): RuntimeError: node 3 (WHILE) failed")
    'node 3 (WHILE) failed'
    """
    found = _ERROR.findall(printed)
    text = found[-1] if found else printed.strip().rpartition("\n")[2]
    return text.strip()[:_MOST_SHOWN]
