"""Quantize: carries out a plan, block by block, into a checkpoint that transformers and vLLM load, or in memory."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.quantization_config import CompressedTensorsConfig

from fairbits.api.fit import quantize_workload, within_memory
from fairbits.core.checks import instance
from fairbits.core.errors import InputError
from fairbits.core.files import check_directory, write_files
from fairbits.core.locks import check_free, lock_file
from fairbits.core.progress import Progress
from fairbits.core.records import check_record, parse_object
from fairbits.core.version import __version__
from fairbits.forward.tokenize import open_corpus_for, tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO, resolve_device
from fairbits.models.io.checkpoint_writer import (
    DRAFT,
    LEARNING,
    PLAN,
    STATE,
    QuantizedWriter,
    WriteBehind,
    check_draft,
    clear_remains,
    draft_directory,
    draft_lock,
)
from fairbits.models.io.compressed_tensors import check_storable, planned_bytes, quantization_config, split_index
from fairbits.models.loaded_checkpoint import Model, PackedOnSave, open_checkpoint
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Group
from fairbits.models.swapped_model import SwappedModel
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.execute import execute_plan
from fairbits.quantization.gptq.block_rounding import RoundedBlock
from fairbits.quantization.gptq.engine import ONE_PROCESS, check_plan
from fairbits.quantization.gptq.ranks import Ranks
from fairbits.quantization.plan import LayerResult, LearningResult, Plan
from fairbits.quantization.policies import decide
from fairbits.quantization.policies.option import Embeddings
from fairbits.text.corpus import Corpus

NO_THRESHOLDS = "the exact scales of each language alone are not kept in memory: they are written with out=…"


@dataclass(frozen=True)
class BlockRecord:
    """What is kept of a finished block in addition to its codes."""

    results: tuple[LayerResult, ...]
    learned: LearningResult | None


@overload
def quantize(
    model: Model,
    plan: Plan,
    *,
    out: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    text: str | Path | Corpus | None = None,
    resume: bool = False,
    device: str = AUTO,
    progress: Progress | None = None,
) -> Plan: ...


@overload
def quantize(
    model: Model,
    plan: Plan,
    *,
    out: None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    text: str | Path | Corpus | None = None,
    resume: Literal[False] = False,
    device: str = AUTO,
    progress: Progress | None = None,
) -> PreTrainedModel: ...


def quantize(
    model: Model,
    plan: Plan,
    *,
    out: str | Path | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    text: str | Path | Corpus | None = None,
    resume: bool = False,
    device: str = AUTO,
    progress: Progress | None = None,
) -> Plan | PreTrainedModel:
    """Returns the plan with its outcomes, after writing the quantized model and the plan into `out`.

    Without `out` it returns a new model of transformers instead, in the type of the given one and on its device. Its
    weights are those that a loader would compute; it generates, and its `save_pretrained` writes a packed checkpoint
    (`fairbits.models.loaded_checkpoint`). `model` may be a loaded model, with its `tokenizer`; it is not changed.
    `text` must be the text that the plan was made with, by default the embedded declaration. `out` appears only when it
    is complete. The finished blocks of an interrupted run stay next to it; `resume` continues to the same bytes, and
    returns the result of a run that was finished.
    Processes that torchrun has started share the work (`fairbits.quantization.gptq.ranks`).
    """
    instance("plan", plan, Plan)
    if out is None:
        return _in_memory(model, plan, tokenizer, text=text, resume=resume, device=device, progress=progress)
    ranks = Ranks.here()
    with ranks.together(), ExitStack() as stack:
        if plan.learning is not None and not ranks.alone:
            raise InputError(ONE_PROCESS)
        checkpoint = ranks.lead_first(lambda: open_checkpoint(model, tokenizer))
        device = resolve_device(device, earlier=ranks.share(lambda: draft_device(out) if resume else None))
        ranks.use(device)
        if ranks.leads:  # all weights are read: one rank is enough
            check_made_for(plan, checkpoint)
        done = ranks.share(lambda: finished_plan(out, plan) if resume else None)
        if done is not None:
            return done
        words = calibration_text(checkpoint, plan, text)
        check_plan(plan, checkpoint.architecture, words)
        workload, check = quantize_workload(checkpoint, plan, words, device=device), ranks.alone and not resume
        # an interrupted run has shown what it needs; finished blocks are written before an error is explained
        show = stack.enter_context(within_memory(workload, device=device, out=out, check=check, progress=progress))
        if ranks.leads:
            # of several GPUs none is the one: the run may be continued on another number of them
            recorded = device if ranks.alone else torch.device(device).type
            draft = stack.enter_context(_Draft.opened(checkpoint, plan, out, device=recorded, resume=resume))
        results: list[LayerResult] = []
        learned: LearningResult | None = None
        with WriteBehind() as behind:
            for block in execute_plan(
                checkpoint,
                plan,
                text=words,
                device=device,
                finished=lambda index: ranks.share(lambda: draft.finished(index)),
                saved=draft.writer.draft / LEARNING if ranks.leads else None,
                ranks=ranks,
                on_device=True,
                progress=show,
            ):
                if ranks.leads and block.index not in draft.earlier:
                    behind.add(partial(draft.add, block))
                results += block.results
                learned = block.learned or learned
        complete = replace(plan, results=tuple(results), learned=learned)
        return ranks.share(lambda: draft.finish(complete, progress))


def _in_memory(
    model: Model,
    plan: Plan,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    text: str | Path | Corpus | None,
    resume: bool,
    device: str,
    progress: Progress | None,
) -> PreTrainedModel:
    if resume or not Ranks.here().alone:
        what = "an interrupted run" if resume else "torchrun"
        raise InputError(f"{what} needs the directory of the quantized model; give out=…")
    device = resolve_device(device)
    checkpoint = open_checkpoint(model, tokenizer)
    check_made_for(plan, checkpoint)
    words = calibration_text(checkpoint, plan, text)
    workload = quantize_workload(checkpoint, plan, words, device=device)
    with within_memory(workload, device=device, check=False, progress=progress) as show:
        # the weights of a block are replaced as soon as it is rounded: there is one copy of the model, and no codes
        quantizer = PackedOnSave(CompressedTensorsConfig(**_format_entries(checkpoint, plan)))
        return quantize_into(checkpoint.copy_model(), quantizer, checkpoint, plan, words, device=device, progress=show)


def check_made_for(plan: Plan, checkpoint: Checkpoint) -> None:
    """Raises unless a plan was made for these weights, and files can hold what it makes of them."""
    if plan.schemes.keys() <= checkpoint.architecture.weights.keys():  # before any weight is read
        check_storable(checkpoint, plan.schemes)
    if plan.fingerprint != checkpoint.fingerprint:
        raise InputError(
            f"the plan was made for {plan.model}, but {checkpoint.target} has other weights; make a plan for this model"
        )


@dataclass(frozen=True, eq=False)
class _Draft:
    """The checkpoint that is written; `earlier` are the blocks that it had already."""

    writer: QuantizedWriter
    earlier: set[int | None] = field(default_factory=set)

    @classmethod
    @contextmanager
    def opened(
        cls, checkpoint: Checkpoint, plan: Plan, out: str | Path, *, device: str, resume: bool
    ) -> Iterator["_Draft"]:
        """Yields a new draft with its plan, or that of an interrupted run; no other process can open it meanwhile."""
        model = {"model": plan.fingerprint, "tokenizer": checkpoint.tokenizer_hash}
        identity = {"plan": plan.digest, **model, "fairbits": __version__, "device": device}
        with ExitStack() as stack:
            try:
                draft_directory(out).parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock_file(draft_lock(out), Path(out)))
                clear_remains(out)
            except OSError as problem:
                raise InputError(f"{out} cannot be written ({problem.strerror}); give another directory") from None
            writer = QuantizedWriter(checkpoint, Path(out), schemes=plan.schemes, identity=identity, resume=resume)
            write_files({writer.draft / PLAN: plan.as_bytes()})
            yield cls(writer)

    def finished(self, index: int | None) -> RoundedBlock | None:
        block = self.writer.finished(index)
        if block is None:
            return None
        try:
            kept = check_record(BlockRecord, parse_object(block.record, f"the record of block {index}"))
        except InputError:
            return None  # as any block that is damaged, it is done again
        if {layer.name for layer in kept.results} != block.layers.keys():
            return None
        self.earlier.add(index)
        return RoundedBlock(index, block.layers, kept.results, block.extra, kept.learned)

    def add(self, block: RoundedBlock) -> None:
        record = json.dumps(asdict(BlockRecord(block.results, block.learned))).encode()
        self.writer.add(block.index, block.layers, extra=block.thresholds, record=record)

    def finish(self, done: Plan, progress: Progress | None) -> Plan:
        result = replace(done, size_bytes=self.writer.size_bytes)
        self.writer.finish({"plan.json": result.as_bytes()}, progress=progress)
        return result


def check_quantize(
    checkpoint: Checkpoint,
    out: str | Path,
    *,
    resume: bool = False,
    device: str = AUTO,
    bits: int | None = None,
    group: Group | None = None,
    embeddings: Embeddings | None = None,
    scheme: str | None = None,
) -> None:
    """Raises if a model cannot be written to `out` with these widths; call it before anything that takes time."""
    resolve_device(device)
    check_free(draft_lock(out), Path(out))
    clear_remains(out)
    if resume and finished_plan(out) is not None:
        return
    check_directory(out, holding=())
    check_draft(out, resume=resume)
    shape: dict[str, Any] = {"bits": bits, "group": group, "embeddings": embeddings, "scheme": scheme}
    plain = decide("rtn", Evidence(checkpoint), **{name: value for name, value in shape.items() if value is not None})
    check_storable(checkpoint, plain.schemes)


def draft_plan(out: str | Path) -> Plan | None:
    """Returns the plan that an interrupted run was carrying out; None if there is none."""
    file = draft_directory(out) / PLAN
    return Plan.load(file) if check_draft(out, resume=True) and file.is_file() else None


def finished_plan(out: str | Path, plan: Plan | None = None) -> Plan | None:
    """Returns the plan, with its results, of the model in `out`; None if there is none, or it is not from `plan`."""
    file = Path(out) / "plan.json"
    if not file.is_file():
        return None
    check_free(draft_lock(out), Path(out))
    clear_remains(out)
    done = Plan.load(file)
    same = plan is None or replace(done, size_bytes=plan.size_bytes).digest == plan.digest
    return done if same else None


def draft_device(out: str | Path) -> str | None:
    """Returns the device that an interrupted run computed on; None if there is none."""
    return DRAFT.read(draft_directory(out) / STATE).device if check_draft(out, resume=True) else None


def calibration_text(checkpoint: Checkpoint, plan: Plan, text: str | Path | Corpus | None) -> TokenizedText | None:
    """Returns the text that the plan was made with; None if it was made without text."""
    calibration = plan.calibration
    if calibration is None:
        return None
    # with all languages of the plan: parallel text leaves out documents that one of them lacks
    corpus = open_corpus_for(checkpoint, text, calibration.hashes).restrict(plan.languages)
    hashes = corpus.hashes["calibration"]
    changed = [code for code in plan.languages if hashes[code] != calibration.hashes.get(code)]
    if changed:
        raise InputError(
            f"the plan was made with other text in {', '.join(changed)} ({calibration.corpus}) than {corpus.name} has; "
            "give the same text, or make a new plan"
        )
    return tokenize_corpus(checkpoint, corpus, request=calibration.request)


def quantize_into(
    model: PreTrainedModel,
    quantizer: PackedOnSave,
    checkpoint: Checkpoint,
    plan: Plan,
    text: TokenizedText | None,
    *,
    in_place: bool = False,
    device: str,
    progress: Progress | None,
) -> PreTrainedModel:
    """Returns a model after replacing its weights by the quantized ones and telling transformers so.

    `in_place` means that the checkpoint reads from the same weights: all codes are then kept until the last block is
    rounded, a byte per weight.
    """
    entries = _format_entries(checkpoint, plan)  # before anything that takes time
    swapped, waiting, scales = SwappedModel(checkpoint, model), dict[str, Codes](), dict[str, Tensor]()
    results: list[LayerResult] = []
    learned: LearningResult | None = None
    for block in execute_plan(checkpoint, plan, text=text, device=device, progress=progress):
        scales |= {name: codes.scales for name, codes in block.layers.items()}
        if in_place:
            waiting |= block.layers
        else:
            swapped.replace(block.layers)
        results += block.results
        learned = block.learned or learned
    size = planned_bytes(checkpoint, plan.schemes)
    while waiting:  # one by one: codes keep what they were dequantized to
        name, codes = waiting.popitem()
        swapped.replace({name: codes})
    notes = (*plan.notes, *([NO_THRESHOLDS] if plan.thresholds else []))
    done = replace(plan, results=tuple(results), learned=learned, size_bytes=size, notes=notes)
    quantizer.attach(
        model,
        checkpoint,
        bits={name: scheme.bits for name, scheme in plan.schemes.items()},
        scales=scales,
        entries=entries,
        plan_bytes=done.as_bytes(),
        size_bytes=size,
    )
    return model


def _format_entries(checkpoint: Checkpoint, plan: Plan) -> dict[str, Any]:
    """Returns the quantization_config; raises if the quantized model could not be saved."""
    check_storable(checkpoint, plan.schemes)
    other = next((scheme.format for scheme in plan.schemes.values() if scheme.format != "integer"), None)
    if other is not None:
        raise InputError(f"a model in memory holds integers, and the plan says {other}: write it with out=…")
    parts = split_index(checkpoint, plan.schemes).parts
    if parts:
        raise InputError(
            f"transformers saves {next(iter(parts))} as it is here, and does not read it beside packed weights, so "
            "that the model cannot be saved from memory: write it with out=…"
        )
    return quantization_config(checkpoint, plan.schemes)
