"""Reading ahead: one thread fills a short queue while the frames before are worked on."""

import queue
import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from streammem.errors import ConfigError
from streammem.types import Frame

END = object()


class Prefetch:
    """Frames of a source, read by a thread of its own into a queue of at most `size`.

    policy: "block" (a full queue stops the reader: recordings) or "drop_oldest" (a full queue forgets its oldest
    frame, so that what is worked on is recent: live cameras). `counters["overtaken"]` says how many were forgotten.
    An error in the source is raised where its frame would have come; leaving the loop ends the thread.
    """

    def __init__(self, frames: Iterable[Frame], size: int = 4, policy: str = "block"):
        if policy not in ("block", "drop_oldest"):
            raise ConfigError(f"policy is {policy!r}; wanted block or drop_oldest")
        if size < 1:
            raise ConfigError(f"size is {size}; wanted at least 1 frame")
        self.frames, self.size, self.policy = frames, size, policy
        self.counters = Counter()

    def __iter__(self) -> Iterator[Frame]:
        waiting, left = queue.Queue(self.size), threading.Event()
        reader = threading.Thread(target=self._fill, args=(waiting, left), daemon=True)
        reader.start()
        try:
            while True:
                item = waiting.get()
                if item is END:
                    return
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            left.set()
            reader.join(timeout=5)

    def _fill(self, waiting: queue.Queue, left: threading.Event) -> None:
        try:
            for frame in self.frames:
                self._put(waiting, frame, left, drop=self.policy == "drop_oldest")
                if left.is_set():
                    return
            self._put(waiting, END, left)
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to the one who reads
            self._put(waiting, error, left)

    def _put(self, waiting: queue.Queue, item, left: threading.Event, drop: bool = False) -> None:
        while not left.is_set():
            try:
                return waiting.put(item, timeout=0 if drop else 0.1)
            except queue.Full:
                if drop:
                    self._forget(waiting)

    def _forget(self, waiting: queue.Queue) -> None:
        try:
            waiting.get_nowait()
            self.counters["overtaken"] += 1
        except queue.Empty:
            return
