"""``eventspec generate``: one question about one recording, answered by the target, with or without a drafter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

Pair = Annotated[str, typer.Option(help="A bundled pair, or the folder of a pair.toml.")]
DevicePlan = Annotated[str, typer.Option(help="auto, one or two devices (on a CPU: cores).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def generate(
    recording: Annotated[Path, typer.Option(help="AEDAT4, npy, npz, native folder, mp4 or image folder.")],
    prompt: Annotated[str, typer.Option(help="The question.")],
    pair: Pair = "embedded",
    method: Annotated[str, typer.Option(help="autoregressive, cross-modal, ngram or prior.")] = "cross-modal",
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 switches it off.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 switches it off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 switches it off.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="1 switches it off.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    start_us: Annotated[int | None, typer.Option(help="Begin of the window, microseconds on the recording's clock.")] = None,
    end_us: Annotated[int | None, typer.Option(help="End of the window.")] = None,
    device_plan: DevicePlan = "auto",
    provisional: Annotated[bool, typer.Option(help="Show tokens before they are verified.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome / Perfetto trace here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask one question about one recording; the answer is exactly the target's own."""
    from eventspec.core import Sampling
    from eventspec.pairs import answering, check_method, load_pair, window_of
    from eventspec.recordings import Recording

    check_method(method)
    sampling = Sampling(
        temperature, top_k, top_p, min_p, repetition_penalty, max_new_tokens, stop_strings=tuple(stop or ()), seed=seed
    )
    opened = Recording.open(recording)
    asking = answering(load_pair(pair, device_plan), opened, prompt, method, window_of(opened, start_us, end_us), sampling)
    if provisional and not as_json:
        from eventspec.cli.show import show_live

        show_live(asking)
    result = asking.result()
    if trace is not None:
        result.trace.save(trace)
    if as_json:
        typer.echo(json.dumps({"recording": opened.name, **result.as_json(str(trace) if trace else None)}))
    elif not provisional:
        typer.echo(result.text)
    for note in result.trace.notes if not as_json else ():
        typer.echo(f"note: {note}", err=True)
