"""Plan: a policy decides what to do with a model, from the evidence that it requests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from fairbits.api.laaciq import measure_clipping
from fairbits.auditing.record import HEADLINE, Audit
from fairbits.core.array_checks import Floats
from fairbits.core.checks import whole
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.forward.statistics import collect_statistics
from fairbits.forward.tokenize import open_corpus_for, short_text_notes, tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.kurtosis.patterns import Pattern
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO, resolve_device
from fairbits.models.loaded_checkpoint import Model, open_checkpoint
from fairbits.models.scales.scheme import Group
from fairbits.models.weight_moments import weight_moments
from fairbits.quantization import policies
from fairbits.quantization.evidence import (
    Evidence,
    Form,
    How,
    LanguageWeights,
    Sensitivity,
    Thresholds,
    audited_kappa,
)
from fairbits.quantization.plan import UNEQUAL_BUDGETS, Calibration, Plan
from fairbits.quantization.policies.option import PolicyOptions
from fairbits.quantization.policies.variants import Variant, with_options
from fairbits.quantization.search.block_sensitivity import (
    BitsTrial,
    measured_damage,
    measured_sensitivity,
    predicted_sensitivity,
)
from fairbits.quantization.search.language_weights import minimax_mix
from fairbits.stats.intervals import Estimate
from fairbits.text.corpus import DEFAULT_REQUEST, Corpus, TextRequest


def plan(
    model: Model,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    policy: str = policies.DEFAULT,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    tokens: int | None = None,
    sequence: int = 512,
    seed: int = 0,
    audit: str | Path | Audit | None = None,
    rounds: int = 4,
    device: str = AUTO,
    progress: Progress | None = None,
    **options: Any,
) -> Plan:
    """Returns what a policy decides for a model; nothing is quantized yet.

    `model` may be a loaded model of transformers, with its `tokenizer`; it is not changed. `options` are those of the
    policy (bits, group, …, see `quantization.policies`); None means not given. `policy` may have options after colons:
    "gptq:mix=english". `text` is a corpus or its path; without
    it the embedded declaration is used. A policy that reads no text uses it only to measure the error of every language
    in every layer. `tokens` is the number of tokens per language; without it the policy decides. `audit` is an audit of
    the model or its path; mixed and auto take κ from it. `rounds` is the number of rounds of the search for a minimax
    mix. Blocks and mixes are measured on `device`; predictions are made on the CPU.
    """
    device = resolve_device(device)
    chosen_options = {name: value for name, value in options.items() if value is not None}
    policy, chosen_options = with_options(policy, chosen_options)
    chosen = policies.find_policy(policy)
    request = TextRequest("calibration", chosen.tokens if tokens is None else tokens, sequence, seed)
    whole("rounds", rounds, least=1)
    checkpoint = open_checkpoint(model, tokenizer)
    policies.check(policy, chosen_options)  # before anything that takes time
    if audit is not None:
        policies.check_reads_audit(policy)
    if languages is None and text is None and not chosen.reads_text:
        without_text = policies.decide(policy, Evidence(checkpoint), **chosen_options)
        if without_text.reads_text:
            scheme = chosen_options["scheme"]
            raise InputError(f"{scheme} has scales of inputs, which need text: name languages, or give text")
        return without_text
    corpus = open_corpus_for(checkpoint, text, languages)
    source = PlanSource(
        checkpoint,
        corpus,
        Calibration.of(corpus, request),
        group=chosen_options.get("group", PolicyOptions.group),
        audit=audit,
        device=device,
        progress=progress,
    )
    evidence = Evidence(
        checkpoint,
        tuple(corpus.calibration),
        kappa=source.kappa,
        kappa_eff=source.kappa_eff,
        sensitivity=source.sensitivity,
        damage=source.damage,
        minimax=lambda: source.minimax(evidence, chosen_options, rounds=rounds),
        alphas=source.alphas,
        device=device,
    )
    decided = policies.decide(policy, evidence, calibration=source.calibration, **chosen_options)
    return replace(decided, notes=(*decided.notes, *source.shortage(decided)))


def check_variants(
    checkpoint: Checkpoint,
    corpus: Corpus,
    variants: Iterable[Variant],
    *,
    widths: Iterable[int],
    common: Mapping[str, Any],
    in_memory: bool = True,
) -> None:
    """Raises unless every variant, with `common` and its options, can be planned at every one of the bit widths.

    Variants that are measured `in_memory` cannot round the inputs of experts.

    Policies check their options before they request evidence; here they get no further than that.
    """
    evidence = Evidence(
        checkpoint, tuple(corpus.calibration), kappa=_stop, sensitivity=_stop, damage=_stop, minimax=_stop, alphas=_stop
    )
    calibration = Calibration.of(corpus, DEFAULT_REQUEST)
    for variant in variants if in_memory and checkpoint.architecture.has_experts else ():
        if variant.rounds_experts:
            raise InputError(
                f"{variant.name} rounds the inputs of experts, which a model in memory cannot do here: write it with "
                "quantize, and evaluate what is written"
            )
    for variant, bits in [(variant, bits) for variant in variants for bits in widths]:
        try:
            policies.decide(variant.policy, evidence, calibration=calibration, **variant.at(bits, common))
        except policies.EvidenceRequested:
            continue
        except InputError as problem:
            raise InputError(f"{variant.name} at {bits} bits: {problem}") from None


def _stop(*_: object) -> Any:
    raise policies.EvidenceRequested


@dataclass(frozen=True, eq=False)
class PlanSource:
    """The source of evidence for a plan: a model and its calibration text. The model is loaded at most once."""

    checkpoint: Checkpoint
    corpus: Corpus
    calibration: Calibration
    group: Group
    audit: str | Path | Audit | None
    device: str
    progress: Progress | None

    def kappa(self) -> Floats:
        return self._kappa

    @cached_property
    def _kappa(self) -> Floats:
        if self.audit is not None:
            return audited_kappa(self.audit, self.checkpoint.fingerprint)
        moments = weight_moments(self.checkpoint, progress=self.progress)
        return np.array([block.kappa for block in moments.blocks])

    def kappa_eff(self) -> dict[str, Estimate]:
        measured = collect_statistics(
            self.checkpoint, self.corpus, request=self.calibration.request, device=self.device, progress=self.progress
        )
        sums, tokens = measured.sums(*HEADLINE), measured.sums(HEADLINE[0], "positions")
        return Pattern(measured.lang, measured.document, sums=sums, tokens=tokens).kappa_weighted(self._kappa)

    def sensitivity(self, bits: Sequence[int], how: How) -> Sensitivity:
        if how == "measured":
            return measured_sensitivity(self._trial, bits=bits, progress=self.progress)
        return predicted_sensitivity(
            self.checkpoint,
            self.corpus,
            request=self.calibration.request,
            bits=bits,
            group=self.group,
            device=self.device,
            progress=self.progress,
        )

    def damage(self, allocations: Sequence[Sequence[int]]) -> Floats:
        """Returns the measured damage of whole allocations, (allocations, languages)."""
        return measured_damage(self._trial, allocations, progress=self.progress)

    def minimax(self, evidence: Evidence, options: Mapping[str, Any], *, rounds: int) -> LanguageWeights:
        equal = policies.decide("gptq", evidence, calibration=self.calibration, **{**options, "mix": "equal"})
        return minimax_mix(
            self.checkpoint,
            equal,
            text=self._text,
            rounds=rounds,
            seed=self.calibration.seed,
            device=self.device,
            progress=self.progress,
        )

    def alphas(self, form: Form, bits: int) -> Thresholds:
        clipping = measure_clipping(
            self.checkpoint,
            self.corpus,
            self.calibration.request,
            bits=bits,
            products=form == "product",
            device=self.device,
            progress=self.progress,
        )
        if form == "product":
            return {layer.name: layer.product_alpha for layer in clipping.layers}
        written = {code: language.alpha_written.value for code, language in clipping.languages.items()}
        return dict.fromkeys(self.checkpoint.architecture.linears, written)

    def shortage(self, plan: Plan) -> Iterator[str]:
        """Yields a note if there is clearly less text than a plan requests."""
        if plan.calibration is None:
            return
        request = plan.calibration.request
        alike = plan.calibration == self.calibration and list(plan.languages) == list(self.corpus.calibration)
        text = self._text
        if not alike:
            text = tokenize_corpus(self.checkpoint, self.corpus.restrict(plan.languages), request=request)
        notes = short_text_notes(text, request, parallel=self.corpus.parallel)
        unequal = f"; {UNEQUAL_BUDGETS}" if plan.settings.get("mix") == "english" else ""
        yield from (note + unequal for note in notes)

    @cached_property
    def _text(self) -> TokenizedText:
        return tokenize_corpus(self.checkpoint, self.corpus, request=self.calibration.request)

    @cached_property
    def _trial(self) -> BitsTrial:
        return BitsTrial(self.checkpoint, self._text, group=self.group, device=self.device)
