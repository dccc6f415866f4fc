"""`plan`: its arithmetic is that of physics on paper, agrees with what others recorded, and recovers a law from answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from eventspec.align.acceptance import Calibrated, Predictor
from eventspec.align.deciding import Decision
from eventspec.align.substitute import FEATURES, SubstitutedTarget
from eventspec.core import BadInput
from eventspec.costs.fit import measure_link
from eventspec.experiments.figures import Row
from eventspec.experiments.names import BASE
from eventspec.experiments.plan import (
    BEST_CASE,
    PROFILES,
    RECORDED,
    Link,
    StageTimes,
    chain_ahead,
    methods_of,
    outlook,
    plain,
    profile,
    rule_of_thumb,
)
from eventspec.experiments.skipping import Skipping
from eventspec.experiments.stages import held_out_error, measure, profile_of, stages_of, street_questions
from eventspec.pairs import load_pair

FAST = StageTimes(vision=10.0, prefill=30.0, step=2.0)


def predicted(name: str, method: str, tokens: int) -> dict[str, float]:
    found = outlook(PROFILES[name].stages, methods_of(PROFILES[name], tokens), tokens)["methods"][method]
    return {key: found[key] for key in ("total_ms", "speedup", "share_of_ceiling")}


# ------------------------------------------------------------------------------------------------------------ the ceiling
@pytest.mark.parametrize(("share", "ceiling"), [(0.806, 1.24), (0.6, 1.67), (0.4, 2.5), (0.25, 4.0), (0.15, 6.7)])
def test_the_ceiling_is_one_over_the_prefill_share(share: float, ceiling: float) -> None:
    stages = StageTimes(vision=None, prefill=100 * share, step=100 * (1 - share) / 10)
    assert stages.prefill_share(11) == pytest.approx(share)
    assert stages.ceiling(11) == pytest.approx(ceiling, rel=0.01)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8, 9, 30, 100, 1000])
def test_no_method_passes_the_ceiling(name: str, tokens: int) -> None:
    found = outlook(PROFILES[name].stages, methods_of(PROFILES[name], tokens), tokens)
    assert all(row["speedup"] <= found["ceiling"] for row in found["methods"].values())
    assert found["methods"][BASE]["speedup"] == 1.0
    if tokens == 1:  # the prefill names it: nothing can be gained
        assert {row["total_ms"] for row in found["methods"].values()} == {round(PROFILES[name].stages.first_token, 4)}


def test_verifying_costs_what_the_curve_says() -> None:
    stages = replace(FAST, verify_curve=((1, 1.0), (5, 3.0), (9, 4.0)))
    assert [stages.verify(count) for count in (1, 3, 5, 7, 9, 100)] == [2.0, 4.0, 6.0, 7.0, 8.0, 8.0]
    assert FAST.verify(50) == FAST.step


# ------------------------------------------------------------------------------------------------- figures that are known
@pytest.mark.parametrize(("name", "free"), [("h200-7b", 7.6), ("h200-7b-16-frames", 20), ("h200-7b-64-frames", 114)])
def test_free_draft_tokens_of_the_roofline(name: str, free: float) -> None:
    assert PROFILES[name].stages.free_draft_tokens == pytest.approx(free, rel=0.01)


@pytest.mark.parametrize(
    ("name", "tokens", "speedup"), [("h200-7b", 5, 1.25), ("h200-7b", 20, 1.28), ("h200-7b-64-frames", 100, 2.3)]
)
def test_the_best_case_of_the_head_start_alone(name: str, tokens: int, speedup: float) -> None:
    found = predicted(name, "cross-modal, whole head start accepted", tokens)
    assert found["speedup"] == pytest.approx(speedup, rel=0.01)
    alone = predicted(name, "cross-modal, whole head start accepted, one device", tokens)
    assert alone["total_ms"] > found["total_ms"]


@pytest.mark.parametrize(("tokens", "base", "with_head_start"), [(30, 736, 721), (76, 1401, 1378)])
def test_the_recorded_pair_is_predicted_as_it_was_recorded(tokens: int, base: float, with_head_start: float) -> None:
    """10,970 runs of the 7B pair on one RTX 4090; the second row is to the end of the sentence, 76 tokens in the mean."""
    name = "rtx4090-nf4-7b"
    assert predicted(name, BASE, tokens)["total_ms"] == pytest.approx(base, rel=0.002)
    assert predicted(name, "cross-modal", tokens)["total_ms"] == pytest.approx(with_head_start, rel=0.01)


def test_on_one_device_the_recorded_pair_is_slower_than_its_target() -> None:
    assert predicted("rtx4090-nf4-7b", "cross-modal, one device", 46)["speedup"] == pytest.approx(0.76, abs=0.01)


def test_the_recorded_prefixes_are_those_of_the_record() -> None:
    assert sum(share for share, _ in RECORDED) == pytest.approx(1.0)
    assert sum(share * length for share, length in RECORDED) == pytest.approx(4.4, abs=0.06)


def test_a_drafter_that_is_slower_than_the_prefill_drafts_nothing() -> None:
    late = replace(FAST, drafter_prefill=50.0, drafter_step=1.0)
    assert chain_ahead(late, BEST_CASE, 20, "two", "") == plain(late)
    assert chain_ahead(FAST, BEST_CASE, 20, "two", "") == plain(FAST)


def test_everything_predicted_says_so_and_names_its_source() -> None:
    found = outlook(PROFILES["h200-7b"].stages, methods_of(PROFILES["h200-7b"], 20), 20)
    assert found["predicted"] is True
    for name, row in found["methods"].items():
        assert row["predicted"] is True
        assert row["device_plan"] == ("one" if "one device" in name else "two")
        assert "assumed" in row["acceptance_source"] or name == BASE


def test_an_unknown_profile_and_an_empty_answer_are_refused() -> None:
    with pytest.raises(BadInput, match="rtx4090-nf4-7b, h200-7b, h200-7b-measured, h200-7b-16-frames, h200-7b-64-frames"):
        profile("h100")
    with pytest.raises(BadInput, match="at least 1"):
        outlook(FAST, {BASE: plain(FAST)}, 0)


@pytest.mark.parametrize(("share", "says"), [(0.8, "cross-modal"), (0.3, "depends on"), (0.1, "same-modality")])
def test_the_rule_of_thumb_stands_beside_the_ceiling(share: float, says: str) -> None:
    found = rule_of_thumb(share, "eagle", 1.1)
    assert says in found["says"]
    assert f"{1 / share:.2f}x" in found["ceiling_says"]
    assert "eagle" in found["prediction_says"]
    assert "no method" in rule_of_thumb(share, "ngram", 0.98)["prediction_says"]


# ---------------------------------------------------------------------------------------------------- from answers to plan
def answer(tokens: int, rounds: int, accepted_first: int, first: float, each: float, size: int = 0) -> Row:
    """A row as `generate --json` has it, of a machine without noise; `size`: bytes of a tensor that crossed."""
    timing = {
        "target_vision": 10.0,
        "first_committed": first,
        "decode": (rounds - 1) * each,
        "total": first + (rounds - 1) * each,
    }
    spoken = {
        "rounds": rounds,
        "head_start_accepted": accepted_first,
        "accepted": tokens - rounds,
        "drafted_levels": 2 * tokens,
    }
    drafter = {"drafter_vision": 3.0, "drafter_prefill": None}
    crossed = {"tensors": int(size > 0), "bytes": size}
    return {"token_ids": [0] * tokens, "timing_ms": {**timing, **drafter}, "speculation": spoken, "crossed": crossed}


def answers(lengths: Sequence[int]) -> list[dict[str, Row]]:
    """Plain decoding takes 40 ms and 2 a token; eagle 41 ms, and 5 a round of 4 tokens; cross-modal has 6 tokens after 45 ms,
    then 3 a round of 2."""
    return [
        {
            BASE: answer(n, n, 0, 40.0, 2.0),
            "eagle": answer(n, 1 + (n - 1) // 4, 0, 41.0, 5.0),
            "cross-modal": answer(n, 1 + (n - 6) // 2, 5, 45.0, 3.0),
        }
        for n in lengths
    ]


def test_a_law_is_recovered_and_holds_for_other_lengths() -> None:
    rows = answers([9, 17, 25])
    stages = stages_of(rows)
    assert (stages.vision, stages.prefill, stages.step, stages.drafter_vision) == (10.0, 30.0, 2.0, 3.0)
    eagle = profile_of(rows, "eagle")
    assert (eagle.tau, eagle.round, eagle.begin) == (4.0, 5.0, 1.0)
    assert eagle.total(stages, 201) == pytest.approx(41 + 50 * 5)
    found = outlook(stages, {name: profile_of(rows, name) for name in rows[0]}, 201)
    assert found["methods"][BASE]["total_ms"] == 40 + 200 * 2
    assert found["methods"]["eagle"]["tau"] == pytest.approx(201 / 51, abs=1e-3)
    assert held_out_error(rows, "eagle") == held_out_error(rows, BASE) == 0.0


def test_the_head_start_is_kept_apart_from_the_rounds_behind_it() -> None:
    rows = answers([8, 16, 24])
    found = profile_of(rows, "cross-modal")
    assert (found.tau, found.round, found.begin) == (2.0, 3.0, 5.0)
    assert {committed for _, committed in found.head_start} == {6.0}
    assert found.total(stages_of(rows), 106) == pytest.approx(45 + 50 * 3)
    assert found.total(stages_of(rows), 3) == pytest.approx(45), "an answer may end inside its head start"


def test_answers_that_end_with_the_head_start_say_nothing_of_later_rounds() -> None:
    rows = [{**row, "prior": answer(9, 1, 9, 42.0, 0.0)} for row in answers([9, 9])]
    found = profile_of(rows, "prior")
    assert {committed for _, committed in found.head_start} == {9.0}, "the target's own token would be one too many"
    assert (found.tau, found.round) == (1.0, stages_of(rows).step), "plain decoding, as far as is known"


def test_what_crosses_costs_what_the_link_takes() -> None:
    one, two = answers([9, 9])
    rows = [{**row, "aligned": answer(9, 3, 5, 45.0, 3.0, size)} for row, size in ((one, 3_000_000), (two, 1_000_000))]
    stages, methods = stages_of(rows), {name: profile_of(rows, name) for name in rows[0]}
    usual, slow = (outlook(stages, methods, 20, link) for link in (None, Link(1e-3, 1e9, "a slow one")))
    assert usual["link"] == {"gb_s": 25.0, "tensor_ms": 0.02, "source": "assumed: 25 GB/s, and 20 us a tensor"}
    assert usual["methods"]["aligned"]["transfer_bytes"] == 2_000_000
    assert usual["methods"]["aligned"]["transfer_ms"] == pytest.approx(0.02 + 0.08)
    assert slow["methods"]["aligned"]["transfer_ms"] == pytest.approx(1 + 2)
    for found in (usual, slow):
        assert found["methods"]["cross-modal"]["transfer_bytes"] == found["methods"]["cross-modal"]["transfer_ms"] == 0
        assert found["methods"]["aligned"]["total_ms"] == usual["methods"]["aligned"]["total_ms"], "it was timed with it"


def test_the_link_between_two_devices_is_measured() -> None:
    each, rate = measure_link("cpu", "cpu")
    assert each >= 0 and rate > 0


def test_an_answer_unlike_the_others_is_mispredicted() -> None:
    """Negative control of the error."""
    rows = answers([9, 17, 25, 33])
    odd = [{**row, "eagle": answer(len(row[BASE]["token_ids"]), 3 + i * 7, 0, 41.0, 5.0)} for i, row in enumerate(rows)]
    assert (held_out_error(odd, "eagle") or 0.0) > 0.05
    assert held_out_error(rows[:1], "eagle") is None


@pytest.mark.long
def test_every_lossless_method_of_the_bundled_pair_is_predicted() -> None:
    with load_pair("nano", fit=False) as pair, street_questions(2) as asked:
        found = measure(pair, asked).outlook(40)
    assert not any(question.recording.exists() for question in asked), "the clips are gone behind it"
    lossless = {name for name, m in pair.methods.items() if m.target.lossless and name != "auto"}
    assert set(found["methods"]) == {*lossless, "skip-encode"}
    assert {name for name, row in found["methods"].items() if row["lossless"]} == lossless
    skipping = found["methods"].pop("skip-encode")
    assert 0 < skipping["skipping"]["accept_share"] < 1 and "at a risk of 0.05" in skipping["acceptance_source"]
    assert skipping["skipping"]["accepted_ms"] < skipping["total_ms"] < skipping["skipping"]["rejected_ms"]
    assert {BASE, "hybrid", "cross-modal"} <= set(found["methods"])
    assert all(ms > 0 for ms in found["stages_ms"].values())
    assert all(row["total_ms"] > 0 and "2 answers" in row["acceptance_source"] for row in found["methods"].values())
    assert found["methods"][BASE]["speedup"] == 1.0
    assert (found["answers"], found["recordings"]) == (2, ["clip_000000", "clip_000001"])


def skipped(tokens: int, each: float, stands: bool) -> Row:
    """Of skip-encode: event rows after 6 ms, read in 4, and `each` a token; where it does not stand, the target's 40 ms and 1 a
    token after them."""
    there = 10.0 + (tokens - 1) * each
    first = there if stands else there + 40.0
    decode = 0.0 if stands else (tokens - 1) * 1.0
    times = {"drafter_vision": 6.0, "first_committed": first, "decode": decode, "total": first + decode}
    return {"token_ids": [0] * tokens, "skipped": stands, "timing_ms": times, "crossed": {"tensors": 1, "bytes": 1000}}


def skipping_of(stands: Sequence[bool], share: float | None, rule: str = "predictor") -> Skipping | None:
    aligned = {"timing_ms": {"drafter_prefill": 4.0}}
    rows = [
        {BASE: answer(n, n, 0, 40.0, 2.0), "aligned": aligned, "skip-encode": skipped(n, 0.5, yes)}
        for n, yes in zip((9, 17, 33), stands, strict=True)
    ]
    predictor = Predictor(FEATURES, (0.0,) * 5, (1.0,) * 5, (0.0,) * 5, 0.0)
    known, right = np.array([0.9] * 60 + [0.1] * 40), np.zeros(100, bool)
    calibrated = Calibrated(predictor, known, ~right & (known < 0.5), np.arange(100), 9.0)
    decision, devices = Decision.parse(rule), SimpleNamespace(devices=("cpu", "cpu"))
    target = SubstitutedTarget(None, devices, decision, calibrated, 0.05, "fine")  # type: ignore[arg-type]
    pair = SimpleNamespace(method=lambda name: SimpleNamespace(target=target), workers=SimpleNamespace(placement="one"))
    return Skipping.of_pair(pair, rows, stages_of(rows), share)  # type: ignore[arg-type]


@pytest.mark.parametrize("stands", [(True, False, True), (False, False, False), (True, True, True)])
def test_skip_encode_is_predicted_by_its_calibration(stands: tuple[bool, ...]) -> None:
    """E = T_event + T_align + decode, and of those that do not stand the target's own time after it: the law of the rows is
    found whichever of them stood, and P(accept) is the calibration's, not theirs."""
    found, stages = skipping_of(stands, None), StageTimes(vision=10.0, prefill=30.0, step=2.0)
    assert found is not None and found.share == 0.6, "of 100 answers 60 are at least as sure as the threshold"
    assert (found.rows, found.prefill, found.each) == (6.0, 4.0, pytest.approx(0.5))
    total, accepted, rejected = found.times(stages, 21)
    later = 2.0 if all(stands) else 1.0  # plain decoding, as far as is known
    assert accepted == pytest.approx(6 + 4 + 20 * 0.5)
    assert rejected == pytest.approx(accepted + 40 + 20 * later)
    assert total == pytest.approx(0.6 * accepted + 0.4 * rejected)
    row = found.row(stages, 21, Link.assumed(1.0))
    assert (row["lossless"], row["tau"], row["acceptance"], row["transfer_bytes"]) == (False, None, None, 1000)
    assert row["speedup"] == pytest.approx(80 / total, abs=1e-4)
    assert row["skipping"]["accepted_speedup"] == pytest.approx(80 / 20.0, abs=1e-4)
    given = skipping_of(stands, 0.25)
    assert given is not None and (given.share, given.source) == (0.25, "--accept-share")


def test_a_rule_that_is_no_calibrated_probability_is_predicted_by_what_it_took() -> None:
    usual, early, oracle = (skipping_of((True, False, True), None, rule) for rule in ("predictor", "events", "cosine:0.5"))
    assert usual is not None and early is not None and oracle is not None
    assert early.share == oracle.share == pytest.approx(2 / 3) != usual.share
    assert early.source == "rule events: of 3 answers that were measured"
    assert (usual.answers_first, early.answers_first, oracle.answers_first) == (True, False, True)
    assert oracle.rows > usual.rows == early.rows, "its frames are encoded to decide"


def test_without_a_calibration_skip_encode_is_predicted_for_a_share_that_is_given() -> None:
    rows = answers([9, 9])
    assert Skipping.of_pair(None, rows, stages_of(rows), None) is None  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="--accept-share: the pair has no calibrated adapter"):
        Skipping.of_pair(None, rows, stages_of(rows), 0.5)  # type: ignore[arg-type]
    # 002: 568 ms of vision, 104 of projector, 2040 of decoding; 66 ms for the events, 1 for the adapter.
    notes = StageTimes(vision=568.0, prefill=104.0, step=2040 / 99, drafter_vision=66.0, drafter_prefill=104.0)
    total, accepted, rejected = Skipping.of_profile(notes, 0.868).times(notes, 100)
    assert (accepted, rejected) == (pytest.approx(2211.0), pytest.approx(2712.0 + 67.0))
    assert total == pytest.approx(2211.0 + 0.132 * 568)
    with pytest.raises(BadInput, match="the event model was not timed"):
        Skipping.of_profile(replace(notes, drafter_vision=None), 0.5)
