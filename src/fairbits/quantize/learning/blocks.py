"""Learns codes and scales of one block after the other: each shall give what the full-precision model gives there.

The error of a language is Σ‖ŷ − y‖² / Σ‖y‖² over its positions of text: ŷ is what the block gives with its codes for
what the quantized blocks before it give, y the hidden states of the full-precision model. So a block also makes up
for what those before it have lost. To divide by ‖y‖² or by what the block adds to its input makes no difference worth
mentioning in the embedded model; ‖y‖² is never 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.model.codes import Codes
from fairbits.model.device import autocast
from fairbits.quantize.learning.course import Course
from fairbits.quantize.learning.latents import Latents, attached
from fairbits.quantize.learning.lessons import Lessons
from fairbits.quantize.learning.training import change, checks, optimizer_of, schedule
from fairbits.quantize.plan import Learning
from fairbits.quantize.rounding.lockstep import Turn
from fairbits.quantize.rounding.station import Station


@dataclass(frozen=True, eq=False)
class Page:
    """A batch before a block: what the block shall give, where text is, and in which language.

    `target`  (rows, length, width)
    `at`      positions of text, counted through all rows; `language` is that of each
    """

    turn: Turn
    target: Tensor
    at: Tensor
    language: Tensor

    def distance(self) -> Tensor:
        """Returns ‖ŷ − y‖² of every position of text."""
        return (self._text_of(self.turn.output()) - self._text_of(self.target)).float().square().sum(1)

    def energy(self) -> Tensor:
        """Returns ‖y‖² of every position of text."""
        return self._text_of(self.target).float().square().sum(1)

    def learn(self, weights: Floats) -> None:
        """Adds the gradients of Σ_λ weight_λ Σ‖ŷ − y‖² to those of whatever the block learns."""
        with autocast(self.target.device):
            distance = self.distance()
        own = torch.from_numpy(weights).float().to(distance.device)[self.language]
        (distance * own).sum().backward()  # type: ignore[no-untyped-call]

    def _text_of(self, states: Tensor) -> Tensor:
        return states.reshape(-1, states.shape[-1])[self.at]


def refiner(how: Learning, lessons: Lessons, *, seed: int) -> "Refiner":
    """Returns what `round_model` is to refine blocks with; it may walk with a part of the text of the lessons.

    The error of a language in a block is not yet its damage: where the whole model is learned afterwards, no language
    counts more than another until then.
    """
    text = lessons.text
    apart = frozenset(text.windows[i].document for i in lessons.apart)
    own = replace(how, objective="mean") if how.model_steps else how
    return Refiner(own, text.languages, torch.from_numpy(text.language_of), apart, seed)


@dataclass(frozen=True, eq=False)
class Refiner:
    """Learns the codes of blocks from text; on the documents `apart` it is judged what was learned."""

    how: Learning
    languages: tuple[str, ...]
    language_of: Tensor
    apart: frozenset[int]
    seed: int

    @property
    def ticks(self) -> int:
        """One for every step."""
        return self.how.block_steps

    def __call__(self, station: Station) -> dict[str, Codes]:
        """Returns the best codes on text kept apart that leave no language with more error than those at the start."""
        sides: tuple[list[Page], list[Page]] = ([], [])
        for turn, target in zip(station.turns, station.targets, strict=True):
            sides[int(turn.batch.document[0]) in self.apart].append(self.page(turn, target, station.stack))
        with attached(station.model, station.weights, station.start) as latents:
            course = self._course(latents, *sides, station=station)
        return course.best or {name: codes for name, (codes, _) in station.start.items()}

    def page(self, turn: Turn, target: Tensor, stack: str) -> Page:
        """Returns a batch before a block of a stack."""
        text = turn.batch.positions(stack).text
        at = text.flatten().nonzero()[:, 0]
        language = self.language_of[turn.batch.document[at // text.shape[1]]]
        return Page(turn, target, at.to(target.device), language.to(target.device))

    def _course(
        self, latents: Mapping[str, Latents], pages: Sequence[Page], apart: Sequence[Page], *, station: Station
    ) -> Course:
        """Returns the course that the latents of a block take."""
        how, count = self.how, len(self.languages)
        course = Course.begun(relative_error(apart, count), how.objective)
        energy = _energy(pages, count)
        optimizer = optimizer_of(latents, how.rate)
        judged = checks(how.block_steps)
        for chosen in _order(pages, how, seeds=(self.seed, station.index)):
            for page in chosen:
                page.learn(course.shares / energy)
            change(latents, optimizer, schedule(course.step, how.block_steps))
            course.step += 1
            if course.step in judged:
                course.judge(relative_error(apart, count), latents, how.objective)
            station.tick()
        return course


@torch.no_grad()
def relative_error(pages: Sequence[Page], count: int) -> Floats:
    """Returns the error of each of `count` languages."""
    with parametrize.cached():
        found: Floats = _sums(pages, (page.distance() for page in pages), count) / _energy(pages, count)
    if not np.isfinite(found).all():
        raise InputError("a block gives NaN or infinity on the calibration text; check the model's weights")
    return found


def _energy(pages: Sequence[Page], count: int) -> Floats:
    """Returns Σ‖y‖² of each language; one without text here has no error, whatever it is divided by."""
    return np.maximum(_sums(pages, (page.energy() for page in pages), count), np.finfo(np.float64).tiny)


def _sums(pages: Sequence[Page], values: Iterator[Tensor], count: int) -> Floats:
    """Returns the sum of the values of each language; one value for every position of every page."""
    sums = np.zeros(count)
    for page, each in zip(pages, values, strict=True):
        sums += np.bincount(page.language.cpu(), each.double().cpu(), minlength=count)
    return sums


def _order(pages: Sequence[Page], how: Learning, *, seeds: tuple[int, ...]) -> Iterator[list[Page]]:
    """Yields the pages of every step, of `rows` windows or more: all in random order, then all again in another."""
    rng = np.random.default_rng(seeds)
    left: list[int] = []
    for _ in range(how.block_steps):
        chosen: list[Page] = []
        while sum(len(page.target) for page in chosen) < how.rows:
            left = left or rng.permutation(len(pages)).tolist()
            chosen.append(pages[left.pop()])
        yield chosen
