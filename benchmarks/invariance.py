r"""What would it cost if a row's logits did not depend on how many rows share its forward (batch invariance)?

python benchmarks/invariance.py        # prints JSON, and writes benchmarks/results/invariance.json, one entry a processor

Three things are measured on the embedded pair's target: with which row counts a matrix product gives a row other bits (MKL as
torch calls it, oneDNN with packed weights); which share of the rows of a verification has the bits of a single step, as the
model runs today and in two attempts (one kernel: oneDNN for every row count; in order: attention that adds in the order of the
keys beside it); and what a step costs then, or padded to 4, 8 and 16 rows, in steps of today's. The settings take turns.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Optional
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.core import Proposal, TargetSession, Verdict
from eventspec.experiments.compare import environment
from eventspec.files import write_text
from eventspec.nn.decode import attention, compiled, decode
from eventspec.nn.linear import packed_weight
from eventspec.pairs import load_pair
from eventspec.pairs.warming import session_of

RESULTS = Path(__file__).parent / "results/invariance.json"
SHAPES = ((192, 576), (192, 192), (192, 896), (448, 192), (4096, 4096))
TREE = (-1, -1, 0, 0, 1, 2, 2, 5, 5, 7, 8, 9)


def other_bits(outputs: int, inputs: int) -> dict[str, list[int]]:
    """Row counts up to 40 with which some row of x W^T differs from the same row among 64."""
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, inputs, generator=generator) * inputs**-0.5 for n in (outputs, 64))
    packed = packed_weight(weight)
    kernels = {
        "MKL": lambda rows: F.linear(rows, weight),
        "oneDNN, packed": lambda rows: torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], ""),
    }
    found = {}
    for name, product in kernels.items():
        whole = product(x)
        different = [
            n for n in range(1, 41) if any(not torch.equal(product(x[at : at + n]), whole[at : at + n]) for at in (0, 1, 7))
        ]
        found[name] = different
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
def one_kernel(queries: bool = False) -> Iterator[None]:
    """oneDNN for every row count; with `queries`, `in_order` too."""
    with ExitStack() as stack:
        for place in ("eventspec.nn.runner.FEW_ROWS", "eventspec.nn.linear.FEW_ROWS"):
            stack.enter_context(mock.patch(place, 1))
        stack.enter_context(mock.patch("eventspec.nn.linear.layout", lambda: "packed"))
        if queries:
            stack.enter_context(mock.patch("eventspec.nn.runner._decode", invariant_decode))
        yield


@functools.cache
def invariant_decode() -> Any:
    """The decoder compiled anew around `in_order`: what was compiled before is remembered by function."""
    torch.jit._state._jit_caching_layer.clear()
    with mock.patch("eventspec.nn.decode.attention", in_order):
        return compiled(decode)


def said(session: TargetSession, tokens: list[int]) -> None:
    session.commit(Verdict(np.arange(len(tokens) - 1), np.array(tokens)))


def same_bits(begin, tokens: list[int]) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """Shares of the rows of a chain, and of a tree, whose logits have the bits of single steps along the same tokens."""

    def alone(path: list[int]) -> torch.Tensor:
        session = begin()
        for token in path:
            session.score(Proposal.empty())
            said(session, [token])
        return session.score(Proposal.empty()).logits[0]

    def behind() -> TargetSession:
        session = begin()
        session.score(Proposal.empty())
        said(session, tokens[:1])
        return session

    chain = behind().score(Proposal.chain(tokens[1:])).logits
    rows = [torch.equal(chain[n], alone(tokens[: n + 1])) for n in range(len(tokens))]
    drafted = [tokens[1 + n % (len(tokens) - 1)] for n in range(len(TREE))]
    tree = behind().score(Proposal(np.array(drafted), np.array(TREE))).logits
    nodes = []
    for node in range(len(TREE)):
        path, at = list[int](), node
        while at >= 0:
            path.insert(0, drafted[at])
            at = TREE[at]
        nodes.append(torch.equal(tree[node + 1], alone([*tokens[:1], *path])))
    return {"chain": sum(rows) / len(rows), "tree": sum(nodes) / len(nodes)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.out.is_dir() or not options.out.parent.is_dir():
        parser.error(f"--out {options.out} is no file in a folder that exists")
    torch.set_num_threads(1)
    pair = load_pair("nano", "one", fit=False)
    language = pair.target.language  # type: ignore[attr-defined]

    def begin() -> TargetSession:
        return session_of(pair.target, 1)

    tokens = np.random.default_rng(0).integers(100, 500, 16).tolist()
    with torch.inference_mode():
        told = {"products": {f"{outputs} x {inputs}": other_bits(outputs, inputs) for inputs, outputs in SHAPES}}
        told["same_bits"] = {"as it runs": same_bits(begin, tokens)}
        with one_kernel():
            told["same_bits"]["one kernel"] = same_bits(begin, tokens)
        with one_kernel(queries=True):
            told["same_bits"]["one kernel, in order"] = same_bits(begin, tokens)
        session = begin()
        session.score(Proposal.empty())
        said(session, tokens[:1])
        taken: dict[str, list[float]] = {}

        def timed(name: str, rows: int) -> None:
            proposal = Proposal.chain(tokens[: rows - 1])
            began = time.perf_counter()
            session.score(proposal)
            taken.setdefault(name, []).append(time.perf_counter() - began)

        for _ in range(80):
            timed("one row", 1)
            with one_kernel():
                timed("one row, one kernel", 1)
            with one_kernel(queries=True):
                timed("one row, one kernel, in order", 1)
            for rows in (4, 8, 16):
                timed(f"padded to {rows}", rows)
    step = median(taken["one row"])
    told["steps"] = {name: round(median(seconds) / step, 3) for name, seconds in taken.items()}
    told |= {"n": 80, "layers": language.config.num_hidden_layers, "environment": environment(pair, ["real"])}
    print(json.dumps(told, indent=1))
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    write_text(options.out, json.dumps({**known, told["environment"]["processor"]: told}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
