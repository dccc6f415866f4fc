"""Target and drafter on devices of their own: every method gives the target's answer, and nothing crosses but in the one place
that the trace tells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import far_device
import numpy as np
import pytest
import torch
from far_device import DRAFTER, TARGET

from eventspec.align.acceptance import Calibrated, Predictor
from eventspec.align.adapters import Adapter, AdapterConfig, Output, width_to
from eventspec.align.substitute import FEATURES
from eventspec.ask import Result, generate
from eventspec.core import Sampling, Trace
from eventspec.drafters import LanguageDrafter, Retokenized
from eventspec.drafters.heads.checkpoint import TrainedHead, save_head
from eventspec.drafters.heads.eagle import EagleConfig, EagleHead
from eventspec.experiments.compare import arms_of, environment, settings_of
from eventspec.experiments.stages import link_of
from eventspec.models.prompt import crossing
from eventspec.pairs import Pair, load_pair, trained
from eventspec.pairs.pair_file import PairFile
from eventspec.pairs.trained import ACCEPTANCE, digest_of, save_adapter
from eventspec.recordings import Recording
from eventspec.train.models import initialise

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Folders

SHARED = Path(__file__).parents[2].parent / "shared/goldens"
LOSSLESS = ("cross-modal", "eagle", "hybrid", "hybrid-blind", "cascade", "aligned", "event-eagle", "ngram", "auto")
ELSEWHERE = ("cross-modal", "hybrid", "aligned", "event-eagle")
PLACES = {"apart": (TARGET, DRAFTER), "drafter": ("cpu", DRAFTER), "target": (TARGET, "cpu")}
CROSSING = {"aligned": 1, "event-eagle": 4}
"""Methods in which one model reads what another computed, and how many tensors at least."""
PLAIN = Sampling()
ROWS, FEATURES_ADAPTER = "attention", "fused"
OF_THE_NOTES: dict[str, Output] = {"cached": "rows", "bottleneck": "tower", "autoregressive": "features"}


@pytest.fixture(scope="module")
def checkpoints(folders: Folders) -> tuple[Path, Path]:
    """Target and drafter: the golden ones, whose tokenizers differ; where those are not beside this checkout, others."""
    golden = SHARED / "video_llava/checkpoint", SHARED / "eventgpt/checkpoint"
    return golden if SHARED.exists() else (folders.video_llava, folders.eventgpt)


@pytest.fixture(scope="module")
def folder(checkpoints: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their file with adapters and a head of random weights, each on the CPU as it is written."""
    place, how = tmp_path_factory.mktemp("pair"), {"dtype": "float32", "frames": 2}
    file = PairFile.of_checkpoints(place, *checkpoints, "golden", how)
    file.write()
    parts = load_pair(place, fit=False).parts
    assert parts.adapters is not None
    torch.manual_seed(3)
    outputs: dict[str, Output] = {ROWS: "rows", FEATURES_ADAPTER: "features", **OF_THE_NOTES}
    for kind, output in outputs.items():
        between = parts.adapters.drafter, parts.adapters.target
        made = initialise(Adapter(AdapterConfig.of(kind, between[0].config, width_to(between[1].config, output), output)))
        save_adapter(made, place / kind, *between)
        file = file.listing("adapters", kind, kind)
    head = EagleHead(EagleConfig(replace(parts.ends.config, num_hidden_layers=1)))
    save_head(TrainedHead(head, ((0.3, 0.1, 0.1, 0.05),)), place / "eagle", parts.ends)
    file.listing("heads", "eagle", "eagle").write()
    return place


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open("example:street")


def answered(pair: Pair, recording: Recording, method: str) -> Result:
    return generate(pair, recording, "What is moving?", method, max_new_tokens=10)


@pytest.fixture(scope="module")
def here(folder: Path) -> Iterator[Pair]:
    """All of it on the CPU."""
    with load_pair(folder, "two", fit=False) as pair:
        yield pair.drafting("always")


@pytest.fixture(scope="module")
def plain(here: Pair, recording: Recording) -> list[int]:
    return answered(here, recording, "autoregressive").token_ids


@pytest.fixture(scope="module")
def devices(folder: Path) -> Iterator[dict[str, Pair]]:
    """The pair on two devices, by `PLACES`."""
    with pytest.MonkeyPatch.context() as patch:
        far_device.on_lanes(patch)
        yield {name: far_pair(folder, *where) for name, where in PLACES.items()}


def far_pair(folder: Path, target: str, drafter: str) -> Pair:
    with far_device.far_devices():
        return eager(load_pair(folder, fit=False, device=target, drafter_device=drafter))


def eager(pair: Pair) -> Pair:
    """A busy machine must not decide what is drafted."""
    return pair.drafting("always").with_policy(patience=1e5)


def adapted(pair: Pair, name: str, method: str | None = None) -> Pair:
    with far_device.far_devices():
        return eager(pair.with_adapter(name, method))


@pytest.mark.parametrize(
    ("place", "method"),
    [("apart", name) for name in LOSSLESS]
    + [pytest.param(place, name, marks=pytest.mark.long) for place in ("drafter", "target") for name in ELSEWHERE],
)
def test_every_method_gives_the_targets_answer_and_tells_what_crosses(
    place: str, method: str, devices: dict[str, Pair], recording: Recording, plain: list[int]
) -> None:
    found = answered(devices[place], recording, method)
    assert (found.token_ids, found.trace.given_up) == (plain, []), found.trace.notes
    assert found.trace.drafted > 0 or method == "ngram"  # which finds nothing in a short answer
    told, spans = found.as_json(), [span for span in found.trace.spans if span.stage == "transfer"]
    assert (told["device_plan"], told["devices"]) == ("two", dict(zip(("target", "drafter"), PLACES[place], strict=True)))
    assert len(spans) >= CROSSING.get(method, 0) and bool(spans) == (method in CROSSING)
    assert [span.bytes for span in spans] == found.trace.crossed
    assert (told["timing_ms"]["transfer"] is None) == (method not in CROSSING)
    if method == "aligned":
        between = devices[place].parts.adapters
        assert between is not None
        assert spans[0].bytes == 4 * between.drafter.config.event_tokens * between.target.config.language.hidden_size


def test_plain_decoding_of_a_target_elsewhere_is_the_same(
    devices: dict[str, Pair], recording: Recording, plain: list[int]
) -> None:
    for pair in devices.values():
        assert answered(pair, recording, "autoregressive").token_ids == plain


@pytest.mark.parametrize("method", ["aligned", "event-eagle"])
def test_hybrid_drafts_through_an_adapter(
    method: str, devices: dict[str, Pair], recording: Recording, plain: list[int]
) -> None:
    which = ROWS if method == "aligned" else FEATURES_ADAPTER
    found = answered(adapted(devices["apart"], which, "hybrid"), recording, "hybrid")
    assert (found.token_ids, found.trace.given_up) == (plain, []), found.trace.notes
    assert any(span.stage == "transfer" for span in found.trace.spans)


@pytest.mark.parametrize("kind", OF_THE_NOTES)
def test_adapters_of_the_early_notes_read_across(
    kind: str, devices: dict[str, Pair], recording: Recording, plain: list[int]
) -> None:
    """The target's rows are moved to the event model that looks at them, once a recording."""
    method = "event-eagle" if kind == "autoregressive" else "aligned"
    asked = adapted(devices["apart"], kind).open(recording)
    for question in range(2):
        found = asked.ask("What is moving?", method, max_new_tokens=10)
        assert (found.token_ids, found.trace.given_up) == (plain, []), found.trace.notes
        assert found.trace.drafted > 0
        back = [span.bytes for span in found.trace.spans if span.stage == "transfer"][:-1]
        assert bool(back) == (kind == "autoregressive" or (kind == "cached" and question == 1))


def test_an_answer_from_events_alone_tells_what_crossed(
    folder: Path, devices: dict[str, Pair], recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows cross in the lane in which it is made, beside the frames' encoding."""
    monkeypatch.setattr("eventspec.pairs.methods.LONGEST", 4)
    shares, numbers = np.linspace(0.0, 0.999, 400), (0.0,) * len(FEATURES)
    predictor = Predictor(FEATURES, numbers, (1.0,) * len(FEATURES), numbers, 20.0)
    known = Calibrated(predictor, shares, shares < 0.5, np.arange(400), 9.0)
    replace(known, of={"adapter": digest_of(folder / ROWS)}).save(folder / ROWS / ACCEPTANCE)
    try:
        found = answered(far_pair(folder, TARGET, DRAFTER), recording, "skip-encode")
    finally:
        (folder / ROWS / ACCEPTANCE).unlink()
    moved = [(span.lane, span.bytes) for span in found.trace.spans if span.stage == "transfer"]
    assert moved == [("drafter", *found.trace.crossed)]


def test_on_one_device_nothing_is_moved(here: Pair, recording: Recording, plain: list[int]) -> None:
    for method in CROSSING:
        found = answered(here, recording, method)
        assert found.token_ids == plain
        assert len(found.trace.crossed) >= CROSSING[method]
        assert not [span for span in found.trace.spans if span.stage == "transfer"]
        assert found.as_json()["timing_ms"]["transfer"] is None
    rows = torch.ones(2, 3)
    assert crossing(rows, torch.ones(1), trace := Trace(), "drafter") is rows
    assert (trace.spans, trace.crossed) == ([], [24])


def test_adapters_live_with_the_event_model(folder: Path, devices: dict[str, Pair]) -> None:
    adapters = devices["apart"].parts.adapters
    assert adapters is not None and adapters.devices == (TARGET, DRAFTER)
    with far_device.far_devices():
        for name in (ROWS, FEATURES_ADAPTER):
            adapter = trained.load_adapter(folder / name, adapters.drafter, adapters.target)
            assert {str(weight.device) for weight in adapter.parameters()} == {DRAFTER}


def test_two_devices_in_turns(devices: dict[str, Pair], recording: Recording, plain: list[int]) -> None:
    """A control: what the same devices take where nothing overlaps."""
    with devices["apart"].on("one") as pair:
        found = answered(pair, recording, "event-eagle")
    assert (found.token_ids, found.trace.given_up, found.device_plan) == (plain, [], "one")
    assert found.trace.drafted > 0 and any(span.stage == "transfer" for span in found.trace.spans)


def test_another_drafter_comes_to_the_drafters_device(devices: dict[str, Pair], checkpoints: tuple[Path, Path]) -> None:
    with far_device.far_devices():
        pair = devices["apart"].with_event_drafter(str(checkpoints[1]), "retokenize")
    drafter = pair.parts.event_drafter
    assert isinstance(drafter, Retokenized) and isinstance(drafter.inner, LanguageDrafter)
    assert str(drafter.inner.model.language.embed.weight.device) == DRAFTER


def test_figures_name_two_devices_and_have_no_baseline_on_more_cores(devices: dict[str, Pair], here: Pair) -> None:
    """Each model has all of its device already; cores are another matter."""
    where = {"devices": {"target": TARGET, "drafter": DRAFTER}}
    far = devices["apart"]
    for told, plainly in ((environment(far), environment(here)), (settings_of(far, PLAIN, {}), settings_of(here, PLAIN, {}))):
        assert told.items() >= where.items() and "devices" not in plainly
    assert [arm.name for arm in arms_of(far, ["autoregressive"])] == ["autoregressive"]
    assert len(arms_of(here, ["autoregressive"])) == 2


def test_the_link_is_measured_where_there_are_two_devices(devices: dict[str, Pair], here: Pair) -> None:
    found = link_of(devices["apart"])
    assert found is not None and found.source == f"measured here, from {DRAFTER} to {TARGET}"
    assert found.ms(1, 1 << 20) > found.ms(1, 0) >= 0
    assert link_of(here) is None


# --------------------------------------------------------------------------------------------------------- negative controls
@pytest.mark.parametrize(
    ("planted", "says"),
    [
        (lambda rows, like, trace, lane: rows, r"SilentCrossing: aten\.\w+\.\w+ on tensors of lazy:0 and lazy:1"),
        (lambda rows, like, trace, lane: rows.to(like), r"SilentCrossing: .* numbers went from lazy:1 to lazy:0"),
        (lambda rows, like, trace, lane: rows.cpu().to(like), r"SilentCrossing: .* numbers went from lazy:1 to cpu"),
        (
            lambda rows, like, trace, lane: torch.from_numpy(rows.numpy(force=True)).to(like),
            r"SilentCrossing: .* numbers went from cpu to lazy:0",
        ),
    ],
    ids=["left", "copied", "by way of the host", "by way of numpy"],
)
@pytest.mark.parametrize("method", CROSSING)
def test_a_planted_crossing_is_caught(
    method: str,
    planted: object,
    says: str,
    devices: dict[str, Pair],
    recording: Recording,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("eventspec.models.prompt", "eventspec.pairs.trained"):
        monkeypatch.setattr(f"{module}.crossing", planted)
    found = answered(adapted(devices["apart"], ROWS if method == "aligned" else FEATURES_ADAPTER), recording, method)
    assert found.trace.given_up == [method]
    assert any(re.search(says, note) for note in found.trace.notes), found.trace.notes
