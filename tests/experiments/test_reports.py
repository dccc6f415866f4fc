"""`bench report` on a copy of the checkout's pages and results: it writes what is stale, and `--check` says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eventspec.cli import run
from eventspec.core import BadInput
from eventspec.experiments.reports import FOLDER, Results, checkout, stale, write, written
from eventspec.experiments.statistics import never_seen, rank_correlation, wilson
from eventspec.experiments.tables import filled, spread, table_of, with_blocks

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("README.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / FOLDER, tmp_path / FOLDER)
    return tmp_path


@pytest.mark.long
def test_a_result_that_changes_makes_its_pages_stale(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(copy / "docs")
    assert run(["bench", "report", "--check"]) == 0
    path = copy / FOLDER / "reuse.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "scenes": 7}))
    assert run(["bench", "report", "--check"]) == 1
    assert "docs/how-to/live.md is not what the results say" in capsys.readouterr().err
    assert run(["bench", "report"]) == 0
    assert "about 7 scenes" in (copy / "docs/how-to/live.md").read_text()
    assert run(["bench", "report", "--check"]) == 0


def test_charts_that_are_missing_are_drawn(copy: Path) -> None:
    (copy / "docs/figures/main-job.svg").unlink()
    made = written(copy)
    assert stale(made)
    assert write(made) == [copy / "docs/figures/main-job.svg"]
    assert not stale(made)


def test_what_cannot_be_reported_is_one_line(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(BadInput, match="in no checkout of eventspec"):
        checkout(tmp_path_factory.mktemp("elsewhere"))
    page = copy / "docs/limits.md"
    page.write_text(page.read_text().replace("<!-- end of mixed -->", ""))
    with pytest.raises(BadInput, match=r"limits\.md has no place for the figures 'mixed'"):
        written(copy)
    for text, says in (("[]", "holds no results"), ("{", "holds no results"), (None, "is missing")):
        (copy / FOLDER / "reuse.json").unlink() if text is None else (copy / FOLDER / "reuse.json").write_text(text)
        with pytest.raises(BadInput, match=says):
            Results(copy)["reuse"]


def test_a_block_is_replaced_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a: eventspec bench report -->\nold\n<!-- end of a -->\nafter <!-- b -->\n")
    text = with_blocks(page, {"a": "new"})
    assert text == "before\n<!-- a: eventspec bench report -->\nnew\n<!-- end of a -->\nafter <!-- b -->\n"


def test_cells_are_written_one_way() -> None:
    assert spread([1.234, 1.1, 1.3]) == "1.23 (1.10 to 1.30)" and spread([1.2, None, None]) == "1.20"
    assert spread([None, None, None]) == filled("{a}", {"a": None}) == "-" and filled("{a[b]:.0%}", {"a": {"b": 0.5}}) == "50%"
    item = {"n": 1, "own": 1.0, "ends": [0.0, 2.0], "none": None, "all": [3.0, 2.0, 4.0]}
    assert filled("{own+ends:.0f}, {own+none:.1f}, {all:.0f}", item) == "1 (0 to 2), 1.0, 3 (2 to 4)"
    made = table_of([item], {"n": "{n}", "interval": "{own+ends:.0f}"})
    assert made == "| n | interval |\n|---|---|\n| 1 | 1 (0\u00a0to\u00a02) |"


def test_statistics_of_shares_and_ranks() -> None:
    low, high = wilson(10, 100)
    assert (low, high) == pytest.approx((0.0552, 0.1744), abs=1e-4)
    assert never_seen(40) == pytest.approx(0.05 ** (1 / 40))
    groups = [[(float(n), float(n) ** 3)] for n in range(8)]
    assert rank_correlation(groups) == pytest.approx([1.0, 1.0, 1.0])
    assert rank_correlation(groups[:4]) == [pytest.approx(1.0), None, None]
