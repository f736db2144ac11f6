"""tokenize: what the model sees instead of text."""

import argparse
import sys
from typing import Any

from ..errors import TokenizerError
from .common import add_prompt_arguments, as_json, read_prompt, say

HELP = "text to token ids, their pieces and where they stand in the text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of tokenize."""
    add_prompt_arguments(parser)
    parser.add_argument("-m", "--model", default="default", help="a folder, a hub name, or default")
    parser.add_argument("--offline", action="store_true", help="never fetch anything")
    parser.add_argument("--no-special-tokens", action="store_true", help="add no bos or eos")
    parser.add_argument("--plain", action="store_true", help="<|special|> text stays plain text")
    parser.add_argument("--ids", action="store_true", help="only the ids, on one line")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--compare", action="store_true", help="against the tokenizers library; exit 1 if different"
    )


def run(args: argparse.Namespace) -> int:
    """Print the pieces. -> 1 when --compare finds a difference."""
    from ..load import load_tokenizer, locate

    prompt = read_prompt(args, exact=True)
    path = locate(args.model, offline=args.offline, weights=False)
    folder = path if path.is_dir() else path.parent
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        raise TokenizerError(f"{folder}: no tokenizer.json in this folder")
    if isinstance(prompt, list):
        for token_id in sorted({i for i in prompt if tokenizer.token_of(i) is None}):
            say(f"note: no token has the id {token_id}")
        print(tokenizer.decode(prompt))
        return 0
    options = {"add_special_tokens": not args.no_special_tokens, "parse_special": not args.plain}
    pieces = tokenizer.pieces(prompt, **options)
    ids = [piece.id for piece in pieces]
    if args.json:
        found = {"ids": ids, "pieces": [piece._asdict() for piece in pieces]}
        print(as_json(found, sys.stdout.encoding))
    elif args.ids:
        print(*ids, sep=",")
    else:
        print_table(pieces, prompt)
    return compare(folder, prompt, options, ids) if args.compare else 0


def print_table(pieces: list, text: str) -> None:
    """One line per piece: its id, where it stands, the vocabulary's spelling, its text."""
    print(f"{'id':>7} {'from':>6} {'to':>6}  {'piece':<20}  text")
    for piece in pieces:
        known = piece.start is not None
        place = f"{piece.start:>6} {piece.end:>6}" if known else f"{'-':>6} {'-':>6}"
        shown = repr(text[piece.start : piece.end]) if known else ""
        print(f"{piece.id:>7} {place}  {piece.token:<20}  {shown}")


def compare(folder: Any, text: str, options: dict[str, bool], ids: list[int]) -> int:
    """Hold the ids against the tokenizers library. -> 0 equal, 1 different."""
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.encode_special_tokens = not options["parse_special"]
    theirs = library.encode(text, add_special_tokens=options["add_special_tokens"]).ids
    if theirs == ids:
        say(f"the tokenizers library gives the same {len(ids)} ids")
        return 0
    pairs = enumerate(zip(ids, theirs, strict=False))
    place = next((n for n, (our, their) in pairs if our != their), min(len(ids), len(theirs)))
    say(f"the tokenizers library differs from piece {place}: {theirs[place:][:8]}")
    return 1
