"""What a recipe learns from, rendered clips of a split and the target's own answers on them, and the pair that it writes. What
is on disk stays."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eventspec.models.video_llava import load_video_llava
from eventspec.models.weights import fingerprint
from eventspec.train.answers import answers_of
from eventspec.train.data import SHARD, Branch, Clips, render_shards
from eventspec.train.loop import Report, Stage


@dataclass(frozen=True)
class TrainingPreset:
    """Clips that the target answers, in training and held out; the stage; questions packed behind a recording."""

    answered: int
    held_out: int
    stage: Stage
    packed: int


def answered(
    pair: Path, out: Path, split: str, count: int, report: Report, workers: int
) -> tuple[Clips, dict[int, list[Branch]]]:
    """The clips of `out`/`split`, and the answers of the pair's target to every question about the first `count` of them."""
    shards = -(-count // SHARD)
    for number, _ in enumerate(render_shards(out / split, shards, 0, workers, split), 1):
        report(f"render {split}", number / shards, {})
    load = partial(load_video_llava, pair / "target")
    answers = out / "answers" / fingerprint(load().language) / split  # another target gives other answers
    return Clips(out / split), answers_of(load, pair / "tokenizer.json", out / split, answers, list(range(count)), workers)


@contextmanager
def changed_copy(pair: Path, out: Path) -> Iterator[Path]:
    """A copy of a pair's folder to be changed; when the block ends it takes the place of OUT/pair."""
    part = out / ".pair.part"
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(pair, part)
    yield part
    shutil.rmtree(out / "pair", ignore_errors=True)
    part.rename(out / "pair")
