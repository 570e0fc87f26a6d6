"""README and the pages of docs/: every snippet runs and prints what the page shows."""

import dataclasses
import gc
import os
import re
import shutil
import subprocess
import sys
import typing
from contextlib import closing

import pytest
import torch
import typer
import typer.exceptions
from prometheus_client import generate_latest

import maskjet
from benchmarks.planted import plant_network, randomise
from maskjet import limits, traffic
from maskjet.cli.app import app
from maskjet.config import EngineConfig
from maskjet.networks.rfdetr import RFDETR
from maskjet.serve import create_app
from maskjet.serve.settings import Settings
from maskjet.spec import SPECS
from tests.snippets import ADDRESS, ROOT, Page, check, check_command, check_request, compare, find_snippets
from tools import site_pages

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SERVING = (ROOT / "docs" / "serving.md").read_text()
QUICK = {"images.md", "limits.md", "api"}
"""Pages, and folders of pages, that `make test` runs; it only reads the others, which measure or start processes."""


def write_video(path):
    traffic.write_video(path, size_hw=(360, 640), frames=30, seed=7)


def write_clip(path):
    traffic.write_video(path, size_hw=(180, 320), frames=4, seed=ord(path.stem[0]))


def write_pictures(path):
    path.mkdir()
    for seed in range(3):
        write_picture(path / f"{seed}.jpg", seed)


def write_picture(path, seed=3):
    import cv2

    image = traffic.sample(seed=seed).image
    assert cv2.imwrite(str(path), image[..., ::-1])


def write_checkpoint(path):
    """Official weights' stand-in: random ones that find something on a street."""
    network = plant_network(SPECS["rf-detr-seg-nano"], [traffic.sample(seed=3).image], survivors=5)
    torch.save({"model": network.state_dict()}, path)


def write_tuned(path):
    """As rfdetr's training leaves it: classes of its own, their names, and the resolution."""
    state = dict(randomise(RFDETR(SPECS["rf-detr-seg-nano"]).state_dict()))
    for name in list(state):
        if name.endswith(("class_embed.weight", "class_embed.bias")) or "enc_out_class_embed" in name:
            state[name] = state[name][:3].clone()
    torch.save({"model": state, "args": {"class_names": ["forklift", "pallet"], "resolution": 312}}, path)


INPUTS = {
    "video.mp4": write_video,
    "a.mp4": write_clip,
    "b.mp4": write_clip,
    "street.jpg": write_picture,
    "frames": write_pictures,
    "rf-detr-seg-nano.pt": write_checkpoint,
    "checkpoint_best_total.pth": write_tuned,
}
"""Files that pages take for granted; each is drawn for the pages that name it."""


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """A function that writes an input once, and returns its path."""
    folder = tmp_path_factory.mktemp("inputs")

    def draw(name):
        if not (folder / name).exists():
            INPUTS[name](folder / name)
        return folder / name

    return draw


@pytest.fixture
def undone(monkeypatch, tmp_path):
    """An empty working directory, no GPU, and afterwards the process as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the pages show what a CPU finds
    monkeypatch.setattr("maskjet.evaluation.speed._BUDGET_S", 0.3)
    for name in limits.NAMES:
        monkeypatch.setattr(limits, name, getattr(limits, name))
    yield monkeypatch
    gc.unfreeze()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            marks=() if QUICK & {path.name, path.parent.name} else pytest.mark.slow,
            id=str(path.relative_to(ROOT)),
        )
        for path in PAGES
    ],
)
def test_the_snippets_of_a_page_run(path, undone, drawn, tmp_path, capsys):
    text = path.read_text()
    snippets = find_snippets(text)
    for name in INPUTS:
        if any(name in snippet.text for snippet in snippets):
            source = drawn(name)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    with closing(Page(path, capsys, undone.setenv)) as page:
        for snippet in snippets:
            try:
                printed = page.run(snippet)
                if snippet.shown is not None and not snippet.needs:
                    compare(snippet.shown, printed, is_measured=snippet.is_measured)
            except Exception as error:
                error.add_note(f"in the snippet at {path}:{snippet.line}")
                raise


def test_the_commands_and_requests_of_all_pages_are_known():
    for path in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"):
        for snippet in find_snippets(path.read_text()):
            try:
                check(snippet)
            except Exception as error:
                error.add_note(f"in the snippet at {path}:{snippet.line}")
                raise


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("5 frames in 1.0 s", "5 frames in 22.7 s"),
        ("car 0.93 [743, 264]\n...", "car 0.92 [744, 264]\nbus 0.90 [724, 14]\n"),
    ],
)
def test_what_may_differ_may(shown, printed):
    compare(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("5 frames", "6 frames"),
        ("5 frames", "5 frames in 1 s"),
        ("car 0.93", "bus 0.93"),
        ("car 0.93", "car 0.90"),
        ("done", ""),
        ("", "done"),
    ],
)
def test_what_may_not_differ_fails(shown, printed):
    with pytest.raises(AssertionError, match=r"shows|shown"):
        compare(shown, printed)


@pytest.mark.parametrize("line", ["ran video.mp4", "run video.mp4 --out a.mp4 --brightness 3", "run --out a.mp4"])
def test_commands_that_are_not_there_fail(line):
    with pytest.raises((AssertionError, typer.exceptions.TyperException)):
        check_command(line.split())


@pytest.mark.parametrize("path", ["/v1/predicts", "/pages/app.js"])
def test_requests_that_the_service_does_not_know_fail(path):
    check_request(["-X", "POST", f"http://{ADDRESS}/v1/predict?masks=none"])
    with pytest.raises(AssertionError, match=path):
        check_request(["-s", f"http://{ADDRESS}{path}"])


def test_outputs_and_snippets_are_told_apart():
    page = 'Text\n\n```sh title="needs a GPU"\nmaskjet info\n```\n\n```\n1\n```\n\n```python\n2\n```\n'
    first, second = find_snippets(page)
    assert (first.language, first.needs, first.shown, first.line) == ("sh", "needs a GPU", "1\n", 4)
    assert (second.language, second.needs, second.shown, second.line) == ("python", None, None, 12)
    with pytest.raises(AssertionError, match="an output has no snippet"):
        find_snippets("```\n1\n```\n")


def test_every_option_is_in_the_reference():
    text = site_pages.describe_commands()
    for name, command in site_pages.find_commands(typer.main.get_command(app)):
        section = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for parameter in command.params:
            word = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name.upper()
            assert f"\n`{word}" in section or parameter.name in ("help", "help_all"), (name, word)
        assert all(f"\n{line}\n" in section.replace("\\\n", "") for line in site_pages.examples_of(command)), name
    assert "\n`--device NAME`\n:   auto (the first GPU" in text
    assert "\n`--depth N`\n" in text
    assert "Variable: `MASKJET_DEVICE`." in text


def test_every_setting_is_in_the_reference():
    text = site_pages.describe_settings()
    assert [line for line in text.splitlines() if line.startswith("`")] == [
        f"`{field.name} = {field.default!r}`" for field in dataclasses.fields(EngineConfig)
    ]


def describe_setting(name):
    """The row of a setting in the table of docs/serving.md."""
    default, text = getattr(Settings, name), typing.get_type_hints(Settings, include_extras=True)[name].__metadata__[0]
    if default in (None, (), False):
        shown = ""
    elif isinstance(default, int) and default >= 2**20:
        shown = f"2^{default.bit_length() - 1}"
        assert default == 2 ** (default.bit_length() - 1), name
    else:
        shown = f"{default:g}" if isinstance(default, float) else str(default)
    return f"| `--{name.replace('_', '-')}` | {shown} | {text} |"


def test_every_setting_of_the_service_is_on_its_page():
    table = "\n".join(
        ["| | Default | |", "|---|---|---|", *(describe_setting(each.name) for each in dataclasses.fields(Settings))]
    )
    assert f"\n{table}\n" in SERVING, f"the table of docs/serving.md must be\n{table}"


def test_every_measurement_of_the_service_is_on_its_page():
    with maskjet.load("demo", device="cpu") as model:
        text = generate_latest(create_app({"demo": model}).state.service.metrics.registry).decode()
    names = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    rows = set(re.findall(r"^\| `(maskjet_\w+)` \|", SERVING, re.MULTILINE))
    assert rows == {name for name in names if not name.endswith("_created")}
    mentioned = set(re.findall(r"\bmaskjet_\w+", SERVING))
    of_several = {"maskjet_process_restarts_total"}  # which a single process does not have
    assert {name.removesuffix("_bucket") for name in mentioned} == rows | of_several


def test_every_problem_of_the_service_is_on_its_page():
    rows = {
        (status, name)
        for status, names in re.findall(r"^\| (\d{3}) \| ([^|]+) \|", SERVING, re.MULTILINE)
        for name in re.findall(r"`([\w-]+)`", names)
    }
    source = "".join(path.read_text() for path in (ROOT / "src" / "maskjet" / "serve").glob("*.py"))
    raised = set(re.findall(r'ProblemError\(\s*(\d{3}),\s*"([\w-]+)"', source)) - {("499", "gone")}
    assert rows == raised | {("404", "not-found"), ("405", "method-not-allowed")}  # of the framework


def test_every_public_name_is_on_a_page():
    pages = "\n".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    for name in maskjet.__all__:
        assert (
            name == "__version__"
            or f"::: maskjet.{name}" in pages
            or name in ("ops", "rewrites", "tracking", "traffic")
        ), name


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocs", reason="needs the dependency group docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=120)
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    loaded = re.compile(r'<(?:script|img|iframe|source)[^>]*\bsrc="?(?:https?:)?//|<link[^>]*\bhref="?(?:https?:)?//')
    for page in pages:
        text = page.read_text()
        assert not loaded.search(text), page
        assert "mermaid" not in text, page  # which the theme would fetch
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"url\(\"?(?:https?:)?//", style.read_text()), style
