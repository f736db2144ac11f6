"""The page of the walk command: whole, alone, every line on it, nothing unescaped."""

import html.parser
import json
import os
import re
import shutil
import sys

import pytest
from cli_runs import cli
from tiny_model import write_tiny_model
from walk_runs import ORDER

from minifer.observe.walk_source import watched_functions


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("walk") / "tiny")


@pytest.fixture
def walk(capsys, folder):
    return lambda *args: cli(capsys, "walk", "-m", folder, "--repeats", 1, *args)


VOID = {"meta", "link", "img", "br", "hr", "input", "source", "base"}


class Page(html.parser.HTMLParser):
    """Text, ids, links and tags of a page; raises where a tag is not closed by its own."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.text = [], [], [], set(), ""
        self.attributes = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        given = dict(attrs)
        assert len(given) == len(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data


def test_the_page_is_whole_and_alone(walk, tmp_path):
    target = tmp_path / "walk.html"
    target.write_text("old", encoding="utf-8")
    ran = walk("--html", target)
    assert (ran.code, ran.err) == (0, f"minifer: {target} is written; open it in a browser\n")
    assert list(tmp_path.iterdir()) == [target]
    assert "FLOP per executed byte" in ran.out and "Most time in decode" in ran.out
    assert "Model.step *" not in ran.out  # the listing is on the page
    text = target.read_text(encoding="utf-8")
    page = Page(text)
    assert text.startswith("<!doctype html>\n<html lang=") and '<meta charset="utf-8">' in text
    assert 'name="viewport"' in text and "prefers-color-scheme: dark" in text
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object", "base", "form"})
    assert page.attributes.isdisjoint({"src", "srcset", "onclick", "onload", "action"})
    assert not re.search(r"https?:|url\(|@import", text)
    assert len(set(page.ids)) == len(page.ids)
    assert all(link[0] == "#" and link[1:] in page.ids for link in page.links)
    assert {name.replace(".", "-") for name in ORDER} <= set(page.ids)


def test_the_page_shows_every_line_and_figure(walk, tmp_path):
    ran = walk("--html", tmp_path / "walk.html", "--json")
    text = (tmp_path / "walk.html").read_text(encoding="utf-8")
    page = Page(text)
    for function in watched_functions():
        for number, line in enumerate(function.lines, function.first):
            assert function.code_and_comment(number, line)[0] in page.text
            assert function.code_and_comment(number, line)[1] in page.text
    for function in ran.json["functions"]:
        for statement in function["statements"]:
            anchor = f'id="{function["name"].replace(".", "-")}-{statement["line"]}"'
            assert text.count(anchor) == ("prefill" in statement)
    (row,) = re.findall(
        r'<tr class="ran"[^\n]*id="gate-[^\n]*silu \* content.*?</tr>\n', text, re.S
    )
    for shape in (f"({ran.json['phases']['prefill']['tokens']}, 48)", "(1, 48)"):
        assert row.replace("\xa0", " ").count(shape) == 2  # beside the code, and in the panel
    assert re.search(r'class="first heat decode" style="--s:\d+\.\d%">[\d.]+</td>', row)


def test_the_page_escapes(walk, tmp_path):
    evil = "<script>alert('x')</script>&amp;\"<b>"
    walk(evil, "--html", tmp_path / "walk.html")
    text = (tmp_path / "walk.html").read_text(encoding="utf-8")
    page = Page(text)
    assert "script" not in page.tags and text.count("<b>") == 2  # those of the two cards
    assert json.dumps(evil) in page.text
    assert text.count("key_positions &gt; query_positions") == 2 and "-&gt; Array" in text
    for figures in re.findall(r"--s:([^\"]*)\"", text):
        assert re.fullmatch(r"\d+\.\d%", figures)


def test_a_page_of_some_functions(walk, tmp_path):
    walk("--html", tmp_path / "walk.html", "--function", "gate")
    page = Page((tmp_path / "walk.html").read_text(encoding="utf-8"))
    assert "gate" in page.ids and "linear" not in page.ids
    assert all(link[1:] in page.ids for link in page.links)


@pytest.mark.parametrize("where", ["nowhere/walk.html", "."])
def test_a_page_that_cannot_be_written_is_said_before_the_run(walk, tmp_path, monkeypatch, where):
    def load(args):
        raise AssertionError("the model was loaded first")

    monkeypatch.setattr("minifer.cli.walk.open_model", load)
    ran = walk("--html", tmp_path / where)
    assert ran.code == 1 and ran.err.startswith(f"minifer: error: --html {tmp_path / where}: ")


@pytest.mark.skipif(sys.platform != "linux", reason="names that are bytes: not everywhere")
def test_a_folder_whose_name_is_no_text(capsys, folder, tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/mod\xff")
    shutil.copytree(folder, odd)
    ran = cli(capsys, "walk", "-m", odd, "--repeats", 1, "hi", "--html", tmp_path / "w.html")
    assert ran.code == 0 and f"{tmp_path}/mod?" in (tmp_path / "w.html").read_text(encoding="utf-8")
