"""What README.md shows is what works."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def test_the_first_job_runs_and_gives_the_hottest_readings(run_python, tmp_path):
    job = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert "env.execute(" in job
    (tmp_path / "job.py").write_text(job)
    done = run_python("-m", "flinkish.cli", "run", "--master", "mini-cluster", "job.py")
    assert done.returncode == 0, done.stderr
    lines = sorted(re.sub(r"^\d+> ", "", line) for line in done.stdout.splitlines())
    assert lines == ["('fridge', 2000, 4.0)", "('oven', 1000, 180.0)", "('oven', 61000, 220.0)"]


def test_every_link_leads_to_a_file():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if "://" not in link and not (CHECKOUT / link).exists()] == []


def test_ci_runs_the_two_commands_of_the_readme():
    commands = re.search(r"## Two commands.*?```sh\n(.*?)```", README, re.DOTALL)[1]
    ci = (CHECKOUT / ".ci" / "run").read_text(encoding="utf-8")
    for command in re.findall(r"^(.*?)\s+#", commands, re.MULTILINE):
        assert command in ci, command
