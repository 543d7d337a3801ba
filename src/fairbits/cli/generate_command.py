"""The command `generate` on the command line."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fairbits.cli import completion, compute, early_checks, options
from fairbits.cli.terminal import err, print_json, print_notes, stages
from fairbits.core.checks import in_range, whole
from fairbits.core.errors import InputError, printable
from fairbits.text.detect import undetectable_notes


def generate(
    base: options.Base,
    prompts: Annotated[
        list[str] | None, options.argument("Texts to continue; by default the lines of stdin.", "PROMPT")
    ] = None,
    overlays: Annotated[
        Path | None, options.option("Overlays of the base. Without them the base serves every language.", "DIR")
    ] = None,
    language: Annotated[
        str | None,
        options.option("Language of all prompts; by default it is detected for each.", "CODE", completion.language),
    ] = None,
    max_tokens: Annotated[int, options.option("Maximum new tokens per prompt.", "N")] = 64,
    temperature: Annotated[
        float, options.option("0: always the most probable token; 1: sample with the model's probabilities.", "X")
    ] = 0.0,
    top_p: Annotated[
        float, options.option("Sample from the most probable tokens that together have this probability.", "P")
    ] = 1.0,
    seed: Annotated[int, options.option("Random seed; the same seed gives the same text.", "N")] = 0,
    confidence: Annotated[
        float, options.option("Text whose language is detected with less confidence is served by the base.", "P")
    ] = 0.5,
    device: options.Device = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Continue text with a quantized model and its overlays.

    Each text uses the overlay of its language.

    The language and its overlay are printed on stderr.

    Examples:
      fairbits generate ./w4 "All human beings" --overlays ./overlays
      fairbits generate ./w4 --overlays ./overlays --json < prompts.txt
      fairbits generate ./w4 "Tous les" --overlays ./overlays --language fr
    """
    early_checks.check(locals())
    in_range("--confidence", confidence, least=0.0, most=1.0)
    whole("--max-tokens", max_tokens, least=1)
    in_range("--temperature", temperature, least=0.0)  # transformers does not accept 0
    in_range("--top-p", top_p, above=0.0, most=1.0)
    texts = prompts or _read_prompts()
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.serve.overlays.adaptive_model import AdaptiveModel

    sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0, "seed": seed}
    device = compute.choose_device(device)
    with stages("loading the model") as show:
        model = AdaptiveModel(
            Checkpoint(base, trust_remote_code=trust_remote_code, revision=revision),
            overlays,
            confidence=confidence,
            device=device,
        )
        results = model.generate(
            texts,
            language=language,
            max_new_tokens=max_tokens,
            progress=show,
            **(sampling if temperature else {"do_sample": False}),
        )
    if language is None:
        print_notes(undetectable_notes(model.languages))
    if as_json:
        print_json([{"prompt": text, **result.as_data()} for text, result in zip(texts, results, strict=True)])
        return
    for result in results:
        choice = result.choice
        sure = "" if choice.confidence is None else f" (confidence {choice.confidence:.2f})"
        tokens = f"{result.completion_tokens} tokens ({result.finish_reason})"
        language_name = choice.language or "no language"
        print_notes([f"{language_name}, {choice.reason}{sure}, served by {choice.overlay}: {tokens}"])
        typer.echo("\n".join(map(printable, result.text.split("\n"))))


def _read_prompts() -> list[str]:
    stream = typer.get_binary_stream("stdin")
    if stream.isatty() and not err.quiet:
        print_notes(["enter one prompt per line; Ctrl-D ends the input"])
    try:
        text = stream.read().decode()
    except UnicodeDecodeError as problem:
        raise InputError(f"stdin is not UTF-8 ({problem.reason} at byte {problem.start:,}); convert it first") from None
    prompts = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    if not prompts:
        raise InputError('there is no prompt; give one: fairbits generate BASE "All human beings", or lines on stdin')
    return prompts
