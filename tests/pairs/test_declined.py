"""A method that is named drafts until measured costs say that it does not pay, and says so then; `drafting` forces it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from eventspec.ask import Ask, Result, generate, generate_many
from eventspec.core import BadInput
from eventspec.drafters.heads.checkpoint import TrainedHead, save_head
from eventspec.drafters.heads.eagle import EagleConfig, EagleHead
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Folders

RECORDING = Recording.open(DATA / "clips/davis346_traffic_1s")
PRICE = 0.9
"""Of a node, in target steps: no draft is worth it."""


@pytest.fixture(scope="module")
def unsure(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Path]:
    """A checkpoint's pair, and a head with random weights: nothing that it names is likely."""
    pair, place = load_pair(target=folders.video_llava, device_plan="one"), tmp_path_factory.mktemp("head") / "head"
    ends = pair.parts.ends
    head = EagleHead(EagleConfig(replace(ends.config, num_hidden_layers=1)))
    generator = torch.Generator().manual_seed(0)
    for parameter in head.requires_grad_(False).parameters():
        parameter.normal_(0.0, 0.1, generator=generator)
    save_head(TrainedHead(head, ((0.3, 0.1, 0.1, 0.05),)), place, ends)
    return pair, place


def answer(pair: Pair, method: str, draft: str = "auto") -> Result:
    return generate(pair.drafting(draft), RECORDING, "is the car on the way", method, max_new_tokens=12)


def declines(found: Result) -> bool:
    return any(note.startswith("declined: cost") for note in found.trace.notes)


@pytest.mark.parametrize("tree", ["dynamic", "static", "published", "chain"])
def test_guessed_costs_decline_no_head(unsure: tuple[Pair, Path], tree: str) -> None:
    """In the first answer or in a later one, whatever its tree; what is measured may, and is named; always overrules it."""
    pair, place = unsure
    headed, plain = pair.with_head(f"{place}:{tree}"), answer(pair, "autoregressive")
    for _ in range(2):
        found = answer(headed, "eagle")
        assert found.trace.drafted > 0 and not declines(found)
        assert found.token_ids == plain.token_ids
    dear = headed.with_policy("eagle", node_cost=PRICE)
    found = answer(dear, "eagle")
    assert (found.trace.drafted, found.trace.declined) == (0, ["eagle"])
    assert declines(found) and not any("drafted by" in note for note in found.trace.notes)
    forced = answer(dear, "eagle", "always")
    assert forced.trace.drafted > found.trace.drafted and not declines(forced)
    assert forced.token_ids == found.token_ids == plain.token_ids


@pytest.mark.parametrize("method", ["eagle", "prior", "cross-modal"])
def test_drafters_of_a_pair_say_it_too(method: str) -> None:
    """Where a node costs more than it can ever save, of several questions at once as of one."""
    pair = load_pair("nano", "one", fit=False)
    dear = pair.with_policy(node_cost=PRICE, worth=0.5)
    found, forced = answer(dear, method), answer(dear, method, "always")
    assert found.trace.drafted == 0 and declines(found)
    assert forced.trace.drafted > 0 and not declines(forced)
    asks = [Ask(RECORDING, question, method, max_new_tokens=4) for question in ("Is it?", "Is it far?")]
    for draft, declined in (("auto", True), ("always", False)):
        assert [declines(one) for one in generate_many(dear.drafting(draft), asks).results] == [declined] * 2
    assert not declines(answer(pair, method))


def test_plain_decoding_and_texts_without_a_match_decline_nothing() -> None:
    pair = load_pair("nano", "one", fit=False).with_policy(node_cost=PRICE, worth=0.5)
    assert not declines(answer(pair, "autoregressive"))
    assert not answer(pair, "ngram").trace.declined
    with pytest.raises(BadInput, match="choose auto or always"):
        answer(pair, "eagle", "sometimes")
