"""A provider of another package, registered by an entry point: built, installed and used."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from steadyrun.providers import template
from tests.support.commands import LIMIT_SECONDS, environment

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "steadyrun-parrot"
version = "0.4"
[project.scripts]
parrot = "steadyrun_parrot.cli:main"
[project.entry-points."steadyrun.providers"]
{entry}
"""
CLI = """\
import json, sys

def main() -> None:
    print(json.dumps({"type": "hello", "session": "s1"}), flush=True)
    for line in sys.stdin:
        said = {"type": "text", "text": json.loads(line)["prompt"].upper()}
        done = {"type": "done", "ok": True, "tokens_in": 1, "tokens_out": 2}
        print(json.dumps(said), json.dumps(done), sep="\\n", flush=True)
"""


class Installation:
    """A virtual environment that has steadyrun, and a package with a provider."""

    def __init__(self, place: Path) -> None:
        self._place, self._bin = place, place / "venv" / "bin"
        self.home = place / "home"
        self._run([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")])
        [packages] = (place / "venv" / "lib").glob("python*/site-packages")
        ours = Path(pytest.__file__).parents[1]
        (packages / "ours.pth").write_text(f"import site; site.addsitedir({str(ours)!r})\n")

    def install(self, entry: str, dialect: str = "") -> None:
        tree, package = self._place / "tree", self._place / "tree" / "steadyrun_parrot"
        package.mkdir(parents=True)
        (tree / "pyproject.toml").write_text(PROJECT.format(entry=entry))
        (package / "__init__.py").touch()
        (package / "cli.py").write_text(CLI)
        (package / "dialect.py").write_text(dialect or Path(template.__file__).read_text())
        options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
        python = str(self._bin / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", *options]
        self._run([*pip, str(tree)])

    def steadyrun(self, *words: str) -> "subprocess.CompletedProcess[str]":
        self.home.mkdir(mode=0o700, exist_ok=True)
        env = environment(self.home)
        env["PATH"] = f"{self._bin}:{env['PATH']}"
        done = subprocess.run(
            [self._bin / "python", "-m", "steadyrun", *words],
            env=env,
            cwd=self._place,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def _run(self, words: list[str]) -> None:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def test_provider_of_an_installed_package_is_listed_checked_and_run(
    installation: Installation,
) -> None:
    installation.install('parrot = "steadyrun_parrot.dialect:Parrot"')
    installation.home.mkdir()
    config = '[providers.parrot]\nruns = 1\n[providers.grey]\nkind = "parrot"\nmodel = "loud"\n'
    (installation.home / "config.toml").write_text(config)

    listed = json.loads(installation.steadyrun("providers", "--json").stdout)["providers"]
    checked = installation.steadyrun("config", "check")
    run = installation.steadyrun("run", "--provider", "parrot", "hello")

    kinds = {each["name"]: each["kind"] for each in listed}
    assert (kinds["parrot"], kinds["grey"]) == ("parrot", "parrot")
    assert "ok: kinds of providers: claude, codex, parrot, scripted, shell\n" in checked.stdout
    assert "ok: providers: grey (parrot), parrot\n" in checked.stdout
    assert (run.returncode, run.stdout) == (0, "HELLO\n")


def test_package_that_cannot_be_imported_is_named(installation: Installation) -> None:
    installation.install('parrot = "steadyrun_parrot.dialect:Parrot"', "import no_such_module\n")

    listed = installation.steadyrun("providers")
    run = installation.steadyrun("run", "--provider", "parrot", "hello")
    other = installation.steadyrun("run", "--provider", "shell", "true")
    doctor = json.loads(installation.steadyrun("doctor", "--json").stdout)["checks"]

    problem = "the provider 'parrot' of the package steadyrun-parrot 0.4 cannot be loaded"
    assert listed.returncode == 0
    assert f"{problem}: ModuleNotFoundError" in listed.stdout
    assert (run.returncode, other.returncode) == (2, 0)
    assert problem in run.stderr
    [found] = [each for each in doctor if each["check"] == "provider parrot"]
    assert (found["state"], found["repair"]) == ("fail", "Repair or uninstall the package.")


def test_package_with_the_name_of_a_built_in_provider_is_refused(
    installation: Installation,
) -> None:
    installation.install('scripted = "steadyrun_parrot.dialect:Parrot"')

    checks = [installation.steadyrun(*words) for words in (["providers"], ["config", "check"])]
    doctor = installation.steadyrun("doctor")
    run = installation.steadyrun("run", "--provider", "scripted", "say hello")

    problem = "the package steadyrun-parrot 0.4 registers the provider 'scripted', but steadyrun"
    for check in checks:
        assert check.returncode == 2
        assert problem in check.stderr
    assert doctor.returncode == 1
    assert problem in doctor.stdout
    # The built-in provider is used, whatever is installed.
    assert run.returncode == 0
