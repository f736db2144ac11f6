"""Small tokenizers, trained or written for the tests, and texts that are hard on them."""

import json

import tokenizers
from hypothesis import strategies as st

from minifer.tokenizer import Tokenizer

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PARAGRAPHS = [
    "The decode loop reads every weight once for each token; prefill reads it once for them all.",
    "It's what we'll see: they've 12345 keys, I'm told, and 7 of them aren't 'visible'.",
    "  def softmax(x):\n      return exp(x) / exp(x).sum()\n\n\n",
    "Größe, façade, naïve, Ελληνικά, кириллица, 日本語のテキスト, 한국어, العربية ١٢٣",
    "the the the then there they 000 111 2024-01-31 !!! ??? ... --- === 👍🏽👩‍👩‍👧 🇫🇷",
] * 3

HARD = (  # between bars
    " |  |\n|\r\n|\t|\n \n|a|the| the|it's|'S|'LL|I'Ve|'\u017f|x'\u017ft|123|1234567| 12|½|Ⅷ|٣٤|²"
    "|é|e\u0301|a\u0345\u0327|ﬁ|ﬆ|ß|ſ|\u212a|İ|ı|日本|か\u3099|한|\u1112\u1161\u11ab|ا\u064b|👩‍👩‍👧|👍🏽|🇫🇷"
    "|\x1c|\x1f|\x85|\xa0|\u180e|\u200b|\u200d|\u2028|\u3000|\ufeff|\x00|\ufffd|\ufdd0|\U0010ffff"
    "|<s>|<S>|<x>| <x>|<x> |<xx>|<left>|<right>|<word>|<norm>|<É>|<E\u0301>|_|-|!?|…|//|«»"
    "|\u0295|\u0296|\u088f|\u0558|\U00016ff4|\U00012550|\U000105d2\u0307|\U00011935\U00011930"
    "|\U0001611e\U0001611e|\u1aff|\u1ab0|\u07fd|\u1df6"
)
SNIPPETS = HARD.split("|")

texts = st.lists(
    st.one_of(st.sampled_from(SNIPPETS), st.sampled_from(SNIPPETS), st.text(max_size=6)), max_size=9
).map("".join)

FLAGGED = [
    tokenizers.AddedToken("<s>", special=True, normalized=False),
    tokenizers.AddedToken("<x>", special=False, normalized=False),
    tokenizers.AddedToken("<xx>", special=True, normalized=False),
    tokenizers.AddedToken("<left>", special=True, lstrip=True, normalized=False),
    tokenizers.AddedToken("<right>", special=False, rstrip=True, normalized=False),
    tokenizers.AddedToken("<word>", special=False, single_word=True, normalized=False),
    tokenizers.AddedToken("<norm>", special=False, normalized=True, lstrip=True, rstrip=True),
    tokenizers.AddedToken("<E\u0301>", special=False, normalized=True),
    tokenizers.AddedToken("the", special=False, normalized=True, single_word=True),
    tokenizers.AddedToken(" 12", special=True, normalized=False, rstrip=True),
]


def byte_level(**options):
    options = {"add_prefix_space": False, "use_regex": True, **options}
    return {"type": "ByteLevel", "trim_offsets": False, **options}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(key, *stages):
    return {"type": "Sequence", key: list(stages)}


def template(*ids_and_none):
    single, special = [], {}
    for item in ids_and_none:
        if item is None:
            single.append({"Sequence": {"id": "A", "type_id": 0}})
        else:
            name = f"t{item}"
            single.append({"SpecialToken": {"id": name, "type_id": 0}})
            special[name] = {"id": name, "ids": [item], "tokens": [name]}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def tiny(**changes):
    """A valid file of a few tokens; a change replaces a section, `model=` its keys."""
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4},
        "merges": ["a b", "Ġ ab"],
    }
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level(),
        "post_processor": None,
        "decoder": byte_level(),
        "model": model,
    }
    model.update(changes.pop("model", {}))
    return {**data, **changes}


def added(token_id, content, **flags):
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": token_id, "content": content, **dict.fromkeys(names, False), **flags}


def trained(pre_tokenizer, alphabet=True, extra=(), **changes):
    """A file whose vocabulary the library learns from PARAGRAPHS, through the pre-tokenizer."""
    data = tiny(pre_tokenizer=pre_tokenizer, model={"vocab": {"a": 0}, "merges": []})
    library = tokenizers.Tokenizer.from_str(json.dumps(data))
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=letters, special_tokens=list(extra), show_progress=False
    )
    library.train_from_iterator(PARAGRAPHS, trainer)
    library.add_special_tokens([token for token in FLAGGED if token.special])
    library.add_tokens([token for token in FLAGGED if not token.special])
    data = json.loads(library.to_str())
    data["model"].update(changes.pop("model", {}))
    return {**data, **changes}


def both(data):
    """Ours and the library's, of one file."""
    return Tokenizer.from_dict(data), tokenizers.Tokenizer.from_str(json.dumps(data))


def spaced(data):
    """The same file with its merges as strings, as older versions wrote them."""
    pairs = data["model"]["merges"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]
    return {**data, "model": {**data["model"], "merges": merges}}


def library_encode(library, text, add_special_tokens=True, parse_special=True):
    library.encode_special_tokens = not parse_special
    try:
        return library.encode(text, add_special_tokens=add_special_tokens)
    finally:
        library.encode_special_tokens = False
