"""The settings of the export are loaded, and its headers are secret."""

from pathlib import Path

import pytest

from steadyrun.config import Config, describe, load, to_document
from steadyrun.errors import ConfigInvalid, ConfigUntrusted, VariableUnset

ENDPOINT = 'endpoint = "http://127.0.0.1:4318"\n'
TOKEN = "tok_4711_ziegelrot"


def loaded(place: Path, text: str, **environ: str) -> Config:
    (place / "config.toml").write_text(f"[telemetry]\n{text}")
    return load(place, place, environ)


def refused(place: Path, text: str) -> ConfigInvalid:
    with pytest.raises(ConfigInvalid) as caught:
        loaded(place, text)
    return caught.value


def test_telemetry_is_off_by_default(tmp_path: Path) -> None:
    telemetry = load(tmp_path, tmp_path, {}).settings.telemetry

    assert (telemetry.endpoint, telemetry.headers, telemetry.content) == ("", {}, False)


def test_headers_are_expanded_on_use(tmp_path: Path) -> None:
    config = loaded(tmp_path, ENDPOINT + 'headers = { x-key = "Bearer ${TOKEN}" }', TOKEN=TOKEN)

    assert config.settings.telemetry.headers == {"x-key": "Bearer ${TOKEN}"}
    assert {k: v.reveal() for k, v in config.expand_headers().items()} == {
        "x-key": f"Bearer {TOKEN}"
    }


def test_unset_variable_in_a_header_is_reported(tmp_path: Path) -> None:
    config = loaded(tmp_path, ENDPOINT + 'headers = { x-key = "${TOKEN}" }')

    with pytest.raises(VariableUnset, match=r"telemetry\.headers\.x-key needs .* TOKEN"):
        config.expand_headers()


@pytest.mark.parametrize("value", ["a\nb: c", "", "  ", "\u20ac"])
def test_invalid_header_value_is_refused_without_repeating_it(tmp_path: Path, value: str) -> None:
    config = loaded(tmp_path, ENDPOINT + 'headers = { x-key = "${TOKEN}" }', TOKEN=value)

    with pytest.raises(ConfigInvalid, match=r"^telemetry\.headers\.x-key: ") as caught:
        config.expand_headers()
    assert not value.strip() or value not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "shown"),
    [(TOKEN, "***"), (f"Bearer {TOKEN}", "***"), ("Bearer ${TOKEN}", "Bearer ${TOKEN}")],
)
@pytest.mark.parametrize("name", ["authorization", "x-team"])
def test_header_is_secret_with_any_name(
    tmp_path: Path, name: str, template: str, shown: str
) -> None:
    text = f'{ENDPOINT}headers = {{ {name} = "{template}" }}'
    config = loaded(tmp_path, text, TOKEN=TOKEN)

    rows = {key: value for key, value, _ in describe(config)}
    assert rows[f"telemetry.headers.{name}"] == f'"{shown}"'
    assert TOKEN not in str(to_document(config))
    # What an agent may print of it is the token alone.
    assert TOKEN in [secret.reveal() for secret in config.list_secrets()]
    assert "Bearer" not in [secret.reveal() for secret in config.list_secrets()]


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:4318",
        "ftp://example.org",
        "grpc://example.org:4317",
        "http://",
        "http:///v1/traces",
        "http://example.org:0",
        "http://example.org:65536",
        "http://example.org/a b",
        "http://user:hunter2-hunter2@example.org",
        "https://example.org/?key=hunter2-hunter2",
        "https://example.org/#hunter2-hunter2",
    ],
)
def test_invalid_endpoint_is_refused_without_repeating_secrets(
    tmp_path: Path, endpoint: str
) -> None:
    error = refused(tmp_path, f'endpoint = "{endpoint}"')

    assert "telemetry.endpoint: expected http://HOST or https://HOST" in str(error)
    assert error.line == 2
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    "endpoint",
    ["http://127.0.0.1:4318", "https://[::1]:4318/otlp", "https://example.org/v1/traces"],
)
def test_endpoint_may_have_a_port_and_a_path(tmp_path: Path, endpoint: str) -> None:
    config = loaded(tmp_path, f'endpoint = "{endpoint}"')

    assert config.settings.telemetry.endpoint == endpoint


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('headers = { "x y" = "1" }', "cannot be the name of a header"),
        ('headers = { x = "" }', "must not be empty"),
        ('headers = { x = "a\\nb" }', "no header may have"),
        ('headers = { x = "${" }', "does not begin a ${NAME}"),
        ("headers = { x = 1 }", "expected a string"),
        ('content = "yes"', "telemetry.content: expected true or false, found a string"),
        ('endpoints = "x"', "unknown setting telemetry.endpoints"),
    ],
)
def test_invalid_telemetry_settings_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in str(refused(tmp_path, text))


def test_untrusted_project_may_not_configure_telemetry(tmp_path: Path) -> None:
    (tmp_path / "steadyrun.toml").write_text(f"[telemetry]\n{ENDPOINT}")

    with pytest.raises(ConfigUntrusted):
        load(tmp_path / "home", tmp_path, {})
