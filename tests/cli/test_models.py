"""``eventspec models list`` and ``models check``: what ships, what a name means, and what a folder lacks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eventspec.cli import run
from eventspec.core import BadInput
from eventspec.pairs import load_pair
from eventspec.pairs.pair_file import DATA, by_name, folder_of, two_meanings

NANO = DATA / "pairs/nano"


def test_list_tells_the_heads_and_packers_of_every_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "list", "--json"]) == 0
    nano = json.loads(capsys.readouterr().out)["pairs"]["nano"]
    assert {"eagle", "eagle3", "specvlm"} <= set(nano["heads"]) and nano["packers"] == ["2"] and nano["drafters"] == ["fine"]
    assert run(["models", "list"]) == 0
    page = capsys.readouterr().out
    assert all(word in page for word in ("--head", "eagle3", "packer:2", "fine", "--method cross-modal"))


def test_check_of_a_pair_is_a_table_without_pythons_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "check", "nano"]) == 0
    page = capsys.readouterr()
    assert page.err == "" and not set("[]{}'") & set(page.out)
    names = [line.split("  ")[0] for line in page.out.splitlines() if line[:1].strip()]
    assert names[:5] == ["name", "folder", "methods", "heads", "packers"] and "provenance" in names


@pytest.mark.parametrize("given", ["missing", "./missing", "some/where"])
def test_check_of_a_folder_that_is_not_there_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["models", "check", given]) == 2
    said = capsys.readouterr().err
    names = "nano (also called embedded)"
    assert said == f"eventspec: {given}: no such folder: check the path, or name a bundled pair: {names}\n"


def test_a_bare_name_that_is_also_a_folder_is_the_pair_and_a_note_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert two_meanings("nano") == () == two_meanings("./nano")
    (tmp_path / "nano").mkdir()
    assert by_name("nano") == NANO == folder_of("nano")
    assert by_name("./nano") is None is by_name(Path("nano"))
    assert two_meanings("nano") == ("pair nano is the bundled one: for the folder of that name here write ./nano",)
    assert load_pair("nano", fit=False).parts.notes == two_meanings("nano")
    with pytest.raises(BadInput, match=r"no pair '\./nano'"):
        folder_of("./nano")
    assert run(["models", "check", "nano"]) == 0
    assert "write ./nano" in capsys.readouterr().err
    assert run(["models", "check", "./nano"]) == 2
    assert "neither config.json nor pair.toml" in capsys.readouterr().err
    (tmp_path / "file").write_text("words")
    assert run(["models", "check", str(tmp_path / "file")]) == 2
    assert "is a file: give the folder of a checkpoint" in capsys.readouterr().err


def test_the_folder_is_meant_where_a_separator_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(NANO, tmp_path / "nano", copy_function=shutil.copy)
    assert load_pair("./nano", fit=False).folder == Path("nano")
    assert load_pair(Path("nano"), fit=False).parts.notes == ()
    monkeypatch.chdir(NANO.parent)
    assert two_meanings("nano") == ()  # one and the same
