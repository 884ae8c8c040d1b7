"""The command: names, errors in words, exit statuses."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

from apps import CONFIGS, cli, info
from streammem.errors import ConfigError


def test_an_unknown_name_gets_the_names_in_one_line(capsys):
    assert cli.main(["recontruct"]) == 2
    said = capsys.readouterr().err
    assert said == f"streammem: no command 'recontruct'; known: {', '.join(cli.COMMANDS)}\n"
    assert cli.main([]) == 2 and "a command is wanted; known: reconstruct" in capsys.readouterr().err


def test_help_names_every_command(capsys):
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in cli.COMMANDS)


def test_our_errors_are_said_without_a_traceback(capsys, monkeypatch):
    def fail(argv):
        raise ConfigError("lr is -1; wanted more than 0")

    monkeypatch.setattr(info, "main", fail)
    assert cli.main(["info"]) == 2
    assert capsys.readouterr().err == "streammem info: lr is -1; wanted more than 0\n"


def test_info_says_what_a_bug_report_needs(capsys):
    assert cli.main(["info"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("torch", "open3d", "devices", "threads", "[peers]", "Apache-2.0"))


def test_configs_lie_beside_the_apps():
    assert CONFIGS == ROOT / "configs" and CONFIGS.is_dir()


@pytest.mark.parametrize("name", ["info", "rules", "cli"])
def test_apps_run_as_modules_from_the_checkout(name):
    done = subprocess.run([sys.executable, "-m", f"apps.{name}", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage: streammem")


def test_a_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "apps.cli", "rules"], cwd=ROOT, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
