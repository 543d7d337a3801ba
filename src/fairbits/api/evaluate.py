"""Evaluate: a quantized model and its reference model on the same text of every language."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from fairbits.api.evaluate_llama_cpp import evaluate_with_llama_cpp
from fairbits.api.evaluate_server import evaluate_server
from fairbits.api.fit import text_workload, within_memory
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.records import parse_object
from fairbits.core.units import NEW_TOKENS
from fairbits.evaluation.continuations import TextPrompts, choose_prompts
from fairbits.evaluation.language_groups import NamedGroups, read_groups
from fairbits.evaluation.llama_cpp.llama_perplexity import FAIRBITS, check_engine
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.servers.address import ServerOptions, is_address, is_saved_reference
from fairbits.evaluation.setting import EvaluationSetting, Identity
from fairbits.evaluation.signature import DIGITS, YES, Signature, hash_texts
from fairbits.evaluation.writer import LocalWriter, local_writers
from fairbits.forward.tokenize import open_corpus_for
from fairbits.models.cache_types import cache_type
from fairbits.models.cached_checkpoint import with_kv_cache
from fairbits.models.checkpoint import QUANTIZED, Checkpoint
from fairbits.models.device import AUTO, resolve_device
from fairbits.models.io.file_names import check_packages
from fairbits.models.io.gguf_file import ITSELF_QUANTIZED
from fairbits.models.loaded_checkpoint import Model, open_checkpoint, open_checkpoints
from fairbits.quantization.plan import PLAN
from fairbits.reports.sources import SWEEP
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.documents import Documents
from fairbits.text.reading import DECLARATION, EMBEDDED, open_corpus, read_corpus

COMPARED = 64  # documents of each language that both tokenizers must split into the same tokens
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id", "cls_token_id", "sep_token_id")


def evaluate(
    quantized: Model,
    *,
    reference: Model,
    tokenizer: PreTrainedTokenizerBase | None = None,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    tokens: int = 8192,
    sequence: int = 512,
    seed: int = 0,
    split: str = "evaluation",
    join: bool = False,
    kv_cache: str | None = None,
    groups: NamedGroups | None = None,
    generate: int | None = None,
    new_tokens: int = NEW_TOKENS,
    device: str = AUTO,
    repeat: str | Signature | None = None,
    sweep: str | Path | None = None,
    server: ServerOptions | None = None,
    save_reference: str | Path | None = None,
    engine: str = FAIRBITS,
    llama_perplexity: str | Path | None = None,
    progress: Progress | None = None,
) -> Scores:
    """Returns the damage of quantization to every document of every language.

    `reference` is the model before it was quantized. Both may be loaded models of transformers, with their `tokenizer`;
    they are not changed. `text` is a corpus or its path; without it the embedded
    declaration is used, for the embedded model in its own languages unless others are named. `tokens` is the budget per
    language. With `join` the documents of a language are joined into full windows of `sequence` tokens, over which
    intervals then are. `kv_cache` is a type such as int8 (`CACHE_TYPES`): keys and values of the quantized model are
    rounded as a server's cache does; a model evaluated against itself shows what the cache alone costs. `groups` of
    languages, such as "high=eng,fra;low=swh,yor", are compared with each other (`read_groups`).
    With `generate`, both models also continue the beginnings of so many documents of every language, with `new_tokens`
    tokens or fewer: how many answers are in another language, repeat themselves or are empty (`GeneratedText`).
    Both models compute in float32, one after the other; of a model that takes more than half of the free
    memory, one block is in memory at a time. A model whose `plan.json` names another reference is refused. `repeat` is
    the signature of an earlier measurement: languages, amount of text, window and seed are taken from it, and models or
    text that are not the same are refused. `sweep` is a file of `fairbits sweep` on the same reference and text: the
    damage of every language is then also given as the width at which that policy costs it as much.

    `quantized` may be the address of a running server, such as "http://localhost:8000/v1" (`server` says how it is
    asked). The predictions of the reference are then written into the directory `save_reference`, if there is one, and
    that directory may be the `reference` of other calls. With the engine "llama.cpp", the program `llama_perplexity`
    (by default the one on PATH) computes the predictions of a GGUF file, on chunks of text instead of documents.
    """
    check_engine(engine, quantized, llama_perplexity, repeat=repeat)
    served = is_address(quantized)
    only_here: dict[str, object] = {"kv_cache": kv_cache, "repeat": repeat, "sweep": sweep}
    if engine != FAIRBITS:
        only_here |= {"generate": generate, "join": join or None}
    unused = next((name for name, value in only_here.items() if value is not None), None)
    if unused is not None and (served or engine != FAIRBITS):
        raise InputError(f"{unused} is for checkpoints that fairbits computes itself; leave it out")
    if not served and (server is not None or save_reference is not None or is_saved_reference(reference)):
        raise InputError(
            "server, save_reference and saved references are for running servers: give http://HOST:PORT/v1"
        )
    if repeat is None:
        request = TextRequest(split, tokens, sequence, seed, join)
    device = resolve_device(device)
    if served:
        return evaluate_server(
            str(quantized),
            reference=reference,
            options=server or ServerOptions(),
            tokenizer=tokenizer,
            languages=languages,
            text=text,
            request=request,
            groups=groups,
            generate=generate,
            new_tokens=new_tokens,
            save=save_reference,
            device=device,
            progress=progress,
        )
    if engine != FAIRBITS:
        assert isinstance(quantized, str | Path)  # `check_engine` refuses others
        before = plain_reference(open_checkpoint(reference, tokenizer, quantized=True))
        corpus = open_corpus_for(before, text, languages)
        named = {} if groups is None else read_groups(groups, corpus.split(split), model=before.target)
        scores = evaluate_with_llama_cpp(
            quantized,
            before,
            corpus,
            request=request,
            llama_perplexity=llama_perplexity,
            notes=_notes("reference", before),
            device=device,
            progress=progress,
        )
        return replace(scores, groups=named)
    after, before = open_checkpoints((quantized, reference), tokenizer, quantized=True)
    if repeat is not None:
        options = {"sweep": sweep, "groups": groups, "generate": generate, "new_tokens": new_tokens, "device": device}
        return _repeated(after, before, _signature(repeat, kv_cache), text=text, progress=progress, **options)
    check_not_swapped(after, before)
    check_readable(after)  # before anything that takes time
    after = after if kv_cache is None else with_kv_cache(after, kv_cache)
    before = plain_reference(before)
    corpus = open_corpus_for(before, text, languages)
    check_same_tokens(after, before, corpus.split(split))
    check_made_from(after, before)
    named = {} if groups is None else read_groups(groups, corpus.split(split), model=before.target)
    widths = None if sweep is None else SWEEP.read(sweep)
    if widths is not None:
        widths.check(before.fingerprint, EvaluationSetting.of(before, corpus, request))
    prompts: TextPrompts | None = None
    writers: tuple[LocalWriter, ...] = ()
    if generate is not None:  # what cannot be written is refused before anything that takes time
        prompts = choose_prompts(before.tokenizer(), corpus, count=generate, new_tokens=new_tokens, request=request)
        writers = local_writers(before, after, device=device)
    workload = text_workload("evaluate", before, corpus, request, device=device)
    with (
        within_memory(workload, device=device, then=[writer.stage for writer in writers], progress=progress) as show,
        ReferenceModel.on_corpus(before, corpus, request=request, device=device, progress=show) as answers,
    ):
        scores = checkpoint_scores(after, answers, reference=before, device=device, progress=show)
        if prompts is not None:
            written = prompts.measure(*writers, progress=show)
            scores = replace(scores, generated=written, notes=(*scores.notes, *prompts.notes))
    if widths is not None:
        scores = replace(scores, equivalent_bits=widths.equivalent_bits(scores))
    return replace(scores, groups=named)


def _signature(repeat: str | Signature, kv_cache: str | None) -> Signature:
    """Returns a signature; raises if it has another KV cache than the one that was asked for."""
    signature = repeat if isinstance(repeat, Signature) else Signature.parse(repeat)
    if kv_cache is not None and cache_type(kv_cache) != signature.kv_cache:
        stated = signature.kv_cache or "none"
        raise InputError(f"the KV cache is {kv_cache} here and {stated} in the signature; leave --kv-cache out")
    return signature


def _repeated(
    after: Checkpoint,
    before: Checkpoint,
    signature: Signature,
    *,
    text: str | Path | Corpus | None,
    progress: Progress | None,
    **options: Any,
) -> Scores:
    named = DECLARATION if signature.text == "udhr" else signature.text  # the name of its corpus
    if signature.all_text and isinstance(text, str | Path) and text not in EMBEDDED:
        text = read_corpus(text, languages=signature.languages, evaluation_share=1.0)
    corpus = open_corpus(named if text is None else text, signature.languages)
    here = replace(
        signature,
        model=after.fingerprint[:DIGITS],
        reference=before.fingerprint[:DIGITS],
        hash=hash_texts(corpus.hashes[signature.split]),
    )
    signature.check(here)  # before anything that takes time
    scores = evaluate(
        after,
        reference=before,
        text=corpus,
        tokens=signature.tokens,
        sequence=signature.window,
        seed=signature.seed,
        split=signature.split,
        join=signature.joined == YES,
        kv_cache=signature.kv_cache or None,
        progress=progress,
        **options,
    )
    return replace(scores, notes=(*scores.notes, *signature.check(scores.signature(signature.measure))))


def checkpoint_scores(
    after: Checkpoint,
    answers: ReferenceModel,
    *,
    reference: Checkpoint,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Scores:
    """Returns the scores of a quantized checkpoint, given the answers of its reference model."""
    return answers.scores(
        after,
        Identity.of(after),
        notes=(*_notes("quantized", after, but=QUANTIZED), *_notes("reference", reference)),
        device=device,
        progress=progress,
    )


def plain_reference(model: Checkpoint) -> Checkpoint:
    """Returns a reference with its weights in float32; raises if it cannot be loaded."""
    check_readable(model)
    return model.plain or model


def check_readable(model: Checkpoint) -> None:
    """Raises if a quantized model could not be loaded as it is."""
    if model.quantization is None:
        return
    check_packages(model.target, {"quantization_config": model.quantization[0]})
    model.config  # noqa: B018
    if model.plain is not None:
        model.plain.architecture  # noqa: B018


def check_same_tokens(after: Checkpoint, before: Checkpoint, documents: Documents) -> None:
    """Raises unless the tokenizers of both models split the text into the same tokens.

    Both models read the tokens of the reference. The tokenizer of a GGUF file is one that transformers has rebuilt, and
    may add other special tokens or split a text in another way; there, only the tokens themselves must be the same.
    """
    theirs, mine = after.tokenizer(), before.tokenizer()
    if after.kind == "gguf":
        _check_same_vocabulary(after, before, documents)
        return
    different = [name for name in SPECIAL if getattr(theirs, name) != getattr(mine, name)]
    different += [code for code, texts in documents.items() if _ids(theirs, texts) != _ids(mine, texts)]
    if different:
        raise InputError(
            f"the tokenizers of {after.target} and {before.target} differ (in {', '.join(different[:3])}); both models "
            "must read the same tokens: use the model that it was quantized from as reference"
        )


def _check_same_vocabulary(after: Checkpoint, before: Checkpoint, documents: Documents) -> None:
    """Raises unless the tokens of a text, and the special ones before it, have the same numbers in both models."""
    theirs, mine = after.tokenizer(), before.tokenizer()
    used = {token for texts in documents.values() for ids in _ids(mine, texts) for token in ids}
    used |= {mine.bos_token_id} - {None}
    numbers = sorted(used)
    pairs = zip(numbers, mine.convert_ids_to_tokens(numbers), theirs.convert_ids_to_tokens(numbers), strict=True)
    for number, expected, token in pairs:
        if expected != token:
            raise InputError(
                f"token {number} is {expected!r:.40} in {before.target} and {token!r:.40} in {after.target}; both "
                "models must have the same vocabulary: use the model that it was quantized from as reference"
            )


def check_not_swapped(after: Checkpoint, before: Checkpoint) -> None:
    """Raises if the reference is quantized and the other model is plain."""
    reference = next((note for note in before.notes if note.startswith((ITSELF_QUANTIZED, QUANTIZED))), None)
    plain = after.kind in ("directory", "hub", "embedded") and after.quantization is None
    if reference is not None and plain and after.fingerprint != before.fingerprint:
        raise InputError(
            f"{before.target}, the reference, is quantized, and {after.target} is not; are they swapped? The reference "
            "is the model before quantization: fairbits evaluate QUANTIZED --reference MODEL"
        )


def check_made_from(after: Checkpoint, before: Checkpoint) -> None:
    """Raises if a model was quantized from other weights than those of the reference."""
    file = after.directory / "plan.json"
    try:
        plan = parse_object(file.read_bytes(), str(file), finite=False) if file.is_file() else {}
    except InputError:
        return  # the file of another tool: fairbits never leaves half a plan
    if plan.get("schema") == PLAN.schema and plan.get("fingerprint") != before.fingerprint:
        raise InputError(
            f"{after.target} was made from {plan.get('model')} (as its plan.json says), and {before.target} has other "
            "weights or another config.json; the reference must be the model it was made from"
        )


def _ids(tokenizer: PreTrainedTokenizerBase, texts: tuple[str, ...]) -> list[list[int]]:
    if not texts:
        return []
    return [
        list(ids) for ids in tokenizer(list(texts[:COMPARED]), add_special_tokens=False, verbose=False)["input_ids"]
    ]


def _notes(role: str, checkpoint: Checkpoint, *, but: str | None = None) -> tuple[str, ...]:
    notes = [note for note in checkpoint.notes if but is None or not note.startswith(but)]
    if role == "quantized":  # what is said of a reference from a GGUF file
        notes = [
            note.removeprefix(ITSELF_QUANTIZED).removesuffix(")") if note.startswith(ITSELF_QUANTIZED) else note
            for note in notes
        ]
    else:
        notes = [note.replace(QUANTIZED, ITSELF_QUANTIZED.removesuffix(" (")) for note in notes]
    plain = checkpoint.plain
    return tuple(f"{role}: {note}" for note in (*notes, *(() if plain is None else plain.activation_notes)))
