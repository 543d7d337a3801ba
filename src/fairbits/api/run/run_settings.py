"""RunSettings: everything that determines the result of a run, checked before anything that takes time."""

import gc
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from fairbits.api.dry_run import ResourceEstimate, estimate_workload, planning_stages, stand_in_plan
from fairbits.api.fit import Workload, smaller_requests
from fairbits.api.make_plan import check_variants
from fairbits.api.make_plan import plan as make_plan
from fairbits.api.memory_needed import Held, Stage, TextSize, WorkCounter
from fairbits.api.quantize import check_quantize
from fairbits.comparison.plan_trial import corpus_for
from fairbits.core.checks import sequence as listed
from fairbits.core.checks import whole
from fairbits.core.errors import InputError
from fairbits.core.files import RUN_FILE
from fairbits.core.progress import Progress
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.core.version import __version__, versions
from fairbits.evaluation.setting import EvaluationSetting
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO, resolve_device
from fairbits.models.scales.scheme import Group, Scheme, within_rows
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.plan import ENGLISH, Calibration, Plan
from fairbits.quantization.policies import DEFAULT, decide, find_policy
from fairbits.quantization.policies.option import Embeddings
from fairbits.quantization.policies.variants import Variant, variant
from fairbits.reports.content import THREADS
from fairbits.reports.sources import RUN, Baseline, RunFile
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.reading import DECLARATION, HELP

EMBEDDED = "embedded:tiny"
PLAIN, DEMO_BASELINE = "rtn", "gptq:mix=english"  # the simplest way to round, and how models are usually quantized
LONGEST_NAME = 80
REPORT_SECONDS = 2.0  # about what the intervals and the pages of a report take, whatever the model
PER_TENSOR = "the audit assumes one scale per channel, because it cannot predict one per tensor"


USUAL_AMOUNTS, DEMO_AMOUNTS = (4096, 8192), (512, 1536)
"""Tokens per language for calibration and for evaluation; those of the demo are enough to decide."""


@dataclass(frozen=True, eq=False)
class RunSettings:
    """A model, its text, and how it is quantized and measured; `more_bits` are other than `bits`, ascending.

    The audit is no setting of the other results: it can be added to a finished run.
    """

    checkpoint: Checkpoint
    corpus: Corpus
    policy: Variant
    baselines: tuple[Variant, ...]
    bits: int
    more_bits: tuple[int, ...]
    group: Group
    embeddings: Embeddings
    calibration: TextRequest
    evaluation: TextRequest
    device: str
    audit: bool = False
    notes: tuple[str, ...] = ()

    @property
    def scheme(self) -> Scheme:
        return Scheme(self.bits, within_rows(self.group))

    @cached_property
    def setting(self) -> EvaluationSetting:
        return EvaluationSetting.of(self.checkpoint, self.corpus, self.evaluation)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "bits": self.bits,
            "group": self.group,
            "embeddings": self.embeddings,
            "tokens": self.calibration.tokens,
            "evaluation_tokens": self.evaluation.tokens,
            "sequence": self.calibration.sequence,
            "seed": self.calibration.seed,
            "device": self.device,
            "more_bits": list(self.more_bits),
            "languages": list(self.corpus.evaluation),
            "text": self.corpus.name,
            "parallel": self.corpus.parallel,
            "tokenizer": self.checkpoint.tokenizer_hash,
        }

    @property
    def baseline_files(self) -> dict[str, Variant]:
        return {f"baselines/{file_name(baseline.name)}.json": baseline for baseline in self.baselines}

    @property
    def bits_files(self) -> dict[str, int]:
        return {f"more-bits/{bits}.json": bits for bits in self.more_bits}

    @property
    def measured_files(self) -> dict[str, tuple[Variant, int]]:
        """What is measured but not written, with its bits, by the file of its scores."""
        baselines = {file: (baseline, self.bits) for file, baseline in self.baseline_files.items()}
        return baselines | {file: (self.policy, bits) for file, bits in self.bits_files.items()}

    def record(self) -> RunFile:
        return RunFile(
            fairbits=__version__,
            versions=versions() | {THREADS: str(torch.get_num_threads())},
            model=self.checkpoint.target,
            fingerprint=self.checkpoint.fingerprint,
            policy=self.policy.name,
            settings=self.settings,
            hashes={split: dict(hashes) for split, hashes in self.corpus.hashes.items()},
            baselines=tuple(Baseline(baseline.name, file) for file, baseline in self.baseline_files.items()),
            notes=self.notes,
        )

    def options(self, policy: Variant, bits: int) -> dict[str, Any]:
        return policy.at(bits, {"group": self.group, "embeddings": self.embeddings})

    def plan(self, policy: Variant, bits: int, *, with_text: bool, progress: Progress | None) -> Plan:
        """Returns the plan of a policy; one that needs no text can be given it, to report the error of languages."""
        plan = make_plan(
            self.checkpoint,
            policy=policy.policy,
            text=self.corpus if with_text else None,
            device=self.device,
            progress=progress,
            **self.calibration.settings | self.options(policy, bits),
        )
        gc.collect()  # evidence refers to itself, and to the model if it was loaded
        return plan

    def plan_digest(self, policy: Variant, bits: int) -> str | None:
        """Returns the digest of the plan that is measured; None if the policy needs weights or text to decide."""
        text = Calibration.of(self.corpus, self.calibration) if policy.reads_text else None
        evidence = Evidence(self.checkpoint, tuple(self.corpus.calibration) if policy.reads_text else ())
        try:
            return decide(policy.policy, evidence, calibration=text, **self.options(policy, bits)).digest
        except InputError:  # it needs evidence that is not there; all else was checked when the settings were made
            return None


def prepare_run(
    model: str | Path | Checkpoint | None = None,
    *,
    out: str | Path,
    policy: str = DEFAULT,
    baselines: Iterable[str] | None = None,
    bits: int = 4,
    group: Group = 128,
    embeddings: Embeddings = "keep",
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    tokens: int | None = None,
    evaluation_tokens: int | None = None,
    sequence: int = 512,
    seed: int = 0,
    more_bits: Iterable[int] = (),
    audit: bool | None = None,
    device: str = AUTO,
    reading: bool = True,
) -> RunSettings:
    """Returns the settings of `fairbits.run`, checked.

    Without `reading` the model has no fingerprint, for which all weights would be read.
    """
    checkpoint = model if isinstance(model, Checkpoint) else Checkpoint(EMBEDDED if model is None else model)
    checkpoint = checkpoint if reading else checkpoint.without_fingerprint()
    usual_tokens, usual_evaluation_tokens = DEMO_AMOUNTS if model is None else USUAL_AMOUNTS
    if model is None and languages is None and text is None:
        text = HELP
    evaluated = usual_evaluation_tokens if evaluation_tokens is None else evaluation_tokens
    audit = model is None if audit is None else audit
    calibration = TextRequest("calibration", usual_tokens if tokens is None else tokens, sequence, seed)
    evaluation = TextRequest("evaluation", evaluated, sequence, seed)
    device = resolve_device(device, earlier=recorded_device(out))
    chosen = variant(policy)
    bits = chosen.bits_or(whole("bits", bits, least=2, most=8))
    others = sorted({whole("more_bits", other, least=2, most=8) for other in listed("more_bits", more_bits)} - {bits})
    compared = None if baselines is None else [variant(name) for name in dict.fromkeys(listed("baselines", baselines))]
    if compared is not None and chosen.name in {baseline.name for baseline in compared}:
        raise InputError(f"{chosen.name} is the policy, so it cannot be a baseline too; give others, or none")
    corpus = corpus_for(checkpoint, languages=languages, text=text)
    if compared is None and chosen.rounds_experts and checkpoint.architecture.has_experts:
        compared = []  # which could not be measured in memory
    if compared is None:
        compared = usual_baselines(chosen, corpus, demo=model is None and text not in (None, DECLARATION))
    common = {"group": group, "embeddings": embeddings}
    check_variants(checkpoint, corpus, [chosen], widths=[bits], common=common, in_memory=False)
    check_variants(checkpoint, corpus, compared, widths=[bits], common=common)
    check_variants(checkpoint, corpus, [chosen], widths=others, common=common)
    settings = RunSettings(
        checkpoint=checkpoint,
        corpus=corpus,
        policy=chosen,
        baselines=tuple(compared),
        bits=bits,
        more_bits=tuple(others),
        calibration=calibration,
        evaluation=evaluation,
        device=device,
        audit=audit,
        notes=(PER_TENSOR,) if audit and group == "tensor" else (),
        **common,  # type: ignore[arg-type]  # which check_variants has checked
    )
    for request, least in ((calibration, LEAST_DOCUMENTS), (evaluation, 1)):
        tokenize_corpus(checkpoint, corpus, request=request, least=least)  # raises if there is not enough of it
    _check_out(out, settings)
    return settings


def usual_baselines(policy: Variant, corpus: Corpus, *, demo: bool) -> list[Variant]:
    """Returns the default baseline: rtn in the same format, which costs one evaluation; none if it is the policy.

    The demonstration compares with GPTQ calibrated on English, if its text has English.
    """
    usual = DEMO_BASELINE if demo and ENGLISH in corpus.calibration else PLAIN
    if "scheme" in policy.options:
        usual += f":scheme={policy.options['scheme']}"
    return [variant(usual)] if usual != policy.name else []


def file_name(name: str) -> str:
    """Returns the name of a variant as a file name without suffix."""
    plain = re.sub(r"[^\w.+]", "-", name)
    return plain if len(plain) <= LONGEST_NAME else f"{plain[:LONGEST_NAME]}-{sha256(name.encode()).hexdigest()[:8]}"


def recorded_device(out: str | Path) -> str | None:
    """Returns the device of the run that a directory has; None if it has none."""
    file = Path(out) / RUN_FILE
    return RUN.read(file).settings.get("device") if file.is_file() else None


def _check_out(out: str | Path, settings: RunSettings) -> None:
    """Raises if the quantized model cannot be written or has no room, unless it is already there."""
    target = Path(out) / "model"
    common = {"group": settings.group, "embeddings": settings.embeddings}
    names = ("bits", "group", "embeddings", "scheme")
    shape = {name: value for name, value in settings.policy.at(settings.bits, common).items() if name in names}
    if target.is_symlink():
        raise InputError(f"{target} is a link; a run must write its own model: remove the link, or give another --out")
    if target.exists():
        return
    check_quantize(settings.checkpoint, target, resume=True, device=settings.device, **shape)
    there = next(parent for parent in target.absolute().parents if parent.is_dir())
    needed, free = decide("rtn", Evidence(settings.checkpoint), **shape).size_bytes, shutil.disk_usage(there).free
    if needed > free:
        raise InputError(
            f"{there} has {free:,} bytes free, but the quantized model needs {needed:,}; free some space, "
            "or give another directory with --out"
        )


def estimate_run(
    model: str | Path | Checkpoint | None = None, *, out: str | Path = "fairbits-run", **arguments: Any
) -> ResourceEstimate:
    """Returns what `fairbits.run` with the same arguments takes on this machine; no file is written.

    What an earlier run has already finished in `out` counts as if it had to be done.
    """
    settings = prepare_run(model, out=out, reading=False, **arguments)
    text = tokenize_corpus(settings.checkpoint, settings.corpus, request=settings.evaluation, least=1)
    workload = Workload(settings, _stages, _smaller_runs)
    return estimate_workload(settings.checkpoint, workload, text, device=settings.device, out=out)


def run_workload(settings: RunSettings, out: str | Path) -> Workload[RunSettings]:
    """Returns a run; what one that was started before has written already takes no more disk."""
    started = (Path(out) / RUN_FILE).is_file()

    def stages(some: RunSettings) -> Iterator[Stage]:
        for stage in _stages(some):
            yield replace(stage, held=replace(stage.held, written=0)) if started else stage

    return Workload(settings, stages, _smaller_runs)


def _stages(settings: RunSettings) -> Iterator[Stage]:
    counter, texts = WorkCounter(settings.checkpoint, settings.device), dict[Any, TokenizedText]()

    def text(request: TextRequest, languages: Iterable[str]) -> TokenizedText:
        key = request, tuple(languages)
        if key not in texts:
            corpus = settings.corpus.restrict(languages)
            texts[key] = tokenize_corpus(settings.checkpoint, corpus, request=request, least=1)
        return texts[key]

    def quantization(policy: Variant, bits: int, *, name: str, written: bool) -> Iterator[Stage]:
        plan, requests = stand_in_plan(
            settings.checkpoint,
            settings.corpus if written or policy.reads_text else None,
            policy.policy,
            settings.options(policy, bits),
            request=settings.calibration,
            device=settings.device,
        )
        words = None if plan.calibration is None else text(plan.calibration.request, plan.languages)
        yield from planning_stages(counter, plan, requests, words, name=f"plan of {name}")
        yield from counter.execution(plan, words, name=name, written=written)

    evaluated = TextSize.of(text(settings.evaluation, settings.corpus.evaluation))
    yield counter.fingerprint()
    if settings.audit:
        audit = counter.audit(TextSize.of(text(settings.calibration, settings.corpus.calibration)))
        yield replace(audit, dropped="--no-audit")
    name = f"quantize: {settings.policy.name}, {settings.bits} bits"
    yield from quantization(settings.policy, settings.bits, name=name, written=True)
    yield counter.evaluation(evaluated, name="evaluate the reference model", reference=True)
    yield counter.evaluation(evaluated, name="evaluate the quantized model")
    for policy, bits in settings.measured_files.values():
        name = f"{policy.name}, {bits} bits"
        loaded = counter.on_device(4.0 * counter.model.weights)  # the model stays in memory
        option = _option_without(settings, policy, bits)
        for stage in quantization(policy, bits, name=name, written=False):
            held = replace(stage.held, gpu=stage.held.gpu + loaded.gpu, ram=stage.held.ram + loaded.ram)
            yield replace(stage, held=held, reported=stage.reported and f"{name}: {stage.reported}", dropped=option)
        stage = counter.evaluation(evaluated, name=f"evaluate {name}", loaded=True)
        yield replace(stage, reported=f"{name}: {stage.reported}", dropped=option)
    yield Stage("report", {"seconds": REPORT_SECONDS}, Held())


def _option_without(settings: RunSettings, policy: Variant, bits: int) -> str:
    """Returns the option that drops a baseline, or bits other than those of the model."""
    baselines = [baseline.name for baseline in settings.baselines if baseline.name != policy.name]
    more_bits = [str(other) for other in settings.more_bits if other != bits]
    name, others = ("--baselines", baselines) if bits == settings.bits else ("--more-bits", more_bits)
    return f"{name} {','.join(others) or 'none'}"


def _smaller_runs(settings: RunSettings) -> Iterator[list[tuple[str, RunSettings]]]:
    policy = settings.policy
    if "model_steps" in find_policy(policy.policy).options and policy.options.get("model_steps") != 0:
        parts = [part for part in policy.name.split(":") if not part.startswith("model_steps=")]
        in_blocks = variant(":".join([*parts, "model_steps=0"]))
        yield [(f"--policy {in_blocks.name}", replace(settings, policy=in_blocks))]
    fewer, shorter = smaller_requests(settings.calibration)
    yield [(name, replace(settings, calibration=request)) for name, request in fewer]
    fewer_evaluated, _ = smaller_requests(settings.evaluation, "--evaluation-tokens")
    yield [(name, replace(settings, evaluation=request)) for name, request in fewer_evaluated]
    yield [
        (name, replace(settings, calibration=text, evaluation=replace(settings.evaluation, sequence=text.sequence)))
        for name, text in shorter
    ]
