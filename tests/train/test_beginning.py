"""Training that goes on from a pair's weights: what cannot be gone on from is told before the long work begins."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from eventspec.errors import BadInput, EventspecError
from eventspec.models.embedded import SIZES
from eventspec.models.video_llava import VideoLlava
from eventspec.pairs.pair_file import DATA
from eventspec.train import embedded, heads

NANO = DATA / "pairs/nano"


def silent(name: str, progress: float, figures: dict[str, float]) -> None:
    pass


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """The bundled pair's models and heads, to be damaged."""
    kept = shutil.ignore_patterns("adapters", "packers", "drafter_fine")
    return Path(shutil.copytree(NANO, tmp_path / "pair", ignore=kept))


@pytest.fixture(autouse=True)
def _nothing_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "rendered", lambda *given: pytest.fail("rendered"))
    monkeypatch.setattr(heads, "answered", lambda *given: pytest.fail("answered"))


def cut(path: Path) -> None:
    """Half of a file, as an interrupted copy leaves it."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damaged", ["target/model.safetensors", "drafter/model.safetensors", "tokenizer.json"])
def test_a_damaged_pair_is_told_before_clips_are_rendered(damaged: str, pair: Path, tmp_path: Path) -> None:
    cut(pair / damaged)
    with pytest.raises(EventspecError, match=str(pair / damaged)):
        embedded.train("cpu-tune", tmp_path / "out", silent, begin_with=str(pair))
    assert not (tmp_path / "out").exists()


def test_a_pair_of_another_size_is_told_before_clips_are_rendered(pair: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not of this preset's size"):
        embedded.train("cpu-base", tmp_path / "out", silent, begin_with=str(pair))
    assert not (tmp_path / "out").exists()


def test_sizes_that_hang_on_the_first_axis_are_compared_too() -> None:
    """Positions [tokens, D] of a tower for larger pictures differ in nothing else; of token rows there may be more."""
    nano = SIZES["nano"].target
    language, vision = replace(nano.language, vocab_size=900), replace(nano.vision, image_size=2 * nano.vision.image_size)
    embedded.check_size(VideoLlava(nano), VideoLlava(replace(nano, language=language)), NANO)
    with pytest.raises(BadInput, match="positions"):
        embedded.check_size(VideoLlava(nano), VideoLlava(replace(nano, vision=vision)), NANO)


def test_a_pair_that_fits_is_gone_on_from(pair: Path, tmp_path: Path) -> None:
    with pytest.raises(BaseException, match="rendered"):
        embedded.train("cpu-tune", tmp_path / "out", silent, begin_with=str(pair))


def test_a_damaged_head_is_told_before_the_target_answers(pair: Path, tmp_path: Path) -> None:
    cut(pair / "heads/eagle/model.safetensors")
    with pytest.raises(EventspecError, match="heads/eagle"):
        heads.train("nano", "smoke", ["eagle"], tmp_path / "out", silent, begin_with=str(pair))
    assert not (tmp_path / "out").exists()
    with pytest.raises(BaseException, match="answered"):
        heads.train("nano", "smoke", ["specvlm"], tmp_path / "out", silent, begin_with=str(pair))
