"""Damaged files of every format are read or refused: no crash, no hang, no memory beyond what they hold. A short run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import encoders
import fuzz_formats
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SHARED = Path(__file__).parents[2].parent / "shared"
HEADS = (
    b"",
    b"#!AER-DAT4.0\r\n",
    b"\x93NUMPY\x01\x00\x76\x00{'descr': '|O', 'fortran_order': False, 'shape': (), }".ljust(127) + b"\n",
    b"PK\x03\x04",
    b"\x89HDF\r\n\x1a\n",
    b"% evt 2.0\n% geometry 640x480\n% end\n",
    b"% format EVT21;height=480;width=640\n% end\n",
    b"% format EVT3;height=480;width=640\n% end\n",
    b"% Data file containing CD events\n% Version 2\n% Width 640\n% Height 480\n\x0c\x08",
    b"t,x,y,p\n",
    b"240 180\n",
)


@pytest.mark.parametrize(("cases", "seed"), [(600, 5), pytest.param(6000, 6, marks=pytest.mark.long)])
def test_damaged_files_of_every_format_are_read_or_refused(cases: int, seed: int) -> None:
    words = [sys.executable, fuzz_formats.__file__, "--cases", f"{cases}", "--seed", f"{seed}"]
    words += ["--recordings", str(SHARED / "recordings")] if SHARED.exists() else []
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["faults"] == []
    assert found["read"] > 60 and found["refused"] > 60  # both paths were seen


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(head=st.sampled_from(HEADS), body=st.binary(max_size=300), seed=st.integers(0, 7))
def test_any_bytes_after_any_head_are_read_or_refused(tmp_path: Path, head: bytes, body: bytes, seed: int) -> None:
    (tmp_path / "e").write_bytes(head + body)
    if head or body:
        fuzz_formats.examine(tmp_path / "e", fuzz_formats.random.Random(seed))


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.integers(0, 65535), min_size=1, max_size=60), seed=st.integers(0, 7))
def test_any_evt3_words_are_read_or_refused(tmp_path: Path, words: list[int], seed: int) -> None:
    (tmp_path / "e").write_bytes(b"% format EVT3;height=2048;width=65536\n% end\n" + np.array(words, "<u2").tobytes())
    assert fuzz_formats.examine(tmp_path / "e", fuzz_formats.random.Random(seed)) in ("read", "refused")


def test_the_fuzzer_sees_what_it_looks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: refusals of the wrong form and miscounted events are faults."""
    path = encoders.write(tmp_path / "e", "evt2", 50)
    lucky = fuzz_formats.random.Random(0)

    def refusing(told: str) -> Any:
        def refuse(*_: object) -> None:
            raise fuzz_formats.BadInput(told)

        return refuse

    for told, words in ((f"{path}: two\nlines", "more than one line"), ("somewhere, something", "no file name")):
        monkeypatch.setattr(fuzz_formats, "open_events", refusing(told))
        with pytest.raises(AssertionError, match=words):
            fuzz_formats.examine(path, lucky)
