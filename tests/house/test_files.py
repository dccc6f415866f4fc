"""Files are written whole, whoever else writes them at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eventspec.core import BadInput
from eventspec.files import write_text, write_whole


def test_threads_that_write_the_same_file_leave_one_whole_text_of_theirs(tmp_path: Path) -> None:
    path, texts = tmp_path / "learnt.json", [letter * 5000 for letter in "abcd"]

    def write(text: str) -> None:
        for _ in range(100):
            write_text(path, text)
            assert path.read_text() in texts

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(write, texts))
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_a_place_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        write_text(tmp_path / "file/in", "")
    with pytest.raises(BadInput, match="cannot be written"):
        write_whole(tmp_path / "missing/in", lambda part: part.write_text(""))
