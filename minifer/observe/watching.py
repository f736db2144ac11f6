"""Who watches the passes of this thread: one observer at a time, the innermost."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..op import RECORDING

Observer = TypeVar("Observer")  # a Recording, a Counter, a Capture: what op.py says it is asked


@contextmanager
def watching(observer: Observer) -> Iterator[Observer]:
    """Passes inside the block are watched by this observer."""
    token = RECORDING.set(observer)
    try:
        yield observer
    finally:
        RECORDING.reset(token)
