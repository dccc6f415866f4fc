"""The drafting pass: what is left out changes nothing, what has ended stays ended, and nothing is made on another device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from eventspec.drafters.heads.eagle import EagleConfig, EagleHead
from eventspec.drafters.heads.eagle3 import Eagle3Config, Eagle3Head
from eventspec.nn import KVCache, Llama, LlamaConfig
from eventspec.nn.decode import block
from eventspec.nn.draft import TreeConfig, fixed_tree, grow
from eventspec.nn.llama import rope_tables
from eventspec.nn.weights import Place, TreeGrowth

SIZES = LlamaConfig(30, 32, 48, 1, 4, 2, max_position_embeddings=64)
GROWTHS = {
    "dynamic": TreeConfig(4, 5),
    "chain": TreeConfig(1, 5),
    "static": fixed_tree([(0,), (1,), (2,), (0, 0), (1, 2), (1, 2, 0)]),
}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(3)
    with torch.inference_mode():
        yield


def llama() -> Llama:
    return Llama(SIZES).requires_grad_(False).eval()


def head(kind: str) -> EagleHead | Eagle3Head:
    made = (
        Eagle3Head(Eagle3Config(SIZES, (0, 1), 20)) if kind == "eagle3" else EagleHead(EagleConfig(SIZES, kind == "eaglevlm"))
    )
    return made.requires_grad_(False).eval()


def turns(rows: int) -> tuple[Tensor, Tensor]:
    cos, sin = rope_tables(SIZES, rows)
    return cos, sin


def cache() -> KVCache:
    made = KVCache(1, 2, 8, 60, torch.float32)
    for rows in (*made.keys, *made.values):
        rows.normal_()
    made.length = 5
    return made


@pytest.mark.parametrize("rows", [1, 2, 5, 9])
@pytest.mark.parametrize("kind", ["eagle1", "eaglevlm", "eagle3"])
def test_rows_that_nobody_asks_for_leave_keys_and_values_all_the_same(kind: str, rows: int) -> None:
    """The whole layer over all rows, against the pass that finishes the last one only."""
    made, one, two = head(kind), cache(), cache()
    two.keys[0].copy_(one.keys[0]), two.values[0].copy_(one.values[0])
    kernel = made.kernel(llama())
    normed, x = made.fuse_inputs(torch.randn(rows, 32), torch.randn(rows, 32))
    cos, sin = (table[5 : 5 + rows] for table in turns(20))
    mask = torch.full((rows, 5 + rows), -torch.inf).triu(6)
    place = Place(cos, sin, one.keys, one.values, 5, mask, 0)
    whole = block(normed, x, len(x), place, 0, kernel.weights.layers[0], kernel.sizes)
    last = kernel.read(normed, x, (cos, sin), two)
    torch.testing.assert_close(last, whole[-1:], atol=1e-5, rtol=1e-4)
    for mine, theirs in ((two.keys[0], one.keys[0]), (two.values[0], one.values[0])):
        torch.testing.assert_close(mine[:, : 5 + rows], theirs[:, : 5 + rows], atol=1e-5, rtol=1e-4)


def grown(made: EagleHead | Eagle3Head, model: Llama, growth: TreeConfig, end: int = -1, home: str = "cpu") -> list[Tensor]:
    """A tree where tensors land on `home` unless their device is named; by the function itself, TorchScript knows no such
    context. Feature and cache are the same every time."""
    torch.manual_seed(4)
    behind, feature, tables = cache(), torch.randn(1, 32), [model.embed.weight, *turns(64)]
    cached = Place(tables[1][:0], tables[2][:0], behind.keys, behind.values, 5, None, 0)
    how = TreeGrowth(growth.width, growth.levels, 0.0, 0.0, end, 4, list(growth.shape))
    with torch.device(home):
        kernel = made.kernel(model)
        return list(grow(feature, how, tables, cached, kernel.weights))


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("kind", ["eagle1", "eagle3"])
def test_a_draft_stays_on_the_device_of_its_feature(kind: str, growth: str) -> None:
    """Where every stray tensor lands on another device, the tree is still grown, and it is the same one."""
    model, made = llama(), head(kind)
    wanted, found = (grown(made, model, GROWTHS[growth], home=home) for home in ("cpu", "meta"))
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.device.type == "cpu"
        assert mine.tolist() == theirs.tolist()


def test_a_stray_tensor_would_be_noticed() -> None:
    """The control of the test above."""
    with torch.device("meta"), pytest.raises((RuntimeError, NotImplementedError)):
        torch.cat((torch.zeros(1), torch.ones(1, device="cpu"))).tolist()


def test_nothing_follows_the_end() -> None:
    model, made = llama(), head("eagle1")
    tokens, parents, _ = grown(made, model, TreeConfig(3, 4))
    end = int(tokens[parents[parents >= 0][0]])
    tokens, parents, _ = grown(made, model, TreeConfig(3, 4), end)
    assert end in tokens.tolist()
    assert end not in tokens[parents[parents >= 0]].tolist()
