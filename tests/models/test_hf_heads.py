"""Heads for targets that transformers opened: trained on a folder of images and questions, written, and drafting losslessly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from eventspec.ask.generation import media_of
from eventspec.cli import run
from eventspec.core import BadInput, Proposal, Sampling, Trace
from eventspec.models.hf_session import HfLanguage, HfTarget
from eventspec.models.weights import fingerprint
from eventspec.pairs import load_folders
from eventspec.recordings import Recording
from eventspec.train import heads as recipe
from eventspec.train.loop import Stage

LEARNED, OTHERS = ("eagle", "eagle3"), ("specvlm", "vispec", "msd", "hivis")


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of images and two questions about each."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name in ("one", "two"):
        (folder / name).mkdir()
        for number in range(2):
            picture = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(picture).save(folder / name / f"{number}.png")
    rows = [
        {"recording": name, "question": question, "answer": "-"}
        for name in ("one", "two")
        for question in ("what is it", "who")
    ]
    (folder / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "qa.jsonl"


@pytest.mark.parametrize(
    ("kind", "names", "seconds"), [pytest.param("llava", LEARNED, 10.0, marks=pytest.mark.long), ("qwen", OTHERS, 2.0)]
)
def test_heads_learn_from_images_and_questions_and_then_draft(
    kind: str,
    names: tuple[str, ...],
    seconds: float,
    checkpoint: Callable[[str], Path],
    questions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(recipe.PRESETS, "smoke", recipe.TrainingPreset(4, 4, Stage("heads", seconds, 1e-2, 4), 2))
    out, target = tmp_path / "out", checkpoint(kind)
    words = ["train", "heads", "--target", str(target), "--questions", str(questions), "--out", str(out), "--preset", "smoke"]
    assert run([*words, "--max-new-tokens", "16", *(word for name in names for word in ("--head", name)), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["calibration"]["tau"]) == set(names)
    asked = ["generate", "--target", str(target), "--recording", str(questions.parent / "two"), "--prompt", "who"]
    asked += ["--max-new-tokens", "16", "--json"]
    assert run([*asked, "--method", "autoregressive"]) == 0
    base = json.loads(capsys.readouterr().out)
    accepted = 0
    for name in names:
        assert run([*asked, "--method", "eagle", "--head", str(out / "heads" / name)]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["token_ids"] == base["token_ids"]
        assert not any("failed" in note for note in found["notes"])
        accepted += found["speculation"]["accepted"]
    # The second recording is one of those that were learned from: what was seen is drafted, where there was time to learn.
    assert accepted > 3 or names == OTHERS
    assert run([*words, "--resume", "--max-new-tokens", "17", "--head", "eagle"]) == 2
    assert "holds an earlier run" in capsys.readouterr().err
    other = questions.with_name("other.jsonl")
    other.write_text(questions.read_text().replace("who", "how"))
    again = [str(other) if word == str(questions) else word for word in words]
    assert run([*again, "--resume", "--max-new-tokens", "16", *(word for name in names for word in ("--head", name))]) == 2
    assert "holds an earlier run" in capsys.readouterr().err


def test_a_question_that_is_refused_can_be_mended(
    checkpoint: Callable[[str], Path],
    questions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(recipe.PRESETS, "smoke", recipe.TrainingPreset(4, 4, Stage("heads", 0.1, 1e-2, 4), 2))
    out, mine = tmp_path / "out", tmp_path / "mine.jsonl"
    words = ["train", "heads", "--target", str(checkpoint("llava")), "--questions", str(mine), "--out", str(out)]
    words += ["--preset", "smoke", "--max-new-tokens", "8", "--head", "eagle"]
    lines = [json.loads(line) for line in questions.read_text().splitlines()]
    rows = [json.dumps({**row, "recording": str(questions.parent / row["recording"])}) for row in lines]
    for wrong in ({"recording": "gone"}, {"recording": "a\0b"}, {"recording": "\ud800"}):
        mine.write_text("\n".join([*rows[:3], json.dumps({**lines[3], **wrong})]))
        assert run(words) == 2
        told = capsys.readouterr().err
        assert "line 4" in told
        assert "does not exist" in told
        assert not out.exists()
    mine.write_text("\n".join([*rows[:3], json.dumps({**json.loads(rows[3]), "question": "who is <image>"})]))
    assert run(words) == 2
    assert "line 4" in capsys.readouterr().err
    answered = (out / "answers.jsonl").read_text().splitlines()
    assert len(answered) == 3
    mine.write_bytes(b"\xef\xbb\xbf" + "\n".join(rows).encode())  # mended, by an editor that writes a byte order mark
    with (out / "answers.jsonl").open("a") as file:
        file.write("[" * 100_000 + '\n{"recording": 3}\n{"recording": "x", "qu')
    assert run([*words, "--resume"]) == 0
    lines = (out / "answers.jsonl").read_text().splitlines()
    assert lines[:3] == answered
    assert len(lines) == 7, "three that are none stay between"
    assert json.loads(lines[6]).keys() == json.loads(answered[0]).keys()
    (out / "run.json").write_text("{")
    assert run([*words, "--resume"]) == 2
    assert "run.json is damaged" in capsys.readouterr().err


def test_layers_are_tapped_as_transformers_counts_them(checkpoint: Callable[[str], Path], questions: Path) -> None:
    pair = load_folders(checkpoint("llava"), method="autoregressive")
    target = pair.parts.target
    assert isinstance(target, HfTarget)
    taps = (0, 1, target.limits.layers, -1)
    with torch.inference_mode():
        session = target.encode(media_of(Recording.open(questions.parent / "one")), Trace()).open(
            "who", Sampling(max_new_tokens=4), 1, Trace(), taps
        )
        session.score(Proposal.empty())
        prompt = session.prompt()
        model = target.language.model
        found = model(inputs_embeds=prompt.rows[None], output_hidden_states=True)
    begin, end = prompt.visual
    assert 0 < begin < end < len(prompt.rows)
    assert prompt.features is not None
    widths = prompt.features.chunk(len(taps), 1)
    for tap, features in zip(taps[:2], widths, strict=False):
        torch.testing.assert_close(features, found.hidden_states[tap][0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(widths[3], found.hidden_states[-1][0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(model.get_decoder().norm(widths[2]), widths[3], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(model.get_output_embeddings()(widths[3]), found.logits[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scale", [1.0, 0.125, 8.0])
def test_logits_that_are_scaled_are_scaled_for_heads_too(
    scale: float, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_folders(checkpoint("llava"), method="autoregressive").parts.target
    assert isinstance(target, HfTarget)
    model: Any = target.language.model
    real = model.get_output_embeddings()
    monkeypatch.setattr(model, "get_output_embeddings", lambda: Scaled(real, 1 / scale))
    with torch.inference_mode():
        logits, features = target.language.step(target.example, target.language.new_cache(), None, len(target.example), (-1,))
        assert features is not None
        torch.testing.assert_close(target.ends.head(features), logits, rtol=1e-3, atol=1e-3)
    assert fingerprint(target.ends) == fingerprint(model)


class Scaled(torch.nn.Linear):
    """A head whose product is not all that the model makes of it."""

    def __init__(self, real: torch.nn.Linear, by: float) -> None:
        super().__init__(*reversed(real.weight.shape), bias=False)
        self.weight = torch.nn.Parameter(real.weight.detach() * by, requires_grad=False)


def test_logits_that_are_bent_are_no_ground_for_heads(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_folders(checkpoint("llava"), method="autoregressive").parts.target
    assert isinstance(target, HfTarget)
    real = HfLanguage.step

    def bent(self: HfLanguage, *given: Any, **named: Any) -> Any:
        logits, features = real(self, *given, **named)
        return 3 * torch.tanh(logits / 3), features

    monkeypatch.setattr(HfLanguage, "step", bent)
    with pytest.raises(BadInput, match="makes more of its head's output than a scale"):
        _ = target.ends


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--target", "@"], "--target and --questions go together"),
        (["--target", "@", "--questions", "?", "--pair", "nano"], "--pair is for a pair, --target for a checkpoint folder"),
        (["--target", "@", "--questions", "?", "--head", "dream"], "'dream' is for targets of our own"),
        (["--target", "@", "--questions", "?", "--head", "frugal"], "'frugal' is for targets of our own"),
        (["--target", "@", "--questions", "?", "--head", "medusa"], "unknown head 'medusa'"),
        (["--target", "@", "--questions", "?", "--dtype", "int3"], "'int3' is not one of 'float32'"),
        (["--target", "@", "--questions", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
    ],
)
def test_options_that_do_not_go_together_are_refused_in_one_line(
    words: list[str],
    told: str,
    checkpoint: Callable[[str], Path],
    questions: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put = {"@": str(checkpoint("llava")), "?": str(questions)}
    given = [put.get(word, word) for word in words]
    assert run(["train", "heads", "--out", str(tmp_path / "out"), "--preset", "smoke", *given]) == 2
    *begun, said = capsys.readouterr().err.splitlines()
    assert told in said
    assert begun in ([], [f"training into {tmp_path / 'out'} ..."])  # where only the loaded target tells
    assert not (tmp_path / "out").exists()
