"""The fast product is the plain product: both sides of the row limit, any leading shape, with and without bias."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eventspec.nn import ClipConfig, ClipViT, Llama, linear
from eventspec.nn.cpu import products as module
from eventspec.nn.cpu.products import bfloat16_pays, probe_once, spare_rows
from eventspec.nn.linear import Linear, in_reduced_precision
from eventspec.nn.runner import Rows


def layer(bias: bool = False, dtype: torch.dtype = torch.float32) -> Linear:
    made = Linear(24, 40, bias=bias).requires_grad_(False).eval()
    for seed, parameter in enumerate(made.parameters()):
        parameter.normal_(generator=torch.Generator().manual_seed(seed))
    return made.to(dtype)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("shape", [(1, 24), (3, 24), (4, 24), (200, 24), (2, 9, 24), (24,)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@torch.inference_mode()
def test_linear_is_torchs_linear(shape: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    product, x = layer(bias, dtype), rows(*shape).to(dtype)
    for _ in range(2):  # the second time on the weight that is laid out
        torch.testing.assert_close(product(x), F.linear(x, product.weight, product.bias))


@torch.inference_mode()
def test_linear_takes_rows_that_do_not_lie_side_by_side() -> None:
    product, x = layer(), rows(24, 50).t()
    torch.testing.assert_close(product(x), F.linear(x, product.weight))


@torch.inference_mode()
def test_a_weight_that_is_replaced_is_laid_out_anew() -> None:
    product, x = layer(), rows(30, 24)
    product(x)
    product.weight.data = product.weight * 2
    torch.testing.assert_close(product(x), F.linear(x, product.weight))


def test_training_forgets_the_laid_out_weight() -> None:
    product, x = layer(), rows(30, 24)
    with torch.inference_mode():
        product(x)
    product.train()
    with torch.no_grad():
        product.weight.mul_(3)  # as an optimizer does: in place
    product.eval()
    with torch.inference_mode():
        torch.testing.assert_close(product(x), F.linear(x, product.weight))


def test_gradients_pass_through_linear() -> None:
    product, x = layer().requires_grad_(True), rows(30, 24)
    product(x).sum().backward()
    torch.testing.assert_close(product.weight.grad, x.sum(0).expand(40, 24))


@torch.inference_mode()
def test_many_rows_go_through_onednn_where_it_is_used(products: str, monkeypatch: pytest.MonkeyPatch) -> None:
    product, x = layer(), rows(64, 24)
    expected, plain = F.linear(x, product.weight), []
    monkeypatch.setattr(linear.F, "linear", lambda *parts: plain.append(parts) or expected)
    torch.testing.assert_close(product(x), expected)
    assert len(plain) == (products != "packed")


@torch.inference_mode()
def test_packed_products_come_in_few_row_counts(products: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN makes and keeps a kernel for every count."""
    made, x = layer(), rows(700, 24)
    seen = set[int]()
    real = F.linear if products != "packed" else torch.ops.mkldnn._linear_pointwise

    def counted(x: torch.Tensor, weight: torch.Tensor, *more: object) -> torch.Tensor:
        seen.add(len(x))
        return real(x, weight, *more)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    for count in range(1, 701):
        assert len(made(x[:count])) == count
    assert len(seen) == (0 if products != "packed" else 68), "4 to 64 by fours, to 256 by eights, then by sixteens"


def test_a_packed_product_is_filled_up_a_little() -> None:
    spare = {rows: spare_rows(rows) for rows in range(1, 2000)}
    assert all(count < 4 for rows, count in spare.items() if rows <= 64)
    assert all(count < 8 for rows, count in spare.items() if rows <= 256)
    assert all(count < 16 for count in spare.values())
    assert not any(spare[rows] for rows in (1, 2, 3, 4, 64, 80, 544))


@pytest.fixture
def in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in reduced precision, whether they pay on this machine or not."""
    if not module.onednn_works():
        pytest.skip("this torch has no oneDNN")
    try:
        module.packed_weight(torch.ones(8, 8, dtype=torch.bfloat16))
    except RuntimeError:
        pytest.skip("oneDNN has no products of bfloat16 for a processor without AVX-512")
    monkeypatch.setattr(module, "bfloat16_pays", lambda: True)


@pytest.mark.parametrize("shape", [(1, 24), (3, 24), (4, 24), (200, 24), (2, 9, 24), (24,)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("in_bfloat16")
@torch.inference_mode()
def test_a_product_in_reduced_precision_is_nearly_the_product(shape: tuple[int, ...], bias: bool) -> None:
    exact, x = layer(bias), rows(*shape)
    reduced = in_reduced_precision(exact)
    wanted, found = F.linear(x, exact.weight, exact.bias), reduced(x)
    assert (found.dtype, found.shape) == (torch.float32, wanted.shape)
    assert float((found - wanted).norm() / wanted.norm()) < 0.01
    if len(shape) > 1:
        assert not torch.equal(found, wanted), "the control: it is not the exact one"
    torch.testing.assert_close(exact(x), wanted)  # the model itself is what it was


@pytest.mark.usefixtures("in_bfloat16")
def test_reduced_precision_is_for_inference_and_shares_the_parameters() -> None:
    exact, x = layer().requires_grad_(True), rows(30, 24)
    reduced = in_reduced_precision(exact)
    assert reduced.weight is exact.weight
    assert torch.equal(reduced(x), F.linear(x, exact.weight)), "a gradient is wanted here"
    reduced(x).sum().backward()
    torch.testing.assert_close(exact.weight.grad, x.sum(0).expand(40, 24))


@pytest.mark.usefixtures("in_bfloat16")
@pytest.mark.parametrize("count", [1, 2, 5, 30])
@torch.inference_mode()
def test_a_decoder_in_reduced_precision_reads_nearly_the_same(tiny_llama: Callable[..., Llama], count: int) -> None:
    exact = tiny_llama()
    reduced = in_reduced_precision(exact)
    assert reduced.head.weight is exact.head.weight
    x = torch.randn(count, 32, generator=torch.Generator().manual_seed(3))
    found, wanted = (model.step(x, model.new_cache(40))[0] for model in (reduced, exact))
    assert 0 < float((found - wanted).norm() / wanted.norm()) < 0.03
    assert reduced.runner().backend.reduced
    assert not exact.runner().backend.reduced
    torch.testing.assert_close(exact.step(x, exact.new_cache(40))[0], wanted)


@pytest.mark.usefixtures("in_bfloat16")
@torch.inference_mode()
def test_sequences_read_together_in_reduced_precision_are_those_read_alone(tiny_llama: Callable[..., Llama]) -> None:
    reduced = in_reduced_precision(tiny_llama())
    several = [torch.randn(count, 32, generator=torch.Generator().manual_seed(count)) for count in (1, 6)]
    together = reduced.runner().step_together([Rows(x, reduced.new_cache(40)) for x in several])
    for x, (found, _) in zip(several, together, strict=True):
        torch.testing.assert_close(found, reduced.step(x, reduced.new_cache(40))[0], rtol=0.02, atol=0.02)


@pytest.mark.usefixtures("in_bfloat16")
@torch.inference_mode()
def test_a_tower_in_reduced_precision_sees_nearly_the_same(randomised: Callable[[nn.Module, int], None]) -> None:
    exact = ClipViT(ClipConfig(32, 64, 3, 4, image_size=28, patch_size=7)).requires_grad_(False).eval()
    randomised(exact, 0)
    pixels = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    found, wanted = in_reduced_precision(exact)(pixels), exact(pixels)
    assert 0 < float((found - wanted).norm() / wanted.norm()) < 0.03


@torch.inference_mode()
def test_a_model_stays_exact_where_reduced_precision_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bfloat16_pays", lambda: False)
    exact, x = layer(), rows(30, 24)
    torch.testing.assert_close(in_reduced_precision(exact)(x), F.linear(x, exact.weight))


@pytest.mark.parametrize("broken", ["no such operator", "other columns"])
def test_bfloat16_is_left_where_onednn_has_no_right_product_for_it(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not module.onednn_works():
        pytest.skip("this torch has no oneDNN")
    real = module.packed_weight

    def packed(weight: torch.Tensor) -> torch.Tensor:
        if weight.dtype == torch.bfloat16 and broken == "no such operator":
            raise RuntimeError(broken)
        return real(weight.roll(1, 1) if weight.dtype == torch.bfloat16 else weight)

    monkeypatch.setattr(module, "packed_weight", packed)
    bfloat16_pays.cache_clear()
    try:
        assert not bfloat16_pays()
    finally:
        bfloat16_pays.cache_clear()


@pytest.mark.usefixtures("in_bfloat16")
@torch.inference_mode()
def test_a_model_that_was_used_can_be_copied(tiny_llama: Callable[..., Llama]) -> None:
    exact, x = tiny_llama(), torch.randn(9, 32, generator=torch.Generator().manual_seed(3))
    wanted = exact.step(x, exact.new_cache(40))[0]
    exact.logits(x)
    reduced = in_reduced_precision(exact)
    assert 0 < float((reduced.step(x, reduced.new_cache(40))[0] - wanted).norm() / wanted.norm()) < 0.03
    assert torch.equal(exact.step(x, exact.new_cache(40))[0], wanted)


@pytest.mark.usefixtures("in_bfloat16")
@torch.inference_mode()
def test_a_weight_is_laid_out_anew_where_its_precision_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    product, x = in_reduced_precision(layer()), rows(30, 24)
    monkeypatch.setattr(module, "bfloat16_pays", lambda: False)
    exact = product(x)
    monkeypatch.setattr(module, "bfloat16_pays", lambda: True)
    assert not torch.equal(product(x), exact)


def test_what_a_machine_is_like_is_found_out_once_on_one_thread_and_by_nobody_else_meanwhile() -> None:
    asked, begun = list[int](), threading.Event()

    def find() -> int:
        asked.append(torch.get_num_threads())
        begun.wait(1)
        return 7

    once, found, threads = probe_once(find), list[int](), torch.get_num_threads()
    others = [threading.Thread(target=lambda: found.append(once())) for _ in range(3)]
    for other in others:
        other.start()
    begun.set()
    for other in others:
        other.join()
    assert (found, asked, torch.get_num_threads()) == ([7, 7, 7], [1], threads)
    once.cache_clear()
    assert once() == 7
    assert len(asked) == 2
