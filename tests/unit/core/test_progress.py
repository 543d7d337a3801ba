"""The one way to report progress."""

from fairbits.core.progress import part, within


def test_stages_get_a_prefix() -> None:
    seen: list[tuple[str, float, float]] = []
    progress = within(lambda *call: seen.append(call), "gptq, 4 bits")
    assert progress is not None
    progress("rounding blocks", 1, 3)
    assert seen == [("gptq, 4 bits: rounding blocks", 1, 3)]


def test_rounds_are_parts_of_one_stage() -> None:
    seen: list[tuple[str, float, float]] = []
    for number in range(2):
        progress = part(lambda *call: seen.append(call), "trying mixes", number=number, count=2)
        assert progress is not None
        progress("rounding blocks", 1, 2)
        progress("rounding blocks", 2, 2)
    assert seen == [("trying mixes", done, 4) for done in (1, 2, 3, 4)]


def test_nobody_listens() -> None:
    assert within(None, "a") is None
    assert part(None, "a", number=0, count=1) is None
