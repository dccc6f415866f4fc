"""Two checkpoint folders as a pair: every way of sharing ids gives the target's own answer, and says what it did."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from eventspec.ask import generate
from eventspec.core import BadCheckpoint, BadInput, Media, Trace, Window
from eventspec.models.features import FeatureCache, content_key
from eventspec.models.folder import LoadOptions, describe, load_folder
from eventspec.models.video_llava import banned_ids, load_video_llava, video_llava_encoder, video_llava_vocabulary
from eventspec.pairs import Pair, load_folders
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Folders

QUESTION = "is the car on the way"
MOST = 24
SHARED = Path(__file__).parents[2].parent / "shared/goldens"


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open(DATA / "clips/davis346_traffic_1s")


@pytest.fixture
def closing() -> Iterator[list[Pair]]:
    pairs: list[Pair] = []
    yield pairs
    for pair in pairs:
        pair.workers.close()


def answered(pair: Pair, recording: Recording, method: str, **settings: object) -> tuple[list[int], Trace]:
    result = generate(pair, recording, QUESTION, method, max_new_tokens=MOST, **settings)
    pair.workers.close()
    return result.token_ids, result.trace


@pytest.mark.parametrize("plan", ["one", "two"])
@pytest.mark.parametrize(("target", "way"), [("video_llava", "auto"), ("other", "auto"), ("other", "intersect")])
def test_a_drafter_of_any_vocabulary_changes_nothing(
    folders: Folders, recording: Recording, target: str, way: str, plan: str
) -> None:
    folder = getattr(folders, target)
    base, _ = answered(load_folders(folder, method="autoregressive", device_plan=plan), recording, "autoregressive")
    pair = load_folders(folder, folders.eventgpt, vocabulary=way, device_plan=plan)
    found, trace = answered(pair, recording, "cross-modal")
    assert found == base
    assert len(found) == MOST
    assert not any("failed" in note for note in trace.notes)
    told = next(note for note in trace.notes if note.startswith("vocabulary:"))
    if target == "video_llava":
        assert "agree on all 282 text pieces" in told
    else:
        assert ("retokenize" if way == "auto" else "intersect") in told
        assert "id 260 is 't' for the drafter and 'e' for the target" in told


def test_sharing_ids_is_refused_where_they_differ(folders: Folders) -> None:
    load_folders(folders.video_llava, folders.eventgpt, vocabulary="same").workers.close()
    with pytest.raises(BadInput, match="id 260 is 't' for the drafter and 'e' for the target; choose --vocabulary"):
        load_folders(folders.other, folders.eventgpt, vocabulary="same")


def test_an_event_model_answers_alone_and_drafts_for_itself(folders: Folders, recording: Recording) -> None:
    alone = load_folders(folders.eventgpt, method="autoregressive")
    assert alone.parts.target_needs == "events"
    base, trace = answered(alone, recording, "autoregressive")
    assert trace.sizes["visual"] == 10
    pair = load_folders(folders.eventgpt, folders.eventgpt)
    pair = pair.with_policy(patience=1e5)  # a busy machine must not decide whether a draft comes in time
    found, trace = answered(pair, recording, "cross-modal")
    assert found == base
    assert trace.accepted > 0


def test_an_event_model_needs_no_frames_but_events(folders: Folders, recording: Recording) -> None:
    pair = load_folders(folders.eventgpt, method="autoregressive")
    answered(pair, Recording("blind", recording.events, None), "autoregressive")
    with pytest.raises(BadInput, match="no events"):
        generate(pair, Recording("deaf", None, recording.video), QUESTION, "autoregressive")


@pytest.mark.parametrize("method", ["autoregressive", "cross-modal", "ngram"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "seed": 3}, {"repetition_penalty": 1.3}], ids=str)
def test_no_method_says_placeholders(
    folders: Folders, recording: Recording, method: str, settings: dict[str, float], tmp_path: Path
) -> None:
    """The head is bent so that placeholders win; without the ban the answer would be nothing else."""
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(folders.video_llava, tmp_path / "bent"))
    tensors = load_file(folder / "model.safetensors")
    head = tensors["language_model.lm_head.weight"]
    head[282:284] = 8 * head[270]
    save_file(tensors, folder / "model.safetensors")
    pair = load_folders(folder, folders.eventgpt, method=method)
    assert pair.tokens.banned_ids == (282, 283)
    found, _ = answered(pair, recording, method, **settings)
    assert not {282, 283} & set(found)
    parts = replace(pair.parts, tokens=replace(pair.tokens, banned_ids=(), extra_eos_ids=()))
    bare = replace(pair, parts=parts)
    assert {282, 283} & set(answered(bare, recording, "autoregressive")[0])


def test_end_ids_of_generation_config_count_more_than_configs(folders: Folders, tmp_path: Path) -> None:
    """As in transformers' `generate`, for both of our own architectures."""
    for kind in ("video_llava", "eventgpt"):
        copy = Path(shutil.copytree(getattr(folders, kind), tmp_path / kind))
        if kind == "eventgpt":
            shutil.copytree(folders.clip, tmp_path / folders.clip.name)
        for told, ends in (([270, 2], (2, 270)), ([270, 271], (270, 271)), (270, (270,)), (None, (2,))):
            (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": told}))
            found = load_folder(copy)
            assert (found.tokens.eos_id, *found.tokens.extra_eos_ids) == ends
        (copy / "generation_config.json").write_text('{"eos_token_id": ["x"]}')
        for wrong in (["x"], -1, 2.5, True, [2, 99999], 10**20):  # the last two can never be said: an answer would run on
            (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": wrong}))
            for opened in (load_folder, describe):
                with pytest.raises(
                    BadCheckpoint, match=r"generation_config\.json: eos_token_id is .*, wanted a token id below"
                ):
                    opened(copy)


@pytest.mark.parametrize("method", ["autoregressive", "cross-modal"])
@pytest.mark.parametrize("kind", ["video_llava", "eventgpt"])
def test_an_answer_ends_with_any_of_several_end_ids(
    folders: Folders, recording: Recording, method: str, kind: str, tmp_path: Path
) -> None:
    source = getattr(folders, kind)
    whole, _ = answered(load_folders(source, method="autoregressive"), recording, "autoregressive")
    last = next(place for place in range(3, MOST) if whole[place] not in whole[:place])
    folder = Path(shutil.copytree(source, tmp_path / kind))
    (tmp_path / "clip").symlink_to(folders.eventgpt.parent / "clip")  # EventGPT's tower lies beside it
    config = json.loads((folder / "config.json").read_text())
    for part in (config, config.get("text_config", {})):
        part["eos_token_id"] = [2, whole[last]]
    (folder / "config.json").write_text(json.dumps(config))
    pair = load_folders(folder, folders.eventgpt, method=method)
    assert answered(pair, recording, method)[0] == whole[: last + 1]


def test_an_end_id_behind_the_text_pieces_is_not_banned(folders: Folders, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders.video_llava, tmp_path / "copy"))
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["eos_token_id"] = [2, 283]
    (folder / "config.json").write_text(json.dumps(config))
    found = load_folder(folder)
    assert (found.tokens.eos_id, found.tokens.extra_eos_ids) == (2, (283,))
    assert found.tokens.banned_ids == (282,)


# ------------------------------------------------------------------------------------------------------------------- frames
@pytest.mark.parametrize("frames", [1, 2, 15])
def test_any_number_of_frames_within_the_context(folders: Folders, recording: Recording, frames: int) -> None:
    pair = load_folders(folders.video_llava, method="autoregressive", how=LoadOptions(frames=frames))
    _, trace = answered(pair, recording, "autoregressive")
    assert trace.sizes["visual"] == 5 * frames


def test_more_frames_than_the_context_holds_are_refused_unless_allowed(folders: Folders, recording: Recording) -> None:
    for frames in (0, -1):
        with pytest.raises(BadInput, match=f"frames is {frames}"):
            load_folder(folders.video_llava, LoadOptions(frames=frames))
    with pytest.raises(BadInput, match=r"103 frames are 515 rows, .* a context of 512: choose at most 102"):
        load_folder(folders.video_llava, LoadOptions(frames=103))
    how = LoadOptions(frames=103, allow_extrapolation=True)
    pair = load_folders(folders.video_llava, method="autoregressive", how=how)
    found, trace = answered(pair, recording, "autoregressive")
    assert len(found) == MOST
    assert any("beyond the context of 512" in note for note in trace.notes)


def test_frames_one_by_one_equal_frames_at_once_and_are_encoded_once(folders: Folders, recording: Recording) -> None:
    model = load_video_llava(folders.video_llava)
    vocabulary = video_llava_vocabulary(folders.video_llava, model.config)
    cache = FeatureCache(1 << 20)
    assert recording.video is not None
    media = Media(frames=recording.video)
    plain = video_llava_encoder(model, vocabulary, 1, 8)
    kept = plain.keeping(cache)
    with torch.inference_mode():
        visual = plain.encode(media, Trace(), "target")
        rows = plain.prompt(QUESTION, visual).rows
        assert torch.equal(kept.encode(media, Trace(), "target"), visual)
        assert cache.hits == 0
        assert torch.equal(kept.encode(media, Trace(), "target"), visual)
        assert cache.hits == 8
        from eventspec.models.pixels import frame_pixels
        from eventspec.video.clip import uniform_indices

        frames = recording.video.frames[uniform_indices(len(recording.video.frames), 8)]
        at_once = model.encode(frame_pixels(frames, 28))
    place = next(i for i in range(len(rows)) if torch.allclose(rows[i], at_once[0], atol=1e-5))
    torch.testing.assert_close(rows[place : place + 40], at_once, rtol=1e-5, atol=1e-5)


def test_the_cache_goes_by_content_and_forgets_the_oldest() -> None:
    frame = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert content_key(frame) == content_key(frame.copy()[::1]) != content_key(frame.reshape(2, 8, 3))
    assert content_key(frame[::2]) == content_key(frame[::2].copy())
    cache = FeatureCache(2 * 64)
    for value in (1, 2, 1, 3, 1, 2):
        cache.rows(np.full((1, 1, 3), value, np.uint8), lambda: torch.zeros(16))
    assert (cache.hits, cache.used) == (2, 128)


# ---------------------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize("word", ["<video>", "<image>"])
def test_a_question_cannot_hold_a_placeholder(folders: Folders, recording: Recording, word: str) -> None:
    pair = load_folders(folders.video_llava, method="autoregressive")
    with pytest.raises(BadInput, match=word):
        generate(pair, recording, f"what {word} is this", "autoregressive")
    pair.workers.close()


def test_a_tokenizer_that_does_not_belong_is_refused(folders: Folders, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders.video_llava, tmp_path / "copy"))
    shutil.copy(folders.other / "tokenizer.json", folder / "tokenizer.json")
    with pytest.raises(BadCheckpoint, match="do not belong together"):
        load_folder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json is missing"):
        load_folder(folder)


def test_what_is_no_checkpoint_is_refused(folders: Folders, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="is no folder"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(BadCheckpoint, match=r"config\.json is missing"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen9"}')
    with pytest.raises(BadCheckpoint, match=r"model_type is 'qwen9': .* EventChat_llama, video_llava"):
        load_folder(tmp_path)
    with pytest.raises(BadInput, match="needs a drafter"):
        load_folders(folders.video_llava, method="cross-modal")
    with pytest.raises(BadInput, match="unknown vocabulary 'other'"):
        load_folders(folders.video_llava, vocabulary="other")


def test_compat_repeats_upstreams_limits(folders: Folders, recording: Recording) -> None:
    pair = load_folders(folders.eventgpt, method="autoregressive", how=LoadOptions(compat=True))
    start = recording.span.start_us
    with pytest.raises(BadInput, match="upstream takes less than 100000"):
        generate(pair, recording, QUESTION, "autoregressive")
    short = generate(pair, recording, QUESTION, "autoregressive", Window(start, start + 90_000), max_new_tokens=4)
    assert len(short.token_ids) == 4
    few = Recording("few", recording.events.take(slice(0, 4)) if recording.events else None, None)
    with pytest.raises(BadInput, match="upstream needs 5"):
        generate(pair, few, QUESTION, "autoregressive")
    pair.workers.close()


# ------------------------------------------------------------------------------------------------------- the shared goldens
@pytest.mark.parametrize("way", ["auto", "retokenize", "intersect"])
def test_the_tiny_released_layouts_as_a_pair(recording: Recording, way: str) -> None:
    if not SHARED.exists():
        pytest.skip("the shared goldens are not beside this checkout")
    target, drafter = SHARED / "video_llava/checkpoint", SHARED / "eventgpt/checkpoint"
    how = LoadOptions(frames=2)
    base, _ = answered(load_folders(target, method="autoregressive", how=how), recording, "autoregressive")
    found, trace = answered(load_folders(target, drafter, vocabulary=way, how=how), recording, "cross-modal")
    assert found == base
    assert max(found) < 480
    assert any("id 259 is '▁h' for the drafter and 'en' for the target" in note for note in trace.notes)
    model = load_video_llava(target)
    assert banned_ids(model.config) == (480, 481)
