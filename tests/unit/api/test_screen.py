import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import transformers as t
from rich.cells import cell_len
from rich.console import Console

from fairbits.api.screen import PUBLISHED_MODELS, PUBLISHED_SHAPES, FromText, Screening, published_kappa, screen
from fairbits.cli.screen_command import screen_table
from fairbits.core.errors import InputError
from fairbits.kurtosis.checklist import published_statistics, robust_outliers
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.weight_moments import weight_moments
from fairbits.text.included_texts import udhr

TINY, OUTLIERS = "embedded:tiny", "embedded:tiny?outliers=3:125"
SEEN: list[tuple[str, int, int]] = []


@pytest.fixture(scope="module")
def screening() -> Screening:
    return screen([TINY, "no/such/place", OUTLIERS], progress=lambda *call: SEEN.append(call))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """Returns the directory of a random GPT-2 with two blocks."""
    t.logging.disable_progress_bar()
    directory = tmp_path_factory.mktemp("small")
    config = t.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=32, vocab_size=96, bos_token_id=1, eos_token_id=2)
    t.GPT2LMHeadModel(config).save_pretrained(directory)
    return directory


def printed(screening: Screening) -> str:
    console = Console(file=io.StringIO(), width=80, emoji=False)
    console.print(screen_table(screening).terminal())
    return console.file.getvalue()


def named(small: Path, place: Path, **config: str | int) -> Checkpoint:
    """Returns the small model under another name."""
    directory = shutil.copytree(small, place)
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return Checkpoint(directory)


def test_a_row_holds_what_the_weights_say(screening) -> None:
    row, moments = screening.rows[2], weight_moments(Checkpoint(OUTLIERS))
    assert row.weights.kappa == tuple(block.kappa for block in moments.blocks)
    assert row.weights.robust == robust_outliers(row.weights.kappa)
    kappa = {name: tensor.kappa for name, tensor in moments.tensors.items() if ".h." in name and tensor.n >= 256 * 256}
    assert len(kappa) == 4 * 12
    assert (row.weights.tensor, row.weights.tensor_kappa) == max(kappa.items(), key=lambda item: item[1])


def test_the_classes_of_the_research_notes_follow_the_outliers(screening) -> None:
    views = [screening.rows[i].view for i in (0, 2)]
    assert [view.risk for view in views] == ["LOW-MODERATE", "HIGH"]
    assert [view.block for view in views] == [2, 3]
    assert views[0].conditions[1].holds is None  # C2 needs text
    assert 3 in screening.rows[2].weights.robust.blocks


def test_a_model_that_cannot_be_opened_has_a_row_and_stops_no_other(screening) -> None:
    refused = screening.rows[1]
    assert refused.weights is None
    assert "no/such/place" in refused.problem
    assert not screening.complete
    text = " ".join(printed(screening).split())
    assert "error: no/such/place: there is no no/such/place" in text
    assert screening.rows[2].problem is None


def test_text_decides_c2_and_gives_the_range_of_damage(small) -> None:
    corpus = udhr(["eng", "heb"])
    asked = []

    def measure(checkpoint, text_corpus, bits):
        asked.append((checkpoint.target, text_corpus, bits))
        return FromText({"eng": 0.30, "heb": 0.10}, {"eng": 0.031, "heb": 0.26})

    screening = screen([small], corpus=corpus, bits=3, measure=measure, outlier_kappa=-1.0)
    assert asked == [(str(small), corpus, 3)]
    assert screening.rows[0].view.conditions[1].holds is True
    assert screening.rows[0].view.conditions[1].value == pytest.approx(0.01)
    assert screening.rows[0].view.bits == 3
    text = printed(screening)
    assert "0.031 to" in text
    assert "0.26" in text
    assert max(map(cell_len, text.splitlines())) <= 80
    data = screening.as_data()["models"][0]
    assert data["predicted_damage"] == {"eng": 0.031, "heb": 0.26}


def test_four_languages_give_r_of_share_and_predicted_damage(small) -> None:
    share = dict(zip(("ara", "eng", "fra", "hin"), (0.177, 0.205, 0.202, 0.172), strict=True))
    damage = dict(zip(share, (0.025, 0.005, 0.007, 0.021), strict=True))
    screening = screen([small], corpus=udhr(["eng"]), measure=lambda *_: FromText(share, damage))
    r = np.corrcoef(list(share.values()), list(damage.values()))[0, 1]
    data = screening.as_data()
    assert data["models"][0]["r_of_share_and_predicted_damage"]["value"] == pytest.approx(r)
    assert "predicted, not measured" in data["notes"][1]
    text = " ".join(printed(screening).split())
    assert "r(R̂, D̂)" in text
    assert f"{r:.2f}" in text
    assert FromText(dict(share, eng=0.1), dict.fromkeys(damage, 0.1)).r is None, "nothing varies"
    assert FromText({"eng": 0.1}, {"eng": 0.2}).r is None
    assert max(map(cell_len, printed(screening).splitlines())) <= 80


def test_a_cut_off_of_kappa_decides_which_blocks_count(small) -> None:
    view = screen([TINY], outlier_kappa=4.0).rows[0].view
    assert (view.outliers.blocks, view.outliers.threshold) == ((1, 2), 4.0)
    assert screen([small]).rows[0].view.outliers.blocks is None, "two blocks show no bulk"


def test_a_text_that_cannot_be_measured_leaves_what_the_weights_say(small) -> None:
    def measure(*_):
        raise InputError("no tokenizer; it must lie beside the weights")

    screening = screen([small], corpus=udhr(["eng"]), measure=measure)
    assert not screening.complete
    assert screening.rows[0].problem == "no tokenizer; it must lie beside the weights"
    assert len(screening.rows[0].weights.kappa) == 2
    assert screening.rows[0].view.conditions[1].holds is None
    assert "no tokenizer" in printed(screening)


def test_every_model_of_the_census_is_listed_once() -> None:
    assert sorted(PUBLISHED_MODELS.values()) == sorted(published_statistics().max_kurtosis)


@pytest.mark.parametrize(
    ("name", "origin", "expected"),
    [
        ("bloom-560m", "", ("BLOOM-560M", 504, False)),
        ("XGLM-564m", "", ("XGLM-564M", 2, False)),
        ("mine", "openai-community/gpt2", ("GPT-2-small", 201, True)),
        ("mine", "gpt2", ("GPT-2-small", 201, True)),  # the id it had before ids had owners
        ("opt-125m", "openai-community/gpt2", ("OPT-125M", 562, False)),
        ("mine", "someone/gpt2", None),
        ("bloom-560m-finetuned", "", None),
        ("my-gpt2", "", None),
        ("gpt2-medium", "openai-community/gpt2-medium", None),
    ],
)
def test_published_kappa_goes_by_whole_names_only(tmp_path, small, name, origin, expected) -> None:
    shape = PUBLISHED_SHAPES[expected[0]] if expected else (12, 768)
    checkpoint = named(small, tmp_path / name, _name_or_path=origin, num_hidden_layers=shape[0], hidden_size=shape[1])
    published = published_kappa(checkpoint)
    assert expected == (published and (published.name, published.kappa, published.by_origin))


def test_a_model_of_another_shape_is_not_the_published_one(tmp_path, small) -> None:
    assert sorted(PUBLISHED_SHAPES) == sorted(PUBLISHED_MODELS.values())
    for name, origin in (("gpt2", ""), ("mine", "gpt2")):
        assert published_kappa(named(small, tmp_path / name, _name_or_path=origin)) is None


def test_published_kappa_stands_beside_ours(tmp_path, small, monkeypatch) -> None:
    monkeypatch.setitem(PUBLISHED_SHAPES, "Pythia-70M", (2, 32))
    screening = screen([named(small, tmp_path / "pythia-70m").directory])
    assert screening.as_data()["models"][0]["published"] == {"name": "Pythia-70M", "kappa": 12.0, "by_origin": False}
    row = next(line.split() for line in printed(screening).splitlines() if line.rstrip().endswith(" LOW"))
    assert row[-5:] == ["12", "–", "✗", "–", "LOW"]  # two blocks cannot show which of them stands out
    assert published_kappa(Checkpoint(TINY)) is None


def test_an_origin_is_said_to_be_one(tmp_path, small, monkeypatch) -> None:
    monkeypatch.setitem(PUBLISHED_SHAPES, "GPT-2-small", (2, 32))
    text = printed(screen([named(small, tmp_path / "mine", _name_or_path="gpt2").directory]))
    assert "published κ of GPT-2-small, the origin that its config.json states" in " ".join(text.split())


def test_data_are_plain_json_with_provenance(screening) -> None:
    data = json.loads(json.dumps(screening.as_data(), allow_nan=False))
    assert (data["schema"], data["bits"], len(data["models"])) == ("fairbits.screen/1", 4, 3)
    first, refused, outliers = data["models"]
    assert first["fingerprint"] == Checkpoint(TINY).fingerprint
    assert refused["kappa"] is refused["research_notes"] is refused["fingerprint"] is None
    assert outliers["research_notes"]["risk"] == "HIGH"
    assert outliers["research_notes"]["outliers"]["blocks"] == [3]
    assert "001-09" in data["notes"][0]


def test_the_table_fits_80_columns(screening) -> None:
    text = printed(screening)
    assert max(map(cell_len, text.splitlines())) <= 80
    row = next(line.split() for line in text.splitlines() if line.startswith("embedded:tiny "))
    assert row == [TINY, "12", "8.6", "2", "29.0", "–", "2", "✓", "–", "LOW-MODERATE"]
    assert "the tensor with the largest κ is transformer.h.2.mlp.dense_4h_to_h.weight" in " ".join(text.split())
    assert "which no data support" in " ".join(text.split())


def test_progress_names_the_model(screening) -> None:
    assert [name for name, done, total in SEEN if done == total > 0] == [
        f"{row.target}: reading weights" for row in screening.rows if row.weights
    ]


@pytest.mark.parametrize(
    ("targets", "bits", "message"),
    [
        ([], 4, "targets is empty"),
        (TINY, 4, "it must be a list"),
        ([TINY], 1, "bits is 1; it must be 2 to 8"),
    ],
)
def test_what_cannot_be_screened_is_refused(targets, bits, message) -> None:
    with pytest.raises(InputError, match=message):
        screen(targets, bits=bits)
