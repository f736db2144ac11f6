"""The figures of one generation: the footer on stderr and the JSON object."""

import os
import platform
import sys
import textwrap
from contextlib import suppress
from typing import Any

import numpy as np


def result_object(model: Any, steps: Any, taken: list, interrupted: bool) -> dict[str, Any]:
    """Everything about one generation as plain data; times in milliseconds."""
    times = [1e3 * step.seconds for step in taken]
    total = sum(times)
    found = {
        "text": "".join(step.text for step in taken),
        "token_ids": [step.token_id for step in taken],
        "finish_reason": "interrupted" if interrupted else taken[-1].finish_reason,
        "prompt_tokens": len(steps.prompt_token_ids),
        "prompt_token_ids": steps.prompt_token_ids,
        "generated_tokens": len(taken),
        "ttft_ms": times[0] if times else None,
        "itl_ms": times[1:],
        "tpot_ms": (total - times[0]) / (len(times) - 1) if len(times) > 1 else None,
        "e2el_ms": total,
        "logprobs": [step.logprob for step in taken],
        "seed": steps.seed,
        "model": model.name,
        "device": model.backend.device,
        "hardware": hardware(),
        "dtype": model.dtype,
        "kernels": model.table.in_use(),
        "threads": threads(),
        "swapped": model.table.swapped(),
        "peak_memory_mb": peak_memory_mb(),
    }
    if steps.request.logprobs:
        found["top_logprobs"] = [step.top_logprobs for step in taken]
    if taken and taken[0].receipt is not None:
        from ..observe.passes import CONVENTION

        found["receipts"] = [
            {"phase": step.phase, "position": step.position, **step.receipt._asdict()}
            for step in taken
        ]
        found["convention"] = CONVENTION
    return found


def footer(model: Any, steps: Any, taken: list, interrupted: bool) -> list[str]:
    """A few lines under the answer, short enough for a terminal of 80 columns."""
    prompt, n = len(steps.prompt_token_ids), len(taken)
    if not taken:
        return [f"prompt {prompt} tokens, interrupted before the first new one"]
    ttft, gaps = taken[0].seconds, np.array([step.seconds for step in taken[1:]])
    reason = "interrupted" if interrupted else taken[-1].finish_reason
    first = f"prompt {_tokens(prompt)}, {prompt / ttft:.1f} tok/s, TTFT {1e3 * ttft:.0f} ms"
    lines = [first, f"generated {_tokens(n)} ({reason})"]
    if len(gaps):
        median, late = 1e3 * np.median(gaps), 1e3 * np.percentile(gaps, 95)
        lines[-1] += f", {len(gaps) / gaps.sum():.1f} tok/s"
        # With few gaps a 95th percentile is close to the maximum: say how many there were.
        lines.append(f"ITL median {median:.1f} ms, P95 {late:.1f} ms (n={len(gaps)})")
    memory = peak_memory_mb()
    figures = "" if memory is None else f"peak memory {memory:.0f} MB, "
    lines.append(f"{figures}{model.dtype} weights, {model.table.in_use()} kernels")
    lines.append(f"{threads()} threads on {hardware()}")
    if steps.request.sampling.temperature:
        lines.append(f"seed {steps.seed}")
    if model.table.swapped():
        lines.append(f"swapped ops: {', '.join(model.table.swapped())}")
    return [part for line in lines for part in textwrap.wrap(line, 80 - len("minifer: "))]


def _tokens(count: int) -> str:
    return f"{count} token" + "s" * (count != 1)


def logprob_lines(model: Any, taken: list) -> list[str]:
    """A line per token: its log-probability, and the likeliest with theirs."""

    def piece(token_id: int) -> str:
        return repr(model.tokenizer.decode([token_id])) if model.tokenizer else str(token_id)

    lines = [f"{'logprob':>9}  token and the likeliest in its place"]
    for step in taken:
        others = ", ".join(f"{piece(token)} {chance:.2f}" for token, chance in step.top_logprobs)
        lines.append(f"{step.logprob:>9.4f}  {piece(step.token_id)}: {others}")
    return lines


def describe(model: Any) -> str:
    """One line about a loaded model."""
    config = model.config
    return (
        f"{model.name}: {config.family} L={config.num_hidden_layers} D={config.hidden_size} "
        f"H={config.num_attention_heads} K={config.num_key_value_heads} E={config.head_dim} "
        f"context {config.max_position_embeddings}, {model.dtype}"
    )


def threads() -> int:
    """Threads BLAS was told to use, or the cores this process may run on."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def hardware() -> str:
    """What the processor calls itself."""
    if sys.platform == "linux":
        with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def peak_memory_mb() -> float | None:
    """Peak resident set in 10^6 bytes, mapped weights included; None where it is not told."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
