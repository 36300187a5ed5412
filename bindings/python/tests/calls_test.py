"""Calls as such: threads, forks, Ctrl-C."""

from __future__ import annotations

import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import qkv
from cases import random, tensors


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = qkv.num_threads()
    yield
    qkv.set_num_threads(before)


def test_the_number_of_threads_changes_no_bit() -> None:
    q, k, v = (random((2, 4, 300, 32), seed=n) for n in range(3))
    results = []
    for threads in (1, 2, 3, 8):
        qkv.set_num_threads(threads)
        assert qkv.num_threads() == threads
        out, lse = qkv.attention(q, k, v, causal=True, return_lse=True)
        results.append((out, lse, *qkv.attention_backward(out, q, k, v, out, lse, causal=True)[:3]))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("threads", [0, -1, 5000, 10**12])
def test_a_number_of_threads_that_cannot_be_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=f"^threads is {threads}, expected 1 to 4096"):
        qkv.set_num_threads(threads)


@pytest.mark.parametrize("threads", ["2", None, 2.0, True])
def test_what_is_no_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(TypeError, match=f"^threads is {threads!r}, expected a whole number"):
        qkv.set_num_threads(threads)


def test_calls_from_many_threads_at_once() -> None:
    q, k, v = (random((1, 4, 200, 32), seed=n) for n in range(3))
    expected = qkv.attention(q, k, v, causal=True)

    def call(n: int) -> bool:
        if n % 16 == 0:
            qkv.set_num_threads(1 + n // 16 % 3)
        return bool((qkv.attention(q, k, v, causal=True) == expected).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(128)))


def test_other_threads_go_on_during_a_call() -> None:
    q, k, v = (random((1, 8, 2048, 64), seed=n) for n in range(3))
    ended = threading.Event()
    steps = 0

    def call() -> None:
        qkv.attention(q, k, v)
        ended.set()

    thread = threading.Thread(target=call)
    thread.start()
    while not ended.wait(0.001):
        steps += 1
    thread.join()
    assert steps > 3


def test_errors_in_a_thread_stay_there() -> None:
    q, k, v = tensors()
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(qkv.attention, q, k, v, causal=True) for _ in range(8)]
        for call in calls:
            with pytest.raises(ValueError, match="Say align"):
                call.result()


def program(text: str) -> subprocess.Popen[str]:
    """Another Python that runs this."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end_of(child: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return child.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        child.kill()
        pytest.fail("it does not end")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("chosen", ["", "qkv.set_num_threads(3)"])
def test_a_forked_child_computes(chosen: str) -> None:
    child = program(f"""
        import os
        import numpy as np
        import qkv

        {chosen}
        q = np.random.default_rng(0).standard_normal((2, 8, 512, 64), dtype=np.float32)
        expected = qkv.attention(q, q, q)
        child = os.fork()
        same = bool((qkv.attention(q, q, q) == expected).all())
        if child == 0:
            os._exit(0 if same else 1)
        print(same, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    """)
    assert end_of(child)[0] == "True 0\n"


LONG_CALLS = {
    "attention": "qkv.attention(q, q, q, return_stats=True)",
    "backward": "qkv.attention_backward(q, q, q, q, q, q[..., 0])",
    "observe": "qkv.observe(q, q, q)",
    "varlen": "qkv.attention_varlen(q[0].swapaxes(0, 1), q[0].swapaxes(0, 1), q[0].swapaxes(0, 1), [0, n], [0, n])",
    "visible": "qkv.visible(q[:, :1, :60_000], q[:, :1, :60_000], q[:, :1, :60_000], document_ids=np.arange(60_000) % 7)",
    "merge": "qkv.merge([q] * 200, [q[..., 0]] * 200)",
    "explain_path": "qkv.explain_path(q, q, q, keep_mask=np.broadcast_to(np.arange(n) % 3 > 0, (1, 8, n, n)))",
    "explain": "qkv.explain(q[:, :, :1], many, many)",
    "explain with gradients": "qkv.explain(q[:, :, :1], many, many, dout=1)",
    "data of an explanation": "explained.data",
    "see weights": "qkv.see(weights=weights)",
    "text of a picture": "str(large)",
    "page": "qkv.see(q[:, :1, :40_000], q[:, :1, :40_000]).html()",
    "png": "large.png()",
    "data of a picture": "large.data",
    "text of weights": "str(seen)",
}

#: What has to be there first, and is not long itself.
BEFORE = {
    "many": "many = np.broadcast_to(np.float32(0.5), (1, 1, 4_000_000, 64))",
    "explained": "explained = qkv.explain(q[:, :, :1], q[:, :1].repeat(4, 2), q[:, :1].repeat(4, 2))",
    "weights": "weights = np.broadcast_to(np.float32(1 / 6000), (6, 6000, 6000))",
    "large": "large = qkv.see(q, q)",
    "seen": "seen = qkv.see(weights=np.broadcast_to(np.float32(1 / 6000), (6, 6000, 6000)))",
}


def processor_seconds(pid: int) -> float:
    """What a running process has used so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("call", LONG_CALLS)
def test_control_c_ends_a_long_call_within_a_second(call: str) -> None:
    before = "; ".join(line for name, line in BEFORE.items() if name in re.findall(r"\w+", LONG_CALLS[call]))
    child = program(f"""
        import numpy as np
        import qkv

        n = 150_000
        q = np.broadcast_to(np.float32(0.5), (1, 8, n, 64))
        {before}
        print("calls", flush=True)
        try:
            {LONG_CALLS[call]}
        except KeyboardInterrupt:
            print("interrupted", qkv.attention(q[:, :, :3], q[:, :, :3], q[:, :, :3])[0, 0, 0, 0], flush=True)
    """)
    assert child.stdout is not None and child.stdout.readline() == "calls\n"
    time.sleep(1)  # it is in the middle of it
    assert child.poll() is None
    used, began = processor_seconds(child.pid), time.monotonic()
    child.send_signal(signal.SIGINT)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    out, err = end_of(child)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    # On a busy machine what counts is the work.
    worked = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime - used
    assert min(took, worked) < 1
    assert out == "interrupted 0.5\n", err


def test_a_handler_that_raises_ends_the_call_with_what_it_raised() -> None:
    class Alarm(Exception):
        pass

    def ring(number: int, frame: object) -> None:
        raise Alarm

    q = np.broadcast_to(np.float32(0.5), (1, 8, 150_000, 64))
    before = signal.signal(signal.SIGALRM, ring)
    began = time.process_time()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Alarm):
            qkv.attention(q, q, q)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.process_time() - began < 2


def test_a_handler_that_returns_lets_the_call_go_on() -> None:
    rung = []
    q, k, v = (random((1, 8, 3000, 64), seed=n) for n in range(3))
    expected = qkv.attention(q, k, v)
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        got = qkv.attention(q, k, v)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rung
    np.testing.assert_array_equal(got, expected)
