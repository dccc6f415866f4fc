"""Draft trees in machine code: those that TorchScript grows of the same weights, wherever there is a compiler."""

from __future__ import annotations

import ctypes
import platform
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eventspec.drafters.heads.eagle import EagleConfig, EagleHead
from eventspec.drafters.heads.eagle3 import Eagle3Config, Eagle3Head
from eventspec.nn import KVCache, Llama, LlamaConfig
from eventspec.nn.cpu import native as module
from eventspec.nn.cpu.native import NativeHead, library
from eventspec.nn.draft import DraftKernel, TreeConfig, fixed_tree
from eventspec.nn.llama import rope_tables
from eventspec.nn.weights import HeadWeights, TreeGrowth

SIZES = {
    "even": LlamaConfig(100, 64, 96, 1, 4, 4, max_position_embeddings=128),
    "grouped": LlamaConfig(50, 96, 40, 1, 6, 2, max_position_embeddings=128),
    "odd": LlamaConfig(33, 36, 21, 1, 3, 1, max_position_embeddings=128),
}
GROWTHS = {
    "level": TreeConfig(4, 1),
    "chain": TreeConfig(1, 9),
    "narrow": TreeConfig(2, 9),
    "wide": TreeConfig(7, 4),
    "wider than the vocabulary": TreeConfig(200, 2),
    "fixed": fixed_tree([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (1, 2), (2, 1), (1, 2, 0), (0, 1, 1)]),
}

# Compiling and keeping: the layout of weights has no part in it, and the long tests have every one.
ONE_LAYOUT = pytest.mark.parametrize(
    "products", ["rows", *(pytest.param(layout, marks=pytest.mark.long) for layout in ("columns", "packed"))], indirect=True
)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(3)
    with torch.inference_mode():
        yield


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A process that has compiled nothing, and a cache without anything in it; compiling is quick, as nothing is optimised."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "FLAGS", (*module.FLAGS, "-O0"))
    library.cache_clear()
    yield tmp_path / "eventspec/native"
    library.cache_clear()


def llama(sizes: LlamaConfig) -> Llama:
    made = Llama(sizes).requires_grad_(False).eval()
    made.embed.weight.normal_()
    return made


def head(kind: str, sizes: LlamaConfig) -> tuple[EagleHead | Eagle3Head, Llama]:
    """A head whose matrices eight bits hold as they are, and the model that it drafts for."""
    model = llama(sizes)
    if kind == "eagle3":
        made: EagleHead | Eagle3Head = Eagle3Head(Eagle3Config(sizes, (0, 1), 20))
        made.vocab_ids.copy_(torch.randperm(sizes.vocab_size)[:20])
    elif kind == "normed residual":
        made = Eagle3Head(Eagle3Config(sizes, (0, 1), 20, norm_before_residual=True))
    else:
        made = EagleHead(EagleConfig(sizes, kind == "eaglevlm"))
    made.requires_grad_(False).eval()
    for part in made.parameters():
        vector = part.dim() == 1
        part.copy_(torch.rand_like(part) + 0.5 if vector else in_eight_bits(torch.randn_like(part) / part.shape[1] ** 0.5))
    return made, model


def kernel(kind: str, sizes: LlamaConfig) -> tuple[DraftKernel, list[Tensor]]:
    """Of such a head behind such a model, and the tables that it reads."""
    made, model = head(kind, sizes)
    kept = made.kernel(model)
    return DraftKernel(kept.weights._replace(head=in_eight_bits(kept.weights.head))), [
        model.embed.weight,
        *rope_tables(sizes, 128),
    ]


def in_eight_bits(weight: Tensor) -> Tensor:
    """A matrix rounded to what eight bits hold of it; a vector as it is."""
    if weight.dim() < 2:
        return weight
    scales = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scales).round() * scales


def cache(sizes: LlamaConfig, rows: int = 37) -> KVCache:
    """With some committed rows; what lies behind them is no number."""
    made = KVCache(1, sizes.num_key_value_heads, sizes.head_dim, 500, torch.float32)
    for part in (*made.keys, *made.values):
        part.fill_(torch.nan)[:, :rows].normal_()
    made.length = rows
    return made


def grown(
    made: DraftKernel,
    tables: list[Tensor],
    behind: KVCache,
    growth: TreeConfig,
    floor: float = 0.0,
    mass: float = 0.0,
    end: int = -1,
) -> tuple[list[int], list[int], Tensor]:
    feature = torch.randn(1, tables[0].shape[1], generator=torch.Generator().manual_seed(4))
    how = TreeGrowth(growth.width, growth.levels, floor, mass, end, 36, list(growth.shape))
    tokens, parents, reach = made.grow(feature, how, tables, behind)
    return tokens.tolist(), parents.tolist(), reach


def check_same(one: tuple[list[int], list[int], Tensor], two: tuple[list[int], list[int], Tensor]) -> None:
    """Of many nodes some are so nearly equal that rounding puts the one or the other first."""
    first, second = by_path(one), by_path(two)
    assert first.keys() == second.keys()
    assert all(abs(first[path] - second[path]) < 5e-4 for path in first)
    assert one[:2] == two[:2] or len(first) > 200


def by_path(tree: tuple[list[int], list[int], Tensor]) -> dict[tuple[int, ...], float]:
    paths = list[tuple[int, ...]]()
    for token, parent in zip(*tree[:2], strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return dict(zip(paths, tree[2].tolist(), strict=True))


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", ["eagle1", "eaglevlm", "eagle3", "normed residual"])
def test_a_tree_is_the_one_that_torch_grows(kind: str, sizes: str, growth: str) -> None:
    made, tables = kernel(kind, SIZES[sizes])
    natively = made.natively()
    assert natively.native is not None, "there is a compiler wherever the tests run"
    wanted = grown(made, tables, cache(SIZES[sizes]), GROWTHS[growth])
    torch.manual_seed(5)
    behind = cache(SIZES[sizes])
    found = grown(natively, tables, behind, GROWTHS[growth])
    torch.manual_seed(5)
    check_same(found, grown(made, tables, cache(SIZES[sizes]), GROWTHS[growth]))
    assert behind.length == 37
    assert behind.keys[0][:, 37:].isnan().all(), "nothing is written to the cache"
    if GROWTHS[growth].levels > 1:
        assert wanted[2].tolist() != found[2].tolist(), "the control: another cache is another tree"


@pytest.mark.parametrize(
    ("floor", "mass", "end"), [(0.05, 0.0, -1), (0.0, 0.2, -1), (0.0, 0.0, 7), (0.9, 0.0, -1), (0.0, 1.0, -1)]
)
def test_a_tree_ends_where_torchs_does(floor: float, mass: float, end: int) -> None:
    made, tables = kernel("eaglevlm", SIZES["even"])
    behind = cache(SIZES["even"])
    end = grown(made, tables, behind, TreeConfig(3, 6))[0][1] if end >= 0 else end
    wanted = grown(made, tables, behind, TreeConfig(3, 6), floor, mass, end)
    check_same(grown(made.natively(), tables, behind, TreeConfig(3, 6), floor, mass, end), wanted)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="registers of other processors have one length")
@pytest.mark.parametrize(("without", "floats"), [("avx512f", 8), ("avx2", 8), ("avx", 4)])
@pytest.mark.usefixtures("cold")
def test_shorter_registers_grow_the_same_tree(without: str, floats: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLAGS", (*module.FLAGS, "-mno-avx512f", f"-mno-{without}"))
    (made, tables), behind = kernel("eaglevlm", SIZES["odd"]), cache(SIZES["odd"])
    natively, functions = made.natively(), library()
    assert natively.native is not None and functions is not None
    # Two vectors side by side, each of which a register holds: what it does not hold lies in memory, at a tenth of the speed.
    assert ctypes.c_int64.in_dll(functions, "block_size").value == 2 * floats
    check_same(grown(natively, tables, behind, TreeConfig(3, 6)), grown(made, tables, behind, TreeConfig(3, 6)))


def test_the_first_draft_behind_an_empty_cache() -> None:
    made, tables = kernel("eagle1", SIZES["even"])
    behind = cache(SIZES["even"], rows=0)
    check_same(grown(made.natively(), tables, behind, TreeConfig(3, 6)), grown(made, tables, behind, TreeConfig(3, 6)))


@pytest.mark.parametrize("bias", [True, False])
def test_another_way_to_join(bias: bool) -> None:
    made, tables = kernel("eagle1", SIZES["even"])
    joining = in_eight_bits(torch.randn(64, 128) / 11), torch.randn(64) if bias else None
    behind = cache(SIZES["even"])
    before = grown(made.natively(), tables, behind, TreeConfig(3, 5))
    found = grown(made.natively().with_reduction(*joining), tables, behind, TreeConfig(3, 5))
    check_same(found, grown(made.with_reduction(*joining), tables, behind, TreeConfig(3, 5)))
    assert found[0] != before[0]


def test_numbers_that_are_none_break_nothing() -> None:
    made, tables = kernel("eagle3", SIZES["grouped"])
    behind = cache(SIZES["grouped"])
    behind.keys[0].fill_(torch.nan)
    tokens, parents, _ = grown(made.natively(), tables, behind, TreeConfig(4, 6))
    assert len(tokens) == len(parents) > 0
    assert set(tokens) <= set(range(50))


@pytest.mark.parametrize("what", ["cast", "smaller"])
def test_what_was_changed_since_is_refused(what: str) -> None:
    made, tables = kernel("eagle1", SIZES["even"])
    natively, behind = made.natively(), cache(SIZES["even"])
    tables[0] = tables[0].double() if what == "cast" else tables[0][:50]
    with pytest.raises(ValueError, match="fp32" if what == "cast" else "token 99 of 50"):
        grown(natively, tables, behind, TreeConfig(2, 3))


def test_eight_bits_say_nearly_the_same() -> None:
    torch.manual_seed(7)
    model = llama(SIZES["even"])
    made = EagleHead(EagleConfig(SIZES["even"], True)).requires_grad_(False).eval()
    exact, tables = made.kernel(model), [model.embed.weight, *rope_tables(SIZES["even"], 128)]
    wanted, rough = (by_path(grown(one, tables, cache(SIZES["even"]), TreeConfig(3, 4))) for one in (exact, exact.natively()))
    both = wanted.keys() & rough.keys()
    assert len(both) > 0.6 * len(wanted)
    assert all(abs(wanted[path] - rough[path]) < 0.3 for path in both)
    assert wanted != rough, "the control: it is not the exact one"


def test_several_threads_grow_at_once() -> None:
    made, tables = kernel("eaglevlm", SIZES["even"])
    natively, behind = made.natively(), cache(SIZES["even"])
    wanted, found = grown(natively, tables, behind, TreeConfig(4, 8)), list[tuple[list[int], list[int], Tensor]]()

    def again() -> None:
        with torch.inference_mode():
            found.extend(grown(natively, tables, behind, TreeConfig(4, 8)) for _ in range(30))

    threads = [threading.Thread(target=again) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 120
    assert all(one[:2] == wanted[:2] and torch.equal(one[2], wanted[2]) for one in found)


# ----------------------------------------------------------------------------------------------------------- what it is not for
def unfit(weights: HeadWeights, how: str) -> HeadWeights:
    if how == "precision":
        return weights._replace(head=weights.head.to(torch.bfloat16))
    if how == "device":
        return weights._replace(head=weights.head.to("meta"))
    return weights


@pytest.mark.parametrize("how", ["precision", "device", "size"])
def test_other_heads_are_left_to_torch(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = kernel("eagle1", SIZES["even"])
    assert NativeHead.of(made.weights) is not None
    if how == "size":
        monkeypatch.setattr(module, "MOST_WEIGHTS", 1000)
    assert NativeHead.of(unfit(made.weights, how)) is None


def test_without_a_compiler_torch_grows_the_tree(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    made, tables = kernel("eagle1", SIZES["even"])
    assert made.natively().native is None
    behind = cache(SIZES["even"])
    check_same(grown(made.natively(), tables, behind, TreeConfig(3, 5)), grown(made, tables, behind, TreeConfig(3, 5)))


@ONE_LAYOUT
def test_a_source_that_does_not_compile_is_no_failure(cold: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text("no C at all")
    monkeypatch.setattr(module, "SOURCES", (source,))
    assert library() is None
    assert not list(cold.glob("*"))


@ONE_LAYOUT
def test_it_is_compiled_once_a_machine(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library() is not None
    (kept,) = cold.iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    library.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert library() is not None, "of what was kept"
    monkeypatch.setattr(module, "instructions", lambda: "another")
    library.cache_clear()
    assert library() is None, "the control: that one would have to be compiled"


@ONE_LAYOUT
@pytest.mark.parametrize("damage", ["cut", "changed", "others may write", "a folder", "a link", "no library"])
def test_a_file_that_is_not_as_it_was_kept_is_not_run(cold: Path, damage: str) -> None:
    assert library() is not None
    (kept,) = cold.iterdir()
    whole = kept.read_bytes()
    if damage == "cut":
        kept.write_bytes(whole[: len(whole) // 2])
    elif damage == "changed":
        kept.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "others may write":
        kept.chmod(0o666)
    elif damage == "a link":
        kept.rename(kept.with_name("other")).chmod(0o600), kept.symlink_to(kept.with_name("other"))
    elif damage == "no library":
        kept.unlink()
        kept = kept.with_name(f"{kept.stem.split('-')[0]}-{module._digest(b'no library')}.so")
        kept.write_bytes(b"no library"), kept.chmod(0o600)
    else:
        kept.unlink(), kept.mkdir()
    library.cache_clear()
    assert library() is not None, "compiled again"
    made, _ = kernel("eagle1", SIZES["even"])
    assert made.natively().native is not None


@ONE_LAYOUT
def test_nothing_is_run_from_a_folder_that_others_may_write(cold: Path) -> None:
    assert library() is not None
    cold.chmod(0o777)
    (kept,) = cold.iterdir()
    before = kept.stat().st_mtime_ns
    library.cache_clear()
    assert library() is not None, "compiled for this process"
    assert [kept.stat().st_mtime_ns] == [before], "and nothing is kept there"


def test_without_a_home_it_is_compiled_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(module, "cache_folder", homeless)
    library.cache_clear()
    assert library() is None
    library.cache_clear()


@ONE_LAYOUT
def test_without_a_place_to_keep_it_it_is_compiled_for_this_process(cold: Path) -> None:
    cold.parent.mkdir(parents=True)
    cold.write_text("no folder")
    assert library() is not None
    assert cold.read_text() == "no folder"


def test_a_fixed_tree_may_be_cut(cold: Path) -> None:
    made, tables = kernel("eagle1", SIZES["even"])
    cut, behind = replace(GROWTHS["fixed"], levels=2), cache(SIZES["even"])
    check_same(grown(made.natively(), tables, behind, cut), grown(made, tables, behind, cut))
