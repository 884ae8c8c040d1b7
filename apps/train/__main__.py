"""`python -m apps.train`."""

import sys

from .. import cli

sys.exit(cli.main(["train", *sys.argv[1:]]))
