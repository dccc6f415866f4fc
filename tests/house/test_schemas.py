"""What the commands print as JSON is what docs/schemas says, and what the site's tables show."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from eventspec import cli
from eventspec.pairs.pair_file import DATA

jsonschema = pytest.importorskip("jsonschema")
referencing = pytest.importorskip("referencing")

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "docs/schemas").glob("*.json"))
SCENE = DATA / "clips/street_scene"


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"docs/schemas/{name}.json").read_text())
    return found


def problems(name: str, value: Any) -> list[str]:
    """Where a value leaves a schema."""
    everything = [(path.name, referencing.Resource.from_contents(json.loads(path.read_text()))) for path in FILES]
    reader = jsonschema.Draft202012Validator(schema(name), registry=referencing.Registry().with_resources(everything))
    return [f"{error.json_path}: {error.message[:300]}" for error in reader.iter_errors(value)]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command and read the one object that it prints."""

    def ask(*words: str | Path) -> Any:
        assert cli.run(list(map(str, words))) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return ask


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_schema_is_one_and_says_what_every_field_means(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))
    sys.path.insert(0, str(ROOT / "docs/hooks"))
    try:
        from schema_tables import fields, resolved
    finally:
        sys.path.pop(0)
    whole = resolved(schema(path.stem), schema(path.stem))
    rows = fields(whole, whole)
    assert len(rows) > 5
    silent = [name for name, _, meaning in rows if not meaning]
    assert not silent, f"{path.name} does not say what these mean: {silent}"


@pytest.mark.parametrize("method", ["autoregressive", "cross-modal", "eagle", "compressed-target", "auto"])
def test_generate(printed: Any, method: str, tmp_path: Path) -> None:
    words = ("generate", "--recording", SCENE, "--prompt", "What is ahead?", "--max-new-tokens", "12", "--json")
    assert problems("generate", printed(*words, "--method", method, "--trace", tmp_path / "trace.json")) == []


def test_compare(printed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventspec.pairs.warm_up", lambda pair, only=(): pair)  # costs are not what is described
    asked = [{"recording": str(SCENE), "question": question, "answer": "-"} for question in ("What is ahead?", "Describe it.")]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    arms = [word for method in ("autoregressive", "cross-modal", "prior") for word in ("--method", method)]
    rest = ("--control", "real", "--control", "blank", "--compress", "pool:3", "--context", "cold", "--context", "warm")
    out = tmp_path / "rows.jsonl"
    words = ("bench", "compare", "--questions", tmp_path / "qa.jsonl", "--out", out, "--max-new-tokens", "8", "--json")
    assert problems("bench-summary", printed(*words, *arms, *rest)) == []
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 2 * len({row["method"] for row in rows}) > 10
    assert {problem for row in rows for problem in problems("bench-row", row)} == set()


def test_the_published_results_have_the_documented_form() -> None:
    assert problems("bench-summary", json.loads((ROOT / "benchmarks/results/main-job.json").read_text())) == []


def test_features_and_gaps(printed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eventspec.scenes.language import questions
    from eventspec.train import answers

    monkeypatch.setattr(answers, "ask", lambda facts, number: questions(facts, number)[:2])
    states = tmp_path / "states"
    assert problems("train-features", printed("train", "features", "--out", states, "--limit", "2", "--json")) == []
    found = printed("bench", "gaps", states, "--out", tmp_path / "gaps.svg", "--json")
    assert problems("bench-gaps", found) == []
    assert {row["adapter"] for row in found["rows"]} > {None}
    assert (tmp_path / "gaps.svg").exists()


def test_live(printed: Any) -> None:
    words = ("live", "--recording", SCENE, "--prompt", "What is ahead?", "--seconds", "1.5", "--every", "0.5")
    found = printed(*words, "--max-new-tokens", "8", "--json")
    assert found["answers"]
    assert problems("live", found) == []


def test_plan_of_a_profile(printed: Any) -> None:
    assert problems("plan", printed("plan", "--tokens", "20", "--profile", "h200-7b", "--json")) == []


@pytest.mark.long
def test_plan_of_a_pair(printed: Any) -> None:
    assert problems("plan", printed("plan", "--tokens", "20", "--pair", "embedded", "--limit", "2", "--json")) == []


def test_fields_too_many_too_few_and_of_another_type_are_found(printed: Any) -> None:
    good = printed("plan", "--profile", "h200-7b", "--tokens", "20", "--json")
    assert problems("plan", {**good, "surprise": 1})
    assert problems("plan", {name: value for name, value in good.items() if name != "ceiling"})
    assert problems("plan", {**good, "ceiling": "high"})
    row = {"text": "a", "drafter": "b"}
    assert problems("bench-row", row)
