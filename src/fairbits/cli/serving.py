"""The verb that answers requests: serve."""

from pathlib import Path
from typing import Annotated

import typer

from fairbits.cli.options import Device, Json, Model, Trust
from fairbits.cli.terminal import out, print_json, print_notes, stages
from fairbits.errors import InputError


def serve(
    base: Model,
    overlays: Annotated[
        Path | None, typer.Option(help="What fairbits overlay wrote for it; else the base alone.", metavar="DIR")
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; others than this machine need more care.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8000,
    name: Annotated[str | None, typer.Option(help="What clients call the model; else the name of BASE.")] = None,
    confidence: Annotated[
        float, typer.Option(help="A language less likely than this gets the base.", min=0.0, max=1.0)
    ] = 0.5,
    api_key_file: Annotated[
        Path | None, typer.Option(help="A file with the key that clients must send.", metavar="FILE")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens that a choice may ask for.", min=1)] = 512,
    max_prompt_tokens: Annotated[int, typer.Option(help="Tokens that a prompt may have.", min=1)] = 4096,
    max_body: Annotated[int, typer.Option(help="Bytes that a request may have.", min=1024)] = 1 << 20,
    max_queue: Annotated[int, typer.Option(help="Choices that may wait.", min=1)] = 256,
    max_batch: Annotated[int, typer.Option(help="Choices that are decoded together.", min=1)] = 8,
    timeout: Annotated[float, typer.Option(help="Seconds that an answer may take.", min=0.1, max=86400)] = 300.0,
    device: Device = "cpu",
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Answer requests over HTTP as OpenAI does, each by the weights of its language.

    One line says where it listens. SIGINT (Ctrl-C) and SIGTERM end it: what was taken is finished first.

    Examples:
      fairbits serve quantized --overlays overlays
      fairbits serve quantized --overlays overlays --port 9000 --max-batch 16
    """
    from fairbits.overlays.model import AdaptiveModel  # heavy: only when the verb runs
    from fairbits.serve.request import Limits
    from fairbits.serve.server import bind, check_installed, read_key
    from fairbits.serve.server import serve as run

    check_installed()
    key, called = read_key(api_key_file), _name(base, name)
    limits = Limits(max_tokens, max_prompt_tokens, max_body, max_queue, max_batch, timeout)
    address = bind(host, port)
    if not address.at_home and key is None:
        print_notes([f"{host} can be reached from other machines, and there is no --api-key-file: anyone may ask"])
    with address.socket:
        with stages("loading the model"):
            model = AdaptiveModel(
                base, overlays, confidence=confidence, device=device, trust_remote_code=trust_remote_code
            )
        codes = [each.code for each in model.languages]

        def say() -> None:
            if as_json:
                print_json({"url": address.url, "model": called, "languages": codes, "overlays": model.names[1:]})
                return
            served = f"{called}: {len(codes)} languages, {len(model.names) - 1} overlays"
            out.print(f"listening at {address.url} ({served})", soft_wrap=True, markup=False)

        run(model, address, name=called, limits=limits, key=key, ready=say)


def _name(base: str, given: str | None) -> str:
    """Returns what clients call the model."""
    name = given if given is not None else Path(base).resolve().name if Path(base).exists() else base
    if not name or not name.isprintable():
        raise InputError(f"--name is {name!r:.40}; it must have printable characters")
    return name
