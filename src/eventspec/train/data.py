"""Training data of the embedded pair: rendered street clips on disk, augmentation, and questions packed behind one
recording."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from eventspec.core import BadInput
from eventspec.events.representations import red_blue_classes
from eventspec.machine import usable_cores
from eventspec.models.embedded import BOS, EOS, SPECIAL_TOKENS
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.facts import Facts, RoadUser
from eventspec.scenes.language import every_wording
from eventspec.train.loop import Report
from eventspec.train.processes import ALONE, Processes

T = TypeVar("T")
Index = np.ndarray[Any, Any]
"""Numbers of clips, int64 [B]."""
SHARD = 500
WORKERS = max(2, min(16, usable_cores()))
"""Processes that render clips, or let a target answer, where a recipe is given no other number."""
COLUMNS = ("frames", "classes", "frame_labels", "window_labels")


def _render(job: tuple[Path, str, int, int]) -> None:
    """One shard of clips, up to number `end`: frames.npy, classes.npy, labels, facts.jsonl; written beside and renamed."""
    out, split, number, end = job
    made = out / f".shard_{number:04d}.part"
    shutil.rmtree(made, ignore_errors=True)
    facts, rows = [], []
    for index in range(number * SHARD, min(end, (number + 1) * SHARD)):
        clip = make_clip(split_seed(split, 0, index))
        rows.append((clip.frames, red_blue_classes(clip.events, 5), clip.frame_labels, clip.window_labels))
        facts.append(json.dumps(clip.facts.as_json()))
    try:
        made.mkdir(parents=True)
        for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=True):
            np.save(made / f"{name}.npy", np.stack(column))
        (made / "facts.jsonl").write_text("\n".join(facts))
        shutil.rmtree(out / f"shard_{number:04d}", ignore_errors=True)  # one of fewer clips
        made.rename(out / f"shard_{number:04d}")
    finally:  # it was renamed, or is not whole
        shutil.rmtree(made, ignore_errors=True)


class Clips:
    """All shards that are on disk now, the last of which may be short; arrays are memory-mapped, so the training process holds
    only what it touches."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.shards = folder, list[dict[str, Any]]()
        while (path := self.folder / f"shard_{len(self.shards):04d}").exists():
            shard: dict[str, Any] = {name: np.load(path / f"{name}.npy", mmap_mode="r") for name in COLUMNS}
            rows = map(json.loads, (path / "facts.jsonl").read_text().splitlines())
            shard["facts"] = [Facts(**{**row, "users": tuple(RoadUser(**user) for user in row["users"])}) for row in rows]
            self.shards.append(shard)

    def __len__(self) -> int:
        return sum(len(shard["facts"]) for shard in self.shards)

    def column(self, name: str, index: Index) -> Tensor:
        """Rows of one array, in the order of `index`."""
        return torch.from_numpy(np.stack([self.shards[i // SHARD][name][i % SHARD] for i in index]))

    def facts(self, index: int) -> Facts:
        found: Facts = self.shards[index // SHARD]["facts"][index % SHARD]
        return found


def _size(folder: Path, number: int) -> int:
    """Clips in a shard, 0 where it is not there."""
    path = folder / f"shard_{number:04d}/facts.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def started_deaf(start: Callable[[], T]) -> T:
    """What `start` gives; processes that it starts do not hear Ctrl-C, which a terminal sends to all: this one ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def rendered(name: str, folder: Path, split: str, clips: int, report: Report, workers: int) -> Clips:
    """The clips of `folder`, after what is missing of the first `clips` of a split was rendered, in shards of 500: stage
    `name`."""
    shards = -(-clips // SHARD)
    wanted = {number: min(SHARD, clips - number * SHARD) for number in range(shards)}
    missing = [(folder, split, number, clips) for number, least in wanted.items() if _size(folder, number) < least]
    if not missing:
        report(name, 1.0, {})
        return Clips(folder)
    report(name, 1 - len(missing) / shards, {})  # a shard takes a while
    if len(missing) == 1:  # nothing to share out, and a process takes seconds to begin
        _render(missing[0])
        report(name, 1.0, {})
        return Clips(folder)
    with started_deaf(lambda: multiprocessing.get_context("spawn").Pool(workers)) as pool:
        for done, _ in enumerate(pool.imap(_render, missing), shards - len(missing) + 1):
            report(name, done / shards, {})
    return Clips(folder)


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE of `vocabulary` ids; ids 0..5 are the special tokens of `models.embedded`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


# ----------------------------------------------------------------------------------------------------------------- packing
@dataclass(frozen=True)
class Branch:
    """One question with its answer: question ids, answer ids with EOS, and optionally a teacher's logits for the answer."""

    question: list[int]
    answer: list[int]
    teacher_ids: np.ndarray[Any, Any] | None = None
    teacher_logs: np.ndarray[Any, Any] | None = None


def drawn(known: list[Branch], count: int, rng: np.random.Generator) -> list[Branch]:
    """`count` of a recording's branches in any order, all where there are no more."""
    return [known[i] for i in rng.permutation(len(known))[:count]]


def shuffled(
    numbers: Sequence[int], batch: int, seed: int, where: Path | None = None, processes: Processes = ALONE
) -> Iterator[Index]:
    """Numbers in batches, without end, in an order drawn again every time; the rest that fills no batch is left out. Several
    processes deal out one shuffle; BadInput when the numbers, of clips in `where`, are fewer than a batch for each."""
    rng, together = np.random.default_rng(seed), batch * processes.count
    if len(numbers) < together:
        place = "" if where is None else f"{where}: "
        raise BadInput(f"{place}{len(numbers)} clips to train on are fewer than {processes.count} x {batch}, a step's")
    while True:
        order = rng.permutation(numbers)
        for at in range(processes.rank * batch, len(order) // together * together, together):
            yield order[at : at + batch]


@dataclass(frozen=True)
class Packed:
    """Branches of B recordings after one prefix each: ids int64 [B, R], labels int64 [B, R] (-100 = no loss; row i's label is
    the token after it), offsets int64 [B, R] positions after the prefix, mask bool [B, 1, R, prefix + R]."""

    ids: Tensor
    labels: Tensor
    offsets: Tensor
    mask: Tensor
    teacher_ids: Tensor | None = None
    teacher_logs: Tensor | None = None


def pack(batch: list[list[Branch]], prefix: int) -> Packed:
    """Lay every recording's branches one after the other; a branch sees the prefix and itself."""
    rows = max(sum(len(b.question) + len(b.answer) - 1 for b in branches) for branches in batch)
    shape = (len(batch), rows)
    ids, labels = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -100)
    offsets, owner = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -1)
    first = batch[0][0].teacher_ids
    width = 0 if first is None else first.shape[1]
    teacher_ids = torch.zeros(*shape, width, dtype=torch.int64)
    teacher_logs = torch.zeros(*shape, width)
    for b, branches in enumerate(batch):
        at = 0
        for number, branch in enumerate(branches):
            text = branch.question + branch.answer
            end, begin = at + len(text) - 1, at + len(branch.question) - 1
            ids[b, at:end] = torch.tensor(text[:-1])
            labels[b, begin:end] = torch.tensor(branch.answer)
            offsets[b, at:end] = torch.arange(end - at)
            owner[b, at:end] = number
            if branch.teacher_ids is not None and branch.teacher_logs is not None:
                teacher_ids[b, begin:end] = torch.from_numpy(branch.teacher_ids.astype(np.int64))
                teacher_logs[b, begin:end] = torch.from_numpy(branch.teacher_logs.astype(np.float32))
            at = end
    own = (owner[:, :, None] == owner[:, None, :]) & torch.ones(rows, rows, dtype=torch.bool).tril()
    mask = torch.cat((torch.ones(*shape, prefix, dtype=torch.bool), own), 2)[:, None]
    return Packed(ids, labels, offsets, mask, teacher_ids if width else None, teacher_logs if width else None)


class Questions:
    """Encoded branches for facts, cached per text: there are few distinct questions and many repeated answers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}

    @classmethod
    def of_pair(cls, folder: Path) -> Questions:
        """With a pair's tokenizer."""
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))

    def encode(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return self._known[text]

    def question(self, text: str) -> list[int]:
        """What stands after the visual rows."""
        return self.encode(f"\n{text} ASSISTANT:")

    def prefix(self) -> list[int]:
        """What stands before the visual rows."""
        return [BOS, *self.encode("USER: ")]

    def draw(self, facts: Facts, count: int, rng: np.random.Generator) -> list[Branch]:
        """`count` different questions about a clip with their right answers."""
        every = every_wording(facts)
        chosen = [every[i] for i in rng.permutation(len(every))[:count]]
        return [Branch(self.question(qa.question), [*self.encode(f" {qa.answer}"), EOS]) for qa in chosen]


# ------------------------------------------------------------------------------------------------------------ augmentation
def augment_frames(frames: Tensor, rng: np.random.Generator) -> Tensor:
    """uint8 [B, K, 112, 112, 3] -> float [B, K, 3, 112, 112] in 0..255: grey, brightness, contrast, noise and lower resolution,
    as real cameras have them; without it the pair is blind on a grey DAVIS recording."""
    batch = frames.permute(0, 1, 4, 2, 3).float()
    for clip in batch:
        if rng.random() < 0.1:
            clip[:] = clip.mean(1, keepdim=True)
        if rng.random() < 0.3:
            clip.mul_(float(rng.uniform(0.8, 1.2))).add_(float(rng.uniform(-15, 15)))
        if rng.random() < 0.15:
            clip[:] = _coarser(clip, float(rng.uniform(0.6, 0.95)))
        if rng.random() < 0.2:
            noise = torch.Generator().manual_seed(int(rng.integers(2**62)))
            clip.add_(torch.randn(clip.shape, generator=noise) * float(rng.uniform(2, 10)))
    return batch.clamp_(0, 255)


def augment_events(pictures: Tensor, rng: np.random.Generator) -> Tensor:
    """Normalised event pictures float [B, n, 3, 112, 112]: the softer picture that a larger sensor gives after resizing."""
    for clip in pictures:
        if rng.random() < 0.15:
            clip[:] = _coarser(clip, float(rng.uniform(0.6, 0.95)))
    return pictures


def _coarser(images: Tensor, factor: float) -> Tensor:
    small = F.interpolate(images, scale_factor=factor, mode="bilinear", antialias=True)
    return F.interpolate(small, images.shape[-2:], mode="bilinear")
