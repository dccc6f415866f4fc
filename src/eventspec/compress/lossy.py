"""A target that sees fewer of its own visual rows. It is faster and it answers otherwise: lossy, and every result says so.

One row of `size` stays. prune: every `size`-th; pool: the mean of `size` successive rows; attention: those that the prompt's
last row attends to most, by the mean over heads in the second layer. That is FastV's ranking, not its way (`fastv`): here rows
never enter, and those that stay move together; so the first layer runs over all rows once more. grid, max: of each frame its
class token, and a row for every square of `size` patches a side: their mean, or the greatest value of each channel. `packer` is
the kind that is trained.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from eventspec.compress.grid import Squares, grid_of
from eventspec.compress.reductions import RANKED_BEHIND, Pooling, Pruning, attention_of_last
from eventspec.core import BadInput, Media, Trace
from eventspec.errors import check_squares
from eventspec.models.prompt import FrameEncoder, Frames, Prompt, PromptEncoder
from eventspec.nn import Llama
from eventspec.nn.llama import packed_attention
from eventspec.trace import Lane

KINDS = ("prune", "pool", "attention", "grid", "max")


class CompressedEncoder:
    """`inner` with its visual rows reduced by `size`, see `KINDS`; BadInput for what is no kind."""

    def __init__(self, inner: PromptEncoder, kind: str, size: int) -> None:
        if kind not in KINDS:
            raise BadInput(f"compression '{kind}' is unknown: choose one of {', '.join(KINDS)}, fastv or packer")
        if size < 1:
            raise BadInput(f"{kind} with {size} leaves no visual token: give a whole number from 1 on")
        self.inner, self.language, self.kind, self.size = inner, inner.language, kind, size
        self.reduce: nn.Module = (Pooling if kind == "pool" else Pruning)(size)
        if kind in ("grid", "max"):
            frame = rows_of_frame(inner)
            check_squares(kind, size, grid_of(frame)[1])
            self.reduce = (Squares if kind == "grid" else Features)(frame, size)
        self.reduce.eval()

    def encode(self, media: Media, trace: Trace, lane: Lane) -> Tensor:
        """As `PromptEncoder.encode`; all rows: which of them stay may depend on the question."""
        return self.inner.encode(media, trace, lane)

    def extend(self, visual: Tensor, frames: Frames) -> Tensor:
        return self.inner.extend(visual, frames)

    def prompt(self, question: str, visual: Tensor) -> Prompt:
        """As `PromptEncoder.prompt`, with fewer visual rows; BadInput when there are fewer than `size` to begin with."""
        prompt = self.inner.prompt(question, visual)
        begin, end = prompt.visual
        rows = prompt.rows[begin:end]
        if self.size > len(rows):
            raise BadInput(
                f"{self.kind}:{self.size} is more than the {len(rows)} visual rows of the prompt: choose a smaller number"
            )
        if self.kind == "attention":
            kept = rows[most_attended(self.language, prompt, -(-len(rows) // self.size))]
        else:
            kept, _ = self.reduce(rows)
        whole = torch.cat((prompt.rows[:begin], kept, prompt.rows[end:]))
        return Prompt(whole, (begin, begin + len(kept)))


class Features(Squares):
    """The greatest value of each channel, of rows that are features alone."""

    def reduced(self, cells: Tensor) -> Tensor:
        return cells.amax(-2)


def rows_of_frame(encoder: PromptEncoder) -> int:
    """How many rows a frame becomes; BadInput for a model that sees none, or does not say it."""
    vision = encoder.vision if isinstance(encoder, FrameEncoder) else None
    config = getattr(vision.model, "config", None) if vision is not None else None
    tokens = getattr(getattr(config, "vision", None), "tokens", 0)
    if not tokens:
        raise BadInput("this target does not say how many rows a frame becomes: choose a compression without a grid")
    return int(tokens)


def most_attended(language: Llama, prompt: Prompt, count: int) -> Tensor:
    """Places int64 [count], ascending, of the visual rows that the prompt's last row attends to most."""
    x, total = prompt.rows[None], len(prompt.rows)
    cos, sin = (table[:total].to(x.dtype) for table in (language.cos, language.sin))
    for number in range(RANKED_BEHIND):
        layer = language.decoder_layer(number)
        queries, keys, values = (part.transpose(1, 2) for part in layer.project(layer.normed(x), cos, sin))
        x = layer.finish(x, packed_attention(queries, keys, values, total, None).transpose(1, 2).flatten(-2))
    shares = attention_of_last(language, RANKED_BEHIND, x[0])
    begin, end = prompt.visual
    best: Tensor = shares[begin:end].topk(count).indices.sort().values
    return best
