"""AEDAT 4: a torn file keeps what came before the tear, a damaged one never ends the process."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest

from eventspec.core import BadInput, Window
from eventspec.events.formats import aedat4, open_events, read_events
from eventspec.events.formats.family import LONG_NOTE
from eventspec.events.stored import StoredStream
from eventspec.events.stream import EventStream

SHARED = Path(__file__).parents[2].parent / "shared"
CLIP = SHARED / "recordings/aedat4/davis346_traffic_clip.aedat4"
FIRST_PACKET, SECOND_PACKET, PACKETS_END = 3122, 6533, 428314

pytestmark = pytest.mark.skipif(not CLIP.exists(), reason="shared recordings are not here")


@pytest.fixture(scope="module")
def data() -> bytes:
    return CLIP.read_bytes()


def test_frames_come_as_grey_rgb_with_the_middle_of_their_exposure() -> None:
    found = open_events(CLIP)
    assert encoders.frames_of(found) is not None and found.frames is not None
    assert encoders.frames_of(found).shape == (4, 260, 346, 3) and encoders.frames_of(found).dtype == np.uint8
    assert (encoders.frames_of(found)[..., 0] == encoders.frames_of(found)[..., 2]).all()
    assert found.frames[2].tolist() == [1589163147365215 + 40_000 * k for k in range(4)]
    assert found.notes == ("frame times are the middle of the exposure",)


def test_events_alone_are_those_of_the_file() -> None:
    found, alone = open_events(CLIP), read_events(CLIP)
    assert found.events is not None and found.frames is not None
    assert all(np.array_equal(getattr(alone, name), getattr(found.events, name)) for name in "xytp")


@pytest.mark.parametrize(
    ("length", "events", "frames"),
    [
        (SECOND_PACKET, 402, 0),
        (SECOND_PACKET + 3, 402, 0),
        (100_000, 402, 1),
        (214_683, 3154, 2),
        (PACKETS_END - 5, 6676, 4),
    ],
)
def test_a_torn_file_keeps_what_was_readable_and_says_what_is_lost(
    tmp_path: Path, data: bytes, length: int, events: int, frames: int
) -> None:
    path = tmp_path / "torn.aedat4"
    path.write_bytes(data[:length])
    whole, found = open_events(CLIP).events, open_events(path)
    assert found.events is not None and whole is not None
    assert len(found.events) == events and np.array_equal(found.events.t, whole.t[:events])
    assert (0 if encoders.frames_of(found) is None else len(encoders.frames_of(found))) == frames
    (loss,) = (note for note in found.notes if "torn" in note)
    tear = int(loss.split("at byte ")[1].split(":")[0])
    lost, of = (int(word) for word in loss.split(": ")[1].split(" bytes")[0].split(" of "))
    assert tear <= length and tear + lost == PACKETS_END and of == PACKETS_END - FIRST_PACKET


def test_a_missing_packet_table_loses_nothing(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "unfinished.aedat4"
    path.write_bytes(data[:PACKETS_END])
    found = open_events(path)
    assert found.events is not None and len(found.events) == 6676
    assert not any("torn" in note for note in found.notes)


@pytest.mark.parametrize("length", [1, 10, 14, 16, 18, 100, 3000, FIRST_PACKET, FIRST_PACKET + 8, SECOND_PACKET - 1])
def test_a_file_without_one_whole_packet_is_refused(tmp_path: Path, data: bytes, length: int) -> None:
    path = tmp_path / "torn.aedat4"
    path.write_bytes(data[:length])
    with pytest.raises(BadInput) as refused:
        open_events(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_torn_before_its_first_event_or_frame_is_refused(tmp_path: Path, data: bytes) -> None:
    """Its first packet is motion data: something was readable, but nothing to ask about."""
    position = FIRST_PACKET
    while data[position] < 2:  # stream 0 is events, 1 frames
        position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
    end = position + 8 + int.from_bytes(data[position + 4 : position + 8], "little")
    (tmp_path / "torn.aedat4").write_bytes(data[:FIRST_PACKET] + data[position:end] + data[FIRST_PACKET:SECOND_PACKET][:-3])
    with pytest.raises(BadInput, match="before its first event or frame"):
        open_events(tmp_path / "torn.aedat4")


def test_damaged_bytes_end_in_a_refusal_or_a_note_never_in_a_crash(tmp_path: Path, data: bytes) -> None:
    """Without our header checks the decoder aborts the whole process on some of these."""
    rng = random.Random(7)
    path = tmp_path / "damaged.aedat4"
    refused = 0
    for _ in range(150):
        damaged = bytearray(data[:20_000])
        for _ in range(rng.choice([1, 3])):
            damaged[rng.randrange(rng.choice([60, FIRST_PACKET, 12_000]))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            open_events(path)
        except BadInput as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 30


def test_the_recipe_for_an_abort_is_refused(tmp_path: Path, data: bytes) -> None:
    damaged = bytearray(data)
    for place, value in ((60, 74), (67, 223), (24, 56)):
        damaged[place] = value
    path = tmp_path / "abort.aedat4"
    path.write_bytes(damaged)
    with pytest.raises(BadInput, match="header is damaged"):
        open_events(path)


def test_another_sensor_size_than_the_files_is_refused() -> None:
    with pytest.raises(BadInput, match="the file says 346x260 pixels but sensor_size is 640x480"):
        open_events(CLIP, (640, 480))


# -------------------------------------------------------------------------------------------------------------- long files
@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is made for long files, at the size of the clip."""
    monkeypatch.setattr("eventspec.events.stored.HELD_EVENTS", 1000)
    monkeypatch.setattr("eventspec.events.formats.aedat4.BLOCK_BYTES", 6000)


def equal(one: EventStream, other: EventStream) -> None:
    for name in "xytp":
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_a_short_file_is_decoded_once_and_a_long_one_is_not_kept(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[object] = []
    decoded = aedat4._decoded

    def counted(*what: Any) -> Any:
        again.append(what)
        return decoded(*what)

    monkeypatch.setattr(aedat4, "_decoded", counted)
    assert len(read_events(CLIP)) == 6676 and not again
    kept = aedat4._packets(CLIP, aedat4._layout(CLIP)).short
    assert kept is not None and sum(len(part) for part in kept) == 6676
    monkeypatch.setattr("eventspec.events.stored.HELD_EVENTS", 6675)
    assert aedat4._packets(CLIP, aedat4._layout(CLIP)).short is None
    assert isinstance(read_events(CLIP), StoredStream) and again


def test_a_long_file_is_read_in_parts(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_events(CLIP)
    with monkeypatch.context() as usual:
        usual.setattr("eventspec.events.stored.HELD_EVENTS", 1 << 23)
        whole = read_events(CLIP)
    assert isinstance(found.events, StoredStream) and LONG_NOTE in found.notes and not isinstance(whole, StoredStream)
    for start, end in ((0, 10), (100, 3000), (2500, 2501), (6000, 6675)):
        window = Window(int(whole.t[start]), int(whole.t[end]))
        equal(read_events(CLIP).slice(window), whole.slice(window))  # nothing known of the file yet
        equal(found.events.slice(window), whole.slice(window))
    blocks = list(found.events.blocks())
    assert len(blocks) > 5 and found.events.span == whole.span and len(found.events) == len(whole)
    equal(EventStream.joined(blocks, 346, 260), whole)


def test_a_long_torn_file_ends_at_the_tear(tmp_path: Path, data: bytes, small: None) -> None:
    path = tmp_path / "torn.aedat4"
    path.write_bytes(data[:214_683])
    found = open_events(path)
    assert isinstance(found.events, StoredStream) and len(found.events) == 3154 and any("torn" in note for note in found.notes)
    path.write_bytes(data[:100_000])
    with pytest.raises(BadInput, match=r"was it changed"):
        list(found.events.blocks())


def test_a_frame_is_decoded_when_it_is_asked_for(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "clip.aedat4"
    path.write_bytes(data)
    found = open_events(path)
    assert found.frames is not None and encoders.frames_of(found) is not None
    assert np.array_equal(found.frames[0](2), encoders.frames_of(found)[2])
    path.write_bytes(data[:FIRST_PACKET])
    with pytest.raises(BadInput, match=r"clip.aedat4: cannot be decoded at byte \d+"):
        found.frames[0](2)


def test_a_file_that_cannot_be_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        """Stands for a package whose disk is full: every object, and a call that fails."""

        def __getattr__(self, name: str) -> Any:
            return self

        def __call__(self, *parts: Any) -> Any:
            if parts and str(parts[0]).endswith(".aedat4"):
                raise OSError(28, "No space left on device")
            return self

    monkeypatch.setitem(sys.modules, "dv_processing", Full())
    with pytest.raises(OSError, match="No space left"):
        aedat4.write(tmp_path / "out", None)
    assert not list(tmp_path.iterdir())
