"""Job: everything that determines the result of a run, checked before anything that takes time."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from fairbits.api.make_plan import check_variants
from fairbits.comparison.plan_trial import corpus_for
from fairbits.core.checks import sequence as listed
from fairbits.core.checks import whole
from fairbits.core.errors import InputError
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.core.version import __version__, versions
from fairbits.evaluation.setting import EvaluationSetting
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import resolve_device
from fairbits.models.scales.scheme import Group, Scheme, within_rows
from fairbits.quantization.policies.gptq import ENGLISH
from fairbits.quantization.policies.option import Embeddings
from fairbits.quantization.policies.variants import Variant, variant
from fairbits.reports.content import THREADS
from fairbits.reports.sources import Baseline, RunFile
from fairbits.text.corpus import Corpus
from fairbits.text.reading import DECLARATION
from fairbits.text.text_request import TextRequest

USUAL_POLICY = "gptq:mix=english"
"""How models are usually quantized."""
PLAIN = "rtn"
LONGEST_NAME = 80
PER_TENSOR = "the audit assumes one scale per channel, because it cannot predict one per tensor"


@dataclass(frozen=True, eq=False)
class Job:
    """A model, its text, and how it is quantized and measured; `widths` are those other than `bits`, ascending."""

    checkpoint: Checkpoint
    corpus: Corpus
    policy: Variant
    baselines: tuple[Variant, ...]
    bits: int
    widths: tuple[int, ...]
    group: Group
    embeddings: Embeddings
    calibration: TextRequest
    evaluation: TextRequest
    device: str
    notes: tuple[str, ...] = ()

    @property
    def scheme(self) -> Scheme:
        """The scheme of the audit: round to nearest with the same width and group."""
        return Scheme(self.bits, within_rows(self.group))

    @cached_property
    def setting(self) -> EvaluationSetting:
        """The text and task that all models are evaluated on."""
        return EvaluationSetting.of(self.checkpoint, self.corpus, self.evaluation)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines the result apart from model, policy and text."""
        return {
            "bits": self.bits,
            "group": self.group,
            "embeddings": self.embeddings,
            "tokens": self.calibration.tokens,
            "evaluation_tokens": self.evaluation.tokens,
            "sequence": self.calibration.sequence,
            "seed": self.calibration.seed,
            "device": self.device,
            "widths": list(self.widths),
            "languages": list(self.corpus.evaluation),
            "text": self.corpus.name,
            "parallel": self.corpus.parallel,
            "tokenizer": self.checkpoint.tokenizer_hash,
        }

    def record(self) -> RunFile:
        """Returns the content of run.json before anything is done."""
        return RunFile(
            fairbits=__version__,
            versions=versions() | {THREADS: str(torch.get_num_threads())},
            model=self.checkpoint.target,
            fingerprint=self.checkpoint.fingerprint,
            policy=self.policy.name,
            settings=self.settings,
            hashes={split: dict(hashes) for split, hashes in self.corpus.hashes.items()},
            baselines=tuple(Baseline(each.name, file) for file, each in baseline_files(self).items()),
            notes=self.notes,
        )


def job_of(
    checkpoint: Checkpoint,
    *,
    policy: str,
    baselines: Iterable[str] | None,
    bits: int,
    widths: Iterable[int],
    group: Group,
    embeddings: Embeddings,
    languages: Iterable[str] | None,
    text: str | Path | Corpus | None,
    calibration: TextRequest,
    evaluation: TextRequest,
    device: str,
) -> Job:
    """Returns the job if all of it is possible; a width that the policy cannot have is left out, with a note."""
    device = resolve_device(device)
    whole("bits", bits, least=2, most=8)
    other_widths = sorted({whole("a width", each, least=2, most=8) for each in listed("widths", widths)} - {bits})
    own = variant(policy)
    given = None if baselines is None else [variant(each) for each in dict.fromkeys(listed("baselines", baselines))]
    if given is not None and own.name in {each.name for each in given}:
        raise InputError(f"{own.name} is the policy, so it cannot be a baseline too; give others, or none")
    corpus = corpus_for(checkpoint, languages=languages, text=text)
    others = usual_baselines(own, corpus, enough_english=text not in (None, DECLARATION)) if given is None else given
    common = {"group": group, "embeddings": embeddings}
    check_variants(checkpoint, corpus, [own, *others], widths=[bits], common=common)
    kept, notes = _possible_widths(checkpoint, corpus, own, widths=other_widths, common=common)
    job = Job(
        checkpoint=checkpoint,
        corpus=corpus,
        policy=own,
        baselines=tuple(others),
        bits=bits,
        widths=kept,
        calibration=calibration,
        evaluation=evaluation,
        device=device,
        notes=(*notes, *([PER_TENSOR] if group == "tensor" else [])),
        **common,  # type: ignore[arg-type]  # which check_variants has checked
    )
    for request, least in ((calibration, LEAST_DOCUMENTS), (evaluation, 1)):
        tokenize_corpus(checkpoint, corpus, request=request, least=least)  # raises if there is not enough of it
    return job


def usual_baselines(policy: Variant, corpus: Corpus, *, enough_english: bool) -> list[Variant]:
    """Returns the default baselines: GPTQ calibrated on English, if the text has English, and rtn.

    The headline of the report compares with the first. For the embedded declaration this is rtn, because its English
    has few tokens: calibrated on so little text, GPTQ looks worse than it is.
    """
    usual = [*([USUAL_POLICY] if ENGLISH in corpus.calibration else []), PLAIN]
    ordered = usual if enough_english else usual[::-1]
    return [variant(each) for each in ordered if each != policy.name]


def baseline_files(job: Job) -> dict[str, Variant]:
    """Returns the baselines by the file of their scores."""
    return {f"baselines/{file_name(each.name)}.json": each for each in job.baselines}


def measured_files(job: Job) -> dict[str, tuple[Variant, int]]:
    """Returns the variants that are measured but not written, with their widths, by the file of their scores."""
    baselines = {file: (each, job.bits) for file, each in baseline_files(job).items()}
    return baselines | {file: (job.policy, width) for file, width in width_files(job).items()}


def width_files(job: Job) -> dict[str, int]:
    """Returns the other widths by the file of their scores."""
    return {f"widths/{width}.json": width for width in job.widths}


def file_name(name: str) -> str:
    """Returns the name of a variant as a file name without suffix.

    >>> file_name("gptq:mix=eng=2+fra=1")
    'gptq-mix-eng-2+fra-1'
    """
    plain = re.sub(r"[^\w.+]", "-", name)
    return plain if len(plain) <= LONGEST_NAME else f"{plain[:LONGEST_NAME]}-{sha256(name.encode()).hexdigest()[:8]}"


def _possible_widths(
    checkpoint: Checkpoint, corpus: Corpus, policy: Variant, *, widths: Iterable[int], common: dict[str, Any]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Returns the widths that a policy can have, and a note on each of the others."""
    kept, notes = [], []
    for width in widths:
        try:
            check_variants(checkpoint, corpus, [policy], widths=[width], common=common)
            kept.append(width)
        except InputError as problem:
            notes.append(f"not measured: {problem}")
    return tuple(kept), tuple(notes)
