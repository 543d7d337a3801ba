"""Sweep: the damage of every language at every width, and the width at which it crosses a threshold."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from fairbits.api.make_plan import check_variants
from fairbits.api.trial_tasks import Trial, TrialWork, pool_and_device, run_trials
from fairbits.comparison.critical_bits import needs_sentence, notes_sentence
from fairbits.comparison.plan_trial import corpus_for
from fairbits.core.checks import one_of, positive, whole
from fairbits.core.checks import sequence as listed
from fairbits.core.errors import InputError, count_of
from fairbits.core.figure import Figure
from fairbits.core.files import check_writable, write_files
from fairbits.core.progress import Progress
from fairbits.core.records import to_json_lines
from fairbits.core.table import Cell, Shown, Table, data_frame, dim, notes_table
from fairbits.core.task_pool import Cluster
from fairbits.core.units import MB, MEASURE_LABELS, MEASURES, UNIT_LABELS
from fairbits.evaluation.equivalent_bits import SweptDamage
from fairbits.evaluation.scores import check_unit
from fairbits.evaluation.setting import EvaluationSetting
from fairbits.kurtosis.checklist import critical_bits
from fairbits.models.device import AUTO
from fairbits.models.loaded_checkpoint import Model, open_checkpoint
from fairbits.models.scales.scheme import Group
from fairbits.models.weight_moments import weight_moments
from fairbits.quantization.policies import DEFAULT
from fairbits.quantization.policies.variants import variant
from fairbits.reports.sources import SWEEP
from fairbits.stats.crossing import CriticalBits, crossing
from fairbits.stats.frame import LanguageFrame, estimate_columns, figure_of_series, interval_notes
from fairbits.stats.intervals import Estimate
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.language_codes import language_from_code

if TYPE_CHECKING:
    import pandas

THRESHOLDS = {"bits_per_byte": 0.01, "nats_per_token": 0.03, "nats_per_section": 3.0}  # about 1 % of a good loss
REMARK = (
    "Their width depends on κ alone and on no threshold; "
    "the measured one depends on the threshold, the policy and the group (001-17)."
)
LEGEND = (
    "B*: critical bit width, below which the damage exceeds the threshold; log damage is interpolated linearly between "
    "bit widths, and 95 % intervals come from resampling documents. The intervals of the damage are in the JSON."
)


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Shown):
    """One policy at several widths, ascending, on the same text.

    `frames` holds the damage by width, on the same documents, `sizes` the bytes of the quantized model. `max_kappa` is
    the largest excess kurtosis of a block, from which the research notes predict the critical width.
    """

    model: str
    fingerprint: str
    policy: str
    settings: Mapping[str, Any]
    measure: str
    frames: Mapping[int, LanguageFrame]
    sizes: Mapping[int, int]
    threshold: float
    max_kappa: float
    notes: tuple[str, ...] = ()
    setting: EvaluationSetting | None = None

    @cached_property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, and those on languages for which no interval can be formed, by width."""
        bits_of_note: dict[str, list[str]] = {}
        for bits, frame in self.frames.items():
            for note in interval_notes(frame, {"gap": self.gaps[bits]}):
                bits_of_note.setdefault(note, []).append(str(bits))
        more = (
            note if len(some) == len(self.bits) else f"at {', '.join(some)} bits: {note}"
            for note, some in bits_of_note.items()
        )
        return (*self.notes, *more)

    @property
    def bits(self) -> tuple[int, ...]:
        return tuple(self.frames)

    @property
    def unit(self) -> str:
        return next(iter(self.frames.values())).unit

    @cached_property
    def curves(self) -> dict[str, dict[int, Estimate]]:
        damage = {bits: frame.by_language() for bits, frame in self.frames.items()}
        languages = next(iter(self.frames.values())).languages
        return {code: {bits: damage[bits][code] for bits in self.bits} for code in languages}

    @cached_property
    def widths(self) -> dict[str, CriticalBits]:
        """B*(λ) of every language; its interval by resampling documents, the same ones at every width.

        The interval of a language with too few documents is that of all widths, open at both ends.
        """
        frames = list(self.frames.values())
        curves = [[damage.value for damage in curve.values()] for curve in self.curves.values()]
        crossed = crossing(self.bits, curves, self.threshold).tolist()
        critical = {code: CriticalBits(at, *self._ends) for code, at in zip(self.curves, crossed, strict=True)}
        if frames[0].replicates.languages:
            value = np.stack([frame.replicates.value for frame in frames], axis=-1)
            drawn = value + np.stack([frame.replicates.deviation for frame in frames], axis=-1)
            tail = 50 * (1 - frames[0].confidence)
            low, high = np.percentile(crossing(self.bits, drawn, self.threshold), [tail, 100 - tail], axis=0)
            for code, a, b in zip(frames[0].replicates.languages, low, high, strict=True):
                at = critical[code].value
                critical[code] = CriticalBits(at, float(min(at, a)), float(max(at, b)))
        return critical

    @cached_property
    def gaps(self) -> dict[int, Estimate]:
        return {bits: frame.gap() for bits, frame in self.frames.items()}

    @cached_property
    def gap_width(self) -> CriticalBits:
        """The width at which the gap crosses the threshold; its interval from the limits of the gaps."""
        gaps = self.gaps.values()
        if not all(gap.bounded for gap in gaps):
            return CriticalBits(float(crossing(self.bits, [gap.value for gap in gaps], self.threshold)), *self._ends)
        limits = [[getattr(gap, name) for gap in gaps] for name in ("value", "low", "high")]
        return CriticalBits(*(float(at) for at in crossing(self.bits, limits, self.threshold)))

    @property
    def _ends(self) -> tuple[float, float]:  # which stand for everything beyond them too
        return float(self.bits[0]), float(self.bits[-1])

    @property
    def verdict(self) -> tuple[str, ...]:
        """Sentences on the widths that languages need, and on the research notes' width."""
        limit = f"{self.threshold:g} {UNIT_LABELS[self.unit]}"
        founding = notes_sentence(self.gap_width, self.max_kappa, bits=self.bits, limit=limit)
        named = {language_from_code(code).name: width for code, width in self.widths.items()}
        return needs_sentence(named, bits=self.bits, limit=limit), founding, REMARK

    def tables(self) -> list[Table]:
        frame = next(iter(self.frames.values()))
        amounts = (count_of(len(frame.languages), "language"), count_of(len(frame.document), "document"))
        damage = f"{MEASURE_LABELS[self.measure].capitalize()} in {UNIT_LABELS[self.unit]}"
        rows: list[tuple[Cell, ...]] = [
            (code, *_damage_cells(self.curves[code].values()), self.widths[code].text(self.bits))
            for code in sorted(self.widths, key=lambda code: -self.widths[code].value)
        ]
        rows.append(("gap", *_damage_cells(self.gaps.values()), self.gap_width.text(self.bits)))
        rows.append((dim("MB"), *(dim(f"{size / MB:.1f}") for size in self.sizes.values()), ""))
        table = Table(
            [(self.model, "bold cyan"), "  ", (f"{self.policy}, group {self.settings['group']}", "bold")],
            ("", *map(str, self.bits), "B*"),
            tuple(rows),
            (dim(LEGEND),),
            (
                dim(f"evaluation text of {self.settings['text']}: {', '.join(amounts)}"),
                "",
                [(f"{damage} by bits per weight; B* for {self.threshold:g}", "bold")],
            ),
        )
        return [table, *notes_table(self.verdict, "Verdict"), *notes_table(self.all_notes)]

    def to_pandas(self) -> "pandas.DataFrame":
        rows = [(code, bits, damage) for code, curve in self.curves.items() for bits, damage in curve.items()]
        columns: dict[str, list[Any]] = {
            "language": [code for code, _, _ in rows],
            "bits": [bits for _, bits, _ in rows],
            **estimate_columns("damage", (damage for _, _, damage in rows)),
        }
        return data_frame(columns)

    def plot(self) -> Figure:
        series = {f"{bits} bits": frame.by_language() for bits, frame in self.frames.items()}
        title = f"{MEASURE_LABELS[self.measure].capitalize()} of every language under {self.policy}"
        return figure_of_series(series, title=title, unit=self.unit)

    def as_data(self) -> dict[str, Any]:
        content = {
            "model": self.model,
            "fingerprint": self.fingerprint,
            "policy": self.policy,
            "settings": dict(self.settings),
            "measure": self.measure,
            "unit": self.unit,
            "threshold": self.threshold,
            "sizes": {str(bits): size for bits, size in self.sizes.items()},
            "damage": {
                code: {str(bits): damage.to_dict() for bits, damage in curve.items()}
                for code, curve in self.curves.items()
            },
            "gap": {str(bits): gap.to_dict() for bits, gap in self.gaps.items()},
            "critical_width": {code: width.as_data(self.bits) for code, width in self.widths.items()},
            "critical_width_of_gap": self.gap_width.as_data(self.bits),
            "research_notes": {"max_kappa": self.max_kappa, "critical_width": critical_bits(self.max_kappa)},
            "verdict": list(self.verdict),
            "notes": list(self.all_notes),
        }
        return SWEEP.stamp(content)

    def save(self, path: str | Path) -> None:
        write_files({check_writable(path, example="sweep.json"): to_json_lines(self.file_content())})

    def file_content(self) -> dict[str, Any]:
        """Returns the content of the file: the results, and the damage of every document if `setting` is known."""
        content = self.as_data()
        if self.setting is not None:
            content["documents"] = SweptDamage.of(self.setting, self.frames).as_data()
        return content


def _damage_cells(estimates: Iterable[Estimate]) -> list[str]:
    values = [estimate.value for estimate in estimates]
    return [f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}" for value in values]


def sweep(
    model: Model,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    bits: Iterable[int] = range(2, 9),
    policy: str = DEFAULT,
    group: Group = 128,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    tokens: int = 4096,
    evaluation_tokens: int = 8192,
    sequence: int = 512,
    seed: int = 0,
    measure: str = "divergence",
    unit: str = "bits_per_byte",
    threshold: float | None = None,
    device: str = AUTO,
    results: str | Path | None = None,
    ray: str | Cluster | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Returns the damage of every language at every width, and the width at which it crosses the threshold.

    `model` may be a loaded model of transformers, with its `tokenizer`; it is not changed. The damage is the divergence
    from the reference model or, with `measure="loss"`, the added loss. `tokens` per language are for calibration if the
    policy reads text, `evaluation_tokens` for evaluation. The default threshold is 0.01 bits per byte, 0.03 nats per
    token or 3 nats per section. `results` and `ray` are those of `compare`; each bit width is a task.
    """
    calibration = TextRequest("calibration", tokens, sequence, seed)
    evaluation = TextRequest("evaluation", evaluation_tokens, sequence)
    one_of("measure", measure, MEASURES)
    widths = sorted({whole("bits", width, least=2, most=8) for width in listed("bits", bits)})
    if len(widths) < 2:
        raise InputError(f"bits is {widths}; a sweep needs two widths or more, such as 2..8")
    limit = THRESHOLDS[one_of("unit", unit, tuple(THRESHOLDS))] if threshold is None else threshold
    positive("threshold", limit)
    chosen = variant(policy)
    checkpoint = open_checkpoint(model, tokenizer)
    corpus = corpus_for(checkpoint, languages=languages, text=text)
    check_unit(unit, corpus=corpus.name, parallel=corpus.parallel)
    check_variants(checkpoint, corpus, [chosen], widths=widths, common={"group": group})
    trials = [Trial(chosen, width, calibration, f"{policy}, {width} bits") for width in widths]
    with pool_and_device(ray, device) as (pool, device):
        work = TrialWork(checkpoint, corpus, evaluation, {"group": group}, device)
        done = dict(zip(widths, run_trials(trials, work, pool=pool, results=results, progress=progress), strict=True))
    settings: dict[str, Any] = {"group": group, **calibration.settings}
    settings |= {"evaluation_tokens": evaluation.tokens, "text": corpus.name}
    shared = done[widths[0]].scores.notes  # those on model, text and reference
    return Sweep(
        model=checkpoint.target,
        fingerprint=checkpoint.fingerprint,
        policy=policy,
        settings=settings,
        measure=measure,
        frames={width: result.scores.frame(unit, measure=measure) for width, result in done.items()},
        sizes={width: result.plan.size_bytes for width, result in done.items()},
        threshold=limit,
        max_kappa=max(block.kappa for block in weight_moments(checkpoint).blocks),
        setting=done[widths[0]].scores.setting,
        notes=tuple(dict.fromkeys([*shared, *(note for result in done.values() for note in result.plan.notes)])),
    )
