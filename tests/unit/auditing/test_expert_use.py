"""Which experts of a small real model get too little text, and where this is reported."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as t
from rich.console import Console

from fairbits.api.audit import audit
from fairbits.auditing.audit_file import AUDIT
from fairbits.auditing.expert_use import LEAST_POSITIONS, ExpertUse
from fairbits.auditing.record import detail_tables
from fairbits.core.errors import InputError
from fairbits.core.table import render_tables
from fairbits.forward.experts import BlockExperts
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import Corpus

SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
TOKENS = {"vocab_size": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
CORPUS = Corpus(
    "weather",
    {
        "heb": [f"ביום {i} באה הרוח מצפון והביאה גשם." for i in range(6)],
        "eng": [f"On day {i} the wind came from the north and brought {i} hours of rain." for i in range(6)],
    },
    {},
)


def audited(*model):
    return audit(*model, text=CORPUS, scheme=Scheme(3, 16), tokens=200)


def shown(what):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(what)
    return " ".join(console.export_text().split())


@pytest.fixture(scope="module")
def record(reading_model):
    return audited(reading_model("mixtral"))


@pytest.fixture
def never(saved):
    """Returns the audit of a model of five experts, whose router never chooses the last in its second block.

    The logits are s, −s, t, −t and 0: two of the first four are the largest.
    """
    config = t.MixtralConfig(**SIZE, **TOKENS, num_hidden_layers=2, num_local_experts=5)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        checkpoint = saved(t.MixtralForCausalLM(config))
    model = checkpoint.load()
    router = model.model.layers[1].mlp.gate.weight.data
    router[1], router[3], router[4] = -router[0], -router[2], 0.0
    return audited(model, checkpoint.tokenizer())


def test_an_expert_that_never_wins_is_found(never):
    experts = never.experts
    assert (experts.counts[1][:, 4] == 0).all()
    assert (experts.counts[1][:, :4] > 0).all()
    assert experts.unreached == {0: int((experts.counts[0].sum(0) == 0).sum()), 1: 1}
    assert {(shortage.language, shortage.empty) for shortage in experts.shortages() if shortage.block == 1} == {
        ("heb_Hebr", 1),
        ("eng_Latn", 1),
    }
    text = shown(render_tables(never.tables()))
    assert "Block 1: 1 of 5 experts gets no token of Hebrew" in text
    assert "1 expert gets no text of any language, and would be rounded to nearest." in text
    assert "Starved: fewer than 32 positions of calibration text" in text


def test_experts_below_the_limit_get_too_little_text():
    counts = np.array([[0, 31, 32, 100], [40, 50, 60, 70]])
    use = ExpertUse(("heb_Hebr", "eng_Latn"), (BlockExperts(3, 2, counts), BlockExperts(5, 2, counts + 1)))
    assert use.too_little_text().tolist() == [[2, 1], [0, 0]]
    assert use.too_little_text(1).tolist() == [[1, 0], [0, 0]]
    assert use.too_little_text(61).tolist() == [[3, 3], [3, 2]]
    assert use.even_share()[:, 0].tolist() == [163 / 4, 55.0]
    assert (use.pairs, use.unreached) == (16, {3: 0, 5: 0})
    assert [(shortage.block, shortage.too_little, shortage.empty) for shortage in use.shortages()] == [
        (3, 2, 1),
        (5, 1, 0),
    ]
    frame = use.to_pandas()
    assert frame.shape == (16, 4)
    assert frame[(frame.block == 3) & (frame.expert == 1)].positions.tolist() == [31, 50]
    assert frame.groupby("language").positions.sum().to_dict() == {"heb_Hebr": 330, "eng_Latn": 444}
    assert use.plot().to_dict()["data"][0]["z"] == [[0.5, 0.25], [0.0, 0.0]]
    assert use.plot(5).to_dict()["data"][0]["z"] == (counts + 1).tolist()
    assert "heb_Hebr" in repr(use)
    with pytest.raises(InputError, match=r"block is 4; it must be one that has experts: 3, 5"):
        use.plot(4)
    with pytest.raises(InputError, match="least"):
        use.too_little_text(0)


def test_what_is_saved_is_loaded(record, tmp_path):
    record.save(tmp_path / "audit.json")
    stored = AUDIT.read(tmp_path / "audit.json").experts
    assert stored.least == LEAST_POSITIONS
    for column, (block, measured) in enumerate(zip(stored.blocks, record.measured.experts, strict=True)):
        assert (block.block, block.experts, block.per_position) == (measured.block, 3, 2)
        assert list(block.routed.values()) == measured.counts.sum(1).tolist()
        assert list(block.few.values()) == record.experts.too_little_text()[:, column].tolist()
    loaded = ExpertUse.load(tmp_path / "audit.json")
    assert loaded.languages == record.languages
    assert loaded.as_data() == record.experts.as_data()
    for block, counts in record.experts.counts.items():
        np.testing.assert_array_equal(loaded.counts[block], counts)


def test_an_audit_without_counts_still_loads(record, tmp_path):
    path = tmp_path / "audit.json"
    record.save(path)
    data = json.loads(path.read_text())
    data["experts"] = None
    path.write_text(json.dumps(data))
    assert AUDIT.read(path).experts is None
    with pytest.raises(InputError, match="has no counts of experts"):
        ExpertUse.load(path)


def test_counts_of_other_languages_are_refused(record, tmp_path):
    path = tmp_path / "audit.json"
    record.save(path)
    data = json.loads(path.read_text())
    del data["experts"]["blocks"][1]["few"]["heb_Hebr"]
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match="experts of block 1, few and languages differ in"):
        AUDIT.read(path)


def test_details_have_a_row_for_every_language(record):
    text = shown(render_tables(detail_tables(record)))
    assert "Experts by language" in text
    few = record.experts.too_little_text().sum(1)[record.languages.index("heb_Hebr")]
    assert f"Hebrew {few} 0" in text.partition("Experts by language")[2]


def test_a_model_without_experts_says_nothing_of_them(reading_model):
    llama_audit = audited(reading_model("llama"))
    assert llama_audit.experts is None
    assert llama_audit.as_data()["experts"] is None
    assert "Experts" not in shown(render_tables(llama_audit.tables()))
    with pytest.raises(InputError, match="has no experts whose text was counted"):
        llama_audit.plot("experts")


def test_enough_text_starves_nobody(record):
    """The counts of a pass over a hundred times as much text of this kind."""
    many = tuple(replace(layer, counts=layer.counts * 100) for layer in record.measured.experts)
    larger_audit = replace(record, measured=replace(record.measured, experts=many))
    text = shown(render_tables(larger_audit.tables()))
    assert "0 of 12 pairs of expert and language (0.0%) get too little text" in text
    assert "too little text of" not in text
