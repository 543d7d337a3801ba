"""The page: one file, nothing from elsewhere, nothing of a stranger's that could run."""

import base64
import copy
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

from fairbits.core.units import MEASURES, UNITS
from fairbits.reports.content import Report
from fairbits.reports.content import content as content_of
from fairbits.reports.page import EARLY, SCRIPTS, page

MOST_BYTES = 2_200_000
FIGURES = {f"fig-{name}" for name in ("languages", "kappa", "patterns", "causes", "bits", "widths", "prediction")}
SCALES = ["changed_of_100", *(f"{measure}_{unit}" for measure in MEASURES for unit in UNITS[:2])]
PARTS = ("blocks", "patterns", "causes", "prediction", "checklist", "certificate", "allocation", "curves")
HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&amp;\u202e\u2028\x1b'


class Elements(HTMLParser):
    """Collects the elements of a page, and what stands within its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.start_tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.start_tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        elif self.cdata_elem is None:
            self.words += data

    def ids(self, tag: str) -> set[str | None]:
        return {attributes.get("id") for name, attributes in self.start_tags if name == tag}


def estimate(value: float) -> dict[str, Any]:
    return {"value": value, "low": value * 0.8, "high": value * 1.1, "n": 9, "confidence": 0.95}


def row(index: int, methods: int) -> dict[str, Any]:
    damage = {scale: estimate(0.0123 * place + index) for place, scale in enumerate(SCALES, start=1)}
    percentiles = {"kl_p50": 0.01, "kl_p95": 0.1, "kl_p99": 0.3, "kl_p99_9": 0.9, "margin_p50": 0.0, "margin_p1": -1.2}
    shown = {
        "damage": damage,
        "kl": estimate(0.1),
        **percentiles,
        "flips": estimate(0.2),
        "added_words": estimate(1.5),
        "sure_of_100": estimate(5),
    }
    language = {"code": f"l{index:02}_Latn", "name": f"Language {index}", "autonym": f"l{index}", "bcp47": "x"}
    audited = ("predicted", "reference_loss", "kappa_weighted", "bytes_per_token")
    return {
        **language,
        "script": "Latn",
        "family": "F",
        "right_to_left": False,
        "documents": 9,
        "tokens": 999,
        "bytes": 4000,
        "methods": [shown | {"relative_perplexity": estimate(0.1)} for _ in range(methods)],
        "difference": estimate(-0.1) if methods > 1 else None,
        "p_holm": 0.01 if methods > 1 else None,
        **{name: estimate(0.5) for name in audited},
        "trusted": index != 1,
    }


def headline(before: float | None, code: str) -> dict[str, Any]:
    def pair(**more: str) -> dict[str, Any]:
        sides = {"quantized": estimate(0.02) | more, "baseline": None if before is None else estimate(before) | more}
        return sides | {"difference": None}

    meaning = {"changed": estimate(13.2), "level": "a clear change", "acceptable": True}
    return {
        "worst": pair(language=code),
        "mean": pair(),
        "gap": pair(),
        "changed": {"worst": pair(language=code), "mean": pair(), "gap": pair()},
        "size": {"reference": 2e9, "quantized": 1e9, "baseline": None if before is None else 1.25e9, "why": None},
        "meaning": meaning,
        "advice": None,
        "better": [code],
        "worse": [],
        "sentences": ["Language 0 loses most.", "So it is."],
    }


def provenance(codes: list[str]) -> dict[str, Any]:
    text = {"text": "udhr", "budget": 512, "sequence": 512, "seed": 0, "hashes": dict.fromkeys(codes, "ab" * 32)}
    asked = {
        "split": "evaluation",
        "parallel": True,
        "unit": "document",
        "asked": "every token",
        "documents": 1234,
        "tokens": 5678,
    }
    return {
        "signature": "model:1|reference:2",
        "models": [{"name": "reference", "target": "m", "fingerprint": "cd" * 32}],
        "evaluation": text | asked,
        "calibration": text,
        "policy": {"name": "gptq", "settings": {"bits": 4, "embeddings": "keep"}},
        "weights": dict.fromkeys(codes, 1 / len(codes)),
        "run": {"languages": codes[:2], "more_bits": [3, 4], "resume": False},
        "files": {"scores": "ef" * 32},
        "versions": {"fairbits": "0.1.0"},
    }


def full(languages: int = 3, blocks: int = 4, before: float | None = 0.04) -> dict[str, Any]:
    """Returns the content of a report in which everything was measured."""
    names = ["gptq", "rtn"][: 1 if before is None else 2]
    rows = [row(index, len(names)) for index in range(languages)]
    codes = [language["code"] for language in rows]
    places = list(range(blocks))
    values = [[0.0123456 + 0.001 * i + 0.0001 * j for j in places] for i in range(languages)]
    rule = {"blocks": [1], "threshold": 5.0, "remark": "A remark."}
    curve = {"policy": "gptq", "unit": SCALES[1], "threshold": 0.01, "bits": [2, 4], "sizes": [1, 2]}
    check = {"text": "max κ is at most 50", "passed": False, "detail": "κ = 80"}
    condition = {"name": "C1", "statement": "outlier layers exist", "holds": None, "remark": "Not decided."}
    return {
        "schema": "fairbits.report/3",
        "fairbits": "0.1.0",
        "model": "org/model",
        "family": "bloom",
        "stored": {"bits": [4], "group": 128, "method": "gptq", "floats": False, "inputs": 16},
        "measurement": None,
        "methods": [{"name": name, "target": name, "size_bytes": 10**9} for name in names],
        "units": SCALES,
        "headline": headline(before, codes[0]),
        "generated": None,
        "release": None,
        "languages": rows,
        "groups": None,
        "blocks": {
            "blocks": [{"block": i, "kappa": 1.5 + i, "sigma": 0.1, "largest": 2.0} for i in places],
            "outliers": {"research_notes": rule, "robust": rule | {"blocks": [], "threshold": None}},
        },
        "patterns": {"blocks": places, "languages": codes, "share": values},
        "causes": {"blocks": places, "languages": codes, "damage": values, "scheme": "W4"},
        "experts": None,
        "prediction": {
            "scheme": "W4",
            "method": 0,
            "like": False,
            "languages": codes,
            "spearman": estimate(0.9),
            "trusted": [index != 1 for index in range(len(codes))],
            **{name: [estimate(0.1) for _ in codes] for name in ("predicted", "measured")},
        },
        "checklist": {"risk": "LOW", "strategy": "Go on.", "checks": [check], "conditions": [condition]},
        "certificate": {"worse": "Language 0", "better": "Language 1", "actual": 0.1, "bound_by_linear": 0.2},
        "allocation": {
            "blocks": places,
            "roles": ["qkv"],
            "bits": [[4] * blocks],
            "bytes": [10**6] * blocks,
            "outside": [{"role": "embedding", "name": "e", "bits": None, "bytes": None}],
        },
        "curves": {
            **curve,
            "languages": codes,
            "damage": [[estimate(0.1), estimate(0.01)] for _ in codes],
            "critical_width": ["3.1 [2.8, 3.3]" for _ in codes],
            "verdict": ["It depends."],
        },
        "provenance": provenance(codes),
        "notes": [{"from": f"layer {i}", "text": f"better in {i} of 1,024 rows"} for i in range(3)],
    }


def bare() -> dict[str, Any]:
    """Returns the content of a report on scores alone."""
    content = full(before=None) | dict.fromkeys(PARTS) | {"family": None, "notes": []}
    content["provenance"] |= {"calibration": None, "policy": None, "run": None, "weights": {}}
    return content


def test_all_figures_stand_in_the_page() -> None:
    assert Elements(page(full())).ids("figure") == FIGURES


def test_experts_have_a_figure_where_the_model_has_some(routed) -> None:
    elements, without = Elements(page(content_of(routed))), Elements(page(full()))
    assert elements.ids("figure") == FIGURES | {"fig-experts"}
    assert "experts" in elements.ids("section") - without.ids("section")
    assert json.loads(elements.scripts[1])["experts"]["experts"] == [3, 3]
    assert "fewer than 32 positions of calibration text" in elements.words
    assert "Starved expert" in elements.words
    assert "experts" not in without.words


def test_what_was_not_measured_is_one_quiet_line() -> None:
    elements = Elements(page(bare()))
    assert elements.ids("figure") == {"fig-languages"}
    names = "weights, use of blocks, origin of damage, bits, damage and bits, prediction, theory"
    assert elements.words.count(f"Not measured, so not shown: {names}.") == 1
    assert elements.ids("section").isdisjoint({"weights", "use", "origin", "bits", "width", "foretold", "checks"})
    assert "Not measured" not in words(full())
    assert "No notes." in elements.words
    assert "→" not in elements.words


def test_every_scale_can_be_chosen() -> None:
    text = page(full())
    options = re.findall(r'<option value="((?:changed|divergence|loss)_\w+)">([^<]+)</option>', text)
    assert options == [
        ("changed_of_100", "changed, of 100 tokens"),
        ("divergence_bits_per_byte", "divergence, bits per byte"),
        ("divergence_nats_per_token", "divergence, nats per token"),
        ("loss_bits_per_byte", "added loss, bits per byte"),
        ("loss_nats_per_token", "added loss, nats per token"),
    ]


def test_only_the_scripts_of_the_page_may_run() -> None:
    elements = Elements(page(full()))
    policy = next(a["content"] for name, a in elements.start_tags if name == "meta" and "http-equiv" in a) or ""
    early, data, plotly, late = elements.scripts
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (early, plotly, late)]
    assert policy.startswith(
        "default-src 'none'; script-src " + " ".join(f"'sha256-{digest}'" for digest in hashes) + ";"
    )
    assert json.loads(data)["model"] == "org/model"


def test_nothing_comes_from_elsewhere() -> None:
    text = page(full())
    addresses = {a[key] for _, a in Elements(text).start_tags for key in ("src", "href", "action", "data") if key in a}
    assert addresses
    assert all(address is not None and address.startswith("#") for address in addresses)
    remaining = text.replace(files("fairbits").joinpath("assets/plotly/plotly-cartesian.min.js").read_text("utf-8"), "")
    assert not re.search(r"https?:|@import|url\(", remaining)


def poison(value: Any) -> Any:
    """Returns content in which every text that a model or a user could choose is hostile; codes stay what they are."""
    if isinstance(value, dict):
        return {key: item if key in ("code", "language", "languages") else poison(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poison(item) for item in value]
    return HOSTILE + value if isinstance(value, str) else value


def test_hostile_text_adds_no_element() -> None:
    content = full()
    bad = poison(content) | {
        "units": content["units"],
        "languages": [poison(language) for language in content["languages"]],
    }
    bad["headline"] |= {"better": content["headline"]["better"]}
    poisoned, good = Elements(page(bad)), Elements(page(content))
    shape = [(name, sorted(attributes)) for name, attributes in poisoned.start_tags if name != "h1"]
    assert shape == [(name, sorted(attributes)) for name, attributes in good.start_tags if name != "h1"]
    assert [poisoned.scripts[i] for i in (0, 2, 3)] == [good.scripts[i] for i in (0, 2, 3)]
    assert "\\u202e" in poisoned.words
    assert not re.search("[\u202e\u2028\x1b]", page(bad))


@pytest.mark.parametrize(
    ("before", "change", "kind"),
    [
        (0.04, "▼ 50 % lower than with rtn", "less"),
        (0.01, "▲ 100 % higher than with rtn", "more"),
        (0.021, "▼ 5 % lower than with rtn; intervals overlap", ""),
    ],
)
def test_the_headline_says_whether_it_helps(before: float, change: str, kind: str) -> None:
    text = page(full(before=before))
    assert f'<p class="change{" " if kind else ""}{kind}">{change}</p>' in text
    assert "0.80 times rtn" in text


def test_the_paired_difference_is_surer_than_two_intervals() -> None:
    content = full(before=0.021)
    content["headline"]["changed"]["worst"]["difference"] = {"value": -0.001, "low": -0.002, "high": -0.0005}
    content["headline"]["changed"]["mean"]["difference"] = {"value": -0.001, "low": -0.002, "high": 0.0005}
    text = page(content)
    assert '<p class="change less">▼ 5 % lower than with rtn</p>' in text
    assert '<p class="change">▼ 5 % lower than with rtn; not significant</p>' in text


def test_notes_that_differ_in_numbers_are_one() -> None:
    words = Elements(page(full())).words
    assert "and 2 more like it" in words
    assert "better in 2 of 1,024 rows" in words


def test_one_language_has_no_gap() -> None:
    content = full(languages=1)
    for numbers in (content["headline"], content["headline"]["changed"]):
        numbers["gap"] = {"quantized": None, "baseline": None, "difference": None}
    assert "needs two languages" in page(content)


def test_the_page_says_which_predictions_cannot_be_trusted() -> None:
    content = full(languages=8)
    assert "Do not trust the prediction for 1 language whose" in page(content)
    assert "The rank correlation over 7 languages is" in page(content)
    content["prediction"]["trusted"] = [True] * 8
    assert "Do not trust the prediction for" not in page(content)


def test_a_large_report_stays_small() -> None:
    content = full(languages=100, blocks=80)
    kept = copy.deepcopy(content)
    text = page(content)
    assert len(text.encode()) <= MOST_BYTES
    assert content == kept
    assert text == page(kept)


def test_plotly_is_what_its_readme_says() -> None:
    folder = files("fairbits").joinpath("assets/plotly")
    digest = hashlib.sha256(folder.joinpath("plotly-cartesian.min.js").read_bytes()).hexdigest()
    assert f"`{digest}`" in folder.joinpath("README.md").read_text("utf-8")


@pytest.mark.parametrize("name", [EARLY, *SCRIPTS])
def test_scripts_write_text_not_markup(name: str) -> None:
    text = files("fairbits").joinpath(f"reports/templates/{name}").read_text("utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|</script|\r", text
    )
    assert text.count("\n") < 300


def words(content: dict[str, Any]) -> str:
    """Returns what the page of some content says, without its scripts."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", Report(content).html(), flags=re.DOTALL)
    return " ".join(re.sub("<[^>]*>", " ", text).split())


def test_the_page_says_what_was_predicted_and_what_was_measured(report_content) -> None:
    assert "The two differ" not in words(report_content)
    modified = copy.deepcopy(report_content)
    modified["prediction"] |= {"like": False, "made_with": "W4 per tensor"}
    scheme = modified["prediction"]["scheme"]
    assert f"the prediction is for plain rounding, {scheme}; the measurement is for rtn, W4 per tensor. " in words(
        modified
    )
    modified["prediction"]["made_with"] = None
    assert "the measurement is for rtn, with an unknown width and group. " in words(modified)


def test_cards_say_what_their_numbers_are(report_content) -> None:
    cards = re.findall(r'<article class="card">.*?</article>', Report(report_content).html(), flags=re.DOTALL)
    notes = ("Worst language", "worst minus best", "which count equally", "all tensors")
    assert [note in card for card, note in zip(cards, notes, strict=True)] == [True] * 4
    for shown in cards[:3]:
        assert "of 100 tokens changed" in shown
        assert "divergence, bits per byte" in shown


@pytest.mark.parametrize(
    ("changed", "acceptable", "kind"), [(3.0, True, "fine ✓"), (13.0, True, "fair !"), (44.0, False, "poor ✗")]
)
def test_the_first_screen_has_a_verdict(changed: float, acceptable: bool, kind: str) -> None:
    content = full()
    content["headline"] |= {"advice": None if acceptable else "--bits 8"}
    content["headline"]["meaning"] |= {"changed": estimate(changed), "acceptable": acceptable}
    text = page(content)
    colour, sign = kind.split()
    assert f'<div class="verdict {colour}">' in text
    assert f"{sign} A clear change" in words(content)
    assert ("To change less: --bits 8" in words(content)) is not acceptable
    assert "4 bits per weight, gptq, embedding not quantized; 1 GB, 50 % of the size before" in words(content)
    assert text.index('id="fig-languages"') < text.index('id="overall"') < text.index('<details id="details">')


def test_the_bar_of_a_large_model_stays_in_its_card() -> None:
    content = full()
    content["headline"]["size"] |= {"quantized": 5.72e9, "why": "the embedding is not quantized"}
    shares = [float(share) for share in re.findall(r'bulk \w+" style="--value: ([\d.]+)%', page(content))]
    assert max(shares) == 100
    assert len(shares) == 3
    assert "286 % of the reference model, so it is larger than before quantization: the embedding is" in words(content)


def test_research_is_folded() -> None:
    folded = page(full()).partition('<details id="details">')[2].partition("<footer>")[0]
    sections = re.findall(r'<section id="(\w+)">', folded)
    assert sections == ["weights", "use", "origin", "bits", "width", "foretold", "checks", "methods"]
    for name in ("summary", "lost", "overall", "notes", "words"):
        assert f'<section id="{name}">' not in folded


def test_one_is_not_many(report_content) -> None:
    assert "All 4 models read the same 20 documents, " in words(report_content)
    modified = copy.deepcopy(report_content)
    modified["languages"] = modified["languages"][:1]
    for side in ("baseline", "quantized"):
        for worst in (modified["headline"]["changed"]["worst"], modified["headline"]["worst"]):
            worst[side]["language"] = modified["languages"][0]["code"]
    modified["provenance"]["models"] = modified["provenance"]["models"][:2]
    modified["provenance"]["evaluation"] |= {"documents": 1, "tokens": 1}
    assert "Both models read the same 1 document, 1 token in 1 language. They predict every" in words(modified)


def test_points_that_a_log_scale_cannot_show_are_counted(report_content) -> None:
    modified = copy.deepcopy(report_content)
    for curve in modified["curves"]["damage"]:
        for point in curve:
            point["value"] = 0.1
    assert "0 or below" not in words(modified)
    modified["curves"]["damage"][0][0]["value"] = 0.0
    assert "1 of 8 points is 0 or below" in words(modified)
