"""Limits that have a name. The numbers of tokens are levels of docs/scores.md; `evaluation.meaning` has the words."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """Of 100 tokens, how many may change in any language; of 100 answers, how many more in another language."""

    changed: float
    wrong_language: float

    @property
    def sentence(self) -> str:
        """What the limits promise."""
        return (
            f"at most {self.changed:g} of 100 next tokens change in any language, and of 100 answers at most "
            f"{self.wrong_language:g} more are in another language than their prompt"
        )


PROFILES = {"strict": Profile(5.0, 2.0), "standard": Profile(10.0, 5.0), "loose": Profile(25.0, 10.0)}
