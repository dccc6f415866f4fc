"""The elastic compressor: several views of the visual rows, and a gate that looks at the question (SpecVLM, section 3.2).

select: one branch for every question, drawn with Gumbel noise while training and the likeliest one afterwards, no visual row at
all among them; weighted: branches of one ratio, their rows added by the gate's shares; concat: the rows of all branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.compress.reductions import Convolution, Pooling, Pruning, Resampler
from eventspec.errors import BadCheckpoint

Mode = Literal["select", "weighted", "concat"]
BY_RATIO = ("prune", "pool", "convolve")
"""Kinds whose size is a ratio, so that branches of one size have the same number of rows."""
KINDS = (*BY_RATIO, "resample", "none")
LARGEST, MOST_BRANCHES = 4096, 16
"""Bounds of what a config may ask for before a weight is looked at: a ratio or queries, and branches."""


@dataclass(frozen=True)
class Option:
    """One branch: `kind` with its ratio (rows in for a row out), or its number of queries; `none` sees no visual row. `pool`
    may also go over `frames`, of which the last ones may be fewer."""

    kind: str
    size: int = 1
    frames: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadCheckpoint(f"compressor kind '{self.kind}' is unknown: choose one of {', '.join(KINDS)}")
        if type(self.size) is not int or self.size > LARGEST:
            raise BadCheckpoint(f"{self.kind} with {self.size!r} cannot be: give a whole number, 1 to {LARGEST}")
        if self.size < 1:
            raise BadCheckpoint(
                f"{self.kind} with {self.size} leaves no visual token: give a whole number from 1 on, or 'none'"
            )
        if type(self.frames) is not int or not 1 <= self.frames <= LARGEST:
            raise BadCheckpoint(f"{self.kind} over {self.frames!r} frames cannot be: give a whole number, 1 to {LARGEST}")
        if self.frames > 1 and self.kind != "pool":
            raise BadCheckpoint(f"{self.kind} over {self.frames} frames cannot be: only pool goes over frames")

    def cost(self, kept: float) -> float:
        """Of a branch that keeps the share `kept` of the visual rows, the share of what a head takes to read all: of the
        products for its reduction, keys and values, 4 D² a row. Those of a resampler are few; that it looks at every row takes
        a sixth of the time (fp32, one core)."""
        return 1 / 6 if self.kind == "resample" else kept + (1 / 4 if self.kind == "convolve" else 0)

    def as_json(self) -> dict[str, Any]:
        """What a compressor's `from_json` reads."""
        return {name: value for name, value in asdict(self).items() if name != "frames" or value > 1}


SELECT = (Option("prune", 5), Option("pool", 5), Option("convolve", 3), Option("resample", 2), Option("none"))
WEIGHTED = (Option("prune", 3), Option("pool", 3), Option("convolve", 3))
CONCAT = (Option("prune", 20), Option("pool", 20), Option("convolve", 3), Option("resample", 2))
"""The paper's settings: ratios up to 5 for one branch, 20 where branches add up, two queries. Twice the ratios for one branch:
tau 5.88 where these gave 6.04 (n = 144, the bundled target)."""
FRUGAL = (Option("prune", 5), Option("pool", 2, 3), Option("convolve", 3), Option("resample", 2), Option("none"))
"""SELECT with pooling as suits a video: over three frames and two neighbours. A head that was trained on every visual row keeps
0.90 (0.88 to 0.92) of its tau on the 99 of 520 rows that this leaves, and 0.82 (0.79 to 0.85) on the 104 of a mean of five
neighbours (64 calibration clips, 95 % bootstrap over clips; fp32)."""


class Elastic(nn.Module):
    """Branches and gate for rows of width 2 x `width`; `frame`: rows of a frame, which branches that go over frames need."""

    def __init__(self, width: int, mode: Mode, options: Sequence[Option], frame: int = 0) -> None:
        super().__init__()
        if mode == "weighted" and (
            len({option.size for option in options}) != 1 or any(o.kind not in BY_RATIO or o.frames > 1 for o in options)
        ):
            raise BadCheckpoint("weighted needs branches of one ratio: their rows are added")
        if type(frame) is not int or not 0 <= frame <= 1 << 20:
            raise BadCheckpoint(f"frame is {frame!r}, wanted the rows of a frame, 0 to {1 << 20}")
        if frame == 0 and any(option.frames > 1 for option in options):
            raise BadCheckpoint("pool over frames cannot be without frame, the rows of a frame")
        self.mode, self.options, self.frame = mode, tuple(options), frame
        self.branches = nn.ModuleList(_branch(option, width, frame) for option in self.options)
        self.gate = nn.Linear(width, len(self.options)) if mode != "concat" else None
        self._latest: tuple[Tensor, dict[int, tuple[Tensor, Tensor]]] | None = None

    def branches_of(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Rows [..., T, 2 D] in every branch: rows [..., M, 2 D] and places [M] each."""
        return [branch(rows) for branch in self.branches]

    def shares(self, question: Tensor) -> Tensor:
        """The gate's shares [..., options] for features [..., Q, D] of the question's rows; hard choices at inference in mode
        select, Gumbel noise in training."""
        assert self.gate is not None
        mean = question.mean(-2) if question.shape[-2] else question.new_zeros(*question.shape[:-2], question.shape[-1])
        logits = self.gate(mean).float()
        if self.mode == "weighted":
            return torch.softmax(logits, -1)
        if self.training:
            return F.gumbel_softmax(logits, tau=0.5)
        return F.one_hot(logits.argmax(-1), len(self.options)).float()

    def forward(self, rows: Tensor, question: Tensor) -> tuple[Tensor, Tensor]:
        """At inference: rows [T, 2 D] and the question's features [Q, D] -> rows [M, 2 D] and places [M]."""
        if self.mode == "select":
            return self._branch_of(rows, int(self.shares(question).argmax()))
        found = self.branches_of(rows)
        if self.mode == "weighted":
            weights = self.shares(question).to(rows.dtype)
            mixed = torch.stack([part for part, _ in found], -3)
            return (weights[..., :, None, None] * mixed).sum(-3), found[-1][1]
        return torch.cat([part for part, _ in found], -2), torch.cat([places for _, places in found])

    def _branch_of(self, rows: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """What a branch makes of rows. Of a recording it is kept until another one is asked about: further questions about it
        choose among few branches, whose weights are final by then."""
        latest = self._latest
        if torch.is_grad_enabled():  # what is kept was made for nothing but drafts
            made: tuple[Tensor, Tensor] = self.branches[number](rows)
            return made
        if latest is None or not torch.equal(latest[0], rows):
            latest = self._latest = rows, {}
        if number not in latest[1]:
            latest[1][number] = self.branches[number](rows)
        return latest[1][number]

    def train(self, mode: bool = True) -> Elastic:
        """As nn.Module.train; training forgets what branches made."""
        self._latest = None
        super().train(mode)
        return self

    def _load_from_state_dict(self, *given: Any) -> None:
        """As nn.Module does; what other weights made is forgotten."""
        self._latest = None
        super()._load_from_state_dict(*given)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` needs."""
        made: dict[str, Any] = {"mode": self.mode, "options": [option.as_json() for option in self.options]}
        return {**made, "frame": self.frame} if self.frame else made

    @classmethod
    def from_json(cls, width: int, data: Any) -> Elastic:
        """The compressor of a head's config.json; BadCheckpoint for what is none."""
        try:
            mode, frame = data["mode"], data.get("frame", 0)
            options = [Option(row["kind"], row["size"], row.get("frames", 1)) for row in data["options"]]
        except (AttributeError, KeyError, TypeError):
            wanted = "wanted mode, and options with kind and size each"
            raise BadCheckpoint(f"the compressor of the head's config.json cannot be read: {wanted}") from None
        if mode not in ("select", "weighted", "concat"):
            raise BadCheckpoint(f"compressor mode {mode!r} is unknown: choose select, weighted or concat")
        if not options:
            raise BadCheckpoint("the compressor of the head's config.json has no options: wanted one at least")
        if len(options) > MOST_BRANCHES:
            raise BadCheckpoint(f"a compressor of {len(options)} branches cannot be: {MOST_BRANCHES} at most")
        return cls(width, mode, options, frame)


class DropVisual(nn.Module):
    """No visual row: what is left of them is in the features of the question's rows."""

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[..., T, 2 D] -> [..., 0, 2 D]."""
        return rows[..., :0, :], torch.empty(0, dtype=torch.int64, device=rows.device)


def _branch(option: Option, width: int, frame: int) -> nn.Module:
    if option.kind == "prune":
        return Pruning(option.size)
    if option.kind == "pool":
        return Pooling(option.size, option.frames, frame)
    if option.kind == "convolve":
        return Convolution(width, option.size)
    return Resampler(width, option.size) if option.kind == "resample" else DropVisual()
