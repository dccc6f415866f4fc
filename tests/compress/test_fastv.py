"""FastV as published: rows leave behind a layer, the others keep their places; the same as transformers with that mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eventspec.ask import generate
from eventspec.compress.fastv import FastVSession, FastVTarget
from eventspec.core import BadInput, Media, Proposal, Sampling, Trace, Verdict
from eventspec.models.prompt import Prompt, TextEncoder
from eventspec.models.session import LanguageTarget
from eventspec.nn import Llama, LlamaConfig
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

SIZES = LlamaConfig(40, 32, 48, 5, 4, 2, max_position_embeddings=64)
VISUAL = (3, 15)
SAMPLING = Sampling(max_new_tokens=12)


def language() -> Llama:
    made = Llama(SIZES).requires_grad_(False).eval()
    for number, parameter in enumerate(made.parameters()):
        torch.nn.init.normal_(parameter, 0.0, 0.3, generator=torch.Generator().manual_seed(number))
    return made


def target(model: Llama, size: int = 3, behind: int = 2) -> FastVTarget:
    rows = torch.randn(20, 32, generator=torch.Generator().manual_seed(1))
    return FastVTarget(TextEncoder(model, lambda question: Prompt(rows, VISUAL)), size, behind)


def opened(made: FastVTarget) -> FastVSession:
    return made.encode(Media(), Trace()).open("?", SAMPLING, 1, Trace())


def theirs(model: Llama, kept: torch.Tensor, rows: torch.Tensor, behind: int) -> torch.Tensor:
    """Logits [T, V] of transformers' LlamaForCausalLM, whose layers behind `behind` hide the rows that were dropped."""
    from transformers import LlamaConfig as TheirConfig
    from transformers import LlamaForCausalLM

    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    own = {name: getattr(SIZES, name) for name in (*names, "num_key_value_heads", "max_position_embeddings", "rms_norm_eps")}
    other = LlamaForCausalLM(TheirConfig(**own, rope_theta=10000.0, attn_implementation="eager")).eval()
    state = other.state_dict()
    from eventspec.models.weights import layer_sources

    ours = model.state_dict()
    for number in range(SIZES.num_hidden_layers):
        for name, parts in layer_sources(SIZES, f"layers.{number}.", f"model.layers.{number}.").items():
            whole, at = ours[name], 0
            for source, _ in parts:
                size = state[source].shape[0]
                state[source].copy_(whole[at : at + size])
                at += size
    for theirs_name, name in (("model.embed_tokens", "embed"), ("lm_head", "head")):
        state[f"{theirs_name}.weight"].copy_(ours[f"{name}.weight"])
    state["model.norm.weight"].copy_(ours["norm"])
    other.load_state_dict(state)
    total = len(rows)
    causal = torch.ones(total, total, dtype=torch.bool).tril()
    dropped = torch.ones(total, dtype=torch.bool)
    dropped[kept] = False
    hidden, places = rows[None], torch.arange(total)[None]
    rope = other.model.rotary_emb(hidden, places)
    for number, layer in enumerate(other.model.layers):
        seen = causal if number < behind else causal & ~dropped
        seen = seen | torch.eye(total, dtype=torch.bool)  # a row that nobody looks at may look at itself
        mask = torch.zeros(total, total).masked_fill_(~seen, torch.finfo(torch.float32).min)[None, None]
        found = layer(hidden, attention_mask=mask, position_ids=places, position_embeddings=rope)
        hidden = found[0] if isinstance(found, tuple) else found
    logits: torch.Tensor = other.lm_head(other.model.norm(hidden))[0]
    return logits


@pytest.mark.parametrize(("size", "behind"), [(3, 2), (12, 1), (2, 4), (1, 2)])
@torch.inference_mode()
def test_kept_rows_have_the_logits_of_transformers_with_the_same_mask(size: int, behind: int) -> None:
    model = language()
    made = target(model, size, behind)
    session = opened(made)
    assert len(session.kept) == 8 + -(-12 // size), "all of the text, and one visual row of so many"
    tokens = [7, 11, 5, 9]
    found = [session.score(Proposal.chain([])).logits]
    for token in tokens:
        session.commit(Verdict(np.array([], np.int64), np.array([token])))
        found.append(session.score(Proposal.chain([])).logits)
    rows = torch.cat((session._prompt.rows, model.embed(torch.tensor(tokens))))
    kept = torch.cat((session.kept, torch.arange(20, 24)))
    wanted = theirs(model, kept, rows, behind)[19:]
    torch.testing.assert_close(torch.cat(found), wanted, rtol=1e-4, atol=1e-4)
    if size > 1:
        whole = theirs(model, torch.arange(24), rows, behind)[19:]
        assert float((whole - wanted).abs().max()) > 1e-2, "a control: with every row the logits are others"


@torch.inference_mode()
def test_a_tree_is_verified_as_its_paths_are_one_by_one() -> None:
    model = language()
    made = target(model)
    tree = Proposal(np.array([4, 8, 6, 9, 2]), np.array([-1, -1, 0, 2, 1]))
    for before in ([], [7, 12]):
        session = opened(made)
        for token in before:
            session.score(Proposal.chain([]))
            session.commit(Verdict(np.array([], np.int64), np.array([token])))
        logits = session.score(tree).logits
        for path, row in (([], 0), ([4], 1), ([8], 2), ([4, 6], 3), ([4, 6, 9], 4), ([8, 2], 5)):
            alone = opened(made)
            for token in (*before, *path):
                alone.score(Proposal.chain([]))
                alone.commit(Verdict(np.array([], np.int64), np.array([token])))
            torch.testing.assert_close(alone.score(Proposal.chain([])).logits[0], logits[row], rtol=1e-4, atol=1e-4)
        # What was accepted stays: the bonus token's logits are those of the whole text.
        session.commit(Verdict(np.array([0, 2]), np.array([4, 6, 3])))
        alone = opened(made)
        for token in (*before, 4, 6, 3):
            alone.score(Proposal.chain([]))
            alone.commit(Verdict(np.array([], np.int64), np.array([token])))
        after, plain = session.score(Proposal.chain([])).logits, alone.score(Proposal.chain([])).logits
        torch.testing.assert_close(after, plain, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_drafter_gets_the_features_of_the_rows_that_stay() -> None:
    """Where every row stays, of any layer what the whole target gives; else of as many rows as stay."""
    model, taps, tree = language(), (1, 2, 4, -1), Proposal(np.array([4, 8, 6]), np.array([-1, -1, 0]))
    whole = target(model, size=1).encode(Media(), Trace()).open("?", SAMPLING, 1, Trace(), taps)
    plain = LanguageTarget(target(model).encoder, lossless=False).encode(Media(), Trace()).open("?", SAMPLING, 1, Trace(), taps)
    for _ in range(2):
        ours, wanted = whole.score(tree), plain.score(tree)
        assert ours.features is not None and wanted.features is not None
        torch.testing.assert_close(ours.features, wanted.features, rtol=1e-4, atol=1e-4)
        seen, known = whole.prompt(), plain.prompt()
        assert seen.features is not None and known.features is not None
        torch.testing.assert_close(seen.features, known.features, rtol=1e-4, atol=1e-4)
        assert (seen.visual, len(seen.rows)) == (VISUAL, 20)
        for session in (whole, plain):
            session.commit(Verdict(np.array([0, 2]), np.array([4, 6, 3])))
    fewer = target(model, size=3).encode(Media(), Trace()).open("?", SAMPLING, 1, Trace(), taps)
    fewer.score(tree)
    seen = fewer.prompt()
    assert seen.features is not None
    assert (seen.features.shape, len(seen.rows), seen.visual) == ((12, 4 * 32), 12, (3, 7))


def test_what_fastv_cannot_do_is_said() -> None:
    model = language()
    with pytest.raises(BadInput, match="drops rows behind layer 5: the target has 5"):
        target(model, behind=5)
    with pytest.raises(BadInput, match="fastv:13 is more than the 12 visual rows of the prompt"):
        opened(target(model, size=13))


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one")


def test_fastv_answers_with_every_drafter_as_it_does_alone(pair: Pair) -> None:
    """Lossy against the whole target, lossless against itself; a head reads the features of the rows that stay."""
    recording, question = Recording.open(DATA / "clips/street_scene"), "Describe the scene."
    lossy = pair.with_compression("fastv:4")
    plain = generate(lossy, recording, question, "compressed-target")
    assert plain.lossless is False
    assert (
        generate(pair.with_compression("fastv:1"), recording, question, "compressed-target").token_ids
        == generate(pair, recording, question, "autoregressive").token_ids
    ), "where every row stays it is the target"
    for head in ("eagle", "eagle3", "specvlm:prune", "hivis:chain"):
        headed = generate(lossy.with_head(head).drafting("always"), recording, question, "compressed-target")
        assert headed.token_ids == plain.token_ids, head
        assert headed.trace.tau > 1.2, head
