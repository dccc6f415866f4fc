"""``eventspec generate`` and ``chat``: one question about a recording, or several, of which each serves the next."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventspec.cli import options
from eventspec.cli.bars import waiting
from eventspec.cli.show import in_short, show_live
from eventspec.errors import BadInput

if TYPE_CHECKING:
    from eventspec.ask import Generation
    from eventspec.core import Constraint
    from eventspec.models.loading import LoadOptions
    from eventspec.pairs import Pair
    from eventspec.recordings import Recording

Whole = Annotated[
    Path | None,
    options.path("Event file, video, folder of images, DSEC, RPG or native folder; or example:street.", "--recording"),
]
Head = Annotated[
    str | None,
    typer.Option(
        help="Another head for methods eagle and specvlm, NAME[:TREE]: a folder or one of --pair's; dynamic, static, "
        "published, chain; pruned."
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        help="START:END in us on the recording's clock, or in seconds from its beginning: 0.2s:1.2s. Either may lack."
    ),
]
Drafter = Annotated[
    str | None, typer.Option(help="The checkpoint folder that drafts for --target, or another event drafter for --pair.")
]
PairOrNone = Annotated[
    str | None, typer.Option(help="A bundled pair, or the folder of a pair.toml; without --target: embedded.")
]
Adapter = Annotated[
    str | None, typer.Option(help="For aligned, event-eagle, skip-encode or hybrid: an adapter of --pair, or a folder.")
]
Compress = Annotated[str | None, typer.Option(help="For method compressed-target: prune:N, pool:N, attention:N or packer:N.")]
Vocabulary = Annotated[str, typer.Option(help="How drafter and target share ids: auto, same, retokenize or intersect.")]
Beyond = Annotated[bool, typer.Option(help="Allow more frames than the context holds: times only, no quality.")]
Compat = Annotated[bool, typer.Option(help="EventGPT exactly as its own code draws events, odd image sizes included.")]
BadWords = Annotated[list[str] | None, typer.Option(help="Never say this, as the tokenizer writes it; may be repeated.")]


def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Option(help="The question.")],
    recording: Whole = None,
    video: Annotated[Path | None, options.path("With --events, instead of --recording: a video or image folder.")] = None,
    events: Annotated[Path | None, options.path("With --video: the events that belong to it, in any event file.")] = None,
    sensor: options.Sensor = None,
    monotonic: options.Order = "raise",
    pair: PairOrNone = None,
    target: options.Target = None,
    drafter: Drafter = None,
    vocabulary: Vocabulary = "auto",
    head: Head = None,
    compress: Compress = None,
    adapter: Adapter = None,
    risk: options.Risk = None,
    frames: Annotated[int | None, typer.Option(help="Frames that --target sees; default: what its config says.")] = None,
    allow_extrapolation: Beyond = False,
    compat: Compat = False,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    ignore_generation_config: options.IgnoreGenerationConfig = False,
    method: options.Method = "auto",
    max_new_tokens: options.MaxNewTokens = 256,
    temperature: options.Temperature = 0.0,
    top_k: Annotated[int, typer.Option(help="0 switches it off.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 switches it off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 switches it off.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="1 switches it off.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    seed: options.Seed = 0,
    frequency_penalty: Annotated[float, typer.Option(help="Taken off a token's logit for every time it was said.")] = 0.0,
    presence_penalty: Annotated[float, typer.Option(help="Taken off a token's logit once it was said.")] = 0.0,
    bad_word: BadWords = None,
    logit_bias: Annotated[list[str] | None, typer.Option(help="ID=VALUE, added to a token's logit; may be repeated.")] = None,
    min_new_tokens: Annotated[int, typer.Option(help="No end token before so many tokens.")] = 0,
    no_repeat_ngram_size: Annotated[int, typer.Option(help="Say no n-gram of this size twice; 0 switches it off.")] = 0,
    skip_special_tokens: Annotated[bool, typer.Option(help="Leave special tokens out of the text.")] = True,
    json_schema: Annotated[Path | None, options.path("The answer is JSON that fits the schema in this file.")] = None,
    regex: Annotated[str | None, typer.Option(help="The answer matches this regular expression as a whole.")] = None,
    window: Window = None,
    device_plan: options.DevicePlan = "auto",
    provisional: Annotated[bool, typer.Option(help="Show tokens before they are verified.")] = False,
    trace: Annotated[Path | None, options.path("Write a Chrome / Perfetto trace here.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Ask one question about one recording; the answer is exactly the target's own."""
    with waiting("loading the models"):
        from eventspec.ask import generation
        from eventspec.core import Sampling
        from eventspec.models.loading import LoadOptions
        from eventspec.pairs import check_method

        choices = {"head": head, "drafter": drafter, "compress": compress, "adapter": adapter, "risk": risk}
        _check_choices(check_method(method), pair, target, choices, trace, provisional and as_json)
        drawn = {**options.given_settings(context), "logit_bias": _biases(logit_bias or [])}
        drawn |= {"stop_strings": stop} if stop else {}
        Sampling(**drawn)  # refused before minutes of loading
        how = LoadOptions.named(dtype, device=device, frames=frames, allow_extrapolation=allow_extrapolation, compat=compat)
        how = replace(how, ignore_generation_config=ignore_generation_config)
        opened = _opened(recording, video, events, sensor, monotonic)
        loaded = _load(pair, target, choices, method, vocabulary, how, device_plan)
        drawn |= {"bad_words": loaded.bad_words(*bad_word)} if bad_word else {}
        drawn["constraint"] = _constraint(loaded, json_schema, regex)
        asking = generation(loaded, opened, prompt, method, opened.window(*_ends(window, opened.span.start_us)), **drawn)
    _answer(asking, opened, provisional, trace, as_json)


def chat(
    context: typer.Context,
    recording: Annotated[
        Path, options.path_argument("Event file, video, image folder, DSEC or native folder; or example:street.")
    ],
    pair: options.Pair = "embedded",
    method: options.Method = "auto",
    max_new_tokens: options.MaxNewTokens = 256,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    store: Annotated[Path | None, options.path("A folder that keeps the target's features of every frame.")] = None,
    sensor: options.Sensor = None,
    monotonic: options.Order = "raise",
    device_plan: options.DevicePlan = "auto",
) -> None:
    """Ask several questions about one recording, a line each, until an empty line or the end of the input.

    A question that cannot be answered is named, and the next one is read; where questions came by a pipe, exit code 2 follows.
    """
    with waiting("loading the models"):
        from eventspec.core import Sampling
        from eventspec.pairs import check_method, load_pair

        check_method(method)
        opened = options.open_recording(recording, sensor, monotonic)
        drawn = options.given_settings(context)
        Sampling(**drawn)  # refused before minutes of loading
        about = load_pair(pair, device_plan).open(opened, store=store)
    interactive = sys.stdin.isatty()
    if interactive:
        about.prepare(method)
    noted, refused = set[str](), False
    while question := _next_question(interactive):
        try:
            asking = about.generation(question, method, **drawn)
            if interactive:
                show_live(asking)
            result = asking.result()
        except BadInput as error:  # the next question may be a better one
            typer.echo(f"eventspec: {error}", err=True)
            refused = True
            continue
        if not interactive:
            typer.echo(result.text)
        typer.echo(in_short(result), err=True)
        options.print_notes(note for note in result.trace.notes if note not in noted)
        noted.update(result.trace.notes)
    if refused and not interactive:
        raise typer.Exit(2)


def _next_question(interactive: bool) -> str:
    """The next line of the input without the space around it, "" at its end."""
    if interactive:
        typer.echo("? ", nl=False)
    try:
        return sys.stdin.readline().strip()
    except UnicodeDecodeError:
        raise BadInput("the questions are not valid UTF-8: give text, a question a line") from None


def _opened(
    whole: Path | None, video: Path | None, events: Path | None, sensor: str | None, monotonic: options.Monotonic
) -> Recording:
    """The recording of --recording, or of --video and --events on one clock."""
    if whole is not None and video is None and events is None:
        return options.open_recording(whole, sensor, monotonic)
    if whole is None and video is not None and events is not None:
        from eventspec.events.formats import parse_sensor_size
        from eventspec.recordings import Recording

        size = parse_sensor_size(sensor) if sensor is not None else None
        return Recording.open_pair(events=events, video=video, sensor_size=size, monotonic=monotonic)
    if whole is not None:
        other = "--video" if video is not None else "--events"
        raise BadInput(f"--recording and {other} exclude each other: give --recording, or --video and --events for two files")
    raise BadInput("give --recording PATH, or --video PATH and --events PATH for frames and events in two files")


def _check_choices(
    method: str, pair: str | None, target: Path | None, given: dict[str, Any], trace: Path | None, both: bool
) -> None:
    """BadInput, before minutes of loading, for a pair that is not there, a choice that the method passes over, a checkpoint
    that alone is not enough for the method, a trace that cannot be written, and `both` --provisional and --json."""
    from eventspec.align.acceptance import check_risk
    from eventspec.pairs import check_choices
    from eventspec.pairs.methods import HEAD_METHODS, LOSSY
    from eventspec.pairs.pair_file import folder_of

    if both:
        raise BadInput("--provisional shows an answer as it grows, --json prints one object: give one of them")
    if trace is not None:
        options.check_in_folder(trace, "--trace")
    # Beside --target, --drafter is no choice but the other half of the pair: its baseline is run with the same line.
    half = () if target is None else ("drafter",)
    check_choices(method, [name for name, value in given.items() if value is not None and name not in half])
    if given["risk"] is not None:
        check_risk(given["risk"])
    if target is None:
        folder_of(pair or "embedded")
        return
    if method in HEAD_METHODS and given["head"] is None:
        problem = f"method {method} drafts with a head, and the checkpoint {target} has none"
        raise BadInput(f"{problem}: add --head FOLDER, or give the folder of a pair with heads (--pair FOLDER) instead")
    if method == LOSSY and given["compress"] is None:
        raise BadInput(f"method {method} does not know how to compress for the checkpoint {target}: add --compress pool:3")


def _answer(asking: Generation, recording: Recording, provisional: bool, trace: Path | None, as_json: bool) -> None:
    if provisional:
        show_live(asking)
    result = asking.result()
    if trace is not None:
        result.trace.save(trace)
    if as_json:
        options.print_found({"recording": recording.name, **result.as_json(str(trace) if trace else None)}, True)
        return
    if not provisional or not sys.stdout.isatty():  # through a pipe the whole answer stands on a line of its own, the last
        typer.echo(result.text)
    typer.echo(in_short(result), err=True)
    options.print_notes(result.trace.notes)


def _load(
    pair: str | None,
    target: Path | None,
    choices: dict[str, Any],
    method: str,
    vocabulary: str,
    how: LoadOptions,
    device_plan: str,
) -> Pair:
    """The pair of --pair or --target, with what else was chosen."""
    from eventspec.models.loading import LoadOptions
    from eventspec.pairs import load_folders, load_pair

    drafter = choices["drafter"]
    if target is not None and pair is not None:
        raise BadInput(f"--pair {pair} and --target {target} both say who answers: give one of them")
    if target is not None:
        drafting = None if drafter is None else options.given_path(drafter)
        loaded = load_folders(target, drafting, method=method, vocabulary=vocabulary, how=how, device_plan=device_plan)
    else:
        if how != LoadOptions() or (drafter is None and vocabulary != "auto"):
            names = "--vocabulary, --frames, --allow-extrapolation, --compat, --ignore-generation-config, --dtype and --device"
            raise BadInput(f"{names} are for checkpoint folders: give --target FOLDER or --drafter as well")
        loaded = load_pair(pair or "embedded", device_plan)
        loaded = loaded if drafter is None else loaded.with_event_drafter(drafter, vocabulary)
    head, compress, adapter, risk = (choices[name] for name in ("head", "compress", "adapter", "risk"))
    loaded = loaded if head is None else loaded.with_head(head)
    loaded = loaded if compress is None else loaded.with_compression(compress)
    loaded = loaded if adapter is None else loaded.with_adapter(adapter, method)
    return loaded if risk is None else loaded.with_risk(risk, adapter)


def _ends(window: str | None, begin_us: int) -> tuple[int | None, int | None]:
    """Both ends of --window, in us on the clock of a recording that begins at `begin_us`; None for one that is left out."""

    def end(text: str) -> int | None:
        if text.endswith("s"):
            return begin_us + round(1e6 * float(text.removesuffix("s")))
        return int(text) if text else None

    try:
        start, stop = (":" if window is None else window).split(":", 1)
        return end(start), end(stop)
    except (ValueError, OverflowError):
        how = "give START:END in microseconds, such as 200000:1200000, or in seconds from the beginning, such as 0.2s:1.2s"
        raise BadInput(f"--window {window} cannot be read: {how}") from None


def _biases(given: list[str]) -> dict[int, float]:
    found: dict[int, float] = {}
    for pair in given:
        token, _, bias = pair.partition("=")
        try:
            place, value = int(token), float(bias)
        except ValueError:
            raise BadInput(f"--logit-bias {pair} cannot be read: give ID=VALUE, such as 473=-2.5") from None
        if place in found:
            raise BadInput(f"--logit-bias names id {place} twice: give it once")
        found[place] = value
    return found


def _constraint(pair: Pair, schema: Path | None, pattern: str | None) -> Constraint | None:
    if schema is not None and pattern is not None:
        raise BadInput("--json-schema and --regex exclude each other: give one of them")
    if schema is None:
        return None if pattern is None else pair.regex(pattern)
    try:
        return pair.json_schema(schema.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{schema} cannot be read ({error}): give a file with a JSON schema") from None
    except BadInput as error:
        raise BadInput(f"{schema}: {error}") from None
