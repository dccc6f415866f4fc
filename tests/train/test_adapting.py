"""What adapters are taught by, in numbers that are known."""

from __future__ import annotations

import pytest
import torch

from eventspec.train import adapting


def test_stretches_begin_where_a_run_does_and_after_as_many_rows_as_are_drafted() -> None:
    counts = torch.tensor([[False, *(True for _ in range(9)), False, True, True]])
    assert adapting.stretched(counts, 0).tolist() == [[0, 0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 0, 1]]
    assert adapting.stretched(counts, 4).tolist() == [[0, 0, 1, 0, 1, 2, 3, 4, 5, 0, 0, 0, 1]]


def test_mutual_information_is_that_of_gaussians() -> None:
    generator = torch.Generator().manual_seed(0)
    own, noise = (torch.randn(2000, 10, 3, generator=generator) for _ in range(2))
    counts, known = torch.ones(2000, 10, dtype=torch.bool), 0.5 * float(torch.log(torch.tensor(1 + 0.8**2 / 0.6**2)))
    written = 0.8 * own + 0.6 * noise
    assert float(adapting.information(written, own, counts)) == pytest.approx(known, abs=0.02)
    assert float(adapting.information(3 - 7 * written, own, counts)) == pytest.approx(known, abs=0.02), "no sign, no scale"
    assert float(adapting.information(noise, own, counts)) < 0.001, "the control: of noise there is none"
    common = torch.arange(10.0)[None, :, None]
    assert float(adapting.information(noise + common, own + common, counts)) < 0.001, "nor of what all have at a place"
    counts[:, 1:] = False
    assert float(adapting.information(written, own, counts)) == pytest.approx(known, abs=0.05), "of rows that count"
    counts[1:] = False
    assert float(adapting.information(written, own, counts)) == 0.0, "a single one tells nothing"
