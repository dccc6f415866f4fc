"""An answer ends where plain decoding ends it, wherever in an accepted block that is."""

from __future__ import annotations

from typing import Any

import pytest

from eventspec.engine.policy import DraftPolicy
from eventspec.lanes.workers import Workers

ONE = Workers("one")
BLOCKS = [1, 2, 3, 5, 20]


@pytest.mark.parametrize("nodes", BLOCKS)
def test_an_answer_ends_with_the_first_stop_token(nodes: int, tiny: Any, oracle: Any, decoded: Any) -> None:
    world = tiny(3)
    truth = world.answer(world.request(max_new_tokens=20))
    stop = truth[6]
    request = world.request(max_new_tokens=20, stop_ids=(stop, 99))
    ran = decoded(world, oracle(truth, concurrent=False), request, DraftPolicy(head_nodes=nodes, max_nodes=nodes), ONE)
    assert ran.outcome.token_ids == truth[: truth.index(stop) + 1]
    assert ran.outcome.finish_reason == "stop"


@pytest.mark.parametrize("nodes", BLOCKS)
def test_an_answer_ends_when_a_stop_string_is_complete_across_tokens(nodes: int, tiny: Any, oracle: Any, decoded: Any) -> None:
    world = tiny(1)
    truth = world.answer(world.request(max_new_tokens=20))
    string = f"{truth[4]}><{truth[5]}"
    end = next(n for n in range(1, 20) if string in "".join(f"<{t}>" for t in truth[:n]))
    request = world.request(max_new_tokens=20, stop_strings=("never", string))
    ran = decoded(world, oracle(truth, concurrent=False), request, DraftPolicy(head_nodes=nodes, max_nodes=nodes), ONE)
    assert ran.outcome.token_ids == truth[:end]
    assert ran.outcome.finish_reason == "stop"


@pytest.mark.parametrize("nodes", BLOCKS)
@pytest.mark.parametrize("most", [1, 2, 7])
def test_an_answer_is_never_longer_than_asked_for(nodes: int, most: int, tiny: Any, oracle: Any, decoded: Any) -> None:
    world = tiny(3)
    truth = world.answer(world.request(max_new_tokens=20))
    request = world.request(max_new_tokens=most)
    ran = decoded(world, oracle(truth, concurrent=False), request, DraftPolicy(head_nodes=nodes, max_nodes=nodes), ONE)
    assert ran.outcome.token_ids == truth[:most]
    assert ran.outcome.finish_reason == "length"


def test_a_stop_token_in_the_last_place_is_a_stop(tiny: Any, oracle: Any, decoded: Any) -> None:
    world = tiny(3)
    truth = world.answer(world.request(max_new_tokens=20))
    at = next(i for i in range(2, 20) if truth[i] not in truth[:i])
    request = world.request(max_new_tokens=at + 1, stop_ids=(truth[at],))
    ran = decoded(world, oracle(truth, concurrent=False), request, DraftPolicy(), ONE)
    assert ran.outcome.token_ids == truth[: at + 1]
    assert ran.outcome.finish_reason == "stop"


def test_drafts_behind_the_end_do_not_count_as_accepted(tiny: Any, oracle: Any, decoded: Any) -> None:
    world = tiny(3)
    truth = world.answer(world.request(max_new_tokens=20))
    at = next(i for i in range(2, 20) if truth[i] not in truth[:i])
    request = world.request(max_new_tokens=20, stop_ids=(truth[at],))
    ran = decoded(world, oracle(truth, concurrent=False), request, DraftPolicy(head_nodes=19), ONE)
    assert [r.accepted for r in ran.trace.rounds] == [at + 1]
