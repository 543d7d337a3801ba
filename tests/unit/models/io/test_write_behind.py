import threading
import time

import pytest

from fairbits.core.errors import InputError
from fairbits.core.memory import WAITING_BLOCKS
from fairbits.models.io.writer import WriteBehind


def test_all_is_written_when_the_statement_ends():
    done = []
    with WriteBehind() as behind:
        for i in range(20):
            behind.add(lambda i=i: (time.sleep(0.001), done.append(i))[0])
    assert sorted(done) == list(range(20))


def test_only_a_few_wait():
    gate, waiting, most = threading.Event(), [], []

    def write():
        gate.wait()
        waiting.pop()

    def fill(behind):
        for _ in range(2 * WAITING_BLOCKS):
            behind.add(write)
            waiting.append(None)
            most.append(len(waiting))

    with WriteBehind() as behind:
        filling = threading.Thread(target=fill, args=(behind,))
        filling.start()
        time.sleep(0.1)
        assert len(waiting) == WAITING_BLOCKS
        gate.set()
        filling.join()
    assert max(most) <= WAITING_BLOCKS
    assert not waiting


def full(*_):
    raise InputError("no room")


def test_a_problem_is_raised_in_the_caller_and_what_has_not_begun_is_not_written():
    done = []

    def write_all():
        with WriteBehind() as behind:
            behind.add(full)
            for i in range(50):
                time.sleep(0.01)
                behind.add(lambda i=i: done.append(i))

    with pytest.raises(InputError, match="no room"):
        write_all()
    assert len(done) < 5


def test_a_problem_of_the_last_one_is_raised_too():
    with pytest.raises(InputError, match="no room"), WriteBehind() as behind:
        behind.add(full)


def test_what_is_complete_is_written_though_the_caller_is_interrupted():
    done, gate = [], threading.Event()

    def write_all():
        with WriteBehind() as behind:
            for i in range(WAITING_BLOCKS):
                behind.add(lambda i=i: (gate.wait(), done.append(i))[0])
            gate.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_all()
    assert sorted(done) == list(range(WAITING_BLOCKS))
