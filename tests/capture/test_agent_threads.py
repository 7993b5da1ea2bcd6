"""When other threads of the process are at work."""

import hashlib
import threading

from diagnose.capture.agent.threads import wait_for_others

ROUNDS = 300_000  # Of a hash that keeps a core busy for a tenth of a second, without Python's lock.


def test_what_another_thread_computes_is_waited_for() -> None:
    done: list[bytes] = []
    thread = threading.Thread(target=lambda: done.append(hashlib.pbkdf2_hmac("sha256", b"a", b"b", ROUNDS)))
    thread.start()
    wait_for_others(most_s=60)
    assert len(done) == 1
    thread.join()


def test_a_thread_that_never_rests_is_not_waited_for_forever() -> None:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", 1000)

    thread = threading.Thread(target=compute)
    thread.start()
    wait_for_others(most_s=0.05)
    assert thread.is_alive()
    over.set()
    thread.join()
