"""Every rule: saved, loaded by a fresh process, and gone on with, it reads what it would have read."""

import os
import subprocess
import sys

import torch
from cases import CASES, start
from conftest import ROOT

from streammem import store
from streammem.scan import scan

READER = """
import sys, torch
from pathlib import Path
from cases import CASES, start
from streammem import store
from streammem.scan import scan

folder, outs = Path(sys.argv[1]), {}
for case in CASES:
    frames, fresh = start(case)
    stored = store.load(folder / case.name, schema=1, rule=repr(case.rule))
    _, outs[case.name] = scan(case.rule.step, stored.into(fresh), frames[5:])
torch.save(outs, folder / "outs")
"""


def test_a_fresh_process_goes_on_as_this_one_would(tmp_path):
    expected = {}
    for case in CASES:
        frames, state = start(case)
        middle, _ = scan(case.rule.step, state, frames[:5])
        store.save(tmp_path / case.name, middle, schema=1, rule=repr(case.rule))
        _, expected[case.name] = scan(case.rule.step, middle, frames[5:])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    subprocess.run([sys.executable, "-c", READER, str(tmp_path)], check=True, env=environment, cwd=ROOT)
    found = torch.load(tmp_path / "outs")
    for name, out in expected.items():
        torch.testing.assert_close(found[name], out, rtol=1e-12, atol=1e-12, msg=name)
