"""How a quantized model was measured where another engine computed it, and what its KL divergence then is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fairbits.core.records import Amount, Code, Name, Positive, Share

KL = Literal["whole vocabulary", "lower bound", "text of the reference"]
"""What a KL divergence is: exact; at most the true one, from the most probable tokens; or an unbiased estimate on text
that the reference model wrote."""
WHOLE: KL = "whole vocabulary"
BOUND: KL = "lower bound"
WRITTEN: KL = "text of the reference"


@dataclass(frozen=True)
class AnswerNoise:
    """How two answers of a server to the same request differ."""

    tokens: Positive
    difference: Amount  # the mean of |Δ log p| of the tokens of the text, in nats
    changed: Share  # tokens whose first choice differs


@dataclass(frozen=True)
class Measurement:
    """The engine that computed the quantized model, what its KL divergence is, and the engine's own noise."""

    engine: Name  # such as "vLLM 0.32.0"
    kl: KL = WHOLE
    url: str | None = None
    model: str | None = None  # as the server names it
    hidden_states: str | None = None  # the directory where the server wrote them
    checkpoint: str | None = None  # whose head read them
    top: Positive | None = None  # how many of the most probable tokens were returned
    covered: Mapping[Code, Share] = field(default_factory=dict)  # the reference's probability of the returned tokens
    undecided: Mapping[Code, Share] = field(default_factory=dict)  # tokens that count as changed, and may not be
    noise: Mapping[Code, AnswerNoise] = field(default_factory=dict)

    @property
    def kl_label(self) -> str:
        """What the KL divergence is, for the head of a column."""
        return {WHOLE: "KL", BOUND: "KL at least", WRITTEN: "KL (estimate)"}[self.kl]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the scores must know."""
        notes = [f"measured in {self.engine}{f' at {self.url}' if self.url else ''}"]
        if self.model:
            notes[0] += f", model {self.model}"
        if self.kl == BOUND:
            least = min(self.covered.values(), default=0.0)
            notes.append(
                f"KL is a lower bound from the {self.top} most probable tokens, which have at least {least:.1%} of the "
                "reference's probability in every language; perplexity and the added loss are exact"
            )
        if self.kl == WRITTEN:
            notes.append("KL is an unbiased estimate, on text that the reference model wrote")
        if self.undecided:
            code, share = max(self.undecided.items(), key=lambda pair: pair[1])
            notes.append(
                "the server names tokens by their text, which several have: changed tokens are an upper bound, of "
                f"which up to {100 * share:.2g} of 100 tokens are uncertain in {code}"
            )
        elif self.kl != WHOLE:
            notes.append("changed tokens are exact")
        if self.noise:
            code = max(self.noise, key=lambda code: self.noise[code].changed)
            worst = self.noise[code]
            differ = (
                f"differ by {worst.difference:.2g} nats per token and {100 * worst.changed:.2g} of 100 first choices "
                f"in {code}, where they differ most"
            )
            alike = not any(noise.difference or noise.changed for noise in self.noise.values())
            notes.append(f"two answers of the server to the same request {'are the same' if alike else differ}")
        return tuple(notes)
