"""The bundled pair does the main job: every lossless method gives the target's own answer, on scenes and on a real clip."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eventspec.ask import generate, generation, stream
from eventspec.ask.generation import media_of
from eventspec.core import (
    BadCheckpoint,
    BadInput,
    Budget,
    Committed,
    Provisional,
    Request,
    Retracted,
    Sampling,
    Trace,
    Window,
)
from eventspec.drafters import LanguageDrafter
from eventspec.drafters.language_model import Written
from eventspec.drafters.texts import place
from eventspec.nn.linear import Linear
from eventspec.pairs import Pair, bundled, load_pair
from eventspec.pairs.pair_file import DATA, PairFile
from eventspec.recordings import Recording
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.scenes.writer import as_recording

LOSSLESS = ("cross-modal", "eagle", "specvlm", "hybrid", "ngram", "prior")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("embedded", "two")


def scene(index: int) -> tuple[Recording, list[str]]:
    clip = make_clip(split_seed("test", 4321, index))
    return as_recording(clip, f"scene {index}"), [qa.question for qa in questions(clip.facts, index)]


@pytest.fixture(scope="module")
def real() -> Recording:
    return Recording.open(DATA / "clips/davis346_traffic_1s")


WHOLE = [pytest.param(index, None, marks=pytest.mark.long) for index in range(3)]


@pytest.mark.parametrize(("index", "most"), [(0, 5), *WHOLE])
def test_every_lossless_method_gives_the_baselines_tokens_on_held_out_scenes(pair: Pair, index: int, most: int | None) -> None:
    recording, asked = scene(index)
    for question in asked[:most]:
        base = generate(pair, recording, question, "autoregressive", max_new_tokens=48)
        for method in LOSSLESS:
            assert generate(pair, recording, question, method, max_new_tokens=48).token_ids == base.token_ids, (
                question,
                method,
            )


def test_every_lossless_method_gives_the_baselines_tokens_on_the_real_recording(pair: Pair, real: Recording) -> None:
    for question in ("How many road users are visible?", "Describe the scene."):
        base = generate(pair, real, question, "autoregressive")
        for method in LOSSLESS:
            result = generate(pair, real, question, method)
            assert result.token_ids == base.token_ids
            assert result.lossless


def test_a_banned_id_that_does_not_exist_is_refused_before_anything_runs(pair: Pair, real: Recording) -> None:
    size = pair.vocabulary.size
    for unknown, told in ((-1, r"banned_ids is \(-1,\)"), (size, f"banned id {size} is not in the vocabulary")):
        with pytest.raises(BadInput, match=told):
            generate(pair, real, "What is around us?", "autoregressive", banned_ids=(unknown,))


def test_hybrid_takes_up_again_what_its_event_drafter_wrote(pair: Pair) -> None:
    """Behind the first token that the target did not follow, the drafter's text about this scene is mostly right about what
    comes next; the control, its text about another scene, is so less often."""
    method = pair.method("hybrid")
    assert "reused" in [drafter.name for drafter in method.drafts.after]
    assert "reused" not in [drafter.name for drafter in pair.method("hybrid-blind").drafts.after]
    writer = method.drafts.ahead[0]
    assert isinstance(writer, LanguageDrafter)
    assert method.drafts.writing == (writer,)
    right, texts, answers = {"own": 0, "another's": 0}, list[list[tuple[str, Written]]](), list[list[list[int]]]()
    for index in range(4):
        recording, asked = scene(index)
        texts.append([])
        answers.append([])
        for question in [question for question in asked if question.startswith(("Describe", "Write", "Record", "What hap"))]:
            request = Request(media_of(recording), question, Sampling())
            with torch.inference_mode():
                draft = writer.open(request, None, Trace())
                draft.propose(Budget(32, min_path_prob=0.1, max_depth=200))
                draft.write_on(Budget(32, max_depth=200))
            texts[-1].append((question, writer.written(request)))
            answers[-1].append(generate(pair, recording, question, "autoregressive").token_ids)
    places = 0
    for index, asked in enumerate(answers):
        for number, said in enumerate(asked):
            own = [token for token, _ in texts[index][number][1]]
            left = next((at for at, (a, b) in enumerate(zip(own, said, strict=False)) if a != b), len(said))
            other = [token for token, _ in texts[index - 1][number % len(texts[index - 1])][1]]
            for at in range(left + 1, len(said)):
                places += 1
                for name, text in (("own", own), ("another's", other)):
                    found = place(text, said[:at])[0]
                    right[name] += found < len(text) and text[found] == said[at]
    assert places > 50
    assert right["own"] > 0.6 * places
    assert right["own"] > right["another's"] + 0.1 * places


def test_the_event_drafter_drafts_while_the_target_encodes(pair: Pair) -> None:
    recording, _ = scene(0)
    result = generate(pair, recording, "Describe the scene.", "cross-modal")
    told = result.as_json()
    assert told["speculation"]["head_start_drafted"] > 0
    assert told["timing_ms"]["first_provisional"] < told["timing_ms"]["first_committed"]
    assert told["speculation"]["tau"] > 1
    assert told["usage"]["visual_tokens"] == 520


def test_only_what_drafts_is_in_reduced_precision(pair: Pair) -> None:
    drafter, adapters = pair.drafter("cross-modal"), pair.parts.adapters
    assert isinstance(drafter, LanguageDrafter)
    assert adapters is not None
    assert all(part.reduced for part in drafter.model.language.modules() if isinstance(part, Linear))
    exact = [pair.parts.language_target.language, adapters.drafter, adapters.target]
    assert not any(part.reduced for model in exact for part in model.modules() if isinstance(part, Linear))


def test_updates_fold_into_the_answer(pair: Pair) -> None:
    recording, _ = scene(1)
    committed: list[int] = []
    provisional: list[int] = []
    for update in stream(pair, recording, "Describe the scene.", "cross-modal"):
        if isinstance(update, Provisional):
            provisional += update.tokens
        elif isinstance(update, Retracted):
            assert update.count <= len(provisional)
            del provisional[len(provisional) - update.count :]
        elif isinstance(update, Committed):
            shared = provisional[: len(update.tokens)]
            assert list(update.tokens)[: len(shared)] == shared, "a wrong provisional token was not retracted first"
            committed += update.tokens
            provisional = provisional[len(update.tokens) :]
    assert provisional == []
    assert committed == generate(pair, recording, "Describe the scene.", "autoregressive").token_ids


def test_sampling_is_reproducible_by_its_seed(pair: Pair) -> None:
    recording, _ = scene(2)
    settings = Sampling(temperature=1.0, top_p=0.95, seed=5)
    one = generate(pair, recording, "What do you see?", "autoregressive", sampling=settings)
    assert generate(pair, recording, "What do you see?", "autoregressive", sampling=settings).token_ids == one.token_ids


@pytest.mark.parametrize("index", [0, pytest.param(1, marks=pytest.mark.long)])
def test_autoregressive_equals_transformers_greedy_generate(pair: Pair, index: int) -> None:
    transformers = pytest.importorskip("transformers")
    from eventspec.models.embedded import BOS, EOS, VIDEO, pixels_from_frames

    folder = bundled()[pair.name] / "target"
    model = transformers.VideoLlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    recording, asked = scene(index)
    assert recording.video is not None
    pixels = pixels_from_frames(recording.video.frames)[None]
    for question in asked[:4]:
        before, after = pair.vocabulary.encode("USER: "), pair.vocabulary.encode(f"\n{question} ASSISTANT:")
        ids = torch.tensor([[BOS, *before, *[VIDEO] * 520, *after]])
        with torch.inference_mode():
            theirs = model.generate(
                input_ids=ids,
                pixel_values_videos=pixels,
                max_new_tokens=40,
                do_sample=False,
                eos_token_id=EOS,
                pad_token_id=0,
            )
        ours = generate(pair, recording, question, "autoregressive", max_new_tokens=40)
        assert theirs[0, ids.shape[1] :].tolist() == ours.token_ids


def test_a_window_chooses_its_frames_and_events(pair: Pair, real: Recording) -> None:
    begin = real.span.start_us
    half = generate(pair, real, "Describe the scene.", window=Window(begin, begin + 400_000))
    assert half.token_ids
    with pytest.raises(BadInput, match="outside the recording"):
        generate(pair, real, "Describe the scene.", window=Window(begin - 10_000_000, begin - 5_000_000))


def test_answers_about_other_recordings_than_the_streets_say_so(pair: Pair, real: Recording) -> None:
    street = scene(0)[0]
    notes = {
        name: generate(pair, found, "What is ahead?", "autoregressive", max_new_tokens=2).trace.notes
        for name, found in (("street", street), ("real", real), ("unknown", replace(street, source="")))
    }
    assert notes["street"] == []
    street_only = "pair nano was trained on the synthetic street only, and this recording"
    assert notes["real"] == [*real.notes, f"{street_only} is of something else: answers may well be wrong"]
    assert "does not say where it comes from" in notes["unknown"][0]
    assert pair.open(real).ask("What is ahead?", "autoregressive", max_new_tokens=2).trace.notes == notes["real"]
    assert pair.open(street).ask("What is ahead?", "autoregressive", max_new_tokens=2).trace.notes == []
    assert pair.with_target(pair.target).notes_on(real) == (), "of other targets nothing is known"


def test_what_a_pair_was_trained_on_stands_in_its_file(tmp_path: Path) -> None:
    file = PairFile(tmp_path, "mine", trained_on="a car park")
    file.write()
    assert PairFile.read(tmp_path) == file
    replace(file, trained_on="").write()
    assert "trained_on" not in (tmp_path / "pair.toml").read_text()


@pytest.mark.parametrize("relative", [False, True])
def test_the_pair_that_ships_knows_its_street_however_it_is_named(
    relative: bool, real: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bundled()["nano"]
    monkeypatch.chdir(folder.parent)
    with load_pair(Path("nano") if relative else folder, fit=False) as found:
        assert found.notes_on(real)


def test_methods_say_what_a_recording_lacks(pair: Pair, real: Recording) -> None:
    blind = Recording("no frames", real.events, None)
    with pytest.raises(BadInput, match="no RGB frames"):
        generate(pair, blind, "Describe the scene.", "autoregressive")
    deaf = Recording("no events", None, real.video)
    with pytest.raises(BadInput, match="no events"):
        generate(pair, deaf, "Describe the scene.", "cross-modal")
    assert generate(pair, deaf, "Describe the scene.", "autoregressive").token_ids


def test_a_prompt_over_the_context_is_refused(pair: Pair, real: Recording) -> None:
    with pytest.raises(BadInput, match="exceed the context"):
        generation(pair, real, "What is that? " * 300, "autoregressive").result()


@pytest.mark.parametrize("name", ["target/model.safetensors", "drafter/config.json", "tokenizer.json", "prior.json"])
@pytest.mark.parametrize("harm", ["missing", "torn"])
def test_a_broken_pair_folder_names_the_file(tmp_path: Path, name: str, harm: str) -> None:
    folder = tmp_path / "pair"
    shutil.copytree(bundled()["nano"], folder)
    if harm == "missing":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes((folder / name).read_bytes()[:100])
    with pytest.raises(BadCheckpoint, match=Path(name).name) as error:
        load_pair(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("table", ["files", "heads", "drafters", "packers"])
@pytest.mark.parametrize("value", ['"x"', "[1]", "{ a = 1 }", '{ a = { b = "c" } }', "[{ a = 'b' }]"])
def test_a_table_of_the_wrong_type_is_one_line(tmp_path: Path, table: str, value: str) -> None:
    folder = tmp_path / "pair"
    shutil.copytree(bundled()["nano"], folder, ignore=shutil.ignore_patterns("heads", "packers"))
    (folder / "pair.toml").write_text(f'format = "eventspec-pair"\nversion = 1\n{table} = {value}\n')
    with pytest.raises(BadCheckpoint, match=rf"pair\.toml: {table} must be a table") as error:
        load_pair(folder)
    assert "\n" not in str(error.value)


def test_an_unknown_method_lists_the_valid_ones(pair: Pair, real: Recording) -> None:
    with pytest.raises(BadInput, match=f"choose one of {', '.join(pair.methods)}"):
        generate(pair, real, "What?", "warp")


def test_all_drafters_run_with_temperature_and_penalties(pair: Pair) -> None:
    recording, _ = scene(0)
    rng = np.random.default_rng(0)
    for method in LOSSLESS:
        settings = Sampling(temperature=0.8, top_k=20, repetition_penalty=1.2, seed=int(rng.integers(100)), max_new_tokens=24)
        assert 0 < len(generate(pair, recording, "Describe the scene.", method, sampling=settings).token_ids) <= 24
