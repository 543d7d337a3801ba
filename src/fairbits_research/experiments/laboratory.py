"""Laboratory: models whose weights are replaced and restored, and the damage to every language each time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fairbits.api.make_plan import plan as make_plan
from fairbits.comparison.plan_trial import corpus_for
from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.units import bits_per_byte
from fairbits.evaluation.language_groups import NamedGroups, read_groups, split_by_share
from fairbits.forward.points import Measure, PointKind
from fairbits.forward.statistics import ActivationStatistics, collect_statistics
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.kurtosis.checklist import OutlierBlocks, outlier_blocks
from fairbits.kurtosis.patterns import Pattern
from fairbits.models.architecture.architecture import Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO, resolve_device
from fairbits.models.embedded import embedded_languages, training_shares
from fairbits.models.scales.scheme import Clip, Group, Scheme, within_rows
from fairbits.models.weight_moments import ModelMoments, weight_moments
from fairbits.quantization.execute import execute_plan
from fairbits.quantization.plan import Plan
from fairbits.quantization.search.block_sensitivity import NOT_ROUNDED, LossTrial
from fairbits.stats.frame import LanguageFrame
from fairbits.text.corpus import Corpus, TextRequest
from fairbits_research.experiments.result import ExperimentSubject, estimate_text
from fairbits_research.outliers.outlier_writer import directory_with_outliers

UNIT = "bits_per_byte"
RECORDED = ("group", "sequence", "calibration", "outlier_layers", "outlier_kappa", "insert_outliers", "kept", "sets")
"""Settings that every result records where they are given."""
OUTLIER_KAPPA = 125.0, 148.0
"""The excess kurtosis that the research notes report for two outlier layers of BLOOM-560M."""
RULES = {
    "named": "named by the user",
    "threshold": "with κ over {threshold:.3g}, as requested",
    "research_notes": "with κ over {threshold:.3g}, the research notes' cut-off",
    "robust": "with κ over {threshold:.3g}, far above that of the other blocks (robust rule)",
    "inserted": "inserted on request",
}
"""How outlier blocks were chosen, by rule."""
Blocks = tuple[int, ...]
"""A set of blocks, sorted."""


@dataclass(frozen=True)
class Setting:
    """What experiments are run on: a model, text and how much of it, and a device.

    Without text and languages the embedded declaration is used, for the embedded model in its own languages. `tokens`
    and `calibration` are tokens per language of the evaluation and of the calibration split. `seed` decides which text
    is used and everything that is random. `shares` are the languages' shares of the training text, where known, and
    `groups` high- and low-resource languages.

    Outlier blocks are `outlier_layers`, or those with κ above `outlier_kappa`; without either, those with κ > 100, or
    those that stand out if there are none. `insert_outliers` gives blocks a κ, at the same function. gateway-layers
    protects `kept` blocks in each of its sets, three by default, or the `sets` that are named.
    """

    model: str = "embedded:tiny"
    text: str | Path | Corpus | None = None
    languages: Sequence[str] | None = None
    tokens: int = 2048
    calibration: int = 2048
    sequence: int = 512
    group: Group = "channel"
    seed: int = 0
    device: str = AUTO
    shares: Mapping[str, float] | None = None
    groups: NamedGroups | None = None
    outlier_layers: Sequence[int] | None = None
    outlier_kappa: float | None = None
    insert_outliers: Mapping[int, float] | None = None
    kept: int | None = None
    sets: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", resolve_device(self.device))

    def outliers(self, kappa: Floats) -> OutlierBlocks:
        """Returns which blocks with these κ are outlier blocks; inserted ones where the rule does not find them."""
        chosen = outlier_blocks(kappa, layers=self.outlier_layers, threshold=self.outlier_kappa)
        inserted = tuple(sorted(self.insert_outliers or ()))
        if chosen.rule in ("named", "threshold") or set(inserted) <= set(chosen.blocks or ()):
            return chosen
        return OutlierBlocks("inserted", None, inserted, "Inserted on request.")

    @property
    def recorded(self) -> dict[str, Any]:
        """The settings that every result records, as JSON has them."""
        values = {name: getattr(self, name) for name in RECORDED}
        if self.insert_outliers is not None:
            values["insert_outliers"] = {str(block): kappa for block, kappa in sorted(self.insert_outliers.items())}
        if self.outlier_layers is not None:
            values["outlier_layers"] = list(self.outlier_layers)
        return {name: value for name, value in values.items() if value is not None}

    @property
    def evaluation_text(self) -> TextRequest:
        """The text that models are evaluated on."""
        return TextRequest("evaluation", self.tokens, self.sequence, self.seed)

    @property
    def calibration_text(self) -> TextRequest:
        """The text for measurements and calibration."""
        return TextRequest("calibration", self.calibration, self.sequence, self.seed)


class ModelLab:
    """One model and its text. Damage is in bits per byte, paired by document with the unchanged model."""

    def __init__(self, model: str, setting: Setting, corpus: Corpus, report: Progress) -> None:
        """Nothing is loaded before it is needed."""
        self.setting, self.corpus, self.report = setting, corpus, report
        self.checkpoint = Checkpoint(model)
        self._damages: dict[object, LanguageFrame] = {}

    @cached_property
    def text(self) -> TokenizedText:
        """The evaluation text."""
        return tokenize_corpus(self.checkpoint, self.corpus, request=self.setting.evaluation_text)

    @cached_property
    def trial(self) -> LossTrial:
        """The model in memory, after one pass over the text."""
        self.report("evaluating the reference model", 0, 1)
        return LossTrial(self.checkpoint, self.text, device=self.setting.device)

    @cached_property
    def linear_layers(self) -> list[list[Weight]]:
        """The linear layers of every block that are rounded."""
        return [
            [linear for linear in block.linears.values() if linear.is_quantizable]
            for block in self.checkpoint.architecture.blocks
        ]

    @property
    def n_blocks(self) -> int:
        """The number of blocks."""
        return len(self.linear_layers)

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stack of every block: encoder or decoder."""
        return tuple(block.stack for block in self.checkpoint.architecture.blocks)

    @cached_property
    def moments(self) -> ModelMoments:
        """The moments of the weights."""
        return weight_moments(self.checkpoint)

    @cached_property
    def kappa(self) -> Floats:
        """The excess kurtosis of every block."""
        return np.array([block.kappa for block in self.moments.blocks])

    @cached_property
    def outliers(self) -> OutlierBlocks:
        """The outlier blocks, and the rule that chose them."""
        return self.setting.outliers(self.kappa)

    def outlier_text(self) -> str:
        """Returns a sentence that says which blocks are outlier blocks, their κ, and by which rule."""
        chosen = self.outliers
        if not chosen.blocks:
            return "The model has no outlier blocks."
        blocks = ", ".join(f"{block} (κ {self.kappa[block]:.3g})" for block in chosen.blocks)
        return f"Outlier blocks: {blocks}; {RULES[chosen.rule].format(threshold=chosen.threshold)}."

    @cached_property
    def measurements(self) -> ActivationStatistics:
        """The measurements of one pass over the calibration text."""
        return collect_statistics(
            self.checkpoint,
            self.corpus,
            request=self.setting.calibration_text,
            device=self.setting.device,
            progress=self.report,
        )

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages, in the order of every frame."""
        return tuple(sorted(self.text.languages))

    def reference_bits(self) -> dict[str, float]:
        """Returns the loss of the unchanged model in bits per byte of each language."""
        masks = {code: self.text.lang == code for code in self.languages}
        nats, size = self.trial.reference_nll, self.text.size_bytes
        return {code: float(bits_per_byte(nats[rows].sum(), size[rows].sum())) for code, rows in masks.items()}

    def pattern(self, kind: PointKind, measure: Measure) -> Pattern:
        """Returns the activation of every language in every block on the calibration text."""
        measured = self.measurements
        sums, positions = measured.sums(kind, measure), measured.sums(kind, "positions")
        return Pattern(measured.lang, measured.document, sums=sums, tokens=positions, seed=self.setting.seed)

    def rounding_damage(self, bits: int | Sequence[int] | Mapping[int, int], *, clip: Clip = "absmax") -> LanguageFrame:
        """Returns the damage of rounding to nearest, the same bits everywhere or by block (NOT_ROUNDED skips one)."""
        by_block = self._bits_by_block(bits)
        key = "rounded", by_block, clip
        if key not in self._damages:
            with self.trial.swapped:
                for block, block_bits in enumerate(by_block):
                    if block_bits != NOT_ROUNDED:
                        self.replace_rounded(block, self.scheme(block_bits, clip))
                self._damages[key] = self.damage()
        return self._damages[key]

    def scheme(self, bits: int, clip: Clip = "absmax") -> Scheme:
        """Returns rounding to nearest with the setting's groups."""
        return Scheme(bits, within_rows(self.setting.group), clip, "twos")

    def replace_rounded(self, block: int, scheme: Scheme) -> None:
        """Replaces the linear layers of a block by their weights rounded as a scheme says."""
        self.trial.replace_rounded(self.linear_layers[block], scheme)

    def policy_damage(self, policy: str, bits: int, *, seed: int | None = None, **options: Any) -> LanguageFrame:
        """Returns the damage of a policy, carried out with the calibration text; `seed` decides which text is used."""
        key = "planned", policy, bits, seed, repr(sorted(options.items()))
        if key not in self._damages:
            self._damages[key] = self.plan_damage(self.plan(policy, bits, seed=seed, **options))
        return self._damages[key]

    def plan(
        self, policy: str, bits: int, *, seed: int | None = None, tokens: int | None = None, **options: Any
    ) -> Plan:
        """Returns the plan of a policy, made with the calibration text."""
        setting = self.setting
        request = replace(
            setting.calibration_text,
            tokens=setting.calibration if tokens is None else tokens,
            seed=setting.seed if seed is None else seed,
        )
        return make_plan(
            self.checkpoint,
            policy=policy,
            text=self.corpus,
            device=setting.device,
            bits=bits,
            group=setting.group,
            **request.settings,
            **options,
        )

    def plan_damage(self, plan: Plan) -> LanguageFrame:
        """Returns the damage of a plan, carried out with its calibration text."""
        calibration, text = plan.calibration, None
        if calibration is not None:
            # text of languages with weight 0 would only cost time
            plan = replace(plan, languages={code: pi for code, pi in plan.languages.items() if pi > 0})
            corpus = self.corpus.restrict(plan.languages)
            text = tokenize_corpus(self.checkpoint, corpus, request=calibration.request)
        with self.trial.swapped as swapped:
            for block in execute_plan(self.checkpoint, plan, text=text, device=self.setting.device):
                swapped.replace(block.layers)
            return self.damage()

    def weights_damage(self, weights: Iterable[tuple[str, Tensor]]) -> LanguageFrame:
        """Returns the damage of other weights (out, in) for the named linear layers."""
        with self.trial.swapped as swapped:
            for name, W in weights:
                swapped.replace({name: W})
            return self.damage()

    def damage(self) -> LanguageFrame:
        """Returns the damage of the weights that are replaced now; they stay replaced."""
        reference = self.trial.reference_nll
        return LanguageFrame.from_nats(
            self.text.lang,
            self.text.document,
            nats=(reference + self.trial.added_nll()) - reference,
            tokens=self.trial.predicted,
            size_bytes=self.text.size_bytes,
            unit=UNIT,
            seed=self.setting.seed,
        )

    def _bits_by_block(self, bits: int | Sequence[int] | Mapping[int, int]) -> tuple[int, ...]:
        if isinstance(bits, int):
            return (bits,) * self.n_blocks
        by_block = bits if isinstance(bits, Mapping) else dict(enumerate(bits))
        return tuple(by_block.get(block, NOT_ROUNDED) for block in range(self.n_blocks))


@dataclass
class Laboratory:
    """The model of one setting and its variants, of which one is in memory at a time."""

    setting: Setting
    progress: Progress | None = None
    _lab: ModelLab | None = field(default=None, init=False)

    @cached_property
    def corpus(self) -> Corpus:
        """The text; in the model's own languages unless others were named."""
        setting = self.setting
        return corpus_for(Checkpoint(setting.model), languages=setting.languages, text=setting.text)

    @cached_property
    def model(self) -> str:
        """The model that is measured: that of the setting, with outliers where their insertion was requested."""
        setting = self.setting
        if setting.insert_outliers is None:
            return setting.model
        try:
            return self.with_outliers({})
        except InputError as problem:
            raise InputError(
                f"outliers cannot be inserted: {problem}; leave out --insert-outliers, and name the model's own "
                "outlier blocks (--outlier-layers 5,21,22) or give a cut-off (--outlier-kappa 40)"
            ) from None

    def lab(self, model: str | None = None) -> ModelLab:
        """Returns the lab of the model, or of a variant of it."""
        wanted = self.model if model is None else model
        if self._lab is None or self._lab.checkpoint.target != wanted:
            self._lab = ModelLab(wanted, self.setting, self.corpus, self.report)
        return self._lab

    def release(self) -> None:
        """Forgets the model in memory before another is loaded; what `subject` needs of it is kept."""
        if self._lab is not None:
            _ = self._size
            self._lab = None

    @property
    def outliers(self) -> Blocks:
        """The outlier blocks of the model, maybe none."""
        return self.lab().outliers.blocks or ()

    def require_outliers(self) -> Blocks:
        """Returns the outlier blocks of the model; raises with what to do if it has none."""
        blocks, lab = self.outliers, self.lab()
        if not blocks:
            why = "its blocks are too few to tell" if lab.outliers.blocks is None else "none is above the cut-off"
            raise InputError(
                f"{self.setting.model} has no outlier blocks: max κ is {lab.kappa.max():.3g} in block "
                f"{lab.kappa.argmax()}, and {why}. Name blocks (--outlier-layers {lab.kappa.argmax()}), give a lower "
                "cut-off (--outlier-kappa 3), or insert outliers at the same function (--insert-outliers "
                f"{','.join(f'{block}:{kappa:g}' for block, kappa in knob_kappa(lab.n_blocks).items())})"
            )
        if len(blocks) == lab.n_blocks:
            raise InputError(
                f"all {len(blocks)} blocks of {self.setting.model} are outlier blocks, so that all activation is in "
                "them; name fewer, or give a higher cut-off"
            )
        return blocks

    @cached_property
    def shares(self) -> dict[str, float]:
        """The languages' shares of the training text."""
        model = self.setting.model
        shares = training_shares(model) if self.setting.shares is None else self.setting.shares
        if shares is None:
            raise InputError(
                f"what {model} was trained on is not known; give the share of every language in its training text, "
                "such as --shares eng=0.4,fra=0.2,heb=0.1"
            )
        missing = sorted(set(self.corpus.evaluation) - set(shares))
        if missing:
            raise InputError(
                f"the training share of {', '.join(missing[:3])} is not known; give the share of every language"
            )
        return {code: shares[code] for code in sorted(self.corpus.evaluation)}

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The groups of languages, the high-resource one first; without names, halves by the training shares."""
        setting = self.setting
        named = split_by_share(self.shares, self.shares) if setting.groups is None else setting.groups
        return read_groups(named, self.corpus.evaluation, model=setting.model)

    def shares_or_note(self) -> tuple[dict[str, float] | None, str]:
        """Returns the shares, or None and why they are not known."""
        try:
            return self.shares, ""
        except InputError as unknown:
            return None, str(unknown)

    def with_outliers(self, kappa: Mapping[int, float]) -> str:
        """Returns a variant of the model that computes the same function and whose blocks have the given κ.

        Blocks for which insertion was requested have theirs too. Raises where exact rescaling is not known.
        """
        model = self.setting.model
        added = {**(self.setting.insert_outliers or {}), **kappa}
        wanted = ",".join(f"{block}:{value:g}" for block, value in sorted(added.items()))
        if embedded_languages(model) is None:
            return str(directory_with_outliers(Checkpoint(model), added))
        if "?" in model:
            raise InputError(f"{model} is itself a variant; give the model it was made from")
        return Checkpoint(f"{model}?outliers={wanted}").target  # which writes it, or raises

    def knob(self, kappa: Mapping[int, float]) -> tuple[str | None, str]:
        """Returns a variant with the given κ and no note, or None and a note why there is none."""
        try:
            return self.with_outliers(kappa), ""
        except InputError as problem:
            return None, f"No outliers were inserted: {problem}."

    def report(self, what: str, done: float, total: float) -> None:
        """Reports progress."""
        if self.progress is not None:
            self.progress(what, done, total)

    def subject(self, seeds: Sequence[int] = (), **settings: Any) -> ExperimentSubject:
        """Returns what the experiment is run on, for its result."""
        checkpoint = Checkpoint(self.setting.model)
        languages, documents, tokens = self._size
        return ExperimentSubject(
            model=checkpoint.target,
            fingerprint=checkpoint.fingerprint,
            text=self.corpus.name,
            languages=languages,
            documents=documents,
            tokens=tokens,
            seeds=tuple(seeds) or (self.setting.seed,),
            settings=self.setting.recorded | settings,
        )

    def outlier_settings(self) -> dict[str, Any]:
        """Returns the outlier blocks, their κ and the rule, for the subject of a result."""
        lab = self.lab()
        return {
            "outliers": {str(block): float(lab.kappa[block]) for block in self.outliers},
            "outlier_rule": lab.outliers.rule,
            "outlier_threshold": lab.outliers.threshold,
        }

    @cached_property
    def _size(self) -> tuple[int, int, int]:
        """The number of languages, of documents and of predicted tokens."""
        lab = self.lab()
        return len(lab.text.languages), len(lab.text.lang), int(lab.trial.predicted.sum())


def knob_kappa(n: int) -> dict[int, float]:
    """Returns the κ that two of n blocks get where an experiment varies outliers: at a quarter and at 7/12."""
    return dict(zip((n // 4, 7 * n // 12), OUTLIER_KAPPA, strict=True))


def language_values(frame: LanguageFrame) -> Floats:
    """Returns the damage of every language, in the order of `frame.languages`."""
    return np.array([damage.value for damage in frame.by_language().values()])


def damage_cells(frame: LanguageFrame) -> tuple[str, str, str, str]:
    """Returns cells of a table: the worst language, its damage, the mean damage and the gap."""
    code, worst = frame.worst()
    return code, estimate_text(worst), estimate_text(frame.mean()), estimate_text(frame.gap())
