"""Options and arguments that several commands have, and how a command prints what it found."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eventspec.errors import BadInput
from eventspec.files import check_writable
from eventspec.sampling import Sampling

if TYPE_CHECKING:
    from eventspec.recordings import Recording


def given_path(given: str | Path) -> Path:
    """Reads every option and argument of type Path. typer.BadParameter for an empty name: ``--out "$UNSET"`` must not become
    the working folder, which is what Path makes of it."""
    if isinstance(given, str) and not given.strip():
        raise typer.BadParameter("the path is empty: name a file or a folder")
    return Path(given)


def path(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, parser=given_path, help=help, **more)


def path_argument(help: str) -> Any:
    return typer.Argument(parser=given_path, help=help, show_default=False)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Pair = Annotated[str, typer.Option(help="A bundled pair, or the folder of a pair.toml.")]
Method = Annotated[str, typer.Option(help="Who drafts; `eventspec models list` lists them.")]
DevicePlan = Annotated[str, typer.Option(help="one: shared by the models; two: one each, on a CPU a core; auto.")]
MaxNewTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
Seed = Annotated[int, typer.Option(help="Of the sampling.")]
Risk = Annotated[float | None, typer.Option(help="For method skip-encode: the share of answers that may differ, as 0.05.")]
Target = Annotated[Path | None, path("A checkpoint folder that answers, instead of a pair.")]
Dtype = Annotated[
    str, typer.Option(help="Of --target and --drafter: float32, bfloat16, float16, auto (as stored); nf4, int8 (CUDA).")
]
IgnoreGenerationConfig = Annotated[
    bool, typer.Option("--ignore-generation-config", help="Take no settings from the generation_config.json of --target.")
]
Device = Annotated[str, typer.Option(help="Where --target and --drafter run: cpu, cuda, cuda:1, ...")]
Sensor = Annotated[str | None, typer.Option(help="Sensor size of files that do not state it: 640x480, or a name (davis346).")]
Monotonic = Literal["raise", "clamp", "keep"]
Order = Annotated[
    Monotonic,
    typer.Option(
        "--monotonic", help="Events whose time goes back: refuse the file, lift them to the latest time, or keep them."
    ),
]


def given_settings(context: typer.Context) -> dict[str, Any]:
    """Those options that are fields of `Sampling` and stand on the command line: the others are as the checkpoint has them."""
    known = {item.name for item in fields(Sampling)}

    def given(name: str) -> bool:
        source = context.get_parameter_source(name)
        return name in known and source is not None and source.name != "DEFAULT"

    return {name: value for name, value in context.params.items() if given(name)}


def check_in_folder(path: Path, option: str) -> None:
    """BadInput for a file that could not be written at the end of long work: its folder is missing or closed, or it is one."""
    if not path.parent.is_dir():
        raise BadInput(f"{option} {path} cannot be written, its folder is missing: choose another place")
    check_writable(path)


def open_recording(place: Path, sensor: str | None, monotonic: Monotonic, fps: float | None = None) -> Recording:
    """A recording, by the options of a command."""
    from eventspec.events.formats import parse_sensor_size
    from eventspec.recordings import Recording

    return Recording.open(place, parse_sensor_size(sensor) if sensor is not None else None, monotonic, fps)


def print_found(found: object, as_json: bool, *lines: str) -> None:
    """One JSON object for programs, or lines for people."""
    typer.echo(json.dumps(found) if as_json else "\n".join(lines))


def print_notes(notes: Iterable[str]) -> None:
    """On standard error, so that standard output stays one JSON object or one answer."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)
