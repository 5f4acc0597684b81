"""The account of a provider depends on its credentials and address alone."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from steadyrun.app.accounts import compute_accounts
from steadyrun.app.home_key import load_home_key
from steadyrun.config import Config, load
from steadyrun.config.accounts import is_account_setting
from steadyrun.errors import StoreUnusable

KEY = "sk-4711-ziegelrot-und-grasgruen"
OTHER = "sk-4712-ziegelrot-und-grasgruen"


def account(place: Path, text: str, provider: str = "claude", **environ: str) -> str:
    return compute_accounts(configured(place, text, **environ)).get(provider, "")


def configured(place: Path, text: str, **environ: str) -> Config:
    place.mkdir(exist_ok=True)
    (place / "config.toml").write_text(text)
    return load(place, place, environ)


def env(provider: str = "claude", **entries: str) -> str:
    lines = [f'{name} = "{value}"' for name, value in entries.items()]
    return "\n".join([f"[providers.{provider}.env]", *lines])


@pytest.mark.parametrize(
    "name",
    [
        "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "OPENAI_BASE_URL",
        "AZURE_OPENAI_ENDPOINT", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "HOME", "XDG_CONFIG_HOME",
        "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_REGION", "GOOGLE_APPLICATION_CREDENTIALS",
        "CLAUDE_CODE_USE_BEDROCK", "ANTHROPIC_CUSTOM_HEADERS", "OPENAI_ORG_ID", "apiKeyHelper",
        "base_url", "env_key", "http-headers", "model_provider",
    ],
)  # fmt: skip
def test_account_setting_is_recognized_by_its_name(name: str) -> None:
    assert is_account_setting(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "EDITOR", "MAX_THINKING_TOKENS", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "JAVA_HOME",
        "DATABASE_URL", "HOMEBREW_PREFIX", "HTTPS_PROXY", "API_TIMEOUT_MS", "KEYBOARD", "AUTHOR",
        "effort", "add_dirs", "autoCompactWindow",
    ],
)  # fmt: skip
def test_other_setting_is_not_an_account_setting(name: str) -> None:
    assert not is_account_setting(name)


def test_provider_without_credentials_has_no_account(tmp_path: Path) -> None:
    for text in ("", env(EDITOR="vi"), env(ANTHROPIC_API_KEY=""), "[providers.claude]\nruns = 2"):
        assert compute_accounts(configured(tmp_path, text)) == {}
    assert account(tmp_path, env(ANTHROPIC_API_KEY="${EMPTY}"), EMPTY="") == ""

    assert not (tmp_path / "seal").exists()


def test_account_depends_on_credentials_and_address(tmp_path: Path) -> None:
    url, at = "https://a.example", "https://b.example"
    found = [
        account(tmp_path, text)
        for text in (
            env(ANTHROPIC_API_KEY=KEY),
            env(ANTHROPIC_API_KEY=OTHER),
            env(ANTHROPIC_AUTH_TOKEN=KEY),
            env(ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=url),
            env(ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=at),
            env(CLAUDE_CONFIG_DIR="/one"),
            env(CLAUDE_CONFIG_DIR="/two"),
        )
    ]

    assert len(set(found)) == len(found)
    assert all(len(each) == 12 and int(each, 16) >= 0 for each in found)


def test_unrelated_settings_do_not_change_the_account(tmp_path: Path) -> None:
    plain = account(tmp_path, env(ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL="https://a"))

    more = env(EDITOR="vi", ANTHROPIC_BASE_URL="https://a", ANTHROPIC_API_KEY="${MINE}")
    more += "\n[providers.claude.options]\neffort = 'high'\nauto_compact_window = 300000"
    more += "\nmcp_config = { mcpServers = { x = { url = 'http://x', api_key = 'k' } } }"

    assert account(tmp_path, more, MINE=KEY, OTHERS="x") == plain


def test_unset_variable_is_no_error_before_a_launch(tmp_path: Path) -> None:
    text = env(ANTHROPIC_API_KEY="${MINE}")

    unset, given = account(tmp_path, text), account(tmp_path, text, MINE=KEY)

    assert unset
    assert unset != given
    assert given == account(tmp_path, env(ANTHROPIC_API_KEY=KEY))


def test_options_with_an_address_or_a_variable_change_the_account(tmp_path: Path) -> None:
    def codex(url: str, key: str) -> str:
        own = f"base_url = '{url}', env_key = 'MINE'"
        options = f"config = {{ model_providers = {{ own = {{ {own} }} }} }}"
        return f"[providers.codex.options]\n{options}\n{env('codex', MINE=key)}"

    found = [
        account(tmp_path, codex(*each), "codex")
        for each in (("https://a", KEY), ("https://b", KEY), ("https://a", OTHER))
    ]

    assert len(set(found)) == 3
    assert found[0] == account(tmp_path, codex("https://a", KEY), "codex")


def test_accounts_of_two_providers_and_two_homes_are_different(tmp_path: Path) -> None:
    both = f"{env(API_KEY=KEY)}\n{env('codex', API_KEY=KEY)}"

    here = compute_accounts(configured(tmp_path / "here", both))
    there = compute_accounts(configured(tmp_path / "there", both))

    assert len({*here.values(), *there.values()}) == 4
    assert compute_accounts(configured(tmp_path / "here", both)) == here


def test_key_of_any_bytes_has_an_account(tmp_path: Path) -> None:
    odd = os.fsdecode(b"key-\xff\xfe")

    found = account(tmp_path, env(API_KEY="${ODD}"), ODD=odd)

    assert found
    assert found != account(tmp_path, env(API_KEY="${ODD}"), ODD="key-")


def test_concurrent_loads_get_the_same_home_key(tmp_path: Path) -> None:
    for n in range(20):
        home = tmp_path / str(n)
        with ThreadPoolExecutor(8) as pool:
            keys = set(pool.map(load_home_key, [home] * 8))

        assert keys == {(home / "seal").read_bytes()}
        assert len(keys.pop()) == 32


def test_home_key_is_private_and_permanent(tmp_path: Path) -> None:
    key = load_home_key(tmp_path)

    assert stat.S_IMODE((tmp_path / "seal").stat().st_mode) == 0o600
    assert load_home_key(tmp_path) == key


@pytest.mark.parametrize("size", [0, 7, 33])
def test_truncated_home_key_is_replaced(tmp_path: Path, size: int) -> None:
    (tmp_path / "seal").write_bytes(b"x" * size)

    key = load_home_key(tmp_path)

    assert len(key) == 32
    assert (tmp_path / "seal").read_bytes() == key


def test_home_key_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "seal").mkdir()

    with pytest.raises(StoreUnusable, match="seal"):
        load_home_key(tmp_path)


def test_each_instance_of_a_provider_has_its_account(tmp_path: Path) -> None:
    text = "".join(
        f'[providers.{name}]\nkind = "claude"\n{env(name, ANTHROPIC_API_KEY=KEY)}\n'
        for name in ("home", "work")
    )

    accounts = compute_accounts(configured(tmp_path, text))

    assert set(accounts) == {"home", "work"}
    assert accounts["home"] != accounts["work"]
