"""Gaps between made-up states: what is planted is found, the control is another recording's, what does not exist says why."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eventspec.align import gaps as definitions
from eventspec.align.adapters import Adapter, AdapterConfig
from eventspec.cli.features import lines_of
from eventspec.core import BadCheckpoint, BadInput
from eventspec.experiments import gaps
from eventspec.models import weights
from eventspec.models.configuration import pretty
from eventspec.train.models import initialise
from eventspec.train.states import Entry, Shards, States

PRINTS = {"drafter": "d" * 16, "target": "t" * 16}
VISUAL, TEXT, WIDE = 12, 9, 8


def made(folder: Path, recordings: int = 8, narrow: int = WIDE, noise: float = 0.2) -> States:
    """States of a few recordings: the event model's are the target's and some noise, in visual layers and text; `narrow`: how
    wide the event model's tower is."""
    rng, folder = np.random.default_rng(5), folder / "states"
    folder.mkdir()
    shards = Shards(folder, "float16")
    for at in range(0, recordings, 3):
        entries, arrays = [], dict[str, list[Any]]()
        for number in range(at, min(at + 3, recordings)):
            entries.append(Entry(f"clip {number}", None, number % 2 == 0, VISUAL, TEXT))
            for layer, rows in (("tower", VISUAL), ("rows", VISUAL), ("penultimate", TEXT), ("last", TEXT)):
                theirs = rng.normal(size=(1, WIDE)) + rng.normal(size=(rows, WIDE))
                ours = theirs + noise * rng.normal(size=theirs.shape)
                found = {f"{layer}.target": theirs, f"{layer}.drafter": ours[:, :narrow] if layer == "tower" else ours}
                if layer in ("penultimate", "last"):
                    found[f"{layer}.control"] = rng.normal(size=theirs.shape)
                for name, array in found.items():
                    arrays.setdefault(name, []).append(array)
            for name in ("tower_1.drafter", "tower_2.drafter"):
                arrays.setdefault(name, []).append(rng.normal(size=(VISUAL, narrow)))
            arrays.setdefault("read.drafter", []).append(rng.normal(size=(TEXT, WIDE)))
        shards.add(entries, {name: np.concatenate(parts).astype(np.float32) for name, parts in arrays.items()})
    shards.write_index({"pair": "made up", "pair_folder": str(folder.parent), "fingerprints": PRINTS, "left_out": 0})
    return States.open(folder)


def saved_adapter(folder: Path, output: Any, kind: str = "linear", **prints: str) -> Path:
    """An adapter's folder for the made-up models."""
    torch.manual_seed(0)
    layers = {"rows": (1, 2, 3), "features": (1, 2)}[output] if kind == "fused" else ({"rows": 3, "features": 1}[output],)
    adapter = initialise(Adapter(AdapterConfig(kind, output, layers, WIDE, WIDE)))
    folder.mkdir(parents=True)
    weights.save(adapter, folder / "model.safetensors", weights.own_names(adapter))
    config = {"model_type": "adapter", "dtype": "float16", **adapter.config.as_json(), "eventspec": {**PRINTS, **prints}}
    (folder / "config.json").write_text(pretty(config))
    return folder


def arm(found: dict[str, Any], layer: str, adapter: str | None = None, control: bool = False) -> dict[str, Any]:
    (row,) = [row for row in found["rows"] if (row["layer"], row["adapter"], row["control"]) == (layer, adapter, control)]
    return row  # type: ignore[no-any-return]


def test_what_is_alike_is_found_and_another_clips_is_not(tmp_path: Path) -> None:
    states = made(tmp_path)
    found = gaps.measure(states, {}, False)
    assert [(row["layer"], row["control"]) for row in found["rows"]] == [
        (layer, control) for layer in ("tower", "rows", "penultimate", "last") for control in (False, True)
    ]
    for layer in ("rows", "last"):
        own, other = arm(found, layer), arm(found, layer, control=True)
        assert own["cosine"] > 0.9 > 0.5 > other["cosine"]
        assert own["linear_cka"] > 0.8 > other["linear_cka"]
        assert own["l2"] < other["l2"]
        assert own["above"]["0.8"] >= own["above"]["0.9"] > 0.8 > 0.2 > other["above"]["0.8"]
        assert own["wasserstein"] < found["layers"][layer]["floor"]["wasserstein"]
        assert abs(own["classifier"] - 0.5) < 0.1
        assert not own["missing"]
        for name in ("cosine", "l2", *gaps.BY_SET, "linear_cka", "classifier"):
            low, high = own["intervals"][name]
            assert low <= own[name] <= high, name
    x, y = (np.concatenate([states.rows(place, f"rows.{role}") for place in range(8)]) for role in ("drafter", "target"))
    own = arm(found, "rows")
    assert own["cosine"] == pytest.approx(definitions.cosine(x, y))
    assert own["mmd"] == pytest.approx(definitions.mmd(x, y, definitions.median_distance(y, y))), (
        "all rows are taken where they are few"
    )
    shifted = [states.rows((place + 1) % 8, "rows.drafter") for place in range(8)]
    assert arm(found, "rows", control=True)["cosine"] == pytest.approx(definitions.cosine(np.concatenate(shifted), y))
    same, control = (
        np.concatenate([states.rows(place, f"last.{role}") for place in range(8)]) for role in ("target", "control")
    )
    assert arm(found, "last", control=True)["l2"] == pytest.approx(definitions.l2(control, same))


def test_after_an_adapter_its_own_inputs_are_read(tmp_path: Path) -> None:
    states = made(tmp_path)
    places = {
        "to rows": saved_adapter(tmp_path / "a", "rows", "fused"),
        "to features": saved_adapter(tmp_path / "b", "features", "fused"),
    }
    (tmp_path / "pair.toml").write_text(
        'format = "eventspec-pair"\nversion = 1\nname = "x"\n[adapters]\n"to rows" = "a"\n"to features" = "b"\n'
    )
    adapters = gaps.adapters_of(states, [])
    assert list(adapters) == list(places)
    found = gaps.measure(states, adapters, False)
    inputs = {
        ("rows", "to rows", False): ("tower_1.drafter", "tower_2.drafter", "tower.drafter"),
        ("last", "to features", False): ("last.drafter", "read.drafter"),
        ("last", "to features", True): ("last.control", "read.drafter"),
    }
    for (layer, name, control), arrays in inputs.items():
        cosines = []
        for place in range(8):
            read = [torch.from_numpy(states.rows(place, array)) for array in arrays]
            with torch.no_grad():
                cosines.append(
                    definitions.by_row(adapters[name](read).numpy(), states.rows(place, f"{layer}.target"))["cosine"]
                )
        assert arm(found, layer, name, control)["cosine"] == pytest.approx(np.mean(cosines), abs=1e-5)
    assert {row["adapter"] for row in found["rows"] if row["layer"] in ("tower", "penultimate")} == {None}
    assert list(gaps.adapters_of(states, [str(places["to rows"])])) == [str(places["to rows"])]


def test_other_widths_leave_what_needs_no_common_space(tmp_path: Path) -> None:
    found = gaps.measure(made(tmp_path, recordings=4, narrow=5), {}, False)
    row = arm(found, "tower")
    for name in ("cosine", "l2", *gaps.BY_SET, "classifier"):
        assert row[name] is None and row["intervals"][name] is None
        assert "5 columns, the target's 8" in row["missing"][name]
    assert row["above"] == {"0.8": None, "0.85": None, "0.9": None}
    assert 0 < row["linear_cka"] <= 1
    assert "4 recordings: an interval takes 5 at least" in row["missing"]["intervals"]
    assert "too few recordings for intervals" in found["notes"][0]
    lines = lines_of(found)
    assert any("5 columns, the target's 8" in line for line in lines)
    assert all(len(line) <= 100 for line in lines)


def test_only_what_trainings_keep_back(tmp_path: Path) -> None:
    states = made(tmp_path)
    adapters = {"one": gaps.adapters_of(states, [str(saved_adapter(tmp_path / "a", "rows"))]).popitem()[1]}
    every, kept = (gaps.measure(states, adapters, held_out) for held_out in (False, True))
    assert (every["recordings"], kept["recordings"]) == (8, 4)
    assert any("may have learned from some" in note for note in every["notes"])
    assert not any("may have learned" in note for note in kept["notes"])
    with pytest.raises(BadInput, match="holds 1 recording that trainings keep back: two are needed"):
        (tmp_path / "few").mkdir()
        gaps.measure(made(tmp_path / "few", recordings=2), {}, True)


def test_the_control_of_a_window_shares_no_moment_with_it(tmp_path: Path) -> None:
    """Here the next window is the same scene, and the control of it would look as good as what is measured."""
    states = made(tmp_path, recordings=4)
    windows = [(0, 300), (10, 310), (400, 700), (410, 710)]
    entries = [replace(one, name="drive", window=window) for one, window in zip(states.recordings, windows, strict=True)]
    same = np.concatenate([states.rows(place - place % 2, "rows.drafter") for place in range(4)])
    seen = [same[at : at + VISUAL] for at in range(0, len(same), VISUAL)]
    rows = {"rows.drafter": seen, "rows.target": seen}
    windowed = replace(states, recordings=tuple(entries))
    whole = States.rows

    class Alike(States):
        def rows(self, place: int, array: str) -> Any:
            return rows[array][place] if array in rows else whole(self, place, array)

    found = gaps.measure(Alike(windowed.folder, windowed.about, windowed.recordings), {}, False)
    assert arm(found, "rows")["cosine"] > 0.99
    assert arm(found, "rows", control=True)["cosine"] < 0.9
    entries = [replace(one, window=(at, at + 300)) for at, one in enumerate(entries)]
    with pytest.raises(BadInput, match="the control is the events of another recording"):
        gaps.measure(replace(states, recordings=tuple(entries)), {}, False)


def test_one_ruler_measures_all_arms_of_a_layer(tmp_path: Path) -> None:
    """A ruler of its own for every arm grows with what it measures: 0.83 at a distance of ten, and 0.81 at three."""
    states = made(tmp_path)
    sides = gaps._sides(states, "rows", list(range(8)), gaps._reader(states, "rows", None, None))
    every, found = np.ones(len(sides.groups), bool), dict[float, float]()
    for far in (10.0, 3.0):
        shifted = replace(sides, ours=sides.theirs + far / math.sqrt(WIDE))
        found[far] = gaps._statistics(shifted)["mmd"](every)
    assert found[10.0] > 1.5 * found[3.0] > 0
    about = gaps._about(states, "rows", sides)
    odd = gaps._halves(sides)[0]
    width = definitions.median_distance(sides.theirs, sides.theirs)
    assert about["floor"]["mmd"] == pytest.approx(definitions.mmd(sides.theirs[odd], sides.theirs[~odd], width))


def test_sets_have_as_many_rows_as_the_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows are further apart by themselves: sets of one distribution lay below their floor."""
    sizes, measured = list[tuple[int, int]](), definitions.sliced_wasserstein

    def sliced(a: Any, b: Any) -> float:
        sizes.append((len(a), len(b)))
        return measured(a, b)

    monkeypatch.setattr(definitions, "sliced_wasserstein", sliced)
    states = made(tmp_path)
    sides = gaps._sides(states, "last", list(range(8)), gaps._reader(states, "last", None, None))
    gaps._statistics(sides)["sliced_wasserstein"](np.ones(len(sides.groups), bool))
    about = gaps._about(states, "last", sides)
    assert sizes == [(4 * TEXT, 4 * TEXT)] * 2
    assert about["rows"]["floor"] == about["rows"]["matched"] == 4 * TEXT


def test_an_adapter_of_other_models_is_refused(tmp_path: Path) -> None:
    states = made(tmp_path)
    with pytest.raises(BadCheckpoint, match=f"was trained for target other, this one is {PRINTS['target']}"):
        gaps.adapters_of(states, [str(saved_adapter(tmp_path / "a", "rows", target="other"))])
    with pytest.raises(BadInput, match="no adapter 'nowhere'"):
        gaps.adapters_of(states, ["nowhere"])


def test_many_rows_are_sampled_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "MOST_ROWS", 30)
    monkeypatch.setattr(gaps, "MATCHED", 10)
    monkeypatch.setattr(gaps, "MOST_RECORDINGS", 6)
    found = gaps.measure(made(tmp_path), {}, False)
    assert found["layers"]["rows"]["rows"] == {"pairs": 6 * VISUAL, "sets": 30, "matched": 10, "floor": 15}
    assert "6 of 8 recordings were measured, evenly taken" in found["notes"]
    assert all(math.isfinite(row["wasserstein"]) for row in found["rows"])


def test_the_figure_is_drawn_whole(tmp_path: Path) -> None:
    found = gaps.measure(made(tmp_path, narrow=5), {}, False)
    for suffix, begins in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        gaps.draw(found, tmp_path / f"figure.{suffix}")
        assert (tmp_path / f"figure.{suffix}").read_bytes().startswith(begins)
