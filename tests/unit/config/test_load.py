"""Valid settings are loaded as written; everything else is a named error."""

import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from steadyrun.cli.commands import config as commands
from steadyrun.config import Config, describe, is_trusted, load, locate, to_document, trust
from steadyrun.config.schema import BudgetSettings, DaemonSettings, GateSettings
from steadyrun.errors import ConfigInvalid, ConfigUntrusted, NotFound, VariableUnset
from steadyrun.model.budget import Budget
from steadyrun.model.health import HealthLimits
from steadyrun.model.secret import Secret
from steadyrun.runtime.run.timeouts import Timeouts

ADA = '[agents.ada]\nprovider = "claude"\nhome = "~/ada"\n'


class ConfigFolders:
    """A home, and a project with a directory in it to stand in."""

    def __init__(self, root: Path) -> None:
        self.home, self.project = root / "home", root / "project"
        self.cwd = self.project / "deep" / "deeper"
        for directory in (self.home, self.project / ".git", self.cwd):
            directory.mkdir(parents=True)
        self.user_file = self.home / "config.toml"
        self.project_file = self.project / "steadyrun.toml"

    def load(self, user: str = "", project: str | None = None, **environ: str) -> Config:
        self.user_file.write_text(user)
        if project is not None:
            self.project_file.write_text(project)
        return load(self.home, self.cwd, environ)

    def refused(self, user: str = "", project: str | None = None, **environ: str) -> ConfigInvalid:
        with pytest.raises(ConfigInvalid) as caught:
            self.load(user, project, **environ)
        return caught.value

    def trust(self) -> Path:
        return trust(self.home, self.cwd, {})

    def is_trusted(self) -> bool:
        return is_trusted(locate(self.home, self.cwd, {}))


@pytest.fixture
def folders(tmp_path: Path) -> ConfigFolders:
    return ConfigFolders(tmp_path.resolve())


class TestLayers:
    def test_defaults_apply_without_any_file(self, tmp_path: Path) -> None:
        config = load(tmp_path / "nowhere", tmp_path, {})

        assert config.settings.store == "sqlite"
        assert config.settings.daemon.listen == "127.0.0.1:7717"
        clocks = {f"clocks.{name}" for name in Timeouts.__struct_fields__}
        daemon = {f"daemon.{name}" for name in DaemonSettings.__struct_fields__}
        telemetry = {"telemetry.endpoint", "telemetry.content"}
        gate = {f"gate.{name}" for name in GateSettings.__struct_fields__}
        budgets = {f"budgets.{name}" for name in BudgetSettings.__struct_fields__}
        watch = {f"watch.{name}" for name in HealthLimits.__struct_fields__}
        known = {"store", *daemon, *clocks, *telemetry, *gate, *budgets, *watch}
        assert config.origins == dict.fromkeys(known, "default")

    def test_every_setting_of_a_full_file_is_loaded(self, folders: ConfigFolders) -> None:
        config = folders.load(
            'store = "sqlite"\n[daemon]\nlisten = "[::1]:80"\n[providers.claude]\n'
            'command = ["claude", ""]\nmodel = "sonnet"\nenv = { A = "${B}" }\n'
            "options = { max_retries = 2, deep = { x = [1] } }\n"
            + ADA
            + 'fallback = ["codex"]\nmodel = "opus"\nmode = "full_auto"\nbudget = { day = 5 }\n'
        )

        claude, ada = config.settings.providers["claude"], config.settings.agents["ada"]
        assert config.settings.daemon.listen == "[::1]:80"
        assert claude.command == ("claude", "")
        assert claude.env == {"A": "${B}"}
        assert claude.options == {"max_retries": 2, "deep": {"x": [1]}}
        assert (ada.provider, ada.fallback, ada.home) == ("claude", ("codex",), "~/ada")
        assert (ada.model, ada.mode, ada.budget) == ("opus", "full_auto", Budget(day=5.0))

    def test_later_layer_overrides_single_keys(self, folders: ConfigFolders) -> None:
        user = '[daemon]\nlisten = "a:1"\n[providers.claude]\nmodel = "m"\ncommand = ["c"]\n'

        config = folders.load(
            user, '[providers.claude]\nmodel = "n"\n', STEADYRUN_DAEMON_LISTEN="b:2"
        )

        assert config.settings.daemon.listen == "b:2"
        assert config.settings.providers["claude"].model == "n"
        assert config.settings.providers["claude"].command == ("c",)
        assert config.origins["daemon.listen"] == "environment STEADYRUN_DAEMON_LISTEN"
        assert config.origins["providers.claude.model"] == str(folders.project_file)
        assert config.origins["providers.claude.command"] == str(folders.user_file)

    @pytest.mark.parametrize("empty_first", [True, False])
    def test_empty_table_does_not_hide_another_layer(
        self, folders: ConfigFolders, empty_first: bool
    ) -> None:
        files = ["[providers.claude]\nenv = {}\n", '[providers.claude]\nenv = { A = "x" }\n']
        user, project = files if empty_first else reversed(files)
        folders.project_file.write_text(project)
        folders.trust()

        config = folders.load(user)

        assert config.settings.providers["claude"].env == {"A": "x"}

    def test_empty_variable_counts_as_unset(self, folders: ConfigFolders) -> None:
        config = folders.load('[daemon]\nlisten = "a:1"\n', STEADYRUN_DAEMON_LISTEN="")

        assert config.settings.daemon.listen == "a:1"

    def test_invalid_variable_is_reported_by_its_name(self, folders: ConfigFolders) -> None:
        error = folders.refused(STEADYRUN_STORE="mysql://me:hunter2@db")

        assert "environment STEADYRUN_STORE" in error.message
        assert "hunter2" not in str(error)

    def test_agent_may_be_completed_by_another_layer(self, folders: ConfigFolders) -> None:
        config = folders.load(ADA, '[agents.ada]\nmodel = "m"\n')

        assert config.settings.agents["ada"].provider == "claude"
        assert config.settings.agents["ada"].model == "m"


class TestPlaces:
    def test_home_comes_from_its_variable(self, folders: ConfigFolders) -> None:
        assert locate(None, folders.cwd, {"STEADYRUN_HOME": str(folders.home)}).home == folders.home

    def test_default_home_is_in_the_home_of_the_user(self, tmp_path: Path) -> None:
        home = locate(None, tmp_path, {"HOME": str(tmp_path)}).home

        assert home == tmp_path.resolve() / ".steadyrun"

    def test_home_of_an_unknown_user_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigInvalid, match="no home directory"):
            locate(None, tmp_path, {"STEADYRUN_HOME": "~no-such-user-here/x"})

    def test_nearest_project_file_is_used(self, folders: ConfigFolders) -> None:
        folders.project_file.touch()
        nearer = folders.cwd.parent / "steadyrun.toml"
        nearer.touch()

        assert locate(folders.home, folders.cwd, {}).project_file == nearer

    def test_project_file_above_the_repository_is_ignored(self, folders: ConfigFolders) -> None:
        (folders.project.parent / "steadyrun.toml").touch()

        assert locate(folders.home, folders.cwd, {}).project_file is None

    def test_home_is_not_a_project(self, folders: ConfigFolders) -> None:
        (folders.home / "steadyrun.toml").touch()
        (folders.home / ".git").touch()

        assert locate(folders.home, folders.home, {}).project_file is None

    def test_deleted_working_directory_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()

        with pytest.raises(ConfigInvalid, match="cannot be found"):
            load(tmp_path, None, {})


REFUSED = [
    ("stroe = 1\n", 1, "unknown setting stroe", "Did you mean 'store'?"),
    ("\n[deamon]\n", 2, "unknown setting deamon", "Did you mean 'daemon'?"),
    (
        "[daemon]\nzzz = 1\n",
        2,
        "unknown setting daemon.zzz",
        "idle_seconds, keep_days, keep_events_days, keep_texts_days, line_bytes, listen",
    ),
    ("[watch]\nloop_seconds = -1\n", 2, "watch.loop_seconds: expected a number of seconds", ""),
    ("[watch]\nmemory_bytes = -1\n", 2, "watch.memory_bytes: expected 0 to", ""),
    ("[providers.cluade]\n", 1, "unknown provider 'cluade'", "Did you mean 'claude'?"),
    ("[providers.xyzzy]\n", 1, "unknown provider 'xyzzy'", "Valid here: claude, codex"),
    ("[providers.codex]\nmodle = 1\n", 2, "providers.codex.modle", "Did you mean 'model'?"),
    ("[providers.work]\nmodel = 'm'\n", 1, "unknown provider 'work'", "needs a kind"),
    ("[providers.w]\nkind = 'cluade'\n", 2, "unknown kind 'cluade'", "Did you mean 'claude'?"),
    ("[providers.w]\nkind = 'x'\n", 2, "unknown kind 'x'", "claude, codex, scripted, shell"),
    ("[providers.w]\nkind = ''\n", 2, "providers.w.kind: unknown kind ''", "Valid here"),
    ("[providers.w]\nkind = 3\n", 2, "providers.w.kind: expected a string", ""),
    ("[providers.codex]\nkind = 'claude'\n", 2, "expected 'codex'", "another name"),
    ("[providers.'a b']\nkind = 'claude'\n", 1, "cannot be the name of a provider", ""),
    ("providers = 3\n", 1, "providers: expected a table, found a number", ""),
    ("[[agents]]\n", 1, "agents: expected a table, found a list", ""),
    ("store = 3\n", 1, "store: expected a string, found a number", ""),
    ("store = 'mysql'\n", 1, 'expected "sqlite" or "postgresql://…"', ""),
    ("store = 'postgresql://h/db'\n", 1, "not available in this version", "sqlite"),
    ("[daemon]\nlisten = 'nohost'\n", 2, "expected HOST:PORT", ""),
    ("[gate]\ninitial_seconds = 0\n", 2, "expected 1 to 604800, found 0", ""),
    ("[gate]\ninitial_seconds = 1.5\n", 2, "expected a whole number", ""),
    ("[gate]\nmax_seconds = -1\n", 2, "expected 1 to 604800, found -1", ""),
    ("[gate]\nmax_seconds = 60\n", 2, "60 is less than gate.initial_seconds, 900", ""),
    ("[gate]\ninitial_seconds = 7200\n", 2, "3600 is less than gate.initial_seconds", ""),
    ("[gate]\nfactor = 1\n", 2, "expected a number above 1, found 1", ""),
    ("[gate]\nfactor = nan\n", 2, "expected a number above 1, found nan", ""),
    ("[gate]\nattempts = 0\n", 2, "expected 1 to 1000, found 0", ""),
    ("[clocks]\nidle_seconds = -1\n", 2, "expected a number of seconds, 0 or more, found -1", ""),
    ("[clocks]\nhang_seconds = inf\n", 2, "0 or more, found inf", ""),
    ("[clocks]\nhang_seconds = 'x'\n", 2, "expected a number, found a string", ""),
    ("[daemon]\nlisten = ':80'\n", 2, "expected HOST:PORT", ""),
    ("[daemon]\nlisten = 'h:0'\n", 2, "from 1 to 65535, found 0", ""),
    ("[daemon]\nlisten = 'h:65536'\n", 2, "from 1 to 65535, found 65536", ""),
    ("[providers.codex]\ncommand = []\n", 2, "expected a program", ""),
    ("[providers.codex]\ncommand = ['~/codex']\n", 2, "has a ~", "whole path"),
    ("[providers.codex]\ncommand = 'codex'\n", 2, "expected a list of strings, found a string", ""),
    ("[providers.codex]\ncommand = [\n1,\n]\n", 2, "expected a list of strings", ""),
    ("[providers.codex]\nmodel = ''\n", 2, "must not be empty", ""),
    ('[providers.codex]\nmodel = "a\\u0000"\n', 2, "must not contain a NUL", ""),
    ("[providers.codex]\nenv = 1\n", 2, "providers.codex.env: expected a table", ""),
    ("[providers.codex.env]\nA = 1\n", 2, "env.A: expected a string, found a number", ""),
    ("[providers.codex.env]\n'A=B' = ''\n", 2, "cannot be the name of a variable", ""),
    ("[providers.codex.env]\nA = '${1}'\n", 2, "env.A: has a ${", "Write $$"),
    ("[providers.codex.env]\nA = '${B'\n", 2, "env.A: has a ${", "Write $$"),
    ("[providers.codex]\noptions = 1979-05-27\n", 2, "found a date or time", ""),
    ("[agents.Ada]\n", 1, "cannot be the name of an agent", "up to 64"),
    (f"[agents.{'a' * 65}]\n", 1, "cannot be the name of an agent", "up to 64"),
    ("[agents.ada]\nprovider = 'codex'\n", 1, "agents.ada requires home", ""),
    ("\n[agents.ada]\nhome = '/'\n", 2, "agents.ada requires provider", ""),
    ("[agents.ada]\n", 1, "agents.ada requires provider", ""),
    ("[agents.ada]\nprovider = 'codxe'\n", 2, "unknown provider 'codxe'", "'codex'"),
    ("[agents.ada]\nhome = '~bob/x'\n", 2, "expected a path from /, from ~/ or from here", ""),
    ("[agents.ada]\nbudget.day = -1\n", 2, "a number of dollars above 0, found -1", ""),
    ("[agents.ada]\nbudget.agent = nan\n", 2, "a number of dollars above 0, found nan", ""),
    ("[agents.ada]\nbudget.run_tokens = 0\n", 2, "a number of tokens above 0, found 0", ""),
    ("[agents.ada]\nbudget.run_tokens = 1.5\n", 2, "expected a whole number", ""),
    ("[agents.ada]\nbudget.weak = 1\n", 2, "unknown setting agents.ada.budget.weak", ""),
    ("[budgets]\ntimezone = 'Mars/Base'\n", 2, "unknown time zone 'Mars/Base'", "tzdata"),
    ("[budgets]\ntimezone = '../passwd'\n", 2, "unknown time zone '../passwd'", ""),
    ("[budgets]\ntimezone = 'Europe'\n", 2, "unknown time zone 'Europe'", ""),
    ("[budgets]\ntimezone = ''\n", 2, "unknown time zone ''", ""),
    ("[budgets]\nunknown = 'alow'\n", 2, "unknown unknown 'alow'", "Did you mean 'allow'?"),
    ("[budgets]\nunknown_usd_per_million = 0\n", 2, "above 0, found 0", ""),
    ("[agents.ada]\nhome = ''\n", 2, "must not be empty", ""),
    (ADA + "role = '../x'\n", 4, "cannot be the name of a role", "letter or a digit"),
    (ADA + "system = ''\n", 4, "must not be empty", ""),
    (ADA + "followup = 'stear'\n", 4, "unknown followup 'stear'", "'steer'"),
    (ADA + "on_lost = 'giveup'\n", 4, "unknown on_lost 'giveup'", "fail, resume, retry"),
    (ADA + "wall_seconds = 0\n", 4, "a number of seconds above 0, found 0", ""),
    (ADA + "wall_seconds = inf\n", 4, "a number of seconds above 0, found inf", ""),
    ("[daemon]\nruns = 0\n", 2, "daemon.runs: expected 1 to 100, found 0", ""),
    ("[daemon]\nruns = 101\n", 2, "expected 1 to 100, found 101", ""),
    ("[daemon]\nruns = 'x'\n", 2, "expected a whole number, found a string", ""),
    ("[daemon]\nruns = true\n", 2, "expected a whole number, found a boolean", ""),
    ("[daemon]\nruns = 1.5\n", 2, "expected a whole number, found a number", ""),
    ("[daemon]\nprocesses = -1\n", 2, "expected 0 to 100, found -1", ""),
    ("[daemon]\nidle_seconds = nan\n", 2, "0 or more, found nan", ""),
    ("[daemon]\ndrain_seconds = -1\n", 2, "0 or more, found -1", ""),
    ("[providers.codex]\nruns = 0\n", 2, "providers.codex.runs: expected 1 to 100, found 0", ""),
    ("[providers.codex.env]\nSTEADYRUN_HOME = 'x'\n", 2, "may not be set", "another name"),
    ("[providers.codex.env]\nSTEADYRUN_X = ''\n", 2, "that begin with STEADYRUN_ are reserved", ""),
    (ADA + "fallback = ['codex', 'claud']\n", 4, "unknown provider 'claud'", "'claude'"),
    (ADA + "fallback = ['codex', 'codex']\n", 4, "names a provider twice", ""),
    (ADA + "fallback = ['claude']\n", 4, "is already its provider", ""),
    (ADA + "mode = 'full-auto'\n", 4, "unknown mode 'full-auto'", "'full_auto'"),
    (ADA + "tier = 'readonyl'\n", 4, "unknown tier 'readonyl'", "Did you mean 'readonly'?"),
    (ADA + "tier = 'custom'\n", 4, "agents.ada.tier: the tier custom needs a list", "Name some"),
    (ADA + "tier = 'full'\ntools = ['Read']\n", 5, "agents.ada.tools: the tier full has", "Remove"),
    (ADA + "tools = ['Raed']\n", 4, "agents.ada.tools: unknown tool 'Raed'", "'Read'"),
    (ADA + "tools = ['CronList']\n", 4, "'CronList' is denied to every agent", "Leave it out"),
    (ADA + "tools = 'Read'\n", 4, "expected a list of strings", ""),
    (ADA + "deny = ['Bsah']\n", 4, "agents.ada.deny: unknown tool 'Bsah'", "'Bash'"),
    (ADA + "deny = ['mcp__a,Bash']\n", 4, "unknown tool 'mcp__a,Bash'", ""),
    (ADA + "mode = 1\n", 4, "agents.ada.mode: expected a string", ""),
    (ADA + "budget = { day = 0 }\n", 4, "above 0, found 0", ""),
    (ADA + "budget = { run = nan }\n", 4, "above 0, found nan", ""),
    (ADA + "budget = { month = inf }\n", 4, "above 0, found inf", ""),
    (ADA + "budget = { month = true }\n", 4, "expected a number, found a boolean", ""),
    (ADA + "budget = { week = 1 }\n", 4, "unknown setting agents.ada.budget.week", "Valid"),
    ("a = 1\na = 2\n", 2, "is not valid TOML", ""),
    ("[daemon]\nlisten = \n", 2, "is not valid TOML", ""),
    ('store = """\n', 1, "is not valid TOML", ""),
    ("a = \0\n", 1, "is not valid TOML", ""),
    ('"a\\u001b[2J" = 1\n', 1, 'unknown setting "a\\u001b[2J"', ""),
]


class TestAgentHomes:
    """A path is from where it is written."""

    @pytest.mark.parametrize(
        ("home", "place"), [("/srv/ada", "/srv/ada"), ("~/a/b", "/people/me/a/b")]
    )
    def test_absolute_agent_home_is_unchanged(
        self, folders: ConfigFolders, home: str, place: str
    ) -> None:
        config = folders.load(ADA.replace("~/ada", home), HOME="/people/me")

        assert config.resolve_agent_home("ada") == Path(place)

    def test_relative_agent_home_in_the_user_file_starts_at_the_home(
        self, folders: ConfigFolders
    ) -> None:
        config = folders.load(ADA.replace("~/ada", "agents/ada"))

        assert config.resolve_agent_home("ada") == folders.home / "agents" / "ada"

    def test_relative_agent_home_in_a_project_starts_at_the_project(
        self, folders: ConfigFolders
    ) -> None:
        folders.project_file.write_text(ADA.replace("~/ada", "ada"))
        folders.trust()

        config = load(folders.home, folders.cwd, {})

        assert config.resolve_agent_home("ada") == folders.project / "ada"


class TestRefusals:
    @pytest.mark.parametrize(("text", "line", "problem", "hint"), REFUSED)
    def test_invalid_file_is_refused_with_its_line(
        self, folders: ConfigFolders, text: str, line: int, problem: str, hint: str
    ) -> None:
        error = folders.refused(text)

        assert problem in error.message
        assert hint in error.hint
        assert (error.file, error.line) == (folders.user_file, line)

    def test_reported_line_is_exact_after_multiline_values(self, folders: ConfigFolders) -> None:
        error = folders.refused(
            '[providers.codex]\nmodel = """\n[agents.x]\nenv.A = 1\n"""\n'
            "command = [\n  'a', # ]\n  ']',\n]\n\n# env.A = 1\nenv.B = ''\nenv.A = 1\n"
        )

        assert error.line == 13

    def test_error_does_not_repeat_possible_secrets(self, folders: ConfigFolders) -> None:
        for text in ("providers.codex.env = 'hunter2'", "store = 'postgresql://a:hunter2@h/d'"):
            assert "hunter2" not in str(folders.refused(text))

    def test_bytes_that_are_not_utf8_are_refused_with_offset_and_line(
        self, folders: ConfigFolders
    ) -> None:
        folders.user_file.write_bytes(b"# fine\n# \xff\n")

        with pytest.raises(ConfigInvalid, match="byte 0xff at offset 9") as caught:
            load(folders.home, folders.cwd, {})

        assert caught.value.line == 2

    @pytest.mark.parametrize(
        "content",
        [
            "x = " + "[" * 100_000,
            "x = " + "9" * 5_000,
            "a." * 500_000 + "a = 1",
            "[" + '"a" . ' * 150_000 + "a]",
            "[providers.codex.options]\n" + ".".join("a" * 60) + " = {b.c.d.e.f.g = 1}",
        ],
        ids=["deep-list", "long-number", "long-key", "long-header", "deep-options"],
    )
    def test_hostile_file_is_refused_quickly(self, folders: ConfigFolders, content: str) -> None:
        assert folders.refused(content).file == folders.user_file

    def test_line_that_takes_too_long_to_find_is_left_out(self, folders: ConfigFolders) -> None:
        error = folders.refused(
            "providers.codex.options.x = [\n" + "[],\n" * 20_000 + "]\nzzz = 1\n"
        )

        assert "unknown setting zzz" in error.message
        assert error.line is None

    def test_too_large_file_is_refused(self, folders: ConfigFolders) -> None:
        assert "larger than" in folders.refused("#" * (1024 * 1024 + 1)).message

    def test_directory_as_configuration_file_is_refused(self, folders: ConfigFolders) -> None:
        folders.user_file.mkdir()

        with pytest.raises(ConfigInvalid, match="is not a regular file"):
            load(folders.home, folders.cwd, {})

    def test_fifo_as_configuration_file_is_refused_without_blocking(
        self, folders: ConfigFolders
    ) -> None:
        os.mkfifo(folders.user_file)

        with pytest.raises(ConfigInvalid, match="is not a regular file"):
            load(folders.home, folders.cwd, {})

    def test_file_as_home_is_refused(self, folders: ConfigFolders) -> None:
        folders.user_file.touch()

        with pytest.raises(ConfigInvalid, match="cannot be read: Not a directory"):
            load(folders.user_file, folders.cwd, {})


class TestInstances:
    TEXT = (
        "[providers.work]\nkind = 'claude'\nmodel = 'm'\nenv = { A_KEY = '${A}' }\n"
        "[providers.claude]\nkind = 'claude'\n"
        "[agents.ada]\nprovider = 'work'\nfallback = ['claude', 'codex']\nhome = '/'\n"
    )

    def test_kind_is_the_name_of_the_table_by_default(self, folders: ConfigFolders) -> None:
        config = folders.load(self.TEXT, A="secret-value")

        kinds = [config.find_kind(name) for name in ("work", "claude", "codex")]
        assert kinds == ["claude", "claude", "codex"]
        assert config.settings.agents["ada"].provider == "work"

    def test_each_instance_has_its_environment_and_account(self, folders: ConfigFolders) -> None:
        config = folders.load(self.TEXT, A="secret-value")

        assert config.expand_env("work") == {"A_KEY": Secret("secret-value")}
        assert config.expand_env("claude") == {}
        assert list(config.find_account("work")) == ["env.A_KEY"]
        assert Secret("secret-value") in config.list_secrets()

    def test_untrusted_project_may_set_the_model_of_an_instance(
        self, folders: ConfigFolders
    ) -> None:
        config = folders.load(self.TEXT, "[providers.work]\nmodel = 'other'\n", A="x")

        assert config.settings.providers["work"].model == "other"
        assert config.find_kind("work") == "claude"

    def test_untrusted_project_cannot_add_an_instance(self, folders: ConfigFolders) -> None:
        error = folders.refused("", "[providers.work]\nmodel = 'other'\n")

        assert "unknown provider 'work'" in error.problem
        assert error.file == folders.project_file

    def test_empty_table_has_the_kind_of_its_name(self, folders: ConfigFolders) -> None:
        assert folders.load("[providers.claude]\n").find_kind("claude") == "claude"

    def test_unknown_provider_of_an_agent_suggests_an_instance(
        self, folders: ConfigFolders
    ) -> None:
        error = folders.refused(self.TEXT.replace("provider = 'work'", "provider = 'wrok'"))

        assert error.problem == "agents.ada.provider: unknown provider 'wrok'"
        assert error.hint == "Did you mean 'work'?"


class TestTrust:
    HARMFUL = '# a project\n[providers.claude]\ncommand = ["./evil"]\n'

    def test_untrusted_project_may_set_models(self, folders: ConfigFolders) -> None:
        project = '[providers.claude]\nmodel = "m"\n[agents.ada]\nmodel = "n"\n'

        config = folders.load(ADA, project)

        assert config.settings.agents["ada"].model == "n"
        assert not config.project_trusted

    @pytest.mark.parametrize(
        ("text", "key", "line"),
        [
            (HARMFUL, "providers.claude.command", 3),
            ("store = 'sqlite'\n", "store", 1),
            ("[agents.ada]\nprovider = 'shell'\n", "agents.ada.provider", 2),
            ("[daemon]\nlisten = 'a:1'\n", "daemon.listen", 2),
            ("[providers.claude.env]\nA = ''\n", "providers.claude.env.A", 2),
            ("[providers.claude]\noptions.x = 1\n", "providers.claude.options.x", 2),
            ("[providers.w]\nkind = 'shell'\n", "providers.w.kind", 2),
            ("[agents.ada]\nhome = '/'\n", "agents.ada.home", 2),
            ("[agents.ada]\nmode = 'plan'\n", "agents.ada.mode", 2),
            ("[agents.ada]\nbudget.day = 1\n", "agents.ada.budget.day", 2),
        ],
    )
    def test_untrusted_project_may_set_no_other_keys(
        self, folders: ConfigFolders, text: str, key: str, line: int
    ) -> None:
        error = folders.refused(ADA, text)

        assert isinstance(error, ConfigUntrusted)
        assert error.message.startswith(f"{folders.project_file}:{line}: {key} ")
        assert "steadyrun trust" in error.hint

    def test_trusted_project_may_set_everything(self, folders: ConfigFolders) -> None:
        folders.project_file.write_text(self.HARMFUL)

        trusted = folders.trust()

        assert trusted == folders.project_file
        config = folders.load()
        assert config.project_trusted
        assert config.settings.providers["claude"].command == ("./evil",)

    def test_changed_file_must_be_trusted_again(self, folders: ConfigFolders) -> None:
        folders.project_file.write_text(self.HARMFUL)
        folders.trust()

        error = folders.refused("", self.HARMFUL + "# changed\n")

        assert isinstance(error, ConfigUntrusted)
        assert not folders.is_trusted()

    def test_trust_applies_to_one_path(self, folders: ConfigFolders) -> None:
        folders.project_file.write_text(self.HARMFUL)
        folders.trust()

        folders.project_file.rename(folders.cwd / "steadyrun.toml")

        assert not folders.is_trusted()

    def test_trust_file_is_private_and_leaves_no_drafts(self, tmp_path: Path) -> None:
        (tmp_path / "steadyrun.toml").touch()
        home = tmp_path / "new"

        trust(home, tmp_path, {})

        assert home.stat().st_mode & 0o777 == 0o700
        assert (home / "trusted.json").stat().st_mode & 0o777 == 0o600
        assert [file.name for file in home.iterdir()] == ["trusted.json"]

    def test_second_trusted_project_keeps_the_first(
        self, folders: ConfigFolders, tmp_path: Path
    ) -> None:
        folders.project_file.touch()
        folders.trust()
        other = tmp_path / "other"
        other.mkdir()
        (other / "steadyrun.toml").touch()

        trust(folders.home, other, {})

        assert folders.is_trusted()

    def test_invalid_file_cannot_be_trusted(self, folders: ConfigFolders) -> None:
        folders.project_file.write_text("stroe = 1\n")

        with pytest.raises(ConfigInvalid, match="unknown setting stroe"):
            folders.trust()

        assert not folders.is_trusted()

    def test_trust_without_a_project_file_is_refused(self, folders: ConfigFolders) -> None:
        with pytest.raises(NotFound, match=r"steadyrun\.toml"):
            folders.trust()

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": 1}', b"\xff", b"[" * 100_000])
    def test_damaged_trust_file_is_reported(self, folders: ConfigFolders, content: bytes) -> None:
        (folders.home / "trusted.json").write_bytes(content)

        error = folders.refused("", "")

        assert error.file == folders.home / "trusted.json"
        assert "steadyrun trust" in error.hint

    def test_trust_file_that_cannot_be_written_is_reported(self, folders: ConfigFolders) -> None:
        folders.project_file.touch()
        blocked = folders.home / "file"
        blocked.touch()

        with pytest.raises(ConfigInvalid, match=r"trusted\.json: cannot be"):
            trust(blocked, folders.cwd, {})

    def test_link_as_project_file_is_refused(self, folders: ConfigFolders) -> None:
        target = folders.home / "other.toml"
        target.touch()
        folders.project_file.symlink_to(target)

        assert "symbolic link" in folders.refused().message


class TestVariables:
    ENV = "[providers.claude.env]\n"

    def test_variables_are_expanded_at_launch(self, folders: ConfigFolders) -> None:
        config = folders.load(self.ENV + "A = '<${X}${Y}> $$ $Z $${X}'\n", X="1", Y="")

        assert config.expand_env("claude") == {"A": Secret("<1> $ $Z ${X}")}

    def test_unset_variable_is_an_error_only_at_launch(self, folders: ConfigFolders) -> None:
        config = folders.load(self.ENV + "A = '${NOWHERE}'\n")

        with pytest.raises(VariableUnset) as caught:
            config.expand_env("claude")

        assert caught.value.variable == "NOWHERE"
        assert caught.value.setting == "providers.claude.env.A"

    def test_provider_without_settings_has_an_empty_environment(
        self, folders: ConfigFolders
    ) -> None:
        assert folders.load().expand_env("codex") == {}

    def test_secrets_are_found_in_nested_options_and_urls(self, folders: ConfigFolders) -> None:
        config = folders.load(
            "[providers.scripted]\n"
            'env = { BASE = "https://user:UrlPassw0rd@host/" }\n'
            'options = { a = { password = "deep-1" }, b = [{ api_token = "deep-2" }], c = "no" }\n'
        )

        values = {secret.reveal() for secret in config.list_secrets()}

        assert values == {"UrlPassw0rd", "deep-1", "deep-2"}

    def test_name_of_a_variable_is_not_a_secret(self, folders: ConfigFolders) -> None:
        config = folders.load(
            "[providers.codex.options.config.model_providers.mine]\nenv_key = 'OPENAI_API_KEY'\n"
            "[providers.codex.options.mcp_servers.docs]\nbearer_token_env_var = 'DOCS_TOKEN'\n"
        )

        assert list(config.list_secrets()) == []

    def test_values_from_variables_or_with_secret_names_are_secrets(
        self, folders: ConfigFolders
    ) -> None:
        config = folders.load(
            self.ENV + "A = 'Bearer ${MY_TOKEN}'\nB = 'open'\nC_PASSWORD = 'pa$$s'\n"
            "D = '${UNSET}'\nE_KEY = '${UNSET}-${HALF}'\nF = '${PLAIN}/x'\n"
            "[providers.claude]\noptions = { api_key = 'opt' }\n",
            MY_TOKEN="t0ken",
            HALF="half",
            PLAIN="/p",
        )

        values = {secret.reveal() for secret in config.list_secrets()}

        assert values == {"t0ken", "Bearer t0ken", "pa$s", "half", "/p", "/p/x", "opt"}

    def test_repr_of_a_config_has_no_secrets(self, folders: ConfigFolders) -> None:
        config = folders.load(self.ENV + "A_KEY = 'hunter2'\nB = '${C}'\n", C="swordfish")

        assert "hunter2" not in repr(config)
        assert "swordfish" not in repr(config)


class TestDescription:
    USER = (
        "[providers.claude.env]\nA_KEY = 'hunter2'\nB_KEY = '${B}'\nC = 'http://me:hush@h/'\n"
        "D = '--auth=hunter2'\n"
        "[providers.claude.options]\nx = { api_key = ['deepsecret'] }\nat = 1979-05-27\n" + ADA
    )

    def test_every_setting_is_listed_with_its_origin(self, folders: ConfigFolders) -> None:
        rows = [
            row
            for row in describe(folders.load(ADA))
            if not row[0].startswith(("clocks.", "gate.", "budgets.", "watch."))
        ]

        assert rows == [
            ("store", '"sqlite"', "default"),
            ("daemon.listen", '"127.0.0.1:7717"', "default"),
            ("daemon.runs", "5", "default"),
            ("daemon.processes", "5", "default"),
            ("daemon.idle_seconds", "300.0", "default"),
            ("daemon.drain_seconds", "60.0", "default"),
            ("daemon.keep_days", "7.0", "default"),
            ("daemon.keep_events_days", "0.0", "default"),
            ("daemon.keep_texts_days", "0.0", "default"),
            ("daemon.line_bytes", "67108864", "default"),
            ("agents.ada.provider", '"claude"', str(folders.user_file)),
            ("agents.ada.home", '"~/ada"', str(folders.user_file)),
            ("agents.ada.fallback", "[]", "default"),
            ("agents.ada.mode", '"default"', "default"),
            ("agents.ada.deny", "[]", "default"),
            ("agents.ada.followup", '"steer"', "default"),
            ("agents.ada.on_lost", '"resume"', "default"),
            ("agents.ada.on_limited", '"wait"', "default"),
            ("agents.ada.approvers", "[]", "default"),
            ("telemetry.endpoint", '""', "default"),
            ("telemetry.content", "false", "default"),
        ]

    def test_secrets_are_hidden_and_templates_shown_as_written(
        self, folders: ConfigFolders
    ) -> None:
        config = folders.load(self.USER, B="swordfish")

        shown = {key: value for key, value, _ in describe(config)}

        assert shown["providers.claude.env.A_KEY"] == '"***"'
        assert shown["providers.claude.env.B_KEY"] == '"${B}"'
        assert shown["providers.claude.env.C"] == '"http://me:***@h/"'
        assert shown["providers.claude.env.D"] == '"--auth=[redacted]"'
        assert shown["providers.claude.options.x"] == '{"api_key":["***"]}'
        assert shown["providers.claude.options.at"] == '"1979-05-27"'

    def test_json_document_equals_the_description(self, folders: ConfigFolders) -> None:
        config = folders.load(self.USER)

        settings = to_document(config)["settings"]

        assert [
            (each["key"], msgspec.json.encode(each["value"]).decode(), each["origin"])
            for each in settings
        ] == describe(config)


class Terminal:
    """A shell whose working directory is the project."""

    def __init__(self, folders: ConfigFolders, read: Callable[[], str]) -> None:
        self.folders, self._read = folders, read

    def run(self, name: str, *, json: bool = False) -> str:
        assert getattr(commands, name)(Namespace(json=json)) == 0
        return self._read()


@pytest.fixture
def terminal(
    folders: ConfigFolders, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    monkeypatch.setenv("STEADYRUN_HOME", str(folders.home))
    monkeypatch.delenv("STEADYRUN_STORE", raising=False)
    monkeypatch.delenv("STEADYRUN_DAEMON_LISTEN", raising=False)
    monkeypatch.chdir(folders.cwd)
    return Terminal(folders, lambda: capsys.readouterr().out)


class TestCommands:
    def test_show_prints_settings_and_origins(self, terminal: Terminal) -> None:
        out = terminal.run("show")

        assert out.splitlines()[0].split() == ["store", "=", '"sqlite"', "#", "default"]

    def test_show_prints_one_json_document(self, terminal: Terminal) -> None:
        document = msgspec.json.decode(terminal.run("show", json=True))

        assert document["settings"][0] == {"key": "store", "value": "sqlite", "origin": "default"}

    def test_show_path_reports_missing_files(self, terminal: Terminal) -> None:
        out = terminal.run("show_path")

        assert f"user     {terminal.folders.user_file}  (does not exist)" in out
        assert "project  none in this directory or above" in out

    def test_show_path_works_with_invalid_files(self, terminal: Terminal) -> None:
        terminal.folders.user_file.write_text("wrong")
        terminal.folders.project_file.write_text("wrong")

        document = msgspec.json.decode(terminal.run("show_path", json=True))

        assert document["user"] == {"path": str(terminal.folders.user_file), "exists": True}
        assert document["project"]["exists"]
        assert not document["project"]["trusted"]

    def test_check_lists_what_is_valid(self, terminal: Terminal) -> None:
        terminal.folders.load(ADA, "")

        lines = terminal.run("check").splitlines()

        assert all(line.startswith("ok: ") for line in lines)
        assert lines[-1] == "ok: agents: ada"

    def test_check_raises_the_error_of_an_invalid_file(self, terminal: Terminal) -> None:
        terminal.folders.user_file.write_text("stroe = 1\n")

        with pytest.raises(ConfigInvalid, match="unknown setting stroe"):
            terminal.run("check")

    def test_trust_is_shown_by_path_and_check(self, terminal: Terminal) -> None:
        terminal.folders.project_file.write_text('[daemon]\nlisten = "a:1"\n')

        assert str(terminal.folders.project_file) in terminal.run("trust")

        assert "(trusted)" in terminal.run("show_path")
        assert msgspec.json.decode(terminal.run("check", json=True))["project"]["trusted"]
