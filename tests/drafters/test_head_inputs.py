"""What a head keeps of a prompt from question to question."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from eventspec.drafters.heads.views import HeadInputs, PromptView, TargetBatch


@pytest.mark.parametrize("pairs", [1, 2, 7, 40])
def test_what_two_prompts_share_ends_at_the_first_other_pair(pairs: int) -> None:
    rng = np.random.default_rng(pairs)
    one = HeadInputs(torch.randn(pairs, 4), torch.randn(pairs, 3), torch.arange(pairs))
    for part in ("embeds", "tapped", "positions"):
        for at in rng.integers(0, pairs, 6).tolist():
            other = replace(one, **{part: getattr(one, part).clone()})
            getattr(other, part)[at] += 1
            assert one.shared(other) == min(at, pairs - 1), "one pair is left to be read"
    assert one.shared(one) == pairs - 1
    longer = one.continued(one)
    assert (one.shared(longer), longer.shared(one)) == (pairs, pairs - 1)


@pytest.mark.parametrize(
    ("left", "named"),
    [([0, 2, 3, 4], None), ([0, 1, 3], [0, 1, 3]), ([0, 1, 2, 3], [0, 1, 2, 3, 4])],
    ids=["unnamed", "a question's rows", "others than are named"],
)
def test_a_view_that_drops_pairs_says_which_are_left(left: list[int], named: list[int] | None) -> None:
    class Fewer(PromptView):
        def pairs(self, inputs: HeadInputs, visual: tuple[int, int]) -> HeadInputs:
            parts = (inputs.embeds[:, left], inputs.tapped[:, left], inputs.positions[:, left])
            return HeadInputs(*parts, kept=None if named is None else torch.tensor(named))

    rows, places, ids = torch.zeros(1, 5, 2), torch.arange(5)[None], torch.zeros(1, 2, dtype=torch.int64)
    mask = torch.ones(1, 1, 2, 5, dtype=torch.bool)
    batch = TargetBatch(rows, places, rows, {-1: rows}, rows[:, 3:], places, mask, ids, ids, 1, 3, ids > 0)
    assert batch.view((-1,), PromptView()).prefix == 3
    with pytest.raises(ValueError, match=r"Fewer.pairs gave \d of 5 pairs: name those that are left in `kept`"):
        batch.view((-1,), Fewer())
