"""What a head keeps of a prompt from question to question."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from eventspec.drafters.heads.views import HeadInputs


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
