"""What the cache keeps is what a fresh prefill of the kept text would have written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eventspec.nn import KVCache, Llama
from eventspec.nn.cache import LentCache
from eventspec.tree import depths, tree_mask

TinyLlama = Callable[..., Llama]


def tokens(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def read(model: Llama, ids: Tensor, cache: KVCache) -> Tensor:
    hidden, _ = model.step(model.embed(ids), cache)
    cache.keep(len(ids), [])
    return model.logits(hidden)


def fresh(model: Llama, ids: Tensor) -> KVCache:
    cache = model.new_cache(40)
    read(model, ids, cache)
    return cache


def assert_same(one: KVCache, other: KVCache) -> None:
    assert one.length == other.length
    rows = slice(0, one.length)
    for mine, yours in zip([*one.keys, *one.values], [*other.keys, *other.values], strict=True):
        torch.testing.assert_close(mine[:, rows], yours[:, rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", [[], [0], [0, 2], [1, 4, 5], [0, 2, 3], [6]])
@pytest.mark.parametrize("pending", [1, 3])
@torch.inference_mode()
def test_keeping_a_path_equals_a_fresh_prefill_of_the_accepted_text(
    tiny_llama: TinyLlama, path: list[int], pending: int
) -> None:
    model, past, waiting = tiny_llama(2), tokens(3, 1, 4, 1, 5), tokens(9, 2, 6)[:pending]
    nodes, parents = tokens(10, 11, 12, 13, 14, 15, 16), [-1, -1, 0, 2, 1, 4, -1]
    cache = fresh(model, past)
    positions = torch.tensor([*range(5, 5 + pending), *(5 + pending + depth for depth in depths(parents))])
    model.step(model.embed(torch.cat((waiting, nodes))), cache, positions, tree_mask(parents, 5, pending))
    cache.keep(pending, path)
    assert_same(cache, fresh(model, torch.cat((past, waiting, nodes[path]))))


@torch.inference_mode()
def test_rows_that_were_not_kept_are_overwritten(tiny_llama: TinyLlama) -> None:
    model, cache = tiny_llama(4), tiny_llama(4).new_cache(40)
    read(model, tokens(1, 2, 3), cache)
    model.step(model.embed(tokens(40, 41, 42)), cache)  # never kept
    assert cache.length == 3
    read(model, tokens(4), cache)
    assert_same(cache, fresh(model, tokens(1, 2, 3, 4)))


@torch.inference_mode()
def test_truncating_forgets_the_rest(tiny_llama: TinyLlama) -> None:
    model = tiny_llama(2)
    cache = fresh(model, tokens(1, 2, 3, 4, 5))
    cache.truncate(2)
    read(model, tokens(7, 8), cache)
    assert_same(cache, fresh(model, tokens(1, 2, 7, 8)))


@torch.inference_mode()
def test_a_copy_of_a_beginning_goes_its_own_way(tiny_llama: TinyLlama) -> None:
    model = tiny_llama(2)
    cache = fresh(model, tokens(1, 2, 3, 4))
    twin = cache.beginning(3, 30)
    cache.truncate(3)
    read(model, tokens(4, 5), cache)
    read(model, tokens(6), twin)
    assert_same(cache, fresh(model, tokens(1, 2, 3, 4, 5)))
    assert_same(twin, fresh(model, tokens(1, 2, 3, 6)))


@torch.inference_mode()
def test_a_lent_cache_is_copied_while_somebody_appends_to_it(tiny_llama: TinyLlama) -> None:
    model = tiny_llama(2)
    lent = LentCache(fresh(model, tokens(1, 2, 3)))
    mine, loan = lent.lend(3, 8)
    yours, other = lent.lend(2, 8)
    assert mine is lent.cache is not yours
    read(model, tokens(4, 5), mine)
    read(model, tokens(9), yours)
    assert_same(mine, fresh(model, tokens(1, 2, 3, 4, 5)))
    assert_same(yours, fresh(model, tokens(1, 2, 9)))
    del loan, other
    again, loan = lent.lend(3, 8)
    assert again is mine
    assert again.length == 3
    del loan
    larger, _ = lent.lend(3, 400)
    assert larger.capacity >= 400
    assert_same(larger, fresh(model, tokens(1, 2, 3)))


@torch.inference_mode()
def test_what_storage_held_before_is_never_seen(tiny_llama: TinyLlama) -> None:
    model, cache = tiny_llama(4), tiny_llama(4).new_cache(40)
    for part in [*cache.keys, *cache.values]:
        part.fill_(torch.nan)
    assert read(model, tokens(1, 2, 3), cache).isfinite().all()
    assert read(model, tokens(4), cache).isfinite().all()
