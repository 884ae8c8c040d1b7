"""Ending early without losing anything: the first signal is noted, the second ends at once."""

import signal
import threading


class Stop:
    """While entered, Ctrl-C and SIGTERM are noted in `signal`; a second one raises KeyboardInterrupt.

    Only the main thread gets signals; in another one this does nothing.
    """

    def __init__(self):
        self.signal: signal.Signals | None = None
        self._before = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, stack) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
