"""The command `serve` on the command line."""

from pathlib import Path
from typing import Annotated

from fairbits.cli import compute, early_checks, options
from fairbits.cli.terminal import out, print_json, print_notes, stages
from fairbits.core.errors import InputError
from fairbits.text.detect import undetectable_notes


def serve(
    base: options.Base,
    overlays: Annotated[
        Path | None,
        options.option("Overlays that fairbits overlay wrote. Without them the base serves every language.", "DIR"),
    ] = None,
    host: Annotated[
        str, options.option("Address to listen on. If other machines can reach it, give --api-key-file too.", "ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[int, options.option("Port to listen on; 0 selects a free one.", "N", min=0, max=65535)] = 8000,
    name: Annotated[
        str | None, options.option("Name of the model for clients; by default the name of BASE.", "NAME")
    ] = None,
    confidence: Annotated[
        float,
        options.option(
            "Text whose language is detected with less confidence is served by the base.", "P", min=0.0, max=1.0
        ),
    ] = 0.5,
    api_key_file: Annotated[
        Path | None, options.option("A file with the API key that clients must send.", "FILE")
    ] = None,
    max_tokens: Annotated[int, options.option("Maximum new tokens per completion.", "N", min=1)] = 512,
    max_prompt_tokens: Annotated[int, options.option("Maximum tokens per prompt.", "N", min=1)] = 4096,
    max_body: Annotated[int, options.option("Maximum bytes per request.", "N", min=1024)] = 1 << 20,
    max_queue: Annotated[int, options.option("Maximum completions in the queue.", "N", min=1)] = 256,
    max_batch: Annotated[int, options.option("Maximum completions decoded together.", "N", min=1)] = 8,
    max_logprobs: Annotated[
        int, options.option("Maximum log-probabilities per token that a request may ask for; -1 for all.", "N", min=-1)
    ] = 20,
    timeout: Annotated[
        float, options.option("Time limit per request, in seconds.", "SECONDS", min=0.1, max=86400)
    ] = 300.0,
    device: options.Device = "auto",
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Serve a quantized model and its overlays (OpenAI API, HTTP).

    Each request uses the overlay of its language.

    It prints the address it listens on. SIGINT (Ctrl-C) or SIGTERM stops it once the accepted requests are finished.

    Examples:
      fairbits serve quantized --overlays overlays
      fairbits serve quantized --overlays overlays --port 9000 --max-batch 16
    """
    early_checks.check(locals())
    from fairbits.serve.overlays.adaptive_model import AdaptiveModel
    from fairbits.serve.server.request import Limits
    from fairbits.serve.server.server_process import bind, check_installed, read_key
    from fairbits.serve.server.server_process import serve as run_server

    check_installed()
    key, model_name = read_key(api_key_file), _model_name(base, name)
    limits = Limits(max_tokens, max_prompt_tokens, max_body, max_queue, max_batch, timeout, max_logprobs)
    address = bind(host, port)
    if not address.is_loopback and key is None:
        print_notes([f"other machines can reach {host}, and there is no --api-key-file: anyone can send requests"])
    with address.socket:
        device = compute.choose_device(device)
        with stages("loading the model"):
            model = AdaptiveModel(
                base, overlays, confidence=confidence, device=device, trust_remote_code=trust_remote_code
            )
        codes = [language.code for language in model.languages]
        print_notes(undetectable_notes(model.languages))

        def print_ready() -> None:
            if as_json:
                print_json({"url": address.url, "model": model_name, "languages": codes, "overlays": model.names[1:]})
                return
            served = f"{model_name}: {len(codes)} languages, {len(model.names) - 1} overlays"
            out.print(f"listening at {address.url} ({served})", soft_wrap=True, markup=False)

        run_server(model, address, name=model_name, limits=limits, key=key, ready=print_ready)


def _model_name(base: str, wanted: str | None) -> str:
    name = wanted if wanted is not None else Path(base).resolve().name if Path(base).exists() else base
    if not name or not name.isprintable():
        raise InputError(f"--name is {name!r:.40}; it must consist of printable characters")
    return name
