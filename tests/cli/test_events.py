"""``eventspec events``: facts on stdout, notes on stderr, outputs whole or absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from eventspec.cli.events import app, summary, table
from eventspec.core import BadInput
from eventspec.events import EventStream
from eventspec.events.formats import SizeUnknown
from eventspec.recordings import Recording, write_native
from eventspec.video import VideoClip

SHARED = Path(__file__).parents[2].parent / "shared"
AEDAT4 = SHARED / "recordings/aedat4/davis346_traffic.aedat4"
with_shared = pytest.mark.skipif(not SHARED.exists(), reason="shared recordings are not here")


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Ten events (two of them ON) and four frames in a native folder."""
    events = EventStream.checked(np.arange(10), [1] * 10, np.arange(10) * 100 + 1000, [0, 1] + [0] * 8, 16, 8)
    video = VideoClip.checked(np.zeros((4, 8, 16, 3), np.uint8), np.array([1000, 1300, 1600, 1900]))
    write_native(tmp_path / "clip", Recording("clip", events, video))
    return tmp_path / "clip"


@with_shared
def test_info_gives_the_contracts_object_and_golden_sums() -> None:
    done = run("info", AEDAT4, "--json")
    assert done.exit_code == 0 and json.loads(done.stdout) == {
        "format": "aedat4",
        "width": 346,
        "height": 260,
        "events": 78830,
        "first_us": 1589163147368868,
        "last_us": 1589163149728813,
        "sum_x": 14861513,
        "sum_y": 15061593,
        "on": 41257,
        "frames": 59,
        "imu": 2363,
    }
    assert done.stderr == "note: frame times are the middle of the exposure\n"


@with_shared
def test_info_tells_of_a_torn_file_what_is_left_and_what_is_lost(tmp_path: Path) -> None:
    (tmp_path / "torn.aedat4").write_bytes(AEDAT4.read_bytes()[:1_000_000])
    done = run("info", tmp_path / "torn.aedat4", "--json")
    facts = json.loads(done.stdout)
    assert 0 < facts["events"] < 78830 and 0 < facts["frames"] < 59
    assert "bytes of packets (84.5%) are lost" in done.stderr


def test_info_for_people_is_one_line_a_fact_without_checksums(clip: Path) -> None:
    lines = run("info", clip).stdout.splitlines()
    assert dict(line.split(maxsplit=1) for line in lines) == {
        "format": "native",
        "sensor": "16x8",
        "events": "10",
        "ON": "10.0%",
        "duration": "0.0009 s",
        "rate": "11.1 kev/s",
        "from": "1000 us",
        "to": "1900 us",
        "frames": "4 of 16x8, 3.33e+03 a second",
    }


def test_info_of_bare_text_needs_no_sensor_size(tmp_path: Path) -> None:
    (tmp_path / "events.txt").write_text("".join(f"{i / 1e5:.6f} {i % 240} {i % 180} {i % 2}\n" for i in range(1000)))
    done = run("info", tmp_path / "events.txt")
    assert "at least 240x180, by the coordinates" in done.stdout and "99.9" not in done.stdout
    facts = json.loads(run("info", tmp_path / "events.txt", "--json").stdout)
    assert (facts["width"], facts["height"], facts["events"], facts["on"], facts["last_us"]) == (240, 180, 1000, 500, 9990)
    named = json.loads(run("info", tmp_path / "events.txt", "--json", "--sensor", "DAVIS346").stdout)
    assert (named["width"], named["height"]) == (346, 260)
    small = run("info", tmp_path / "events.txt", "--sensor", "100x100")
    assert isinstance(small.exception, BadInput) and "outside the sensor" in str(small.exception)
    assert isinstance(run("render", tmp_path / "events.txt", "--out", tmp_path / "a.png").exception, SizeUnknown)


def test_facts_by_coordinates_of_no_events_are_unknown() -> None:
    facts = summary(Recording("r", EventStream.empty(65536, 65536), None), by_coordinates=True)
    assert (facts["width"], facts["height"]) == (None, None)
    assert dict(table(Recording("r", EventStream.empty(4, 3), None), facts, True))["sensor"] == "-"


def test_examples_are_recordings_wherever_one_is_named(tmp_path: Path) -> None:
    assert json.loads(run("info", "example:street", "--json").stdout)["frames"] == 8
    done = run("convert", "example:davis", tmp_path / "cut.npz", "--start", "0.5", "--json")
    told = json.loads(done.stdout)
    assert told == {"out": str(tmp_path / "cut.npz"), "kind": "npz", "events": told["events"], "frames": 0}
    unknown = run("info", "example:moon")
    assert isinstance(unknown.exception, BadInput)
    assert str(unknown.exception) == "there is no example:moon: choose one of example:street, example:davis"


@pytest.mark.parametrize(
    ("words", "first", "last"),
    [
        (("--start", "0.0002"), 1200, 1900),
        (("--end", "0.0005"), 1000, 1400),
        (("--start", "0.0002", "--end", "0.0005"), 1200, 1400),
        (("--start", "0.0002", "--end-us", "1500"), 1200, 1400),
        (("--start", "0", "--end", "99"), 1000, 1900),
    ],
)
def test_a_cut_may_be_said_in_seconds_from_the_beginning(
    clip: Path, tmp_path: Path, words: tuple[str, ...], first: int, last: int
) -> None:
    assert run("convert", clip, tmp_path / "cut.npz", *words).exit_code == 0
    facts = summary(Recording.open(tmp_path / "cut.npz", (16, 8)))
    assert (facts["first_us"], facts["last_us"]) == (first, last)


def test_a_recording_without_events_has_no_times_and_counts_of_zero() -> None:
    facts = summary(Recording("r", None, VideoClip.checked(np.zeros((2, 3, 4, 3), np.uint8), np.array([0, 1]))))
    assert (facts["width"], facts["height"], facts["events"], facts["frames"]) == (4, 3, 0, 2)
    assert facts["first_us"] is None and facts["last_us"] is None
    empty = summary(Recording("r", EventStream.empty(4, 3), None))
    assert empty["first_us"] is None and (empty["width"], empty["frames"]) == (4, 0)


def test_frames_alone_say_how_long_they_last() -> None:
    frames = VideoClip.checked(np.zeros((3, 3, 4, 3), np.uint8), np.array([100, 50_100, 100_100]))
    recording = Recording("r", None, frames)
    rows = dict(table(recording, summary(recording)))
    assert (rows["duration"], rows["from"], rows["to"]) == ("0.1 s", "100 us", "100100 us")
    assert rows["frames"] == "3 of 4x3, 20 a second"
    nothing = Recording("r", EventStream.empty(4, 3), None)
    assert "duration" not in dict(table(nothing, summary(nothing)))


def test_a_cut_may_leave_out_either_end(clip: Path) -> None:
    recording = Recording.open(clip)
    for start, end, count in ((None, None, 10), (1500, None, 5), (None, 1500, 5), (1200, 1400, 2)):
        events = recording.slice(recording.window(start, end)).events
        assert events is not None and len(events) == count


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        (5000, 6000, "the window [5000, 6000) us is outside the recording"),
        (9000, None, "the window from 9000 us on is outside the recording"),
        (None, -5, "the window up to -5 us is outside the recording"),
        (-9, -5, "the window [-9, -5) us is outside the recording"),
        (1500, 1200, "the window [1500, 1200) us ends before it begins"),
        (1500, 1500, "the window [1500, 1500) us is empty"),
    ],
)
def test_a_window_that_leaves_nothing_is_answered_with_what_there_is(
    clip: Path, start: int | None, end: int | None, told: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        Recording.open(clip).window(start, end)
    assert str(refusal.value) == f"clip: {told}: the recording spans [1000, 1901) us, choose a part of that"


@pytest.mark.parametrize(("name", "frames"), [("out.npz", 0), ("out.csv", 0), ("folder", 2), ("drive.2", 2)])
def test_convert_writes_the_cut_as_its_suffix_says(clip: Path, tmp_path: Path, name: str, frames: int) -> None:
    source = [] if "." in name and frames == 0 else ["--source", "a test"]
    done = run("convert", clip, tmp_path / name, "--start-us", "1200", "--end-us", "1700", *source)
    assert done.exit_code == 0 and "5 events" in done.stdout
    assert ("2 frames of clip are not in it" in done.stderr) == (frames == 0)
    facts = summary(Recording.open(tmp_path / name))
    assert (facts["events"], facts["first_us"], facts["last_us"], facts["frames"]) == (5, 1200, 1600, frames)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["clip", name])


@pytest.mark.parametrize("name", ["out.h5", "out.HDF5"])
def test_convert_writes_dsecs_layout(clip: Path, tmp_path: Path, name: str) -> None:
    assert run("convert", clip, tmp_path / name).exit_code == 0
    facts = summary(Recording.open(tmp_path / name))
    assert facts == {**summary(Recording.open(clip)), "format": "dsec-h5", "frames": 0}


def test_convert_writes_text_that_other_programs_read(clip: Path, tmp_path: Path) -> None:
    assert run("convert", clip, tmp_path / "out.csv").exit_code == 0
    assert (tmp_path / "out.csv").read_text().splitlines()[:4] == ["# sensor 16x8", "t_us,x,y,p", "1000,0,1,0", "1100,1,1,1"]
    assert summary(Recording.open(tmp_path / "out.csv")) == {**summary(Recording.open(clip)), "format": "text", "frames": 0}


def test_a_writer_that_fails_names_the_output_and_not_its_temporary_name(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (BadInput("PATH: is full"), OSError("cannot create name = 'PATH'"), OSError(28, "No space", "PATH")):

        def fails(path: Path, stream: EventStream, error: Exception = error) -> None:
            raise type(error)(*(word.replace("PATH", str(path)) if isinstance(word, str) else word for word in error.args))

        monkeypatch.setattr("eventspec.events.formats.npz.write", fails)
        done = run("convert", clip, tmp_path / "out.npz")
        assert isinstance(done.exception, BadInput) and str(done.exception).startswith(str(tmp_path / "out.npz"))
        assert ".part" not in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["clip"]


def test_convert_writes_aedat4_where_dv_processing_is_installed(clip: Path, tmp_path: Path) -> None:
    try:
        import dv_processing  # noqa: F401
    except ImportError:
        done = run("convert", clip, tmp_path / "out.aedat4")
        assert isinstance(done.exception, BadInput) and "pip install 'eventspec[inivation]'" in str(done.exception)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["clip"]
        return
    assert run("convert", clip, tmp_path / "out.aedat4").exit_code == 0
    assert summary(Recording.open(tmp_path / "out.aedat4")) == {**summary(Recording.open(clip)), "format": "aedat4"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip", "out.aedat4"]


@with_shared
@pytest.mark.parametrize(
    ("file", "size", "events", "note"),
    [
        ("prophesee/evt3_sample_small.raw", (1280, 720), 219596, "taken from the header's sensor, gen4"),
        ("prophesee/dat_ncars_tonic.dat", (304, 240), 2009, "is taken from the header's sensor, atis"),
        ("nmnist/nmnist_sample.bin", (34, 34), 4325, "(nmnist) is assumed"),
    ],
)
def test_info_needs_no_options_for_files_that_name_their_sensor(
    file: str, size: tuple[int, int], events: int, note: str
) -> None:
    done = run("info", SHARED / "recordings" / file, "--json")
    facts = json.loads(done.stdout)
    assert (facts["width"], facts["height"], facts["events"]) == (*size, events) and note in done.stderr


def test_the_policy_for_time_is_an_option_of_every_command(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("640 480\n5 1 2 1\n4 1 2 1\n")
    refused = run("info", tmp_path / "e.txt")
    assert isinstance(refused.exception, BadInput) and 'monotonic="clamp"' in str(refused.exception)
    done = run("info", tmp_path / "e.txt", "--json", "--monotonic", "clamp")
    assert json.loads(done.stdout)["first_us"] == 5 and "1 event time goes back, by at most 1 us" in done.stderr
    assert run("convert", tmp_path / "e.txt", tmp_path / "e.h5", "--monotonic", "clamp").exit_code == 0


def test_one_event_outside_the_sensor_can_be_dropped(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("640 480\n4 1 2 1\n5 1 480 1\n6 1 2 1\n5 1 2 1\n")
    refused = run("info", tmp_path / "e.txt", "--monotonic", "clamp")
    assert isinstance(refused.exception, BadInput) and "y in line 3 is 480" in str(refused.exception)
    assert "drop such events with drop_outside=True" in str(refused.exception)
    done = run("convert", tmp_path / "e.txt", tmp_path / "out", "--drop-outside", "--monotonic", "clamp")
    assert done.exit_code == 0 and "1 of 4 events are dropped: they lie outside the sensor of 640x480" in done.stderr
    late = run("info", tmp_path / "e.txt", "--drop-outside")
    assert "t in line 5 is 5, before t in line 4 = 6" in str(late.exception)


def test_convert_to_names_the_kind_whatever_the_suffix(clip: Path, tmp_path: Path) -> None:
    assert run("convert", clip, tmp_path / "e.dat", "--to", "npz").exit_code == 0
    assert summary(Recording.open(tmp_path / "e.dat"))["format"] == "npz"
    assert run("convert", tmp_path / "e.dat", tmp_path / "x.raw", "--to", "native").exit_code == 0
    assert Recording.open(tmp_path / "x.raw").name == "x.raw"
    assert run("convert", clip, tmp_path / "e.txt", "--to", "csv").exit_code == 0


@pytest.mark.parametrize("representation", ["red-blue", "count", "time-surface"])
def test_render_draws_one_image_a_slice_or_one_sheet(clip: Path, tmp_path: Path, representation: str) -> None:
    done = run("render", clip, "--out", tmp_path / "images", "--representation", representation, "--windows", "2")
    assert done.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == ["000.png", "001.png"]
    first = np.asarray(Image.open(tmp_path / "images/000.png"))
    assert first.shape == (8, 16, 3) and first[1, 1, 0] == 255 and first[1, 1, 1:].max() < 250  # the ON event is red
    sheet = run("render", clip, "--out", tmp_path / "sheet.png", "--windows", "3", "--representation", representation, "--json")
    assert json.loads(sheet.stdout) == {
        "out": str(tmp_path / "sheet.png"),
        "representation": representation,
        "windows": 3,
        "events": 10,
    }
    assert Image.open(tmp_path / "sheet.png").format == "PNG"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("info", "nothing.aedat4"), "nothing.aedat4: no such file"),
        (("info", "CLIP", "--sensor", "big"), "sensor 'big' is unknown"),
        (("info", "CLIP", "--sensor", ""), "sensor '' is unknown: write WIDTHxHEIGHT"),
        (("convert", "CLIP", "CLIP"), "exists already"),
        (("render", "CLIP", "--out", "CLIP"), "exists already"),
        (("info", "CLIP", "--sensor", "0x0"), "sensor '0x0' is no size"),
        (("info", "CLIP", "--sensor", "640x480"), "the file says 16x8 pixels but sensor_size is 640x480"),
        (("info", "CLIP/frames", "--sensor", "16x8"), "is a folder of images, and sensor_size is for events"),
        (("convert", "CLIP", "TMP/x.npz", "--to", "csv"), ".npz is npz, and --to says csv: leave --to out"),
        (("convert", "CLIP", "TMP/x.h5", "--to", "native"), ".h5 is dsec, and --to says native"),
        (("convert", "CLIP", "TMP/new", "--start", "0.0009011"), "--start 0.0009011 does not lie in clip: the recording lasts"),
        (("convert", "CLIP", "TMP/new", "--end", "-1"), "--end -1 does not lie in clip"),
        (("convert", "CLIP", "TMP/new", "--end", "nan"), "--end nan does not lie in clip"),
        (("convert", "CLIP", "TMP/new", "--start", "0.0005", "--end", "0.0002"), "ends before it begins"),
        (("convert", "CLIP", "TMP/new", "--start", "0", "--start-us", "1000"), "--start and --start-us both say where to cut"),
        (("convert", "CLIP", "TMP/new", "--start-us", "9000"), "spans [1000, 1901) us"),
        (("convert", "CLIP", "TMP/new", "--start-us", "9000", "--end-us", "9001"), "outside the recording"),
        (("convert", "CLIP/frames", "TMP/new.npz"), "holds no event stream"),
        (("render", "CLIP/frames", "--out", "TMP/new.png"), "holds no event stream"),
        (("render", "CLIP", "--out", "TMP/new", "--windows", "99999999"), "99999999 pictures of 16x8 are too many"),
        (("render", "CLIP", "--out", "TMP/new.png", "--windows", "61"), "61 windows do not fit on one picture: at most 60"),
        (("convert", "CLIP", "CLIP/events.h5/new.npz"), "would change"),
        (("convert", "CLIP", "/dev/null/new.npz"), "cannot be written"),
        (("convert", "CLIP", "TMP/new.raw"), ".raw files are not written: choose a folder's name without suffix, .npz, .h5"),
        (("convert", "CLIP", "TMP/new.zzz"), ".zzz files are not written: choose a folder's name without suffix, .npz, .h5"),
        (("simulate", "CLIP", "--out", "TMP/new.MP4"), ".mp4 files are not written"),
        (("render", "CLIP", "--out", "TMP/new.jpg"), ".jpg files are not drawn: choose a folder's name without suffix, or"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(
    clip: Path, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    done = run(*(word.replace("CLIP", str(clip)).replace("TMP", str(tmp_path)) for word in words))
    assert isinstance(done.exception, BadInput) and told in str(done.exception) and "\n" not in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


# --------------------------------------------------------------------------------------------------------------- simulate
@pytest.fixture
def film(tmp_path: Path) -> Path:
    """Six images of a white square that moves to the right, without times."""
    (tmp_path / "film").mkdir()
    for index in range(6):
        frame = np.full((16, 32, 3), 60, np.uint8)
        frame[4:12, 4 + 3 * index : 12 + 3 * index] = 230
        Image.fromarray(frame).save(tmp_path / f"film/{index}.png")
    return tmp_path / "film"


def test_simulate_makes_a_recording_with_frames_and_events(film: Path, tmp_path: Path) -> None:
    done = run("simulate", film, "--out", tmp_path / "made", "--fps", "50", "--noise-hz", "0")
    assert done.exit_code == 0, done.exception
    made = Recording.open(tmp_path / "made")
    assert made.events is not None and made.video is not None and (made.events.width, made.events.height) == (32, 16)
    assert made.video.times_us.tolist() == [0, 20_000, 40_000, 60_000, 80_000, 100_000]
    assert done.stdout == f"{tmp_path / 'made'}: {len(made.events)} events and 6 frames\n"
    front, back = (made.events.x[made.events.p == p] for p in (1, 0))
    assert min(len(front), len(back)) > 400 and front.mean() > back.mean() + 6 and made.events.y.min() == 4
    assert "note: the events are simulated, not measured: threshold 0.25" in done.stderr
    assert any("frames are 20 ms apart" in note for note in made.notes)  # kept in recording.toml


def test_simulate_is_seeded_and_writes_what_the_suffix_says(film: Path, tmp_path: Path) -> None:
    for name, seed in (("a.npz", "3"), ("b.npz", "3"), ("c.npz", "4"), ("d.h5", "3")):
        assert run("simulate", film, "--out", tmp_path / name, "--seed", seed, "--subframes", "2").exit_code == 0
    facts = [summary(Recording.open(tmp_path / name)) for name in ("a.npz", "b.npz", "c.npz", "d.h5")]
    assert facts[0] == facts[1] != facts[2] and facts[3] == {**facts[0], "format": "dsec-h5"}
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_simulate_replaces_the_events_of_a_recording_and_may_cut_it(clip: Path, tmp_path: Path) -> None:
    done = run("simulate", clip, "--out", tmp_path / "made", "--noise-hz", "0", "--end-us", "1700")
    assert done.exit_code == 0 and "the recording's own 7 events are left out" in done.stderr
    facts = summary(Recording.open(tmp_path / "made"))
    assert (facts["events"], facts["frames"], facts["width"]) == (0, 3, 16)  # black frames


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("CLIP/events.h5", "--out", "TMP/new"), "holds no frames: give a video, a folder of images"),
        (("CLIP", "--out", "CLIP"), "exists already"),
        (("CLIP", "--out", "TMP/new", "--end-us", "1001"), "1 frame with different times: events need at least two"),
        (("CLIP", "--out", "TMP/new", "--threshold", "0"), "threshold is 0.0: it must be 0.05 to 10.0"),
        (("none.mp4", "--out", "TMP/new"), "none.mp4: no such file"),
        (
            ("CLIP", "--out", "TMP/new", "--fps", "-3"),
            "is a native folder with times of its own, and fps is for folders of images",
        ),
        (("CLIP/events.h5", "--out", "TMP/new", "--fps", "20"), "is a file, and fps is for folders of images"),
        (("CLIP/frames", "--out", "TMP/new", "--fps", "-3"), "fps is -3.0: give frames a second, above 0"),
    ],
)
def test_what_cannot_be_simulated_is_one_line_and_leaves_nothing(
    clip: Path, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    done = run("simulate", *(word.replace("CLIP", str(clip)).replace("TMP", str(tmp_path)) for word in words))
    assert isinstance(done.exception, BadInput) and told in str(done.exception) and "\n" not in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["clip"]


def test_a_cut_keeps_where_its_recording_comes_from(clip: Path, tmp_path: Path) -> None:
    found = Recording.open(clip)
    write_native(tmp_path / "known", found, "a car park, camera 3")
    for name, words, source in (("cut", (), "a car park, camera 3"), ("named", ("--source", "mine"), "mine")):
        assert run("convert", tmp_path / "known", tmp_path / name, "--to", "native", "--end-us", "1500", *words).exit_code == 0
        assert Recording.open(tmp_path / name).source == source
    assert run("convert", clip, tmp_path / "unknown", "--to", "native").exit_code == 0
    assert Recording.open(tmp_path / "unknown").source == "clip", "else the name of the file"
