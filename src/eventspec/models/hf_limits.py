"""What a transformers model really does with rows, trees and a cache that was cut back: measured with a few random tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from eventspec.core import Proposal, Verdict
from eventspec.models.hf_session import HfLanguage, HfPrompt, HfSession, opened

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Largest difference of two forwards that is rounding, as a share of the logits' spread."""
_PARENTS = (-1, -1, 0, 1, 3)
_ACCEPTED = (1, 3, 4)


def reads_rows(language: HfLanguage, prompt: HfPrompt, own: Tensor) -> bool:
    """Whether a prefill by rows in two parts ends with the logits float [V] of the model's own forward."""
    return _close(_read_but_last(language, prompt).score(Proposal.empty()).logits[0], own)


def rolls_back(language: HfLanguage, prompt: HfPrompt) -> bool:
    """Whether a refused chain leaves no trace in the cache."""
    session, tokens = _read_but_last(language, prompt), _tokens(language)
    session.score(Proposal.chain(tokens[:3]))
    session.commit(_verdict([], tokens[3:4]))
    return _close(session.score(Proposal.empty()).logits[0], _alone(language, prompt, tokens[3:4]))


def reads_trees(language: HfLanguage, prompt: HfPrompt) -> bool:
    """Whether every node of a tree gets the logits of its path alone, and an accepted branch leaves only itself in the
    cache."""
    session, tokens = _read_but_last(language, prompt), _tokens(language)
    scores = session.score(Proposal(np.array(tokens), np.array(_PARENTS)))
    for node in range(len(tokens)):
        path, at = list[int](), node
        while at >= 0:
            path.insert(0, tokens[at])
            at = _PARENTS[at]
        if not _close(scores.logits[node + 1], _alone(language, prompt, path)):
            return False
    said = [*(tokens[node] for node in _ACCEPTED), tokens[0]]
    session.commit(_verdict(_ACCEPTED, said))
    return _close(session.score(Proposal.empty()).logits[0], _alone(language, prompt, said))


def _read_but_last(language: HfLanguage, prompt: HfPrompt) -> HfSession:
    session = opened(language, prompt)
    if len(prompt) > 1:
        session.read(len(prompt) - 1)
    return session


def _tokens(language: HfLanguage) -> list[int]:
    found: list[int] = np.random.default_rng(0).choice(language.vocabulary, len(_PARENTS), replace=False).tolist()
    return found


def _verdict(path: Sequence[int], tokens: Sequence[int]) -> Verdict:
    return Verdict(np.array(path, np.int64), np.array(tokens, np.int64))


def _alone(language: HfLanguage, prompt: HfPrompt, tokens: Sequence[int]) -> Tensor:
    """Logits float [V] after the prompt and these tokens, without a mask of ours."""
    return _read_but_last(language, prompt).score(Proposal.chain(tokens)).logits[-1]


def _close(one: Tensor, other: Tensor) -> bool:
    spread = other.max() - other.min()
    return bool(((one - other).abs().max() <= TOLERANCE[other.dtype] * spread).item())
