"""Is somebody stepping through this process? Then "auto" kernels mean the readable ones."""

import os
import sys
import warnings

from .errors import DeviceError, MiniferWarning

_told = False


def kernels_for_auto(known: list[str]) -> str:
    """MINIFER_KERNELS if set; else "reference" under a debugger, with one visible line."""
    override = os.environ.get("MINIFER_KERNELS")
    if override:
        if override not in known:
            raise DeviceError(
                f"MINIFER_KERNELS is {override!r}; allowed: {', '.join(known)}. Unset it to go on"
            )
        return override
    if not debugger_attached():
        return "auto"
    global _told
    if not _told:
        _told = True
        warnings.warn(
            "a debugger is attached: the readable reference kernels run. "
            "MINIFER_KERNELS=auto keeps the fast ones",
            MiniferWarning,
            stacklevel=2,
        )
    return "reference"


def debugger_attached() -> bool:
    """True under pdb, bdb, pydevd or debugpy; never under coverage or a profiler."""
    trace = sys.gettrace()
    if trace is not None:
        module = type(getattr(trace, "__self__", None)).__mro__
        if any(kind.__module__ == "bdb" for kind in module):
            return True
        if (getattr(trace, "__module__", None) or type(trace).__module__).startswith(
            ("pydevd", "_pydevd", "debugpy")
        ):
            return True
    if sys.version_info >= (3, 12) and sys.monitoring.get_tool(sys.monitoring.DEBUGGER_ID):
        return True
    frame = sys._getframe() if "bdb" in sys.modules else None
    while frame is not None:  # `python -m pdb`: bdb's own frame lies under ours
        if frame.f_globals.get("__name__") == "bdb":
            return True
        frame = frame.f_back
    return False
