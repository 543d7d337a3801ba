"""Scores: the cost of quantization for every document of every language, its file, and how it is shown.

A scores file is JSON with one column of the documents per line.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbits.core.checks import instance, one_of
from fairbits.core.errors import InputError, count_of
from fairbits.core.figure import Figure
from fairbits.core.files import check_writable, write_files
from fairbits.core.records import Code, Kind, check_once, check_same_keys, check_within, to_json_lines
from fairbits.core.table import NumberFormat, Shown, Table, bar, data_frame, dim, notes_table
from fairbits.core.units import MEASURE_LABELS, MEASURES, UNITS, bits_per_byte, megabytes
from fairbits.core.version import __version__, versions
from fairbits.evaluation.disparity import Disparity, disparity_table, measure_disparity
from fairbits.evaluation.document_scores import DocumentScores, TokenPercentiles
from fairbits.evaluation.equivalent_bits import EquivalentBits
from fairbits.evaluation.generated_text import GeneratedText
from fairbits.evaluation.language_groups import (
    GroupDamage,
    Groups,
    NamedGroups,
    check_groups,
    group_damage,
    group_table,
    outside,
    read_groups,
)
from fairbits.evaluation.meaning import Meaning, times
from fairbits.evaluation.measurement import BOUND, KL, WHOLE, WRITTEN, Measurement
from fairbits.evaluation.setting import TASK_NAMES, EvaluationSetting, Identity
from fairbits.evaluation.signature import DIGITS, YES, Signature, hash_texts
from fairbits.forward.windows import TokenizedText
from fairbits.stats.frame import Contrast, LanguageFrame, estimate_columns, interval_notes, worst_first
from fairbits.stats.intervals import Estimate
from fairbits.stats.outcomes import share_estimate
from fairbits.text.language_codes import language_from_code, short_name

if TYPE_CHECKING:
    import pandas

    from fairbits.evaluation.divergence import DocumentSums


LEGEND = (
    "Changed: of 100 next tokens, how many are no longer the reference's first choice; if sure: of 100 of those to "
    "which it gives more than half of the probability. Perplexity: after / before; compare it within a language only. "
    "KL: divergence from the reference's predictions. In parentheses: 95 % intervals over documents."
)
MATTERING = ("fairbits", "torch", "transformers")  # what a measurement depends on, apart from models and text
SUMMARY = "fairbits.summary/2"
"""The schema of `Scores.summary`: results without the documents, which cannot be loaded as a file of scores."""


@dataclass(frozen=True, eq=False, repr=False)
class Scores(Shown):
    """A quantized model compared with its reference model, on the same text; `percentiles` by language."""

    quantized: Identity
    reference: Identity
    setting: EvaluationSetting = field(metadata={"alias": "question"})
    languages: tuple[Code, ...]
    documents: DocumentScores
    percentiles: Mapping[Code, TokenPercentiles]
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    groups: Groups = field(default_factory=dict)
    measurement: Measurement | None = None
    generated: GeneratedText | None = None
    equivalent_bits: EquivalentBits | None = None

    def __post_init__(self) -> None:
        check_once("languages", self.languages)
        named = {"documents.lang": self.documents.lang.tolist(), "question.hashes": self.setting.hashes}
        if self.kl_kind == WHOLE:
            named["percentiles"] = self.percentiles
        for name, codes in named.items():
            check_same_keys(name, codes, "languages", self.languages)
        if self.kl_kind != WRITTEN and (self.documents.kl < 0).any():
            raise InputError("documents.kl is negative; only an estimate on text of the reference can be")
        served = self.measurement is not None and self.measurement.url is not None  # which does not say its size
        for name, identity in (("quantized", self.quantized), ("reference", self.reference)):
            if not identity.size_bytes and (name == "reference" or not served):
                raise InputError(f"{name}.size_bytes is 0; it must be above 0")
        if self.groups:
            check_groups(self.groups)
            for codes in self.groups.values():
                check_within("groups", codes, "languages", self.languages)
        if self.generated is not None:
            check_within("generated.lang", self.generated.lang.tolist(), "languages", self.languages)
        if self.equivalent_bits is not None:
            check_same_keys("equivalent_bits", self.equivalent_bits.languages, "languages", self.languages)

    @classmethod
    def of(
        cls,
        sums: "DocumentSums",
        text: TokenizedText,
        *,
        quantized: Identity,
        reference: Identity,
        setting: EvaluationSetting,
        notes: tuple[str, ...] = (),
        measurement: Measurement | None = None,
    ) -> "Scores":
        language = text.language_of[sums.token_document]
        percentiles = {
            code: TokenPercentiles.of(sums.token_kl[language == i], sums.token_margin[language == i])
            for i, code in enumerate(text.languages)
            if measurement is None or measurement.kl == WHOLE
        }
        notes = (*(() if measurement is None else measurement.notes), *notes)
        documents = DocumentScores(
            lang=text.lang,
            document=text.document.astype(np.int64),
            tokens=sums.predicted,
            bytes=text.size_bytes,
            nll_reference=sums.nll_reference,
            nll_quantized=sums.nll_quantized,
            kl=sums.kl,
            flips=sums.flips,
            sure=sums.sure,
            sure_flips=sums.sure_flips,
        )
        measured_with = {name: version for name, version in versions().items() if name in MATTERING}
        return cls(
            *(quantized, reference, setting, text.languages, documents, percentiles, notes, measured_with),
            measurement=measurement,
        )

    @property
    def kl_kind(self) -> KL:
        """What the KL divergence is: exact, a lower bound, or an estimate on text of the reference."""
        return WHOLE if self.measurement is None else self.measurement.kl

    def frame(self, unit: str = "bits_per_byte", *, measure: str = "divergence") -> LanguageFrame:
        """Returns the damage of every language, with intervals over documents.

        "divergence" is KL(reference ‖ quantized), which is never negative, so its intervals are cut at 0; "loss" is the
        added loss. "nats_per_section" is the cost of the same content in each language, so the text must be parallel.
        """
        check_unit(unit, corpus=self.setting.corpus, parallel=self.setting.parallel)
        kind = one_of("measure", measure, MEASURES), unit
        if kind not in self._frames:
            docs = self.documents
            nats = docs.kl if measure == "divergence" else docs.nll_quantized - docs.nll_reference
            self._frames[kind] = LanguageFrame.from_nats(
                docs.lang,
                docs.document,
                nats=nats,
                tokens=docs.tokens,
                size_bytes=docs.bytes,
                unit=unit,
                least=0.0 if measure == "divergence" and self.kl_kind != WRITTEN else -math.inf,
            )
        return self._frames[kind]

    @cached_property
    def relative_perplexity(self) -> dict[str, Estimate]:
        """The notes' D = exp(ΔNLL per token) − 1, comparable only within a language."""
        added = self.frame("nats_per_token", measure="loss").by_language()
        return {code: loss.transform(np.expm1) for code, loss in added.items()}

    @cached_property
    def kl(self) -> dict[str, Estimate]:
        """The mean divergence KL(p_reference ‖ p_quantized) per token, in nats."""
        return self.frame("nats_per_token").by_language()

    @cached_property
    def flips(self) -> dict[str, Estimate]:
        """The share of tokens at which the quantized model prefers another token to the reference's first choice."""
        return self.changed_frame.by_language()

    @cached_property
    def sure_flips(self) -> dict[str, Estimate]:
        """The flips among the tokens where the reference's first choice has more than half of the probability.

        A language without such tokens is missing, and so are all languages where they were not counted. Where none of
        them changes, resampling documents says nothing: the interval is Wilson's over the tokens.
        """
        docs = self.documents
        if docs.sure is None or docs.sure_flips is None:
            return {}
        shares = docs.shares(docs.sure_flips, docs.sure, least=0.0)
        tokens = {code: int(docs.sure[docs.lang == code].sum()) for code in shares}
        return {code: share if share.value else share_estimate(0, tokens[code]) for code, share in shares.items()}

    @property
    def meaning(self) -> Meaning:
        """What the scores mean for the language whose first choices change most."""
        what = "next tokens" if self.setting.task == "causal" else "predicted tokens"
        of_language = self.relative_perplexity, self.sure_flips, self.added_words
        return Meaning.of(self.changed_frame, *of_language, what, self.frame().worst()[0])

    @cached_property
    def interval_notes(self) -> tuple[str, ...]:
        """Notes on the languages for which no interval of the damage can be formed, in bits per byte."""
        measures: dict[str, list[str]] = {}
        for measure in MEASURES:
            total = self.disparity(measure=measure)
            shown = {"worst": total.worst[1], "best": total.best[1], "mean": total.mean, "gap": total.gap}
            for note in interval_notes(self.frame(measure=measure), shown):
                measures.setdefault(note, []).append(measure)
        return tuple(note if len(names) > 1 else f"{names[0]}: {note}" for note, names in measures.items())

    @cached_property
    def added_words(self) -> dict[str, Estimate]:
        """The added bits in percent; a language that the reference predicts with certainty is missing."""
        docs = self.documents
        shares = docs.shares(docs.nll_quantized - docs.nll_reference, docs.nll_reference)
        return {code: share.transform(lambda x: 100 * x) for code, share in shares.items()}

    def disparity(self, unit: str = "bits_per_byte", *, measure: str = "divergence") -> Disparity:
        kind, frame = (measure, unit), self.frame(unit, measure=measure)
        if kind not in self._disparities:
            self._disparities[kind] = measure_disparity(frame)
        return self._disparities[kind]

    def group_damage(self, unit: str = "bits_per_byte", *, measure: str = "divergence") -> GroupDamage | None:
        """Returns the mean damage of every group of languages and their ratios; None without groups."""
        return group_damage(self.frame(unit, measure=measure), self.groups) if self.groups else None

    def with_groups(self, groups: NamedGroups) -> "Scores":
        """Returns the same scores with other groups of languages, such as "high=eng,fra;low=swh,yor"."""
        return replace(self, groups=read_groups(groups, self.languages, model=self.reference.target))

    def contrast(self, baseline: "Scores", *, unit: str = "bits_per_byte", measure: str = "divergence") -> Contrast:
        """Returns this damage minus the baseline's of every language, paired by document, with Holm p values."""
        self.check_comparable(baseline, measure=measure)
        return self.frame(unit, measure=measure).contrast(baseline.frame(unit, measure=measure))

    def check_comparable(self, baseline: "Scores", *, measure: str) -> None:
        """Raises unless both were measured on the same text, with KL divergences of one kind that are no bounds."""
        self.check_same_text(baseline)
        kinds = {self.kl_kind, baseline.kl_kind}
        if measure == "divergence" and (len(kinds) > 1 or BOUND in kinds):
            raise InputError(
                f"the KL divergence of {self.quantized.target} is of the kind {self.kl_kind!r} and that of "
                f"{baseline.quantized.target} of the kind {baseline.kl_kind!r}. Only KL divergences of one kind can be "
                "compared, and lower bounds not at all: compare the added loss (--measure loss; in Python "
                'measure="loss")'
            )

    def check_same_text(self, baseline: "Scores") -> None:
        """Raises unless both were measured on the same text, cut the same way."""
        mine, theirs = self.setting, instance("the baseline", baseline, Scores).setting
        for name in ("task", "split", "parallel", "hashes", "tokens", "sequence", "seed", "joined"):
            if getattr(mine, name) != getattr(theirs, name):
                raise InputError(
                    f"{self.quantized.target} and {baseline.quantized.target} were measured on different text ({name} "
                    "differs); a paired comparison needs the same text: evaluate both with the same settings"
                )
        if not np.array_equal(self.documents.tokens, baseline.documents.tokens):
            raise InputError(
                f"{self.quantized.target} and {baseline.quantized.target} cut the same text into different tokens; "
                "a paired comparison needs the same tokenizer"
            )

    def signature(self, measure: str = MEASURES[0]) -> Signature:
        """Returns one line that has everything needed to repeat the measurement."""
        setting = self.setting
        return Signature(
            model=self.quantized.fingerprint[:DIGITS],
            reference=self.reference.fingerprint[:DIGITS],
            text=setting.corpus,
            hash=hash_texts(setting.hashes),
            split=setting.split,
            languages=tuple(sorted(self.languages)),
            tokens=setting.tokens,
            window=setting.sequence,
            seed=setting.seed,
            measure=one_of("measure", measure, MEASURES),
            versions=dict(self.versions),
            kv_cache=self.quantized.kv_cache or "",
            joined=YES if setting.joined else "",
            all_text=YES if setting.all_text else "",
        )

    def summary(self) -> dict[str, Any]:
        units = UNITS if self.setting.parallel else UNITS[:2]
        return {
            "schema": SUMMARY,
            "fairbits": __version__,
            "quantized": self.quantized.as_data(),
            "reference": self.reference.as_data(),
            "question": self.setting.as_data() | {"asked": TASK_NAMES[self.setting.task]},
            "measurement": self.measurement and asdict(self.measurement),
            "languages": {code: self._language(code, units) for code in self.languages},
            "signature": str(self.signature()),
            "disparity": {
                measure: {unit: self.disparity(unit, measure=measure).as_data() for unit in units}
                for measure in MEASURES
            },
            "groups": self._group_data(units),
            "equivalent_bits": self.equivalent_bits and asdict(self.equivalent_bits),
            "generated": None if self.generated is None else self.generated.as_data(),
            "meaning": self.meaning.as_data(),
            "notes": [*self.notes, *self.interval_notes, *self.notes_on_flips()],
        }

    def as_bytes(self) -> bytes:
        content = {
            **{name: getattr(self, name).as_data() for name in ("quantized", "reference")},
            "question": self.setting.as_data(),
            "languages": list(self.languages),
            "percentiles": {code: asdict(percentiles) for code, percentiles in self.percentiles.items()},
            "notes": list(self.notes),
            "versions": dict(self.versions),
            "documents": {name: column.tolist() for name, column in self.documents.columns().items()},
        }
        if self.measurement is not None:
            content["measurement"] = asdict(self.measurement)
        if self.groups:
            content["groups"] = {name: list(codes) for name, codes in self.groups.items()}
        if self.generated is not None:
            content["generated"] = self.generated.as_record()
        if self.equivalent_bits is not None:
            content["equivalent_bits"] = asdict(self.equivalent_bits)
        return to_json_lines(SCORES.stamp(content))

    def save(self, path: str | Path) -> None:
        write_files({check_writable(path, example="scores.json"): self.as_bytes()})

    @classmethod
    def load(cls, path: str | Path) -> "Scores":
        """Returns the scores in a file; unknown keys are errors."""
        return SCORES.read(path)

    def to_pandas(self, by: str = "language") -> "pandas.DataFrame":
        """Returns a table with a row for every language, worst first; with `by="document"` for every document."""
        if one_of("by", by, ("language", "document")) == "document":
            return data_frame({name: column.tolist() for name, column in self.documents.columns().items()})
        order, documents = worst_first(self.frame().by_language()), self.documents
        rows = [documents.lang == code for code in order]
        columns: dict[str, list[Any]] = {
            "language": order,
            "name": [language_from_code(code).name for code in order],
            "documents": [int(mask.sum()) for mask in rows],
            "tokens": [int(documents.tokens[mask].sum()) for mask in rows],
            "reference_bits_per_byte": [
                float(bits_per_byte(documents.nll_reference[mask].sum(), documents.bytes[mask].sum())) for mask in rows
            ],
        }
        for measure in MEASURES:
            for unit in UNITS if self.setting.parallel else UNITS[:2]:
                damage = self.frame(unit, measure=measure).by_language()
                columns |= estimate_columns(f"{measure}_{unit}", (damage[code] for code in order))
        columns |= estimate_columns("flips", (self.flips[code] for code in order))
        for name, shares in (("sure_flips", self.sure_flips), ("added_words", self.added_words)):
            if len(shares) == len(order):
                columns |= estimate_columns(name, (shares[code] for code in order))
        if self.equivalent_bits is not None:
            columns["equivalent_bits"] = [self.equivalent_bits.languages[code].value for code in order]
        percentiles = [vars(self.percentiles[code]) for code in order if self.percentiles]
        columns |= {name: [row[name] for row in percentiles] for name in (percentiles or [{}])[0]}
        return data_frame(columns, index="language")

    def plot(self, unit: str = "bits_per_byte", *, measure: str = "divergence") -> Figure:
        """Returns a figure of the damage of every language, worst first, which a notebook shows."""
        return self.frame(unit, measure=measure).plot(f"{MEASURE_LABELS[measure].capitalize()} of every language")

    def tables(self) -> list[Table]:
        """Returns the damage of every language, percentiles over tokens, the disparity, notes, and what it means."""
        notes = notes_table([*self.notes, *self.interval_notes])
        equivalent = () if self.equivalent_bits is None else (self.equivalent_bits.sentence,)
        meaning = Table("What this means", below=(self.meaning.sentence, *equivalent))
        measures = [measure for measure in MEASURES if measure == "loss" or self.kl_kind != BOUND]  # no gap of bounds
        both = {measure: self.disparity(measure=measure) for measure in measures}
        sections = self.disparity("nats_per_section") if self.setting.parallel and "divergence" in both else None
        over = disparity_table(both, measure_disparity(self.changed_frame), sections)
        damage = {measure: self.group_damage(measure=measure) for measure in measures}
        shown = {measure: part for measure, part in damage.items() if part is not None}
        ungrouped = outside(self.groups, self.languages)
        groups = [group_table(self.groups, shown, ungrouped=ungrouped)] if shown else []
        generated = [] if self.generated is None else [self.generated.table()]
        return [self._language_table(), meaning, over, *groups, *generated, *notes]

    def _language_table(self) -> Table:
        damage = self.frame().by_language()
        top = max(estimate.value for estimate in damage.values())
        number = NumberFormat(top)
        of_100 = NumberFormat(1.0, factor=100.0, decimals=1)
        sure, equivalent = bool(self.sure_flips), self.equivalent_bits
        more = [] if equivalent is None else ["equivalent\nbits"]
        size, documents = self.quantized.size_bytes, self.documents
        amounts = (
            count_of(len(self.languages), "language"),
            count_of(len(documents.lang), self.setting.unit),
            count_of(int(documents.tokens.sum()), "predicted token"),
        )
        share = "" if not size else f"{megabytes(size)}, {size / self.reference.size_bytes:.0%} of the reference"
        label = "KL" if self.measurement is None else self.measurement.kl_label
        least = count_of(min(estimate.n for estimate in self.flips.values()), self.setting.unit)
        return Table(
            [(self.quantized.name, "bold cyan"), "  ", (share, "bold")],
            (
                *("\nlanguage", "\ncode", "changed,\nof 100", *["if\nsure"] * sure, "\nperplexity"),
                *(f"{label}, {number.prefix}bits/byte\n(95 % interval)", "", *more),
            ),
            tuple(
                (
                    short_name(code),
                    dim(code),
                    of_100.estimate(self.flips[code]),
                    *[of_100(self.sure_flips[code].value) if code in self.sure_flips else "–"] * sure,
                    f"× {times(1 + self.relative_perplexity[code].value)}",
                    number.estimate(damage[code]),
                    bar(damage[code].value, top),
                    *([] if equivalent is None else [equivalent.languages[code].text(equivalent.bits)]),
                )
                for code in worst_first(self.flips)
            ),
            (dim(LEGEND),),
            (
                dim(f"reference: {self.reference.target}"),
                dim(f"text: {self.setting.corpus} ({self.setting.part}), {', '.join(amounts)}"),
                dim(f"predicting {TASK_NAMES[self.setting.task]}; at least {least} per language"),
                "",
            ),
            left=(1, 2, *((5, 6) if sure else (4, 5))),
        )

    @cached_property
    def changed_frame(self) -> LanguageFrame:
        """The share of tokens whose first choice changes, of every language."""
        docs = self.documents
        return LanguageFrame(docs.lang, docs.document, values=docs.flips, weights=docs.tokens, unit="ratio", least=0.0)

    @cached_property
    def _frames(self) -> dict[tuple[str, str], LanguageFrame]:
        return {}

    @cached_property
    def _disparities(self) -> dict[tuple[str, str], Disparity]:
        return {}

    def _group_data(self, units: tuple[str, ...]) -> dict[str, Any] | None:
        if not self.groups:
            return None
        data: dict[str, Any] = {"languages": {name: list(codes) for name, codes in self.groups.items()}}
        for measure in MEASURES:
            parts = {unit: self.group_damage(unit, measure=measure) for unit in units}
            data[measure] = {unit: part.as_data() for unit, part in parts.items() if part is not None}
        return data

    def notes_on_flips(self) -> tuple[str, ...]:
        """Returns a note on languages where only the share of flips has no interval, as often few tokens flip."""
        missing = [code for code in self.changed_frame.without_interval if code not in self.frame().without_interval]
        if not missing:
            return ()
        return (f"changed tokens: no interval for {', '.join(missing)}: too few of their documents have any",)

    def _language(self, code: str, units: tuple[str, ...]) -> dict[str, Any]:
        rows = self.documents.lang == code
        damage = {
            name: {unit: self.frame(unit, measure=measure).by_language()[code].to_dict() for unit in units}
            for name, measure in (("divergence", "divergence"), ("added", "loss"))
        }
        before = float(bits_per_byte(self.documents.nll_reference[rows].sum(), self.documents.bytes[rows].sum()))
        return {
            "documents": int(rows.sum()),
            "tokens": int(self.documents.tokens[rows].sum()),
            "reference_bits_per_byte": before,
            **damage,
            "relative_perplexity": self.relative_perplexity[code].to_dict(),
            "kl": self.kl[code].to_dict(),
            "percentiles": asdict(self.percentiles[code]) if self.percentiles else None,
            "flips": self.flips[code].to_dict(),
            **{
                name: shares[code].to_dict() if code in shares else None
                for name, shares in (("sure_flips", self.sure_flips), ("added_words", self.added_words))
            },
        }


SCORES = Kind(
    "fairbits.scores/2",
    "a file of scores",
    "fairbits evaluate --out",
    Scores,
    optional=("groups", "measurement", "generated", "equivalent_bits"),
)


def check_unit(unit: str, *, corpus: str, parallel: bool) -> str:
    """Returns the unit if it applies to the text: sections need the same content in all languages."""
    if one_of("unit", unit, UNITS) == "nats_per_section" and not parallel:
        raise InputError(
            f"the text of {corpus} is not parallel, so there is no section that all languages have; "
            "the unit must be bits_per_byte or nats_per_token"
        )
    return unit
