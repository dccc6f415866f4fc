"""What may be said after an answer, whatever its probability: bans, bad words, least length, grammar."""

from __future__ import annotations

from collections.abc import Sequence

from eventspec.core import ConstraintState, Proposal, Sampling


def advanced(state: ConstraintState | None, token: int, sampling: Sampling) -> ConstraintState | None:
    """The constraint's state after one more token. After a stop token the answer is over, and nothing is asked of it."""
    return None if state is None or token in sampling.stop_ids else state.after(token)


def no_admissible_root(proposal: Proposal, state: ConstraintState | None) -> bool:
    """Whether no node can be accepted, so that none need be scored: all first tokens were chosen and leave the grammar."""
    if state is None or proposal.probs is not None:
        return False
    mask, firsts = state.mask(), proposal.tokens[proposal.parents < 0]
    return not mask[firsts[firsts < len(mask)]].any()


def sayable(tokens: Sequence[int], answer: Sequence[int], sampling: Sampling, state: ConstraintState | None) -> int:
    """How many of these tokens, one after the other, may follow the answer int [A] by bans, bad words, least length and
    grammar (`state` is the constraint's after the answer). Nothing follows a stop token."""
    path = list(answer)
    for count, token in enumerate(tokens):
        early = len(path) < sampling.min_new_tokens and token in sampling.stop_ids
        said = [*sampling.prompt_ids, *path]
        bad = any(completes(word, said, token) for word in sampling.bad_words) or token in repeating(said, sampling)
        if early or bad or token in sampling.banned_ids:
            return count
        if state is not None:
            mask = state.mask()
            if token >= len(mask) or not mask[token]:
                return count
        if token in sampling.stop_ids:
            return count + 1
        path.append(token)
        state = advanced(state, token, sampling)
    return len(tokens)


def completes(word: Sequence[int], path: Sequence[int], token: int) -> bool:
    """Whether `token` after the path completes the sequence."""
    *before, last = word
    return token == last and (not before or list(path[-len(before) :]) == before)


def repeating(said: Sequence[int], sampling: Sampling) -> set[int]:
    """The tokens that would end an n-gram which prompt and answer so far hold already (Paulus et al. 2018, section 2.5)."""
    if not (size := sampling.no_repeat_ngram_size):
        return set()
    before = tuple(said[len(said) - size + 1 :])
    return {said[end] for end in range(size - 1, len(said)) if tuple(said[end - size + 1 : end]) == before}
