"""The README is true: its snippets run, its table is current, its links and commands exist."""

import re

import pytest
from conftest import ROOT

from apps import cli, rules
from apps.arguments import wish

TEXT = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.S)
COMMANDS = re.findall(r"^streammem reconstruct ([^#\n]*)", TEXT, re.M)


def test_it_is_short():
    assert len(TEXT.splitlines()) < 200


def test_the_map_snippet_learns(capsys):
    exec(compile(SNIPPETS[0], "README.md", "exec"), {})
    said = re.findall(r"frame (\d+): tracked, ([\d.]+|nan) mm, (\d+)% known", capsys.readouterr().out)
    known = [int(share) for *_, share in said]
    assert len(said) == 12 and known[0] == 0 and min(known[-5:]) > 50
    assert max(float(error) for _, error, _ in said[-5:]) < 20


def test_the_rule_snippet_prints_a_falling_error(capsys):
    exec(compile(SNIPPETS[1], "README.md", "exec"), {})
    errors = [float(number) for number in re.findall(r"error ([\d.]+)", capsys.readouterr().out)]
    assert len(errors) == 5 and all(after < 0.6 * before for before, after in zip(errors, errors[1:]))


def test_the_snippets_are_short():
    assert [len(snippet.strip().splitlines()) for snippet in SNIPPETS] == [9, 9]


def test_the_table_of_rules_is_current():
    text = (ROOT / "streammem/rules/README.md").read_text()
    between = re.search(r"<!-- rules: .*? -->\n(.*?)\n<!-- end of rules -->", text, re.S)
    current = "\n".join(rules.table())
    assert between[1] == current, (
        "paste the output of `streammem rules --markdown` between the marks of streammem/rules/README.md"
    )


@pytest.mark.parametrize("words", COMMANDS)
def test_its_commands_are_understood(words):
    asked = words.replace("out/DIR/", "").replace("PATH", str(ROOT / "data")).split()
    assert wish(asked, "").settings is not None


def test_its_sub_commands_and_files_exist():
    for name in re.findall(r"(?:^|bin/)streammem (\w+)", TEXT, re.M):
        assert name in cli.COMMANDS
    for path in re.findall(r"\]\((?!http)([^)]+)\)", TEXT):
        assert (ROOT / path).is_file(), path
    assert (ROOT / "data/reconstruction.png").stat().st_size < 300_000
