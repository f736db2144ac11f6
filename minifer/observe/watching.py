"""Who watches the passes of this thread: one observer at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..errors import MiniferError
from ..op import RECORDING

Observer = TypeVar("Observer")  # a Recording, a Counter, a Capture: what op.py says it is asked


@contextmanager
def watching(observer: Observer) -> Iterator[Observer]:
    """Passes inside the block are watched by this observer. Raises MiniferError for a second one:

    the first would miss what the second sees, and say nothing of it.
    """
    active = RECORDING.get()
    if active is not None:
        raise MiniferError(
            f"a {type(active).__name__} watches this thread already; end it first: "
            "leave its `with` block, and keep none open in a generator that waits"
        )
    token = RECORDING.set(observer)
    try:
        yield observer
    finally:
        RECORDING.reset(token)
