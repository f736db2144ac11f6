"""minifer: a transformer's inference to read, step through and measure.

The files in the order in which a prompt meets them:

    load.py        what `minifer.load` puts together: the files below
    tokenizer.py   text -> ids -> text        (normalize, added_tokens, pretokenize, bpe)
    chat.py        messages -> prompt         (protect)
    config.py      every switch of the model  (families/llama)
    checkpoint.py  weights, mapped from disk, nothing copied
    op.py          the op table: dispatch, count, time, tap, swap    (op_table)
    layers.py      embedding, linear, norm, residual
    rope.py        rotary positions
    attention.py   causal attention, one screen
    kv_cache.py    append, advance, truncate
    mlp.py         widen, gate, narrow
    model.py       block, transformer, Model  (batch, backend/on_numpy)
    sampling.py    one function per filter
    decoding.py    prefill, decode loop, Step (stopping)

What only checks what somebody else wrote, or names what differs between libraries, can be
skipped: checks, json_file, tokenizer_file, tokenizer_schema, tokenizer_library, pattern,
unicode_age, template_environment, op_signature, debugger.

The letters of shapes, in docstrings and trailing comments:

    T  new tokens in this pass, all sequences on one flat axis
    S  keys visible: cached and new              L  layers
    D  model width            F  feed-forward width      V  vocabulary
    H  query heads            K  key/value heads         G = H // K
    E  head width             O  rows of a weight        N  any other count

    import minifer
    model = minifer.load("default")
    for step in minifer.generate(model, "Once upon a time", max_tokens=32):
        print(step.text, end="", flush=True)
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036  (say so before a newer syntax does)
    found = ".".join(map(str, sys.version_info[:2]))
    raise ImportError("minifer needs Python 3.11 or newer, found " + found)

from .errors import (
    CheckpointError,
    ConfigError,
    ContextError,
    DeviceError,
    FetchError,
    MiniferError,
    MiniferWarning,
    OpError,
    SamplingError,
    TemplateError,
    TokenizerError,
)
from .load import load

if TYPE_CHECKING:
    from .batch import Segment
    from .decoding import Step, generate
    from .kv_cache import KVCache
    from .model import Model
    from .observe.recorder import record
    from .sampling import Sampling
    from .tokenizer import Tokenizer

__version__ = "0.1.0"

# Imported when first asked for: a cold start pays for what it uses.
_LAZY = {
    "generate": "decoding",
    "Step": "decoding",
    "Sampling": "sampling",
    "Segment": "batch",
    "Model": "model",
    "KVCache": "kv_cache",
    "Tokenizer": "tokenizer",
    "record": "observe.recorder",
}

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ContextError",
    "DeviceError",
    "FetchError",
    "KVCache",
    "MiniferError",
    "MiniferWarning",
    "Model",
    "OpError",
    "Sampling",
    "SamplingError",
    "Segment",
    "Step",
    "TemplateError",
    "Tokenizer",
    "TokenizerError",
    "generate",
    "load",
    "record",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    elif name == "sampling":
        value = import_module(".sampling", __name__)
    else:
        raise AttributeError(f"module 'minifer' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
