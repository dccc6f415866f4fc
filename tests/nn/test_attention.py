"""The attention of long prompts in machine code: torch's, but for rounding, and row by row the same whatever lies beside."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eventspec.nn import KVCache, Llama, LlamaConfig, long_prompts
from eventspec.nn import runner as module
from eventspec.nn.decode import attention
from eventspec.nn.long_prompts import has_native_attention, native_pays
from eventspec.nn.native import attend_many, library
from eventspec.nn.runner import Rows
from eventspec.tree import node_mask

NATIVE = pytest.mark.skipif(library() is None, reason="there is no compiler")


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where it is faster than torch's."""
    monkeypatch.setattr(long_prompts, "native_pays", lambda: True)


def drawn(rows: int, start: int, heads: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries with keys beside them, as a forward has them, and caches in which nothing else is a number."""
    asked = 2 * torch.randn(rows, heads + kv_heads, head_dim)
    keys, values = torch.full((2, kv_heads, start + rows + 9, head_dim), torch.nan)
    for part in (keys, values):
        part[:, : start + rows].normal_()
    return asked, 2 * keys, values


@NATIVE
@pytest.mark.parametrize("start", [0, 3, 130])
@pytest.mark.parametrize("rows", [1, 5, 24, 25, 64, 137])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 48), (6, 2, 16), (1, 1, 80), (2, 1, 64), (3, 3, 32)])
def test_causal_rows_are_torchs(heads: int, kv_heads: int, head_dim: int, rows: int, start: int) -> None:
    asked, keys, values = drawn(rows, start, heads, kv_heads, head_dim)
    found = attend_many(asked, keys, values, start, rows, None, heads, 3)
    mask = torch.zeros(rows, start + rows).masked_fill_(torch.ones(rows, start + rows).triu(start + 1) > 0, -torch.inf)
    end = start + rows
    wanted = attention(asked[:, :heads].transpose(0, 1), keys[:, :end], values[:, :end], mask, 0)
    torch.testing.assert_close(found[:rows], wanted.transpose(0, 1).flatten(1), rtol=1e-4, atol=2e-5)
    assert not found[rows:].any()


@NATIVE
@pytest.mark.parametrize(("start", "causal"), [(0, 70), (0, 72), (50, 0), (0, 0)])
def test_rows_with_a_mask_are_torchs(start: int, causal: int) -> None:
    rows, heads = 90, 4
    asked, keys, values = drawn(rows, start, heads, heads, 48)
    hidden = torch.rand(rows - causal, start + rows) < 0.5
    hidden[:, 0] = False
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
    end = start + rows
    found = attend_many(asked, keys, values, start, causal, mask, heads, 0)
    wanted = attention(asked[:, :heads].transpose(0, 1), keys[:, :end], values[:, :end], mask, causal)
    torch.testing.assert_close(found, wanted.transpose(0, 1).flatten(1), rtol=1e-4, atol=2e-5)
    other = attend_many(asked, keys, values, start, causal, torch.zeros_like(mask), heads, 0)
    assert not torch.allclose(found, other, atol=1e-3), "the control: the mask says something"


@NATIVE
def test_a_row_does_not_depend_on_those_beside_it() -> None:
    asked, keys, values = drawn(130, 0, 4, 4, 48)
    alone = attend_many(asked[:97].clone(), keys, values, 0, 97, None, 4, 0)
    mask = torch.zeros(33, 130)
    assert torch.equal(attend_many(asked, keys, values, 0, 97, mask, 4, 0)[:97], alone)


@NATIVE
def test_scores_far_apart_stay_numbers() -> None:
    asked, keys, values = drawn(70, 0, 2, 2, 16)
    found = attend_many(1e4 * asked, keys, values, 0, 70, None, 2, 0)
    assert found.isfinite().all()
    wanted = attention((1e4 * asked)[:, :2].transpose(0, 1), keys[:, :70], values[:, :70], None, 70)
    torch.testing.assert_close(found, wanted.transpose(0, 1).flatten(1), rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------------------------------------------------------- a model
SIZES = LlamaConfig(60, 64, 96, 3, 4, 2, max_position_embeddings=400)


def model() -> Llama:
    made = Llama(SIZES).requires_grad_(False).eval()
    for part in made.parameters():
        part.normal_(0.0, 0.2)
    return made


def stepped(made: Llama, rows: Rows, taps: tuple[int, ...], wanted: int | None) -> tuple[Tensor, list[Tensor], KVCache]:
    hidden, tapped = made.runner().step(rows, taps, wanted)
    return hidden, tapped, rows.cache


def asked_of(made: Llama, x: Tensor, how: str) -> Rows:
    """Rows as a prompt has them: all of it, with a tree behind it, or behind what was read before."""
    cache, nodes = made.new_cache(300), [-1, 0, 0, 1, -1]
    if how == "all":
        return Rows(x, cache)
    if how == "tree":
        return Rows(x, cache, None, node_mask(nodes, len(x) - 5), len(x) - 5)
    made.runner().step(Rows(x[:70], cache))
    cache.keep(70, [])
    if how == "behind":
        return Rows(x[70:], cache)
    return Rows(x[70:], cache, None, node_mask(nodes, len(x) - 5), len(x) - 75)


@pytest.mark.parametrize("wanted", [None, 0, 1, 4, 9])
@pytest.mark.parametrize("how", ["all", "tree", "behind", "tree behind"])
@pytest.mark.parametrize("native", [pytest.param(True, marks=NATIVE), False])
def test_rows_that_are_wanted_are_those_of_the_whole(
    native: bool, how: str, wanted: int | None, chosen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, x = model(), torch.randn(150, 64)
    monkeypatch.setattr(module, "has_native_attention", lambda *given: False)
    whole, inner, first = stepped(made, asked_of(made, x, how), (0, 2), None)
    monkeypatch.setattr(module, "has_native_attention", has_native_attention if native else lambda *given: False)
    found, tapped, second = stepped(made, asked_of(made, x, how), (0, 2), wanted)
    count = len(whole) if wanted is None else wanted
    torch.testing.assert_close(found, whole[len(whole) - count :], rtol=1e-4, atol=1e-5)
    for one, two in zip(tapped, inner, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    for one, two in zip((*second.keys, *second.values), (*first.keys, *first.values), strict=True):
        torch.testing.assert_close(one[:, :150], two[:, :150], rtol=1e-4, atol=1e-5)


@NATIVE
def test_it_is_for_many_rows_on_one_thread_of_a_cpu(chosen: None) -> None:
    keys = torch.empty(2, 90, 16)
    assert has_native_attention(64, keys)
    assert not has_native_attention(63, keys), "few rows feel every crossing"
    assert not has_native_attention(64, torch.empty(2, 90, 20)), "a row of a head is no whole vector"
    assert not has_native_attention(64, keys.double())
    assert not has_native_attention(64, keys.to("meta"))
    torch.set_num_threads(2)
    assert not has_native_attention(64, keys)


def test_without_a_compiler_torch_attends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    library.cache_clear(), native_pays.cache_clear()
    try:
        assert not native_pays()
    finally:
        library.cache_clear(), native_pays.cache_clear()


@NATIVE
@pytest.mark.parametrize("fault", ["wrong", "slow"])
def test_one_that_is_wrong_or_slow_is_not_used(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*given: Any) -> Tensor:
        return attend_many(*given) + 0.01

    def slow(*given: Any) -> Tensor:
        for _ in range(20):
            found = attend_many(*given)
        return found

    monkeypatch.setattr(long_prompts, "attend_many", wrong if fault == "wrong" else slow)
    native_pays.cache_clear()
    assert not native_pays()
    native_pays.cache_clear()
