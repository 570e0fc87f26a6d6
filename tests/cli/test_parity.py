"""maskjet parity on the command line."""

import json
import sys

import pytest

from maskjet import traffic
from maskjet.cli.main import main
from tests.parity.dumps import FAULTS, STREETS, dump, truthful


@pytest.fixture
def maskjet(capsys):
    """Exit code, stdout, stderr of the command line within this process."""

    def run(*arguments):
        sys.argv = ["maskjet", "parity", *map(str, arguments)]
        with pytest.raises(SystemExit) as exit_info:
            main()
        return exit_info.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def dumps(tmp_path):
    """The same twice, and with a detection dropped."""
    found = {"one": None, "same": None, "less": [FAULTS["dropped"]]}
    for name, detections in found.items():
        dump(name, detections).save(tmp_path / f"{name}.npz")
    return {name: tmp_path / f"{name}.npz" for name in found}


def test_dump_and_check(maskjet, tmp_path):
    streets = ("--count", 2, "--size", "160x96", "--device", "cpu")
    code, out, err = maskjet("dump", tmp_path / "a.npz", *streets)
    assert (code, out) == (0, "")
    assert "detections on 2 images to" in err
    code, _, _ = maskjet(
        "dump", tmp_path / "b.npz", *streets, "--implementation", "preprocess=reference", "--name", "b"
    )
    assert code == 0
    code, out, err = maskjet(
        "check", tmp_path / "a.npz", tmp_path / "b.npz", "--out", tmp_path / "r.json", "--confidence", 0.4
    )
    assert code == 0
    assert "2 images: " in out
    report = json.loads((tmp_path / "r.json").read_text())
    assert [m["confidence"] for m in report["measurements"]] == [0.05, 0.4]
    assert (report["expected"]["name"], report["actual"]["name"]) == ("a", "b")


def test_a_difference_is_no_error_in_check(maskjet, dumps, tmp_path):
    code, out, _ = maskjet("check", dumps["one"], dumps["less"], "--pictures", tmp_path / "p")
    assert code == 0
    assert "dropped: car 0.50" in out
    assert [path.name for path in (tmp_path / "p").iterdir()] == ["worst_01.png"]
    code, out, _ = maskjet("check", dumps["one"], dumps["same"], dumps["less"])
    assert (code, out.count("4 images")) == (0, 2)
    code, _, err = maskjet("check", dumps["one"], dumps["same"], dumps["less"], "--out", tmp_path / "r.json")
    assert (code, "take one dump to compare with" in err) == (2, True)


def test_gate(maskjet, dumps, tmp_path):
    for name in ("true", "again"):
        truthful(name).save(tmp_path / f"{name}.npz")
    limits = ("--max-unmatched", 0.05, "--max-dconf", 0.001, "--resamples", 0)
    same = (tmp_path / "true.npz", tmp_path / "again.npz")
    code, out, err = maskjet("gate", *same, *limits, "--max-dap", 0.01, "--report", tmp_path / "page.html")
    assert (code, out.count("kept: "), "BROKEN" in out) == (0, 4, False)
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "page.html" in err
    code, out, _ = maskjet("gate", dumps["one"], dumps["less"], *limits)
    assert code == 1
    assert "BROKEN: share of detections without a counterpart 0.08333, limit 0.05" in out
    code, _, err = maskjet("gate", dumps["one"], dumps["less"])
    assert (code, "at least one of max_unmatched" in err) == (2, True)
    code, _, err = maskjet("gate", dumps["one"], dumps["one"], "--max-dap", 0.1)
    assert (code, "must have different names, both are 'one'" in err) == (2, True)


def test_coco_takes_dumps_and_other_programs_results(maskjet, dumps, tmp_path):
    (tmp_path / "theirs.json").write_text(json.dumps(dump().to_coco(STREETS.truth())))
    code, out, _ = maskjet(
        "coco", dumps["one"], dumps["less"], tmp_path / "theirs.json", "--resamples", 2, "--out", tmp_path / "r.json"
    )
    assert code == 0
    rows = json.loads((tmp_path / "r.json").read_text())["measurements"]
    assert [row["variant"] for row in rows[:3]] == ["one", "less", "theirs"]
    assert rows[0]["ap"] == rows[2]["ap"]
    assert "theirs" in out
    code, _, err = maskjet("coco", tmp_path / "theirs.json")
    assert (code, "--coco-dir must name a data set" in err) == (2, True)
    code, _, err = maskjet("coco", dumps["one"], dumps["one"])
    assert (code, "results must have different names, got 'one' twice" in err) == (2, True)


def test_coco_dir(maskjet, tmp_path):
    traffic.write_coco(tmp_path / "set", images=2, size_hw=(96, 160))
    where = ("--coco-dir", tmp_path / "set")
    code, _, _ = maskjet("dump", tmp_path / "a.npz", *where, "--device", "cpu")
    assert code == 0
    code, out, _ = maskjet("coco", tmp_path / "a.npz", *where)
    assert (code, "segm" in out) == (0, True)
    code, _, err = maskjet("dump", tmp_path / "b.npz", *where, "--images", tmp_path)
    assert (code, "--images and --coco-dir must not both be given" in err) == (2, True)


def test_probe(maskjet, tmp_path):
    code, out, _ = maskjet(
        "probe", "--count", 1, "--size", "160x96", "--device", "cpu", "--out", tmp_path / "p.json", "--picture",
        tmp_path / "p.png",
    )  # fmt: skip
    assert code == 0
    assert "F.interpolate" in out
    assert json.loads((tmp_path / "p.json").read_text())["measurements"]
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_study(maskjet, tmp_path):
    chosen = ("--only", "demo", "--variant", "fp32", "--count", 2, "--size", "160x96", "--resamples", 0)
    code, out, err = maskjet("study", tmp_path, *chosen, "--stage", "dump")
    assert (code, out, "wrote the dumps" in err) == (0, "", True)
    code, out, _ = maskjet("study", tmp_path, *chosen, "--stage", "compare")
    assert code == 0
    assert "average precision" in out
    assert (tmp_path / "study.json").exists()
