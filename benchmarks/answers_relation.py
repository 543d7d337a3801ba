"""The relation between damage and changed answers: rank correlations, a mixed model, predictions, and limits."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy
import statsmodels.api
from matplotlib import pyplot

from fairbits.core.files import write_files
from fairbits.core.table import Table
from fairbits.evaluation.profiles import PROFILES
from real_figure import COLOURS, STYLE

ROOT = Path(__file__).parents[1]
PAGE, FIGURE = ROOT / "docs/answers.md", ROOT / "docs/assets/answers.png"
BEGIN, END = "<!-- written by benchmarks/answers.py table -->", "<!-- end of the tables -->"
TITLES = {
    "kl": "KL, bits per byte",
    "added": "added loss, bits per byte",
    "ratio": "perplexity, ratio",
    "changed": "changed tokens, of 100",
    "sure": "changed where sure, of 100",
}
SHARES = (50, 20, 10, 5)
"""One answer in so many changes."""
RESAMPLES, SEED, LEAST = 2000, 0, 1e-6
DENSE = 5  # answers that are expected to change, so that the logarithm of their odds is nearly normal
FLOOR = 0.3  # of 100 answers: where the figure shows that none has changed
Row = Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Cells:
    """One entry per model, variant and language: damage by measure, and answers of all kinds together."""

    model: np.ndarray
    variant: np.ndarray
    language: np.ndarray
    damage: Mapping[str, np.ndarray]
    items: np.ndarray
    changed: np.ndarray
    right: np.ndarray
    lost: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Cells":
        sums: dict[tuple[str, str, str], np.ndarray] = defaultdict(lambda: np.zeros(4))
        damage: dict[tuple[str, str, str], list[float]] = {}
        for row in rows:
            key = row["model"], row["variant"], row["language"]
            sums[key] += [float(row[name]) for name in ("items", "changed_answers", "right_before", "lost")]
            damage[key] = [float(row[name]) for name in TITLES]
        names = (np.array(column) for column in zip(*sums, strict=True))
        counts = np.array(list(sums.values())).T
        columns = dict(zip(TITLES, np.array(list(damage.values())).T, strict=True))
        return cls(*names, columns, *counts)

    def select(self, mask: np.ndarray) -> "Cells":
        damage = {name: column[mask] for name, column in self.damage.items()}
        names = (column[mask] for column in (self.model, self.variant, self.language))
        return Cells(*names, damage, *(column[mask] for column in (self.items, self.changed, self.right, self.lost)))

    @property
    def changed_share(self) -> np.ndarray:
        return self.changed / self.items

    @property
    def lost_share(self) -> np.ndarray:
        return self.lost / self.right


@dataclass(frozen=True)
class Fit:
    """logit of the share of changed answers = constant + slope · log damage, with the spread of cells around it."""

    constant: float
    slope: float
    spread: float
    most: float  # of the damage that it was fitted to

    @classmethod
    def of(cls, cells: Cells, measure: str) -> "Fit":
        x = np.log(np.maximum(cells.damage[measure], LEAST))
        both, design = (
            np.column_stack([cells.changed, cells.items - cells.changed]),
            np.column_stack([np.ones_like(x), x]),
        )
        family = statsmodels.api.families.Binomial()
        constant, slope = statsmodels.api.GLM(both, design, family=family).fit().params
        rest, dense = (
            _logit(cells) - constant - slope * x,
            cells.items * scipy.special.expit(constant + slope * x) >= DENSE,
        )
        noise = np.mean((1 / (cells.changed + 0.5) + 1 / (cells.items - cells.changed + 0.5))[dense])
        spread = float(np.sqrt(max(np.var(rest[dense], ddof=2) - noise, 0.0)))
        return cls(float(constant), float(slope), spread, float(np.exp(x.max())))

    def logits(self, damage: np.ndarray) -> np.ndarray:
        return self.constant + self.slope * np.log(np.maximum(damage, LEAST))

    def damage_at(self, share: float, *, certainty: float = 0.5) -> str:
        """Returns the damage up to which a cell stays below the share with this probability, if any cell has as much.

        >>> Fit(0.0, 1.0, 0.0, most=0.3).damage_at(0.2), Fit(0.0, 1.0, 0.0, most=0.2).damage_at(0.2)
        ('0.25', '–')
        """
        reach = scipy.stats.norm.ppf(certainty) * self.spread
        damage = float(np.exp((scipy.special.logit(share) - reach - self.constant) / self.slope))
        return f"{damage:.2g}" if damage <= self.most else "–"


def _logit(cells: Cells) -> np.ndarray:
    return np.log((cells.changed + 0.5) / (cells.items - cells.changed + 0.5))


def rank_table(cells: Cells) -> Table:
    """Returns Spearman's correlation of every measure with changed and with lost answers, over variant × language."""
    rng = np.random.default_rng(SEED)
    lines = []
    for model in np.unique(cells.model):
        here = cells.select(cells.model == model)
        where = [np.flatnonzero(here.language == code) for code in np.unique(here.language)]
        draws = [np.concatenate([where[i] for i in rng.integers(0, len(where), len(where))]) for _ in range(RESAMPLES)]
        for measure, title in TITLES.items():
            cells_of = [str(model), title, str(len(here.items))]
            for share in (here.changed_share, here.lost_share):
                value = scipy.stats.spearmanr(here.damage[measure], share).statistic
                drawn = [scipy.stats.spearmanr(here.damage[measure][at], share[at]).statistic for at in draws]
                low, high = np.nanpercentile(drawn, [2.5, 97.5])
                cells_of.append(f"{value:.2f} ({low:.2f}–{high:.2f})")
            lines.append(tuple(cells_of))
    headers = ("model", "measure", "variants × languages", "changed answers", "lost answers")
    below = ("95 % intervals: languages drawn with replacement, 2,000 times, seed 0.",)
    return Table("Rank correlation with answers", headers, tuple(lines), below, left=(1,))


def mixed_table(cells: Cells) -> Table:
    """Returns the mixed model of changed answers: KL and the model as fixed effects, languages as random ones."""
    lines = []
    for measure in ("kl", "changed"):
        x = np.log(np.maximum(cells.damage[measure], LEAST))
        models = np.array([cells.model == name for name in np.unique(cells.model)[1:]], dtype=float).reshape(-1, len(x))
        design = np.column_stack([np.ones_like(x), x, models.T])
        fitted = statsmodels.api.MixedLM(_logit(cells), design, groups=cells.language).fit(method=("bfgs", "powell"))
        low, high = fitted.conf_int()[1]
        between, within = np.sqrt(fitted.cov_re[0, 0]), np.sqrt(fitted.scale)
        slope = f"{fitted.fe_params[1]:.2f} ({low:.2f}–{high:.2f})"
        lines.append((TITLES[measure], slope, f"{between:.2f}", f"{within:.2f}"))
    headers = ("measure", "slope of the log-odds (95 % CI)", "sd between languages", "sd within")
    return Table("Mixed model of changed answers", headers, tuple(lines), left=(1,))


def prediction_table(cells: Cells) -> Table:
    """Returns how well the cells of a variant are predicted from all other variants of all models."""
    lines = []
    for measure, title in TITLES.items():
        errors, inside = [], []
        for variant in np.unique(cells.variant):
            out = cells.variant == variant
            if out.all():
                continue
            fit, left = Fit.of(cells.select(~out), measure), cells.select(out)
            middle = fit.logits(left.damage[measure])
            errors.append(100 * (scipy.special.expit(middle) - left.changed_share))
            noise = np.sqrt(fit.spread**2 + 1 / (left.changed + 0.5) + 1 / (left.items - left.changed + 0.5))
            inside.append(np.abs(_logit(left) - middle) <= scipy.stats.norm.ppf(0.95) * noise)
        error = np.concatenate(errors)
        lines.append(
            (
                title,
                f"{np.median(np.abs(error)):.1f}",
                f"{np.sqrt(np.mean(error**2)):.1f}",
                f"{np.concatenate(inside).mean():.0%}",
            )
        )
    headers = ("from", "median error, of 100 answers", "root mean square", "inside the 90 % interval")
    return Table("Changed answers of a variant that was left out", headers, tuple(lines))


def limit_table(cells: Cells) -> Table:
    """Returns how much damage goes with one changed answer in so many."""
    lines = []
    for number in SHARES:
        row = [f"1 in {number}"]
        for measure in ("kl", "changed", "sure"):
            fit = Fit.of(cells, measure)
            row += [fit.damage_at(1 / number), fit.damage_at(1 / number, certainty=0.9)]
        lines.append(tuple(row))
    headers = ["answers that change"]
    headers += [f"{TITLES[name]}: {what}" for name in ("kl", "changed", "sure") for what in ("typical", "9 in 10 safe")]
    return Table("Limits", tuple(headers), tuple(lines))


def profile_table(cells: Cells) -> Table:
    """Returns what the answers of those variants are that every profile lets pass, and of those that it does not."""
    lines = []
    releases = [
        cells.select((cells.model == model) & (cells.variant == variant))
        for model, variant in sorted({*zip(cells.model.tolist(), cells.variant.tolist(), strict=True)})
    ]
    for name, profile in PROFILES.items():
        passed = [bool(release.damage["changed"].max() <= profile.changed) for release in releases]
        share = scipy.special.expit(Fit.of(cells, "changed").logits(np.array(profile.changed)))
        row = [name, f"{profile.changed:g}", f"1 in {1 / share:.0f}", f"{sum(passed)} of {len(passed)}"]
        for which in (True, False):
            group = [release for release, passes in zip(releases, passed, strict=True) if passes is which]
            means = [100 * release.changed.sum() / release.items.sum() for release in group]
            worst = [100 * release.changed_share.max() for release in group]
            row += [f"{min(some):.1f} to {max(some):.1f}" if some else "–" for some in (means, worst)]
        lines.append(tuple(row))
    answers = ("all languages", "worst language")
    headers = (
        *("profile", "limit, changed tokens of 100", "answers that change there", "variants that keep it"),
        *(f"changed answers of 100, {where}: {which}" for which in ("kept", "not kept") for where in answers),
    )
    below = (
        "Answers by the line of the figure. Variants without intervals: the gate itself is stricter, as it passes only "
        "what certainly keeps the limit.",
    )
    return Table("Profiles", headers, tuple(lines), below)


def kind_table(rows: Sequence[Row]) -> Table:
    """Returns the relation by kind of task: accuracy of the reference, and the rank correlation of KL."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        for kind in dict.fromkeys(row["kind"] for row in rows):
            here = [row for row in rows if row["kind"] == kind and row["model"] == model]
            if len(here) < 3:
                continue
            kl, items, changed, right, lost = (
                np.array([float(row[name]) for row in here])
                for name in ("kl", "items", "changed_answers", "right_before", "lost")
            )
            ranks = (scipy.stats.spearmanr(kl, part).statistic for part in (changed / items, lost / right))
            shares = f"{right.sum() / items.sum():.0%}", f"{changed.sum() / items.sum():.1%}"
            lines.append((model, kind, *shares, *(f"{rank:.2f}" for rank in ranks)))
    headers = ("model", "kind", "right before", "changed", "rank of KL, changed", "rank of KL, lost")
    return Table("By kind of task", headers, tuple(lines), left=(1,))


def draw(cells: Cells) -> None:
    """Writes the figure: changed answers against KL and against changed tokens."""
    with pyplot.rc_context(STYLE):
        canvas, panels = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
        for axes, measure in zip(panels, ("kl", "changed"), strict=True):
            for colour, model in zip(COLOURS, np.unique(cells.model), strict=False):
                here = cells.select(cells.model == model)
                x = np.maximum(here.damage[measure], LEAST)
                axes.plot(
                    x,
                    np.maximum(100 * here.changed_share, FLOOR),
                    ".",
                    color=colour,
                    alpha=0.5,
                    markersize=4,
                    label=str(model),
                )
            fit = Fit.of(cells, measure)
            x = np.geomspace(*np.quantile(np.maximum(cells.damage[measure], LEAST), [0, 1]), 100)
            axes.plot(x, 100 * scipy.special.expit(fit.logits(x)), color="#212529", linewidth=1)
            for number in SHARES:
                axes.axhline(100 / number, color="#adb5bd", linewidth=0.6, linestyle=":")
            axes.set(xscale="log", yscale="log", xlabel=TITLES[measure])
            axes.set_ylim(bottom=0.8 * FLOOR)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:g}")
        panels[0].set_ylabel("changed answers, of 100")
        panels[0].legend(frameon=False, fontsize=8)
        canvas.savefig(FIGURE, dpi=160)
        pyplot.close(canvas)


def write_page(rows: Sequence[Row]) -> None:
    """Prints the tables and writes them into the page, with the figure."""
    cells = Cells.of(rows)
    tables = [make(cells) for make in (rank_table, mixed_table, prediction_table, limit_table, profile_table)]
    tables.append(kind_table(rows))
    draw(cells)
    parts = "\n\n".join(table.markdown() for table in tables)
    print(parts)
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    write_files({PAGE: f"{before}{BEGIN}\n\n{parts}\n\n{END}{rest.split(END)[1]}".encode()})
