"""A state that one thread writes and many read: nobody waits, and nobody reads half a write."""

import threading

from streammem import tree
from streammem.errors import ConfigError


class Shared:
    """Two buffers, allocated once, written in turn; a reader copies the front one and checks that nobody was there.

    The writer never waits. A reader copies again only where two whole writes began during its copy.

    Raises: ConfigError where two threads write at once.
    """

    def __init__(self, state):
        self._buffers = tree.clone(state), tree.clone(state)
        self._begun = self._done = 0  # writes; the front buffer is that of the last one done
        self._writer = threading.Lock()

    @property
    def front(self):
        """The newest state; only the writer may use it without copying."""
        return self._buffers[self._done % 2]

    def publish(self, state) -> None:
        """Makes a copy of `state` the newest.

        Raises: ConfigError where another thread is writing, ShapeError where the state is of another structure.
        """
        if not self._writer.acquire(blocking=False):
            raise ConfigError("two threads write to one state; wanted a single writer, and any number of readers")
        try:
            self._begun += 1
            tree.copy_(self._buffers[self._begun % 2], state)
            self._done = self._begun
        finally:
            # A write that failed is not counted: the front buffer is still the one before.
            self._begun = self._done
            self._writer.release()

    def copy_into(self, buffer) -> None:
        """Overwrites a reader's own buffer with the newest state."""
        while True:
            done = self._done
            tree.copy_(buffer, self._buffers[done % 2])
            if self._begun < done + 2:  # its buffer is written next by write number done + 2
                return
