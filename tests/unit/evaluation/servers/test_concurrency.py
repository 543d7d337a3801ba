"""Many requests at a time."""

import threading
import time
from collections import Counter

import pytest

from fairbits.evaluation.servers.address import ServerAddress
from fairbits.evaluation.servers.concurrency import all_answers
from fairbits.evaluation.servers.http_client import HttpClient


@pytest.fixture
def client() -> HttpClient:
    address = ServerAddress.parse("http://localhost:9")
    return HttpClient(address, key=None, connections=1, timeout=1.0, patience=0.0)


@pytest.mark.parametrize("in_order", [False, True])
def test_every_number_is_answered_once(client, in_order) -> None:
    running, most, lock = Counter[str](), Counter[str](), threading.Lock()
    numbers = list(range(50, 0, -1))
    seen: list[int] = []
    taken = Counter[str]()

    def ask(number: int) -> int:
        with lock:
            running["now"] += 1
            taken["asked"] += 1
            most["now"] = max(most["now"], running["now"])
            most["ahead"] = max(most["ahead"], taken["asked"] - len(seen))
        time.sleep(0.002 * (number % 3))
        with lock:
            running["now"] -= 1
        return -number

    for number, answer in all_answers(client, ask, numbers, 4, in_order=in_order):
        assert answer == -number
        seen.append(number)
    assert (seen if in_order else sorted(seen, reverse=True)) == numbers
    assert most["now"] <= 4
    assert most["ahead"] <= 9  # what is not taken yet does not fill the memory


def test_nothing_to_ask_and_answers_that_are_none(client) -> None:
    assert list(all_answers(client, int, [], 4)) == []
    assert list(all_answers(client, lambda _: None, [1], 4)) == [(1, None)]


def test_who_stops_early_ends_the_requests(client) -> None:
    answers = all_answers(client, lambda number: client.get_if_there(f"http://localhost:9/{number}"), range(9), 2)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    with pytest.raises(Exception, match=r"did not answer|cannot be reached"):
        client.get("http://localhost:9/", dict)
