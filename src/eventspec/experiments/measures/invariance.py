"""What would it cost if a row's logits did not depend on how many rows share its forward (batch invariance)?

Three things are measured on the embedded pair's target: with which row counts a matrix product gives a row other bits (MKL as
torch calls it, oneDNN with packed weights); which share of the rows of a verification has the bits of a single step, as the
model runs today and in two attempts (one kernel: oneDNN for every row count; in order: attention that adds in the order of the
keys beside it); and what a step costs then, or padded to 4, 8 and 16 rows, in steps of today's. The settings take turns.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from statistics import median
from typing import Any, Optional
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.core import Proposal, TargetSession
from eventspec.costs.fit import session_of
from eventspec.experiments.compare import environment
from eventspec.experiments.measures.setup import Found, Part, Setup, one_thread, path_to, say
from eventspec.nn.cpu.products import packed_weight
from eventspec.nn.decode import attention, compiled, decode
from eventspec.pairs import load_pair

SHAPES = ((192, 576), (192, 192), (192, 896), (448, 192), (4096, 4096))
"""Inputs and outputs of products."""
TREE = (-1, -1, 0, 0, 1, 2, 2, 5, 5, 7, 8, 9)


def measure(setup: Setup) -> Iterator[Part]:
    """All three, on one thread."""
    pair, shapes = load_pair(setup.pair, "one", fit=False), setup.size(SHAPES, SHAPES[:1])
    tokens = np.random.default_rng(0).integers(100, 500, 16).tolist()
    with one_thread(), torch.inference_mode():
        part: Found = {"products": {f"{outputs} x {inputs}": other_bits(outputs, inputs) for inputs, outputs in shapes}}
        part["same_bits"] = {}
        for number, (name, setting) in enumerate(SETTINGS.items(), 1):
            with setting():
                part["same_bits"][name] = same_bits(lambda: session_of(pair.target, 1), tokens)
            setup.progress(number / 4)
        repeats = setup.size(80, 2)
        part["steps"] = steps(session_of(pair.target, 1), tokens, repeats)
    layers, where = pair.parts.language_target.language.config.num_hidden_layers, environment(pair)
    yield (where["processor"],), {**part, "n": repeats, "layers": layers, "environment": where}


def other_bits(outputs: int, inputs: int) -> dict[str, list[int]]:
    """Row counts up to 40 with which some row of x W^T differs from the same row among 64."""
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, inputs, generator=generator) * inputs**-0.5 for n in (outputs, 64))
    packed = packed_weight(weight)
    kernels: dict[str, Callable[[Tensor], Tensor]] = {
        "MKL": lambda rows: F.linear(rows, weight),
        "oneDNN, packed": lambda rows: product(rows, packed),
    }
    found = {}
    for name, kernel in kernels.items():
        whole = kernel(x)
        found[name] = [
            n for n in range(1, 41) if any(not torch.equal(kernel(x[at : at + n]), whole[at : at + n]) for at in (0, 1, 7))
        ]
    return found


def product(rows: Tensor, packed: Tensor) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")
    return found


def in_order(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Optional[Tensor],  # noqa: UP045 - TorchScript's spelling
    causal: int,
) -> Tensor:
    """As `nn.decode.attention`, by two products that add in the order of the keys, so that a key that is masked, which adds an
    exact 0, does not matter: a branch of a tree gets the sums of its own path, wherever its keys lie. Two rows at least: oneDNN
    takes another kernel for one. The sum of the weights comes with the product, as one more column of ones."""
    heads, rows, width = queries.size(0), queries.size(1), queries.size(2)
    if causal:
        return attention(queries, keys, values, mask, causal)
    scaled = queries * (1.0 / math.sqrt(width))
    if rows == 1:
        scaled = scaled.repeat(1, 2, 1)
    scores = torch.empty([heads, scaled.size(1), keys.size(1)], dtype=queries.dtype)
    for head in range(heads):
        scores[head] = torch.ops.mkldnn._linear_pointwise(scaled[head], keys[head], None, "none", [], "")
    if mask is not None:
        scores += mask
    shares = (scores - scores.amax(-1, keepdim=True)).exp()
    found = torch.empty([heads, scaled.size(1), width + 1], dtype=queries.dtype)
    across = torch.ones([width + 1, keys.size(1)], dtype=queries.dtype)
    for head in range(heads):
        across[:width] = values[head].t()
        found[head] = torch.ops.mkldnn._linear_pointwise(shares[head], across, None, "none", [], "")
    return (found[:, :, :width] / found[:, :, width:])[:, :rows]


@contextmanager
def one_kernel(ordered: bool = False) -> Iterator[None]:
    """oneDNN for every row count; `ordered`: with `in_order` too."""
    with ExitStack() as stack:
        for place in ("eventspec.nn.runner.FEW_ROWS", "eventspec.nn.linear.FEW_ROWS"):
            stack.enter_context(mock.patch(place, 1))
        stack.enter_context(mock.patch("eventspec.nn.linear.layout", lambda: "packed"))
        if ordered:
            stack.enter_context(mock.patch("eventspec.nn.runner._decode", _invariant_decode))
        yield


@functools.cache
def _invariant_decode() -> Any:
    """The decoder compiled around `in_order`: what was compiled before is remembered by function."""
    torch.jit._state._jit_caching_layer.clear()
    with mock.patch("eventspec.nn.decode.attention", in_order):
        return compiled(decode)


SETTINGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "as it runs": nullcontext,
    "one kernel": one_kernel,
    "one kernel, in order": functools.partial(one_kernel, ordered=True),
}


def same_bits(begin: Callable[[], TargetSession], tokens: list[int]) -> dict[str, float]:
    """Shares of the rows of a chain, and of a tree, whose logits have the bits of single steps along the same tokens."""

    def stepped(path: list[int]) -> TargetSession:
        session = begin()
        for token in path:
            session.score(Proposal.empty())
            say(session, [token])
        return session

    def alone(path: list[int]) -> Tensor:
        return stepped(path).score(Proposal.empty()).logits[0]

    tree = Proposal(np.array([tokens[1 + n % (len(tokens) - 1)] for n in range(len(TREE))]), np.array(TREE))
    shares = {}
    for name, draft in (("chain", Proposal.chain(tokens[1:])), ("tree", tree)):
        rows = stepped(tokens[:1]).score(draft).logits
        first = -1 if name == "chain" else 0
        same = [torch.equal(rows[n + 1], alone([*tokens[:1], *path_to(draft, n)])) for n in range(first, len(draft))]
        shares[name] = sum(same) / len(same)
    return shares


def steps(session: TargetSession, tokens: list[int], repeats: int) -> dict[str, float]:
    """Median time of a forward in each setting, in that of one row as it runs."""
    session.score(Proposal.empty())
    say(session, tokens[:1])
    ways: dict[str, tuple[int, Callable[[], AbstractContextManager[None]]]] = {
        "one row": (1, nullcontext),
        **{f"one row, {name}": (1, setting) for name, setting in list(SETTINGS.items())[1:]},
        **{f"padded to {rows}": (rows, nullcontext) for rows in (4, 8, 16)},
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, (rows, setting) in ways.items():
            draft = Proposal.chain(tokens[: rows - 1])
            with setting():
                began = time.perf_counter()
                session.score(draft)
                taken[name].append(time.perf_counter() - began)
    step = median(taken["one row"])
    return {name: round(median(seconds) / step, 3) for name, seconds in taken.items()}
