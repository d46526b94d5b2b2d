"""Threads pass the gate together, or one alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from tvm_winograd.deploy.gate import Gate

SOON = 10  # seconds: only a broken gate waits so long


def test_many_together_or_one_alone():
    gate, both = Gate(), threading.Barrier(2, timeout=SOON)
    inside, wrong = [], []

    def user(_):
        with gate.together():
            inside.append("user")
            wrong.extend(w for w in inside if w == "loader")
            inside.remove("user")

    def loader(_):
        with gate.alone():
            inside.append("loader")
            wrong.extend(inside[:-1])
            inside.remove("loader")

    def pair():
        with gate.together():
            both.wait()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(pair), pool.submit(pair)]:
            done.result(SOON)
        tasks = [pool.submit((user, loader)[i % 4 == 0], i) for i in range(400)]
        for done in tasks:
            done.result(SOON)
    assert not wrong and not inside


def test_a_loader_is_not_starved():
    """Users come and go without a gap; who comes after the loader waits for it."""
    gate, order = Gate(), []
    first_in, let_go = threading.Event(), threading.Event()

    def first():
        with gate.together():
            first_in.set()
            let_go.wait(SOON)
            order.append("first user")

    def loader():
        with gate.alone():
            order.append("loader")

    def second():
        with gate.together():
            order.append("second user")

    with ThreadPoolExecutor(3) as pool:
        pool.submit(first)
        first_in.wait(SOON)
        waiting = pool.submit(loader)
        with gate._changed:
            assert gate._changed.wait_for(lambda: gate._closed, SOON)
        last = pool.submit(second)
        let_go.set()
        waiting.result(SOON)
        last.result(SOON)
    assert order == ["first user", "loader", "second user"]


def test_an_error_inside_opens_it_again():
    gate = Gate()
    for entered in (gate.alone, gate.together, gate.alone):
        try:
            with entered():
                raise ValueError
        except ValueError:
            pass
    with gate.alone():
        pass
