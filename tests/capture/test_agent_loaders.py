"""What the agent says of real DataLoaders, and that it changes nothing about them."""

import gc
import inspect
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from diagnose.capture.agent import alone, interruptions, loaders, loaders_measured
from diagnose.capture.agent.batches import handing
from diagnose.capture.agent.loaders import LoaderWatch
from diagnose.capture.agent.loaders_measured import Fetch, Loader, Request, RunQueue, WorkerFile
from diagnose.capture.agent.plan import WORK
from diagnose.trace import manifest
from tests.capture.scripts import environment, wait_for

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")

ROOT = Path(__file__).parents[2]
Install = Callable[..., LoaderWatch]
PROGRAM = ROOT / "tests" / "data" / "loading" / "train.py"
TIMES = [name for name in manifest.Loader.__struct_fields__ if name.endswith("_ns")]


class Squares(data.Dataset):  # type: ignore[misc]
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index * index


class Permitted(Squares):
    """Makes an item for each permit."""

    def __init__(self, length: int, permits: Any) -> None:
        super().__init__(length)
        self.permits = permits

    def __getitem__(self, index: int) -> int:
        self.permits.acquire()
        return index


def slow_collate(items: list[int]) -> list[int]:
    time.sleep(0.02)
    return items


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / WORK).mkdir()
    return tmp_path


@pytest.fixture
def install(folder: Path) -> Iterator[Install]:
    yield lambda on_batch=lambda: None: loaders.use(LoaderWatch(folder / WORK, on_batch))
    loaders._watch = None
    assert alone.failures == []


def only(watch: LoaderWatch) -> manifest.Loader:
    (found,) = watch.loaders()
    assert set(found) == set(manifest.Loader.__struct_fields__)
    return msgspec.convert(json.loads(json.dumps(found)), manifest.Loader)


def test_nothing_heavy_is_imported() -> None:
    script = (
        "import sys; from pathlib import Path; from diagnose.capture.agent import loaders;"
        "loaders.use(loaders.LoaderWatch(Path('nowhere'), print));"
        "print({'torch', 'multiprocessing'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_means_and_shares(folder: Path) -> None:
    loader = Loader({"dataset": "Squares"})
    for fetch in (Fetch(100, 10, 90), Fetch(300, 30, 600), Fetch(200, 50, 200), Fetch(400, 40, 400)):
        loader.fetched(fetch)
    iterator = data.DataLoader(Squares(3)).__iter__()
    iterator._workers = []
    iterator._rcvd_idx = 0
    for wait_ns, ready in ((5, 0), (9, 2), (6, 3), (7, 0), (8, 0)):
        loader.waited(100, 100 + wait_ns, 0, ready, iterator, timed=ready > 0)
    assert loader.found(folder / WORK) == {
        **dict.fromkeys((*TIMES, "handing_share", "tensors", "objects", "batch_bytes", "sequences")),
        **{"dataset": "Squares", "dataset_length": 3, "batches": 4, "sampled": 0, "lines": [], "looks": 0},
        **{"fetch_ns": 250, "collate_ns": 32, "fetch_cpu_ns": 322, "sampling_ns": 0},
        "items_ns": 218,  # Of 90, 270, 150 and 360.
        "wait_ns": 8,  # 9, 6, 7 and 8, once steps are timed.
        **{"asked": 5, "asked_timed": 2, "empty_share": 0.6},
    }


class SlowOrder(data.Sampler):  # type: ignore[misc]
    def __iter__(self) -> Iterator[int]:
        for number in range(8):
            time.sleep(0.02)
            yield number


@pytest.mark.parametrize("workers", [0, 1])
def test_the_sampler_is_timed(install: Install, workers: int) -> None:
    watch = install()
    list(data.DataLoader(Squares(8), batch_size=1, sampler=SlowOrder(), num_workers=workers))
    found = only(watch)
    # A worker's iterator asks for the first two of eight before the training asks for a batch.
    assert found.wait_ns >= found.sampling_ns >= 20_000_000 * 6 / 8


def test_a_loader_in_process(install: Install) -> None:
    asked = list[int]()
    watch = install(lambda: asked.append(1))
    loader = data.DataLoader(Squares(10), batch_size=4, shuffle=True, collate_fn=slow_collate)
    for _ in range(2):
        list(loader)
    found = only(watch)
    assert len(asked) == 8  # Three batches and the end, twice.
    assert found.fetch_ns >= found.collate_ns >= 20_000_000
    assert found.items_ns < found.fetch_ns < 1.5 * found.wait_ns  # Of four batches, and of these and two more.
    wanted = {"dataset": "Squares", "dataset_length": 10, "batch_size": 4, "in_order": True, "sampler": "RandomSampler"}
    wanted |= {"collate": "slow_collate", "asked": 6, "asked_timed": 0, "tensors": 0, "batch_bytes": 0}
    wanted |= {"batches": 4, "sampled": 2, "objects": 5}  # Two of six are sampled; a list of four numbers.
    told = msgspec.structs.replace(found, **dict.fromkeys(TIMES), made=None, looks=0, lines=())
    assert told == msgspec.convert(wanted, manifest.Loader)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_cpu_time_is_of_all_threads(install: Install, threads: int) -> None:
    """A dataset that computes for 30 ms of CPU time on each thread."""

    def compute() -> None:
        while time.thread_time_ns() < 30_000_000:
            pass

    class Computing(Squares):
        def __getitem__(self, index: int) -> int:
            running = [threading.Thread(target=compute) for _ in range(threads)]
            for one in running:
                one.start()
            for one in running:
                one.join()
            return index

    watch = install()
    list(data.DataLoader(Computing(1)))
    assert (only(watch).fetch_cpu_ns or 0) >= threads * 30_000_000


def test_batches_that_are_ready(install: Install) -> None:
    """Two workers make two batches ahead each, and are given the time for it before each of eight."""
    watch = install()
    batches = iter(data.DataLoader(Squares(16), batch_size=2, num_workers=2, multiprocessing_context="fork"))
    for left in range(8, 0, -1):
        while batches._data_queue.qsize() + sum(len(task) == 2 for task in batches._task_info.values()) < min(left, 4):
            time.sleep(0.001)
        while batches._data_queue.empty() and batches._data_queue.qsize():
            time.sleep(0.001)
        next(batches)
    found = only(watch)
    assert (found.asked, found.empty_share) == (8, 0.0)
    assert (found.batches, found.dataset_length) == (8, 16)
    assert (found.num_workers, found.prefetch_factor, found.start_method) == (2, 2, "fork")
    assert found.sending_ns is not None
    assert found.blocked_ns <= found.fetch_ns


def test_batches_that_are_never_ready(install: Install) -> None:
    """The worker may make one only once the training is waiting for it."""
    permits = torch.multiprocessing.get_context("fork").Semaphore(0)
    watch = install()
    # With a timeout of its own torch asks once for each batch, and not again every 5 s.
    loader = data.DataLoader(Permitted(3, permits), num_workers=1, timeout=600, multiprocessing_context="fork")
    batches = iter(loader)
    get = batches._data_queue.get

    def permit_and_get(*args: Any, **kwargs: Any) -> Any:
        permits.release()
        return get(*args, **kwargs)

    batches._data_queue.get = permit_and_get
    assert [batch.tolist() for batch in batches] == [[0], [1], [2]]
    found = only(watch)
    assert (found.asked, found.empty_share) == (3, 1.0)


class Stream(data.IterableDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        raise AssertionError("nobody needs to know")

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def test_iterable_datasets_and_no_batching(install: Install) -> None:
    watch = install()
    assert [batch.tolist() for batch in data.DataLoader(Stream(), batch_size=2)] == [[0, 1], [2, 3], [4]]
    found = only(watch)
    assert (found.dataset, found.dataset_length, found.sampler) == ("Stream", None, None)
    assert (found.asked, found.batches, found.batch_size) == (3, 3, 2)

    watch = install()
    assert list(data.DataLoader(Squares(3), batch_size=None)) == [0, 1, 4]
    found = only(watch)
    assert (found.asked, found.batches, found.batch_size) == (3, 3, None)
    assert found.collate == "default_convert"


def test_a_batch_sampler_of_its_own(install: Install) -> None:
    watch, dataset = install(), Squares(7)
    batches = data.BatchSampler(data.RandomSampler(dataset), batch_size=3, drop_last=True)
    assert len(list(data.DataLoader(dataset, batch_sampler=batches))) == 2
    found = only(watch)
    assert (found.sampler, found.batch_size, found.drop_last, found.dataset_length) == ("RandomSampler", 3, True, 7)


class Backwards:
    """A sampler of the script's own."""

    def __iter__(self) -> Iterator[int]:
        return iter((2, 1, 0))


def test_where_a_sampler_of_the_script_s_own_begins(install: Install) -> None:
    watch = install()
    assert len(list(data.DataLoader(Squares(3), sampler=Backwards()))) == 3  # type: ignore[arg-type]
    found = only(watch)
    first = inspect.getsourcelines(Backwards.__iter__)[1]
    assert (found.sampler_at.line, found.sampler_at.function) == (first, "__iter__")
    watch = install()
    list(data.DataLoader(Squares(3), shuffle=True))
    assert only(watch).sampler_at is None


class Failing(Squares):
    """Says its length once."""

    asked = 0

    def __len__(self) -> int:
        self.asked += 1
        if self.asked > 1:
            raise RuntimeError("it said so before")
        return 2


def test_the_length_is_asked_for_only_where_torch_asks_and_may_fail(install: Install) -> None:
    watch, dataset = install(), Failing(0)
    list(data.DataLoader(dataset, batch_sampler=[[0, 1], [2, 3]], num_workers=0))
    found = only(watch)
    assert (dataset.asked, found.dataset_length, found.sampler, found.batch_size) == (0, None, "list", None)
    watch = install()
    assert [batch.item() for batch in data.DataLoader(dataset)] == [0, 1]
    assert (dataset.asked, only(watch).dataset_length) == (2, None)


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_the_dataset_pass(install: Install, workers: int) -> None:
    class Broken(Squares):
        def __getitem__(self, index: int) -> int:
            if index == 1:
                raise KeyError("no such image")
            return index

    watch = install()
    context = "fork" if workers else None
    batches = iter(data.DataLoader(Broken(3), num_workers=workers, multiprocessing_context=context))
    assert next(batches).tolist() == [0]
    with pytest.raises(KeyError, match="no such image"):
        next(batches)
    assert next(batches).tolist() == [2]
    found = only(watch)
    assert (found.asked, found.batches) == (2, 2)


def test_a_hook_that_ends_the_run_and_one_that_fails(install: Install) -> None:
    install(sys.exit)
    with pytest.raises(SystemExit):
        next(iter(data.DataLoader(Squares(3))))
    install([].pop)
    assert len(list(data.DataLoader(Squares(3)))) == 3
    assert alone.failures == ["DataLoader (on_batch): IndexError: pop from empty list"]
    alone.failures.clear()


def test_nothing_is_kept_alive(install: Install) -> None:
    watch = install()
    dataset = Squares(3)
    loader = data.DataLoader(dataset, collate_fn=lambda items: items)
    batches = iter(loader)
    next(batches)
    alive = [weakref.ref(one) for one in (dataset, loader, loader.collate_fn, batches)]
    del dataset, loader, batches
    gc.collect()
    assert [one() for one in alive] == [None] * 4
    assert only(watch).asked == 1


def test_loaders_inside_a_dataset_are_part_of_it(install: Install) -> None:
    class Outer(Squares):
        def __getitem__(self, index: int) -> int:
            return sum(batch.item() for batch in data.DataLoader(Squares(3)))

    asked = list[int]()
    watch = install(lambda: asked.append(1))
    assert [batch.tolist() for batch in data.DataLoader(Outer(2))] == [[5], [5]]
    assert len(asked) == 3
    assert (only(watch).dataset, only(watch).batches) == ("Outer", 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_a_forked_process_is_not_the_one_that_trains(install: Install) -> None:
    asked = list[int]()
    watch = install(lambda: asked.append(1))
    child = os.fork()
    if child == 0:
        made = len(list(data.DataLoader(Squares(3))))
        os._exit(0 if (made, asked, watch.loaders()) == (3, [], []) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("off", "measured"), [("measuring", 3), ("looking", 6)])
def test_measuring_and_looking_can_be_switched_off(install: Install, off: str, measured: int) -> None:
    asked = list[int]()
    watch = install(lambda: asked.append(1))
    loader = data.DataLoader(Squares(3))
    list(loader)
    setattr(watch, off, False)
    list(loader)
    assert len(asked) == 8
    assert (only(watch).asked, only(watch).looks) == (measured, 3)


@pytest.mark.parametrize(("persistent", "turns"), [(False, 3), (True, 1)])
def test_starting_and_ending_workers_are_ranges(install: Install, persistent: bool, turns: int) -> None:
    install()
    loader = data.DataLoader(Squares(2), num_workers=1, persistent_workers=persistent)
    list(data.DataLoader(Squares(2)))
    with torch.profiler.profile() as recording:
        for _ in range(3):
            assert [int(one) for one in loader] == [0, 1]
        del loader
        gc.collect()
    names = [event.name for event in recording.events()]
    assert [names.count(name) for name in (interruptions.STARTING, interruptions.STOPPING)] == [turns, turns]


def test_many_loaders(install: Install) -> None:
    watch = install()
    for _ in range(loaders.MOST_LOADERS + 1):
        list(data.DataLoader(Squares(1)))
    assert len(watch.loaders()) == loaders.MOST_LOADERS


@pytest.mark.parametrize("lost", ["no folder", "full disk"])
def test_workers_that_cannot_write(install: Install, folder: Path, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lost == "no folder":
        (folder / WORK).rmdir()
    else:
        monkeypatch.setattr(loaders_measured, "_path", lambda *_: Path("/dev/full"))
    watch = install()
    made = [batch.item() for batch in data.DataLoader(Squares(4), num_workers=1, multiprocessing_context="fork")]
    assert made == [0, 1, 4, 9]
    monkeypatch.undo()
    assert (only(watch).asked, only(watch).batches) == (4, 0)


def test_a_worker_keeps_its_latest_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders_measured, "parent_process", lambda: SimpleNamespace(pid=os.getpid()))
    monkeypatch.setattr(loaders_measured, "MOST_KEPT", 3)
    file = WorkerFile(folder / WORK)
    for number in range(4):
        file.fetched(Fetch(4, 3, 1, 10 * number, number))
    assert file.usable
    left = loaders_measured._left(folder / WORK, os.getpid())
    assert sorted(one.number for one in left) == [1, 2, 3]
    for number in range(127):
        (folder / WORK / f"loader-{os.getpid()}-{number}").touch()
    assert not WorkerFile(folder / WORK).usable


def test_what_a_dying_worker_left(folder: Path) -> None:
    record = loaders_measured._RECORD.pack(*Fetch(10, 4, 9))
    (folder / WORK / f"loader-{os.getpid()}-77").write_bytes(record + record[:-1])
    assert loaders_measured._left(folder / WORK, 77) == [Fetch(10, 4, 9)]
    assert loaders_measured._left(folder / WORK, 78) == []


def test_what_is_waited_for_is_made_or_handed_over() -> None:
    """Batch 1 was made at 50, in an epoch before at 10: asked for at 100, and there at 140.
    Batch 2 was made at 160, while the training waited from 150 to 165. Of batch 3 nobody knows."""
    fetches = [Fetch(1, 0, 1, made_ns, number) for made_ns, number in ((10, 1), (50, 1), (160, 2), (170, 1))]
    requests = [Request(1, 100, 140), Request(2, 150, 165), Request(3, 170, 180)]
    # 40, and 5; and 40 of 55.
    assert loaders_measured._handed(requests, fetches) == {"handed_ns": 22, "handing_share": 40 / 55}
    assert loaders_measured._handed(requests[2:], fetches) == {"handed_ns": None, "handing_share": None}


class Boxes:
    def __init__(self) -> None:
        self.corners = [torch.zeros(4) for _ in range(3)]
        self.same = self.corners[0]


def test_tensors_are_counted_wherever_they_are(install: Install) -> None:
    watch = install()
    import numpy

    list(data.DataLoader(Squares(2), batch_size=1, collate_fn=lambda _: {"a": Boxes(), "b": numpy.zeros(10)}))
    assert (only(watch).tensors, only(watch).batch_bytes) == (3, 3 * 16 + 80)


class Reading(Squares):
    """Of each item most time goes into one line."""

    def __getitem__(self, index: int) -> int:
        until = time.thread_time_ns() + 500_000
        while time.thread_time_ns() < until:
            pass
        time.sleep(0.1)
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_some_batches_are_sampled_while_nothing_is_timed(install: Install, folder: Path, workers: int) -> None:
    """Of a worker once it is told to; of the process itself after those that read for the first time."""
    watch, most = install(), loaders_measured.MOST_SAMPLED
    watch.looking = False
    one_ahead: dict[str, Any] = {"prefetch_factor": 1, "persistent_workers": True} if workers else {}
    loader = data.DataLoader(Reading(6), batch_size=1, num_workers=workers, **one_ahead)
    list(loader)
    assert (only(watch).sampled, only(watch).lines) == (0, ())
    (folder / WORK / loaders_measured.SAMPLING).touch()
    watch.looking = True
    list(loader)
    found = only(watch)
    assert (found.sampled, found.batches) == (most, 12 - most)
    first = found.lines[0]
    assert (first.file, first.function, first.calls) == (__file__, "__getitem__", "")
    assert first.line == Reading.__getitem__.__code__.co_firstlineno + 4
    assert first.share > 0.5


def run(folder: Path, watched: bool) -> dict[str, Any]:
    """What the program with all kinds of loaders prints, with the agent in all of its processes or in none."""
    (folder / WORK).mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(
        "from pathlib import Path\n"
        "from diagnose.capture.agent import alone, loaders\n"
        "asked = []\n"
        f"watch = loaders.use(loaders.LoaderWatch(Path({str(folder / WORK)!r}), lambda: asked.append(1)))\n"
    )
    given = environment()
    if watched:
        given["PYTHONPATH"] = os.pathsep.join([str(folder), given["PYTHONPATH"]])
    done = subprocess.run([sys.executable, str(PROGRAM)], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return {**said, "errors": done.stderr}


def test_loading_is_the_same_to_the_bit(tmp_path: Path) -> None:
    plain, watched = run(tmp_path / "plain", watched=False), run(tmp_path / "watched", watched=True)
    assert plain["made"] == watched["made"]
    assert plain["errors"] == watched["errors"]
    assert plain["watched"] is None
    assert watched["watched"]["failures"] == []
    found = {name: msgspec.convert(one, manifest.Loader) for name, one in watched["watched"]["loaders"].items()}
    assert {name: (one.asked, one.batches + (one.num_workers == 0) * one.sampled) for name, one in found.items()} == {
        name: (batches, batches) for name, (_, batches, _) in plain["counts"].items()
    }
    # The end of each epoch is asked for as well.
    assert watched["watched"]["asked"] == sum(batches + epochs for epochs, batches, _ in plain["counts"].values())
    methods = {name: found[name].start_method for name in ("fork", "spawn", "forkserver", "plain 0")}
    assert methods == {"fork": "fork", "spawn": "spawn", "forkserver": "forkserver", "plain 0": None}


def test_what_handing_over_would_take_is_measured_in_process(install: Install) -> None:
    """Twice as many tensors as are sent at once take twice as long; the thread that sends them is gone."""
    before = set(threading.enumerate())
    watch = install()
    list(data.DataLoader(Squares(4), batch_size=2))
    assert (only(watch).handed_ns or 0) > 0
    assert (only(watch).sending_ns or 0) > 0
    many, few = (handing(tensors, 10, 4_000)["handed_ns"] for tensors in (512, 1))
    assert many > few  # type: ignore[operator]
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_without_proc_time_waiting_for_a_core_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", fail)
    assert RunQueue().waited_ns() == -1
