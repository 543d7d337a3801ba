"""A GGUF file measured by llama.cpp: with a program of its protocol, and with llama-perplexity where there is one."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import fake_llama_perplexity
import gguf
import numpy as np
import pytest
import torch
from fake_llama_perplexity import logits_after

from fairbits.api.evaluate import evaluate
from fairbits.core.errors import InputError
from fairbits.evaluation.gate import gate
from fairbits.evaluation.measurement import Measurement
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.scores import Scores
from fairbits.forward.chunks import chunk_corpus
from fairbits.forward.windows import NO_LABEL
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus, TextRequest

FAKE = fake_llama_perplexity.__file__
CORPUS = Corpus(
    "weather",
    {},
    {
        "eng": [f"On day {i} the wind came from the north, and {i * i} ships sailed." for i in range(40)],
        "heb": [f"ביום {i} באה הרוח מן הצפון, ו-{i * i} אניות הפליגו." for i in range(40)],
    },
)
SETTINGS = {"text": CORPUS, "tokens": 256, "sequence": 64}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, write_gguf):
    place = tmp_path_factory.mktemp("gguf")
    paths = {name: place / f"{name}.gguf" for name in ("ALL_F32", "MOSTLY_Q4_0", "without-start")}
    for name, path in paths.items():
        kind = gguf.LlamaFileType[name if name in ("ALL_F32", "MOSTLY_Q4_0") else "ALL_F32"]
        write_gguf(path, kind, add_bos=name != "without-start")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield paths


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], str]:
    """Returns the function that gives the program in which something goes wrong."""

    def write(mode: str) -> str:
        program = tmp_path / "llama-perplexity"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "{mode}" "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        return str(program)

    return write


@pytest.fixture(scope="module")
def expected(files) -> dict[str, np.ndarray]:
    """What the scores must be, from the logits of transformers and those of the program, chunk by chunk."""
    checkpoint = Checkpoint(files["ALL_F32"])
    text = chunk_corpus(checkpoint, CORPUS, request=TextRequest("evaluation", 256, 64))
    model, table = checkpoint.load(), torch.from_numpy(logits_after(checkpoint.config.vocab_size)).double()
    rows = []
    for window in text.windows:
        ids, labels = torch.tensor(window.main.ids), torch.tensor(window.main.labels)
        at = labels != NO_LABEL
        with torch.no_grad():
            log_p = model(ids[None]).logits[0].double().log_softmax(1)[at]
        log_q = table[ids[at]].log_softmax(1)
        losses = [-x.gather(1, labels[at][:, None]).sum().item() for x in (log_p, log_q)]
        rows.append([*losses, (log_p.exp() * (log_p - log_q)).sum().item(), (log_p.argmax(1) != log_q.argmax(1)).sum()])
    nll_reference, nll_quantized, kl, flips = np.array(rows).T
    return {"nll_reference": nll_reference, "nll_quantized": nll_quantized, "kl": kl, "flips": flips}


def test_scores_are_those_of_the_program_on_every_chunk(files, fake, expected, tmp_path) -> None:
    stages = []
    scores = evaluate(
        files["MOSTLY_Q4_0"],
        reference=files["ALL_F32"],
        engine="llama.cpp",
        llama_perplexity=fake("works"),
        groups="a=eng;b=heb",
        progress=lambda *part: stages.append(part),
        **SETTINGS,
    )
    documents = scores.documents
    assert documents.tokens.tolist() == [31.0] * 18
    np.testing.assert_allclose(documents.nll_reference, expected["nll_reference"], rtol=1e-5)
    np.testing.assert_allclose(documents.nll_quantized, expected["nll_quantized"], atol=31 * 2e-4)
    np.testing.assert_allclose(documents.kl, expected["kl"], atol=31 * 2e-4)
    assert documents.flips.tolist() == expected["flips"].tolist()
    for code in scores.languages:
        rows = documents.lang == code
        total = [getattr(documents, name)[rows].sum() for name in ("kl", "nll_quantized")]
        np.testing.assert_allclose(total, [expected[name][rows].sum() for name in ("kl", "nll_quantized")], rtol=1e-5)
    assert scores.versions["llama.cpp"] == "0.0.0 (build 1, commit fake)"
    assert scores.measurement == Measurement("llama.cpp 0.0.0 (build 1, commit fake)")
    assert scores.notes[0] == "measured in llama.cpp 0.0.0 (build 1, commit fake)"
    assert list(scores.groups) == ["a", "b"]
    assert not scores.setting.parallel
    assert stages[-1][1:] == (18, 18)
    scores.save(tmp_path / "scores.json")
    again = Scores.load(tmp_path / "scores.json")
    assert again.percentiles["eng_Latn"].margin_p1 is None
    assert again.measurement == scores.measurement
    assert again.summary()["measurement"]["engine"] == "llama.cpp 0.0.0 (build 1, commit fake)"
    assert not gate(again, max_changed=10)
    assert gate(again, max_changed=100)
    with pytest.raises(InputError, match="different"):
        again.check_same_text(evaluate(files["MOSTLY_Q4_0"], reference=files["ALL_F32"], **SETTINGS))


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("no version", "--version ended with exit code 1 and states no version; it must be llama-perplexity"),
        ("cannot load", "ended with exit code 1 on .*: E main: unable to load model"),
        ("killed", "was killed by SIGKILL on .*it may have needed more memory than there is"),
        ("stops", "it printed no line 'Mean PPL.*failed to decode"),
        ("nan", "it printed NaN or infinity"),
        ("other vocabulary", r"inconsistent vocabulary \(260 vs 256\)"),
        ("other file format", "read a mean loss of .* from a file where it is .*use another version of llama.cpp"),
    ],
)
def test_what_goes_wrong_in_the_program_is_an_error(files, fake, mode: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        evaluate(
            files["MOSTLY_Q4_0"],
            reference=files["ALL_F32"],
            engine="llama.cpp",
            llama_perplexity=fake(mode),
            **SETTINGS,
        )


def test_models_that_do_not_read_the_same_tokens_are_refused(files, fake, tmp_path) -> None:
    by_program = {"engine": "llama.cpp", "llama_perplexity": fake("works"), **SETTINGS}
    with pytest.raises(InputError, match=r"adds the start token 1 to a text, and .* has none"):
        evaluate(files["MOSTLY_Q4_0"], reference=files["without-start"], **by_program)
    with pytest.raises(InputError, match="has 260 tokens in its vocabulary and embedded:tiny"):
        evaluate(files["MOSTLY_Q4_0"], reference="embedded:tiny", **by_program | {"text": None, "languages": ["eng"]})
    data = files["MOSTLY_Q4_0"].read_bytes()
    other = tmp_path / "other.gguf"
    other.write_bytes(data.replace(b"<0x6E>", b"<0xZZ>"))
    with pytest.raises(InputError, match=r"token 113 is '<0x6E>' in .* and '<0xZZ>' in .*other\.gguf"):
        evaluate(other, reference=files["ALL_F32"], **by_program)


def test_too_little_text_and_a_full_disk_are_refused(files, fake, monkeypatch) -> None:
    by_program = {"engine": "llama.cpp", "llama_perplexity": fake("works"), "reference": files["ALL_F32"], **SETTINGS}
    with pytest.raises(InputError, match="has 93 predicted tokens in chunks of 64; llama-perplexity needs 100"):
        evaluate(files["MOSTLY_Q4_0"], **by_program | {"tokens": 90})
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(InputError, match=r"has no room for the predictions that llama-perplexity reads \(150 kB are"):
        evaluate(files["MOSTLY_Q4_0"], **by_program)


def test_an_interrupted_evaluation_leaves_no_file_and_no_process(files, fake, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()

    def interrupt(stage: str, done: float, _: float) -> None:
        if stage.endswith("evaluating the quantized model") and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(
            files["MOSTLY_Q4_0"],
            reference=files["ALL_F32"],
            engine="llama.cpp",
            llama_perplexity=fake("works"),
            progress=interrupt,
            **SETTINGS,
        )
    assert not list((tmp_path / "scratch").iterdir())
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.skipif("LLAMA_PERPLEXITY" not in os.environ, reason="LLAMA_PERPLEXITY does not name the program")
@pytest.mark.parametrize("name", ["ALL_F32", "MOSTLY_Q4_0"])
def test_llama_cpp_and_fairbits_agree_on_the_same_chunks(files, name: str) -> None:
    """llama.cpp rounds activations to 8 bits, and keys and values to 16."""
    before = Checkpoint(files["ALL_F32"])
    theirs = evaluate(
        files[name],
        reference=before,
        engine="llama.cpp",
        llama_perplexity=os.environ["LLAMA_PERPLEXITY"],
        **SETTINGS,
    ).documents
    text = chunk_corpus(before, CORPUS, request=TextRequest("evaluation", 256, 64))
    with ReferenceModel.on_text(before, text) as answers:
        mine = answers.compare(Checkpoint(files[name]))
    np.testing.assert_allclose(theirs.nll_reference, mine.nll_reference, rtol=1e-6)
    np.testing.assert_allclose(theirs.nll_quantized, mine.nll_quantized, rtol=1e-3)
    np.testing.assert_allclose(theirs.kl, mine.kl, rtol=0.1, atol=31 * 3e-4)
