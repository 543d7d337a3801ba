"""Learns codes and scales of a whole model end to end: its answers shall be those of the full-precision model."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils import parametrize

from fairbits.checks import Floats
from fairbits.progress import Progress
from fairbits.quantize.learning.course import Course, load_course, save_course
from fairbits.quantize.learning.latents import Latents
from fairbits.quantize.learning.lessons import Lessons
from fairbits.quantize.learning.teacher import Class
from fairbits.quantize.plan import Learning

WARM_UP = 0.05
"""Share of the steps in which the rate rises."""
CHECKS = 8
"""How often what was learned is judged on text kept apart, and saved."""
MODEL_RATE = 10.0
"""Rate of learning end to end, as a share of that block by block, times the square root of the number of steps.

A gradient of the whole model has more noise, and noise carries weights as far as the root of the number of steps.
"""
SCALE_RATE = 0.1
"""Rate of the logarithm of scales, as a share of that of the offsets."""
BETAS = (0.9, 0.99)
EPSILON = 1e-15
"""What Adam adds to the size of a gradient: that of one weight comes near its usual 10⁻⁸, which would slow it."""


def learn(
    latents: Mapping[str, Latents],
    room: Class,
    lessons: Lessons,
    *,
    how: Learning,
    seed: int,
    saved: Path | None = None,
    progress: Progress | None = None,
) -> Course:
    """Returns the course with the best codes on text kept apart that leave no language worse off than the first.

    Goes on from `saved` where that is there, and saves itself there whenever it is judged.
    """
    optimizer = optimizer_of(latents, min(MODEL_RATE / math.sqrt(max(how.model_steps, 1)), 1.0) * how.rate)
    course = None if saved is None else load_course(saved, latents, optimizer)
    if course is None:
        course = Course.begun(_damage(room, lessons), how.objective)
    order, judged = lessons.order(steps=how.model_steps, rows=how.rows, seed=seed), checks(how.model_steps)
    for windows in order[course.step :]:
        room.learn(room.lesson(windows), course.shares * len(course.shares) / len(windows))
        change(latents, optimizer, schedule(course.step, how.model_steps))
        course.step += 1
        if course.step in judged:
            course.judge(_damage(room, lessons), latents, how.objective)
            if saved is not None:
                save_course(saved, course, latents, optimizer)
        if progress is not None:
            progress(_stage(course, lessons.text.languages), course.step, how.model_steps)
    return course


def checks(steps: int) -> frozenset[int]:
    """Returns after which steps it is judged what was learned.

    >>> sorted(checks(20))
    [2, 5, 8, 10, 12, 15, 18, 20]
    """
    return frozenset(round(steps * (i + 1) / CHECKS) for i in range(CHECKS))


def change(latents: Mapping[str, Latents], optimizer: torch.optim.Adam, share: float) -> None:
    """Changes the latents by their gradients, at a share of the peak rate."""
    for group in optimizer.param_groups:
        group["lr"] = share * group["peak"]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for each in latents.values():
        each.bound()


def schedule(step: int, steps: int) -> float:
    """Returns the share of the peak rate at a step: a short rise, then a cosine down to 0.

    >>> schedule(0, 100), round(schedule(52, 100), 2), round(schedule(99, 100), 4)
    (0.2, 0.51, 0.0003)
    """
    rise = WARM_UP * steps
    if step < rise:
        return (step + 1) / math.ceil(rise)
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))


def optimizer_of(latents: Mapping[str, Latents], rate: float) -> torch.optim.Adam:
    """Returns Adam over offsets and logarithms of scales, each group with its `peak` rate."""
    offsets = [each.offsets for each in latents.values()]
    logs = [each.logs for each in latents.values()]
    groups = [{"params": offsets, "peak": rate}, {"params": logs, "peak": SCALE_RATE * rate}]
    return torch.optim.Adam(groups, lr=rate, betas=BETAS, eps=EPSILON, fused=True)


def _damage(room: Class, lessons: Lessons) -> Floats:
    with parametrize.cached():
        return room.damage(lessons.apart)


def _stage(course: Course, languages: tuple[str, ...]) -> str:
    damage = course.history[-1].damage
    worst = int(np.argmax(damage))
    return f"learning, {languages[worst]} is worst at {damage[worst]:.4f} nats"
