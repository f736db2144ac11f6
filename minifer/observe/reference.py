"""A run of the transformers library, its results under our names. Imported only when asked for.

Forward hooks show what goes into and comes out of a module. What no module shows (queries and keys
after rope, the KV cache) is not compared.
"""

import re
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DeviceError, MiniferError
from .capture import Take

OLDEST = (4, 56)  # the first version that takes dtype=
# Module -> our names of its input, where it is some op's result, and of its output.
OUTSIDE = {
    "model.embed_tokens": ((), ("embedding",)),
    "model.norm": ((), ("rms_norm final_norm",)),
    "lm_head": ((), ("linear head",)),
}
INSIDE = {
    "input_layernorm": ((), ("rms_norm attention_norm",)),
    "self_attn.q_proj": ((), ("attend.linear query",)),
    "self_attn.k_proj": ((), ("attend.linear key",)),
    "self_attn.v_proj": ((), ("attend.linear value",)),
    "self_attn.o_proj": (("attend.attention", "attend.join"), ("attend.linear output",)),
    "self_attn": ((), ("attend",)),
    "post_attention_layernorm": (("residual attended",), ("rms_norm mlp_norm",)),
    "mlp.gate_proj": ((), ("mlp.linear gate",)),
    "mlp.up_proj": ((), ("mlp.linear up",)),
    "mlp.down_proj": (("mlp.gate",), ("mlp.linear down",)),
    "mlp": ((), ("mlp",)),
    "": ((), ("residual output", "block")),
}
ROTATION = "model.rotary_emb"  # cosine and sine, each (1, T, E), the second half as the first


def names_of(module: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Our names of what goes into a module of this path, and of what comes out of it."""
    found = re.fullmatch(r"model\.layers\.(\d+)(?:\.(.+))?", module)
    if found is None:
        return OUTSIDE.get(module, ((), ()))
    into, out = INSIDE.get(found[2] or "", ((), ()))
    place = f"layers.{found[1]}."
    return tuple(place + name for name in into), tuple(place + name for name in out)


def attach(model: Any, take: Take, to_host: Callable[[Any], np.ndarray]) -> list[Any]:
    """Hook every module that shows a result of ours -> handles with remove()."""

    def hook_of(path: str) -> Callable:
        into, out = names_of(path)

        def hook(module: Any, args: tuple, output: Any) -> None:
            rows = [(name, args[0]) for name in into]
            whole = output[0] if isinstance(output, tuple) else output
            rows += [(name, whole) for name in out]
            if path == ROTATION:
                half = whole.shape[-1] // 2
                rows += [
                    ("rotation cos", whole[..., :half]),
                    ("rotation sin", output[1][..., :half]),
                ]
            for name, value in rows:
                array = to_host(value[0])  # a batch of one
                take(name, array.reshape(len(array), -1))

        return hook

    return [
        module.register_forward_hook(hook_of(path))
        for path, module in model.named_modules()
        if path == ROTATION or any(names_of(path))
    ]


def require() -> str:
    """The version of transformers. Raises DeviceError where it cannot be asked."""
    found = {}
    for package in ("torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    numbers = tuple(int(part) for part in re.findall(r"\d+", found["transformers"])[:2])
    if found["torch"] == "not installed" or numbers < OLDEST:
        raise DeviceError(
            "reference=transformers needs torch and transformers from "
            f"{'.'.join(map(str, OLDEST))}; found: "
            + ", ".join(f"{package} {state}" for package, state in found.items())
            + '; install them: pip install -U torch "transformers>=4.56"'
        )
    return found["transformers"]


def run_reference(take: Take, folder: Path, token_ids: Sequence[int]) -> None:
    """Run a prompt through transformers: float32, eager attention, all tokens at once.

    Each result is handed to `take`. Raises DeviceError where the packages are missing,
    MiniferError where they cannot load the folder.
    """
    require()
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        ).eval()
    except (ImportError, KeyError, RuntimeError, TypeError, ValueError) as problem:
        raise MiniferError(f"transformers cannot load {folder}: {problem}") from problem
    handles = attach(model, take, lambda tensor: tensor.detach().float().cpu().numpy().copy())
    try:
        with torch.no_grad():
            model(torch.tensor([list(token_ids)]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
