"""inspect: the static cost card of a model, from config.json alone. No weight is opened."""

import argparse
import sys
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, ContextError, MiniferError
from .common import as_json, natural, positive

if TYPE_CHECKING:
    from ..config import ModelConfig
    from ..observe.cost_card import CostCard
    from ..observe.devices import Device
    from ..observe.prediction import Ceiling

HELP = "static cost card from config.json alone: bytes, FLOPs, what devices allow"
DTYPES = ("float32", "float16", "bfloat16")
MOST_SEQUENCES = 2**31 - 1  # bounded as the sizes of config.json are
SHORT_LIST = ("H100-SXM", "A100-80G", "RTX-4090", "Xeon-8480+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of inspect."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-m", "--model", help="a model folder or a hub name; default unless given")
    which.add_argument("--config", type=Path, metavar="FILE", help="a config.json alone")
    parser.add_argument("--dtype", choices=DTYPES, help="of weights; else as config.json says")
    parser.add_argument("--kv-dtype", choices=DTYPES, help="of the KV cache; else as the weights")
    parser.add_argument(
        "--prompt-tokens", type=positive, metavar="T", help="of the prefill; 512 unless given"
    )
    parser.add_argument(
        "--context", type=natural, metavar="S", help="tokens cached before the decode step; else T"
    )
    parser.add_argument(
        "--batch", type=positive, default=1, metavar="B", help="sequences that decode together"
    )
    parser.add_argument(
        "--device-spec", action="append", default=[], metavar="NAME",
        help="whose data sheet; repeatable; list shows all",
    )  # fmt: skip
    parser.add_argument(
        "--price-per-hour", type=price, metavar="X", help="of each device, in your currency"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def price(text: str) -> float:
    """A number from a billionth, for argparse: what smaller ones cost, no float could tell."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1e-9 <= value < 1e12:  # NaN is neither
        raise argparse.ArgumentTypeError(f"{text!r:.40}: expected a number from 1e-9 to below 1e12")
    return value


def run(args: argparse.Namespace) -> int:
    """Print the card, or one JSON object."""
    from ..observe import card_text
    from ..observe.cost_card import cost_card
    from ..observe.prediction import ceiling

    if "list" in args.device_spec:
        return list_devices(args.json)
    if args.batch > MOST_SEQUENCES:
        args.command_parser.error(f"--batch {args.batch}: at most {MOST_SEQUENCES}")
    devices = chosen_devices(args)
    config, data, path = open_config(args)
    dtype, why = choose_dtype(args.dtype, data)
    try:
        card = cost_card(config, dtype, args.kv_dtype, args.prompt_tokens, args.context, args.batch)
    except ContextError as problem:  # --prompt-tokens or --context: an option out of range
        args.command_parser.error(str(problem))
    ceilings = [ceiling(card, device) for device in devices]
    if args.json:
        about = {"model": str(path), "dtype_source": why}
        found = about | card_object(card) | ceilings_object(ceilings, args.price_per_hour)
        print(as_json(found, sys.stdout.encoding))
        return 0
    kv_why = "as the weights" if args.kv_dtype is None else "--kv-dtype"
    sections = [
        card_text.model_lines(card, str(path), why, kv_why),
        card_text.parameter_lines(card),
        card_text.pass_lines(card),
        card_text.layer_lines(card),
        card_text.memory_lines(card),
        card_text.ceiling_lines(card, ceilings),
        card_text.roof_lines(card, ceilings),
    ]
    if not args.device_spec:
        sections[-1].append("  other devices: --device-spec NAME; --device-spec list shows them")
    if args.price_per_hour is not None:
        sections.append(card_text.price_lines(ceilings, args.price_per_hour))
    print("\n\n".join("\n".join(lines) for lines in sections))
    return 0


def list_devices(as_object: bool) -> int:
    """Every data sheet this version knows, with its source."""
    from ..observe import card_text
    from ..observe.devices import DEVICES

    if as_object:
        print(as_json({"devices": [d._asdict() for d in DEVICES.values()]}, sys.stdout.encoding))
    else:
        print("\n".join(card_text.device_table(list(DEVICES.values()), DTYPES)))
    return 0


def open_config(args: argparse.Namespace) -> "tuple[ModelConfig, dict[str, Any], Path]":
    """The configuration, the JSON it was read from, and its path.

    Of a model on the hub the small files are fetched, never a weight; of the default one nothing.
    """
    from ..families import family_of
    from ..json_file import read_json
    from ..load import locate

    if args.config is not None:
        path = args.config
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder; --model {path} reads the config.json in it")
    else:
        if args.model and args.model.endswith(".json") and Path(args.model).is_file():
            raise ConfigError(f"{args.model}: is a file; --config {args.model} reads it")
        name = "default" if args.model is None else args.model
        found = locate(name, offline=name == "default", weights=False)
        folder = found if found.is_dir() else found.parent
        path = folder / "config.json"
        if not lexists(path):
            raise ConfigError(
                f"{folder}: no config.json in this folder; --config FILE takes one from elsewhere"
            )
    data = read_json(path, ConfigError)
    return family_of(data, str(path)).read_config(data, str(path)), data, path


def choose_dtype(asked: str | None, data: dict[str, Any]) -> tuple[str, str]:
    """The dtype of the weights, and why this one."""
    if asked is not None:
        return asked, "--dtype"
    key = next((key for key in ("torch_dtype", "dtype") if data.get(key) is not None), None)
    if key is None:
        return DTYPES[0], "config.json names none"
    if data[key] in DTYPES:
        return data[key], f"{key} of config.json"
    return DTYPES[0], f"{key} of config.json is {data[key]!a:.24}, which is none of ours"


def chosen_devices(args: argparse.Namespace) -> "list[Device]":
    """The devices of --device-spec, each once; or a short list."""
    from ..observe.devices import find_device

    try:
        found = [find_device(name) for name in args.device_spec or SHORT_LIST]
    except MiniferError as problem:
        args.command_parser.error(f"--device-spec: {problem}")
    return list({device.name: device for device in found}.values())


def card_object(card: "CostCard") -> dict[str, Any]:
    """The card as plain data; counts are whole numbers, KV bytes those of one sequence."""
    from ..observe.card_text import memory
    from ..observe.cost_card import key_product_flops, layer_rows, parameter_split
    from ..observe.passes import CONVENTION

    c, prefill, decode = card.config, card.prefill, card.decode
    T, S, kv = card.prompt_tokens, card.context, card.kv_bytes_per_token
    H, K = c.num_attention_heads, c.num_key_value_heads
    sizes = (c.num_hidden_layers, c.hidden_size, c.intermediate_size, H, K, H // K)
    letters = zip("LDFHKGEV", (*sizes, c.head_dim, c.vocab_size), strict=True)
    rows = [row._asdict() for row in layer_rows(card)]
    held, steps = memory(card)
    return {
        "family": c.family,
        "dimensions": dict(letters),
        "max_position_embeddings": c.max_position_embeddings,
        "tie_word_embeddings": c.tie_word_embeddings,
        "dtype": card.dtype,
        "kv_dtype": card.kv_dtype,
        "prompt_tokens": T,
        "context": S,
        "batch": card.batch,
        "parameters": card.parameters,
        "parameter_split": parameter_split(c),
        "matmul_parameters": card.matmul_parameters,
        "weight_bytes": card.weight_bytes,
        "kv_bytes_per_token": kv,
        "kv_bytes": {"prompt_tokens": kv * T, "context": kv * S},
        "attention_flops_per_context_token": card.attention_flops_per_context_token,
        "prefill_flops": prefill.flops,
        "elementwise_flops": prefill.elementwise_flops,
        "prefill_bytes": prefill.bytes,
        "prefill_intensity": prefill.intensity,
        "decode_flops": decode.flops,
        "decode_elementwise_flops": decode.elementwise_flops,
        "decode_bytes": decode.bytes,
        "decode_intensity": decode.intensity,
        "prefill": prefill._asdict(),
        "decode": decode._asdict(),
        "layer": [
            row | {phase: row[phase]._asdict() for phase in ("prefill", "decode")} for row in rows
        ],
        "key_product_flops": {
            "visible": key_product_flops(c, T, 0),
            "computed": key_product_flops(c, T, 0, hidden_too=True),
        },
        "inference_memory": held._asdict(),
        "training_memory": {variant: step._asdict() for variant, step in steps.items()},
        "convention": CONVENTION,
    }


def ceilings_object(ceilings: "list[Ceiling]", price_per_hour: float | None) -> dict[str, Any]:
    """What the devices allow, three digits of each predicted figure, and what it costs."""
    from ..observe.card_text import NO_PROMISE
    from ..observe.prediction import cost_per_million

    found = []
    for one in ceilings:
        entry = one._asdict()
        if price_per_hour is not None:
            for phase, kind in (("prefill", "input"), ("decode", "output")):
                rate = entry[f"{phase}_tokens_per_second"]
                cost = None if rate is None else cost_per_million(price_per_hour, rate)
                entry[f"cost_per_million_{kind}_tokens"] = cost
        for key, value in entry.items():
            if value is not None and key.endswith(("_seconds", "_per_second", "_tokens")):
                entry[key] = float(f"{value:.3g}")
        found.append(entry)
    return {"devices": found, "price_per_hour": price_per_hour, "ceilings": NO_PROMISE}
