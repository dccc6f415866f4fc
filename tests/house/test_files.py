"""Files are written whole, whoever else writes them at the same time."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eventspec.core import BadInput
from eventspec.files import write_text, write_whole, writing


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


def _numpy_found_no_room() -> None:
    raise OSError("1204224 requested and 61312 written")  # as it says it: without a number, without a name


def _a_copy_of_hundreds() -> None:
    raise shutil.Error([("a/x", "b/x", "[Errno 28] No space left on device"), ("a/y", "b/y", "[Errno 28] No space")])


def _the_system() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fail", [_numpy_found_no_room, _a_copy_of_hundreds, _the_system])
def test_a_place_without_room_is_named(fail: Callable[[], None], tmp_path: Path) -> None:
    with (
        pytest.raises(BadInput, match=f"^{tmp_path} cannot be written \\(.*\\): make room, or choose another place$"),
        writing(tmp_path),
    ):
        fail()


def test_what_is_read_while_something_is_written_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"), writing(tmp_path):
        (tmp_path / "nothing").read_text()
