"""A target on fewer of its own visual rows: labelled lossy, and reduced in the way it says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eventspec.ask import Result, generate, generation
from eventspec.compress.lossy import CompressedEncoder, most_attended
from eventspec.core import BadInput, Sampling, Trace
from eventspec.models.prompt import Prompt
from eventspec.nn import Llama, LlamaConfig
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one")


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open(DATA / "clips/street_scene")


@pytest.fixture(scope="module")
def plain(pair: Pair, recording: Recording) -> Result:
    return generate(pair, recording, "How many road users are visible?", "autoregressive", max_new_tokens=12)


def test_attention_keeps_the_rows_that_the_last_row_looks_at() -> None:
    """Against softmax(q k) of the whole sequence, spelled out."""
    config = LlamaConfig(20, 32, 48, 4, 4, 2, max_position_embeddings=64)
    language = Llama(config).requires_grad_(False).eval()
    for parameter in language.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.4, generator=torch.Generator().manual_seed(parameter.numel()))
    rows = torch.randn(20, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        _, (before,) = language.tapped(rows[None], torch.arange(20), 20, None, (1,))
        layer = language.decoder_layer(1)  # the second: FastV's K = 2
        queries, keys, _ = layer.project(layer.normed(before[0]), language.cos[:20], language.sin[:20])
        shares = torch.stack([(keys[:, head // 2] @ queries[-1, head] / 8**0.5).softmax(0) for head in range(4)]).mean(0)
        kept = most_attended(language, Prompt(rows, (3, 15)), 4)
    assert kept.tolist() == sorted(shares[3:15].topk(4).indices.tolist())


@pytest.mark.parametrize("spec", ["pool:1", "pool:3", "prune:5", "attention:2", "pool:520"])
def test_a_compressed_target_says_that_it_is_lossy(spec: str, pair: Pair, recording: Recording, plain: Result) -> None:
    result = generate(
        pair.with_compression(spec), recording, "How many road users are visible?", "compressed-target", max_new_tokens=12
    )
    assert result.lossless is False
    assert result.visual_tokens == -(-520 // int(spec.split(":")[1]))
    assert plain.lossless
    if spec == "pool:1":
        assert result.token_ids == plain.token_ids


@pytest.mark.parametrize(("spec", "rows"), [("grid:2", 8 * 17), ("max:2", 8 * 17), ("grid:3", 8 * 10), ("max:1", 520)])
def test_squares_of_a_frame_keep_its_class_token(spec: str, rows: int, pair: Pair, recording: Recording, plain: Result) -> None:
    result = generate(
        pair.with_compression(spec), recording, "How many road users are visible?", "compressed-target", max_new_tokens=12
    )
    assert (result.visual_tokens, result.lossless) == (rows, False)
    if spec == "max:1":
        assert result.token_ids == plain.token_ids, "squares of one patch are the patches"


@pytest.mark.parametrize("spec", ["pool:3", "grid:2", "attention:4"])
def test_a_head_on_a_compressed_target_gives_that_targets_answer(spec: str, pair: Pair, recording: Recording) -> None:
    """S_decode x S_compress: lossy against the whole target, lossless against the compressed one."""
    lossy, question = pair.with_compression(spec), "Describe the scene."
    alone = generate(lossy, recording, question, "compressed-target")
    another = lossy.with_head("eagle3").with_head("eagle")
    for made in (lossy.with_head("eagle"), pair.with_head("eagle").with_compression(spec), another):
        drafted = generate(made.drafting("always"), recording, question, "compressed-target")
        assert drafted.token_ids == alone.token_ids, "whichever was chosen first"
        assert drafted.lossless is False
        assert drafted.trace.tau > 1.2 > alone.trace.tau
        assert [note for note in drafted.trace.notes if note.startswith("drafter: head")] == ["drafter: head eagle, dynamic"]
        assert any(note.startswith(f"{spec}: lossy") for note in drafted.trace.notes)
    assert generate(pair.with_head("eagle"), recording, question, "eagle").lossless, "the whole target's stays lossless"


@pytest.mark.parametrize("spec", ["pool:0", "pool", "shrink:3", "pool:-2", "pool:x"])
def test_a_compression_that_cannot_be_is_refused(spec: str, pair: Pair) -> None:
    with pytest.raises(BadInput, match=r"leaves no visual token|cannot be read|unknown compression"):
        pair.with_compression(spec)


def test_squares_larger_than_the_grid_are_refused(pair: Pair) -> None:
    with pytest.raises(BadInput, match="grid:9 is more than a frame has: its grid is 8 x 8"):
        pair.with_compression("grid:9")


def test_a_foreign_target_is_not_reduced(pair: Pair, recording: Recording) -> None:
    foreign: Any = SimpleNamespace(lossless=True, limits=None, encode=print, score=print)
    with pytest.raises(BadInput, match="a target of our own"):
        pair.with_target(foreign).with_compression("pool:3")
    inner = pair.target
    assert isinstance(pair.method("compressed-target").target.encoder, CompressedEncoder)  # type: ignore[attr-defined]
    assert pair.method("prior").target is inner
    asking = generation(pair, recording, "?", "autoregressive", None, Sampling(max_new_tokens=2))
    assert asking.result().trace.sizes["visual"] == 520
    assert Trace().sizes == {}
