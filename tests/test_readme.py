"""What the README shows is true: its Python runs, its links and make targets exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.default_model
def test_its_python_runs_and_prints(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "(3, 4, 3, 4)" in shown
    assert re.search(r"^attention +120 ", shown, re.MULTILINE)


def test_every_link_leads_to_a_file():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert len(links) > 15
    assert not [link for link in links if not (ROOT / link).is_file()]


def test_it_links_the_path_in_reading_order():
    from test_structure import READING_ORDER

    numbered = re.findall(r"^\d+\. \[`(\w+)\.py`\]", README, re.MULTILINE)
    assert numbered == sorted(numbered, key=READING_ORDER.index)
    assert numbered[0] == "tokenizer"
    assert numbered[-1] == "decoding"


def test_every_make_target_it_names_is_there_and_helped():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`?make ([a-z-]+)`?", README)):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target


@pytest.mark.default_model
def test_the_table_of_letters_is_the_default_models():
    import minifer

    config = minifer.load("default", offline=True).config
    shown = dict(re.findall(r"^\| `(\w)` \| .*? \| ([\d,]+) \|$", README, re.MULTILINE))
    assert {letter: int(size.replace(",", "")) for letter, size in shown.items()} == {
        "D": config.hidden_size,
        "L": config.num_hidden_layers,
        "E": config.head_dim,
        "F": config.intermediate_size,
        "V": config.vocab_size,
    }


def test_every_command_it_names_is_there():
    help_text = subprocess.run(
        [sys.executable, "-m", "minifer", "--help"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        check=True,
    ).stdout
    commands = "generate chat tokenize score inspect walk diff fetch doctor".split()
    named = re.findall(rf"`({'|'.join(commands)})\b", README)
    assert set(named) == set(commands)
    assert all(name in help_text for name in named)
