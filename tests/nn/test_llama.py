"""Our decoder is transformers' Llama, however its rows are fed: at once, in pieces, one by one, as a tree, packed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig as TheirConfig
from transformers import LlamaForCausalLM

from eventspec.models.weights import llama_sources
from eventspec.nn import Llama
from eventspec.nn.runner import Rows
from eventspec.tree import depths, tree_mask

TinyLlama = Callable[..., Llama]
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
KINDS = [(4, False), (4, True), (2, False), (1, True)]  # key-value heads of four heads, tied head


def theirs(model: Llama) -> LlamaForCausalLM:
    """transformers' model with the same weights."""
    c = model.config
    config = TheirConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_key_value_heads,
        rms_norm_eps=c.rms_norm_eps,
        max_position_embeddings=c.max_position_embeddings,
        tie_word_embeddings=c.tie_word_embeddings,
    )
    other, own, state = LlamaForCausalLM(config).eval(), dict(model.named_parameters()), {}
    for name, parts in llama_sources(c, "", "model.", "lm_head.weight").items():
        pieces = own[name].split([rows or len(own[name]) for _, rows in parts])
        state.update({part: piece for (part, _), piece in zip(parts, pieces, strict=True)})
    missing, unexpected = other.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    other.tie_weights()
    return other


def ids(count: int, seed: int = 1) -> Tensor:
    return torch.randint(50, (count,), generator=torch.Generator().manual_seed(seed))


def prefilled(model: Llama, tokens: Tensor, pieces: list[int], capacity: int = 64) -> tuple[Tensor, object]:
    """Logits [T, V] of tokens that are fed in pieces, and the cache."""
    cache, rows = model.new_cache(capacity), []
    for piece in model.embed(tokens).split(pieces):
        hidden, _ = model.step(piece, cache)
        cache.keep(len(piece), [])
        rows.append(model.logits(hidden))
    return torch.cat(rows), cache


@pytest.mark.parametrize(("kv_heads", "tied"), KINDS)
@pytest.mark.parametrize("pieces", [[30], [13, 1, 16], [1] * 30], ids=["at once", "in pieces", "one by one"])
@torch.inference_mode()
def test_logits_are_transformers_logits(tiny_llama: TinyLlama, kv_heads: int, tied: bool, pieces: list[int]) -> None:
    model, tokens = tiny_llama(kv_heads, tied), ids(30)
    logits, _ = prefilled(model, tokens, pieces)
    torch.testing.assert_close(logits, theirs(model)(tokens[None]).logits[0], **CLOSE)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("pieces", [[191], [192], [193], [250], [200, 50]])
@torch.inference_mode()
def test_a_long_prompt_is_read_as_transformers_reads_it(tiny_llama: TinyLlama, kv_heads: int, pieces: list[int]) -> None:
    """From 192 rows on a prompt takes a path of its own."""
    model, tokens = tiny_llama(kv_heads, context=256), ids(sum(pieces))
    logits, _ = prefilled(model, tokens, pieces, capacity=256)
    torch.testing.assert_close(logits, theirs(model)(tokens[None]).logits[0], **CLOSE)


@torch.inference_mode()
def test_taps_are_transformers_hidden_states(tiny_llama: TinyLlama) -> None:
    model, tokens = tiny_llama(2), ids(9)
    hidden, taps = model.step(model.embed(tokens), model.new_cache(9), taps=(0, 1))
    states = theirs(model).model(tokens[None], output_hidden_states=True).hidden_states
    torch.testing.assert_close(taps[0], states[0][0], **CLOSE)
    torch.testing.assert_close(taps[1], states[1][0], **CLOSE)
    torch.testing.assert_close(model.normed(hidden), states[2][0], **CLOSE)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("seed", range(3))
@torch.inference_mode()
def test_every_node_of_a_tree_sees_its_own_path_and_nothing_else(tiny_llama: TinyLlama, kv_heads: int, seed: int) -> None:
    model = tiny_llama(kv_heads, seed=seed)
    past, pending, nodes = ids(7, seed), ids(3, seed + 10), ids(14, seed + 20)
    parents = [int(torch.randint(-1, i, (1,), generator=torch.Generator().manual_seed(seed + i))) for i in range(14)]
    _, cache = prefilled(model, past, [7])
    positions = torch.tensor([7, 8, 9, *(10 + depth for depth in depths(parents))])
    mask = tree_mask(parents, 7, 3)
    hidden, _ = model.step(model.embed(torch.cat((pending, nodes))), cache, positions, mask)
    logits = model.logits(hidden)[3:]
    for node in range(14):
        path, at = [], node
        while at >= 0:
            path.insert(0, at)
            at = parents[at]
        alone, _ = prefilled(model, torch.cat((past, pending, nodes[path])), [10 + len(path)])
        torch.testing.assert_close(logits[node], alone[-1], **CLOSE)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("past", [0, 5])
@pytest.mark.parametrize("pending", [1, 2, 40, 129, 200])
@torch.inference_mode()
def test_a_prompt_is_read_with_the_tree_behind_it_as_alone(
    tiny_llama: TinyLlama, kv_heads: int, past: int, pending: int
) -> None:
    """Its rows skip the half of the square that the mask would hide."""
    model, tokens, parents = tiny_llama(kv_heads, context=256), ids(past + pending + 5), [-1, 0, 0, -1, 3]
    found = []
    for leading in (0, pending):
        _, cache = prefilled(model, tokens[:past], [past], 256)
        places = [*range(past, past + pending), *(past + pending + depth for depth in depths(parents))]
        mask = tree_mask(parents, past, pending)[leading:]
        rows = Rows(model.embed(tokens[past:]), cache, torch.tensor(places), mask, leading)
        assert rows.causal == (leading if past == 0 else 0)
        found.append(model.runner().step(rows)[0])
    torch.testing.assert_close(*found, **CLOSE)
    alone, _ = prefilled(model, tokens[: past + pending], [past + pending], 256)
    torch.testing.assert_close(model.logits(found[1][:pending]), alone[past:], **CLOSE)


@torch.inference_mode()
def test_the_packed_training_forward_equals_separate_inference_runs(tiny_llama: TinyLlama) -> None:
    """Two questions behind one recording, and a batch of two recordings."""
    model = tiny_llama(2)
    prefix, branches = 6, [ids(4, 3), ids(5, 4)]
    recordings = [ids(prefix, 5), ids(prefix, 6)]
    rows = torch.stack([torch.cat((recording, *branches)) for recording in recordings])
    mask = torch.zeros(9, prefix + 9, dtype=torch.bool)
    mask[:, :prefix] = True
    mask[:4, prefix : prefix + 4] = torch.ones(4, 4).tril().bool()
    mask[4:, prefix + 4 :] = torch.ones(5, 5).tril().bool()
    positions = torch.tensor([*range(6), *range(6, 10), *range(6, 11)])
    packed = model.logits(model.forward(model.embed(rows), positions, prefix, mask[None, None]))
    for batch, recording in enumerate(recordings):
        first, _ = prefilled(model, torch.cat((recording, branches[0])), [10])
        second, _ = prefilled(model, torch.cat((recording, branches[1])), [11])
        torch.testing.assert_close(packed[batch, :10], first, **CLOSE)
        torch.testing.assert_close(packed[batch, 10:], second[6:], **CLOSE)


@torch.inference_mode()
def test_the_training_forward_without_branches_needs_no_mask(tiny_llama: TinyLlama) -> None:
    model, tokens = tiny_llama(4), ids(12)
    expected, _ = prefilled(model, tokens, [12])
    got = model.logits(model.forward(model.embed(tokens[None]), torch.arange(12), 12, None))[0]
    torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("rows", [1, 12])
def test_what_training_changed_in_place_is_seen_by_the_next_step(tiny_llama: TinyLlama, rows: int) -> None:
    """Validation between two epochs: the weights that inference has packed are not final after all."""
    model, tokens = tiny_llama(2, seed=5), ids(rows)
    with torch.inference_mode():
        prefilled(model, tokens, [rows])
    model.train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    model.eval()
    with torch.inference_mode():
        logits, _ = prefilled(model, tokens, [rows])
        torch.testing.assert_close(logits, theirs(model)(tokens[None]).logits[0], **CLOSE)


@torch.inference_mode()
def test_half_precision_works_with_trees_and_grouped_heads(tiny_llama: TinyLlama) -> None:
    model = tiny_llama(2).bfloat16()
    cache = model.new_cache(20)
    model.step(model.embed(ids(5)), cache)
    cache.keep(5, [])
    hidden, _ = model.step(model.embed(ids(3)), cache, torch.tensor([5, 6, 6]), tree_mask([-1, 0, 0], 5, 0))
    assert hidden.dtype == torch.bfloat16
    assert hidden.isfinite().all()
