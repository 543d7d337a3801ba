import numpy as np
import pytest
import torch
from torch.nn.functional import kl_div

from fairbits.evaluation.divergence import differentiable_kl
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.quantization.learned import learn_model as model_distillation
from fairbits.quantization.learned.learn_model import Teacher
from fairbits.text.corpus import TextRequest
from fairbits.text.included_texts import udhr

NAMES = ("eng", "heb")


@pytest.fixture(scope="module")
def asked(outer_blocks):
    """Two blocks of the embedded model, what they say to a text, and a copy of it with noise in one layer."""
    checkpoint = outer_blocks(2)
    text = tokenize_corpus(checkpoint, udhr(NAMES), request=TextRequest(tokens=300, sequence=64))
    student = checkpoint.load()
    with torch.no_grad():
        W = student.transformer.h[1].mlp.dense_h_to_4h.weight
        W += 0.5 * torch.randn(W.shape, generator=torch.Generator().manual_seed(0))
    with ReferenceModel.on_text(checkpoint, text) as reference:
        yield reference, student, checkpoint


def test_divergence_is_that_of_torch_and_so_is_its_gradient():
    a, b = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    b.requires_grad_()
    divergence = differentiable_kl(a, b)
    divergence.pow(2).sum().backward()
    mine, b.grad = b.grad, None
    expected = kl_div(b.log_softmax(1), a.log_softmax(1), reduction="none", log_target=True).sum(1)
    expected.pow(2).sum().backward()
    torch.testing.assert_close(divergence, expected)
    torch.testing.assert_close(mine, b.grad)


def test_damage_is_what_an_evaluation_measures(asked):
    reference, student, _ = asked
    teacher = Teacher(reference, student)
    damage = teacher.damage(range(len(reference.text.windows)))
    answers = reference.compare(student)
    languages = reference.text.language_of
    kl = np.bincount(languages, answers.kl) / np.bincount(languages, answers.predicted)
    assert np.allclose(damage, kl, rtol=1e-4)
    assert (damage > 0.001).all()


def test_gradients_are_those_of_the_weighted_mean_of_languages(asked, monkeypatch):
    reference, student, checkpoint = asked
    text = reference.text
    weight = student.transformer.h[1].mlp.dense_h_to_4h.weight
    windows = [i for i in range(len(text.windows)) if text.windows[i].length > 20][:5]
    shares = np.array([0.2, 0.8])
    monkeypatch.setattr(model_distillation, "positions_of_logits", lambda _config, _device: 17)  # many parts
    teacher = Teacher(reference, student)
    batch = teacher.batch(windows)
    student.zero_grad()
    kl = teacher.add_gradients(batch, shares)
    mine = weight.grad.clone()
    student.zero_grad()
    logits = student(**batch.batch.inputs).logits[batch.rows, batch.columns]
    with torch.no_grad():
        original = checkpoint.load()
        target = original(**batch.batch.inputs).logits[batch.rows, batch.columns].log_softmax(1)
    whole = kl_div(logits.log_softmax(1), target, reduction="none", log_target=True).sum(1)
    loss = sum(share * whole[batch.language == i].mean() for i, share in enumerate(shares))
    loss.backward()
    torch.testing.assert_close(kl, whole.detach(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(mine, weight.grad, rtol=1e-3, atol=1e-6)


def test_blocks_that_are_computed_again_give_the_same_gradients(asked):
    reference, student, _ = asked
    student.requires_grad_(False)
    student.zero_grad()
    blocks = list(student.transformer.h)
    weights = [block.mlp.dense_h_to_4h.weight.requires_grad_() for block in blocks]
    gradients = []
    for recomputed in ((), blocks):
        teacher = Teacher(reference, student, recomputed=recomputed)
        teacher.add_gradients(teacher.batch(range(4)), np.array([0.2, 0.8]))
        gradients.append([weight.grad.clone() for weight in weights])
        student.zero_grad()
    for one, other in zip(*gradients, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other)
