"""The package itself: its version, its generated code, and the programs that the documents show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hapax
from hapax.testing import Broker

FOLDER = Path(__file__).parents[1]
REPOSITORY = FOLDER.parents[1]
GUIDE = REPOSITORY / "docs" / "guides" / "python.md"


def test_the_version_is_that_of_the_workspace() -> None:
    workspace = (REPOSITORY / "Cargo.toml").read_text()
    found = re.search(r'^version = "(.*)"$', workspace, re.MULTILINE)
    assert found is not None
    assert hapax.__version__ == found.group(1)


def test_the_blocking_client_is_generated_from_the_asynchronous_one() -> None:
    command = [sys.executable, str(FOLDER / "tools" / "unasync.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0


def programs(path: Path) -> list[str]:
    """The blocks of Python that are whole programs: they import something."""
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    return [block for block in blocks if re.search(r"^(import|from) ", block, re.MULTILINE)]


DOCUMENTED = [
    (str(path.relative_to(REPOSITORY)), number, program)
    for path in (REPOSITORY / "README.md", FOLDER / "README.md", GUIDE)
    for number, program in enumerate(programs(path))
]


def test_there_are_programs_in_the_documents() -> None:
    assert {name for name, _, _ in DOCUMENTED} == {
        "README.md",
        "clients/python/README.md",
        "docs/guides/python.md",
    }


@pytest.mark.parametrize(
    ("name", "number", "program"), DOCUMENTED, ids=[f"{name}-{n}" for name, n, _ in DOCUMENTED]
)
def test_a_program_of_the_documents_runs(
    name: str, number: int, program: str, tmp_path: Path, hapax_broker: Broker
) -> None:
    """As it is written, on a broker of the tests: only the address is another."""
    shown = program.replace("http://127.0.0.1:4747", hapax_broker.address)
    file = tmp_path / "program.py"
    file.write_text(shown)
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env={"HAPAX_SERVER": hapax_broker.address, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line]
    # What a line prints is in its comment, up to a semicolon; in a loop, each time.
    expected = re.findall(r"print\(.*\)\s+# (.*)", program)
    assert said == [
        line for text in expected for line in text.split(";")[0].strip().split(", then ")
    ]


def test_the_payment_example_charges_every_order_once() -> None:
    command = [sys.executable, str(FOLDER / "examples" / "payment" / "run.py"), "--orders", "16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 orders, 16 charged, 0 charged twice" in done.stdout
