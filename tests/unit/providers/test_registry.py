"""The registry of provider kinds."""

import subprocess
import sys
from pathlib import Path

import pytest

from steadyrun.errors import ConfigInvalid, NotFound
from steadyrun.providers import registry


def test_every_built_in_kind_loads_a_dialect_of_its_name() -> None:
    assert registry.list_kinds() == sorted(registry.BUILT_IN)
    for kind in registry.BUILT_IN:
        assert registry.load_dialect(kind).name == kind
        assert registry.make_dialect(kind, {}).name == kind


def test_unknown_kind_is_reported_with_the_known_kinds() -> None:
    with pytest.raises(NotFound, match="no provider 'parrot'") as caught:
        registry.load_dialect("parrot")

    assert not registry.has_kind("parrot")
    assert caught.value.hint == "There are: claude, codex, scripted, shell"


def test_unknown_option_is_reported_under_the_name_of_the_provider() -> None:
    with pytest.raises(ConfigInvalid, match=r"providers\.work\.options: ") as caught:
        registry.make_dialect("scripted", {"scirpt": "x"}, provider="work")

    assert caught.value.hint == "It may have: script"


def test_registry_imports_no_provider_and_reads_no_package_for_a_built_in_kind() -> None:
    probe = (
        "import sys; from steadyrun.providers import registry\n"
        "assert registry.has_kind('claude')\n"
        "heavy = [name for name in sys.modules if name == 'importlib.metadata'\n"
        "         or name.startswith(('steadyrun.providers.', 'steadyrun.dialect', 'msgspec'))]\n"
        "sys.exit(str(heavy) if heavy != ['steadyrun.providers.registry'] else 0)"
    )

    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


def write_package(folder: Path, name: str, entry: str, module: str = "") -> None:
    """Write what an installed package leaves in a folder of the path."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[steadyrun.providers]\n{entry}\n")
    (folder / f"{name}_module.py").write_text(module)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    registry._read_entry_points.cache_clear()
    monkeypatch.setattr(registry, "_read_entry_points", registry._read_entry_points.__wrapped__)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("raise ValueError('no luck')", "ValueError: no luck"),
        ("", "AttributeError: "),
        ("Bird = 3", "wren_module:Bird is no Dialect class: it has no name"),
        ("class Bird: name = 'wren'", "is no Dialect class: it has no program"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_broken_entry_point_is_reported_with_its_package(
    packages: Path, module: str, reason: str
) -> None:
    write_package(packages, "wren", "wren = wren_module:Bird", module)

    assert registry.has_kind("wren")
    with pytest.raises(ConfigInvalid) as caught:
        registry.load_dialect("wren")

    assert "the provider 'wren' of the package wren 1.0 cannot be loaded" in caught.value.message
    assert reason in caught.value.message
    sys.modules.pop("wren_module", None)


def test_two_packages_with_the_same_provider_are_refused(packages: Path) -> None:
    write_package(packages, "wren", "bird = wren_module:Bird")
    write_package(packages, "robin", "bird = robin_module:Bird")

    with pytest.raises(ConfigInvalid) as caught:
        registry.list_kinds()

    assert "registers the provider 'bird', but so does the package" in caught.value.message
