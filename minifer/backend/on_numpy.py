"""The CPU backend: NumPy, on weights where they lie in the mapped file.

A backend is what a model knows of a device: `xp`, the namespace its ops compute with; how a stored
weight gets there; how a result comes back; a clock that waits until the device is done.
"""

import time
from typing import Any

import numpy as np

from ..checkpoint import Weight
from ..errors import DeviceError


class NumpyBackend:
    """name: the twins it may run; device: what a person calls it."""

    name = "numpy"
    device = "cpu"
    xp = np

    def upload(self, weight: Weight) -> np.ndarray:
        """A stored weight as an array of this device: here the view itself, nothing is copied."""
        return weight.words

    def to_host(self, array: np.ndarray) -> np.ndarray:
        """An array as NumPy. The only synchronisation, once per token."""
        return array

    def copy_to_host(self, array: Any) -> np.ndarray:
        """A copy a hook may keep or change."""
        return np.array(array)

    def clock(self) -> float:
        """Seconds, once everything asked for so far is done: on a CPU it always is."""
        return time.perf_counter()


def open_backend(device: str) -> NumpyBackend:
    """ "auto", "cpu" -> a backend. Raises DeviceError naming what is here."""
    if device in ("auto", "cpu"):
        return NumpyBackend()
    raise DeviceError(
        f"device {device!r} is not here: this version runs on the CPU; allowed: auto, cpu"
    )
