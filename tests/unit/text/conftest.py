"""A small parallel corpus, and a tokenizer trained on it."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr

ENG, FRA, HEB, ZHO = "eng_Latn", "fra_Latn", "heb_Hebr", "zho_Hans"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return udhr([ENG, FRA, HEB, ZHO])


@pytest.fixture(scope="module")
def tokenizer(corpus) -> PreTrainedTokenizerFast:
    """A byte-level BPE that adds a token at the beginning, as those of many models."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator((text for texts in corpus.evaluation.values() for text in texts), trainer)
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>")
