"""A checkpoint's generation_config.json counts where a question says nothing else, as in transformers' own `generate`."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eventspec.ask import Ask, generate, generate_many
from eventspec.cli import run
from eventspec.core import BadCheckpoint, BadInput, Sampling
from eventspec.models import generation_config
from eventspec.models.folder import describe, load_folder
from eventspec.models.generation_config import with_settings
from eventspec.models.loading import LoadOptions
from eventspec.pairs import Pair, load_folders
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording
from eventspec.video.clip import uniform_indices

QUESTION, MOST = "What is ahead?", 14
CLIP = DATA / "clips/davis346_traffic_1s"


@pytest.fixture(scope="module")
def pair(checkpoint: Callable[[str], Path]) -> Pair:
    torch.set_num_threads(1)
    return load_folders(checkpoint("qwen"), method="ngram", how=LoadOptions(frames=2))


@pytest.fixture(scope="module")
def theirs(pair: Pair) -> Callable[..., list[int]]:
    """transformers' own answer over the frames that the target sees."""
    frames = Recording.open(CLIP).video.frames  # type: ignore[union-attr]
    target: Any = pair.target
    inputs = target.prompts.inputs(QUESTION, frames[uniform_indices(len(frames), 2)])

    def told(**settings: Any) -> list[int]:
        found = target.language.model.generate(**inputs, max_new_tokens=MOST, do_sample=False, **settings)
        answer: list[int] = found[0, inputs["input_ids"].shape[1] :].tolist()
        return answer

    return told


def answered(pair: Pair, asked: dict[str, Any], **settings: Any) -> list[int]:
    tokens, _ = with_settings(pair.tokens, asked, Path("folder"))
    own = replace(pair, parts=replace(pair.parts, tokens=tokens))
    return generate(own, CLIP, QUESTION, "ngram", **{"max_new_tokens": MOST, **settings}).token_ids


def test_what_the_file_asks_for_is_what_transformers_answers(pair: Pair, theirs: Callable[..., list[int]]) -> None:
    plain = theirs()
    assert answered(pair, {}) == plain
    asked: tuple[dict[str, Any], ...] = (
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2, "repetition_penalty": 0.6},
        {"suppress_tokens": [plain[0], 269]},
        {"bad_words_ids": [[plain[0]], [269], [7, 9]]},
        {"min_new_tokens": 12},
        {"min_new_tokens": 99, "repetition_penalty": 1.2},
    )
    for settings in asked:
        assert answered(pair, settings) == theirs(**settings), settings
    longer = answered(pair, {"min_new_tokens": 12})
    assert plain != longer != answered(pair, {"min_new_tokens": 12, "repetition_penalty": 1.5})


def test_what_a_question_says_counts_more(pair: Pair, theirs: Callable[..., list[int]]) -> None:
    assert answered(pair, {"repetition_penalty": 1.5}, repetition_penalty=1.0) == theirs()
    assert answered(pair, {"repetition_penalty": 1.5}, sampling=Sampling()) == theirs()
    assert len(answered(pair, {"max_new_tokens": 3, "min_new_tokens": 2}, max_new_tokens=1)) == 1
    assert with_settings(pair.tokens, {"max_new_tokens": 3}, Path())[0].settings(None, {}).max_new_tokens == 3


def test_settings_are_judged_beside_those_of_the_file(pair: Pair) -> None:
    tokens, _ = with_settings(pair.tokens, {"max_new_tokens": 400, "min_new_tokens": 8}, Path())
    own = replace(pair, parts=replace(pair.parts, tokens=tokens))
    assert Ask(CLIP, QUESTION, min_new_tokens=300).settings == {"min_new_tokens": 300}
    assert tokens.settings(None, {"min_new_tokens": 300}).max_new_tokens == 400
    with pytest.raises(BadInput, match="min_new_tokens is 300: it must be from 0 to max_new_tokens, 256"):
        generate_many(pair, [Ask(CLIP, QUESTION, min_new_tokens=300)])
    assert tokens.settings(None, {"max_new_tokens": np.int64(3)}).min_new_tokens == 3
    assert len(generate_many(own, [Ask(CLIP, QUESTION, "ngram", max_new_tokens=3)]).results[0].token_ids) == 3
    for wrong in ({"min_new_tokens": -1}, {"max_new_tokens": 3, "min_new_tokens": 4}, {"top_p": 2}, {"max_new_token": 3}):
        with pytest.raises(BadInput, match=next(iter(wrong))[:4]):
            Ask(CLIP, QUESTION, **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="min_new_tokens is 300"):
        Ask(CLIP, QUESTION, sampling=Sampling(), min_new_tokens=300)


def test_what_is_not_used_is_noted_and_what_cannot_be_is_refused(pair: Pair) -> None:
    _, notes = with_settings(
        pair.tokens, {"num_beams": 4, "min_length": 0, "forced_eos_token_id": 0, "do_sample": True}, Path()
    )
    assert [note.split(":")[1].split(" not used")[0] for note in notes[:1]] == [" num_beams, forced_eos_token_id"]
    assert "answers are greedy unless a temperature is given" in notes[1]
    for wrong in ({"repetition_penalty": "high"}, {"bad_words_ids": [[-1]]}, {"suppress_tokens": 5}, {"min_new_tokens": -2}):
        with pytest.raises(BadCheckpoint, match=rf"generation_config\.json: {next(iter(wrong))} .*--ignore-generation-config"):
            with_settings(pair.tokens, wrong, Path("folder"))


_TEXT = """
    eos_token_id pad_token_id bos_token_id decoder_start_token_id temperature num_return_sequences length_penalty
    early_stopping renormalize_logits use_cache cache_config max_cache_len low_memory prefill_chunk_size compile_config
    disable_compile continuous_batching_config output_attentions output_hidden_states output_logits output_scores
    return_dict_in_generate transformers_version is_assistant num_assistant_tokens num_assistant_tokens_schedule
    assistant_confidence_threshold assistant_early_exit assistant_lookbehind target_lookbehind prompt_lookup_num_tokens
    max_matching_ngram_size speculation_type use_mtp
"""
HARMLESS = set(_TEXT.split())
"""Fields by which greedy decoding answers alike, or which count elsewhere (the ids that end an answer)."""


def test_every_field_of_transformers_counts_or_is_noted(pair: Pair) -> None:
    transformers = pytest.importorskip("transformers")
    fields = {name for name in vars(transformers.GenerationConfig()) if not name.startswith("_")}
    counts = {*generation_config._USED, *generation_config._NOT_USED, "do_sample", "cache_implementation"}
    assert fields - counts <= HARMLESS
    page = (Path(__file__).parents[2] / "docs/how-to/checkpoints.md").read_text()
    assert [name for name in (*generation_config._USED, *generation_config._NOT_USED) if f"`{name}`" not in page] == []
    noted: tuple[dict[str, Any], ...] = ({"cache_implementation": "quantized"}, {"max_length": 20}, {"token_healing": True})
    for unused in noted:
        assert next(iter(unused)) in with_settings(pair.tokens, unused, Path())[1][0]
    size = pair.vocabulary.size
    words = with_settings(pair.tokens, {"bad_words_ids": [[5, 6], [5, size], [size + 9, 5, 6], [size]]}, Path())
    assert words[0].usual.bad_words == ((5, 6),) and size in words[0].banned_ids
    assert f"bad_words_ids with ids from {size} on, which the tokenizer lacks (2)" in words[1][0]
    for quiet in ({"max_length": 20, "max_new_tokens": 5}, {"cache_implementation": "hybrid"}, {"sequence_bias": {}}):
        assert with_settings(pair.tokens, quiet, Path())[1] == ()


def test_a_folder_is_asked_unless_it_is_to_be_ignored(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], theirs: Callable[..., list[int]]
) -> None:
    folder = Path(shutil.copytree(checkpoint("qwen"), tmp_path / "copy"))
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "repetition_penalty": 1.5, "num_beams": 2}))
    ask = ("generate", "--recording", str(CLIP), "--prompt", QUESTION, "--target", str(folder), "--frames", "2")
    ask = (*ask, "--method", "autoregressive", "--max-new-tokens", str(MOST), "--json")
    penalised, plain = theirs(repetition_penalty=1.5), theirs()
    for more, wanted in (((), penalised), (("--repetition-penalty", "1"), plain), (("--ignore-generation-config",), plain)):
        assert run([*ask, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["token_ids"] == wanted
        assert any("num_beams" in note for note in found["notes"]) == (more[-1:] != ("--ignore-generation-config",))
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_new_tokens": 300}))
    assert run([*ask[:-3], "--min-new-tokens", "280"]) == 0  # without --max-new-tokens
    capsys.readouterr()
    path.write_text("{")
    assert run([*ask]) == 2
    assert "generation_config.json" in capsys.readouterr().err


def test_own_folders_are_asked_too(folders: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders.video_llava, tmp_path / "copy"))
    (folder / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.5}))
    assert load_folder(folder).tokens.usual == Sampling(repetition_penalty=1.5)
    assert load_folder(folder, LoadOptions(ignore_generation_config=True)).tokens.usual == Sampling()
    (folder / "generation_config.json").write_text(json.dumps({"top_p": 7}))
    with pytest.raises(BadCheckpoint, match="top_p is 7"):
        describe(folder)


def test_every_command_asks_the_folder(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's longest answer and penalty count as in `generate`, whatever asks."""
    folder, questions = Path(shutil.copytree(checkpoint("qwen"), tmp_path / "copy")), tmp_path / "qa.jsonl"
    path = folder / "generation_config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "repetition_penalty": 1.5, "min_new_tokens": 4, "max_new_tokens": 4})
    )
    questions.write_text(json.dumps({"recording": str(CLIP), "question": QUESTION, "answer": "A car."}) + "\n")
    models = ["--target", str(folder), "--frames", "2", "--method", "autoregressive"]
    rows = tmp_path / "rows.jsonl"
    compare = ["bench", "compare", "--questions", str(questions), "--out", str(rows), *models, "--json"]
    live = ["live", "--recording", str(CLIP), "--prompt", QUESTION, *models, "--seconds", "0.05", "--json"]

    def lengths(*more: str) -> list[int]:
        assert run([*compare, *more]) == 0
        assert run([*live, *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        answers = [json.loads(rows.read_text().splitlines()[0]), json.loads(lines[-1])["answers"][-1]]
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{QUESTION}\n"))
        assert run(["chat", str(CLIP), *models, *more]) == 0
        chat = capsys.readouterr().err
        return [*(len(one["token_ids"]) for one in answers), int(re.search(r"(\d+) tokens", chat)[1])]  # type: ignore[index]

    assert lengths() == [4, 4, 4]
    settings = json.loads(rows.read_text().splitlines()[0])["settings"]
    assert settings["max_new_tokens"] == 4 and settings["sampling"] == {"repetition_penalty": 1.5, "min_new_tokens": 4}
    assert run([*compare, "--resume", "--ignore-generation-config"]) == 2  # other settings
    assert "measured with --ignore-generation-config off, not on" in capsys.readouterr().err
    rows.unlink()
    assert lengths("--max-new-tokens", "3") == [3, 3, 3]
    rows.unlink()
    assert len({*lengths("--ignore-generation-config")} - {4}) == 1


def test_special_tokens_are_said_and_shown_when_asked_for(pair: Pair) -> None:
    mark = pair.vocabulary.id_of("<|begin|>")
    assert mark is not None
    for skip, text in ((True, ""), (False, "<|begin|>" * 3)):
        asked: dict[str, Any] = {"max_new_tokens": 3, "logit_bias": {mark: 100.0}, "skip_special_tokens": skip}
        found = generate(pair, CLIP, QUESTION, "ngram", **asked)
        assert (found.token_ids, found.text) == ([mark] * 3, text)
