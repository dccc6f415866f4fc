"""Long videos stay in their files: the same frames and times as decoding everything, whatever the file can seek or hides."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from eventspec.core import BadInput, Window
from eventspec.video import decode, open_video, packets, seeking, stored
from eventspec.video.stored import LONG_NOTE, StoredFrames

FRAMES = 61
HEIGHT, WIDTH = 48, 64
FRAME_BYTES = HEIGHT * WIDTH * 3
# suffix, codec, frames between key frames, B-frames between others, further settings
KINDS = {
    "mp4": ("mp4", "libx264", 13, 2, {}),
    "mp4-open-gop": ("mp4", "libx264", 13, 3, {"x264-params": "open-gop=1:b-pyramid=normal:b-adapt=0"}),
    "mp4-one-gop": ("mp4", "libx264", 1000, 2, {}),
    "mp4-intra-refresh": ("mp4", "libx264", 13, 0, {"x264-params": "intra-refresh=1"}),
    "mp4-mpeg4": ("mp4", "mpeg4", 7, 2, {}),
    "mkv-hevc-open-gop": ("mkv", "libx265", 13, 3, {"x265-params": "log-level=none:open-gop=1"}),
    "mkv-every-frame": ("mkv", "ffv1", 1, 0, {}),
    "webm-vp8": ("webm", "libvpx", 13, 0, {"auto-alt-ref": "1", "lag-in-frames": "16"}),
    "webm-vp9": ("webm", "libvpx-vp9", 13, 0, {"deadline": "realtime", "cpu-used": "8"}),
    "avi": ("avi", "mpeg4", 7, 0, {}),
    "avi-b-frames": ("avi", "mpeg4", 7, 2, {}),
    "ts": ("ts", "mpeg2video", 12, 2, {}),
    "mpg": ("mpg", "mpeg2video", 12, 2, {}),
    "flv": ("flv", "libx264", 13, 2, {}),
}


def written(
    path: Path, kind: str, frames: int = FRAMES, times: Callable[[int], int] = lambda index: index, units: int = 25
) -> Path:
    """A moving noise, so that no two frames are alike and every one leans on those around it."""
    suffix, codec, gop, between, settings = KINDS[kind]
    path = path.with_suffix(f".{suffix}")
    noise = np.kron(np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8), np.ones((8, 8, 1), np.uint8))
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=25, options=settings)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.max_b_frames = gop, between
        stream.codec_context.thread_count = 1
        stream.codec_context.time_base = Fraction(1, units)
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(np.roll(noise, 3 * index, axis=1), format="rgb24")
            frame.pts, frame.time_base = times(index), Fraction(1, units)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def decoded(path: Path) -> tuple[np.ndarray, list[int]]:
    """Everything at once, as the decoder gives it: what is to be found again."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        base = container.streams.video[0].time_base
    assert base is not None
    times = [round(Fraction(frame.pts or 0) * base * 1_000_000) for frame in frames]
    return np.stack([frame.to_ndarray(format="rgb24") for frame in frames]), times


@pytest.fixture(autouse=True)
def eight_frames_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "HELD_BYTES", 7 * FRAME_BYTES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_video_has_the_frames_and_times_of_decoding_it_whole(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path / "v", kind)
    frames, times = decoded(path)
    found = open_video(path)
    assert isinstance(found.clip.frames, StoredFrames) and found.notes == (LONG_NOTE,)
    assert found.clip.times_us.tolist() == times and found.clip.frames.shape == frames.shape
    mixed = np.random.default_rng(1).permutation(FRAMES)
    for place in mixed:
        assert np.array_equal(found.clip.frames[place], frames[place]), place
    assert np.array_equal(np.asarray(open_video(path).clip.frames), frames)
    assert np.array_equal(found.clip.frames[mixed], frames[mixed])
    window = Window(times[20], times[50])
    cut = open_video(path).clip.slice(window)
    assert cut.times_us.tolist() == times[20:50] and np.array_equal(np.asarray(cut.frames[::4]), frames[20:50:4])


def test_the_frame_rate_may_vary(tmp_path: Path) -> None:
    path = written(tmp_path / "v", "mp4", times=lambda index: index * 40 + (index * index) % 17, units=1000)
    frames, times = decoded(path)
    clip = open_video(path).clip
    assert clip.times_us.tolist() == times and len(set(np.diff(times))) > 3
    assert np.array_equal(clip.frames[[3, 40, 59]], frames[[3, 40, 59]])


def test_what_an_edit_list_cuts_away_is_not_shown(tmp_path: Path) -> None:
    path = written(tmp_path / "v", "mp4", times=lambda index: index - 9)  # the file starts at 0: earlier frames are cut
    frames, times = decoded(path)
    clip = open_video(path).clip
    assert len(frames) < FRAMES and clip.times_us.tolist() == times
    assert np.array_equal(np.asarray(clip.frames), frames)


def count_decoding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pts of the frames that readers decode from now on."""
    seen: list[int] = []
    original = seeking.SeekingReader._from_key

    def counted(self: Any, key: int) -> Any:
        for mark, frame in original(self, key):
            seen.append(mark)
            yield mark, frame

    monkeypatch.setattr(seeking.SeekingReader, "_from_key", counted)
    return seen


def test_only_the_groups_of_the_frames_asked_for_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = open_video(written(tmp_path / "v", "mp4")).clip
    seen = count_decoding(monkeypatch)
    clip.frames[[40, 1, 14]]
    assert len(seen) == 2 + 2 + 2  # key frames are at 0, 13, 26, 39
    clip.frames[[14, 1]]
    assert len(seen) == 6  # the last ones are kept
    seen.clear()
    np.asarray(clip.frames)
    assert len(seen) <= FRAMES  # one pass


def test_a_video_of_one_group_is_decoded_once_for_ascending_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = open_video(written(tmp_path / "v", "mp4-one-gop")).clip
    seen = count_decoding(monkeypatch)
    clip.frames[[50, 10, 30]]
    assert len(seen) == 51


def test_opening_decodes_the_beginning_and_the_last_group_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "v", "mp4")
    seen = count_decoding(monkeypatch)
    monkeypatch.setattr(decode, "_counted", None)
    open_video(path)
    assert len(seen) == FRAMES - 52


@pytest.mark.parametrize("kind", ["mp4", "avi-b-frames", "ts"])
def test_threads_may_read_at_once(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path / "v", kind)
    frames, _ = decoded(path)
    clip = open_video(path).clip
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda place: clip.frames[place * 7 % FRAMES], range(80)))
    assert all(np.array_equal(frame, frames[place * 7 % FRAMES]) for place, frame in enumerate(found))


# ------------------------------------------------------------------------------------------- files that lie, or are damaged
def test_times_in_stored_order_are_put_in_order(tmp_path: Path) -> None:
    """AVI numbers packets as they are stored; H.264 with B-frames stores them in another order than it shows them."""
    KINDS["avi-h264"] = ("avi", "libx264", 13, 2, {})
    frames, times = decoded(path := written(tmp_path / "v", "avi-h264"))
    assert times != sorted(times)
    found = open_video(path)
    assert found.clip.times_us.tolist() == sorted(times)
    assert any("their times are sorted" in note for note in found.notes)
    assert np.array_equal(found.clip.frames[[33, 5, 60]], frames[[33, 5, 60]])


def test_a_clock_that_is_set_back_is_not_sorted() -> None:
    assert packets.in_order([3, 1, 2]) == ([1, 2, 3], True)
    assert packets.in_order([1, 2, 2]) == ([1, 2, 2], False)
    again = [*range(100, 120), *range(20)]
    assert packets.in_order(again) == (again, False)


def test_wrong_key_frames_cost_time_only(tmp_path: Path) -> None:
    path = written(tmp_path / "v", "mp4")
    frames, _ = decoded(path)
    with packets.opened(path) as container:
        found = packets.survey(container)
    for keys in (found.marks, found.marks[5::9], found.keys[:0]):
        marks = found.marks if len(keys) else np.arange(FRAMES)
        read = seeking.SeekingReader(path, marks, keys)
        assert all(np.array_equal(read(place), frames[place]) for place in (30, 12, 58, 0, 31))


@pytest.mark.parametrize("kind", ["avi", "mkv-hevc-open-gop", "ts", "flv", "avi-b-frames"])
@pytest.mark.parametrize("share", [0.75, 0.85])
def test_a_torn_video_keeps_what_was_readable(tmp_path: Path, kind: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "v", kind)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    long = open_video(path)
    monkeypatch.setattr(stored, "HELD_BYTES", 1 << 27)
    short = open_video(path)
    assert not isinstance(short.clip.frames, StoredFrames) and 8 < len(short.clip) < FRAMES
    assert long.clip.times_us.tolist() == short.clip.times_us.tolist()
    assert np.array_equal(np.asarray(long.clip.frames), short.clip.frames)
    assert long.notes == (*short.notes, LONG_NOTE) and len(short.notes) <= 1


def test_damage_in_the_middle_is_met_where_it_is(tmp_path: Path) -> None:
    path = written(tmp_path / "v", "mp4-mpeg4")
    frames, times = decoded(path)
    with av.open(str(path)) as container:
        keys = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.is_keyframe]
    place, size = keys[len(keys) // 2]
    data = bytearray(path.read_bytes())
    data[place : place + size] = b"\0" * size
    path.write_bytes(data)
    clip = open_video(path).clip
    assert clip.times_us.tolist() == times
    read = 0
    for index in range(FRAMES):
        try:
            frame = clip.frames[index]
        except BadInput as refused:
            assert f"frame {index} cannot be decoded" in str(refused) and "choose a window without it" in str(refused)
        else:
            read += np.array_equal(frame, frames[index])
    assert FRAMES - 16 < read < FRAMES


def test_a_file_that_is_gone_is_told_of(tmp_path: Path) -> None:
    read = seeking.SeekingReader(tmp_path / "gone.mp4", np.arange(9), np.arange(9))
    with pytest.raises(BadInput, match=r"gone.mp4: frame 3 cannot be decoded"):
        read(3)
