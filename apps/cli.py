"""The command `streammem`: one sub-command an app, imported only when it is asked for."""

import importlib
import os
import sys

from streammem.errors import StreamMemError

COMMANDS = {  # name: (module beside this one, what it does)
    "reconstruct": ("reconstruct", "learn a scene from a stream of depth frames and write what was learnt"),
    "train": ("train", "train a small model around a memory rule on a generated sequence task"),
    "train-recon": ("train_recon", "train a small colour-only network on synthetic rooms"),
    "train-policy": ("train_policy", "train a policy with a memory to repeat what it was shown once"),
    "policy": ("policy", "run a policy with a memory: taught once, asked much later; a film and a report of it"),
    "weights": ("weights", "look into weights of the colour-only network, or convert official ones"),
    "selfcheck": ("selfcheck", "compare the network on this device with reference tensors"),
    "locate": ("locate", "say where pictures were taken, in a scene that a run has learnt"),
    "export": ("export", "write what a run has learnt as files of other programs: glTF, PLY, COLMAP"),
    "bench": ("bench", "measure speed and accuracy against baselines and peers in the same run"),
    "rules": ("rules", "list the memory rules"),
    "info": ("info", "say what is installed here: versions, devices, extras"),
}


def main(argv: list[str] | None = None) -> int:
    """Runs the sub-command that `argv` names; returns its exit status, 2 where there is none of that name."""
    argv = sys.argv[1:] if argv is None else argv
    name, rest = (argv[0], argv[1:]) if argv else ("", [])
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name not in COMMANDS:
        said = f"streammem: no command {name!r}" if name else "streammem: a command is wanted"
        print(f"{said}; known: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    app = importlib.import_module(f".{COMMANDS[name][0]}", __package__)
    try:
        return app.main(rest)
    except StreamMemError as error:
        print(f"streammem {name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe has seen enough; Python would complain again when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def usage() -> str:
    """The commands, a line each."""
    lines = [f"  {name:<12} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["usage: streammem COMMAND ...", *lines, "streammem COMMAND --help says more"])


if __name__ == "__main__":
    sys.exit(main())
