"""What is installed here: versions, devices, threads, extras, licence."""

import argparse
import importlib.metadata
import os
import platform
import sys

import torch

PACKAGES = ("torch", "kornia", "open3d", "numpy", "pyyaml", "safetensors", "tqdm")
EXTRAS = {
    "test": ("pytest", "pytest-xdist", "ruff"),
    "video": ("opencv-python-headless",),
    "peers": ("opencv-python-headless", "evo", "padasip"),
}


def main(argv: list[str]) -> int:
    """Prints the report."""
    argparse.ArgumentParser(prog="streammem info", description=__doc__).parse_args(argv)
    for name, value in facts().items():
        print(f"{name:<12} {value}")
    return 0


def facts() -> dict[str, str]:
    """What a bug report should say, by name."""
    lines = {"streammem": _version("streammem"), "licence": "Apache-2.0"}
    lines["python"] = f"{platform.python_version()} on {platform.platform()}"
    lines |= {name: _version(name) for name in PACKAGES}
    lines["devices"] = ", ".join(_devices())
    lines["threads"] = f"{torch.get_num_threads()} of {os.cpu_count()} processors"
    for extra, names in EXTRAS.items():
        absent = [name for name in names if _version(name) == "absent"]
        lines[f"[{extra}]"] = f"absent: {', '.join(absent)}" if absent else "present"
    return lines


def _devices() -> list[str]:
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return ["cpu", *(f"cuda:{i} {gpu.name} ({gpu.total_memory >> 30} GiB)" for i, gpu in enumerate(gpus))]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
