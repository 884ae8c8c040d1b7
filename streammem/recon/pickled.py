"""A pickle read as data: the opcodes move values about, nothing is imported, nothing is called.

Python's unpickler calls what a file names; so does torch's for the files of CUT3R, whose `args` are objects. Here a
name stays a name, a call stays a note of what would have been called, and what the file wished to run can be told.
"""

import io
import pickletools
from dataclasses import dataclass, field
from typing import NamedTuple

from streammem.errors import CheckpointError

MOST_BYTES = (
    32 * 2**20
)  # of a pickle; names and shapes of 800 million weights with their optimiser take about a million
MOST_LETTERS = 120  # of a name that is shown
MARK = object()


class Named(NamedTuple):
    """A class or function that the file names."""

    module: str
    name: str

    def __str__(self) -> str:
        return ascii(f"{self.module}.{self.name}")[1:-1][:MOST_LETTERS]


class Stored(NamedTuple):
    """What the file says lies outside the pickle (a persistent id)."""

    what: object


@dataclass(eq=False)
class Stub:
    """What a call would have made: who was called, with what, and what was put into the result."""

    maker: object  # Named, or any other value that the file tried to call
    arguments: tuple
    state: object = None  # of BUILD
    items: dict = field(default_factory=dict)
    rows: list = field(default_factory=list)

    @property
    def called(self) -> str:
        """The name of what was called, or words for what was called instead of a name."""
        return str(self.maker) if isinstance(self.maker, Named) else f"a {type(self.maker).__name__}"


class Pickled(NamedTuple):
    """A pickle's value, and everything that it names or would have called."""

    value: object
    names: frozenset[str]
    calls: frozenset[str]  # those of the names that a real unpickler would have called


def read(data: bytes, where: str) -> Pickled:
    """Interprets a pickle of any protocol without importing or calling anything.

    where: the file, for messages.
    Raises: CheckpointError where the bytes are cut short, are no pickle, or are larger than any honest one.
    """
    if len(data) > MOST_BYTES:
        raise CheckpointError(f"{where}: its pickle has {len(data)} bytes; wanted at most {MOST_BYTES}")
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
            machine.do(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{where}: not a whole pickle ({error or type(error).__name__})") from error
    if not machine.done:
        raise CheckpointError(f"{where}: not a whole pickle (it ends before its STOP)")
    return Pickled(machine.value, frozenset(machine.names), frozenset(machine.calls))


CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
LITERALS = {  # opcodes whose argument is the value
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
IGNORED = {"PROTO", "FRAME", "READONLY_BUFFER"}
PUT = {"PUT", "BINPUT", "LONG_BINPUT"}
GET = {"GET", "BINGET", "LONG_BINGET"}
SHORT_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """The stack, the memo, and what was named."""

    def __init__(self):
        self.stack, self.memo, self.value, self.done = [], {}, None, False
        self.names: set[str] = set()
        self.calls: set[str] = set()

    def do(self, name: str, argument) -> None:
        """One opcode."""
        push = self.stack.append
        if name in LITERALS:
            push(argument)
        elif name in CONSTANTS:
            push(CONSTANTS[name])
        elif name in EMPTY:
            push(EMPTY[name]())
        elif name in SHORT_TUPLES:
            push(tuple(self.taken(SHORT_TUPLES[name])))
        elif name in PUT:
            self.memo[argument] = self.stack[-1]
        elif name in GET:
            push(self.memo[argument])
        elif name not in IGNORED:
            getattr(self, f"do_{name.lower()}")(argument)

    def taken(self, count: int) -> list:
        """The last `count` values, off the stack."""
        if count > len(self.stack):
            raise IndexError("it takes values that nobody put there")
        rest = len(self.stack) - count
        values = self.stack[rest:]
        del self.stack[rest:]
        return values

    def marked(self) -> list:
        """The values since the last mark, off the stack, the mark too."""
        at = len(self.stack) - 1
        while self.stack[at] is not MARK:
            at -= 1
        values = self.taken(len(self.stack) - at)
        return values[1:]

    def named(self, module, name) -> Named:
        """A note of a name."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("it names something by what is no text")
        found = Named(module, name)
        self.names.add(str(found))
        return found

    def called(self, maker, arguments) -> None:
        """A note of a call instead of the call."""
        stub = Stub(maker, arguments if isinstance(arguments, tuple) else (arguments,))
        self.calls.add(stub.called)
        self.stack.append(stub)

    def do_mark(self, _) -> None:
        self.stack.append(MARK)

    def do_pop(self, _) -> None:
        self.taken(1)

    def do_pop_mark(self, _) -> None:
        self.marked()

    def do_dup(self, _) -> None:
        self.stack.append(self.stack[-1])

    def do_memoize(self, _) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def do_tuple(self, _) -> None:
        self.stack.append(tuple(self.marked()))

    def do_list(self, _) -> None:
        self.stack.append(self.marked())

    def do_dict(self, _) -> None:
        values = self.marked()
        self.stack.append({})
        self.set(values)

    def do_frozenset(self, _) -> None:
        values = self.marked()
        self.stack.append(frozenset(_key(value) for value in values))

    def do_append(self, _) -> None:
        self.extend(self.taken(1))

    def do_appends(self, _) -> None:
        self.extend(self.marked())

    def do_additems(self, _) -> None:
        values = self.marked()
        self.stack[-1].update(_key(value) for value in values)

    def do_setitem(self, _) -> None:
        self.set(self.taken(2))

    def do_setitems(self, _) -> None:
        self.set(self.marked())

    def do_global(self, argument) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(self.named(module, name))

    def do_stack_global(self, _) -> None:
        self.stack.append(self.named(*self.taken(2)))

    def do_inst(self, argument) -> None:
        module, _, name = argument.partition(" ")
        self.called(self.named(module, name), tuple(self.marked()))

    def do_obj(self, _) -> None:
        maker, *arguments = self.marked()
        self.called(maker, tuple(arguments))

    def do_newobj(self, _) -> None:
        self.called(*self.taken(2))

    def do_newobj_ex(self, _) -> None:
        maker, arguments, named = self.taken(3)
        self.called(maker, (*arguments, named))

    def do_reduce(self, _) -> None:
        self.called(*self.taken(2))

    def do_ext1(self, code) -> None:
        self.stack.append(self.named("copyreg", f"extension {code}"))

    do_ext2 = do_ext4 = do_ext1

    def do_build(self, _) -> None:
        made, state = self.taken(2)
        if isinstance(made, Stub):
            made.state = state
        self.stack.append(made)

    def do_persid(self, argument) -> None:
        self.stack.append(Stored(argument))

    def do_binpersid(self, _) -> None:
        self.stack.append(Stored(self.taken(1)[0]))

    def do_next_buffer(self, _) -> None:
        self.stack.append(Stored("buffer"))

    def do_stop(self, _) -> None:
        (self.value,) = self.taken(1)
        self.done = True

    def extend(self, values: list) -> None:
        """Adds rows to what is on top."""
        into = self.stack[-1]
        (into.rows if isinstance(into, Stub) else into).extend(values)

    def set(self, values: list) -> None:
        """Sets key, value, key, value, ... in what is on top."""
        into = self.stack[-1]
        into = into.items if isinstance(into, Stub) else into
        into.update((_key(key), value) for key, value in zip(values[::2], values[1::2]))


def _key(value):
    """The value where it can be a key; a deep tuple could not be hashed safely, and no file of weights has one."""
    return value if value is None or isinstance(value, (str, bytes, int, float, Stub)) else f"a {type(value).__name__}"
