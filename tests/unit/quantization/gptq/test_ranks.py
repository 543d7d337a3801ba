"""Several ranks round one model to the codes of a single one; here they are threads, of which one runs at a time."""

import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fairbits.core.errors import AlreadyReportedError, InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import resolve_device
from fairbits.quantization.gptq import block_rounding, engine
from fairbits.quantization.gptq.block_rounding import RoundedBlock
from fairbits.quantization.gptq.engine import round_model
from fairbits.quantization.gptq.ranks import Ranks, _Packer, _Unpacker
from fairbits.quantization.plan import Plan

LANGUAGES = ("eng_Latn", "heb_Hebr")


class Baton:
    """Lets the threads of `count` ranks run in turn: each until it brings a value for the others."""

    def __init__(self, count: int) -> None:
        self.count, self.turn, self.failed = count, 0, False
        self.changed = threading.Condition()
        self.values: dict[tuple[int, int], Any] = {}

    def wait(self, rank: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.turn == rank or self.failed, timeout=60)
            assert not self.failed

    def hand_on(self) -> None:
        with self.changed:
            self.turn = (self.turn + 1) % self.count
            self.changed.notify_all()


def packed(value: Any) -> tuple[bytes, list[torch.Tensor]]:
    packer = _Packer(file := io.BytesIO())
    packer.dump(value)
    return file.getvalue(), packer.tensors


def unpacked(content: bytes) -> tuple[Any, list[torch.Tensor]]:
    unpacker = _Unpacker(io.BytesIO(content), "cpu")
    return unpacker.load(), unpacker.tensors


class ThreadRanks(Ranks):
    """A rank whose values reach the others as they do between processes, by their bytes."""

    def __init__(self, rank: int, baton: Baton) -> None:
        super().__init__(rank, baton.count)
        self.baton, self.exchanges = baton, 0

    def each(self, value: Any) -> Iterator[Any]:
        exchange, self.exchanges = self.exchanges, self.exchanges + 1
        self.baton.values[exchange, self.rank] = packed(value)
        self.baton.hand_on()
        self.baton.wait(self.rank)
        for rank in range(self.count):
            content, tensors = self.baton.values[exchange, rank]
            received, buffers = unpacked(content)
            for buffer, tensor in zip(buffers, tensors, strict=True):
                buffer.copy_(tensor)
            yield received


def in_ranks(count: int, work: Callable[[Ranks], list[RoundedBlock]]) -> list[list[RoundedBlock]]:
    """Returns what each of some ranks yields."""
    baton, outcomes = Baton(count), dict[int, Any]()

    def run(rank: int) -> None:
        try:
            baton.wait(rank)
            outcomes[rank] = work(ThreadRanks(rank, baton))
        except BaseException as problem:
            outcomes[rank], baton.failed = problem, True
        baton.hand_on()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcome in outcomes.values():
        if isinstance(outcome, InputError):
            raise outcome
    return [outcomes[rank] for rank in range(count)]


def assert_equal(blocks: list[RoundedBlock], wanted: list[RoundedBlock]) -> None:
    assert [block.index for block in blocks] == [block.index for block in wanted]
    for one, other in zip(blocks, wanted, strict=True):
        assert one.results == other.results  # with the errors of languages, to the last bit
        assert list(one.layers) == list(other.layers)
        for name, codes in one.layers.items():
            assert torch.equal(codes.codes, other.layers[name].codes)
            assert torch.equal(codes.scales, other.layers[name].scales)
        assert one.thresholds.keys() == other.thresholds.keys()
        assert all(torch.equal(tensor, other.thresholds[name]) for name, tensor in one.thresholds.items())


@pytest.fixture
def small_batches(monkeypatch) -> None:
    """Makes batches of a few windows, and panels of a few columns."""
    monkeypatch.setattr(engine, "positions_at_once", lambda *_, **__: 40)
    monkeypatch.setattr("fairbits.quantization.gptq.hessian.PANEL", 10)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    ("family", "count", "how"),
    [
        ("llama", 2, {"rounding": "gptq"}),
        ("llama", 3, {"objective": "worst", "thresholds": True}),
        ("mt5", 3, {"rounding": "gptq", "objective": "regret"}),
        ("mixtral", 2, {"rounding": "gptq", "outside": True}),
        ("xlmr", 20, {"rounding": "gptq"}),
    ],
)
def test_ranks_round_to_the_codes_of_one_process(family, count, how, reading_model, weather, plan_of) -> None:
    checkpoint: Checkpoint = reading_model(family)
    plan: Plan = plan_of(checkpoint, languages=LANGUAGES, **how)
    text = weather(checkpoint)
    wanted = list(round_model(checkpoint, plan, text=text))
    assert any(result.error for block in wanted for result in block.results)
    for blocks in in_ranks(count, lambda ranks: list(round_model(checkpoint, plan, text=text, ranks=ranks))):
        assert_equal(blocks, wanted)


@pytest.mark.usefixtures("small_batches")
def test_ranks_round_without_text_and_go_on_from_finished_blocks(reading_model, weather, plan_of) -> None:
    checkpoint: Checkpoint = reading_model("llama")
    plain = plan_of(checkpoint, outside=True)
    wanted = list(round_model(checkpoint, plain))
    assert_equal(in_ranks(2, lambda ranks: list(round_model(checkpoint, plain, ranks=ranks)))[1], wanted)
    plan, text = plan_of(checkpoint, languages=LANGUAGES, rounding="gptq"), weather(checkpoint)
    wanted = list(round_model(checkpoint, plan, text=text))

    def go_on(ranks: Ranks) -> list[RoundedBlock]:
        finished = {0: wanted[0]}.get
        return list(round_model(checkpoint, plan, text=text, finished=finished, ranks=ranks))

    assert_equal(in_ranks(2, go_on)[0], wanted)


def test_work_is_shared_and_what_one_rank_refuses_ends_the_work(reading_model, weather, plan_of, monkeypatch) -> None:
    checkpoint: Checkpoint = reading_model("llama")
    plan, rounded = plan_of(checkpoint, rounding="gptq", languages=LANGUAGES), dict[int, list[Any]]()

    def note(W: Any, *args: Any, **how: Any) -> Any:
        rounded.setdefault(threading.get_ident(), []).append(W.shape)
        if len(rounded) == 2:
            raise InputError("no more")
        return round_layer(W, *args, **how)

    round_layer = block_rounding.round_layer
    monkeypatch.setattr(block_rounding, "round_layer", note)
    with pytest.raises(InputError, match=r"layers.0.*: no more"):
        in_ranks(2, lambda ranks: list(round_model(checkpoint, plan, text=weather(checkpoint), ranks=ranks)))
    first, second = rounded.values()
    assert 0 < len(first) < 7
    assert len(second) == 1


def test_learned_rounding_is_refused(reading_model, weather, plan_of) -> None:
    checkpoint: Checkpoint = reading_model("llama")
    refine: Any = object()
    with pytest.raises(InputError, match="runs in one process; start it without torchrun"):
        round_model(checkpoint, plan_of(checkpoint), text=weather(checkpoint), refine=refine, ranks=Ranks(0, 2))


def test_all_that_is_packed_arrives() -> None:
    value = {
        "a": [torch.arange(6).reshape(2, 3).T, torch.tensor(1.5, dtype=torch.bfloat16)],
        "b": (torch.empty(0), "c"),
    }
    content, tensors = packed(value)
    received, buffers = unpacked(content)
    for buffer, tensor in zip(buffers, tensors, strict=True):
        buffer.copy_(tensor)
    assert received["a"][0].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert received["a"][1] == 1.5
    assert received["b"][1] == "c"
    assert len(content) < 1000


def test_a_process_that_is_alone_reports_its_own_errors() -> None:
    ranks = Ranks()
    assert list(ranks.each("value")) == ["value"]
    assert ranks.share(lambda: 1) == ranks.lead_first(lambda: 1) == 1
    ranks.use("cpu")
    with pytest.raises(InputError, match=r"^own$"), ranks.together():
        raise InputError("own")
    assert not issubclass(InputError, AlreadyReportedError)


def test_each_process_has_its_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    started = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert resolve_device("auto") == "cuda"
    for name, value in {**started, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert [resolve_device(device) for device in ("auto", "cuda", "cuda:0", "cpu")] == [
        "cuda:1",
        "cuda:1",
        "cuda:0",
        "cpu",
    ]
    assert resolve_device("auto", earlier="cuda") == "cuda:1"
    assert resolve_device("auto", earlier="cpu") == "cpu"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(InputError, match="started 3 processes and torch has 2 GPUs"):
        resolve_device("auto")
