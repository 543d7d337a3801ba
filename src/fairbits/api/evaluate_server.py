"""Evaluate: a running server and its reference model on the same text of every language."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from fairbits.api.fit import text_workload, within_memory
from fairbits.core.errors import InputError
from fairbits.core.files import check_directory
from fairbits.core.progress import Progress
from fairbits.core.units import NEW_TOKENS
from fairbits.evaluation.continuations import choose_prompts
from fairbits.evaluation.language_groups import NamedGroups, read_groups
from fairbits.evaluation.measurement import Measurement
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.saved_reference import open_reference, save_reference
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.servers.address import (
    ServerAddress,
    ServerOptions,
    is_saved_reference,
    key_from,
    remove_answers,
)
from fairbits.evaluation.servers.http_client import HttpClient
from fairbits.evaluation.servers.running_server import RunningServer, ServedModel, identify, spellings_of
from fairbits.evaluation.servers.served_scores import asked_again, prompts_of, served_scores
from fairbits.evaluation.servers.served_states import ServedStates
from fairbits.evaluation.servers.server_writer import ServerWriter
from fairbits.evaluation.servers.text_of_reference import text_of_reference
from fairbits.evaluation.setting import Identity
from fairbits.evaluation.writer import LocalWriter
from fairbits.forward.tokenize import open_corpus_for
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.loaded_checkpoint import Model, open_checkpoints
from fairbits.text.corpus import Corpus, TextRequest

PROBED = 200  # characters of the longest document, by which an interface is tried


def evaluate_server(
    url: str,
    *,
    reference: Model,
    options: ServerOptions,
    tokenizer: PreTrainedTokenizerBase | None = None,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    request: TextRequest,
    groups: NamedGroups | None = None,
    generate: int | None = None,
    new_tokens: int = NEW_TOKENS,
    save: str | Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Scores:
    """Returns the damage of a running server to every document of every language; see `evaluate`."""
    address = ServerAddress.parse(url)
    client = HttpClient(
        address,
        key=key_from(options.key_variable),
        connections=options.concurrency,
        timeout=options.timeout,
        patience=options.patience,
    )
    if save is not None:
        check_directory(save, holding=())
    with client:
        served = identify(client, options.model)  # before anything that takes time
        if generate is not None and is_saved_reference(reference):
            raise InputError(
                f"{reference} is a saved reference, which cannot write text; give the model, or no --generate"
            )

        def find(tokenizer: PreTrainedTokenizerBase | None, prompt: Sequence[int]) -> RunningServer:
            spellings = [] if tokenizer is None else spellings_of(tokenizer)
            return RunningServer.find(client, served, spellings, top=options.top, prompt=prompt)

        with _reference(
            reference, tokenizer, languages, text, request, find, options=options, device=device, progress=progress
        ) as (answers, server):
            if save is not None:
                save_reference(answers, save, progress=progress)
            if server is None:
                scores = _exact_scores(client, served, answers, options, device=device, progress=progress)
            else:
                scores = _scores(server, answers, options, device=device, progress=progress)
        if generate is not None:
            (before,) = open_checkpoints((reference,), tokenizer, quantized=True)
            before = before.plain or before
            corpus = open_corpus_for(before, text, languages)
            prompts = choose_prompts(before.tokenizer(), corpus, count=generate, new_tokens=new_tokens, request=request)
            writer = ServerWriter(client, served.model, concurrency=options.concurrency)
            first = LocalWriter(before, device=device, name="reference model")
            written = prompts.measure(first, writer, progress=progress)
            scores = replace(scores, generated=written, notes=(*scores.notes, *prompts.notes))
    named = {} if groups is None else read_groups(groups, scores.languages, model=scores.reference.target)
    if not options.keep_answers:
        remove_answers(options.answers)
    return replace(scores, groups=named)


@contextmanager
def _reference(
    model: Model,
    tokenizer: PreTrainedTokenizerBase | None,
    languages: Iterable[str] | None,
    text: str | Path | Corpus | None,
    request: TextRequest,
    find: Callable[[PreTrainedTokenizerBase | None, Sequence[int]], RunningServer],
    *,
    options: ServerOptions,
    device: str,
    progress: Progress | None,
) -> Iterator[tuple[ReferenceModel, RunningServer | None]]:
    """Yields the predictions of the reference, and the server unless it writes hidden states.

    `find` asks the server about a first prompt; before the predictions are computed, as this takes time.
    """
    by_states = options.hidden_states is not None
    if is_saved_reference(model):
        if languages is not None or text is not None or options.own_text:
            raise InputError(f"{model}, a saved reference, has its text: leave --languages, --text and --own-text out")
        assert isinstance(model, str | Path)
        with open_reference(model) as answers:
            yield answers, None if by_states else find(None, max(prompts_of(answers.text), key=len))
        return
    (before,) = open_checkpoints((model,), tokenizer, quantized=True)
    before = before.plain or before
    if before.task != "causal":
        raise InputError(f"{before.target} is no causal language model; a server is asked for the probability of text")
    corpus = open_corpus_for(before, text, languages)
    longest = max((document for texts in corpus.split(request.split).values() for document in texts), key=len)
    server = None if by_states else find(before.tokenizer(), before.tokenizer()(longest[:PROBED])["input_ids"])
    workload = text_workload("evaluate", before, corpus, request, device=device)
    with within_memory(workload, device=device, progress=progress) as show:
        if not options.own_text:
            with ReferenceModel.on_corpus(before, corpus, request=request, device=device, progress=show) as answers:
                yield answers, server
            return
        written, setting = text_of_reference(before, corpus, request, device=device, progress=show)
        with ReferenceModel.on_text(before, written, device=device, progress=show) as answers:
            notes = (*corpus.notes, *answers.notes)
            yield replace(answers, setting=setting, identity=Identity.of(before), notes=notes), server


def _scores(
    server: RunningServer,
    reference: ReferenceModel,
    options: ServerOptions,
    *,
    device: str,
    progress: Progress | None,
) -> Scores:
    prompts, again = prompts_of(reference.text), asked_again(reference.text)
    with server.answer_all(
        prompts, file=options.answers, concurrency=options.concurrency, again=again, progress=progress
    ) as answers:
        return served_scores(
            reference, server, answers, again=again, written=options.own_text, device=device, progress=progress
        )


def _exact_scores(
    client: HttpClient,
    served: ServedModel,
    reference: ReferenceModel,
    options: ServerOptions,
    *,
    device: str,
    progress: Progress | None,
) -> Scores:
    """Returns the scores from the hidden states that the server writes to disk."""
    assert options.hidden_states is not None
    assert reference.setting is not None
    assert reference.identity is not None
    named = options.checkpoint or served.root
    if named is None or not Path(named).expanduser().exists():
        raise InputError(f"the model of the server, {named!r:.80}, is not on this machine; name it with --checkpoint")
    prompts_of(reference.text)  # raises if they are not those of a causal model
    states = ServedStates(
        *(client, served.model, Checkpoint(named), reference.text),
        directory=options.hidden_states,
        concurrency=options.concurrency,
        device=device,
    )
    sums = reference.compare(states, device=device, progress=progress)
    measurement = Measurement(
        engine=served.engine,
        url=client.address.root,
        model=served.model,
        hidden_states=str(options.hidden_states),
        checkpoint=options.checkpoint,
    )
    return Scores.of(
        *(sums, reference.text),
        quantized=Identity(client.address.api, served.identity, 0),
        reference=reference.identity,
        setting=reference.setting,
        notes=reference.notes,
        measurement=measurement,
    )
