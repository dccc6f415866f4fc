"""The elastic compressor: several views of the visual rows, and a gate that chooses among them (SpecVLM, section 3.2).

select: one branch for every question, no visual row at all among them; weighted: branches of one ratio, their rows added by the
gate's shares; concat: the rows of all branches. While a head learns, mode select draws a branch for every question at random,
so that each becomes as good as it can be; the gate is fitted afterwards to what the branches gave (`train.gating`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.compress.grid import GridConvolution, Maximum, Squares, grid_of
from eventspec.compress.reductions import Convolution, ImportancePruning, Pooling, Pruning, Resampler
from eventspec.errors import BadCheckpoint, BadInput

Mode = Literal["select", "weighted", "concat"]
BY_RATIO = ("prune", "pool", "convolve")
"""Kinds whose size is a ratio, so that branches of one size have the same number of rows."""
ON_GRID = ("pool", "max", "convolve")
KINDS = ("prune", "pool", "max", "convolve", "resample", "none")
LARGEST, MOST_BRANCHES = 4096, 16
"""Bounds of what a config may ask for before a weight is looked at: a ratio or queries, and branches."""
INNER = 32
"""Width of the gate's inner layer."""


@dataclass(frozen=True)
class Option:
    """One branch: `kind` with its ratio (rows in for a row out), or its number of queries; `none` sees no visual row. `pool`
    may also go over `frames`, of which the last ones may be fewer. `grid`: pooling and convolution by squares of `size` patches
    a side of each frame, its class token apart, instead of over successive rows. `learned`: pruning by a learned importance
    instead of evenly."""

    kind: str
    size: int = 1
    frames: int = 1
    grid: bool = False
    learned: bool = False

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
        if self.frames > 1 and (self.kind != "pool" or self.grid):
            raise BadCheckpoint(f"{self.kind} over {self.frames} frames cannot be: only pool goes over frames")
        if type(self.grid) is not bool or (self.grid and self.kind not in ON_GRID) or (self.kind == "max" and not self.grid):
            raise BadCheckpoint(
                f"{self.kind} with grid {self.grid!r} cannot be: {', '.join(ON_GRID)} go by squares, max always"
            )
        if type(self.learned) is not bool or (self.learned and self.kind != "prune"):
            raise BadCheckpoint(f"{self.kind} with learned {self.learned!r} cannot be: only prune has an importance")

    def in_a_row(self) -> Option | None:
        """The same over successive rows, for frames of an unknown grid; None for `max`, which there would be another thing."""
        if not self.grid:
            return self
        return None if self.kind == "max" else replace(self, size=self.size**2, grid=False)

    def cost(self, kept: float) -> float:
        """Of a branch that keeps the share `kept` of the visual rows, the share of what a head takes to read all: of the
        products for its reduction, keys and values, 4 D² a row. Those of a resampler are few; that it looks at every row takes
        a sixth of the time (fp32, one core)."""
        return 1 / 6 if self.kind == "resample" else kept + (1 / 4 if self.kind == "convolve" else 0)

    def as_json(self) -> dict[str, Any]:
        """What a compressor's `from_json` reads: kind, size, and what is not the default."""
        usual = {item.name: item.default for item in fields(self) if item.name not in ("kind", "size")}
        return {name: value for name, value in asdict(self).items() if name not in usual or value != usual[name]}


SELECT = (
    Option("prune", 5, learned=True),
    *(Option(kind, 2, grid=True) for kind in ("pool", "max", "convolve")),
    Option("resample", 2),
    Option("none"),
)
"""The founding note's branches (000:50-57): importance, mean and maximum over the grid, convolution, queries; and none at all.
Ratios near the paper's, 5 at most for one branch: squares of two patches a side leave a row of four; two queries."""
WEIGHTED = (Option("prune", 3), Option("pool", 3), Option("convolve", 3))
CONCAT = (Option("prune", 20), Option("pool", 20), Option("convolve", 3), Option("resample", 2))
"""The paper's settings where branches add up, 20."""
FRUGAL = (Option("prune", 5, learned=True), Option("pool", 2, 3), Option("convolve", 2, grid=True), *SELECT[-2:])
"""Fewer rows: pooling as suits a video, over three frames and two neighbours. A head that was trained on every visual row keeps
0.90 (0.88 to 0.92) of its tau on the 99 of 520 rows that this leaves, and 0.82 (0.79 to 0.85) on the 104 of a mean of five
neighbours (64 calibration clips, 95 % bootstrap over clips; fp32)."""


class Gate(nn.Module):
    """Scores of branches for a question about a picture: the mean of the question's features, mean and spread of the visual
    ones, and one inner layer."""

    def __init__(self, width: int, options: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(3))
        self.inner = nn.Linear(3 * width, INNER)
        self.out = nn.Linear(INNER, options)

    def forward(self, question: Tensor, picture: Tensor) -> Tensor:
        """Mean features [..., D] of questions, and [..., 2, D] as `picture_of` gives them -> [..., options]."""
        parts = (question, picture[..., 0, :], picture[..., 1, :])
        normed = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
        found: Tensor = self.out(F.gelu(self.inner(torch.cat(normed, -1))))
        return found


def picture_of(rows: Tensor) -> Tensor:
    """Mean and standard deviation [..., 2, D] of the features of rows [..., T, 2 D]; of no rows, zeros."""
    hidden = rows.chunk(2, -1)[1]
    if not rows.shape[-2]:
        return hidden.new_zeros(*hidden.shape[:-2], 2, hidden.shape[-1])
    return torch.stack((hidden.mean(-2), hidden.std(-2, correction=0)), -2)


class Elastic(nn.Module):
    """Branches and gate for rows of width 2 x `width`; `frame`: rows of a frame, which branches that go over frames or their
    grid need. `picture`: the gate sees the picture too; without, as in heads of earlier versions, the question alone. `forced`:
    the place of a branch that is taken whatever the gate says."""

    def __init__(self, width: int, mode: Mode, options: Sequence[Option], frame: int = 0, picture: bool = True) -> None:
        super().__init__()
        if mode == "weighted" and (
            len({option.size for option in options}) != 1
            or any(o.kind not in BY_RATIO or o.frames > 1 or o.grid for o in options)
        ):
            raise BadCheckpoint("weighted needs branches of one ratio: their rows are added")
        if type(frame) is not int or not 0 <= frame <= 1 << 20:
            raise BadCheckpoint(f"frame is {frame!r}, wanted the rows of a frame, 0 to {1 << 20}")
        if frame == 0 and any(option.frames > 1 or option.grid for option in options):
            raise BadCheckpoint("pool over frames and squares cannot be without frame, the rows of a frame")
        if any(option.grid for option in options):
            grid_of(frame)
        self.mode, self.options, self.frame, self.picture = mode, tuple(options), frame, picture and mode == "select"
        self.branches = nn.ModuleList(_branch(option, width, frame) for option in self.options)
        count = len(self.options)
        self.gate: Gate | nn.Linear | None = Gate(width, count) if self.picture else nn.Linear(width, count)
        if mode == "concat":
            self.gate = None
        self.forced: int | None = None
        self._latest: tuple[Tensor, dict[int, tuple[Tensor, Tensor]]] | None = None

    def branches_of(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Rows [..., T, 2 D] in every branch: rows [..., M, 2 D] and places, [M] or [..., M], each."""
        return [branch(rows) for branch in self.branches]

    def names(self) -> tuple[str, ...]:
        """Of the branches that may be forced: none but in mode select."""
        return tuple(dict.fromkeys(option.kind for option in self.options)) if self.mode == "select" else ()

    def force(self, branch: str) -> None:
        """Take a branch by its kind, always; BadInput for one that it has not."""
        if branch not in self.names():
            known = f"choose one of {', '.join(self.names())}" if self.names() else f"in mode {self.mode} nothing is chosen"
            raise BadInput(f"compressor branch '{branch}' is unknown: {known}")
        self.forced = [option.kind for option in self.options].index(branch)

    def shares(self, question: Tensor, picture: Tensor) -> Tensor:
        """The shares [..., options] of the branches for mean features [..., D] of questions about pictures [..., 2, D]. In mode
        select one of them, at random while training."""
        assert self.gate is not None
        if self.mode == "weighted":
            return torch.softmax(self.gate(question).float(), -1)
        count, lead = len(self.options), question.shape[:-1]
        if self.forced is not None:
            found = torch.full(lead, self.forced, device=question.device)
        elif self.training:
            found = torch.randint(count, lead, device=question.device)
        else:
            found = self.scores(question, picture).argmax(-1)
        return F.one_hot(found, count).float()

    def scores(self, question: Tensor, picture: Tensor) -> Tensor:
        """The gate's scores [..., options], in mode select, for what `shares` is given."""
        gate = self.gate
        assert gate is not None  # mode concat has none
        found: Tensor = gate(question, picture) if isinstance(gate, Gate) else gate(question)
        return found.float()

    def chosen(self, rows: Tensor, question: Tensor) -> int | None:
        """At inference, the place of the branch for rows [T, 2 D] and the question's features [Q, D]; None where none is
        chosen."""
        if self.mode != "select":
            return None
        return self.forced if self.forced is not None else int(self.shares(mean_of(question), picture_of(rows)).argmax())

    def forward(self, rows: Tensor, question: Tensor) -> tuple[Tensor, Tensor]:
        """At inference: rows [T, 2 D] and the question's features [Q, D] -> rows [M, 2 D] and places [M]."""
        if (number := self.chosen(rows, question)) is not None:
            return self.branch(rows, number)
        found = self.branches_of(rows)
        if self.mode == "weighted":
            weights = self.shares(mean_of(question), picture_of(rows)).to(rows.dtype)
            mixed = torch.stack([part for part, _ in found], -3)
            return (weights[..., :, None, None] * mixed).sum(-3), found[-1][1]
        return torch.cat([part for part, _ in found], -2), torch.cat([places for _, places in found])

    def branch(self, rows: Tensor, number: int) -> tuple[Tensor, Tensor]:
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
        made |= {"frame": self.frame} if self.frame else {}
        return made | ({"picture": True} if self.picture else {})

    @classmethod
    def from_json(cls, width: int, data: Any) -> Elastic:
        """The compressor of a head's config.json; BadCheckpoint for what is none."""
        try:
            mode, frame, picture = data["mode"], data.get("frame", 0), data.get("picture", False)
            known = {item.name: item.default for item in fields(Option)[2:]}
            options = [
                Option(row["kind"], row["size"], **{name: row.get(name, usual) for name, usual in known.items()})
                for row in data["options"]
            ]
        except (AttributeError, KeyError, TypeError):
            wanted = "wanted mode, and options with kind and size each"
            raise BadCheckpoint(f"the compressor of the head's config.json cannot be read: {wanted}") from None
        if mode not in ("select", "weighted", "concat"):
            raise BadCheckpoint(f"compressor mode {mode!r} is unknown: choose select, weighted or concat")
        if not options:
            raise BadCheckpoint("the compressor of the head's config.json has no options: wanted one at least")
        if len(options) > MOST_BRANCHES:
            raise BadCheckpoint(f"a compressor of {len(options)} branches cannot be: {MOST_BRANCHES} at most")
        if type(picture) is not bool:
            raise BadCheckpoint(f"picture of the compressor is {picture!r}, wanted whether its gate sees the picture")
        return cls(width, mode, options, frame, picture)


def mean_of(question: Tensor) -> Tensor:
    """The mean [D] of a question's features [Q, D]; of none, zeros."""
    return question.mean(-2) if question.shape[-2] else question.new_zeros(question.shape[-1])


class DropVisual(nn.Module):
    """No visual row: what is left of them is in the features of the question's rows."""

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[..., T, 2 D] -> [..., 0, 2 D]."""
        return rows[..., :0, :], torch.empty(0, dtype=torch.int64, device=rows.device)


def _branch(option: Option, width: int, frame: int) -> nn.Module:
    size = option.size
    if option.kind == "prune":
        return ImportancePruning(width, size) if option.learned else Pruning(size)
    if option.kind == "pool":
        return Squares(frame, size) if option.grid else Pooling(size, option.frames, frame)
    if option.kind == "max":
        return Maximum(frame, size)
    if option.kind == "convolve":
        return GridConvolution(width, frame, size) if option.grid else Convolution(width, size)
    return Resampler(width, size) if option.kind == "resample" else DropVisual()
