"""Matrix products on the fastest exact path of a CPU: three layouts of a weight, and bfloat16 for drafts.

A product of fp32 on a CPU can go through three layouts of its weight, and which one is fastest depends on the processor: rows
as torch has them; columns, which spare MKL a transposition in every call; oneDNN's own packed layout, which uses AVX512 where
MKL does not (on processors of other makers than its own). The products of an 8-layer decoder of width 192, one core:

- Zen 5 (AVX512): 13 rows 1.14 ms as rows, 0.68 ms packed; 540 rows packed 2.1 times faster.
- Intel Xeon (AVX512, AMX): 16 rows 1.34 ms as rows, 1.44 ms packed, 0.86 ms as columns; 540 rows 30, 21 to 26 and 23 ms.
- Zen 3 (no AVX512): 13 rows 3.8 ms as rows, 3.0 as columns, 6 packed; 540 rows 47 ms as rows or columns, 55 packed.

So they are timed once a process, and one of them is used for all row counts: two would push each other out of the caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.process_lock import ProcessLock

Layout = Literal["rows", "columns", "packed"]
Found = TypeVar("Found")
Way = TypeVar("Way", bound=str)
FEW_ROWS = 4
"""Below this many rows MKL's call is cheaper than oneDNN's."""
_PACKED_FOR = 64
"""The row count that oneDNN packs for; its layout is the same from 4 to 600 rows."""
WORTH = 0.95
"""The share of the usual way's time below which another way is used."""


class probe_once(Generic[Found]):
    """What `find` finds out about this machine, on one thread as in a lane: once a process, while other threads wait."""

    def __init__(self, find: Callable[[], Found]) -> None:
        self.find, self.__doc__, self.__name__ = find, find.__doc__, find.__name__
        self._found: list[Found] = []
        self._lock = ProcessLock()

    def __call__(self) -> Found:
        if not self._found:
            with self._lock:
                if not self._found:
                    threads = torch.get_num_threads()
                    torch.set_num_threads(1)
                    try:
                        self._found = [self.find()]
                    finally:
                        torch.set_num_threads(threads)
        found: Found = self._found[0]
        return found

    def cache_clear(self) -> None:
        """Let it be found out again."""
        self._found = []


def onednn_works() -> bool:
    """Whether this torch carries oneDNN's packed products."""
    x = torch.ones(2, 4)
    return torch.backends.mkldnn.is_available() and works(lambda: product(x, packed_weight(x), True), F.linear(x, x))


def by_columns(weight: Tensor) -> Tensor:
    """A weight [O, I] whose columns lie side by side in memory."""
    return weight.detach().t().contiguous().t()


def packed_weight(weight: Tensor) -> Tensor:
    """A weight [O, I] in oneDNN's layout, where `usable_for` it."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_FOR)
    return packed


@probe_once
def layout() -> Layout:
    """The fastest layout for fp32 on this CPU: 8 rows, then 24, as rounds have them, through more weights than a core's nearest
    caches hold, on one thread. Some 80 ms, once a process."""
    weights, parts = [torch.full((768, 256), 0.5) for _ in range(8)], [torch.full((rows, 256), 0.5) for rows in (8, 24)]
    columns = [by_columns(weight) for weight in weights]
    ways: dict[Layout, Callable[[], object]] = {
        "rows": lambda: [F.linear(x, weight) for x in parts for weight in weights],
        "columns": lambda: [F.linear(x, weight) for x in parts for weight in columns],
    }
    if torch.backends.cpu.get_cpu_capability() == "AVX512" and onednn_works():
        packed = [packed_weight(weight) for weight in weights]
        ways["packed"] = lambda: [product(x, weight, True) for x in parts for weight in packed]
    least = least_seconds(ways, 12)
    best = min(least, key=lambda name: least[name])
    return best if least[best] < WORTH * least["rows"] else "rows"


@torch.inference_mode()
def least_seconds(ways: Mapping[Way, Callable[[], object]], repeats: int) -> dict[Way, float]:
    """The least time that each of several ways takes; they take turns."""
    took: dict[Way, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, through in ways.items():
            began = time.perf_counter()
            through()
            took[name].append(time.perf_counter() - began)
    return {name: min(seconds) for name, seconds in took.items()}


def spare_rows(rows: int) -> int:
    """By how many rows of zeros a packed product of so many rows is filled up.

    oneDNN makes a kernel for every row count that it meets, and keeps 1,024 of them: 0.3 ms for the first product of a count
    (Zen 5, quiet), 1.5 to 2 where another process works, five of them in a decoding step that takes 1.5. So there are few
    counts, and three rows more cost 0.1 ms of it.
    """
    if rows <= 4:
        return 0
    return -rows % (4 if rows <= 64 else 8 if rows <= 256 else 16)


def filled(x: Tensor, packed: bool) -> Tensor:
    """x [T, I] with `spare_rows` after it where products are `packed`; others as they are."""
    spare = spare_rows(x.size(0)) if packed and x.dim() == 2 else 0
    return x if spare == 0 else F.pad(x, [0, 0, 0, spare])


def product(x: Tensor, weight: Tensor, packed: bool, bias: Tensor | None = None) -> Tensor:
    """x [..., I] through a weight [O, I], which may be `packed` in oneDNN's layout, and a bias [O] -> [..., O]. A packed weight
    of another dtype has the product in its own."""
    if not packed:
        return F.linear(x, weight, bias)
    if weight.dtype != x.dtype:
        own = None if bias is None else bias.to(weight.dtype)
        reduced: Tensor = torch.ops.mkldnn._linear_pointwise(filled(x, True).to(weight.dtype), weight, own, "none", [], "")
        return reduced[: x.size(0)].to(x.dtype)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(filled(x, True), weight, bias, "none", [], "")
    return found[: x.size(0)]


def usable_for(weight: Tensor) -> bool:
    """Whether oneDNN's packed products are used: fp32 on a CPU where they are the fastest."""
    return fp32_on_cpu(weight) and layout() == "packed"


def fp32_on_cpu(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.device.type == "cpu"


@probe_once
def bfloat16_pays() -> bool:
    """Whether rows go through oneDNN's products of bfloat16 rightly, and sooner than through those of fp32 that are used here,
    on this CPU and one thread, as a drafter has them: many of its pictures and its prompt, then few, of which some are too few
    for another layout in fp32. Some 60 ms, once a process. It does where the processor multiplies bfloat16."""
    drawn = torch.Generator().manual_seed(0)  # no two columns are alike: a kernel that mixes them up is found out
    many, weights = torch.randn(48, 192, generator=drawn), [torch.randn(512, 192, generator=drawn) for _ in range(12)]
    parts = (many, many, many[:8], many[:2])

    def first(x: Tensor) -> Tensor:
        return product(x, packed_weight(weights[0].to(torch.bfloat16)), True)

    if not onednn_works() or not all(works(partial(first, x), F.linear(x, weights[0])) for x in parts):
        return False
    small, used = [packed_weight(weight.to(torch.bfloat16)) for weight in weights], [laid_out(weight) for weight in weights]
    packs = layout() == "packed"

    def exactly() -> None:
        for x in parts:
            few = packs and len(x) < FEW_ROWS
            for weight in weights if few else used:
                product(x, weight, packs and not few)

    def reduced() -> None:
        for x in parts:
            for weight in small:
                product(x, weight, True)

    took = least_seconds({"exactly": exactly, "reduced": reduced}, 8)
    return took["reduced"] < WORTH * took["exactly"]


def works(find: Callable[[], Tensor], wanted: Tensor) -> bool:
    """Whether an operation that a torch, a processor or a GPU may lack, for this format or altogether, is there and gives
    nearly what is wanted."""
    try:
        found = find()
    except (AttributeError, RuntimeError):  # no such operator, or none for this format
        return False
    return bool((found - wanted).abs().max() < 0.02 * wanted.abs().max())


def laid_out(weight: Tensor) -> Tensor:
    """An fp32 weight [O, I] on a CPU in the layout that is fastest here."""
    found = layout()
    return weight if found == "rows" else packed_weight(weight) if found == "packed" else by_columns(weight)
